//! A model's files beside its weights: what text needs, and what needs no weights.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::CheckpointError;
use crate::source::Source;

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

const CONFIG_LIMIT_BYTES: u64 = 16 << 20;
const INDEX_LIMIT_BYTES: u64 = 64 << 20;
const TOKENIZER_LIMIT_BYTES: u64 = 64 << 20;
const SIDECAR_LIMIT_BYTES: u64 = 1 << 20;

/// A model's folder, or a model that is part of the program. Nothing in it was looked at yet.
pub struct Folder {
    pub(crate) source: Source,
}

impl Folder {
    /// A folder, proved to be one.
    pub fn open(dir: impl AsRef<Path>) -> Result<Folder, CheckpointError> {
        Ok(Folder { source: Source::folder(dir.as_ref())? })
    }

    /// A model that is part of the program: its files by name.
    pub fn from_memory(name: &str, files: &[(&str, &'static [u8])]) -> Folder {
        let files = files.iter().map(|(name, bytes)| (name.to_string(), *bytes)).collect();
        Folder { source: Source::Memory { name: name.to_owned(), files } }
    }

    /// How people call the model: the folder's name, or the name given to [`Folder::from_memory`].
    pub fn name(&self) -> String {
        self.source.model_name()
    }

    /// The folder's path or the built-in model's name, for errors.
    pub fn place(&self) -> String {
        self.source.place()
    }

    /// A file (`generation_config.json`, `tokenizer.json`, `chat_template.jinja`, ...), whole; `None` if there is
    /// none. At most 64 MiB of `tokenizer.json`, 16 MiB of `config.json`, 1 MiB of others.
    pub fn file(&self, name: &str) -> Result<Option<Vec<u8>>, CheckpointError> {
        self.source.small(name, limit_bytes(name))
    }

    /// A file that is a JSON object; `None` if there is none.
    pub fn json(&self, name: &str) -> Result<Option<Map<String, Value>>, CheckpointError> {
        self.source.object(name, limit_bytes(name))
    }
}

pub(crate) fn limit_bytes(name: &str) -> u64 {
    match name {
        CONFIG => CONFIG_LIMIT_BYTES,
        INDEX => INDEX_LIMIT_BYTES,
        "tokenizer.json" => TOKENIZER_LIMIT_BYTES,
        _ => SIDECAR_LIMIT_BYTES,
    }
}
