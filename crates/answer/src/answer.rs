//! What an answer is made of.

use chat::ParsedCall;
use engine::Timings;

/// A piece of an answer as it grows.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// So many tokens of the prompt are read.
    Prompt {
        /// Read so far.
        done: usize,
        /// In all.
        total: usize,
    },
    /// More of what the model says.
    Text(String),
    /// More of what it thinks.
    Thought(String),
    /// It calls a tool; calls come whole, in order.
    Call(ParsedCall),
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// What the model says.
    pub text: String,
    /// What it thought before.
    pub thought: String,
    /// The tools that it calls, in order.
    pub calls: Vec<ParsedCall>,
    /// Why it ended.
    pub finish: Finish,
    /// Tokens, counted.
    pub usage: Usage,
    /// What it took.
    pub timings: Timings,
    /// `[tokens]`: its ids, without the stop id.
    pub ids: Vec<u32>,
    /// `[tokens]`: how likely each was, if that was asked for.
    pub scores: Option<Vec<TokenScore>>,
    /// The seed that gives it again.
    pub seed: u64,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model came to its end, or to a stop text.
    Stop,
    /// The model came to its end and calls tools.
    ToolCalls,
    /// No more tokens were allowed.
    Length,
    /// Nobody listened any more.
    Cancelled,
}

impl Finish {
    /// The word that the field's programs know.
    pub fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::ToolCalls => "tool_calls",
            Finish::Length => "length",
            Finish::Cancelled => "cancelled",
        }
    }
}

/// Tokens of a question and its answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: usize,
    /// Generated, thoughts and the stop id included; of all answers where the best of several was taken.
    pub completion_tokens: usize,
    /// Generated inside thoughts.
    pub thought_tokens: usize,
}

/// How likely a token was: the natural logarithm of its probability before any sampling rule.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenScore {
    /// The token.
    pub id: u32,
    /// Its text; bytes that are no whole characters are U+FFFD.
    pub text: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its log-probability.
    pub log_probability: f32,
    /// The likeliest tokens in its place, the likeliest first; themselves without such.
    pub top: Vec<TokenScore>,
}
