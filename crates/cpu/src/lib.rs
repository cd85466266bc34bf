//! The CPU backend.

pub mod isa;
pub mod kernels;
pub mod linear;
pub mod team;
