//! Operations that handle each row by itself: rms_norm, rope, gelu_mul, add, scale, softcap, select_rows.

use plan::{Rope, ScaleBy, Value};

use super::draft::{CaseDraft, Draft, TOKENS, no_cache, site, slice};
use super::inputs::without_cache;
use crate::{CheckError, Quantity};

pub(super) fn add(draft: &mut Draft) -> Result<(), CheckError> {
    for is_wanted in [false, true] {
        for (columns, group, has_weight) in
            [(1, 1, true), (48, 48, true), (80, 16, true), (96, 32, false), (7, 7, false)]
        {
            let name = format!("rms_norm {columns} in groups of {group}{}", rows_name(is_wanted));
            row_case(draft, name, is_wanted, |case| {
                let mut numbers = case.random().normals(TOKENS * (columns + 3), 1.0);
                // A row of zeros: eps alone keeps it finite.
                numbers[..columns + 3].fill(0.0);
                let x = case.source_of("x", columns + 3, &numbers);
                let x = if is_wanted { case.wanted("x_wanted", x) } else { x };
                let weight = has_weight.then(|| {
                    let numbers = case.random().normals(group, 2.0);
                    case.vector(&numbers)
                });
                let out = case.build.rms_norm(site("rms_norm"), slice(x, 3, columns), weight, group, 1e-6);
                // One number over its own root mean square is 1 or -1, times the weight.
                case.check(out, Quantity::Norm);
                ("rms_norm", out)
            })?;
        }
        for (heads, head_dim, turned_pairs, theta, factor) in [
            (1, 2, 1, 1e4, 1.0),
            (2, 16, 8, 1e4, 1.0),
            (3, 64, 8, 1e6, 1.0),
            (1, 32, 4, 1e6, 8.0),
            (1, 16, 0, 1e4, 1.0),
        ] {
            let name = format!("rope {heads} heads of {head_dim}, {turned_pairs} pairs{}", rows_name(is_wanted));
            row_case(draft, name, is_wanted, |case| {
                let x = operand(case, "x", heads * head_dim, 1.0, is_wanted);
                let rope = Rope { theta, turned_pairs, factor };
                let out = case.build.rope(site("rope"), x, head_dim, rope);
                case.check(out, Quantity::Turned);
                ("rope", out)
            })?;
        }
        for columns in [1, 31, 64] {
            row_case(draft, format!("gelu_mul {columns}{}", rows_name(is_wanted)), is_wanted, |case| {
                let gate = operand(case, "gate", columns + 5, 2.0, is_wanted);
                let up = operand(case, "up", 2 * columns, 1.0, is_wanted);
                let (gate, up) = (slice(gate, 5, columns), slice(up, columns, columns));
                let out = case.build.gelu_mul(site("gelu_mul"), gate, up);
                case.check_sized(out, Quantity::Gated, 1.0);
                ("gelu_mul", out)
            })?;
            row_case(draft, format!("add {columns}{}", rows_name(is_wanted)), is_wanted, |case| {
                let a = operand(case, "a", columns, 1.0, is_wanted);
                let b = operand(case, "b", columns, 3.0, is_wanted);
                let out = case.build.add(site("add"), a, b);
                case.check(out, Quantity::Same);
                ("add", out)
            })?;
            row_case(draft, format!("scale {columns} by a constant{}", rows_name(is_wanted)), is_wanted, |case| {
                let x = operand(case, "x", columns, 1.0, is_wanted);
                let out = case.build.scale(site("scale"), x, ScaleBy::Constant(0.708));
                case.check(out, Quantity::Same);
                ("scale", out)
            })?;
            row_case(draft, format!("scale {columns} by a weight{}", rows_name(is_wanted)), is_wanted, |case| {
                let x = operand(case, "x", columns, 1.0, is_wanted);
                let weight = case.vector(&[-1.375]);
                let out = case.build.scale(site("scale"), x, ScaleBy::Weight(weight));
                case.check(out, Quantity::Same);
                ("scale", out)
            })?;
            row_case(draft, format!("softcap {columns}{}", rows_name(is_wanted)), is_wanted, |case| {
                let x = operand(case, "x", columns, 30.0, is_wanted);
                let out = case.build.softcap(site("softcap"), x, 30.0);
                case.check_sized(out, Quantity::Capped, 20.0);
                ("softcap", out)
            })?;
        }
    }
    for columns in [1, 40] {
        row_case(draft, format!("select_rows {columns}"), true, |case| {
            let x = case.source("x", columns + 9, 1.0);
            let out = case.build.select_rows(site("select_rows"), slice(x, 9, columns));
            case.check(out, Quantity::Same);
            ("select_rows", out)
        })?;
    }
    Ok(())
}

fn rows_name(is_wanted: bool) -> &'static str {
    if is_wanted { ", wanted rows" } else { "" }
}

/// A random operand of token rows, or of wanted rows.
fn operand(case: &mut CaseDraft, role: &'static str, columns: usize, deviation: f32, is_wanted: bool) -> Value {
    let x = case.source(role, columns, deviation);
    match (is_wanted, role) {
        (false, _) => x,
        // Two values of one plan have two names.
        (true, "b" | "up") => case.wanted("second_wanted", x),
        (true, _) => case.wanted("first_wanted", x),
    }
}

/// A case whose operation writes token rows, or wanted rows.
fn row_case(
    draft: &mut Draft,
    name: String,
    is_wanted: bool,
    write: impl FnOnce(&mut CaseDraft) -> (&'static str, Value),
) -> Result<(), CheckError> {
    let launches = without_cache(draft.random);
    let mut case = draft.case(name, no_cache());
    let (op, out) = write(&mut case);
    if is_wanted { case.finish_wanted(op, out, launches) } else { case.finish_tokens(op, out, launches) }
}
