//! How the engine cuts work into steps, and what it does with cache blocks, on a backend that only records.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use checkpoint::{Checkpoint, DType, MatrixSource};
use markbase_engine::{Engine, EngineError, EngineOptions, Finish, Generation, Wanted, Work};
use plan::{
    Backend, BackendError, CacheGroup, CacheLayer, CacheLayout, CacheRef, CompileOptions, ExecutableId, LoadProgress,
    MemoryInfo, Plan, PlanBuilder, Sampled, Sampling, Site, StepInputs, StepOutputs, Ticket, WeightShape, WeightSource,
    WeightSpec, WeightUse,
};
use proptest::prelude::*;

const WINDOW: usize = 6;
const BLOCK: usize = 4;
const VOCABULARY: usize = 8;

/// Embeds, keeps keys in a sliding and a full layer, and scores.
fn plan() -> Plan {
    let group = |name: &str, window, layer| CacheGroup {
        name: name.into(),
        window,
        layers: vec![CacheLayer { layer, kv_heads: 1, head_dim: 2 }],
    };
    let groups = vec![group("sliding", Some(WINDOW), 0), group("full", None, 1)];
    let mut build = PlanBuilder::new(CacheLayout { block_size: BLOCK, groups });
    let source = MatrixSource::Dense { tensor: "table".into(), dtype: DType::F32 };
    let table = build.weight(WeightSpec {
        name: "table".into(),
        shape: WeightShape::Matrix { rows: VOCABULARY, columns: 2 },
        source: WeightSource::Matrix { source, rows: None },
        usage: WeightUse { gathered: true, multiplied: true },
    });
    let site = |role| Site { layer: None, role };
    let x = build.embed(site("embed"), table, 1.0);
    for (group, role) in [(0, "append_sliding"), (1, "append_full")] {
        build.kv_append(site(role), x, x, CacheRef { group, layer: 0 });
    }
    let wanted = build.select_rows(site("wanted"), build.whole(x));
    let logits = build.linear(site("logits"), wanted, table);
    let sampled = build.sample(site("sample"), logits);
    build.finish(logits, sampled).unwrap()
}

/// Proves every step's inputs as a real backend does, and answers token 3.
struct Recorder {
    plan: Plan,
    blocks: Vec<usize>,
    steps: Arc<Mutex<Vec<(usize, usize)>>>,
    last: StepOutputs,
}

impl Backend for Recorder {
    fn name(&self) -> String {
        "recorder".into()
    }
    fn memory(&self) -> MemoryInfo {
        MemoryInfo { total_bytes: 1 << 30, free_bytes: 1 << 30 }
    }
    fn load(
        &mut self,
        _weights: &[WeightSpec],
        _from: &Arc<Checkpoint>,
        _progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(), BackendError> {
        Ok(())
    }
    fn block_bytes(&self, layout: &CacheLayout) -> Vec<u64> {
        vec![1; layout.groups.len()]
    }
    fn reserve_cache(&mut self, _layout: &CacheLayout, blocks: &[usize]) -> Result<(), BackendError> {
        self.blocks = blocks.to_vec();
        Ok(())
    }
    fn compile(&mut self, _plan: &Plan, _options: &CompileOptions) -> Result<ExecutableId, BackendError> {
        Ok(ExecutableId(0))
    }
    fn launch(&mut self, _executable: ExecutableId, inputs: &StepInputs) -> Result<Ticket, BackendError> {
        inputs.check(&self.plan, &self.blocks)?;
        self.steps.lock().unwrap().push((inputs.tokens.len(), inputs.wanted.len()));
        let sampled = inputs.wanted.iter().zip(&inputs.sampling).filter(|(_, rule)| rule.is_some());
        self.last.sampled = sampled.map(|(&row, _)| Sampled { row, token: 3 }).collect();
        Ok(Ticket(0))
    }
    fn collect(&mut self, _ticket: Ticket) -> Result<StepOutputs, BackendError> {
        Ok(self.last.clone())
    }
}

type Steps = Arc<Mutex<Vec<(usize, usize)>>>;

fn engine(context: usize, sequences: usize, max_rows: usize, max_wanted: usize) -> (Engine, Steps) {
    let steps = Steps::default();
    let recorder = Recorder { plan: plan(), blocks: vec![], steps: steps.clone(), last: StepOutputs::default() };
    let options = EngineOptions { context, sequences, max_rows, max_wanted, keep: vec![], watch: false };
    (Engine::new(Box::new(recorder), plan(), options).unwrap(), steps)
}

fn fed(rows: usize, wanted: std::ops::Range<usize>, max_rows: usize, max_wanted: usize) -> Vec<(usize, usize)> {
    let (mut engine, steps) = engine(rows, 1, max_rows, max_wanted);
    let mut sequence = engine.sequence();
    engine.feed(&mut sequence, &vec![1; rows], wanted, |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!(sequence.length(), rows);
    Arc::try_unwrap(steps).map_or_else(|shared| shared.lock().unwrap().clone(), |own| own.into_inner().unwrap())
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
            let work = Work { sequence: &mut sequence, tokens: &tokens, wanted: Wanted::Last, sampling: None };
            engine.step(&mut [work]).unwrap();
            prop_assert!(sequence.blocks(0) <= WINDOW.div_ceil(BLOCK) + 1);
            prop_assert_eq!(sequence.blocks(1), sequence.length().div_ceil(BLOCK));
        }
        drop(sequence);
        prop_assert_eq!(engine.free_blocks(), all);
    }
}

fn generate(prompt: usize, max_tokens: usize, context: usize, stop: &[u32]) -> (Finish, usize, usize) {
    let (mut engine, _) = engine(context, 1, 4, 1);
    let mut sequence = engine.sequence();
    let mut shown = 0;
    let prompt = vec![1; prompt];
    let request = Generation { prompt: &prompt, max_tokens, sampling: Sampling::GREEDY, stop };
    let generated = engine
        .generate(&mut sequence, &request, |_| {
            shown += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    (generated.finish, generated.tokens, shown)
}

#[test]
fn generation_ends_at_its_bounds() {
    assert_eq!(generate(9, 3, 64, &[]), (Finish::Length, 3, 3));
    assert_eq!(generate(9, 3, 64, &[3]), (Finish::Stop, 1, 0));
    // The last token needs no room: it is never fed.
    assert_eq!(generate(9, 99, 10, &[]), (Finish::Length, 2, 2));
    assert_eq!(generate(10, 99, 10, &[]), (Finish::Length, 1, 1));
    assert_eq!(generate(1, 0, 10, &[]), (Finish::Length, 0, 0));
}

#[test]
fn prompts_longer_than_the_context_are_refused() {
    let (mut engine, steps) = engine(10, 1, 4, 1);
    let mut sequence = engine.sequence();
    let prompt = [1; 11];
    let request = Generation { prompt: &prompt, max_tokens: 5, sampling: Sampling::GREEDY, stop: &[] };
    let refused = engine.generate(&mut sequence, &request, |_| ControlFlow::Continue(()));
    assert!(matches!(refused, Err(EngineError::TooLong { tokens: 11, context: 10 })));
    assert!(steps.lock().unwrap().is_empty());
}

/// Nothing is kept for rows that never ran.
#[test]
fn a_step_that_fails_moves_no_sequence_and_keeps_no_block() {
    // The pool has 2 * (4 + 1) full blocks; a third sequence takes most of them.
    let (mut engine, steps) = engine(16, 2, 16, 16);
    let all = engine.free_blocks();
    let [mut a, mut b, mut c] = [engine.sequence(), engine.sequence(), engine.sequence()];
    engine.feed(&mut c, &[1; 16], 0..0, |_, _| ControlFlow::Continue(())).unwrap();
    let (held, ran) = (engine.free_blocks(), steps.lock().unwrap().len());
    let mut fails = |tokens: [&[u32]; 2]| {
        let piece = |sequence, tokens| Work { sequence, tokens, wanted: Wanted::None, sampling: None };
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
    let piece = |sequence, tokens| Work { sequence, tokens, wanted: Wanted::None, sampling: None };
    let error = engine.step(&mut [piece(&mut a, &[1; 4]), piece(&mut b, &[1; 4])]).unwrap_err();
    assert!(matches!(error, EngineError::NoBlock { .. }), "{error}");
    assert_eq!(engine.free_blocks(), held);
    assert_eq!(steps.lock().unwrap().len(), ran + 2);
    drop((a, b, c, d, e));
    assert_eq!(engine.free_blocks(), all);
}

#[test]
fn options_that_leave_nothing_to_run_are_refused() {
    for (context, sequences, max_rows, max_wanted) in [(0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0)] {
        let recorder = Recorder { plan: plan(), blocks: vec![], steps: Steps::default(), last: StepOutputs::default() };
        let options = EngineOptions { context, sequences, max_rows, max_wanted, keep: vec![], watch: false };
        assert!(matches!(Engine::new(Box::new(recorder), plan(), options), Err(EngineError::Options { .. })));
    }
}
