//! The quantized formats against what mlx makes of the same values (`make_quant_goldens.py`).

use std::collections::BTreeMap;

use markbase_checkpoint::quant::{self, NotFinite};
use markbase_checkpoint::{DType, QuantFormat, decode_floats, dequantize, quantize};
use proptest::prelude::*;
use safetensors::SafeTensors;

const GOLDENS: &[u8] = include_bytes!("data/quant.safetensors");
const DTYPES: [(&str, DType); 3] = [("f32", DType::F32), ("bf16", DType::BF16), ("f16", DType::F16)];

struct Goldens(BTreeMap<String, Vec<u8>>);

impl Goldens {
    fn read() -> Goldens {
        let tensors = SafeTensors::deserialize(GOLDENS).unwrap().tensors();
        Goldens(tensors.into_iter().map(|(name, view)| (name, view.data().to_vec())).collect())
    }

    fn bytes(&self, name: &str) -> &[u8] {
        self.0.get(name).unwrap_or_else(|| panic!("golden {name}"))
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let bytes = self.bytes(name);
        let mut out = vec![0.0; bytes.len() / 4];
        decode_floats(DType::F32, bytes, &mut out);
        out
    }
}

fn formats() -> Vec<QuantFormat> {
    let mut formats = vec![QuantFormat::Mxfp4, QuantFormat::Mxfp8, QuantFormat::Nvfp4];
    for bits in [2, 3, 4, 5, 6, 8] {
        for group_size in [32, 64, 128] {
            formats.push(QuantFormat::affine(bits, group_size).unwrap());
        }
    }
    formats
}

/// The name that `QuantFormat` parses from, by which goldens are filed.
fn name_of(format: QuantFormat) -> String {
    match format {
        QuantFormat::Affine { bits, group_size } => format!("affine:{bits}:{group_size}"),
        other => other.to_string(),
    }
}

fn scale_dtype(format: QuantFormat, dtype: DType) -> DType {
    if format.has_biases() { dtype } else { DType::U8 }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn dequantize_equals_mlx_bit_for_bit() {
    let goldens = Goldens::read();
    for format in formats() {
        for (dtype_name, dtype) in &DTYPES[..2] {
            let key = format!("{}.{dtype_name}", name_of(format));
            let want = goldens.floats(&format!("{key}.dequantized"));
            let biases = format.has_biases().then(|| goldens.bytes(&format!("{key}.biases")));
            let (weight, scales) = (goldens.bytes(&format!("{key}.weight")), goldens.bytes(&format!("{key}.scales")));
            let mut got = vec![f32::NAN; want.len()];
            dequantize(format, weight, scales, scale_dtype(format, *dtype), biases, &mut got);
            assert_eq!(bits(&got), bits(&want), "{key}");
        }
    }
}

#[test]
fn quantize_gives_the_bytes_of_mlx() {
    let goldens = Goldens::read();
    for format in formats() {
        for (dtype_name, dtype) in DTYPES {
            let key = format!("{}.{dtype_name}", name_of(format));
            let packed = quantize(format, &goldens.floats(&format!("source.{dtype_name}")), dtype).unwrap();
            assert_eq!(packed.scales, goldens.bytes(&format!("{key}.scales")), "{key} scales");
            assert_eq!(packed.biases.is_some(), format.has_biases(), "{key}");
            if let Some(biases) = packed.biases {
                assert_eq!(biases, goldens.bytes(&format!("{key}.biases")), "{key} biases");
            }
            assert_eq!(packed.weight, goldens.bytes(&format!("{key}.weight")), "{key} weight");
        }
    }
}

#[test]
fn small_floats_decode_as_mlx_has_them() {
    let goldens = Goldens::read();
    let decoded = |decode: fn(u8) -> f32, count: u16| (0..count).map(|code| decode(code as u8)).collect::<Vec<_>>();
    assert_eq!(bits(&decoded(quant::e2m1_to_f32, 16)), bits(&goldens.floats("e2m1")));
    assert_eq!(bits(&decoded(quant::e8m0_to_f32, 256)), bits(&goldens.floats("e8m0")));
    for (code, (got, want)) in decoded(quant::e4m3_to_f32, 256).iter().zip(goldens.floats("e4m3")).enumerate() {
        // A NaN has no sign that means anything.
        assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{code:#x}: {got} {want}");
    }
}

#[test]
fn floats_round_to_eight_bits_as_mlx_has_them() {
    let goldens = Goldens::read();
    let codes = goldens.bytes("to_e4m3.codes");
    for (value, want) in goldens.floats("to_e4m3.values").into_iter().zip(codes) {
        assert_eq!(quant::f32_to_e4m3(value), *want, "{value}");
        assert_eq!(quant::f32_to_e4m3(-value), *want | 0x80, "-{value}");
    }
}

#[test]
fn each_small_float_rounds_to_itself() {
    for code in 0..16 {
        let want = if code == 8 { 0 } else { code }; // no negative zero
        assert_eq!(quant::f32_to_e2m1(quant::e2m1_to_f32(code)), want);
    }
    for code in (0..=255).filter(|code| code & 0x7f != 0x7f) {
        assert_eq!(quant::f32_to_e4m3(quant::e4m3_to_f32(code)), code);
    }
    for code in 0..255 {
        let power = quant::e8m0_to_f32(code);
        assert_eq!(quant::f32_to_e8m0_up(power), code);
        assert_eq!(quant::f32_to_e8m0_up(power * 1.25), (code + 1).min(254), "{code}");
    }
}

#[test]
fn values_that_are_not_finite_are_refused_with_their_place() {
    for format in formats() {
        let mut values = vec![0.5; format.group_size() * 2];
        values[format.group_size() + 1] = f32::INFINITY;
        let index = format.group_size() + 1;
        assert_eq!(quantize(format, &values, DType::F32), Err(NotFinite { index, value: f32::INFINITY }));
    }
}

/// Rows of ordinary, tiny, huge and equal values.
fn rows(format: QuantFormat) -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![
        8 => -1.0f32..1.0,
        1 => Just(0.0f32),
        1 => -2e3f32..2e3, // nvfp4 ends at 448 * 6
        1 => -1e-6f32..1e-6,
    ];
    prop::collection::vec(value, format.group_size() * 2)
}

fn unpacked(format: QuantFormat, packed: &markbase_checkpoint::PackedRows, cols: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; cols];
    let dtype = scale_dtype(format, DType::F32);
    dequantize(format, &packed.weight, &packed.scales, dtype, packed.biases.as_deref(), &mut out);
    out
}

proptest! {
    /// The error of a value is at most half a step, whatever the group; the bent scale of the affine
    /// formats can push the far end out by as much as one more step.
    #[test]
    fn quantized_values_are_near(
        (format, values) in prop::sample::select(formats()).prop_flat_map(|format| (Just(format), rows(format)))
    ) {
        let packed = quantize(format, &values, DType::F32).unwrap();
        prop_assert_eq!(packed.weight.len(), format.bytes_per_row(values.len()));
        let back = unpacked(format, &packed, values.len());
        for (group, back) in values.chunks(format.group_size()).zip(back.chunks(format.group_size())) {
            let min = group.iter().copied().fold(f32::INFINITY, f32::min);
            let max = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let largest = min.abs().max(max.abs());
            let bound = match format {
                QuantFormat::Affine { bits, .. } => {
                    1.6 * ((max - min) / ((1u32 << bits) - 1) as f32).max(1e-7) + largest * 1e-5
                }
                // Half the widest step (2 of 6, 32 of 448) of a scale that is up to twice too large;
                // nvfp4's scale is itself rounded, and vanishes below 2^-10.
                QuantFormat::Mxfp4 => largest / 3.0,
                QuantFormat::Mxfp8 => largest / 14.0,
                QuantFormat::Nvfp4 => largest / 4.0 + 6.0 / 1024.0,
            };
            for (value, back) in group.iter().zip(back) {
                prop_assert!((value - back).abs() <= bound, "{format}: {value} came back as {back}, group to {largest}");
            }
        }
    }

    /// Rows are independent: a run of rows is the rows one by one.
    #[test]
    fn a_run_of_rows_is_its_rows(
        (format, values) in prop::sample::select(formats()).prop_flat_map(|format| (Just(format), rows(format)))
    ) {
        let whole = quantize(format, &values, DType::BF16).unwrap();
        let mut weight = Vec::new();
        let mut scales = Vec::new();
        for group in values.chunks(format.group_size()) {
            let packed = quantize(format, group, DType::BF16).unwrap();
            weight.extend(packed.weight);
            scales.extend(packed.scales);
        }
        prop_assert_eq!(whole.weight, weight);
        prop_assert_eq!(whole.scales, scales);
    }
}
