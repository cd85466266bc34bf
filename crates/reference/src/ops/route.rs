//! Which experts a row goes to, and how much each counts.

use super::sample::descending;

/// Softmax over all `scores`, the `experts.len()` largest (ties: the lower index first), renormalised to
/// sum 1, each times its own `per_expert_scale`, once. In f64. Panics unless the lengths agree.
pub fn route(experts: &mut [u32], weights: &mut [f32], scores: &[f32], per_expert_scale: &[f32]) {
    assert!(experts.len() == weights.len() && scores.len() == per_expert_scale.len(), "a scale for each expert");
    assert!(experts.len() <= scores.len(), "no more experts than there are");
    let order = descending(scores);
    let largest = f64::from(scores[order[0]]);
    // Softmax, selection and renormalisation together: the denominator over all experts cancels.
    let chosen: Vec<f64> = order[..experts.len()].iter().map(|&e| (f64::from(scores[e]) - largest).exp()).collect();
    let total: f64 = chosen.iter().sum();
    for (j, probability) in chosen.iter().enumerate() {
        experts[j] = order[j] as u32;
        weights[j] = (probability / total * f64::from(per_expert_scale[order[j]])) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_of_an_expert_counts_once_and_ties_go_to_the_lower_index() {
        let (mut experts, mut weights) = ([9; 2], [f32::NAN; 2]);
        route(&mut experts, &mut weights, &[0.0, 1.0, 1.0, 1.0], &[8.0, 1.0, 4.0, 2.0]);
        assert_eq!((experts, weights), ([1, 2], [0.5, 2.0]));
    }
}
