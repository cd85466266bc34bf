//! Many requests, one device. The engine knows token ids, never text; it is handed a plan and a backend
//! and looks inside neither.
//!
//! [`Engine`] runs steps over [`Sequence`]s and keeps their cache blocks; [`Scheduler`] decides which rows run when,
//! from [`Request`]s to their ends.

mod batch;
mod block;
mod engine;
mod error;
mod request;
mod rules;
mod scheduler;
mod sequence;
mod share;

pub use batch::{Wanted, Work};
pub use block::{Block, BlockPool};
pub use engine::{Engine, EngineOptions};
pub use error::EngineError;
pub use request::{Client, Constraint, FinishReason, Finished, Request, Timings, Token};
pub use rules::Rules;
pub use scheduler::{Scheduler, SchedulerOptions, Stats};
pub use sequence::Sequence;
