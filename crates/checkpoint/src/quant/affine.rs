//! The affine formats: integers with a scale and a bias a group.
//!
//! The group's edge, its value of largest magnitude, is met exactly: the scale is bent so that the
//! edge is a whole number of steps away from zero, and zero is then a code of its own. The scale is
//! negative where the edge is the maximum.

use super::PackedRows;
use super::pack::{pack, unpack};
use crate::dtype::{DType, encode_floats};

/// The smallest step; a group of equal values would else divide by zero.
const SMALLEST_SCALE: f32 = 1e-7;

/// The largest group of the affine formats.
const LARGEST_GROUP: usize = 128;

/// `out = scale * q + bias` of one group.
pub(super) fn dequantize_group(bits: u8, packed: &[u8], scale: f32, bias: f32, out: &mut [f32]) {
    let mut codes = [0; LARGEST_GROUP];
    let codes = &mut codes[..out.len()];
    unpack(bits, packed, codes);
    for (value, code) in out.iter_mut().zip(codes.iter()) {
        *value = scale * f32::from(*code) + bias;
    }
}

/// Whole groups of finite values.
pub(super) fn quantize(bits: u8, group_size: usize, values: &[f32], scale_dtype: DType) -> PackedRows {
    let groups = values.len() / group_size;
    let mut weight = Vec::with_capacity(values.len() / 8 * usize::from(bits));
    let (mut scales, mut biases) = (Vec::with_capacity(groups), Vec::with_capacity(groups));
    let mut codes = [0; LARGEST_GROUP];
    for group in values.chunks_exact(group_size) {
        let codes = &mut codes[..group_size];
        let (scale, bias) = quantize_group(bits, group, codes);
        pack(bits, codes, &mut weight);
        scales.push(scale);
        biases.push(bias);
    }
    let encoded = |values: &[f32]| {
        let mut bytes = Vec::new();
        encode_floats(scale_dtype, values, &mut bytes);
        bytes
    };
    PackedRows { weight, scales: encoded(&scales), biases: Some(encoded(&biases)) }
}

/// Codes, scale and bias of one group. The codes are found with the scale before it is rounded to
/// the type that it is stored in.
fn quantize_group(bits: u8, group: &[f32], codes: &mut [u8]) -> (f32, f32) {
    let highest_code = ((1u32 << bits) - 1) as f32;
    let (min, max) = group.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(min, max), value| {
        (if *value < min { *value } else { min }, if *value > max { *value } else { max })
    });
    let min_is_edge = min.abs() > max.abs();
    let step = ((max - min) / highest_code).max(SMALLEST_SCALE);
    let mut scale = if min_is_edge { step } else { -step };
    let edge = if min_is_edge { min } else { max };
    let steps_to_zero = (edge / scale).round_ties_even();
    let mut bias = 0.0;
    if steps_to_zero != 0.0 {
        scale = edge / steps_to_zero;
        bias = edge;
    }
    for (code, value) in codes.iter_mut().zip(group) {
        *code = ((value - bias) / scale).round_ties_even().clamp(0.0, highest_code) as u8;
    }
    (scale, bias)
}
