//! AVX-512 with VNNI: a register holds sixteen lanes.

// One reason for all blocks of the trait's functions: its contract is that the processor has the instructions and
// that pointers hold what is read or written there.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::arch::x86_64::*;

use super::driver::{FewOps, Ops, TileIntegerFn};
use super::few::{self, Finish, GroupSums, Register};
use super::matrix::{Matrix, Packing};
use super::quantized_rows::{ActivationLayout, QuantizedPointers};
use super::simd::{self, DecodeRow, FP4_OFFSET, FillPanel, Simd, TileF32, TileInteger};

struct Avx512;

/// Byte `i` of each 128-bit lane: twice the value of fp4 code `i`, plus the offset.
const FP4_CODES: [u8; 16] = super::fp4_codes(FP4_OFFSET);

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    type W = __m512i;
    type X = __m512i;
    type P = __m512i;
    type T = __m512i;
    const CHAIN: usize = 4;

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, value: __m512) {
        unsafe { _mm512_storeu_ps(to, value) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn splat_i32(value: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(value) }
    }
    #[inline(always)]
    unsafe fn load_i32(from: *const i32) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn add_i32(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn below(high: __m512i, offset: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(_mm512_slli_epi32::<7>(high), offset) }
    }
    #[inline(always)]
    unsafe fn to_f32(value: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(value) }
    }
    #[inline(always)]
    unsafe fn codes(from: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn activations(from: *const i8) -> __m512i {
        unsafe { _mm512_set1_epi32(from.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn begin(sums: __m512i) -> __m512i {
        sums
    }
    #[inline(always)]
    unsafe fn end(_: __m512i, products: __m512i) -> __m512i {
        products
    }
    #[inline(always)]
    unsafe fn dot(acc: __m512i, codes: __m512i, activations: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(acc, codes, activations) }
    }
    #[inline(always)]
    unsafe fn from_u8(from: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn from_bf16(from: *const u8) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn from_f16(from: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn from_e4m3(from: *const u8) -> __m512 {
        unsafe {
            // An E4M3 is an f16 of 2^-8 of its value, but for NaN.
            let bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast()));
            let magnitude = _mm256_and_si256(bytes, _mm256_set1_epi16(0x7f));
            let sign = _mm256_slli_epi16::<8>(_mm256_andnot_si256(_mm256_set1_epi16(0x7f), bytes));
            let nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
            let halves = _mm256_or_si256(_mm256_slli_epi16::<7>(magnitude), _mm256_or_si256(sign, nan));
            _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256.0))
        }
    }
    #[inline(always)]
    unsafe fn from_e8m0(from: *const u8) -> __m512 {
        unsafe {
            let exponents = _mm512_slli_epi32::<23>(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())));
            // Only 0 is below: it stands for 2^-127, which has no exponent bits.
            _mm512_castsi512_ps(_mm512_max_epu32(exponents, _mm512_set1_epi32(1 << 22)))
        }
    }
    #[inline(always)]
    unsafe fn max_magnitude(x: __m512, than: __m512i) -> __m512i {
        unsafe { _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fff_ffff)), than) }
    }
    #[inline(always)]
    unsafe fn max_lane(value: __m512i) -> u32 {
        unsafe { _mm512_reduce_max_epu32(value) }
    }
    #[inline(always)]
    unsafe fn store_rounded(to: *mut i16, x: __m512) {
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x))) }
    }
    #[inline(always)]
    unsafe fn sum_lanes(registers: &[__m512; 16]) -> __m512 {
        unsafe {
            let mut fours = [_mm512_setzero_ps(); 4];
            for (position, four) in fours.iter_mut().enumerate() {
                let [a, b, c, d] = [0, 4, 8, 12].map(|lane| registers[lane + position]);
                let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
                let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xee>(c, d));
                *four = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd));
            }
            let pair = |e: __m512, f: __m512| {
                let (e, f) = (_mm512_castps_pd(e), _mm512_castps_pd(f));
                let (low, high) = (_mm512_unpacklo_pd(e, f), _mm512_unpackhi_pd(e, f));
                _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
            };
            let (g, h) = (pair(fours[0], fours[1]), pair(fours[2], fours[3]));
            _mm512_add_ps(_mm512_shuffle_ps::<0x88>(g, h), _mm512_shuffle_ps::<0xdd>(g, h))
        }
    }
    #[inline(always)]
    unsafe fn transpose(rows: *const u8, stride: usize) -> [__m512i; 8] {
        unsafe {
            // Register `i` of a quarter holds rows i (low half) and i + 4: after the 4 x 4 transposition within
            // 128-bit lanes, lanes are [rows 0-3 column c, rows 0-3 column c + 4, rows 4-7 c, rows 4-7 c + 4].
            let mut halves = [[_mm512_setzero_si512(); 4]; 2];
            for (half, columns) in halves.iter_mut().enumerate() {
                let mut r = [_mm512_setzero_si512(); 4];
                for (row, register) in r.iter_mut().enumerate() {
                    let low = rows.add((8 * half + row) * stride);
                    let low = _mm512_castsi256_si512(_mm256_loadu_si256(low.cast()));
                    let high = _mm256_loadu_si256(rows.add((8 * half + row + 4) * stride).cast());
                    *register = _mm512_inserti64x4::<1>(low, high);
                }
                let (a, b) = (_mm512_unpacklo_epi32(r[0], r[1]), _mm512_unpackhi_epi32(r[0], r[1]));
                let (c, d) = (_mm512_unpacklo_epi32(r[2], r[3]), _mm512_unpackhi_epi32(r[2], r[3]));
                columns[0] = _mm512_unpacklo_epi64(a, c);
                columns[1] = _mm512_unpackhi_epi64(a, c);
                columns[2] = _mm512_unpacklo_epi64(b, d);
                columns[3] = _mm512_unpackhi_epi64(b, d);
            }
            let mut out = [_mm512_setzero_si512(); 8];
            for column in 0..4 {
                let (low, high) = (halves[0][column], halves[1][column]);
                out[column] = _mm512_shuffle_i32x4::<0x88>(low, high);
                out[column + 4] = _mm512_shuffle_i32x4::<0xdd>(low, high);
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn field<const SHIFT: u32, const MASK: u8>(bytes: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(_mm512_srli_epi16::<SHIFT>(bytes), _mm512_set1_epi8(MASK as i8)) }
    }
    #[inline(always)]
    unsafe fn fp4(codes: __m512i) -> __m512i {
        unsafe {
            let table = _mm_loadu_si128(FP4_CODES.as_ptr().cast());
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes)
        }
    }
    #[inline(always)]
    unsafe fn wide(codes: __m512i) -> __m512i {
        codes
    }
    #[inline(always)]
    unsafe fn store_codes(to: *mut u8, codes: __m512i) {
        unsafe { _mm512_storeu_si512(to.cast(), codes) }
    }
    #[inline(always)]
    unsafe fn prefetch(line: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) }
    }
}

impl Register for Avx512 {
    const BYTES: usize = 64;
    type V = __m512i;

    #[inline(always)]
    unsafe fn zero() -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_first(from: *const u8, len: usize) -> __m512i {
        unsafe { _mm512_maskz_loadu_epi8((1u64 << len) - 1, from.cast()) }
    }
    #[inline(always)]
    unsafe fn gather_16(from: *const i8, step: usize) -> __m512i {
        unsafe {
            let at = |piece: usize| _mm_loadu_si128(from.add(piece * step).cast());
            let first = _mm512_castsi128_si512(at(0));
            let two = _mm512_inserti32x4::<1>(first, at(1));
            _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(two, at(2)), at(3))
        }
    }
    #[inline(always)]
    unsafe fn gather_32(from: *const i8, step: usize) -> __m512i {
        unsafe {
            let first = _mm512_castsi256_si512(_mm256_loadu_si256(from.cast()));
            _mm512_inserti64x4::<1>(first, _mm256_loadu_si256(from.add(step).cast()))
        }
    }
    #[inline(always)]
    unsafe fn field<const SHIFT: u32, const MASK: u8>(bytes: __m512i) -> __m512i {
        unsafe { <Avx512 as Simd>::field::<SHIFT, MASK>(bytes) }
    }
    #[inline(always)]
    unsafe fn fp4(codes: __m512i) -> __m512i {
        unsafe { <Avx512 as Simd>::fp4(codes) }
    }
    #[inline(always)]
    unsafe fn dot<const PLANES: usize, const WIDE: bool>(
        codes: &[__m512i; PLANES],
        high: &[__m512i; PLANES],
        low: &[__m512i; PLANES],
    ) -> __m512i {
        unsafe {
            let mut sum = _mm512_setzero_si512();
            for plane in 0..PLANES {
                sum = _mm512_dpbusd_epi32(sum, codes[plane], high[plane]);
            }
            sum = _mm512_slli_epi32::<7>(sum);
            for plane in 0..PLANES {
                sum = _mm512_dpbusd_epi32(sum, codes[plane], low[plane]);
            }
            sum
        }
    }
    #[inline(always)]
    unsafe fn add(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn sum_lanes([a, b, c, d]: [__m512i; 4]) -> __m512i {
        unsafe {
            let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
        }
    }
    #[inline(always)]
    unsafe fn store_groups<const GROUP: usize>(to: *mut i32, lanes: __m512i) {
        unsafe {
            let halves = [_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64::<1>(lanes)];
            match GROUP {
                16 => {
                    for (half, lanes) in halves.into_iter().enumerate() {
                        _mm_storeu_si128(to.add(32 * half).cast(), _mm256_castsi256_si128(lanes));
                        _mm_storeu_si128(to.add(32 * half + 16).cast(), _mm256_extracti128_si256::<1>(lanes));
                    }
                }
                32 => {
                    for (half, lanes) in halves.into_iter().enumerate() {
                        let high = _mm256_extracti128_si256::<1>(lanes);
                        let sum = _mm_add_epi32(_mm256_castsi256_si128(lanes), high);
                        _mm_storeu_si128(to.add(16 * half).cast(), sum);
                    }
                }
                _ => {
                    let both = _mm256_add_epi32(halves[0], halves[1]);
                    let sum = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256::<1>(both));
                    _mm_storeu_si128(to.cast(), sum);
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn prefetch(line: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
    }
}

macro_rules! with_features {
    ($(fn $name:ident $(<$(const $constant:ident),*>)? ($($argument:ident: $type:ty),*) = $body:expr;)*) => {
        $(
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
            unsafe fn $name $(<$(const $constant: usize),*>)? ($($argument: $type),*) {
                // SAFETY: the caller's contract, and the features are enabled here.
                unsafe { $body }
            }
        )*
    };
}

with_features! {
    fn quantize_row(layout: ActivationLayout, x: *const f32, columns: usize, out: QuantizedPointers, row: usize) =
        simd::quantize_row::<Avx512>(layout, x, columns, out, row);
    fn parameters(matrix: &Matrix, block: usize, scales: *mut f32, biases: *mut f32) =
        simd::parameters::<Avx512>(matrix, block, scales, biases);
    fn fill_panel(fill: &FillPanel) = simd::fill_panel::<Avx512>(fill);
    fn decode_row(row: &DecodeRow) = simd::decode_row::<Avx512>(row);
    fn sum_outputs(lanes: *const f32, out: *mut f32) = simd::sum_outputs::<Avx512>(lanes, out);
    fn prefetch(bytes: *const u8, len: usize) = simd::prefetch::<Avx512>(bytes, len);
    fn group_sums(sums: &GroupSums) = few::group_sums::<Avx512>(sums);
    fn finish(finish: &Finish) = few::finish::<Avx512>(finish);
    fn tile_integer<const R, const P>(tile: &TileInteger) = simd::tile_integer::<Avx512, R, P>(tile);
    fn tile_f32<const R, const N>(tile: &TileF32) = simd::tile_f32::<Avx512, R, N>(tile);
}

const TILES_ONE_PANEL: &[TileIntegerFn] = &[
    tile_integer::<1, 1>,
    tile_integer::<2, 1>,
    tile_integer::<3, 1>,
    tile_integer::<4, 1>,
    tile_integer::<5, 1>,
    tile_integer::<6, 1>,
];
const TILES_TWO_PANELS: &[TileIntegerFn] = &[
    tile_integer::<1, 2>,
    tile_integer::<2, 2>,
    tile_integer::<3, 2>,
    tile_integer::<4, 2>,
    tile_integer::<5, 2>,
    tile_integer::<6, 2>,
];

/// See [`Ops::spread`]; codes that may straddle bytes, for processors with byte permutations (VBMI).
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
unsafe fn spread_vbmi(packing: Packing, from: *const u8, count: usize, to: *mut u8) {
    // SAFETY: the caller's contract.
    unsafe {
        match packing {
            Packing::Affine(3) => spread_straddling::<3>(from, count, to),
            Packing::Affine(5) => spread_straddling::<5>(from, count, to),
            Packing::Affine(6) => spread_straddling::<6>(from, count, to),
            _ => super::avx2::spread(packing, from, count, to),
        }
    }
}

/// Eight codes fill `BITS` bytes: those go to a lane of 64 bits, from which eight fields are taken.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
unsafe fn spread_straddling<const BITS: usize>(from: *const u8, count: usize, to: *mut u8) {
    const fn pattern(bits: usize) -> [[u8; 64]; 2] {
        let mut tables = [[0; 64]; 2];
        let mut code = 0;
        while code < 64 {
            let (lane, place) = (code / 8, code % 8);
            tables[0][code] = (lane * bits + if place < bits { place } else { 0 }) as u8;
            tables[1][code] = (place * bits) as u8;
            code += 1;
        }
        tables
    }
    let tables = const { pattern(BITS) };
    // SAFETY: the caller's contract.
    unsafe {
        let bytes = _mm512_loadu_si512(tables[0].as_ptr().cast());
        let shifts = _mm512_loadu_si512(tables[1].as_ptr().cast());
        let mask = _mm512_set1_epi8(((1u32 << BITS) - 1) as i8);
        for k in (0..count).step_by(64) {
            let packed = _mm512_loadu_si512(from.add(k * BITS / 8).cast());
            let lanes = _mm512_permutexvar_epi8(bytes, packed);
            let codes = _mm512_and_si512(_mm512_multishift_epi64_epi8(shifts, lanes), mask);
            _mm512_storeu_si512(to.add(k).cast(), codes);
        }
    }
}

const fn ops(spread: unsafe fn(Packing, *const u8, usize, *mut u8)) -> Ops {
    Ops {
        quantize_row,
        parameters,
        fill_panel,
        spread,
        decode_row,
        sum_outputs,
        few: Some(FewOps { group_sums, finish, prefetch, most_rows: 2 }),
        code_offset: |packing| {
            if packing == Packing::Fp4 { -i32::from(FP4_OFFSET) } else { 0 }
        },
        panels: 2,
        tiles: |_, panels| if panels == 1 { TILES_ONE_PANEL } else { TILES_TWO_PANELS },
        tiles_f32: const {
            &[
                (tile_f32::<1, 8>, 8),
                (tile_f32::<2, 8>, 8),
                (tile_f32::<3, 4>, 4),
                (tile_f32::<4, 4>, 4),
                (tile_f32::<5, 4>, 4),
                (tile_f32::<6, 4>, 4),
            ]
        },
    }
}

/// For every processor with the instruction set.
pub(super) static OPS: Ops = ops(super::avx2::spread);

/// For those with VBMI.
pub(super) static OPS_VBMI: Ops = ops(spread_vbmi);
