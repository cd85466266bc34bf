//! The choice of a token, by every rule; logits come in steps, so that equal ones are common and the rule for
//! them is tested, and draws stay clear of the borders that roundings would move.

use std::sync::Arc;

use plan::{Adjustment, Choice, Sampling, StepInputs, TokenMask, uniform};
use reference::ops::sample::distribution;

use super::draft::{CaseDraft, Draft, TOKENS, no_cache};
use super::inputs::without_cache;
use crate::CheckError;
use crate::random::Random;

pub(super) fn add(draft: &mut Draft) -> Result<(), CheckError> {
    for (vocabulary, deviation) in [(TOKENS, 1.0), (320, 3.0), (1_000, 0.5)] {
        for features in [Features::Draws, Features::All] {
            let mut launches = without_cache(draft.random);
            let name = match features {
                Features::Draws => format!("sample of {vocabulary}"),
                Features::All => format!("sample of {vocabulary}, adjusted and masked"),
            };
            let mut case = draft.case(name, no_cache());
            let numbers = case.random().normals(TOKENS * vocabulary, deviation);
            let numbers: Vec<f32> = numbers.into_iter().map(|logit| (logit * 16.0).round() / 16.0).collect();
            for inputs in &mut launches.inputs {
                for wanted in 0..inputs.wanted.len() {
                    inputs.sampling[wanted] = choice(&mut case, inputs, wanted, features, vocabulary, &numbers);
                }
            }
            let x = case.source_of("x", vocabulary, &numbers);
            let logits = case.wanted("logits", x);
            case.finish_logits("sample", logits, launches)?;
        }
    }
    Ok(())
}

/// What choices of a case have.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Features {
    /// Draws of the logits as they are.
    Draws,
    /// Penalties, biases, masks and log-probabilities too.
    All,
}

fn choice(
    case: &mut CaseDraft,
    inputs: &StepInputs,
    wanted: usize,
    features: Features,
    vocabulary: usize,
    numbers: &[f32],
) -> Option<Choice> {
    let row = inputs.wanted[wanted] as usize;
    let token = inputs.tokens[row] as usize;
    let logits = &numbers[token * vocabulary..(token + 1) * vocabulary];
    let random = case.random();
    if random.below(6) == 0 {
        return None;
    }
    let log_probabilities = random.pick(&[None, Some(0), Some(5), Some(20), Some(5_000)]);
    // Most choices are clear of the borders; greedy ones always are.
    for _ in 0..100 {
        let sampling = Sampling {
            temperature: random.pick(&[0.0, 0.6, 1.0, 1.5]),
            top_k: random.pick(&[0, 1, 5, 40, 5_000]),
            top_p: random.pick(&[1.0, 0.95, 0.5, 0.01]),
            min_p: random.pick(&[0.0, 0.0, 0.05, 0.5, 1.0]),
            seed: random.below(1 << 20) as u64,
        };
        let choice = match features {
            Features::Draws => Choice { log_probabilities, ..sampling.into() },
            Features::All => Choice {
                sampling,
                repetition_penalty: random.pick(&[1.0, 1.25, 0.5, 3.0]),
                adjustments: adjustments(random, vocabulary),
                mask: mask(random, vocabulary).map(Arc::new),
                log_probabilities,
            },
        };
        if is_clear(logits, &choice, inputs.positions[row] + 1) {
            return Some(choice);
        }
    }
    Some(Choice { log_probabilities, ..Sampling::GREEDY.into() })
}

/// None, a few, or one for nearly every token.
fn adjustments(random: &mut Random, vocabulary: usize) -> Vec<Adjustment> {
    let one_in = random.pick(&[0, 40, 8, 1]);
    let mut adjustments = vec![];
    for token in 0..vocabulary as u32 {
        if one_in > 0 && random.below(one_in) == 0 {
            let repeated = random.below(2) == 0;
            let add = random.pick(&[0.0, -1.5, 0.75, 2.0, -0.1, f32::NEG_INFINITY]);
            adjustments.push(Adjustment { token, repeated, add });
        }
    }
    adjustments
}

/// None, one token, a few, or all but a few.
fn mask(random: &mut Random, vocabulary: usize) -> Option<TokenMask> {
    let one_in = random.pick(&[0, vocabulary, 10, 2]);
    if one_in == 0 {
        return None;
    }
    let mut mask = if random.below(4) == 0 { TokenMask::all(vocabulary) } else { TokenMask::none(vocabulary) };
    let is_all = mask.count() > 0;
    for _ in 0..vocabulary / one_in {
        let token = random.below(vocabulary) as u32;
        if is_all { mask.clear(token) } else { mask.set(token) }
    }
    (mask.count() > 0).then_some(mask)
}

/// Distance from a border that f32 sums cannot bridge, as a share of the whole.
const CLEAR: f64 = 1e-4;

/// Whether none of the cuts at `top_p` and `min_p` and the draw is so near to a border that a rounding decides.
fn is_clear(logits: &[f32], choice: &Choice, position: u32) -> bool {
    let Sampling { top_p, min_p, seed, .. } = choice.sampling;
    let (top_p, min_p) = (f64::from(top_p), f64::from(min_p));
    let uncut = Sampling { top_p: 1.0, min_p: 0.0, ..choice.sampling };
    let uncut = distribution(logits, &Choice { sampling: uncut, ..choice.clone() });
    let mut mass = 0.0;
    for (_, probability) in &uncut {
        mass += probability;
        let ratio = probability / uncut[0].1;
        // At 1 everything is kept, however the sum rounds; what is as likely as the likeliest is so exactly.
        if top_p < 1.0 && (mass - top_p).abs() < CLEAR || ratio < 1.0 && (ratio - min_p).abs() < CLEAR {
            return false;
        }
    }
    let kept = distribution(logits, choice);
    let number = f64::from(uniform(seed, position));
    let mut border = 0.0;
    kept[..kept.len() - 1].iter().all(|(_, probability)| {
        border += probability;
        (border - number).abs() > CLEAR
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::Suite;

    #[test]
    fn a_cut_on_a_border_is_not_clear() {
        let rule = Sampling { temperature: 1.0, top_p: 0.5, seed: 1, ..Sampling::GREEDY };
        assert!(!is_clear(&[0.0, 0.0], &rule.into(), 7));
        let number = f64::from(uniform(1, 7));
        let rule = Sampling { top_p: 0.9, ..rule };
        assert_eq!(is_clear(&[0.0, 0.0], &rule.into(), 7), (number - 0.5).abs() > CLEAR);
        let third = Sampling { top_p: 1.0, min_p: 1.0 / 3.0, ..rule };
        assert!(!is_clear(&[3f32.ln(), 0.0], &third.into(), 7));
    }

    #[test]
    fn choices_have_every_feature() {
        let suite = Suite::new(20).unwrap();
        let inputs = suite.of_op("sample").cases.into_iter().flat_map(|case| case.launches);
        let choices: Vec<Choice> = inputs.flat_map(|inputs| inputs.sampling).flatten().collect();
        let some = |feature: &dyn Fn(&Choice) -> bool, what: &str| {
            let count = choices.iter().filter(|choice| feature(choice)).count();
            assert!(count >= 2, "{count} of {} choices have {what}", choices.len());
        };
        let adjusted = |choice: &Choice, of: &dyn Fn(&Adjustment) -> bool| choice.adjustments.iter().any(of);
        some(&|choice| adjusted(choice, &|a| a.repeated) && choice.repetition_penalty != 1.0, "repeated tokens");
        some(&|choice| adjusted(choice, &|a| a.add == f32::NEG_INFINITY), "forbidden tokens");
        some(&|choice| adjusted(choice, &|a| a.add > 0.0), "biases");
        some(&|choice| choice.mask.as_ref().is_some_and(|mask| mask.count() == 1), "a mask of one token");
        some(&|choice| choice.mask.as_ref().is_some_and(|mask| mask.count() > 9), "a mask of many");
        some(&|choice| choice.mask.is_some() && !choice.adjustments.is_empty(), "a mask and adjustments");
        some(&|choice| choice.sampling.min_p > 0.0 && choice.sampling.temperature > 0.0, "min_p");
        some(&|choice| choice.log_probabilities == Some(0), "one log-probability");
        some(&|choice| choice.log_probabilities == Some(5_000), "more log-probabilities than tokens");
    }
}
