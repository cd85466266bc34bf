//! The names and sizes of the quantized formats.

use std::fmt;
use std::str::FromStr;

/// How a matrix's values are packed. Prints as `q4 g64`, `mxfp4`, `mxfp8` or `nvfp4`; parses from
/// `affine:4:64` (bits, group size) and the other three names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuantFormat {
    /// `scale * q + bias` with integers of 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128;
    /// make it with [`QuantFormat::affine`], which proves both.
    Affine {
        /// Bits of one value.
        bits: u8,
        /// Columns that share a scale and a bias.
        group_size: u32,
    },
    /// 4-bit floats (E2M1) in groups of 32 with a power of two (E8M0) as scale.
    Mxfp4,
    /// 8-bit floats (E4M3) in groups of 32 with a power of two (E8M0) as scale.
    Mxfp8,
    /// 4-bit floats (E2M1) in groups of 16 with an 8-bit float (E4M3) as scale.
    Nvfp4,
}

/// A format that does not exist or is not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FormatError(pub(crate) String);

/// What is read, for errors.
const AFFINE_SIZES: &str = "affine has 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128";

impl QuantFormat {
    /// The affine format of these sizes, if it is read.
    pub fn affine(bits: u64, group_size: u64) -> Result<QuantFormat, FormatError> {
        match (bits, group_size) {
            (2..=6 | 8, 32 | 64 | 128) => Ok(QuantFormat::Affine { bits: bits as u8, group_size: group_size as u32 }),
            _ => Err(FormatError(format!(
                "affine quantization of {bits} bits in groups of {group_size} is not read; {AFFINE_SIZES}"
            ))),
        }
    }

    /// Bits of one packed value.
    pub fn bits(self) -> usize {
        match self {
            QuantFormat::Affine { bits, .. } => bits.into(),
            QuantFormat::Mxfp4 | QuantFormat::Nvfp4 => 4,
            QuantFormat::Mxfp8 => 8,
        }
    }

    /// Columns that share a scale.
    pub fn group_size(self) -> usize {
        match self {
            QuantFormat::Affine { group_size, .. } => group_size as usize,
            QuantFormat::Mxfp4 | QuantFormat::Mxfp8 => 32,
            QuantFormat::Nvfp4 => 16,
        }
    }

    /// The mode's name in `config.json`: `affine`, `mxfp4`, `mxfp8` or `nvfp4`.
    pub fn mode(self) -> &'static str {
        match self {
            QuantFormat::Affine { .. } => "affine",
            QuantFormat::Mxfp4 => "mxfp4",
            QuantFormat::Mxfp8 => "mxfp8",
            QuantFormat::Nvfp4 => "nvfp4",
        }
    }

    /// Whether each group has a bias beside its scale.
    pub fn has_biases(self) -> bool {
        matches!(self, QuantFormat::Affine { .. })
    }

    /// Bytes of `cols` packed values. Panics unless they are whole groups.
    pub fn bytes_per_row(self, cols: usize) -> usize {
        self.scales_per_row(cols) * (self.group_size() * self.bits() / 8)
    }

    /// Groups, and so scales, of `cols` columns. Panics unless they are whole groups.
    pub fn scales_per_row(self, cols: usize) -> usize {
        assert!(cols.is_multiple_of(self.group_size()), "{cols} columns in whole groups of {self}");
        cols / self.group_size()
    }
}

impl fmt::Display for QuantFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QuantFormat::Affine { bits, group_size } => write!(f, "q{bits} g{group_size}"),
            other => f.write_str(other.mode()),
        }
    }
}

impl FromStr for QuantFormat {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<QuantFormat, FormatError> {
        let unknown = || {
            FormatError(format!(
                "{text:?} is no format; say affine:BITS:GROUP (such as affine:4:64), mxfp4, mxfp8 or nvfp4"
            ))
        };
        match text {
            "mxfp4" => Ok(QuantFormat::Mxfp4),
            "mxfp8" => Ok(QuantFormat::Mxfp8),
            "nvfp4" => Ok(QuantFormat::Nvfp4),
            _ => {
                let sizes = text.strip_prefix("affine:").and_then(|sizes| sizes.split_once(':'));
                let (bits, group_size) = sizes.ok_or_else(unknown)?;
                let number = |digits: &str| digits.parse::<u64>().map_err(|_| unknown());
                QuantFormat::affine(number(bits)?, number(group_size)?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_print_and_parse() {
        let q4 = "affine:4:64".parse::<QuantFormat>().unwrap();
        assert_eq!(q4, QuantFormat::Affine { bits: 4, group_size: 64 });
        assert_eq!(q4.to_string(), "q4 g64");
        for format in [QuantFormat::Mxfp4, QuantFormat::Mxfp8, QuantFormat::Nvfp4] {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        let wrong = [
            "",
            "q4",
            "affine",
            "affine:4",
            "affine:4:",
            "affine:4:64:1",
            "affine:-4:64",
            "MXFP4",
            "affine:1:64",
            "affine:7:64",
            "affine:4:16",
        ];
        for text in wrong {
            let error = text.parse::<QuantFormat>().expect_err(text).to_string();
            assert!(error.contains("affine"), "{text}: {error}");
        }
    }

    #[test]
    fn rows_are_as_long_as_their_bits() {
        assert_eq!(QuantFormat::affine(3, 32).unwrap().bytes_per_row(64), 24);
        assert_eq!(QuantFormat::Nvfp4.bytes_per_row(48), 24);
        assert_eq!(QuantFormat::Nvfp4.scales_per_row(48), 3);
    }
}
