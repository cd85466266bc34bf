//! Text to ids and ids to the text or byte they stand for, as `tokenizer.json` says.
//!
//! The ids are those of Hugging Face's `tokenizers`, which does the work, for every text without
//! control tokens; whether control tokens in a text are tokens or text, the caller says each time.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::AddedToken;

use crate::Map;
use crate::control::ControlTokens;
use crate::decoder::Decoder;
use crate::error::{Error, Result};

/// Ids above this are refused: a table a token is kept, and a file must not choose its size at will.
const MAX_ID: u32 = 1 << 22;

/// What the spelling of a control token in a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// The token: for text that the program itself wrote, and for raw completions.
    Parse,
    /// Text like any other: for what people typed.
    AsText,
}

/// A tokenizer.
pub struct Tokenizer {
    /// Never parses control tokens; `control` finds them before it sees a text.
    plain: tokenizers::Tokenizer,
    control: Arc<ControlTokens>,
    decoder: Decoder,
    /// Spellings of all ids, one after the other.
    spellings: String,
    /// [vocab_size + 1], where the spelling of each id starts; none if it ends there too.
    starts: Vec<u32>,
    unknown: Option<u32>,
    bos: Option<u32>,
    adds_bos: bool,
    /// Tokens that templates name (`bos_token`, `eos_token`, ...), from tokenizer_config.json.
    named: Vec<(String, String)>,
}

impl Tokenizer {
    /// Reads the bytes of `tokenizer.json`, with the map of `tokenizer_config.json` (empty if the
    /// model has none).
    pub fn new(tokenizer_json: &[u8], tokenizer_config: &Map) -> Result<Self> {
        check_shape(tokenizer_json)?;
        let mut plain =
            tokenizers::Tokenizer::from_bytes(tokenizer_json).map_err(|e| Error::TokenizerFile(e.to_string()))?;
        // Both belong to training; a prompt is never cut or padded here.
        plain.with_padding(None);
        plain.with_truncation(None).map_err(|e| Error::TokenizerFile(e.to_string()))?;
        plain.set_encode_special_tokens(true);

        let decoder =
            serde_json::to_value(plain.get_decoder()).map_err(|e| Error::TokenizerFile(format!("decoder: {e}")))?;
        let decoder = Decoder::read(&decoder)?;

        let mut vocabulary: Vec<(u32, String)> =
            plain.get_vocab(true).into_iter().map(|(spelling, id)| (id, spelling)).collect();
        vocabulary.sort_unstable();
        let mut spellings = String::new();
        let mut starts = Vec::new();
        for (id, spelling) in &vocabulary {
            if *id > MAX_ID {
                return Err(Error::TokenizerFile(format!("token {spelling:?} has id {id}, wanted at most {MAX_ID}")));
            }
            let index = *id as usize;
            if starts.len() > index {
                return Err(Error::TokenizerFile(format!("two tokens have id {id}")));
            }
            let start = text_offset(&spellings)?;
            starts.resize(index + 1, start);
            spellings.push_str(spelling);
        }
        starts.push(text_offset(&spellings)?);

        let named = named_tokens(tokenizer_config)?;
        make_special(&mut plain, &named, tokenizer_config)?;
        let control = Arc::new(ControlTokens::new(plain.get_added_tokens_decoder())?);
        let name = |key: &str| named.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
        let bos = control.id(name("bos_token").unwrap_or("<bos>"));
        let unknown = control.id(name("unk_token").unwrap_or("<unk>"));
        let adds_bos = match tokenizer_config.get("add_bos_token") {
            None | Some(Value::Null) => true,
            Some(Value::Bool(adds)) => *adds,
            Some(other) => return Err(config_error("add_bos_token", other, "true or false")),
        };
        Ok(Self { plain, control, decoder, spellings, starts, unknown, bos, adds_bos, named })
    }

    /// The ids of `text`. Adds nothing: neither `<bos>` nor anything else.
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>> {
        match specials {
            Specials::AsText => self.encode_plain(text),
            Specials::Parse => self.encode_parsed(text, |part| part),
        }
    }

    /// The ids of a raw completion: control tokens are parsed, no template is applied, and `<bos>`
    /// comes first exactly once, unless tokenizer_config.json says `"add_bos_token": false`.
    pub fn encode_raw(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = self.encode(text, Specials::Parse)?;
        self.ensure_bos(&mut ids);
        Ok(ids)
    }

    /// Puts `<bos>` in front if the model wants it and it is not there.
    pub(crate) fn ensure_bos(&self, ids: &mut Vec<u32>) {
        if let Some(bos) = self.bos
            && self.adds_bos
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
    }

    /// Ids of a text in which every control token found is a token. `unmark` is applied to the text
    /// between them.
    pub(crate) fn encode_parsed<'t, S: AsRef<str>>(
        &self,
        text: &'t str,
        unmark: impl Fn(&'t str) -> S,
    ) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        let mut done = 0;
        for found in self.control.find(text) {
            ids.extend(self.encode_plain(unmark(&text[done..found.range.start]).as_ref())?);
            ids.push(found.id);
            done = found.range.end;
        }
        ids.extend(self.encode_plain(unmark(&text[done..]).as_ref())?);
        Ok(ids)
    }

    fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let encoding =
            self.plain.encode_fast(text, false).map_err(|e| Error::Encode { bytes: text.len(), why: e.to_string() })?;
        let ids = encoding.get_ids();
        for &id in ids {
            // The unknown token stands for text that the vocabulary cannot spell.
            if Some(id) != self.unknown
                && let Some(token) = self.control.spelling(id)
            {
                return Err(Error::ControlFromText { token: token.to_owned(), id });
            }
        }
        Ok(ids.to_vec())
    }

    /// One more than the highest id.
    pub fn vocab_size(&self) -> usize {
        self.starts.len() - 1
    }

    /// The id of a control token by its spelling, as `<turn|>`.
    pub fn special_id(&self, spelling: &str) -> Option<u32> {
        self.control.id(spelling)
    }

    /// Whether an id is a control token.
    pub fn is_special(&self, id: u32) -> bool {
        self.control.spelling(id).is_some()
    }

    /// The id of `<bos>`, if the tokenizer has one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// How the vocabulary spells a token: `▁the`, `<0xE2>`, `<turn|>`. `None` for ids without one.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        let at = id as usize;
        let (start, end) = (*self.starts.get(at)?, *self.starts.get(at + 1)?);
        Some(&self.spellings[start as usize..end as usize]).filter(|spelling| !spelling.is_empty())
    }

    /// The bytes that a token stands for: ` the`, the byte E2, `<turn|>`. `None` for ids without a
    /// token. The bytes of a text's tokens, joined, are the text (but for a leading space that some
    /// decoders drop).
    pub fn token_bytes(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        let spelling = self.token_text(id)?;
        Some(match self.decoder.byte(spelling) {
            Some(byte) => Cow::Owned(vec![byte]),
            None => match self.decoder.text(spelling) {
                Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                Cow::Owned(text) => Cow::Owned(text.into_bytes()),
            },
        })
    }

    pub(crate) fn control(&self) -> &Arc<ControlTokens> {
        &self.control
    }

    pub(crate) fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// Names and spellings for the template's context.
    pub(crate) fn named(&self) -> &[(String, String)] {
        &self.named
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size()).finish_non_exhaustive()
    }
}

/// The parts of `tokenizer.json` that decide whether it is read at all.
#[derive(Deserialize)]
struct Shape {
    normalizer: Option<Value>,
    model: ModelShape,
}

#[derive(Deserialize)]
struct ModelShape {
    r#type: Option<String>,
    continuing_subword_prefix: Option<String>,
}

/// An error for kinds of tokenizers that Gemma's is not, before the library sees them: it panics on
/// some broken files of these.
fn check_shape(tokenizer_json: &[u8]) -> Result<()> {
    let refuse = |what: String| Err(Error::TokenizerFile(what));
    let shape: Shape = match serde_json::from_slice(tokenizer_json) {
        Ok(shape) => shape,
        Err(error) => return refuse(error.to_string()),
    };
    if let Some(kind) = shape.model.r#type.filter(|kind| kind != "BPE") {
        return refuse(format!("model.type is {kind:?}, wanted BPE"));
    }
    if let Some(prefix) = shape.model.continuing_subword_prefix.filter(|prefix| !prefix.is_empty()) {
        return refuse(format!("model.continuing_subword_prefix is {prefix:?}, wanted none"));
    }
    if shape.normalizer.is_some_and(|normalizer| is_precompiled(&normalizer)) {
        return refuse("normalizer Precompiled is not supported".to_owned());
    }
    Ok(())
}

/// Whether a normalizer, or one of a sequence's, is a compiled table.
fn is_precompiled(normalizer: &Value) -> bool {
    let steps = normalizer["normalizers"].as_array();
    normalizer["type"] == "Precompiled"
        || !normalizer["precompiled_charsmap"].is_null()
        || steps.is_some_and(|steps| steps.iter().any(is_precompiled))
}

fn text_offset(spellings: &str) -> Result<u32> {
    u32::try_from(spellings.len()).map_err(|_| Error::TokenizerFile("spellings of more than 4 GiB".to_owned()))
}

/// Every `*_token` of tokenizer_config.json: a string, or a map with its `content`.
fn named_tokens(config: &Map) -> Result<Vec<(String, String)>> {
    let mut named = Vec::new();
    for (key, value) in config.iter().filter(|(key, _)| key.ends_with("_token")) {
        match value {
            Value::String(spelling) => named.push((key.clone(), spelling.clone())),
            Value::Object(token) => match token.get("content") {
                Some(Value::String(spelling)) => named.push((key.clone(), spelling.clone())),
                _ => return Err(config_error(key, value, "a string, or a map with `content`")),
            },
            // add_bos_token and the like are switches, not names.
            Value::Null | Value::Bool(_) => {}
            other => return Err(config_error(key, other, "a string, or a map with `content`")),
        }
    }
    Ok(named)
}

/// Tokens that tokenizer_config.json names are control tokens even where tokenizer.json does not say so.
fn make_special(plain: &mut tokenizers::Tokenizer, named: &[(String, String)], config: &Map) -> Result<()> {
    let extra = match config.get("extra_special_tokens") {
        None | Some(Value::Null | Value::Object(_)) => &[][..],
        Some(Value::Array(spellings)) => spellings,
        Some(other) => return Err(config_error("extra_special_tokens", other, "a list of strings")),
    };
    let extra = extra.iter().filter_map(Value::as_str);
    let added = plain.get_added_tokens_decoder();
    let is_special = |spelling: &str| added.values().any(|token| token.special && token.content == spelling);
    let missing: Vec<AddedToken> = named
        .iter()
        .map(|(_, spelling)| spelling.as_str())
        .chain(extra)
        .filter(|spelling| plain.token_to_id(spelling).is_some() && !is_special(spelling))
        .map(|spelling| AddedToken::from(spelling, true))
        .collect();
    plain.add_special_tokens(missing).map_err(|e| Error::TokenizerFile(e.to_string()))?;
    Ok(())
}

fn config_error(field: &str, found: &Value, wanted: &'static str) -> Error {
    Error::Config { file: "tokenizer_config.json", field: field.to_owned(), found: found.to_string(), wanted }
}
