//! Texts that a command is given: files and standard input, bounded.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Error;

/// Far above every context; keeps a hostile file from filling memory.
const LARGEST_TEXT_BYTES: u64 = 64 << 20;

/// A whole text file; `-` is standard input.
pub fn read_text(path: &Path) -> Result<String, Error> {
    if path.as_os_str() == "-" {
        return read_input();
    }
    let wrong = |reason: String| Error::File { path: path.to_owned(), reason };
    let file = std::fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
    if file.metadata().map_err(|error| wrong(error.to_string()))?.is_dir() {
        return Err(wrong("a folder, wanted a file".into()));
    }
    bounded(file).map_err(wrong)
}

/// Whether someone reads standard input already.
static INPUT_IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Says that standard input is for the caller alone; whether it was free.
pub fn take_input() -> bool {
    !INPUT_IS_TAKEN.swap(true, Ordering::Relaxed)
}

/// All of standard input, once.
pub fn read_input() -> Result<String, Error> {
    if !take_input() {
        return Err(Error::Argument("standard input is wanted twice: give one of the two as a file".into()));
    }
    bounded(std::io::stdin()).map_err(|reason| Error::Argument(format!("standard input: {reason}")))
}

fn bounded(from: impl Read) -> Result<String, String> {
    let mut bytes = vec![];
    from.take(LARGEST_TEXT_BYTES + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > LARGEST_TEXT_BYTES {
        return Err(format!("more than {LARGEST_TEXT_BYTES} bytes, longer than any prompt"));
    }
    String::from_utf8(bytes).map_err(|error| format!("not UTF-8 text (byte {})", error.utf8_error().valid_up_to()))
}
