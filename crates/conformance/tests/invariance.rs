//! A row's logits, bit for bit the same however its prompt was cut and whatever ran beside it.

mod common;

use common::{altered, cpu, golden, logits, prompt, reference, subject, tensors};
use cpu::Precision;
use cpu::isa::Isa;
use markbase_conformance::{InvarianceOptions, Make, Subject, invariance};

/// Pieces whose first step is each length at which a vector, a block or a window ends.
fn all_pieces() -> InvarianceOptions {
    InvarianceOptions { pieces: vec![1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 60], by_token: true, batches: true }
}

fn few_pieces() -> InvarianceOptions {
    InvarianceOptions { pieces: vec![3, 8, 17], by_token: true, batches: true }
}

/// One of the goldens with another window.
fn with_window(name: &str, window: usize) -> Subject {
    let mut set = tensors(name);
    let text = set.config["text_config"].as_object_mut().unwrap();
    assert!(text.insert("sliding_window".into(), window.into()).is_some());
    altered(&set)
}

fn holds(subject: &Subject, make: &Make, length: usize, options: &InvarianceOptions) {
    let tokens = prompt(length, subject.plan.vocabulary(), length as u64);
    let found = invariance(subject, make, &tokens, options).unwrap();
    assert!(found.first.is_none(), "{}, {length} tokens: {found}", subject.checkpoint.name());
    assert!(found.rows > length, "{found}");
}

/// Each instruction set, precision and number of threads, in turn over the models.
fn machines() -> Vec<(Isa, Precision, usize)> {
    let mut machines = vec![];
    for isa in Isa::supported() {
        for precision in [Precision::Exact, Precision::Fast] {
            machines.extend((1..=3).map(|threads| (isa, precision, threads)));
        }
    }
    machines
}

#[test]
fn reference_rows_stand_alone() {
    for name in ["e-original", "unified-original", "moe-original"] {
        holds(&with_window(name, 8), &reference, 34, &few_pieces());
    }
    holds(&subject(golden("moe-mixed")), &reference, 18, &few_pieces());
}

#[test]
fn cpu_rows_stand_alone_on_every_machine() {
    let subjects = [
        subject(golden("e-mixed")),
        with_window("moe-mixed", 8),
        with_window("unified-nvfp4", 8),
        subject(golden("dense-mxfp8")),
    ];
    for (index, (isa, precision, threads)) in machines().into_iter().enumerate() {
        // Every kind of model on every instruction set in both precisions would take minutes: they take turns, and
        // plain Rust has the shortest.
        let (turns, length) = if isa == Isa::Scalar { (1, 21) } else { (2, 40) };
        for turn in 0..turns {
            let subject = &subjects[(index + turn) % subjects.len()];
            holds(subject, &|| cpu(isa, threads, precision), length, &few_pieces());
        }
    }
}

#[test]
fn cpu_rows_stand_alone_at_every_length() {
    for precision in [Precision::Exact, Precision::Fast] {
        let make = || cpu(Isa::best(), 2, precision);
        for (name, window) in [("e-affine4g64", 8), ("moe-mxfp4", 16)] {
            let subject = with_window(name, window);
            for length in [1, 7, 8, 9, 15, 16, 17, 31, 32, 33] {
                holds(&subject, &make, length, &few_pieces());
            }
            holds(&subject, &make, 200, &all_pieces());
        }
    }
}

#[test]
fn results_do_not_depend_on_threads_or_instruction_set() {
    for name in ["e-mixed", "moe-mixed", "unified-original"] {
        let subject = subject(golden(name));
        let tokens = prompt(33, subject.plan.vocabulary(), 6);
        for precision in [Precision::Exact, Precision::Fast] {
            let want = logits(&subject, cpu(Isa::Scalar, 1, precision), &tokens);
            for (isa, _, threads) in machines().into_iter().filter(|machine| machine.1 == precision) {
                let got = logits(&subject, cpu(isa, threads, precision), &tokens);
                let place = want.iter().zip(&got).position(|(want, got)| want.to_bits() != got.to_bits());
                assert_eq!(place, None, "{name} on {isa}, {threads} threads, {precision:?}");
            }
        }
    }
}
