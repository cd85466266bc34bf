//! NEON: sixteen f32 are four registers.

#![allow(clippy::undocumented_unsafe_blocks, reason = "each block is intrinsics under the contract of `Lanes`")]

use super::lanes::Lanes;
use super::rows::LANES;
use std::arch::aarch64::*;
use std::arch::asm;

/// Four 128-bit registers, four lanes each.
#[derive(Clone, Copy)]
pub(crate) struct Quad(float32x4_t, float32x4_t, float32x4_t, float32x4_t);

/// All bits of a lane set where it holds.
#[derive(Clone, Copy)]
pub(crate) struct QuadMask(uint32x4_t, uint32x4_t, uint32x4_t, uint32x4_t);

/// Applies one function to all four registers; without a name for the result, of `Quad`.
macro_rules! each {
    ($to:ident, $f:ident, $a:expr) => {
        $to($f($a.0), $f($a.1), $f($a.2), $f($a.3))
    };
    ($to:ident, $f:ident, $a:expr, $b:expr) => {
        $to($f($a.0, $b.0), $f($a.1, $b.1), $f($a.2, $b.2), $f($a.3, $b.3))
    };
    ($to:ident, $f:ident, $a:expr, $b:expr, $c:expr) => {
        $to($f($a.0, $b.0, $c.0), $f($a.1, $b.1, $c.1), $f($a.2, $b.2, $c.2), $f($a.3, $b.3, $c.3))
    };
}

/// Four f16 as f32. The intrinsic of this instruction asks for the unstable type f16.
#[inline(always)]
unsafe fn wide(halves: uint16x4_t) -> float32x4_t {
    let out: float32x4_t;
    // SAFETY: a conversion between registers that every AArch64 has.
    unsafe { asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) out, in(vreg) halves, options(pure, nomem, nostack)) };
    out
}

/// Four f32 as f16, nearest even.
#[inline(always)]
unsafe fn narrow(four: float32x4_t) -> uint16x4_t {
    let out: uint16x4_t;
    // SAFETY: as above; the rounding mode is never changed from nearest.
    unsafe { asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) out, in(vreg) four, options(pure, nomem, nostack)) };
    out
}

#[inline(always)]
unsafe fn with_sign(a: float32x4_t, sign: float32x4_t) -> float32x4_t {
    unsafe { vbslq_f32(vdupq_n_u32(1 << 31), sign, a) }
}

#[inline(always)]
unsafe fn not_itself(a: float32x4_t) -> uint32x4_t {
    unsafe { vmvnq_u32(vceqq_f32(a, a)) }
}

#[inline(always)]
unsafe fn exponent_added(a: float32x4_t, shifted: float32x4_t) -> float32x4_t {
    unsafe {
        let exponent = vshlq_n_u32::<23>(vreinterpretq_u32_f32(shifted));
        vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(a), exponent))
    }
}

/// `a` where it is greater, else `b`.
#[inline(always)]
unsafe fn greater_of(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

/// `a * factor + addend`.
#[inline(always)]
unsafe fn multiply_add(a: float32x4_t, factor: float32x4_t, addend: float32x4_t) -> float32x4_t {
    unsafe { vfmaq_f32(addend, a, factor) }
}

// SAFETY: the trait's contract; NEON is part of every AArch64.
unsafe impl Lanes for Quad {
    type Mask = QuadMask;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        unsafe {
            let four = vdupq_n_f32(value);
            Quad(four, four, four, four)
        }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Quad(vld1q_f32(from), vld1q_f32(from.add(4)), vld1q_f32(from.add(8)), vld1q_f32(from.add(12))) }
    }
    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        unsafe {
            let mut lanes = [0.0f32; LANES];
            lanes.as_mut_ptr().copy_from_nonoverlapping(from, count);
            Self::load(lanes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe {
            vst1q_f32(to, self.0);
            vst1q_f32(to.add(4), self.1);
            vst1q_f32(to.add(8), self.2);
            vst1q_f32(to.add(12), self.3);
        }
    }
    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        unsafe {
            let mut lanes = [0.0f32; LANES];
            self.store(lanes.as_mut_ptr());
            to.copy_from_nonoverlapping(lanes.as_ptr(), count);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        unsafe {
            Quad(
                wide(vld1_u16(from)),
                wide(vld1_u16(from.add(4))),
                wide(vld1_u16(from.add(8))),
                wide(vld1_u16(from.add(12))),
            )
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16) {
        unsafe {
            vst1_u16(to, narrow(self.0));
            vst1_u16(to.add(4), narrow(self.1));
            vst1_u16(to.add(8), narrow(self.2));
            vst1_u16(to.add(12), narrow(self.3));
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { each!(Quad, vaddq_f32, self, other) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { each!(Quad, vsubq_f32, self, other) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { each!(Quad, vmulq_f32, self, other) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        unsafe { each!(Quad, vdivq_f32, self, other) }
    }
    #[inline(always)]
    unsafe fn fma(self, factor: Self, addend: Self) -> Self {
        unsafe { each!(Quad, multiply_add, self, factor, addend) }
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        unsafe { each!(Quad, vabsq_f32, self) }
    }
    #[inline(always)]
    unsafe fn copysign(self, sign: Self) -> Self {
        unsafe { each!(Quad, with_sign, self, sign) }
    }
    #[inline(always)]
    unsafe fn above(self, other: Self) -> Self::Mask {
        unsafe { each!(QuadMask, vcgtq_f32, self, other) }
    }
    #[inline(always)]
    unsafe fn is_nan(self) -> Self::Mask {
        unsafe { each!(QuadMask, not_itself, self) }
    }
    #[inline(always)]
    unsafe fn is_equal(self, other: Self) -> Self::Mask {
        unsafe { each!(QuadMask, vceqq_f32, self, other) }
    }
    #[inline(always)]
    unsafe fn any(mask: Self::Mask) -> bool {
        unsafe { vmaxvq_u32(vorrq_u32(vorrq_u32(mask.0, mask.1), vorrq_u32(mask.2, mask.3))) != 0 }
    }
    #[inline(always)]
    unsafe fn select(mask: Self::Mask, a: Self, b: Self) -> Self {
        unsafe { each!(Quad, vbslq_f32, mask, a, b) }
    }
    #[inline(always)]
    unsafe fn add_exponent(self, shifted: Self) -> Self {
        unsafe { each!(Quad, exponent_added, self, shifted) }
    }
    #[inline(always)]
    unsafe fn prefetch(address: *const u8) {
        // SAFETY: a hint, which no address makes fault.
        unsafe { asm!("prfm pldl1keep, [{}]", in(reg) address, options(readonly, nostack, preserves_flags)) }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe {
            let four = vaddq_f32(vaddq_f32(self.0, self.2), vaddq_f32(self.1, self.3));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }
    #[inline(always)]
    unsafe fn max(self) -> f32 {
        unsafe {
            let four = greater_of(greater_of(self.3, self.1), greater_of(self.2, self.0));
            let two = greater_of(vextq_f32::<2>(four, four), four);
            vgetq_lane_f32::<0>(greater_of(vextq_f32::<1>(two, two), two))
        }
    }
}

super::wide::entries!("neon", crate::kernels::neon::Quad, 4);

/// Runs `rounds` rounds of products of bytes, summed in i32, and returns how many operations that was: dot
/// products where the processor has them, else widening products.
pub(crate) unsafe fn byte_products(rounds: usize) -> u64 {
    if std::arch::is_aarch64_feature_detected!("dotprod") {
        // SAFETY: just detected.
        unsafe { dot_products(rounds) }
    } else {
        // SAFETY: plain Rust.
        unsafe { super::rate::byte_products(rounds) }
    }
}

#[target_feature(enable = "neon,dotprod")]
unsafe fn dot_products(rounds: usize) -> u64 {
    let (a, b) = (vdupq_n_s8(std::hint::black_box(3)), vdupq_n_s8(std::hint::black_box(-5)));
    let mut sums = [vdupq_n_s32(0); 16];
    for _ in 0..rounds {
        for sum in &mut sums {
            // SAFETY: the caller detected the instruction; it works on registers alone.
            unsafe {
                asm!(
                    "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
                    inout(vreg) *sum, in(vreg) a, in(vreg) b,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
        }
    }
    std::hint::black_box(sums);
    (rounds * 16 * 16 * 2) as u64
}
