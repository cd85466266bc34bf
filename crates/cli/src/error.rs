//! What ends a command: one sentence for the person who gave it.

use std::path::PathBuf;

/// What ends a command.
#[derive(Debug)]
pub enum Error {
    /// The checkpoint, the model, the engine, the text: each says its own.
    Told(Box<dyn std::error::Error + Send + Sync>),
    /// A file that the command was given.
    File { path: PathBuf, reason: String },
    /// An argument that does not go with the rest.
    Argument(String),
    /// Standard output refused.
    Output(std::io::Error),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Told(error) => write!(f, "{error}"),
            Error::File { path, reason } => write!(f, "{}: {reason}", path.display()),
            Error::Argument(reason) => f.write_str(reason),

            Error::Output(error) => write!(f, "standard output: {error}"),
        }
    }
}

macro_rules! told {
    ($($from:ty),*) => { $(
        impl From<$from> for Error {
            fn from(error: $from) -> Self {
                Error::Told(Box::new(error))
            }
        }
    )* };
}

told!(
    conformance::CheckError,
    checkpoint::CheckpointError,
    model::ModelError,
    engine::EngineError,
    answer::Error,
    chat::Error,
    ::plan::BackendError,
    ::synth::SynthError
);

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Error::Output(error)
    }
}
