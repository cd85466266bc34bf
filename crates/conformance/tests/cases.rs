//! Every operation of the CPU backend against the reference, on generated plans.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{cpu, reference};
use cpu::Precision;
use cpu::isa::Isa;
use markbase_conformance::{Arithmetic, Suite};

/// Seeds name other shapes of histories, other weights, other draws.
const SEED: u64 = 20;

fn agrees(precision: Precision, arithmetic: Arithmetic) {
    let suite = Suite::new(SEED).unwrap();
    // How near to each bound, in all: bounds that nothing comes near to are too wide.
    let mut nearest: BTreeMap<&str, (f32, f32)> = BTreeMap::new();
    for isa in Isa::supported() {
        for threads in 1..=3 {
            let report = suite.run(&|| cpu(isa, threads, precision), arithmetic).unwrap();
            assert_eq!(report.failures().count(), 0, "{report}");
            for checked in report.cases.iter().flat_map(|case| &case.checked) {
                let (largest, mean) = nearest.entry(checked.tolerance).or_default();
                (*largest, *mean) = (largest.max(checked.largest), mean.max(checked.mean));
            }
        }
    }
    for (tolerance, (largest, mean)) in nearest {
        println!("{tolerance:<24} largest {largest:.2e}, mean {mean:.2e}");
    }
}

#[test]
fn cpu_exact_agrees_in_every_case() {
    agrees(Precision::Exact, Arithmetic::F32);
}

#[test]
fn cpu_fast_agrees_in_every_case() {
    agrees(Precision::Fast, Arithmetic::FifteenBit);
}

#[test]
fn every_operation_and_format_has_cases() {
    let suite = Suite::new(SEED).unwrap();
    let ops: BTreeSet<&str> = suite.cases().iter().map(|case| case.op()).collect();
    let all = [
        "add",
        "attention",
        "embed",
        "experts",
        "gelu_mul",
        "kv_append",
        "linear",
        "rms_norm",
        "rope",
        "route",
        "sample",
        "scale",
        "select_rows",
        "softcap",
    ];
    assert_eq!(ops, BTreeSet::from(all));
    for op in ["embed", "linear", "experts"] {
        let of_op = |format: &str| {
            let name = format!("{op} {format} ");
            suite.cases().iter().any(|case| case.name().starts_with(&name))
        };
        for bits in [2, 3, 4, 5, 6, 8] {
            assert!([32, 64, 128].iter().all(|group| of_op(&format!("q{bits} g{group}"))), "{op} {bits}");
        }
        assert!(["F32", "F16", "BF16", "mxfp4", "mxfp8", "nvfp4"].into_iter().all(of_op), "{op}");
    }
}

#[test]
fn the_reference_agrees_with_itself_and_seeds_make_other_cases() {
    let suite = Suite::new(SEED + 1).unwrap();
    let report = suite.run(&reference, Arithmetic::F32).unwrap();
    let largest = report.cases.iter().flat_map(|case| &case.checked).map(|checked| checked.largest);
    assert_eq!(largest.fold(0.0, f32::max), 0.0);
    assert!(report.cases.iter().all(|case| case.checked.iter().all(|checked| checked.numbers > 0)), "{report}");
    let report = suite.run(&|| cpu(Isa::best(), 2, Precision::Fast), Arithmetic::FifteenBit).unwrap();
    assert_eq!(report.failures().count(), 0, "{report}");
}
