//! A team of threads that walks a step together: persistent, asleep when idle, with a barrier inside.
//! The caller is thread 0. A panic of one thread ends the run for all and is passed on to the caller.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread watches before it sleeps: longer than the gap between two steps of one token, far shorter
/// than a person's pause.
const SPIN: Duration = Duration::from_micros(100);

/// Threads that share work. Dropping it ends and joins them.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// One thread's view of a run.
pub struct Member<'a> {
    /// Which thread, from 0.
    pub thread: usize,
    /// Threads of the team.
    pub threads: usize,
    shared: &'a Shared,
}

/// What `run` hands to the workers; its lifetime is erased, see `Team::run`.
type Job = *const (dyn Fn(&Member<'_>) + Sync);

struct Shared {
    threads: usize,
    /// Counts runs; workers wait here for the next.
    start: Gate,
    /// Counts finished runs; the caller waits here for the workers.
    done: Gate,
    /// Counts barriers passed.
    barrier: Gate,
    arrived: AtomicUsize,
    running: AtomicUsize,
    /// A thread of this run has panicked: nobody may wait for it at a barrier.
    failed: AtomicBool,
    ending: AtomicBool,
    job: Mutex<Option<SendJob>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Clone, Copy)]
struct SendJob(Job);

// SAFETY: it points at a `Sync` closure, which `Team::run` keeps alive until every worker is done with it.
unsafe impl Send for SendJob {}

/// What threads unwind with at a barrier after another one panicked; not itself a fault to report.
struct Abandoned;

impl Team {
    /// A team of `threads`, of which the caller is one. Panics if `threads` is 0.
    ///
    /// # Errors
    /// What the system says when it refuses a thread; those that had started have ended by then.
    pub fn new(threads: usize) -> std::io::Result<Team> {
        Team::start(threads, |thread, work| std::thread::Builder::new().name(format!("markbase-{thread}")).spawn(work))
    }

    /// `start_thread(thread, work)` starts the thread of that number, which does the work and ends.
    fn start(
        threads: usize,
        start_thread: impl Fn(usize, Box<dyn FnOnce() + Send>) -> std::io::Result<JoinHandle<()>>,
    ) -> std::io::Result<Team> {
        assert!(threads > 0, "a team has at least its caller");
        let spins = std::thread::available_parallelism().is_ok_and(|processors| threads <= processors.get());
        let shared = Arc::new(Shared {
            threads,
            start: Gate::new(spins),
            done: Gate::new(spins),
            barrier: Gate::new(spins),
            arrived: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            job: Mutex::new(None),
            panic: Mutex::new(None),
        });
        let mut team = Team { shared, workers: vec![] };
        for thread in 1..threads {
            let shared = Arc::clone(&team.shared);
            // An error drops the team, which ends the threads that have started.
            team.workers.push(start_thread(thread, Box::new(move || shared.work(thread)))?);
        }
        Ok(team)
    }

    /// Threads of the team, the caller included.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Runs `job` once on every thread and returns when all are done. If one panics, the others are let go at
    /// their next barrier and the first panic goes on in the caller; the team stays usable.
    pub fn run(&mut self, job: &(dyn Fn(&Member<'_>) + Sync)) {
        let shared = &*self.shared;
        shared.arrived.store(0, Ordering::Relaxed);
        shared.failed.store(false, Ordering::Relaxed);
        shared.running.store(shared.threads - 1, Ordering::Relaxed);
        let finished = shared.done.now();
        // SAFETY: only the lifetime changes. No worker calls the job after it has counted itself out of
        // `running`, and this function waits for that before it returns, also when a thread panics.
        let job_of_workers =
            unsafe { std::mem::transmute::<*const (dyn Fn(&Member<'_>) + Sync), Job>(std::ptr::from_ref(job)) };
        *lock(&shared.job) = Some(SendJob(job_of_workers));
        shared.start.advance();
        shared.call(0, job);
        if shared.threads > 1 {
            shared.done.wait(finished, || false);
        }
        *lock(&shared.job) = None;
        let panic = lock(&shared.panic).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Release);
        self.shared.start.advance();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its jobs, so it ends well; there is nobody to tell if it did not.
            let _ = worker.join();
        }
    }
}

impl Member<'_> {
    /// Waits until every thread of the team has come here; what they wrote before is then seen by all.
    /// Every thread must call it equally often.
    pub fn barrier(&self) {
        self.shared.wait_for_all();
    }

    /// This thread's share of `0..total`, cut at multiples of `align`; may be empty.
    pub fn share(&self, total: usize, align: usize) -> Range<usize> {
        part(total, self.threads, align, self.thread)
    }
}

impl Shared {
    fn work(&self, thread: usize) {
        let mut seen = 0;
        loop {
            self.start.wait(seen, || false);
            seen = seen.wrapping_add(1);
            if self.ending.load(Ordering::Acquire) {
                return;
            }
            let job = lock(&self.job).expect("a run sets its job before it starts");
            // SAFETY: `run` keeps the closure alive until `running` is 0, which is counted below.
            self.call(thread, unsafe { &*job.0 });
            if self.running.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.done.advance();
            }
        }
    }

    fn call(&self, thread: usize, job: &(dyn Fn(&Member<'_>) + Sync)) {
        let member = Member { thread, threads: self.threads, shared: self };
        // Unwind safety: after a panic the caller unwinds too, so nobody goes on with what the job left half done.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(&member))) {
            let mut first = lock(&self.panic);
            if first.is_none() && !panic.is::<Abandoned>() {
                *first = Some(panic);
            }
            drop(first);
            self.failed.store(true, Ordering::SeqCst);
            self.barrier.wake();
        }
    }

    fn wait_for_all(&self) {
        let generation = self.barrier.now();
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.barrier.advance();
        } else if !self.barrier.wait(generation, || self.failed.load(Ordering::SeqCst)) {
            // Not `panic!`: the first panic has been reported, this one only unwinds.
            resume_unwind(Box::new(Abandoned));
        }
    }
}

/// A counter that threads wait on: first watching it, then asleep.
struct Gate {
    count: AtomicU32,
    sleepers: AtomicU32,
    lock: Mutex<()>,
    changed: Condvar,
    /// With more threads than processors, watching keeps the one that is waited for from running.
    spins: bool,
}

impl Gate {
    fn new(spins: bool) -> Gate {
        Gate {
            count: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            lock: Mutex::new(()),
            changed: Condvar::new(),
            spins,
        }
    }

    fn now(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    fn advance(&self) {
        // Sequentially consistent with `sleepers`: either the sleeper sees the new count or we see the sleeper.
        self.count.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // Taking the lock closes the gap between a sleeper's last look and its sleep.
            drop(lock(&self.lock));
            self.changed.notify_all();
        }
    }

    /// Waits until the count is no longer `old` (true) or `give_up` holds (false).
    fn wait(&self, old: u32, give_up: impl Fn() -> bool) -> bool {
        let started = Instant::now();
        loop {
            for _ in 0..64 {
                if self.now() != old {
                    return true;
                }
                std::hint::spin_loop();
            }
            if give_up() {
                return self.now() != old;
            }
            if !self.spins || started.elapsed() > SPIN {
                break;
            }
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut guard = lock(&self.lock);
        while self.count.load(Ordering::SeqCst) == old && !give_up() {
            guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        self.now() != old
    }
}

/// None of these locks is held while foreign code runs, so a poisoned one still guards a whole value.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Part `index` of `0..total` cut into `parts` at multiples of `align`, as even as that allows.
pub fn part(total: usize, parts: usize, align: usize, index: usize) -> Range<usize> {
    assert!(index < parts && align > 0, "part {index} of {parts}, aligned to {align}");
    let units = total.div_ceil(align);
    // Whole units each, and one more for the first few: no product that could overflow.
    let at = |i: usize| ((units / parts * i + (units % parts).min(i)) * align).min(total);
    at(index)..at(index + 1)
}

/// Threads worth starting here: physical cores, but no more than this process may use.
pub fn default_threads() -> usize {
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    usable.min(physical_cores().unwrap_or(usable)).max(1)
}

/// Distinct groups of hardware threads that share a core, where Linux tells.
fn physical_cores() -> Option<usize> {
    let mut cores = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir("/sys/devices/system/cpu").ok()?.flatten() {
        if let Ok(siblings) = std::fs::read_to_string(entry.path().join("topology/thread_siblings_list")) {
            cores.insert(siblings);
        }
    }
    (!cores.is_empty()).then_some(cores.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn team(threads: usize) -> Team {
        Team::new(threads).expect("the system starts a few threads")
    }

    #[test]
    fn a_refused_thread_is_an_error_and_ends_those_that_started() {
        for refused in 1..4 {
            let (started, ended) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
            let result = Team::start(5, |thread, work| {
                if thread == refused {
                    return Err(std::io::ErrorKind::WouldBlock.into());
                }
                started.fetch_add(1, Ordering::Relaxed);
                let ended = Arc::clone(&ended);
                std::thread::Builder::new().spawn(move || {
                    work();
                    ended.fetch_add(1, Ordering::Relaxed);
                })
            });
            assert_eq!(result.err().map(|error| error.kind()), Some(std::io::ErrorKind::WouldBlock));
            assert_eq!((started.into_inner(), ended.load(Ordering::Relaxed)), (refused - 1, refused - 1));
        }
    }

    #[test]
    fn every_thread_runs_once_and_borrows_from_the_caller() {
        for threads in [1, 2, 5] {
            let mut team = team(threads);
            let calls: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..200 {
                team.run(&|member| {
                    assert_eq!(member.threads, threads);
                    calls[member.thread].fetch_add(1, Ordering::Relaxed);
                });
            }
            assert!(calls.iter().all(|calls| calls.load(Ordering::Relaxed) == 200));
        }
    }

    #[test]
    fn barrier_separates_phases() {
        let mut team = team(4);
        let phases: Vec<AtomicUsize> = (0..50).map(|_| AtomicUsize::new(0)).collect();
        for _ in 0..20 {
            phases.iter().for_each(|phase| phase.store(0, Ordering::Relaxed));
            team.run(&|member| {
                for phase in &phases {
                    phase.fetch_add(1, Ordering::Relaxed);
                    member.barrier();
                    assert_eq!(phase.load(Ordering::Relaxed), 4);
                }
            });
        }
    }

    #[test]
    fn panic_reaches_the_caller_and_the_team_lives_on() {
        let mut team = team(4);
        let quiet = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        for round in 0..200usize {
            let culprit = round % 4;
            let caught = catch_unwind(AssertUnwindSafe(|| {
                team.run(&|member| {
                    member.barrier();
                    if member.thread == culprit {
                        if round % 3 == 0 {
                            // The others are asleep at the barrier by then.
                            std::thread::sleep(2 * SPIN);
                        }
                        std::panic::panic_any(round);
                    }
                    member.barrier();
                });
            }));
            let payload = caught.expect_err("a panic is passed on");
            assert_eq!(payload.downcast_ref::<usize>(), Some(&round));
            let sum = AtomicUsize::new(0);
            team.run(&|member| {
                member.barrier();
                sum.fetch_add(member.thread, Ordering::Relaxed);
            });
            assert_eq!(sum.load(Ordering::Relaxed), 6);
        }
        std::panic::set_hook(quiet);
    }

    #[test]
    fn sleeping_workers_wake() {
        let mut team = team(3);
        let calls = AtomicUsize::new(0);
        for _ in 0..20 {
            std::thread::sleep(3 * SPIN);
            team.run(&|_| {
                calls.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(calls.load(Ordering::Relaxed), 60);
    }

    proptest! {
        #[test]
        fn parts_cover_everything_once(total in 0usize..5000, parts in 1usize..40, align in 1usize..70) {
            let mut end = 0;
            let mut largest = 0;
            for range in (0..parts).map(|index| part(total, parts, align, index)) {
                prop_assert_eq!(range.start, end);
                prop_assert!(range.start % align == 0 || range.start == total);
                largest = largest.max(range.len());
                end = range.end;
            }
            prop_assert_eq!(end, total);
            prop_assert!(largest <= total.div_ceil(align).div_ceil(parts) * align);
        }
    }
}
