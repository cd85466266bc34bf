//! Choosing a token of Gemma 4's vocabulary on one thread: microseconds a row, by rule.
//!
//! `cargo bench -p markbase-cpu --bench sample [-- avx512|avx2|neon|scalar]`

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use markbase_cpu::isa::Isa;
use markbase_cpu::kernels::Kernels;
use markbase_cpu::kernels::sample::Sampler;
use plan::{Adjustment, Choice, Sampling, TokenMask, uniform};

const VOCABULARY: usize = 262_144;
const ROUNDS: u32 = 200;

fn main() {
    // Cargo passes --bench.
    let argument = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let isa = argument.map_or(Isa::best(), |name| {
        Isa::supported().into_iter().find(|isa| isa.to_string() == name).expect("an instruction set of this processor")
    });
    // Sums of three even numbers: nearly normal, of deviation 4.
    let logit = |i: u32| 4.0 * (uniform(1, i) + uniform(2, i) + uniform(3, i) - 1.5) * 2.0;
    let logits: Vec<f32> = (0..VOCABULARY as u32).map(logit).collect();
    let mut sampler = Sampler::new(Kernels::for_isa(isa), VOCABULARY);
    println!("{VOCABULARY} tokens, {isa}, the fastest and the middle of {ROUNDS} rounds");

    let warm = Sampling { temperature: 1.0, ..Sampling::GREEDY };
    let rules = [
        ("greedy", Sampling::GREEDY),
        ("top_k 64, top_p 0.95", Sampling { top_k: 64, top_p: 0.95, ..warm }),
        ("top_p 0.95", Sampling { top_p: 0.95, ..warm }),
        ("min_p 0.05", Sampling { min_p: 0.05, ..warm }),
        ("all tokens", warm),
    ];
    for (name, sampling) in rules {
        let choice = Choice::from(sampling);
        print(name, |round| {
            black_box(sampler.choose(&logits, &choice, f64::from(uniform(4, round))));
        });
    }
    let mut half = TokenMask::none(VOCABULARY);
    (0..VOCABULARY as u32).filter(|&token| uniform(5, token) < 0.5).for_each(|token| half.set(token));
    let adjustment = |i: u32| Adjustment { token: i * 500, repeated: true, add: -0.5 };
    let adjustments: Vec<Adjustment> = (0..500).map(adjustment).collect();
    let base = Choice { repetition_penalty: 1.1, ..rules[1].1.into() };
    let adjusted = Choice { adjustments, ..base.clone() };
    let masked = Choice { mask: Some(Arc::new(half)), ..base };
    for (name, choice) in [("the second, 500 adjusted", adjusted), ("the second, half masked", masked)] {
        print(name, |round| {
            black_box(sampler.choose(&logits, &choice, f64::from(uniform(4, round))));
        });
    }
    print("20 log-probabilities", |round| {
        black_box(sampler.log_probabilities(&logits, round, 20));
    });
}

fn print(name: &str, mut work: impl FnMut(u32)) {
    let measure = |round| {
        let start = Instant::now();
        work(round);
        start.elapsed().as_secs_f64() * 1e6
    };
    let mut times: Vec<f64> = (0..ROUNDS).map(measure).collect();
    times.sort_by(f64::total_cmp);
    println!("{name:26} {:8.1} us, {:8.1} us", times[0], times[times.len() / 2]);
}
