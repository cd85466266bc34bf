//! The choice of a token.

use plan::{Choice, LogProbabilities, Sampling, uniform};

/// One token of `logits` by the rule of [`Choice`], for the position that it will have.
pub fn sample(logits: &[f32], choice: &Choice, position: u32) -> u32 {
    let kept = distribution(logits, choice);
    let target = f64::from(uniform(choice.sampling.seed, position));
    let mut below = 0.0;
    for &(token, probability) in &kept {
        below += probability;
        if below > target {
            return token;
        }
    }
    // Rounding left none.
    kept[kept.len() - 1].0
}

/// The tokens that [`sample`] draws from, the likeliest first, and how often it draws each; one at least.
pub fn distribution(logits: &[f32], choice: &Choice) -> Vec<(u32, f64)> {
    let logits = altered(logits, choice);
    let order = descending(&logits);
    let mut order: Vec<usize> = order.into_iter().filter(|&token| logits[token] > f32::NEG_INFINITY).collect();
    let Some(&first) = order.first() else {
        let lowest = choice.mask.as_ref().and_then(|mask| mask.first());
        return vec![(lowest.unwrap_or(0), 1.0)];
    };
    let Sampling { temperature, top_k, top_p, min_p, .. } = choice.sampling;
    if temperature == 0.0 || !(1.0 / temperature).is_finite() || logits[first] == f32::INFINITY {
        return vec![(first as u32, 1.0)];
    }
    if top_k > 0 {
        order.truncate(top_k as usize);
    }
    let largest = f64::from(logits[first]);
    let weight = |&token: &usize| ((f64::from(logits[token]) - largest) / f64::from(temperature)).exp();
    let weights: Vec<f64> = order.iter().map(weight).collect();
    let total: f64 = weights.iter().sum();
    let mut kept = 0;
    let mut mass = 0.0;
    while kept < order.len() && (kept == 0 || mass < f64::from(top_p) * total) {
        mass += weights[kept];
        kept += 1;
    }
    // The likeliest weighs 1.
    while kept > 1 && weights[kept - 1] < f64::from(min_p) {
        kept -= 1;
    }
    let mass: f64 = weights[..kept].iter().sum();
    order[..kept].iter().zip(&weights).map(|(&token, weight)| (token as u32, weight / mass)).collect()
}

/// The numbers that tokens are drawn from: penalty, `add` and mask of `choice`, in this order.
pub fn altered(logits: &[f32], choice: &Choice) -> Vec<f32> {
    let mut altered = logits.to_vec();
    for adjustment in &choice.adjustments {
        let logit = &mut altered[adjustment.token as usize];
        if adjustment.repeated {
            let penalty = choice.repetition_penalty;
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
        *logit += adjustment.add;
    }
    if let Some(mask) = &choice.mask {
        for (token, logit) in altered.iter_mut().enumerate() {
            if !mask.contains(token as u32) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    altered
}

/// How likely `chosen` and the `count` likeliest tokens are by `logits` themselves.
pub fn log_probabilities(logits: &[f32], chosen: u32, count: u32) -> LogProbabilities {
    let logits: Vec<f32> = logits.iter().map(|&x| if x.is_nan() { f32::NEG_INFINITY } else { x }).collect();
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // Equal ones differ by nothing, infinite ones too.
    let below = |logit: f32| if logit == largest { 0.0 } else { f64::from(logit) - f64::from(largest) };
    let total: f64 = logits.iter().map(|&logit| below(logit).exp()).sum();
    let log_probability = |logit: f32| {
        if logit == f32::NEG_INFINITY { f32::NEG_INFINITY } else { (below(logit) - total.ln()) as f32 }
    };
    let top = descending(&logits).into_iter().take(count as usize);
    LogProbabilities {
        chosen: log_probability(logits[chosen as usize]),
        top: top.map(|token| (token as u32, log_probability(logits[token]))).collect(),
    }
}

/// Indices by value, the largest first; of equal values (+0 and -0 are) the lower index first, NaN last.
pub(crate) fn descending(values: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    let key = |i: usize| if values[i].is_nan() { f32::NEG_INFINITY } else { values[i] + 0.0 };
    order.sort_by(|&a, &b| values[a].is_nan().cmp(&values[b].is_nan()).then(key(b).total_cmp(&key(a))).then(a.cmp(&b)));
    order
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use plan::{Adjustment, TokenMask};

    use super::*;

    const WARM: Sampling = Sampling { temperature: 1.0, ..Sampling::GREEDY };

    fn drawn(logits: &[f32], choice: &Choice) -> Vec<u32> {
        let drawn: BTreeSet<u32> = (0..2_000).map(|position| sample(logits, choice, position)).collect();
        drawn.into_iter().collect()
    }

    fn only(len: usize, tokens: &[u32]) -> Option<Arc<TokenMask>> {
        let mut mask = TokenMask::none(len);
        tokens.iter().for_each(|&token| mask.set(token));
        Some(Arc::new(mask))
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals() {
        assert_eq!(sample(&[0.0, 2.0, 2.0], &Sampling::GREEDY.into(), 3), 1);
    }

    #[test]
    fn what_is_no_number_or_impossible_is_never_chosen() {
        for rule in [Sampling::GREEDY, WARM, Sampling { temperature: 1e-40, ..WARM }] {
            let rule = Choice::from(rule);
            assert_eq!(sample(&[f32::NAN, f32::NEG_INFINITY, 1.0, f32::NAN], &rule, 3), 2);
            assert_eq!(sample(&[0.0, f32::INFINITY, f32::INFINITY], &rule, 3), 1);
            assert_eq!(sample(&[f32::NEG_INFINITY, f32::NAN], &rule, 3), 0);
            let masked = Choice { mask: only(2, &[1]), ..rule };
            assert_eq!(sample(&[f32::NEG_INFINITY, f32::NAN], &masked, 3), 1);
        }
        assert_eq!(sample(&[-0.0, 0.0], &Sampling::GREEDY.into(), 3), 0);
    }

    #[test]
    fn top_p_keeps_the_shortest_prefix_that_reaches_it() {
        let logits = [0.0f32, 1.0, 3.0, 2.0].map(|x| x * 2.0);
        let rule = Sampling { top_p: 0.9, seed: 5, ..WARM };
        assert_eq!(drawn(&logits, &rule.into()), [2, 3]);
        // On the border: two of four equals are half.
        let kept = distribution(&[1.0; 4], &Sampling { top_p: 0.5, ..WARM }.into());
        assert_eq!(kept, [(0, 0.5), (1, 0.5)]);
    }

    #[test]
    fn min_p_keeps_what_is_likely_beside_the_likeliest() {
        let logits = [4f32.ln(), 1f32.ln(), 2f32.ln(), 4f32.ln()];
        let kept = |min_p, top_p| -> Vec<u32> {
            distribution(&logits, &Sampling { min_p, top_p, ..WARM }.into())
                .into_iter()
                .map(|(token, _)| token)
                .collect()
        };
        assert_eq!(kept(0.0, 1.0), [0, 3, 2, 1]);
        assert_eq!(kept(0.4, 1.0), [0, 3, 2]);
        assert_eq!(kept(0.6, 1.0), [0, 3]);
        assert_eq!(kept(1.0, 1.0), [0, 3]);
        assert_eq!(kept(1.0, 0.1), [0]);
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let rule = Choice::from(Sampling { seed: 11, ..WARM });
        let ones = (0..20_000).filter(|&position| sample(&[0.0, 3f32.ln()], &rule, position) == 1).count();
        assert!((14_700..15_300).contains(&ones), "{ones}");
    }

    #[test]
    fn logits_are_penalised_then_added_to_then_masked() {
        let adjustment = |token, repeated, add| Adjustment { token, repeated, add };
        let choice = Choice {
            repetition_penalty: 2.0,
            adjustments: vec![
                adjustment(0, true, 0.0),
                adjustment(1, true, 1.0),
                adjustment(2, false, -1.0),
                adjustment(3, true, f32::NEG_INFINITY),
                adjustment(5, true, 9.0),
            ],
            mask: only(6, &[0, 1, 2, 3, 4]),
            ..Sampling::GREEDY.into()
        };
        let want = [2.0, -2.0, 3.0, f32::NEG_INFINITY, 4.0, f32::NEG_INFINITY];
        assert_eq!(altered(&[4.0, -1.5, 4.0, 4.0, 4.0, 4.0], &choice), want);
        assert_eq!(sample(&[4.0, -1.5, 4.0, 4.0, 4.0, 9.0], &choice, 1), 4);
    }

    #[test]
    fn log_probabilities_are_of_the_logits_alone() {
        let logits = [1f32.ln(), f32::NAN, 5f32.ln(), 1f32.ln(), f32::NEG_INFINITY, 1f32.ln()];
        let found = log_probabilities(&logits, 4, 9);
        assert_eq!(found.chosen, f32::NEG_INFINITY);
        let (ids, numbers): (Vec<u32>, Vec<f32>) = found.top.into_iter().unzip();
        assert_eq!(ids, [2, 0, 3, 5, 1, 4]);
        let want = [5.0f32 / 8.0, 0.125, 0.125, 0.125, 0.0, 0.0].map(f32::ln);
        assert!(numbers.iter().zip(want).all(|(got, want)| *got == want || (got - want).abs() < 2e-7), "{numbers:?}");
        assert_eq!(log_probabilities(&logits, 2, 0).top, []);
        let infinite = log_probabilities(&[f32::INFINITY, 3.0, f32::INFINITY], 1, 1);
        assert_eq!(infinite, LogProbabilities { chosen: f32::NEG_INFINITY, top: vec![(0, 0.5f32.ln())] });
    }
}
