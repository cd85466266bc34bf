//! A whole plan, and the proof that it can run: every value written once, whole, before it is read; every
//! shape agrees; the cache appended to before it is attended to.

use std::collections::{HashMap, HashSet};

use thiserror::Error;

use crate::{
    CacheLayout, CacheRef, Element, Op, Rows, ScaleBy, Site, Slice, Step, Value, ValueSpec, WeightId, WeightShape,
    WeightSpec,
};

/// One forward step of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Every weight, read-only.
    pub weights: Vec<WeightSpec>,
    /// The key/value cache.
    pub cache: CacheLayout,
    /// Every value, in the order of writing.
    pub values: Vec<ValueSpec>,
    /// Every step, in order.
    pub steps: Vec<Step>,
    /// `[wanted, vocabulary]`
    pub logits: Value,
    /// `[wanted, 1]`
    pub sampled: Value,
}

/// A rule of plans that one breaks. It is a fault of the model that wrote it, never of a user's input.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("plan: {site}: {broken}")]
pub struct PlanError {
    /// The step.
    pub site: Site,
    /// The rule and the sizes.
    pub broken: String,
}

impl Plan {
    /// The description of a value.
    pub fn value(&self, value: Value) -> &ValueSpec {
        &self.values[value.index()]
    }

    /// The description of a weight.
    pub fn weight(&self, weight: WeightId) -> &WeightSpec {
        &self.weights[weight.index()]
    }

    /// Entries of the vocabulary: columns of the logits.
    pub fn vocabulary(&self) -> usize {
        self.value(self.logits).columns
    }

    /// Tokens that every table has an entry for.
    pub fn entries(&self) -> usize {
        let tables = self.steps.iter().filter_map(|step| match step.op {
            Op::Embed { table, .. } => Some(self.weight(table).shape),
            _ => None,
        });
        let rows = tables.map(|shape| if let WeightShape::Matrix { rows, .. } = shape { rows } else { 0 });
        rows.min().unwrap_or_else(|| self.vocabulary())
    }

    /// The value that the step of `layer` and `role` writes.
    pub fn find(&self, layer: Option<u32>, role: &str) -> Option<Value> {
        let place = self.values.iter().position(|value| value.site.layer == layer && value.site.role == role)?;
        Some(Value(place as u32))
    }

    /// Proves the plan; the first broken rule is the error.
    pub fn check(&self) -> Result<(), PlanError> {
        let mut checker = Checker { plan: self, written: HashSet::new(), appended: HashSet::new(), site: END };
        let mut read = HashSet::new();
        for step in &self.steps {
            checker.site = step.site;
            for value in step.op.reads() {
                checker.is_written(value)?;
                read.insert(value);
            }
            checker.operands(&step.op)?;
            for value in step.op.writes() {
                checker
                    .rule(value.index() < self.values.len(), || "writes a value that the plan does not list".into())?;
                let first = checker.written.insert(value);
                checker.rule(first, || format!("{} is written a second time", self.value(value).name))?;
            }
        }
        checker.site = END;
        for end in [self.logits, self.sampled] {
            checker.is_written(end)?;
            checker.rule(self.value(end).rows == Rows::Wanted, || "the results have the wanted rows".into())?;
            read.insert(end);
        }
        checker.columns(self.sampled, 1, Element::U32)?;
        let mut names = HashMap::new();
        for (index, spec) in self.values.iter().enumerate() {
            checker.site = spec.site;
            let value = Value(index as u32);
            checker.is_written(value)?;
            checker.rule(read.contains(&value), || format!("{} is never read", spec.name))?;
            checker
                .rule(names.insert(&spec.name, index).is_none(), || format!("two values are named {}", spec.name))?;
        }
        Ok(())
    }
}

const END: Site = Site { layer: None, role: "end" };

struct Checker<'a> {
    plan: &'a Plan,
    written: HashSet<Value>,
    appended: HashSet<CacheRef>,
    site: Site,
}

impl Checker<'_> {
    fn rule(&self, holds: bool, broken: impl FnOnce() -> String) -> Result<(), PlanError> {
        if holds { Ok(()) } else { Err(PlanError { site: self.site, broken: broken() }) }
    }

    fn is_written(&self, value: Value) -> Result<(), PlanError> {
        let written = self.written.contains(&value);
        self.rule(written, || format!("value {} is read before it is written", value.0))
    }

    fn same_rows(&self, a: Value, b: Value) -> Result<(), PlanError> {
        let (a, b) = (self.plan.value(a), self.plan.value(b));
        self.rule(a.rows == b.rows, || format!("{} has {:?} rows, {} has {:?}", a.name, a.rows, b.name, b.rows))
    }

    fn columns(&self, value: Value, wanted: usize, element: Element) -> Result<(), PlanError> {
        let spec = self.plan.value(value);
        self.rule(spec.columns == wanted && spec.element == element, || {
            format!("{} has {} columns of {:?}, wanted {wanted} of {element:?}", spec.name, spec.columns, spec.element)
        })
    }

    fn slice(&self, slice: Slice) -> Result<(), PlanError> {
        let spec = self.plan.value(slice.value);
        self.rule(
            spec.element == Element::F32
                && slice.columns > 0
                && slice.first.checked_add(slice.columns).is_some_and(|end| end <= spec.columns),
            || format!("columns {}+{} of {} which has {}", slice.first, slice.columns, spec.name, spec.columns),
        )
    }

    fn shape(&self, weight: WeightId, wanted: WeightShape) -> Result<(), PlanError> {
        let spec = self.plan.weights.get(weight.index());
        self.rule(spec.is_some_and(|spec| spec.shape == wanted), || {
            format!("weight {} has shape {:?}, wanted {wanted:?}", weight.0, spec.map(|spec| (&spec.name, spec.shape)))
        })
    }

    fn operands(&mut self, op: &Op) -> Result<(), PlanError> {
        for value in op.writes().into_iter().chain(op.reads()) {
            self.rule(value.index() < self.plan.values.len(), || format!("no value {}", value.0))?;
        }
        let columns_of = |value: Value| self.plan.value(value).columns;
        match *op {
            Op::Embed { table, out, .. } => {
                let shape = self.plan.weights.get(table.index()).map(|spec| spec.shape);
                let Some(WeightShape::Matrix { columns, .. }) = shape else {
                    return self.rule(false, || format!("the table is a matrix, not {shape:?}"));
                };
                self.rule(self.plan.value(out).rows == Rows::Tokens, || "every token row is embedded".into())?;
                self.columns(out, columns, Element::F32)
            }
            Op::RmsNorm { x, weight, group, eps, out } => {
                self.slice(x)?;
                self.rule(group > 0 && x.columns.is_multiple_of(group), || {
                    format!("{} columns are no whole number of groups of {group}", x.columns)
                })?;
                self.rule(eps > 0.0, || format!("eps is {eps}"))?;
                if let Some(weight) = weight {
                    self.shape(weight, WeightShape::Vector { length: group })?;
                }
                self.same_rows(x.value, out)?;
                self.columns(out, x.columns, Element::F32)
            }
            Op::Linear { x, weight, out } => {
                self.slice(x)?;
                self.shape(weight, WeightShape::Matrix { rows: columns_of(out), columns: x.columns })?;
                self.same_rows(x.value, out)?;
                self.columns(out, columns_of(out), Element::F32)
            }
            Op::Rope { x, head_dim, rope, out } => {
                self.rule(head_dim > 0 && head_dim % 2 == 0 && columns_of(x).is_multiple_of(head_dim), || {
                    format!("{} columns are no whole number of heads of {head_dim}", columns_of(x))
                })?;
                self.rule(rope.turned_pairs <= head_dim / 2, || {
                    format!("{} pairs in a head of {head_dim}", rope.turned_pairs)
                })?;
                self.same_rows(x, out)?;
                self.columns(x, columns_of(x), Element::F32)?;
                self.columns(out, columns_of(x), Element::F32)
            }
            Op::KvAppend { k, v, cache } => {
                self.cache(cache)?;
                let layer = self.plan.cache.layer(cache);
                for value in [k, v] {
                    self.columns(value, layer.kv_heads * layer.head_dim, Element::F32)?;
                    self.rule(self.plan.value(value).rows == Rows::Tokens, || "every token row is appended".into())?;
                }
                let first = self.appended.insert(cache);
                self.rule(first, || format!("{cache:?} is appended to a second time"))
            }
            Op::Attention { q, cache, heads, out, .. } => {
                self.cache(cache)?;
                let appended = self.appended.contains(&cache);
                self.rule(appended, || format!("{cache:?} is read before this step's rows are appended"))?;
                let layer = self.plan.cache.layer(cache);
                self.rule(layer.kv_heads > 0 && heads.is_multiple_of(layer.kv_heads), || {
                    format!("{heads} query heads over {} KV heads", layer.kv_heads)
                })?;
                self.columns(q, heads * layer.head_dim, Element::F32)?;
                self.same_rows(q, out)?;
                self.columns(out, heads * layer.head_dim, Element::F32)
            }
            Op::GeluMul { gate, up, out } => {
                self.slice(gate)?;
                self.slice(up)?;
                self.rule(gate.columns == up.columns, || {
                    format!("gate has {} columns, up {}", gate.columns, up.columns)
                })?;
                self.same_rows(gate.value, up.value)?;
                self.same_rows(gate.value, out)?;
                self.columns(out, gate.columns, Element::F32)
            }
            Op::Add { a, b, out } => {
                self.same_rows(a, b)?;
                self.same_rows(a, out)?;
                self.columns(a, columns_of(out), Element::F32)?;
                self.columns(b, columns_of(out), Element::F32)?;
                self.columns(out, columns_of(out), Element::F32)
            }
            Op::Scale { x, by, out } => {
                if let ScaleBy::Weight(weight) = by {
                    self.shape(weight, WeightShape::Vector { length: 1 })?;
                }
                self.same_rows(x, out)?;
                self.columns(x, columns_of(out), Element::F32)?;
                self.columns(out, columns_of(out), Element::F32)
            }
            Op::Route { scores, per_expert_scale, top_k, experts, weights } => {
                self.rule(top_k > 0 && top_k <= columns_of(scores), || {
                    format!("{top_k} of {} experts", columns_of(scores))
                })?;
                self.shape(per_expert_scale, WeightShape::Vector { length: columns_of(scores) })?;
                self.same_rows(scores, experts)?;
                self.same_rows(scores, weights)?;
                self.columns(scores, columns_of(scores), Element::F32)?;
                self.columns(experts, top_k, Element::U32)?;
                self.columns(weights, top_k, Element::F32)
            }
            Op::Experts { x, experts, weights, gate, up, down, out } => {
                let shape = self.plan.weights.get(gate.index()).map(|spec| spec.shape);
                let Some(WeightShape::Experts { experts: count, rows: intermediate, columns: hidden }) = shape else {
                    return self.rule(false, || format!("gate is a stack of experts, not {shape:?}"));
                };
                self.shape(up, WeightShape::Experts { experts: count, rows: intermediate, columns: hidden })?;
                self.shape(down, WeightShape::Experts { experts: count, rows: hidden, columns: intermediate })?;
                let top_k = columns_of(experts);
                let router = self.plan.steps.iter().find_map(|step| match step.op {
                    Op::Route { scores, experts: written, .. } if written == experts => Some(columns_of(scores)),
                    _ => None,
                });
                self.rule(router == Some(count), || format!("{count} experts, but their router scores {router:?}"))?;
                self.same_rows(x, experts)?;
                self.same_rows(x, weights)?;
                self.same_rows(x, out)?;
                self.columns(x, hidden, Element::F32)?;
                self.columns(experts, top_k, Element::U32)?;
                self.columns(weights, top_k, Element::F32)?;
                self.columns(out, hidden, Element::F32)
            }
            Op::SelectRows { x, out } => {
                self.slice(x)?;
                let rows = (self.plan.value(x.value).rows, self.plan.value(out).rows);
                self.rule(rows == (Rows::Tokens, Rows::Wanted), || {
                    format!("selects from {:?} to {:?}", rows.0, rows.1)
                })?;
                self.columns(out, x.columns, Element::F32)
            }
            Op::Softcap { x, cap, out } => {
                self.rule(cap > 0.0, || format!("the cap is {cap}"))?;
                self.same_rows(x, out)?;
                self.columns(x, columns_of(out), Element::F32)?;
                self.columns(out, columns_of(out), Element::F32)
            }
            Op::Sample { logits, out } => {
                // Masks and adjustments are proved against the vocabulary of the plan's logits.
                self.rule(logits == self.plan.logits, || "tokens are chosen from other values than the logits".into())?;
                self.same_rows(logits, out)?;
                self.columns(logits, columns_of(logits), Element::F32)?;
                self.columns(out, 1, Element::U32)
            }
        }
    }

    fn cache(&self, cache: CacheRef) -> Result<(), PlanError> {
        let known = self.plan.cache.groups.get(cache.group).is_some_and(|group| cache.layer < group.layers.len());
        self.rule(known, || format!("no cache {cache:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CacheLayout, PlanBuilder, WeightSource, WeightSpec, WeightUse};
    use checkpoint::{DType, MatrixSource};

    #[test]
    fn tokens_are_chosen_from_the_logits_of_the_plan() {
        let plan = |chooses_scaled: bool| {
            let mut build = PlanBuilder::new(CacheLayout { block_size: 16, groups: vec![] });
            let site = |role| Site { layer: None, role };
            let source = MatrixSource::Dense { tensor: "table".into(), dtype: DType::F32 };
            let table = build.weight(WeightSpec {
                name: "table".into(),
                shape: WeightShape::Matrix { rows: 4, columns: 4 },
                source: WeightSource::Matrix { source, rows: None },
                usage: WeightUse { gathered: true, multiplied: false },
            });
            let rows = build.embed(site("embed"), table, 1.0);
            let rows = build.whole(rows);
            let selected = build.select_rows(site("selected"), rows);
            let scaled = build.scale(site("scaled"), selected, ScaleBy::Constant(2.0));
            let sampled = build.sample(site("sampled"), if chooses_scaled { scaled } else { selected });
            build.finish(scaled, sampled)
        };
        assert!(plan(true).is_ok());
        let error = plan(false).unwrap_err().to_string();
        assert_eq!(error, "plan: sampled: tokens are chosen from other values than the logits");
    }
}
