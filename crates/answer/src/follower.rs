//! Follows one answer token by token: ids become text, thought and calls, and stop texts end it at the token that
//! completes them.

use std::ops::ControlFlow;
use std::sync::Arc;

use chat::{
    ControlText, DeclaredTool, Delta, ParsedCall, ReplyOptions, ReplyParser, StopIds, StopStrings, TextStream,
    Tokenizer,
};
use engine::{Client, EngineError, FinishReason, Finished, Token};
use plan::LogProbabilities;

use crate::Listener;
use crate::answer::{Answer, Finish, Piece, TokenScore, Usage};
use crate::error::Result;

/// What makes pieces of ids.
pub(crate) enum Splitter {
    /// A turn: text, thought, calls.
    Chat(Box<ReplyParser>),
    /// Text alone.
    Raw { stream: TextStream, stops: StopStrings, is_ended: bool },
}

impl Splitter {
    pub fn chat(
        tokenizer: Arc<Tokenizer>,
        prompt: &[u32],
        tools: Vec<DeclaredTool>,
        stop: Vec<String>,
        stop_ids: StopIds,
    ) -> Result<Splitter> {
        let options = ReplyOptions { after_prompt: prompt.to_vec(), tools, stop, stop_ids: stop_ids.ids().to_vec() };
        Ok(Splitter::Chat(Box::new(ReplyParser::new(tokenizer, options)?)))
    }

    pub fn raw(tokenizer: Arc<Tokenizer>, stop: &[String]) -> Result<Splitter> {
        let stream = TextStream::new(tokenizer, ControlText::Hide);
        Ok(Splitter::Raw { stream, stops: StopStrings::new(stop)?, is_ended: false })
    }

    /// The pieces that are certain with this token, and whether the answer ends with it.
    fn push(&mut self, id: u32) -> (Vec<Delta>, bool) {
        match self {
            Splitter::Chat(parser) => {
                let deltas = parser.push(id);
                (deltas, parser.ended().is_some())
            }
            Splitter::Raw { stream, stops, is_ended } => {
                let watched = stops.push(&stream.push(id));
                *is_ended = watched.stopped.is_some();
                (vec![Delta::Text(watched.text)], *is_ended)
            }
        }
    }

    /// What was held back.
    fn finish(&mut self) -> Vec<Delta> {
        match self {
            Splitter::Chat(parser) => parser.finish(),
            Splitter::Raw { is_ended: true, .. } => vec![],
            Splitter::Raw { stream, stops, .. } => {
                let watched = stops.push(&stream.finish());
                let rest = if watched.stopped.is_some() { String::new() } else { stops.finish() };
                vec![Delta::Text(watched.text + &rest)]
            }
        }
    }

    fn thought_tokens(&self) -> usize {
        match self {
            Splitter::Chat(parser) => parser.thought_tokens(),
            Splitter::Raw { .. } => 0,
        }
    }
}

/// The client of one answer.
pub(crate) struct Follower {
    tokenizer: Arc<Tokenizer>,
    splitter: Splitter,
    listener: Box<dyn Listener>,
    text: String,
    thought: String,
    calls: Vec<ParsedCall>,
    ids: Vec<u32>,
    scores: Option<Vec<TokenScore>>,
    seed: u64,
}

impl Follower {
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        splitter: Splitter,
        seed: u64,
        is_scored: bool,
        listener: Box<dyn Listener>,
    ) -> Follower {
        let scores = is_scored.then(Vec::new);
        let (text, thought, calls, ids) = Default::default();
        Follower { tokenizer, splitter, listener, text, thought, calls, ids, scores, seed }
    }

    fn tell(&mut self, deltas: Vec<Delta>) {
        for delta in deltas {
            let piece = match delta {
                Delta::Text(text) | Delta::Thought(text) if text.is_empty() => continue,
                Delta::Text(text) => {
                    self.text.push_str(&text);
                    Piece::Text(text)
                }
                Delta::Thought(text) => {
                    self.thought.push_str(&text);
                    Piece::Thought(text)
                }
                Delta::Call { call, .. } => {
                    self.calls.push(call.clone());
                    Piece::Call(call)
                }
            };
            self.listener.piece(piece);
        }
    }

    fn score(&self, id: u32, log_probability: f32) -> TokenScore {
        let bytes = self.tokenizer.token_bytes(id).unwrap_or_default().into_owned();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        TokenScore { id, text, bytes, log_probability, top: vec![] }
    }

    fn note(&mut self, id: u32, found: Option<LogProbabilities>) {
        let Some(found) = found else { return };
        let top = found.top.iter().map(|&(id, log_probability)| self.score(id, log_probability)).collect();
        let score = TokenScore { top, ..self.score(id, found.chosen) };
        if let Some(scores) = &mut self.scores {
            scores.push(score);
        }
    }
}

impl Client for Follower {
    fn prompt(&mut self, done: usize, total: usize) {
        self.listener.piece(Piece::Prompt { done, total });
    }

    fn token(&mut self, token: Token) -> ControlFlow<()> {
        self.ids.push(token.id);
        self.note(token.id, token.log_probabilities);
        let (deltas, ends) = self.splitter.push(token.id);
        self.tell(deltas);
        if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn ended(&mut self, end: std::result::Result<Finished, Arc<EngineError>>) {
        if let (Ok(Finished { reason: FinishReason::StopId(id), .. }), Splitter::Chat(parser)) =
            (&end, &mut self.splitter)
        {
            // It is no token of the answer, but it ends the call that is open.
            let deltas = parser.push(*id);
            self.tell(deltas);
        }
        let deltas = self.splitter.finish();
        self.tell(deltas);
        let finished = match end {
            Ok(finished) => finished,
            Err(error) => return self.listener.answered(Err(error.into())),
        };
        let finish = match finished.reason {
            FinishReason::StopId(_) | FinishReason::Client if self.calls.is_empty() => Finish::Stop,
            FinishReason::StopId(_) | FinishReason::Client => Finish::ToolCalls,
            FinishReason::Length => Finish::Length,
            FinishReason::Cancelled => Finish::Cancelled,
        };
        self.listener.answered(Ok(Answer {
            text: std::mem::take(&mut self.text),
            thought: std::mem::take(&mut self.thought),
            calls: std::mem::take(&mut self.calls),
            finish,
            usage: Usage {
                prompt_tokens: finished.prompt_tokens,
                completion_tokens: finished.generated_tokens,
                thought_tokens: self.splitter.thought_tokens(),
            },
            timings: finished.timings,
            ids: std::mem::take(&mut self.ids),
            scores: self.scores.take(),
            seed: self.seed,
        }));
    }

    fn is_gone(&self) -> bool {
        self.listener.is_gone()
    }
}
