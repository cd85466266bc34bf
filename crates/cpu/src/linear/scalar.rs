//! The meaning of the products, in plain Rust: every other instruction set gives the same bits.

use checkpoint::quant::e4m3_to_f32;

use super::matrix::{FP4_TWICE, Matrix, Packing};
use super::quantized_rows::{ActivationLayout, GroupScale, PIECE, QuantizedPointers, bytes_of};
use super::{InputRows, Product};

/// Quantizes one row; the rule stands at [`QuantizedRows`](super::QuantizedRows).
///
/// # Safety
/// `x` holds `columns` values, `out` has room for row `row` of them, and nobody else touches that row.
pub(super) unsafe fn quantize_row(
    layout: ActivationLayout,
    x: *const f32,
    columns: usize,
    out: QuantizedPointers,
    row: usize,
) {
    // SAFETY: the caller's contract.
    let x = unsafe { std::slice::from_raw_parts(x, columns) };
    for (group, x) in x.chunks_exact(layout.group_size()).enumerate() {
        let max = x.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap_or(0);
        let first = out.value_at(row, group * layout.group_size());
        let mut sum = 0;
        let scale = match GroupScale::new(max) {
            GroupScale::Zero(scale) => {
                // SAFETY: inside the row.
                unsafe {
                    out.values.add(first).write_bytes(0, x.len());
                    out.values.add(first + PIECE).write_bytes(0, x.len());
                }
                scale
            }
            GroupScale::Scaled { scale, multiplier } => {
                for (index, x) in x.iter().enumerate() {
                    let value = (x * multiplier).round_ties_even() as i16;
                    sum += i32::from(value);
                    let at = first + layout.place(index);
                    // SAFETY: inside the row.
                    unsafe { [*out.values.add(at), *out.values.add(at + PIECE)] = bytes_of(value) };
                }
                scale
            }
        };
        let at = row * out.group_stride + group;
        // SAFETY: inside the row.
        unsafe {
            *out.scales.add(at) = scale;
            *out.sums.add(at) = sum;
            *out.scaled_sums.add(at) = scale * sum as f32;
        }
    }
}

/// The integer path. For each row and output, with `q` the codes (twice the value for fp4), `ws` the scale (half of
/// the file's for fp4), groups ascending:
/// - `isum = sum q * xq`, exact, and `acc = fma(f32(isum), ws * xs, acc)`;
/// - for affine formats `accb = fma(bias, xsum, accb)`, and the result is `acc + accb`; else it is `acc`.
///
/// # Safety
/// As [`Kernels::linear_integer`](super::Kernels::linear_integer).
pub(super) unsafe fn linear_integer(product: &Product, layout: ActivationLayout, x: QuantizedPointers) {
    let matrix = product.matrix;
    let group_size = matrix.group_size();
    for row in product.rows.clone() {
        for output in product.outputs.clone() {
            let (mut acc, mut acc_bias) = (0f32, 0f32);
            for group in 0..matrix.groups() {
                let mut isum = 0i32;
                for index in 0..group_size {
                    let at = x.value_at(row, group * group_size) + layout.place(index);
                    // SAFETY: quantized values of this row.
                    let [high, low] = unsafe { [*x.values.add(at), *x.values.add(at + PIECE)] }.map(i32::from);
                    isum += integer(matrix, output, group * group_size + index) * (128 * high + low);
                }
                let at = row * x.group_stride + group;
                // SAFETY: groups of this row.
                let (scale, scaled_sum) = unsafe { (*x.scales.add(at), *x.scaled_sums.add(at)) };
                acc = (isum as f32).mul_add(matrix.scale(output, group) * scale, acc);
                if matrix.has_biases {
                    acc_bias = matrix.bias(output, group).mul_add(scaled_sum, acc_bias);
                }
            }
            let result = if matrix.has_biases { acc + acc_bias } else { acc };
            // SAFETY: the caller's contract for `out`.
            unsafe { *product.out.start.add(row * product.out.stride + output) = result };
        }
    }
}

/// The exact path: `acc[k mod 16] = fma(w[k], x[k], acc[k mod 16])`, `k` ascending, then lanes are summed
/// `l + 8`, `l + 4`, `l + 2`, `l + 1`. Affine weights are `scale * q + bias`, product and sum each rounded.
///
/// # Safety
/// As [`Kernels::linear_f32`](super::Kernels::linear_f32).
pub(super) unsafe fn linear_f32(product: &Product, x: InputRows) {
    let matrix = product.matrix;
    for row in product.rows.clone() {
        for output in product.outputs.clone() {
            let mut acc = [0f32; 16];
            for k in 0..matrix.columns() {
                // SAFETY: the caller's contract for `x`.
                let x = unsafe { *x.start.add(row * x.stride + k) };
                acc[k % 16] = weight(matrix, output, k).mul_add(x, acc[k % 16]);
            }
            for half in [8, 4, 2, 1] {
                for lane in 0..half {
                    acc[lane] += acc[lane + half];
                }
            }
            // SAFETY: the caller's contract for `out`.
            unsafe { *product.out.start.add(row * product.out.stride + output) = acc[0] };
        }
    }
}

/// A weight as the integer path multiplies with it.
fn integer(matrix: &Matrix, row: usize, column: usize) -> i32 {
    let code = code(matrix, row, column);
    if matrix.packing == Packing::Fp4 { i32::from(FP4_TWICE[code as usize]) } else { code as i32 }
}

/// A weight's value.
pub(super) fn weight(matrix: &Matrix, row: usize, column: usize) -> f32 {
    let group = column / matrix.group_size();
    let bytes = matrix.weight_bytes();
    let float16 = || {
        let at = row * matrix.row_bytes + 2 * column;
        u16::from_le_bytes([bytes[at], bytes[at + 1]])
    };
    match matrix.packing {
        Packing::F32 => {
            let at = row * matrix.row_bytes + 4 * column;
            f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        }
        Packing::F16 => half::f16::from_bits(float16()).to_f32(),
        Packing::Bf16 => f32::from_bits(u32::from(float16()) << 16),
        Packing::Affine(_) => {
            let scaled = matrix.scale(row, group) * code(matrix, row, column) as f32;
            scaled + matrix.bias(row, group)
        }
        Packing::Fp4 => integer(matrix, row, column) as f32 * matrix.scale(row, group),
        Packing::Fp8 => e4m3_to_f32(code(matrix, row, column) as u8) * matrix.scale(row, group),
    }
}

/// The packed code of a weight.
fn code(matrix: &Matrix, row: usize, column: usize) -> u32 {
    let bits = matrix.packing.bits();
    let bytes = &matrix.weight_bytes()[row * matrix.row_bytes..][..matrix.row_bytes];
    let (byte, shift) = (column * bits / 8, column * bits % 8);
    let two = u32::from(bytes[byte]) | u32::from(*bytes.get(byte + 1).unwrap_or(&0)) << 8;
    two >> shift & ((1 << bits) - 1)
}
