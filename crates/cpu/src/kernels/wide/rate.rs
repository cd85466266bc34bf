//! Multiply-adds and reads for their own sake: what a processor can do at most.

use crate::kernels::lanes::Lanes;

/// Runs `rounds` rounds of `ACCUMULATORS` independent chains and returns the floating-point operations done.
#[inline(always)]
pub(crate) unsafe fn multiply_adds<V: Lanes, const ACCUMULATORS: usize>(rounds: usize) -> u64 {
    // SAFETY: the caller runs the instruction set.
    unsafe {
        let factor = V::splat(std::hint::black_box(0.999_999));
        let addend = V::splat(std::hint::black_box(1e-6));
        let mut chains = [V::splat(1.0); ACCUMULATORS];
        for _ in 0..rounds {
            for chain in &mut chains {
                *chain = chain.fma(factor, addend);
            }
        }
        let mut sum = V::splat(0.0);
        for chain in chains {
            sum = sum.add(chain);
        }
        std::hint::black_box(sum.sum());
    }
    (rounds * ACCUMULATORS * 16 * 2) as u64
}

/// Reads a row in order, asking ahead for what comes, and returns some sum of it.
#[inline(always)]
pub(crate) unsafe fn read<V: Lanes>(x: *const f32, len: usize) -> f32 {
    /// Floats ahead that are asked for: 4 KiB, a few hundred nanoseconds of reading.
    const AHEAD: usize = 1024;
    // SAFETY: the caller runs the instruction set and passes a row of `len` elements.
    unsafe {
        let mut sums = [V::splat(0.0); 4];
        let mut at = 0;
        while at + 64 <= len {
            for (i, sum) in sums.iter_mut().enumerate() {
                V::prefetch(x.wrapping_add(at + AHEAD + 16 * i).cast());
                *sum = sum.add(V::load(x.add(at + 16 * i)));
            }
            at += 64;
        }
        let mut rest = 0.0;
        while at < len {
            rest += *x.add(at);
            at += 1;
        }
        sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum() + rest
    }
}
