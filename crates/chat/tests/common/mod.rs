//! The built-in model's files, the goldens, and what is only read where it is at hand.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use markbase_chat::{ChatOptions, ChatTemplate, Conversation, Json, Map, Message, Tokenizer};
use serde_json::Value;

/// A file of the built-in model.
pub fn model_file(name: &str) -> Vec<u8> {
    let path = root().join("models/nano-e-4bit").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A JSON object among the files of the built-in model.
pub fn model_map(name: &str) -> Map {
    serde_json::from_slice(&model_file(name)).expect("a JSON object")
}

/// The tokenizer of the built-in model.
pub fn tokenizer() -> Arc<Tokenizer> {
    let config = model_map("tokenizer_config.json");
    Arc::new(Tokenizer::new(&model_file("tokenizer.json"), &config).expect("a tokenizer"))
}

/// The same tokenizer, its tokenizer.json changed by `change`.
pub fn changed_tokenizer(change: impl FnOnce(&mut Value)) -> markbase_chat::Result<Tokenizer> {
    let mut json: Value = serde_json::from_slice(&model_file("tokenizer.json")).expect("JSON");
    change(&mut json);
    Tokenizer::new(json.to_string().as_bytes(), &model_map("tokenizer_config.json"))
}

/// The template of the built-in model.
pub fn built_in_template() -> ChatTemplate {
    let source = String::from_utf8(model_file("chat_template.jinja")).expect("UTF-8");
    ChatTemplate::new(Some(&source), &Map::new()).expect("a template")
}

/// A template of the given source.
pub fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(Some(source), &Map::new()).expect("a template")
}

/// A golden of this crate.
pub fn golden(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens").join(name);
    let text = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).expect("JSON")
}

/// A file of material that the project does not carry; says aloud if it is not there.
pub fn shared_file(name: &str) -> Option<String> {
    let path = root().join("../shared").join(name);
    match std::fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(_) => {
            // The handle itself: what the macros print is held back while tests pass.
            let _ = writeln!(std::io::stderr(), "SKIPPED: {name} is not beside the project");
            None
        }
    }
}

/// The official template of the small models, where it is at hand.
pub fn official_template(name: &str) -> Option<ChatTemplate> {
    shared_file(&format!("gemma4/templates/chat_template.{name}.jinja")).map(|text| template(&text))
}

/// One rendering that Python made with the official template.
pub struct Rendering {
    pub name: String,
    pub messages: Vec<Message>,
    pub options: ChatOptions,
    pub text: String,
}

/// All of them.
pub fn renderings() -> Vec<Rendering> {
    let golden = golden("renders.json");
    let renders = golden["renders"].as_array().expect("a list");
    let read = |render: &Value| {
        let name = render["name"].as_str().expect("a name");
        Rendering {
            name: name.to_owned(),
            messages: messages(&golden["conversations"][name]),
            options: options(&render["options"]),
            text: render["text"].as_str().expect("a text").to_owned(),
        }
    };
    renders.iter().map(read).collect()
}

/// Messages as the goldens and the evaluation cases spell them.
pub fn messages(spelled: &Value) -> Vec<Message> {
    Conversation::from_json(Json::from(spelled)).unwrap_or_else(|error| panic!("{error}: {spelled}")).messages
}

/// One message.
pub fn message(spelled: Value) -> Message {
    messages(&Value::Array(vec![spelled])).remove(0)
}

/// Options as the goldens and the evaluation cases spell them.
pub fn options(spelled: &Value) -> ChatOptions {
    ChatOptions {
        tools: spelled["tools"].as_array().map(|tools| tools.iter().map(Json::from).collect()).unwrap_or_default(),
        enable_thinking: spelled["enable_thinking"].as_bool().unwrap_or(false),
        add_generation_prompt: spelled["add_generation_prompt"].as_bool().unwrap_or(true),
        preserve_thinking: spelled["preserve_thinking"].as_bool().unwrap_or(false),
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
