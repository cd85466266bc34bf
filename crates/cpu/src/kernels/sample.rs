//! Choosing a token from a row of logits, the same one for the same logits, settings and number.
//!
//! With weights `w = exp((x - max) * (1 / temperature))` (f32), tokens stand in descending order of logit, of
//! equal ones the lower id first; NaN and -inf are never chosen. A temperature whose reciprocal is not finite (0,
//! and the subnormal numbers near it) counts as 0: the first token. The `top_k` first are kept. `total` is the sum
//! of their weights in f64, in this order, or in order of id if `top_k` cuts nothing. Of these the smallest
//! prefix is kept whose sum is at least `top_p * total` (one token at least); `kept` is its sum, or `total` if
//! `top_p >= 1`. The answer is the first token whose running sum, in f64 and in this order, exceeds
//! `uniform * kept`; the last of nonzero weight if rounding leaves none.

use super::Kernels;

/// How to choose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0, and whatever has no finite reciprocal, takes the largest.
    pub temperature: f32,
    /// Keep this many of the largest; 0 keeps all.
    pub top_k: usize,
    /// Keep the largest that together reach this share; 1 keeps all.
    pub top_p: f32,
}

/// First try for the number of tokens that are put in order when `top_k` does not say; most draws end here.
const FIRST_PREFIX: usize = 128;

/// Scratch of one sampling row; no call allocates.
#[derive(Debug)]
pub struct Sampler {
    kernels: Kernels,
    /// Tokens as keys: greater means earlier in the order.
    keys: Vec<u64>,
    weights: Vec<f32>,
}

impl Sampler {
    /// Room for rows of up to `vocabulary` logits.
    pub fn new(kernels: Kernels, vocabulary: usize) -> Sampler {
        Sampler { kernels, keys: Vec::with_capacity(vocabulary), weights: vec![0.0; vocabulary] }
    }

    /// The token chosen by `uniform`, a number in [0, 1). A row with nothing above -inf gives id 0; if a logit
    /// is +inf, the first such is chosen. Panics if the row is empty or longer than the vocabulary.
    pub fn sample(&mut self, logits: &[f32], sampling: &Sampling, uniform: f64) -> u32 {
        assert!(!logits.is_empty() && logits.len() <= self.weights.len(), "a row of the vocabulary's size");
        let (first, max) = self.kernels.argmax(logits);
        let factor = 1.0 / sampling.temperature;
        if max.is_nan() || max == f32::NEG_INFINITY {
            return 0;
        }
        if !factor.is_finite() || max == f32::INFINITY {
            return first as u32;
        }
        if sampling.top_k > 0 && sampling.top_k < logits.len() {
            self.order(logits, sampling.top_k);
            self.weigh(logits, max, factor);
            let total = self.weights[..self.keys.len()].iter().map(|w| f64::from(*w)).sum();
            // Everything that is kept is in order, so the draw ends.
            return self.draw(sampling.top_p, total, uniform, true).unwrap_or(first as u32);
        }
        self.kernels.exp_row(&mut self.weights[..logits.len()], logits, max, factor);
        // NaN weighs nothing.
        let total = self.weights[..logits.len()].iter().filter(|w| !w.is_nan()).map(|w| f64::from(*w)).sum();
        let mut prefix = FIRST_PREFIX.min(logits.len());
        loop {
            self.order(logits, prefix);
            self.weigh(logits, max, factor);
            let all = prefix == logits.len();
            let drawn = self.draw(sampling.top_p, total, uniform, all);
            if all || drawn.is_some() {
                return drawn.unwrap_or(first as u32);
            }
            prefix = (prefix * 8).min(logits.len());
        }
    }

    /// Leaves the keys of the `count` first tokens in `keys`, in order; fewer if fewer are above -inf. `count` is
    /// at least 1.
    fn order(&mut self, logits: &[f32], count: usize) {
        let limit = (2 * count).clamp(64, self.keys.capacity().max(64));
        self.keys.clear();
        // Everything at or below this is behind `count` others, for ids come ascending.
        let mut bar = f32::NEG_INFINITY;
        for (chunk, start) in logits.chunks(32).zip((0u32..).step_by(32)) {
            // Most chunks of a large vocabulary hold nothing above the bar: one comparison without branches.
            if !chunk.iter().fold(false, |any, x| any | (*x > bar)) {
                continue;
            }
            for (x, id) in chunk.iter().zip(start..) {
                if *x > bar {
                    self.keys.push(key(*x, id));
                    if self.keys.len() >= limit && limit > count {
                        bar = self.cut(count, logits);
                    }
                }
            }
        }
        if self.keys.len() > count {
            self.cut(count, logits);
        }
        self.keys.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// Keeps the `count` first keys, in no order, and returns the logit of the last of them.
    fn cut(&mut self, count: usize, logits: &[f32]) -> f32 {
        let (_, last, _) = self.keys.select_nth_unstable_by(count - 1, |a, b| b.cmp(a));
        let last = *last;
        self.keys.truncate(count);
        logits[token(last) as usize]
    }

    /// Leaves the weights of the ordered tokens in `weights`, in the same order.
    fn weigh(&mut self, logits: &[f32], max: f32, factor: f32) {
        let count = self.keys.len();
        for (weight, key) in self.weights.iter_mut().zip(&self.keys) {
            *weight = logits[token(*key) as usize];
        }
        let row = &mut self.weights[..count];
        self.kernels.exp_row_in_place(row, max, factor);
    }

    /// Draws among the ordered tokens; nothing if the answer may lie beyond them and they are not `all`.
    fn draw(&self, top_p: f32, total: f64, uniform: f64, all: bool) -> Option<u32> {
        let weights = &self.weights[..self.keys.len()];
        let (mut kept, mut count) = (total, weights.len());
        if top_p < 1.0 {
            let wanted = f64::from(top_p) * total;
            let mut sum = 0.0;
            let reached = weights.iter().position(|weight| {
                sum += f64::from(*weight);
                sum >= wanted
            });
            if reached.is_none() && !all {
                return None;
            }
            count = reached.map_or(count, |last| last + 1);
            kept = sum;
        }
        let mut sum = 0.0;
        let mut last = None;
        for (key, weight) in self.keys[..count].iter().zip(weights) {
            sum += f64::from(*weight);
            if *weight > 0.0 {
                last = Some(token(*key));
            }
            if sum > uniform * kept {
                return Some(token(*key));
            }
        }
        if all || top_p < 1.0 { last } else { None }
    }
}

/// A token as a number that is greater the earlier the token stands in the order.
fn key(logit: f32, id: u32) -> u64 {
    // Adding 0 makes -0 into +0: they are equal logits.
    let bits = (logit + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(ascending) << 32 | u64::from(!id)
}

fn token(key: u64) -> u32 {
    !(key as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::kernels::math::exp;
    use proptest::prelude::*;

    /// The definition, with a full sort.
    fn by_definition(logits: &[f32], sampling: &Sampling, uniform: f64) -> u32 {
        let mut order: Vec<usize> = (0..logits.len()).filter(|i| logits[*i] > f32::NEG_INFINITY).collect();
        order.sort_by(|a, b| logits[*b].partial_cmp(&logits[*a]).expect("no NaN is left").then(a.cmp(b)));
        let Some(max) = order.first().map(|i| logits[*i]) else { return 0 };
        if !(1.0 / sampling.temperature).is_finite() || max == f32::INFINITY {
            return order[0] as u32;
        }
        let weight = |i: &usize| f64::from(exp((logits[*i] - max) * (1.0 / sampling.temperature)));
        let total: f64 = if sampling.top_k > 0 && sampling.top_k < logits.len() {
            order.truncate(sampling.top_k);
            order.iter().map(weight).sum()
        } else {
            let mut ids = order.clone();
            ids.sort_unstable();
            ids.iter().map(weight).sum()
        };
        let mut kept = total;
        if sampling.top_p < 1.0 {
            kept = 0.0;
            let mut count = 0;
            for i in &order {
                kept += weight(i);
                count += 1;
                if kept >= f64::from(sampling.top_p) * total {
                    break;
                }
            }
            order.truncate(count);
        }
        let mut sum = 0.0;
        for i in &order {
            sum += weight(i);
            if sum > uniform * kept {
                return *i as u32;
            }
        }
        *order.iter().rfind(|i| weight(i) > 0.0).expect("the largest weighs 1") as u32
    }

    fn logit() -> impl Strategy<Value = f32> {
        prop_oneof![
            8 => -12.0f32..12.0,
            2 => (-3i32..3).prop_map(|x| x as f32), // ties
            1 => Just(f32::NEG_INFINITY),
            1 => Just(-0.0),
            1 => Just(f32::NAN),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_its_definition(
            logits in prop::collection::vec(logit(), 1..700),
            // The bits reach from 0 past the least number with a finite reciprocal.
            temperature in prop_oneof![Just(0.0f32), 0.05f32..4.0, (0u32..0x0100_0000).prop_map(f32::from_bits)],
            top_k in prop_oneof![Just(0usize), 1usize..80, 600usize..800],
            top_p in prop_oneof![Just(1.0f32), 0.0f32..1.0],
            uniform in prop_oneof![Just(0.0f64), Just(1.0 - f64::EPSILON), 0.0f64..1.0],
        ) {
            let sampling = Sampling { temperature, top_k, top_p };
            let mut sampler = Sampler::new(Kernels::for_isa(Isa::best()), logits.len());
            let want = by_definition(&logits, &sampling, uniform);
            prop_assert_eq!(sampler.sample(&logits, &sampling, uniform), want);
        }
    }

    #[test]
    fn a_large_flat_vocabulary_is_drawn_evenly() {
        let logits = vec![0.5; 50_000];
        let mut sampler = Sampler::new(Kernels::for_isa(Isa::best()), logits.len());
        let sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0 };
        for uniform in [0.0, 0.25, 0.5, 0.999_99] {
            assert_eq!(sampler.sample(&logits, &sampling, uniform), (uniform * 50_000.0) as u32);
        }
    }

    #[test]
    fn a_temperature_without_a_finite_reciprocal_takes_the_largest() {
        // More tokens than are put in order at first, the largest not among the first ids.
        let logits: Vec<f32> = (0..3000).map(|i| if i % 700 == 699 { 2.0 } else { -(i as f32) }).collect();
        let mut sampler = Sampler::new(Kernels::for_isa(Isa::best()), logits.len());
        for temperature in [1e-40, f32::from_bits(1), 0.0, -0.0, f32::NAN] {
            for (top_k, top_p) in [(0, 1.0), (0, 0.9), (64, 1.0), (64, 0.9)] {
                let sampling = Sampling { temperature, top_k, top_p };
                assert_eq!(sampler.sample(&logits, &sampling, 0.99), 699, "{sampling:?}");
            }
        }
    }

    #[test]
    fn rows_without_a_finite_largest() {
        let mut sampler = Sampler::new(Kernels::for_isa(Isa::best()), 3);
        let sampling = Sampling { temperature: 1.0, top_k: 2, top_p: 0.9 };
        assert_eq!(sampler.sample(&[f32::NEG_INFINITY; 3], &sampling, 0.5), 0);
        assert_eq!(sampler.sample(&[f32::NAN; 3], &sampling, 0.5), 0);
        assert_eq!(sampler.sample(&[f32::NAN, f32::NEG_INFINITY, f32::NAN], &sampling, 0.5), 0);
        assert_eq!(sampler.sample(&[1.0, f32::INFINITY, f32::INFINITY], &sampling, 0.9), 1);
    }
}
