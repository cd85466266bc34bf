//! Why a check could not be made; a check that was made and failed is a report, not an error.

use checkpoint::CheckpointError;
use engine::EngineError;
use plan::{BackendError, InputError, PlanError};
use thiserror::Error;

/// Why a check could not be made.
#[derive(Debug, Error)]
pub enum CheckError {
    /// Sequences cannot run.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The backend refuses.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A generated plan breaks a rule: a fault of the generator.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Generated inputs break a rule: a fault of the generator.
    #[error(transparent)]
    Inputs(#[from] InputError),
    /// A checkpoint made in memory breaks a rule.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Nothing to check with.
    #[error("a check needs at least one token: give a prompt")]
    NoTokens,
    /// A backend returned another number of values than it was asked for.
    #[error("{backend} returned {found} numbers of {value}, wanted {wanted}")]
    Kept {
        /// The backend's name.
        backend: String,
        /// The value's name.
        value: String,
        /// Numbers asked for.
        wanted: usize,
        /// Numbers returned.
        found: usize,
    },
    /// A backend returned no tokens where one was to be chosen, or too many.
    #[error("{backend} chose {found} tokens, wanted {wanted}")]
    Sampled {
        /// The backend's name.
        backend: String,
        /// Rows with a sampling rule.
        wanted: usize,
        /// Tokens returned.
        found: usize,
    },
}
