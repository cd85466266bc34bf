//! The machine: what an id means depends on what is open, a call, a thought or neither.

use std::collections::VecDeque;
use std::sync::Arc;

use super::grammar::Grammar;
use super::marker::{CALL_CLOSE, CALL_OPEN, Marker, marker};
use super::thought::Thoughts;
use super::tool::DeclaredTool;
use super::value::Ending;
use super::{Delta, Ended, ParsedCall, ReplyOptions, call};
use crate::error::Result;
use crate::stop::StopStrings;
use crate::stream::{ControlText, TextStream};
use crate::tokenizer::Tokenizer;

/// Ids in, pieces of the reply out. Memory is that of what is held back: at most one call and what may be
/// part of it. Time is linear in the ids.
#[derive(Debug)]
pub struct ReplyParser {
    tokenizer: Arc<Tokenizer>,
    tools: Vec<DeclaredTool>,
    stop_ids: Vec<u32>,
    stops: StopStrings,
    stream: TextStream,
    thoughts: Thoughts,
    thought_tokens: usize,
    call: Option<OpenCall>,
    num_calls: usize,
    /// Ids to read before any that are pushed.
    queue: VecDeque<u32>,
    status: Status,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Running,
    Ended(Ended),
    Finished,
}

/// A call that has not ended.
#[derive(Debug, Default)]
struct OpenCall {
    /// The ids after `<|tool_call>`, each with the length that `body` had before it.
    tokens: Vec<(u32, usize)>,
    body: String,
    grammar: Grammar,
    /// The first marker in an open string: the call ended here if it is not part of the string.
    candidate: Option<End>,
    /// Whether `<|channel>` came last, and not `<channel|>`.
    has_channel: bool,
}

/// Where a call ends.
#[derive(Debug, Clone, Copy)]
struct End {
    /// Number of tokens before it.
    token: usize,
    /// Length of the text before it.
    len: usize,
}

impl ReplyParser {
    /// At the start of a reply. An empty stop string is an error.
    pub fn new(tokenizer: Arc<Tokenizer>, options: ReplyOptions) -> Result<Self> {
        Ok(Self {
            thoughts: thoughts_after(&tokenizer, &options.after_prompt),
            stream: TextStream::new(Arc::clone(&tokenizer), ControlText::Show),
            stops: StopStrings::new(&options.stop)?,
            tokenizer,
            tools: options.tools,
            stop_ids: options.stop_ids,
            thought_tokens: 0,
            call: None,
            num_calls: 0,
            queue: VecDeque::new(),
            status: Status::Running,
        })
    }

    /// What is certain once `id` is known. Nothing after the reply has ended.
    pub fn push(&mut self, id: u32) -> Vec<Delta> {
        let mut out = vec![];
        self.queue.push_back(id);
        self.run(&mut out);
        out
    }

    /// No more ids come: what was held back. An open call is read as far as it goes.
    pub fn finish(&mut self) -> Vec<Delta> {
        let mut out = vec![];
        while self.call.is_some() {
            self.end_call(None, &mut out);
            self.run(&mut out);
        }
        if self.status == Status::Running {
            self.release_all(&mut out);
        }
        if self.status == Status::Running {
            self.status = Status::Finished;
        }
        out
    }

    /// What ended the reply, if it has ended from within.
    pub fn ended(&self) -> Option<Ended> {
        match self.status {
            Status::Ended(ended) => Some(ended),
            Status::Running | Status::Finished => None,
        }
    }

    /// How many of the tokens so far were spent on thoughts: from `<|channel>` to `<channel|>`, both counted,
    /// without the calls between. An open call is not counted before it is known to be one.
    pub fn thought_tokens(&self) -> usize {
        self.thought_tokens
    }

    /// Whether a channel is open, a call within it or not. After the end none is.
    pub fn is_in_thought(&self) -> bool {
        self.thoughts.is_open()
    }

    fn run(&mut self, out: &mut Vec<Delta>) {
        while self.status == Status::Running
            && let Some(id) = self.queue.pop_front()
        {
            self.step(id, out);
        }
        if self.status != Status::Running {
            self.queue.clear();
        }
    }

    fn step(&mut self, id: u32, out: &mut Vec<Delta>) {
        let is_stop = self.stop_ids.contains(&id);
        if let Some(call) = &mut self.call {
            let marker = marker(&self.tokenizer, id);
            if marker.is_some() || is_stop {
                call.write(&self.stream.flush());
            }
            if !is_stop && !call.ends_at(marker, self.thoughts.is_open()) {
                call.push(id, &self.stream.push(id));
                if !call.has_lost() {
                    return;
                }
                self.end_call(None, out);
            } else {
                self.end_call(Some(id), out);
            }
            return;
        }
        if is_stop {
            self.release_all(out);
            if self.status == Status::Running {
                self.status = Status::Ended(Ended::StopId(id));
            }
            return;
        }
        let was_open = self.thoughts.is_open();
        match marker(&self.tokenizer, id) {
            None => {
                let text = self.stream.push(id);
                self.write(&text, out);
                self.thought_tokens += usize::from(was_open);
            }
            Some(marker) => {
                let text = self.stream.flush();
                self.write(&text, out);
                self.release_text(out);
                if self.status == Status::Running {
                    self.mark(marker, out);
                }
            }
        }
    }

    /// A control token outside a call.
    fn mark(&mut self, marker: Marker, out: &mut Vec<Delta>) {
        let was_open = self.thoughts.is_open();
        match marker {
            Marker::ChannelOpen => add(out, Delta::Thought(self.thoughts.open())),
            Marker::ChannelClose => add(out, Delta::Thought(self.thoughts.close())),
            Marker::CallOpen => self.call = Some(OpenCall::default()),
            Marker::CallClose | Marker::ResponseOpen | Marker::TurnOpen | Marker::TurnClose | Marker::Other => {}
        }
        // A call's own two are not of the thought in which it stands.
        let is_of_call = matches!(marker, Marker::CallOpen | Marker::CallClose);
        self.thought_tokens += usize::from(!is_of_call && (was_open || self.thoughts.is_open()));
    }

    /// Text outside a call: of the thought or the answer.
    fn write(&mut self, text: &str, out: &mut Vec<Delta>) {
        if self.thoughts.is_open() {
            add(out, Delta::Thought(self.thoughts.push(text)));
        } else {
            self.answer(text, out);
        }
    }

    /// Text of the answer.
    fn answer(&mut self, text: &str, out: &mut Vec<Delta>) {
        let watched = self.stops.push(text);
        add(out, Delta::Text(watched.text));
        if let Some(index) = watched.stopped {
            self.status = Status::Ended(Ended::StopString(index));
            // Text that comes back from a call may stand in a thought.
            add(out, Delta::Thought(self.thoughts.close()));
        }
    }

    /// The start of a stop string that comes to nothing.
    fn release_text(&mut self, out: &mut Vec<Delta>) {
        if self.status == Status::Running {
            add(out, Delta::Text(self.stops.finish()));
        }
    }

    /// All that is held back, outside a call, at the end.
    fn release_all(&mut self, out: &mut Vec<Delta>) {
        let text = self.stream.finish();
        self.write(&text, out);
        self.release_text(out);
        add(out, Delta::Thought(self.thoughts.close()));
    }

    /// The call ends at its candidate, or here, before `ender` or the end of the reply. What is not of it
    /// stands in the queue.
    fn end_call(&mut self, ender: Option<u32>, out: &mut Vec<Delta>) {
        let Some(mut open) = self.call.take() else {
            return;
        };
        // Its tokens are in the queue again, or it is the last of the body.
        let flushed = self.stream.flush();
        if open.grammar.is_complete() {
            open.candidate = None;
        }
        let ending = match (ender, open.candidate) {
            (None, None) => Ending::Cut,
            (None, Some(_)) if !open.has_lost() => Ending::Doubtful,
            _ => Ending::Marked,
        };
        if ending == Ending::Cut {
            open.write(&flushed);
        }
        let end = open.candidate.unwrap_or(End { token: open.tokens.len(), len: open.body.len() });
        open.tokens.extend(ender.map(|id| (id, open.body.len())));
        let body = &open.body[..end.len];
        let mut next = end.token;
        match call::read(body, &self.tools, ending) {
            Some(read) => {
                read.calls.into_iter().for_each(|call| self.deliver(call, out));
                if read.rest < body.len() {
                    next = open.tokens[..end.token].partition_point(|&(_, start)| start < read.rest);
                    let until = open.tokens[..end.token].get(next).map_or(end.len, |&(_, start)| start);
                    self.write(&body[read.rest..until], out);
                }
            }
            None => {
                let mut text = [CALL_OPEN, body].concat();
                let ender = open.tokens.get(end.token).map(|&(id, _)| id);
                if ender.and_then(|id| marker(&self.tokenizer, id)) == Some(Marker::CallClose) {
                    text.push_str(CALL_CLOSE);
                    next += 1;
                }
                self.answer(&text, out);
                self.release_text(out);
            }
        }
        open.tokens[next..].iter().rev().for_each(|&(id, _)| self.queue.push_front(id));
    }

    fn deliver(&mut self, call: ParsedCall, out: &mut Vec<Delta>) {
        out.push(Delta::Call { index: self.num_calls, call });
        self.num_calls += 1;
    }
}

impl OpenCall {
    /// Whether this marker ends it, here or at its candidate.
    fn ends_at(&mut self, marker: Option<Marker>, is_in_thought: bool) -> bool {
        let Some(marker) = marker else {
            return false;
        };
        if matches!(marker, Marker::ChannelOpen | Marker::ChannelClose) && !self.grammar.is_in_text() {
            // The thought around it ends, and not one that began within it.
            let ends = marker == Marker::ChannelClose && is_in_thought && !self.has_channel;
            self.has_channel = marker == Marker::ChannelOpen;
            return ends;
        }
        if !marker.ends_call() {
            return false;
        }
        if self.grammar.is_in_text() {
            self.candidate.get_or_insert(End { token: self.tokens.len(), len: self.body.len() });
            return false;
        }
        true
    }

    /// Whether a marker in a string turned out to be none of it.
    fn has_lost(&self) -> bool {
        self.candidate.is_some() && self.grammar.has_failed()
    }

    fn push(&mut self, id: u32, text: &str) {
        self.tokens.push((id, self.body.len()));
        self.write(text);
    }

    fn write(&mut self, text: &str) {
        self.body.push_str(text);
        self.grammar.push(text);
    }
}

/// Adds a piece; text that goes on is one piece.
fn add(out: &mut Vec<Delta>, delta: Delta) {
    match (out.last_mut(), delta) {
        (_, Delta::Text(text) | Delta::Thought(text)) if text.is_empty() => {}
        (Some(Delta::Text(before)), Delta::Text(text)) | (Some(Delta::Thought(before)), Delta::Thought(text)) => {
            before.push_str(&text);
        }
        (_, delta) => out.push(delta),
    }
}

/// Where a reply to this prompt begins.
fn thoughts_after(tokenizer: &Arc<Tokenizer>, prompt: &[u32]) -> Thoughts {
    let last = prompt.iter().enumerate().rev().find_map(|(at, &id)| match marker(tokenizer, id)? {
        marker @ (Marker::ChannelOpen | Marker::ChannelClose | Marker::TurnOpen | Marker::TurnClose) => {
            Some((at, marker))
        }
        _ => None,
    });
    match last {
        Some((at, Marker::ChannelOpen)) => {
            Thoughts::after_prompt(&tokenizer.decode(&prompt[at + 1..], ControlText::Hide))
        }
        _ => Thoughts::default(),
    }
}
