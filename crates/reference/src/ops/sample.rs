//! The choice of a token.

use plan::{Sampling, uniform};

/// One token of `logits` by the rule of [`Sampling`], for the position that it will have.
pub fn sample(logits: &[f32], rule: &Sampling, position: u32) -> u32 {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    if rule.temperature == 0.0 {
        return order[0] as u32;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greedy_takes_the_lowest_of_equals() {
        assert_eq!(sample(&[0.0, 2.0, 2.0], &Sampling::GREEDY, 3), 1);
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
