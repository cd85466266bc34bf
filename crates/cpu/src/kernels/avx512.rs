//! AVX-512: sixteen f32 are one register.

#![allow(clippy::undocumented_unsafe_blocks, reason = "each block is intrinsics under the contract of `Lanes`")]

use super::lanes::Lanes;
use std::arch::x86_64::*;

/// One 512-bit register.
#[derive(Clone, Copy)]
pub(crate) struct Zmm(__m512);

#[inline(always)]
fn first(count: usize) -> __mmask16 {
    ((1u32 << count) - 1) as __mmask16
}

// SAFETY: the trait's contract: called only in code compiled for AVX-512 F, BW, DQ and VL.
unsafe impl Lanes for Zmm {
    type Mask = __mmask16;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        unsafe { Zmm(_mm512_set1_ps(value)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Zmm(_mm512_loadu_ps(from)) }
    }
    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        unsafe { Zmm(_mm512_maskz_loadu_ps(first(count), from)) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        unsafe { _mm512_mask_storeu_ps(to, first(count), self.0) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        unsafe { Zmm(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16) {
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0)) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { Zmm(_mm512_add_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { Zmm(_mm512_sub_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { Zmm(_mm512_mul_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        unsafe { Zmm(_mm512_div_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn fma(self, factor: Self, addend: Self) -> Self {
        unsafe { Zmm(_mm512_fmadd_ps(self.0, factor.0, addend.0)) }
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        unsafe { Zmm(_mm512_abs_ps(self.0)) }
    }
    #[inline(always)]
    unsafe fn copysign(self, sign: Self) -> Self {
        unsafe {
            let bit = _mm512_set1_ps(-0.0);
            Zmm(_mm512_or_ps(_mm512_andnot_ps(bit, self.0), _mm512_and_ps(bit, sign.0)))
        }
    }
    #[inline(always)]
    unsafe fn above(self, other: Self) -> Self::Mask {
        unsafe { _mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, other.0) }
    }
    #[inline(always)]
    unsafe fn is_nan(self) -> Self::Mask {
        unsafe { _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0) }
    }
    #[inline(always)]
    unsafe fn is_equal(self, other: Self) -> Self::Mask {
        unsafe { _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(self.0, other.0) }
    }
    #[inline(always)]
    unsafe fn any(mask: Self::Mask) -> bool {
        mask != 0
    }
    #[inline(always)]
    unsafe fn select(mask: Self::Mask, a: Self, b: Self) -> Self {
        unsafe { Zmm(_mm512_mask_blend_ps(mask, b.0, a.0)) }
    }
    #[inline(always)]
    unsafe fn add_exponent(self, shifted: Self) -> Self {
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted.0));
            Zmm(_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(self.0), exponent)))
        }
    }
    #[inline(always)]
    unsafe fn prefetch(address: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe {
            let low = _mm512_castps512_ps256(self.0);
            let eight = _mm256_add_ps(low, _mm512_extractf32x8_ps::<1>(self.0));
            super::avx2::sum_of_eight(eight)
        }
    }
    #[inline(always)]
    unsafe fn max(self) -> f32 {
        unsafe {
            let low = _mm512_castps512_ps256(self.0);
            // `max` gives its second operand unless the first is greater.
            super::avx2::max_of_eight(_mm256_max_ps(_mm512_extractf32x8_ps::<1>(self.0), low))
        }
    }
}

super::wide::entries!("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c", crate::kernels::avx512::Zmm, 16);

/// Runs `rounds` rounds of products of bytes, summed in i32, and returns how many operations that was.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(crate) unsafe fn byte_products(rounds: usize) -> u64 {
    let (a, b) = (_mm512_set1_epi8(std::hint::black_box(3)), _mm512_set1_epi8(std::hint::black_box(5)));
    let mut sums = [_mm512_setzero_si512(); 16];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_dpbusd_epi32(*sum, a, b);
        }
    }
    std::hint::black_box(sums);
    (rounds * 16 * 64 * 2) as u64
}
