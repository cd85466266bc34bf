//! Calls whose arguments stand in blocks without names, as a 12B writes them now and then:
//!
//! ```text
//! call:NAME:
//! BEGIN_ARG:
//! VALUE
//! END_ARG
//! ```
//!
//! with any number of blocks, and empty thoughts (`<|channel>thought\n<channel|>`) anywhere.

use super::ParsedCall;
use super::call::{eat_call_word, is_stray};
use super::tool::{self, DeclaredTool};
use super::value::{Ending, Reader, is_name_char, whole_value};
use crate::json::{Json, JsonObject};

const EMPTY_THOUGHT: &str = "<|channel>thought\n<channel|>";
const BEGIN: &str = "BEGIN_ARG";
const END: &str = "END_ARG";

/// The call that `body` is, the values given to the parameters in the order of the declaration. `None` if the
/// body has another form, the tool is not declared, or there are more values than parameters.
pub fn read(body: &str, tools: &[DeclaredTool]) -> Option<ParsedCall> {
    let mut reader = Reader::new(body, Ending::Marked);
    skip_blank(&mut reader);
    eat_call_word(&mut reader);
    reader.take_while(is_stray);
    let name = reader.take_while(is_name_char).trim_end_matches(':');
    skip_blank(&mut reader);
    let mut values = vec![];
    while reader.eat(BEGIN) {
        values.push(block(&mut reader));
        skip_blank(&mut reader);
    }
    if values.is_empty() || !reader.rest().is_empty() {
        return None;
    }
    let tool = tool::meant(tools, name).filter(|tool| tool.parameters.len() >= values.len())?;
    let mut arguments = JsonObject::new();
    for (parameter, value) in tool.parameters.iter().zip(values) {
        let typed = match whole_value(&value) {
            Some(Json::Text(text)) => Some(Json::Text(text)),
            typed => typed.filter(|_| !parameter.is_text()),
        };
        arguments.insert(parameter.name.clone(), typed.unwrap_or(Json::Text(value)));
    }
    Some(ParsedCall { name: tool.name.clone(), arguments })
}

/// The value after `BEGIN_ARG`, up to its `END_ARG` or the end.
fn block(reader: &mut Reader) -> String {
    reader.eat(":");
    let rest = reader.rest();
    let end = rest.find(END).unwrap_or(rest.len());
    reader.seek(reader.position() + end);
    reader.eat(END);
    let value = rest[..end].replace(EMPTY_THOUGHT, "");
    let value = value.strip_prefix('\n').unwrap_or(&value);
    value.strip_suffix('\n').unwrap_or(value).to_owned()
}

fn skip_blank(reader: &mut Reader) {
    reader.skip_space();
    while reader.eat(EMPTY_THOUGHT) {
        reader.skip_space();
    }
}
