//! What can be wrong with a tokenizer, a template, a configuration or a conversation.

/// The result of everything here that reads files or messages.
pub type Result<T> = std::result::Result<T, Error>;

/// One sentence a variant: the thing, the wanted, the found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `tokenizer.json` is not a tokenizer.
    #[error("tokenizer.json: {0}")]
    TokenizerFile(String),

    /// A decoder whose rules are not known here.
    #[error(
        "tokenizer.json: decoder {found} is not supported; wanted Replace, ByteFallback, Fuse, Strip in this order"
    )]
    Decoder {
        /// The step as the file spells it.
        found: String,
    },

    /// A text that the tokenizer gave up on.
    #[error("the tokenizer could not encode a text of {bytes} bytes: {why}")]
    Encode {
        /// Length of the text in bytes.
        bytes: usize,
        /// The tokenizer's own words.
        why: String,
    },

    /// The merges of the tokenizer lead from plain text to a control token.
    #[error(
        "the tokenizer makes the control token {token} (id {id}) out of plain text; this vocabulary cannot keep them apart"
    )]
    ControlFromText {
        /// Its spelling.
        token: String,
        /// Its id.
        id: u32,
    },

    /// No template anywhere.
    #[error(
        "no chat template: the model has neither chat_template.jinja nor `chat_template` in tokenizer_config.json; use raw completions"
    )]
    NoTemplate,

    /// The template does not parse.
    #[error("chat template: {0}")]
    TemplateSyntax(String),

    /// The template calls what is not there.
    #[error("chat template: unknown {what} `{name}`")]
    TemplateUnknown {
        /// Filter, test, method or function.
        what: &'static str,
        /// Its name.
        name: String,
    },

    /// The template called `raise_exception`: it refuses these messages.
    #[error("the chat template refuses these messages: {0}")]
    Refused(String),

    /// The template failed on these messages.
    #[error("chat template failed on these messages: {0}")]
    TemplateFailed(String),

    /// The template ran longer than messages of this size explain.
    #[error("the chat template did not end within {fuel} steps")]
    TemplateEndless {
        /// The limit.
        fuel: u64,
    },

    /// The template wrote more than messages of this size explain.
    #[error("the chat template wrote more than {limit_bytes} bytes")]
    TemplateOutput {
        /// The limit.
        limit_bytes: usize,
    },

    /// A message holds the text of control tokens, and the template's answer depends on them in a
    /// way that cannot be followed.
    #[error(
        "a message contains control tokens as text, and this chat template does not carry them as text; remove them from the message"
    )]
    ControlTokensInMessage,

    /// What the user said last makes no difference to the prompt.
    #[error(
        "the chat template leaves out what the user said last; the model would not see it, so choose another template or send a raw completion"
    )]
    UserTextDropped,

    /// A conversation or a list of tools is not what it should be.
    #[error("{path}: {why}")]
    Conversation {
        /// Where, as `messages[2].content`.
        path: String,
        /// What was found there and what was wanted.
        why: String,
    },

    /// A declared tool is not a function declaration, or one that the template cannot write.
    #[error("tools[{index}]: {why}")]
    Tool {
        /// Its place in the list.
        index: usize,
        /// What is missing, or what the template failed on.
        why: String,
    },

    /// A template that the model does not have.
    #[error("no chat template is named {name:?}; the model has {known}")]
    NoTemplateNamed {
        /// The name that was asked for.
        name: String,
        /// The names that there are.
        known: String,
    },

    /// A field of a configuration file has the wrong type or value.
    #[error("{file}: {field} is {found}, wanted {wanted}")]
    Config {
        /// Name of the file.
        file: &'static str,
        /// Name of the field.
        field: String,
        /// The value in the file.
        found: String,
        /// What it should be.
        wanted: &'static str,
    },

    /// Nothing says where answers end.
    #[error(
        "no stop ids: neither config.json nor generation_config.json has eos_token_id, and the tokenizer has neither <eos> nor <turn|>"
    )]
    NoStopIds,

    /// An empty stop string would end every answer at once.
    #[error("stop string {index} is empty; wanted at least one character")]
    EmptyStop {
        /// Its place in the list.
        index: usize,
    },
}
