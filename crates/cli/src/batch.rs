//! Many questions from a file of JSON lines, answered beside each other, told in their order.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use answer::{Answer, Listener, Piece, Question, Settings, Texts};
use chat::{ChatOptions, Conversation, Json, JsonObject, Message, tools_from_json};
use serde::Serialize;

use crate::ask::Thinking;
use crate::error::Error;
use crate::files::read_text;
use crate::interrupt::Interrupt;
use crate::load::Room;
use crate::run::{Arguments, bounded};
use crate::wire::Whole;

/// The context of answers where no option says.
const DEFAULT_CONTEXT: usize = 8192;

/// Where questions come from and answers go.
pub struct Places<'a> {
    pub questions: &'a Path,
    pub answers: Option<&'a Path>,
}

/// One line of the answers.
#[derive(Serialize)]
struct Line {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<Json>,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Outcome {
    Answer(Box<Whole>),
    Error { error: String },
}

/// A question of the file.
struct Asked {
    index: usize,
    id: Option<Json>,
    question: Result<(Question, Settings), String>,
}

/// Runs the command.
pub fn run(arguments: &Arguments, places: &Places, parallel: usize) -> Result<ExitCode, Error> {
    let text = read_text(places.questions)?;
    let opened = arguments.model.open()?;
    let texts = arguments.template.apply(opened.texts()?)?;
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let mut asked = VecDeque::new();
    for (index, line) in lines.iter().enumerate() {
        asked.push_back(read_line(index, line, arguments, &texts)?);
    }
    let mut out = Out::open(places.answers, &asked)?;
    asked.drain(..out.done);

    let context = arguments.context.map_or(DEFAULT_CONTEXT, |context| context as usize);
    let context = context.min(opened.model.info.context);
    let sequences = asked.iter().flat_map(|asked| &asked.question).map(|(_, settings)| settings.best_of.max(1)).max();
    let room = Room { context, sequences: parallel.max(sequences.unwrap_or(1)) };
    let (mut scheduler, _) = opened.scheduler(&arguments.backend, room)?;
    let interrupt = Interrupt::watch();
    let answers = Answers::default();
    while out.done < lines.len() {
        // A bounded number beside each other: an answer that takes long holds the later ones up, and they wait here.
        while let Some(next) = asked.front()
            && next.index < out.done + 4 * parallel
            && scheduler.stats().waiting < parallel
            && !interrupt.came()
        {
            let Some(Asked { index, id, question }) = asked.pop_front() else { break };
            let ear = Ear { index, id: id.clone(), answers: answers.clone(), interrupt: interrupt.clone() };
            let submitted = question.and_then(|(question, settings)| {
                let requests = texts.ask(question, &settings, Box::new(ear)).map_err(|error| error.to_string())?;
                let submit = |request| scheduler.submit(request).map_err(|error| error.to_string());
                requests.into_iter().try_for_each(submit)
            });
            if let Err(error) = submitted {
                answers.tell(Line { index, id, outcome: Outcome::Error { error } });
            }
        }
        scheduler.step();
        out.write(&answers)?;
        if interrupt.came() && scheduler.is_idle() {
            out.write(&answers)?;
            return Ok(ExitCode::from(130));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The answers that were not written yet, by place.
#[derive(Clone, Default)]
struct Answers(Arc<Mutex<BTreeMap<usize, Line>>>);

impl Answers {
    fn tell(&self, line: Line) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(line.index, line);
    }

    fn take(&self, index: usize) -> Option<Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&index)
    }
}

struct Ear {
    index: usize,
    id: Option<Json>,
    answers: Answers,
    interrupt: Interrupt,
}

impl Listener for Ear {
    fn piece(&mut self, _piece: Piece) {}

    fn answered(&mut self, answer: answer::Result<Answer>) {
        // What was cut short is no answer: it is asked again next time.
        if self.interrupt.came() {
            return;
        }
        let outcome = match answer {
            Ok(answer) => Outcome::Answer(Box::new(answer.into())),
            Err(error) => Outcome::Error { error: error.to_string() },
        };
        self.answers.tell(Line { index: self.index, id: self.id.take(), outcome });
    }

    fn is_gone(&self) -> bool {
        self.interrupt.came()
    }
}

/// Where answers go, in order.
struct Out {
    to: Box<dyn Write>,
    /// Answers that are there.
    done: usize,
}

impl Out {
    /// A file keeps the answers that it has; a last line that is not whole is cut off.
    fn open(path: Option<&Path>, asked: &VecDeque<Asked>) -> Result<Out, Error> {
        let Some(path) = path else { return Ok(Out { to: Box::new(std::io::stdout()), done: 0 }) };
        let wrong = |reason: String| Error::File { path: path.to_owned(), reason };
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = opened.map_err(|error| wrong(error.to_string()))?;
        let (mut done, mut end) = (0, 0);
        let mut reader = BufReader::new(&mut file);
        let mut line = vec![];
        while reader.read_until(b'\n', &mut line).map_err(|error| wrong(error.to_string()))? > 0 {
            let whole = line.ends_with(b"\n").then(|| std::str::from_utf8(&line).ok()).flatten();
            let Some(Ok(found)) = whole.map(Json::parse) else { break };
            let expected = asked.get(done).map(|asked| (Json::from(&serde_json::json!(asked.index)), &asked.id));
            let is_next = expected
                .is_some_and(|(index, id)| found.get("index") == Some(&index) && found.get("id") == id.as_ref());
            if !is_next {
                let sentence = format!("line {} answers no such question of --batch: give another file", done + 1);
                return Err(wrong(sentence));
            }
            done += 1;
            end += line.len() as u64;
            line.clear();
        }
        cut(&mut file, end).map_err(|error| wrong(error.to_string()))?;
        Ok(Out { to: Box::new(file), done })
    }

    fn write(&mut self, answers: &Answers) -> Result<(), Error> {
        let before = self.done;
        while let Some(line) = answers.take(self.done) {
            let mut text = serde_json::to_string(&line).map_err(std::io::Error::from)?;
            text.push('\n');
            self.to.write_all(text.as_bytes())?;
            self.done += 1;
        }
        if self.done > before {
            self.to.flush()?;
        }
        Ok(())
    }
}

fn cut(file: &mut File, end: u64) -> std::io::Result<()> {
    file.set_len(end)?;
    file.seek(std::io::SeekFrom::Start(end))?;
    Ok(())
}

/// One line as a question. A line that is no JSON object ends the command, for the file is then no such file; what
/// is wrong within one is told in its place of the answers.
fn read_line(index: usize, line: &str, arguments: &Arguments, texts: &Texts) -> Result<Asked, Error> {
    let wrong = |reason: String| Error::Argument(format!("--batch: line {}: {reason}", index + 1));
    let mut object = match Json::parse(line).map_err(|error| wrong(format!("no JSON: {error}")))? {
        Json::Object(object) => object,
        other => return Err(wrong(format!("found {}, wanted an object", other.kind()))),
    };
    let id = object.shift_remove("id");
    Ok(Asked { index, id, question: read_question(object, arguments, texts) })
}

fn read_question(mut object: JsonObject, arguments: &Arguments, texts: &Texts) -> Result<(Question, Settings), String> {
    let mut settings = arguments.answer.settings();
    let (mut messages, mut options) = arguments.conversation.read(None).map_err(|error| error.to_string())?;
    let text = |name: &str, value: Json| match value {
        Json::Text(text) => Ok(text),
        other => Err(format!("{name}: found {}, wanted a text", other.kind())),
    };
    let system = object.shift_remove("system").map(|value| text("system", value)).transpose()?;
    let prompt = object.shift_remove("prompt").map(|value| text("prompt", value)).transpose()?;
    if let Some(list) = object.shift_remove("messages") {
        let conversation = Conversation::from_json(list).map_err(|error| error.to_string())?;
        // A conversation's own instructions come before those of the command line.
        if conversation.messages.first().is_some_and(Message::is_instruction) {
            messages.clear();
        }
        messages.extend(conversation.messages);
    } else if prompt.is_none() {
        return Err("`prompt` or `messages` is missing".into());
    }
    if let Some(tools) = object.shift_remove("tools") {
        options.tools = tools_from_json(tools).map_err(|error| error.to_string())?;
    }
    if let Some(text) = system {
        messages.retain(|message| !message.is_instruction());
        messages.insert(0, Message::text("system", text));
    }
    messages.extend(prompt.map(|text| Message::text("user", text)));
    read_settings(object, &mut settings, &mut options)?;
    let question = texts.chat(&messages, &options).map_err(|error| error.to_string())?;
    let settings = bounded(settings, texts, &question);
    Ok((question, settings))
}

/// The fields of a line that say how its answer is made.
fn read_settings(object: JsonObject, settings: &mut Settings, options: &mut ChatOptions) -> Result<(), String> {
    for (name, value) in object {
        let wrong = |wanted: &str| format!("{name} is {value}, wanted {wanted}");
        let whole = || match &value {
            Json::Number(number) => number.as_str().parse::<u64>().map_err(|_| wrong("a whole number of at least 0")),
            _ => Err(wrong("a whole number of at least 0")),
        };
        let count = || u32::try_from(whole()?).map_err(|_| wrong("a smaller number"));
        let float = || match &value {
            Json::Number(number) => number.as_str().parse::<f32>().map_err(|_| wrong("a number")),
            _ => Err(wrong("a number")),
        };
        match name.as_str() {
            "max_tokens" | "max_completion_tokens" => settings.max_tokens = Some(whole()? as usize),
            "temperature" => settings.temperature = Some(float()?),
            "top_k" => settings.top_k = Some(count()?),
            "top_p" => settings.top_p = Some(float()?),
            "min_p" => settings.min_p = Some(float()?),
            "repetition_penalty" => settings.repetition_penalty = Some(float()?),
            "presence_penalty" => settings.presence_penalty = Some(float()?),
            "frequency_penalty" => settings.frequency_penalty = Some(float()?),
            "seed" => settings.seed = Some(whole()?),
            "best_of" => match count()? {
                best_of @ 1..=64 => settings.best_of = best_of as usize,
                _ => return Err(wrong("a number from 1 to 64")),
            },
            "logprobs" => settings.log_probabilities = Some(count()?),
            "stop" => settings.stop = texts_of(&value).ok_or_else(|| wrong("a text or a list of texts"))?,
            "logit_bias" => {
                settings.bias = bias_of(&value).ok_or_else(|| wrong("an object of token ids and numbers"))?
            }
            "thinking" | "enable_thinking" => {
                let thinking = match &value {
                    Json::Bool(true) => Thinking::On,
                    Json::Bool(false) => Thinking::Off,
                    Json::Text(word) if word == "on" => Thinking::On,
                    Json::Text(word) if word == "off" => Thinking::Off,
                    _ => return Err(wrong("true or false")),
                };
                options.enable_thinking = thinking == Thinking::On;
            }
            _ => return Err(format!("unknown field `{name}`")),
        }
    }
    Ok(())
}

fn texts_of(value: &Json) -> Option<Vec<String>> {
    match value {
        Json::Null => Some(vec![]),
        Json::Text(text) => Some(vec![text.clone()]),
        Json::List(items) => items.iter().map(|item| item.as_str().map(str::to_owned)).collect(),
        _ => None,
    }
}

fn bias_of(value: &Json) -> Option<Vec<(u32, f32)>> {
    let Json::Object(object) = value else { return None };
    let pair = |(id, add): (&String, &Json)| match add {
        Json::Number(number) => Some((id.parse().ok()?, number.as_str().parse().ok()?)),
        _ => None,
    };
    object.iter().map(pair).collect()
}
