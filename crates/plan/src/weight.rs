//! Weights: read-only for ever, named by [`WeightId`]; a backend places and repacks them as it likes.

use checkpoint::{Checkpoint, DType, MatrixSource};

use crate::BackendError;

/// A weight of the plan, by its place in [`Plan::weights`](crate::Plan::weights).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

impl WeightId {
    /// The place in the plan's list.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The logical shape of a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightShape {
    /// `[length]`
    Vector {
        /// Numbers.
        length: usize,
    },
    /// `[rows, columns]`: a linear layer of `columns` inputs and `rows` outputs, or a table of `rows` entries.
    Matrix {
        /// Outputs, or entries.
        rows: usize,
        /// Inputs, or numbers an entry.
        columns: usize,
    },
    /// `[experts, rows, columns]`
    Experts {
        /// Experts.
        experts: usize,
        /// Outputs of one expert.
        rows: usize,
        /// Inputs of one expert.
        columns: usize,
    },
}

impl WeightShape {
    /// Numbers in the whole weight.
    pub fn elements(&self) -> usize {
        match *self {
            WeightShape::Vector { length } => length,
            WeightShape::Matrix { rows, columns } => rows * columns,
            WeightShape::Experts { experts, rows, columns } => experts * rows * columns,
        }
    }
}

/// Rows `first .. first + rows` of each matrix of `of` rows: where a file keeps two weights in one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowRange {
    /// The first row taken.
    pub first: usize,
    /// Rows that the file's matrix has.
    pub of: usize,
}

/// Where a weight lies in the checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub enum WeightSource {
    /// A whole dense tensor of a vector.
    Vector {
        /// The tensor's name.
        tensor: String,
        /// F32, F16 or BF16.
        dtype: DType,
    },
    /// A matrix or a stack of them.
    Matrix {
        /// Dense or quantized, with the tensors' names.
        source: MatrixSource,
        /// The rows taken of each matrix; all of them when `None`.
        rows: Option<RowRange>,
    },
}

/// How steps use a weight, which tells a backend what to prepare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WeightUse {
    /// Rows are gathered by token id.
    pub gathered: bool,
    /// It is multiplied with whole.
    pub multiplied: bool,
}

/// A weight: what it is called, how large it is and where it lies.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightSpec {
    /// The module's name as the checkpoint spells it, without the family's prefix: `layers.3.self_attn.q_proj`.
    pub name: String,
    /// The logical shape.
    pub shape: WeightShape,
    /// The tensors.
    pub source: WeightSource,
    /// What steps do with it.
    pub usage: WeightUse,
}

impl WeightSpec {
    /// The storage format as people write it: `q4 g64`, `bf16`.
    pub fn format(&self) -> String {
        match &self.source {
            WeightSource::Vector { dtype, .. } => dtype.to_string(),
            WeightSource::Matrix { source: MatrixSource::Dense { dtype, .. }, .. } => dtype.to_string(),
            WeightSource::Matrix { source: MatrixSource::Quantized { format, .. }, .. } => format.to_string(),
        }
    }

    /// The numbers of a vector weight, decoded; an error says how its tensor differs.
    pub fn read_vector(&self, from: &Checkpoint) -> Result<Vec<f32>, BackendError> {
        let wrong = |reason: String| BackendError::Weight { weight: self.name.clone(), reason };
        let (WeightSource::Vector { tensor, .. }, WeightShape::Vector { length }) = (&self.source, self.shape) else {
            return Err(wrong("its shape does not go with its source".into()));
        };
        let view = from.tensor(tensor).ok_or_else(|| wrong(format!("{tensor} is not in the checkpoint")))?;
        let values = view.to_f32().map_err(|problem| wrong(problem.to_string()))?;
        match values.len() == length {
            true => Ok(values),
            false => Err(wrong(format!("{} numbers, wanted {length}", values.len()))),
        }
    }

    /// Bytes of `elements` numbers of this weight in its storage format, scales and biases included.
    pub fn stored_bytes(&self, elements: usize) -> f64 {
        let elements = elements as f64;
        match &self.source {
            WeightSource::Vector { dtype, .. } => elements * dtype.bytes() as f64,
            WeightSource::Matrix { source: MatrixSource::Dense { dtype, .. }, .. } => elements * dtype.bytes() as f64,
            WeightSource::Matrix { source: MatrixSource::Quantized { format, biases, scale_dtype, .. }, .. } => {
                let per_group = scale_dtype.bytes() as f64 * if biases.is_some() { 2.0 } else { 1.0 };
                elements * (format.bits() as f64 / 8.0 + per_group / format.group_size() as f64)
            }
        }
    }
}
