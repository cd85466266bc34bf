//! The formats of small floats: E2M1 and E4M3 elements with an E8M0 or E4M3 scale a group.
//!
//! | bits | sign, exponent, mantissa | bias | values |
//! |---|---|---|---|
//! | E2M1 | 1, 2, 1 | 1 | 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives |
//! | E4M3 | 1, 4, 3 | 7 | up to 448; all ones is NaN, there is no infinity |
//! | E8M0 | 0, 8, 0 | 127 | powers of two from 2^-127 to 2^127; 255 reads as infinity, as mlx has it |

use half::{bf16, f16};

use super::{PackedRows, QuantFormat};
use crate::dtype::DType;

/// The scale byte of an mx group of zeros: 1.
const SCALE_OF_ZEROS: u8 = 127;

const LARGEST_E2M1: f32 = 6.0;
const LARGEST_E4M3: f32 = 448.0;

/// The value of a 4-bit float (the low four bits of `code`); exact.
pub fn e2m1_to_f32(code: u8) -> f32 {
    const VALUES: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
    VALUES[usize::from(code & 15)]
}

/// The value of an 8-bit float of four exponent bits; exact.
pub fn e4m3_to_f32(code: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(code >> 3 & 15), u32::from(code & 7));
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa as f32 / 512.0,
        _ => f32::from_bits((exponent + 127 - 7) << 23 | mantissa << 20),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The value of a scale byte of the mx formats; exact.
pub fn e8m0_to_f32(code: u8) -> f32 {
    // 2^-127 is below the normal numbers of f32.
    f32::from_bits(if code == 0 { 1 << 22 } else { u32::from(code) << 23 })
}

/// The nearest 4-bit float; of two equally near the smaller, without a negative zero, and beyond 6
/// always 6. `value` must be a number.
pub fn f32_to_e2m1(value: f32) -> u8 {
    let magnitude = value.abs();
    let code = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0].iter().map(|midpoint| u8::from(magnitude > *midpoint)).sum();
    if code != 0 && value.is_sign_negative() { code | 8 } else { code }
}

/// The nearest 8-bit float of four exponent bits; ties to even, beyond 448 to 448. `value` must be a
/// number.
pub fn f32_to_e4m3(value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = value.abs();
    if magnitude >= LARGEST_E4M3 {
        return sign | 0x7e;
    }
    if magnitude < 2f32.powi(-6) {
        // Below the normal numbers: whole steps of 2^-9. Eight of them are the code of 2^-6.
        return sign | (magnitude * 512.0).round_ties_even() as u8;
    }
    // Adding half a step, less one if the kept part is even, rounds to nearest even; a carry moves
    // into the exponent, as it should.
    let bits = magnitude.to_bits();
    let rounded = bits + 0x7ffff + (bits >> 20 & 1);
    sign | ((rounded >> 20) - ((127 - 7) << 3)) as u8
}

/// The smallest power of two at or above a positive `value`, as a scale byte; 2^-127 and 2^127 are
/// the ends.
pub fn f32_to_e8m0_up(value: f32) -> u8 {
    let bits = value.to_bits();
    if bits <= 1 << 22 {
        return 0; // 2^-127 is below the normal numbers of f32.
    }
    ((bits >> 23) + u32::from(bits & 0x7f_ffff != 0)).min(254) as u8
}

/// The scale of one group.
pub(super) fn scale_to_f32(format: QuantFormat, code: u8) -> f32 {
    match format {
        QuantFormat::Nvfp4 => e4m3_to_f32(code),
        _ => e8m0_to_f32(code),
    }
}

/// `out = scale * element` of one group.
pub(super) fn dequantize_group(format: QuantFormat, packed: &[u8], scale: f32, out: &mut [f32]) {
    if format == QuantFormat::Mxfp8 {
        for (value, code) in out.iter_mut().zip(packed) {
            *value = scale * e4m3_to_f32(*code);
        }
    } else {
        for (pair, codes) in out.as_chunks_mut::<2>().0.iter_mut().zip(packed) {
            *pair = [scale * e2m1_to_f32(codes & 15), scale * e2m1_to_f32(codes >> 4)];
        }
    }
}

/// Whole groups of finite values, by the rule of mlx on the CPU, computing in `dtype`.
///
/// It parts from mlx where mlx gives nonsense: in mx groups whose scale would be below 2^-127 (its
/// byte wraps), and in nvfp4 groups that pass 448 * 6 a millionfold (its 6 becomes 0). On Metal mlx
/// rounds 4-bit ties to even and keeps negative zeros.
pub(super) fn quantize(format: QuantFormat, values: &[f32], dtype: DType) -> PackedRows {
    let group_size = format.group_size();
    let mut weight = Vec::with_capacity(values.len() * format.bits() / 8);
    let mut scales = Vec::with_capacity(values.len() / group_size);
    for group in values.chunks_exact(group_size) {
        let largest =
            group.iter().fold(0.0f32, |largest, value| if value.abs() > largest { value.abs() } else { largest });
        let largest_element = if format == QuantFormat::Mxfp8 { LARGEST_E4M3 } else { LARGEST_E2M1 };
        let wanted = rounded(largest / largest_element, dtype);
        let code = match format {
            QuantFormat::Nvfp4 => f32_to_e4m3(wanted),
            _ if wanted == 0.0 => SCALE_OF_ZEROS,
            _ => f32_to_e8m0_up(wanted),
        };
        scales.push(code);
        // An nvfp4 scale may round to zero: so do all values of its group.
        let scale = match scale_to_f32(format, code) {
            0.0 => f32::INFINITY,
            scale => scale,
        };
        if format == QuantFormat::Mxfp8 {
            weight.extend(group.iter().map(|value| f32_to_e4m3(value / scale)));
        } else {
            let codes = |pair: &[f32; 2]| f32_to_e2m1(pair[0] / scale) | f32_to_e2m1(pair[1] / scale) << 4;
            weight.extend(group.as_chunks::<2>().0.iter().map(codes));
        }
    }
    PackedRows { weight, scales, biases: None }
}

/// To the nearest value of F32, F16 or BF16.
fn rounded(value: f32, dtype: DType) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(value).to_f32(),
        DType::BF16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}
