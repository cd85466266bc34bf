//! A device without arithmetic that keeps a real paged cache: the token after a row is a hash of every token that
//! the row sees *through its block tables* and of how it is chosen, so a wrong table, a block given twice, one read
//! after it was given away or a rule that did not arrive changes the text.

#![allow(dead_code)] // each test program takes its part

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use checkpoint::{Checkpoint, DType, MatrixSource};
use markbase_engine::{Client, EngineError, Finished, Token};
use plan::{
    Backend, BackendError, CacheGroup, CacheLayer, CacheLayout, CacheRef, Choice, CompileOptions, ExecutableId,
    LoadProgress, LogProbabilities, MemoryInfo, NonFinite, Plan, PlanBuilder, Sampled, Sampling, Site, StepInputs,
    StepOutputs, Ticket, WeightShape, WeightSource, WeightSpec, WeightUse,
};

pub const WINDOW: usize = 6;
pub const BLOCK: usize = 4;
pub const VOCABULARY: usize = 32;

/// Embeds, keeps keys in a sliding and a full layer, and scores.
pub fn plan() -> Plan {
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

/// What the tests see and do of the device.
#[derive(Debug, Default)]
pub struct Shared {
    /// Rows and wanted rows of each step.
    pub steps: Vec<(usize, usize)>,
    /// How each wanted row chose, in order.
    pub choices: Vec<Choice>,
    /// The next step fails.
    pub fail: bool,
    /// Tokens and their positions whose rows have logits that are not finite.
    pub not_finite_after: BTreeSet<(u32, u32)>,
}

pub struct Device {
    plan: Plan,
    /// [groups][slots]: what was appended there.
    cache: Vec<Vec<Option<(u32, u32)>>>,
    blocks: Vec<usize>,
    pub shared: Arc<Mutex<Shared>>,
    last: Option<StepOutputs>,
}

impl Device {
    pub fn new() -> (Box<Device>, Arc<Mutex<Shared>>) {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let device = Device { plan: plan(), cache: vec![], blocks: vec![], shared: shared.clone(), last: None };
        (Box::new(device), shared)
    }
}

fn hash(start: u64, words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(start ^ 0xcbf2_9ce4_8422_2325, |hash, word| {
        let hash = (hash ^ word).wrapping_mul(0x100_0000_01b3);
        hash ^ hash >> 29
    })
}

/// The token after a sequence, by the tokens that its last row sees in each group and all that the choice does to
/// logits. The log-probabilities are the model's own: they depend on what is seen and on the token alone.
pub fn next_token(sliding: &[u32], full: &[u32], choice: &Choice) -> Token {
    let seen = hash(0, sliding.iter().chain(full).map(|&token| token.into()));
    let Sampling { temperature, top_k, top_p, min_p, seed } = choice.sampling;
    let drawn = hash(seen, [temperature, top_p, min_p].map(|number| number.to_bits().into()));
    let drawn = hash(drawn, [top_k.into(), seed]);
    // An adjustment that changes no logit counts for nothing.
    let adjusted = choice.adjustments.iter().map(|a| {
        let penalty = if a.repeated { choice.repetition_penalty } else { 1.0 };
        let changes = penalty != 1.0 || a.add != 0.0;
        if changes { hash(a.token.into(), [penalty, a.add + 0.0].map(|number| number.to_bits().into())) } else { 0 }
    });
    // A sum, since the order of adjustments means nothing.
    let adjusted = adjusted.fold(0u64, u64::wrapping_add);
    let banned = |token: u32| {
        choice.mask.as_ref().is_some_and(|mask| !mask.contains(token))
            || choice.adjustments.iter().any(|a| a.token == token && a.add == f32::NEG_INFINITY)
    };
    let from =
        |hash: u64| (0..VOCABULARY as u64).map(move |i| ((hash % VOCABULARY as u64 + i) % VOCABULARY as u64) as u32);
    let id = from(hash(drawn, [adjusted])).find(|&token| !banned(token)).unwrap_or(0);
    let log_probability = |token: u32| -((hash(seen, [token.into()]) % 64) as f32);
    let log_probabilities = choice.log_probabilities.map(|k| LogProbabilities {
        chosen: log_probability(id),
        top: from(seen).take(k as usize).map(|token| (token, log_probability(token))).collect(),
    });
    Token { id, log_probabilities }
}

impl Backend for Device {
    fn name(&self) -> String {
        "device".into()
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
        self.cache = blocks.iter().map(|&blocks| vec![None; blocks * BLOCK]).collect();
        Ok(())
    }
    fn compile(&mut self, _plan: &Plan, _options: &CompileOptions) -> Result<ExecutableId, BackendError> {
        Ok(ExecutableId(0))
    }

    fn launch(&mut self, _executable: ExecutableId, inputs: &StepInputs) -> Result<Ticket, BackendError> {
        inputs.check(&self.plan, &self.blocks)?;
        let mut shared = self.shared.lock().unwrap();
        shared.steps.push((inputs.tokens.len(), inputs.wanted.len()));
        if std::mem::take(&mut shared.fail) {
            return Err(BackendError::Order("the device failed"));
        }
        let slot = |group: usize, row: usize, position: u32| {
            let table = &inputs.block_tables[group][inputs.sequences[row] as usize];
            table[position as usize / BLOCK] as usize * BLOCK + position as usize % BLOCK
        };
        for row in 0..inputs.tokens.len() {
            for group in 0..2 {
                let position = inputs.positions[row];
                self.cache[group][slot(group, row, position)] = Some((inputs.tokens[row], position));
            }
        }
        let mut outputs = StepOutputs::default();
        for (wanted, &row) in inputs.wanted.iter().enumerate() {
            let Some(choice) = &inputs.sampling[wanted] else { continue };
            let seen = |group: usize| -> Vec<u32> {
                let (from, until) = (&inputs.visible_from[group], &inputs.visible_until[group]);
                (from[row as usize]..until[row as usize])
                    .map(|position| match self.cache[group][slot(group, row as usize, position)] {
                        Some((token, at)) if at == position => token,
                        found => panic!("position {position} of group {group} holds {found:?}"),
                    })
                    .collect()
            };
            let (sliding, full) = (seen(0), seen(1));
            shared.choices.push(choice.clone());
            let Token { id: token, log_probabilities } = next_token(&sliding, &full, choice);
            outputs.sampled.push(Sampled { row, token, log_probabilities });
            let position = inputs.positions[row as usize];
            if shared.not_finite_after.contains(&(inputs.tokens[row as usize], position)) {
                outputs.non_finite.push(NonFinite { value: self.plan.logits, row: wanted, column: 0 });
            }
        }
        self.last = Some(outputs);
        Ok(Ticket(0))
    }

    fn collect(&mut self, _ticket: Ticket) -> Result<StepOutputs, BackendError> {
        self.last.take().ok_or(BackendError::Order("nothing was launched"))
    }
}

/// What a client heard.
#[derive(Debug, Default)]
pub struct Heard {
    pub progress: Vec<usize>,
    pub tokens: Vec<u32>,
    /// Of each of the tokens.
    pub log_probabilities: Vec<Option<LogProbabilities>>,
    /// When each thing was heard.
    pub times: Vec<Instant>,
    pub end: Option<Result<Finished, Arc<EngineError>>>,
}

/// Records; may end the answer itself, or go away.
#[derive(Clone, Default)]
pub struct Recorder {
    pub heard: Arc<Mutex<Heard>>,
    pub gone: Arc<AtomicBool>,
    /// Ends the answer at this many tokens.
    pub enough: Option<usize>,
}

impl Client for Recorder {
    fn prompt(&mut self, done: usize, total: usize) {
        let mut heard = self.heard.lock().unwrap();
        assert!(done <= total && heard.progress.last().is_none_or(|&last| last < done), "progress goes forward");
        heard.progress.push(done);
        heard.times.push(Instant::now());
    }
    fn token(&mut self, token: Token) -> ControlFlow<()> {
        let mut heard = self.heard.lock().unwrap();
        assert!(heard.end.is_none(), "nothing comes after the end");
        heard.tokens.push(token.id);
        heard.log_probabilities.push(token.log_probabilities);
        heard.times.push(Instant::now());
        if self.enough == Some(heard.tokens.len()) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
    fn ended(&mut self, end: Result<Finished, Arc<EngineError>>) {
        let mut heard = self.heard.lock().unwrap();
        assert!(heard.end.is_none(), "the end is told once");
        heard.end = Some(end);
        heard.times.push(Instant::now());
    }
    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}
