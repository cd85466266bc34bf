//! What a backend must do with a plan.

use std::sync::Arc;

use checkpoint::Checkpoint;
use thiserror::Error;

use crate::{CacheLayout, InputError, LayoutError, Plan, Site, StepInputs, Value, WeightSpec};

/// Memory that a backend computes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes in all.
    pub total_bytes: u64,
    /// Bytes free for use now.
    pub free_bytes: u64,
}

/// How far loading is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadProgress {
    /// Stored bytes of the weights done.
    pub done_bytes: u64,
    /// Stored bytes of all weights of the plan.
    pub total_bytes: u64,
}

/// How an executable is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompileOptions {
    /// The most token rows that a launch has.
    pub max_rows: usize,
    /// The most wanted rows that a launch has.
    pub max_wanted: usize,
    /// Values that survive fusion and are returned by every launch.
    pub keep: Vec<Value>,
    /// Looks at every value after it was written, and reports the first number that is not finite.
    pub watch: bool,
}

/// A compiled plan of one backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExecutableId(pub u32);

/// A launch whose result was not collected yet.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// A token that a launch chose.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The row, as in [`StepInputs::wanted`].
    pub row: u32,
    /// The token.
    pub token: u32,
    /// Where the row's [`Choice`](crate::Choice) asks for them.
    pub log_probabilities: Option<LogProbabilities>,
}

/// How likely the model found tokens: natural logarithms, as [`Choice`](crate::Choice) defines them.
#[derive(Debug, Clone, PartialEq)]
pub struct LogProbabilities {
    /// Of the chosen token.
    pub chosen: f32,
    /// `[k, at most the vocabulary]`: the likeliest tokens, the likeliest first, of equals the lower id, whether they
    /// could be chosen or not.
    pub top: Vec<(u32, f32)>,
}

/// A number that is not finite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NonFinite {
    /// The value.
    pub value: Value,
    /// Its row in its own domain.
    pub row: usize,
    /// Its column.
    pub column: usize,
}

/// What a launch returns.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepOutputs {
    /// A token for each wanted row that has a sampling rule.
    pub sampled: Vec<Sampled>,
    /// The values of [`CompileOptions::keep`], each `[rows, columns]`; indices as numbers.
    pub kept: Vec<Vec<f32>>,
    /// The first logit that is not finite of each wanted row that has one, ascending; with [`CompileOptions::watch`]
    /// the first value of all before them. None is named twice.
    pub non_finite: Vec<NonFinite>,
}

/// What goes wrong in a backend: at load and compile, hardly ever in a step.
#[derive(Debug, Error)]
pub enum BackendError {
    /// The backend cannot do this step.
    #[error("{site}: {reason}")]
    Unsupported {
        /// The step.
        site: Site,
        /// What is not supported, and what would be.
        reason: String,
    },
    /// A weight cannot be placed.
    #[error("{weight}: {reason}")]
    Weight {
        /// The weight's name.
        weight: String,
        /// Why.
        reason: String,
    },
    /// Memory does not suffice.
    #[error("{what} needs {wanted_bytes} bytes of memory, but {free_bytes} are free: take fewer or smaller")]
    Memory {
        /// What was to be placed.
        what: String,
        /// Bytes that it needs.
        wanted_bytes: u64,
        /// Bytes that there are.
        free_bytes: u64,
    },
    /// The laid out memory breaks a rule; a fault of the backend.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A launch's inputs break a rule; a fault of the caller.
    #[error(transparent)]
    Inputs(#[from] InputError),
    /// A call out of order; a fault of the caller.
    #[error("{0}")]
    Order(&'static str),
}

/// A device that executes plans. The order of calls: `load`, `reserve_cache`, `compile`, then launches.
pub trait Backend: Send {
    /// Its name in messages, with the device: `cpu (avx512, 2 threads)`.
    fn name(&self) -> String;

    /// The memory that it computes in, for sizing the cache.
    fn memory(&self) -> MemoryInfo;

    /// Places the weights. `progress` is called now and then, from this thread.
    fn load(
        &mut self,
        weights: &[WeightSpec],
        from: &Arc<Checkpoint>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(), BackendError>;

    /// Bytes of one block of each group.
    fn block_bytes(&self, layout: &CacheLayout) -> Vec<u64>;

    /// Makes room for `blocks[group]` blocks of each group; what was cached before is lost.
    fn reserve_cache(&mut self, layout: &CacheLayout, blocks: &[usize]) -> Result<(), BackendError>;

    /// Fuses the plan, lays out its memory, checks both.
    fn compile(&mut self, plan: &Plan, options: &CompileOptions) -> Result<ExecutableId, BackendError>;

    /// Starts a step.
    fn launch(&mut self, executable: ExecutableId, inputs: &StepInputs) -> Result<Ticket, BackendError>;

    /// Waits for a step.
    fn collect(&mut self, ticket: Ticket) -> Result<StepOutputs, BackendError>;
}
