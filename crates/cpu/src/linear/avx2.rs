//! AVX2 with FMA and F16C: two registers hold sixteen lanes. Without VNNI, products of bytes are added in pairs to 16
//! bits, which saturate: only codes below 128 are multiplied so.

// One reason for all blocks of the trait's functions: its contract is that the processor has the instructions and
// that pointers hold what is read or written there.
#![allow(clippy::undocumented_unsafe_blocks)]
// Loops over registers say which one they mean.
#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;

use super::driver::{FewOps, Ops};
use super::few::{self, Finish, GroupSums, Register};
use super::matrix::{Matrix, Packing};
use super::quantized_rows::{ActivationLayout, QuantizedPointers};
use super::simd::{self, DecodeRow, FP4_OFFSET, FillPanel, Simd, TileF32, TileInteger};

/// `BITS` of the codes, at most: 5, 6 or 8. fp4 codes are below 25.
struct Avx2<const BITS: u32>;

/// Twice the value of each fp4 code, plus the offset.
const FP4_CODES: [u8; 16] = super::fp4_codes(FP4_OFFSET);

// Two products of a step, over all steps of a chain, fit 16 bits: the largest code meets the largest activation.
const _: () = assert!(4 * 2 * 31 * 127 <= i16::MAX as i32);
const _: () = assert!(2 * 2 * 63 * 127 <= i16::MAX as i32);

/// Activations for narrow codes, or their even and odd bytes in 16 bits for wide ones.
type Activations = [__m256i; 2];

impl<const BITS: u32> Simd for Avx2<BITS> {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    type W = [__m256i; 2];
    type X = Activations;
    /// 16 bits, or 32 for wide codes.
    type P = [__m256i; 2];
    type T = [__m256i; 2];
    const CHAIN: usize = match BITS {
        ..=5 => 4,
        6 => 2,
        _ => 4,
    };

    #[inline(always)]
    unsafe fn splat(value: f32) -> [__m256; 2] {
        unsafe { [_mm256_set1_ps(value); 2] }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> [__m256; 2] {
        unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, value: [__m256; 2]) {
        unsafe {
            _mm256_storeu_ps(to, value[0]);
            _mm256_storeu_ps(to.add(8), value[1]);
        }
    }
    #[inline(always)]
    unsafe fn add(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn mul(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn fma(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    unsafe fn splat_i32(value: i32) -> [__m256i; 2] {
        unsafe { [_mm256_set1_epi32(value); 2] }
    }
    #[inline(always)]
    unsafe fn load_i32(from: *const i32) -> [__m256i; 2] {
        unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(8).cast())] }
    }
    #[inline(always)]
    unsafe fn add_i32(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        unsafe { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn below(high: [__m256i; 2], offset: [__m256i; 2]) -> [__m256i; 2] {
        unsafe {
            let low_half = _mm256_add_epi32(_mm256_slli_epi32::<7>(high[0]), offset[0]);
            [low_half, _mm256_add_epi32(_mm256_slli_epi32::<7>(high[1]), offset[1])]
        }
    }
    #[inline(always)]
    unsafe fn to_f32(value: [__m256i; 2]) -> [__m256; 2] {
        unsafe { [_mm256_cvtepi32_ps(value[0]), _mm256_cvtepi32_ps(value[1])] }
    }
    #[inline(always)]
    unsafe fn codes(from: *const u8) -> [__m256i; 2] {
        unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())] }
    }
    #[inline(always)]
    unsafe fn activations(from: *const i8) -> Activations {
        unsafe {
            let bytes = _mm256_set1_epi32(from.cast::<i32>().read_unaligned());
            if BITS == 8 {
                [_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(bytes)), _mm256_srai_epi16::<8>(bytes)]
            } else {
                [bytes, bytes]
            }
        }
    }
    #[inline(always)]
    unsafe fn begin(sums: [__m256i; 2]) -> [__m256i; 2] {
        unsafe { if BITS == 8 { sums } else { [_mm256_setzero_si256(); 2] } }
    }
    #[inline(always)]
    unsafe fn dot(mut products: [__m256i; 2], codes: [__m256i; 2], activations: Activations) -> [__m256i; 2] {
        unsafe {
            for (products, codes) in products.iter_mut().zip(codes) {
                *products = if BITS == 8 {
                    let even = _mm256_and_si256(codes, _mm256_set1_epi16(0xff));
                    let even = _mm256_madd_epi16(even, activations[0]);
                    let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(codes), activations[1]);
                    _mm256_add_epi32(*products, _mm256_add_epi32(even, odd))
                } else {
                    _mm256_add_epi16(*products, _mm256_maddubs_epi16(codes, activations[0]))
                };
            }
            products
        }
    }
    #[inline(always)]
    unsafe fn end(sums: [__m256i; 2], products: [__m256i; 2]) -> [__m256i; 2] {
        unsafe {
            if BITS == 8 {
                return products;
            }
            let wide = products.map(|pairs| _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            [_mm256_add_epi32(sums[0], wide[0]), _mm256_add_epi32(sums[1], wide[1])]
        }
    }
    #[inline(always)]
    unsafe fn from_u8(from: *const u8) -> [__m256; 2] {
        unsafe {
            let bytes = _mm_loadu_si128(from.cast());
            let low = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
            [low, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes)))]
        }
    }
    #[inline(always)]
    unsafe fn from_bf16(from: *const u8) -> [__m256; 2] {
        unsafe {
            let eight = |from: *const u8| {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            };
            [eight(from), eight(from.add(16))]
        }
    }
    #[inline(always)]
    unsafe fn from_f16(from: *const u8) -> [__m256; 2] {
        unsafe {
            let high = _mm_loadu_si128(from.add(16).cast());
            [_mm256_cvtph_ps(_mm_loadu_si128(from.cast())), _mm256_cvtph_ps(high)]
        }
    }
    #[inline(always)]
    unsafe fn from_e4m3(from: *const u8) -> [__m256; 2] {
        unsafe {
            // An E4M3 is an f16 of 2^-8 of its value, but for NaN.
            let bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast()));
            let magnitude = _mm256_and_si256(bytes, _mm256_set1_epi16(0x7f));
            let sign = _mm256_slli_epi16::<8>(_mm256_andnot_si256(_mm256_set1_epi16(0x7f), bytes));
            let nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
            let halves = _mm256_or_si256(_mm256_slli_epi16::<7>(magnitude), _mm256_or_si256(sign, nan));
            let factor = _mm256_set1_ps(256.0);
            let low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
            let high = _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves));
            [_mm256_mul_ps(low, factor), _mm256_mul_ps(high, factor)]
        }
    }
    #[inline(always)]
    unsafe fn from_e8m0(from: *const u8) -> [__m256; 2] {
        unsafe {
            let eight = |bytes: __m128i| {
                let exponents = _mm256_slli_epi32::<23>(_mm256_cvtepu8_epi32(bytes));
                // Only 0 is below: it stands for 2^-127, which has no exponent bits.
                _mm256_castsi256_ps(_mm256_max_epu32(exponents, _mm256_set1_epi32(1 << 22)))
            };
            let bytes = _mm_loadu_si128(from.cast());
            [eight(bytes), eight(_mm_srli_si128::<8>(bytes))]
        }
    }
    #[inline(always)]
    unsafe fn max_magnitude(x: [__m256; 2], than: [__m256i; 2]) -> [__m256i; 2] {
        unsafe {
            let magnitude = |x| _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fff_ffff));
            [_mm256_max_epu32(magnitude(x[0]), than[0]), _mm256_max_epu32(magnitude(x[1]), than[1])]
        }
    }
    #[inline(always)]
    unsafe fn max_lane(value: [__m256i; 2]) -> u32 {
        unsafe {
            let mut lanes = [0u32; 8];
            _mm256_storeu_si256(lanes.as_mut_ptr().cast(), _mm256_max_epu32(value[0], value[1]));
            let mut max = 0;
            for lane in lanes {
                max = if lane > max { lane } else { max };
            }
            max
        }
    }
    #[inline(always)]
    unsafe fn store_rounded(to: *mut i16, x: [__m256; 2]) {
        unsafe {
            let words = _mm256_packs_epi32(_mm256_cvtps_epi32(x[0]), _mm256_cvtps_epi32(x[1]));
            _mm256_storeu_si256(to.cast(), _mm256_permute4x64_epi64::<0xd8>(words));
        }
    }
    #[inline(always)]
    unsafe fn sum_lanes(registers: &[[__m256; 2]; 16]) -> [__m256; 2] {
        unsafe {
            let mut out = [_mm256_setzero_ps(); 2];
            for (half, out) in out.iter_mut().enumerate() {
                let mut fours = [_mm256_setzero_ps(); 4];
                for (position, four) in fours.iter_mut().enumerate() {
                    let (a, b) = (registers[8 * half + position], registers[8 * half + 4 + position]);
                    let (a, b) = (_mm256_add_ps(a[0], a[1]), _mm256_add_ps(b[0], b[1]));
                    let low = _mm256_permute2f128_ps::<0x20>(a, b);
                    *four = _mm256_add_ps(low, _mm256_permute2f128_ps::<0x31>(a, b));
                }
                let pair = |e: __m256, f: __m256| {
                    let (e, f) = (_mm256_castps_pd(e), _mm256_castps_pd(f));
                    let (low, high) = (_mm256_unpacklo_pd(e, f), _mm256_unpackhi_pd(e, f));
                    _mm256_add_ps(_mm256_castpd_ps(low), _mm256_castpd_ps(high))
                };
                let (g, h) = (pair(fours[0], fours[1]), pair(fours[2], fours[3]));
                *out = _mm256_add_ps(_mm256_shuffle_ps::<0x88>(g, h), _mm256_shuffle_ps::<0xdd>(g, h));
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn transpose(rows: *const u8, stride: usize) -> [[__m256i; 2]; 8] {
        unsafe {
            let mut out = [[_mm256_setzero_si256(); 2]; 8];
            for half in 0..2 {
                // After the 4 x 4 transpositions within 128-bit lanes a register holds column c of four rows in the
                // low lane and column c + 4 in the high one.
                let mut quarters = [[_mm256_setzero_si256(); 4]; 2];
                for (quarter, columns) in quarters.iter_mut().enumerate() {
                    let row = |r: usize| _mm256_loadu_si256(rows.add((8 * half + 4 * quarter + r) * stride).cast());
                    let (r0, r1, r2, r3) = (row(0), row(1), row(2), row(3));
                    let (a, b) = (_mm256_unpacklo_epi32(r0, r1), _mm256_unpackhi_epi32(r0, r1));
                    let (c, d) = (_mm256_unpacklo_epi32(r2, r3), _mm256_unpackhi_epi32(r2, r3));
                    columns[0] = _mm256_unpacklo_epi64(a, c);
                    columns[1] = _mm256_unpackhi_epi64(a, c);
                    columns[2] = _mm256_unpacklo_epi64(b, d);
                    columns[3] = _mm256_unpackhi_epi64(b, d);
                }
                for column in 0..4 {
                    let (low, high) = (quarters[0][column], quarters[1][column]);
                    out[column][half] = _mm256_permute2x128_si256::<0x20>(low, high);
                    out[column + 4][half] = _mm256_permute2x128_si256::<0x31>(low, high);
                }
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn field<const SHIFT: u32, const MASK: u8>(bytes: [__m256i; 2]) -> [__m256i; 2] {
        unsafe {
            let mask = _mm256_set1_epi8(MASK as i8);
            let shift = _mm_cvtsi32_si128(SHIFT as i32);
            bytes.map(|bytes| _mm256_and_si256(_mm256_srl_epi16(bytes, shift), mask))
        }
    }
    #[inline(always)]
    unsafe fn fp4(codes: [__m256i; 2]) -> [__m256i; 2] {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(FP4_CODES.as_ptr().cast()));
            [_mm256_shuffle_epi8(table, codes[0]), _mm256_shuffle_epi8(table, codes[1])]
        }
    }
    #[inline(always)]
    unsafe fn wide(codes: [__m256i; 2]) -> [__m256i; 2] {
        codes
    }
    #[inline(always)]
    unsafe fn store_codes(to: *mut u8, codes: [__m256i; 2]) {
        unsafe {
            _mm256_storeu_si256(to.cast(), codes[0]);
            _mm256_storeu_si256(to.add(32).cast(), codes[1]);
        }
    }
    #[inline(always)]
    unsafe fn prefetch(line: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) }
    }
}

/// One register of bytes.
struct Bytes;

impl Register for Bytes {
    const BYTES: usize = 32;
    type V = __m256i;

    #[inline(always)]
    unsafe fn zero() -> __m256i {
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m256i {
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_first(from: *const u8, len: usize) -> __m256i {
        unsafe {
            let places = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
            _mm256_maskload_epi32(from.cast(), _mm256_cmpgt_epi32(_mm256_set1_epi32(len as i32), places))
        }
    }
    #[inline(always)]
    unsafe fn gather_16(from: *const i8, step: usize) -> __m256i {
        unsafe {
            let first = _mm256_castsi128_si256(_mm_loadu_si128(from.cast()));
            _mm256_inserti128_si256::<1>(first, _mm_loadu_si128(from.add(step).cast()))
        }
    }
    #[inline(always)]
    unsafe fn gather_32(from: *const i8, _: usize) -> __m256i {
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn field<const SHIFT: u32, const MASK: u8>(bytes: __m256i) -> __m256i {
        unsafe {
            let shifted = _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(SHIFT as i32));
            _mm256_and_si256(if SHIFT == 0 { bytes } else { shifted }, _mm256_set1_epi8(MASK as i8))
        }
    }
    #[inline(always)]
    unsafe fn fp4(codes: __m256i) -> __m256i {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(FP4_CODES.as_ptr().cast()));
            _mm256_shuffle_epi8(table, codes)
        }
    }
    #[inline(always)]
    unsafe fn dot<const PLANES: usize, const WIDE: bool>(
        codes: &[__m256i; PLANES],
        high: &[__m256i; PLANES],
        low: &[__m256i; PLANES],
    ) -> __m256i {
        unsafe {
            // Products with the high and the low bytes of the activations, in pairs.
            let pairs = |codes: &[__m256i; PLANES]| {
                let mut pairs = [_mm256_maddubs_epi16(codes[0], high[0]), _mm256_maddubs_epi16(codes[0], low[0])];
                for plane in 1..PLANES {
                    pairs[0] = _mm256_add_epi16(pairs[0], _mm256_maddubs_epi16(codes[plane], high[plane]));
                    pairs[1] = _mm256_add_epi16(pairs[1], _mm256_maddubs_epi16(codes[plane], low[plane]));
                }
                pairs
            };
            let fours = |pairs: [__m256i; 2], factor: i16| {
                let high = _mm256_madd_epi16(pairs[0], _mm256_set1_epi16(128 * factor));
                _mm256_add_epi32(high, _mm256_madd_epi16(pairs[1], _mm256_set1_epi16(factor)))
            };
            if WIDE {
                // Half a code at a time: two products of whole ones do not fit 16 bits.
                let lower = codes.map(|codes| Self::field::<0, 15>(codes));
                let upper = codes.map(|codes| Self::field::<4, 15>(codes));
                _mm256_add_epi32(fours(pairs(&lower), 1), fours(pairs(&upper), 16))
            } else {
                fours(pairs(codes), 1)
            }
        }
    }
    #[inline(always)]
    unsafe fn add(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn sum_lanes([a, b, c, d]: [__m256i; 4]) -> __m256i {
        unsafe {
            let ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
            _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd))
        }
    }
    #[inline(always)]
    unsafe fn store_groups<const GROUP: usize>(to: *mut i32, lanes: __m256i) {
        unsafe {
            let [low, high] = [_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes)];
            if GROUP == 16 {
                _mm_storeu_si128(to.cast(), low);
                _mm_storeu_si128(to.add(16).cast(), high);
            } else {
                _mm_storeu_si128(to.cast(), _mm_add_epi32(low, high));
            }
        }
    }
    #[inline(always)]
    unsafe fn prefetch(line: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
    }
}

/// See [`Ops::spread`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn spread(packing: Packing, from: *const u8, count: usize, to: *mut u8) {
    // SAFETY: the caller's contract.
    unsafe {
        match packing {
            Packing::Affine(2) => {
                for k in (0..count).step_by(32) {
                    // Eight bytes to eight dwords, whose bytes then take two bits each.
                    let d = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.add(k / 4).cast()));
                    let d = _mm256_or_si256(d, _mm256_slli_epi32::<12>(d));
                    let d = _mm256_or_si256(d, _mm256_slli_epi32::<6>(d));
                    _mm256_storeu_si256(to.add(k).cast(), _mm256_and_si256(d, _mm256_set1_epi8(3)));
                }
            }
            Packing::Affine(4) | Packing::Fp4 => {
                let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(FP4_CODES.as_ptr().cast()));
                for k in (0..count).step_by(32) {
                    let w = _mm256_cvtepu8_epi16(_mm_loadu_si128(from.add(k / 2).cast()));
                    let codes = _mm256_or_si256(w, _mm256_slli_epi16::<4>(w));
                    let mut codes = _mm256_and_si256(codes, _mm256_set1_epi8(15));
                    if packing == Packing::Fp4 {
                        codes = _mm256_shuffle_epi8(table, codes);
                    }
                    _mm256_storeu_si256(to.add(k).cast(), codes);
                }
            }
            Packing::Affine(3) => spread_straddling::<3>(from, count, to),
            Packing::Affine(5) => spread_straddling::<5>(from, count, to),
            Packing::Affine(6) => spread_straddling::<6>(from, count, to),
            _ => unreachable!("only codes of fewer than 8 bits are spread"),
        }
    }
}

/// Codes that may straddle bytes: each is taken from the two bytes that it lies in.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn spread_straddling<const BITS: usize>(from: *const u8, count: usize, to: *mut u8) {
    // Of sixteen codes, [code]: the two bytes of a 16-bit lane, and 2^(8 - shift), which moves the code up to bit 8.
    const fn pattern(bits: usize) -> ([u8; 32], [i16; 16]) {
        let (mut bytes, mut factors) = ([0; 32], [0; 16]);
        let mut code = 0;
        while code < 16 {
            bytes[2 * code] = (code * bits / 8) as u8;
            bytes[2 * code + 1] = (code * bits / 8 + 1) as u8;
            factors[code] = 1 << (8 - code * bits % 8);
            code += 1;
        }
        (bytes, factors)
    }
    let (bytes, factors) = const { pattern(BITS) };
    // SAFETY: the caller's contract.
    unsafe {
        let bytes = _mm256_loadu_si256(bytes.as_ptr().cast());
        let factors = _mm256_loadu_si256(factors.as_ptr().cast());
        let sixteen = |from: *const u8| {
            let packed = _mm256_broadcastsi128_si256(_mm_loadu_si128(from.cast()));
            let pairs = _mm256_shuffle_epi8(packed, bytes);
            _mm256_srli_epi16::<8>(_mm256_mullo_epi16(pairs, factors))
        };
        let mask = _mm256_set1_epi8(((1u32 << BITS) - 1) as i8);
        for k in (0..count).step_by(32) {
            let at = from.add(k * BITS / 8);
            let words = _mm256_packus_epi16(sixteen(at), sixteen(at.add(2 * BITS)));
            let codes = _mm256_permute4x64_epi64::<0xd8>(words);
            _mm256_storeu_si256(to.add(k).cast(), _mm256_and_si256(codes, mask));
        }
    }
}

macro_rules! with_features {
    ($(fn $name:ident $(<$(const $constant:ident: $kind:ty),*>)? ($($argument:ident: $type:ty),*) = $body:expr;)*) => {
        $(
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn $name $(<$(const $constant: $kind),*>)? ($($argument: $type),*) {
                // SAFETY: the caller's contract, and the features are enabled here.
                unsafe { $body }
            }
        )*
    };
}

with_features! {
    fn quantize_row(layout: ActivationLayout, x: *const f32, columns: usize, out: QuantizedPointers, row: usize) =
        simd::quantize_row::<Avx2<5>>(layout, x, columns, out, row);
    fn parameters(matrix: &Matrix, block: usize, scales: *mut f32, biases: *mut f32) =
        simd::parameters::<Avx2<5>>(matrix, block, scales, biases);
    fn fill_panel(fill: &FillPanel) = simd::fill_panel::<Avx2<5>>(fill);
    fn decode_row(row: &DecodeRow) = simd::decode_row::<Avx2<5>>(row);
    fn sum_outputs(lanes: *const f32, out: *mut f32) = simd::sum_outputs::<Avx2<5>>(lanes, out);
    fn prefetch(bytes: *const u8, len: usize) = simd::prefetch::<Avx2<5>>(bytes, len);
    fn group_sums(sums: &GroupSums) = few::group_sums::<Bytes>(sums);
    fn finish(finish: &Finish) = few::finish::<Avx2<5>>(finish);
    fn tile_integer<const BITS: u32, const R: usize, const P: usize>(tile: &TileInteger) =
        simd::tile_integer::<Avx2<BITS>, R, P>(tile);
    fn tile_f32<const R: usize, const N: usize>(tile: &TileF32) = simd::tile_f32::<Avx2<5>, R, N>(tile);
}

macro_rules! tiles {
    ($bits:literal, 1) => {
        &[
            tile_integer::<$bits, 1, 1>,
            tile_integer::<$bits, 2, 1>,
            tile_integer::<$bits, 3, 1>,
            tile_integer::<$bits, 4, 1>,
        ]
    };
    ($bits:literal, 2) => {
        &[tile_integer::<$bits, 1, 2>, tile_integer::<$bits, 2, 2>]
    };
}

pub(super) static OPS: Ops = Ops {
    quantize_row,
    parameters,
    fill_panel,
    spread,
    decode_row,
    sum_outputs,
    few: Some(FewOps { group_sums, finish, prefetch, most_rows: 4 }),
    code_offset: |packing| {
        if packing == Packing::Fp4 { -i32::from(FP4_OFFSET) } else { 0 }
    },
    panels: 1,
    tiles: |packing, panels| match (packing, panels) {
        (Packing::Affine(8), 1) => tiles!(8, 1),
        (Packing::Affine(8), _) => tiles!(8, 2),
        (Packing::Affine(6), 1) => tiles!(6, 1),
        (Packing::Affine(6), _) => tiles!(6, 2),
        (_, 1) => tiles!(5, 1),
        (_, _) => tiles!(5, 2),
    },
    tiles_f32: &[(tile_f32::<1, 4>, 4), (tile_f32::<2, 2>, 2), (tile_f32::<3, 2>, 2)],
};
