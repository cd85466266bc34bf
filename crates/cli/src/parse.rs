//! `markbase parse`: a model's reply, taken apart as it is while it streams.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use answer::Texts;
use chat::{DeclaredTool, Delta, Reply, ReplyOptions, ReplyParser, Specials, read_tools};
use clap::Args;
use serde::Serialize;

use crate::error::Error;
use crate::files::read_text;
use crate::load::ModelArguments;
use crate::wire::Call;

#[derive(Args)]
pub struct Arguments {
    /// The reply as the model wrote it, control tokens spelled out; - reads standard input.
    #[arg(long, value_name = "FILE", default_value = "-", hide_default_value = true)]
    file: PathBuf,
    /// The file holds token ids instead of text (a JSON list, or numbers apart by spaces or commas); or give the ids
    /// themselves.
    #[arg(long, value_name = "IDS", num_args = 0..=1, default_missing_value = "")]
    ids: Option<String>,
    /// The prompt, or its end, after which the reply came: it may have left a thought open.
    #[arg(long, value_name = "FILE")]
    after_prompt: Option<PathBuf>,
    /// The tools that were declared: they complete names and decide types.
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    /// End the answer before this text; may be given several times.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Print each piece as it comes, token by token, as JSON lines.
    #[arg(long)]
    pieces: bool,
    #[command(flatten)]
    model: ModelArguments,
}

/// A reply, or a piece of one.
#[derive(Serialize)]
struct Parts {
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thought: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<Vec<Call>>,
}

/// Runs the command.
pub fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    let texts = Texts::read(&arguments.model.folder()?)?;
    let tokenizer = texts.tokenizer();
    let ids = match &arguments.ids {
        None => tokenizer.encode(&read_text(&arguments.file)?, Specials::Parse)?,
        Some(given) if given.trim().is_empty() => read_ids(&read_text(&arguments.file)?)?,
        Some(given) => read_ids(given)?,
    };
    let after_prompt = match &arguments.after_prompt {
        Some(path) => tokenizer.encode(&read_text(path)?, Specials::Parse)?,
        None => vec![],
    };
    let tools = match &arguments.tools {
        Some(path) => {
            let tools = read_tools(&read_text(path)?);
            let tools = tools.map_err(|error| Error::File { path: path.clone(), reason: error.to_string() })?;
            tools.iter().filter_map(DeclaredTool::read).collect()
        }
        None => vec![],
    };
    let stop_ids = texts.chat_stop_ids().ids().to_vec();
    let options = ReplyOptions { after_prompt, tools, stop: arguments.stop, stop_ids };
    let mut out = std::io::stdout().lock();
    if !arguments.pieces {
        let reply = Reply::parse(tokenizer.clone(), options, &ids)?;
        let calls = reply.calls.iter().map(Call::from).collect();
        let parts = Parts { text: Some(reply.text), thought: Some(reply.thought), tool_calls: Some(calls) };
        writeln!(out, "{}", serde_json::to_string_pretty(&parts).map_err(std::io::Error::from)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut parser = ReplyParser::new(tokenizer.clone(), options)?;
    let mut deltas: Vec<Delta> = ids.iter().flat_map(|&id| parser.push(id)).collect();
    deltas.extend(parser.finish());
    for delta in deltas {
        let nothing = Parts { text: None, thought: None, tool_calls: None };
        let parts = match delta {
            Delta::Text(text) => Parts { text: Some(text), ..nothing },
            Delta::Thought(thought) => Parts { thought: Some(thought), ..nothing },
            Delta::Call { call, .. } => Parts { tool_calls: Some(vec![Call::from(&call)]), ..nothing },
        };
        writeln!(out, "{}", serde_json::to_string(&parts).map_err(std::io::Error::from)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn read_ids(text: &str) -> Result<Vec<u32>, Error> {
    let inner = text.trim().trim_start_matches('[').trim_end_matches(']');
    let words = inner.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    let id = |word: &str| word.parse().map_err(|_| Error::Argument(format!("--ids: {word:?} is no token id")));
    words.map(id).collect()
}
