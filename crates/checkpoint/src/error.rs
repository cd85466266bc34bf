//! What can be wrong with a checkpoint: [`CheckpointError`] while it is opened or written,
//! [`Problem`] when a tensor is not what a model wants. Each says the thing, the wanted and the found.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::dtype::DType;
use crate::header::HeaderFault;

/// A folder or a file that cannot be opened, trusted or written.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// Nothing is there.
    #[error("{}: no such folder; give the folder that holds config.json and model.safetensors", path.display())]
    NoFolder {
        /// As it was given.
        path: PathBuf,
    },
    /// A file was given where a folder is wanted.
    #[error("{}: a file; give the folder that holds config.json and model.safetensors", path.display())]
    NotAFolder {
        /// As it was given.
        path: PathBuf,
    },
    /// A folder without the file that says what its model is.
    #[error("{folder}: no config.json in it; {hint}")]
    NoConfig {
        /// The folder's path or the built-in model's name.
        folder: String,
        /// What the folder has instead.
        hint: String,
    },
    /// A folder without weights in the one format that is read.
    #[error("{folder}: no model.safetensors in it; {hint}")]
    NoWeights {
        /// The folder's path or the built-in model's name.
        folder: String,
        /// What the folder has instead, and what to do.
        hint: String,
    },
    /// A stand-in that git left where the real file was not downloaded.
    #[error(
        "{file}: a Git LFS pointer of a few bytes, not the file itself; run `git lfs pull` in that folder or download the file anew"
    )]
    LfsPointer {
        /// The file.
        file: String,
    },
    /// A sidecar larger than anything sane.
    #[error("{file}: {found} bytes, and at most {limit} are read")]
    TooLarge {
        /// The file.
        file: String,
        /// The most that is read.
        limit: u64,
        /// Its size.
        found: u64,
    },
    /// Something that is no plain file stands where one is wanted.
    #[error("{file}: not a plain file")]
    NotAFile {
        /// The file.
        file: String,
    },
    /// A link in the folder whose file is gone, as an incomplete download leaves it.
    #[error("{file}: a link to a file that is not there; download it anew")]
    BrokenLink {
        /// The link.
        file: String,
    },
    /// A sidecar's name that would leave the folder.
    #[error("{name:?}: not the name of a file inside the folder")]
    BadName {
        /// As it was given.
        name: String,
    },
    /// A file of JSON that is not the object it should be.
    #[error("{file}: {reason}")]
    Json {
        /// The file.
        file: String,
        /// What is wrong, and where.
        reason: String,
    },
    /// A weight file whose header does not hold.
    #[error("{file}: {fault}")]
    Header {
        /// The file.
        file: String,
        /// What does not hold.
        fault: HeaderFault,
    },
    /// A weight file that this machine cannot address.
    #[error("{file}: {found} bytes, more than this machine can map")]
    Unmappable {
        /// The file.
        file: String,
        /// Its size.
        found: u64,
    },
    /// Shards that the index lists and the folder lacks.
    #[error("{index}: lists {} that the folder lacks: {}; download the missing files{hint}", plural(files.len(), "file"), listed(files))]
    MissingShards {
        /// The index.
        index: String,
        /// All of them, by name.
        files: Vec<String>,
        /// Empty, or what else could be meant.
        hint: String,
    },
    /// A tensor that the index promises and its shard lacks.
    #[error("{index}: promises {tensor} in {file}, which has no such tensor{elsewhere}")]
    MissingTensor {
        /// The index.
        index: String,
        /// The tensor.
        tensor: String,
        /// The shard named for it.
        file: String,
        /// Empty, or the shard that has it.
        elsewhere: String,
    },
    /// One name in two shards.
    #[error("{tensor}: in both {first} and {second}; one name may stand for one tensor only")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
        /// The shard read first.
        first: String,
        /// The other one.
        second: String,
    },
    /// Weights quantized by another project's method.
    #[error(
        "config.json: quantized by {method}, a layout that is not read; convert the model with mlx (affine, mxfp4, mxfp8 or nvfp4) or take the unquantized checkpoint"
    )]
    ForeignQuantization {
        /// `quant_method`, quoted.
        method: String,
    },
    /// A file being written was given something else than was announced for it.
    #[error("{file}: {reason}")]
    Write {
        /// The file being written.
        file: String,
        /// What differs.
        reason: String,
    },
}

/// Text of a file's author, fit for a line of an error: quoted, without control characters, short.
pub(crate) fn quoted(text: &str) -> String {
    const MOST_CHARACTERS: usize = 80;
    let start: String = text.chars().take(MOST_CHARACTERS).collect();
    let dots = if start.len() < text.len() { "..." } else { "" };
    format!("{start:?}{dots}")
}

/// Names for a line of an error: all of them, unless somebody made thousands.
fn listed(names: &[String]) -> String {
    const MOST_NAMES: usize = 200;
    let start = names[..names.len().min(MOST_NAMES)].join(", ");
    if names.len() > MOST_NAMES { format!("{start} and {} more", names.len() - MOST_NAMES) } else { start }
}

/// `1 file`, `2 files`.
fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// A tensor that is not what is wanted of it. Prints as one sentence that begins with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    kind: ProblemKind,
    tensor: String,
    sentence: String,
}

/// What sort of problem it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProblemKind {
    /// The tensor, or one that belongs to it, is not in the checkpoint.
    Missing,
    /// A dimension differs.
    Shape,
    /// The element type differs.
    Dtype,
    /// Stated bits and group size, the matrix and the packed tensors do not fit together.
    Packing,
    /// A quantization mode, width or group that is not read.
    Unsupported,
    /// config.json and the tensors contradict each other.
    Contradiction,
    /// Two statements of config.json, or two tensors, claim the same place.
    Ambiguous,
    /// A number out of its range.
    Value,
}

impl Problem {
    /// A problem with `tensor`; `sentence` tells the found and the wanted.
    pub fn new(kind: ProblemKind, tensor: &str, sentence: impl Into<String>) -> Problem {
        Problem { kind, tensor: tensor.to_owned(), sentence: sentence.into() }
    }

    /// What sort of problem it is.
    pub fn kind(&self) -> ProblemKind {
        self.kind
    }

    /// The full name of the tensor, or of the module where it is not one tensor's fault.
    pub fn tensor(&self) -> &str {
        &self.tensor
    }

    pub(crate) fn missing(tensor: &str, wanted: impl fmt::Display) -> Problem {
        Problem::new(ProblemKind::Missing, tensor, format!("not in the checkpoint, wanted {wanted}"))
    }

    pub(crate) fn shape(tensor: &str, found: &[usize], wanted: &[usize]) -> Problem {
        Problem::new(ProblemKind::Shape, tensor, format!("shape {found:?}, wanted {wanted:?}"))
    }

    pub(crate) fn dtype(tensor: &str, found: DType, wanted: &str) -> Problem {
        Problem::new(ProblemKind::Dtype, tensor, format!("elements of type {found}, wanted {wanted}"))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.tensor, self.sentence)
    }
}

impl std::error::Error for Problem {}
