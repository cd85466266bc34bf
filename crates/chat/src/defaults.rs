//! What `generation_config.json` says about sampling. A field that changes what is generated is honoured,
//! or refused by name when the file is read; one that nobody knows is a warning.

use serde_json::Value;

use crate::Map;
use crate::error::{Error, Result};

const FILE: &str = "generation_config.json";

/// The model's own sampling; what the file does not say is `None`, or empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SamplingDefaults {
    /// `false`: the likeliest token each time.
    pub do_sample: Option<bool>,
    /// At least 0, finite; 0 is the likeliest token each time.
    pub temperature: Option<f32>,
    /// How many of the likeliest tokens stay; 0 leaves all.
    pub top_k: Option<u32>,
    /// The share of probability that stays, above 0, at most 1.
    pub top_p: Option<f32>,
    /// The share of the likeliest token's probability that a token needs to stay, 0 to 1.
    pub min_p: Option<f32>,
    /// By what the logits of earlier tokens are divided if positive and multiplied if not; above 0.
    pub repetition_penalty: Option<f32>,
    /// Taken from the logits of tokens that the answer has; finite.
    pub presence_penalty: Option<f32>,
    /// Taken from the logits of tokens once for each time that the answer has them; finite.
    pub frequency_penalty: Option<f32>,
    /// The most tokens of an answer, at least 1.
    pub max_new_tokens: Option<u32>,
    /// The most tokens of prompt and answer, at least 1; `max_new_tokens` comes before it.
    pub max_length: Option<u32>,
    /// Tokens of the answer before which no stop id may come.
    pub min_new_tokens: Option<u32>,
    /// Tokens of prompt and answer before which no stop id may come; `min_new_tokens` comes before it.
    pub min_length: Option<u32>,
    /// Texts that end an answer, none of them empty.
    pub stop_strings: Vec<String>,
    /// Ids that are never generated, those of `bad_words_ids` among them; ascending.
    pub suppress_tokens: Vec<u32>,
    /// Ids that an answer does not begin with, ascending.
    pub begin_suppress_tokens: Vec<u32>,
    /// Added to the logit of an id each time; finite, one for an id, ascending by id.
    pub bias: Vec<(u32, f32)>,
    /// A sentence for each field that nothing here knows.
    pub warnings: Vec<String>,
}

/// Fields that are read into [`SamplingDefaults`], or by [`StopIds`](crate::StopIds).
const HONOURED: &str = "do_sample temperature top_k top_p min_p repetition_penalty presence_penalty frequency_penalty \
    max_new_tokens max_length min_new_tokens min_length stop_strings suppress_tokens begin_suppress_tokens \
    bad_words_ids sequence_bias eos_token_id";

/// Fields that change nothing here: how beams are searched (there are none), how others cache, compile,
/// guess ahead and report, and tokens that the tokenizer knows itself.
const HARMLESS: &str = "early_stopping length_penalty low_memory renormalize_logits remove_invalid_values \
    use_cache cache_implementation cache_config max_cache_len compile_config disable_compile \
    continuous_batching_config prefill_chunk_size use_mtp is_assistant num_assistant_tokens \
    num_assistant_tokens_schedule assistant_confidence_threshold prompt_lookup_num_tokens \
    max_matching_ngram_size assistant_early_exit assistant_lookbehind target_lookbehind speculation_type \
    output_attentions output_hidden_states output_scores output_logits return_dict_in_generate \
    pad_token_id bos_token_id decoder_start_token_id transformers_version _from_model_config _commit_hash";

/// The value of a refused field that asks for nothing; null asks for nothing too.
#[derive(Debug, Clone, Copy)]
enum Neutral {
    Number(f64),
    False,
    Empty,
}

/// Fields that would change what is generated in ways that are not known here, and what to do about each.
const REFUSED: [(&str, Neutral, &str); 25] = [
    ("num_beams", Neutral::Number(1.0), "1 (beams are not searched: remove the field to decode one answer)"),
    ("num_beam_groups", Neutral::Number(1.0), "1 (beams are not searched: remove the field to decode one answer)"),
    ("diversity_penalty", Neutral::Number(0.0), "0 (it is for groups of beams: remove the field)"),
    ("num_return_sequences", Neutral::Number(1.0), "1 (one answer is made at a time: remove the field)"),
    ("max_time", Neutral::Empty, "null (answers end by tokens, not by time: use max_new_tokens)"),
    ("typical_p", Neutral::Number(1.0), "1 (typical sampling is not supported: remove the field, or use min_p)"),
    ("top_h", Neutral::Empty, "null (top-h sampling is not supported: remove the field, or use min_p)"),
    ("epsilon_cutoff", Neutral::Number(0.0), "0 (not supported: remove the field, or use min_p)"),
    ("eta_cutoff", Neutral::Number(0.0), "0 (not supported: remove the field, or use min_p)"),
    ("encoder_repetition_penalty", Neutral::Number(1.0), "1 (not supported: remove the field)"),
    ("no_repeat_ngram_size", Neutral::Number(0.0), "0 (not supported: remove the field, or use repetition_penalty)"),
    ("encoder_no_repeat_ngram_size", Neutral::Number(0.0), "0 (not supported: remove the field)"),
    ("exponential_decay_length_penalty", Neutral::Empty, "null (not supported: remove the field)"),
    ("forced_bos_token_id", Neutral::Empty, "null (not supported: remove the field)"),
    ("forced_eos_token_id", Neutral::Empty, "null (not supported: remove the field)"),
    ("force_bos_token_to_be_generated", Neutral::False, "false (not supported: remove the field)"),
    ("force_words_ids", Neutral::Empty, "null (words are not forced: remove the field)"),
    ("constraints", Neutral::Empty, "null (not supported: remove the field)"),
    ("guidance_scale", Neutral::Number(1.0), "1 (guidance without a classifier is not supported: remove the field)"),
    ("penalty_alpha", Neutral::Number(0.0), "0 (contrastive search is not supported: remove the field)"),
    ("dola_layers", Neutral::Empty, "null (decoding by contrasting layers is not supported: remove the field)"),
    ("token_healing", Neutral::False, "false (not supported: remove the field)"),
    ("watermarking_config", Neutral::Empty, "null (answers are not watermarked: remove the field)"),
    ("assistant_ensemble_weight", Neutral::Empty, "null (drafts never change an answer here: remove the field)"),
    ("custom_generate", Neutral::Empty, "null (code of a model is not run: remove the field)"),
];

impl Neutral {
    fn is(self, value: &Value) -> bool {
        match (self, value) {
            (_, Value::Null) => true,
            (Neutral::Number(neutral), value) => value.as_f64() == Some(neutral),
            (Neutral::False, value) => *value == Value::Bool(false),
            (Neutral::Empty, Value::Array(items)) => items.is_empty(),
            (Neutral::Empty, _) => false,
        }
    }
}

impl SamplingDefaults {
    /// Reads the map of `generation_config.json`; `None` for a model without the file.
    pub fn read(generation_config: Option<&Map>) -> Result<Self> {
        let Some(config) = generation_config else {
            return Ok(Self::default());
        };
        for (name, neutral, wanted) in REFUSED {
            field(config, name, wanted, |value| neutral.is(value).then_some(()))?;
        }
        let at_least_one = "a whole number of at least 1";
        let at_least_zero = "a whole number of at least 0";
        let counted = |value: &Value| count(value).filter(|&count| count > 0);
        let finite = |value: &Value| float(value).filter(|number| number.is_finite());
        let mut suppress_tokens = field(config, "suppress_tokens", ID_LIST, ids)?.unwrap_or_default();
        suppress_tokens.extend(bad_words(config)?);
        Ok(Self {
            do_sample: field(config, "do_sample", "true or false", Value::as_bool)?,
            temperature: field(config, "temperature", "a number of at least 0", |value| {
                finite(value).filter(|&temperature| temperature >= 0.0)
            })?,
            top_k: field(config, "top_k", at_least_zero, count)?,
            top_p: field(config, "top_p", "a number above 0 and at most 1", |value| {
                float(value).filter(|&p| p > 0.0 && p <= 1.0)
            })?,
            min_p: field(config, "min_p", "a number from 0 to 1", |value| {
                float(value).filter(|p| (0.0..=1.0).contains(p))
            })?,
            repetition_penalty: field(config, "repetition_penalty", "a number above 0", |value| {
                finite(value).filter(|&penalty| penalty > 0.0)
            })?,
            presence_penalty: field(config, "presence_penalty", "a number", finite)?,
            frequency_penalty: field(config, "frequency_penalty", "a number", finite)?,
            max_new_tokens: field(config, "max_new_tokens", at_least_one, counted)?,
            max_length: field(config, "max_length", at_least_one, counted)?,
            min_new_tokens: field(config, "min_new_tokens", at_least_zero, count)?,
            min_length: field(config, "min_length", at_least_zero, count)?,
            stop_strings: field(config, "stop_strings", "a text or a list of texts, none of them empty", texts)?
                .unwrap_or_default(),
            suppress_tokens: ascending(suppress_tokens),
            begin_suppress_tokens: ascending(field(config, "begin_suppress_tokens", ID_LIST, ids)?.unwrap_or_default()),
            bias: field(
                config,
                "sequence_bias",
                "a list of [[id], bias], each of one id (a bias on a sequence is not supported)",
                biases,
            )?
            .unwrap_or_default(),
            warnings: config.keys().filter(|name| !is_known(name)).map(|name| unknown(name)).collect(),
        })
    }
}

const ID_LIST: &str = "a list of token ids";

fn is_known(name: &str) -> bool {
    let refused = REFUSED.iter().any(|(refused, ..)| *refused == name);
    refused || [HONOURED, HARMLESS].iter().any(|list| list.split_whitespace().any(|known| known == name))
}

fn unknown(name: &str) -> String {
    format!("{FILE}: {name} is not known and changes nothing")
}

/// Ids of `bad_words_ids`. One that ends an answer stays allowed, or no answer would end.
fn bad_words(config: &Map) -> Result<Vec<u32>> {
    let wanted = "a list of lists of one token id (words of several tokens are not supported)";
    let words = field(config, "bad_words_ids", wanted, |words| words.as_array()?.iter().map(one_id).collect());
    let ends = match config.get("eos_token_id") {
        Some(Value::Array(ends)) => ends.iter().filter_map(count).collect(),
        Some(end) => count(end).into_iter().collect(),
        None => Vec::new(),
    };
    let words: Vec<u32> = words?.unwrap_or_default();
    Ok(words.into_iter().filter(|id| !ends.contains(id)).collect())
}

fn one_id(value: &Value) -> Option<u32> {
    match value.as_array()?.as_slice() {
        [id] => count(id),
        _ => None,
    }
}

fn ids(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(count).collect()
}

fn texts(value: &Value) -> Option<Vec<String>> {
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    match value {
        Value::Array(items) => items.iter().map(text).collect(),
        one => Some(vec![text(one)?]),
    }
}

/// Of two biases on one id the later counts.
fn biases(value: &Value) -> Option<Vec<(u32, f32)>> {
    let mut biases = std::collections::BTreeMap::new();
    for entry in value.as_array()? {
        let [sequence, bias] = entry.as_array()?.as_slice() else { return None };
        biases.insert(one_id(sequence)?, float(bias).filter(|bias| bias.is_finite())?);
    }
    Some(biases.into_iter().collect())
}

fn ascending(mut ids: Vec<u32>) -> Vec<u32> {
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn count(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|count| u32::try_from(count).ok())
}

fn float(value: &Value) -> Option<f32> {
    value.as_f64().map(|number| number as f32)
}

fn field<T>(config: &Map, name: &str, wanted: &'static str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>> {
    match config.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => read(value).map(Some).ok_or_else(|| Error::Config {
            file: FILE,
            field: name.to_owned(),
            found: value.to_string().chars().take(80).collect(),
            wanted,
        }),
    }
}
