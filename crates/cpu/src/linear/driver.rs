//! How a product is cut into tiles that fit registers and caches. All vector instruction sets share it; they differ
//! in the functions that it calls through [`Ops`].

use std::ops::Range;

use super::few::{Finish, GroupSums, ROWS_AT_ONCE, SHORTEST_GROUP_BYTES, SLACK_GROUPS};
use super::matrix::{LANES, Matrix, Packing};
use super::quantized_rows::{ActivationLayout, PIECE, QuantizedPointers, VALUE_STRIDE};
use super::scratch::{BLOCKS_F32, Buffers, INPUTS_F32, PARTIAL_STRIDE, ROWS_F32, ROWS_FEW, ROWS_INTEGER, Scratch};
use super::simd::{DecodeRow, FillPanel, PanelSource, TileBiases, TileF32, TileInteger};
use super::{InputRows, Product};

/// A tile of the integer path.
pub(super) type TileIntegerFn = unsafe fn(&TileInteger);
/// A tile of the exact path, and the outputs that it takes at once, a divisor of 16.
pub(super) type TileF32Fn = (unsafe fn(&TileF32), usize);

/// The functions of one vector instruction set; what each does stands in `simd.rs`.
pub(super) struct Ops {
    pub quantize_row: unsafe fn(ActivationLayout, *const f32, usize, QuantizedPointers, usize),
    pub parameters: unsafe fn(&Matrix, usize, *mut f32, *mut f32),
    pub fill_panel: unsafe fn(&FillPanel),
    /// Spreads codes of fewer than 8 bits (`from`, 64 bytes more are readable) to one a byte, in order; may write
    /// 64 bytes more. fp4 codes become twice their value plus 12.
    pub spread: unsafe fn(Packing, from: *const u8, count: usize, to: *mut u8),
    pub decode_row: unsafe fn(&DecodeRow),
    pub sum_outputs: unsafe fn(*const f32, *mut f32),
    /// Products of few rows; `None` where panels serve them as well.
    pub few: Option<FewOps>,
    /// What a panel's codes lack to the true ones.
    pub code_offset: fn(Packing) -> i32,
    /// Panels of a tile: 1 or 2.
    pub panels: usize,
    /// Tiles of one panel or two of such codes, for 1, 2, ... rows.
    pub tiles: fn(Packing, panels: usize) -> &'static [TileIntegerFn],
    /// Tiles of the exact path, for 1, 2, ... rows.
    pub tiles_f32: &'static [TileF32Fn],
}

/// Products of few rows; what the functions do stands in `few.rs`.
pub(super) struct FewOps {
    pub group_sums: unsafe fn(&GroupSums),
    pub finish: unsafe fn(&Finish),
    /// Asks for some bytes, which need not be readable, to be brought to the caches.
    pub prefetch: unsafe fn(*const u8, usize),
    /// With more rows panels are faster.
    pub most_rows: usize,
}

/// Processors fetch ahead within a row by themselves once they have seen some of it; rows up to this long end
/// before that pays, and are asked for.
const SHORT_ROW_BYTES: usize = 2048;

/// Up to so many rows of the exact path are read anew for each block of outputs: the caches hold them.
const FEW_ROWS: usize = 16;

/// Bytes past a piece of a row that kernels may read.
const OVERREAD_BYTES: usize = 64;

/// Sixteen rows' bytes `range`, with the bytes from one row to the next: in place if rows and the bytes
/// past them are all there, else copied to `staging`, zeros for what is not.
///
/// # Safety
/// `staging` has room for sixteen rows of `range` plus [`OVERREAD_BYTES`].
unsafe fn block_rows(matrix: &Matrix, block: usize, range: Range<usize>, staging: *mut u8) -> (*const u8, usize) {
    let bytes = matrix.weight_bytes();
    let first = block * LANES;
    let row_bytes = matrix.row_bytes;
    let rows = (matrix.rows() - first).min(LANES);
    let last_read = (first + LANES - 1) * row_bytes + range.end + OVERREAD_BYTES;
    if rows == LANES && last_read <= bytes.len() {
        return (bytes[first * row_bytes + range.start..].as_ptr(), row_bytes);
    }
    // SAFETY: the caller's room.
    unsafe { staged_rows(matrix, block, range, staging) }
}

/// As [`block_rows`], always copied: what lies past the range reads as zero.
unsafe fn staged_rows(matrix: &Matrix, block: usize, range: Range<usize>, staging: *mut u8) -> (*const u8, usize) {
    let first = block * LANES;
    let rows = (matrix.rows() - first).min(LANES);
    let stride = range.len() + OVERREAD_BYTES;
    // SAFETY: the caller's room.
    unsafe { staging.write_bytes(0, LANES * stride) };
    for row in 0..rows {
        let from = &matrix.weight_bytes()[(first + row) * matrix.row_bytes..][range.clone()];
        // SAFETY: the caller's room.
        unsafe { staging.add(row * stride).copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }
    (staging, stride)
}

/// The integer path.
///
/// # Safety
/// As [`Kernels::linear_integer`](super::Kernels::linear_integer); the processor has the instruction set of `ops`.
pub(super) unsafe fn linear_integer(ops: &Ops, product: &Product, x: QuantizedPointers, scratch: &mut Scratch) {
    let buffers = scratch.buffers(product.matrix);
    let mut blocks = product.outputs.start / LANES..product.outputs.end.div_ceil(LANES);
    if let Some(few) = &ops.few
        && product.rows.len() <= few.most_rows.min(ROWS_FEW)
        && group_bytes(product.matrix) >= SHORTEST_GROUP_BYTES
    {
        // The block that holds less than sixteen outputs is for panels.
        let whole = blocks.start..(product.outputs.end / LANES).max(blocks.start);
        for block in whole.clone() {
            // SAFETY: as above.
            unsafe { block_of_few(ops, few, product, block, x, &buffers) };
        }
        blocks.start = whole.end;
    }
    for rows in pieces(product.rows.clone(), ROWS_INTEGER) {
        for pair in pieces(blocks.clone(), ops.panels) {
            // SAFETY: as above.
            unsafe { panels_integer(ops, product, rows.clone(), pair, x, &buffers) };
        }
    }
}

/// How the bytes of a matrix hold their codes, and the bits of each; codes that must be spread take whole bytes.
fn source(packing: Packing) -> (PanelSource, usize) {
    match packing {
        Packing::Affine(2) => (PanelSource::Pairs, 2),
        Packing::Affine(4) => (PanelSource::Nibbles, 4),
        Packing::Affine(8) => (PanelSource::Bytes, 8),
        Packing::Fp4 => (PanelSource::Fp4, 4),
        _ => (PanelSource::Spread, 8),
    }
}

/// Bytes of a group, as kernels read them.
fn group_bytes(matrix: &Matrix) -> usize {
    matrix.group_size() * source(matrix.packing).1 / 8
}

/// Few rows times a block of sixteen outputs.
unsafe fn block_of_few(
    ops: &Ops,
    few: &FewOps,
    product: &Product,
    block: usize,
    x: QuantizedPointers,
    buffers: &Buffers,
) {
    let matrix = product.matrix;
    let (groups, group_size) = (matrix.groups(), matrix.group_size());
    let (source, bits) = source(matrix.packing);
    let out_stride = (groups + SLACK_GROUPS) * LANES;
    let first_row = product.rows.start;
    for quarter in (0..LANES).step_by(ROWS_AT_ONCE) {
        // SAFETY: sixteen whole rows of the matrix, and the buffers made for its groups.
        unsafe {
            let weights = matrix.weight_bytes().as_ptr().add((block * LANES + quarter) * matrix.row_bytes);
            let sums = GroupSums {
                source,
                group_bytes: group_bytes(matrix),
                weights,
                stride: matrix.row_bytes,
                bytes: matrix.columns() * bits / 8,
                ahead: ROWS_AT_ONCE * matrix.row_bytes,
                values: x.values.add(x.value_at(first_row, 0)),
                piece_stride: x.piece_stride,
                rows: product.rows.len(),
                out: buffers.group_sums.add(quarter),
                out_stride,
            };
            if source != PanelSource::Spread {
                (few.group_sums)(&sums);
                continue;
            }
            let spread_stride = PIECE + OVERREAD_BYTES;
            for piece in pieces(0..groups, PIECE / group_size) {
                let columns = piece.len() * group_size;
                let bytes = piece.start * group_size * matrix.packing.bits() / 8;
                for row in 0..ROWS_AT_ONCE {
                    let from = weights.add(row * matrix.row_bytes + bytes);
                    (few.prefetch)(from.wrapping_add(sums.ahead), columns * matrix.packing.bits() / 8);
                    let codes = buffers.codes.add(row * spread_stride);
                    spread_within(ops, matrix, from, columns, codes, buffers);
                }
                (few.group_sums)(&GroupSums {
                    weights: buffers.codes,
                    stride: spread_stride,
                    bytes: columns,
                    ahead: 0,
                    values: sums.values.add(piece.start * group_size / PIECE * x.piece_stride),
                    out: sums.out.add(piece.start * LANES),
                    ..sums
                });
            }
        }
    }
    // SAFETY: as above; the product's output rows.
    unsafe {
        (ops.parameters)(matrix, block, buffers.scales, buffers.biases);
        for row in product.rows.clone() {
            let at = row * x.group_stride;
            (few.finish)(&Finish {
                groups,
                sums: buffers.group_sums.add((row - first_row) * out_stride),
                code_offset: (ops.code_offset)(matrix.packing),
                scales: buffers.scales,
                biases: matrix.has_biases.then_some(buffers.biases),
                activation_scales: x.scales.add(at),
                activation_sums: x.sums.add(at),
                scaled_sums: x.scaled_sums.add(at),
                out: product.out.start.add(row * product.out.stride + block * LANES),
            });
        }
    }
}

/// Spreads the codes of a piece of a row, of which nothing past the matrix's bytes is read.
unsafe fn spread_within(ops: &Ops, matrix: &Matrix, from: *const u8, columns: usize, to: *mut u8, buffers: &Buffers) {
    let bytes = columns * matrix.packing.bits() / 8;
    let end = matrix.weight_bytes().as_ptr_range().end;
    // SAFETY: the piece lies in the matrix; the staging buffer has room for it and what is read past it.
    unsafe {
        let mut from = from;
        if from.wrapping_add(bytes + OVERREAD_BYTES) > end {
            buffers.staging.copy_from_nonoverlapping(from, bytes);
            from = buffers.staging;
        }
        (ops.spread)(matrix.packing, from, columns, to);
    }
}

/// Cuts a range into pieces of `size`, the last one may be shorter.
fn pieces(range: Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(size).map(move |start| start..(start + size).min(range.end))
}

/// Some rows times one or two blocks of outputs.
unsafe fn panels_integer(
    ops: &Ops,
    product: &Product,
    rows: Range<usize>,
    blocks: Range<usize>,
    x: QuantizedPointers,
    buffers: &Buffers,
) {
    let matrix = product.matrix;
    let (groups, group_size) = (matrix.groups(), matrix.group_size());
    let outputs = blocks.start * LANES..(blocks.end * LANES).min(product.outputs.end);
    let parameter_stride = groups * LANES;
    for (panel, block) in blocks.clone().enumerate() {
        let at = panel * parameter_stride;
        // SAFETY: the buffers were sized for the matrix's groups.
        unsafe { (ops.parameters)(matrix, block, buffers.scales.add(at), buffers.biases.add(at)) };
    }
    // Tiles write whole blocks: where outputs end within one, they write beside and the rest is copied.
    let whole = outputs.len() == blocks.len() * LANES;
    let (out, out_stride) = if whole {
        // SAFETY: the product's output rows.
        (unsafe { product.out.start.add(rows.start * product.out.stride + outputs.start) }, product.out.stride)
    } else {
        (buffers.partial, PARTIAL_STRIDE)
    };
    let tiles = (ops.tiles)(matrix.packing, blocks.len());
    let bits = matrix.packing.bits();
    for piece in pieces(0..groups, PIECE / group_size) {
        let bytes = piece.start * group_size * bits / 8..piece.end * group_size * bits / 8;
        // While these blocks are unpacked the next ones are brought from memory, in the order in which they lie.
        let ahead = blocks.end * LANES * matrix.row_bytes + bytes.start * LANES * blocks.len();
        let more = matrix.row_bytes <= SHORT_ROW_BYTES && product.outputs.end > blocks.end * LANES;
        for (panel, block) in blocks.clone().enumerate() {
            let ahead = matrix.weight_bytes().as_ptr().wrapping_add(ahead + panel * LANES * bytes.len());
            // SAFETY: the buffers hold PIECE inputs of sixteen rows.
            unsafe { fill(ops, matrix, block, bytes.clone(), panel, more.then_some(ahead), buffers) };
        }
        for tile_rows in pieces(rows.clone(), tiles.len()) {
            let groups_at = tile_rows.start * x.group_stride;
            // SAFETY: inside the quantized rows, the parameters of this matrix, and the output.
            unsafe {
                let tile = TileInteger {
                    panels: buffers.panels,
                    panel_stride: PIECE * LANES,
                    groups: piece.len(),
                    steps: group_size / 4,
                    code_offset: (ops.code_offset)(matrix.packing),
                    scales: buffers.scales.add(piece.start * LANES),
                    parameter_stride,
                    values: x.values.add(x.value_at(tile_rows.start, piece.start * group_size)),
                    value_stride: VALUE_STRIDE,
                    activation_scales: x.scales.add(groups_at + piece.start),
                    sums: x.sums.add(groups_at + piece.start),
                    group_stride: x.group_stride,
                    first: piece.start == 0,
                    biases: (matrix.has_biases && piece.end == groups).then(|| TileBiases {
                        biases: buffers.biases,
                        scaled_sums: x.scaled_sums.add(groups_at),
                        groups,
                    }),
                    out: out.add((tile_rows.start - rows.start) * out_stride),
                    out_stride,
                };
                tiles[tile_rows.len() - 1](&tile);
            }
        }
    }
    if !whole {
        for row in rows.clone() {
            // SAFETY: the product's output rows; `partial` holds them all.
            unsafe {
                let from = buffers.partial.add((row - rows.start) * PARTIAL_STRIDE);
                let to = product.out.start.add(row * product.out.stride + outputs.start);
                to.copy_from_nonoverlapping(from, outputs.len());
            }
        }
    }
}

/// Fills one panel with the codes of `bytes` of each row of a block.
unsafe fn fill(
    ops: &Ops,
    matrix: &Matrix,
    block: usize,
    bytes: Range<usize>,
    panel: usize,
    ahead: Option<*const u8>,
    buffers: &Buffers,
) {
    let layout = ActivationLayout::new(matrix.group_size(), matrix.packing.planes());
    // SAFETY: the buffers hold PIECE inputs of sixteen rows.
    unsafe {
        let (mut rows, mut stride) = block_rows(matrix, block, bytes.clone(), buffers.staging);
        let mut row_bytes = bytes.len();
        let (source, _) = source(matrix.packing);
        if source == PanelSource::Spread {
            let packing = matrix.packing;
            row_bytes = bytes.len() * 8 / packing.bits();
            let spread_stride = PIECE + OVERREAD_BYTES;
            for row in 0..LANES {
                (ops.spread)(packing, rows.add(row * stride), row_bytes, buffers.codes.add(row * spread_stride));
            }
            (rows, stride) = (buffers.codes, spread_stride);
        }
        let ahead_step = match (ahead, source) {
            (None, _) => 0,
            (_, PanelSource::Spread) => 4 * matrix.packing.bits() * LANES,
            _ => 32 * LANES,
        };
        let ahead = ahead.unwrap_or(std::ptr::null());
        let panel = buffers.panels.add(panel * PIECE * LANES);
        let span = layout.span();
        (ops.fill_panel)(&FillPanel { source, rows, stride, bytes: row_bytes, span, panel, ahead, ahead_step });
    }
}

/// The exact path.
///
/// # Safety
/// As [`Kernels::linear_f32`](super::Kernels::linear_f32); the processor has the instruction set of `ops`.
pub(super) unsafe fn linear_f32(ops: &Ops, product: &Product, x: InputRows, scratch: &mut Scratch) {
    let matrix = product.matrix;
    let buffers = scratch.buffers(matrix);
    let blocks_at_once = if product.rows.len() > FEW_ROWS { BLOCKS_F32 } else { 1 };
    for blocks in pieces(product.outputs.start / LANES..product.outputs.end.div_ceil(LANES), blocks_at_once) {
        for (place, block) in blocks.clone().enumerate() {
            let at = place * matrix.groups() * LANES;
            // SAFETY: the buffers were sized for the matrix's groups.
            unsafe { (ops.parameters)(matrix, block, buffers.scales.add(at), buffers.biases.add(at)) };
        }
        for rows in pieces(product.rows.clone(), ROWS_F32) {
            // SAFETY: as above.
            unsafe { blocks_f32(ops, product, rows, blocks.clone(), x, &buffers) };
        }
    }
}

/// Some rows times some blocks of outputs.
unsafe fn blocks_f32(
    ops: &Ops,
    product: &Product,
    rows: Range<usize>,
    blocks: Range<usize>,
    x: InputRows,
    buffers: &Buffers,
) {
    let columns = product.matrix.columns();
    let whole_columns = columns / 16 * 16;
    // Lane sums of a row of a block.
    let lanes = |place: usize, row: usize| buffers.lanes.wrapping_add((place * ROWS_F32 + row) * LANES * 16);
    for inputs in pieces(0..whole_columns, INPUTS_F32).chain(pieces(whole_columns..columns, 16)) {
        // SAFETY: the buffers hold INPUTS_F32 inputs of the blocks' outputs and 16 inputs of ROWS_F32 rows.
        unsafe {
            let (mut from, mut stride) = (x.start.add(rows.start * x.stride + inputs.start), x.stride);
            if !inputs.len().is_multiple_of(16) {
                // A weight of +0 times -0 added to any sum leaves it as it is.
                for row in 0..rows.len() {
                    for index in 0..16 {
                        let value = if index < inputs.len() { *from.add(row * stride + index) } else { -0.0 };
                        *buffers.input_tail.add(16 * row + index) = value;
                    }
                }
                (from, stride) = (buffers.input_tail, 16);
            }
            for (place, block) in blocks.clone().enumerate() {
                let (weights, weight_stride) = decoded(ops, product.matrix, block, place, inputs.clone(), buffers);
                for tile_rows in pieces(0..rows.len(), ops.tiles_f32.len()) {
                    let (run, outputs) = ops.tiles_f32[tile_rows.len() - 1];
                    for output in (0..LANES).step_by(outputs) {
                        run(&TileF32 {
                            weights: weights.add(output * weight_stride),
                            weight_stride,
                            x: from.add(tile_rows.start * stride),
                            x_stride: stride,
                            inputs: inputs.len().next_multiple_of(16),
                            lanes: lanes(place, tile_rows.start).add(output * 16),
                            first: inputs.start == 0,
                        });
                    }
                }
            }
        }
    }
    for (place, block) in blocks.enumerate() {
        let outputs = block * LANES..((block + 1) * LANES).min(product.outputs.end);
        let mut sums = [0f32; LANES];
        for row in rows.clone() {
            // SAFETY: the lanes written above; the product's output rows.
            unsafe {
                (ops.sum_outputs)(lanes(place, row - rows.start), sums.as_mut_ptr());
                let to = product.out.start.add(row * product.out.stride + outputs.start);
                to.copy_from_nonoverlapping(sums.as_ptr(), outputs.len());
            }
        }
    }
}

/// Inputs of a block's weights as f32, with the bytes from one row to the next; padded with +0 to a multiple of 16.
unsafe fn decoded(
    ops: &Ops,
    matrix: &Matrix,
    block: usize,
    place: usize,
    inputs: Range<usize>,
    buffers: &Buffers,
) -> (*const u8, usize) {
    let (packing, group_size) = (matrix.packing, matrix.group_size());
    let bytes = inputs.start * packing.bits() / 8..inputs.end * packing.bits() / 8;
    // SAFETY: the buffers hold INPUTS_F32 inputs of sixteen rows.
    unsafe {
        let ragged = !inputs.len().is_multiple_of(16);
        let (rows, stride) = if ragged {
            staged_rows(matrix, block, bytes, buffers.staging)
        } else {
            block_rows(matrix, block, bytes, buffers.staging)
        };
        if packing == Packing::F32 {
            return (rows, stride);
        }
        let groups = matrix.groups();
        let first_group = if groups == 0 { 0 } else { inputs.start / group_size };
        let parameters_at = (place * groups + first_group) * LANES;
        let weights = buffers.weights.add(place * LANES * INPUTS_F32);
        let spread = matches!(packing, Packing::Affine(2..=6) | Packing::Fp4);
        for row in 0..LANES {
            let mut from = rows.add(row * stride);
            if spread {
                (ops.spread)(packing, from, inputs.len(), buffers.codes);
                from = buffers.codes;
            }
            (ops.decode_row)(&DecodeRow {
                packing,
                from,
                count: inputs.len().next_multiple_of(16),
                group_size,
                scales: buffers.scales.add(parameters_at + row),
                biases: buffers.biases.add(parameters_at + row),
                to: weights.add(row * INPUTS_F32),
            });
        }
        (weights.cast(), 4 * INPUTS_F32)
    }
}
