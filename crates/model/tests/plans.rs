//! The plan of each kind of model, as people read it.

use std::ops::ControlFlow;

use checkpoint::Checkpoint;
use markbase_model::Model;
use plan::{Listing, Op, Rows};
use synth::{Recipe, TinyKind, TinyOptions};

fn model(kind: TinyKind) -> Model {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("tiny");
    let quant = "affine:4:64".parse().unwrap();
    let recipe = Recipe::new(synth::tiny_config(kind, TinyOptions::default()), Some(quant), 3);
    synth::write(&recipe, &out, &mut |_| ControlFlow::Continue(())).unwrap();
    Model::read(&Checkpoint::open(&out).unwrap()).unwrap()
}

#[test]
fn listings_of_all_kinds() {
    for (name, kind) in [
        ("per_layer", TinyKind::PerLayer),
        ("unified", TinyKind::Unified),
        ("experts", TinyKind::Experts),
        ("dense", TinyKind::Dense),
    ] {
        insta::assert_snapshot!(name, Listing(&model(kind).plan).to_string());
    }
}

/// Shared layers keep no cache, and everything after the last layer that does runs on wanted rows alone.
#[test]
fn rows_that_nobody_wants_end_at_the_last_layer_that_keeps_keys() {
    let plan = model(TinyKind::PerLayer).plan;
    let appends: Vec<usize> = plan
        .steps
        .iter()
        .enumerate()
        .filter(|(_, step)| matches!(step.op, Op::KvAppend { .. }))
        .map(|(at, _)| at)
        .collect();
    let cached: usize = plan.cache.groups.iter().map(|group| group.layers.len()).sum();
    assert_eq!(appends.len(), cached);
    for step in &plan.steps[appends[cached - 1] + 1..] {
        for value in step.op.writes() {
            assert_eq!(plan.value(value).rows, Rows::Wanted, "{}", step.site);
        }
    }
}
