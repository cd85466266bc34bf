//! Whether a row's logits depend on anything but its own sequence's tokens: how the prompt was cut, what ran
//! beside it, who held its cache blocks before. Compared bit for bit.

use std::fmt;

use engine::{Engine, EngineOptions, Sequence, Wanted, Work};
use serde::Serialize;

use crate::subject::prove_kept;
use crate::{CheckError, Make, Subject};

/// What is tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvarianceOptions {
    /// Sizes of the pieces that a prompt is cut into; larger ones than the prompt are left out.
    pub pieces: Vec<usize>,
    /// Whether the prompt also runs token by token.
    pub by_token: bool,
    /// Whether the prompt also runs in batches with other sequences.
    pub batches: bool,
}

impl Default for InvarianceOptions {
    fn default() -> Self {
        InvarianceOptions { pieces: vec![1, 3, 8, 9, 16, 17], by_token: true, batches: true }
    }
}

/// What was tried, and what differed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Invariance {
    /// The backend's name.
    pub backend: String,
    /// The ways that were tried, up to the first that differed.
    pub ways: Vec<String>,
    /// Rows of logits that were compared.
    pub rows: usize,
    /// The first that differed.
    pub first: Option<InvarianceDifference>,
}

/// A number that differed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InvarianceDifference {
    /// The way in which the prompt ran.
    pub way: String,
    /// The row: a position of the sequence.
    pub row: usize,
    /// The column of the logits.
    pub column: usize,
    /// What it is when the whole prompt runs at once and alone.
    pub at_once: f32,
    /// What it is in this way.
    pub this_way: f32,
}

impl fmt::Display for Invariance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.first {
            None => write!(f, "{}: {} rows are the same in {} ways", self.backend, self.rows, self.ways.len()),
            Some(InvarianceDifference { way, row, column, at_once, this_way }) => write!(
                f,
                "{}: {way}: row {row}, column {column} is {this_way:e}, at once it is {at_once:e}",
                self.backend
            ),
        }
    }
}

/// Runs `tokens` at once, then in every way of `options`, and compares the logits of every row that was wanted
/// bit for bit. Memory: logits of a few times as many rows as there are tokens.
pub fn invariance(
    subject: &Subject,
    backend: &Make,
    tokens: &[u32],
    options: &InvarianceOptions,
) -> Result<Invariance, CheckError> {
    if tokens.is_empty() {
        return Err(CheckError::NoTokens);
    }
    let most = tokens.len() + 2 * GUEST_ROWS;
    let engine_options = EngineOptions {
        context: tokens.len(),
        sequences: 4,
        max_rows: most,
        max_wanted: most,
        keep: vec![subject.plan.logits],
        watch: false,
    };
    let mut check = Check {
        columns: subject.plan.vocabulary(),
        engine: subject.engine(backend, engine_options)?,
        report: Invariance { backend: String::new(), ways: vec![], rows: 0, first: None },
    };
    check.report.backend = check.engine.backend_name();
    check.all(tokens, options)?;
    Ok(check.report)
}

/// Rows that a sequence beside the prompt adds to a step at most.
const GUEST_ROWS: usize = 5;

struct Check {
    engine: Engine,
    columns: usize,
    report: Invariance,
}

/// A sequence in a batch: its tokens, what they give alone, and how far it is.
struct Member<'a> {
    /// 0 is the prompt, others are guests.
    who: usize,
    tokens: &'a [u32],
    alone: &'a [f32],
    sequence: Sequence,
}

impl Member<'_> {
    fn left(&self) -> usize {
        self.tokens.len() - self.sequence.length()
    }
}

impl Check {
    fn all(&mut self, tokens: &[u32], options: &InvarianceOptions) -> Result<(), CheckError> {
        let mut alone = vec![];
        let mut sequence = self.engine.sequence();
        self.rows(&mut sequence, tokens, Wanted::All, |numbers| alone.extend_from_slice(numbers))?;
        drop(sequence);
        self.report.rows += tokens.len();
        let mut pieces: Vec<usize> = options.pieces.iter().copied().filter(|&piece| piece <= tokens.len()).collect();
        if options.by_token {
            pieces.push(1);
        }
        pieces.push(tokens.len());
        pieces.sort_unstable();
        pieces.dedup();
        for piece in pieces {
            if self.pieces(tokens, &alone, piece)? {
                return Ok(());
            }
        }
        if self.few_wanted(tokens, &alone)? {
            return Ok(());
        }
        if options.batches {
            for first_piece in [1, 4, 13] {
                if self.batch(tokens, &alone, first_piece)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// One step of one sequence.
    fn rows(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        wanted: Wanted,
        mut each: impl FnMut(&[f32]),
    ) -> Result<(), CheckError> {
        let wanted_rows = wanted.range(tokens.len()).len();
        let outputs = self.engine.step(&mut [Work { sequence, tokens, wanted, choice: None }])?;
        prove_kept(&self.engine, &self.engine.options().keep.clone(), &outputs, |_| wanted_rows)?;
        each(&outputs.kept[0]);
        Ok(())
    }

    /// The prompt in pieces of one size.
    fn pieces(&mut self, tokens: &[u32], alone: &[f32], piece: usize) -> Result<bool, CheckError> {
        let way = match piece {
            1 => "token by token".to_owned(),
            _ => format!("in pieces of {piece}"),
        };
        self.report.ways.push(way);
        let mut sequence = self.engine.sequence();
        for (index, rows) in tokens.chunks(piece).enumerate() {
            let mut logits = vec![];
            self.rows(&mut sequence, rows, Wanted::All, |numbers| logits.extend_from_slice(numbers))?;
            if self.differs(index * piece, alone, &logits) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The prompt in pieces of 7, of which only the last row or none is wanted, in turn.
    fn few_wanted(&mut self, tokens: &[u32], alone: &[f32]) -> Result<bool, CheckError> {
        self.report.ways.push("with few rows wanted".to_owned());
        let mut sequence = self.engine.sequence();
        for (index, rows) in tokens.chunks(7).enumerate() {
            let is_last = (index + 1) * 7 >= tokens.len();
            let wanted = if index % 2 == 0 || is_last { Wanted::Last } else { Wanted::None };
            let mut logits = vec![];
            self.rows(&mut sequence, rows, wanted, |numbers| logits.extend_from_slice(numbers))?;
            if self.differs(index * 7 + rows.len() - 1, alone, &logits) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The prompt among two others that come, go and come anew while it runs, before it and behind it in the
    /// batch. Each sequence's every row is compared with what it gives alone.
    fn batch(&mut self, tokens: &[u32], alone: &[f32], first_piece: usize) -> Result<bool, CheckError> {
        self.report.ways.push(format!("among other sequences, from pieces of {first_piece} on"));
        // The guests are beginnings of the prompt's end, so that they hold other tokens at each position.
        let half = &tokens[tokens.len() / 2..];
        let guests = [&half[..half.len().min(29)], &half[half.len() / 3..half.len().min(40)]];
        let mut guests_alone = vec![];
        for guest in guests {
            let mut logits = vec![];
            let mut sequence = self.engine.sequence();
            if !guest.is_empty() {
                self.rows(&mut sequence, guest, Wanted::All, |numbers| logits.extend_from_slice(numbers))?;
            }
            guests_alone.push(logits);
        }
        let mut members = vec![Member { who: 0, tokens, alone, sequence: self.engine.sequence() }];
        let mut round = 0;
        while members.iter().any(|member| member.who == 0) {
            let guest = round % 2;
            let who = guest + 1;
            let is_there = members.iter().any(|member| member.who == who);
            match round % 5 {
                // A guest comes, now behind the others, now before them.
                0 | 1 if !is_there && !guests[guest].is_empty() => {
                    let (tokens, alone) = (guests[guest], guests_alone[guest].as_slice());
                    let member = Member { who, tokens, alone, sequence: self.engine.sequence() };
                    let at = if round % 2 == 0 { 0 } else { members.len() };
                    members.insert(at, member);
                }
                // A guest is dropped in the middle; its blocks go to whoever comes next.
                4 => members.retain(|member| member.who == 0 || member.left() % 2 == 0),
                _ => {}
            }
            if self.batch_step(&mut members, first_piece + round)? {
                return Ok(true);
            }
            members.retain(|member| member.left() > 0);
            round += 1;
        }
        Ok(false)
    }

    /// One step of all members; the prompt takes `piece` rows modulo 20, guests one to [`GUEST_ROWS`].
    fn batch_step(&mut self, members: &mut [Member], piece: usize) -> Result<bool, CheckError> {
        let mut firsts = vec![];
        let mut work = vec![];
        for (index, member) in members.iter_mut().enumerate() {
            let most = match member.who {
                0 => piece % 20 + 1,
                _ => (piece + index) % GUEST_ROWS + 1,
            };
            let first = member.sequence.length();
            let rows = &member.tokens[first..member.tokens.len().min(first + most)];
            firsts.push((first, rows.len()));
            work.push(Work { sequence: &mut member.sequence, tokens: rows, wanted: Wanted::All, choice: None });
        }
        let outputs = self.engine.step(&mut work)?;
        let rows = firsts.iter().map(|(_, rows)| rows).sum::<usize>();
        prove_kept(&self.engine, &self.engine.options().keep.clone(), &outputs, |_| rows)?;
        let mut logits = outputs.kept[0].as_slice();
        for (member, (first, rows)) in members.iter().zip(firsts) {
            let (own, rest) = logits.split_at(rows * self.columns);
            if self.differs(first, member.alone, own) {
                return Ok(true);
            }
            logits = rest;
        }
        Ok(false)
    }

    /// Compares rows from `first` on; keeps the first difference.
    fn differs(&mut self, first: usize, alone: &[f32], logits: &[f32]) -> bool {
        let want = &alone[first * self.columns..first * self.columns + logits.len()];
        self.report.rows += logits.len() / self.columns;
        let place = want.iter().zip(logits).position(|(want, got)| want.to_bits() != got.to_bits());
        if let Some(place) = place {
            self.report.first = Some(InvarianceDifference {
                way: self.report.ways.last().cloned().unwrap_or_default(),
                row: first + place / self.columns,
                column: place % self.columns,
                at_once: want[place],
                this_way: logits[place],
            });
        }
        place.is_some()
    }
}
