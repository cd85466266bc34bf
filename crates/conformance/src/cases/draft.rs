//! A case being written: sources of random rows, weights of every format, the operation, and what reads it.

use checkpoint::{DType, MatrixSource, QuantFormat, quantize};
use plan::{
    CacheLayout, PlanBuilder, RowRange, Site, Slice, StepInputs, Value, WeightId, WeightShape, WeightSource,
    WeightSpec, WeightUse,
};

use super::{Case, Check};
use crate::random::Random;
use crate::{CheckError, Quantity, TensorSet};

/// Entries of every source table: a case's token ids are below this.
pub(super) const TOKENS: usize = 64;

/// A storage format of matrices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Format {
    Dense(DType),
    Quantized(QuantFormat),
}

impl Format {
    /// Every format that a checkpoint may have.
    pub fn all() -> Vec<Format> {
        let mut all: Vec<Format> = [DType::F32, DType::F16, DType::BF16].map(Format::Dense).to_vec();
        for bits in [2, 3, 4, 5, 6, 8] {
            for group_size in [32, 64, 128] {
                all.push(Format::Quantized(QuantFormat::Affine { bits, group_size }));
            }
        }
        all.extend([QuantFormat::Mxfp4, QuantFormat::Mxfp8, QuantFormat::Nvfp4].map(Format::Quantized));
        all
    }

    /// Columns of one group; of dense matrices a number that is no multiple of a vector.
    pub fn group_size(self) -> usize {
        match self {
            Format::Dense(_) => 37,
            Format::Quantized(format) => format.group_size(),
        }
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Format::Dense(dtype) => f.write_str(dtype.name()),
            Format::Quantized(format) => format.fmt(f),
        }
    }
}

/// Where cases are collected.
pub(super) struct Draft<'a> {
    pub random: &'a mut Random,
    tensors: &'a mut TensorSet,
    cases: &'a mut Vec<Case>,
}

/// One case being written.
pub(super) struct CaseDraft<'d, 'a> {
    draft: &'d mut Draft<'a>,
    pub build: PlanBuilder,
    name: String,
    weights: usize,
    checks: Vec<Check>,
}

/// The steps that a case runs, and the physical blocks of each cache group.
pub(super) struct Launches {
    pub inputs: Vec<StepInputs>,
    pub blocks: Vec<usize>,
}

impl<'a> Draft<'a> {
    pub fn new(random: &'a mut Random, tensors: &'a mut TensorSet, cases: &'a mut Vec<Case>) -> Self {
        Draft { random, tensors, cases }
    }

    /// Begins a case.
    pub fn case(&mut self, name: String, cache: CacheLayout) -> CaseDraft<'_, 'a> {
        CaseDraft { draft: self, build: PlanBuilder::new(cache), name, weights: 0, checks: vec![] }
    }
}

pub(super) fn site(role: &'static str) -> Site {
    Site { layer: None, role }
}

/// A cache that nothing uses.
pub(super) fn no_cache() -> CacheLayout {
    CacheLayout { block_size: 16, groups: vec![] }
}

impl CaseDraft<'_, '_> {
    pub fn random(&mut self) -> &mut Random {
        self.draft.random
    }

    fn weight_name(&mut self) -> String {
        self.weights += 1;
        format!("case.{}.{}", self.draft.cases.len(), self.weights)
    }

    /// `[tokens, columns]`: rows of a table of these numbers, `[TOKENS, columns]`, which every backend has exactly.
    pub fn source_of(&mut self, role: &'static str, columns: usize, numbers: &[f32]) -> Value {
        let name = self.weight_name();
        self.draft.tensors.insert_floats(&name, DType::F32, &[TOKENS, columns], numbers);
        let source = MatrixSource::Dense { tensor: name.clone(), dtype: DType::F32 };
        let table = self.build.weight(WeightSpec {
            name,
            shape: WeightShape::Matrix { rows: TOKENS, columns },
            source: WeightSource::Matrix { source, rows: None },
            usage: WeightUse { gathered: true, multiplied: false },
        });
        self.build.embed(site(role), table, 1.0)
    }

    /// `[tokens, columns]`, random of this deviation.
    pub fn source(&mut self, role: &'static str, columns: usize, deviation: f32) -> Value {
        let numbers = self.draft.random.normals(TOKENS * columns, deviation);
        self.source_of(role, columns, &numbers)
    }

    /// The wanted rows of a value.
    pub fn wanted(&mut self, role: &'static str, x: Value) -> Value {
        let x = self.build.whole(x);
        self.build.select_rows(site(role), x)
    }

    /// A vector.
    pub fn vector(&mut self, numbers: &[f32]) -> WeightId {
        let name = self.weight_name();
        let dtype = self.draft.random.pick(&[DType::F32, DType::F16, DType::BF16]);
        self.draft.tensors.insert_floats(&name, dtype, &[numbers.len()], numbers);
        self.build.weight(WeightSpec {
            name: name.clone(),
            shape: WeightShape::Vector { length: numbers.len() },
            source: WeightSource::Vector { tensor: name, dtype },
            usage: WeightUse { gathered: false, multiplied: false },
        })
    }

    /// A random matrix or stack of matrices, of deviation `1 / sqrt(columns)`, so that products have the size of
    /// their input. With `rows`, it is these rows of each of the file's larger matrices.
    pub fn matrix(
        &mut self,
        shape: WeightShape,
        format: Format,
        usage: WeightUse,
        range: Option<RowRange>,
    ) -> WeightId {
        let (mut dimensions, rows, columns) = match shape {
            WeightShape::Matrix { rows, columns } => (vec![], rows, columns),
            WeightShape::Experts { experts, rows, columns } => (vec![experts], rows, columns),
            WeightShape::Vector { .. } => panic!("a matrix is wanted"),
        };
        dimensions.extend([range.map_or(rows, |range| range.of), columns]);
        let name = self.weight_name();
        let count = dimensions.iter().product();
        let numbers = self.draft.random.normals(count, 1.0 / (columns as f32).sqrt());
        let source = match format {
            Format::Dense(dtype) => {
                self.draft.tensors.insert_floats(&name, dtype, &dimensions, &numbers);
                MatrixSource::Dense { tensor: name.clone(), dtype }
            }
            Format::Quantized(format) => self.quantized(&name, format, &mut dimensions, &numbers),
        };
        self.build.weight(WeightSpec { name, shape, source: WeightSource::Matrix { source, rows: range }, usage })
    }

    fn quantized(
        &mut self,
        name: &str,
        format: QuantFormat,
        dimensions: &mut [usize],
        numbers: &[f32],
    ) -> MatrixSource {
        let float = self.draft.random.pick(&[DType::F32, DType::F16, DType::BF16]);
        let packed = quantize(format, numbers, float).expect("random numbers are finite");
        let scale_dtype = if format.has_biases() { float } else { DType::U8 };
        let (weight, scales) = (format!("{name}.weight"), format!("{name}.scales"));
        let biases = packed.biases.as_ref().map(|_| format!("{name}.biases"));
        let columns = dimensions[dimensions.len() - 1];
        let last = dimensions.len() - 1;
        dimensions[last] = format.bytes_per_row(columns) / 4;
        self.draft.tensors.insert(&weight, DType::U32, dimensions, packed.weight);
        dimensions[last] = format.scales_per_row(columns);
        self.draft.tensors.insert(&scales, scale_dtype, dimensions, packed.scales);
        if let (Some(name), Some(bytes)) = (&biases, packed.biases) {
            self.draft.tensors.insert(name, scale_dtype, dimensions, bytes);
        }
        MatrixSource::Quantized { format, weight, scales, biases, scale_dtype }
    }

    /// Compares `value`; its numbers are of size 1 or of their own.
    pub fn check(&mut self, value: Value, quantity: Quantity) {
        self.checks.push(Check { value, quantity, least_size: 0.0 });
    }

    /// Compares `value`, whose numbers are to be expected to deviate by `size`.
    pub fn check_sized(&mut self, value: Value, quantity: Quantity, size: f32) {
        self.checks.push(Check { value, quantity, least_size: 0.5 * size });
    }

    /// Ends a case whose operation wrote `[tokens, columns]`: something must read it, and a plan ends in a token.
    pub fn finish_tokens(mut self, op: &'static str, out: Value, launches: Launches) -> Result<(), CheckError> {
        let selected = self.wanted("selected", out);
        self.finish_wanted(op, selected, launches)
    }

    /// Ends a case whose operation wrote `[wanted, columns]`.
    pub fn finish_wanted(mut self, op: &'static str, out: Value, launches: Launches) -> Result<(), CheckError> {
        let shape = WeightShape::Matrix { rows: TOKENS, columns: self.build.columns(out) };
        let usage = WeightUse { gathered: false, multiplied: true };
        let head = self.matrix(shape, Format::Dense(DType::F32), usage, None);
        let logits = self.build.linear(site("head"), out, head);
        self.finish_logits(op, logits, launches)
    }

    /// Ends a case that has logits.
    pub fn finish_logits(mut self, op: &'static str, logits: Value, launches: Launches) -> Result<(), CheckError> {
        let sampled = self.build.sample(site("sampled"), logits);
        if op == "sample" {
            self.check(sampled, Quantity::Same);
        }
        let CaseDraft { draft, build, name, checks, .. } = self;
        let plan = build.finish(logits, sampled)?;
        let Launches { inputs, blocks } = launches;
        draft.cases.push(Case { name, op, plan, launches: inputs, blocks, checks, want: vec![] });
        Ok(())
    }
}

/// Columns `first..first + columns` of a value.
pub(super) fn slice(value: Value, first: usize, columns: usize) -> Slice {
    Slice { value, first, columns }
}
