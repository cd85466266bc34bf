//! What is asked of the engine, who hears the answer, and how it ends.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use plan::{LogProbabilities, TokenMask};

use crate::{EngineError, Rules};

/// One answer that is asked for.
pub struct Request {
    /// Token ids of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// The most tokens to generate; the context may end the answer earlier.
    pub max_tokens: usize,
    /// Ids that end the answer. The id itself is counted, and not handed to the client.
    pub stop: Arc<[u32]>,
    /// How each token is chosen.
    pub rules: Rules,
    /// `Some(k)`: the log-probability of each token, and of the `k` likeliest in its place.
    pub log_probabilities: Option<u32>,
    /// What may come next, where something restricts it.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Who hears the answer.
    pub client: Box<dyn Client>,
}

/// Hears one answer, on the engine's thread: what it does holds up everybody's next step.
pub trait Client: Send {
    /// `done` of the prompt's `total` tokens are read.
    fn prompt(&mut self, done: usize, total: usize) {
        let _ = (done, total);
    }

    /// A token of the answer; the client may end it here.
    fn token(&mut self, token: Token) -> ControlFlow<()>;

    /// The end, told exactly once; nothing comes after.
    fn ended(&mut self, end: Result<Finished, Arc<EngineError>>);

    /// Whether nobody listens any more; asked before every step, while the request waits too.
    fn is_gone(&self) -> bool {
        false
    }
}

/// Says which tokens may come next: a grammar.
pub trait Constraint: Send {
    /// The tokens that may come next, of as many entries as the vocabulary has, at least one of them set; `None` if
    /// all may. Asked before a token is chosen, perhaps more than once.
    fn allowed(&mut self) -> Option<Arc<TokenMask>>;

    /// The token that was chosen, a stop id too.
    fn accept(&mut self, token: u32);
}

/// A token of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// If they were asked for.
    pub log_probabilities: Option<LogProbabilities>,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// This stop id came.
    StopId(u32),
    /// The client said so.
    Client,
    /// `max_tokens`, or the end of the context.
    Length,
    /// The client was gone.
    Cancelled,
}

/// An answer that ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Finished {
    /// Why.
    pub reason: FinishReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated, a stop id included.
    pub generated_tokens: usize,
    /// How often its blocks were taken away for others, and its tokens read again.
    pub preemptions: usize,
    /// What it took.
    pub timings: Timings,
}

/// What an answer took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Timings {
    /// From submission to the first step.
    pub queue: Duration,
    /// From the first step to the first token; to the end if there was none.
    pub prompt: Duration,
    /// From the first token to the last.
    pub decode: Duration,
    /// Tokens generated in that time: all but the first.
    pub decoded: usize,
}
