//! Weights stay in the file; a row is decoded when it is needed.

use std::sync::Arc;

use checkpoint::{Checkpoint, MatrixSource};
use plan::{BackendError, WeightShape, WeightSource, WeightSpec};

/// One weight, readable row by row.
pub(crate) enum Weight {
    /// Decoded once.
    Vector(Vec<f32>),
    /// Decoded row by row.
    Matrix { checkpoint: Arc<Checkpoint>, source: MatrixSource, rows: usize, columns: usize, first: usize, of: usize },
}

impl Weight {
    pub fn load(spec: &WeightSpec, from: &Arc<Checkpoint>) -> Result<Weight, BackendError> {
        let wrong = |reason: String| BackendError::Weight { weight: spec.name.clone(), reason };
        match (&spec.source, spec.shape) {
            (WeightSource::Vector { .. }, _) => Ok(Weight::Vector(spec.read_vector(from)?)),
            (
                WeightSource::Matrix { source, rows: range },
                WeightShape::Matrix { rows, columns } | WeightShape::Experts { rows, columns, .. },
            ) => Ok(Weight::Matrix {
                checkpoint: from.clone(),
                source: source.clone(),
                rows,
                columns,
                first: range.map_or(0, |range| range.first),
                of: range.map_or(rows, |range| range.of),
            }),
            _ => Err(wrong("its shape does not go with its source".into())),
        }
    }

    /// The vector. Panics if it is a matrix: a checked plan has no such use.
    pub fn vector(&self) -> &[f32] {
        match self {
            Weight::Vector(values) => values,
            Weight::Matrix { .. } => panic!("a vector weight is a vector"),
        }
    }

    /// Rows of one matrix.
    pub fn rows(&self) -> usize {
        match self {
            Weight::Vector(_) => 1,
            Weight::Matrix { rows, .. } => *rows,
        }
    }

    /// Decodes row `row` of matrix `matrix` (0 where there is one).
    pub fn read_row(&self, matrix: usize, row: usize, out: &mut [f32]) {
        match self {
            Weight::Vector(values) => out.copy_from_slice(values),
            Weight::Matrix { checkpoint, source, columns, first, of, .. } => {
                let row = matrix * of + first + row;
                checkpoint.read_rows(source, *columns, row..row + 1, out);
            }
        }
    }
}
