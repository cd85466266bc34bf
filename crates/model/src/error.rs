//! Why a checkpoint is not a model that can run.

use checkpoint::Problem;
use plan::PlanError;
use thiserror::Error;

/// Why a checkpoint is not a model that can run.
#[derive(Debug, Error)]
pub enum ModelError {
    /// Another kind of model.
    #[error("config.json: model_type {model_type:?} is not read; gemma4 and gemma4_unified are")]
    Family {
        /// As the configuration has it; empty when it is absent.
        model_type: String,
    },
    /// A field of the configuration.
    #[error("config.json: {field}: {reason}")]
    Config {
        /// The path of the field.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Tensors, all of them at once.
    #[error("{} of the checkpoint {} not as the configuration wants:{}", count(problems.len()), if problems.len() == 1 { "is" } else { "are" }, list(problems))]
    Tensors {
        /// Each by name.
        problems: Vec<Problem>,
    },
    /// A rule of plans is broken: a fault of markbase or of sizes that do not fit together.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

fn count(tensors: usize) -> String {
    if tensors == 1 { "one tensor".into() } else { format!("{tensors} tensors") }
}

/// At most this many are spelled out; a folder of a wholly different model has thousands.
const LISTED: usize = 40;

fn list(problems: &[Problem]) -> String {
    let mut text = String::new();
    for problem in problems.iter().take(LISTED) {
        text.push_str(&format!("\n  {problem}"));
    }
    if problems.len() > LISTED {
        text.push_str(&format!("\n  and {} more", problems.len() - LISTED));
    }
    text
}
