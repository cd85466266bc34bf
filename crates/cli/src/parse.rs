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
    /// The reply as the model wrote it, control tokens spelled out; without it, or as -, standard input.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
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
    let path = arguments.file.clone().unwrap_or_else(|| PathBuf::from("-"));
    let ids = match &arguments.ids {
        None => tokenizer.encode(&read_text(&path)?, Specials::Parse)?,
        Some(given) if given.trim().is_empty() => {
            let ids = read_ids(&read_text(&path)?, tokenizer.vocab_size());
            ids.map_err(|reason| Error::File { path, reason })?
        }
        Some(_) if arguments.file.is_some() => {
            return Err(Error::Argument(
                "ids are given by --ids IDS, or in a --file with --ids alone, not both".into(),
            ));
        }
        Some(given) => {
            read_ids(given, tokenizer.vocab_size()).map_err(|reason| Error::Argument(format!("--ids: {reason}")))?
        }
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

/// Ids of a vocabulary of this size: a JSON list, or numbers apart by spaces or commas.
fn read_ids(text: &str, vocab_size: usize) -> Result<Vec<u32>, String> {
    let ids: Vec<u32> = if text.trim_start().starts_with('[') {
        serde_json::from_str(text).map_err(|error| format!("no JSON list of token ids ({error})"))?
    } else {
        let words = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
        let id = |word: &str| word.parse().map_err(|_| format!("{} is no token id", quoted(word)));
        words.map(id).collect::<Result<_, _>>()?
    };
    match ids.iter().find(|&&id| id as usize >= vocab_size) {
        Some(id) => Err(format!("{id} is no token id of this model, whose vocabulary has {vocab_size}")),
        None => Ok(ids),
    }
}

/// A word, no longer than a line.
fn quoted(word: &str) -> String {
    let start: String = word.chars().take(40).collect();
    format!("{start:?}{}", if start.len() < word.len() { "..." } else { "" })
}
