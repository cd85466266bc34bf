//! One file an operation. Rows are handled one at a time wherever an operation allows it, so a row's
//! result cannot depend on its neighbours.

pub mod add;
pub mod attention;
pub mod embed;
pub mod experts;
pub mod gelu_mul;
pub mod linear;
pub mod rms_norm;
pub mod rope;
pub mod route;
pub mod sample;
pub mod scale;
pub mod softcap;
