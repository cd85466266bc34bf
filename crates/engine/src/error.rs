//! What goes wrong while sequences run.

use plan::BackendError;
use thiserror::Error;

/// What goes wrong while sequences run.
#[derive(Debug, Error)]
pub enum EngineError {
    /// The sequence is longer than the cache.
    #[error("{tokens} tokens do not fit into a context of {context}: shorten the text or give a larger --context")]
    TooLong {
        /// Tokens that the sequence would have.
        tokens: usize,
        /// The most that it may have.
        context: usize,
    },
    /// Other sequences hold the blocks that this one needs.
    #[error("no cache block is free: {held} of {total} {group} blocks are held by other sequences")]
    NoBlock {
        /// The group's name.
        group: String,
        /// Blocks held.
        held: usize,
        /// Blocks in all.
        total: usize,
    },
    /// A token that the model does not have.
    #[error("token id {token} is not in the vocabulary of {vocabulary}")]
    UnknownToken {
        /// The id.
        token: u32,
        /// Entries of the vocabulary.
        vocabulary: usize,
    },
    /// More rows than the engine was set up for; a fault of the caller.
    #[error(
        "a step of {rows} rows, {wanted} of them wanted, and the engine was set up for {max_rows} and {max_wanted}"
    )]
    TooManyRows {
        /// Rows of the step.
        rows: usize,
        /// Rows wanted.
        wanted: usize,
        /// The most rows.
        max_rows: usize,
        /// The most wanted rows.
        max_wanted: usize,
    },
    /// An option that leaves nothing to run; a fault of the caller.
    #[error("{name} is 0, and an engine needs at least one")]
    Options {
        /// The option.
        name: &'static str,
    },
    /// The model's result is no number: a damaged file, or a fault of the engine.
    #[error(
        "the logits of position {position} are not finite: the weights may be damaged; `markbase check` tells where it begins"
    )]
    NotFinite {
        /// The first such position.
        position: usize,
    },
    /// A rule of a request that has no meaning.
    #[error("{name} is {found}, wanted {wanted}")]
    Rule {
        /// The rule.
        name: &'static str,
        /// What it is.
        found: String,
        /// What it may be.
        wanted: &'static str,
    },
    /// A prompt that leaves no room for an answer, even alone.
    #[error("a prompt of {tokens} tokens leaves no room for an answer: {longest} tokens are the most together")]
    NeverFits {
        /// Tokens of the prompt.
        tokens: usize,
        /// The most that prompt and answer may have together.
        longest: usize,
    },
    /// The queue is full.
    #[error("{waiting} requests wait already: try again later")]
    Busy {
        /// Requests that wait.
        waiting: usize,
    },
    /// A constraint that leaves no token to choose, or speaks of another vocabulary; a fault of the constraint.
    #[error("the constraint of the answer allows no token after {generated} of it")]
    NothingAllowed {
        /// Tokens of the answer so far.
        generated: usize,
    },
    /// A sequence starts with something.
    #[error("the text is empty: give at least one token")]
    Empty,
    /// The backend's own.
    #[error(transparent)]
    Backend(#[from] BackendError),
}
