//! The quantized formats of MLX: what their bytes mean, and how floats become such bytes.
//!
//! A row of a matrix is cut into groups of [`QuantFormat::group_size`] columns. Each group has one
//! scale (and, in the affine formats, one bias); its values are packed little-endian, so that every
//! group fills whole 32-bit words and rows can be handled in runs. Nothing here reads past a row:
//! these functions are the meaning that fast kernels are held against.

mod affine;
mod format;
mod micro;
mod pack;

use crate::dtype::{DType, decode_floats};

pub use format::{FormatError, QuantFormat};
pub use micro::{e2m1_to_f32, e4m3_to_f32, e8m0_to_f32, f32_to_e2m1, f32_to_e4m3, f32_to_e8m0_up};
pub use pack::{pack, unpack};

/// Rows in packed form, as [`quantize`] makes them and a checkpoint stores them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedRows {
    /// Packed values; `weight` of type U32, little-endian.
    pub weight: Vec<u8>,
    /// One scale a group: of the float type asked for, or a byte (U8) in the micro formats.
    pub scales: Vec<u8>,
    /// One bias a group, in the affine formats alone; of the scales' type.
    pub biases: Option<Vec<u8>>,
}

/// Unpacks whole groups (one row, or a run of rows) to f32.
///
/// Affine: `out = scale * q + bias`, product and sum each rounded to f32. The micro formats:
/// `out = scale * element`, which is exact.
///
/// `weight`: packed, [`QuantFormat::bytes_per_row`] a row; `scales` and `biases`: one of
/// `scale_dtype` a group (F32, F16 or BF16 in affine, U8 in the micro formats, which have no
/// biases). Panics unless these lengths and types agree with `out`: tensors are proved before.
pub fn dequantize(
    format: QuantFormat,
    weight: &[u8],
    scales: &[u8],
    scale_dtype: DType,
    biases: Option<&[u8]>,
    out: &mut [f32],
) {
    let group_size = format.group_size();
    assert!(out.len().is_multiple_of(group_size), "whole groups");
    let groups = out.len() / group_size;
    let group_bytes = format.bytes_per_row(group_size);
    assert_eq!(weight.len(), groups * group_bytes, "packed bytes of {groups} groups of {format}");
    assert_eq!(scales.len(), groups * scale_dtype.bytes(), "scales of {groups} groups of {format}");
    match format {
        QuantFormat::Affine { bits, .. } => {
            let biases = biases.expect("affine formats have biases");
            assert_eq!(biases.len(), scales.len(), "a bias for each scale");
            let (mut scale, mut bias) = ([0.0], [0.0]);
            let size = scale_dtype.bytes();
            for (group, out) in out.chunks_exact_mut(group_size).enumerate() {
                decode_floats(scale_dtype, &scales[group * size..][..size], &mut scale);
                decode_floats(scale_dtype, &biases[group * size..][..size], &mut bias);
                affine::dequantize_group(bits, &weight[group * group_bytes..][..group_bytes], scale[0], bias[0], out);
            }
        }
        QuantFormat::Mxfp4 | QuantFormat::Mxfp8 | QuantFormat::Nvfp4 => {
            assert_eq!(scale_dtype, DType::U8, "scales of {format} are bytes");
            assert!(biases.is_none(), "{format} has no biases");
            for (group, out) in out.chunks_exact_mut(group_size).enumerate() {
                let scale = micro::scale_to_f32(format, scales[group]);
                micro::dequantize_group(format, &weight[group * group_bytes..][..group_bytes], scale, out);
            }
        }
    }
}

/// A value that cannot be quantized: it is not finite.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("value {index} is {value}; only finite numbers can be quantized")]
pub struct NotFinite {
    /// Its place among the values given.
    pub index: usize,
    /// NaN or an infinity.
    pub value: f32,
}

/// Packs whole groups (one row, or a run of rows) by the rule of `mlx.core.quantize` on the CPU.
///
/// `scale_dtype`, F32, F16 or BF16, is the type of the array that mlx would be given: affine scales
/// and biases are stored in it, and the scales of the micro formats pass through it. Values that are
/// exact in that type then give mlx's bytes. Panics if `values` are not whole groups or
/// `scale_dtype` is another type.
pub fn quantize(format: QuantFormat, values: &[f32], scale_dtype: DType) -> Result<PackedRows, NotFinite> {
    let group_size = format.group_size();
    assert!(values.len().is_multiple_of(group_size), "whole groups of {group_size} in {} values", values.len());
    assert!(scale_dtype.is_float_weight(), "scales are F32, F16 or BF16, not {scale_dtype}");
    if let Some(index) = values.iter().position(|value| !value.is_finite()) {
        return Err(NotFinite { index, value: values[index] });
    }
    Ok(match format {
        QuantFormat::Affine { bits, .. } => affine::quantize(bits, group_size, values, scale_dtype),
        QuantFormat::Mxfp4 | QuantFormat::Mxfp8 | QuantFormat::Nvfp4 => micro::quantize(format, values, scale_dtype),
    })
}
