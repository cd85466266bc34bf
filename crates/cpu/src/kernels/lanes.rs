//! Sixteen f32 as one value: what an instruction set must offer so that the kernels of `wide` run on it.
//! Every operation is one that IEEE 754 rounds exactly, so all sets agree bit for bit.

#![allow(clippy::undocumented_unsafe_blocks, reason = "each block is calls of `Lanes` under its own contract")]

use super::math::{EXP, EXP_HIGH, EXP_LOW, GELU_CUBIC, GELU_INNER, LN_2, ROUND, TANH, TANH_BEND};
use super::rows::LANES;

/// Sixteen f32 of one instruction set.
///
/// # Safety
/// Every function may only be called, and only after inlining into, code compiled for the instruction set.
/// Pointers must be valid for the sixteen (or `count <= 16`) elements that are read or written; no alignment
/// beyond the element's is asked for.
pub(crate) unsafe trait Lanes: Copy {
    /// One truth value a lane.
    type Mask: Copy;

    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    /// The first `count` lanes; the others are 0.
    unsafe fn load_first(from: *const f32, count: usize) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn store_first(self, to: *mut f32, count: usize);
    unsafe fn load_f16(from: *const u16) -> Self;
    /// Nearest even; the lanes lie within ±65504 or are NaN.
    unsafe fn store_f16(self, to: *mut u16);

    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    /// `self * factor + addend`, rounded once.
    unsafe fn fma(self, factor: Self, addend: Self) -> Self;
    unsafe fn abs(self) -> Self;
    /// The magnitude of `self` with the sign of `sign`.
    unsafe fn copysign(self, sign: Self) -> Self;
    /// `self > other`, false where either is NaN.
    unsafe fn above(self, other: Self) -> Self::Mask;
    unsafe fn is_nan(self) -> Self::Mask;
    unsafe fn is_equal(self, other: Self) -> Self::Mask;
    unsafe fn any(mask: Self::Mask) -> bool;
    /// `a` where the mask holds, else `b`.
    unsafe fn select(mask: Self::Mask, a: Self, b: Self) -> Self;
    /// Adds `shifted`'s bits, moved left by 23, to these bits, as integers.
    unsafe fn add_exponent(self, shifted: Self) -> Self;
    /// Asks for a cache line that will be read; the address need not be valid.
    unsafe fn prefetch(address: *const u8);
    /// See `rows::lane_sum`.
    unsafe fn sum(self) -> f32;
    /// See `rows::lane_max`.
    unsafe fn max(self) -> f32;

    /// See `rows::greater`.
    #[inline(always)]
    unsafe fn greater(self, other: Self) -> Self {
        // SAFETY (here and below): the caller runs the instruction set.
        unsafe { Self::select(self.above(other), self, other) }
    }

    /// The lanes of `first..end` as they are, the others from `other`.
    #[inline(always)]
    unsafe fn only(self, first: usize, end: usize, other: Self) -> Self {
        // SAFETY: sixteen numbers each.
        unsafe {
            let index = Self::load(INDEX.as_ptr());
            let inside = Self::select(index.above(Self::splat(first as f32 - 0.5)), self, other);
            Self::select(Self::splat(end as f32 - 0.5).above(index), inside, other)
        }
    }

    /// `math::exp` of each lane.
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        unsafe {
            let shifted = self.fma(Self::splat(std::f32::consts::LOG2_E), Self::splat(ROUND));
            let n = shifted.sub(Self::splat(ROUND));
            let r = n.fma(Self::splat(-LN_2[1]), n.fma(Self::splat(-LN_2[0]), self));
            let mut q = Self::splat(EXP[0]);
            q = q.fma(r, Self::splat(EXP[1]));
            q = q.fma(r, Self::splat(EXP[2]));
            q = q.fma(r, Self::splat(EXP[3]));
            q = q.fma(r, Self::splat(EXP[4]));
            let p = r.mul(r).fma(q, r).add(Self::splat(1.0));
            let scaled = p.add_exponent(shifted);
            let scaled = Self::select(self.above(Self::splat(EXP_HIGH)), Self::splat(f32::INFINITY), scaled);
            let scaled = Self::select(Self::splat(EXP_LOW).above(self), Self::splat(0.0), scaled);
            Self::select(self.is_nan(), self, scaled)
        }
    }

    /// `math::tanh` of each lane.
    #[inline(always)]
    unsafe fn tanh(self) -> Self {
        unsafe {
            let z = self.mul(self);
            let mut p = Self::splat(TANH[0]);
            p = p.fma(z, Self::splat(TANH[1]));
            p = p.fma(z, Self::splat(TANH[2]));
            p = p.fma(z, Self::splat(TANH[3]));
            p = p.fma(z, Self::splat(TANH[4]));
            let near = self.mul(z).fma(p, self);
            let size = self.abs();
            let one = Self::splat(1.0);
            let far = one.sub(Self::splat(2.0).div(size.add(size).exp().add(one)));
            Self::select(Self::splat(TANH_BEND).above(size), near, far).copysign(self)
        }
    }

    /// `math::gelu_tanh` of each lane.
    #[inline(always)]
    unsafe fn gelu_tanh(self) -> Self {
        unsafe {
            let cubic = self.mul(self).mul(self).fma(Self::splat(GELU_CUBIC), self);
            let y = Self::splat(GELU_INNER).mul(cubic);
            self.div(Self::splat(1.0).add(Self::splat(0.0).sub(y.add(y)).exp()))
        }
    }
}

/// The number of each lane.
const INDEX: [f32; LANES] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
