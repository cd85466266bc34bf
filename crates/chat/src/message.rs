//! Messages as people's programs send them, and what the template sees of them.
//!
//! The JSON is that of chat completions: `content` is a text, a list of parts or null; a tool call is
//! `{id, type, function: {name, arguments}}` or `{name, arguments}`, and arguments written as a JSON
//! text are decoded, because templates write them key by key.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::{Value, json};

use crate::Map;

/// One message of a conversation.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(from = "WireMessage")]
pub struct Message {
    /// `system`, `developer`, `user`, `assistant` or `tool`; the template decides what it knows.
    pub role: String,
    /// What is said.
    pub content: Content,
    /// The thought that came before an answer; also read from `reasoning_content` and `thinking`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// The tools that an assistant called.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// In a tool's message: the call that it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// In a tool's message: the tool's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Results beside the calls in one message, `{name, response}`, the model's native spelling.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_responses: Vec<Value>,
}

/// What a message says.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Content {
    /// Nothing: null or absent.
    #[default]
    Empty,
    /// A text.
    Text(String),
    /// Texts and media, in the caller's order.
    Parts(Vec<Part>),
}

/// A piece of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// A text.
    Text(String),
    /// An image, a sound or a video.
    Media(MediaPart),
}

/// A medium of a message, as the caller described it.
#[derive(Debug, Clone, PartialEq)]
pub struct MediaPart {
    /// What it is.
    pub kind: MediaKind,
    /// The part without its `type`: a path, a URL, data, frames. The template does not see them.
    pub fields: Map,
}

/// The kinds of media that templates know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaKind {
    /// `image` or `image_url`.
    Image,
    /// `audio`, `input_audio` or `audio_url`.
    Audio,
    /// `video` or `video_url`.
    Video,
}

impl MediaKind {
    /// The word that templates use.
    pub fn name(self) -> &'static str {
        match self {
            MediaKind::Image => "image",
            MediaKind::Audio => "audio",
            MediaKind::Video => "video",
        }
    }
}

/// A call of a tool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolCall {
    /// By which a tool's message refers to it.
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// Its arguments by name.
    pub arguments: Map,
}

/// What a prompt is made with beside the messages.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatOptions {
    /// Declarations, each `{type: "function", function: {name, description, parameters}}`.
    pub tools: Vec<Value>,
    /// Whether the model may think before it answers.
    pub enable_thinking: bool,
    /// Whether the prompt ends where the model's answer begins.
    pub add_generation_prompt: bool,
    /// Whether thoughts beside earlier tool calls stay in the prompt.
    pub preserve_thinking: bool,
}

impl Default for ChatOptions {
    /// No tools, no thinking, ready for an answer.
    fn default() -> Self {
        Self { tools: Vec::new(), enable_thinking: false, add_generation_prompt: true, preserve_thinking: false }
    }
}

impl Message {
    /// A message of plain text.
    pub fn text(role: impl Into<String>, text: impl Into<String>) -> Self {
        Self { role: role.into(), content: Content::Text(text.into()), ..Self::default() }
    }

    /// The message as templates read it: absent fields are absent keys, media are their kind alone.
    pub(crate) fn to_template(&self) -> Value {
        let mut message = Map::new();
        message.insert("role".to_owned(), json!(self.role));
        match &self.content {
            Content::Empty => {}
            Content::Text(text) => {
                message.insert("content".to_owned(), json!(text));
            }
            Content::Parts(parts) => {
                let parts: Vec<Value> = parts.iter().map(Part::to_template).collect();
                message.insert("content".to_owned(), Value::Array(parts));
            }
        }
        if let Some(reasoning) = &self.reasoning {
            // Templates differ in the word.
            for key in ["reasoning", "reasoning_content", "thinking"] {
                message.insert(key.to_owned(), json!(reasoning));
            }
        }
        if !self.tool_calls.is_empty() {
            message.insert("tool_calls".to_owned(), json!(self.tool_calls));
        }
        for (key, value) in [("tool_call_id", &self.tool_call_id), ("name", &self.name)] {
            if let Some(value) = value {
                message.insert(key.to_owned(), json!(value));
            }
        }
        if !self.tool_responses.is_empty() {
            message.insert("tool_responses".to_owned(), json!(self.tool_responses));
        }
        Value::Object(message)
    }
}

impl Part {
    fn to_template(&self) -> Value {
        match self {
            Part::Text(text) => json!({"type": "text", "text": text}),
            Part::Media(media) => json!({"type": media.kind.name()}),
        }
    }
}

/// A message's fields as they come, before the words for one thing are made one.
#[derive(Deserialize)]
struct WireMessage {
    role: String,
    #[serde(default)]
    content: Content,
    reasoning: Option<String>,
    reasoning_content: Option<String>,
    thinking: Option<String>,
    tool_calls: Option<Vec<ToolCall>>,
    tool_call_id: Option<String>,
    name: Option<String>,
    tool_responses: Option<Vec<Value>>,
}

impl From<WireMessage> for Message {
    fn from(wire: WireMessage) -> Self {
        let said = |thought: &String| !thought.is_empty();
        Self {
            role: wire.role,
            content: wire.content,
            reasoning: [wire.reasoning, wire.reasoning_content, wire.thinking].into_iter().flatten().find(said),
            tool_calls: wire.tool_calls.unwrap_or_default(),
            tool_call_id: wire.tool_call_id,
            name: wire.name,
            tool_responses: wire.tool_responses.unwrap_or_default(),
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Null => Ok(Content::Empty),
            Value::String(text) => Ok(Content::Text(text)),
            Value::Array(parts) => {
                let parts = parts
                    .into_iter()
                    .enumerate()
                    .map(|(index, part)| read_part(part).map_err(|why| format!("content[{index}]: {why}")));
                parts.collect::<Result<_, _>>().map(Content::Parts).map_err(D::Error::custom)
            }
            other => Err(D::Error::custom(format!(
                "content: found {}, wanted a text, a list of parts or null",
                kind_of(&other)
            ))),
        }
    }
}

fn read_part(part: Value) -> Result<Part, String> {
    let Value::Object(mut fields) = part else {
        return Err(format!("found {}, wanted an object with `type`", kind_of(&part)));
    };
    let Some(Value::String(kind)) = fields.shift_remove("type") else {
        return Err("`type` is missing, wanted text, image, audio or video".to_owned());
    };
    let kind = match kind.as_str() {
        "text" | "input_text" | "output_text" => {
            return match fields.shift_remove("text") {
                Some(Value::String(text)) => Ok(Part::Text(text)),
                _ => Err("`text` is missing or no text".to_owned()),
            };
        }
        "image" | "image_url" | "input_image" => MediaKind::Image,
        "audio" | "input_audio" | "audio_url" => MediaKind::Audio,
        "video" | "video_url" => MediaKind::Video,
        other => return Err(format!("type {other:?}, wanted text, image, audio or video")),
    };
    Ok(Part::Media(MediaPart { kind, fields }))
}

impl Serialize for Content {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Content::Empty => serializer.serialize_none(),
            Content::Text(text) => serializer.serialize_str(text),
            Content::Parts(parts) => parts.serialize(serializer),
        }
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Part::Text(text) => json!({"type": "text", "text": text}).serialize(serializer),
            Part::Media(media) => {
                let mut part = Map::new();
                part.insert("type".to_owned(), json!(media.kind.name()));
                part.extend(media.fields.clone());
                part.serialize(serializer)
            }
        }
    }
}

/// Both spellings of a call: with its `function` inside, and flat.
#[derive(Deserialize)]
struct WireCall {
    id: Option<String>,
    function: Option<WireFunction>,
    name: Option<String>,
    #[serde(default)]
    arguments: Value,
}

#[derive(Deserialize)]
struct WireFunction {
    name: String,
    #[serde(default)]
    arguments: Value,
}

impl<'de> Deserialize<'de> for ToolCall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = WireCall::deserialize(deserializer)?;
        let (name, arguments) = match (wire.function, wire.name) {
            (Some(function), _) => (function.name, function.arguments),
            (None, Some(name)) => (name, wire.arguments),
            (None, None) => return Err(D::Error::missing_field("function")),
        };
        let arguments = read_arguments(arguments)
            .map_err(|why| D::Error::custom(format!("arguments of tool call {name:?}: {why}")))?;
        Ok(Self { id: wire.id, name, arguments })
    }
}

/// Arguments as an object, as the JSON text of one, or none at all.
fn read_arguments(arguments: Value) -> Result<Map, String> {
    let decoded = match arguments {
        Value::String(text) if text.trim().is_empty() => Value::Null,
        Value::String(text) => serde_json::from_str(&text).map_err(|e| format!("no JSON: {e}"))?,
        other => other,
    };
    match decoded {
        Value::Object(map) => Ok(map),
        Value::Null => Ok(Map::new()),
        other => Err(format!("found {}, wanted an object", kind_of(&other))),
    }
}

impl Serialize for ToolCall {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut call = Map::new();
        if let Some(id) = &self.id {
            call.insert("id".to_owned(), json!(id));
        }
        call.insert("type".to_owned(), json!("function"));
        let function = json!({"name": self.name, "arguments": self.arguments});
        call.insert("function".to_owned(), function);
        call.serialize(serializer)
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
