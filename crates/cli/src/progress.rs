//! How far long work is: a bar for a person, now and then a line for a log.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::print::{bytes, grouped};

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    Tokens,
}

impl Unit {
    fn shown(self, count: u64) -> String {
        match self {
            Unit::Bytes => bytes(count as f64),
            Unit::Tokens => grouped(count as usize),
        }
    }
}

/// Work of a known size, told on standard error.
pub struct Progress {
    what: String,
    unit: Unit,
    bar: Option<ProgressBar>,
    started: Instant,
    told: Instant,
}

/// Work shorter than this is not worth a word.
const SILENCE: Duration = Duration::from_millis(500);
/// Between two lines of a log.
const PAUSE: Duration = Duration::from_secs(10);

impl Progress {
    /// Begins `what`, such as "loading weights".
    pub fn new(what: &str, unit: Unit) -> Self {
        let now = Instant::now();
        Progress { what: what.to_owned(), unit, bar: None, started: now, told: now }
    }

    /// So much is done.
    pub fn at(&mut self, done: u64, total: u64) {
        if self.started.elapsed() < SILENCE {
            return;
        }
        if std::io::stderr().is_terminal() {
            let bar = self.bar.get_or_insert_with(|| bar(&self.what, self.unit));
            bar.set_length(total);
            bar.set_position(done);
        } else if self.told.elapsed() >= PAUSE {
            self.told = Instant::now();
            eprintln!("{}: {} of {}", self.what, self.unit.shown(done), self.unit.shown(total));
        }
    }
}

fn bar(what: &str, unit: Unit) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
    let style = ProgressStyle::with_template(match unit {
        Unit::Bytes => "{msg} {wide_bar} {bytes}/{total_bytes} {eta}",
        Unit::Tokens => "{msg} {wide_bar} {human_pos}/{human_len} {eta}",
    });
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(what.to_owned());
    bar
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
