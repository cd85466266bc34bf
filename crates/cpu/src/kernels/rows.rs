//! Row kernels in plain Rust: the meaning that every instruction set repeats bit for bit.
//!
//! A sum over a row runs in 16 lanes: element k goes to lane `k mod 16`, k ascending; then lane l takes
//! lane l+8, then l+4, l+2, l+1 ([`lane_sum`]). NaN stays NaN, but which of the NaNs is not promised.

use super::math;

/// Lanes of every sum and of every key block.
pub const LANES: usize = 16;
/// The largest finite f16: conversions saturate here.
pub const F16_MAX: f32 = 65504.0;

/// The sum of 16 lanes by the tree l+8, l+4, l+2, l+1.
#[inline]
pub fn lane_sum(mut lanes: [f32; LANES]) -> f32 {
    for half in [8, 4, 2, 1] {
        for l in 0..half {
            lanes[l] += lanes[l + half];
        }
    }
    lanes[0]
}

/// The larger of two, the second if they are equal or either is NaN.
#[inline]
pub fn greater(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// The largest of 16 lanes by the same tree as [`lane_sum`]: lane l becomes `greater(l + half, l)`.
#[inline]
pub fn lane_max(mut lanes: [f32; LANES]) -> f32 {
    for half in [8, 4, 2, 1] {
        for l in 0..half {
            lanes[l] = greater(lanes[l + half], lanes[l]);
        }
    }
    lanes[0]
}

pub(crate) unsafe fn rms_norm(out: *mut f32, x: *const f32, weight: *const f32, len: usize, eps: f32) {
    let mut lanes = [0.0f32; LANES];
    for i in 0..len {
        // SAFETY: the caller passes rows of `len` elements.
        let value = unsafe { *x.add(i) };
        lanes[i % LANES] = value.mul_add(value, lanes[i % LANES]);
    }
    let factor = 1.0 / (lane_sum(lanes) / len as f32 + eps).sqrt();
    for i in 0..len {
        // SAFETY: as above; a null weight stands for none.
        unsafe {
            let normed = *x.add(i) * factor;
            *out.add(i) = if weight.is_null() { normed } else { normed * *weight.add(i) };
        }
    }
}

pub(crate) unsafe fn rope(x: *mut f32, cos: *const f32, sin: *const f32, half: usize) {
    for i in 0..half {
        // SAFETY: the caller passes a head of `2 * half` elements and tables of `half`.
        unsafe {
            let (a, b, c, s) = (*x.add(i), *x.add(i + half), *cos.add(i), *sin.add(i));
            *x.add(i) = a.mul_add(c, -(b * s));
            *x.add(i + half) = b.mul_add(c, a * s);
        }
    }
}

pub(crate) unsafe fn gelu_mul(out: *mut f32, gate: *const f32, up: *const f32, len: usize) {
    for i in 0..len {
        // SAFETY: the caller passes rows of `len` elements.
        unsafe { *out.add(i) = math::gelu_tanh(*gate.add(i)) * *up.add(i) }
    }
}

pub(crate) unsafe fn add(out: *mut f32, a: *const f32, b: *const f32, len: usize) {
    for i in 0..len {
        // SAFETY: the caller passes rows of `len` elements.
        unsafe { *out.add(i) = *a.add(i) + *b.add(i) }
    }
}

pub(crate) unsafe fn scale(out: *mut f32, x: *const f32, factor: f32, len: usize) {
    for i in 0..len {
        // SAFETY: the caller passes rows of `len` elements.
        unsafe { *out.add(i) = *x.add(i) * factor }
    }
}

pub(crate) unsafe fn add_scaled(out: *mut f32, x: *const f32, factor: f32, len: usize) {
    for i in 0..len {
        // SAFETY: the caller passes rows of `len` elements.
        unsafe { *out.add(i) = (*x.add(i)).mul_add(factor, *out.add(i)) }
    }
}

pub(crate) unsafe fn softcap(out: *mut f32, x: *const f32, cap: f32, len: usize) {
    for i in 0..len {
        // SAFETY: the caller passes rows of `len` elements.
        unsafe { *out.add(i) = cap * math::tanh(*x.add(i) / cap) }
    }
}

pub(crate) unsafe fn max(x: *const f32, len: usize) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for i in 0..len {
        // SAFETY: the caller passes a row of `len` elements.
        lanes[i % LANES] = greater(unsafe { *x.add(i) }, lanes[i % LANES]);
    }
    lane_max(lanes)
}

pub(crate) unsafe fn find(x: *const f32, value: f32, len: usize) -> usize {
    // SAFETY: the caller passes a row of `len` elements.
    (0..len).find(|i| unsafe { *x.add(*i) } == value).unwrap_or(len)
}

pub(crate) unsafe fn exp_row(out: *mut f32, x: *const f32, max: f32, factor: f32, len: usize) {
    for i in 0..len {
        // SAFETY: the caller passes rows of `len` elements.
        unsafe { *out.add(i) = math::exp((*x.add(i) - max) * factor) }
    }
}

/// One f32 as f16 bits: nearest, ties to even, beyond ±65504 (infinities too) held at ±65504, NaN stays NaN.
#[inline]
pub fn f16_from_f32(x: f32) -> u16 {
    half::f16::from_f32_const(x.clamp(-F16_MAX, F16_MAX)).to_bits()
}

/// One f16 (its bits) as f32, exactly.
#[inline]
pub fn f32_from_f16(bits: u16) -> f32 {
    half::f16::from_bits(bits).to_f32_const()
}
