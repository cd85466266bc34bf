//! How Python prints values: templates are written for Jinja on Python, and a prompt is compared with
//! its prompts byte by byte.

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use crate::values::BigInteger;

/// How deeply nested a value may be; JSON from outside is never deeper.
const MAX_DEPTH: usize = 130;

/// `str(value)`.
pub(crate) fn str(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_owned()),
        _ => {
            let mut out = String::new();
            write_repr(&mut out, value, 0)?;
            Ok(out)
        }
    }
}

/// An error unless `value` may be printed.
pub(crate) fn check_depth(value: &Value) -> Result<(), Error> {
    check_depth_from(value, 0)
}

fn check_depth_from(value: &Value, depth: usize) -> Result<(), Error> {
    too_deep(depth)?;
    match value.kind() {
        ValueKind::Seq => value.try_iter()?.try_for_each(|item| check_depth_from(&item, depth + 1)),
        ValueKind::Map => pairs(value).try_for_each(|(_, item)| check_depth_from(&item, depth + 1)),
        _ => Ok(()),
    }
}

fn too_deep(depth: usize) -> Result<(), Error> {
    if depth <= MAX_DEPTH {
        return Ok(());
    }
    let why = format!("a value is nested more than {MAX_DEPTH} deep");
    Err(Error::new(ErrorKind::InvalidOperation, why))
}

/// `repr(value)`, for the kinds that JSON has; others print as the template engine prints them.
fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    too_deep(depth)?;
    match value.kind() {
        ValueKind::String => write_quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::Seq => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            for (index, item) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(out, &item, depth + 1)?;
            }
            if value.is_tuple() && value.len() == Some(1) {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (index, (key, item)) in pairs(value).enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(out, &key, depth + 1)?;
                out.push_str(": ");
                write_repr(out, &item, depth + 1)?;
            }
            out.push('}');
        }
        // True, False, None print like in Python already.
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}

/// A text between quotes, as `repr` writes it: single ones unless only the text has them.
fn write_quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => {
                let _ = match u32::from(c) {
                    code @ ..0x100 => write!(out, "\\x{code:02x}"),
                    code @ ..0x10000 => write!(out, "\\u{code:04x}"),
                    code => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// `str.isprintable()` of one character, for the same reasons: what is a control, a separator other than the
/// space, or assigned to nothing, is not. Private characters of the last planes are, though: they stand for
/// others when control tokens are told apart.
fn is_printable(c: char) -> bool {
    // Inside a text `escape_debug` escapes nothing else, but for quotes and the backslash.
    matches!(c, '\'' | '"' | '\\') || c >= '\u{F0000}' || format!("a{c}").escape_debug().nth(1) == Some(c)
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(float) => self::float(float),
        Err(_) => value.to_string(),
    }
}

/// `repr` of a float: the shortest digits that give it back, with an exponent below 1e-4 and from
/// 1e16 on.
pub(crate) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = value.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// The pairs of a map, in its order.
pub(crate) fn pairs(map: &Value) -> impl Iterator<Item = (Value, Value)> + use<'_> {
    let keys = map.try_iter().into_iter().flatten();
    keys.map(|key| {
        let item = map.get_item(&key).unwrap_or(Value::UNDEFINED);
        (key, item)
    })
}

/// How `json.dumps` is asked to write.
#[derive(Default)]
pub(crate) struct JsonStyle {
    pub ensure_ascii: bool,
    /// What one level of nesting is set in by; `None` writes one line.
    pub indent: Option<String>,
    pub item_separator: Option<String>,
    pub key_separator: Option<String>,
    pub sort_keys: bool,
}

impl JsonStyle {
    /// `json.dumps(value, ...)`.
    pub fn dumps(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write(&mut out, value, 0)?;
        Ok(out)
    }

    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        too_deep(depth)?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&json_number(value)),
            ValueKind::String => self.write_string(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.map(|item| (None, item)).collect();
                self.write_items(out, ['[', ']'], items, depth)?;
            }
            ValueKind::Map => {
                let mut items = Vec::new();
                for (key, item) in pairs(value) {
                    items.push((Some(json_key(&key)?), item));
                }
                if self.sort_keys {
                    items.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.write_items(out, ['{', '}'], items, depth)?;
            }
            _ if BigInteger::is(value) => {
                let _ = write!(out, "{value}");
            }
            kind => {
                let why = format!("a value of kind {kind} has no JSON");
                return Err(Error::new(ErrorKind::BadSerialization, why));
            }
        }
        Ok(())
    }

    fn write_items(
        &self,
        out: &mut String,
        [open, close]: [char; 2],
        items: Vec<(Option<String>, Value)>,
        depth: usize,
    ) -> Result<(), Error> {
        let comma = match (&self.item_separator, &self.indent) {
            (Some(separator), _) => separator,
            (None, Some(_)) => ",",
            (None, None) => ", ",
        };
        let break_line = |out: &mut String, depth: usize| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                out.extend(std::iter::repeat_n(indent.as_str(), depth));
            }
        };
        out.push(open);
        let empty = items.is_empty();
        for (index, (key, item)) in items.into_iter().enumerate() {
            out.push_str(if index > 0 { comma } else { "" });
            break_line(out, depth + 1);
            if let Some(key) = key {
                self.write_string(out, &key);
                out.push_str(self.key_separator.as_deref().unwrap_or(": "));
            }
            self.write(out, &item, depth + 1)?;
        }
        if !empty {
            break_line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn write_string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn json_number(value: &Value) -> String {
    match number(value).as_str() {
        "nan" => "NaN".to_owned(),
        "inf" => "Infinity".to_owned(),
        "-inf" => "-Infinity".to_owned(),
        other => other.to_owned(),
    }
}

fn json_key(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number => Ok(json_number(key)),
        kind => {
            let why = format!("a key of kind {kind} has no JSON");
            Err(Error::new(ErrorKind::BadSerialization, why))
        }
    }
}

/// White space as `str.strip()` knows it: Unicode's, and four separators more.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `str.capitalize()`.
pub(crate) fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let first: String = chars.next().into_iter().flat_map(to_titlecase).collect();
    first + &chars.as_str().to_lowercase()
}

/// `str.title()`: a word goes on as long as characters have case.
pub(crate) fn title(text: &str) -> String {
    let is_cased = |c: char| c.is_lowercase() || c.is_uppercase() || c != to_lowercase(c);
    let mut out = String::new();
    let mut word = String::new();
    for c in text.chars() {
        if is_cased(c) {
            word.push(c);
        } else {
            out.push_str(&capitalize(&std::mem::take(&mut word)));
            out.push(c);
        }
    }
    out + &capitalize(&word)
}

/// The first letter of a word: where one letter becomes several, only the first of them is a capital.
fn to_titlecase(c: char) -> Vec<char> {
    let mut upper = c.to_uppercase();
    let first = upper.next();
    first.into_iter().chain(upper.flat_map(char::to_lowercase)).collect()
}

fn to_lowercase(c: char) -> char {
    c.to_lowercase().next().unwrap_or(c)
}

/// `str.splitlines(keepends)`.
pub(crate) fn split_lines(text: &str, keeps_ends: bool) -> Vec<&str> {
    let is_end = |c: char| matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_end) {
        let end = match rest[at..].starts_with("\r\n") {
            true => at + 2,
            false => at + rest[at..].chars().next().map_or(0, char::len_utf8),
        };
        lines.push(&rest[..if keeps_ends { end } else { at }]);
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_in_python() {
        for (value, printed) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e300, "1.25e+300"),
            (123456.789, "123456.789"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(float(value), printed);
        }
    }

    #[test]
    fn containers_print_as_in_python() {
        let value = Value::from(minijinja::value::Serde(serde_json::json!(
            {"a": [1, 2.0, null, true], "it's": "say \"x\"\n", "q": "don't"}
        )));
        assert_eq!(str(&value).unwrap(), r#"{'a': [1, 2.0, None, True], "it's": 'say "x"\n', 'q': "don't"}"#);
        let text =
            Value::from(vec!["\u{1} \u{a0}\u{ad}é\u{301}\u{200b}\u{2028}\u{3000}\u{e000}\u{fffe}\u{e0001}🦀\\'\""]);
        let wanted =
            r#"['\x01 \xa0\xadé\u0301\u200b\u2028\u3000\ue000\ufffe\U000e0001🦀\\\'"']"#.replace("\\u0301", "\u{301}");
        assert_eq!(str(&text).unwrap(), wanted);
    }

    #[test]
    fn json_is_spelled_as_json_dumps_spells_it() {
        let value = Value::from(minijinja::value::Serde(serde_json::json!(
            {"b": "<é🦀>\u{7f}\u{1}", "a": [1e-5, null], "e": [], "f": {}}
        )));
        let line = JsonStyle::default().dumps(&value).unwrap();
        assert_eq!(line, "{\"b\": \"<é🦀>\u{7f}\\u0001\", \"a\": [1e-05, null], \"e\": [], \"f\": {}}");
        let style =
            JsonStyle { ensure_ascii: true, indent: Some("  ".to_owned()), sort_keys: true, ..JsonStyle::default() };
        let wanted = "{\n  \"a\": [\n    1e-05,\n    null\n  ],\n  \"b\": \"<\\u00e9\\ud83e\\udd80>\\u007f\\u0001\",\n  \"e\": [],\n  \"f\": {}\n}";
        assert_eq!(style.dumps(&value).unwrap(), wanted);
    }
}
