//! Messages of a conversation, and what the template sees of them.

use serde::{Serialize, Serializer};

use crate::json::{Json, JsonObject};

/// One message of a conversation.
///
/// It is written as the JSON of chat completions; [`Conversation`](crate::Conversation) reads that.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Message {
    /// `system`, `developer`, `user`, `assistant` or `tool`; the template decides what it knows.
    pub role: String,
    /// What is said.
    pub content: Content,
    /// The thought that came before an answer.
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
    pub tool_responses: Vec<Json>,
}

/// What a message says.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Content {
    /// Nothing: null or absent, which templates do not tell apart here.
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
    /// Its `type` as templates see it: as it was written where any template knows the word, else the kind's name.
    /// Older templates know fewer words, and leave out what they do not know.
    pub word: &'static str,
    /// The part without its `type`: a path, a URL, data, frames. The template does not see them.
    pub fields: JsonObject,
}

/// The kinds of media that templates know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaKind {
    /// `image`, `image_url` or `input_image`.
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
    pub arguments: JsonObject,
}

/// What a prompt is made with beside the messages.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatOptions {
    /// Declarations, each `{type: "function", function: {name, description, parameters}}`, as
    /// [`read_tools`](crate::read_tools) gives them.
    pub tools: Vec<Json>,
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

    /// Whether it instructs the model, as the system or the developer.
    pub fn is_instruction(&self) -> bool {
        matches!(self.role.as_str(), "system" | "developer")
    }

    /// The message as templates read it: absent fields are absent keys, media are their kind alone.
    pub(crate) fn to_template(&self) -> Json {
        let mut fields = vec![("role", Json::from(self.role.as_str()))];
        match &self.content {
            Content::Empty => {}
            Content::Text(text) => fields.push(("content", text.as_str().into())),
            Content::Parts(parts) => {
                fields.push(("content", Json::List(parts.iter().map(Part::to_template).collect())));
            }
        }
        if let Some(reasoning) = &self.reasoning {
            // Templates differ in the word.
            for key in ["reasoning", "reasoning_content", "thinking"] {
                fields.push((key, reasoning.as_str().into()));
            }
        }
        if !self.tool_calls.is_empty() {
            fields.push(("tool_calls", Json::List(self.tool_calls.iter().map(ToolCall::to_json).collect())));
        }
        for (key, value) in [("tool_call_id", &self.tool_call_id), ("name", &self.name)] {
            if let Some(value) = value {
                fields.push((key, value.as_str().into()));
            }
        }
        if !self.tool_responses.is_empty() {
            fields.push(("tool_responses", Json::List(self.tool_responses.clone())));
        }
        object(fields)
    }
}

impl Part {
    fn to_template(&self) -> Json {
        match self {
            Part::Text(text) => object([("type", "text".into()), ("text", text.as_str().into())]),
            Part::Media(media) => object([("type", media.word.into())]),
        }
    }
}

impl ToolCall {
    fn to_json(&self) -> Json {
        let function =
            object([("name", self.name.as_str().into()), ("arguments", Json::Object(self.arguments.clone()))]);
        let id = self.id.as_deref().map(|id| ("id", Json::from(id)));
        object(id.into_iter().chain([("type", "function".into()), ("function", function)]))
    }
}

fn object(fields: impl IntoIterator<Item = (&'static str, Json)>) -> Json {
    Json::Object(fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
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
            Part::Text(_) => self.to_template().serialize(serializer),
            Part::Media(media) => {
                let kind = ("type".to_owned(), media.word.into());
                let fields = media.fields.iter().map(|(key, value)| (key.clone(), value.clone()));
                Json::Object(std::iter::once(kind).chain(fields).collect()).serialize(serializer)
            }
        }
    }
}

impl Serialize for ToolCall {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_json().serialize(serializer)
    }
}
