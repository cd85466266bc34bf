//! Which rows run when: requests wait in the order in which they came, run beside each other within a budget of rows a
//! step, and give their blocks up to older ones when blocks run out.
//!
//! The oldest request always gets on: it takes blocks from every younger one, and what could not run alone was refused
//! when it came. A request whose blocks were taken waits at the front and is read again from its tokens; where a
//! row's result does not depend on the rows beside it, its text is the same as if nothing had happened.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use plan::{Choice, Sampled};

use crate::request::{Client, Constraint, FinishReason, Finished, Request, Timings, Token};
use crate::rules::History;
use crate::share::share;
use crate::{Engine, EngineError, Sequence, Wanted, Work};

/// How a scheduler is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// The most requests that run at the same time; at most the engine's `max_rows` and `max_wanted`.
    pub max_running: usize,
    /// The most requests that wait; one more is refused.
    pub max_waiting: usize,
    /// The most rows of prompts in a step while others generate, so that their next token does not wait long.
    pub chunk: usize,
}

/// The requests of one device.
pub struct Scheduler {
    engine: Engine,
    options: SchedulerOptions,
    waiting: VecDeque<Entry>,
    /// The oldest first; all are older than any that waits.
    running: Vec<Entry>,
    preemptions: u64,
}

/// What a scheduler holds at the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// Requests that wait.
    pub waiting: usize,
    /// Requests that run.
    pub running: usize,
    /// Blocks that running requests hold, a group.
    pub held_blocks: Vec<usize>,
    /// Blocks that nobody holds, a group.
    pub free_blocks: Vec<usize>,
    /// Blocks in all, a group.
    pub total_blocks: Vec<usize>,
    /// How often a request's blocks were taken for an older one.
    pub preemptions: u64,
}

/// One request on its way.
struct Entry {
    /// Of prompt and answer.
    tokens: Vec<u32>,
    prompt_tokens: usize,
    max_tokens: usize,
    stop: Arc<[u32]>,
    history: History,
    log_probabilities: Option<u32>,
    constraint: Option<Box<dyn Constraint>>,
    client: Box<dyn Client>,
    sequence: Sequence,
    /// Tokens of the prompt that the client knows to be read.
    told: usize,
    preemptions: usize,
    submitted: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
}

impl Scheduler {
    /// A scheduler without requests.
    pub fn new(engine: Engine, options: SchedulerOptions) -> Result<Scheduler, EngineError> {
        for (name, count) in [("max_running", options.max_running), ("chunk", options.chunk)] {
            if count == 0 {
                return Err(EngineError::Options { name });
            }
        }
        // Each running request may want one row of a step.
        let max_running = options.max_running.min(engine.options().max_rows).min(engine.options().max_wanted);
        let options = SchedulerOptions { max_running, ..options };
        Ok(Scheduler { engine, options, waiting: VecDeque::new(), running: vec![], preemptions: 0 })
    }

    /// The engine below.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Takes a request; one that is malformed or can never run is refused here, and its client hears nothing.
    pub fn submit(&mut self, request: Request) -> Result<(), EngineError> {
        let vocabulary = self.engine.plan().vocabulary();
        let Request { prompt, max_tokens, stop, rules, log_probabilities, constraint, client } = request;
        if prompt.is_empty() {
            return Err(EngineError::Empty);
        }
        if let Some(&token) = prompt.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(EngineError::UnknownToken { token, vocabulary });
        }
        rules.check(vocabulary)?;
        let longest = self.engine.longest();
        if prompt.len() >= longest {
            return Err(EngineError::NeverFits { tokens: prompt.len(), longest });
        }
        if self.waiting.len() >= self.options.max_waiting {
            return Err(EngineError::Busy { waiting: self.waiting.len() });
        }
        let entry = Entry {
            prompt_tokens: prompt.len(),
            max_tokens: max_tokens.min(longest - prompt.len()),
            stop,
            history: History::new(rules, &prompt),
            tokens: prompt,
            log_probabilities,
            constraint,
            client,
            sequence: self.engine.sequence(),
            told: 0,
            preemptions: 0,
            submitted: Instant::now(),
            started: None,
            first_token: None,
        };
        match entry.max_tokens {
            0 => entry.end(Ok(FinishReason::Length)),
            _ => self.waiting.push_back(entry),
        }
        Ok(())
    }

    /// Whether no request runs or waits.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// What is held at the moment.
    pub fn stats(&self) -> Stats {
        let total_blocks = self.engine.total_blocks();
        let held = |group| self.running.iter().map(|entry| entry.sequence.blocks(group)).sum();
        Stats {
            waiting: self.waiting.len(),
            running: self.running.len(),
            held_blocks: (0..total_blocks.len()).map(held).collect(),
            free_blocks: self.engine.free_blocks(),
            total_blocks,
            preemptions: self.preemptions,
        }
    }

    /// Runs one step for the requests that there are. Faults are told to the clients that they concern.
    pub fn step(&mut self) {
        self.drop_cancelled();
        self.admit();
        let remaining: Vec<usize> = self.running.iter().map(Entry::remaining).collect();
        let mut rows = share(&remaining, self.engine.options().max_rows, self.options.chunk);
        self.reserve(&mut rows);
        let choices = self.choices(&mut rows);

        let mut pieces = vec![];
        let mut work = vec![];
        for (index, (entry, choice)) in self.running.iter_mut().zip(choices).enumerate() {
            if rows[index] > 0 {
                pieces.push((index, choice.is_some()));
                work.push(entry.work(rows[index], choice));
            }
        }
        if work.is_empty() {
            return;
        }
        let logits = self.engine.plan().logits;
        let outcome = self.engine.step(&mut work);
        let mut ends: Vec<(usize, Result<FinishReason, Arc<EngineError>>)> = vec![];
        match outcome {
            Ok(mut outputs) => {
                let mut sampled = std::mem::take(&mut outputs.sampled).into_iter();
                let mut wanted = 0;
                for (index, is_wanted) in pieces {
                    let entry = &mut self.running[index];
                    entry.tell_progress();
                    if !is_wanted {
                        continue;
                    }
                    let is_finite = outputs.non_finite.iter().all(|found| found.value != logits || found.row != wanted);
                    wanted += 1;
                    let Some(sampled) = sampled.next().filter(|_| is_finite) else {
                        let position = entry.tokens.len() - 1;
                        ends.push((index, Err(Arc::new(EngineError::NotFinite { position }))));
                        continue;
                    };
                    if let Some(reason) = entry.accept(sampled) {
                        ends.push((index, Ok(reason)));
                    }
                }
            }
            Err(error) => {
                let error = Arc::new(error);
                ends.extend(pieces.iter().map(|&(index, _)| (index, Err(error.clone()))));
            }
        }
        // From the back, so that indices stay right.
        for (index, end) in ends.into_iter().rev() {
            self.running.remove(index).end(end);
        }
    }

    fn drop_cancelled(&mut self) {
        for entry in self.running.extract_if(.., |entry| entry.client.is_gone()) {
            entry.end(Ok(FinishReason::Cancelled));
        }
        let (gone, waiting): (VecDeque<_>, _) = self.waiting.drain(..).partition(|entry| entry.client.is_gone());
        self.waiting = waiting;
        gone.into_iter().for_each(|entry| entry.end(Ok(FinishReason::Cancelled)));
    }

    /// Moves requests from the queue to the running ones, in order, while there is room for them to their prompts' ends,
    /// and for one more block of each that runs: one that is put off at once has read its prompt for nothing.
    fn admit(&mut self) {
        while self.running.len() < self.options.max_running
            && let Some(next) = self.waiting.front()
        {
            let max_rows = self.engine.options().max_rows;
            let mut needed = self.engine.blocks_of(next.tokens.len(), max_rows);
            for entry in &self.running {
                let whole = self.engine.blocks_of(entry.tokens.len(), max_rows);
                for (group, needed) in needed.iter_mut().enumerate() {
                    *needed += 1 + whole[group].saturating_sub(entry.sequence.blocks(group));
                }
            }
            let has_room = needed.iter().zip(self.engine.free_blocks()).all(|(&needed, free)| needed <= free);
            if !has_room && !self.running.is_empty() {
                return;
            }
            let Some(mut next) = self.waiting.pop_front() else { return };
            next.started.get_or_insert_with(Instant::now);
            self.running.push(next);
        }
    }

    /// Takes the blocks that each request's rows need, the oldest first, from younger requests if none are free.
    fn reserve(&mut self, rows: &mut Vec<usize>) {
        let mut index = 0;
        while index < self.running.len() {
            while rows[index] > 0
                && let Err(error) = self.engine.reserve(&mut self.running[index].sequence, rows[index])
            {
                if index + 1 < self.running.len() {
                    self.preempt_youngest();
                    rows.pop();
                } else if rows[index] > 1 || index > 0 {
                    // A few rows, or none at this time: older ones get on, and will give blocks back.
                    rows[index] /= 2;
                } else {
                    // Alone, with a row that does not fit: it should have been refused.
                    rows.pop();
                    if let Some(entry) = self.running.pop() {
                        entry.end(Err(Arc::new(error)));
                    }
                    return;
                }
            }
            index += 1;
        }
    }

    fn preempt_youngest(&mut self) {
        let Some(mut entry) = self.running.pop() else { return };
        entry.sequence = self.engine.sequence();
        entry.preemptions += 1;
        self.preemptions += 1;
        self.waiting.push_front(entry);
    }

    /// How each running request that comes to its last row in this step chooses its next token. One that cannot ends.
    fn choices(&mut self, rows: &mut Vec<usize>) -> Vec<Option<Choice>> {
        let vocabulary = self.engine.plan().vocabulary();
        let mut choices = vec![];
        while choices.len() < self.running.len() {
            let index = choices.len();
            let entry = &mut self.running[index];
            match entry.choice(rows[index], vocabulary) {
                Ok(choice) => choices.push(choice),
                Err(error) => {
                    rows.remove(index);
                    self.running.remove(index).end(Err(Arc::new(error)));
                }
            }
        }
        choices
    }
}

impl Entry {
    /// Tokens that are not cached yet.
    fn remaining(&self) -> usize {
        self.tokens.len() - self.sequence.length()
    }

    /// How the token after the next `rows` is chosen, if they are the last.
    fn choice(&mut self, rows: usize, vocabulary: usize) -> Result<Option<Choice>, EngineError> {
        if rows < self.remaining() {
            return Ok(None);
        }
        let mask = self.constraint.as_mut().and_then(|constraint| constraint.allowed());
        if mask.as_ref().is_some_and(|mask| mask.len() != vocabulary || mask.count() == 0) {
            return Err(EngineError::NothingAllowed { generated: self.history.generated() });
        }
        Ok(Some(Choice {
            sampling: self.history.rules().sampling,
            repetition_penalty: self.history.rules().repetition_penalty,
            adjustments: self.history.adjustments(),
            mask,
            log_probabilities: self.log_probabilities,
        }))
    }

    fn work(&mut self, rows: usize, choice: Option<Choice>) -> Work<'_> {
        let cached = self.sequence.length();
        let wanted = if choice.is_some() { Wanted::Last } else { Wanted::None };
        Work { tokens: &self.tokens[cached..cached + rows], sequence: &mut self.sequence, wanted, choice }
    }

    fn tell_progress(&mut self) {
        let done = self.sequence.length().min(self.prompt_tokens);
        if done > self.told {
            self.told = done;
            self.client.prompt(done, self.prompt_tokens);
        }
    }

    /// Takes the next token; says why it was the last, if it was.
    fn accept(&mut self, sampled: Sampled) -> Option<FinishReason> {
        let Sampled { token, log_probabilities, .. } = sampled;
        self.first_token.get_or_insert_with(Instant::now);
        self.tokens.push(token);
        self.history.add(token);
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token);
        }
        if self.stop.contains(&token) {
            return Some(FinishReason::StopId(token));
        }
        if self.client.token(Token { id: token, log_probabilities }).is_break() {
            return Some(FinishReason::Client);
        }
        (self.history.generated() >= self.max_tokens).then_some(FinishReason::Length)
    }

    fn end(self, end: Result<FinishReason, Arc<EngineError>>) {
        let Entry { sequence, mut client, prompt_tokens, history, preemptions, .. } = self;
        // Before the client hears it: what it sees then is the end.
        drop(sequence);
        let now = Instant::now();
        let started = self.started.unwrap_or(now);
        let first_token = self.first_token.unwrap_or(now);
        let timings = Timings {
            queue: started.duration_since(self.submitted),
            prompt: first_token.duration_since(started),
            decode: now.duration_since(first_token),
            decoded: history.generated().saturating_sub(1),
        };
        client.ended(end.map(|reason| Finished {
            reason,
            prompt_tokens,
            generated_tokens: history.generated(),
            preemptions,
            timings,
        }));
    }
}
