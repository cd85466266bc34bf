//! Everything that keeps a synthetic checkpoint from being written.

use std::io;
use std::path::PathBuf;

use checkpoint::{CheckpointError, QuantFormat};

/// Why no checkpoint was written. Nothing is left in its place then.
#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    /// A field of the recipe's configuration is absent, of another kind, or too large.
    #[error("config: {field}: {reason}")]
    Config {
        /// Its path, as `text_config.hidden_size`.
        field: String,
        /// What is wrong with it.
        reason: String,
    },

    /// The vocabulary cannot hold the tokens that every text needs.
    #[error(
        "config: text_config.vocab_size: {found} tokens, wanted at least {wanted}: control tokens, bytes and characters"
    )]
    Vocabulary {
        /// As configured.
        found: usize,
        /// The least.
        wanted: usize,
    },

    /// The original layout knows no quantization.
    #[error("the original layout is not quantized; write {format} in the MLX layout")]
    QuantizedOriginal {
        /// What was asked for.
        format: QuantFormat,
    },

    /// An override names no module.
    #[error("no module's path ends with {suffix:?}; say a name such as router.proj or layers.0.mlp.down_proj")]
    UnknownModule {
        /// As given.
        suffix: String,
    },

    /// An override in a checkpoint that is not quantized at all.
    #[error("{suffix}: given a format of its own, but the checkpoint has none; name the checkpoint's format too")]
    OverrideOfDense {
        /// Of the first such module.
        suffix: String,
    },

    /// The folder has something in it.
    #[error("{}: not empty; name a folder that does not exist yet", .path.display())]
    NotEmpty {
        /// As given.
        path: PathBuf,
    },

    /// There is something else of that name.
    #[error("{}: not a folder; name a folder that does not exist yet", .path.display())]
    NotAFolder {
        /// As given.
        path: PathBuf,
    },

    /// A path that ends in no name.
    #[error("{}: not a name for a new folder", .path.display())]
    NoName {
        /// As given.
        path: PathBuf,
    },

    /// The disk is too full.
    #[error("{}: {wanted} bytes are needed, {free} are free on this disk; make room or name a folder on another disk", .path.display())]
    DiskFull {
        /// The folder that was to be written.
        path: PathBuf,
        /// Bytes of the whole checkpoint.
        wanted: u64,
        /// Bytes that the system would give.
        free: u64,
    },

    /// The caller stopped it.
    #[error("stopped after {done_bytes} of {total_bytes} bytes; nothing was kept")]
    Stopped {
        /// Bytes written before.
        done_bytes: u64,
        /// Bytes of all tensors.
        total_bytes: u64,
    },

    /// The system refused an operation.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Its reason.
        source: io::Error,
    },

    /// A weight file could not be written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}
