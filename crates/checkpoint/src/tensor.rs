//! One tensor: what the header says of it, and a view of its bytes where the file lies mapped.

use crate::dtype::{DType, decode_floats};
use crate::error::{Problem, ProblemKind};

/// What a header says of one tensor; its sizes are proved against the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The full name, such as `language_model.model.norm.weight`.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// Outermost dimension first; empty for a single number.
    pub shape: Vec<usize>,
    /// Index into [`Checkpoint::files`](crate::Checkpoint::files).
    pub file: usize,
    pub(crate) start: usize, // first byte in the file
    pub(crate) end: usize,   // one past its last byte
}

impl TensorInfo {
    /// Elements in all: the product of the shape.
    pub fn elements(&self) -> usize {
        // Proved at open: elements times their size is the tensor's length in the file.
        self.shape.iter().product()
    }

    /// Bytes in the file.
    pub fn bytes(&self) -> u64 {
        (self.end - self.start) as u64
    }
}

/// A tensor's bytes as the file has them: little-endian, row-major, possibly unaligned.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Name, type and shape.
    pub info: &'a TensorInfo,
    /// All of the tensor's bytes; nothing says that they are aligned to the element.
    pub bytes: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// The elements as f32; exact. An error unless the type is F32, F16 or BF16.
    pub fn to_f32(&self) -> Result<Vec<f32>, Problem> {
        if !self.info.dtype.is_float_weight() {
            return Err(self.wrong_type("F32, F16 or BF16"));
        }
        let mut out = vec![0.0; self.info.elements()];
        decode_floats(self.info.dtype, self.bytes, &mut out);
        Ok(out)
    }

    /// The one number of a tensor of shape `[]` or `[1]` (or `[1, 1]`, ...) as f32.
    pub fn scalar(&self) -> Result<f32, Problem> {
        match self.to_f32()?.as_slice() {
            [value] => Ok(*value),
            _ => Err(Problem::new(
                ProblemKind::Shape,
                &self.info.name,
                format!("shape {:?}, wanted a single number", self.info.shape),
            )),
        }
    }

    /// Integers of any width as i64. An error for other types, and for a U64 beyond i64.
    pub fn to_i64(&self) -> Result<Vec<i64>, Problem> {
        let (ones, twos) = (self.bytes, self.bytes.as_chunks::<2>().0);
        let (fours, eights) = (self.bytes.as_chunks::<4>().0, self.bytes.as_chunks::<8>().0);
        Ok(match self.info.dtype {
            DType::U8 => ones.iter().map(|raw| i64::from(*raw)).collect(),
            DType::I8 => ones.iter().map(|raw| i64::from(*raw as i8)).collect(),
            DType::U16 => twos.iter().map(|raw| i64::from(u16::from_le_bytes(*raw))).collect(),
            DType::I16 => twos.iter().map(|raw| i64::from(i16::from_le_bytes(*raw))).collect(),
            DType::U32 => fours.iter().map(|raw| i64::from(u32::from_le_bytes(*raw))).collect(),
            DType::I32 => fours.iter().map(|raw| i64::from(i32::from_le_bytes(*raw))).collect(),
            DType::I64 => eights.iter().map(|raw| i64::from_le_bytes(*raw)).collect(),
            DType::U64 => eights
                .iter()
                .map(|raw| {
                    let value = u64::from_le_bytes(*raw);
                    i64::try_from(value).map_err(|_| {
                        let sentence = format!("holds {value}, wanted numbers below 2^63");
                        Problem::new(ProblemKind::Value, &self.info.name, sentence)
                    })
                })
                .collect::<Result<_, _>>()?,
            _ => return Err(self.wrong_type("integers")),
        })
    }

    fn wrong_type(&self, wanted: &str) -> Problem {
        let found = self.info.dtype;
        Problem::new(ProblemKind::Dtype, &self.info.name, format!("elements of type {found}, wanted {wanted}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(dtype: DType, shape: &[usize]) -> TensorInfo {
        let bytes = shape.iter().product::<usize>() * dtype.bytes();
        TensorInfo { name: "t".into(), dtype, shape: shape.into(), file: 0, start: 0, end: bytes }
    }

    #[test]
    fn integers_of_every_width_are_read_signed_or_not() {
        let bytes = [0xff; 8];
        let read = |dtype: DType, shape: usize| {
            let info = info(dtype, &[shape]);
            TensorView { info: &info, bytes: &bytes }.to_i64()
        };
        assert_eq!(read(DType::U8, 8).unwrap(), [255; 8]);
        assert_eq!(read(DType::I16, 4).unwrap(), [-1; 4]);
        assert_eq!(read(DType::U32, 2).unwrap(), [i64::from(u32::MAX); 2]);
        assert_eq!(read(DType::I64, 1).unwrap(), [-1]);
        assert_eq!(read(DType::U64, 1).unwrap_err().kind(), ProblemKind::Value);
        assert_eq!(read(DType::F64, 1).unwrap_err().to_string(), "t: elements of type F64, wanted integers");
    }

    #[test]
    fn unaligned_bytes_are_read_as_well_as_aligned_ones() {
        let mut bytes = vec![0xaa];
        bytes.extend(1.5f32.to_le_bytes());
        let info = info(DType::F32, &[1]);
        assert_eq!(TensorView { info: &info, bytes: &bytes[1..] }.scalar().unwrap(), 1.5);
    }
}
