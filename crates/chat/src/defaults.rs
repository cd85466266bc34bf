//! What `generation_config.json` says about sampling.

use serde_json::Value;

use crate::Map;
use crate::error::{Error, Result};

const FILE: &str = "generation_config.json";

/// The model's own sampling; what the file does not say is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SamplingDefaults {
    /// `false`: the likeliest token each time.
    pub do_sample: Option<bool>,
    /// Above 0, finite.
    pub temperature: Option<f32>,
    /// How many of the likeliest tokens stay; 0 leaves all.
    pub top_k: Option<u32>,
    /// The share of probability that stays, above 0, at most 1.
    pub top_p: Option<f32>,
}

impl SamplingDefaults {
    /// Reads the map of `generation_config.json`; `None` for a model without the file.
    pub fn read(generation_config: Option<&Map>) -> Result<Self> {
        let Some(config) = generation_config else {
            return Ok(Self::default());
        };
        Ok(Self {
            do_sample: field(config, "do_sample", "true or false", Value::as_bool)?,
            temperature: field(config, "temperature", "a number of at least 0", |value| {
                float(value).filter(|t| (0.0..f32::INFINITY).contains(t))
            })?,
            top_k: field(config, "top_k", "a whole number of at least 0", |value| {
                value.as_u64().and_then(|k| u32::try_from(k).ok())
            })?,
            top_p: field(config, "top_p", "a number above 0 and at most 1", |value| {
                float(value).filter(|&p| p > 0.0 && p <= 1.0)
            })?,
        })
    }
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
            found: value.to_string(),
            wanted,
        }),
    }
}
