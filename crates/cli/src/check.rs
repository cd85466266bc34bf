//! `markbase check`: a backend against the reference, from single operations to whole answers.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use conformance::{
    Arithmetic, DivergenceOptions, InvarianceOptions, Subject, Suite, distribution, divergence, finite, invariance,
};
use serde_json::{Value, json};

use crate::backends::{BackendArguments, Kind, Precision};
use crate::error::Error;
use crate::load::ModelArguments;

#[derive(Args)]
#[command(
    after_help = "Takes a prompt of token ids drawn from the seed, runs it on the backend and on the reference, and tells the first \
                        step that parts, the first value that is not finite, and whether chunks and batches change a bit. The \
                        reference computes in plain loops: minutes for a model of billions of weights."
)]
pub struct Arguments {
    /// Tokens of the prompt.
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    tokens: u32,
    /// Draws the prompt and the generated cases.
    #[arg(long, value_name = "N", default_value_t = 7)]
    seed: u64,
    /// Only these parts; all of them when left out.
    #[arg(long, value_name = "PART", value_delimiter = ',', value_enum)]
    only: Vec<Part>,
    /// Show every step of the comparison, not only the first that parts.
    #[arg(long)]
    steps: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    backend: BackendArguments,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Generated plans of each operation.
    Cases,
    /// Every value is finite.
    Finite,
    /// The model step by step.
    Steps,
    /// Distance of the predicted distributions.
    Distribution,
    /// Chunks, batches and neighbours change nothing.
    Invariance,
}

/// Ids of a prompt: bos first where the model has one, then anything.
fn prompt(count: usize, vocabulary: usize, bos: Option<u32>, seed: u64) -> Vec<u32> {
    let id = |i: usize| (plan::uniform(seed, i as u32) * vocabulary as f32) as u32;
    let mut ids: Vec<u32> = (0..count).map(|i| id(i).min(vocabulary as u32 - 1)).collect();
    if let Some(bos) = bos {
        ids[0] = bos;
    }
    ids
}

/// Runs the command: exit code 1 if anything differs.
pub fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    let opened = arguments.model.open()?;
    let info = &opened.model.info;
    let tokens = prompt(arguments.tokens as usize, info.vocabulary, info.bos, arguments.seed);
    let subject = Subject { checkpoint: opened.checkpoint.clone(), plan: opened.model.plan.clone() };
    // What could not be made is told here; the checks below make the same thing again.
    drop(arguments.backend.make()?);
    let backend = || arguments.backend.make().expect("the same backend was made before");
    let reference = || Box::new(reference::Reference::new()) as Box<dyn plan::Backend>;
    let is_exact = arguments.backend.backend == Kind::Reference || arguments.backend.precision == Precision::Exact;
    let (arithmetic, bounds) = match is_exact {
        true => (Arithmetic::F32, DivergenceOptions::F32),
        false => (Arithmetic::FifteenBit, DivergenceOptions::FIFTEEN_BIT),
    };
    let mut out = std::io::stdout().lock();
    let mut results = serde_json::Map::new();
    let mut all_hold = true;
    let mut tell = |name: &str, holds: bool, text: String, value: Value| -> Result<(), Error> {
        all_hold &= holds;
        if !arguments.json {
            writeln!(out, "{} {name}: {text}", if holds { "ok  " } else { "FAIL" })?;
            out.flush()?;
        }
        results.insert(name.into(), value);
        Ok(())
    };
    let wanted = |part: Part| arguments.only.is_empty() || arguments.only.contains(&part);

    if wanted(Part::Cases) {
        let report = Suite::new(arguments.seed)?.run(&backend, arithmetic)?;
        let failures: Vec<String> = report.failures().map(|case| format!("\n  {case}")).collect();
        let text = format!("{} generated plans, {} differ{}", report.cases.len(), failures.len(), failures.concat());
        tell("cases", failures.is_empty(), text, json!(report))?;
    }
    if wanted(Part::Finite) {
        let first = finite(&subject, &backend, &tokens, 16)?;
        let text = match &first {
            None => format!("every value of {} rows", tokens.len()),
            Some(first) => first.to_string(),
        };
        tell("finite", first.is_none(), text, json!(first))?;
    }
    if wanted(Part::Steps) {
        let found = divergence(&subject, &reference, &backend, &tokens, bounds)?;
        let whole = found.to_string();
        // The verdicts stand before the table.
        let lines = if arguments.steps { usize::MAX } else { 3 };
        let text = whole.lines().take(lines).collect::<Vec<_>>().join("\n  ");
        tell("steps", found.agrees(), text, json!(found))?;
    }
    if wanted(Part::Distribution) {
        let found = distribution(&subject, &reference, &backend, &tokens, 16)?;
        tell("distribution", found.mean_kl < MOST_KL, found.to_string(), json!(found))?;
    }
    if wanted(Part::Invariance) {
        let found = invariance(&subject, &backend, &tokens, &InvarianceOptions::default())?;
        tell("invariance", found.first.is_none(), found.to_string(), json!(found))?;
    }
    if arguments.json {
        results.insert("agrees".into(), json!(all_hold));
        writeln!(out, "{:#}", Value::Object(results))?;
    }
    Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Nats a position: what the default precision may cost.
const MOST_KL: f64 = 2e-3;
