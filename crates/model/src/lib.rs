//! Model families: from a checkpoint's configuration to a plan. No device, no backend, no fusion here.

mod error;
mod gemma4;
mod json;
mod names;

use checkpoint::Checkpoint;
use plan::Plan;

pub use error::ModelError;
pub use gemma4::{AttentionKind, Gemma4Config, LayerConfig, Moe, PerLayerInput};

/// A model as its checkpoint has it: one plan, and what the rest of the house must know of it.
#[derive(Debug, Clone)]
pub struct Model {
    /// One forward step.
    pub plan: Plan,
    /// Facts about the model.
    pub info: ModelInfo,
    /// Tensors of the checkpoint that this load does not use, and why.
    pub unused: Vec<Unused>,
    /// What a user should know although nothing fails.
    pub warnings: Vec<String>,
}

/// Facts about a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// `gemma4`, as in config.json's `model_type`.
    pub family: String,
    /// Decoder layers.
    pub layers: usize,
    /// The most positions that the model was made for.
    pub context: usize,
    /// Entries of the vocabulary.
    pub vocabulary: usize,
    /// The id of padding.
    pub pad: u32,
    /// The id that begins a text, where the configuration names it.
    pub bos: Option<u32>,
}

/// Tensors of one kind that a load leaves alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unused {
    /// Why they are left alone.
    pub reason: &'static str,
    /// Their names.
    pub tensors: Vec<String>,
}

impl Model {
    /// Reads the configuration, finds every weight, and writes the plan. All tensors that are missing, of
    /// the wrong size, ambiguous or unknown are in the one error.
    pub fn read(checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        let model_type = checkpoint.config().get("model_type").and_then(|value| value.as_str()).unwrap_or("");
        match model_type {
            "gemma4" | "gemma4_text" | "gemma4_unified" | "gemma4_unified_text" => gemma4::read(checkpoint, model_type),
            _ => Err(ModelError::Family { model_type: model_type.to_owned() }),
        }
    }
}
