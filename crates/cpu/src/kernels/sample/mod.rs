//! Choosing a token from a row of logits, the same one for the same logits, rule and number.
//!
//! Penalty, `add` and mask of [`Choice`] make a row of their own where there are any. With weights
//! `w = exp((x - max) * (1 / temperature))` (f32), tokens stand in descending order of `x`, of
//! equal ones the lower id first; NaN and -inf are never chosen. A temperature whose reciprocal is not finite (0,
//! and the subnormal numbers near it) counts as 0: the first token. The `top_k` first are kept. `total` is the sum
//! of their weights in f64, in this order, or in order of id if `top_k` cuts nothing. Of these the smallest
//! prefix is kept whose sum is at least `top_p * total`, and of it what weighs at least `min_p` (one token at least);
//! `kept` is its sum, or `total` if `top_p >= 1` and `min_p` is 0. The answer is the first token whose running sum, in
//! f64 and in this order, exceeds `uniform * kept`; the last of nonzero weight if rounding leaves none.
//!
//! Log-probabilities are `x - max - ln(total)` in f64, with `total` the sum of `exp(x - max)` in f64 in order of id.

use plan::{Choice, LogProbabilities, Sampling};

use super::{Kernels, math};

/// First try for the number of tokens that are put in order when `top_k` does not say; most draws end here.
const FIRST_PREFIX: usize = 128;

/// Scratch of one sampling row; no call allocates but for what it returns.
#[derive(Debug)]
pub struct Sampler {
    kernels: Kernels,
    /// Tokens as keys: greater means earlier in the order.
    keys: Vec<u64>,
    weights: Vec<f32>,
    /// A row after penalty, `add` and mask.
    altered: Vec<f32>,
}

impl Sampler {
    /// Room for rows of up to `vocabulary` logits.
    pub fn new(kernels: Kernels, vocabulary: usize) -> Sampler {
        Sampler {
            kernels,
            keys: Vec::with_capacity(vocabulary),
            weights: vec![0.0; vocabulary],
            altered: vec![0.0; vocabulary],
        }
    }

    /// The token that `choice` takes of `logits` with `uniform`, a number in [0, 1). Panics if the row is empty or
    /// longer than the vocabulary, or an adjustment or the mask is of another length.
    pub fn choose(&mut self, logits: &[f32], choice: &Choice, uniform: f64) -> u32 {
        assert!(!logits.is_empty() && logits.len() <= self.weights.len(), "a row of the vocabulary's size");
        let drawn = if choice.alters_logits() {
            let mut altered = std::mem::take(&mut self.altered);
            let row = &mut altered[..logits.len()];
            alter(row, logits, choice);
            let drawn = self.sample(row, &choice.sampling, uniform);
            self.altered = altered;
            drawn
        } else {
            self.sample(logits, &choice.sampling, uniform)
        };
        drawn.or_else(|| choice.mask.as_ref()?.first()).unwrap_or(0)
    }

    /// How likely `chosen` and the `count` likeliest tokens are by `logits`. Panics as [`Sampler::choose`].
    pub fn log_probabilities(&mut self, logits: &[f32], chosen: u32, count: u32) -> LogProbabilities {
        assert!(!logits.is_empty() && logits.len() <= self.weights.len(), "a row of the vocabulary's size");
        let max = self.kernels.max(logits);
        let total = if max.is_infinite() {
            logits.iter().filter(|x| **x == max).count() as f64
        } else {
            let weights = &mut self.weights[..logits.len()];
            self.kernels.exp_row(weights, logits, max, 1.0);
            sum(weights)
        };
        // With nothing above -inf the total means nothing, and nothing reads it.
        let log_total = math::ln(total.max(1.0));
        let log_probability = |x: f32| match x > f32::NEG_INFINITY {
            true if x == max => (0.0 - log_total) as f32,
            true => (f64::from(x) - f64::from(max) - log_total) as f32,
            false => f32::NEG_INFINITY,
        };
        let count = logits.len().min(count as usize);
        let mut top = Vec::with_capacity(count);
        if count > 0 {
            self.order(logits, count);
            top.extend(self.keys.iter().map(|key| (token(*key), log_probability(logits[token(*key) as usize]))));
            // All others are equally impossible.
            let rest = (0u32..).zip(logits).filter(|(_, x)| x.is_nan() || **x == f32::NEG_INFINITY);
            top.extend(rest.take(count - top.len()).map(|(id, _)| (id, f32::NEG_INFINITY)));
        }
        LogProbabilities { chosen: log_probability(logits[chosen as usize]), top }
    }

    /// One token of a row that is not empty; nothing if none is above -inf. If a logit is +inf, it is the first such.
    fn sample(&mut self, logits: &[f32], sampling: &Sampling, uniform: f64) -> Option<u32> {
        let (first, max) = self.kernels.argmax(logits);
        let factor = 1.0 / sampling.temperature;
        if max.is_nan() || max == f32::NEG_INFINITY {
            return None;
        }
        let first = Some(first as u32);
        if !factor.is_finite() || max == f32::INFINITY {
            return first;
        }
        let top_k = sampling.top_k as usize;
        if top_k > 0 && top_k < logits.len() {
            self.order(logits, top_k);
            self.weigh(logits, max, factor);
            let total = self.weights[..self.keys.len()].iter().map(|w| f64::from(*w)).sum();
            // Everything that is kept is in order, so the draw ends.
            return self.draw(sampling, total, uniform, true).or(first);
        }
        self.kernels.exp_row(&mut self.weights[..logits.len()], logits, max, factor);
        let total = sum(&self.weights[..logits.len()]);
        let mut prefix = FIRST_PREFIX.min(logits.len());
        loop {
            self.order(logits, prefix);
            self.weigh(logits, max, factor);
            let all = prefix == logits.len();
            let drawn = self.draw(sampling, total, uniform, all);
            if all || drawn.is_some() {
                return drawn.or(first);
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
    fn draw(&self, sampling: &Sampling, total: f64, uniform: f64, all: bool) -> Option<u32> {
        let weights = &self.weights[..self.keys.len()];
        let (mut kept, mut count) = (total, weights.len());
        let cuts = sampling.top_p < 1.0 || sampling.min_p > 0.0;
        if cuts {
            let wanted = if sampling.top_p < 1.0 { f64::from(sampling.top_p) * total } else { f64::INFINITY };
            let mut sum = 0.0;
            // Weights descend, so the first that is too small ends what `min_p` keeps.
            let last = weights.iter().enumerate().find_map(|(place, weight)| {
                if place > 0 && *weight < sampling.min_p {
                    return Some(place - 1);
                }
                sum += f64::from(*weight);
                (sum >= wanted).then_some(place)
            });
            if last.is_none() && !all {
                return None;
            }
            count = last.map_or(count, |last| last + 1);
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
        if all || cuts { last } else { None }
    }
}

/// The sum in order; NaN weighs nothing.
fn sum(weights: &[f32]) -> f64 {
    weights.iter().filter(|w| !w.is_nan()).map(|w| f64::from(*w)).sum()
}

/// Writes `logits` after penalty, `add` and mask of `choice` to `out`, of the same length.
fn alter(out: &mut [f32], logits: &[f32], choice: &Choice) {
    out.copy_from_slice(logits);
    let penalty = choice.repetition_penalty;
    for adjustment in &choice.adjustments {
        let x = &mut out[adjustment.token as usize];
        if adjustment.repeated {
            *x = if *x > 0.0 { *x / penalty } else { *x * penalty };
        }
        *x += adjustment.add;
    }
    let Some(mask) = &choice.mask else { return };
    assert_eq!(mask.len(), out.len(), "a mask of the vocabulary");
    for (word, chunk) in mask.words().iter().zip(out.chunks_mut(64)) {
        match *word {
            u64::MAX => {}
            0 => chunk.fill(f32::NEG_INFINITY),
            word => {
                for (nibble, four) in chunk.chunks_mut(4).enumerate() {
                    let lanes = &NIBBLES[(word >> (4 * nibble) & 15) as usize];
                    for (x, lane) in four.iter_mut().zip(lanes) {
                        *x = f32::from_bits(x.to_bits() & lane | f32::NEG_INFINITY.to_bits() & !lane);
                    }
                }
            }
        }
    }
}

/// All bits of lane `i` where bit `i` of the index is set: four tokens of a mask at a time, without branches.
const NIBBLES: [[u32; 4]; 16] = {
    let mut lanes = [[0; 4]; 16];
    let mut place = 0;
    while place < 64 {
        if (place / 4) >> (place % 4) & 1 == 1 {
            lanes[place / 4][place % 4] = u32::MAX;
        }
        place += 1;
    }
    lanes
};

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
mod tests;
