//! How the spelling of a token in the vocabulary becomes text: the `decoder` of `tokenizer.json`.
//!
//! Gemma's replaces `▁` by a space, takes `<0xE2>` for the byte and joins. Steps are known one by one;
//! a decoder with others, or in another order, is refused by name.

use std::borrow::Cow;

use serde_json::Value;

use crate::error::{Error, Result};

/// The steps of a decoder, in the order in which they apply.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Decoder {
    /// Within one token: this text by that.
    replace: Vec<(String, String)>,
    /// Whether `<0xE2>` is a byte.
    pub byte_fallback: bool,
    /// At the start of the whole text: how many of this character are dropped.
    pub strip_start: Option<(char, usize)>,
}

impl Decoder {
    /// Reads the `decoder` value of `tokenizer.json`.
    pub fn read(decoder: &Value) -> Result<Self> {
        let refuse = |step: &Value| Error::Decoder { found: step.to_string() };
        let single = std::slice::from_ref(decoder);
        let steps = match decoder["type"].as_str() {
            Some("Sequence") => decoder["decoders"].as_array().ok_or_else(|| refuse(decoder))?,
            _ => single,
        };
        let mut read = Decoder::default();
        let mut fused = false;
        for step in steps {
            match (step["type"].as_str(), fused) {
                (Some("Replace"), false) if !read.byte_fallback => {
                    let pattern = step["pattern"]["String"].as_str().filter(|p| !p.is_empty());
                    let (Some(from), Some(to)) = (pattern, step["content"].as_str()) else {
                        return Err(refuse(step));
                    };
                    read.replace.push((from.to_owned(), to.to_owned()));
                }
                (Some("ByteFallback"), false) => read.byte_fallback = true,
                (Some("Fuse"), _) => fused = true,
                (Some("Strip"), true) if read.strip_start.is_none() && step["stop"] == 0 => {
                    let content = step["content"].as_str().and_then(|c| c.chars().next());
                    let (Some(content), Some(start)) = (content, step["start"].as_u64()) else {
                        return Err(refuse(step));
                    };
                    let start = usize::try_from(start).map_err(|_| refuse(step))?;
                    read.strip_start = Some((content, start));
                }
                _ => return Err(refuse(step)),
            }
        }
        Ok(read)
    }

    /// The byte that a token stands for, if it is one of the 256 byte tokens.
    pub fn byte(&self, spelling: &str) -> Option<u8> {
        let hex = spelling.strip_prefix("<0x")?.strip_suffix('>')?;
        let plain = hex.len() == 2 && hex.bytes().all(|b| b.is_ascii_hexdigit());
        if !self.byte_fallback || !plain {
            return None;
        }
        u8::from_str_radix(hex, 16).ok()
    }

    /// The text that a token stands for, if it is no byte token.
    pub fn text<'s>(&self, spelling: &'s str) -> Cow<'s, str> {
        let mut text = Cow::Borrowed(spelling);
        for (from, to) in &self.replace {
            if text.contains(from.as_str()) {
                text = Cow::Owned(text.replace(from.as_str(), to));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unknown_steps_and_orders_are_refused_by_name() {
        let byte = json!({"type": "ByteFallback"});
        let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
        for steps in [
            json!({"type": "Metaspace", "replacement": "▁"}),
            json!({"type": "Sequence", "decoders": [byte, replace]}),
            json!({"type": "Sequence", "decoders": [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]}),
            json!(null),
        ] {
            let error = Decoder::read(&steps).unwrap_err().to_string();
            assert!(error.contains("is not supported"), "{error}");
        }
    }

    #[test]
    fn only_the_exact_spelling_is_a_byte() {
        let decoder = Decoder { byte_fallback: true, ..Decoder::default() };
        assert_eq!(decoder.byte("<0xEA>"), Some(0xEA));
        for not in ["<0xEAB>", "<0xE>", "<0x+1>", "0xEA", "<0xEA> "] {
            assert_eq!(decoder.byte(not), None, "{not}");
        }
    }
}
