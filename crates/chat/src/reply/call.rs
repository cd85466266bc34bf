//! The text between `<|tool_call>` and its end, to calls:
//!
//! - `call:NAME{..}`; `call` and its colon may be missing, stray `:` and `-` and spaces may stand around the
//!   name. Several calls may follow one another;
//! - `call:NAME` alone calls without arguments. So does the name of a declared tool;
//! - JSON, `{"name": .., "arguments": {..}}`, or `parameters`, or as the value of `function`; with its `type` and
//!   `id`; several of them, or a list;
//! - blocks, as in `blocks.rs`.
//!
//! A call is never guessed from a part: if its arguments cannot be read, or go on behind their bracket, it is none.
//! Nor is one that the end of the reply cut off, for what it would have been nobody knows: half a command is another
//! command.

use super::ParsedCall;
use super::blocks;
use super::tool::{self, DeclaredTool};
use super::value::{Ending, Reader, is_name_char};
use crate::json::{Json, JsonObject};

/// What the text of a call holds.
pub struct Calls {
    /// At least one.
    pub calls: Vec<ParsedCall>,
    /// From where on the text is no part of them; its end if only white space is left.
    pub rest: usize,
}

/// Reads the calls of `body`; `None` if it begins with none.
pub fn read(body: &str, tools: &[DeclaredTool], ending: Ending) -> Option<Calls> {
    // Of blocks that were cut off nobody knows whether they are all.
    if ending == Ending::Marked
        && let Some(call) = blocks::read(body, tools)
    {
        return Some(Calls { calls: vec![call], rest: body.len() });
    }
    let mut reader = Reader::new(body, ending);
    reader.skip_space();
    let mut calls = match reader.peek() {
        Some('[') => list(&mut reader, tools)?,
        _ => vec![one(&mut reader, tools)?],
    };
    let mut rest = reader.position();
    loop {
        let between = reader.take_while(|c| c.is_whitespace() || matches!(c, ',' | ';'));
        if starts_with_call_word(&reader) || reader.peek() == Some('{') {
            if let Some(call) = one(&mut reader, tools) {
                calls.push(call);
                rest = reader.position();
                continue;
            }
        } else if between.contains(',') && !reader.rest().is_empty() {
            return None;
        }
        break;
    }
    if body[rest..].trim().is_empty() {
        rest = body.len();
    }
    Some(Calls { calls, rest })
}

/// A list of calls in JSON, and of nothing else.
fn list(reader: &mut Reader, tools: &[DeclaredTool]) -> Option<Vec<ParsedCall>> {
    let Json::List(items) = reader.container()? else {
        return None;
    };
    let call = |item| match item {
        Json::Object(object) => from_json(object, tools),
        _ => None,
    };
    let calls = items.into_iter().map(call).collect::<Option<Vec<_>>>()?;
    (!reader.is_part() && !calls.is_empty()).then_some(calls)
}

/// One call, from the front.
fn one(reader: &mut Reader, tools: &[DeclaredTool]) -> Option<ParsedCall> {
    reader.skip_space();
    let mut has_word = false;
    while eat_call_word(reader) {
        has_word = true;
        reader.take_while(is_stray);
    }
    reader.take_while(is_stray);
    if reader.peek() == Some('{') {
        let Json::Object(object) = reader.container()? else {
            return None;
        };
        return from_json(object, tools).filter(|_| !reader.is_part());
    }
    let written = name(reader)?;
    let behind = reader.position();
    reader.take_while(is_stray);
    let (name, arguments) = match reader.peek() {
        Some('{' | '(') => (written, reader.arguments()?),
        next => {
            let stands_alone = next.is_none() || starts_with_call_word(reader);
            let is_declared = tools.iter().any(|tool| tool.name == written);
            // At a cut the name may be a part of one.
            let is_part = next.is_none() && reader.ending() != Ending::Marked;
            if !stands_alone || is_part || !(has_word || is_declared) {
                return None;
            }
            reader.seek(behind);
            (written, JsonObject::new())
        }
    };
    (!reader.is_part()).then(|| resolved(name, arguments, tools))
}

/// A name, bare or quoted.
fn name<'b>(reader: &mut Reader<'b>) -> Option<&'b str> {
    let quote = ["<|\"|>", "\"", "'"].into_iter().find(|quote| reader.eat(quote));
    let name = reader.take_while(is_name_char);
    if quote.is_some_and(|quote| !reader.eat(quote)) {
        return None;
    }
    Some(name.trim_end_matches(':')).filter(|name| !name.is_empty())
}

/// The call of `{"name": .., "arguments": {..}}`, alone or as the `function` of an object; nothing else may stand in
/// the object. Arguments may be JSON in a text.
fn from_json(mut object: JsonObject, tools: &[DeclaredTool]) -> Option<ParsedCall> {
    if matches!(object.get("type"), Some(Json::Text(kind)) if kind == "function") {
        object.shift_remove("type");
    }
    if matches!(object.get("id"), Some(Json::Text(_) | Json::Null)) {
        object.shift_remove("id");
    }
    if matches!(object.get("function"), Some(Json::Object(_))) && object.len() == 1 {
        let Some(Json::Object(function)) = object.shift_remove("function") else {
            return None;
        };
        object = function;
    }
    let Some(Json::Text(name)) = object.shift_remove("name") else {
        return None;
    };
    let arguments = object.shift_remove("arguments").or_else(|| object.shift_remove("parameters"));
    let arguments = match arguments {
        None | Some(Json::Null) => JsonObject::new(),
        Some(Json::Object(arguments)) => arguments,
        Some(Json::Text(text)) => match Json::parse(&text) {
            Ok(Json::Object(arguments)) => arguments,
            _ => return None,
        },
        Some(_) => return None,
    };
    (object.is_empty() && !name.is_empty() && name.chars().all(is_name_char)).then(|| resolved(&name, arguments, tools))
}

fn resolved(written: &str, mut arguments: JsonObject, tools: &[DeclaredTool]) -> ParsedCall {
    let tool = tool::meant(tools, written);
    if let Some(tool) = tool {
        tool::refine(&mut arguments, tool);
    }
    let name = tool.map_or(written, |tool| &tool.name);
    ParsedCall { name: name.to_owned(), arguments }
}

/// Takes `call` where it is the word before a name, and not a name itself; whether it was there.
pub fn eat_call_word(reader: &mut Reader) -> bool {
    let start = reader.position();
    if reader.eat("call") || reader.eat("Call") {
        let has_space = !reader.take_while(char::is_whitespace).is_empty();
        match reader.peek() {
            Some(':') => return true,
            Some(c) if has_space && is_name_char(c) => return true,
            _ => reader.seek(start),
        }
    }
    false
}

/// What may stand around a name.
pub fn is_stray(c: char) -> bool {
    c.is_whitespace() || matches!(c, ':' | '-')
}

fn starts_with_call_word(reader: &Reader) -> bool {
    let rest = reader.rest();
    let behind = rest.strip_prefix("call").or_else(|| rest.strip_prefix("Call"));
    behind.is_some_and(|rest| rest.trim_start().starts_with(':'))
}
