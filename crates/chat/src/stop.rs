//! Where an answer ends: the ids that the model ends with, and the texts that a caller does.

use serde_json::Value;

use crate::Map;
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

/// The ids that end an answer, ascending: none of them is part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopIds(Vec<u32>);

impl StopIds {
    /// All that `eos_token_id` names, a number or a list: in `config.json`, in its `text_config`, in
    /// `generation_config.json`. The files of one model name different ones (a turn ends with
    /// `<turn|>`, a call of tools with `<|tool_response>`), so they are joined. If none names any:
    /// the tokenizer's `<eos>` and `<turn|>`.
    pub fn read(config: &Map, generation_config: Option<&Map>, tokenizer: &Tokenizer) -> Result<Self> {
        let mut ids = Vec::new();
        add(&mut ids, "config.json", "eos_token_id", config.get("eos_token_id"))?;
        let text_config = config.get("text_config").and_then(|text| text.get("eos_token_id"));
        add(&mut ids, "config.json", "text_config.eos_token_id", text_config)?;
        if let Some(generation) = generation_config {
            let found = generation.get("eos_token_id");
            add(&mut ids, "generation_config.json", "eos_token_id", found)?;
        }
        if ids.is_empty() {
            let known = ["<eos>", "<turn|>"];
            ids.extend(known.iter().filter_map(|spelling| tokenizer.special_id(spelling)));
        }
        if ids.is_empty() {
            return Err(Error::NoStopIds);
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(Self(ids))
    }

    /// These and the tokens that end a model's turn in a chat, `<turn|>` and `<|tool_response>`, where the
    /// tokenizer has them: what comes after is not the model's to say, whatever the files list.
    pub fn with_turn_ends(mut self, tokenizer: &Tokenizer) -> Self {
        self.0.extend(["<turn|>", "<|tool_response>"].iter().filter_map(|end| tokenizer.special_id(end)));
        self.0.sort_unstable();
        self.0.dedup();
        self
    }

    /// Whether the answer ends with this id.
    pub fn contains(&self, id: u32) -> bool {
        self.0.contains(&id)
    }

    /// All of them, ascending.
    pub fn ids(&self) -> &[u32] {
        &self.0
    }
}

fn add(ids: &mut Vec<u32>, file: &'static str, field: &str, value: Option<&Value>) -> Result<()> {
    let one = |value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| Error::Config {
            file,
            field: field.to_owned(),
            found: value.to_string(),
            wanted: "a token id or a list of them",
        })
    };
    match value {
        None | Some(Value::Null) => {}
        Some(Value::Array(list)) => {
            for value in list {
                ids.push(one(value)?);
            }
        }
        Some(value) => ids.push(one(value)?),
    }
    Ok(())
}

/// Watches a text that comes in pieces for texts that end it, and holds back what may be the start of
/// one. How the text is cut into pieces makes no difference.
///
/// The text ends at the first place where one of the stop texts is complete; of several complete there,
/// at the start of the longest.
#[derive(Debug)]
pub struct StopStrings {
    stops: Vec<Stop>,
    /// Text of which the end may be the start of a stop text.
    held: String,
    stopped: Option<usize>,
}

/// One stop text and how much of it the text so far ends with.
#[derive(Debug)]
struct Stop {
    text: Vec<u8>,
    /// [len], how long a border (both a start and an end) the first i + 1 bytes have.
    borders: Vec<usize>,
    matched: usize,
}

/// What a piece of text brought.
#[derive(Debug, PartialEq, Eq)]
pub struct Watched {
    /// Text that is certain to be part of the answer.
    pub text: String,
    /// Which stop text ended it, if one did. Nothing comes after.
    pub stopped: Option<usize>,
}

impl StopStrings {
    /// Watches for `stops`; an empty one is an error.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self> {
        let stops = stops.iter().enumerate().map(|(index, stop)| {
            let text = stop.as_ref().as_bytes().to_vec();
            if text.is_empty() {
                return Err(Error::EmptyStop { index });
            }
            Ok(Stop { borders: borders(&text), text, matched: 0 })
        });
        Ok(Self { stops: stops.collect::<Result<_>>()?, held: String::new(), stopped: None })
    }

    /// Adds a piece of the text.
    pub fn push(&mut self, piece: &str) -> Watched {
        if self.stopped.is_some() {
            return Watched { text: String::new(), stopped: self.stopped };
        }
        let before = self.held.len();
        self.held.push_str(piece);
        for (offset, byte) in piece.bytes().enumerate() {
            let mut longest: Option<(usize, usize)> = None;
            for (index, stop) in self.stops.iter_mut().enumerate() {
                let len = stop.text.len();
                if stop.advance(byte) && longest.is_none_or(|(_, other)| len > other) {
                    longest = Some((index, len));
                }
            }
            if let Some((index, len)) = longest {
                self.stopped = Some(index);
                let mut text = std::mem::take(&mut self.held);
                text.truncate(before + offset + 1 - len);
                return Watched { text, stopped: self.stopped };
            }
        }
        let partial = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        // A partial match begins with the first byte of a stop text, so with a whole character.
        let rest = self.held.split_off(self.held.len() - partial);
        Watched { text: std::mem::replace(&mut self.held, rest), stopped: None }
    }

    /// The text has ended: what was held back.
    pub fn finish(&mut self) -> String {
        for stop in &mut self.stops {
            stop.matched = 0;
        }
        std::mem::take(&mut self.held)
    }
}

impl Stop {
    /// Whether the text is complete with this byte (Knuth, Morris, Pratt).
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.text[self.matched] != byte {
            self.matched = self.borders[self.matched - 1];
        }
        if self.text[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == self.text.len()
    }
}

fn borders(text: &[u8]) -> Vec<usize> {
    let mut borders = vec![0; text.len()];
    let mut border = 0;
    for at in 1..text.len() {
        while border > 0 && text[at] != text[border] {
            border = borders[border - 1];
        }
        if text[at] == text[border] {
            border += 1;
        }
        borders[at] = border;
    }
    borders
}
