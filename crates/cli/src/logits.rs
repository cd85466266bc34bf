//! `markbase logits`: what the model thinks of every next token, as numbers.

use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::process::ExitCode;

use checkpoint::{DType, TensorSpec, Writer};
use clap::Args;
use engine::EngineOptions;
use serde_json::Value;

use crate::backends::BackendArguments;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::load::ModelArguments;
use crate::progress::{Progress, Unit};

#[derive(Args)]
pub struct Arguments {
    /// JSON file: an array of token ids.
    #[arg(long, value_name = "FILE.json")]
    tokens: PathBuf,
    /// Where to write: f32 `logits` [rows, vocabulary] and i64 `input_ids` [all rows].
    #[arg(long, value_name = "FILE.safetensors")]
    out: PathBuf,
    /// Which rows to keep: `all`, `last`, or `A..B` from 0, B not included.
    #[arg(long, value_name = "ROWS", default_value = "all", value_parser = rows)]
    rows: Rows,
    /// The most tokens that go through the model at a time; the result does not depend on it.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u16).range(1..=8192))]
    chunk: u16,
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    backend: BackendArguments,
}

#[derive(Clone)]
enum Rows {
    All,
    Last,
    Range(Range<usize>),
}

fn rows(text: &str) -> Result<Rows, String> {
    match text {
        "all" => Ok(Rows::All),
        "last" => Ok(Rows::Last),
        _ => {
            let range = text.split_once("..").and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?));
            match range {
                Some(range) if range.start < range.end => Ok(Rows::Range(range)),
                _ => Err("wanted all, last, or A..B with A below B".into()),
            }
        }
    }
}

impl Rows {
    fn range(&self, total: usize) -> Result<Range<usize>, Error> {
        match self {
            Rows::All => Ok(0..total),
            Rows::Last => Ok(total - 1..total),
            Rows::Range(range) if range.end <= total => Ok(range.clone()),
            Rows::Range(range) => {
                Err(Error::Argument(format!("--rows {}..{}: there are {total} tokens", range.start, range.end)))
            }
        }
    }
}

/// Wanted rows of one step: with a vocabulary of a quarter million each takes a megabyte, several times over.
const MAX_WANTED: usize = 32;
/// Far above every context; keeps a hostile file from filling memory.
const LARGEST_FILE: u64 = 256 << 20;

fn read_tokens(path: &PathBuf) -> Result<Vec<u32>, Error> {
    let wrong = |reason: String| Error::File { path: path.clone(), reason };
    let size = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?.len();
    if size > LARGEST_FILE {
        return Err(wrong(format!("{size} bytes, and at most {LARGEST_FILE} are read")));
    }
    let bytes = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|error| wrong(format!("not JSON: {error}")))?;
    let Value::Array(items) = value else { return Err(wrong("wanted an array of token ids".into())) };
    if items.is_empty() {
        return Err(wrong("no token ids in it; at least one is needed".into()));
    }
    let id = |(place, item): (usize, &Value)| {
        let id = item.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| wrong(format!("item {place} is {}, wanted a token id", short(item))))
    };
    items.iter().enumerate().map(id).collect()
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// Runs the command.
pub fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    let tokens = read_tokens(&arguments.tokens)?;
    if std::fs::canonicalize(&arguments.out)
        .is_ok_and(|out| std::fs::canonicalize(&arguments.tokens).is_ok_and(|tokens| out == tokens))
    {
        return Err(Error::File {
            path: arguments.out,
            reason: "is the file of tokens too; give another --out".into(),
        });
    }
    let range = arguments.rows.range(tokens.len())?;
    let opened = arguments.model.open()?;
    let plan = &opened.model.plan;
    let vocabulary = plan.vocabulary();
    if let Some(place) = tokens.iter().position(|&token| token as usize >= vocabulary) {
        let reason = format!("item {place} is {}, and the vocabulary has {vocabulary} tokens", tokens[place]);
        return Err(Error::File { path: arguments.tokens, reason });
    }
    let chunk = usize::from(arguments.chunk).min(tokens.len());
    let options = EngineOptions {
        context: tokens.len(),
        sequences: 1,
        max_rows: chunk,
        max_wanted: chunk.min(MAX_WANTED),
        keep: vec![plan.logits],
        watch: false,
    };
    let (mut engine, _) = opened.engine(&arguments.backend, options)?;
    let specs = vec![
        TensorSpec::new("input_ids", DType::I64, &[tokens.len()]),
        TensorSpec::new("logits", DType::F32, &[range.len(), vocabulary]),
    ];
    let interrupt = Interrupt::watch();
    let mut writer = Writer::create(&arguments.out, &specs, &[])?;
    let ids: Vec<u8> = tokens.iter().flat_map(|&token| i64::from(token).to_le_bytes()).collect();
    writer.write("input_ids", &ids)?;

    let mut progress = Progress::new("logits", Unit::Bytes);
    let (mut written, total) = (0, (range.len() * vocabulary * 4) as u64);
    let mut failed = None;
    let mut sequence = engine.sequence();
    engine.feed(&mut sequence, &tokens, range, |_, outputs| {
        let bytes: Vec<u8> = outputs.kept[0].iter().flat_map(|number| number.to_le_bytes()).collect();
        written += bytes.len() as u64;
        if let Err(error) = writer.write("logits", &bytes) {
            failed = Some(error.into());
        } else if interrupt.came() {
            failed = Some(Error::Argument("interrupted; nothing was written".into()));
        }
        progress.at(written, total);
        if failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    writer.finish()?;
    Ok(ExitCode::SUCCESS)
}
