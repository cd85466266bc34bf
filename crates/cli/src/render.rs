//! `markbase render`: what the model would read, without the model.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use answer::Texts;
use chat::ChatOptions;
use clap::Args;

use crate::ask::{ConversationArguments, TemplateArguments, Thinking};
use crate::error::Error;
use crate::load::ModelArguments;

#[derive(Args)]
pub struct Arguments {
    /// The conversation: a JSON list of messages in the shape of OpenAI's API, or an object with `messages` and
    /// `tools`; - reads standard input.
    #[arg(long, value_name = "FILE")]
    messages: PathBuf,
    /// Tools that the model may call: a JSON list in the shape of OpenAI's API.
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    /// Whether the model thinks before it answers.
    #[arg(long, value_enum, value_name = "on|off", default_value_t = Thinking::Off, hide_possible_values = true)]
    thinking: Thinking,
    /// Keep the thoughts beside earlier tool calls.
    #[arg(long)]
    preserve_thinking: bool,
    /// End with the last message, not where the model's answer begins.
    #[arg(long)]
    no_generation_prompt: bool,
    /// Print the token ids, as a JSON list, instead of the text.
    #[arg(long)]
    ids: bool,
    #[command(flatten)]
    template: TemplateArguments,
    #[command(flatten)]
    model: ModelArguments,
}

/// Runs the command.
pub fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    let texts = arguments.template.apply(Texts::read(&arguments.model.folder()?)?)?;
    let conversation = ConversationArguments {
        system: None,
        messages: Some(arguments.messages),
        tools: arguments.tools,
        thinking: arguments.thinking,
    };
    let (messages, options) = conversation.read(None)?;
    let options = ChatOptions {
        add_generation_prompt: !arguments.no_generation_prompt,
        preserve_thinking: arguments.preserve_thinking,
        ..options
    };
    let mut out = std::io::stdout().lock();
    if arguments.ids {
        let ids = texts.prompt(&messages, &options)?.ids;
        writeln!(out, "{}", serde_json::to_string(&ids).map_err(std::io::Error::from)?)?;
    } else {
        out.write_all(texts.render(&messages, &options)?.as_bytes())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
