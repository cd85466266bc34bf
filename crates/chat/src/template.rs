//! The model's own chat template: messages to the text of a prompt, and that to ids.

use std::sync::Arc;

use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind};
use serde_json::{Value, json};

use crate::Map;
use crate::environment::{self, Raised, TEMPLATE};
use crate::error::{Error, Result};
use crate::marks::{self, Marking, Marks};
use crate::message::{ChatOptions, Message};
use crate::source::{self, MAX_SOURCE_BYTES};
use crate::tokenizer::{Specials, Tokenizer};

/// A chat template, checked.
#[derive(Debug)]
pub struct ChatTemplate {
    default: Environment<'static>,
    /// The one for conversations with tools, where the model has two.
    tool_use: Option<Environment<'static>>,
}

/// What the model reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The rendered text.
    pub text: String,
    /// `[tokens]`, with `<bos>` once, in front.
    pub ids: Vec<u32>,
}

/// How much work and text a rendering may cost.
struct Limits {
    fuel: u64,
    output_bytes: usize,
}

impl ChatTemplate {
    /// The template of a model: the text of `chat_template.jinja` if it has that file, else
    /// `chat_template` of the map of tokenizer_config.json (empty if the model has none): a text, or
    /// a list of `{name, template}` of which `default` and `tool_use` are taken.
    ///
    /// Filters, tests, methods and functions that nothing provides are errors here, in whatever branch.
    pub fn new(chat_template_jinja: Option<&str>, tokenizer_config: &Map) -> Result<Self> {
        if let Some(source) = chat_template_jinja {
            return Ok(Self { default: compile(source)?, tool_use: None });
        }
        let config_error = |found: &Value, wanted| Error::Config {
            file: "tokenizer_config.json",
            field: "chat_template".to_owned(),
            found: found.to_string().chars().take(80).collect(),
            wanted,
        };
        let found = tokenizer_config.get("chat_template").unwrap_or(&Value::Null);
        match found {
            Value::Null => Err(Error::NoTemplate),
            Value::String(source) => Ok(Self { default: compile(source)?, tool_use: None }),
            Value::Array(named) => {
                let source = |name: &str| {
                    let entry = named.iter().find(|entry| entry["name"] == name)?;
                    entry["template"].as_str()
                };
                let wanted = "a list with a `template` whose `name` is default";
                let default = source("default").ok_or_else(|| config_error(found, wanted))?;
                let tool_use = source("tool_use").map(compile).transpose()?;
                Ok(Self { default: compile(default)?, tool_use })
            }
            other => Err(config_error(other, "a text or a list of named templates")),
        }
    }

    /// The text of a prompt, exactly as `transformers` renders it (the template finds media under the
    /// one name of their kind, `image` for `image_url` too). Control tokens in messages look in it like
    /// the template's own; [`prompt`](Self::prompt) keeps them apart.
    pub fn render(&self, tokenizer: &Tokenizer, messages: &[Message], options: &ChatOptions) -> Result<String> {
        let (messages, tools) = written(messages, options)?;
        let limits = Limits::of(&messages, &tools);
        self.render_values(tokenizer, &messages, &tools, options, &limits, None)
    }

    /// The prompt for `messages`: the rendered text and its ids, which are those of `transformers`
    /// wherever no message holds a control token.
    ///
    /// Control tokens that a message holds as text stay text. To know them, people's texts are
    /// rendered a second time with marks in place of the characters that control tokens begin and end
    /// with; the two renderings must agree but for the marks, and control tokens are then looked for in
    /// the marked one. A token is the template's if its first and last characters are.
    pub fn prompt(&self, tokenizer: &Tokenizer, messages: &[Message], options: &ChatOptions) -> Result<Prompt> {
        let (messages, tools) = written(messages, options)?;
        let limits = Limits::of(&messages, &tools);
        let text = self.render_values(tokenizer, &messages, &tools, options, &limits, None)?;

        let control = tokenizer.control();
        let mut ids = if marks::needed(control, &[&messages, &tools]) {
            let marked = |marking| {
                let (mut messages, mut tools) = (messages.clone(), tools.clone());
                let written = &mut [&mut messages, &mut tools];
                let marks =
                    Marks::new(Arc::clone(control), marking, written, &text).ok_or(Error::ControlTokensInMessage)?;
                let marks = Arc::new(marks);
                let through = Some(Arc::clone(&marks));
                let rendered = self.render_values(tokenizer, &messages, &tools, options, &limits, through);
                rendered.map(|rendered| (marks.settle(&rendered), marks))
            };
            self.encode_marked(tokenizer, &text, marked)?
        } else {
            tokenizer.encode(&text, Specials::Parse)?
        };
        tokenizer.ensure_bos(&mut ids);
        Ok(Prompt { text, ids })
    }

    /// Ids of `text`, of which `marked` gives the marked rendering.
    fn encode_marked(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        marked: impl Fn(Marking) -> Result<(String, Arc<Marks>)>,
    ) -> Result<Vec<u32>> {
        let encode = |rendered: &str, marks: &Marks| tokenizer.encode_parsed(rendered, |part| marks.unmark(part));
        let replaced = marked(Marking::Replace);
        if let Ok((rendered, marks)) = &replaced
            && marks.unmark(rendered) == text
        {
            return encode(rendered, marks);
        }
        // The template reads control tokens of messages.
        if let Ok((rendered, marks)) = marked(Marking::Enclose)
            && marks.unmark(&rendered) == text
        {
            return encode(&rendered, &marks);
        }
        // It changes texts beyond that; but if people's characters gave no token, all are its own.
        let tokens = |text: &str| tokenizer.control().find(text).map(|t| t.id).collect::<Vec<_>>();
        let (rendered, _) = replaced?;
        if tokens(&rendered) == tokens(text) {
            return tokenizer.encode(text, Specials::Parse);
        }
        Err(Error::ControlTokensInMessage)
    }

    fn render_values(
        &self,
        tokenizer: &Tokenizer,
        messages: &Value,
        tools: &Value,
        options: &ChatOptions,
        limits: &Limits,
        marks: Option<Arc<Marks>>,
    ) -> Result<String> {
        let mut context = Map::new();
        for (name, spelling) in tokenizer.named() {
            context.insert(name.clone(), json!(spelling));
        }
        context.insert("messages".to_owned(), messages.clone());
        context.insert("tools".to_owned(), tools.clone());
        context.insert("documents".to_owned(), Value::Null);
        for (name, on) in [
            ("add_generation_prompt", options.add_generation_prompt),
            ("enable_thinking", options.enable_thinking),
            ("preserve_thinking", options.preserve_thinking),
        ] {
            context.insert(name.to_owned(), json!(on));
        }

        let with_tools = self.tool_use.as_ref().filter(|_| !tools.is_null());
        let mut env = with_tools.unwrap_or(&self.default).clone();
        env.set_fuel(Some(limits.fuel));
        if marks.is_some() {
            environment::read_through(&mut env, marks);
        }
        let template = env.get_template(TEMPLATE).map_err(|e| explain(&e, limits))?;
        let mut output = Output { text: Vec::new(), limit_bytes: limits.output_bytes };
        template
            .render_captured_to(minijinja::Value::from(Serde(&context)), &mut output)
            .map_err(|e| explain(&e, limits))?;
        String::from_utf8(output.text).map_err(|e| Error::TemplateFailed(e.to_string()))
    }
}

/// Messages and tools as the template reads them; no tools are null.
fn written(messages: &[Message], options: &ChatOptions) -> Result<(Value, Value)> {
    for (index, tool) in options.tools.iter().enumerate() {
        if !tool["function"]["name"].is_string() {
            let why = "`function.name` is missing, wanted {type: \"function\", function: {name, ...}}";
            return Err(Error::Tool { index, why });
        }
    }
    let tools = if options.tools.is_empty() { Value::Null } else { json!(options.tools) };
    Ok((messages.iter().map(Message::to_template).collect(), tools))
}

impl Limits {
    /// Templates look at each message a few times, some at each pair of messages, and write what
    /// they are given about once. Whatever needs far more than that does not end.
    fn of(messages: &Value, tools: &Value) -> Self {
        let mut bytes = 0;
        for value in [messages, tools] {
            marks::each_text(value, &mut |text| bytes += text.len() + 16);
        }
        let count = messages.as_array().map_or(0, Vec::len) as u64;
        Self {
            fuel: 2_000_000 + 32 * bytes as u64 + 5_000 * count + 20 * count * count,
            output_bytes: (1 << 20) + 8 * bytes,
        }
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

/// Parses and checks a template.
fn compile(source: &str) -> Result<Environment<'static>> {
    let syntax = |e: minijinja::Error| Error::TemplateSyntax(e.to_string());
    if source.len() > MAX_SOURCE_BYTES {
        let bytes = source.len();
        let why = format!("{bytes} bytes, wanted at most {MAX_SOURCE_BYTES}");
        return Err(Error::TemplateSyntax(why));
    }
    let mut env = environment::new().map_err(syntax)?;
    let source = source::prepare(source, env.syntax()).map_err(syntax)?;
    env.add_template_owned(TEMPLATE, source).map_err(syntax)?;
    match environment::unknown_name(&env).map_err(syntax)? {
        Some((what, name)) => Err(Error::TemplateUnknown { what, name }),
        None => Ok(env),
    }
}

/// The engine's error as one of ours.
fn explain(error: &minijinja::Error, limits: &Limits) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return Error::Refused(message.clone());
        }
        if let Some(inner) = current.downcast_ref::<minijinja::Error>() {
            match inner.kind() {
                ErrorKind::OutOfFuel => return Error::TemplateEndless { fuel: limits.fuel },
                ErrorKind::WriteFailure => {
                    return Error::TemplateOutput { limit_bytes: limits.output_bytes };
                }
                _ => {}
            }
        }
        cause = current.source();
    }
    Error::TemplateFailed(error.to_string())
}
