//! One sequence from its prompt to its end.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use plan::Sampling;

use crate::{Engine, EngineError, Sequence, Wanted, Work};

/// What is to be generated.
#[derive(Debug, Clone)]
pub struct Generation<'a> {
    /// Token ids of the prompt.
    pub prompt: &'a [u32],
    /// The most tokens to generate.
    pub max_tokens: usize,
    /// How each is chosen.
    pub sampling: Sampling,
    /// Ids that end it; the id itself is counted and not shown.
    pub stop: &'a [u32],
}

/// Why it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// A stop id, or the caller's word.
    Stop,
    /// `max_tokens`, or the end of the context.
    Length,
}

/// What it took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Generated {
    /// Why it ended.
    pub finish: Finish,
    /// Tokens generated, a stop id included.
    pub tokens: usize,
    /// From the call to the first token.
    pub prompt_time: Duration,
    /// From the first token to the last.
    pub decode_time: Duration,
}

impl Engine {
    /// Generates after `sequence`, handing each token that is not a stop id to `each`, which may end it.
    pub fn generate(
        &mut self,
        sequence: &mut Sequence,
        request: &Generation,
        mut each: impl FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Generated, EngineError> {
        let started = Instant::now();
        let Some((last, before)) = request.prompt.split_last() else { return Err(EngineError::Empty) };
        let context = self.options().context;
        if sequence.length() + request.prompt.len() > context {
            return Err(EngineError::TooLong { tokens: sequence.length() + request.prompt.len(), context });
        }
        let ended = |finish, tokens, prompt_time| Generated {
            finish,
            tokens,
            prompt_time,
            decode_time: started.elapsed().saturating_sub(prompt_time),
        };
        // The last tokens of the prompt go together with the row that is wanted.
        let tail = before.len() % self.options().max_rows;
        self.feed(sequence, &before[..before.len() - tail], 0..0, |_, _| ControlFlow::Continue(()))?;
        let mut rows = before[before.len() - tail..].to_vec();
        rows.push(*last);
        let (mut tokens, mut prompt_time) = (0, Duration::ZERO);
        while tokens < request.max_tokens {
            if sequence.length() + rows.len() > context {
                return Ok(ended(Finish::Length, tokens, prompt_time));
            }
            let piece = Work {
                sequence: &mut *sequence,
                tokens: &rows,
                wanted: Wanted::Last,
                sampling: Some(request.sampling),
            };
            let outputs = self.step(&mut [piece])?;
            if outputs.non_finite.is_some() {
                return Err(EngineError::NotFinite { position: sequence.length() - 1 });
            }
            let token = outputs.sampled[0].token;
            if tokens == 0 {
                prompt_time = started.elapsed();
            }
            tokens += 1;
            if request.stop.contains(&token) || each(token).is_break() {
                return Ok(ended(Finish::Stop, tokens, prompt_time));
            }
            rows = vec![token];
        }
        Ok(ended(Finish::Length, tokens, prompt_time))
    }
}
