//! What a model says, taken apart: ids to text, thought and calls of tools. One machine over token ids does
//! it; a whole reply is the same machine with all ids pushed, so what streams is what is.
//!
//! **Control tokens** are known by id, from their spelling in the tokenizer, and are never printed in text or
//! thought. The same spelling in ordinary tokens is ordinary text, except that `<|"|>` within a call delimits
//! a string however it is spelled. A stop id ends the reply and is part of nothing. A character whose bytes
//! are not all there when a control token or the end comes is U+FFFD, one for each byte.
//!
//! **Thought** goes from `<|channel>` to `<channel|>`; [`ReplyOptions::after_prompt`] says whether the reply
//! begins in one. The label, the text up to the first newline, is dropped if it is `thought`, with its newline
//! or without one; any other label is kept. One newline before the end is not part of a thought. Blocks are
//! joined by a newline, empty ones give nothing, `<|channel>` within a block begins the next. What is never
//! closed is thought to the end. A lone `<channel|>` is dropped, and so is every other control token outside a
//! call.
//!
//! **Calls** begin with `<|tool_call>`, also within a thought, which goes on after them. They end with
//! `<tool_call|>`, another `<|tool_call>`, `<|tool_response>`, `<turn|>`, a stop id or the end. Each of the
//! first four within a `<|"|>` string may be part of the string: it is if the grammar of a call, taken
//! strictly, holds on to a bracket that completes it. As soon as it cannot, the call ended at the
//! first of them, and what came after is read again as reply. (Delimiters alternate, so a second call that
//! waits in this way cannot begin before the first has given up: nothing is read more than three times.) The
//! `<channel|>` of a thought in which a call stands ends it as well, outside of strings.
//!
//! What is in a call is read as leniently as `call.rs` and `value.rs` say. What follows its last bracket goes
//! on as reply, in the text or the thought in which the call stands. What cannot be read comes back as text as
//! the model wrote it, control tokens spelled out. So does a call that the end of the reply cut off while a string
//! or a bracket was open: a part of a command must not be run. If a string was open at a marker, the call is whole with
//! the brackets that are wanted before it.
//!
//! **Stop strings** are looked for in the text alone, and none spans a control token: what is held back as the
//! start of one is given out when anything other than text begins.

mod blocks;
mod call;
mod grammar;
mod marker;
mod parser;
mod thought;
mod tool;
mod value;

use std::sync::Arc;

pub use parser::ReplyParser;
pub use tool::{DeclaredParameter, DeclaredTool};

use crate::error::Result;
use crate::json::JsonObject;
use crate::tokenizer::Tokenizer;

/// What is to know about a reply before it comes.
#[derive(Debug, Clone, Default)]
pub struct ReplyOptions {
    /// The ids of the prompt, or its tail from the last `<|turn>` on: if they leave a channel open, the reply
    /// begins in a thought, whatever of the label they hold. Otherwise it begins in text.
    pub after_prompt: Vec<u32>,
    /// The tools that the model may call. They resolve names and types; nothing else depends on them.
    pub tools: Vec<DeclaredTool>,
    /// Texts that end the reply; none is empty.
    pub stop: Vec<String>,
    /// Ids that end the reply, as [`StopIds::ids`](crate::StopIds::ids) has them.
    pub stop_ids: Vec<u32>,
}

/// A piece of a reply.
#[derive(Debug, Clone, PartialEq)]
pub enum Delta {
    /// More of the answer.
    Text(String),
    /// More of the thought.
    Thought(String),
    /// A whole call.
    Call {
        /// Its place among the calls of the reply, from 0.
        index: usize,
        /// What is called.
        call: ParsedCall,
    },
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedCall {
    /// The declared name, where one is meant; otherwise as the model wrote it.
    pub name: String,
    /// In the order in which they were written; of equal keys the last value counts.
    pub arguments: JsonObject,
}

/// What ended a reply from within.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// This stop id.
    StopId(u32),
    /// The stop string at this place of [`ReplyOptions::stop`].
    StopString(usize),
}

/// A whole reply.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reply {
    /// The answer.
    pub text: String,
    /// The thoughts, joined by newlines.
    pub thought: String,
    /// The calls, in their order.
    pub calls: Vec<ParsedCall>,
}

impl Reply {
    /// The reply that `ids` are. An error is one of [`ReplyParser::new`].
    pub fn parse(tokenizer: Arc<Tokenizer>, options: ReplyOptions, ids: &[u32]) -> Result<Reply> {
        let mut parser = ReplyParser::new(tokenizer, options)?;
        let mut reply = Reply::default();
        for &id in ids {
            parser.push(id).into_iter().for_each(|delta| reply.add(delta));
        }
        parser.finish().into_iter().for_each(|delta| reply.add(delta));
        Ok(reply)
    }

    /// Adds a piece, the next one of its parser.
    pub fn add(&mut self, delta: Delta) {
        match delta {
            Delta::Text(text) => self.text.push_str(&text),
            Delta::Thought(text) => self.thought.push_str(&text),
            Delta::Call { call, .. } => self.calls.push(call),
        }
    }
}
