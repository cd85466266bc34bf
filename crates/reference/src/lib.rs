//! The meaning of every operation, in plain loops: sums in f64, values in f32, one thread, no fusion.
//! Where another backend differs beyond its stated tolerance, that backend is wrong.

mod backend;
mod cache;
pub mod ops;
mod weights;

pub use backend::Reference;
