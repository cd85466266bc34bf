//! `markbase inspect`: what a checkpoint holds, what is wrong with it, what it needs.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

use checkpoint::{Checkpoint, TensorInfo};
use clap::Args;
use engine::{Engine, EngineOptions};
use model::{Model, ModelError};
use plan::{RowCounts, WeightSpec};
use serde_json::{Value, json};

use crate::backends::BackendArguments;
use crate::error::Error;
use crate::load::ModelArguments;
use crate::print::{bytes, grouped, scaled};

#[derive(Args)]
pub struct Arguments {
    /// Positions of one sequence that memory is counted for [default: 8192, or the model's most].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    context: Option<u32>,
    /// List every tensor.
    #[arg(long)]
    tensors: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    backend: BackendArguments,
}

/// Memory for a given context.
struct Memory {
    context: usize,
    weight_bytes: f64,
    gathered_bytes: f64,
    /// Name, window, layers, bytes.
    groups: Vec<(String, Option<usize>, usize, u64)>,
    free_bytes: u64,
}

/// Runs the command: exit code 1 if the checkpoint cannot run.
pub fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    let checkpoint = arguments.model.checkpoint()?;
    let model = Model::read(&checkpoint);
    let memory = match &model {
        Ok(model) => Some(memory(&arguments, model)?),
        Err(_) => None,
    };
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{:#}", as_json(&checkpoint, &model, memory.as_ref(), arguments.tensors))?;
    } else {
        tell(&mut out, &checkpoint, &model, memory.as_ref(), &arguments)?;
    }
    Ok(if model.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn memory(arguments: &Arguments, model: &Model) -> Result<Memory, Error> {
    let plan = &model.plan;
    let context = arguments.context.map_or(8192.min(model.info.context), |context| context as usize);
    let options =
        EngineOptions { context, sequences: 1, max_rows: 512.min(context), max_wanted: 1, keep: vec![], watch: false };
    let backend = arguments.backend.make()?;
    let blocks = Engine::blocks(plan, context, &options);
    let sizes = backend.block_bytes(&plan.cache);
    let groups =
        plan.cache.groups.iter().zip(blocks.iter().zip(sizes)).map(|(group, (&blocks, bytes))| {
            (group.name.clone(), group.window, group.layers.len(), bytes * blocks as u64)
        });
    let stored = |spec: &WeightSpec| spec.stored_bytes(spec.shape.elements());
    let is_only_gathered = |spec: &&WeightSpec| spec.usage.gathered && !spec.usage.multiplied;
    Ok(Memory {
        context,
        weight_bytes: plan.weights.iter().map(stored).sum(),
        gathered_bytes: plan.weights.iter().filter(is_only_gathered).map(stored).sum(),
        groups: groups.collect(),
        free_bytes: backend.memory().free_bytes,
    })
}

/// What part of a model a tensor's name belongs to, for a summary of few lines.
fn part(name: &str) -> &'static str {
    let has = |text: &str| name.contains(text);
    match () {
        _ if has("vision_tower.") || has("embed_vision.") || has("vision_embedder.") => "vision",
        _ if has("audio_tower.") || has("embed_audio.") => "audio",
        _ if has("embed_tokens_per_layer") => "per-layer embeddings",
        _ if has("embed_tokens") || has("lm_head") => "embeddings and head",
        _ if has(".experts.") => "experts",
        _ if has(".self_attn.") => "attention",
        _ if has(".mlp.") => "feed-forward",
        _ => "norms and the rest",
    }
}

fn parts(checkpoint: &Checkpoint) -> BTreeMap<&'static str, (usize, u64)> {
    let mut parts: BTreeMap<&'static str, (usize, u64)> = BTreeMap::new();
    for tensor in checkpoint.tensors() {
        let entry = parts.entry(part(&tensor.name)).or_default();
        *entry = (entry.0 + 1, entry.1 + tensor.bytes());
    }
    parts
}

/// Formats of the model's matrices: how many of each, and how many numbers.
fn formats(model: &Model) -> BTreeMap<String, (usize, usize)> {
    let mut formats: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for spec in &model.plan.weights {
        if matches!(spec.shape, plan::WeightShape::Vector { .. }) {
            continue;
        }
        let entry = formats.entry(spec.format()).or_default();
        *entry = (entry.0 + 1, entry.1 + spec.shape.elements());
    }
    formats
}

fn tell(
    out: &mut impl Write,
    checkpoint: &Checkpoint,
    model: &Result<Model, ModelError>,
    memory: Option<&Memory>,
    arguments: &Arguments,
) -> Result<(), Error> {
    let total: u64 = checkpoint.tensors().map(TensorInfo::bytes).sum();
    let files = checkpoint.files().len();
    writeln!(out, "{}", checkpoint.name())?;
    writeln!(
        out,
        "  {} tensors, {} in {}",
        grouped(checkpoint.tensors().count()),
        bytes(total as f64),
        if files == 1 { "one file".to_owned() } else { format!("{files} files") }
    )?;
    for (part, (tensors, size)) in parts(checkpoint) {
        writeln!(out, "    {part:<22} {:>6} tensors {:>10}", grouped(tensors), bytes(size as f64))?;
    }
    if arguments.tensors {
        writeln!(out)?;
        for tensor in checkpoint.tensors() {
            writeln!(
                out,
                "  {:<72} {:<5} {:<22} {:>10}",
                tensor.name,
                tensor.dtype.to_string(),
                format!("{:?}", tensor.shape),
                bytes(tensor.bytes() as f64)
            )?;
        }
    }
    let model = match model {
        Ok(model) => model,
        Err(error) => {
            writeln!(out, "\ncannot run: {error}")?;
            return Ok(());
        }
    };
    let info = &model.info;
    let numbers: usize = model.plan.weights.iter().map(|spec| spec.shape.elements()).sum();
    writeln!(out, "\nmodel {}", info.family)?;
    writeln!(
        out,
        "  {} layers, vocabulary {}, context {}, {} used for text",
        info.layers,
        grouped(info.vocabulary),
        grouped(info.context),
        scaled(numbers as f64, "weights")
    )?;
    for (format, (matrices, numbers)) in formats(model) {
        writeln!(out, "  {:<10} {:>6} matrices, {}", format, grouped(matrices), scaled(numbers as f64, "weights"))?;
    }
    for unused in &model.unused {
        writeln!(out, "  not used: {} tensors: {}", grouped(unused.tensors.len()), unused.reason)?;
    }
    for warning in checkpoint.warnings().iter().chain(&model.warnings) {
        writeln!(out, "  warning: {warning}")?;
    }
    let Some(memory) = memory else { return Ok(()) };
    writeln!(out, "\nmemory for one sequence of {} positions", grouped(memory.context))?;
    writeln!(
        out,
        "  weights          {:>10}{}",
        bytes(memory.weight_bytes),
        match memory.gathered_bytes {
            0.0 => String::new(),
            gathered => format!(", of which {} are only looked up and stay in the file", bytes(gathered)),
        }
    )?;
    for (name, window, layers, size) in &memory.groups {
        let window = window.map_or(String::new(), |window| format!(", window {window}"));
        writeln!(out, "  cache, {name:<9} {:>10}, {layers} layers{window}", bytes(*size as f64))?;
    }
    let needed = needed(memory);
    writeln!(out, "  together         {:>10}, and {} are free", bytes(needed), bytes(memory.free_bytes as f64))?;
    if memory.free_bytes != u64::MAX && needed > memory.free_bytes as f64 {
        writeln!(out, "  it does not fit: take a smaller --context, or a model of fewer bits")?;
    }
    let cost = model.plan.total_cost(RowCounts { tokens: 1, wanted: 1, context: 1 });
    writeln!(out, "\na generated token reads {} of weights", bytes(cost.weight_bytes))?;
    Ok(())
}

fn needed(memory: &Memory) -> f64 {
    memory.weight_bytes - memory.gathered_bytes + memory.groups.iter().map(|group| group.3 as f64).sum::<f64>()
}

fn as_json(
    checkpoint: &Checkpoint,
    model: &Result<Model, ModelError>,
    memory: Option<&Memory>,
    with_tensors: bool,
) -> Value {
    let tensor = |tensor: &TensorInfo| {
        json!({
            "name": tensor.name,
            "dtype": tensor.dtype.to_string(),
            "shape": tensor.shape,
            "bytes": tensor.bytes(),
            "file": checkpoint.files()[tensor.file].name(),
        })
    };
    let mut value = json!({
        "name": checkpoint.name(),
        "files": checkpoint.files().iter().map(|file| json!({"name": file.name(), "bytes": file.bytes()})).collect::<Vec<_>>(),
        "tensors": checkpoint.tensors().count(),
        "bytes": checkpoint.tensors().map(TensorInfo::bytes).sum::<u64>(),
        "parts": parts(checkpoint).into_iter().map(|(part, (tensors, bytes))| {
            json!({"part": part, "tensors": tensors, "bytes": bytes})
        }).collect::<Vec<_>>(),
        "warnings": checkpoint.warnings(),
    });
    if with_tensors {
        value["tensor_list"] = checkpoint.tensors().map(tensor).collect();
    }
    match model {
        Err(error) => {
            value["error"] = json!(error.to_string());
            if let ModelError::Tensors { problems } = error {
                let problem = |problem: &checkpoint::Problem| {
                    json!({
                        "kind": format!("{:?}", problem.kind()).to_lowercase(),
                        "tensor": problem.tensor(),
                        "problem": problem.to_string(),
                    })
                };
                value["problems"] = problems.iter().map(problem).collect();
            }
        }
        Ok(model) => {
            value["model"] = json!({
                "family": model.info.family,
                "layers": model.info.layers,
                "vocabulary": model.info.vocabulary,
                "context": model.info.context,
                "formats": formats(model).into_iter().map(|(format, (matrices, weights))| {
                    json!({"format": format, "matrices": matrices, "weights": weights})
                }).collect::<Vec<_>>(),
                "unused": model.unused.iter().map(|unused| {
                    json!({"reason": unused.reason, "tensors": unused.tensors})
                }).collect::<Vec<_>>(),
                "warnings": model.warnings,
            });
        }
    }
    if let Some(memory) = memory {
        value["memory"] = json!({
            "context": memory.context,
            "weight_bytes": memory.weight_bytes,
            "gathered_bytes": memory.gathered_bytes,
            "cache": memory.groups.iter().map(|(name, window, layers, bytes)| {
                json!({"group": name, "window": window, "layers": layers, "bytes": bytes})
            }).collect::<Vec<_>>(),
            "needed_bytes": needed(memory),
            "free_bytes": memory.free_bytes,
        });
    }
    value
}
