//! Weights made ready: read in place from the mapping, scales and biases repacked once, in parallel.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use checkpoint::{Checkpoint, MatrixSource};
use plan::{BackendError, LoadProgress, RowRange, WeightShape, WeightSource, WeightSpec};

use crate::linear::{Bytes, Matrix, Parameters};

/// One weight.
pub(crate) enum Weight {
    /// A vector, decoded.
    Vector(Vec<f32>),
    /// One matrix, or one for each expert; none where rows are only gathered.
    Matrices(Vec<Matrix>),
}

/// All weights, and the checkpoint that rows are gathered from.
pub(crate) struct Weights {
    pub checkpoint: Arc<Checkpoint>,
    pub specs: Vec<WeightSpec>,
    ready: Vec<Weight>,
    /// Rows gathered so far.
    gathered: AtomicUsize,
}

/// Rows after which the pages of tables that are only looked up are given back. The system maps far more
/// around a row than the row: without this, long texts would bring whole tables into memory.
const GATHERED_ROWS: usize = 64;

impl Weights {
    /// Prepares `specs` on `threads` threads.
    pub fn load(
        specs: &[WeightSpec],
        from: &Arc<Checkpoint>,
        threads: usize,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Weights, BackendError> {
        let sizes: Vec<u64> = specs.iter().map(|spec| spec.stored_bytes(spec.shape.elements()) as u64).collect();
        let total_bytes = sizes.iter().sum();
        let next = AtomicUsize::new(0);
        let finished: Mutex<Vec<(usize, Result<Weight, BackendError>)>> = Mutex::new(Vec::with_capacity(specs.len()));
        let work = |report: &mut dyn FnMut(u64)| {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(spec) = specs.get(index) else { return };
                let weight = prepare(spec, from);
                let mut finished = finished.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                finished.push((index, weight));
                let done = finished.iter().map(|(index, _)| sizes[*index]).sum();
                drop(finished);
                report(done);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(|| work(&mut |_| {}));
            }
            work(&mut |done_bytes| progress(LoadProgress { done_bytes, total_bytes }));
        });
        progress(LoadProgress { done_bytes: total_bytes, total_bytes });
        let mut finished = finished.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        finished.sort_by_key(|(index, _)| *index);
        let ready = finished.into_iter().map(|(_, weight)| weight).collect::<Result<_, _>>()?;
        Ok(Weights { checkpoint: from.clone(), specs: specs.to_vec(), ready, gathered: AtomicUsize::new(0) })
    }

    /// A vector. Panics if the weight is none: a checked plan has no such use.
    pub fn vector(&self, weight: plan::WeightId) -> &[f32] {
        match &self.ready[weight.index()] {
            Weight::Vector(values) => values,
            Weight::Matrices(_) => panic!("a vector weight is a vector"),
        }
    }

    /// The matrices of a weight that is multiplied with. Panics if it is a vector.
    pub fn matrices(&self, weight: plan::WeightId) -> &[Matrix] {
        match &self.ready[weight.index()] {
            Weight::Matrices(matrices) => matrices,
            Weight::Vector(_) => panic!("a matrix weight is a matrix"),
        }
    }

    /// Every matrix that is multiplied with.
    pub fn all_matrices(&self) -> impl Iterator<Item = &Matrix> {
        self.ready.iter().flat_map(|weight| match weight {
            Weight::Matrices(matrices) => matrices.as_slice(),
            Weight::Vector(_) => &[],
        })
    }

    /// Decodes one row of a table, from the mapping.
    pub fn gather(&self, weight: plan::WeightId, row: usize, out: &mut [f32]) {
        let WeightSource::Matrix { source, rows } = &self.specs[weight.index()].source else {
            panic!("a table is a matrix")
        };
        let row = row + rows.map_or(0, |range| range.first);
        self.checkpoint.read_rows(source, out.len(), row..row + 1, out);
        // Another thread that reads such a page meanwhile only has it mapped again.
        if self.gathered.fetch_add(1, Ordering::Relaxed) % GATHERED_ROWS == GATHERED_ROWS - 1 {
            self.give_back_gathered();
        }
    }

    fn give_back_gathered(&self) {
        for spec in self.specs.iter().filter(|spec| spec.usage.gathered && !spec.usage.multiplied) {
            if let WeightSource::Matrix { source, .. } = &spec.source {
                source.tensors().for_each(|tensor| self.checkpoint.release(tensor));
            }
        }
    }
}

fn prepare(spec: &WeightSpec, from: &Arc<Checkpoint>) -> Result<Weight, BackendError> {
    let wrong = |reason: String| BackendError::Weight { weight: spec.name.clone(), reason };
    match (&spec.source, spec.shape) {
        (WeightSource::Vector { .. }, _) => Ok(Weight::Vector(spec.read_vector(from)?)),
        (WeightSource::Matrix { .. }, _) if !spec.usage.multiplied => Ok(Weight::Matrices(vec![])),
        (WeightSource::Matrix { source, rows: range }, shape) => {
            let (count, rows, columns) = match shape {
                WeightShape::Matrix { rows, columns } => (1, rows, columns),
                WeightShape::Experts { experts, rows, columns } => (experts, rows, columns),
                WeightShape::Vector { .. } => return Err(wrong("its shape does not go with its source".into())),
            };
            let range = range.unwrap_or(RowRange { first: 0, of: rows });
            let matrices = (0..count).map(|index| {
                let first = index * range.of + range.first;
                matrix(source, from, first..first + rows, columns).map_err(&wrong)
            });
            let matrices = matrices.collect::<Result<_, _>>()?;
            if let MatrixSource::Quantized { scales, biases, .. } = source {
                // They were copied; the mapped pages would be held twice.
                from.release(scales);
                biases.iter().for_each(|biases| from.release(biases));
            }
            Ok(Weight::Matrices(matrices))
        }
    }
}

/// Rows `rows` of the stack of matrices in `source`.
fn matrix(
    source: &MatrixSource,
    from: &Arc<Checkpoint>,
    rows: std::ops::Range<usize>,
    columns: usize,
) -> Result<Matrix, String> {
    let part = |tensor: &str, bytes_per_row: usize| -> Result<std::ops::Range<usize>, String> {
        let view = from.tensor(tensor).ok_or_else(|| format!("{tensor} is not in the checkpoint"))?;
        let range = rows.start * bytes_per_row..rows.end * bytes_per_row;
        match range.end <= view.bytes.len() {
            true => Ok(range),
            false => Err(format!("{tensor} has {} bytes, wanted {}", view.bytes.len(), range.end)),
        }
    };
    let bytes_of = |tensor: &str, range: std::ops::Range<usize>| {
        let tensor = tensor.to_owned();
        Bytes::within(from.clone(), move |checkpoint: &Checkpoint| {
            checkpoint.tensor(&tensor).map_or(&[][..], |view| &view.bytes[range])
        })
    };
    let made = match source {
        MatrixSource::Dense { tensor, dtype } => {
            let range = part(tensor, columns * dtype.bytes())?;
            Matrix::dense(*dtype, rows.len(), columns, bytes_of(tensor, range))
        }
        MatrixSource::Quantized { format, weight, scales, biases, scale_dtype } => {
            let weight_bytes = bytes_of(weight, part(weight, format.bytes_per_row(columns))?);
            let scale_row = format.scales_per_row(columns) * scale_dtype.bytes();
            let scale_bytes = bytes_of(scales, part(scales, scale_row)?);
            let bias_bytes = match biases {
                Some(biases) => Some(bytes_of(biases, part(biases, scale_row)?)),
                None => None,
            };
            let biases = bias_bytes.as_ref().map(|bytes| Parameters { dtype: *scale_dtype, bytes: bytes.as_slice() });
            let scales = Parameters { dtype: *scale_dtype, bytes: scale_bytes.as_slice() };
            Matrix::quantized(*format, [rows.len(), columns], weight_bytes, scales, biases)
        }
    };
    made.map_err(|error| error.to_string())
}
