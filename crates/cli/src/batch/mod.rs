//! Many questions from a file of JSON lines, answered beside each other, told in their order.

mod out;
mod questions;

use std::collections::VecDeque;
use std::path::Path;
use std::process::ExitCode;

use answer::{Answer, Listener, Piece};
use chat::Json;
use serde::Serialize;

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::load::Room;
use crate::run::Arguments;
use crate::wire::Whole;
use out::{Answers, Out};
use questions::{Asked, Common, Questions};

/// The context of answers where no option says.
const DEFAULT_CONTEXT: usize = 8192;

/// Where questions come from and answers go.
pub struct Places<'a> {
    pub questions: &'a Path,
    pub answers: Option<&'a Path>,
}

/// One line of the answers.
#[derive(Serialize)]
struct Line {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<Json>,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Outcome {
    Answer {
        prompt_hash: String,
        #[serde(flatten)]
        answer: Box<Whole>,
    },
    Error {
        error: String,
    },
}

/// Runs the command.
pub fn run(arguments: &Arguments, places: &Places, parallel: usize) -> Result<ExitCode, Error> {
    let common = Common::read(arguments)?;
    let mut questions = Questions::open(places.questions)?;
    let opened = arguments.model.open()?;
    let texts = arguments.template.apply(opened.texts()?)?;
    let answers = Answers::default();
    let (mut out, again) = Out::open(places.answers, &answers, || questions.next(&common, &texts))?;
    let mut again = VecDeque::from(again);
    let mut next = || match again.pop_front() {
        Some(asked) => Ok(Some(asked)),
        None => questions.next(&common, &texts),
    };

    let context = arguments.context.map_or(DEFAULT_CONTEXT, |context| context as usize);
    let context = context.min(opened.model.info.context);
    let room = Room { context, sequences: parallel.max(arguments.answer.best_of.map_or(1, usize::from)) };
    let (mut scheduler, _) = opened.scheduler(&arguments.backend, room)?;
    let interrupt = Interrupt::watch();
    let mut pending = next()?;
    while pending.is_some() || !scheduler.is_idle() {
        // A bounded number beside each other: an answer that takes long holds the later ones up, and they wait here.
        while let Some(Asked { index, .. }) = pending
            && index < out.done + 4 * parallel
            && scheduler.stats().waiting < parallel
            && !interrupt.came()
        {
            let Some(Asked { index, id, question }) = pending.take() else { break };
            pending = next()?;
            let submitted = question.and_then(|(question, settings)| {
                let ear = Ear {
                    index,
                    id: id.clone(),
                    prompt_hash: out::hash(&question.ids),
                    answers: answers.clone(),
                    interrupt: interrupt.clone(),
                };
                let requests = texts.ask(question, &settings, Box::new(ear)).map_err(|error| error.to_string())?;
                let submit = |request| scheduler.submit(request).map_err(|error| error.to_string());
                requests.into_iter().try_for_each(submit)
            });
            if let Err(error) = submitted {
                answers.tell(&Line { index, id, outcome: Outcome::Error { error } });
            }
        }
        scheduler.step();
        out.write(&answers)?;
        if interrupt.came() && scheduler.is_idle() {
            out.finish(&answers)?;
            return Ok(ExitCode::from(130));
        }
    }
    out.finish(&answers)?;
    match answers.errors() {
        0 => Ok(ExitCode::SUCCESS),
        errors => {
            let again = if places.answers.is_some() { "; the same command asks them again" } else { "" };
            eprintln!("markbase: questions without an answer, each with its reason: {errors}{again}");
            Ok(ExitCode::FAILURE)
        }
    }
}

struct Ear {
    index: usize,
    id: Option<Json>,
    prompt_hash: String,
    answers: Answers,
    interrupt: Interrupt,
}

impl Listener for Ear {
    fn piece(&mut self, _piece: Piece) {}

    fn answered(&mut self, answer: answer::Result<Answer>) {
        // What was cut short is no answer: it is asked again next time.
        if self.interrupt.came() {
            return;
        }
        let outcome = match answer {
            Ok(answer) => {
                Outcome::Answer { prompt_hash: std::mem::take(&mut self.prompt_hash), answer: Box::new(answer.into()) }
            }
            Err(error) => Outcome::Error { error: error.to_string() },
        };
        self.answers.tell(&Line { index: self.index, id: self.id.take(), outcome });
    }

    fn is_gone(&self) -> bool {
        self.interrupt.came()
    }
}
