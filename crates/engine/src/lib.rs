//! Many sequences, one device. The engine knows token ids, never text; it is handed a plan and a backend
//! and looks inside neither.

mod batch;
mod block;
mod engine;
mod error;
mod generate;
mod sequence;

pub use batch::{Wanted, Work};
pub use block::{Block, BlockPool};
pub use engine::{Engine, EngineOptions};
pub use error::EngineError;
pub use generate::{Finish, Generated, Generation};
pub use sequence::Sequence;
