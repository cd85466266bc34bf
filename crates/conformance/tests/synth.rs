//! Synthetic models of every kind: sizes, formats and scales that the goldens do not have together.

mod common;

use std::ops::ControlFlow;

use checkpoint::QuantFormat;
use common::{cpu, open, prompt, reference, subject};
use cpu::Precision;
use cpu::isa::Isa;
use markbase_conformance::{DivergenceOptions, InvarianceOptions, Subject, divergence, finite, invariance};
use synth::{Layout, Recipe, TinyKind, TinyOptions, tiny_config, write};

/// One model of each kind, its format, its names.
fn recipes() -> [(TinyKind, Option<QuantFormat>, Layout); 6] {
    let affine = |bits, group_size| Some(QuantFormat::affine(bits, group_size).unwrap());
    [
        (TinyKind::PerLayer, affine(3, 128), Layout::Mlx),
        (TinyKind::PerLayer, None, Layout::Original),
        (TinyKind::Unified, affine(5, 32), Layout::Mlx),
        (TinyKind::Experts, affine(2, 64), Layout::Mlx),
        (TinyKind::Experts, None, Layout::Original),
        (TinyKind::Dense, Some(QuantFormat::Nvfp4), Layout::Mlx),
    ]
}

fn each(mut check: impl FnMut(&Subject, &str)) {
    let scratch = tempfile::tempdir().unwrap();
    for (index, (kind, quant, layout)) in recipes().into_iter().enumerate() {
        let config = tiny_config(kind, TinyOptions { window: 8, ..TinyOptions::default() });
        let recipe = Recipe { layout, ..Recipe::new(config, quant, index as u64) };
        let folder = scratch.path().join(index.to_string());
        write(&recipe, &folder, &mut |_| ControlFlow::Continue(())).unwrap();
        check(&subject(open(&folder)), &format!("{kind:?} {quant:?}"));
    }
}

#[test]
fn cpu_agrees_with_the_reference_step_by_step_in_every_kind() {
    each(|subject, name| {
        let tokens = prompt(21, subject.plan.vocabulary(), 19);
        let exact = || cpu(Isa::best(), 2, Precision::Exact);
        let found = divergence(subject, &reference, &exact, &tokens, DivergenceOptions::F32).unwrap();
        assert!(found.agrees(), "{name}\n{found}");
        let fast = || cpu(Isa::best(), 2, Precision::Fast);
        let found = divergence(subject, &reference, &fast, &tokens, DivergenceOptions::FIFTEEN_BIT).unwrap();
        assert!(found.agrees(), "{name}\n{found}");
        assert_eq!(finite(subject, &fast, &tokens, 21).unwrap(), None, "{name}");
    });
}

#[test]
fn rows_stand_alone_in_every_kind() {
    let options = InvarianceOptions { pieces: vec![3, 9], by_token: true, batches: true };
    each(|subject, name| {
        for precision in [Precision::Exact, Precision::Fast] {
            let make = || cpu(Isa::best(), 3, precision);
            let found = invariance(subject, &make, &prompt(33, subject.plan.vocabulary(), 20), &options).unwrap();
            assert!(found.first.is_none(), "{name}: {found}");
        }
    });
}
