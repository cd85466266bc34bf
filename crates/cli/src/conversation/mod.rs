//! `markbase chat`: a conversation in the terminal.

mod command;
mod input;

use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use answer::{Answer, Finish, Texts};
use chat::{ChatOptions, Content, Conversation, Message, ToolCall, read_tools};
use clap::{Args, Parser};
use engine::{EngineError, Scheduler};

use crate::ask::{AnswerArguments, ConversationArguments, TemplateArguments, Thinking};
use crate::asking::ask;
use crate::backends::BackendArguments;
use crate::error::Error;
use crate::files::{read_text, take_input};
use crate::interrupt::Interrupt;
use crate::load::{ModelArguments, Room};
use crate::run::bounded;
use crate::screen::{Screen, visible};
use crate::wire::per_second;
use command::{Command, HELP};
use input::{Input, Typed};

#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    conversation: ConversationArguments,
    #[command(flatten)]
    template: TemplateArguments,
    #[command(flatten)]
    answer: AnswerArguments,
    /// The most tokens of the whole conversation [default: 8192 or the model's].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    context: Option<u32>,
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    backend: BackendArguments,
}

impl From<crate::run::Arguments> for Arguments {
    fn from(run: crate::run::Arguments) -> Arguments {
        let crate::run::Arguments { conversation, template, answer, context, model, backend, .. } = run;
        Arguments { conversation, template, answer, context, model, backend }
    }
}

/// `/set` takes the options of the command line.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Set {
    #[command(flatten)]
    answer: AnswerArguments,
}

/// The context of conversations where no option says.
const DEFAULT_CONTEXT: usize = 8192;

struct Talk {
    name: String,
    texts: Texts,
    scheduler: Scheduler,
    messages: Vec<Message>,
    options: ChatOptions,
    answer: AnswerArguments,
    input: Input,
    screen: Arc<Mutex<Screen>>,
    interrupt: Interrupt,
    last: Option<Answer>,
    calls: usize,
}

/// Runs the command.
pub fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    let opened = arguments.model.open()?;
    let texts = arguments.template.apply(opened.texts()?)?;
    // What is typed comes from there.
    take_input();
    let (messages, options) = arguments.conversation.read(None)?;
    // What is wrong with the template or the messages is told before anything is typed.
    texts.prompt(&[&messages[..], &[Message::text("user", "Hello!")]].concat(), &options)?;
    let context = arguments.context.map_or(DEFAULT_CONTEXT, |context| context as usize);
    let room = Room {
        context: context.min(opened.model.info.context),
        sequences: arguments.answer.best_of.map_or(1, usize::from),
    };
    let input = Input::new()?;
    let (scheduler, _) = opened.scheduler(&arguments.backend, room)?;
    let mut talk = Talk {
        name: opened.checkpoint.name().to_owned(),
        texts,
        scheduler,
        messages,
        options,
        answer: arguments.answer,
        input,
        screen: Arc::new(Mutex::new(Screen::new())),
        interrupt: Interrupt::watch_answers(),
        last: None,
        calls: 0,
    };
    if talk.input.is_terminal() {
        talk.remark(&format!("{}. /help shows what can be done, Ctrl-D leaves.", talk.name))?;
    }
    talk.run()?;
    Ok(ExitCode::SUCCESS)
}

impl Talk {
    fn run(&mut self) -> Result<(), Error> {
        loop {
            let line = match self.input.read("> ")? {
                Typed::Line(line) => line,
                Typed::Fenced(text) if text.trim().is_empty() => continue,
                Typed::Fenced(text) => {
                    self.interrupt.take();
                    self.say(Message::text("user", text))?;
                    continue;
                }
                Typed::Dropped => continue,
                Typed::End => return Ok(()),
            };
            self.interrupt.take();
            match command::read(&line) {
                None if line.trim().is_empty() => {}
                None => {
                    let text = line.strip_prefix("//").map_or(line.clone(), |rest| format!("/{rest}"));
                    self.say(Message::text("user", text))?;
                }
                Some(Ok(Command::Exit)) => return Ok(()),
                Some(Ok(command)) => {
                    if let Err(error) = self.obey(command) {
                        if matches!(error, Error::Output(_)) {
                            return Err(error);
                        }
                        self.remark(&error.to_string())?;
                    }
                }
                Some(Err(sentence)) => self.remark(&sentence)?,
            }
        }
    }

    fn screen(&self) -> MutexGuard<'_, Screen> {
        self.screen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remark(&self, text: &str) -> Result<(), Error> {
        Ok(self.screen().remark(text)?)
    }

    /// Adds a message of the person and has it answered.
    fn say(&mut self, message: Message) -> Result<(), Error> {
        let before = self.messages.clone();
        self.messages.push(message);
        self.reply_or(before)
    }

    /// Answers the last message. If that cannot be, the conversation is what it was before.
    fn reply_or(&mut self, before: Vec<Message>) -> Result<(), Error> {
        match self.reply() {
            Ok(()) => Ok(()),
            Err(error @ Error::Output(_)) => Err(error),
            Err(error) => {
                self.messages = before;
                self.screen().end()?;
                self.remark(&error.to_string())?;
                let is_full = matches!(&error, Error::Told(told)
                    if matches!(told.downcast_ref(), Some(EngineError::NeverFits { .. })));
                self.remark(match is_full {
                    true => "The conversation is as before; /undo and /new make room, --context allows more.",
                    false => "The conversation is as before.",
                })
            }
        }
    }

    /// Answers the last message, and goes on while the model calls tools and the person tells their results.
    fn reply(&mut self) -> Result<(), Error> {
        loop {
            let question = self.texts.chat(&self.messages, &self.options)?;
            let settings = bounded(self.answer.settings(), &self.texts, &question);
            let shown = self.screen.clone();
            let show = move |piece: &_| shown.lock().unwrap_or_else(PoisonError::into_inner).show(piece);
            let answering = self.interrupt.for_an_answer();
            let answer = ask(&mut self.scheduler, &self.texts, question, &settings, &self.interrupt, show)?;
            drop(answering);
            self.screen().end()?;
            let calls: Vec<ToolCall> = answer.calls.iter().map(|call| self.numbered(call)).collect();
            self.messages.push(Message {
                role: "assistant".into(),
                content: if answer.text.is_empty() { Content::Empty } else { Content::Text(answer.text.clone()) },
                reasoning: (!answer.thought.is_empty()).then(|| answer.thought.clone()),
                tool_calls: calls.clone(),
                ..Message::default()
            });
            let finish = answer.finish;
            self.last = Some(answer);
            match finish {
                Finish::Cancelled => {
                    self.interrupt.take();
                    return self.remark("(stopped)");
                }
                Finish::Length => {
                    return self.remark("(cut: no more tokens were allowed; /set max-tokens N allows more)");
                }
                Finish::Stop => return Ok(()),
                Finish::ToolCalls => {}
            }
            let mut results = vec![];
            for call in &calls {
                let prompt = format!("result of {}: ", visible(&call.name).replace('\n', " "));
                match self.input.read(&prompt)? {
                    Typed::Line(text) | Typed::Fenced(text) if !text.trim().is_empty() => results.push(Message {
                        tool_call_id: call.id.clone(),
                        name: Some(call.name.clone()),
                        ..Message::text("tool", text)
                    }),
                    _ => return self.remark("(the calls stay without results)"),
                }
            }
            self.messages.extend(results);
        }
    }

    fn numbered(&mut self, call: &chat::ParsedCall) -> ToolCall {
        self.calls += 1;
        let id = format!("call_{}", self.calls);
        ToolCall { id: Some(id), name: call.name.clone(), arguments: call.arguments.clone() }
    }

    fn obey(&mut self, command: Command) -> Result<(), Error> {
        match command {
            Command::Help => self.remark(HELP),
            Command::Exit => Ok(()),
            Command::New => {
                self.messages.retain(Message::is_instruction);
                self.remark("A new conversation.")
            }
            Command::System(text) => {
                self.messages.retain(|message| !message.is_instruction());
                let told = if text.is_some() { "Instructions set." } else { "No instructions any more." };
                if let Some(text) = text {
                    self.messages.insert(0, Message::text("system", text));
                }
                self.remark(told)
            }
            Command::Thinking(thinking) => {
                self.options.enable_thinking = thinking == Thinking::On;
                self.remark(if self.options.enable_thinking { "Thinking is on." } else { "Thinking is off." })
            }
            Command::Tools(None) => {
                self.options.tools.clear();
                self.remark("No tools any more.")
            }
            Command::Tools(Some(path)) => {
                let tools = read_tools(&read_text(&path)?);
                self.options.tools = tools.map_err(|error| named(&path, &error))?;
                self.remark(&format!("The model may call {} tools.", self.options.tools.len()))
            }
            Command::Set(arguments) => {
                let mut set = Set { answer: self.answer.clone() };
                set.try_update_from(&arguments).map_err(|error| {
                    let told = error.to_string();
                    let why = told.lines().next().and_then(|line| line.rsplit_once("': ")).map(|(_, why)| why);
                    let name = arguments[0].trim_start_matches("--").split('=').next().unwrap_or_default();
                    match why {
                        Some(why) => Error::Argument(format!("{name}: {why}")),
                        None => unknown(name),
                    }
                })?;
                if set.answer.best_of.map_or(1, usize::from) > self.scheduler.engine().options().sequences {
                    return Err(Error::Argument("best-of is set when the program starts: --best-of".into()));
                }
                self.answer = set.answer;
                self.remark("Set.")
            }
            Command::Unset(name) => match self.answer.unset(&name) {
                true => self.remark("Set to the model's own."),
                false => Err(unknown(&name)),
            },
            Command::Retry => {
                let Some(last) = self.messages.iter().rposition(|message| message.role == "user") else {
                    return self.remark("Nothing was said yet.");
                };
                let before = self.messages.clone();
                self.messages.truncate(last + 1);
                self.reply_or(before)
            }
            Command::Undo => match self.messages.iter().rposition(|message| message.role == "user") {
                Some(last) => {
                    self.messages.truncate(last);
                    self.remark("Taken back.")
                }
                None => self.remark("Nothing was said yet."),
            },
            Command::Save(path) => {
                let mut text = serde_json::to_string_pretty(&self.messages).map_err(std::io::Error::from)?;
                text.push('\n');
                write_new(&path, &text)?;
                self.remark(&format!("Saved {} messages to {}.", self.messages.len(), path.display()))
            }
            Command::Load(path) => {
                let read = Conversation::read(&read_text(&path)?);
                let Conversation { messages, tools } = read.map_err(|error| named(&path, &error))?;
                self.messages = messages;
                if !tools.is_empty() {
                    self.options.tools = tools;
                }
                self.remark(&format!("{} messages; say something to go on.", self.messages.len()))
            }
            Command::Info => self.info(),
        }
    }

    fn info(&self) -> Result<(), Error> {
        let engine = self.scheduler.engine();
        let mut text = format!("{}, {}\n", self.name, engine.backend_name());
        let thinking = if self.options.enable_thinking { "on" } else { "off" };
        text += &format!("thinking {thinking}, {} tools, {} messages\n", self.options.tools.len(), self.messages.len());
        let tokens = self.texts.prompt(&self.messages, &self.options).map(|prompt| prompt.ids.len());
        if let (Ok(tokens), false) = (tokens, self.messages.is_empty()) {
            text += &format!("{tokens} of {} tokens of the context\n", engine.longest());
        }
        text += &match &self.last {
            None => "no answer yet".to_owned(),
            Some(Answer { usage, timings, seed, .. }) => format!(
                "last answer: {} tokens read at {:.1} a second, {} generated at {:.1} a second, seed {seed}",
                usage.prompt_tokens,
                per_second(usage.prompt_tokens, timings.prompt),
                usage.completion_tokens,
                per_second(timings.decoded, timings.decode),
            ),
        };
        self.remark(&text)
    }
}

fn unknown(name: &str) -> Error {
    Error::Argument(format!("there is no setting {name}; /help shows some, `markbase run --help` all"))
}

fn named(path: &Path, error: &chat::Error) -> Error {
    Error::File { path: path.to_owned(), reason: error.to_string() }
}

/// Writes a file that is not there yet: nothing that a person has is lost.
fn write_new(path: &Path, text: &str) -> Result<(), Error> {
    let wrong = |error: std::io::Error| Error::File { path: path.to_owned(), reason: error.to_string() };
    let mut file = std::fs::File::create_new(path).map_err(wrong)?;
    std::io::Write::write_all(&mut file, text.as_bytes()).map_err(wrong)
}
