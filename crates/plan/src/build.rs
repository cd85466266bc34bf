//! Writes a plan step by step; the output's shape follows from the operands, so a model states only what
//! is computed.

use crate::{
    CacheLayout, CacheRef, Element, Op, Plan, PlanError, Rope, Rows, ScaleBy, Site, Slice, Step, Value, ValueSpec,
    WeightId, WeightShape, WeightSpec,
};

/// A plan being written. Nothing is proved before [`finish`](PlanBuilder::finish).
pub struct PlanBuilder {
    weights: Vec<WeightSpec>,
    values: Vec<ValueSpec>,
    steps: Vec<Step>,
    cache: CacheLayout,
}

impl PlanBuilder {
    /// An empty plan over the cache `cache`.
    pub fn new(cache: CacheLayout) -> Self {
        PlanBuilder { weights: vec![], values: vec![], steps: vec![], cache }
    }

    /// Names a weight.
    pub fn weight(&mut self, spec: WeightSpec) -> WeightId {
        self.weights.push(spec);
        WeightId((self.weights.len() - 1) as u32)
    }

    /// All columns of a value.
    pub fn whole(&self, value: Value) -> Slice {
        Slice { value, first: 0, columns: self.columns(value) }
    }

    /// Columns of a value.
    pub fn columns(&self, value: Value) -> usize {
        self.values[value.index()].columns
    }

    fn rows(&self, value: Value) -> Rows {
        self.values[value.index()].rows
    }

    fn value(&mut self, site: Site, suffix: &str, rows: Rows, columns: usize, element: Element) -> Value {
        let name = match site.layer {
            Some(layer) => format!("{}{suffix}.{layer}", site.role),
            None => format!("{}{suffix}", site.role),
        };
        self.values.push(ValueSpec { site, name, rows, columns, element });
        Value((self.values.len() - 1) as u32)
    }

    fn step(&mut self, site: Site, rows: Rows, columns: usize, op: impl FnOnce(Value) -> Op) -> Value {
        let out = self.value(site, "", rows, columns, Element::F32);
        self.steps.push(Step { site, op: op(out) });
        out
    }

    fn like(&mut self, site: Site, x: Value, op: impl FnOnce(Value) -> Op) -> Value {
        self.step(site, self.rows(x), self.columns(x), op)
    }

    fn outputs_of(&self, weight: WeightId) -> usize {
        match self.weights[weight.index()].shape {
            WeightShape::Matrix { rows, .. } | WeightShape::Experts { rows, .. } => rows,
            WeightShape::Vector { length } => length,
        }
    }

    /// [`Op::Embed`]
    pub fn embed(&mut self, site: Site, table: WeightId, scale: f32) -> Value {
        let columns = match self.weights[table.index()].shape {
            WeightShape::Matrix { columns, .. } => columns,
            _ => 0,
        };
        self.step(site, Rows::Tokens, columns, |out| Op::Embed { table, scale, out })
    }

    /// [`Op::RmsNorm`] over runs of `group` columns.
    pub fn rms_norm(&mut self, site: Site, x: Slice, weight: Option<WeightId>, group: usize, eps: f32) -> Value {
        let rows = self.rows(x.value);
        self.step(site, rows, x.columns, |out| Op::RmsNorm { x, weight, group, eps, out })
    }

    /// [`Op::Linear`]
    pub fn linear(&mut self, site: Site, x: Value, weight: WeightId) -> Value {
        let (x, rows, columns) = (self.whole(x), self.rows(x), self.outputs_of(weight));
        self.step(site, rows, columns, |out| Op::Linear { x, weight, out })
    }

    /// [`Op::Rope`]
    pub fn rope(&mut self, site: Site, x: Value, head_dim: usize, rope: Rope) -> Value {
        self.like(site, x, |out| Op::Rope { x, head_dim, rope, out })
    }

    /// [`Op::KvAppend`]
    pub fn kv_append(&mut self, site: Site, k: Value, v: Value, cache: CacheRef) {
        self.steps.push(Step { site, op: Op::KvAppend { k, v, cache } });
    }

    /// [`Op::Attention`]
    pub fn attention(&mut self, site: Site, q: Value, cache: CacheRef, heads: usize, scale: f32) -> Value {
        self.like(site, q, |out| Op::Attention { q, cache, heads, scale, out })
    }

    /// [`Op::GeluMul`]
    pub fn gelu_mul(&mut self, site: Site, gate: Slice, up: Slice) -> Value {
        let rows = self.rows(gate.value);
        self.step(site, rows, gate.columns, |out| Op::GeluMul { gate, up, out })
    }

    /// [`Op::Add`]
    pub fn add(&mut self, site: Site, a: Value, b: Value) -> Value {
        self.like(site, a, |out| Op::Add { a, b, out })
    }

    /// [`Op::Scale`]
    pub fn scale(&mut self, site: Site, x: Value, by: ScaleBy) -> Value {
        self.like(site, x, |out| Op::Scale { x, by, out })
    }

    /// [`Op::Route`]: experts and their weights.
    pub fn route(&mut self, site: Site, scores: Value, per_expert_scale: WeightId, top_k: usize) -> (Value, Value) {
        let rows = self.rows(scores);
        let experts = self.value(site, "_experts", rows, top_k, Element::U32);
        let weights = self.value(site, "_weights", rows, top_k, Element::F32);
        self.steps.push(Step { site, op: Op::Route { scores, per_expert_scale, top_k, experts, weights } });
        (experts, weights)
    }

    /// [`Op::Experts`] of the routed `(experts, weights)` with `[gate, up, down]`.
    pub fn experts(&mut self, site: Site, x: Value, routed: (Value, Value), matrices: [WeightId; 3]) -> Value {
        let ((experts, weights), [gate, up, down]) = (routed, matrices);
        let (rows, columns) = (self.rows(x), self.outputs_of(down));
        self.step(site, rows, columns, |out| Op::Experts { x, experts, weights, gate, up, down, out })
    }

    /// [`Op::SelectRows`]
    pub fn select_rows(&mut self, site: Site, x: Slice) -> Value {
        self.step(site, Rows::Wanted, x.columns, |out| Op::SelectRows { x, out })
    }

    /// [`Op::Softcap`]
    pub fn softcap(&mut self, site: Site, x: Value, cap: f32) -> Value {
        self.like(site, x, |out| Op::Softcap { x, cap, out })
    }

    /// [`Op::Sample`]
    pub fn sample(&mut self, site: Site, logits: Value) -> Value {
        let out = self.value(site, "", Rows::Wanted, 1, Element::U32);
        self.steps.push(Step { site, op: Op::Sample { logits, out } });
        out
    }

    /// The finished plan, proved by [`Plan::check`].
    pub fn finish(self, logits: Value, sampled: Value) -> Result<Plan, PlanError> {
        let PlanBuilder { weights, values, steps, cache } = self;
        let plan = Plan { weights, cache, values, steps, logits, sampled };
        plan.check()?;
        Ok(plan)
    }
}
