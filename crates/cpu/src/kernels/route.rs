//! Choosing experts: softmax over all of them, the best few, their weights made to sum to one again.

use super::math::exp;
use super::rows::{LANES, greater, lane_max, lane_sum};

/// Writes the `ids.len()` best experts of one token and their weights.
///
/// `p = exp(s - max) / sum` over all scores (the largest and the sum in 16 lanes, see [`super::rows`]); experts
/// are taken by score descending, of equal ones (+0 and -0 are equal) the lower id first;
/// `weights[i] = p[i] / (sum of the chosen p, in this order) * per_expert_scale[ids[i]]`. A NaN score makes every
/// weight NaN; ids stay valid and distinct.
///
/// `probabilities` is scratch of `scores.len()`. Panics unless `scores`, `per_expert_scale` and `probabilities`
/// agree in length, `ids` and `weights` do, and there are at least as many experts as are asked for.
pub fn route(
    scores: &[f32],
    per_expert_scale: &[f32],
    ids: &mut [u32],
    weights: &mut [f32],
    probabilities: &mut [f32],
) {
    assert!(scores.len() == per_expert_scale.len() && scores.len() == probabilities.len(), "one scale an expert");
    assert!(ids.len() == weights.len() && ids.len() <= scores.len(), "at most every expert");
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for (i, score) in scores.iter().enumerate() {
        lanes[i % LANES] = greater(*score, lanes[i % LANES]);
    }
    let max = lane_max(lanes);
    let mut lanes = [0.0f32; LANES];
    for (i, (p, score)) in probabilities.iter_mut().zip(scores).enumerate() {
        *p = exp(score - max);
        lanes[i % LANES] += *p;
    }
    let sum = lane_sum(lanes);
    for p in probabilities.iter_mut() {
        *p /= sum;
    }
    // Few are asked for: an insertion into the sorted front is cheaper than sorting all.
    let mut taken = 0;
    for (expert, (score, p)) in scores.iter().zip(probabilities.iter()).enumerate() {
        let mut at = taken;
        // Strictly larger moves ahead; an equal one stays behind the lower id. Scores, not p: those round together.
        while at > 0 && *score > scores[ids[at - 1] as usize] {
            at -= 1;
        }
        if at == ids.len() {
            continue;
        }
        taken = (taken + 1).min(ids.len());
        ids.copy_within(at..taken - 1, at + 1);
        weights.copy_within(at..taken - 1, at + 1);
        ids[at] = expert as u32;
        weights[at] = *p;
    }
    let chosen: f32 = weights.iter().sum();
    for (weight, id) in weights.iter_mut().zip(ids) {
        *weight = *weight / chosen * per_expert_scale[*id as usize];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn routed(scores: &[f32], scale: &[f32], top_k: usize) -> (Vec<u32>, Vec<f32>) {
        let (mut ids, mut weights) = (vec![u32::MAX; top_k], vec![f32::NAN; top_k]);
        route(scores, scale, &mut ids, &mut weights, &mut vec![f32::NAN; scores.len()]);
        (ids, weights)
    }

    #[test]
    fn equal_scores_go_to_the_lower_id() {
        let (ids, weights) = routed(&[1.0, 3.0, 3.0, 1.0, 3.0], &[1.0; 5], 4);
        assert_eq!(ids, [1, 2, 4, 0]);
        assert!(weights[0] == weights[1] && weights[1] == weights[2] && weights[2] > weights[3]);
    }

    #[test]
    fn scores_decide_where_probabilities_round_together() {
        // Both of the first two are 40 below the largest in f32, and 200 below it p is 0.
        assert_eq!(routed(&[0.0, 1e-9, 40.0], &[1.0; 3], 2).0, [2, 1]);
        assert_eq!(routed(&[-200.0, 0.0, -199.0], &[1.0; 3], 2).0, [1, 2]);
        assert_eq!(routed(&[-0.0, 0.0, -0.0], &[1.0; 3], 3).0, [0, 1, 2]);
    }

    fn score() -> impl Strategy<Value = f32> {
        let near = prop_oneof![Just(-0.0f32), (0u8..9).prop_map(|i| f32::from(i) * 1e-9)];
        prop_oneof![-200.0f32..200.0, (-3i8..3).prop_map(f32::from), near]
    }

    proptest! {
        #[test]
        fn experts_come_by_score_then_id(scores in prop::collection::vec(score(), 1..130), top_k in 1usize..9) {
            let top_k = top_k.min(scores.len());
            let mut order: Vec<u32> = (0..scores.len() as u32).collect();
            // A stable sort: of equal scores the lower id stays first.
            order.sort_by(|a, b| scores[*b as usize].partial_cmp(&scores[*a as usize]).expect("no NaN"));
            prop_assert_eq!(&routed(&scores, &vec![1.0; scores.len()], top_k).0, &order[..top_k]);
        }
    }

    #[test]
    fn scale_is_applied_once_after_renormalising() {
        let (ids, weights) = routed(&[0.0, 0.0, -1e9, 0.0], &[2.0, 4.0, 1.0, 8.0], 2);
        assert_eq!(ids, [0, 1]);
        assert_eq!(weights, [1.0, 2.0]);
    }

    #[test]
    fn agrees_with_sorting_in_f64() {
        let mut state = 7u64;
        for experts in [1, 5, 16, 128] {
            for top_k in [1, 2, 8].into_iter().filter(|k| *k <= experts) {
                let mut next = || {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (state >> 40) as f32 / 16_777_216.0
                };
                let scores: Vec<f32> = (0..experts).map(|_| next() * 12.0 - 6.0).collect();
                let scale: Vec<f32> = (0..experts).map(|_| next() + 0.5).collect();
                let (ids, weights) = routed(&scores, &scale, top_k);
                let mut order: Vec<usize> = (0..experts).collect();
                order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
                let chosen: f64 = order[..top_k].iter().map(|i| f64::from(scores[*i]).exp()).sum();
                for i in 0..top_k {
                    assert_eq!(ids[i] as usize, order[i]);
                    let want = f64::from(scores[order[i]]).exp() / chosen * f64::from(scale[order[i]]);
                    assert!((f64::from(weights[i]) - want).abs() <= 1e-6 * want, "{} not {want}", weights[i]);
                }
            }
        }
    }

    #[test]
    fn nan_keeps_ids_valid() {
        let (mut ids, weights) = routed(&[f32::NAN, 1.0, 2.0, f32::NAN], &[1.0; 4], 3);
        ids.sort_unstable();
        ids.dedup();
        assert!(ids.len() == 3 && ids.iter().all(|id| *id < 4));
        assert!(weights.iter().all(|weight| weight.is_nan()));
    }
}
