//! What a step must move and multiply at the least: the floor that its time is compared with.

use crate::{Op, Plan, Rows, Step, WeightShape};

/// How many rows a step has of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowCounts {
    /// Token rows.
    pub tokens: usize,
    /// Wanted rows.
    pub wanted: usize,
    /// Positions that the last row sees of a full sequence, itself included.
    pub context: usize,
}

/// Bytes read of weights and cache, and multiply-adds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Cost {
    /// Stored bytes of weights, each read once.
    pub weight_bytes: f64,
    /// Bytes of keys and values read, two bytes a number.
    pub cache_bytes: f64,
    /// Multiply-adds of products and attention.
    pub multiply_adds: f64,
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.weight_bytes += other.weight_bytes;
        self.cache_bytes += other.cache_bytes;
        self.multiply_adds += other.multiply_adds;
    }
}

impl Plan {
    /// The least that `step` must do.
    pub fn cost(&self, step: &Step, counts: RowCounts) -> Cost {
        let rows_of = |rows: Rows| match rows {
            Rows::Tokens => counts.tokens,
            Rows::Wanted => counts.wanted,
        } as f64;
        let rows = step.op.writes().first().map_or(counts.tokens as f64, |&out| rows_of(self.value(out).rows));
        if rows == 0.0 {
            return Cost::default();
        }
        let whole = |weight| {
            let spec = self.weight(weight);
            spec.stored_bytes(spec.shape.elements())
        };
        match step.op {
            Op::Embed { table, out, .. } => {
                let spec = self.weight(table);
                Cost { weight_bytes: rows * spec.stored_bytes(self.value(out).columns), ..Cost::default() }
            }
            Op::Linear { weight, .. } => Cost {
                weight_bytes: whole(weight),
                multiply_adds: rows * self.weight(weight).shape.elements() as f64,
                ..Cost::default()
            },
            Op::Experts { experts, gate, up, down, .. } => {
                let top_k = self.value(experts).columns as f64;
                [gate, up, down].iter().fold(Cost::default(), |mut sum, &weight| {
                    let WeightShape::Experts { experts: count, .. } = self.weight(weight).shape else { return sum };
                    let share = 1.0 / count as f64;
                    // The expected number of different experts that rows of random choice touch.
                    let touched = 1.0 - (1.0 - top_k * share).powf(rows);
                    let elements = self.weight(weight).shape.elements() as f64;
                    sum += Cost {
                        weight_bytes: whole(weight) * touched,
                        multiply_adds: rows * top_k * elements * share,
                        ..Cost::default()
                    };
                    sum
                })
            }
            Op::Attention { q, cache, heads, .. } => {
                let layer = self.cache.layer(cache);
                let window = self.cache.groups[cache.group].window.unwrap_or(usize::MAX);
                let tokens = counts.tokens as f64;
                // Row i of the last `tokens` rows of the context sees all before it, cut to the window.
                let first = counts.context.saturating_sub(counts.tokens) as f64;
                let mean = (first + (tokens + 1.0) / 2.0).min(window as f64);
                let kept = (counts.context as f64).min(window as f64 + tokens - 1.0);
                let rows = rows_of(self.value(q).rows);
                Cost {
                    cache_bytes: kept * 2.0 * (layer.kv_heads * layer.head_dim) as f64 * 2.0,
                    multiply_adds: rows * mean * 2.0 * (heads * layer.head_dim) as f64,
                    ..Cost::default()
                }
            }
            _ => Cost {
                weight_bytes: step.op.weights().iter().map(|&weight| whole(weight)).fold(0.0, |sum, bytes| sum + bytes),
                ..Cost::default()
            },
        }
    }

    /// The least that one whole step must do.
    pub fn total_cost(&self, counts: RowCounts) -> Cost {
        self.steps.iter().fold(Cost::default(), |mut sum, step| {
            sum += self.cost(step, counts);
            sum
        })
    }
}
