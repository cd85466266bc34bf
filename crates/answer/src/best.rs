//! The best of several answers: of those that came to their end the one whose tokens are likeliest on average, the
//! first of equals. An answer that failed or was cancelled counts only if none did better.

use std::sync::{Arc, Mutex, PoisonError};

use crate::Listener;
use crate::answer::{Answer, Finish, Piece};
use crate::error::{Error, Result};

/// One of the listeners of several answers, which share what they heard.
#[derive(Clone)]
pub(crate) struct Best(Arc<Mutex<Shared>>);

struct Shared {
    listener: Box<dyn Listener>,
    left: usize,
    best: Option<Answer>,
    error: Option<Error>,
    /// Tokens of the prompt that were told to be read.
    told: usize,
    completion_tokens: usize,
    /// Whether the caller wants to see the log-probabilities too.
    shows_scores: bool,
}

impl Best {
    pub fn new(listener: Box<dyn Listener>, answers: usize, shows_scores: bool) -> Best {
        let shared =
            Shared { listener, left: answers, best: None, error: None, told: 0, completion_tokens: 0, shows_scores };
        Best(Arc::new(Mutex::new(shared)))
    }
}

/// The mean log-probability of an answer's tokens; the length of one that was cancelled.
fn score(answer: &Answer) -> f64 {
    if answer.finish == Finish::Cancelled {
        return answer.ids.len() as f64;
    }
    let scores = answer.scores.as_deref().unwrap_or_default();
    let sum: f64 = scores.iter().map(|score| f64::from(score.log_probability)).sum();
    if scores.is_empty() { f64::NEG_INFINITY } else { sum / scores.len() as f64 }
}

impl Listener for Best {
    fn piece(&mut self, piece: Piece) {
        // Which answer is the best is known at the end; until then only reading can be told.
        if let Piece::Prompt { done, .. } = piece {
            let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if done > shared.told {
                shared.told = done;
                shared.listener.piece(piece);
            }
        }
    }

    fn answered(&mut self, answer: Result<Answer>) {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.left -= 1;
        match answer {
            Err(error) => shared.error = Some(error),
            Ok(answer) => {
                shared.completion_tokens += answer.usage.completion_tokens;
                let rank = |answer: &Answer| (answer.finish != Finish::Cancelled, score(answer));
                if shared.best.as_ref().is_none_or(|best| rank(&answer) > rank(best)) {
                    shared.best = Some(answer);
                }
            }
        }
        if shared.left > 0 {
            return;
        }
        let outcome = match (shared.error.take(), shared.best.take()) {
            (_, Some(mut answer)) => {
                answer.usage.completion_tokens = shared.completion_tokens;
                if !shared.shows_scores {
                    answer.scores = None;
                }
                Ok(answer)
            }
            (Some(error), None) => Err(error),
            (None, None) => return,
        };
        if let Ok(answer) = &outcome {
            let pieces = [Piece::Thought(answer.thought.clone()), Piece::Text(answer.text.clone())];
            let calls = answer.calls.iter().cloned().map(Piece::Call);
            pieces.into_iter().chain(calls).for_each(|piece| shared.listener.piece(piece));
        }
        shared.listener.answered(outcome);
    }

    fn is_gone(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).listener.is_gone()
    }
}
