//! The CPU backend: a team of threads that walks the launches of a plan, with kernels of the best
//! instruction set that the processor has.

mod backend;
mod cache;
mod executable;
mod experts;
mod fuse;
pub mod isa;
pub mod kernels;
pub mod linear;
pub mod probe;
mod run;
pub mod team;
mod weights;

pub use backend::{Cpu, CpuOptions, Precision};
