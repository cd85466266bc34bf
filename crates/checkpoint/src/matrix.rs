//! Proofs that a tensor is what a model wants: presence, element type, and every dimension, with
//! bits, group size, packed width and scales all agreeing.

use std::fmt;
use std::ops::Range;

use crate::checkpoint::Checkpoint;
use crate::dtype::{DType, decode_floats};
use crate::error::{Problem, ProblemKind};
use crate::quant::{QuantFormat, dequantize};
use crate::quantization::Stated;
use crate::tensor::TensorInfo;

/// Where a matrix's values are, once proved. Prints as its format: `BF16`, `q4 g64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MatrixSource {
    /// One tensor of floats.
    Dense {
        /// Its full name.
        tensor: String,
        /// F32, F16 or BF16.
        dtype: DType,
    },
    /// Packed values with a scale a group.
    Quantized {
        /// How they are packed.
        format: QuantFormat,
        /// Full name of the packed values: U32, `[.., rows, cols * bits / 32]`.
        weight: String,
        /// Full name of the scales: `[.., rows, cols / group_size]`.
        scales: String,
        /// Full name of the biases, of the scales' shape and type; in the affine formats alone.
        biases: Option<String>,
        /// F32, F16 or BF16 in the affine formats, U8 in the others.
        scale_dtype: DType,
    },
}

/// Where the values of a tensor of floats are, once proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VectorSource {
    /// Its full name.
    pub tensor: String,
    /// F32, F16 or BF16.
    pub dtype: DType,
}

impl MatrixSource {
    /// The quantized format; `None` if dense.
    pub fn format(&self) -> Option<QuantFormat> {
        match self {
            MatrixSource::Dense { .. } => None,
            MatrixSource::Quantized { format, .. } => Some(*format),
        }
    }

    /// Full names of all tensors that it is made of.
    pub fn tensors(&self) -> impl Iterator<Item = &str> {
        let names = match self {
            MatrixSource::Dense { tensor, .. } => [Some(tensor), None, None],
            MatrixSource::Quantized { weight, scales, biases, .. } => [Some(weight), Some(scales), biases.as_ref()],
        };
        names.into_iter().flatten().map(String::as_str)
    }
}

impl fmt::Display for MatrixSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MatrixSource::Dense { dtype, .. } => dtype.fmt(f),
            MatrixSource::Quantized { format, .. } => format.fmt(f),
        }
    }
}

impl Checkpoint {
    /// Proves that `module` (a path without `.weight`) is a matrix of `shape`,
    /// `[.., rows, cols]`, leading dimensions being experts; dense or quantized, as the file has it.
    ///
    /// Quantized means that `<module>.scales` is in the file. Experts of the original layout are
    /// tensors without `.weight`: such a tensor is taken where `<module>.weight` is absent. Panics
    /// if `shape` has fewer than two dimensions.
    pub fn matrix(&self, module: &str, shape: &[usize]) -> Result<MatrixSource, Problem> {
        assert!(shape.len() >= 2, "a matrix has rows and columns, {module} is wanted as {shape:?}");
        let named = format!("{module}.weight");
        let weight = match (self.info(&named), self.info(module)) {
            (Some(weight), None) | (None, Some(weight)) => weight,
            (Some(_), Some(_)) => {
                let sentence = format!("in the checkpoint as well as {named}; one of them must be meant");
                return Err(Problem::new(ProblemKind::Ambiguous, module, sentence));
            }
            (None, None) => return Err(Problem::missing(&named, format_args!("a matrix of {shape:?}"))),
        };
        match self.info(&format!("{module}.scales")) {
            None => self.dense_matrix(weight, shape),
            Some(scales) => self.quantized_matrix(module, weight, scales, shape),
        }
    }

    /// Proves that `tensor` (a full name) holds floats of exactly this shape; `[]` is one number.
    pub fn vector(&self, tensor: &str, shape: &[usize]) -> Result<VectorSource, Problem> {
        let Some(info) = self.info(tensor) else {
            return Err(Problem::missing(tensor, format_args!("shape {shape:?}")));
        };
        prove_floats(info)?;
        prove_shape(info, shape)?;
        Ok(VectorSource { tensor: info.name.clone(), dtype: info.dtype })
    }

    /// Reads rows as f32 (dequantized by [`dequantize`]); row `r` of expert `e` counts as
    /// `e * rows + r`.
    ///
    /// `source` must come from this checkpoint's [`matrix`](Checkpoint::matrix) for a shape of
    /// `cols` columns, and `out` be `rows.len() * cols` long: panics otherwise.
    pub fn read_rows(&self, source: &MatrixSource, cols: usize, rows: Range<usize>, out: &mut [f32]) {
        let part = |name: &str, bytes_per_row: usize| {
            let bytes = self.tensor(name).expect("a source names tensors of its checkpoint").bytes;
            &bytes[rows.start * bytes_per_row..rows.end * bytes_per_row]
        };
        match source {
            MatrixSource::Dense { tensor, dtype } => decode_floats(*dtype, part(tensor, cols * dtype.bytes()), out),
            MatrixSource::Quantized { format, weight, scales, biases, scale_dtype } => {
                let scale_bytes = format.scales_per_row(cols) * scale_dtype.bytes();
                let weight = part(weight, format.bytes_per_row(cols));
                let biases = biases.as_ref().map(|biases| part(biases, scale_bytes));
                dequantize(*format, weight, part(scales, scale_bytes), *scale_dtype, biases, out);
            }
        }
    }

    fn dense_matrix(&self, weight: &TensorInfo, shape: &[usize]) -> Result<MatrixSource, Problem> {
        if weight.dtype == DType::U32 {
            let sentence = "packed values (U32) without the scales that belong to them";
            return Err(Problem::new(ProblemKind::Missing, &weight.name, sentence));
        }
        prove_floats(weight)?;
        prove_shape(weight, shape)?;
        Ok(MatrixSource::Dense { tensor: weight.name.clone(), dtype: weight.dtype })
    }

    fn quantized_matrix(
        &self,
        module: &str,
        weight: &TensorInfo,
        scales: &TensorInfo,
        shape: &[usize],
    ) -> Result<MatrixSource, Problem> {
        let formats = match self.quantization().stated(module)? {
            Stated::Formats(formats) => formats,
            Stated::Dense => {
                let sentence = "in the file, though config.json says that this module is not quantized";
                return Err(Problem::new(ProblemKind::Contradiction, &scales.name, sentence));
            }
            Stated::NoBlock => {
                let sentence =
                    "in the file, though config.json has no quantization block that tells its bits and group size";
                return Err(Problem::new(ProblemKind::Contradiction, &scales.name, sentence));
            }
        };
        // mlx-vlm keeps a factor for the whole tensor under one of these names.
        for global in ["weight_scale_2", "weight_global_scale"] {
            let name = format!("{module}.{global}");
            if self.info(&name).is_some() {
                let sentence = "a scale for the whole tensor, which is not read";
                return Err(Problem::new(ProblemKind::Unsupported, &name, sentence));
            }
        }
        if weight.dtype != DType::U32 {
            return Err(Problem::dtype(&weight.name, weight.dtype, "packed values of type U32"));
        }
        if let Some(format) = formats.iter().find(|format| fits(**format, weight, scales, shape)) {
            let biases = self.prove_biases(module, *format, scales)?;
            return Ok(MatrixSource::Quantized {
                format: *format,
                weight: weight.name.clone(),
                scales: scales.name.clone(),
                biases,
                scale_dtype: scales.dtype,
            });
        }
        Err(misfit(&formats, weight, scales, shape))
    }

    /// Affine formats have biases like their scales; the others have none.
    fn prove_biases(&self, module: &str, format: QuantFormat, scales: &TensorInfo) -> Result<Option<String>, Problem> {
        let name = format!("{module}.biases");
        match self.info(&name) {
            None if format.has_biases() => Err(Problem::missing(&name, format_args!("the biases of {format}"))),
            None => Ok(None),
            Some(_) if !format.has_biases() => {
                let sentence = format!("in the file, though {format} has no biases");
                Err(Problem::new(ProblemKind::Contradiction, &name, sentence))
            }
            Some(biases) => {
                if biases.dtype != scales.dtype {
                    return Err(Problem::dtype(&name, biases.dtype, &format!("{} like the scales", scales.dtype)));
                }
                prove_shape(biases, &scales.shape)?;
                Ok(Some(name))
            }
        }
    }
}

/// Whether packed values and scales are exactly those of a matrix of `shape` in this format.
fn fits(format: QuantFormat, weight: &TensorInfo, scales: &TensorInfo, shape: &[usize]) -> bool {
    let (leading, cols) = split(shape);
    let scales_are_of_the_mode =
        if format.has_biases() { scales.dtype.is_float_weight() } else { scales.dtype == DType::U8 };
    let like = |info: &TensorInfo, width: usize| {
        info.shape.split_last().is_some_and(|(last, rest)| rest == leading && *last == width)
    };
    scales_are_of_the_mode
        && cols > 0
        && cols.is_multiple_of(format.group_size())
        && like(weight, format.bytes_per_row(cols) / 4)
        && like(scales, format.scales_per_row(cols))
}

/// The sentence for a matrix that fits none of the stated formats: everything that was compared.
fn misfit(formats: &[QuantFormat], weight: &TensorInfo, scales: &TensorInfo, shape: &[usize]) -> Problem {
    let (leading, cols) = split(shape);
    let format = formats[0];
    if !cols.is_multiple_of(format.group_size()) {
        let sentence = format!("{cols} columns cannot be cut into groups of {} ({format})", format.group_size());
        return Problem::new(ProblemKind::Packing, &weight.name, sentence);
    }
    let wanted_scales = if format.has_biases() { "F32, F16 or BF16" } else { "U8" };
    let scales_are_of_the_mode =
        if format.has_biases() { scales.dtype.is_float_weight() } else { scales.dtype == DType::U8 };
    if formats.len() == 1 && !scales_are_of_the_mode {
        return Problem::dtype(&scales.name, scales.dtype, &format!("{wanted_scales} for {format}"));
    }
    let with = |width: usize| [leading, &[width]].concat();
    let stated: Vec<String> = formats.iter().map(QuantFormat::to_string).collect();
    let mut sentence = format!(
        "stated as {}: a matrix of {shape:?} has weight {:?} and scales {:?} of {wanted_scales}, found weight {:?} and scales {:?} of {}",
        stated.join(" or "),
        with(format.bytes_per_row(cols) / 4),
        with(format.scales_per_row(cols)),
        weight.shape,
        scales.shape,
        scales.dtype,
    );
    if let Some(found) = formats_read().find(|format| fits(*format, weight, scales, shape)) {
        sentence += &format!("; the tensors are those of {found}, config.json must say so");
    }
    Problem::new(ProblemKind::Packing, &weight.name, sentence)
}

/// Every format that is read.
fn formats_read() -> impl Iterator<Item = QuantFormat> {
    let affine = [2, 3, 4, 5, 6, 8]
        .into_iter()
        .flat_map(|bits| [32, 64, 128].into_iter().map(move |group_size| QuantFormat::Affine { bits, group_size }));
    affine.chain([QuantFormat::Mxfp4, QuantFormat::Mxfp8, QuantFormat::Nvfp4])
}

/// `[.., rows]` and the columns.
fn split(shape: &[usize]) -> (&[usize], usize) {
    let (cols, leading) = shape.split_last().expect("a matrix has rows and columns");
    (leading, *cols)
}

fn prove_floats(info: &TensorInfo) -> Result<(), Problem> {
    if info.dtype.is_float_weight() { Ok(()) } else { Err(Problem::dtype(&info.name, info.dtype, "F32, F16 or BF16")) }
}

fn prove_shape(info: &TensorInfo, wanted: &[usize]) -> Result<(), Problem> {
    if info.shape == wanted { Ok(()) } else { Err(Problem::shape(&info.name, &info.shape, wanted)) }
}
