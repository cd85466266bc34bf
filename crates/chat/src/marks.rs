//! Marks that tell people's characters from the template's own in a rendered prompt.
//!
//! A control token begins and ends with certain characters (`<` and `>`). In everything that people
//! wrote each of these is replaced, before rendering, by a private character that occurs nowhere else;
//! afterwards a control token found in the text can only be the template's. Where a template reads
//! the control tokens of a message itself (as to cut thoughts out of earlier answers), whole tokens stay
//! readable between two equal private characters instead.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::control::ControlTokens;
use crate::json::{Json, JsonObject};

/// How people's control tokens are marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Marking {
    /// Their first and last characters are replaced, whole token or not.
    Replace,
    /// Whole tokens stand between two marks; all else as in `Replace`.
    Enclose,
}

/// The marks of one rendering.
pub(crate) struct Marks {
    control: Arc<ControlTokens>,
    marking: Marking,
    /// Private character to the character it stands for.
    original: HashMap<char, char>,
    /// Character to the private one that stands for it.
    replaced: HashMap<char, char>,
    /// Private characters in pairs around tokens.
    enclosing: HashSet<char>,
}

/// Private-use characters, in the order in which they are taken.
fn private() -> impl Iterator<Item = char> {
    ('\u{F0000}'..='\u{FFFFD}').chain('\u{100000}'..='\u{10FFFD}')
}

/// The characters that control tokens begin and end with.
fn edges(control: &ControlTokens) -> HashSet<char> {
    let ends = control.spellings().flat_map(|s| [s.chars().next(), s.chars().next_back()]);
    ends.flatten().collect()
}

/// Whether people's texts hold any character that a control token begins or ends with.
pub(crate) fn needed(control: &ControlTokens, written: &[&Json]) -> bool {
    let edges = edges(control);
    let mut found = false;
    for value in written {
        each_text(value, &mut |text| found |= text.chars().any(|c| edges.contains(&c)));
    }
    found
}

/// Calls `seen` with every text and every key of `value`.
pub(crate) fn each_text(value: &Json, seen: &mut impl FnMut(&str)) {
    match value {
        Json::Text(text) => seen(text),
        Json::List(items) => items.iter().for_each(|item| each_text(item, seen)),
        Json::Object(map) => {
            for (key, item) in map {
                seen(key);
                each_text(item, seen);
            }
        }
        _ => {}
    }
}

impl Marks {
    /// Marks `written`, of which the template makes `rendered`. `None` if there are not enough private
    /// characters that the texts leave free.
    pub fn new(
        control: Arc<ControlTokens>,
        marking: Marking,
        written: &mut [&mut Json],
        rendered: &str,
    ) -> Option<Self> {
        let mut taken: HashSet<char> = HashSet::new();
        let mut take = |text: &str| taken.extend(text.chars().filter(|&c| c >= '\u{F0000}'));
        take(rendered);
        for value in &mut *written {
            each_text(value, &mut take);
        }
        let mut free = private().filter(|c| !taken.contains(c));
        let mut replaced = HashMap::new();
        for edge in edges(&control) {
            replaced.insert(edge, free.next()?);
        }
        let original = replaced.iter().map(|(&c, &mark)| (mark, c)).collect();
        let mut marks = Self { control, marking, original, replaced, enclosing: HashSet::new() };
        for value in written {
            marks.mark(value, &mut free)?;
        }
        Some(marks)
    }

    fn mark(&mut self, value: &mut Json, free: &mut impl Iterator<Item = char>) -> Option<()> {
        match value {
            Json::Text(text) if self.marking == Marking::Enclose => {
                *text = self.enclose(text, free)?;
            }
            Json::Text(text) => *text = self.replace(text),
            Json::List(items) => {
                for item in items {
                    self.mark(item, free)?;
                }
            }
            Json::Object(map) => {
                let mut marked = JsonObject::new();
                for (key, mut item) in std::mem::take(map) {
                    self.mark(&mut item, free)?;
                    marked.insert(self.replace(&key), item);
                }
                *map = marked;
            }
            _ => {}
        }
        Some(())
    }

    fn replace(&self, text: &str) -> String {
        text.chars().map(|c| self.replaced.get(&c).copied().unwrap_or(c)).collect()
    }

    fn enclose(&mut self, text: &str, free: &mut impl Iterator<Item = char>) -> Option<String> {
        let mut marked = String::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let (taken, token) = match self.control.at_start(rest) {
                Some(len) => (len, true),
                None => (c.len_utf8(), false),
            };
            let (front, back) = rest.split_at(taken);
            if token {
                let mark = free.next()?;
                self.enclosing.insert(mark);
                marked.push(mark);
                marked.push_str(front);
                marked.push(mark);
            } else {
                marked.push_str(&self.replace(front));
            }
            rest = back;
        }
        Some(marked)
    }

    /// The character that `c` stands for.
    pub fn original(&self, c: char) -> char {
        self.original.get(&c).copied().unwrap_or(c)
    }

    /// A marked text as people wrote it.
    pub fn unmark(&self, text: &str) -> String {
        let kept = text.chars().filter(|c| !self.enclosing.contains(c));
        kept.map(|c| self.original(c)).collect()
    }

    /// A rendered text in which every control token that people wrote is replaced: those between a
    /// pair of marks too. Marks that lost their token are gone.
    pub fn settle(&self, rendered: &str) -> String {
        let mut settled = String::new();
        let mut rest = rendered;
        while let Some(c) = rest.chars().next() {
            let after = &rest[c.len_utf8()..];
            rest = after;
            match self.enclosed(c, after) {
                Some(token) => {
                    settled.push_str(&self.replace(token));
                    rest = &after[token.len() + c.len_utf8()..];
                }
                None if self.enclosing.contains(&c) => {}
                None => settled.push(c),
            }
        }
        settled
    }

    /// The token between the mark `c` and its other one, `after` being the text after `c`.
    fn enclosed<'t>(&self, c: char, after: &'t str) -> Option<&'t str> {
        if !self.enclosing.contains(&c) {
            return None;
        }
        let len = self.control.at_start(after)?;
        after[len..].starts_with(c).then_some(&after[..len])
    }

    /// Whether the text starts with a mark that lost its token.
    pub fn stray_at_start(&self, text: &str) -> bool {
        let Some(c) = text.chars().next() else { return false };
        self.enclosing.contains(&c) && self.enclosed(c, &text[c.len_utf8()..]).is_none()
    }

    /// Whether the text ends with a mark that lost its token.
    pub fn stray_at_end(&self, text: &str) -> bool {
        let Some(c) = text.chars().next_back().filter(|c| self.enclosing.contains(c)) else {
            return false;
        };
        let inner = &text[..text.len() - c.len_utf8()];
        let token = inner.rfind(c).map(|open| &inner[open + c.len_utf8()..]);
        token.is_none_or(|token| self.control.at_start(token) != Some(token.len()))
    }
}
