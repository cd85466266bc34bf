//! The text side of a model: its tokenizer, template, and what its files say of answers.

use std::sync::Arc;

use chat::{
    ChatOptions, ChatTemplate, Content, DeclaredTool, Map, Message, Part, Prompt, SamplingDefaults, StopIds, Tokenizer,
};
use checkpoint::Folder;
use engine::Request;

use crate::best::Best;
use crate::error::{Error, Result};
use crate::follower::{Follower, Splitter};
use crate::settings::random_seed;
use crate::{Listener, Settings};

/// The text side of a model.
pub struct Texts {
    tokenizer: Arc<Tokenizer>,
    /// Why there is none is told when a chat asks for it: a raw text needs none.
    template: std::result::Result<ChatTemplate, String>,
    stop_ids: StopIds,
    defaults: SamplingDefaults,
}

/// What the model is to go on from.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// `[tokens]` of the prompt.
    pub ids: Vec<u32>,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    /// A turn of a conversation.
    Chat { tools: Vec<DeclaredTool> },
    /// Any text, which the model goes on with.
    Raw,
}

impl Texts {
    /// Reads the text side of a model.
    pub fn read(folder: &Folder) -> Result<Texts> {
        let Some(tokenizer) = folder.file("tokenizer.json")? else {
            return Err(Error::NoTokenizer { place: folder.place() });
        };
        let tokenizer_config = folder.json("tokenizer_config.json")?.unwrap_or_default();
        let generation = folder.json("generation_config.json")?;
        let config = folder.json("config.json")?.unwrap_or_default();
        let tokenizer = Tokenizer::new(&tokenizer, &tokenizer_config)?;
        let template = template_of(folder, &tokenizer_config)?;
        Ok(Texts {
            stop_ids: StopIds::read(&config, generation.as_ref(), &tokenizer)?,
            defaults: SamplingDefaults::read(generation.as_ref())?,
            template: template.map_err(|error| error.to_string()),
            tokenizer: Arc::new(tokenizer),
        })
    }

    /// The same with another template: the text of one instead of the model's own.
    pub fn with_template(self, source: &str) -> Result<Texts> {
        Ok(Texts { template: Ok(ChatTemplate::new(Some(source), &Map::new())?), ..self })
    }

    /// The same with one of the model's templates, where it has several, by its name.
    pub fn with_template_named(self, name: &str) -> Result<Texts> {
        let template = self.template()?.named(name)?;
        Ok(Texts { template: Ok(template), ..self })
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// What the model says of how its answers are to be made.
    pub fn defaults(&self) -> &SamplingDefaults {
        &self.defaults
    }

    /// The ids that end a turn of a conversation.
    pub fn chat_stop_ids(&self) -> StopIds {
        self.stop_ids.clone().with_turn_ends(&self.tokenizer)
    }

    fn template(&self) -> Result<&ChatTemplate> {
        self.template.as_ref().map_err(|why| Error::Template(why.clone()))
    }

    /// The text that the model's template makes of messages, as `transformers` would have it.
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String> {
        Ok(self.template()?.render(&self.tokenizer, messages, options)?)
    }

    /// The prompt that the model's template makes of messages; media are their placeholders.
    pub fn prompt(&self, messages: &[Message], options: &ChatOptions) -> Result<Prompt> {
        Ok(self.template()?.prompt(&self.tokenizer, messages, options)?)
    }

    /// A turn of a conversation as a question.
    pub fn chat(&self, messages: &[Message], options: &ChatOptions) -> Result<Question> {
        for (message, content) in messages.iter().map(|message| &message.content).enumerate() {
            let Content::Parts(parts) = content else { continue };
            if let Some(Part::Media(medium)) = parts.iter().find(|part| matches!(part, Part::Media(_))) {
                return Err(Error::Medium { message, kind: medium.kind.name() });
            }
        }
        let ids = self.prompt(messages, options)?.ids;
        let tools = options.tools.iter().filter_map(DeclaredTool::read).collect();
        Ok(Question { ids, kind: Kind::Chat { tools } })
    }

    /// A text to go on with, as it is; control tokens in it count.
    pub fn raw(&self, text: &str) -> Result<Question> {
        Ok(Question { ids: self.tokenizer.encode_raw(text)?, kind: Kind::Raw })
    }

    /// The requests that answer a question: one, or `best_of`, of which the listener hears the best alone.
    pub fn ask(&self, question: Question, settings: &Settings, listener: Box<dyn Listener>) -> Result<Vec<Request>> {
        let answers = settings.best_of.max(1) as u64;
        let seed = settings.seed.unwrap_or_else(random_seed);
        if answers == 1 {
            return Ok(vec![self.request(question, settings, seed, settings.log_probabilities, listener)?]);
        }
        // Answers are compared by their log-probabilities, asked for or not.
        let scores = settings.log_probabilities.or(Some(0));
        let best = Best::new(listener, answers as usize, settings.log_probabilities.is_some());
        let request = |number| {
            let listener = Box::new(best.clone());
            self.request(question.clone(), settings, seed.wrapping_add(number), scores, listener)
        };
        (0..answers).map(request).collect()
    }

    /// The most tokens of an answer, where the model says so.
    pub fn default_max_tokens(&self, question: &Question) -> Option<usize> {
        let length = self.defaults.max_length.map(|length| (length as usize).saturating_sub(question.ids.len()));
        self.defaults.max_new_tokens.map(|most| most as usize).or(length)
    }

    fn request(
        &self,
        question: Question,
        settings: &Settings,
        seed: u64,
        log_probabilities: Option<u32>,
        listener: Box<dyn Listener>,
    ) -> Result<Request> {
        let defaults = &self.defaults;
        let stop_texts = settings.stop_texts(defaults);
        let stop_ids = match question.kind {
            Kind::Chat { .. } => self.chat_stop_ids(),
            Kind::Raw => self.stop_ids.clone(),
        };
        let rules = settings.rules(defaults, seed, question.ids.len(), stop_ids.ids());
        let stop = stop_ids.ids().into();
        let splitter = match &question.kind {
            Kind::Chat { tools } => {
                Splitter::chat(self.tokenizer.clone(), &question.ids, tools.clone(), stop_texts, stop_ids)?
            }
            Kind::Raw => Splitter::raw(self.tokenizer.clone(), &stop_texts)?,
        };
        let max_tokens = settings.max_tokens.or(self.default_max_tokens(&question)).unwrap_or(usize::MAX);
        let follower = Follower::new(self.tokenizer.clone(), splitter, seed, log_probabilities.is_some(), listener);
        Ok(Request {
            prompt: question.ids,
            max_tokens,
            stop,
            rules,
            log_probabilities,
            constraint: None,
            client: Box::new(follower),
        })
    }
}

/// `chat_template.jinja`, else `chat_template.json`, else the field of tokenizer_config.json.
fn template_of(folder: &Folder, tokenizer_config: &Map) -> Result<chat::Result<ChatTemplate>> {
    let source = folder.file("chat_template.jinja")?.map(String::from_utf8).transpose();
    let source = source.map_err(|_| Error::NotText { file: "chat_template.jinja" })?;
    let of_processor = match source {
        Some(_) => None,
        None => folder.json("chat_template.json")?,
    };
    Ok(ChatTemplate::new(source.as_deref(), of_processor.as_ref().unwrap_or(tokenizer_config)))
}
