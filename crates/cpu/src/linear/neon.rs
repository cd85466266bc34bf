//! NEON: four registers hold sixteen lanes. Codes are multiplied as signed bytes, by dot-product instructions where the
//! processor has them; codes of 8 bits are shifted down by 128 for it.

// One reason for all blocks of the trait's functions: its contract is that the processor has the instructions and
// that pointers hold what is read or written there.
#![allow(clippy::undocumented_unsafe_blocks)]
// Loops over registers say which one they mean.
#![allow(clippy::needless_range_loop)]

use std::arch::aarch64::*;
use std::arch::asm;

use super::driver::Ops;
use super::matrix::{Matrix, Packing};
use super::quantized_rows::{ActivationLayout, QuantizedPointers};
use super::simd::{self, DecodeRow, FP4_OFFSET, FillPanel, Simd, TileF32, TileInteger};

/// `DOT`: the processor has dot products of signed bytes.
struct Neon<const DOT: bool>;

/// Twice the value of each fp4 code, and the same plus the offset.
const FP4_CODES: [u8; 16] = super::fp4_codes(0);
const FP4_SPREAD: [u8; 16] = super::fp4_codes(FP4_OFFSET);

/// What codes of 8 bits are shifted by.
const WIDE_OFFSET: u8 = 128;

impl<const DOT: bool> Simd for Neon<DOT> {
    type F = [float32x4_t; 4];
    type I = [int32x4_t; 4];
    type W = [int8x16_t; 4];
    type X = int8x16_t;
    type P = Self::I;
    const CHAIN: usize = 4;
    type T = [uint8x16_t; 4];

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::F {
        unsafe { [vdupq_n_f32(value); 4] }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::F {
        unsafe { each(|i| vreinterpretq_f32_u8(vld1q_u8(from.add(4 * i).cast()))) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, value: Self::F) {
        for (i, value) in value.into_iter().enumerate() {
            unsafe { vst1q_u8(to.add(4 * i).cast(), vreinterpretq_u8_f32(value)) };
        }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        unsafe { each(|i| vaddq_f32(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        unsafe { each(|i| vmulq_f32(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        unsafe { each(|i| vfmaq_f32(c[i], a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn splat_i32(value: i32) -> Self::I {
        unsafe { [vdupq_n_s32(value); 4] }
    }
    #[inline(always)]
    unsafe fn load_i32(from: *const i32) -> Self::I {
        unsafe { each(|i| vld1q_s32(from.add(4 * i))) }
    }
    #[inline(always)]
    unsafe fn add_i32(a: Self::I, b: Self::I) -> Self::I {
        unsafe { each(|i| vaddq_s32(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn below(high: Self::I, offset: Self::I) -> Self::I {
        unsafe { each(|i| vaddq_s32(vshlq_n_s32::<7>(high[i]), offset[i])) }
    }
    #[inline(always)]
    unsafe fn to_f32(value: Self::I) -> Self::F {
        unsafe { each(|i| vcvtq_f32_s32(value[i])) }
    }
    #[inline(always)]
    unsafe fn codes(from: *const u8) -> Self::W {
        unsafe { each(|i| vld1q_s8(from.add(16 * i).cast())) }
    }
    #[inline(always)]
    unsafe fn activations(from: *const i8) -> int8x16_t {
        unsafe { vreinterpretq_s8_s32(vdupq_n_s32(from.cast::<i32>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn begin(sums: Self::I) -> Self::I {
        sums
    }
    #[inline(always)]
    unsafe fn end(_: Self::I, products: Self::I) -> Self::I {
        products
    }
    #[inline(always)]
    unsafe fn dot(acc: Self::I, codes: Self::W, activations: int8x16_t) -> Self::I {
        unsafe {
            each(|i| {
                if DOT {
                    let mut acc = acc[i];
                    // The intrinsic is not stable; the instruction is.
                    asm!(
                        ".arch_extension dotprod",
                        "sdot {acc:v}.4s, {codes:v}.16b, {activations:v}.16b",
                        acc = inout(vreg) acc,
                        codes = in(vreg) codes[i],
                        activations = in(vreg) activations,
                        options(pure, nomem, nostack, preserves_flags),
                    );
                    acc
                } else {
                    let low = vmull_s8(vget_low_s8(codes[i]), vget_low_s8(activations));
                    let high = vmull_high_s8(codes[i], activations);
                    vaddq_s32(acc[i], vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)))
                }
            })
        }
    }
    #[inline(always)]
    unsafe fn from_u8(from: *const u8) -> Self::F {
        unsafe {
            let bytes = vld1q_u8(from);
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
            let words = [
                vmovl_u16(vget_low_u16(low)),
                vmovl_high_u16(low),
                vmovl_u16(vget_low_u16(high)),
                vmovl_high_u16(high),
            ];
            each(|i| vcvtq_f32_u32(words[i]))
        }
    }
    #[inline(always)]
    unsafe fn from_bf16(from: *const u8) -> Self::F {
        unsafe {
            let halves = [0, 16].map(|at| vreinterpretq_u16_u8(vld1q_u8(from.add(at))));
            each(|i| {
                let half = halves[i / 2];
                let low = if i % 2 == 0 { vget_low_u16(half) } else { vget_high_u16(half) };
                vreinterpretq_f32_u32(vshll_n_u16::<16>(low))
            })
        }
    }
    #[inline(always)]
    unsafe fn from_f16(from: *const u8) -> Self::F {
        unsafe { each(|i| half_to_f32(vreinterpret_u16_u8(vld1_u8(from.add(8 * i))))) }
    }
    #[inline(always)]
    unsafe fn from_e4m3(from: *const u8) -> Self::F {
        unsafe {
            let bytes = vld1q_u8(from);
            let parts = [vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes)];
            each(|i| {
                let words = if i % 2 == 0 { vget_low_u16(parts[i / 2]) } else { vget_high_u16(parts[i / 2]) };
                // An E4M3 is an f16 of 2^-8 of its value, but for NaN.
                let magnitude = vand_u16(words, vdup_n_u16(0x7f));
                let sign = vshl_n_u16::<8>(vand_u16(words, vdup_n_u16(0x80)));
                let nan = vceq_u16(magnitude, vdup_n_u16(0x7f));
                let halves = vorr_u16(vshl_n_u16::<7>(magnitude), vorr_u16(sign, nan));
                vmulq_n_f32(half_to_f32(halves), 256.0)
            })
        }
    }
    #[inline(always)]
    unsafe fn from_e8m0(from: *const u8) -> Self::F {
        unsafe {
            let bytes = vld1q_u8(from);
            let parts = [vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes)];
            each(|i| {
                let words = if i % 2 == 0 { vget_low_u16(parts[i / 2]) } else { vget_high_u16(parts[i / 2]) };
                // Only 0 is below: it stands for 2^-127, which has no exponent bits.
                let exponents = vmaxq_u32(vshlq_n_u32::<23>(vmovl_u16(words)), vdupq_n_u32(1 << 22));
                vreinterpretq_f32_u32(exponents)
            })
        }
    }
    #[inline(always)]
    unsafe fn max_magnitude(x: Self::F, than: Self::I) -> Self::I {
        unsafe {
            each(|i| {
                let magnitude = vandq_u32(vreinterpretq_u32_f32(x[i]), vdupq_n_u32(0x7fff_ffff));
                vreinterpretq_s32_u32(vmaxq_u32(magnitude, vreinterpretq_u32_s32(than[i])))
            })
        }
    }
    #[inline(always)]
    unsafe fn max_lane(value: Self::I) -> u32 {
        unsafe {
            // Magnitudes have no sign bit, so that signed and unsigned order agree.
            let max = vmaxq_s32(vmaxq_s32(value[0], value[1]), vmaxq_s32(value[2], value[3]));
            vmaxvq_s32(max) as u32
        }
    }
    #[inline(always)]
    unsafe fn store_rounded(to: *mut i16, x: Self::F) {
        unsafe {
            for (i, x) in x.into_iter().enumerate() {
                vst1_s16(to.add(4 * i), vqmovn_s32(vcvtnq_s32_f32(x)));
            }
        }
    }
    #[inline(always)]
    unsafe fn sum_lanes(registers: &[Self::F; 16]) -> Self::F {
        unsafe {
            each(|quarter| {
                let four: [float32x4_t; 4] = each(|position| {
                    let r = registers[4 * quarter + position];
                    vaddq_f32(vaddq_f32(r[0], r[2]), vaddq_f32(r[1], r[3]))
                });
                let (g, h) = (sum_pairs(four[0], four[1]), sum_pairs(four[2], four[3]));
                vaddq_f32(vuzp1q_f32(g, h), vuzp2q_f32(g, h))
            })
        }
    }
    #[inline(always)]
    unsafe fn transpose(rows: *const u8, stride: usize) -> [Self::T; 8] {
        unsafe {
            let mut out = [[vdupq_n_u8(0); 4]; 8];
            for half in 0..2 {
                for quarter in 0..4 {
                    let r: [uint32x4_t; 4] =
                        each(|row| vreinterpretq_u32_u8(vld1q_u8(rows.add((4 * quarter + row) * stride + 16 * half))));
                    let (a, b) = (vtrn1q_u32(r[0], r[1]), vtrn2q_u32(r[0], r[1]));
                    let (c, d) = (vtrn1q_u32(r[2], r[3]), vtrn2q_u32(r[2], r[3]));
                    let [a, b, c, d] = [a, b, c, d].map(|pair| vreinterpretq_u64_u32(pair));
                    let columns = [vtrn1q_u64(a, c), vtrn1q_u64(b, d), vtrn2q_u64(a, c), vtrn2q_u64(b, d)];
                    for (column, bytes) in columns.into_iter().enumerate() {
                        out[4 * half + column][quarter] = vreinterpretq_u8_u64(bytes);
                    }
                }
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn field<const SHIFT: u32, const MASK: u8>(bytes: Self::T) -> Self::T {
        unsafe { each(|i| vandq_u8(vshlq_u8(bytes[i], vdupq_n_s8(-(SHIFT as i8))), vdupq_n_u8(MASK))) }
    }
    #[inline(always)]
    unsafe fn fp4(codes: Self::T) -> Self::T {
        unsafe {
            let table = vld1q_u8(FP4_CODES.as_ptr());
            each(|i| vqtbl1q_u8(table, codes[i]))
        }
    }
    #[inline(always)]
    unsafe fn wide(codes: Self::T) -> Self::T {
        unsafe { each(|i| veorq_u8(codes[i], vdupq_n_u8(WIDE_OFFSET))) }
    }
    #[inline(always)]
    unsafe fn store_codes(to: *mut u8, codes: Self::T) {
        for (i, codes) in codes.into_iter().enumerate() {
            unsafe { vst1q_u8(to.add(16 * i), codes) };
        }
    }
    #[inline(always)]
    unsafe fn prefetch(line: *const u8) {
        unsafe { asm!("prfm pldl2keep, [{line}]", line = in(reg) line, options(readonly, nostack, preserves_flags)) }
    }
}

/// Four registers, made one by one.
#[inline(always)]
fn each<T: Copy>(make: impl Fn(usize) -> T) -> [T; 4] {
    [make(0), make(1), make(2), make(3)]
}

#[inline(always)]
unsafe fn half_to_f32(halves: uint16x4_t) -> float32x4_t {
    let floats: float32x4_t;
    // SAFETY: an instruction of every NEON; the intrinsic's f16 type is not stable.
    unsafe {
        asm!(
            "fcvtl {floats:v}.4s, {halves:v}.4h",
            floats = out(vreg) floats,
            halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    floats
}

/// `[e0 + e2, e1 + e3, f0 + f2, f1 + f3]`.
#[inline(always)]
unsafe fn sum_pairs(e: float32x4_t, f: float32x4_t) -> float32x4_t {
    // SAFETY: NEON is there, as the caller's.
    unsafe {
        let (e, f) = (vreinterpretq_u64_f32(e), vreinterpretq_u64_f32(f));
        let (low, high) = (vtrn1q_u64(e, f), vtrn2q_u64(e, f));
        vaddq_f32(vreinterpretq_f32_u64(low), vreinterpretq_f32_u64(high))
    }
}

/// See [`Ops::spread`].
#[target_feature(enable = "neon")]
unsafe fn spread(packing: Packing, from: *const u8, count: usize, to: *mut u8) {
    // SAFETY: the caller's contract.
    unsafe {
        match packing {
            Packing::Affine(2) => {
                for k in (0..count).step_by(32) {
                    // Eight bytes to eight words, whose bytes then take two bits each.
                    let w = vmovl_u8(vld1_u8(from.add(k / 4)));
                    for (i, w) in [vmovl_u16(vget_low_u16(w)), vmovl_high_u16(w)].into_iter().enumerate() {
                        let w = vorrq_u32(w, vshlq_n_u32::<12>(w));
                        let w = vorrq_u32(w, vshlq_n_u32::<6>(w));
                        vst1q_u8(to.add(k + 16 * i), vandq_u8(vreinterpretq_u8_u32(w), vdupq_n_u8(3)));
                    }
                }
            }
            Packing::Affine(4) | Packing::Fp4 => {
                let table = vld1q_u8(FP4_SPREAD.as_ptr());
                for k in (0..count).step_by(32) {
                    let bytes = vld1q_u8(from.add(k / 2));
                    let (low, high) = (vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes));
                    for (i, codes) in [vzip1q_u8(low, high), vzip2q_u8(low, high)].into_iter().enumerate() {
                        let codes = if packing == Packing::Fp4 { vqtbl1q_u8(table, codes) } else { codes };
                        vst1q_u8(to.add(k + 16 * i), codes);
                    }
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
#[target_feature(enable = "neon")]
unsafe fn spread_straddling<const BITS: usize>(from: *const u8, count: usize, to: *mut u8) {
    // Of eight codes: the two bytes of a 16-bit lane, and how far it is shifted down.
    let mut bytes = [0u8; 16];
    let mut shifts = [0i16; 8];
    for code in 0..8 {
        bytes[2 * code] = (code * BITS / 8) as u8;
        bytes[2 * code + 1] = (code * BITS / 8 + 1) as u8;
        shifts[code] = -((code * BITS % 8) as i16);
    }
    // SAFETY: the caller's contract.
    unsafe {
        let (bytes, shifts) = (vld1q_u8(bytes.as_ptr()), vld1q_s16(shifts.as_ptr()));
        let mask = vdup_n_u8(((1u32 << BITS) - 1) as u8);
        for k in (0..count).step_by(8) {
            let pairs = vqtbl1q_u8(vld1q_u8(from.add(k * BITS / 8)), bytes);
            let codes = vmovn_u16(vshlq_u16(vreinterpretq_u16_u8(pairs), shifts));
            vst1_u8(to.add(k), vand_u8(codes, mask));
        }
    }
}

macro_rules! with_features {
    ($(fn $name:ident $(<$(const $constant:ident: $kind:ty),*>)? ($($argument:ident: $type:ty),*) = $body:expr;)*) => {
        $(
            #[target_feature(enable = "neon")]
            unsafe fn $name $(<$(const $constant: $kind),*>)? ($($argument: $type),*) {
                // SAFETY: the caller's contract, and the features are enabled here.
                unsafe { $body }
            }
        )*
    };
}

with_features! {
    fn quantize_row(layout: ActivationLayout, x: *const f32, columns: usize, out: QuantizedPointers, row: usize) =
        simd::quantize_row::<Neon<false>>(layout, x, columns, out, row);
    fn parameters(matrix: &Matrix, block: usize, scales: *mut f32, biases: *mut f32) =
        simd::parameters::<Neon<false>>(matrix, block, scales, biases);
    fn fill_panel(fill: &FillPanel) = simd::fill_panel::<Neon<false>>(fill);
    fn decode_row(row: &DecodeRow) = simd::decode_row::<Neon<false>>(row);
    fn sum_outputs(lanes: *const f32, out: *mut f32) = simd::sum_outputs::<Neon<false>>(lanes, out);
    fn tile_integer<const DOT: bool, const R: usize, const P: usize>(tile: &TileInteger) =
        simd::tile_integer::<Neon<DOT>, R, P>(tile);
    fn tile_f32<const R: usize, const N: usize>(tile: &TileF32) = simd::tile_f32::<Neon<false>, R, N>(tile);
}

const fn ops<const DOT: bool>() -> Ops {
    Ops {
        quantize_row,
        parameters,
        fill_panel,
        spread,
        decode_row,
        sum_outputs,
        few: None,
        code_offset: |packing| {
            if packing == Packing::Affine(8) { i32::from(WIDE_OFFSET) } else { 0 }
        },
        panels: 2,
        tiles: |_, panels| match panels {
            1 => const { &[tile_integer::<DOT, 1, 1>, tile_integer::<DOT, 2, 1>] },
            _ => const { &[tile_integer::<DOT, 1, 2>, tile_integer::<DOT, 2, 2>] },
        },
        tiles_f32: const { &[(tile_f32::<1, 4>, 4), (tile_f32::<2, 2>, 2), (tile_f32::<3, 2>, 2)] },
    }
}

/// For every processor.
pub(super) static OPS: Ops = ops::<false>();

/// For those with dot products.
pub(super) static OPS_DOT: Ops = ops::<true>();
