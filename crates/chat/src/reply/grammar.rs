//! The strict grammar of a call, character by character:
//!
//! ```text
//! call  := "call:" NAME object
//! object := "{" [ KEY ":" value { "," KEY ":" value } ] "}"
//! value := <|"|> any text <|"|> | number | "true" | "false" | "null" | object | "[" [ value { "," value } ] "]"
//! ```
//!
//! with white space between any two of them. It decides nothing but whether a marker within a string is part of the string; values are read by `value.rs`,
//! which takes all of this the same way.

use super::value::{DELIMITER, is_key_char, is_name_char, scalar};
use crate::json::{Json, MAX_DEPTH};

/// How far the text of a call has come in the grammar.
#[derive(Debug)]
pub struct Grammar {
    at: At,
    /// Closing brackets of the open containers, outermost first.
    open: Vec<char>,
}

#[derive(Debug)]
enum At {
    /// So many bytes of `call:` are behind.
    Word(usize),
    Name {
        is_empty: bool,
    },
    /// Between the name and the bracket.
    AfterName,
    /// In a key, or before it.
    Key {
        is_empty: bool,
        may_close: bool,
    },
    AfterKey,
    /// Before a value.
    Value {
        may_close: bool,
    },
    /// In a number or a word.
    Bare(String),
    /// In the delimiter that opens a string, with so many bytes of it behind.
    Opening(usize),
    /// In a string, with so many bytes of the closing delimiter behind.
    Text(usize),
    AfterValue,
    Complete,
    Failed,
}

impl Default for Grammar {
    fn default() -> Self {
        Grammar { at: At::Word(0), open: vec![] }
    }
}

impl Grammar {
    /// Whether a string is open, and all before it holds.
    pub fn is_in_text(&self) -> bool {
        matches!(self.at, At::Text(_))
    }

    /// Whether the text is a call, all of it.
    pub fn is_complete(&self) -> bool {
        matches!(self.at, At::Complete)
    }

    /// Whether no text that begins so is a call.
    pub fn has_failed(&self) -> bool {
        matches!(self.at, At::Failed)
    }

    /// Goes on with more text.
    pub fn push(&mut self, text: &str) {
        for c in text.chars() {
            let at = std::mem::replace(&mut self.at, At::Failed);
            self.at = self.after(at, c);
            if self.has_failed() {
                return;
            }
        }
    }

    fn after(&mut self, at: At, c: char) -> At {
        const WORD: &[u8] = b"call:";
        match at {
            At::Word(done) if c as u32 == u32::from(WORD[done]) => match done + 1 {
                done if done == WORD.len() => At::Name { is_empty: true },
                done => At::Word(done),
            },
            At::Name { .. } if is_name_char(c) => At::Name { is_empty: false },
            At::Name { is_empty: false } | At::AfterName if c == '{' => self.enter('}'),
            At::Name { is_empty: false } if c.is_whitespace() => At::AfterName,
            At::Key { .. } if is_key_char(c) => At::Key { is_empty: false, may_close: false },
            At::Key { is_empty: false, .. } | At::AfterKey if c == ':' => At::Value { may_close: false },
            At::Key { is_empty: false, .. } if c.is_whitespace() => At::AfterKey,
            At::Key { may_close: true, .. } if c == '}' => self.leave(c),
            At::Value { .. } if c == '{' => self.enter('}'),
            At::Value { .. } if c == '[' => self.enter(']'),
            At::Value { may_close: true } if c == ']' => self.leave(c),
            At::Value { .. } if is_bare_char(c) => At::Bare(c.to_string()),
            At::Value { .. } if c == '<' => self.after(At::Opening(0), c),
            At::Opening(done) if DELIMITER[done..].starts_with(c) => match done + 1 {
                done if done == DELIMITER.len() => At::Text(0),
                done => At::Opening(done),
            },
            // The delimiter's first character stands nowhere else in it.
            At::Text(done) if DELIMITER[done..].starts_with(c) => match done + 1 {
                done if done == DELIMITER.len() => At::AfterValue,
                done => At::Text(done),
            },
            At::Text(_) => At::Text(usize::from(DELIMITER.starts_with(c))),
            At::Bare(mut word) if is_bare_char(c) => {
                word.push(c);
                At::Bare(word)
            }
            At::Bare(word) if is_json_scalar(&word) => self.after(At::AfterValue, c),
            At::AfterValue if c == ',' => match self.open.last() {
                Some('}') => At::Key { is_empty: true, may_close: false },
                _ => At::Value { may_close: false },
            },
            At::AfterValue if c == '}' || c == ']' => self.leave(c),
            At::Name { is_empty: true }
            | At::AfterName
            | At::Key { is_empty: true, .. }
            | At::AfterKey
            | At::Value { .. }
            | At::AfterValue
            | At::Complete
                if c.is_whitespace() =>
            {
                at
            }
            _ => At::Failed,
        }
    }

    fn enter(&mut self, close: char) -> At {
        // The arguments themselves are no level, as in `Json::parse`.
        if self.open.len() > MAX_DEPTH {
            return At::Failed;
        }
        self.open.push(close);
        match close {
            '}' => At::Key { is_empty: true, may_close: true },
            _ => At::Value { may_close: true },
        }
    }

    fn leave(&mut self, close: char) -> At {
        match (self.open.pop(), self.open.is_empty()) {
            (Some(open), true) if open == close => At::Complete,
            (Some(open), false) if open == close => At::AfterValue,
            _ => At::Failed,
        }
    }
}

fn is_bare_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.')
}

/// Whether a bare word is spelled as JSON spells it.
fn is_json_scalar(word: &str) -> bool {
    matches!(word, "true" | "false" | "null") || matches!(scalar(word), Some(Json::Number(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Grammar {
        let mut grammar = Grammar::default();
        grammar.push(text);
        grammar
    }

    #[test]
    fn calls_as_the_template_writes_them_are_complete() {
        for text in [
            "call:f{}",
            "call:a.b:c/d-e_é{}",
            "call:f{a:1,b:-1.5e3,c:true,d:null}",
            "call:f{a:[],b:{},c:[1,[2],{x:<|\"|>y<|\"|>}]}",
            "call:f{a:<|\"|><|\"|>,b:<|\"|>} ] \" <| <<|\"|>}",
            "call: f { a : 1 ,\n\tb : [ 1 , <|\"|> x <|\"|> ] , c : { } , d : true } \n",
        ] {
            assert!(read(text).is_complete(), "{text}");
        }
    }

    #[test]
    fn anything_else_fails_at_the_first_character_that_cannot_be() {
        for text in [
            "ce",
            "call ",
            "call:{",
            "call:f(",
            "call:f{a=",
            "call:f{,",
            "call:f{a:1,}",
            "call:f{a:x,",
            "call:f{a:[1,]",
            "call:f{a:01}",
            "call:f{a:True}",
            "call:f{a:'",
            "call:f{}}",
            "call:f{} x",
            "call:f{a b",
            "call:f x",
            "call:f{a:1 2",
            "call:f{a:[1 2",
            "call:f{a:[}",
            "call:f{a:<|x",
            "call:f{a:<|\"|>x<|\"|>y",
        ] {
            let (last, _) = text.char_indices().last().unwrap();
            assert!(!read(&text[..last]).has_failed(), "{text}");
            assert!(read(text).has_failed(), "{text}");
        }
    }

    #[test]
    fn a_string_is_open_between_its_delimiters() {
        assert!(!read("call:f{a:<|\"|").is_in_text());
        assert!(read("call:f{a:<|\"|>").is_in_text());
        assert!(read("call:f{a:<|\"|>x}<|\"|").is_in_text());
        assert!(!read("call:f{a:<|\"|>x}<|\"|>").is_in_text());
    }

    #[test]
    fn nesting_is_bounded_as_that_of_json() {
        let nested = |levels: usize| format!("call:f{{a:{}{}}}", "[".repeat(levels), "]".repeat(levels));
        assert!(read(&nested(MAX_DEPTH)).is_complete());
        assert!(read(&nested(MAX_DEPTH + 1)).has_failed());
    }
}
