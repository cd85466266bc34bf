//! One question at a time to a scheduler of one's own.

use std::sync::{Arc, Mutex, PoisonError};

use answer::{Answer, Listener, Piece, Question, Settings, Texts};
use engine::Scheduler;

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::progress::{Progress, Unit};

/// Asks, hands each piece to `each`, and gives the whole answer. An interruption ends the answer within a step; what
/// was said until then is the answer. So does an error of `each`, which is then the error.
pub fn ask(
    scheduler: &mut Scheduler,
    texts: &Texts,
    question: Question,
    settings: &Settings,
    interrupt: &Interrupt,
    each: impl FnMut(&Piece) -> std::io::Result<()> + Send + 'static,
) -> Result<Answer, Error> {
    let outcome = Arc::new(Mutex::new(Outcome { error: None, answer: None }));
    let reading = Some(Progress::new("reading the prompt", Unit::Tokens));
    let ear = Ear { each, reading, outcome: outcome.clone(), interrupt: interrupt.clone() };
    for request in texts.ask(question, settings, Box::new(ear))? {
        scheduler.submit(request)?;
    }
    while !scheduler.is_idle() {
        scheduler.step();
    }
    let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
    match (outcome.error.take(), outcome.answer.take()) {
        (Some(error), _) => Err(error.into()),
        (None, Some(answer)) => Ok(answer?),
        (None, None) => unreachable!("a scheduler without requests has told each its end"),
    }
}

struct Outcome {
    error: Option<std::io::Error>,
    answer: Option<answer::Result<Answer>>,
}

struct Ear<F> {
    each: F,
    /// Until the prompt is read.
    reading: Option<Progress>,
    outcome: Arc<Mutex<Outcome>>,
    interrupt: Interrupt,
}

impl<F: FnMut(&Piece) -> std::io::Result<()> + Send> Listener for Ear<F> {
    fn piece(&mut self, piece: Piece) {
        match (&piece, &mut self.reading) {
            (&Piece::Prompt { done, total }, Some(reading)) if done < total => reading.at(done as u64, total as u64),
            _ => self.reading = None,
        }
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        if outcome.error.is_none()
            && let Err(error) = (self.each)(&piece)
        {
            outcome.error = Some(error);
        }
    }

    fn answered(&mut self, answer: answer::Result<Answer>) {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).answer = Some(answer);
    }

    fn is_gone(&self) -> bool {
        self.interrupt.came() || self.outcome.lock().unwrap_or_else(PoisonError::into_inner).error.is_some()
    }
}
