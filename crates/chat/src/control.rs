//! Control tokens in text: where `<|turn>` and the like stand, leftmost first and longest first, with
//! the flags that `tokenizer.json` gives each of them.

use std::ops::Range;

use aho_corasick::{AhoCorasick, Anchored, Input, MatchKind, StartKind};
use tokenizers::AddedToken;

use crate::error::{Error, Result};

/// The special tokens of a tokenizer.
pub(crate) struct ControlTokens {
    /// By id, ascending.
    tokens: Vec<(u32, AddedToken)>,
    finder: AhoCorasick,
}

/// A control token found in a text.
pub(crate) struct Found {
    pub id: u32,
    /// Bytes of the token, with the white space that its flags take along.
    pub range: Range<usize>,
}

impl ControlTokens {
    pub fn new(added: impl IntoIterator<Item = (u32, AddedToken)>) -> Result<Self> {
        let mut tokens: Vec<_> =
            added.into_iter().filter(|(_, token)| token.special && !token.content.is_empty()).collect();
        tokens.sort_by_key(|(id, _)| *id);
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .start_kind(StartKind::Both)
            .build(tokens.iter().map(|(_, token)| &token.content))
            .map_err(|e| Error::TokenizerFile(format!("added_tokens: {e}")))?;
        Ok(Self { tokens, finder })
    }

    /// The id of the control token spelled so.
    pub fn id(&self, spelling: &str) -> Option<u32> {
        let token = self.tokens.iter().find(|(_, t)| t.content == spelling);
        token.map(|(id, _)| *id)
    }

    /// Spelling of a control token; `None` for every other id.
    pub fn spelling(&self, id: u32) -> Option<&str> {
        let at = self.tokens.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(&self.tokens[at].1.content)
    }

    /// All spellings.
    pub fn spellings(&self) -> impl Iterator<Item = &str> {
        self.tokens.iter().map(|(_, token)| token.content.as_str())
    }

    /// Length in bytes of the control token that starts at the front of `text`.
    pub fn at_start(&self, text: &str) -> Option<usize> {
        let found = self.finder.find(Input::new(text).anchored(Anchored::Yes))?;
        Some(found.end())
    }

    /// Every control token of `text`, in order, without overlap.
    pub fn find<'t>(&'t self, text: &'t str) -> impl Iterator<Item = Found> + 't {
        let mut free_from = 0;
        self.finder.find_iter(text).filter_map(move |found| {
            let (id, token) = &self.tokens[found.pattern().as_usize()];
            let (before, after) = (&text[..found.start()], &text[found.end()..]);
            let inside_word =
                before.chars().next_back().is_some_and(is_word) || after.chars().next().is_some_and(is_word);
            if token.single_word && inside_word {
                return None;
            }
            let mut range = found.range();
            if token.lstrip {
                // What the token before took is gone.
                range.start = before.trim_end().len().max(free_from);
            }
            if token.rstrip {
                range.end += after.len() - after.trim_start().len();
            }
            free_from = range.end;
            Some(Found { id: *id, range })
        })
    }
}

/// A character of a word, for tokens that are `single_word`.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
