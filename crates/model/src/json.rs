//! Reads fields of config.json into values that are right by construction: in range, of the right type,
//! or an error with the field's path.

use serde_json::{Map, Value};

use crate::ModelError;

/// An object of config.json, with its path for messages.
#[derive(Clone, Copy)]
pub(crate) struct Object<'a> {
    pub map: &'a Map<String, Value>,
    path: &'a str,
}

impl<'a> Object<'a> {
    pub fn new(map: &'a Map<String, Value>, path: &'a str) -> Self {
        Object { map, path }
    }

    /// The whole path of a field.
    pub fn path(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    pub fn error(&self, field: &str, reason: impl Into<String>) -> ModelError {
        ModelError::Config { field: self.path(field), reason: reason.into() }
    }

    /// The value, unless absent or null.
    pub fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    /// A count in `1..=most`, or `default` where absent; an error where absent without default.
    pub fn count(&self, field: &str, default: Option<usize>, most: usize) -> Result<usize, ModelError> {
        match self.natural(field, most)? {
            Some(0) => Err(self.error(field, format!("0, wanted a whole number of 1 to {most}"))),
            Some(count) => Ok(count),
            None => default.ok_or_else(|| self.error(field, "not there, wanted a whole number")),
        }
    }

    /// A count in `0..=most`; `None` where absent or null.
    pub fn natural(&self, field: &str, most: usize) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match value.as_u64() {
            Some(count) if count <= most as u64 => Ok(Some(count as usize)),
            _ => Err(self.error(field, format!("{}, wanted a whole number of at most {most}", short(value)))),
        }
    }

    /// A number above 0 that f32 holds as one; `None` where absent or null.
    pub fn positive(&self, field: &str) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if (number as f32).is_normal() && number > 0.0 => Ok(Some(number)),
            _ => Err(self.error(field, format!("{}, wanted a number from 1e-37 to 3e38", short(value)))),
        }
    }

    /// True or false, or `default` where absent or null.
    pub fn flag(&self, field: &str, default: bool) -> Result<bool, ModelError> {
        match self.get(field) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(value) => Err(self.error(field, format!("{}, wanted true or false", short(value)))),
        }
    }

    /// A text; `None` where absent or null.
    pub fn text(&self, field: &str) -> Result<Option<&'a str>, ModelError> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(value) => Err(self.error(field, format!("{}, wanted a text", short(value)))),
        }
    }

    /// An object; `None` where absent or null.
    pub fn object(&self, field: &str) -> Result<Option<&'a Map<String, Value>>, ModelError> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(value) => Err(self.error(field, format!("{}, wanted an object", short(value)))),
        }
    }
}

/// A value for a message, cut where it is long.
pub(crate) fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
