//! The text within channels: the label that is dropped, the newline that is none of it, the blocks that are
//! joined.

/// The label of a thought, with the newline that ends it.
const LABEL: &str = "thought\n";

/// The channels of a reply.
#[derive(Debug, Default)]
pub struct Thoughts {
    open: Option<Block>,
    /// Whether a block before the open one gave text.
    has_text: bool,
}

/// An open channel.
#[derive(Debug)]
enum Block {
    /// So far it is the first `matched` bytes of the label, of which the prompt wrote `of_prompt`.
    Label { matched: usize, of_prompt: usize },
    /// The label is behind.
    Body {
        /// Whether a newline is held back: the last one may be none of the thought.
        newline: bool,
        /// Whether the block gave text.
        has_text: bool,
    },
}

impl Thoughts {
    /// In a channel that the prompt opened, and wrote `written` into.
    pub fn after_prompt(written: &str) -> Self {
        let open = match LABEL.strip_prefix(written) {
            Some("") => BODY,
            Some(_) => Block::Label { matched: written.len(), of_prompt: written.len() },
            None => BODY,
        };
        Self { open: Some(open), has_text: false }
    }

    /// Whether a channel is open.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Opens a channel; an open one ends. What is certain of that now.
    pub fn open(&mut self) -> String {
        let text = self.close();
        self.open = Some(Block::Label { matched: 0, of_prompt: 0 });
        text
    }

    /// The channel ends, if one is open. What was held back and is part of it.
    pub fn close(&mut self) -> String {
        let text = match self.open {
            Some(Block::Label { matched, of_prompt }) if matched + 1 < LABEL.len() => {
                self.write(&LABEL[of_prompt..matched])
            }
            _ => String::new(),
        };
        if let Some(Block::Body { has_text, .. }) = self.open.take() {
            self.has_text |= has_text;
        }
        text
    }

    /// More text of the open channel; what is certain to be thought.
    pub fn push(&mut self, text: &str) -> String {
        let Some(Block::Label { matched, of_prompt }) = self.open else {
            return self.write(text);
        };
        let label = &LABEL[matched..];
        if let Some(body) = text.strip_prefix(label) {
            self.open = Some(BODY);
            return self.write(body);
        }
        if label.starts_with(text) {
            self.open = Some(Block::Label { matched: matched + text.len(), of_prompt });
            return String::new();
        }
        let mut text = text.to_owned();
        text.insert_str(0, &LABEL[of_prompt..matched]);
        self.write(&text)
    }

    /// Text that is behind the label, or proves that there is none.
    fn write(&mut self, text: &str) -> String {
        let (newline, mut has_text) = match self.open {
            Some(Block::Body { newline, has_text }) => (newline, has_text),
            _ => (false, false),
        };
        let mut out = String::with_capacity(text.len() + 2);
        if text.is_empty() {
            self.open = Some(Block::Body { newline, has_text });
            return out;
        }
        if newline {
            out.push('\n');
        }
        out.push_str(text);
        let newline = out.ends_with('\n');
        if newline {
            out.pop();
        }
        if !out.is_empty() && !has_text {
            has_text = true;
            if self.has_text {
                out.insert(0, '\n');
            }
        }
        self.open = Some(Block::Body { newline, has_text });
        out
    }
}

const BODY: Block = Block::Body { newline: false, has_text: false };
