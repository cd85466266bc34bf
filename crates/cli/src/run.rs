//! `markbase run`: one question, one answer; or a file of questions.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use answer::{Answer, Finish, Question, Settings, Texts};
use clap::Args;
use serde::Serialize;

use crate::ask::{AnswerArguments, ConversationArguments, MOST_LIKELIEST, TemplateArguments};
use crate::asking::ask;
use crate::backends::BackendArguments;
use crate::error::Error;
use crate::files::read_input;
use crate::interrupt::Interrupt;
use crate::load::{ModelArguments, Room};
use crate::screen::Screen;
use crate::wire::Whole;
use crate::{batch, conversation};

#[derive(Args)]
pub struct Arguments {
    /// What to say to the model; read from standard input when left out. In a terminal without it: a conversation.
    #[arg(value_name = "PROMPT")]
    text: Option<String>,
    /// The same, as an option.
    #[arg(long, value_name = "TEXT", conflicts_with = "text")]
    prompt: Option<String>,
    #[command(flatten)]
    pub conversation: ConversationArguments,
    #[command(flatten)]
    pub template: TemplateArguments,
    /// Take the prompt as it is, without the model's chat template; control tokens in it count.
    #[arg(long, conflicts_with_all = ["system", "messages", "tools", "thinking", "chat_template"])]
    raw: bool,
    #[command(flatten)]
    pub answer: AnswerArguments,
    /// Print one JSON object instead of streaming text.
    #[arg(long)]
    json: bool,
    /// With --json: the log-probability of each token, and of the K likeliest in its place.
    #[arg(long, value_name = "K", requires = "json", num_args = 0..=1, default_missing_value = "0",
        value_parser = clap::value_parser!(u32).range(0..=i64::from(MOST_LIKELIEST)))]
    logprobs: Option<u32>,
    /// Answer many questions: a file of JSON lines, each an object with `prompt` or `messages`, and `system`, `tools`,
    /// `thinking`, `id` or any of the options for answers if they differ. Answers are JSON lines, in order.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "prompt", "messages", "raw", "json", "logprobs"])]
    batch: Option<PathBuf>,
    /// With --batch: write to this file, and go on after the answers that it has.
    #[arg(long, value_name = "FILE", requires = "batch")]
    out: Option<PathBuf>,
    /// With --batch: how many answers at a time.
    #[arg(long, value_name = "N", requires = "batch", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=512))]
    parallel: u16,
    /// The most tokens of a prompt and its answer together [default: as many as they need; with --batch and in
    /// conversations 8192 or the model's].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub context: Option<u32>,
    #[command(flatten)]
    pub model: ModelArguments,
    #[command(flatten)]
    pub backend: BackendArguments,
}

impl Arguments {
    fn prompt(&self) -> Result<Option<String>, Error> {
        let given = self.text.as_ref().or(self.prompt.as_ref()).cloned();
        match given {
            None if self.conversation.messages.is_none() => read_input().map(Some),
            given => Ok(given),
        }
    }

    fn question(&self, texts: &Texts) -> Result<Question, Error> {
        let prompt = self.prompt()?;
        if self.raw {
            return Ok(texts.raw(&prompt.unwrap_or_default())?);
        }
        if prompt.as_ref().is_some_and(|text| text.trim().is_empty()) {
            let sentence = "the prompt is empty: say something, `markbase run \"...\"`, or pipe it in";
            return Err(Error::Argument(sentence.into()));
        }
        let (messages, options) = self.conversation.read(prompt)?;
        if messages.is_empty() {
            return Err(Error::Argument("--messages: no messages in it, at least one is needed".into()));
        }
        Ok(texts.chat(&messages, &options)?)
    }
}

/// The most tokens of an answer where neither the person nor the model says.
const DEFAULT_TOKENS: usize = 4096;

/// Settings that say how long the answer may be.
pub fn bounded(settings: Settings, texts: &Texts, question: &Question) -> Settings {
    let most = settings.max_tokens.or(texts.default_max_tokens(question)).unwrap_or(DEFAULT_TOKENS);
    Settings { max_tokens: Some(most), ..settings }
}

#[derive(Serialize)]
struct Output {
    #[serde(flatten)]
    answer: Whole,
    load_ms: f64,
    model: String,
    backend: String,
}

/// Runs the command.
pub fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    if let Some(file) = &arguments.batch {
        let places = batch::Places { questions: file, answers: arguments.out.as_deref() };
        return batch::run(&arguments, &places, usize::from(arguments.parallel));
    }
    let has_words = arguments.text.is_some() || arguments.prompt.is_some() || arguments.conversation.messages.is_some();
    if !has_words && !arguments.raw && !arguments.json && std::io::stdin().is_terminal() {
        return conversation::run(arguments.into());
    }
    let opened = arguments.model.open()?;
    let texts = arguments.template.apply(opened.texts()?)?;
    let question = arguments.question(&texts)?;
    let settings = Settings { log_probabilities: arguments.logprobs, ..arguments.answer.settings() };
    let settings = bounded(settings, &texts, &question);

    let most = arguments.context.map_or(opened.model.info.context, |context| context as usize);
    let most = most.min(opened.model.info.context);
    let tokens = question.ids.len();
    if tokens >= most {
        let sentence = format!("the prompt has {tokens} tokens, and with its answer at most {most} can be read");
        return Err(Error::Argument(sentence));
    }
    let wanted = settings.max_tokens.unwrap_or(DEFAULT_TOKENS);
    let room = Room { context: tokens.saturating_add(wanted).min(most), sequences: settings.best_of.max(1) };
    let (mut scheduler, load_time) = opened.scheduler(&arguments.backend, room)?;
    let interrupt = Interrupt::watch();

    if arguments.json {
        let answer = ask(&mut scheduler, &texts, question, &settings, &interrupt, |_| Ok(()))?;
        let code = code_of(&answer);
        let output = Output {
            answer: answer.into(),
            load_ms: load_time.as_secs_f64() * 1e3,
            model: opened.checkpoint.name().to_owned(),
            backend: scheduler.engine().backend_name(),
        };
        return write_json(&output).map(|()| code);
    }
    let screen = Arc::new(Mutex::new(Screen::new()));
    let shown = screen.clone();
    let show = move |piece: &_| shown.lock().unwrap_or_else(PoisonError::into_inner).show(piece);
    let answer = ask(&mut scheduler, &texts, question, &settings, &interrupt, show)?;
    let mut screen = screen.lock().unwrap_or_else(PoisonError::into_inner);
    screen.end()?;
    if answer.text.is_empty() && answer.calls.is_empty() && answer.finish == Finish::Length {
        eprintln!("markbase: the answer had not begun when --max-tokens was reached: allow more of them");
    }
    Ok(code_of(&answer))
}

/// 130 where a person stopped it, as shells have it.
fn code_of(answer: &Answer) -> ExitCode {
    if answer.finish == Finish::Cancelled { ExitCode::from(130) } else { ExitCode::SUCCESS }
}

fn write_json(value: &impl Serialize) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    let text = serde_json::to_string_pretty(value).map_err(std::io::Error::from)?;
    writeln!(out, "{text}")?;
    Ok(())
}
