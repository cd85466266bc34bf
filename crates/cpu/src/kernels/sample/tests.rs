use std::sync::Arc;

use super::*;
use crate::isa::Isa;
use crate::kernels::math::exp;
use plan::{Adjustment, TokenMask};
use proptest::prelude::*;

const PLAIN: Sampling = Sampling { temperature: 1.0, ..Sampling::GREEDY };

fn sampler(vocabulary: usize) -> Sampler {
    Sampler::new(Kernels::for_isa(Isa::best()), vocabulary)
}

/// The definition, with a full sort.
fn by_definition(logits: &[f32], choice: &Choice, uniform: f64) -> u32 {
    let mut logits = logits.to_vec();
    for &Adjustment { token, repeated, add } in &choice.adjustments {
        let logit = logits[token as usize];
        let penalty = if repeated { choice.repetition_penalty } else { 1.0 };
        logits[token as usize] = if logit > 0.0 { logit / penalty } else { logit * penalty } + add;
    }
    let allowed = |i: &usize| choice.mask.as_ref().is_none_or(|mask| mask.contains(*i as u32));
    let mut order: Vec<usize> = (0..logits.len()).filter(|i| allowed(i) && logits[*i] > f32::NEG_INFINITY).collect();
    order.sort_by(|a, b| logits[*b].partial_cmp(&logits[*a]).expect("no NaN is left").then(a.cmp(b)));
    let Some(max) = order.first().map(|i| logits[*i]) else {
        return (0..logits.len()).find(allowed).expect("a mask allows a token") as u32;
    };
    let Sampling { temperature, top_k, top_p, min_p, .. } = choice.sampling;
    if !(1.0 / temperature).is_finite() || max == f32::INFINITY {
        return order[0] as u32;
    }
    let weight = |i: &usize| f64::from(exp((logits[*i] - max) * (1.0 / temperature)));
    let total: f64 = if top_k > 0 && (top_k as usize) < logits.len() {
        order.truncate(top_k as usize);
        order.iter().map(weight).sum()
    } else {
        let mut ids = order.clone();
        ids.sort_unstable();
        ids.iter().map(weight).sum()
    };
    let mut kept = total;
    if top_p < 1.0 || min_p > 0.0 {
        let mut sum = 0.0;
        let reaching = order.iter().position(|i| {
            sum += weight(i);
            top_p < 1.0 && sum >= f64::from(top_p) * total
        });
        order.truncate(reaching.map_or(order.len(), |last| last + 1));
        let likely = order.iter().take_while(|i| weight(i) >= f64::from(min_p)).count();
        order.truncate(likely.max(1));
        kept = order.iter().map(weight).sum();
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

/// The definition of log-probabilities, with a full sort and the kernels' `exp`.
fn log_probabilities_by_definition(logits: &[f32], chosen: u32, count: u32) -> LogProbabilities {
    let logits: Vec<f32> = logits.iter().map(|x| if x.is_nan() { f32::NEG_INFINITY } else { *x }).collect();
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let below = |x: f32| if x == max { 0.0 } else { x - max };
    let total: f64 = logits.iter().map(|x| f64::from(exp(below(*x)))).sum();
    let of = |token: usize| match logits[token] == f32::NEG_INFINITY {
        true => f32::NEG_INFINITY,
        false if logits[token] == max => (0.0 - math::ln(total)) as f32,
        false => (f64::from(logits[token]) - f64::from(max) - math::ln(total)) as f32,
    };
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].partial_cmp(&logits[*a]).expect("no NaN is left").then(a.cmp(b)));
    let top = order.into_iter().take(count as usize).map(|token| (token as u32, of(token))).collect();
    LogProbabilities { chosen: of(chosen as usize), top }
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

fn logits() -> impl Strategy<Value = Vec<f32>> {
    prop_oneof![
        9 => prop::collection::vec(logit(), 1..700),
        1 => prop::collection::vec(prop_oneof![Just(f32::NEG_INFINITY), Just(f32::NAN), Just(f32::INFINITY)], 1..90),
    ]
}

fn sampling() -> impl Strategy<Value = Sampling> {
    // The bits reach from 0 past the least number with a finite reciprocal.
    let temperature = prop_oneof![Just(0.0f32), 0.05f32..4.0, (0u32..0x0100_0000).prop_map(f32::from_bits)];
    let top_k = prop_oneof![Just(0u32), 1u32..80, 600u32..800];
    let top_p = prop_oneof![Just(1.0f32), 0.0f32..1.0];
    let min_p = prop_oneof![2 => Just(0.0f32), 1 => 0.0f32..1.0, 1 => 0.0f32..1e-3, 1 => Just(1.0)];
    (temperature, top_k, top_p, min_p).prop_map(|(temperature, top_k, top_p, min_p)| Sampling {
        temperature,
        top_k,
        top_p,
        min_p,
        seed: 0,
    })
}

/// What a choice does to a row of `vocabulary` logits.
fn choice(vocabulary: usize) -> impl Strategy<Value = Choice> {
    let add = prop_oneof![3 => -4.0f32..4.0, 2 => Just(0.0f32), 1 => Just(f32::NEG_INFINITY)];
    let adjustments = prop::collection::btree_map(0..vocabulary as u32, (any::<bool>(), add), 0..60);
    // Of every size: whole words of 64 tokens are in the mask, and out of it.
    let mask = prop::option::of((0..vocabulary as u32, prop::collection::vec((0..vocabulary, 0usize..200), 0..4)));
    let penalty = prop_oneof![Just(1.0f32), 0.5f32..2.0];
    (sampling(), penalty, adjustments, mask).prop_map(move |(sampling, repetition_penalty, adjustments, mask)| {
        let adjustments = adjustments.into_iter().map(|(token, (repeated, add))| Adjustment { token, repeated, add });
        let mask = mask.map(|(token, runs)| {
            let mut mask = TokenMask::none(vocabulary);
            mask.set(token);
            for (start, len) in runs {
                (start..(start + len).min(vocabulary)).for_each(|token| mask.set(token as u32));
            }
            Arc::new(mask)
        });
        let adjustments = adjustments.collect();
        Choice { sampling, repetition_penalty, adjustments, mask, log_probabilities: None }
    })
}

fn bits(found: &LogProbabilities) -> (u32, Vec<(u32, u32)>) {
    (found.chosen.to_bits(), found.top.iter().map(|(token, x)| (*token, x.to_bits())).collect())
}

proptest! {
    #[test]
    fn agrees_with_its_definition(
        (logits, choice) in logits().prop_flat_map(|logits| {
            let choice = choice(logits.len());
            (Just(logits), choice)
        }),
        uniform in prop_oneof![Just(0.0f64), Just(1.0 - f64::EPSILON), 0.0f64..1.0],
    ) {
        let want = by_definition(&logits, &choice, uniform);
        for isa in Isa::supported() {
            // Longer rows came before: scratch has room to spare, and numbers of others in it.
            let mut sampler = Sampler::new(Kernels::for_isa(isa), logits.len() + 7);
            sampler.choose(&vec![1.0; logits.len() + 7], &PLAIN.into(), 0.5);
            prop_assert_eq!(sampler.choose(&logits, &choice, uniform), want, "{}", isa);
            prop_assert_eq!(sampler.choose(&logits, &choice, uniform), want, "{} again", isa);
        }
    }

    #[test]
    fn log_probabilities_agree_with_their_definition(
        logits in logits(),
        chosen in any::<prop::sample::Index>(),
        count in prop_oneof![Just(0u32), 1u32..25, Just(u32::MAX)],
    ) {
        let chosen = chosen.index(logits.len()) as u32;
        let want = bits(&log_probabilities_by_definition(&logits, chosen, count));
        for isa in Isa::supported() {
            let mut sampler = Sampler::new(Kernels::for_isa(isa), logits.len() + 7);
            let found = sampler.log_probabilities(&logits, chosen, count);
            prop_assert_eq!(bits(&found), want.clone(), "{}", isa);
        }
    }
}

#[test]
fn a_large_flat_vocabulary_is_drawn_evenly() {
    let logits = vec![0.5; 50_000];
    let mut sampler = sampler(logits.len());
    for min_p in [0.0, 1.0] {
        for uniform in [0.0, 0.25, 0.5, 0.999_99] {
            let choice = Sampling { min_p, ..PLAIN }.into();
            assert_eq!(sampler.choose(&logits, &choice, uniform), (uniform * 50_000.0) as u32);
        }
    }
    let found = sampler.log_probabilities(&logits, 7, 2);
    let each = -(50_000f32.ln());
    assert_eq!(found, LogProbabilities { chosen: each, top: vec![(0, each), (1, each)] });
}

#[test]
fn a_temperature_without_a_finite_reciprocal_takes_the_largest() {
    // More tokens than are put in order at first, the largest not among the first ids.
    let logits: Vec<f32> = (0..3000).map(|i| if i % 700 == 699 { 2.0 } else { -(i as f32) }).collect();
    let mut sampler = sampler(logits.len());
    for temperature in [1e-40, f32::from_bits(1), 0.0, -0.0, f32::NAN] {
        for (top_k, top_p) in [(0, 1.0), (0, 0.9), (64, 1.0), (64, 0.9)] {
            let sampling = Sampling { temperature, top_k, top_p, ..PLAIN };
            assert_eq!(sampler.choose(&logits, &sampling.into(), 0.99), 699, "{sampling:?}");
        }
    }
}

#[test]
fn rows_without_a_finite_largest() {
    let mut sampler = sampler(3);
    let choice = Choice::from(Sampling { top_k: 2, top_p: 0.9, ..PLAIN });
    let mut mask = TokenMask::none(3);
    mask.set(2);
    let masked = Choice { mask: Some(Arc::new(mask)), ..choice.clone() };
    for impossible in [[f32::NEG_INFINITY; 3], [f32::NAN; 3], [f32::NAN, f32::NEG_INFINITY, f32::NAN]] {
        assert_eq!(sampler.choose(&impossible, &choice, 0.5), 0);
        assert_eq!(sampler.choose(&impossible, &masked, 0.5), 2);
        let top = vec![(0, f32::NEG_INFINITY), (1, f32::NEG_INFINITY)];
        let nothing = LogProbabilities { chosen: f32::NEG_INFINITY, top };
        assert_eq!(sampler.log_probabilities(&impossible, 1, 2), nothing);
    }
    assert_eq!(sampler.choose(&[1.0, f32::INFINITY, f32::INFINITY], &choice, 0.9), 1);
}
