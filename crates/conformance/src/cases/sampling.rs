//! The choice of a token, by every rule; logits come in steps, so that equal ones are common and the rule for
//! them is tested, and draws stay clear of the borders that roundings would move.

use plan::{Sampling, StepInputs, uniform};

use super::draft::{Draft, TOKENS, no_cache};
use super::inputs::without_cache;
use crate::CheckError;

pub(super) fn add(draft: &mut Draft) -> Result<(), CheckError> {
    for (vocabulary, deviation) in [(TOKENS, 1.0), (320, 3.0), (1_000, 0.5)] {
        let mut launches = without_cache(draft.random);
        let mut case = draft.case(format!("sample of {vocabulary}"), no_cache());
        let numbers = case.random().normals(TOKENS * vocabulary, deviation);
        let numbers: Vec<f32> = numbers.into_iter().map(|logit| (logit * 16.0).round() / 16.0).collect();
        for inputs in &mut launches.inputs {
            for wanted in 0..inputs.wanted.len() {
                inputs.sampling[wanted] = rule(&mut case, inputs, wanted, vocabulary, &numbers);
            }
        }
        let x = case.source_of("x", vocabulary, &numbers);
        let logits = case.wanted("logits", x);
        case.finish_logits("sample", logits, launches)?;
    }
    Ok(())
}

fn rule(
    case: &mut super::draft::CaseDraft,
    inputs: &StepInputs,
    wanted: usize,
    vocabulary: usize,
    numbers: &[f32],
) -> Option<Sampling> {
    let row = inputs.wanted[wanted] as usize;
    let token = inputs.tokens[row] as usize;
    let logits = &numbers[token * vocabulary..(token + 1) * vocabulary];
    let random = case.random();
    if random.below(6) == 0 {
        return None;
    }
    // Most rules are clear of the borders; greedy always is.
    for _ in 0..100 {
        let rule = Sampling {
            temperature: random.pick(&[0.0, 0.6, 1.0, 1.5]),
            top_k: random.pick(&[0, 1, 5, 40, 5_000]),
            top_p: random.pick(&[1.0, 0.95, 0.5, 0.01]),
            seed: random.below(1 << 20) as u64,
        };
        if is_clear(logits, &rule, inputs.positions[row] + 1) {
            return Some(rule);
        }
    }
    Some(Sampling::GREEDY)
}

/// Distance from a border that f32 sums cannot bridge, as a share of the whole.
const CLEAR: f64 = 1e-4;

/// Whether neither the cut at `top_p` nor the draw is so near to a border that a rounding decides.
fn is_clear(logits: &[f32], rule: &Sampling, position: u32) -> bool {
    if rule.temperature == 0.0 {
        return true;
    }
    let mut sorted: Vec<f64> = logits.iter().map(|&logit| f64::from(logit) / f64::from(rule.temperature)).collect();
    sorted.sort_by(|a, b| b.total_cmp(a));
    if rule.top_k > 0 {
        sorted.truncate(rule.top_k as usize);
    }
    let total: f64 = sorted.iter().map(|logit| (logit - sorted[0]).exp()).sum();
    let cut = f64::from(rule.top_p);
    let (mut mass, mut kept) = (0.0, vec![]);
    for logit in &sorted {
        let before = mass;
        mass += (logit - sorted[0]).exp() / total;
        // At 1 everything is kept, however the sum rounds.
        if rule.top_p < 1.0 && (mass - cut).abs() < CLEAR {
            return false;
        }
        if before < cut || kept.is_empty() {
            kept.push(mass);
        }
    }
    let end = kept.last().copied().unwrap_or(0.0);
    let target = f64::from(uniform(rule.seed, position)) * end;
    kept[..kept.len() - 1].iter().all(|border| (border - target).abs() > CLEAR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_on_a_border_is_not_clear() {
        let rule = Sampling { temperature: 1.0, top_k: 0, top_p: 0.5, seed: 1 };
        assert!(!is_clear(&[0.0, 0.0], &rule, 7));
        let number = f64::from(uniform(1, 7));
        assert_eq!(is_clear(&[0.0, 0.0], &Sampling { top_p: 0.9, ..rule }, 7), (number - 0.5).abs() > CLEAR);
    }
}
