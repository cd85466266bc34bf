//! From a folder to an engine that runs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use checkpoint::Checkpoint;
use clap::Args;
use engine::{Engine, EngineOptions};
use model::Model;

use crate::backends::BackendArguments;
use crate::builtin;
use crate::error::Error;
use crate::progress::Progress;

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

    /// The checkpoint, proved to be a model; warnings go to standard error.
    pub fn open(&self) -> Result<Opened, Error> {
        let checkpoint = Arc::new(self.checkpoint()?);
        let model = Model::read(&checkpoint)?;
        for warning in checkpoint.warnings().iter().chain(&model.warnings) {
            eprintln!("markbase: warning: {warning}");
        }
        Ok(Opened { checkpoint, model })
    }
}

impl Opened {
    /// Loads the weights and sets up the engine; says how long loading took.
    pub fn engine(&self, backend: &BackendArguments, options: EngineOptions) -> Result<(Engine, Duration), Error> {
        let started = Instant::now();
        let mut backend = backend.make()?;
        let mut progress = Progress::new("loading weights");
        backend.load(&self.model.plan.weights, &self.checkpoint, &mut |at| {
            progress.at(at.done_bytes, at.total_bytes);
        })?;
        drop(progress);
        let engine = Engine::new(backend, self.model.plan.clone(), options)?;
        Ok((engine, started.elapsed()))
    }
}
