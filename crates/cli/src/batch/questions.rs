//! The questions of a file of JSON lines, one after the other.

use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read, Seek};
use std::path::Path;

use answer::{Question, Settings, Texts};
use chat::{ChatOptions, Conversation, Json, JsonObject, Message, tools_from_json};

use crate::ask::{MOST_LIKELIEST, Thinking};
use crate::error::Error;
use crate::files::read_input;
use crate::run::{Arguments, bounded};

/// Longer than any prompt; keeps a file without newlines from filling memory.
const LONGEST_LINE_BYTES: u64 = 64 << 20;

/// A question of the file.
pub struct Asked {
    /// Its place among the questions, from 0.
    pub index: usize,
    /// Its name, if it has one.
    pub id: Option<Json>,
    /// What is asked, or what is wrong with it.
    pub question: Result<(Question, Settings), String>,
}

/// What holds for every line that says nothing else.
#[derive(Clone)]
pub struct Common {
    messages: Vec<Message>,
    options: ChatOptions,
    settings: Settings,
}

impl Common {
    /// What the command line says; files that it names are read here, once.
    pub fn read(arguments: &Arguments) -> Result<Common, Error> {
        let (messages, options) = arguments.conversation.read(None)?;
        Ok(Common { messages, options, settings: arguments.answer.settings() })
    }
}

/// Reads questions, in order.
pub struct Questions {
    from: Box<dyn BufRead>,
    /// Lines behind, blank ones too.
    lines: usize,
    questions: usize,
}

impl Questions {
    /// Opens a file, `-` for standard input. Every line must be a JSON object: what is wrong with the file is known
    /// before the first question is asked.
    pub fn open(path: &Path) -> Result<Questions, Error> {
        if path.as_os_str() == "-" {
            let text = read_input()?;
            Questions::over(Box::new(Cursor::new(text.clone()))).check()?;
            return Ok(Questions::over(Box::new(Cursor::new(text))));
        }
        let wrong = |error: std::io::Error| Error::File { path: path.to_owned(), reason: error.to_string() };
        let mut file = File::open(path).map_err(wrong)?;
        Questions::over(Box::new(BufReader::new(file.try_clone().map_err(wrong)?))).check()?;
        file.rewind().map_err(wrong)?;
        Ok(Questions::over(Box::new(BufReader::new(file))))
    }

    fn over(from: Box<dyn BufRead>) -> Questions {
        Questions { from, lines: 0, questions: 0 }
    }

    fn check(mut self) -> Result<(), Error> {
        while self.object()?.is_some() {}
        Ok(())
    }

    fn object(&mut self) -> Result<Option<JsonObject>, Error> {
        loop {
            let mut line = vec![];
            let read = (&mut self.from).take(LONGEST_LINE_BYTES + 1).read_until(b'\n', &mut line);
            let wrong = |line: usize, reason: String| Error::Argument(format!("--batch: line {line}: {reason}"));
            let number = self.lines + 1;
            if read.map_err(|error| wrong(number, error.to_string()))? == 0 {
                return Ok(None);
            }
            self.lines = number;
            if line.len() as u64 > LONGEST_LINE_BYTES {
                return Err(wrong(number, format!("more than {LONGEST_LINE_BYTES} bytes, longer than any prompt")));
            }
            let text = std::str::from_utf8(&line).map_err(|_| wrong(number, "not UTF-8 text".into()))?;
            if text.trim().is_empty() {
                continue;
            }
            return match Json::parse(text).map_err(|error| wrong(number, format!("no JSON: {error}")))? {
                Json::Object(object) => Ok(Some(object)),
                other => Err(wrong(number, format!("found {}, wanted an object", other.kind()))),
            };
        }
    }

    /// The next question; what is wrong within it is told in its place of the answers.
    pub fn next(&mut self, common: &Common, texts: &Texts) -> Result<Option<Asked>, Error> {
        let Some(mut object) = self.object()? else { return Ok(None) };
        let index = self.questions;
        self.questions += 1;
        let id = object.shift_remove("id");
        Ok(Some(Asked { index, id, question: read_question(object, common, texts) }))
    }
}

fn read_question(mut object: JsonObject, common: &Common, texts: &Texts) -> Result<(Question, Settings), String> {
    let Common { mut messages, mut options, mut settings } = common.clone();
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
    if messages.iter().all(Message::is_instruction) && prompt.as_ref().is_none_or(|text| text.trim().is_empty()) {
        return Err("nothing is asked: the prompt is empty, or there are no messages".into());
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
            "logprobs" => match count()? {
                likeliest @ 0..=MOST_LIKELIEST => settings.log_probabilities = Some(likeliest),
                _ => return Err(wrong(&format!("a number from 0 to {MOST_LIKELIEST}"))),
            },
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
