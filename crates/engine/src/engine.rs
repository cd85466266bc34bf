//! The engine: a plan, a backend, and the pools of cache blocks.

use std::ops::ControlFlow;

use plan::{Backend, BackendError, CompileOptions, ExecutableId, Plan, StepOutputs, Value};

use crate::batch::step_inputs;
use crate::{BlockPool, EngineError, Sequence, Work};

/// How an engine is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// The most positions of one sequence.
    pub context: usize,
    /// Sequences that can be that long at the same time.
    pub sequences: usize,
    /// The most token rows of a step: prompts are taken in pieces of this.
    pub max_rows: usize,
    /// The most wanted rows of a step.
    pub max_wanted: usize,
    /// Values that each step returns.
    pub keep: Vec<Value>,
    /// Look at every value of every step, and report the first that is not finite.
    pub watch: bool,
}

/// Many sequences on one device.
pub struct Engine {
    backend: Box<dyn Backend>,
    plan: Plan,
    executable: ExecutableId,
    pools: Vec<BlockPool>,
    options: EngineOptions,
}

impl Engine {
    /// Sets up a backend whose weights are loaded already, with room for every sequence to be as long as the context.
    pub fn new(backend: Box<dyn Backend>, plan: Plan, options: EngineOptions) -> Result<Self, EngineError> {
        let tokens = options.sequences.saturating_mul(options.context);
        Self::with_cache(backend, plan, tokens, options)
    }

    /// The same with room for about `cache_tokens` tokens of all sequences together.
    pub fn with_cache(
        mut backend: Box<dyn Backend>,
        plan: Plan,
        cache_tokens: usize,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        for (name, count) in [
            ("context", options.context),
            ("sequences", options.sequences),
            ("max_rows", options.max_rows),
            ("max_wanted", options.max_wanted),
            ("cache_tokens", cache_tokens),
        ] {
            if count == 0 {
                return Err(EngineError::Options { name });
            }
        }
        let blocks = Self::blocks(&plan, cache_tokens, &options);
        let bytes: u64 =
            backend.block_bytes(&plan.cache).iter().zip(&blocks).map(|(&bytes, &blocks)| bytes * blocks as u64).sum();
        let free_bytes = backend.memory().free_bytes;
        if bytes > free_bytes {
            let what = format!("a cache of {cache_tokens} tokens in {} sequences", options.sequences);
            return Err(BackendError::Memory { what, wanted_bytes: bytes, free_bytes }.into());
        }
        backend.reserve_cache(&plan.cache, &blocks)?;
        let compile = CompileOptions {
            max_rows: options.max_rows,
            max_wanted: options.max_wanted,
            keep: options.keep.clone(),
            watch: options.watch,
        };
        let executable = backend.compile(&plan, &compile)?;
        let pools = blocks.into_iter().map(BlockPool::new).collect();
        Ok(Engine { backend, plan, executable, pools, options })
    }

    /// Blocks a group for `cache_tokens` tokens of all sequences together. A sliding group holds of each sequence its
    /// window and one step's rows, no more.
    pub fn blocks(plan: &Plan, cache_tokens: usize, options: &EngineOptions) -> Vec<usize> {
        let block_size = plan.cache.block_size;
        let of_group = |window: Option<usize>| {
            let positions = window.map_or(options.context, |window| options.context.min(window + options.max_rows));
            // One more, since neither end of the span need stand at a block's border.
            let all_as_long = options.sequences.saturating_mul(positions.div_ceil(block_size) + 1);
            all_as_long.min(cache_tokens.div_ceil(block_size).saturating_add(options.sequences))
        };
        plan.cache.groups.iter().map(|group| of_group(group.window)).collect()
    }

    /// Blocks a group that a sequence of `tokens` holds at most while it is read in steps of `rows`.
    pub(crate) fn blocks_of(&self, tokens: usize, rows: usize) -> Vec<usize> {
        let block_size = self.plan.cache.block_size;
        let of_group = |window: Option<usize>| match window {
            // The rows of a step and the window before the first of them start anywhere in a block.
            Some(window) if window - 1 + rows < tokens => {
                (window - 1 + rows).div_ceil(block_size).saturating_add(1).min(tokens.div_ceil(block_size))
            }
            _ => tokens.div_ceil(block_size),
        };
        self.plan.cache.groups.iter().map(|group| of_group(group.window)).collect()
    }

    /// The most tokens of one sequence: the context, or what the cache holds of it when it is alone.
    pub fn longest(&self) -> usize {
        let fits =
            |tokens: usize| self.blocks_of(tokens, 1).iter().zip(&self.pools).all(|(n, pool)| *n <= pool.total());
        // Longer needs no fewer blocks, so the border is found by halving.
        let (mut fitting, mut above) = (0, self.options.context + 1);
        while fitting + 1 < above {
            let middle = fitting.midpoint(above);
            if fits(middle) { fitting = middle } else { above = middle }
        }
        fitting
    }

    /// Blocks in all, a group.
    pub fn total_blocks(&self) -> Vec<usize> {
        self.pools.iter().map(BlockPool::total).collect()
    }

    /// Takes the blocks that `rows` more tokens of the sequence need, all of them or none.
    pub(crate) fn reserve(&self, sequence: &mut Sequence, rows: usize) -> Result<(), EngineError> {
        sequence.grow(rows, &self.plan.cache, &self.pools)
    }

    /// The plan that runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// How it was set up.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// The backend's name.
    pub fn backend_name(&self) -> String {
        self.backend.name()
    }

    /// A new, empty sequence.
    pub fn sequence(&self) -> Sequence {
        Sequence::new(self.plan.cache.groups.len())
    }

    /// Blocks that nobody holds, a group.
    pub fn free_blocks(&self) -> Vec<usize> {
        self.pools.iter().map(BlockPool::free).collect()
    }

    /// Runs one step over the rows of all `work`. On an error no sequence has moved or holds more blocks.
    pub fn step(&mut self, work: &mut [Work]) -> Result<StepOutputs, EngineError> {
        let outputs = self.prove(work).and_then(|()| self.launch(work));
        for piece in work.iter_mut() {
            match outputs {
                Ok(_) => piece.sequence.advance(piece.tokens.len(), &self.plan.cache),
                Err(_) => piece.sequence.drop_unused(&self.plan.cache),
            }
        }
        outputs
    }

    /// What is wrong with `work`, before anything is taken for it.
    fn prove(&self, work: &[Work]) -> Result<(), EngineError> {
        let vocabulary = self.plan.vocabulary();
        let (mut rows, mut wanted) = (0, 0);
        for piece in work {
            if piece.tokens.is_empty() {
                return Err(EngineError::Empty);
            }
            if let Some(&token) = piece.tokens.iter().find(|&&token| token as usize >= vocabulary) {
                return Err(EngineError::UnknownToken { token, vocabulary });
            }
            let tokens = piece.sequence.length() + piece.tokens.len();
            if tokens > self.options.context {
                return Err(EngineError::TooLong { tokens, context: self.options.context });
            }
            rows += piece.tokens.len();
            wanted += piece.wanted.range(piece.tokens.len()).len();
        }
        let (max_rows, max_wanted) = (self.options.max_rows, self.options.max_wanted);
        match rows > max_rows || wanted > max_wanted {
            true => Err(EngineError::TooManyRows { rows, wanted, max_rows, max_wanted }),
            false => Ok(()),
        }
    }

    fn launch(&mut self, work: &mut [Work]) -> Result<StepOutputs, EngineError> {
        for piece in work.iter_mut() {
            piece.sequence.grow(piece.tokens.len(), &self.plan.cache, &self.pools)?;
        }
        let inputs = step_inputs(&self.plan, work);
        let ticket = self.backend.launch(self.executable, &inputs)?;
        Ok(self.backend.collect(ticket)?)
    }

    /// Caches `tokens` after what the sequence has, in steps of at most `max_rows`, wanting the rows
    /// `wanted` of them (from 0); hands each step's outputs, with the first of its wanted rows, to `each`, which may end it. A logit that is not finite is
    /// an error, unless the watch is on.
    pub fn feed(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        wanted: std::ops::Range<usize>,
        mut each: impl FnMut(usize, StepOutputs) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let most = &self.options;
        let (max_rows, max_wanted) = (most.max_rows, most.max_wanted);
        let mut first = 0;
        while first < tokens.len() {
            let here = wanted.start.max(first)..wanted.end.min(tokens.len());
            let mut rows = (tokens.len() - first).min(max_rows);
            // Where rows are wanted, a step ends when it has as many of them as it may have.
            if !here.is_empty() && here.start < first + rows {
                rows = rows.min(here.start - first + max_wanted.min(here.len()));
            }
            let end = first + rows;
            let range = here.start.min(end) - first..here.end.clamp(here.start.min(end), end) - first;
            let piece = Work {
                sequence: &mut *sequence,
                tokens: &tokens[first..first + rows],
                wanted: crate::Wanted::Range(range.clone()),
                choice: None,
            };
            let outputs = self.step(&mut [piece])?;
            if let (Some(found), false) = (outputs.non_finite.first(), self.options.watch) {
                let position = sequence.length() - rows + range.start + found.row;
                return Err(EngineError::NotFinite { position });
            }
            if each(first + range.start, outputs).is_break() {
                return Ok(());
            }
            first += rows;
        }
        Ok(())
    }
}
