//! `markbase plan`: the model as a list of steps.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use plan::{Cost, Listing, Plan, RowCounts, Step};
use serde_json::{Value, json};

use crate::error::Error;
use crate::load::ModelArguments;
use crate::print::{grouped, scaled};

#[derive(Args)]
pub struct Arguments {
    /// Token rows of the step: 1 is generation, more is a prompt.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rows: u32,
    /// Rows whose logits are wanted.
    #[arg(long, value_name = "N", default_value_t = 1)]
    wanted: u32,
    /// Tokens cached before the step.
    #[arg(long, value_name = "N", default_value_t = 0)]
    depth: u32,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArguments,
}

/// Runs the command.
pub fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    if arguments.wanted > arguments.rows {
        return Err(Error::Argument(format!("--wanted {} of --rows {}", arguments.wanted, arguments.rows)));
    }
    let opened = arguments.model.open()?;
    let plan = &opened.model.plan;
    let counts = RowCounts {
        tokens: arguments.rows as usize,
        wanted: arguments.wanted as usize,
        context: arguments.depth as usize + arguments.rows as usize,
    };
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{:#}", as_json(plan, counts))?;
        return Ok(ExitCode::SUCCESS);
    }
    let listing = Listing(plan);
    for step in &plan.steps {
        let cost = plan.cost(step, counts);
        let (details, operands, results) = (listing.details(step), listing.operands(step), listing.results(step));
        let site = step.site.to_string();
        let bytes = cost.weight_bytes + cost.cache_bytes;
        let moved = if bytes > 0.0 { scaled(bytes, "B") } else { String::new() };
        let work = if cost.multiply_adds > 0.0 { scaled(2.0 * cost.multiply_adds, "op") } else { String::new() };
        let arrow = if results.is_empty() { "" } else { " -> " };
        writeln!(
            out,
            "{site:<37} {:<11} {details:<25} {moved:>9} {work:>9}  {operands}{arrow}{results}",
            step.op.name()
        )?;
    }
    let total = plan.total_cost(counts);
    writeln!(out)?;
    writeln!(
        out,
        "{} steps, {} values, {} weights; rows: {} tokens, {} wanted, after {} cached",
        grouped(plan.steps.len()),
        grouped(plan.values.len()),
        grouped(plan.weights.len()),
        counts.tokens,
        counts.wanted,
        arguments.depth
    )?;
    writeln!(
        out,
        "moves {} of weights and {} of cache, computes {}",
        scaled(total.weight_bytes, "B"),
        scaled(total.cache_bytes, "B"),
        scaled(2.0 * total.multiply_adds, "op")
    )?;
    Ok(ExitCode::SUCCESS)
}

fn as_json(plan: &Plan, counts: RowCounts) -> Value {
    let listing = Listing(plan);
    let cost = |cost: Cost| {
        json!({
            "weight_bytes": cost.weight_bytes,
            "cache_bytes": cost.cache_bytes,
            "operations": 2.0 * cost.multiply_adds,
        })
    };
    let shape = |value: &plan::Value| {
        let spec = plan.value(*value);
        json!({ "name": spec.name, "rows": format!("{:?}", spec.rows).to_lowercase(), "columns": spec.columns })
    };
    let step = |step: &Step| {
        json!({
            "layer": step.site.layer,
            "role": step.site.role,
            "op": step.op.name(),
            "details": listing.details(step),
            "reads": step.op.reads().iter().map(shape).collect::<Vec<_>>(),
            "writes": step.op.writes().iter().map(shape).collect::<Vec<_>>(),
            "weights": step.op.weights().iter().map(|&id| plan.weight(id).name.clone()).collect::<Vec<_>>(),
            "cost": cost(plan.cost(step, counts)),
        })
    };
    json!({
        "rows": { "tokens": counts.tokens, "wanted": counts.wanted, "context": counts.context },
        "steps": plan.steps.iter().map(step).collect::<Vec<_>>(),
        "total": cost(plan.total_cost(counts)),
    })
}
