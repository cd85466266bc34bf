//! The operations: one closed, coarse set. Each variant states formula, shapes and what is summed in what;
//! `reference` is their meaning in plain loops.

use std::fmt;

use crate::{CacheRef, Slice, Value, WeightId};

/// Where in the model a step stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// The decoder layer; `None` before the first and after the last.
    pub layer: Option<u32>,
    /// The module as the checkpoint spells it (`q_proj`), or the operation's name where no module is.
    pub role: &'static str,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "layer {layer} {}", self.role),
            None => f.write_str(self.role),
        }
    }
}

/// One step: a site and what is done there.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Where it stands.
    pub site: Site,
    /// What it does.
    pub op: Op,
}

/// Rotary position embedding of one kind of layer: pair `(i, i + head_dim / 2)` turns by
/// `position * frequency(i)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    /// The base of the frequencies.
    pub theta: f64,
    /// `frequency(i) = theta^(-2 i / head_dim) / factor` for `i < turned_pairs`, else 0. The exponent's
    /// denominator is the whole head whatever `turned_pairs` is ("proportional" in transformers).
    pub turned_pairs: usize,
    /// Divides every frequency.
    pub factor: f64,
}

impl Rope {
    /// Radians a position of pair `i` of a head of `head_dim` numbers.
    pub fn frequency(&self, i: usize, head_dim: usize) -> f64 {
        if i < self.turned_pairs { self.theta.powf(-2.0 * i as f64 / head_dim as f64) / self.factor } else { 0.0 }
    }
}

/// What [`Op::Scale`] multiplies by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScaleBy {
    /// A constant of the model.
    Constant(f32),
    /// A vector weight of length 1.
    Weight(WeightId),
}

/// An operation of the plan. `[rows, columns]` are those of its output unless said otherwise; sums are in
/// f64 in `reference`, in f32 with a fixed order in other backends, unless said otherwise.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// `out[r] = table[token[r]] * scale`, rows of `Tokens`.
    Embed {
        /// `[vocabulary, columns]`, gathered.
        table: WeightId,
        /// Factor after decoding.
        scale: f32,
        /// `[tokens, columns]`
        out: Value,
    },
    /// Each run of `group` columns by itself: `out[i] = x[i] / sqrt(mean(x²) + eps) * weight[i]`.
    RmsNorm {
        /// Input.
        x: Slice,
        /// `[group]`; 1 where `None`.
        weight: Option<WeightId>,
        /// Columns normalised together: the whole row, or one head.
        group: usize,
        /// Added to the mean of squares.
        eps: f32,
        /// Same shape as `x`.
        out: Value,
    },
    /// `out[r, n] = sum_k weight[n, k] * x[r, k]`.
    Linear {
        /// `[rows, k]`
        x: Slice,
        /// `[n, k]`
        weight: WeightId,
        /// `[rows, n]`
        out: Value,
    },
    /// Each head of `head_dim` columns turned by its row's position.
    Rope {
        /// `[rows, heads * head_dim]`
        x: Value,
        /// Numbers a head.
        head_dim: usize,
        /// Frequencies.
        rope: Rope,
        /// Same shape as `x`.
        out: Value,
    },
    /// Writes each row's key and value into the cache slot of its sequence and position.
    KvAppend {
        /// `[tokens, kv_heads * head_dim]`, turned already.
        k: Value,
        /// `[tokens, kv_heads * head_dim]`
        v: Value,
        /// Where to.
        cache: CacheRef,
    },
    /// Row t sees its own sequence's cache from `visible_from[group][t]` to `visible_until[group][t]`, after
    /// this step's rows were appended: `out = softmax(scale * q·k) v` a head, head h of `heads` reading
    /// KV head `h / (heads / kv_heads)`.
    Attention {
        /// `[rows, heads * head_dim]`, turned already.
        q: Value,
        /// What is read.
        cache: CacheRef,
        /// Query heads.
        heads: usize,
        /// Factor of the scores.
        scale: f32,
        /// Same shape as `q`.
        out: Value,
    },
    /// `out = gelu_tanh(gate) * up`, with `gelu_tanh(x) = x/2 (1 + tanh(sqrt(2/π)(x + 0.044715 x³)))`
    /// (Hendrycks and Gimpel 2016, `gelu_pytorch_tanh` in configurations).
    GeluMul {
        /// `[rows, columns]`
        gate: Slice,
        /// `[rows, columns]`
        up: Slice,
        /// `[rows, columns]`
        out: Value,
    },
    /// `out = a + b`.
    Add {
        /// Left.
        a: Value,
        /// Right.
        b: Value,
        /// Sum.
        out: Value,
    },
    /// `out = x * by`.
    Scale {
        /// Input.
        x: Value,
        /// The factor.
        by: ScaleBy,
        /// Product.
        out: Value,
    },
    /// Softmax over all experts, the `top_k` largest (ties: the lower index first), renormalised to sum 1,
    /// times `per_expert_scale` of each.
    Route {
        /// `[rows, experts]`
        scores: Value,
        /// `[experts]`
        per_expert_scale: WeightId,
        /// Experts a row.
        top_k: usize,
        /// `[rows, top_k]`, indices, largest first.
        experts: Value,
        /// `[rows, top_k]`
        weights: Value,
    },
    /// `out = sum_j weights[j] * down_e(gelu_tanh(gate_e x) * up_e x)` with `e = experts[j]`, j ascending.
    Experts {
        /// `[rows, hidden]`
        x: Value,
        /// `[rows, top_k]`, indices.
        experts: Value,
        /// `[rows, top_k]`
        weights: Value,
        /// `[experts, intermediate, hidden]`
        gate: WeightId,
        /// `[experts, intermediate, hidden]`
        up: WeightId,
        /// `[experts, hidden, intermediate]`
        down: WeightId,
        /// `[rows, hidden]`
        out: Value,
    },
    /// The wanted rows of `x`: from `Tokens` to `Wanted`.
    SelectRows {
        /// `[tokens, columns]`
        x: Slice,
        /// `[wanted, columns]`
        out: Value,
    },
    /// `out = cap * tanh(x / cap)`.
    Softcap {
        /// Input.
        x: Value,
        /// Largest magnitude.
        cap: f32,
        /// Same shape.
        out: Value,
    },
    /// One token a row by that row's [`Choice`](crate::Choice); rows without one get index 0.
    Sample {
        /// `[wanted, vocabulary]`
        logits: Value,
        /// `[wanted, 1]`, indices.
        out: Value,
    },
}

impl Op {
    /// The operation's one name, the same in every backend.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::RmsNorm { .. } => "rms_norm",
            Op::Linear { .. } => "linear",
            Op::Rope { .. } => "rope",
            Op::KvAppend { .. } => "kv_append",
            Op::Attention { .. } => "attention",
            Op::GeluMul { .. } => "gelu_mul",
            Op::Add { .. } => "add",
            Op::Scale { .. } => "scale",
            Op::Route { .. } => "route",
            Op::Experts { .. } => "experts",
            Op::SelectRows { .. } => "select_rows",
            Op::Softcap { .. } => "softcap",
            Op::Sample { .. } => "sample",
        }
    }

    /// The values read, in the order of the operands.
    pub fn reads(&self) -> Vec<Value> {
        match *self {
            Op::Embed { .. } => vec![],
            Op::RmsNorm { x, .. } | Op::Linear { x, .. } | Op::SelectRows { x, .. } => vec![x.value],
            Op::Rope { x, .. } | Op::Scale { x, .. } | Op::Softcap { x, .. } => vec![x],
            Op::KvAppend { k, v, .. } => vec![k, v],
            Op::Attention { q, .. } => vec![q],
            Op::GeluMul { gate, up, .. } => vec![gate.value, up.value],
            Op::Add { a, b, .. } => vec![a, b],
            Op::Route { scores, .. } => vec![scores],
            Op::Experts { x, experts, weights, .. } => vec![x, experts, weights],
            Op::Sample { logits, .. } => vec![logits],
        }
    }

    /// The values written; none for an append to the cache.
    pub fn writes(&self) -> Vec<Value> {
        match *self {
            Op::KvAppend { .. } => vec![],
            Op::Route { experts, weights, .. } => vec![experts, weights],
            Op::Embed { out, .. }
            | Op::RmsNorm { out, .. }
            | Op::Linear { out, .. }
            | Op::Rope { out, .. }
            | Op::Attention { out, .. }
            | Op::GeluMul { out, .. }
            | Op::Add { out, .. }
            | Op::Scale { out, .. }
            | Op::Experts { out, .. }
            | Op::SelectRows { out, .. }
            | Op::Softcap { out, .. }
            | Op::Sample { out, .. } => vec![out],
        }
    }

    /// The weights read.
    pub fn weights(&self) -> Vec<WeightId> {
        match *self {
            Op::Embed { table, .. } => vec![table],
            Op::RmsNorm { weight, .. } => weight.into_iter().collect(),
            Op::Linear { weight, .. } => vec![weight],
            Op::Scale { by: ScaleBy::Weight(weight), .. } => vec![weight],
            Op::Route { per_expert_scale, .. } => vec![per_expert_scale],
            Op::Experts { gate, up, down, .. } => vec![gate, up, down],
            _ => vec![],
        }
    }
}
