//! A minute of random requests, cancels, faults and small pools, with the scheduler's invariants checked after every
//! step. MARKBASE_FUZZ_SECONDS changes how long, MARKBASE_FUZZ_SEED where it begins.

mod common;

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Device, Recorder, Shared, VOCABULARY, WINDOW, next_token, plan};
use markbase_engine::{
    Constraint, Engine, EngineError, EngineOptions, FinishReason, Request, Rules, Scheduler, SchedulerOptions,
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
    forbidden: Option<u32>,
    constrained: bool,
    seed: u64,
}

impl Case {
    /// Tokens and end of the answer, without an engine.
    fn expected(&self) -> (Vec<u32>, FinishReason) {
        let mut tokens = self.prompt.clone();
        let mut generated = 0;
        loop {
            if generated == self.limit {
                return (tokens.split_off(self.prompt.len()), FinishReason::Length);
            }
            let from = tokens.len().saturating_sub(WINDOW);
            let mut choice = Choice::from(Sampling { seed: self.seed, ..Sampling::GREEDY });
            let forbid = |token| Adjustment { token, repeated: false, add: f32::NEG_INFINITY };
            choice.adjustments = self.forbidden.into_iter().map(forbid).collect();
            choice.mask = self.constrained.then(|| Arc::new(thirds(generated)));
            let token = next_token(&tokens[from..], &tokens, &choice);
            generated += 1;
            if self.stop.contains(&token) {
                return (tokens.split_off(self.prompt.len()), FinishReason::StopId(token));
            }
            tokens.push(token);
            if self.client.enough == Some(generated) {
                return (tokens.split_off(self.prompt.len()), FinishReason::Client);
            }
        }
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
        let prompt: Vec<u32> = (0..length).map(|_| random.below(VOCABULARY) as u32).collect();
        let max_tokens = random.between(0, 30);
        let stop = (0..random.below(3)).map(|_| random.below(VOCABULARY) as u32).collect::<Vec<_>>();
        let enough = random.once_in(6).then(|| random.between(1, 10));
        let forbidden = random.once_in(3).then(|| random.below(VOCABULARY) as u32);
        let constrained = random.once_in(3);
        let seed = random.below(1000) as u64;
        let client = Recorder { enough, ..Recorder::default() };
        let sampling = Sampling { seed, ..Sampling::GREEDY };
        let bias = forbidden.into_iter().map(|token| (token, f32::NEG_INFINITY)).collect();
        let request = Request {
            prompt: prompt.clone(),
            max_tokens,
            stop: stop.clone().into(),
            rules: Rules { bias, ..Rules::from(sampling) },
            log_probabilities: None,
            constraint: constrained.then(|| Box::new(Thirds { generated: 0 }) as Box<dyn Constraint>),
            client: Box::new(client.clone()),
        };
        let waiting = self.scheduler.stats().waiting;
        match self.scheduler.submit(request) {
            Ok(()) => {
                let limit = max_tokens.min(self.longest - length);
                self.cases.push(Case { client, prompt, stop, limit, forbidden, constrained, seed });
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
        let ended = self.cases.iter().filter(|case| case.client.heard.lock().unwrap().end.is_some()).count();
        assert_eq!(ended + stats.running + stats.waiting, self.cases.len(), "each is somewhere: {stats:?}");
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
            self.scheduler.step();
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
        for (index, case) in self.cases.iter().enumerate() {
            let heard = case.client.heard.lock().unwrap();
            let (tokens, reason) = case.expected();
            match heard.end.as_ref().expect("every request ends") {
                Err(error) => assert!(failing.contains(&index), "{error}"),
                Ok(end) if end.reason == FinishReason::Cancelled => {
                    assert!(case.client.gone.load(Ordering::Relaxed));
                    assert!(tokens.starts_with(&heard.tokens), "a cut answer is a part of the whole");
                }
                Ok(end) => assert_eq!((&heard.tokens, end.reason), (&tokens, reason), "prompt {:?}", case.prompt),
            }
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
