//! Arguments as models write them. The strict grammar, and around it what is seen in the wild:
//!
//! - spaces and newlines anywhere, trailing commas, and missing ones where a quote, a bracket or white space parts the
//!   items; missing closing brackets at the end, and a wrong one there; at the next call, the bracket of this one;
//! - `=` for `:`, `(..)` for `{..}`; keys bare or quoted by `<|"|>`, `"` or `'`;
//! - strings between `<|"|>`, literal to the byte; strings in `"` or `'`, with the escapes of JSON. A quote
//!   closes where a value can end, so the apostrophe in `'don't'` does not;
//! - numbers and `true`, `false`, `null`, `True`, `False`, `None`, bare. Whatever is quoted is a text;
//! - anything else is a text up to a comma or a bracket that closes what is open, outside its own brackets, trimmed.
//!   Quotes in it are characters; a `<|"|>` after it is one whose opening twin is missing. So is a nested container
//!   that cannot be read as one;
//! - a string whose last `<|"|>` is missing goes to the end of the call, without the closing brackets there if
//!   they are just those that are wanted.
//!
//! Time is linear: where a rule looks ahead, what it looked at is never looked at again by the same rule; what
//! is nested is read at most twice for each of at most `MAX_DEPTH` levels.

use crate::json::{Json, JsonObject, MAX_DEPTH, Number};

/// What delimits a string.
pub const DELIMITER: &str = "<|\"|>";

/// Reads values from the front of what is left of a call's text.
#[derive(Debug)]
pub struct Reader<'b> {
    text: &'b str,
    at: usize,
    ending: Ending,
    /// Whether something was open when the text came to its end, in any way in which it was read; so is a `"` or `'`
    /// that closes nowhere.
    has_run_out: bool,
    /// Whether the brackets of all that is open were in the string that went to the end.
    are_closed: bool,
    /// Containers that are open, outermost first.
    open: Vec<Container>,
    /// From where on there are only closing brackets and white space.
    tail: usize,
    /// Behind the last `}`, `]` and `)`.
    last: [usize; 3],
    /// [key, item of an object or of a list; `"` or `'`], from where on no such quote closes.
    unclosed: [[usize; 2]; 3],
}

/// What stands at the end of the text of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// What ends a call.
    Marked,
    /// What ends a call, but a string was open there, and the reply was cut off later.
    Doubtful,
    /// Nothing: the reply was cut off.
    Cut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Container {
    /// With its closing bracket, `}` or `)`.
    Object(char),
    List,
}

impl Container {
    fn close(self) -> char {
        match self {
            Container::Object(close) => close,
            Container::List => ']',
        }
    }
}

/// A character of a tool's name.
pub fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '.' | ':' | '-' | '/')
}

/// A character of a bare key.
pub fn is_key_char(c: char) -> bool {
    !c.is_whitespace() && !matches!(c, ':' | '=' | ',' | '{' | '}' | '[' | ']' | '(' | ')' | '<' | '>' | '"' | '\'')
}

/// The value of a bare word that is not a text.
pub fn scalar(word: &str) -> Option<Json> {
    Some(match word {
        "true" | "True" => Json::Bool(true),
        "false" | "False" => Json::Bool(false),
        "null" | "None" => Json::Null,
        _ => Json::Number(Number::new(word)?),
    })
}

/// A text of its own that is not meant as raw text: a string, a container or a scalar, and nothing else.
pub fn whole_value(text: &str) -> Option<Json> {
    let text = text.trim();
    if let Some(value) = scalar(text) {
        return Some(value);
    }
    let mut reader = Reader::new(text, Ending::Cut);
    let value = match reader.peek()? {
        '{' | '[' => reader.container()?,
        _ => Json::Text(reader.string(After::Value)?),
    };
    (reader.rest().is_empty() && !reader.is_part()).then_some(value)
}

impl<'b> Reader<'b> {
    /// Over the text of a call.
    pub fn new(text: &'b str, ending: Ending) -> Self {
        let unclosed = [[usize::MAX; 2]; 3];
        let tail = text.trim_end_matches(|c: char| c.is_whitespace() || is_bracket(c)).len();
        let last = CLOSING.map(|bracket| text.rfind(bracket).map_or(0, |at| at + 1));
        Self { text, at: 0, ending, has_run_out: false, are_closed: false, open: vec![], tail, last, unclosed }
    }

    /// Whether what was read may be a part of what was to come: the reply was cut off while something was open.
    pub fn is_part(&self) -> bool {
        self.ending != Ending::Marked && self.has_run_out
    }

    /// What stands at the end of the text.
    pub fn ending(&self) -> Ending {
        self.ending
    }

    /// What is left.
    pub fn rest(&self) -> &'b str {
        &self.text[self.at..]
    }

    /// How many bytes are behind.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Goes back, or on, to a position.
    pub fn seek(&mut self, position: usize) {
        self.at = position;
    }

    /// The next character.
    pub fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    /// Takes what is next, if it is this.
    pub fn eat(&mut self, wanted: &str) -> bool {
        let is_next = self.rest().starts_with(wanted);
        if is_next {
            self.at += wanted.len();
        }
        is_next
    }

    /// Takes the characters of which `taken` is true.
    pub fn take_while(&mut self, taken: impl Fn(char) -> bool) -> &'b str {
        let rest = self.rest();
        let word = &rest[..rest.find(|c| !taken(c)).unwrap_or(rest.len())];
        self.at += word.len();
        word
    }

    /// Takes white space.
    pub fn skip_space(&mut self) {
        self.take_while(char::is_whitespace);
    }

    /// Arguments, from their opening bracket on. `None` if they cannot be read.
    pub fn arguments(&mut self) -> Option<JsonObject> {
        let start = self.at;
        if self.eat("(") {
            self.skip_space();
            if self.peek() == Some('{') {
                let object = self.object()?;
                self.skip_space();
                self.has_run_out |= self.rest().is_empty() && !self.are_closed;
                return (self.eat(")") || self.rest().is_empty()).then_some(object);
            }
            self.at = start;
        }
        self.object()
    }

    /// Whether the next call begins here: `call`, a colon, a name, a bracket.
    fn is_at_call(&self) -> bool {
        let Some(rest) = self.rest().strip_prefix("call") else {
            return false;
        };
        let name = rest.trim_start().strip_prefix(':').unwrap_or_default().trim_start();
        let end = name.find(|c| !is_name_char(c)).unwrap_or(name.len());
        end > 0 && name[end..].starts_with(['{', '('])
    }

    /// Whether this bracket, which comes at `at`, closes something, and is not a character of a text: its kind is
    /// open; or only brackets follow, and the wanted one is not among them.
    fn closes(&self, bracket: char, at: usize) -> bool {
        let Some(innermost) = self.open.last() else {
            return true;
        };
        let wanted = CLOSING.iter().position(|bracket| *bracket == innermost.close());
        self.is_open(bracket) || (at >= self.tail && wanted.is_some_and(|wanted| self.last[wanted] <= at))
    }

    fn is_open(&self, bracket: char) -> bool {
        self.open.iter().any(|container| container.close() == bracket)
    }

    /// An object or a list, from its opening bracket on. `None` if it cannot be read.
    pub fn container(&mut self) -> Option<Json> {
        match self.peek()? {
            '[' => self.list().map(Json::List),
            _ => self.object().map(Json::Object),
        }
    }

    fn object(&mut self) -> Option<JsonObject> {
        let close = if self.peek() == Some('(') { ')' } else { '}' };
        self.enter(Container::Object(close))?;
        let mut object = JsonObject::new();
        loop {
            self.take_while(|c| c.is_whitespace() || c == ',');
            match self.peek() {
                None => {
                    self.has_run_out |= !self.are_closed;
                    break;
                }
                Some(c) if c == close => {
                    self.at += 1;
                    break;
                }
                // The object's own bracket is missing, this is that of a container around it.
                Some(c) if is_bracket(c) && self.is_open(c) => break,
                Some(c) if is_bracket(c) && self.closes(c, self.at) => {
                    self.has_run_out = true;
                    self.at += 1;
                    break;
                }
                // The call's own bracket is missing.
                Some('c') if self.open.len() == 1 && !object.is_empty() && self.is_at_call() => break,
                _ => {}
            }
            let key = self.key()?;
            let value = self.value();
            object.insert(key, value);
        }
        self.open.pop();
        Some(object)
    }

    fn list(&mut self) -> Option<Vec<Json>> {
        self.enter(Container::List)?;
        let mut list = vec![];
        loop {
            self.take_while(|c| c.is_whitespace() || c == ',');
            match self.peek() {
                None => {
                    self.has_run_out |= !self.are_closed;
                    break;
                }
                Some(']') => {
                    self.at += 1;
                    break;
                }
                // The list's own bracket is missing, or nothing of this is a list.
                Some(c) if is_bracket(c) && self.closes(c, self.at) => match self.open.len() {
                    1 => return None,
                    _ => break,
                },
                _ => list.push(self.value()),
            }
        }
        self.open.pop();
        Some(list)
    }

    fn enter(&mut self, container: Container) -> Option<()> {
        if self.open.len() > MAX_DEPTH {
            return None;
        }
        self.open.push(container);
        self.at += 1;
        Some(())
    }

    /// A key and the sign behind it.
    fn key(&mut self) -> Option<String> {
        let key = match self.string(After::Key) {
            Some(key) => key,
            None => {
                // Words with spaces between are a key; a newline is none.
                let key = self.take_while(|c| is_key_char(c) || c == ' ').trim_end();
                if key.is_empty() {
                    return None;
                }
                key.to_owned()
            }
        };
        self.skip_space();
        if !self.eat(":") && !self.eat("=") {
            self.has_run_out |= self.rest().is_empty();
            return None;
        }
        self.skip_space();
        Some(key)
    }

    /// The value that begins here; an empty text at a bracket or comma. Goes on at least one character
    /// elsewhere.
    fn value(&mut self) -> Json {
        let start = self.at;
        if self.rest().starts_with(DELIMITER) {
            return Json::Text(self.string(After::Value).unwrap_or_else(|| self.open_string()));
        }
        match self.peek() {
            Some('{' | '[') => {
                let depth = self.open.len();
                if let Some(container) = self.container()
                    && self.can_end(self.at, After::Container)
                {
                    return container;
                }
                self.open.truncate(depth);
                self.at = start;
            }
            Some('"' | '\'') => {
                if let Some(text) = self.string(After::Value) {
                    return Json::Text(text);
                }
            }
            _ => {
                let rest = self.rest();
                let end = rest.find(|c: char| c.is_whitespace() || is_end(c) || c == '<').unwrap_or(rest.len());
                if let Some(value) = scalar(&rest[..end])
                    && self.can_end(self.at + end, After::Value)
                {
                    self.at += end;
                    return value;
                }
            }
        }
        Json::Text(self.raw())
    }

    /// Text that is quoted by nothing.
    fn raw(&mut self) -> String {
        let rest = self.rest();
        let mut brackets = vec![];
        let mut end = rest.len();
        for (at, c) in rest.char_indices() {
            match c {
                '{' => brackets.push('}'),
                '[' => brackets.push(']'),
                '(' => brackets.push(')'),
                ',' if brackets.is_empty() => end = at,
                '}' | ']' | ')' => match brackets.iter().rposition(|open| *open == c) {
                    Some(open) => brackets.truncate(open),
                    None if self.closes(c, self.at + at) => end = at,
                    None => {}
                },
                '<' if rest[at..].starts_with(DELIMITER) => end = at,
                _ => {}
            }
            if end == at {
                break;
            }
        }
        self.at += end;
        self.eat(DELIMITER);
        rest[..end].trim().to_owned()
    }

    /// A quoted string; `None` if none begins here, or it closes nowhere.
    fn string(&mut self, after: After) -> Option<String> {
        let rest = self.rest();
        if let Some(inner) = rest.strip_prefix(DELIMITER) {
            let end = inner.find(DELIMITER)?;
            self.at += end + 2 * DELIMITER.len();
            return Some(inner[..end].to_owned());
        }
        let quote = self.peek().filter(|c| matches!(c, '"' | '\''))?;
        let kind = match after {
            After::Key => 0,
            _ if self.open.last() == Some(&Container::List) => 2,
            _ => 1,
        };
        let which = usize::from(quote == '\'');
        if self.at >= self.unclosed[kind][which] {
            self.has_run_out = true;
            return None;
        }
        let mut is_escaped = true; // the opening quote does not close
        let end = rest.char_indices().find(|&(at, c)| {
            let closes = c == quote && !is_escaped && self.can_end(self.at + at + 1, after);
            is_escaped = at > 0 && c == '\\' && !is_escaped;
            closes
        });
        let Some((end, _)) = end else {
            self.unclosed[kind][which] = self.at;
            self.has_run_out = true;
            return None;
        };
        self.at += end + 1;
        Some(unescape(&rest[1..end]))
    }

    /// A string that begins here and has no end: the rest.
    fn open_string(&mut self) -> String {
        let rest = &self.rest()[DELIMITER.len()..];
        self.at = self.text.len();
        let mut text = rest;
        // The outermost bracket is the last character.
        for container in &self.open {
            match text.trim_end().strip_suffix(container.close()) {
                Some(shorter) => text = shorter,
                _ => {
                    self.has_run_out = true;
                    return rest.to_owned();
                }
            }
        }
        // Where nothing ended the call they may be the text's own.
        self.are_closed = self.ending != Ending::Cut;
        text.to_owned()
    }

    /// Whether something can end before `at`: a comma, a bracket, the end or the next item comes; after a key
    /// its sign.
    fn can_end(&self, at: usize, after: After) -> bool {
        let rest = &self.text[at..];
        let next = rest.trim_start();
        let Some(first) = next.chars().next() else {
            return true;
        };
        if after == After::Key {
            return matches!(first, ':' | '=');
        }
        if is_end(first) || (after == After::Value && next.len() == rest.len()) {
            return is_end(first);
        }
        // A comma is missing: the next item, or its key, begins.
        if next.starts_with(DELIMITER) {
            return true;
        }
        if self.open.last() == Some(&Container::List) {
            let end = next.find(|c: char| c.is_whitespace() || is_end(c)).unwrap_or(next.len());
            return matches!(first, '"' | '\'' | '{' | '[') || scalar(&next[..end]).is_some();
        }
        let end = next.find(|c| !is_key_char(c)).unwrap_or(next.len());
        matches!(first, '"' | '\'') || (end > 0 && next[end..].trim_start().starts_with([':', '=']))
    }
}

/// What ends, and so what can come after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    Key,
    /// A scalar or a string: before the next item, if the comma is missing, stands a space.
    Value,
    /// A list or an object, for which its bracket is enough.
    Container,
}

const CLOSING: [char; 3] = ['}', ']', ')'];

fn is_bracket(c: char) -> bool {
    CLOSING.contains(&c)
}

fn is_end(c: char) -> bool {
    c == ',' || is_bracket(c)
}

/// The escapes of JSON, and `\'`. A backslash before anything else is a backslash.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let escape = &rest[at + 1..];
        let (c, len) = match escape.chars().next() {
            Some('n') => ('\n', 1),
            Some('t') => ('\t', 1),
            Some('r') => ('\r', 1),
            Some('b') => ('\u{8}', 1),
            Some('f') => ('\u{C}', 1),
            Some(c @ ('"' | '\'' | '\\' | '/')) => (c, 1),
            Some('u') => unicode(escape).unwrap_or(('\\', 0)),
            _ => ('\\', 0),
        };
        out.push(c);
        rest = &escape[len..];
    }
    out.push_str(rest);
    out
}

/// The character of `uXXXX`, or of two of them that are a pair (`uXXXX\uXXXX`), and its length here.
fn unicode(escape: &str) -> Option<(char, usize)> {
    let unit = |text: &str| {
        let hex = text.strip_prefix('u')?.get(..4)?;
        hex.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u16::from_str_radix(hex, 16).ok())?
    };
    let first = unit(escape)?;
    if let Some(c) = char::from_u32(u32::from(first)) {
        return Some((c, 5));
    }
    let second = unit(escape[5..].strip_prefix('\\')?)?;
    let c = char::decode_utf16([first, second]).next()?.ok()?;
    Some((c, 11))
}
