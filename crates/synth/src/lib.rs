//! Checkpoints of random weights, in every size of Gemma 4 and every format: for benchmarks, load
//! tests and property tests.
//!
//! [`write()`] makes a folder like that of a real model: shards and their index, `config.json`,
//! tokenizer, chat template. The numbers are drawn so that activations, attention scores and logits
//! stay in the range of a trained model's; what such a model says is noise. The same [`Recipe`]
//! gives the same bytes on every machine.

mod content;
mod error;
mod random;
mod shape;
mod sidecars;
mod size;
mod tensors;
mod tiny;
mod tokenizer;
mod write;

pub use error::SynthError;
pub use size::{Size, UnknownSize, config};
pub use tiny::{TinyKind, TinyOptions, tiny_config};
pub use tokenizer::tokenizer_json;
pub use write::{Layout, Override, Progress, Recipe, Summary, write};
