//! Replies as people write them down.

use std::sync::{Arc, OnceLock};

use markbase_chat::{DeclaredTool, Delta, Ended, Json, Reply, ReplyOptions, ReplyParser, Specials, Tokenizer};
use serde_json::json;

/// The tokenizer of the built-in model, read once.
pub fn tokenizer() -> Arc<Tokenizer> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    Arc::clone(TOKENIZER.get_or_init(crate::common::tokenizer))
}

/// Ids of a text in which control tokens are tokens.
pub fn ids(text: &str) -> Vec<u32> {
    tokenizer().encode(text, Specials::Parse).expect("ids")
}

/// Ids of a text in which control tokens are spelled by ordinary ones.
pub fn plain(text: &str) -> Vec<u32> {
    tokenizer().encode(text, Specials::AsText).expect("ids")
}

/// The id of a control token.
pub fn control(spelling: &str) -> u32 {
    tokenizer().special_id(spelling).expect("a control token")
}

/// The ids of byte tokens.
pub fn bytes(bytes: &[u8]) -> Vec<u32> {
    let tokenizer = tokenizer();
    let id = |byte: &u8| {
        let spelling = format!("<0x{byte:02X}>");
        (0..tokenizer.vocab_size() as u32)
            .find(|&id| tokenizer.token_text(id) == Some(&spelling))
            .expect("a byte token")
    };
    bytes.iter().map(id).collect()
}

/// What a reply came to, with all pieces as they came.
pub struct Played {
    pub deltas: Vec<Vec<Delta>>,
    pub reply: Reply,
    pub ended: Option<Ended>,
    pub thought_tokens: usize,
}

/// A reply token by token, the pieces of each, those of the end last.
pub fn play(options: ReplyOptions, ids: &[u32]) -> Played {
    let mut parser = ReplyParser::new(tokenizer(), options).expect("a parser");
    let mut deltas: Vec<_> = ids.iter().map(|&id| parser.push(id)).collect();
    deltas.push(parser.finish());
    assert_eq!(parser.finish(), [], "the end comes once");
    assert_eq!(parser.push(control("<|channel>")), [], "nothing comes after the end");
    assert!(!parser.is_in_thought());
    let mut reply = Reply::default();
    let mut num_calls = 0;
    for delta in deltas.iter().flatten() {
        match delta {
            Delta::Text(text) | Delta::Thought(text) => assert_ne!(text, "", "a piece is no piece"),
            Delta::Call { index, .. } => {
                assert_eq!(*index, num_calls, "calls are counted in their order");
                num_calls += 1;
            }
        }
        reply.add(delta.clone());
    }
    Played { deltas, reply, ended: parser.ended(), thought_tokens: parser.thought_tokens() }
}

/// Calls as `name{"key":value}`, one after the other.
pub fn spelled(reply: &Reply) -> Vec<String> {
    let spell = |call: &markbase_chat::ParsedCall| format!("{}{}", call.name, Json::Object(call.arguments.clone()));
    reply.calls.iter().map(spell).collect()
}

/// Asserts what a reply is, streamed and whole, with no tools declared.
pub fn expect(input: &str, text: &str, thought: &str, calls: &[&str]) {
    expect_ids(&ReplyOptions::default(), &ids(input), text, thought, calls);
}

/// The same of ids and options.
pub fn expect_ids(options: &ReplyOptions, ids: &[u32], text: &str, thought: &str, calls: &[&str]) {
    let input = tokenizer().decode(ids, markbase_chat::ControlText::Show);
    let played = play(options.clone(), ids);
    assert_eq!(
        (played.reply.text.as_str(), played.reply.thought.as_str(), spelled(&played.reply)),
        (text, thought, calls.iter().map(|call| call.to_string()).collect()),
        "{input:?}"
    );
    assert_eq!(Reply::parse(tokenizer(), options.clone(), ids).expect("a reply"), played.reply, "{input:?}");
}

/// Tools with parameters of the given types.
pub fn declared(tools: &[(&str, &[(&str, &str)])]) -> Vec<DeclaredTool> {
    let read = |(name, parameters): &(&str, &[(&str, &str)])| {
        let mut properties = serde_json::Map::new();
        for (name, json_type) in *parameters {
            properties.insert(name.to_string(), json!({ "type": json_type }));
        }
        let tool = json!({"type": "function", "function": {
            "name": name, "parameters": {"type": "object", "properties": properties}}});
        DeclaredTool::read(&Json::from(&tool)).expect("a tool")
    };
    tools.iter().map(read).collect()
}

/// Options that declare tools.
pub fn with_tools(tools: &[(&str, &[(&str, &str)])]) -> ReplyOptions {
    ReplyOptions { tools: declared(tools), ..ReplyOptions::default() }
}
