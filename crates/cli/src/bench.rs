//! `markbase bench`: speed of both phases, and the share of what this machine can do.

use std::io::Write;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use engine::{Engine, EngineOptions, Sequence, Wanted, Work};
use plan::{RowCounts, Sampling};
use serde_json::json;

use crate::backends::{BackendArguments, Machine};
use crate::error::Error;
use crate::load::ModelArguments;
use crate::print::{bytes, scaled};

#[derive(Args)]
pub struct Arguments {
    /// Tokens of the prompt that is timed; 0 leaves this phase out.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    prompt_tokens: u32,
    /// Tokens generated one by one; 0 leaves this phase out.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    generate: u32,
    /// Tokens cached before either phase begins.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    depth: u32,
    /// Times each phase is run; the median counts.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    /// The most tokens of the prompt that go through the model at a time.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u16).range(1..=8192))]
    chunk: u16,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    backend: BackendArguments,
}

/// One phase, timed.
struct Phase {
    tokens: usize,
    seconds: f64,
    bytes: f64,
    operations: f64,
}

impl Phase {
    fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }

    fn json(&self, machine: &Machine) -> serde_json::Value {
        json!({
            "tokens": self.tokens,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second(),
            "bytes_per_token": self.bytes / self.tokens as f64,
            "bytes_per_second": self.bytes / self.seconds,
            "share_of_bandwidth": self.bytes / self.seconds / machine.bytes_per_second,
            "operations_per_token": self.operations / self.tokens as f64,
            "operations_per_second": self.operations / self.seconds,
            "share_of_multiply_rate": self.operations / self.seconds / machine.i8_operations_per_second,
        })
    }
}

/// Runs the command.
pub fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    if arguments.prompt_tokens == 0 && arguments.generate == 0 {
        return Err(Error::Argument("nothing to measure: --prompt-tokens and --generate are both 0".into()));
    }
    let [prompt_tokens, generate, depth] =
        [arguments.prompt_tokens, arguments.generate, arguments.depth].map(|count| count as usize);
    let opened = arguments.model.open()?;
    let plan = opened.model.plan.clone();
    let context = depth + prompt_tokens.max(generate) + 1;
    if context > opened.model.info.context {
        let most = opened.model.info.context;
        return Err(Error::Argument(format!("{context} positions, and the model was made for {most}")));
    }
    let options = EngineOptions {
        context,
        sequences: 1,
        max_rows: usize::from(arguments.chunk).min(context),
        max_wanted: 1,
        keep: vec![],
        watch: false,
    };
    let (mut engine, load_time) = opened.engine(&arguments.backend, options)?;
    let tokens = tokens(context, plan.vocabulary());
    // Pages of the mapping are read by the first step; what is measured is the steps after it.
    let warm = Instant::now();
    let mut sequence = engine.sequence();
    prefill(&mut engine, &mut sequence, &tokens[..1])?;
    drop(sequence);
    let first_step = warm.elapsed();

    let mut phases: [Option<Phase>; 2] = [None, None];
    if prompt_tokens > 0 {
        let mut seconds = vec![];
        for _ in 0..arguments.repeat {
            let mut sequence = at_depth(&mut engine, &tokens[..depth])?;
            let started = Instant::now();
            prefill(&mut engine, &mut sequence, &tokens[depth..depth + prompt_tokens])?;
            seconds.push(started.elapsed().as_secs_f64());
        }
        let chunk = engine.options().max_rows;
        let mut phase = Phase { tokens: prompt_tokens, seconds: median(seconds), bytes: 0.0, operations: 0.0 };
        for first in (0..prompt_tokens).step_by(chunk) {
            let rows = chunk.min(prompt_tokens - first);
            let is_last = first + rows == prompt_tokens;
            let counts = RowCounts { tokens: rows, wanted: usize::from(is_last), context: depth + first + rows };
            let cost = plan.total_cost(counts);
            phase.bytes += cost.weight_bytes + cost.cache_bytes;
            phase.operations += 2.0 * cost.multiply_adds;
        }
        phases[0] = Some(phase);
    }
    if generate > 0 {
        let mut seconds = vec![];
        for _ in 0..arguments.repeat {
            let mut sequence = at_depth(&mut engine, &tokens[..depth])?;
            let mut token = tokens[depth];
            let started = Instant::now();
            for _ in 0..generate {
                let piece = Work {
                    sequence: &mut sequence,
                    tokens: &[token],
                    wanted: Wanted::Last,
                    choice: Some(Sampling::GREEDY.into()),
                };
                token = engine.step(&mut [piece])?.sampled[0].token;
            }
            seconds.push(started.elapsed().as_secs_f64());
        }
        let mut phase = Phase { tokens: generate, seconds: median(seconds), bytes: 0.0, operations: 0.0 };
        for position in depth..depth + generate {
            let cost = plan.total_cost(RowCounts { tokens: 1, wanted: 1, context: position + 1 });
            phase.bytes += cost.weight_bytes + cost.cache_bytes;
            phase.operations += 2.0 * cost.multiply_adds;
        }
        phases[1] = Some(phase);
    }
    let peak_memory = peak_memory();
    let backend = engine.backend_name();
    drop(engine);
    let machine = Machine::measure(arguments.backend.threads());
    let mut out = std::io::stdout().lock();
    let [prompt, decode] = &phases;
    if arguments.json {
        let result = json!({
            "model": opened.checkpoint.name(),
            "backend": backend,
            "depth": depth,
            "repeat": arguments.repeat,
            "load_ms": load_time.as_secs_f64() * 1e3,
            "first_step_ms": first_step.as_secs_f64() * 1e3,
            "peak_memory_bytes": peak_memory,
            "prompt": prompt.as_ref().map(|phase| phase.json(&machine)),
            "generate": decode.as_ref().map(|phase| phase.json(&machine)),
            "machine": {
                "threads": arguments.backend.threads(),
                "bytes_per_second": machine.bytes_per_second,
                "f32_operations_per_second": machine.f32_operations_per_second,
                "i8_operations_per_second": machine.i8_operations_per_second,
            },
        });
        writeln!(out, "{result:#}")?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "{}, {backend}", opened.checkpoint.name())?;
    writeln!(
        out,
        "load {:.2} s, first step {:.2} s, peak memory {}",
        load_time.as_secs_f64(),
        first_step.as_secs_f64(),
        peak_memory.map_or("unknown on this system".into(), |peak| bytes(peak as f64))
    )?;
    for (name, phase) in [("prompt", prompt), ("generate", decode)] {
        let Some(phase) = phase else { continue };
        writeln!(
            out,
            "{name:<9} {:>6} tokens in {:>8.3} s: {:>8.2} tokens/s; {} a token, {}/s ({:.0}% of bandwidth); {}/s ({:.0}% of the 8-bit multiply rate)",
            phase.tokens,
            phase.seconds,
            phase.tokens_per_second(),
            bytes(phase.bytes / phase.tokens as f64),
            bytes(phase.bytes / phase.seconds),
            100.0 * phase.bytes / phase.seconds / machine.bytes_per_second,
            scaled(phase.operations / phase.seconds, "op"),
            100.0 * phase.operations / phase.seconds / machine.i8_operations_per_second
        )?;
    }
    writeln!(
        out,
        "machine   reads {}/s, multiplies {}/s in f32 and {}/s in 8 bits, with {} threads",
        bytes(machine.bytes_per_second),
        scaled(machine.f32_operations_per_second, "op"),
        scaled(machine.i8_operations_per_second, "op"),
        arguments.backend.threads()
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Ids that walk over the whole vocabulary, so that experts and table rows differ from token to token.
fn tokens(count: usize, vocabulary: usize) -> Vec<u32> {
    let id = |i: usize| (i as u64).wrapping_mul(2_654_435_761) % vocabulary as u64;
    (1..=count).map(|i| id(i) as u32).collect()
}

fn at_depth(engine: &mut Engine, tokens: &[u32]) -> Result<Sequence, Error> {
    let mut sequence = engine.sequence();
    engine.feed(&mut sequence, tokens, 0..0, |_, _| ControlFlow::Continue(()))?;
    Ok(sequence)
}

/// As a prompt is read: the last row is wanted.
fn prefill(engine: &mut Engine, sequence: &mut Sequence, tokens: &[u32]) -> Result<(), Error> {
    engine.feed(sequence, tokens, tokens.len() - 1..tokens.len(), |_, _| ControlFlow::Continue(()))?;
    Ok(())
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// The most memory that this process has had resident, in bytes.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
