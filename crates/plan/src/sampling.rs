//! How a token is chosen from logits. Backends agree on it because the rule and the random numbers are
//! defined here and nowhere else.

use std::sync::Arc;

use crate::TokenMask;

/// How the token after one wanted row is chosen.
///
/// From the row's logits, after the soft cap, in this order, each a single operation in f32:
/// 1. the logit `l` of each adjustment that is `repeated` becomes `l / repetition_penalty` if it is above 0, else
///    `l * repetition_penalty` (Keskar et al. 2019);
/// 2. each adjustment's `add` is added;
/// 3. tokens outside `mask` become -inf;
/// 4. [`Sampling`] draws one. Where nothing can be chosen, for every token is NaN or -inf, the lowest id that the
///    mask allows is taken, 0 without a mask.
///
/// Log-probabilities are those of the model itself: the natural logarithm of the softmax of the logits before step 1,
/// whatever the temperature. NaN counts as -inf there; if the largest logit is +inf, the tokens that have it share all
/// the probability.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// How one is drawn in the end.
    pub sampling: Sampling,
    /// Above 0; 1 changes nothing. It concerns the adjustments that are `repeated`.
    pub repetition_penalty: f32,
    /// `[adjusted]`, ascending by token, each token once.
    pub adjustments: Vec<Adjustment>,
    /// Tokens that may be chosen; `None`: all.
    pub mask: Option<Arc<TokenMask>>,
    /// `None`: no log-probabilities; `Some(k)`: that of the chosen token, and those of the `k` likeliest.
    pub log_probabilities: Option<u32>,
}

/// What happens to one token's logit before it is chosen from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adjustment {
    /// The token.
    pub token: u32,
    /// Whether the repetition penalty concerns it.
    pub repeated: bool,
    /// Added: a bias, less penalties for presence and frequency. -inf forbids the token.
    pub add: f32,
}

/// How one of several tokens is drawn.
///
/// Logits are divided by `temperature`; the `top_k` largest are kept (ties: the lower id first); their
/// softmax is taken; the shortest prefix in descending order whose probabilities sum to at least `top_p`
/// is kept; of it the tokens that are at least `min_p` times as likely as the likeliest (never less than one token);
/// one of these is drawn in proportion, with [`uniform`]`(seed, position)` for the position that the drawn token
/// will have.
///
/// NaN and -inf are never chosen; +0 and -0 are equal; if a logit is +inf, the first such is chosen. A temperature
/// whose reciprocal is not finite in f32 counts as 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// 0 takes the largest logit, the lowest id among equals.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// In (0, 1]; 1 keeps all.
    pub top_p: f32,
    /// In [0, 1]; 0 keeps all.
    pub min_p: f32,
    /// Key of the generator.
    pub seed: u64,
}

impl Sampling {
    /// Takes the largest logit.
    pub const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };

    /// What is wrong with it, as the end of a sentence.
    fn fault(&self) -> Option<String> {
        let Sampling { temperature, top_p, min_p, .. } = *self;
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Some(format!("a temperature of {temperature}, wanted a finite one of at least 0"));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Some(format!("a top_p of {top_p}, wanted one above 0 and at most 1"));
        }
        (!(0.0..=1.0).contains(&min_p)).then(|| format!("a min_p of {min_p}, wanted one from 0 to 1"))
    }
}

impl From<Sampling> for Choice {
    /// This sampling of the logits as they are.
    fn from(sampling: Sampling) -> Choice {
        Choice { sampling, repetition_penalty: 1.0, adjustments: vec![], mask: None, log_probabilities: None }
    }
}

impl Choice {
    /// Whether tokens are drawn from other numbers than the logits themselves.
    pub fn alters_logits(&self) -> bool {
        self.mask.is_some() || !self.adjustments.is_empty()
    }

    /// What is wrong with it for logits of `vocabulary` tokens, as the end of a sentence: `top_p` and the like out of
    /// range, adjustments out of order, a mask of another length or of nothing.
    pub(crate) fn fault(&self, vocabulary: usize) -> Option<String> {
        if let Some(fault) = self.sampling.fault() {
            return Some(fault);
        }
        let penalty = self.repetition_penalty;
        if !(penalty.is_finite() && penalty > 0.0) {
            return Some(format!("a repetition penalty of {penalty}, wanted a finite one above 0"));
        }
        if let Some(pair) = self.adjustments.windows(2).find(|pair| pair[0].token >= pair[1].token) {
            return Some(format!("an adjustment of token {} after that of {}", pair[1].token, pair[0].token));
        }
        for adjustment in &self.adjustments {
            let Adjustment { token, add, .. } = *adjustment;
            if token as usize >= vocabulary {
                return Some(format!("an adjustment of token {token}, there are {vocabulary}"));
            }
            if add.is_nan() || add == f32::INFINITY {
                return Some(format!("{add} to add to token {token}, wanted a number or -inf"));
            }
        }
        let mask = self.mask.as_deref()?;
        if mask.len() != vocabulary {
            return Some(format!("a mask of {} tokens, wanted {vocabulary}", mask.len()));
        }
        mask.first().is_none().then(|| "a mask that allows no token".into())
    }
}

/// A number in [0, 1) that depends on `seed` and `position` alone, so that a sequence draws the same
/// numbers whatever runs beside it: two rounds of the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
pub fn uniform(seed: u64, position: u32) -> f32 {
    let mixed = mix(mix(seed).wrapping_add(u64::from(position).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    (mixed >> 40) as f32 * (1.0 / (1u64 << 24) as f32)
}

fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_is_even_and_differs_by_seed_and_position() {
        let mean: f64 = (0..10_000).map(|position| f64::from(uniform(7, position))).sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
        assert!((0..10_000).all(|position| (0.0..1.0).contains(&uniform(7, position))));
        assert_ne!(uniform(1, 5), uniform(2, 5));
        assert_ne!(uniform(1, 5), uniform(1, 6));
    }

    fn adding(token: u32, add: f32) -> Adjustment {
        Adjustment { token, repeated: false, add }
    }

    #[test]
    fn a_choice_in_range_has_no_fault() {
        let mut mask = TokenMask::none(5);
        mask.set(4);
        let edge = Sampling { temperature: f32::MAX, top_k: u32::MAX, top_p: 1e-30, min_p: 1.0, seed: 9 };
        let choice = Choice {
            repetition_penalty: 1e-30,
            adjustments: vec![adding(0, f32::NEG_INFINITY), adding(4, -1.5)],
            mask: Some(Arc::new(mask)),
            log_probabilities: Some(100),
            ..edge.into()
        };
        assert_eq!(choice.fault(5), None);
        assert_eq!(Choice::from(Sampling::GREEDY).fault(1), None);
    }

    #[test]
    fn every_fault_of_a_choice_is_named() {
        let sampling = |change: &dyn Fn(&mut Sampling)| {
            let mut sampling = Sampling::GREEDY;
            change(&mut sampling);
            Choice::from(sampling)
        };
        let choice = |change: &dyn Fn(&mut Choice)| {
            let mut choice = Choice::from(Sampling::GREEDY);
            change(&mut choice);
            choice
        };
        let adjusted = |adjustments: &[Adjustment]| choice(&|choice| choice.adjustments = adjustments.to_vec());
        let masked = |mask: TokenMask| choice(&|choice| choice.mask = Some(Arc::new(mask.clone())));
        let faults = [
            (sampling(&|sampling| sampling.temperature = -0.5), "a temperature of -0.5"),
            (sampling(&|sampling| sampling.temperature = f32::INFINITY), "a temperature of inf"),
            (sampling(&|sampling| sampling.temperature = f32::NAN), "a temperature of NaN"),
            (sampling(&|sampling| sampling.top_p = 0.0), "a top_p of 0"),
            (sampling(&|sampling| sampling.top_p = 1.01), "a top_p of 1.01"),
            (sampling(&|sampling| sampling.top_p = f32::NAN), "a top_p of NaN"),
            (sampling(&|sampling| sampling.min_p = -0.1), "a min_p of -0.1"),
            (sampling(&|sampling| sampling.min_p = 1.01), "a min_p of 1.01"),
            (sampling(&|sampling| sampling.min_p = f32::NAN), "a min_p of NaN"),
            (choice(&|choice| choice.repetition_penalty = 0.0), "a repetition penalty of 0"),
            (choice(&|choice| choice.repetition_penalty = f32::INFINITY), "a repetition penalty of inf"),
            (choice(&|choice| choice.repetition_penalty = f32::NAN), "a repetition penalty of NaN"),
            (adjusted(&[adding(2, 0.0), adding(2, 0.0)]), "an adjustment of token 2 after that of 2"),
            (adjusted(&[adding(2, 0.0), adding(1, 0.0)]), "an adjustment of token 1 after that of 2"),
            (adjusted(&[adding(5, 0.0)]), "an adjustment of token 5, there are 5"),
            (adjusted(&[adding(3, f32::NAN)]), "NaN to add to token 3"),
            (adjusted(&[adding(3, f32::INFINITY)]), "inf to add to token 3"),
            (masked(TokenMask::all(6)), "a mask of 6 tokens, wanted 5"),
            (masked(TokenMask::none(5)), "a mask that allows no token"),
        ];
        for (choice, wanted) in faults {
            let found = choice.fault(5).unwrap_or_default();
            assert!(found.starts_with(wanted), "{found:?}, wanted {wanted:?}");
        }
    }
}
