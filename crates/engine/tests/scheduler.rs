//! Requests beside each other are answered as if each were alone, within bounds, and nothing is left over.

mod common;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{BLOCK, Device, Recorder, Shared, VOCABULARY, WINDOW, next_token, plan};
use markbase_engine::{
    Constraint, Engine, EngineError, EngineOptions, FinishReason, Finished, Request, Rules, Scheduler, SchedulerOptions,
};
use plan::{Choice, Sampling, TokenMask};

struct Setup {
    context: usize,
    cache_tokens: usize,
    sequences: usize,
    max_rows: usize,
    options: SchedulerOptions,
}

const PLAIN: Setup = Setup {
    context: 64,
    cache_tokens: 256,
    sequences: 4,
    max_rows: 16,
    options: SchedulerOptions { max_running: 4, max_waiting: 100, chunk: 8 },
};

fn scheduler(setup: &Setup) -> (Scheduler, Arc<Mutex<Shared>>) {
    let (device, shared) = Device::new();
    let &Setup { context, sequences, max_rows, .. } = setup;
    let options = EngineOptions { context, sequences, max_rows, max_wanted: max_rows, keep: vec![], watch: false };
    let engine = Engine::with_cache(device, plan(), setup.cache_tokens, options).unwrap();
    (Scheduler::new(engine, setup.options).unwrap(), shared)
}

fn request(prompt: &[u32], max_tokens: usize, client: &Recorder) -> Request {
    Request {
        prompt: prompt.to_vec(),
        max_tokens,
        stop: Arc::new([]),
        rules: Rules::from(Sampling::GREEDY),
        log_probabilities: None,
        constraint: None,
        client: Box::new(client.clone()),
    }
}

/// The answer of the device, said without an engine.
fn answer(prompt: &[u32], count: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..count {
        let from = tokens.len().saturating_sub(WINDOW);
        tokens.push(next_token(&tokens[from..], &tokens, &Choice::from(Sampling::GREEDY)).id);
    }
    tokens.split_off(prompt.len())
}

fn run(scheduler: &mut Scheduler) -> usize {
    for step in 0..10_000 {
        if scheduler.is_idle() {
            return step;
        }
        scheduler.step();
    }
    panic!("the requests do not end: {:?}", scheduler.stats());
}

fn end(client: &Recorder) -> Finished {
    *client.heard.lock().unwrap().end.as_ref().expect("the end was told").as_ref().expect("no error")
}

fn finished(client: &Recorder) -> (Vec<u32>, FinishReason) {
    let reason = end(client).reason;
    (client.heard.lock().unwrap().tokens.clone(), reason)
}

fn failed(client: &Recorder) -> String {
    let heard = client.heard.lock().unwrap();
    heard.end.as_ref().expect("the end was told").as_ref().expect_err("an error").to_string()
}

#[test]
fn each_of_many_is_answered_as_if_alone_and_all_blocks_come_back() {
    let (mut scheduler, _) = scheduler(&PLAIN);
    let prompts: Vec<Vec<u32>> = (1..=8).map(|i| (0..i * 5).map(|t| (t * i) % 31).collect()).collect();
    let clients: Vec<Recorder> = prompts.iter().map(|_| Recorder::default()).collect();
    for (prompt, client) in prompts.iter().zip(&clients) {
        scheduler.submit(request(prompt, 12, client)).unwrap();
    }
    run(&mut scheduler);
    for (prompt, client) in prompts.iter().zip(&clients) {
        assert_eq!(finished(client), (answer(prompt, 12), FinishReason::Length));
    }
    let stats = scheduler.stats();
    assert_eq!(stats.free_blocks, stats.total_blocks);
}

#[test]
fn a_small_pool_preempts_the_youngest_and_changes_no_text() {
    // 12 blocks, and four answers that grow to 10 each.
    let setup = Setup { cache_tokens: 32, ..PLAIN };
    let (mut scheduler, _) = scheduler(&setup);
    let prompts: Vec<Vec<u32>> = (0..4).map(|i| vec![i + 1; 8]).collect();
    let clients: Vec<Recorder> = prompts.iter().map(|_| Recorder::default()).collect();
    for (prompt, client) in prompts.iter().zip(&clients) {
        scheduler.submit(request(prompt, 32, client)).unwrap();
    }
    run(&mut scheduler);
    assert!(scheduler.stats().preemptions > 0);
    for (prompt, client) in prompts.iter().zip(&clients) {
        assert_eq!(finished(client), (answer(prompt, 32), FinishReason::Length));
    }
    assert_eq!(end(&clients[0]).preemptions, 0, "nobody takes from the oldest");
    assert!(end(&clients[2]).preemptions > 0, "more than one waits, so that their order shows");
    let last_token = |client: &Recorder| client.heard.lock().unwrap().times.iter().nth_back(1).copied();
    assert!(clients.is_sorted_by_key(last_token), "equal requests are done in the order in which they came");
    assert_eq!(scheduler.stats().free_blocks, scheduler.stats().total_blocks);
}

#[test]
fn stop_ids_clients_and_the_context_end_an_answer() {
    let (mut scheduler, _) = scheduler(&PLAIN);
    let prompt = [3, 1, 4, 1, 5];
    let whole = answer(&prompt, 59);
    let stopped = Recorder::default();
    let stop = whole[6];
    let at = whole.iter().position(|&token| token == stop).unwrap();
    scheduler.submit(Request { stop: Arc::new([stop]), ..request(&prompt, 20, &stopped) }).unwrap();
    let enough = Recorder { enough: Some(3), ..Recorder::default() };
    scheduler.submit(request(&prompt, 20, &enough)).unwrap();
    let long = Recorder::default();
    scheduler.submit(request(&prompt, usize::MAX, &long)).unwrap();
    let nothing = Recorder::default();
    scheduler.submit(request(&prompt, 0, &nothing)).unwrap();
    run(&mut scheduler);
    assert_eq!(finished(&stopped), (whole[..at].to_vec(), FinishReason::StopId(stop)));
    assert_eq!(finished(&enough), (whole[..3].to_vec(), FinishReason::Client));
    assert_eq!(finished(&long), (whole.clone(), FinishReason::Length));
    assert_eq!(finished(&nothing), (vec![], FinishReason::Length));
    assert_eq!(end(&stopped).generated_tokens, at + 1, "the stop id counts once");
    assert_eq!(end(&long).generated_tokens, 64 - prompt.len());
    for client in [&stopped, &enough, &long, &nothing] {
        assert_eq!(end(client).prompt_tokens, prompt.len());
    }
}

#[test]
fn what_can_never_fit_is_refused_at_once_and_the_longest_that_fits_runs() {
    for prompt in 62..=66 {
        let (mut scheduler, _) = scheduler(&PLAIN);
        let clients: Vec<Recorder> = (0..8).map(|_| Recorder::default()).collect();
        let tokens = vec![7; prompt];
        for client in &clients {
            let outcome = scheduler.submit(request(&tokens, 10, client));
            match prompt {
                64.. => {
                    let told = outcome.unwrap_err().to_string();
                    let wanted = format!(
                        "a prompt of {prompt} tokens leaves no room for an answer: 64 tokens are the most together"
                    );
                    assert_eq!(told, wanted);
                }
                _ => outcome.unwrap(),
            }
        }
        run(&mut scheduler);
        if prompt < 64 {
            for client in &clients {
                assert_eq!(finished(client), (answer(&tokens, 64 - prompt), FinishReason::Length));
            }
        }
    }
}

#[test]
fn a_cache_smaller_than_the_context_bounds_a_sequence() {
    let setup = Setup { cache_tokens: 20, sequences: 1, ..PLAIN };
    let (mut scheduler, _) = scheduler(&setup);
    let longest = scheduler.engine().longest();
    assert_eq!(longest, 20 + BLOCK);
    let client = Recorder::default();
    let refused = scheduler.submit(request(&vec![1; longest], 1, &client)).unwrap_err();
    assert!(
        matches!(refused, EngineError::NeverFits { tokens, longest: most } if tokens == longest && most == longest)
    );
    scheduler.submit(request(&vec![1; longest - 1], 10, &client)).unwrap();
    run(&mut scheduler);
    assert_eq!(finished(&client).1, FinishReason::Length);
}

#[test]
fn a_request_waits_until_there_is_room_for_its_whole_prompt() {
    // 12 blocks; a prompt of 40 tokens takes 10 of them, not all in its first step, and one is kept for its answer.
    let setup = Setup { cache_tokens: 32, ..PLAIN };
    for (tokens, has_room) in [(BLOCK, true), (BLOCK + 1, false)] {
        let (mut scheduler, _) = scheduler(&setup);
        assert_eq!(scheduler.stats().total_blocks, [12, 12]);
        scheduler.submit(request(&[1; 40], 1, &Recorder::default())).unwrap();
        let second = Recorder::default();
        scheduler.submit(request(&vec![2; tokens], 1, &second)).unwrap();
        scheduler.step();
        let is_read = !second.heard.lock().unwrap().progress.is_empty();
        assert_eq!(is_read, has_room, "a second prompt of {tokens} tokens");
        run(&mut scheduler);
        assert_eq!(scheduler.stats().preemptions, 0);
    }
}

#[test]
fn malformed_requests_are_refused_and_their_clients_hear_nothing() {
    let (mut scheduler, _) = scheduler(&PLAIN);
    let client = Recorder::default();
    let refused = |scheduler: &mut Scheduler, request| scheduler.submit(request).unwrap_err().to_string();
    assert_eq!(refused(&mut scheduler, request(&[], 1, &client)), "the text is empty: give at least one token");
    let unknown = request(&[1, VOCABULARY as u32], 1, &client);
    assert_eq!(refused(&mut scheduler, unknown), "token id 32 is not in the vocabulary of 32");
    let sampling = Sampling { top_p: 0.0, ..Sampling::GREEDY };
    let rules = Request { rules: Rules::from(sampling), ..request(&[1], 1, &client) };
    assert_eq!(refused(&mut scheduler, rules), "top_p is 0, wanted a number above 0 and at most 1");
    assert!(client.heard.lock().unwrap().end.is_none() && scheduler.is_idle());
}

#[test]
fn a_full_queue_refuses_and_what_waits_is_still_answered() {
    let options = SchedulerOptions { max_running: 1, max_waiting: 2, chunk: 8 };
    let (mut scheduler, _) = scheduler(&Setup { options, ..PLAIN });
    let clients: Vec<Recorder> = (0..3).map(|_| Recorder::default()).collect();
    scheduler.submit(request(&[1], 4, &clients[0])).unwrap();
    scheduler.submit(request(&[2], 4, &clients[1])).unwrap();
    let refused = scheduler.submit(request(&[3], 4, &clients[2])).unwrap_err();
    assert_eq!(refused.to_string(), "2 requests wait already: try again later");
    run(&mut scheduler);
    assert_eq!(finished(&clients[1]).0, answer(&[2], 4));
}

#[test]
fn cancelled_requests_stop_within_a_step_wherever_they_are() {
    let options = SchedulerOptions { max_running: 2, ..PLAIN.options };
    let (mut scheduler, _) = scheduler(&Setup { options, ..PLAIN });
    let [generating, reading, waiting, other] = [(); 4].map(|()| Recorder::default());
    scheduler.submit(request(&[1, 2], 40, &generating)).unwrap();
    scheduler.submit(request(&[5; 50], 4, &reading)).unwrap();
    scheduler.submit(request(&[3], 4, &waiting)).unwrap();
    scheduler.submit(request(&[4], 4, &other)).unwrap();
    scheduler.step();
    scheduler.step();
    for client in [&generating, &reading, &waiting] {
        client.gone.store(true, Ordering::Relaxed);
    }
    let so_far = generating.heard.lock().unwrap().tokens.len();
    scheduler.step();
    for client in [&generating, &reading, &waiting] {
        assert_eq!(finished(client).1, FinishReason::Cancelled);
    }
    assert_eq!(finished(&generating).0.len(), so_far, "no token after it went");
    run(&mut scheduler);
    assert_eq!(finished(&other).0, answer(&[4], 4));
    assert_eq!(scheduler.stats().free_blocks, scheduler.stats().total_blocks);
}

#[test]
fn a_long_prompt_stalls_neither_tokens_nor_short_prompts() {
    let (mut scheduler, shared) = scheduler(&PLAIN);
    let [generating, long, short] = [(); 3].map(|()| Recorder::default());
    scheduler.submit(request(&[1, 2], 60, &generating)).unwrap();
    scheduler.step();
    scheduler.submit(request(&[5; 60], 2, &long)).unwrap();
    scheduler.submit(request(&[6; 4], 2, &short)).unwrap();
    shared.lock().unwrap().steps.clear();
    scheduler.step();
    assert_eq!(generating.heard.lock().unwrap().tokens.len(), 2, "a token in every step");
    assert_eq!(short.heard.lock().unwrap().tokens.len(), 1, "the short prompt is read at once");
    assert_eq!(shared.lock().unwrap().steps[0], (1 + 8, 2), "no more prompt rows than the chunk");
    run(&mut scheduler);
    let progress = &long.heard.lock().unwrap().progress;
    assert!(progress.len() > 4 && progress.last() == Some(&60), "{progress:?}");
}

#[test]
fn a_step_that_fails_ends_its_requests_and_no_other() {
    let options = SchedulerOptions { max_running: 1, ..PLAIN.options };
    let (mut scheduler, shared) = scheduler(&Setup { options, ..PLAIN });
    let [first, second] = [(); 2].map(|()| Recorder::default());
    scheduler.submit(request(&[1], 4, &first)).unwrap();
    scheduler.submit(request(&[2], 4, &second)).unwrap();
    shared.lock().unwrap().fail = true;
    run(&mut scheduler);
    assert_eq!(failed(&first), "the device failed");
    assert_eq!(finished(&second).0, answer(&[2], 4));
    assert_eq!(scheduler.stats().free_blocks, scheduler.stats().total_blocks);
}

#[test]
fn logits_that_are_not_finite_end_their_own_request_alone() {
    let (mut scheduler, shared) = scheduler(&PLAIN);
    let clients: Vec<Recorder> = (0..3).map(|_| Recorder::default()).collect();
    shared.lock().unwrap().not_finite_after.insert((2, 1));
    for (i, client) in clients.iter().enumerate() {
        scheduler.submit(request(&[9, i as u32 + 1], 4, client)).unwrap();
    }
    run(&mut scheduler);
    assert!(failed(&clients[1]).starts_with("the logits of position 1 are not finite"));
    for i in [0, 2] {
        assert_eq!(finished(&clients[i]).0, answer(&[9, i as u32 + 1], 4));
    }
}

#[test]
fn logits_that_are_not_finite_are_those_of_who_generates_beside_an_older_prompt() {
    let (mut scheduler, shared) = scheduler(&PLAIN);
    let [reading, other, broken] = [(); 3].map(|()| Recorder::default());
    // The second wanted row of the step, and the third request in it.
    shared.lock().unwrap().not_finite_after.insert((2, 1));
    for (prompt, client) in [(&[5; 40][..], &reading), (&[9, 1], &other), (&[9, 2], &broken)] {
        scheduler.submit(request(prompt, 4, client)).unwrap();
    }
    scheduler.step();
    assert_eq!(shared.lock().unwrap().steps, [(16, 2)], "all three in one step");
    assert!(failed(&broken).starts_with("the logits of position 1 are not finite"));
    run(&mut scheduler);
    assert_eq!(finished(&reading).0, answer(&[5; 40], 4));
    assert_eq!(finished(&other).0, answer(&[9, 1], 4));
}

/// Allows some tokens a number of times, then nothing.
struct Only {
    tokens: Vec<u32>,
    left: usize,
    accepted: Arc<Mutex<Vec<u32>>>,
}

impl Constraint for Only {
    fn allowed(&mut self) -> Option<Arc<TokenMask>> {
        let mut mask = TokenMask::none(VOCABULARY);
        if self.left > 0 {
            self.tokens.iter().for_each(|&token| mask.set(token));
        }
        Some(Arc::new(mask))
    }
    fn accept(&mut self, token: u32) {
        self.left -= 1;
        self.accepted.lock().unwrap().push(token);
    }
}

#[test]
fn a_constraint_decides_what_may_come_and_one_that_allows_nothing_is_an_error() {
    let (mut scheduler, _) = scheduler(&PLAIN);
    for (left, max_tokens) in [(10, 10), (3, 10)] {
        let client = Recorder::default();
        let accepted = Arc::new(Mutex::new(vec![]));
        let even = (0..VOCABULARY as u32).step_by(2).collect();
        let constraint = Box::new(Only { tokens: even, left, accepted: accepted.clone() });
        scheduler.submit(Request { constraint: Some(constraint), ..request(&[1], max_tokens, &client) }).unwrap();
        run(&mut scheduler);
        let tokens = client.heard.lock().unwrap().tokens.clone();
        assert_eq!(tokens.len(), left.min(max_tokens));
        assert!(tokens.iter().all(|token| token % 2 == 0));
        assert_eq!(*accepted.lock().unwrap(), tokens);
        if left < max_tokens {
            assert_eq!(failed(&client), "the constraint of the answer allows no token after 3 of it");
        }
    }
}

#[test]
fn a_constraint_is_told_of_the_stop_id_too() {
    let (mut scheduler, _) = scheduler(&PLAIN);
    let client = Recorder::default();
    let accepted = Arc::new(Mutex::new(vec![]));
    let constraint = Box::new(Only { tokens: vec![6], left: 1, accepted: accepted.clone() });
    let stop = Arc::new([6]);
    scheduler.submit(Request { constraint: Some(constraint), stop, ..request(&[1], 4, &client) }).unwrap();
    run(&mut scheduler);
    assert_eq!(finished(&client), (vec![], FinishReason::StopId(6)));
    assert_eq!(*accepted.lock().unwrap(), [6]);
}

#[test]
fn rules_reach_the_device_and_count_the_prompt_and_the_answer() {
    let (mut scheduler, shared) = scheduler(&PLAIN);
    let client = Recorder::default();
    // Only 9 may come, so that what is counted is known.
    let constraint = Box::new(Only { tokens: vec![9], left: 3, accepted: Arc::default() });
    let sampling = Sampling { temperature: 0.5, seed: 4, ..Sampling::GREEDY };
    let rules = Rules {
        repetition_penalty: 1.5,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        bias: vec![(5, 2.0)],
        ..Rules::from(sampling)
    };
    let request = Request { rules, constraint: Some(constraint), ..request(&[7, 3], 3, &client) };
    scheduler.submit(Request { log_probabilities: Some(2), ..request }).unwrap();
    run(&mut scheduler);
    let choices = std::mem::take(&mut shared.lock().unwrap().choices);
    for choice in &choices {
        assert_eq!((choice.sampling, choice.repetition_penalty), (sampling, 1.5));
        assert_eq!(choice.log_probabilities, Some(2));
    }
    let added = |choice: &Choice| choice.adjustments.iter().map(|a| (a.token, a.repeated, a.add)).collect::<Vec<_>>();
    assert_eq!(added(&choices[0]), [(3, true, 0.0), (5, false, 2.0), (7, true, 0.0)]);
    assert_eq!(added(&choices[1]), [(3, true, 0.0), (5, false, 2.0), (7, true, 0.0), (9, true, -0.75)]);
    assert_eq!(added(&choices[2]), [(3, true, 0.0), (5, false, 2.0), (7, true, 0.0), (9, true, -1.0)]);
}

#[test]
fn log_probabilities_are_heard_as_asked_for() {
    let (mut scheduler, _) = scheduler(&PLAIN);
    for log_probabilities in [None, Some(0), Some(2)] {
        let client = Recorder::default();
        scheduler.submit(Request { log_probabilities, ..request(&[3, 1], 1, &client) }).unwrap();
        run(&mut scheduler);
        let choice = Choice { log_probabilities, ..Choice::from(Sampling::GREEDY) };
        let wanted = next_token(&[3, 1], &[3, 1], &choice).log_probabilities;
        assert_eq!(wanted.as_ref().map(|heard| heard.top.len() as u32), log_probabilities);
        assert_eq!(client.heard.lock().unwrap().log_probabilities, [wanted]);
    }
}

/// The times that clients hear things at are bounds that hold however slow the machine is.
#[test]
fn timings_part_an_answer_at_its_first_step_and_its_first_token() {
    let options = SchedulerOptions { max_running: 1, ..PLAIN.options };
    let (mut scheduler, _) = scheduler(&Setup { options, ..PLAIN });
    let [first, second] = [(); 2].map(|()| Recorder::default());
    scheduler.submit(request(&[1], 60, &first)).unwrap();
    let before = Instant::now();
    scheduler.submit(request(&[2; 40], 5, &second)).unwrap();
    let submitted = Instant::now();
    run(&mut scheduler);
    let turn = first.heard.lock().unwrap().times.last().copied().unwrap();
    let times = second.heard.lock().unwrap().times.clone();
    let [read_some, _, read, token, .., last_token, ended] = times[..] else { panic!("{}", times.len()) };
    assert_eq!(second.heard.lock().unwrap().progress, [16, 32, 40], "then five tokens and the end");
    let timings = end(&second).timings;
    let within = |took: Duration, least: Duration, most: Duration| {
        assert!(least <= took && took <= most, "{took:?} of {least:?} to {most:?}: {timings:?}");
    };
    within(timings.queue, turn - submitted, read_some - before);
    within(timings.prompt, read - read_some, token - turn);
    within(timings.decode, last_token - token, ended - read);
}

#[test]
fn stop_ids_that_may_not_come_yet_do_not_come() {
    let (mut scheduler, _) = scheduler(&PLAIN);
    let whole = answer(&[8], 3);
    let client = Recorder::default();
    let rules = Rules { not_before: vec![(whole[0], 5)], ..Rules::from(Sampling::GREEDY) };
    scheduler.submit(Request { rules, stop: Arc::new([whole[0]]), ..request(&[8], 5, &client) }).unwrap();
    run(&mut scheduler);
    assert_eq!((finished(&client).0.len(), finished(&client).1), (5, FinishReason::Length));
}
