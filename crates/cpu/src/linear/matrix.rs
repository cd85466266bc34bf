//! A weight made ready for products. The weight's bytes stay where the file has them; only scales and
//! biases are laid anew, sixteen outputs side by side, at their own width.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use checkpoint::quant::{e4m3_to_f32, e8m0_to_f32};
use checkpoint::{DType, QuantFormat};

use super::quantized_rows::ActivationLayout;

/// Outputs that kernels work on side by side; ranges of outputs start at multiples of it.
pub const LANES: usize = 16;

/// Read-only bytes together with what keeps them alive; a clone shares both.
#[derive(Clone)]
pub struct Bytes {
    start: *const u8,
    len: usize,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the bytes are read-only for as long as the owner lives, and the owner may be shared.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// Takes bytes that nobody else holds.
    pub fn owned(bytes: Vec<u8>) -> Bytes {
        Bytes::within(Arc::new(bytes), |bytes| bytes)
    }

    /// A slice that lies inside something shared, such as a mapped file; it may start at any address.
    pub fn within<T: Any + Send + Sync>(owner: Arc<T>, slice: impl for<'a> FnOnce(&'a T) -> &'a [u8]) -> Bytes {
        let slice = slice(&owner);
        // The owner does not move inside its Arc, and nobody gets it mutably while the Arc is held here.
        Bytes { start: slice.as_ptr(), len: slice.len(), _owner: owner }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the slice was borrowed from the owner, which this holds unmoved.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.len)
    }
}

/// Scales or biases as the file has them: `[rows, groups]`, little-endian.
#[derive(Debug, Clone, Copy)]
pub struct Parameters<'a> {
    /// F32, F16 or BF16 for affine formats, U8 for the others.
    pub dtype: DType,
    /// The elements.
    pub bytes: &'a [u8],
}

/// Why a weight cannot be made ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MatrixError {
    /// A matrix without outputs or inputs, or too large to address.
    Shape {
        /// Outputs.
        rows: usize,
        /// Inputs.
        columns: usize,
    },
    /// A tensor of the wrong length.
    Length {
        /// Which tensor: `weight`, `scales` or `biases`.
        tensor: &'static str,
        /// Bytes that shape and format ask for.
        wanted: usize,
        /// Bytes given.
        found: usize,
    },
    /// Inputs that do not fill whole groups.
    Groups {
        /// Inputs.
        columns: usize,
        /// Inputs of one group.
        group_size: u32,
    },
    /// An element type that the tensor cannot have.
    Type {
        /// Which tensor.
        tensor: &'static str,
        /// The type given.
        found: DType,
    },
    /// A format without kernels.
    Unsupported {
        /// Bits of one weight.
        bits: u8,
        /// Weights of one group.
        group_size: u32,
    },
    /// Biases missing from an affine weight, or given for another format.
    Biases {
        /// Whether the format has biases.
        wanted: bool,
    },
}

impl fmt::Display for MatrixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MatrixError::Shape { rows, columns } => {
                write!(f, "a matrix of {rows} rows and {columns} columns cannot be multiplied with")
            }
            MatrixError::Length { tensor, wanted, found } => {
                write!(f, "{tensor}: {found} bytes given, {wanted} wanted for the matrix's shape and format")
            }
            MatrixError::Groups { columns, group_size } => {
                write!(f, "{columns} columns do not fill groups of {group_size}")
            }
            MatrixError::Type { tensor, found } => {
                write!(f, "{tensor}: no kernel reads elements of type {found}")
            }
            MatrixError::Unsupported { bits, group_size } => {
                write!(f, "no kernel for {bits}-bit affine weights in groups of {group_size}")
            }
            MatrixError::Biases { wanted: true } => f.write_str("biases: missing, affine weights need them"),
            MatrixError::Biases { wanted: false } => f.write_str("biases: given for a format that has none"),
        }
    }
}

impl std::error::Error for MatrixError {}

/// How one row of weights is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    F32,
    F16,
    Bf16,
    /// Unsigned codes of 2, 3, 4, 5, 6 or 8 bits, a little-endian stream of bits.
    Affine(u8),
    /// E2M1 codes of 4 bits; twice their value is an integer.
    Fp4,
    /// E4M3 codes of 8 bits.
    Fp8,
}

impl Packing {
    pub fn bits(self) -> usize {
        match self {
            Packing::F32 => 32,
            Packing::F16 | Packing::Bf16 => 16,
            Packing::Affine(bits) => bits as usize,
            Packing::Fp4 => 4,
            Packing::Fp8 => 8,
        }
    }

    /// Codes that share one byte when every byte holds a whole number of them, else 1: those formats
    /// are spread to one code a byte first.
    pub fn planes(self) -> usize {
        match self {
            Packing::Affine(2) => 4,
            Packing::Affine(4) | Packing::Fp4 => 2,
            _ => 1,
        }
    }
}

/// Twice the value of each E2M1 code.
pub(super) const FP4_TWICE: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Scales and biases, `[row blocks][groups][scales of 16 rows, biases of 16 rows]`; rows past the end are zero.
#[derive(Debug, Clone)]
pub(super) enum ParameterBlocks {
    None,
    Bf16(Vec<u16>),
    F16(Vec<u16>),
    F32(Vec<f32>),
    E8m0(Vec<u8>),
    E4m3(Vec<u8>),
}

/// A weight `[rows, columns]`, that is outputs and inputs, of any format.
#[derive(Debug, Clone)]
pub struct Matrix {
    rows: usize,
    columns: usize,
    group_size: usize,
    weight: Bytes,
    pub(super) packing: Packing,
    pub(super) parameters: ParameterBlocks,
    pub(super) has_biases: bool,
    pub(super) row_bytes: usize,
}

impl Matrix {
    /// A dense weight of F32, F16 or BF16.
    pub fn dense(dtype: DType, rows: usize, columns: usize, weight: Bytes) -> Result<Matrix, MatrixError> {
        let packing = match dtype {
            DType::F32 => Packing::F32,
            DType::F16 => Packing::F16,
            DType::BF16 => Packing::Bf16,
            found => {
                return Err(MatrixError::Type { tensor: "weight", found });
            }
        };
        Matrix::new(packing, 1, [rows, columns], weight, ParameterBlocks::None)
    }

    /// A quantized weight. `scales` and `biases` are copied, `weight` is read where it is.
    pub fn quantized(
        format: QuantFormat,
        [rows, columns]: [usize; 2],
        weight: Bytes,
        scales: Parameters,
        biases: Option<Parameters>,
    ) -> Result<Matrix, MatrixError> {
        let (packing, group_size) = match format {
            QuantFormat::Affine { bits: bits @ (2 | 3 | 4 | 5 | 6 | 8), group_size: group_size @ (32 | 64 | 128) } => {
                (Packing::Affine(bits), group_size)
            }
            QuantFormat::Affine { bits, group_size } => {
                return Err(MatrixError::Unsupported { bits, group_size });
            }
            QuantFormat::Mxfp4 => (Packing::Fp4, 32),
            QuantFormat::Mxfp8 => (Packing::Fp8, 32),
            QuantFormat::Nvfp4 => (Packing::Fp4, 16),
        };
        let affine = matches!(packing, Packing::Affine(_));
        if biases.is_some() != affine {
            return Err(MatrixError::Biases { wanted: affine });
        }
        if !columns.is_multiple_of(group_size as usize) {
            return Err(MatrixError::Groups { columns, group_size });
        }
        let groups = columns / group_size as usize;
        for (tensor, parameters) in [("scales", Some(scales)), ("biases", biases)] {
            let Some(parameters) = parameters else {
                continue;
            };
            let fits = match parameters.dtype {
                DType::F32 | DType::F16 | DType::BF16 => affine && parameters.dtype == scales.dtype,
                DType::U8 => !affine,
                _ => false,
            };
            if !fits {
                return Err(MatrixError::Type { tensor, found: parameters.dtype });
            }
            let wanted = rows.checked_mul(groups * parameters.dtype.bytes());
            let wanted = wanted.ok_or(MatrixError::Shape { rows, columns })?;
            if parameters.bytes.len() != wanted {
                return Err(MatrixError::Length { tensor, wanted, found: parameters.bytes.len() });
            }
        }
        let tensors = [Some(scales.bytes), biases.map(|biases| biases.bytes)];
        let blocks = match (scales.dtype, format) {
            (DType::F32, _) => ParameterBlocks::F32(blocks(tensors, [rows, groups], f32::from_le_bytes)),
            (DType::F16, _) => ParameterBlocks::F16(blocks(tensors, [rows, groups], u16::from_le_bytes)),
            (DType::BF16, _) => ParameterBlocks::Bf16(blocks(tensors, [rows, groups], u16::from_le_bytes)),
            (_, QuantFormat::Nvfp4) => ParameterBlocks::E4m3(blocks(tensors, [rows, groups], u8::from_le_bytes)),
            _ => ParameterBlocks::E8m0(blocks(tensors, [rows, groups], u8::from_le_bytes)),
        };
        Matrix::new(packing, group_size as usize, [rows, columns], weight, blocks)
    }

    fn new(
        packing: Packing,
        group_size: usize,
        [rows, columns]: [usize; 2],
        weight: Bytes,
        parameters: ParameterBlocks,
    ) -> Result<Matrix, MatrixError> {
        let shape = MatrixError::Shape { rows, columns };
        let row_bits = columns.checked_mul(packing.bits()).filter(|bits| *bits > 0 && rows > 0);
        let row_bytes = row_bits.ok_or(shape.clone())? / 8; // Groups and floats fill whole bytes.
        let wanted = row_bytes.checked_mul(rows).ok_or(shape)?;
        let found = weight.as_slice().len();
        if found != wanted {
            return Err(MatrixError::Length { tensor: "weight", wanted, found });
        }
        let has_biases = matches!(packing, Packing::Affine(_));
        Ok(Matrix { rows, columns, group_size, weight, packing, parameters, has_biases, row_bytes })
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// How activations must be quantized for the integer path; `None` where weights have the exact path alone
    /// (dense and mxfp8). Matrices with the same layout and the same inputs share one quantization.
    pub fn activation_layout(&self) -> Option<ActivationLayout> {
        match self.packing {
            Packing::Affine(_) | Packing::Fp4 => Some(ActivationLayout::new(self.group_size, self.packing.planes())),
            _ => None,
        }
    }

    /// Bytes read by one product of the whole matrix: weights, scales and biases.
    pub fn footprint_bytes(&self) -> usize {
        let parameters = match &self.parameters {
            ParameterBlocks::None => 0,
            ParameterBlocks::Bf16(blocks) | ParameterBlocks::F16(blocks) => 2 * blocks.len(),
            ParameterBlocks::F32(blocks) => 4 * blocks.len(),
            ParameterBlocks::E8m0(blocks) | ParameterBlocks::E4m3(blocks) => blocks.len(),
        };
        self.weight.len + parameters
    }

    /// Weights of one group; 1 for dense weights.
    pub(super) fn group_size(&self) -> usize {
        self.group_size
    }

    /// Groups of one row; 0 for dense weights.
    pub(super) fn groups(&self) -> usize {
        if matches!(self.parameters, ParameterBlocks::None) { 0 } else { self.columns / self.group_size }
    }

    /// All rows' weights, `[rows][row_bytes]`.
    pub(super) fn weight_bytes(&self) -> &[u8] {
        self.weight.as_slice()
    }

    /// Elements from one group's scales to the next's.
    pub(super) fn parameter_stride(&self) -> usize {
        if self.has_biases { 2 * LANES } else { LANES }
    }

    /// The scale of a group as kernels use it: half of the file's for fp4, whose codes count halves.
    pub(super) fn scale(&self, row: usize, group: usize) -> f32 {
        let scale = self.parameter(row, group, 0);
        if self.packing == Packing::Fp4 { 0.5 * scale } else { scale }
    }

    /// The bias of a group of an affine weight.
    pub(super) fn bias(&self, row: usize, group: usize) -> f32 {
        self.parameter(row, group, LANES)
    }

    fn parameter(&self, row: usize, group: usize, offset: usize) -> f32 {
        let block = row / LANES * self.groups() + group;
        let index = block * self.parameter_stride() + offset + row % LANES;
        match &self.parameters {
            ParameterBlocks::None => unreachable!("dense weights have no scales"),
            ParameterBlocks::Bf16(blocks) => f32::from_bits(u32::from(blocks[index]) << 16),
            ParameterBlocks::F16(blocks) => half::f16::from_bits(blocks[index]).to_f32(),
            ParameterBlocks::F32(blocks) => blocks[index],
            ParameterBlocks::E8m0(blocks) => e8m0_to_f32(blocks[index]),
            ParameterBlocks::E4m3(blocks) => e4m3_to_f32(blocks[index]),
        }
    }
}

/// Lays `[rows, groups]` tensors into blocks of 16 rows.
fn blocks<T: Copy + Default, const N: usize>(
    tensors: [Option<&[u8]>; 2],
    [rows, groups]: [usize; 2],
    read: fn([u8; N]) -> T,
) -> Vec<T> {
    let count = tensors.iter().flatten().count();
    let mut laid = vec![T::default(); rows.div_ceil(LANES) * groups * count * LANES];
    for (place, tensor) in tensors.iter().flatten().enumerate() {
        for (row, raws) in tensor.as_chunks::<N>().0.chunks_exact(groups).enumerate() {
            let first = (row / LANES * groups * count + place) * LANES + row % LANES;
            let places = laid[first..].iter_mut().step_by(count * LANES);
            places.zip(raws).for_each(|(place, raw)| *place = read(*raw));
        }
    }
    laid
}
