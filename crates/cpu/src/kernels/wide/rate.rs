//! Multiply-adds for their own sake: what a processor can do at most.

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
