//! The choice of a token.

use plan::{Sampling, uniform};

/// One token of `logits` by the rule of [`Sampling`], for the position that it will have.
pub fn sample(logits: &[f32], rule: &Sampling, position: u32) -> u32 {
    let order = descending(logits);
    let mut order: Vec<usize> = order.into_iter().filter(|&token| logits[token] > f32::NEG_INFINITY).collect();
    let Some(&first) = order.first() else { return 0 };
    if rule.temperature == 0.0 || !(1.0 / rule.temperature).is_finite() || logits[first] == f32::INFINITY {
        return first as u32;
    }
    if rule.top_k > 0 {
        order.truncate(rule.top_k as usize);
    }
    let largest = f64::from(logits[order[0]]);
    let weights: Vec<f64> =
        order.iter().map(|&token| ((f64::from(logits[token]) - largest) / f64::from(rule.temperature)).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut kept = 0;
    let mut mass = 0.0;
    while kept < order.len() && (kept == 0 || mass < f64::from(rule.top_p) * total) {
        mass += weights[kept];
        kept += 1;
    }
    let target = f64::from(uniform(rule.seed, position)) * mass;
    let mut below = 0.0;
    for (&token, weight) in order[..kept].iter().zip(&weights) {
        below += weight;
        if below > target {
            return token as u32;
        }
    }
    order[kept - 1] as u32
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
    use super::*;

    #[test]
    fn greedy_takes_the_lowest_of_equals() {
        assert_eq!(sample(&[0.0, 2.0, 2.0], &Sampling::GREEDY, 3), 1);
    }

    #[test]
    fn what_is_no_number_or_impossible_is_never_chosen() {
        let warm = Sampling { temperature: 1.0, ..Sampling::GREEDY };
        for rule in [Sampling::GREEDY, warm, Sampling { temperature: 1e-40, ..warm }] {
            assert_eq!(sample(&[f32::NAN, f32::NEG_INFINITY, 1.0, f32::NAN], &rule, 3), 2);
            assert_eq!(sample(&[0.0, f32::INFINITY, f32::INFINITY], &rule, 3), 1);
            assert_eq!(sample(&[f32::NEG_INFINITY, f32::NAN], &rule, 3), 0);
        }
        assert_eq!(sample(&[-0.0, 0.0], &Sampling::GREEDY, 3), 0);
    }

    #[test]
    fn top_p_keeps_the_shortest_prefix_that_reaches_it() {
        let logits = [0.0f32, 1.0, 3.0, 2.0].map(|x| x * 2.0);
        let rule = Sampling { temperature: 1.0, top_k: 0, top_p: 0.9, seed: 5 };
        let drawn: std::collections::BTreeSet<u32> =
            (0..2_000).map(|position| sample(&logits, &rule, position)).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let logits = [0.0, 3f32.ln()];
        let rule = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 11 };
        let ones = (0..20_000).filter(|&position| sample(&logits, &rule, position) == 1).count();
        assert!((14_700..15_300).contains(&ones), "{ones}");
    }
}
