//! The options with which people ask: what the conversation is, and how the answer is made.

use std::path::PathBuf;

use answer::{Settings, Texts};
use chat::{ChatOptions, Conversation, Message, read_tools};
use clap::{Args, ValueEnum};

use crate::error::Error;
use crate::files::read_text;

/// Whether the model thinks before it answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Thinking {
    /// It writes down its thoughts first.
    On,
    /// It answers at once.
    #[default]
    Off,
}

/// How the conversation becomes a prompt.
#[derive(Args, Clone)]
pub struct TemplateArguments {
    /// Use this template instead of the model's default: a file, or the name of one of the model's own.
    #[arg(long, value_name = "FILE|NAME")]
    pub chat_template: Option<String>,
}

impl TemplateArguments {
    /// The text side of a model, with this template.
    pub fn apply(&self, texts: Texts) -> Result<Texts, Error> {
        let Some(given) = &self.chat_template else { return Ok(texts) };
        let path = PathBuf::from(given);
        match path.is_file() {
            true => {
                let named = |error: answer::Error| Error::File { path: path.clone(), reason: error.to_string() };
                texts.with_template(&read_text(&path)?).map_err(named)
            }
            false => texts
                .with_template_named(given)
                .map_err(|error| Error::Argument(format!("--chat-template {given}: no such file, and {error}"))),
        }
    }
}

/// What is said to the model.
#[derive(Args, Clone)]
pub struct ConversationArguments {
    /// Instructions that stand before the conversation.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// A conversation so far: a JSON list of messages in the shape of OpenAI's API, or an object with `messages` and
    /// `tools`; - reads standard input.
    #[arg(long, value_name = "FILE")]
    pub messages: Option<PathBuf>,
    /// Tools that the model may call: a JSON list in the shape of OpenAI's API.
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// Whether the model thinks before it answers.
    #[arg(long, value_enum, value_name = "on|off", default_value_t = Thinking::Off, hide_possible_values = true)]
    pub thinking: Thinking,
}

impl ConversationArguments {
    /// The conversation, `prompt` being the last thing said, and the options of its template.
    pub fn read(&self, prompt: Option<String>) -> Result<(Vec<Message>, ChatOptions), Error> {
        let mut conversation = match &self.messages {
            Some(path) => {
                let read = Conversation::read(&read_text(path)?);
                read.map_err(|error| Error::File { path: path.clone(), reason: error.to_string() })?
            }
            None => Conversation::default(),
        };
        if let Some(path) = &self.tools {
            let read = read_tools(&read_text(path)?);
            conversation.tools = read.map_err(|error| Error::File { path: path.clone(), reason: error.to_string() })?;
        }
        let mut messages = conversation.messages;
        if let Some(text) = &self.system {
            if messages.first().is_some_and(Message::is_instruction) {
                let sentence = "--system, and --messages begins with instructions of its own: leave one of them out";
                return Err(Error::Argument(sentence.into()));
            }
            messages.insert(0, Message::text("system", text));
        }
        messages.extend(prompt.map(|text| Message::text("user", text)));
        let options = ChatOptions {
            tools: conversation.tools,
            enable_thinking: self.thinking == Thinking::On,
            ..ChatOptions::default()
        };
        Ok((messages, options))
    }
}

/// How answers are made.
#[derive(Args, Clone, Default)]
pub struct AnswerArguments {
    /// The most tokens of the answer [default: the model's, else 4096].
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub max_tokens: Option<usize>,
    /// 0 always takes the likeliest token [default: the model's].
    #[arg(long, value_name = "T", value_parser = at_least_zero)]
    pub temperature: Option<f32>,
    /// Choose among the K likeliest tokens; 0 among all [default: the model's].
    #[arg(long, value_name = "K")]
    pub top_k: Option<u32>,
    /// Choose among the likeliest tokens that together have this probability [default: the model's].
    #[arg(long, value_name = "P", value_parser = probability)]
    pub top_p: Option<f32>,
    /// Choose among tokens at least P times as likely as the likeliest; 0 among all [default: the model's].
    #[arg(long, value_name = "P", value_parser = share)]
    pub min_p: Option<f32>,
    /// Above 1, makes what was said before less likely [default: the model's].
    #[arg(long, value_name = "R", value_parser = above_zero)]
    pub repetition_penalty: Option<f32>,
    /// Makes each token that the answer has less likely by this much.
    #[arg(long, value_name = "X", value_parser = number, allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    /// Makes tokens less likely by this much each time that the answer has them.
    #[arg(long, value_name = "X", value_parser = number, allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    /// Adds X to the logit of a token, by its id; -inf forbids it. May be given several times.
    #[arg(long, value_name = "ID=X", value_parser = bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// The same seed gives the same answer [default: a new one each time].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// End the answer before this text; may be given several times.
    #[arg(long, value_name = "TEXT", value_parser = not_empty)]
    pub stop: Vec<String>,
    /// Make N answers and give the one whose tokens are likeliest on average.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub best_of: Option<u16>,
}

impl AnswerArguments {
    /// Leaves an option to the model again; whether there is one of this name.
    pub fn unset(&mut self, name: &str) -> bool {
        match name {
            "max-tokens" => self.max_tokens = None,
            "temperature" => self.temperature = None,
            "top-k" => self.top_k = None,
            "top-p" => self.top_p = None,
            "min-p" => self.min_p = None,
            "repetition-penalty" => self.repetition_penalty = None,
            "presence-penalty" => self.presence_penalty = None,
            "frequency-penalty" => self.frequency_penalty = None,
            "logit-bias" => self.logit_bias.clear(),
            "seed" => self.seed = None,
            "stop" => self.stop.clear(),
            "best-of" => self.best_of = None,
            _ => return false,
        }
        true
    }

    /// The settings that these arguments are.
    pub fn settings(&self) -> Settings {
        Settings {
            max_tokens: self.max_tokens,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            bias: self.logit_bias.clone(),
            seed: self.seed,
            stop: self.stop.clone(),
            log_probabilities: None,
            best_of: self.best_of.map_or(1, usize::from),
        }
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&count| count > 0).ok_or_else(|| "wanted a whole number above 0".into())
}

fn float(text: &str, wanted: &str, holds: impl Fn(f32) -> bool) -> Result<f32, String> {
    let number = text.parse::<f32>().ok().filter(|number| number.is_finite() && holds(*number));
    number.ok_or_else(|| format!("wanted {wanted}"))
}

fn number(text: &str) -> Result<f32, String> {
    float(text, "a number", |_| true)
}

/// A number of 0 or more.
pub fn at_least_zero(text: &str) -> Result<f32, String> {
    float(text, "a number of 0 or more", |number| number >= 0.0)
}

fn above_zero(text: &str) -> Result<f32, String> {
    float(text, "a number above 0", |number| number > 0.0)
}

/// A number above 0 and at most 1.
pub fn probability(text: &str) -> Result<f32, String> {
    float(text, "a number above 0 and at most 1", |number| number > 0.0 && number <= 1.0)
}

fn share(text: &str) -> Result<f32, String> {
    float(text, "a number from 0 to 1", |number| (0.0..=1.0).contains(&number))
}

fn bias(text: &str) -> Result<(u32, f32), String> {
    let wanted = "wanted a token's id and a number, such as 106=-2.5 or 106=-inf";
    let (id, add) = text.split_once(['=', ':']).ok_or(wanted)?;
    let add: f32 = add.parse().map_err(|_| wanted)?;
    if add.is_nan() || add == f32::INFINITY {
        return Err(wanted.into());
    }
    Ok((id.parse().map_err(|_| wanted)?, add))
}

/// The most tokens whose log-probabilities can be asked for in the place of each.
pub const MOST_LIKELIEST: u32 = 128;

fn not_empty(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("wanted at least one character".into()) } else { Ok(text.to_owned()) }
}
