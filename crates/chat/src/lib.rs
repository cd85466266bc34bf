//! People's text to token ids, and back: messages through the model's own chat template to a
//! [`Prompt`], and the ids that a model answers with to text that never breaks a character.
//!
//! The crate opens no files and knows no device: it is handed the bytes of `tokenizer.json`, the
//! text of the template and the maps of the configuration files. Nothing of these or of a message is
//! trusted: what is wrong is an [`Error`] with one sentence, time and memory are bounded.
//!
//! Control tokens (`<|turn>` and the like) typed by people stay text. Only what the template itself
//! writes becomes a control token; [`ChatTemplate::prompt`] says how that is known.

mod clock;
mod control;
mod conversation;
mod decoder;
mod defaults;
mod environment;
mod error;
mod json;
mod marks;
mod message;
mod python;
mod rendering;
mod reply;
mod schema;
mod source;
mod stop;
mod stream;
mod template;
mod tokenizer;
mod values;

pub use conversation::{Conversation, read_tools, tools_from_json};
pub use defaults::SamplingDefaults;
pub use error::{Error, Result};
pub use json::{Json, JsonObject, Number};
pub use message::{ChatOptions, Content, MediaKind, MediaPart, Message, Part, ToolCall};
pub use reply::{DeclaredParameter, DeclaredTool, Delta, Ended, ParsedCall, Reply, ReplyOptions, ReplyParser};
pub use stop::{StopIds, StopStrings, Watched};
pub use stream::{ControlText, TextStream};
pub use template::{ChatTemplate, Prompt};
pub use tokenizer::{Specials, Tokenizer};

/// A JSON object, with its keys in the order of the file.
pub type Map = serde_json::Map<String, serde_json::Value>;
