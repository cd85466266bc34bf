//! Every instruction set against the scalar twin, bit for bit, and the twin against products in f64.

// Lists of pieces of outputs, of which there may be one.
#![allow(clippy::single_range_in_vec_init)]

use std::ops::Range;

use checkpoint::{DType, QuantFormat};

use super::*;
use crate::isa::Isa;

/// Numbers that look random, within -1 and 1, the same for the same seed.
struct Noise(u64);

impl Noise {
    fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 32) as u32
    }

    fn value(&mut self) -> f32 {
        self.bits() as i32 as f32 / 2f32.powi(31)
    }

    fn values(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.value()).collect()
    }
}

#[derive(Debug, Clone, Copy)]
enum Format {
    Dense(DType),
    Quantized(QuantFormat, DType),
}

impl Format {
    fn group_size(self) -> usize {
        match self {
            Format::Dense(_) => 1,
            Format::Quantized(QuantFormat::Affine { group_size, .. }, _) => group_size as usize,
            Format::Quantized(QuantFormat::Nvfp4, _) => 16,
            Format::Quantized(..) => 32,
        }
    }

    fn all() -> Vec<Format> {
        let mut all = vec![Format::Dense(DType::F32), Format::Dense(DType::F16), Format::Dense(DType::BF16)];
        let scales = [DType::BF16, DType::F16, DType::F32];
        for (index, bits) in [2, 3, 4, 5, 6, 8].into_iter().enumerate() {
            for (place, group_size) in [32, 64, 128].into_iter().enumerate() {
                let format = QuantFormat::Affine { bits, group_size };
                all.push(Format::Quantized(format, scales[(index + place) % 3]));
            }
        }
        let micro = [QuantFormat::Mxfp4, QuantFormat::Mxfp8, QuantFormat::Nvfp4];
        all.extend(micro.map(|format| Format::Quantized(format, DType::U8)));
        all
    }

    /// A matrix of any bytes that the format allows, its weight at an odd address.
    fn matrix(self, rows: usize, columns: usize, seed: u64) -> Matrix {
        self.matrix_of(rows, columns, seed, None)
    }

    /// The same with every byte of a quantized weight as given.
    fn matrix_of(self, rows: usize, columns: usize, seed: u64, byte: Option<u8>) -> Matrix {
        let mut noise = Noise(seed);
        let floats = |noise: &mut Noise, dtype, len| {
            let mut bytes = Vec::new();
            checkpoint::encode_floats(dtype, &noise.values(len), &mut bytes);
            bytes
        };
        let unaligned = |mut bytes: Vec<u8>| {
            bytes.insert(0, 0xff);
            Bytes::within(std::sync::Arc::new(bytes), |bytes| &bytes[1..])
        };
        match self {
            Format::Dense(dtype) => {
                let weight = unaligned(floats(&mut noise, dtype, rows * columns));
                Matrix::dense(dtype, rows, columns, weight).unwrap()
            }
            Format::Quantized(format, dtype) => {
                let bits = match format {
                    QuantFormat::Affine { bits, .. } => bits as usize,
                    QuantFormat::Mxfp8 => 8,
                    _ => 4,
                };
                let mut weight: Vec<u8> =
                    (0..rows * columns * bits / 8).map(|_| byte.unwrap_or(noise.bits() as u8)).collect();
                if format == QuantFormat::Mxfp8 {
                    // No NaN, which would hide all else.
                    weight.iter_mut().filter(|byte| **byte & 0x7f == 0x7f).for_each(|byte| *byte -= 1);
                }
                let groups = rows * columns / self.group_size();
                let (scales, biases) = match format {
                    QuantFormat::Affine { .. } => {
                        (floats(&mut noise, dtype, groups), Some(floats(&mut noise, dtype, groups)))
                    }
                    QuantFormat::Nvfp4 => ((0..groups).map(|_| (noise.bits() % 0x7f) as u8).collect(), None),
                    // From the smallest, which is below the normal numbers.
                    _ => ((0..groups).map(|_| [0, 1, 120, 127, 130][noise.bits() as usize % 5]).collect(), None),
                };
                let scales = Parameters { dtype, bytes: &scales };
                let biases = biases.as_ref().map(|bytes| Parameters { dtype, bytes });
                Matrix::quantized(format, [rows, columns], unaligned(weight), scales, biases).unwrap()
            }
        }
    }

    /// Lengths of rows: some whole groups, for dense weights all tails of two vectors; some over a piece's length.
    fn columns(self) -> Vec<usize> {
        match self {
            Format::Dense(_) => (1..=34).chain([512, 1061]).collect(),
            _ => [1, 2, 3, 5].map(|groups| groups * self.group_size()).into_iter().chain([640, 1152]).collect(),
        }
    }
}

/// Activations with all that is special in them: zero groups, tiny groups, ties.
fn activations(rows: usize, columns: usize, seed: u64) -> Vec<f32> {
    let mut noise = Noise(seed);
    let mut x = noise.values(rows * columns);
    for (index, piece) in x.chunks_mut(16).enumerate() {
        match index % 11 {
            3 => piece.fill(0.0),
            5 => piece.iter_mut().for_each(|x| *x *= 1e-38),
            7 => piece.iter_mut().for_each(|x| *x = (*x * 254.0).round() / 2.0),
            _ => {}
        }
    }
    x
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Path {
    Integer,
    F32,
}

/// `rows` and `outputs` of the product, `[all rows][outputs of the matrix]`, NaN where nothing was written.
fn product(
    kernels: Kernels,
    path: Path,
    matrix: &Matrix,
    x: &[f32],
    rows: Range<usize>,
    outputs: &[Range<usize>],
) -> Vec<f32> {
    let columns = matrix.columns();
    let mut out = vec![f32::NAN; x.len() / columns * matrix.rows()];
    let mut scratch = Scratch::for_matrices([matrix]);
    let quantized = QuantizedRows::new(rows.end, columns);
    let x = InputRows { start: x.as_ptr(), stride: columns };
    let out_rows = OutputRows { start: out.as_mut_ptr(), stride: matrix.rows() };
    if path == Path::Integer {
        let layout = matrix.activation_layout().unwrap();
        // SAFETY: `x` has these rows; one thread.
        unsafe { kernels.quantize_rows(layout, x, columns, rows.clone(), &quantized) };
    }
    for outputs in outputs {
        let product = Product { matrix, rows: rows.clone(), outputs: outputs.clone(), out: out_rows };
        // SAFETY: `x` and `out` have these rows; one thread.
        unsafe {
            match path {
                Path::Integer => kernels.linear_integer(&product, &quantized, &mut scratch),
                Path::F32 => kernels.linear_f32(&product, x, &mut scratch),
            }
        }
    }
    out
}

fn scalar() -> Kernels {
    Kernels::for_isa(Isa::Scalar)
}

/// Every variant of every instruction set that this processor runs.
fn all_kernels() -> Vec<Kernels> {
    Isa::supported().into_iter().flat_map(Kernels::variants).collect()
}

fn paths(matrix: &Matrix) -> Vec<Path> {
    if matrix.activation_layout().is_some() { vec![Path::Integer, Path::F32] } else { vec![Path::F32] }
}

fn assert_same(got: &[f32], want: &[f32], what: &dyn std::fmt::Debug) {
    assert_eq!(got.len(), want.len());
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
        assert!(same, "{what:?}: element {index} is {got:?}, the scalar twin has {want:?}");
    }
}

const ROWS: [usize; 9] = [1, 2, 3, 5, 8, 9, 16, 17, 33];

/// Outputs of the matrices tested.
const OUTPUTS: [usize; 6] = [1, 15, 16, 17, 40, 64];

#[test]
fn every_instruction_set_gives_the_bits_of_the_scalar_twin() {
    for format in Format::all() {
        for columns in format.columns() {
            let all_rows = *ROWS.last().unwrap();
            let outputs = OUTPUTS[(columns / format.group_size()) % OUTPUTS.len()];
            let matrix = format.matrix(outputs, columns, columns as u64);
            let x = activations(all_rows, columns, 7);
            for path in paths(&matrix) {
                let want = product(scalar(), path, &matrix, &x, 0..all_rows, &[0..outputs]);
                assert!(want.iter().all(|value| value.is_finite()), "{format:?} makes numbers");
                for kernels in all_kernels() {
                    let isa = kernels.isa();
                    for rows in ROWS {
                        let got = product(kernels, path, &matrix, &x, 0..rows, &[0..outputs]);
                        let what = (isa, format, path, columns, outputs, rows);
                        assert_same(&got[..rows * outputs], &want[..rows * outputs], &what);
                        assert!(
                            got[rows * outputs..].iter().all(|value| value.is_nan()),
                            "{what:?} writes its rows alone"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn the_largest_codes_and_activations_fit_every_sum() {
    for format in Format::all() {
        let columns = 4 * format.group_size();
        // All bits set, and the largest fp4.
        for byte in [0xff, 0x77] {
            let matrix = format.matrix_of(16, columns, 3, Some(byte));
            for value in [1.0, -1.0] {
                let x = vec![value; 5 * columns];
                for path in paths(&matrix).into_iter().filter(|path| *path == Path::Integer) {
                    for rows in [1, 5] {
                        let want = product(scalar(), path, &matrix, &x, 0..rows, &[0..16]);
                        for kernels in all_kernels() {
                            let got = product(kernels, path, &matrix, &x, 0..rows, &[0..16]);
                            assert_same(&got, &want, &(kernels.isa(), format, byte, value, rows));
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_number_of_outputs_gives_the_bits_of_the_scalar_twin() {
    for format in Format::all() {
        let columns = if format.group_size() == 1 { 45 } else { 3 * format.group_size() };
        for outputs in OUTPUTS {
            let matrix = format.matrix(outputs, columns, outputs as u64);
            let x = activations(4, columns, 9);
            for path in paths(&matrix) {
                let want = product(scalar(), path, &matrix, &x, 0..4, &[0..outputs]);
                for kernels in all_kernels() {
                    let isa = kernels.isa();
                    let got = product(kernels, path, &matrix, &x, 0..4, &[0..outputs]);
                    assert_same(&got, &want, &(isa, format, path, outputs));
                }
            }
        }
    }
}

#[test]
fn outputs_in_pieces_and_rows_alone_equal_the_whole() {
    for format in Format::all() {
        let columns = if format.group_size() == 1 { 149 } else { 5 * format.group_size() };
        let (outputs, rows) = (72, 19);
        let matrix = format.matrix(outputs, columns, 3);
        let x = activations(rows, columns, 11);
        for path in paths(&matrix) {
            for kernels in all_kernels() {
                let isa = kernels.isa();
                let whole = product(kernels, path, &matrix, &x, 0..rows, &[0..outputs]);
                let pieces = product(kernels, path, &matrix, &x, 0..rows, &[48..72, 0..16, 16..48]);
                assert_same(&pieces, &whole, &(isa, format, path, "pieces"));
                let alone = product(kernels, path, &matrix, &x, 6..7, &[0..outputs]);
                assert_same(&alone[6 * outputs..7 * outputs], &whole[6 * outputs..7 * outputs], &(isa, format, path));
                let beside = alone[..6 * outputs].iter().chain(&alone[7 * outputs..]);
                assert!(beside.clone().all(|value| value.is_nan()), "{isa} {format:?} {path:?} writes its row alone");
            }
        }
    }
}

/// Rows that share one filling of a panel or of decoded weights are fewer than these.
#[test]
fn more_rows_than_one_block_give_the_same_bits() {
    let rows = scratch::ROWS_INTEGER + 7;
    for format in
        [Format::Dense(DType::BF16), Format::Quantized(QuantFormat::Affine { bits: 4, group_size: 32 }, DType::BF16)]
    {
        let matrix = format.matrix(40, 64, 5);
        let x = activations(rows, 64, 13);
        for path in paths(&matrix) {
            let want = product(scalar(), path, &matrix, &x, 0..rows, &[0..40]);
            for kernels in all_kernels() {
                let isa = kernels.isa();
                let got = product(kernels, path, &matrix, &x, 0..rows, &[0..40]);
                assert_same(&got, &want, &(isa, format, path));
            }
        }
    }
}

/// Sums of up to 1152 products in f32, each rounded to 2^-24 of the partial sum, relative to the sum of magnitudes.
const EXACT_TOLERANCE: f64 = 1e-6;

/// An activation of a group is off by at most half a step of 1/16256 of the group's largest, and the groups are summed
/// in f32; relative to sum |w| * max |x|.
const INTEGER_TOLERANCE: f64 = 0.5 / 16256.0 * 1.01 + EXACT_TOLERANCE;

#[test]
fn the_scalar_twin_agrees_with_products_in_f64() {
    for format in Format::all() {
        for columns in format.columns() {
            let matrix = format.matrix(17, columns, 21);
            let x = Noise(4).values(2 * columns);
            for path in paths(&matrix) {
                let got = product(scalar(), path, &matrix, &x, 0..2, &[0..17]);
                for (index, got) in got.iter().enumerate() {
                    let (row, output) = (index / 17, index % 17);
                    let x = &x[row * columns..][..columns];
                    let (mut want, mut magnitude) = (0f64, 0f64);
                    for (k, value) in x.iter().enumerate() {
                        let weight = f64::from(scalar::weight(&matrix, output, k));
                        want += weight * f64::from(*value);
                        let largest = match path {
                            Path::F32 => value.abs(),
                            Path::Integer => {
                                let first = k / matrix.group_size() * matrix.group_size();
                                x[first..][..matrix.group_size()].iter().fold(0f32, |max, x| max.max(x.abs()))
                            }
                        };
                        magnitude += weight.abs() * f64::from(largest);
                        if path == Path::Integer && matrix.has_biases {
                            // Codes and biases are multiplied apart, with the same rounded activations.
                            let bias = f64::from(matrix.bias(output, k / matrix.group_size()));
                            magnitude += 0.05 * (bias.abs() + (weight - bias).abs()) * f64::from(largest);
                        }
                    }
                    let tolerance = if path == Path::F32 { EXACT_TOLERANCE } else { INTEGER_TOLERANCE };
                    // The smallest scales of the micro formats make `ws * xs` subnormal: it is then off by half of
                    // the smallest f32, times a sum of integers.
                    let subnormal = 0.5 * f64::from(f32::from_bits(1)) * 12.0 * 16256.0 * columns as f64;
                    let error = (f64::from(*got) - want).abs();
                    let what = (format, path, columns, row, output);
                    assert!(
                        error <= tolerance * magnitude + subnormal,
                        "{what:?}: {got} for {want}, {error} of {magnitude}"
                    );
                }
            }
        }
    }
}

#[test]
fn weights_are_those_that_the_checkpoint_means() {
    for format in [2, 3, 4, 5, 6, 8].map(|bits| QuantFormat::Affine { bits, group_size: 32 }).into_iter().chain([
        QuantFormat::Mxfp4,
        QuantFormat::Mxfp8,
        QuantFormat::Nvfp4,
    ]) {
        let packed = checkpoint::quantize(format, &Noise(1).values(5 * 64), DType::F32).unwrap();
        let dtype = if packed.biases.is_some() { DType::F32 } else { DType::U8 };
        let mut want = vec![0.0; 5 * 64];
        checkpoint::dequantize(format, &packed.weight, &packed.scales, dtype, packed.biases.as_deref(), &mut want);
        let scales = Parameters { dtype, bytes: &packed.scales };
        let biases = packed.biases.as_ref().map(|bytes| Parameters { dtype, bytes });
        let matrix = Matrix::quantized(format, [5, 64], Bytes::owned(packed.weight), scales, biases).unwrap();
        for (index, want) in want.iter().enumerate() {
            assert_eq!(scalar::weight(&matrix, index / 64, index % 64), *want, "{format:?} {index}");
        }
    }
}

#[test]
fn all_bytes_of_e4m3_and_e8m0_are_read_alike() {
    // Identity in disguise: one weight a row is met by 1, so that each product is the weight itself.
    let rows = 256;
    let weight: Vec<u8> = (0..rows).flat_map(|row| std::iter::once(row as u8).chain([0; 31])).collect();
    let scales = vec![127u8; rows];
    let parameters = Parameters { dtype: DType::U8, bytes: &scales };
    let elements = Matrix::quantized(QuantFormat::Mxfp8, [rows, 32], Bytes::owned(weight), parameters, None).unwrap();
    let bytes: Vec<u8> = (0..=255).collect();
    let parameters = Parameters { dtype: DType::U8, bytes: &bytes };
    let ones = Bytes::owned((0..rows).flat_map(|_| std::iter::once(0x38).chain([0; 31])).collect());
    let powers = Matrix::quantized(QuantFormat::Mxfp8, [rows, 32], ones, parameters, None).unwrap();
    let mut x = vec![0.0; 32];
    x[0] = 1.0;
    for matrix in [elements, powers] {
        let want = product(scalar(), Path::F32, &matrix, &x, 0..1, &[0..rows]);
        for kernels in all_kernels() {
            let isa = kernels.isa();
            let got = product(kernels, Path::F32, &matrix, &x, 0..1, &[0..rows]);
            assert_same(&got, &want, &isa);
        }
    }
}

#[test]
fn an_activation_that_is_not_finite_shows_in_every_output() {
    let format = Format::Quantized(QuantFormat::Affine { bits: 4, group_size: 64 }, DType::BF16);
    let matrix = format.matrix(17, 128, 1);
    for kernels in all_kernels() {
        let isa = kernels.isa();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = activations(2, 128, 2);
            x[200] = bad;
            let got = product(kernels, Path::Integer, &matrix, &x, 0..2, &[0..17]);
            assert!(got[..17].iter().all(|value| value.is_finite()), "{isa} {bad}");
            assert!(got[17..].iter().all(|value| value.is_nan()), "{isa} {bad}");
        }
    }
}

#[test]
fn wrong_lengths_and_formats_are_refused() {
    let affine = |bits, group_size| QuantFormat::Affine { bits, group_size };
    let quantized = |format, weight, scales, biases: Option<usize>, dtype| {
        let (scales, biases) = (vec![0; scales], biases.map(|len| vec![0; len]));
        let biases = biases.as_ref().map(|bytes| Parameters { dtype, bytes });
        let scales = Parameters { dtype, bytes: &scales };
        Matrix::quantized(format, [3, 64], Bytes::owned(vec![0; weight]), scales, biases).map(|_| ())
    };
    let q4 = affine(4, 64);
    assert_eq!(quantized(q4, 96, 6, Some(6), DType::BF16), Ok(()));
    let short = MatrixError::Length { tensor: "weight", wanted: 96, found: 95 };
    assert_eq!(quantized(q4, 95, 6, Some(6), DType::BF16), Err(short));
    let short = MatrixError::Length { tensor: "biases", wanted: 6, found: 4 };
    assert_eq!(quantized(q4, 96, 6, Some(4), DType::BF16), Err(short));
    let long = MatrixError::Length { tensor: "scales", wanted: 6, found: 12 };
    assert_eq!(quantized(q4, 96, 12, Some(6), DType::BF16), Err(long));
    assert_eq!(quantized(q4, 96, 6, None, DType::BF16), Err(MatrixError::Biases { wanted: true }));
    let mistyped = MatrixError::Type { tensor: "scales", found: DType::U8 };
    assert_eq!(quantized(q4, 96, 3, Some(3), DType::U8), Err(mistyped));
    let groups = MatrixError::Groups { columns: 64, group_size: 128 };
    assert_eq!(quantized(affine(4, 128), 96, 6, Some(6), DType::BF16), Err(groups));
    let unknown = MatrixError::Unsupported { bits: 7, group_size: 64 };
    assert_eq!(quantized(affine(7, 64), 96, 6, Some(6), DType::BF16), Err(unknown));
    assert_eq!(quantized(QuantFormat::Mxfp4, 96, 6, None, DType::U8), Ok(()));
    assert_eq!(quantized(QuantFormat::Mxfp4, 96, 6, Some(6), DType::U8), Err(MatrixError::Biases { wanted: false }));
    let dense = |rows, columns, len| Matrix::dense(DType::F16, rows, columns, Bytes::owned(vec![0; len])).map(|_| ());
    assert_eq!(dense(2, 3, 12), Ok(()));
    assert_eq!(dense(2, 3, 13), Err(MatrixError::Length { tensor: "weight", wanted: 12, found: 13 }));
    assert_eq!(dense(0, 3, 0), Err(MatrixError::Shape { rows: 0, columns: 3 }));
    assert_eq!(dense(usize::MAX, 64, 0), Err(MatrixError::Shape { rows: usize::MAX, columns: 64 }));
    assert!(matches!(Matrix::dense(DType::U32, 1, 1, Bytes::owned(vec![0; 4])), Err(MatrixError::Type { .. })));
}

#[test]
#[should_panic(expected = "activations were quantized for this weight's layout")]
fn activations_of_another_layout_are_refused() {
    let q4 = Format::Quantized(QuantFormat::Affine { bits: 4, group_size: 32 }, DType::BF16).matrix(16, 64, 1);
    let q8 = Format::Quantized(QuantFormat::Affine { bits: 8, group_size: 32 }, DType::BF16).matrix(16, 64, 1);
    let kernels = scalar();
    let (x, mut out) = (vec![1.0; 64], vec![0.0; 16]);
    let quantized = QuantizedRows::new(1, 64);
    let input = InputRows { start: x.as_ptr(), stride: 64 };
    let out = OutputRows { start: out.as_mut_ptr(), stride: 16 };
    // SAFETY: one row each; one thread.
    unsafe {
        kernels.quantize_rows(q4.activation_layout().unwrap(), input, 64, 0..1, &quantized);
        let product = Product { matrix: &q8, rows: 0..1, outputs: 0..16, out };
        kernels.linear_integer(&product, &quantized, &mut Scratch::for_matrices([&q8]));
    }
}
