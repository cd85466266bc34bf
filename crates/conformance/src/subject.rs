//! What is checked: a plan with its checkpoint, run by backends that the caller makes.

use std::sync::Arc;

use checkpoint::Checkpoint;
use engine::{Engine, EngineOptions, Sequence, Wanted, Work};
use plan::{Backend, Plan, StepOutputs, Value};

use crate::CheckError;

/// Makes a backend with nothing loaded.
pub type Make<'a> = dyn Fn() -> Box<dyn Backend> + 'a;

/// A model to check with.
#[derive(Debug, Clone)]
pub struct Subject {
    /// Where the plan's weights are.
    pub checkpoint: Arc<Checkpoint>,
    /// One forward step.
    pub plan: Plan,
}

impl Subject {
    /// An engine on a fresh backend with the weights loaded.
    pub(crate) fn engine(&self, make: &Make, options: EngineOptions) -> Result<Engine, CheckError> {
        let mut backend = make();
        backend.load(&self.plan.weights, &self.checkpoint, &mut |_| {})?;
        Ok(Engine::new(backend, self.plan.clone(), options)?)
    }
}

/// One sequence on an engine of its own, fed piece by piece with every row wanted.
pub(crate) struct Track {
    engine: Engine,
    sequence: Sequence,
    keep: Vec<Value>,
}

/// How far a track goes, and in what pieces.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    pub tokens: usize,
    pub piece: usize,
}

impl Track {
    pub fn new(
        subject: &Subject,
        make: &Make,
        extent: Extent,
        keep: Vec<Value>,
        watch: bool,
    ) -> Result<Track, CheckError> {
        if extent.tokens == 0 {
            return Err(CheckError::NoTokens);
        }
        let options = EngineOptions {
            context: extent.tokens,
            sequences: 1,
            max_rows: extent.piece,
            max_wanted: extent.piece,
            keep: keep.clone(),
            watch,
        };
        let engine = subject.engine(make, options)?;
        let sequence = engine.sequence();
        Ok(Track { engine, sequence, keep })
    }

    pub fn name(&self) -> String {
        self.engine.backend_name()
    }

    /// The next rows of the sequence, each kept value proved to have them all.
    pub fn next(&mut self, tokens: &[u32]) -> Result<StepOutputs, CheckError> {
        let piece = Work { sequence: &mut self.sequence, tokens, wanted: Wanted::All, choice: None };
        let outputs = self.engine.step(&mut [piece])?;
        prove_kept(&self.engine, &self.keep, &outputs, |_| tokens.len())?;
        Ok(outputs)
    }
}

/// Proves that `outputs` hold `rows(value)` rows of every value of `keep`.
pub(crate) fn prove_kept(
    engine: &Engine,
    keep: &[Value],
    outputs: &StepOutputs,
    rows: impl Fn(Value) -> usize,
) -> Result<(), CheckError> {
    for (place, &value) in keep.iter().enumerate() {
        let spec = engine.plan().value(value);
        let (wanted, found) = (rows(value) * spec.columns, outputs.kept.get(place).map_or(0, Vec::len));
        if wanted != found {
            return Err(CheckError::Kept { backend: engine.backend_name(), value: spec.name.clone(), wanted, found });
        }
    }
    Ok(())
}
