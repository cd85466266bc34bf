//! Gemma 4: dense, mixture of experts, with per-layer inputs or without, all from one configuration.

mod config;
mod text;
mod weights;

use checkpoint::Checkpoint;

pub use config::{AttentionKind, Gemma4Config, LayerConfig, Moe, PerLayerInput};

use crate::{Model, ModelError, ModelInfo};

pub(crate) fn read(checkpoint: &Checkpoint, model_type: &str) -> Result<Model, ModelError> {
    let (config, mut warnings) = Gemma4Config::read(checkpoint.config())?;
    let found = weights::find(checkpoint, &config)?;
    warnings.extend(found.warnings);
    let plan = text::lower(&config, found.weights)?;
    let info = ModelInfo {
        family: model_type.to_owned(),
        layers: config.layers.len(),
        context: config.context,
        vocabulary: config.vocabulary,
        pad: config.pad,
        bos: config.bos,
    };
    Ok(Model { plan, info, unused: found.unused, warnings })
}
