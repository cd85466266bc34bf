//! The file of answers: in order, kept when the command is asked again.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chat::Json;

use super::questions::Asked;
use super::{Line, Outcome};
use crate::error::Error;

/// How each line of answers begins.
const BEGINNING: &[u8] = b"{\"index\":";

/// The answers that were not written yet.
#[derive(Clone, Default)]
pub struct Answers(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    /// By place; each is a line without its newline.
    lines: BTreeMap<usize, String>,
    errors: usize,
}

impl Answers {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one.
    pub fn tell(&self, line: &Line) {
        let text = serde_json::to_string(line).expect("a line is JSON: all its keys are texts");
        let mut waiting = self.lock();
        waiting.errors += usize::from(matches!(line.outcome, Outcome::Error { .. }));
        waiting.lines.insert(line.index, text);
    }

    /// How many questions had an error instead of an answer.
    pub fn errors(&self) -> usize {
        self.lock().errors
    }

    fn keep(&self, index: usize, text: String) {
        self.lock().lines.insert(index, text);
    }

    fn take(&self, index: usize) -> Option<String> {
        self.lock().lines.remove(&index)
    }
}

/// Where answers go, in order.
pub struct Out {
    to: Option<File>,
    path: PathBuf,
    /// Where a file with errors is written anew: it takes the file's place at the end.
    part: Option<PathBuf>,
    /// The lines of that file from its first error on, by place.
    old: BTreeMap<usize, String>,
    /// Answers that are there.
    pub done: usize,
}

impl Out {
    /// Standard output, or a file, in which answers that it has are kept; the questions whose errors it has are
    /// given back, to be asked again. Of an answer that was cut off at the end of the file the rest is removed. `next`
    /// gives the questions in order. A file that holds anything else is an error, and stays as it is.
    pub fn open(
        path: Option<&Path>,
        answers: &Answers,
        mut next: impl FnMut() -> Result<Option<Asked>, Error>,
    ) -> Result<(Out, Vec<Asked>), Error> {
        let Some(path) = path else {
            return Ok((Out { to: None, path: PathBuf::new(), part: None, old: BTreeMap::new(), done: 0 }, vec![]));
        };
        let wrong = |reason: String| Error::File { path: path.to_owned(), reason };
        let io = |error: std::io::Error| wrong(error.to_string());
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = opened.map_err(io)?;
        if !file.metadata().map_err(io)?.is_file() {
            return Err(wrong("no regular file; without --out answers go to standard output".into()));
        }
        let (mut done, mut end) = (0, 0);
        let (mut again, mut old) = (vec![], BTreeMap::new());
        let mut reader = BufReader::new(&mut file);
        for number in 1.. {
            let mut line = vec![];
            if reader.read_until(b'\n', &mut line).map_err(io)? == 0 {
                break;
            }
            if !line.ends_with(b"\n") {
                if line.starts_with(BEGINNING) || BEGINNING.starts_with(&line) {
                    break;
                }
                return Err(wrong(format!("line {number} is no answer: give another file")));
            }
            let Some(asked) = next()? else {
                return Err(wrong(format!("line {number} answers no question of --batch: give another file")));
            };
            let found =
                read(&line, &asked).map_err(|what| wrong(format!("line {number} {what}: give another file")))?;
            if !found.is_error && again.is_empty() {
                done += 1;
                end += line.len() as u64;
                continue;
            }
            old.insert(asked.index, found.text.clone());
            match found.is_error {
                true => again.push(asked),
                false => answers.keep(asked.index, found.text),
            }
        }
        if again.is_empty() {
            file.set_len(end).map_err(io)?;
            file.seek(SeekFrom::Start(end)).map_err(io)?;
            return Ok((Out { to: Some(file), path: path.to_owned(), part: None, old, done }, again));
        }
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".part");
        let part = path.with_file_name(name);
        let mut to = File::create(&part).map_err(io)?;
        file.rewind().map_err(io)?;
        std::io::copy(&mut file.take(end), &mut to).map_err(io)?;
        Ok((Out { to: Some(to), path: path.to_owned(), part: Some(part), old, done }, again))
    }

    /// Writes the answers whose turn it is.
    pub fn write(&mut self, answers: &Answers) -> Result<(), Error> {
        while let Some(text) = answers.take(self.done) {
            self.line(text)?;
        }
        Ok(())
    }

    fn line(&mut self, mut text: String) -> Result<(), Error> {
        text.push('\n');
        match &mut self.to {
            Some(file) => {
                let wrong = |error: std::io::Error| Error::File { path: self.path.clone(), reason: error.to_string() };
                file.write_all(text.as_bytes()).map_err(wrong)?;
            }
            None => {
                let mut out = std::io::stdout().lock();
                out.write_all(text.as_bytes())?;
                out.flush()?;
            }
        }
        self.done += 1;
        Ok(())
    }

    /// Ends the file; what an interrupted command did not ask again keeps its old lines.
    pub fn finish(mut self, answers: &Answers) -> Result<(), Error> {
        self.write(answers)?;
        let Some(part) = self.part.take() else { return Ok(()) };
        while let Some(text) = answers.take(self.done).or_else(|| self.old.remove(&self.done)) {
            self.line(text)?;
        }
        std::fs::rename(&part, &self.path)
            .map_err(|error| Error::File { path: self.path.clone(), reason: error.to_string() })
    }
}

/// A line of an old file.
struct Found {
    text: String,
    is_error: bool,
}

/// A line that belongs to this question, or why it does not.
fn read(line: &[u8], asked: &Asked) -> Result<Found, &'static str> {
    let text = std::str::from_utf8(line).map_err(|_| "is no answer")?.trim_end();
    let Ok(found @ Json::Object(_)) = Json::parse(text) else {
        return Err("is no answer");
    };
    let index = Json::from(&serde_json::json!(asked.index));
    if found.get("index") != Some(&index) || found.get("id") != asked.id.as_ref() {
        return Err("answers no such question of --batch");
    }
    let is_error = found.get("error").is_some();
    let hash = asked.question.as_ref().ok().map(|(question, _)| Json::Text(hash(&question.ids)));
    if !is_error && found.get("prompt_hash") != hash.as_ref() {
        return Err("answers a question that has changed");
    }
    Ok(Found { text: text.to_owned(), is_error })
}

/// What a prompt is known by when its answer is found again: FNV-1a of its ids, 64 bits, as their authors give it
/// (<http://www.isthe.com/chongo/tech/comp/fnv/>).
pub fn hash(ids: &[u32]) -> String {
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}
