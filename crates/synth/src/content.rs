//! What stands in a tensor: numbers drawn by their place, straight in the form in which the file
//! keeps them. Nothing is drawn as floats first and quantized, so that writing is as fast as the
//! disk.

use std::sync::LazyLock;

use checkpoint::QuantFormat;
use checkpoint::quant::{e2m1_to_f32, e4m3_to_f32, e8m0_to_f32, f32_to_e4m3};

use crate::random::{NEAR_NORMAL_DEVIATION, Stream, near_normal};

/// The rule by which a tensor's bytes are drawn.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// BF16, nearly normal about 0.
    Normal { deviation: f32 },
    /// BF16, evenly spread.
    Uniform { low: f32, high: f32 },
    /// Packed values of any width, or of E2M1: every bit is as likely as not.
    Codes,
    /// Packed E4M3, nearly normal, [`E4M3_DEVIATION`] wide; no NaN.
    E4m3Codes,
    /// BF16 scales of affine groups, of either sign, within a quarter of `scale`.
    AffineScales { scale: f32 },
    /// BF16 biases that put the middle of the codes within half a step of 0. `scales` is the stream
    /// that the group's scale is drawn from.
    AffineBiases { scale: f32, highest_code: f32, scales: Stream },
    /// Scale bytes: `low`, and the byte above it in the given share of 2^32.
    TwoScales { low: u8, share_above: u32 },
}

/// Deviation of the values that [`Content::E4m3Codes`] stands for, before the scale.
const E4M3_DEVIATION: f32 = E4M3_STEP * 9.2195; // sqrt(4 * (16² - 1) / 12)
/// So that the farthest value, 30 steps away, is below the largest of E4M3, 448.
const E4M3_STEP: f32 = 14.0;

/// The E4M3 code of each 16 random bits: the sum of their four nibbles about its mean.
static E4M3_CODES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let code = |bits: u32| {
        let sum = (0..4).map(|nibble| bits >> (4 * nibble) & 15).sum::<u32>();
        f32_to_e4m3((sum as f32 - 30.0) * E4M3_STEP)
    };
    (0..1 << 16).map(code).collect()
});

/// Contents of the tensors of one quantized matrix.
pub(crate) struct Quantized {
    pub weight: Content,
    pub scales: Content,
    /// In the affine formats alone.
    pub biases: Option<Content>,
}

/// A matrix of this deviation in this format; `scales` is the stream of its scales.
pub(crate) fn quantized(format: QuantFormat, deviation: f32, scales: Stream) -> Quantized {
    match format {
        QuantFormat::Affine { bits, .. } => {
            let codes = f32::from(1u16 << bits);
            // A code is evenly spread over `codes` steps: a variance of (codes² - 1) / 12. The bias
            // moves it by up to half a step (1 / 12); scales spread by a quarter (1 + 1 / 48).
            let scale = deviation / (codes / 12f32.sqrt() * (1.0 + 1.0 / 48f32).sqrt());
            Quantized {
                weight: Content::Codes,
                scales: Content::AffineScales { scale },
                biases: Some(Content::AffineBiases { scale, highest_code: codes - 1.0, scales }),
            }
        }
        QuantFormat::Mxfp4 => micro(Content::Codes, e2m1_deviation(), deviation, e8m0_to_f32, 253),
        QuantFormat::Mxfp8 => micro(Content::E4m3Codes, E4M3_DEVIATION, deviation, e8m0_to_f32, 253),
        // 0x7f is NaN and 0x7e the last number.
        QuantFormat::Nvfp4 => micro(Content::Codes, e2m1_deviation(), deviation, e4m3_to_f32, 0x7d),
    }
}

fn e2m1_deviation() -> f32 {
    ((0..16).map(|code| e2m1_to_f32(code).powi(2)).sum::<f32>() / 16.0).sqrt()
}

/// Scales between two neighbours, in shares that make the mean square right.
fn micro(weight: Content, element: f32, deviation: f32, scale_of: fn(u8) -> f32, highest_low: u8) -> Quantized {
    let wanted = deviation / element;
    let low = (0..=highest_low).rev().find(|code| scale_of(*code) <= wanted).unwrap_or(0);
    let (below, above) = (scale_of(low).powi(2), scale_of(low + 1).powi(2));
    let share = ((wanted * wanted - below) / (above - below)).clamp(0.0, 1.0);
    let scales = Content::TwoScales { low, share_above: (f64::from(share) * f64::from(u32::MAX)) as u32 };
    Quantized { weight, scales, biases: None }
}

/// Bytes are drawn from whole words of a stream, so that a piece may begin at any multiple of this.
pub(crate) const PIECE_STEP_BYTES: usize = 64;

impl Content {
    /// Fills `out` with the bytes from `first_byte` on, a multiple of [`PIECE_STEP_BYTES`].
    pub fn fill(&self, stream: Stream, first_byte: u64, out: &mut [u8]) {
        assert!(first_byte.is_multiple_of(PIECE_STEP_BYTES as u64), "pieces begin at whole words");
        match *self {
            Content::Codes => drawn::<8>(stream, first_byte, out, u64::to_le_bytes),
            Content::E4m3Codes => {
                let codes = E4M3_CODES.as_slice();
                let code = |bits: u64| codes[(bits & 0xffff) as usize];
                drawn::<4>(stream, first_byte, out, |word| {
                    [code(word), code(word >> 16), code(word >> 32), code(word >> 48)]
                });
            }
            Content::TwoScales { low, share_above } => {
                for (byte, index) in out.iter_mut().zip(first_byte..) {
                    *byte = low + u8::from(stream.half(index) < share_above);
                }
            }
            Content::Normal { deviation } => {
                let step = deviation / NEAR_NORMAL_DEVIATION;
                drawn::<4>(stream, first_byte, out, |word| {
                    let [a, b] = bf16(near_normal(word as u32) * step).to_le_bytes();
                    let [c, d] = bf16(near_normal((word >> 32) as u32) * step).to_le_bytes();
                    [a, b, c, d]
                });
            }
            Content::Uniform { low, high } => {
                floats(first_byte, out, |index| low + (high - low) * stream.unit(index));
            }
            Content::AffineScales { scale } => floats(first_byte, out, |index| affine_scale(scale, stream, index)),
            Content::AffineBiases { scale, highest_code, scales } => floats(first_byte, out, |index| {
                // Of the scale as it is stored.
                let scale = f32::from_bits(u32::from(bf16(affine_scale(scale, scales, index))) << 16);
                -scale * (highest_code / 2.0 + stream.unit(index) - 0.5)
            }),
        }
    }
}

/// Groups whose farthest value is the largest have a negative scale in mlx's files: half of them.
fn affine_scale(scale: f32, stream: Stream, index: u64) -> f32 {
    let bits = stream.half(index);
    let size = scale * (0.75 + 0.5 * (bits >> 8) as f32 / (1 << 24) as f32);
    if bits & 1 == 0 { size } else { -size }
}

/// `N` bytes of each word.
fn drawn<const N: usize>(stream: Stream, first_byte: u64, out: &mut [u8], bytes: impl Fn(u64) -> [u8; N]) {
    let first = first_byte / N as u64;
    let (whole, rest) = out.as_chunks_mut::<N>();
    let last = bytes(stream.word(first + whole.len() as u64));
    for (bytes_of_word, index) in whole.iter_mut().zip(first..) {
        *bytes_of_word = bytes(stream.word(index));
    }
    let rest_bytes = rest.len();
    rest.copy_from_slice(&last[..rest_bytes]);
}

fn floats(first_byte: u64, out: &mut [u8], value: impl Fn(u64) -> f32) {
    for (element, index) in out.as_chunks_mut::<2>().0.iter_mut().zip(first_byte / 2..) {
        *element = bf16(value(index)).to_le_bytes();
    }
}

/// Rounds a finite number to the nearest BF16, to even where two are as near.
fn bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn every_content() -> Vec<Content> {
        let scales = Stream::new(1, "scales");
        vec![
            Content::Normal { deviation: 0.1 },
            Content::Uniform { low: 0.5, high: 1.5 },
            Content::Codes,
            Content::E4m3Codes,
            Content::AffineScales { scale: 0.01 },
            Content::AffineBiases { scale: 0.01, highest_code: 15.0, scales },
            Content::TwoScales { low: 3, share_above: 1 << 31 },
        ]
    }

    proptest! {
        #[test]
        fn bytes_do_not_depend_on_the_pieces_they_are_drawn_in(
            elements in 1usize..600, cuts in prop::collection::vec(0usize..20, 0..6), seed: u64,
        ) {
            let stream = Stream::new(seed, "t");
            for content in every_content() {
                let mut whole = vec![0; elements * 2];
                content.fill(stream, 0, &mut whole);
                let mut pieces = vec![0; elements * 2];
                let mut start = 0;
                for cut in &cuts {
                    let end = (start + cut * PIECE_STEP_BYTES).min(pieces.len());
                    if start.is_multiple_of(PIECE_STEP_BYTES) {
                        content.fill(stream, start as u64, &mut pieces[start..end]);
                        start = end;
                    }
                }
                if start.is_multiple_of(PIECE_STEP_BYTES) {
                    content.fill(stream, start as u64, &mut pieces[start..]);
                }
                prop_assert_eq!(&whole, &pieces, "{:?}", content);
            }
        }
    }

    #[test]
    fn no_packed_e4m3_value_and_no_scale_is_nan() {
        assert!(E4M3_CODES.iter().all(|code| code & 0x7f != 0x7f));
        for format in [QuantFormat::Mxfp4, QuantFormat::Mxfp8, QuantFormat::Nvfp4] {
            for deviation in [1e-30, 1e-3, 1.0, 1e3, 1e30] {
                let Content::TwoScales { low, .. } = quantized(format, deviation, Stream::new(0, "")).scales else {
                    panic!("{format} has scale bytes");
                };
                let last = if format == QuantFormat::Nvfp4 { 0x7e } else { 0xfe };
                assert!(low < last, "{format} {deviation}: {low}");
            }
        }
    }
}
