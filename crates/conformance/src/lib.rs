//! What a backend must agree on with the reference.
//!
//! Five questions, one function each: [`Suite::run`] (does every operation compute what it means, on
//! generated plans of one step?), [`divergence`] (at which step of a model does a backend part from another?),
//! [`invariance`] (do chunks, batches and neighbours leave every bit of a row alone?), [`finite`] (which value
//! is the first that is no number?), [`distribution`] (how far are the predicted distributions apart?).
//!
//! A backend is handed over as a [`Make`]: a function that makes one with nothing loaded.

mod cases;
mod distribution;
mod divergence;
mod error;
mod finite;
mod invariance;
mod random;
mod subject;
mod tensors;
mod tolerance;

pub use cases::{Case, CaseReport, Checked, Report, Suite};
pub use distribution::{Distribution, distribution};
pub use divergence::{Comparison, Divergence, DivergenceOptions, Place, StepDifference, divergence};
pub use error::CheckError;
pub use finite::{FirstNonFinite, finite};
pub use invariance::{Invariance, InvarianceDifference, InvarianceOptions, invariance};
pub use subject::{Make, Subject};
pub use tensors::TensorSet;
pub use tolerance::{Arithmetic, Quantity, Tolerance, tolerance};
