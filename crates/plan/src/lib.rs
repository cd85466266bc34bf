//! One forward step as data, and what a backend must do with it.
//!
//! A [`Plan`] is made by a model, checked, and handed to a [`Backend`], which fuses it, lays out its
//! memory, checks that layout and then only ever executes it. Nothing here computes a number of a model.

mod backend;
mod build;
mod cache;
mod check;
mod cost;
mod inputs;
mod layout;
mod listing;
mod mask;
mod op;
mod sampling;
mod value;
mod weight;

pub use backend::{
    Backend, BackendError, CompileOptions, ExecutableId, LoadProgress, LogProbabilities, MemoryInfo, NonFinite,
    Sampled, StepOutputs, Ticket,
};
pub use build::PlanBuilder;
pub use cache::{CacheGroup, CacheLayer, CacheLayout, CacheRef};
pub use check::{Plan, PlanError};
pub use cost::{Cost, RowCounts};
pub use inputs::{InputError, StepInputs};
pub use layout::{Layout, LayoutError, Lifetime, lay_out};
pub use listing::Listing;
pub use mask::TokenMask;
pub use op::{Op, Rope, ScaleBy, Site, Step};
pub use sampling::{Adjustment, Choice, Sampling, uniform};
pub use value::{Element, Rows, Slice, Value, ValueSpec};
pub use weight::{RowRange, WeightId, WeightShape, WeightSource, WeightSpec, WeightUse};
