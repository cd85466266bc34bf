//! AVX2: sixteen f32 are two registers.

#![allow(clippy::undocumented_unsafe_blocks, reason = "each block is intrinsics under the contract of `Lanes`")]

use super::lanes::Lanes;
use super::rows::LANES;
use std::arch::x86_64::*;

/// Two 256-bit registers, lanes 0 to 7 and 8 to 15.
#[derive(Clone, Copy)]
pub(crate) struct Ymm2(__m256, __m256);

/// The sum of eight lanes by the tree l+4, l+2, l+1.
///
/// # Safety
/// Only in code compiled for AVX2.
#[inline(always)]
pub(crate) unsafe fn sum_of_eight(eight: __m256) -> f32 {
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }
}

/// The largest of eight lanes by the same tree; `max` gives its second operand unless the first is greater.
///
/// # Safety
/// Only in code compiled for AVX2.
#[inline(always)]
pub(crate) unsafe fn max_of_eight(eight: __m256) -> f32 {
    unsafe {
        let four = _mm_max_ps(_mm256_extractf128_ps::<1>(eight), _mm256_castps256_ps128(eight));
        let two = _mm_max_ps(_mm_movehl_ps(four, four), four);
        _mm_cvtss_f32(_mm_max_ss(_mm_shuffle_ps::<1>(two, two), two))
    }
}

/// Applies one intrinsic to both halves.
macro_rules! both {
    ($f:ident, $a:expr, $b:expr) => {
        Ymm2($f($a.0, $b.0), $f($a.1, $b.1))
    };
    ($f:ident, $a:expr, $b:expr, $c:expr) => {
        Ymm2($f($a.0, $b.0, $c.0), $f($a.1, $b.1, $c.1))
    };
}

#[inline(always)]
unsafe fn compare<const HOW: i32>(a: Ymm2, b: Ymm2) -> Ymm2 {
    unsafe { Ymm2(_mm256_cmp_ps::<HOW>(a.0, b.0), _mm256_cmp_ps::<HOW>(a.1, b.1)) }
}

#[inline(always)]
unsafe fn exponent_added(a: __m256, shifted: __m256) -> __m256 {
    unsafe {
        let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
        _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), exponent))
    }
}

// SAFETY: the trait's contract: called only in code compiled for AVX2, FMA and F16C.
unsafe impl Lanes for Ymm2 {
    /// All bits of a lane set where it holds.
    type Mask = Ymm2;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        unsafe { Ymm2(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Ymm2(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
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
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
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
            let halves = from.cast::<__m128i>();
            Ymm2(_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves.add(1))))
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16) {
        unsafe {
            let halves = to.cast::<__m128i>();
            _mm_storeu_si128(halves, _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0));
            _mm_storeu_si128(halves.add(1), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.1));
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { both!(_mm256_add_ps, self, other) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { both!(_mm256_sub_ps, self, other) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { both!(_mm256_mul_ps, self, other) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        unsafe { both!(_mm256_div_ps, self, other) }
    }
    #[inline(always)]
    unsafe fn fma(self, factor: Self, addend: Self) -> Self {
        unsafe { both!(_mm256_fmadd_ps, self, factor, addend) }
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        unsafe { both!(_mm256_andnot_ps, Self::splat(-0.0), self) }
    }
    #[inline(always)]
    unsafe fn copysign(self, sign: Self) -> Self {
        unsafe {
            let bit = Self::splat(-0.0);
            both!(_mm256_or_ps, both!(_mm256_andnot_ps, bit, self), both!(_mm256_and_ps, bit, sign))
        }
    }
    #[inline(always)]
    unsafe fn above(self, other: Self) -> Self::Mask {
        unsafe { compare::<_CMP_GT_OQ>(self, other) }
    }
    #[inline(always)]
    unsafe fn is_nan(self) -> Self::Mask {
        unsafe { compare::<_CMP_UNORD_Q>(self, self) }
    }
    #[inline(always)]
    unsafe fn is_equal(self, other: Self) -> Self::Mask {
        unsafe { compare::<_CMP_EQ_OQ>(self, other) }
    }
    #[inline(always)]
    unsafe fn any(mask: Self::Mask) -> bool {
        unsafe { _mm256_movemask_ps(_mm256_or_ps(mask.0, mask.1)) != 0 }
    }
    #[inline(always)]
    unsafe fn select(mask: Self::Mask, a: Self, b: Self) -> Self {
        unsafe { both!(_mm256_blendv_ps, b, a, mask) }
    }
    #[inline(always)]
    unsafe fn add_exponent(self, shifted: Self) -> Self {
        unsafe { both!(exponent_added, self, shifted) }
    }
    #[inline(always)]
    unsafe fn prefetch(address: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe { sum_of_eight(_mm256_add_ps(self.0, self.1)) }
    }
    #[inline(always)]
    unsafe fn max(self) -> f32 {
        unsafe { max_of_eight(_mm256_max_ps(self.1, self.0)) }
    }
}

super::wide::entries!("avx2,fma,f16c", crate::kernels::avx2::Ymm2, 4);

/// Runs `rounds` rounds of products of bytes, summed in i32, and returns how many operations that was.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn byte_products(rounds: usize) -> u64 {
    let (ones, b) = (_mm256_set1_epi16(1), _mm256_set1_epi8(std::hint::black_box(5)));
    let mut a = [_mm256_set1_epi8(std::hint::black_box(3)); 6];
    let mut sums = [_mm256_setzero_si256(); 6];
    for _ in 0..rounds {
        for (sum, a) in sums.iter_mut().zip(&mut a) {
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(_mm256_maddubs_epi16(*a, b), ones));
            // The product depends on the round, else it would be computed once.
            *a = *sum;
        }
    }
    std::hint::black_box(sums);
    (rounds * 6 * 32 * 2) as u64
}
