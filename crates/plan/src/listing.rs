//! A plan as people read it: a line a step.

use std::fmt;

use crate::{Op, Plan, Rows, Slice, Step, Value};

/// Prints a plan, a line a step: where, what, with what weight, from what to what.
pub struct Listing<'a>(pub &'a Plan);

impl Listing<'_> {
    fn slice(&self, slice: Slice) -> String {
        let spec = self.0.value(slice.value);
        if slice.first == 0 && slice.columns == spec.columns {
            spec.name.clone()
        } else {
            format!("{}[{}..{}]", spec.name, slice.first, slice.first + slice.columns)
        }
    }

    /// The parameters of an operation that its operands do not show: format, window, heads.
    pub fn details(&self, step: &Step) -> String {
        let plan = self.0;
        let format = |weight| plan.weight(weight).format();
        let group = |cache: crate::CacheRef| {
            let group = &plan.cache.groups[cache.group];
            match group.window {
                Some(window) => format!("{} {} w{window}", group.name, cache.layer),
                None => format!("{} {}", group.name, cache.layer),
            }
        };
        match step.op {
            Op::Embed { table, scale, .. } => format!("{} x{scale}", format(table)),
            Op::RmsNorm { group, weight, .. } => match weight {
                Some(weight) => format!("g{group} {}", format(weight)),
                None => format!("g{group}"),
            },
            Op::Linear { weight, .. } => format(weight),
            Op::Rope { rope, head_dim, .. } => format!("theta {} {}/{}", rope.theta, 2 * rope.turned_pairs, head_dim),
            Op::KvAppend { cache, .. } => group(cache),
            Op::Attention { cache, heads, .. } => {
                format!("{} h{heads}/{}", group(cache), plan.cache.layer(cache).kv_heads)
            }
            Op::Scale { by: crate::ScaleBy::Constant(factor), .. } => format!("x{factor}"),
            Op::Scale { by: crate::ScaleBy::Weight(weight), .. } => format(weight),
            Op::Route { top_k, .. } => format!("top {top_k}"),
            Op::Experts { gate, .. } => format(gate),
            Op::Softcap { cap, .. } => format!("{cap}"),
            Op::GeluMul { .. } | Op::Add { .. } | Op::SelectRows { .. } | Op::Sample { .. } => String::new(),
        }
    }

    /// The operands read, by name.
    pub fn operands(&self, step: &Step) -> String {
        let names = |values: &[Value]| {
            values.iter().map(|&value| self.0.value(value).name.clone()).collect::<Vec<_>>().join(", ")
        };
        match step.op {
            Op::RmsNorm { x, .. } | Op::Linear { x, .. } | Op::SelectRows { x, .. } => self.slice(x),
            Op::GeluMul { gate, up, .. } => format!("{}, {}", self.slice(gate), self.slice(up)),
            ref op => names(&op.reads()),
        }
    }

    /// The values written, with their shapes.
    pub fn results(&self, step: &Step) -> String {
        let shown = step.op.writes().into_iter().map(|value| {
            let spec = self.0.value(value);
            let rows = match spec.rows {
                Rows::Tokens => "tokens",
                Rows::Wanted => "wanted",
            };
            format!("{} [{rows}, {}]", spec.name, spec.columns)
        });
        shown.collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.0.steps {
            let (details, operands, results) = (self.details(step), self.operands(step), self.results(step));
            let site = step.site.to_string();
            let line = format!("{site:<36} {:<11} {details:<24} {operands}", step.op.name());
            match results.as_str() {
                "" => writeln!(f, "{}", line.trim_end())?,
                results => writeln!(f, "{line} -> {results}")?,
            }
        }
        Ok(())
    }
}
