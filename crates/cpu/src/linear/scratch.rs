//! Memory that one thread needs during a product, made at load so that a product allocates nothing.

use super::few::SLACK_GROUPS;
use super::matrix::{LANES, Matrix};
use super::quantized_rows::PIECE;

/// Rows that share one filling of panels.
pub(super) const ROWS_INTEGER: usize = 512;
/// Rows that are read through without panels, at most.
pub(super) const ROWS_FEW: usize = 4;
/// Inputs of a block of decoded weights.
pub(super) const INPUTS_F32: usize = 256;
/// Rows that share one decoding of weights.
pub(super) const ROWS_F32: usize = 64;
/// Blocks of outputs that share one reading of many rows. With ROWS_F32 rows their lane sums fit a second-level cache.
pub(super) const BLOCKS_F32: usize = 4;
/// Outputs of a row in [`Buffers::partial`].
pub(super) const PARTIAL_STRIDE: usize = 2 * LANES;

/// Past the ends of pieces of rows, kernels may read and write some bytes more.
const SLACK_BYTES: usize = 128;

/// A cache line, so that buffers start on one.
#[derive(Clone)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "read through pointers")] [u8; 64]);

fn lines(bytes: usize) -> Box<[Line]> {
    vec![Line([0; 64]); bytes.div_ceil(64)].into()
}

/// Working memory of one thread for products with matrices of up to a certain size.
pub struct Scratch {
    parameters: Box<[Line]>,
    parameter_len: usize,
    group_sums: Box<[Line]>,
    panels: Box<[Line]>,
    staging: Box<[Line]>,
    codes: Box<[Line]>,
    partial: Box<[Line]>,
    weights: Box<[Line]>,
    lanes: Box<[Line]>,
    input_tail: Box<[Line]>,
}

/// Where the parts of a [`Scratch`] lie.
pub(super) struct Buffers {
    /// Scales of some blocks of outputs, `[BLOCKS_F32][groups][16]`.
    pub scales: *mut f32,
    /// Biases, likewise.
    pub biases: *mut f32,
    /// Integer sums of the groups of a block of outputs, `[ROWS_FEW][groups and slack][16]`.
    pub group_sums: *mut i32,
    /// Two panels of one piece; they fit a first-level cache of 32 KiB with room for activations.
    pub panels: *mut u8,
    /// Sixteen rows of packed bytes of INPUTS_F32 inputs.
    pub staging: *mut u8,
    /// Sixteen rows of one piece's codes.
    pub codes: *mut u8,
    /// `[ROWS_INTEGER][32]`.
    pub partial: *mut f32,
    /// `[BLOCKS_F32][16][INPUTS_F32]`.
    pub weights: *mut f32,
    /// `[BLOCKS_F32][ROWS_F32][16 outputs][16 lanes]`.
    pub lanes: *mut f32,
    /// `[ROWS_F32][16]`.
    pub input_tail: *mut f32,
}

impl Scratch {
    /// Room for a product with any of `matrices`.
    pub fn for_matrices<'a>(matrices: impl IntoIterator<Item = &'a Matrix>) -> Scratch {
        let groups = matrices.into_iter().map(Matrix::groups).max().unwrap_or(0);
        let parameter_len = BLOCKS_F32 * groups * LANES;
        Scratch {
            parameters: lines(4 * 2 * parameter_len + SLACK_BYTES),
            parameter_len,
            group_sums: lines(4 * ROWS_FEW * (groups + SLACK_GROUPS) * LANES),
            // A group of fewer bytes than a kernel's unit fills up to three more units of codes.
            panels: lines(2 * PIECE * LANES + 64 * SLACK_BYTES),
            staging: lines(LANES * (4 * INPUTS_F32 + SLACK_BYTES)),
            codes: lines(LANES * (PIECE + SLACK_BYTES)),
            partial: lines(4 * ROWS_INTEGER * PARTIAL_STRIDE),
            weights: lines(4 * BLOCKS_F32 * LANES * INPUTS_F32),
            lanes: lines(4 * BLOCKS_F32 * ROWS_F32 * LANES * 16),
            input_tail: lines(4 * ROWS_F32 * 16),
        }
    }

    /// Panics if the matrix has more groups than those that this was made for.
    pub(super) fn buffers(&mut self, matrix: &Matrix) -> Buffers {
        assert!(BLOCKS_F32 * matrix.groups() * LANES <= self.parameter_len, "scratch was made for this matrix");
        let scales: *mut f32 = self.parameters.as_mut_ptr().cast();
        Buffers {
            scales,
            biases: scales.wrapping_add(self.parameter_len),
            group_sums: self.group_sums.as_mut_ptr().cast(),
            panels: self.panels.as_mut_ptr().cast(),
            staging: self.staging.as_mut_ptr().cast(),
            codes: self.codes.as_mut_ptr().cast(),
            partial: self.partial.as_mut_ptr().cast(),
            weights: self.weights.as_mut_ptr().cast(),
            lanes: self.lanes.as_mut_ptr().cast(),
            input_tail: self.input_tail.as_mut_ptr().cast(),
        }
    }
}
