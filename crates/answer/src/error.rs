//! What goes wrong between a question and its answer.

use std::sync::Arc;

use thiserror::Error;

/// The result of asking.
pub type Result<T> = std::result::Result<T, Error>;

/// What goes wrong between a question and its answer.
#[derive(Debug, Error)]
pub enum Error {
    /// The model has no tokenizer.
    #[error("{place}: no tokenizer.json in it, so text cannot be read or written; copy it from the original model")]
    NoTokenizer {
        /// The model's folder.
        place: String,
    },
    /// A file that is to hold text does not.
    #[error("{file}: not UTF-8 text")]
    NotText {
        /// The file's name.
        file: &'static str,
    },
    /// The model's chat template cannot be used.
    #[error("{0}")]
    Template(String),
    /// A medium that this program cannot show to the model.
    #[error("messages[{message}]: the {kind} in it cannot be shown to the model by this version; leave it out")]
    Medium {
        /// The message, from 0.
        message: usize,
        /// `image`, `audio`, `video`.
        kind: &'static str,
    },
    /// The text side.
    #[error(transparent)]
    Chat(#[from] chat::Error),
    /// The model's files.
    #[error(transparent)]
    Files(#[from] checkpoint::CheckpointError),
    /// The engine ended the answer; perhaps several answers by one fault.
    #[error(transparent)]
    Engine(#[from] Arc<engine::EngineError>),
}
