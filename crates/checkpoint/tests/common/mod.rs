//! Small checkpoints for tests, built byte by byte, so that they may be wrong.
#![allow(dead_code)] // Each test file uses its own part.

use std::path::Path;

use serde_json::{Value, json};

/// A safetensors file of this header and data, whatever they say.
pub fn file_of(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

/// A tensor: name, type, shape. Its bytes are zeros unless [`file_with`] is given others.
pub type Spec<'a> = (&'a str, &'a str, &'a [usize]);

pub fn bytes_of(spec: &Spec) -> usize {
    let size = match spec.1 {
        "F64" | "I64" | "U64" => 8,
        "F32" | "I32" | "U32" => 4,
        "F16" | "BF16" | "I16" | "U16" => 2,
        _ => 1,
    };
    spec.2.iter().product::<usize>() * size
}

/// A sound file of zeros.
pub fn file_with(tensors: &[Spec]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for spec in tensors {
        let start = end;
        end += bytes_of(spec);
        header.insert(spec.0.into(), json!({"dtype": spec.1, "shape": spec.2, "data_offsets": [start, end]}));
    }
    file_of(&Value::Object(header).to_string(), &vec![0; end])
}

/// Lives as long as the process: what [`markbase_checkpoint::Checkpoint::from_memory`] wants.
pub fn leak(bytes: Vec<u8>) -> &'static [u8] {
    Box::leak(bytes.into_boxed_slice())
}

/// A model in memory of this configuration and these tensors, all zeros.
pub fn model(
    config: &Value,
    tensors: &[Spec],
) -> Result<markbase_checkpoint::Checkpoint, markbase_checkpoint::CheckpointError> {
    let config = leak(config.to_string().into_bytes());
    let weights = leak(file_with(tensors));
    markbase_checkpoint::Checkpoint::from_memory("tiny", &[("config.json", config), ("model.safetensors", weights)])
}

/// Puts files into a folder.
pub fn fill(folder: &Path, files: &[(&str, &[u8])]) {
    for (name, bytes) in files {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
}
