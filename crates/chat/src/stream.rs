//! Ids to text, one at a time: a character that several byte tokens spell is held until it is whole.
//!
//! The deltas of a stream, joined, are [`Tokenizer::decode`] of all its ids, which is the same code. They
//! equal Hugging Face's decoder wherever the bytes are UTF-8, and where no byte of a run belongs to a
//! whole character. Between these (whole characters and broken bytes in one run of byte tokens) that
//! decoder spoils the whole run after the fact, which no stream can; here the whole ones stay.

use std::sync::Arc;

use crate::tokenizer::Tokenizer;

/// What a stream does with control tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlText {
    /// Nothing of them is seen; byte tokens on both sides still join.
    Hide,
    /// They are written as they are spelled.
    Show,
}

/// Ids in, text out, in constant time a token.
#[derive(Debug)]
pub struct TextStream {
    tokenizer: Arc<Tokenizer>,
    control: ControlText,
    /// The start of a character whose other bytes have not come: three at most.
    pending: Vec<u8>,
    /// The character that the decoder drops at the start of a text, and how many of it at most.
    strip: Option<(char, usize)>,
}

impl TextStream {
    /// An empty stream.
    pub fn new(tokenizer: Arc<Tokenizer>, control: ControlText) -> Self {
        let strip = tokenizer.decoder().strip_start;
        Self { tokenizer, control, pending: Vec::new(), strip }
    }

    /// The text that is certain once `id` is known; often one word, empty in the middle of a
    /// character. An id without a token adds nothing.
    pub fn push(&mut self, id: u32) -> String {
        let mut out = String::new();
        let tokenizer = Arc::clone(&self.tokenizer);
        let decoder = tokenizer.decoder();
        if self.control == ControlText::Hide && tokenizer.is_special(id) {
            return out;
        }
        let Some(spelling) = tokenizer.token_text(id) else {
            return out;
        };
        match decoder.byte(spelling) {
            Some(byte) => {
                self.pending.push(byte);
                self.take_whole(&mut out);
            }
            None => {
                self.take_broken(&mut out);
                out.push_str(&decoder.text(spelling));
            }
        }
        self.strip_start(out)
    }

    /// What was held back; each byte of a character that will not be whole is one U+FFFD. The stream
    /// is empty again.
    pub fn finish(&mut self) -> String {
        let out = self.flush();
        self.strip = self.tokenizer.decoder().strip_start;
        out
    }

    /// What was held back, as at the end, of a text that goes on.
    pub(crate) fn flush(&mut self) -> String {
        let mut out = String::new();
        self.take_broken(&mut out);
        self.strip_start(out)
    }

    /// Moves to `out` all of `pending` that more bytes cannot change.
    fn take_whole(&mut self, out: &mut String) {
        loop {
            let (valid, broken) = match std::str::from_utf8(&self.pending) {
                Ok(text) => (text.len(), Some(0)),
                Err(error) => (error.valid_up_to(), error.error_len()),
            };
            out.push_str(&String::from_utf8_lossy(&self.pending[..valid]));
            out.extend(std::iter::repeat_n('\u{FFFD}', broken.unwrap_or(0)));
            self.pending.drain(..valid + broken.unwrap_or(0));
            // Without a length the rest is the start of a character.
            if broken.is_none() || self.pending.is_empty() {
                return;
            }
        }
    }

    fn take_broken(&mut self, out: &mut String) {
        out.extend(std::iter::repeat_n('\u{FFFD}', self.pending.len()));
        self.pending.clear();
    }

    fn strip_start(&mut self, out: String) -> String {
        let Some((stripped, left)) = self.strip else {
            return out;
        };
        let dropped = out.chars().take(left).take_while(|c| *c == stripped).count();
        let rest = &out[dropped * stripped.len_utf8()..];
        self.strip = rest.is_empty().then_some((stripped, left - dropped));
        rest.to_owned()
    }
}

impl Tokenizer {
    /// The text of `ids`: what a [`TextStream`] over them gives.
    pub fn decode(self: &Arc<Self>, ids: &[u32], control: ControlText) -> String {
        let mut stream = TextStream::new(Arc::clone(self), control);
        let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
        text.push_str(&stream.finish());
        text
    }
}
