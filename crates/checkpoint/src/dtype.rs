//! Element types of tensors, and the three float types that weights come in as f32 and back.

use std::fmt;

use half::{bf16, f16};

/// The type of a tensor's elements, as a safetensors header names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // The names say it all.
pub enum DType {
    F32,
    F16,
    BF16,
    F8E4M3,
    F8E5M2,
    F64,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    Bool,
}

/// Each type with its name in a header and its size in bytes.
const TABLE: [(DType, &str, usize); 15] = [
    (DType::F32, "F32", 4),
    (DType::F16, "F16", 2),
    (DType::BF16, "BF16", 2),
    (DType::F8E4M3, "F8_E4M3", 1),
    (DType::F8E5M2, "F8_E5M2", 1),
    (DType::F64, "F64", 8),
    (DType::U8, "U8", 1),
    (DType::I8, "I8", 1),
    (DType::U16, "U16", 2),
    (DType::I16, "I16", 2),
    (DType::U32, "U32", 4),
    (DType::I32, "I32", 4),
    (DType::U64, "U64", 8),
    (DType::I64, "I64", 8),
    (DType::Bool, "BOOL", 1),
];

impl DType {
    /// The type that a header calls `name`, if it is one of ours.
    pub fn from_name(name: &str) -> Option<DType> {
        TABLE.iter().find(|entry| entry.1 == name).map(|entry| entry.0)
    }

    /// The name in a safetensors header, such as `BF16`.
    pub fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        TABLE[self as usize].2
    }

    /// Whether weights and scales may have this type: F32, F16 or BF16.
    pub fn is_float_weight(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reads little-endian F32, F16 or BF16 elements; exact, as f32 holds every value of the three.
///
/// Panics if `dtype` is another type or `bytes` is not `out.len()` elements long: tensors are
/// proved before their elements are read.
pub fn decode_floats(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), out.len() * dtype.bytes(), "as many elements as places for them");
    match dtype {
        DType::F32 => {
            for (value, raw) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*raw);
            }
        }
        DType::F16 => {
            for (value, raw) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = f16::from_le_bytes(*raw).to_f32();
            }
        }
        DType::BF16 => {
            for (value, raw) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = f32::from_bits(u32::from(u16::from_le_bytes(*raw)) << 16);
            }
        }
        other => panic!("{other} is not a float type of weights"),
    }
}

/// Appends `values` to `out` as little-endian F32, F16 or BF16, rounded to nearest even.
///
/// Panics if `dtype` is another type.
pub fn encode_floats(dtype: DType, values: &[f32], out: &mut Vec<u8>) {
    out.reserve(values.len() * dtype.bytes());
    match dtype {
        DType::F32 => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        DType::F16 => out.extend(values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes())),
        DType::BF16 => out.extend(values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes())),
        other => panic!("{other} is not a float type of weights"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_the_order_of_the_enum() {
        for (index, entry) in TABLE.iter().enumerate() {
            assert_eq!(entry.0 as usize, index, "{}", entry.1);
            assert_eq!(DType::from_name(entry.1), Some(entry.0));
            assert_eq!(entry.0.to_string(), entry.1);
        }
        assert_eq!(DType::from_name("F8_E8M0"), None);
    }

    #[test]
    fn every_half_and_bfloat_comes_back_as_it_was() {
        for dtype in [DType::F16, DType::BF16] {
            let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
            let mut values = vec![0.0; 1 << 16];
            decode_floats(dtype, &bytes, &mut values);
            let mut back = Vec::new();
            encode_floats(dtype, &values, &mut back);
            for (index, value) in values.iter().enumerate() {
                if !value.is_nan() {
                    assert_eq!(back[2 * index..2 * index + 2], bytes[2 * index..2 * index + 2], "{dtype} {index:#x}");
                }
            }
        }
    }

    #[test]
    fn bfloat_rounds_to_nearest_even() {
        let mut bytes = Vec::new();
        // Halfway between 0x3f80 and 0x3f81, between 0x3f81 and 0x3f82, and just above the first.
        let values = [0x3f80_8000, 0x3f81_8000, 0x3f80_8001].map(f32::from_bits);
        encode_floats(DType::BF16, &values, &mut bytes);
        assert_eq!(bytes, [0x80, 0x3f, 0x82, 0x3f, 0x81, 0x3f]);
    }
}
