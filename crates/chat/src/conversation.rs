//! Conversations as people's programs send them: the JSON of chat completions. Every fault is one
//! sentence that begins with the path of what is wrong.
//!
//! `content` is a text, a list of parts or null; a tool call is `{id, type, function: {name, arguments}}`
//! or `{name, arguments}`, and arguments written as a JSON text are decoded, because templates write
//! them key by key. Fields that no template knows are not looked at.

use std::fmt::Display;

use crate::error::{Error, Result};
use crate::json::{Json, JsonObject};
use crate::message::{Content, MediaKind, MediaPart, Message, Part, ToolCall};

/// What a request says: messages, and the tools that the model may call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// In the order in which they were said.
    pub messages: Vec<Message>,
    /// Declarations for [`ChatOptions::tools`](crate::ChatOptions::tools).
    pub tools: Vec<Json>,
}

const ROLES: &str = "system, developer, user, assistant or tool";
const KINDS: &str = "text, image, audio or video";

impl Conversation {
    /// Reads a JSON text: a list of messages, or an object with `messages` and perhaps `tools`.
    pub fn read(text: &str) -> Result<Self> {
        Self::from_json(parse(text, "messages")?)
    }

    /// The same from JSON that is parsed already.
    pub fn from_json(json: Json) -> Result<Self> {
        let whole = match json {
            Json::Object(mut object) => {
                let tools = object.swap_remove("tools").unwrap_or_default();
                let messages = object.swap_remove("messages").ok_or_else(|| Fault::new("missing, wanted a list"));
                let messages = messages.and_then(messages_of).map_err(|fault| fault.under("messages"));
                let tools = tools_of(tools).map_err(|fault| fault.under("tools"));
                messages.and_then(|messages| Ok(Self { messages, tools: tools? }))
            }
            list => {
                let messages = messages_of(list).map_err(|fault| fault.under("messages"));
                messages.map(|messages| Self { messages, tools: Vec::new() })
            }
        };
        whole.map_err(Fault::into_error)
    }
}

impl Message {
    /// Reads a JSON list of messages, or an object that has one as `messages`; its tools are left out.
    pub fn read_list(text: &str) -> Result<Vec<Message>> {
        let json = match parse(text, "messages")? {
            Json::Object(mut object) => object.swap_remove("messages").unwrap_or(Json::Object(object)),
            other => other,
        };
        messages_of(json).map_err(|fault| fault.under("messages").into_error())
    }
}

/// Reads a JSON list of tools, or an object that has one as `tools`. A tool is `{type: "function",
/// function: {name, description, parameters}}`, or what stands in its `function` alone.
pub fn read_tools(text: &str) -> Result<Vec<Json>> {
    tools_from_json(parse(text, "tools")?)
}

/// The same from JSON that is parsed already.
pub fn tools_from_json(json: Json) -> Result<Vec<Json>> {
    let json = match json {
        Json::Object(mut object) => object.swap_remove("tools").unwrap_or(Json::Object(object)),
        other => other,
    };
    tools_of(json).map_err(|fault| fault.under("tools").into_error())
}

fn parse(text: &str, what: &str) -> Result<Json> {
    Json::parse(text).map_err(|why| Error::Conversation { path: what.to_owned(), why: format!("no JSON: {why}") })
}

/// What is wrong, and the path to it, which grows on the way out.
struct Fault {
    path: String,
    why: String,
}

type Read<T> = std::result::Result<T, Fault>;

impl Fault {
    fn new(why: impl Into<String>) -> Self {
        Self { path: String::new(), why: why.into() }
    }

    fn found(found: &Json, wanted: impl Display) -> Self {
        Self::new(format!("found {}, wanted {wanted}", found.kind()))
    }

    fn under(mut self, step: &str) -> Self {
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{step}{dot}{}", self.path);
        self
    }

    fn into_error(self) -> Error {
        Error::Conversation { path: self.path, why: self.why }
    }
}

fn list<T>(value: Json, wanted: &str, read: impl Fn(Json) -> Read<T>) -> Read<Vec<T>> {
    let Json::List(items) = value else { return Err(Fault::found(&value, wanted)) };
    let items = items.into_iter().enumerate();
    items.map(|(index, item)| read(item).map_err(|fault| fault.under(&format!("[{index}]")))).collect()
}

fn object(value: Json, wanted: &str) -> Read<JsonObject> {
    match value {
        Json::Object(object) => Ok(object),
        other => Err(Fault::found(&other, wanted)),
    }
}

/// A field that is absent or null is nothing.
fn field<T>(object: &mut JsonObject, key: &str, read: impl FnOnce(Json) -> Read<T>) -> Read<Option<T>> {
    match object.shift_remove(key) {
        None | Some(Json::Null) => Ok(None),
        Some(value) => read(value).map(Some).map_err(|fault| fault.under(key)),
    }
}

fn needed<T>(value: Option<T>, key: &str, wanted: impl Display) -> Read<T> {
    value.ok_or_else(|| Fault::new(format!("missing, wanted {wanted}")).under(key))
}

fn text(value: Json) -> Read<String> {
    match value {
        Json::Text(text) => Ok(text),
        other => Err(Fault::found(&other, "a text")),
    }
}

fn name(value: Json) -> Read<String> {
    match text(value)? {
        empty if empty.is_empty() => Err(Fault::new("empty, wanted a name")),
        name => Ok(name),
    }
}

/// Every call is of a function; nothing else can be called.
fn function_type(value: Json) -> Read<()> {
    match text(value)?.as_str() {
        "function" => Ok(()),
        other => Err(Fault::new(format!("{other:?}, wanted function"))),
    }
}

fn messages_of(value: Json) -> Read<Vec<Message>> {
    list(value, "a list of messages", message)
}

fn message(value: Json) -> Read<Message> {
    let mut fields = object(value, "an object with `role` and `content`")?;
    let role = field(&mut fields, "role", role)?;
    let role = needed(role, "role", ROLES)?;
    field(&mut fields, "function_call", |_| Err::<(), _>(Fault::new("not supported, wanted `tool_calls`")))?;
    let mut reasoning = None;
    for key in ["reasoning", "reasoning_content", "thinking"] {
        let thought = field(&mut fields, key, text)?.filter(|thought| !thought.is_empty());
        reasoning = reasoning.or(thought);
    }
    Ok(Message {
        role,
        content: field(&mut fields, "content", content)?.unwrap_or_default(),
        reasoning,
        tool_calls: field(&mut fields, "tool_calls", |calls| list(calls, "a list of tool calls", call))?
            .unwrap_or_default(),
        tool_call_id: field(&mut fields, "tool_call_id", text)?,
        name: field(&mut fields, "name", text)?,
        tool_responses: field(&mut fields, "tool_responses", |responses| {
            list(responses, "a list of {name, response}", response)
        })?
        .unwrap_or_default(),
    })
}

fn role(value: Json) -> Read<String> {
    match value {
        Json::Text(role) => match role.as_str() {
            "system" | "developer" | "user" | "assistant" | "tool" => Ok(role),
            // The word that Gemma's turns use.
            "model" => Ok("assistant".to_owned()),
            _ => Err(Fault::new(format!("{role:?}, wanted {ROLES}"))),
        },
        other => Err(Fault::found(&other, ROLES)),
    }
}

fn content(value: Json) -> Read<Content> {
    match value {
        Json::Text(text) => Ok(Content::Text(text)),
        Json::List(_) => list(value, "", part).map(Content::Parts),
        other => Err(Fault::found(&other, "a text, a list of parts or null")),
    }
}

fn part(value: Json) -> Read<Part> {
    let mut fields = object(value, "an object with `type`")?;
    let Some(kind) = field(&mut fields, "type", text)? else {
        return Err(Fault::new(format!("`type` is missing, wanted {KINDS}")));
    };
    let (kind, word) = match kind.as_str() {
        "text" | "input_text" | "output_text" => {
            let said = field(&mut fields, "text", text)?;
            return needed(said, "text", "a text").map(Part::Text);
        }
        "image" | "input_image" => (MediaKind::Image, "image"),
        "image_url" => (MediaKind::Image, "image_url"),
        "audio" | "audio_url" => (MediaKind::Audio, "audio"),
        "input_audio" => (MediaKind::Audio, "input_audio"),
        "video" | "video_url" => (MediaKind::Video, "video"),
        other => return Err(Fault::new(format!("type {other:?}, wanted {KINDS}"))),
    };
    Ok(Part::Media(MediaPart { kind, word, fields }))
}

fn call(value: Json) -> Read<ToolCall> {
    let mut fields = object(value, "an object with `function`")?;
    field(&mut fields, "type", function_type)?;
    let id = field(&mut fields, "id", text)?;
    let (name, arguments) = if fields.contains_key("name") && !fields.contains_key("function") {
        name_and_arguments(fields)?
    } else {
        let wanted = "an object with `name` and `arguments`";
        let function = field(&mut fields, "function", |function| name_and_arguments(object(function, wanted)?))?;
        needed(function, "function", wanted)?
    };
    Ok(ToolCall { id, name, arguments })
}

fn name_and_arguments(mut fields: JsonObject) -> Read<(String, JsonObject)> {
    let name = needed(field(&mut fields, "name", name)?, "name", "a text")?;
    Ok((name, field(&mut fields, "arguments", arguments)?.unwrap_or_default()))
}

/// Arguments as an object, as the JSON text of one, or none at all.
fn arguments(value: Json) -> Read<JsonObject> {
    let decoded = match value {
        Json::Text(text) if text.trim().is_empty() => Json::Null,
        Json::Text(text) => Json::parse(&text).map_err(|why| Fault::new(format!("no JSON: {why}")))?,
        other => other,
    };
    match decoded {
        Json::Null => Ok(JsonObject::new()),
        other => object(other, "an object"),
    }
}

fn response(value: Json) -> Read<Json> {
    object(value, "an object with `name` and `response`").map(Json::Object)
}

/// No tools are null.
fn tools_of(value: Json) -> Read<Vec<Json>> {
    match value {
        Json::Null => Ok(Vec::new()),
        value => list(value, "a list of tools", tool),
    }
}

fn tool(value: Json) -> Read<Json> {
    let wanted = "an object with `name`, `description` and `parameters`";
    let mut fields = object(value, "an object with `function`")?;
    let kind = match fields.get("type") {
        // The `type` of a function that is declared alone is looked at in the same way.
        Some(kind) if *kind != Json::Null => kind.clone(),
        _ => "function".into(),
    };
    function_type(kind).map_err(|fault| fault.under("type"))?;
    if fields.contains_key("name") && !fields.contains_key("function") {
        check_name(&fields)?;
        fields.shift_remove("type");
        let function = Json::Object(fields);
        fields = JsonObject::from([("type".to_owned(), Json::Null), ("function".to_owned(), function)]);
    } else {
        match fields.get("function") {
            Some(Json::Object(function)) => check_name(function).map_err(|fault| fault.under("function"))?,
            None | Some(Json::Null) => return needed(None, "function", wanted),
            Some(other) => return Err(Fault::found(other, wanted).under("function")),
        }
    }
    fields.insert("type".to_owned(), "function".into());
    Ok(Json::Object(fields))
}

fn check_name(function: &JsonObject) -> Read<()> {
    let found = function.get("name").cloned().unwrap_or_default();
    let found = if found == Json::Null { None } else { Some(found) };
    let checked = needed(found, "name", "a text")?;
    name(checked).map(drop).map_err(|fault| fault.under("name"))
}
