//! The model's own chat template: messages to the text of a prompt, and that to ids.

use std::sync::Arc;

use minijinja::Environment;
use serde_json::Value;

use crate::Map;
use crate::environment::{self, TEMPLATE};
use crate::error::{Error, Result};
use crate::json::Json;
use crate::marks::{self, Marking, Marks};
use crate::message::{ChatOptions, Message};
use crate::rendering::{Limits, Rendering, Written};
use crate::source::{self, MAX_SOURCE_BYTES};
use crate::tokenizer::{Specials, Tokenizer};

/// A chat template, checked.
#[derive(Debug)]
pub struct ChatTemplate {
    default: Environment<'static>,
    /// The one for conversations with tools, where the model has two.
    tool_use: Option<Environment<'static>>,
    /// Names and sources of all that the model has, where they have names.
    named: Vec<(String, String)>,
}

/// What the model reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The rendered text.
    pub text: String,
    /// `[tokens]`, with `<bos>` once, in front.
    pub ids: Vec<u32>,
}

/// The names that a model's templates have a meaning by.
const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

impl ChatTemplate {
    /// The template of a model: the text of `chat_template.jinja` if it has that file, else
    /// `chat_template` of the map of tokenizer_config.json (empty if the model has none): a text, or
    /// a list of `{name, template}` as for [`from_named`](Self::from_named).
    ///
    /// Filters, tests, methods and functions that nothing provides are errors here, in whatever branch.
    pub fn new(chat_template_jinja: Option<&str>, tokenizer_config: &Map) -> Result<Self> {
        if let Some(source) = chat_template_jinja {
            return Self::of_source(source);
        }
        let found = tokenizer_config.get("chat_template").unwrap_or(&Value::Null);
        let config_error = |wanted| Error::Config {
            file: "tokenizer_config.json",
            field: "chat_template".to_owned(),
            found: found.to_string().chars().take(80).collect(),
            wanted,
        };
        match found {
            Value::Null => Err(Error::NoTemplate),
            Value::String(source) => Self::of_source(source),
            Value::Array(entries) => {
                let text = |entry: &Value, key: &str| entry[key].as_str().map(str::to_owned);
                let named = entries.iter().map(|entry| Some((text(entry, "name")?, text(entry, "template")?)));
                let named: Option<Vec<_>> = named.collect();
                let named = named.ok_or_else(|| config_error("a list of `name` and `template`, both texts"))?;
                if !named.iter().any(|(name, _)| name == DEFAULT) {
                    return Err(config_error("a list with a `template` whose `name` is default"));
                }
                Self::from_named(named)
            }
            _ => Err(config_error("a text or a list of named templates")),
        }
    }

    /// The templates of a model that has several, as pairs of name and source. The one named `default`
    /// is used, and `tool_use`, if there is one, for conversations with tools;
    /// [`named`](Self::named) takes any of them.
    pub fn from_named(templates: Vec<(String, String)>) -> Result<Self> {
        let source = |wanted: &str| {
            let found = templates.iter().find(|(name, _)| name == wanted);
            found.map(|(_, source)| compile(source)).transpose()
        };
        let default = source(DEFAULT)?.ok_or_else(|| unknown_template(DEFAULT, &templates))?;
        let tool_use = source(TOOL_USE)?;
        Ok(Self { default, tool_use, named: templates })
    }

    fn of_source(source: &str) -> Result<Self> {
        Ok(Self { default: compile(source)?, tool_use: None, named: Vec::new() })
    }

    /// The template of this name alone, with tools or without.
    pub fn named(&self, name: &str) -> Result<Self> {
        match self.named.iter().find(|(known, _)| known == name) {
            Some((_, source)) => Self::of_source(source),
            None => Err(unknown_template(name, &self.named)),
        }
    }

    /// The names of the model's templates; none if it has only one.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.named.iter().map(|(name, _)| name.as_str())
    }

    /// The text of a prompt, exactly as `transformers` renders it. Control tokens in messages look in it like
    /// the template's own; [`prompt`](Self::prompt) keeps them apart.
    pub fn render(&self, tokenizer: &Tokenizer, messages: &[Message], options: &ChatOptions) -> Result<String> {
        let written = Written::of(messages, options)?;
        self.rendering(tokenizer, options, &written).run(&written, None)
    }

    /// The prompt for `messages`: the rendered text and its ids, which are those of `transformers`
    /// wherever no message holds a control token.
    ///
    /// Control tokens that a message holds as text stay text. To know them, people's texts are
    /// rendered a second time with marks in place of the characters that control tokens begin and end
    /// with; the two renderings must agree but for the marks, and control tokens are then looked for in
    /// the marked one. A token is the template's if its first and last characters are.
    /// What the user said last must have a part in the text: a template that leaves it out answers
    /// nobody, and is an error.
    pub fn prompt(&self, tokenizer: &Tokenizer, messages: &[Message], options: &ChatOptions) -> Result<Prompt> {
        let written = Written::of(messages, options)?;
        let rendering = self.rendering(tokenizer, options, &written);
        let text = rendering.run(&written, None)?;
        if rendering.drops_last_user_text(&written, &text) {
            return Err(Error::UserTextDropped);
        }

        let control = tokenizer.control();
        let mut ids = if marks::needed(control, &[&written.messages, &written.tools]) {
            let marked = |marking| {
                let mut written = written.clone();
                let both = &mut [&mut written.messages, &mut written.tools];
                let marks =
                    Marks::new(Arc::clone(control), marking, both, &text).ok_or(Error::ControlTokensInMessage)?;
                let marks = Arc::new(marks);
                let rendered = rendering.run(&written, Some(Arc::clone(&marks)))?;
                Ok((marks.settle(&rendered), marks))
            };
            encode_marked(tokenizer, &text, marked)?
        } else {
            tokenizer.encode(&text, Specials::Parse)?
        };
        tokenizer.ensure_bos(&mut ids);
        Ok(Prompt { text, ids })
    }

    fn rendering<'r>(&'r self, tokenizer: &'r Tokenizer, options: &'r ChatOptions, written: &Written) -> Rendering<'r> {
        let with_tools = self.tool_use.as_ref().filter(|_| written.tools != Json::Null);
        let environment = with_tools.unwrap_or(&self.default);
        Rendering { environment, tokenizer, options, limits: Limits::of(written) }
    }
}

/// Ids of `text`, of which `marked` gives the marked rendering.
fn encode_marked(
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

fn unknown_template(name: &str, templates: &[(String, String)]) -> Error {
    let known: Vec<&str> = templates.iter().map(|(name, _)| name.as_str()).collect();
    let known = if known.is_empty() { "one without a name".to_owned() } else { known.join(", ") };
    Error::NoTemplateNamed { name: name.to_owned(), known }
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
