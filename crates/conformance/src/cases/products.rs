//! Operations that read large weights, in every format: embed, linear, route and experts.

use checkpoint::DType;
use plan::{RowRange, Value, WeightShape, WeightUse};

use super::draft::{CaseDraft, Draft, Format, TOKENS, no_cache, site};
use super::inputs::without_cache;
use crate::{CheckError, Quantity};

const GATHERED: WeightUse = WeightUse { gathered: true, multiplied: false };
const MULTIPLIED: WeightUse = WeightUse { gathered: false, multiplied: true };
const BOTH: WeightUse = WeightUse { gathered: true, multiplied: true };

pub(super) fn add(draft: &mut Draft) -> Result<(), CheckError> {
    for format in Format::all() {
        embed(draft, format, 1)?;
        embed(draft, format, 3)?;
        linear(draft, format, (5, 1), false)?;
        linear(draft, format, (33, 3), true)?;
        linear(draft, format, (64, 2), false)?;
        experts(draft, format, Stacks { experts: 5, top_k: 2, rows: 2, columns: 1, fused: false })?;
    }
    linear(draft, Format::Dense(DType::F32), (1, 1), false)?;
    tied(draft)?;
    let dense = Format::Dense(DType::BF16);
    experts(draft, dense, Stacks { experts: 1, top_k: 1, rows: 1, columns: 1, fused: true })?;
    experts(draft, dense, Stacks { experts: 8, top_k: 8, rows: 1, columns: 2, fused: true })?;
    experts(draft, dense, Stacks { experts: 40, top_k: 3, rows: 1, columns: 1, fused: false })?;
    for (experts, top_k) in [(1, 1), (8, 3), (17, 17), (128, 8)] {
        route(draft, experts, top_k)?;
    }
    Ok(())
}

fn embed(draft: &mut Draft, format: Format, groups: usize) -> Result<(), CheckError> {
    let columns = groups * format.group_size();
    let launches = without_cache(draft.random);
    let mut case = draft.case(format!("embed {format} {TOKENS}x{columns}"), no_cache());
    let table = case.matrix(WeightShape::Matrix { rows: TOKENS, columns }, format, GATHERED, None);
    let out = case.build.embed(site("embed"), table, (columns as f32).sqrt());
    case.check(out, Quantity::Decoded);
    case.finish_tokens("embed", out, launches)
}

fn linear(
    draft: &mut Draft,
    format: Format,
    (rows, groups): (usize, usize),
    is_wanted: bool,
) -> Result<(), CheckError> {
    let columns = groups * format.group_size();
    let launches = without_cache(draft.random);
    let mut case = draft.case(format!("linear {format} {rows}x{columns}"), no_cache());
    let x = case.source("x", columns, 1.0);
    let x = if is_wanted { case.wanted("x_wanted", x) } else { x };
    let weight = case.matrix(WeightShape::Matrix { rows, columns }, format, MULTIPLIED, None);
    let out = case.build.linear(site("linear"), x, weight);
    case.check_sized(out, product_of(format), 1.0);
    if is_wanted { case.finish_wanted("linear", out, launches) } else { case.finish_tokens("linear", out, launches) }
}

/// A table that rows are gathered from and that is multiplied with, and two more products of the same rows: what
/// a backend may join.
fn tied(draft: &mut Draft) -> Result<(), CheckError> {
    let format: Format = Format::Quantized(checkpoint::QuantFormat::Affine { bits: 6, group_size: 64 });
    let launches = without_cache(draft.random);
    let mut case = draft.case(format!("linear {format}, tied, three products of one input"), no_cache());
    let shape = WeightShape::Matrix { rows: TOKENS, columns: 128 };
    let table = case.matrix(shape, format, BOTH, None);
    let x = case.build.embed(site("embed"), table, 11.3);
    case.check(x, Quantity::Decoded);
    let dense = case.matrix(shape, Format::Dense(DType::F16), MULTIPLIED, None);
    let nvfp4 = case.matrix(shape, Format::Quantized(checkpoint::QuantFormat::Nvfp4), MULTIPLIED, None);
    let outs = [("linear", table), ("dense", dense), ("nvfp4", nvfp4)].map(|(role, weight)| {
        let out = case.build.linear(site(role), x, weight);
        let quantity = if role == "dense" { Quantity::DenseProduct } else { Quantity::QuantizedProduct };
        case.check_sized(out, quantity, 1.0);
        out
    });
    let sum = case.build.add(site("sum"), outs[0], outs[1]);
    let sum = case.build.add(site("all"), sum, outs[2]);
    case.finish_tokens("linear", sum, launches)
}

fn product_of(format: Format) -> Quantity {
    match format {
        Format::Dense(_) => Quantity::DenseProduct,
        Format::Quantized(_) => Quantity::QuantizedProduct,
    }
}

/// Sizes of a case with experts; rows and columns in groups of the format.
#[derive(Clone, Copy)]
struct Stacks {
    experts: usize,
    top_k: usize,
    rows: usize,
    columns: usize,
    /// Gate and up in one tensor, as the original layout has them.
    fused: bool,
}

/// Scores in steps of 1/64, so that two are equal, which the rule decides, or clearly not.
fn scores(case: &mut CaseDraft, experts: usize) -> Value {
    let numbers = case.random().normals(TOKENS * experts, 2.0);
    let numbers: Vec<f32> = numbers.into_iter().map(|score| (score * 64.0).round() / 64.0).collect();
    case.source_of("scores", experts, &numbers)
}

fn routed(case: &mut CaseDraft, scores: Value, experts: usize, top_k: usize) -> (Value, Value) {
    let scale: Vec<f32> = (0..experts).map(|_| 0.5 + case.random().unit()).collect();
    let scale = case.vector(&scale);
    let (ids, shares) = case.build.route(site("route"), scores, scale, top_k);
    case.check(ids, Quantity::Same);
    case.check(shares, Quantity::Shares);
    (ids, shares)
}

fn route(draft: &mut Draft, experts: usize, top_k: usize) -> Result<(), CheckError> {
    let launches = without_cache(draft.random);
    let mut case = draft.case(format!("route {top_k} of {experts}"), no_cache());
    let scores = scores(&mut case, experts);
    let routed = routed(&mut case, scores, experts, top_k);
    // Only experts read what a router writes.
    let x = case.source("x", 8, 1.0);
    let shape = WeightShape::Experts { experts, rows: 8, columns: 8 };
    let matrices = [(); 3].map(|()| case.matrix(shape, Format::Dense(DType::F32), MULTIPLIED, None));
    let out = case.build.experts(site("experts"), x, routed, matrices);
    case.check_sized(out, Quantity::DenseExperts, 0.1);
    case.finish_tokens("route", out, launches)
}

fn experts(draft: &mut Draft, format: Format, stacks: Stacks) -> Result<(), CheckError> {
    let Stacks { experts, top_k, rows, columns, fused } = stacks;
    // Products of few numbers deviate too much for bounds that count on many.
    let unit = match format {
        Format::Dense(_) => format.group_size(),
        Format::Quantized(_) => format.group_size().max(64),
    };
    let (intermediate, hidden) = (rows * unit, columns * unit);
    let launches = without_cache(draft.random);
    let name = format!("experts {format} {top_k} of {experts}, {intermediate}x{hidden}");
    let mut case = draft.case(name, no_cache());
    let scores = scores(&mut case, experts);
    let x = case.source("x", hidden, 1.0);
    let (scores, x) = (case.wanted("scores_wanted", scores), case.wanted("x_wanted", x));
    let routed = routed(&mut case, scores, experts, top_k);
    let narrow = WeightShape::Experts { experts, rows: intermediate, columns: hidden };
    let wide = WeightShape::Experts { experts, rows: hidden, columns: intermediate };
    let half = |first| fused.then_some(RowRange { first, of: 2 * intermediate });
    let gate = case.matrix(narrow, format, MULTIPLIED, half(0));
    let up = case.matrix(narrow, format, MULTIPLIED, half(intermediate));
    let down = case.matrix(wide, format, MULTIPLIED, None);
    let out = case.build.experts(site("experts"), x, routed, [gate, up, down]);
    let quantity = match format {
        Format::Dense(_) => Quantity::DenseExperts,
        Format::Quantized(_) => Quantity::QuantizedExperts,
    };
    case.check_sized(out, quantity, 0.1);
    case.finish_wanted("experts", out, launches)
}
