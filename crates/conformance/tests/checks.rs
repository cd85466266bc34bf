//! The checks themselves: each finds the fault that was put in, at its place, and nothing where there is none.

mod common;

use checkpoint::DType;
use common::inject::{Fault, Faulty, When};
use common::{altered, cpu, golden, prompt, reference, subject, tensors};
use cpu::Precision;
use cpu::isa::Isa;
use markbase_conformance::{
    Arithmetic, DivergenceOptions, InvarianceOptions, Suite, distribution, divergence, finite, invariance,
};
use plan::Backend;
use proptest::prelude::*;

fn faulty(inner: Box<dyn Backend>, fault: Fault) -> Box<dyn Backend> {
    Box::new(Faulty::new(inner, fault))
}

fn fault(layer: Option<u32>, role: &'static str, factor: f32) -> Fault {
    Fault { layer, role, factor, when: When::Always }
}

const F32: DivergenceOptions = DivergenceOptions { piece: 5, ..DivergenceOptions::F32 };

#[test]
fn divergence_names_the_step_that_is_wrong() {
    let subject = subject(golden("e-mixed"));
    let tokens = prompt(12, 320, 1);
    for (layer, role, op) in [
        (None, "embed_tokens", "embed"),
        (None, "per_layer_projection_norm", "rms_norm"),
        (Some(0), "k_rope", "rope"),
        (Some(1), "attention", "attention"),
        (Some(2), "activated", "gelu_mul"),
        (Some(3), "q_norm", "rms_norm"),
        (Some(3), "per_layer_gated", "gelu_mul"),
        (None, "lm_head", "linear"),
        (None, "logits", "softcap"),
    ] {
        let make = || faulty(cpu(Isa::best(), 2, Precision::Exact), fault(layer, role, 1.01));
        let found = divergence(&subject, &reference, &make, &tokens, F32).unwrap();
        for run in [&found.fused, &found.watched] {
            let step = &run.steps[run.first.unwrap_or_else(|| panic!("no difference at {layer:?} {role}"))];
            let site = plan::Site { layer, role }.to_string();
            assert_eq!((step.site.as_str(), step.op), (site.as_str(), op), "{found}");
            assert!((0.005..0.1).contains(&step.relative), "{found}");
            assert!((step.mean - 0.01).abs() < 1e-3, "{found}");
            assert!(found.to_string().contains(&format!("first differs at {site} ({op})")), "{found}");
        }
        assert!(!found.agrees());
    }
}

#[test]
fn divergence_finds_nothing_where_nothing_is() {
    let tokens = prompt(19, 320, 2);
    for name in ["e-mixed", "moe-mixed"] {
        let make = || cpu(Isa::best(), 2, Precision::Exact);
        let found = divergence(&subject(golden(name)), &reference, &make, &tokens, F32).unwrap();
        assert!(found.agrees(), "{found}");
        let again = divergence(&subject(golden(name)), &reference, &reference, &tokens, F32).unwrap();
        assert!(again.watched.steps.iter().chain(&again.fused.steps).all(|step| step.relative == 0.0), "{again}");
        assert!(again.fused.steps.iter().all(|step| step.rows == 19 && step.rms > 0.0 || step.op == "sample"));
    }
}

#[test]
fn a_report_reads_as_a_program_and_as_a_person_would_have_it() {
    let make = || faulty(reference(), fault(Some(0), "q_norm", f32::NAN));
    let found = divergence(&subject(golden("dense-original")), &reference, &make, &prompt(3, 320, 3), F32).unwrap();
    let text = found.to_string();
    assert!(text.starts_with("faulty reference against reference, 3 rows\n"), "{text}");
    assert!(text.contains("fused: first differs at layer 0 q_norm (rms_norm): by inf in the mean"), "{text}");
    assert!(text.contains("step by step: first value that is not finite: layer 0 q_norm (rms_norm), row 0"), "{text}");
    assert!(text.lines().any(|line| line.starts_with("> layer 0 q_norm")), "{text}");
    let json: serde_json::Value = serde_json::to_value(&found).unwrap();
    let first = json["fused"]["first"].as_u64().unwrap() as usize;
    assert_eq!(json["fused"]["steps"][first]["site"], "layer 0 q_norm");
    assert_eq!(json["rows"], 3);
}

#[test]
fn finite_names_step_row_and_column() {
    let make = || cpu(Isa::best(), 2, Precision::Exact);
    let tokens: Vec<u32> = (0..23).collect();
    assert_eq!(finite(&subject(golden("e-original")), &make, &tokens, 8).unwrap(), None);
    // A weight that is no number shows in its own column of the first row,
    let mut set = tensors("e-original");
    assert!(set.alter("model.language_model.layers.2.pre_feedforward_layernorm.weight", |w| w[37] = f32::NAN));
    for make in [&make as &dyn Fn() -> Box<dyn Backend>, &reference] {
        let found = finite(&altered(&set), make, &tokens, 8).unwrap().unwrap();
        assert_eq!((found.site.as_str(), found.op), ("layer 2 pre_feedforward_layernorm", "rms_norm"), "{found}");
        assert_eq!((found.row, found.column), (0, 37), "{found}");
    }
    // and an infinite entry of a table in the row of its token, in whichever piece that is.
    for token in [0, 7, 8, 22] {
        let mut set = tensors("e-original");
        let name = "model.language_model.embed_tokens_per_layer.weight";
        let columns = set.floats(name).unwrap().0[1];
        assert!(set.alter(name, |w| w[token * columns + 5] = f32::INFINITY));
        for make in [&make as &dyn Fn() -> Box<dyn Backend>, &reference] {
            let found = finite(&altered(&set), make, &tokens, 8).unwrap().unwrap();
            assert_eq!((found.site.as_str(), found.row, found.column), ("embed_tokens_per_layer", token, 5), "{found}");
        }
    }
    let wrong = || faulty(cpu(Isa::best(), 1, Precision::Fast), fault(Some(1), "o_proj", f32::INFINITY));
    let found = finite(&subject(golden("moe-mixed")), &wrong, &tokens, 8).unwrap().unwrap();
    assert_eq!((found.site.as_str(), found.op, found.row), ("layer 1 o_proj", "linear", 0), "{found}");
}

#[test]
fn invariance_finds_a_row_that_depends_on_how_many_run_beside_it() {
    let subject = subject(golden("unified-original"));
    let tokens = prompt(20, 320, 4);
    for (when, way) in [
        (When::AboveRows(19), "token by token"),
        (When::AboveRows(1), "token by token"),
        (When::SeveralSequences, "among other sequences"),
    ] {
        let wrong = Fault { when, ..fault(Some(2), "gate_proj", 1.000_001) };
        let make = || faulty(cpu(Isa::best(), 1, Precision::Exact), wrong);
        let found = invariance(&subject, &make, &tokens, &InvarianceOptions::default()).unwrap();
        let first = found.first.as_ref().unwrap_or_else(|| panic!("{when:?}: {found}"));
        assert!(first.way.starts_with(way), "{found}");
        assert_ne!(first.at_once.to_bits(), first.this_way.to_bits());
    }
}

#[test]
fn distribution_measures_a_fault_and_no_fault() {
    let subject = subject(golden("dense-original"));
    let tokens = prompt(17, 320, 5);
    let same = distribution(&subject, &reference, &reference, &tokens, 5).unwrap();
    assert_eq!((same.mean_kl, same.agreeing, same.positions), (0.0, 17, 17));
    let wrong = || faulty(reference(), fault(Some(1), "gate_proj", -1.0));
    let far = distribution(&subject, &reference, &wrong, &tokens, 5).unwrap();
    assert!(far.mean_kl > 1e-2 && far.agreeing < 17, "{far}");
    let nan = || faulty(reference(), fault(Some(1), "gate_proj", f32::NAN));
    assert_eq!(distribution(&subject, &reference, &nan, &tokens, 5).unwrap().mean_kl, f64::INFINITY);
}

/// Every operation made wrong by 5 %, against the widest bounds.
#[test]
fn no_case_can_pass_with_a_wrong_operation() {
    let suite = Suite::new(11).unwrap();
    for (op, role, factor) in [
        ("embed", "embed", 1.05),
        ("rms_norm", "rms_norm", 1.05),
        ("linear", "linear", 1.05),
        ("rope", "rope", 1.05),
        ("kv_append", "v", 1.05),
        ("attention", "attention", 1.05),
        ("gelu_mul", "gelu_mul", 1.05),
        ("add", "add", 1.05),
        ("scale", "scale", 1.05),
        ("route", "route_weights", 1.05),
        ("experts", "experts", 1.05),
        ("select_rows", "select_rows", 1.05),
        ("softcap", "softcap", 1.05),
        ("sample", "logits", -1.0),
    ] {
        let make = || faulty(reference(), fault(None, role, factor));
        let report = suite.of_op(op).run(&make, Arithmetic::FifteenBit).unwrap();
        assert!(!report.cases.is_empty(), "no case of {op}");
        let failed: Vec<&str> = report.failures().map(|case| case.name.as_str()).collect();
        let passed = report.cases.iter().map(|case| case.name.as_str()).filter(|name| !failed.contains(name));
        assert_eq!(passed.collect::<Vec<_>>(), [""; 0], "{op}");
    }
}

#[test]
fn an_empty_prompt_is_refused() {
    let subject = subject(golden("dense-original"));
    let refused = finite(&subject, &reference, &[], 8).unwrap_err();
    assert_eq!(refused.to_string(), "a check needs at least one token: give a prompt");
    assert!(invariance(&subject, &reference, &[], &InvarianceOptions::default()).is_err());
    assert!(divergence(&subject, &reference, &reference, &[], F32).is_err());
    let unknown = finite(&subject, &reference, &[320], 8).unwrap_err();
    assert_eq!(unknown.to_string(), "token id 320 is not in the vocabulary of 320");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_set_of_tensors_is_read_back_as_it_was_written(
        shapes in prop::collection::btree_map("[a-z]{1,6}", prop::collection::vec(1usize..5, 0..4), 1..8),
        dtype in prop::sample::select(vec![DType::F32, DType::F16, DType::BF16]),
    ) {
        let mut set = markbase_conformance::TensorSet::default();
        for (name, shape) in &shapes {
            let numbers: Vec<f32> = (0..shape.iter().product()).map(|number: usize| number as f32).collect();
            set.insert_floats(name, dtype, shape, &numbers);
        }
        let checkpoint = set.checkpoint("set").unwrap();
        prop_assert_eq!(markbase_conformance::TensorSet::of(&checkpoint), set);
    }
}
