//! What this machine can do at most, measured in a second: the ceilings that a benchmark states shares of.

use crate::isa::Isa;
use crate::kernels::Kernels;
use crate::team::{Team, part};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Bytes read by [`memory_bandwidth`] unless the caller wants fewer: larger than the caches of most machines.
pub const PROBE_BYTES: usize = 1 << 30;

/// The best of several passes must not take longer than this in all.
const LIMIT: Duration = Duration::from_millis(700);

/// What the processor multiplies at most, all threads together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MultiplyRate {
    /// The instruction set that was measured, the best here.
    pub isa: Isa,
    /// f32 operations a second; a multiply-add counts as two.
    pub f32_flops: f64,
    /// Products of bytes summed in i32, operations a second; a product and its sum count as two.
    pub i8_ops: f64,
}

/// Bytes a second that `threads` threads read from a buffer of `bytes`, best of a few passes. Each thread reads
/// what it wrote first, so that on machines with several memories it is its own. Needs `bytes` of free memory.
/// Panics if the system refuses a thread.
pub fn memory_bandwidth(threads: usize, bytes: usize) -> f64 {
    let kernels = Kernels::for_isa(Isa::best());
    let mut team = Team::new(threads).expect("the system starts a thread");
    let floats = (bytes / 4).max(threads);
    let parts: Vec<Mutex<Vec<f32>>> = (0..threads).map(|_| Mutex::default()).collect();
    team.run(&|member| {
        let mine = part(floats, threads, 16, member.thread).len();
        *parts[member.thread].lock().expect("each thread has its own part") = vec![1.0; mine];
    });
    let started = Instant::now();
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let pass = Instant::now();
        team.run(&|member| {
            let mine = parts[member.thread].lock().expect("each thread has its own part");
            std::hint::black_box(kernels.read(&mine));
        });
        best = best.min(pass.elapsed().as_secs_f64());
        if started.elapsed() > LIMIT {
            break;
        }
    }
    (floats * 4) as f64 / best
}

/// Multiplications a second of `threads` threads with the best instruction set, in registers; under half a second.
/// Panics if the system refuses a thread.
pub fn multiply_rate(threads: usize) -> MultiplyRate {
    let isa = Isa::best();
    let kernels = Kernels::for_isa(isa);
    let mut team = Team::new(threads).expect("the system starts a thread");
    let f32_flops = best_rate(&mut team, |rounds| kernels.multiply_adds(rounds));
    let i8_ops = best_rate(&mut team, |rounds| kernels.byte_products(rounds));
    MultiplyRate { isa, f32_flops, i8_ops }
}

/// Operations a second of `work(rounds)` run on every thread; the best of several short runs.
fn best_rate(team: &mut Team, work: impl Fn(usize) -> u64 + Sync) -> f64 {
    let mut rounds = 1000;
    let mut best: f64 = 0.0;
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(150) {
        let run = Instant::now();
        let done = std::sync::atomic::AtomicU64::new(0);
        team.run(&|_| {
            done.fetch_add(work(rounds), std::sync::atomic::Ordering::Relaxed);
        });
        let seconds = run.elapsed().as_secs_f64();
        best = best.max(done.into_inner() as f64 / seconds);
        // Long enough that starting the team does not count, short enough for several tries.
        if seconds < 0.01 {
            rounds *= 2;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_some_machine() {
        let bandwidth = memory_bandwidth(2, 1 << 22);
        assert!(bandwidth.is_finite() && bandwidth > 1e6, "{bandwidth}");
        let rate = multiply_rate(1);
        assert_eq!(rate.isa, Isa::best());
        assert!(rate.f32_flops > 1e6 && rate.i8_ops > 1e6, "{rate:?}");
    }
}
