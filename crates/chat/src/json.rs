//! JSON that keeps the digits of its numbers and the order of its keys. Arguments of tools come and go
//! as text, and no number of them may pass through a float on the way.

use indexmap::IndexMap;
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny};
use serde::ser::{Error as _, Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;

/// A JSON value.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Json {
    /// `null`.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number as it is written.
    Number(Number),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Json>),
    /// An object.
    Object(JsonObject),
}

/// A JSON object, its keys in the order in which they were written; of equal keys the last value counts.
pub type JsonObject = IndexMap<String, Json>;

/// A number, as long as it was written: 20 digits stay 20 digits, `1.0` is not `1`, `1e400` is no infinity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Number(String);

/// The deepest nesting that is read.
pub const MAX_DEPTH: usize = 100;

impl Number {
    /// The number that is written so in JSON; nothing if it is none.
    pub fn new(text: &str) -> Option<Number> {
        let is_number = text.starts_with(|c: char| c == '-' || c.is_ascii_digit())
            && text.ends_with(|c: char| c.is_ascii_digit())
            && serde_json::from_str::<IgnoredAny>(text).is_ok();
        is_number.then(|| Number(text.to_owned()))
    }

    /// As it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Json {
    /// Reads one JSON value that fills `text`. The error says what is wrong and where.
    pub fn parse(text: &str) -> Result<Json, String> {
        // serde_json proves the grammar; what is left is to take it apart.
        serde_json::from_str::<IgnoredAny>(text).map_err(|error| error.to_string())?;
        let mut reader = Reader { rest: text };
        reader.value(0)
    }

    /// The value of a key, if this is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Json> {
        match self {
            Json::Object(object) => object.get(key),
            _ => None,
        }
    }

    /// The text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }

    /// What it is, for people: "a text", "an object".
    pub fn kind(&self) -> &'static str {
        match self {
            Json::Null => "null",
            Json::Bool(_) => "a boolean",
            Json::Number(_) => "a number",
            Json::Text(_) => "a text",
            Json::List(_) => "a list",
            Json::Object(_) => "an object",
        }
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Json {
        Json::Text(text.to_owned())
    }
}

impl From<String> for Json {
    fn from(text: String) -> Json {
        Json::Text(text)
    }
}

impl From<bool> for Json {
    fn from(value: bool) -> Json {
        Json::Bool(value)
    }
}

impl From<&serde_json::Value> for Json {
    fn from(value: &serde_json::Value) -> Json {
        use serde_json::Value;
        match value {
            Value::Null => Json::Null,
            Value::Bool(value) => Json::Bool(*value),
            Value::Number(number) => Json::Number(Number(number.to_string())),
            Value::String(text) => Json::Text(text.clone()),
            Value::Array(items) => Json::List(items.iter().map(Json::from).collect()),
            Value::Object(map) => Json::Object(map.iter().map(|(key, value)| (key.clone(), value.into())).collect()),
        }
    }
}

/// Compact JSON text.
impl std::fmt::Display for Json {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| std::fmt::Error)?)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Json::Null => serializer.serialize_unit(),
            Json::Bool(value) => serializer.serialize_bool(*value),
            Json::Number(number) => {
                RawValue::from_string(number.0.clone()).map_err(S::Error::custom)?.serialize(serializer)
            }
            Json::Text(text) => serializer.serialize_str(text),
            Json::List(items) => serializer.collect_seq(items),
            Json::Object(object) => {
                let mut map = serializer.serialize_map(Some(object.len()))?;
                for (key, value) in object {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }
    }
}

/// From `serde_json` alone: other formats have no text to take the numbers from.
impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Json::parse(raw.get()).map_err(D::Error::custom)
    }
}

/// Takes apart a text that is known to be JSON.
struct Reader<'t> {
    rest: &'t str,
}

impl<'t> Reader<'t> {
    fn value(&mut self, depth: usize) -> Result<Json, String> {
        if depth > MAX_DEPTH {
            return Err(format!("nested deeper than {MAX_DEPTH} levels"));
        }
        match self.peek() {
            b'{' => {
                let mut object = JsonObject::new();
                self.items(b'}', |reader| {
                    let key = reader.text()?;
                    reader.skip(b':');
                    object.insert(key, reader.value(depth + 1)?);
                    Ok(())
                })?;
                Ok(Json::Object(object))
            }
            b'[' => {
                let mut list = vec![];
                self.items(b']', |reader| {
                    list.push(reader.value(depth + 1)?);
                    Ok(())
                })?;
                Ok(Json::List(list))
            }
            b'"' => self.text().map(Json::Text),
            _ => Ok(match self.take_while(|c| !matches!(c, b',' | b']' | b'}') && !c.is_ascii_whitespace()) {
                "null" => Json::Null,
                "true" => Json::Bool(true),
                "false" => Json::Bool(false),
                number => Json::Number(Number(number.to_owned())),
            }),
        }
    }

    /// Everything between brackets, item by item.
    fn items(&mut self, close: u8, mut item: impl FnMut(&mut Self) -> Result<(), String>) -> Result<(), String> {
        self.rest = &self.rest[1..];
        while self.peek() != close {
            item(self)?;
            self.skip(b',');
        }
        self.rest = &self.rest[1..];
        Ok(())
    }

    fn text(&mut self) -> Result<String, String> {
        self.peek();
        let mut is_escaped = true; // the opening quote does not close
        let end = self.rest.bytes().position(|c| {
            let closes = c == b'"' && !is_escaped;
            is_escaped = c == b'\\' && !is_escaped;
            closes
        });
        let (text, rest) = self.rest.split_at(end.map_or(self.rest.len(), |end| end + 1));
        self.rest = rest;
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// The next byte that is no space; 0 at the end.
    fn peek(&mut self) -> u8 {
        self.rest = self.rest.trim_ascii_start();
        self.rest.bytes().next().unwrap_or(0)
    }

    fn skip(&mut self, byte: u8) {
        if self.peek() == byte {
            self.rest = &self.rest[1..];
        }
    }

    fn take_while(&mut self, mut taken: impl FnMut(u8) -> bool) -> &'t str {
        let end = self.rest.bytes().position(|c| !taken(c)).unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn digits_keys_and_their_order_stay() {
        let text = r#"{"b":12345678901234567890123,"a":[1.0,-0,1e400,1E-7,true,null,"x\n\"\\"],"é":{}}"#;
        let json = Json::parse(text).unwrap();
        assert_eq!(
            json.to_string(),
            r#"{"b":12345678901234567890123,"a":[1.0,-0,1e400,1E-7,true,null,"x\n\"\\"],"é":{}}"#
        );
        assert_eq!(Json::parse(" { \"a\" : 1 , \"a\" : [ ] } ").unwrap().to_string(), r#"{"a":[]}"#);
    }

    #[test]
    fn what_is_no_json_is_an_error() {
        for text in ["", "{", "{a:1}", "[1,]", "01", "\"\\ud800\"", "1 2", "nul"] {
            assert!(Json::parse(text).is_err(), "{text}");
        }
        assert!(Json::parse(&"[".repeat(200_000)).is_err());
        let deep = format!("{}{}", "[".repeat(101), "]".repeat(101));
        assert!(Json::parse(&deep).is_ok());
        assert!(Json::parse(&format!("[{deep}]")).unwrap_err().contains("deeper"));
    }

    #[test]
    fn only_json_numbers_are_numbers() {
        for text in ["0", "-1", "1.5e3", "99999999999999999999"] {
            assert_eq!(Number::new(text).unwrap().as_str(), text);
        }
        for text in ["", "-", "01", "1.", ".5", "+1", "0x1", "1_000", "NaN", "\"1\"", "1 ", " 1", "[1]"] {
            assert_eq!(Number::new(text), None, "{text}");
        }
    }

    fn value() -> impl Strategy<Value = serde_json::Value> {
        use serde_json::json;
        let leaf = prop_oneof![
            Just(json!(null)),
            any::<bool>().prop_map(|x| json!(x)),
            any::<i64>().prop_map(|x| json!(x)),
            any::<f64>().prop_filter("finite", |x| x.is_finite()).prop_map(|x| json!(x)),
            any::<String>().prop_map(|x| json!(x)),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(|x| json!(x)),
                prop::collection::btree_map(any::<String>(), inner, 0..5).prop_map(|x| json!(x)),
            ]
        })
    }

    proptest! {
        #[test]
        fn reads_what_serde_json_writes(value in value()) {
            let compact = Json::parse(&serde_json::to_string(&value).unwrap()).unwrap();
            prop_assert_eq!(&compact, &Json::from(&value));
            prop_assert_eq!(&Json::parse(&serde_json::to_string_pretty(&value).unwrap()).unwrap(), &compact);
            prop_assert_eq!(compact.to_string(), serde_json::to_string(&value).unwrap());
        }
    }
}
