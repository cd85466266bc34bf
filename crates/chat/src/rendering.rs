//! One rendering of a template: what people wrote, the values beside it, how much it may cost, and whose
//! fault it is when it fails.

use std::sync::Arc;

use minijinja::value::Value;
use minijinja::{Environment, ErrorKind};

use crate::environment::{self, Raised, TEMPLATE};
use crate::error::{Error, Result};
use crate::json::Json;
use crate::marks::Marks;
use crate::message::{ChatOptions, Message};
use crate::python;
use crate::schema;
use crate::tokenizer::Tokenizer;
use crate::values;

/// Messages and tools as the template reads them.
#[derive(Clone)]
pub(crate) struct Written {
    /// A list.
    pub messages: Json,
    /// A list; null if there are none.
    pub tools: Json,
}

impl Written {
    pub fn of(messages: &[Message], options: &ChatOptions) -> Result<Self> {
        for (index, tool) in options.tools.iter().enumerate() {
            let function = tool.get("function");
            if function.and_then(|function| function.get("name")).and_then(Json::as_str).is_none() {
                let why = "`function.name` is missing, wanted {type: \"function\", function: {name, ...}}".to_owned();
                return Err(Error::Tool { index, why });
            }
        }
        let tools = options.tools.iter().map(schema::without_nulls).collect();
        Ok(Self {
            messages: Json::List(messages.iter().map(Message::to_template).collect()),
            tools: if options.tools.is_empty() { Json::Null } else { Json::List(tools) },
        })
    }

    /// The texts of the user's last message.
    fn last_user_texts(&mut self) -> Vec<&mut String> {
        let Json::List(messages) = &mut self.messages else { return Vec::new() };
        let is_user = |message: &Json| message.get("role").and_then(Json::as_str) == Some("user");
        let last = messages.iter_mut().rev().find(|message| is_user(message));
        let content = match last {
            Some(Json::Object(message)) => message.get_mut("content"),
            _ => None,
        };
        match content {
            Some(Json::Text(text)) => vec![text],
            Some(Json::List(parts)) => {
                let texts = parts.iter_mut().filter_map(|part| match part {
                    Json::Object(part) => match part.get_mut("text") {
                        Some(Json::Text(text)) => Some(text),
                        _ => None,
                    },
                    _ => None,
                });
                texts.collect()
            }
            _ => Vec::new(),
        }
    }
}

/// How much work and text a rendering may cost.
pub(crate) struct Limits {
    fuel: u64,
    output_bytes: usize,
}

impl Limits {
    /// Templates look at each message a few times, some at each pair of messages, and write what
    /// they are given about once. Whatever needs far more than that does not end.
    pub fn of(written: &Written) -> Self {
        let bytes = size_bytes(&written.messages) + size_bytes(&written.tools);
        let count = match &written.messages {
            Json::List(messages) => messages.len() as u64,
            _ => 0,
        };
        Self {
            fuel: 2_000_000 + 32 * bytes as u64 + 5_000 * count + 20 * count * count,
            output_bytes: (1 << 20) + 8 * bytes,
        }
    }
}

/// About the bytes of a value written out.
fn size_bytes(value: &Json) -> usize {
    let inside = match value {
        Json::Null | Json::Bool(_) => 0,
        Json::Number(number) => number.as_str().len(),
        Json::Text(text) => text.len(),
        Json::List(items) => items.iter().map(size_bytes).sum(),
        Json::Object(object) => object.iter().map(|(key, item)| key.len() + size_bytes(item)).sum(),
    };
    inside + 16
}

/// A template with all that its renderings have in common.
pub(crate) struct Rendering<'r> {
    pub environment: &'r Environment<'static>,
    pub tokenizer: &'r Tokenizer,
    pub options: &'r ChatOptions,
    pub limits: Limits,
}

impl Rendering<'_> {
    /// The text of a prompt. A tool that the template cannot write is named.
    pub fn run(&self, written: &Written, marks: Option<Arc<Marks>>) -> Result<String> {
        self.attempt(written, marks).map_err(|error| match (&error, &written.tools) {
            (Error::TemplateFailed(_), Json::List(tools)) => self.failing_tool(tools).unwrap_or(error),
            _ => error,
        })
    }

    fn attempt(&self, written: &Written, marks: Option<Arc<Marks>>) -> Result<String> {
        let named = self.tokenizer.named().iter();
        let mut context: Vec<(&str, Value)> =
            named.map(|(name, spelling)| (name.as_str(), Value::from(spelling.as_str()))).collect();
        context.push(("messages", values::value(&written.messages)));
        context.push(("tools", values::value(&written.tools)));
        context.push(("documents", Value::from(())));
        context.push(("add_generation_prompt", self.options.add_generation_prompt.into()));
        context.push(("enable_thinking", self.options.enable_thinking.into()));
        context.push(("preserve_thinking", self.options.preserve_thinking.into()));

        let mut environment = self.environment.clone();
        environment.set_fuel(Some(self.limits.fuel));
        if marks.is_some() {
            environment::read_through(&mut environment, marks);
        }
        let template = environment.get_template(TEMPLATE).map_err(|error| self.explain(&error))?;
        let mut output = Output { text: Vec::new(), limit_bytes: self.limits.output_bytes };
        template.render_captured_to(Value::from_pairs(context), &mut output).map_err(|error| self.explain(&error))?;
        String::from_utf8(output.text).map_err(|error| Error::TemplateFailed(error.to_string()))
    }

    /// The first tool that the template fails on by itself, in a conversation that it takes without.
    fn failing_tool(&self, tools: &[Json]) -> Option<Error> {
        let mut written =
            Written { messages: Json::List(vec![Message::text("user", "-").to_template()]), tools: Json::Null };
        self.attempt(&written, None).ok()?;
        tools.iter().enumerate().find_map(|(index, tool)| {
            written.tools = Json::List(vec![tool.clone()]);
            match self.attempt(&written, None) {
                Err(Error::TemplateFailed(why)) => {
                    Some(Error::Tool { index, why: format!("the chat template cannot write it: {why}") })
                }
                _ => None,
            }
        })
    }

    /// Whether `rendered` is the same whatever the user said last, though something was said.
    pub fn drops_last_user_text(&self, written: &Written, rendered: &str) -> bool {
        let mut other = written.clone();
        let said: Vec<&mut String> = other
            .last_user_texts()
            .into_iter()
            .filter(|text| !text.trim_matches(python::is_space).is_empty())
            .collect();
        // Nearly always the text is simply there.
        if said.is_empty() || said.iter().any(|text| rendered.contains(text.trim_matches(python::is_space))) {
            return false;
        }
        for text in said {
            "-".clone_into(text);
        }
        self.attempt(&other, None).is_ok_and(|other| other == rendered)
    }

    /// The engine's error as one of ours.
    fn explain(&self, error: &minijinja::Error) -> Error {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(current) = cause {
            if let Some(Raised(message)) = current.downcast_ref() {
                return Error::Refused(message.clone());
            }
            if let Some(inner) = current.downcast_ref::<minijinja::Error>() {
                match inner.kind() {
                    ErrorKind::OutOfFuel => return Error::TemplateEndless { fuel: self.limits.fuel },
                    ErrorKind::WriteFailure => {
                        return Error::TemplateOutput { limit_bytes: self.limits.output_bytes };
                    }
                    _ => {}
                }
            }
            cause = current.source();
        }
        Error::TemplateFailed(error.to_string())
    }
}

/// The text as it comes, up to a limit.
struct Output {
    text: Vec<u8>,
    limit_bytes: usize,
}

impl std::io::Write for Output {
    fn write(&mut self, part: &[u8]) -> std::io::Result<usize> {
        if self.text.len() + part.len() > self.limit_bytes {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.text.extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
