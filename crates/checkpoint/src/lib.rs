//! Checkpoint files to named, typed, proven tensors.
//!
//! [`Checkpoint::open`] maps the safetensors files of a folder and proves every size before any
//! byte is used; [`Checkpoint::matrix`] and [`Checkpoint::vector`] prove that a tensor is what a
//! model wants. [`quant`] says what the quantized formats mean, one scalar function each.

mod checkpoint;
mod dtype;
mod error;
mod folder;
mod header;
mod matrix;
pub mod quant;
mod quantization;
mod source;
mod storage;
mod tensor;
mod writer;

pub use checkpoint::{Checkpoint, WeightFile};
pub use dtype::{DType, decode_floats, encode_floats};
pub use error::{CheckpointError, Problem, ProblemKind};
pub use folder::Folder;
pub use header::HeaderFault;
pub use matrix::{MatrixSource, VectorSource};
pub use quant::{PackedRows, QuantFormat, dequantize, quantize};
pub use quantization::{Quantization, Stated};
pub use tensor::{TensorInfo, TensorView};
pub use writer::{TensorSpec, Writer, write_index};
