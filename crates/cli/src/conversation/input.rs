//! What a person types, line by line: edited in a terminal, read as it is from a pipe.

use std::io::{BufRead, IsTerminal};

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::error::Error;

/// Where lines come from.
pub enum Input {
    Terminal(Box<DefaultEditor>),
    Pipe(std::io::Stdin),
}

/// What came.
pub enum Typed {
    /// A line, or several as one.
    Line(String),
    /// What stood between fences: a text, whatever it begins with.
    Fenced(String),
    /// Ctrl-C: the line is given up.
    Dropped,
    /// The end of the input.
    End,
}

/// Begins and ends several lines.
const FENCE: &str = "\"\"\"";
/// Longer than any context; keeps an endless pipe from filling memory.
const LONGEST_BYTES: usize = 4 << 20;

impl Input {
    /// The input of this process.
    pub fn new() -> Result<Input, Error> {
        if !std::io::stdin().is_terminal() {
            return Ok(Input::Pipe(std::io::stdin()));
        }
        let editor = DefaultEditor::new().map_err(|error| Error::Argument(format!("the terminal: {error}")))?;
        Ok(Input::Terminal(Box::new(editor)))
    }

    /// Whether a person is at a terminal.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Input::Terminal(_))
    }

    /// The next line; a backslash at its end and lines between triple quotes go on.
    pub fn read(&mut self, prompt: &str) -> Result<Typed, Error> {
        let mut text = match self.line(prompt)? {
            Typed::Line(line) => line,
            other => return Ok(other),
        };
        let is_fenced = text.trim_start().starts_with(FENCE);
        if is_fenced {
            text = text.trim_start()[FENCE.len()..].to_owned();
        }
        loop {
            if is_fenced && let Some(inner) = text.trim_end().strip_suffix(FENCE) {
                text = inner.trim_matches('\n').to_owned();
                break;
            }
            if !is_fenced {
                let Some(kept) = text.strip_suffix('\\') else { break };
                text = kept.to_owned();
            }
            match self.line("… ")? {
                Typed::Line(line) => {
                    text.push('\n');
                    text.push_str(&line);
                }
                Typed::End => break,
                other => return Ok(other),
            }
            if text.len() > LONGEST_BYTES {
                return Err(too_long());
            }
        }
        if let Input::Terminal(editor) = self
            && !text.trim().is_empty()
        {
            // A history that cannot be kept is no reason to stop.
            let _ = editor.add_history_entry(&text);
        }
        Ok(if is_fenced { Typed::Fenced(text) } else { Typed::Line(text) })
    }

    fn line(&mut self, prompt: &str) -> Result<Typed, Error> {
        let broken = |error: String| Error::Argument(format!("standard input: {error}"));
        match self {
            Input::Terminal(editor) => match editor.readline(prompt) {
                Ok(line) => Ok(Typed::Line(line)),
                Err(ReadlineError::Interrupted) => Ok(Typed::Dropped),
                Err(ReadlineError::Eof) => Ok(Typed::End),
                Err(error) => Err(broken(error.to_string())),
            },
            Input::Pipe(stdin) => {
                let mut line = vec![];
                let mut lock = std::io::Read::take(stdin.lock(), LONGEST_BYTES as u64);
                lock.read_until(b'\n', &mut line).map_err(|error| broken(error.to_string()))?;
                if line.is_empty() {
                    return Ok(Typed::End);
                }
                if line.len() == LONGEST_BYTES && !line.ends_with(b"\n") {
                    return Err(too_long());
                }
                let line = String::from_utf8(line).map_err(|_| broken("not UTF-8 text".into()))?;
                Ok(Typed::Line(line.trim_end_matches(['\n', '\r']).to_owned()))
            }
        }
    }
}

fn too_long() -> Error {
    Error::Argument(format!("more than {LONGEST_BYTES} bytes are typed at once, longer than any prompt"))
}
