//! Matrix products: weights of every format times activations.
//!
//! Two paths. [`Kernels::linear_f32`] keeps activations in f32 and decodes weights to f32, for every format.
//! [`Kernels::linear_integer`] multiplies codes with activations quantized by [`Kernels::quantize_rows`], for the formats
//! that have an [`ActivationLayout`]. Each path has one order of floating-point operations, written down in
//! `scalar.rs`: a result does not depend on the instruction set, on the rows beside it, or on how rows and
//! outputs are cut among threads.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod driver;
mod few;
mod matrix;
#[cfg(target_arch = "aarch64")]
mod neon;
mod quantized_rows;
mod scalar;
mod scratch;
mod simd;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub use matrix::{Bytes, LANES, Matrix, MatrixError, Parameters};
pub use quantized_rows::{ActivationLayout, QuantizedRows};
pub use scratch::Scratch;

use crate::isa::Isa;
use driver::Ops;

/// Rows of activations in f32: element `k` of row `r` lies at `start + r * stride + k`.
///
/// Whoever passes one to a kernel guarantees that the elements of the rows used are readable and that nobody
/// writes them meanwhile.
#[derive(Debug, Clone, Copy)]
pub struct InputRows {
    /// The first element of row 0.
    pub start: *const f32,
    /// Elements from one row to the next.
    pub stride: usize,
}

/// Rows that a product writes: output `n` of row `r` lies at `start + r * stride + n`.
///
/// Whoever passes one to a kernel guarantees that the elements of the product's rows and outputs are writable and
/// that nobody else reads or writes them meanwhile. Elements beside them are not touched, so that threads may
/// write other outputs of the same rows.
#[derive(Debug, Clone, Copy)]
pub struct OutputRows {
    /// Output 0 of row 0.
    pub start: *mut f32,
    /// Elements from one row to the next.
    pub stride: usize,
}

// SAFETY: plain addresses; the contract stands above and with the functions that take them.
unsafe impl Send for InputRows {}
// SAFETY: as above.
unsafe impl Sync for InputRows {}
// SAFETY: as above.
unsafe impl Send for OutputRows {}
// SAFETY: as above.
unsafe impl Sync for OutputRows {}

/// One thread's part of `out[r][n] = sum over k of x[r][k] * matrix[n][k]`.
#[derive(Debug, Clone)]
pub struct Product<'a> {
    /// The weight.
    pub matrix: &'a Matrix,
    /// Rows of activations, as they are numbered in input and output.
    pub rows: Range<usize>,
    /// Outputs; starts at a multiple of [`LANES`], and ends at one or at the matrix's last.
    pub outputs: Range<usize>,
    /// Where results go.
    pub out: OutputRows,
}

impl Product<'_> {
    fn check(&self) {
        let Range { start, end } = self.outputs;
        let rows = self.matrix.rows();
        assert!(start <= end && end <= rows, "outputs lie in the matrix");
        assert!(start.is_multiple_of(LANES), "ranges of outputs start at multiples of 16");
        assert!(end == rows || end.is_multiple_of(LANES), "ranges of outputs end at multiples of 16 or at the end");
    }
}

/// Each fp4 code's doubled value plus `offset`, as a byte.
const fn fp4_codes(offset: i8) -> [u8; 16] {
    let mut codes = [0; 16];
    let mut code = 0;
    while code < 16 {
        codes[code] = (matrix::FP4_TWICE[code] + offset) as u8;
        code += 1;
    }
    codes
}

/// The matrix products of one instruction set.
#[derive(Clone, Copy)]
pub struct Kernels {
    isa: Isa,
    /// `None`: the scalar functions.
    ops: Option<&'static Ops>,
}

impl Kernels {
    /// Panics if this processor does not run `isa`.
    pub fn for_isa(isa: Isa) -> Kernels {
        assert!(Isa::supported().contains(&isa), "kernels are made for sets that the processor runs, not {isa}");
        let variants = Kernels::variants(isa);
        variants[variants.len() - 1]
    }

    /// All variants of a set that this processor runs, slowest first: some have instructions beyond the set's for
    /// single functions.
    fn variants(isa: Isa) -> Vec<Kernels> {
        let tables: Vec<Option<&'static Ops>> = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if is_x86_feature_detected!("avx512vbmi") => {
                vec![Some(&avx512::OPS), Some(&avx512::OPS_VBMI)]
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => vec![Some(&avx512::OPS)],
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => vec![Some(&avx2::OPS)],
            #[cfg(target_arch = "aarch64")]
            Isa::Neon if std::arch::is_aarch64_feature_detected!("dotprod") => {
                vec![Some(&neon::OPS), Some(&neon::OPS_DOT)]
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => vec![Some(&neon::OPS)],
            _ => vec![None],
        };
        tables.into_iter().map(|ops| Kernels { isa, ops }).collect()
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Quantizes `rows` of `x`, of `columns` activations each, into the same rows of `into`.
    ///
    /// All rows must have been read by the products that they were quantized for before any is quantized anew for
    /// another layout. Panics if `into` has no room for them or `columns` are not whole groups.
    ///
    /// # Safety
    /// The contract of [`InputRows`]; nobody else reads or writes these rows of `into` meanwhile.
    pub unsafe fn quantize_rows(
        &self,
        layout: ActivationLayout,
        x: InputRows,
        columns: usize,
        rows: Range<usize>,
        into: &QuantizedRows,
    ) {
        let out = into.write(layout, columns, &rows);
        let quantize_row = self.ops.map_or(scalar::quantize_row as _, |ops| ops.quantize_row);
        for row in rows {
            // SAFETY: the caller's contract; `write` proved the room; `for_isa` proved the instruction set.
            unsafe { quantize_row(layout, x.start.add(row * x.stride), columns, out, row) };
        }
    }

    /// The integer path: `out = x * matrix`, with `x` quantized for the matrix's layout.
    ///
    /// Panics if the matrix has no layout, if `x` was quantized for another layout or length, or if outputs are cut
    /// elsewhere than at multiples of [`LANES`].
    ///
    /// # Safety
    /// The contract of [`OutputRows`]; the rows of `x` were written and nobody writes them meanwhile.
    pub unsafe fn linear_integer(&self, product: &Product, x: &QuantizedRows, scratch: &mut Scratch) {
        product.check();
        let layout = product.matrix.activation_layout();
        let layout = layout.expect("the integer path has no kernels for dense and mxfp8 weights");
        let x = x.read(layout, product.matrix.columns(), &product.rows);
        // SAFETY: the caller's contract; `read` proved the rows; `for_isa` proved the instruction set.
        unsafe {
            match self.ops {
                Some(ops) => driver::linear_integer(ops, product, x, scratch),
                None => scalar::linear_integer(product, layout, x),
            }
        }
    }

    /// The exact path: `out = x * matrix` in f32. Panics if outputs are cut elsewhere than at multiples of [`LANES`].
    ///
    /// # Safety
    /// The contracts of [`InputRows`] and [`OutputRows`].
    pub unsafe fn linear_f32(&self, product: &Product, x: InputRows, scratch: &mut Scratch) {
        product.check();
        // SAFETY: the caller's contract; `for_isa` proved the instruction set.
        unsafe {
            match self.ops {
                Some(ops) => driver::linear_f32(ops, product, x, scratch),
                None => scalar::linear_f32(product, x),
            }
        }
    }
}
