//! Many questions at once on the built-in model: each answer is that of its question alone, whatever runs beside it,
//! is cancelled, or is put off because blocks ran out.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use chat::{ChatOptions, Json, Message, Specials};
use checkpoint::Checkpoint;
use cpu::{Cpu, CpuOptions};
use engine::{Constraint, Engine, EngineOptions, Scheduler, SchedulerOptions};
use markbase_answer::{Answer, Finish, Listener, Piece, Question, Result, Settings, Texts};
use model::Model;
use plan::{Backend, TokenMask};

fn open() -> (Texts, Scheduler, impl Fn(usize) -> Scheduler) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nano-e-4bit");
    let checkpoint = Arc::new(Checkpoint::open(folder).unwrap());
    let texts = Texts::read(checkpoint.folder()).unwrap();
    let scheduler = move |cache_tokens: usize| {
        let model = Model::read(&checkpoint).unwrap();
        let mut backend = Cpu::new(CpuOptions { threads: 2, ..CpuOptions::default() }).unwrap();
        backend.load(&model.plan.weights, &checkpoint, &mut |_| {}).unwrap();
        let options =
            EngineOptions { context: 512, sequences: 16, max_rows: 96, max_wanted: 16, keep: vec![], watch: false };
        let engine = Engine::with_cache(Box::new(backend), model.plan, cache_tokens, options).unwrap();
        let options = SchedulerOptions { max_running: 16, max_waiting: 64, chunk: 40 };
        Scheduler::new(engine, options).unwrap()
    };
    let roomy = scheduler(16 * 512);
    (texts, roomy, scheduler)
}

#[derive(Clone, Default)]
struct Ear {
    answer: Arc<Mutex<Option<Result<Answer>>>>,
    joined: Arc<Mutex<String>>,
    gone: Arc<AtomicBool>,
    /// Goes away after so many pieces.
    leaves_after: Option<usize>,
    heard: Arc<AtomicUsize>,
}

impl Listener for Ear {
    fn piece(&mut self, piece: Piece) {
        if let Piece::Text(text) = piece {
            self.joined.lock().unwrap().push_str(&text);
            if self.leaves_after == Some(self.heard.fetch_add(1, Ordering::Relaxed)) {
                self.gone.store(true, Ordering::Relaxed);
            }
        }
    }
    fn answered(&mut self, answer: Result<Answer>) {
        assert!(self.answer.lock().unwrap().replace(answer).is_none(), "the end is told once");
    }
    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

impl Ear {
    fn answer(&self) -> Answer {
        self.answer.lock().unwrap().take().expect("an end").expect("no error")
    }
}

fn question(texts: &Texts, number: usize) -> (Question, Settings) {
    let animal = ["fox", "cat", "bear", "bird"][number % 4];
    let mut messages = vec![Message::text("user", format!("Tell me a short story about a {animal}."))];
    if number.is_multiple_of(5) {
        // A long prompt among short ones.
        let talk = [Message::text("user", "What is 17 + 25?"), Message::text("assistant", "42")];
        messages = std::iter::repeat_n(talk, 1 + number % 7).flatten().chain(messages).collect();
    }
    let question = texts.chat(&messages, &ChatOptions::default()).unwrap();
    let settings = Settings {
        max_tokens: Some(8 + number % 40),
        temperature: Some(if number.is_multiple_of(3) { 0.0 } else { 1.3 }),
        seed: Some(number as u64),
        repetition_penalty: (number % 4 == 1).then_some(1.3),
        presence_penalty: (number % 6 == 1).then_some(0.7),
        min_p: (number % 5 == 2).then_some(0.05),
        stop: if number % 8 == 3 { vec!["the".into()] } else { vec![] },
        log_probabilities: (number % 4 == 2).then_some(2),
        ..Settings::default()
    };
    (question, settings)
}

fn ask(texts: &Texts, scheduler: &mut Scheduler, number: usize, ear: &Ear) {
    let (question, settings) = question(texts, number);
    for request in texts.ask(question, &settings, Box::new(ear.clone())).unwrap() {
        scheduler.submit(request).unwrap();
    }
}

fn run(scheduler: &mut Scheduler) {
    while !scheduler.is_idle() {
        scheduler.step();
    }
}

#[test]
fn sixty_four_with_cancels_and_a_small_pool_are_each_as_if_alone() {
    let (texts, mut roomy, scheduler) = open();
    let alone: Vec<Answer> = (0..64)
        .map(|number| {
            let ear = Ear::default();
            ask(&texts, &mut roomy, number, &ear);
            run(&mut roomy);
            ear.answer()
        })
        .collect();

    let mut tight = scheduler(176);
    let leaves = |number: usize| (number % 9 == 4).then_some(2);
    let ears: Vec<Ear> = (0..64).map(|number| Ear { leaves_after: leaves(number), ..Ear::default() }).collect();
    for (number, ear) in ears.iter().enumerate() {
        ask(&texts, &mut tight, number, ear);
        if number % 3 == 0 {
            tight.step();
        }
    }
    run(&mut tight);
    let stats = tight.stats();
    assert!(stats.preemptions > 0, "the pool is small enough");
    assert_eq!(stats.free_blocks, stats.total_blocks);
    for (number, (ear, alone)) in ears.iter().zip(&alone).enumerate() {
        let answer = ear.answer();
        if answer.finish == Finish::Cancelled {
            assert!(leaves(number).is_some() && alone.ids.starts_with(&answer.ids), "question {number}");
            continue;
        }
        let facts = |answer: &Answer| (answer.ids.clone(), answer.text.clone(), answer.finish, answer.scores.clone());
        assert_eq!(facts(&answer), facts(alone), "question {number}");
        assert_eq!(*ear.joined.lock().unwrap(), answer.text, "pieces join to the whole");
    }
    assert!(alone.iter().any(|answer| answer.finish == Finish::Stop));
    assert!(alone.iter().any(|answer| answer.finish == Finish::Length));
}

#[test]
fn stop_texts_end_an_answer_at_their_token_and_are_not_shown() {
    let (texts, mut scheduler, _) = open();
    let ask_with = |scheduler: &mut Scheduler, stop: &[&str]| {
        let question = texts.chat(&[Message::text("user", "What is the capital of France?")], &ChatOptions::default());
        let stop = stop.iter().map(|text| (*text).to_owned()).collect();
        let settings = Settings { temperature: Some(0.0), stop, ..Settings::default() };
        let ear = Ear::default();
        for request in texts.ask(question.unwrap(), &settings, Box::new(ear.clone())).unwrap() {
            scheduler.submit(request).unwrap();
        }
        run(scheduler);
        ear.answer()
    };
    let whole = ask_with(&mut scheduler, &[]);
    assert_eq!(whole.text, "The capital of France is Paris.");
    // Over a token's border: the end of one word and the start of the next.
    let cut = ask_with(&mut scheduler, &["l of F", "nowhere"]);
    assert_eq!((cut.text.as_str(), cut.finish), ("The capita", Finish::Stop));
    assert!(cut.usage.completion_tokens < whole.usage.completion_tokens);
}

#[test]
fn a_thought_that_is_never_closed_is_told_and_counted() {
    let (texts, mut scheduler, _) = open();
    let options = ChatOptions { enable_thinking: true, ..ChatOptions::default() };
    let question = texts.chat(&[Message::text("user", "What is 31 + 34 + 17?")], &options).unwrap();
    for max_tokens in 1..=8 {
        let settings = Settings { temperature: Some(0.0), max_tokens: Some(max_tokens), ..Settings::default() };
        let ear = Ear::default();
        for request in texts.ask(question.clone(), &settings, Box::new(ear.clone())).unwrap() {
            scheduler.submit(request).unwrap();
        }
        run(&mut scheduler);
        let answer = ear.answer();
        assert_eq!((answer.text.as_str(), answer.finish), ("", Finish::Length));
        assert_eq!(answer.usage.completion_tokens, max_tokens);
        assert_eq!(answer.usage.thought_tokens, max_tokens);
        assert_eq!(answer.thought.is_empty(), max_tokens <= 3, "{:?}", answer.thought);
    }
}

#[test]
fn media_are_refused_by_place() {
    let (texts, ..) = open();
    let messages = Message::read_list(
        r#"[{"role": "user", "content": [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": "x"}}]}]"#,
    );
    let refused = texts.chat(&messages.unwrap(), &ChatOptions::default()).unwrap_err().to_string();
    assert_eq!(refused, "messages[0]: the image in it cannot be shown to the model by this version; leave it out");
}

/// Lets these ids come, one after the other.
struct Forced(Vec<u32>, usize);

impl Constraint for Forced {
    fn allowed(&mut self) -> Option<Arc<TokenMask>> {
        let mut mask = TokenMask::none(self.1);
        mask.set(*self.0.first()?);
        Some(Arc::new(mask))
    }
    fn accept(&mut self, token: u32) {
        assert_eq!(self.0.remove(0), token);
    }
}

#[test]
fn a_call_that_a_stop_id_ends_is_a_call() {
    let (texts, mut scheduler, _) = open();
    let (vocabulary, tokenizer) = (scheduler.engine().plan().vocabulary(), texts.tokenizer().clone());
    for (written, calls, text) in [
        ("<|tool_call>call:get_time<turn|>", &["get_time{}"][..], ""),
        ("<|tool_call>call:get_time{a:1<turn|>", &["get_time{\"a\":1}"], ""),
        ("<|tool_call>call:get_time{}<tool_call|><|tool_response>", &["get_time{}"], ""),
        ("Hi<turn|>", &[], "Hi"),
    ] {
        let ids = tokenizer.encode(written, Specials::Parse).unwrap();
        let question = texts.chat(&[Message::text("user", "Hello!")], &ChatOptions::default()).unwrap();
        let ear = Ear::default();
        let mut requests = texts.ask(question, &Settings::default(), Box::new(ear.clone())).unwrap();
        let mut request = requests.remove(0);
        request.constraint = Some(Box::new(Forced(ids.clone(), vocabulary)));
        scheduler.submit(request).unwrap();
        run(&mut scheduler);
        let answer = ear.answer.lock().unwrap().take().unwrap().unwrap();
        let told: Vec<String> =
            answer.calls.iter().map(|call| format!("{}{}", call.name, Json::Object(call.arguments.clone()))).collect();
        assert_eq!(
            (told.as_slice(), answer.text.as_str()),
            (calls.iter().map(|call| call.to_string()).collect::<Vec<_>>().as_slice(), text),
            "{written}"
        );
        let finish = if calls.is_empty() { Finish::Stop } else { Finish::ToolCalls };
        assert_eq!((answer.finish, answer.ids.as_slice()), (finish, &ids[..ids.len() - 1]), "{written}");
        assert_eq!(answer.usage.completion_tokens, ids.len());
    }
}
