//! A minute of random requests, cancels, faults and small pools, with the scheduler's invariants checked after every
//! step. MARKBASE_FUZZ_SECONDS changes how long, MARKBASE_FUZZ_SEED where it begins.

mod common;

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Device, Recorder, Shared, VOCABULARY, WINDOW, next_token, plan};
use markbase_engine::{
    Constraint, Engine, EngineError, EngineOptions, FinishReason, Request, Rules, Scheduler, SchedulerOptions, Token,
};
use plan::{Adjustment, Choice, Sampling, TokenMask};

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }
    fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }
    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
    fn token(&mut self) -> u32 {
        self.below(VOCABULARY) as u32
    }
    /// From -2 to 2 in quarters, so that sums are exact and many are 0.
    fn quarters(&mut self) -> f32 {
        self.below(17) as f32 / 4.0 - 2.0
    }
    fn rules(&mut self) -> Rules {
        let sampling = Sampling {
            temperature: self.below(3) as f32,
            top_k: self.below(3) as u32,
            top_p: self.between(1, 4) as f32 / 4.0,
            min_p: self.below(3) as f32 / 4.0,
            seed: self.below(1000) as u64,
        };
        let mut rules = Rules::from(sampling);
        if self.once_in(2) {
            rules.repetition_penalty = self.between(1, 6) as f32 / 4.0;
        }
        if self.once_in(3) {
            (rules.presence_penalty, rules.frequency_penalty) = (self.quarters(), self.quarters());
        }
        for _ in 0..self.below(4) {
            let add = if self.once_in(3) { f32::NEG_INFINITY } else { self.quarters() };
            rules.bias.push((self.token(), add));
        }
        for _ in 0..self.below(3) {
            rules.not_before.push((self.token(), self.below(6)));
        }
        rules
    }
}

/// What the rules do to the logits of the token after `prompt` and `answer`.
fn adjustments(rules: &Rules, prompt: &[u32], answer: &[u32]) -> Vec<Adjustment> {
    let adjustment = |token: u32| {
        let times = answer.iter().filter(|&&said| said == token).count();
        let penalty = if times > 0 { rules.presence_penalty + rules.frequency_penalty * times as f32 } else { 0.0 };
        let bias: f32 = rules.bias.iter().filter(|(of, _)| *of == token).map(|(_, add)| add).sum();
        let is_early = rules.not_before.iter().any(|&(of, count)| of == token && answer.len() < count);
        let add = if is_early { f32::NEG_INFINITY } else { bias - penalty };
        Adjustment { token, repeated: times > 0 || prompt.contains(&token), add }
    };
    (0..VOCABULARY as u32).map(adjustment).collect()
}

/// Every third token may not come.
struct Thirds {
    generated: usize,
}

fn thirds(generated: usize) -> TokenMask {
    let mut mask = TokenMask::none(VOCABULARY);
    (0..VOCABULARY as u32).filter(|&token| token as usize % 3 != generated % 3).for_each(|token| mask.set(token));
    mask
}

impl Constraint for Thirds {
    fn allowed(&mut self) -> Option<Arc<TokenMask>> {
        Some(Arc::new(thirds(self.generated)))
    }
    fn accept(&mut self, _token: u32) {
        self.generated += 1;
    }
}

/// A request, and what it should have heard.
struct Case {
    client: Recorder,
    prompt: Vec<u32>,
    stop: Vec<u32>,
    limit: usize,
    rules: Rules,
    log_probabilities: Option<u32>,
    constrained: bool,
}

/// What a client hears when it is told of everything.
struct Answer {
    tokens: Vec<Token>,
    /// The position whose logits were not finite, if any were not.
    end: Result<FinishReason, usize>,
}

impl Case {
    /// The answer, without an engine.
    fn expected(&self, not_finite_after: &BTreeSet<(u32, u32)>) -> Answer {
        let (mut seen, mut tokens) = (self.prompt.clone(), vec![]);
        let end = loop {
            if tokens.len() == self.limit {
                break Ok(FinishReason::Length);
            }
            let position = seen.len() - 1;
            if not_finite_after.contains(&(seen[position], position as u32)) {
                break Err(position);
            }
            let choice = Choice {
                sampling: self.rules.sampling,
                repetition_penalty: self.rules.repetition_penalty,
                adjustments: adjustments(&self.rules, &self.prompt, &seen[self.prompt.len()..]),
                mask: self.constrained.then(|| Arc::new(thirds(tokens.len()))),
                log_probabilities: self.log_probabilities,
            };
            let token = next_token(&seen[seen.len().saturating_sub(WINDOW)..], &seen, &choice);
            if self.stop.contains(&token.id) {
                break Ok(FinishReason::StopId(token.id));
            }
            seen.push(token.id);
            tokens.push(token);
            if self.client.enough == Some(tokens.len()) {
                break Ok(FinishReason::Client);
            }
        };
        Answer { tokens, end }
    }

    /// How often the client was told something.
    fn told(&self) -> usize {
        self.client.heard.lock().unwrap().times.len()
    }

    fn has_ended(&self) -> bool {
        self.client.heard.lock().unwrap().end.is_some()
    }
}

struct Round {
    random: Random,
    scheduler: Scheduler,
    shared: Arc<Mutex<Shared>>,
    cases: Vec<Case>,
    options: SchedulerOptions,
    longest: usize,
}

impl Round {
    fn new(seed: u64) -> Round {
        let mut random = Random(seed | 1);
        let context = random.between(2, 80);
        let sequences = random.between(1, 8);
        let max_rows = random.between(1, 40);
        let cache_tokens = random.between(1, sequences * context);
        let options = SchedulerOptions {
            max_running: random.between(1, 12),
            max_waiting: random.between(1, 30),
            chunk: random.between(1, 20),
        };
        let (device, shared) = Device::new();
        if random.once_in(3) {
            let places = (0..random.between(1, 20)).map(|_| (random.token(), random.below(context) as u32));
            shared.lock().unwrap().not_finite_after = places.collect();
        }
        let max_wanted = random.between(1, max_rows);
        let engine = EngineOptions { context, sequences, max_rows, max_wanted, keep: vec![], watch: false };
        let engine = Engine::with_cache(device, plan(), cache_tokens, engine).unwrap();
        let longest = engine.longest();
        let scheduler = Scheduler::new(engine, options).unwrap();
        Round { random, scheduler, shared, cases: vec![], options, longest }
    }

    fn submit(&mut self) {
        let random = &mut self.random;
        let length = if random.once_in(4) { random.between(1, self.longest + 2) } else { random.between(1, 12) };
        let prompt: Vec<u32> = (0..length).map(|_| random.token()).collect();
        let max_tokens = random.between(0, 30);
        let stop = (0..random.below(3)).map(|_| random.token()).collect::<Vec<_>>();
        let enough = random.once_in(6).then(|| random.between(1, 10));
        let constrained = random.once_in(3);
        let rules = random.rules();
        let log_probabilities = random.once_in(2).then(|| random.below(4) as u32);
        let client = Recorder { enough, ..Recorder::default() };
        let request = Request {
            prompt: prompt.clone(),
            max_tokens,
            stop: stop.clone().into(),
            rules: rules.clone(),
            log_probabilities,
            constraint: constrained.then(|| Box::new(Thirds { generated: 0 }) as Box<dyn Constraint>),
            client: Box::new(client.clone()),
        };
        let waiting = self.scheduler.stats().waiting;
        match self.scheduler.submit(request) {
            Ok(()) => {
                let limit = max_tokens.min(self.longest - length);
                self.cases.push(Case { client, prompt, stop, limit, rules, log_probabilities, constrained });
            }
            Err(EngineError::NeverFits { .. }) => assert!(length >= self.longest),
            Err(EngineError::Busy { .. }) => assert!(waiting >= self.options.max_waiting), // preempted ones wait too
            Err(other) => panic!("{other}"),
        }
    }

    fn check(&self) {
        let stats = self.scheduler.stats();
        for group in 0..stats.total_blocks.len() {
            let accounted = stats.held_blocks[group] + stats.free_blocks[group];
            assert_eq!(accounted, stats.total_blocks[group], "blocks of group {group}: {stats:?}");
        }
        assert!(stats.running <= self.options.max_running, "{stats:?}");
        let ended = self.cases.iter().filter(|case| case.has_ended()).count();
        assert_eq!(ended + stats.running + stats.waiting, self.cases.len(), "each is somewhere: {stats:?}");
    }

    /// Runs a step, and sees that those that ran are older than any that waits.
    fn step(&mut self) {
        let is_gone = |case: &&Case| case.client.gone.load(Ordering::Relaxed);
        let open = self.cases.iter().filter(|case| !case.has_ended() && !is_gone(case));
        let open: Vec<(usize, &Case)> = open.map(|case| (case.told(), case)).collect();
        self.scheduler.step();
        let ended = open.iter().filter(|(_, case)| case.has_ended()).count();
        let waiting = &open[self.scheduler.stats().running + ended..];
        assert!(waiting.iter().all(|(told, case)| *told == case.told()), "a younger request ran before an older one");
    }

    /// Runs to the end; returns the number of steps.
    fn run(mut self) -> usize {
        let (mut steps, mut left) = (0, self.random.between(1, 60));
        let mut failing = HashSet::new();
        while left > 0 || !self.scheduler.is_idle() {
            for _ in 0..self.random.below(4).min(left) {
                self.submit();
                left -= 1;
            }
            if !self.cases.is_empty() && self.random.once_in(10) {
                let index = self.random.below(self.cases.len());
                self.cases[index].client.gone.store(true, Ordering::Relaxed);
            }
            let fails = self.random.once_in(150);
            self.shared.lock().unwrap().fail = fails;
            self.step();
            if fails {
                let ended = |case: &Case| matches!(case.client.heard.lock().unwrap().end, Some(Err(_)));
                failing.extend((0..self.cases.len()).filter(|&i| ended(&self.cases[i])));
            }
            self.check();
            steps += 1;
            assert!(steps < 60 * 100 * 4, "requests do not end: {:?}", self.scheduler.stats());
        }
        let stats = self.scheduler.stats();
        assert_eq!(stats.free_blocks, stats.total_blocks, "the pool is whole at the end");
        let not_finite_after = self.shared.lock().unwrap().not_finite_after.clone();
        for (index, case) in self.cases.iter().enumerate() {
            let heard = case.client.heard.lock().unwrap();
            let answer = case.expected(&not_finite_after);
            let pairs = heard.tokens.iter().zip(&heard.log_probabilities);
            let tokens = pairs.map(|(&id, of)| Token { id, log_probabilities: of.clone() }).collect::<Vec<_>>();
            assert!(answer.tokens.starts_with(&tokens), "{tokens:?} of {:?}, prompt {:?}", answer.tokens, case.prompt);
            let end = match heard.end.as_ref().expect("every request ends").as_ref().map_err(Arc::as_ref) {
                Ok(end) => {
                    let generated = tokens.len() + usize::from(matches!(end.reason, FinishReason::StopId(_)));
                    assert_eq!((end.prompt_tokens, end.generated_tokens), (case.prompt.len(), generated));
                    if end.reason == FinishReason::Cancelled {
                        assert!(case.client.gone.load(Ordering::Relaxed));
                        continue;
                    }
                    Ok(end.reason)
                }
                Err(EngineError::NotFinite { position }) => Err(*position),
                Err(error) => {
                    assert!(failing.contains(&index), "{error}");
                    continue;
                }
            };
            assert_eq!((tokens.len(), end), (answer.tokens.len(), answer.end), "prompt {:?}", case.prompt);
        }
        steps
    }
}

#[test]
fn random_requests_for_a_minute_keep_every_invariant() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seconds = number("MARKBASE_FUZZ_SECONDS").unwrap_or(60);
    let mut seed = number("MARKBASE_FUZZ_SEED").unwrap_or(1);
    let started = Instant::now();
    let (mut rounds, mut steps) = (0, 0);
    while started.elapsed() < Duration::from_secs(seconds) {
        let outcome = std::panic::catch_unwind(|| Round::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).run());
        match outcome {
            Ok(count) => steps += count,
            Err(panic) => {
                eprintln!("the round with MARKBASE_FUZZ_SEED={seed} failed");
                std::panic::resume_unwind(panic);
            }
        }
        rounds += 1;
        seed += 1;
    }
    eprintln!("{rounds} rounds, {steps} steps");
}
