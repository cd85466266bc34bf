//! From a folder to an engine that runs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use answer::Texts;
use checkpoint::{Checkpoint, Folder};
use clap::Args;
use engine::{Engine, EngineOptions, Scheduler, SchedulerOptions};
use model::Model;
use plan::Backend;

use crate::backends::BackendArguments;
use crate::builtin;
use crate::error::Error;
use crate::progress::{Progress, Unit};
use crate::screen::visible;

/// Which model.
#[derive(Args, Clone)]
pub struct ModelArguments {
    /// Folder of a Gemma 4 checkpoint, MLX-quantized or original [default: the built-in model].
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
}

/// A checkpoint, and the model that it is.
pub struct Opened {
    /// The files.
    pub checkpoint: Arc<Checkpoint>,
    /// Its plan and facts.
    pub model: Model,
}

impl ModelArguments {
    /// The checkpoint alone.
    pub fn checkpoint(&self) -> Result<Checkpoint, Error> {
        Ok(match &self.model {
            Some(folder) => Checkpoint::open(folder)?,
            None => builtin::open()?,
        })
    }

    /// The files beside the weights: no weights are needed, or looked at.
    pub fn folder(&self) -> Result<Folder, Error> {
        Ok(match &self.model {
            Some(folder) => Folder::open(folder)?,
            None => builtin::folder(),
        })
    }

    /// The checkpoint, proved to be a model; warnings go to standard error.
    pub fn open(&self) -> Result<Opened, Error> {
        let checkpoint = Arc::new(self.checkpoint()?);
        let model = Model::read(&checkpoint)?;
        for warning in checkpoint.warnings().iter().chain(&model.warnings) {
            eprintln!("markbase: warning: {}", visible(&warning.to_string()));
        }
        Ok(Opened { checkpoint, model })
    }
}

/// Room for answers.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// The most tokens of a prompt and its answer.
    pub context: usize,
    /// Answers at the same time.
    pub sequences: usize,
}

/// Rows of a step: enough that weights are read once for many, few enough that a step ends soon.
const MAX_ROWS: usize = 512;
/// Rows of prompts in a step while others wait for their next token.
const CHUNK: usize = 128;

impl Opened {
    /// The text side of the model; warnings go to standard error.
    pub fn texts(&self) -> Result<Texts, Error> {
        let texts = Texts::read(self.checkpoint.folder())?;
        for warning in &texts.defaults().warnings {
            eprintln!("markbase: warning: {}", visible(&warning.to_string()));
        }
        Ok(texts)
    }

    /// Loads the weights and sets up a scheduler; says how long that took. Where memory does not hold `room` for
    /// every answer to be as long as the context, answers wait for each other.
    pub fn scheduler(&self, backend: &BackendArguments, room: Room) -> Result<(Scheduler, Duration), Error> {
        let started = Instant::now();
        let Room { context, sequences } = room;
        let max_rows = MAX_ROWS.min(context.max(sequences));
        let options = EngineOptions { context, sequences, max_rows, max_wanted: sequences, keep: vec![], watch: false };
        let backend = self.loaded(backend)?;
        let plan = self.model.plan.clone();
        let block_bytes = backend.block_bytes(&plan.cache);
        let bytes = |tokens: usize| -> u64 {
            let blocks = Engine::blocks(&plan, tokens, &options);
            blocks.iter().zip(&block_bytes).map(|(&blocks, &bytes)| blocks as u64 * bytes).sum()
        };
        let free_bytes = backend.memory().free_bytes;
        let mut tokens = context.saturating_mul(sequences);
        while tokens > context && bytes(tokens) > free_bytes / 2 {
            tokens = (tokens / 2).max(context);
        }
        let engine = Engine::with_cache(backend, plan, tokens, options)?;
        let options = SchedulerOptions { max_running: sequences, max_waiting: usize::MAX, chunk: CHUNK };
        Ok((Scheduler::new(engine, options)?, started.elapsed()))
    }

    /// Loads the weights and sets up the engine; says how long loading took.
    pub fn engine(&self, backend: &BackendArguments, options: EngineOptions) -> Result<(Engine, Duration), Error> {
        let started = Instant::now();
        let engine = Engine::new(self.loaded(backend)?, self.model.plan.clone(), options)?;
        Ok((engine, started.elapsed()))
    }

    fn loaded(&self, backend: &BackendArguments) -> Result<Box<dyn Backend>, Error> {
        let mut backend = backend.make()?;
        let mut progress = Progress::new("loading weights", Unit::Bytes);
        backend.load(&self.model.plan.weights, &self.checkpoint, &mut |at| {
            progress.at(at.done_bytes, at.total_bytes);
        })?;
        Ok(backend)
    }
}
