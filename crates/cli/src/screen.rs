//! An answer as a person reads it while it comes.

use std::io::{IsTerminal, Write};

use answer::Piece;

use crate::wire::Call;

/// Writes pieces of answers to standard output.
pub struct Screen {
    out: std::io::Stdout,
    /// Whether a person looks at a terminal: thoughts are shown, dimmed, and control characters are made visible.
    is_terminal: bool,
    has_colour: bool,
    section: Section,
    /// Whether the last character was a newline, or nothing was written yet.
    at_line_start: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Nothing,
    Thought,
    Text,
    Call,
}

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

impl Screen {
    /// The screen of this process.
    pub fn new() -> Screen {
        let is_terminal = std::io::stdout().is_terminal();
        let has_colour = is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Screen { out: std::io::stdout(), is_terminal, has_colour, section: Section::Nothing, at_line_start: true }
    }

    /// Shows a piece.
    pub fn show(&mut self, piece: &Piece) -> std::io::Result<()> {
        match piece {
            Piece::Prompt { .. } => return Ok(()),
            Piece::Thought(_) if !self.is_terminal => return Ok(()),
            Piece::Thought(text) => {
                self.begin(Section::Thought)?;
                self.write(text)?;
            }
            Piece::Text(text) => {
                self.begin(Section::Text)?;
                self.write(text)?;
            }
            Piece::Call(call) => {
                self.begin(Section::Call)?;
                let call = Call::from(call);
                self.write(&format!("→ {} {}", call.name, call.arguments))?;
            }
        }
        self.out.flush()
    }

    /// Ends the answer, and its line.
    pub fn end(&mut self) -> std::io::Result<()> {
        self.begin(Section::Nothing)?;
        self.out.flush()
    }

    /// A remark beside the answers, in dim letters, on a line of its own.
    pub fn remark(&mut self, text: &str) -> std::io::Result<()> {
        self.begin(Section::Nothing)?;
        let (dim, plain) = if self.has_colour { (DIM, PLAIN) } else { ("", "") };
        writeln!(self.out, "{dim}{}{plain}", visible(text))?;
        self.out.flush()
    }

    fn begin(&mut self, section: Section) -> std::io::Result<()> {
        if self.section == section && section != Section::Call {
            return Ok(());
        }
        if self.section == Section::Thought && self.has_colour {
            self.out.write_all(PLAIN.as_bytes())?;
        }
        if self.section != Section::Nothing && !self.at_line_start {
            self.write("\n")?;
        }
        if section == Section::Thought && self.has_colour {
            self.out.write_all(DIM.as_bytes())?;
        }
        self.section = section;
        Ok(())
    }

    fn write(&mut self, text: &str) -> std::io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.at_line_start = text.ends_with('\n');
        match self.is_terminal {
            true => self.out.write_all(visible(text).as_bytes()),
            false => self.out.write_all(text.as_bytes()),
        }
    }
}

/// The text with control characters shown as their pictures: what a model says moves no cursor and sets no title.
pub fn visible(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' | '\t' => c,
        '\0'..='\x1f' => char::from_u32(0x2400 + c as u32).unwrap_or(' '),
        '\x7f' => '␡',
        '\u{80}'..='\u{9f}' => '\u{fffd}',
        _ => c,
    };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown_and_not_obeyed() {
        assert_eq!(visible("a\x1b[2Jb\r\n\tc\u{9b}é"), "a␛[2Jb␍\n\tc\u{fffd}é");
    }
}
