//! `markbase synth`: a checkpoint of random weights.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

use ::synth::{Layout, Override, Recipe, Size};
use checkpoint::QuantFormat;
use clap::Args;
use serde_json::json;

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::print::{bytes, grouped, scaled};
use crate::progress::{Progress, Unit};

#[derive(Args)]
#[command(
    after_help = "Formats: affine:BITS:GROUP (2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128), mxfp4, mxfp8, nvfp4, \
                        bf16.\n\nTry:  markbase synth e2b --quant affine:4:64 --out /tmp/e2b"
)]
pub struct Arguments {
    /// e2b, e4b, 12b, 26b-a4b or 31b.
    #[arg(value_name = "SIZE")]
    size: Size,
    /// A folder that does not exist yet, or is empty.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Format of the matrices, such as affine:4:64; bf16 leaves them as they are.
    #[arg(long, value_name = "FORMAT", default_value = "affine:4:64", value_parser = format)]
    quant: Quant,
    /// Another format for modules whose path ends so: router.proj=affine:8:64; may be given several times.
    #[arg(long = "override", value_name = "MODULE=FORMAT", value_parser = module_format)]
    overrides: Vec<(String, Quant)>,
    /// MLX's tensor names, or those of the original checkpoints (bf16 alone).
    #[arg(long, value_name = "LAYOUT", default_value = "mlx", value_parser = ["mlx", "original"])]
    layout: String,
    /// The same seed gives the same bytes.
    #[arg(long, value_name = "N", default_value_t = 7)]
    seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A format, or none.
#[derive(Clone, Copy)]
struct Quant(Option<QuantFormat>);

fn format(text: &str) -> Result<Quant, String> {
    match text {
        "bf16" => Ok(Quant(None)),
        _ => text
            .parse()
            .map(|format| Quant(Some(format)))
            .map_err(|error: checkpoint::quant::FormatError| error.to_string()),
    }
}

fn module_format(text: &str) -> Result<(String, Quant), String> {
    let (module, quant) = text.split_once('=').ok_or("wanted MODULE=FORMAT, such as router.proj=affine:8:64")?;
    Ok((module.to_owned(), format(quant)?))
}

/// Runs the command.
pub fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    let config = ::synth::config(arguments.size);
    let mut recipe = Recipe::new(config, arguments.quant.0, arguments.seed);
    if arguments.layout == "original" {
        recipe.layout = Layout::Original;
    }
    let overrides = arguments.overrides.iter();
    recipe.overrides.extend(overrides.map(|(suffix, quant)| Override { suffix: suffix.clone(), format: quant.0 }));
    let interrupt = Interrupt::watch();
    let mut progress = Progress::new("writing", Unit::Bytes);
    let summary = ::synth::write(&recipe, &arguments.out, &mut |at| {
        progress.at(at.done_bytes, at.total_bytes);
        if interrupt.came() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    drop(progress);
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let result = json!({
            "out": arguments.out,
            "bytes": summary.bytes,
            "parameters": summary.parameters,
            "tensors": summary.tensors,
            "shards": summary.shards,
        });
        writeln!(out, "{result:#}")?;
    } else {
        writeln!(
            out,
            "{}: {} in {} tensors, {}",
            arguments.out.display(),
            scaled(summary.parameters as f64, "weights"),
            grouped(summary.tensors),
            bytes(summary.bytes as f64)
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
