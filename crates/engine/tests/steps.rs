//! How the engine cuts work into steps, and what it does with cache blocks, on a backend that only records.

mod common;

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use common::{BLOCK, Device, Shared, VOCABULARY, WINDOW, plan};
use markbase_engine::{Engine, EngineError, EngineOptions, Wanted, Work};
use proptest::prelude::*;

fn engine(context: usize, sequences: usize, max_rows: usize, max_wanted: usize) -> (Engine, Arc<Mutex<Shared>>) {
    let (device, shared) = Device::new();
    let options = EngineOptions { context, sequences, max_rows, max_wanted, keep: vec![], watch: false };
    (Engine::new(device, plan(), options).unwrap(), shared)
}

fn fed(rows: usize, wanted: std::ops::Range<usize>, max_rows: usize, max_wanted: usize) -> Vec<(usize, usize)> {
    let (mut engine, shared) = engine(rows, 1, max_rows, max_wanted);
    let mut sequence = engine.sequence();
    engine.feed(&mut sequence, &vec![1; rows], wanted, |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!(sequence.length(), rows);
    shared.lock().unwrap().steps.clone()
}

#[test]
fn rows_that_nobody_wants_go_in_whole_steps() {
    assert_eq!(fed(10, 0..0, 4, 2), [(4, 0), (4, 0), (2, 0)]);
    assert_eq!(fed(10, 12..15, 4, 2), [(4, 0), (4, 0), (2, 0)]);
    assert_eq!(fed(10, 0..1, 4, 2), [(1, 1), (4, 0), (4, 0), (1, 0)]);
    assert_eq!(fed(10, 9..10, 4, 2), [(4, 0), (4, 0), (2, 1)]);
    assert_eq!(fed(10, 3..8, 4, 2), [(4, 1), (2, 2), (2, 2), (2, 0)]);
}

proptest! {
    /// Every row goes once, every wanted row is wanted once, and no step is larger than it may be.
    #[test]
    fn feeding_keeps_its_bounds(
        rows in 1usize..60, a in 0usize..70, b in 0usize..70, max_rows in 1usize..20, max_wanted in 1usize..20,
    ) {
        let steps = fed(rows, a..b, max_rows, max_wanted);
        prop_assert_eq!(steps.iter().map(|step| step.0).sum::<usize>(), rows);
        let wanted = b.min(rows).saturating_sub(a.min(rows));
        prop_assert_eq!(steps.iter().map(|step| step.1).sum::<usize>(), wanted);
        prop_assert!(steps.iter().all(|&(rows, wanted)| rows <= max_rows && wanted <= max_wanted));
        // At most one step more at each end of the wanted rows than either bound asks for.
        let least = rows.div_ceil(max_rows) + wanted.div_ceil(max_wanted.min(max_rows));
        prop_assert!(steps.len() <= least + 2, "{:?}", steps);
    }

    /// Whatever a sequence does, its blocks suffice, a window holds no more than it needs, and all come back.
    #[test]
    fn blocks_suffice_and_come_back(pieces in prop::collection::vec(1usize..9, 1..12)) {
        let context: usize = pieces.iter().sum();
        let (mut engine, _) = engine(context, 1, 8, 8);
        let all = engine.free_blocks();
        let mut sequence = engine.sequence();
        for &rows in &pieces {
            let tokens = vec![2; rows];
            let work = Work { sequence: &mut sequence, tokens: &tokens, wanted: Wanted::Last, choice: None };
            engine.step(&mut [work]).unwrap();
            prop_assert!(sequence.blocks(0) <= WINDOW.div_ceil(BLOCK) + 1);
            prop_assert_eq!(sequence.blocks(1), sequence.length().div_ceil(BLOCK));
        }
        drop(sequence);
        prop_assert_eq!(engine.free_blocks(), all);
    }
}

/// Nothing is kept for rows that never ran.
#[test]
fn a_step_that_fails_moves_no_sequence_and_keeps_no_block() {
    // The pool has 2 * (4 + 1) full blocks; a third sequence takes most of them.
    let (mut engine, shared) = engine(16, 2, 16, 16);
    let all = engine.free_blocks();
    let [mut a, mut b, mut c] = [engine.sequence(), engine.sequence(), engine.sequence()];
    engine.feed(&mut c, &[1; 16], 0..0, |_, _| ControlFlow::Continue(())).unwrap();
    let (held, ran) = (engine.free_blocks(), shared.lock().unwrap().steps.len());
    let mut fails = |tokens: [&[u32]; 2]| {
        let piece = |sequence, tokens| Work { sequence, tokens, wanted: Wanted::None, choice: None };
        let error = engine.step(&mut [piece(&mut a, tokens[0]), piece(&mut b, tokens[1])]).unwrap_err();
        assert_eq!((a.length(), b.length()), (0, 0));
        assert_eq!(engine.free_blocks(), held);
        error
    };
    assert!(matches!(fails([&[1], &[VOCABULARY as u32]]), EngineError::UnknownToken { .. }));
    assert!(matches!(fails([&[1], &[]]), EngineError::Empty));
    assert!(matches!(fails([&[1; 8], &[1; 9]]), EngineError::TooManyRows { rows: 17, .. }));
    assert!(matches!(fails([&[1], &[1; 17]]), EngineError::TooLong { tokens: 17, .. }));
    let (mut d, mut e) = (engine.sequence(), engine.sequence());
    engine.feed(&mut d, &[1; 16], 0..0, |_, _| ControlFlow::Continue(())).unwrap();
    engine.feed(&mut e, &[1; 4], 0..0, |_, _| ControlFlow::Continue(())).unwrap();
    let held = engine.free_blocks();
    let piece = |sequence, tokens| Work { sequence, tokens, wanted: Wanted::None, choice: None };
    let error = engine.step(&mut [piece(&mut a, &[1; 4]), piece(&mut b, &[1; 4])]).unwrap_err();
    assert!(matches!(error, EngineError::NoBlock { .. }), "{error}");
    assert_eq!(engine.free_blocks(), held);
    assert_eq!(shared.lock().unwrap().steps.len(), ran + 2);
    drop((a, b, c, d, e));
    assert_eq!(engine.free_blocks(), all);
}

#[test]
fn options_that_leave_nothing_to_run_are_refused() {
    for (context, sequences, max_rows, max_wanted) in [(0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0)] {
        let (device, _) = Device::new();
        let options = EngineOptions { context, sequences, max_rows, max_wanted, keep: vec![], watch: false };
        assert!(matches!(Engine::new(device, plan(), options), Err(EngineError::Options { .. })));
    }
}
