//! What a register of sixteen lanes does, and the register-tiled loops over it that every vector instruction set
//! shares. The bodies are inlined into functions that enable the instruction set's features.

// Loops over the rows and panels of a tile say which register they mean.
#![allow(clippy::needless_range_loop)]

use super::matrix::{Matrix, Packing, ParameterBlocks};
use super::quantized_rows::{ActivationLayout, GroupScale, PIECE, QuantizedPointers, bytes_of};

/// Sixteen lanes of f32 and i32, in as many registers as they need.
///
/// # Safety
/// All functions: the processor has the instruction set, and pointers hold what is read or written there, at any
/// alignment.
pub(super) trait Simd {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen i32.
    type I: Copy;
    /// Four codes for each of sixteen outputs, ready to be multiplied.
    type W: Copy;
    /// Four activations, ready to be multiplied with each output's codes.
    type X: Copy;
    /// Sums of products over some steps.
    type P: Copy;
    /// Four bytes of each of sixteen rows.
    type T: Copy;
    /// Steps whose products [`Simd::P`] can hold: 1, 2 or 4.
    const CHAIN: usize;

    unsafe fn splat(value: f32) -> Self::F;
    unsafe fn load(from: *const f32) -> Self::F;
    unsafe fn store(to: *mut f32, value: Self::F);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    unsafe fn splat_i32(value: i32) -> Self::I;
    unsafe fn load_i32(from: *const i32) -> Self::I;
    unsafe fn add_i32(a: Self::I, b: Self::I) -> Self::I;
    /// `high * 128 + offset`, wrapping.
    unsafe fn below(high: Self::I, offset: Self::I) -> Self::I;
    unsafe fn to_f32(value: Self::I) -> Self::F;
    /// Codes of one panel step, `[16 outputs][4]`.
    unsafe fn codes(from: *const u8) -> Self::W;
    /// Four activations.
    unsafe fn activations(from: *const i8) -> Self::X;
    /// What products are added to, to go on with these sums.
    unsafe fn begin(sums: Self::I) -> Self::P;
    /// `products[n] + sum over i of codes[n][i] * activations[i]`.
    unsafe fn dot(products: Self::P, codes: Self::W, activations: Self::X) -> Self::P;
    /// The sums that products began with, and the products.
    unsafe fn end(sums: Self::I, products: Self::P) -> Self::I;
    /// Sixteen unsigned bytes.
    unsafe fn from_u8(from: *const u8) -> Self::F;
    /// Sixteen bf16.
    unsafe fn from_bf16(from: *const u8) -> Self::F;
    /// Sixteen f16.
    unsafe fn from_f16(from: *const u8) -> Self::F;
    /// Sixteen E4M3.
    unsafe fn from_e4m3(from: *const u8) -> Self::F;
    /// Sixteen E8M0.
    unsafe fn from_e8m0(from: *const u8) -> Self::F;
    /// The largest of sixteen `x.to_bits() & 0x7fff_ffff` and of `than`.
    unsafe fn max_magnitude(x: Self::F, than: Self::I) -> Self::I;
    /// The largest lane, unsigned.
    unsafe fn max_lane(value: Self::I) -> u32;
    /// Sixteen `round_ties_even(x)`, each within -16256 and 16256.
    unsafe fn store_rounded(to: *mut i16, x: Self::F);
    /// For each of sixteen registers the sum of its lanes: `l + 8`, `l + 4`, `l + 2`, `l + 1`.
    unsafe fn sum_lanes(registers: &[Self::F; 16]) -> Self::F;
    /// The next 32 bytes of sixteen rows, by columns of four bytes.
    unsafe fn transpose(rows: *const u8, stride: usize) -> [Self::T; 8];
    /// `bytes >> SHIFT & MASK` in each byte.
    unsafe fn field<const SHIFT: u32, const MASK: u8>(bytes: Self::T) -> Self::T;
    /// fp4 codes below 16 as the panel's codes.
    unsafe fn fp4(codes: Self::T) -> Self::T;
    /// Codes of 8 bits as the panel's codes.
    unsafe fn wide(codes: Self::T) -> Self::T;
    /// One panel step, `[16 outputs][4]`.
    unsafe fn store_codes(to: *mut u8, codes: Self::T);
    /// Asks for a cache line; the address need not be readable.
    unsafe fn prefetch(line: *const u8);
}

/// How the bytes that a panel is filled from hold their codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PanelSource {
    /// One code of fewer than 8 bits a byte.
    Spread,
    /// One code of 8 bits.
    Bytes,
    /// Two codes.
    Nibbles,
    /// Two fp4 codes.
    Fp4,
    /// Four codes of 2 bits.
    Pairs,
}

/// Sixteen rows of packed codes to be laid out as a panel, `[steps][16 outputs][4]`.
pub(super) struct FillPanel {
    pub source: PanelSource,
    /// Row 0; readable up to 31 bytes past `bytes`.
    pub rows: *const u8,
    /// Bytes from one row to the next.
    pub stride: usize,
    /// Bytes of each row.
    pub bytes: usize,
    /// Bytes whose codes lie plane by plane.
    pub span: usize,
    /// Has room for the codes of up to 31 bytes more.
    pub panel: *mut u8,
    /// What is wanted next from memory.
    pub ahead: *const u8,
    /// Bytes to ask for with each 32 bytes of a row.
    pub ahead_step: usize,
}

/// Asks for some bytes, which need not be readable, to be brought to the caches.
#[inline(always)]
pub(super) unsafe fn prefetch<S: Simd>(bytes: *const u8, len: usize) {
    for line in (0..len).step_by(64) {
        // SAFETY: any address will do.
        unsafe { S::prefetch(bytes.wrapping_add(line)) };
    }
}

/// Fills a panel.
#[inline(always)]
pub(super) unsafe fn fill_panel<S: Simd>(fill: &FillPanel) {
    // SAFETY: the driver's pointers.
    unsafe {
        match (fill.source, fill.span) {
            (PanelSource::Spread, _) => fill_planes::<S, 0, 8>(fill),
            (PanelSource::Bytes, _) => fill_planes::<S, 1, 8>(fill),
            (PanelSource::Nibbles, 32) => fill_planes::<S, 2, 8>(fill),
            (PanelSource::Nibbles, _) => fill_planes::<S, 2, 4>(fill),
            (PanelSource::Fp4, 16) => fill_planes::<S, 3, 4>(fill),
            (PanelSource::Fp4, _) => fill_planes::<S, 3, 2>(fill),
            (PanelSource::Pairs, 32) => fill_planes::<S, 4, 8>(fill),
            (PanelSource::Pairs, 16) => fill_planes::<S, 4, 4>(fill),
            (PanelSource::Pairs, _) => fill_planes::<S, 4, 2>(fill),
        }
    }
}

/// `SOURCE` is the place in [`PanelSource`], `COLUMNS` the columns of four bytes in a span.
#[inline(always)]
unsafe fn fill_planes<S: Simd, const SOURCE: usize, const COLUMNS: usize>(fill: &FillPanel) {
    let planes = [1, 1, 2, 2, 4][SOURCE];
    // SAFETY: the driver's pointers.
    unsafe {
        let mut panel = fill.panel;
        let mut ahead = fill.ahead;
        for unit in (0..fill.bytes).step_by(32) {
            prefetch::<S>(ahead, fill.ahead_step);
            ahead = ahead.wrapping_add(fill.ahead_step);
            let bytes = S::transpose(fill.rows.add(unit), fill.stride);
            for (column, bytes) in bytes.into_iter().enumerate() {
                let at = panel.add(64 * (column / COLUMNS * COLUMNS * planes + column % COLUMNS));
                let plane = |p: usize| at.add(64 * COLUMNS * p);
                match SOURCE {
                    0 => S::store_codes(at, bytes),
                    1 => S::store_codes(at, S::wide(bytes)),
                    2 => {
                        S::store_codes(plane(0), S::field::<0, 15>(bytes));
                        S::store_codes(plane(1), S::field::<4, 15>(bytes));
                    }
                    3 => {
                        S::store_codes(plane(0), S::fp4(S::field::<0, 15>(bytes)));
                        S::store_codes(plane(1), S::fp4(S::field::<4, 15>(bytes)));
                    }
                    _ => {
                        S::store_codes(plane(0), S::field::<0, 3>(bytes));
                        S::store_codes(plane(1), S::field::<2, 3>(bytes));
                        S::store_codes(plane(2), S::field::<4, 3>(bytes));
                        S::store_codes(plane(3), S::field::<6, 3>(bytes));
                    }
                }
            }
            panel = panel.add(64 * 8 * planes);
        }
    }
}

/// Scales and biases of sixteen rows as f32, `[groups][16]` each; fp4's scales are halved.
#[inline(always)]
pub(super) unsafe fn parameters<S: Simd>(matrix: &Matrix, block: usize, scales: *mut f32, biases: *mut f32) {
    let stride = matrix.parameter_stride();
    let first = block * matrix.groups() * stride;
    // SAFETY: every block has `groups * stride` elements; the driver's buffers have room for all groups.
    unsafe {
        macro_rules! copy {
            ($blocks:ident, $read:expr) => {
                for group in 0..matrix.groups() {
                    let from = $blocks.as_ptr().add(first + group * stride);
                    S::store(scales.add(16 * group), $read(from.cast()));
                    if matrix.has_biases {
                        S::store(biases.add(16 * group), $read(from.add(16).cast()));
                    }
                }
            };
        }
        match &matrix.parameters {
            ParameterBlocks::None => {}
            ParameterBlocks::Bf16(blocks) => copy!(blocks, S::from_bf16),
            ParameterBlocks::F16(blocks) => copy!(blocks, S::from_f16),
            ParameterBlocks::F32(blocks) => copy!(blocks, S::load),
            ParameterBlocks::E8m0(blocks) => copy!(blocks, S::from_e8m0),
            ParameterBlocks::E4m3(blocks) => copy!(blocks, S::from_e4m3),
        }
        if matrix.packing == Packing::Fp4 {
            for group in 0..matrix.groups() {
                let scale = scales.add(16 * group);
                S::store(scale, S::mul(S::splat(0.5), S::load(scale)));
            }
        }
    }
}

/// A piece of one row of weights to be decoded to f32.
pub(super) struct DecodeRow {
    pub packing: Packing,
    /// The piece's bytes, or for codes of fewer than 8 bits one byte a code; 64 bytes more are readable.
    pub from: *const u8,
    /// Weights, a multiple of 16 and of the group size.
    pub count: usize,
    pub group_size: usize,
    /// This row's scale of the piece's first group; the next group's is 16 elements on.
    pub scales: *const f32,
    /// Likewise.
    pub biases: *const f32,
    pub to: *mut f32,
}

/// fp4 codes are spread as twice their value plus this, which is never negative.
pub(super) const FP4_OFFSET: i8 = 12;

/// Decodes a piece of a row.
#[inline(always)]
pub(super) unsafe fn decode_row<S: Simd>(row: &DecodeRow) {
    // SAFETY: the driver's pointers.
    unsafe {
        match row.packing {
            Packing::F32 => row.from.copy_to_nonoverlapping(row.to.cast(), 4 * row.count),
            Packing::F16 => {
                for k in (0..row.count).step_by(16) {
                    S::store(row.to.add(k), S::from_f16(row.from.add(2 * k)));
                }
            }
            Packing::Bf16 => {
                for k in (0..row.count).step_by(16) {
                    S::store(row.to.add(k), S::from_bf16(row.from.add(2 * k)));
                }
            }
            Packing::Affine(_) => {
                for group in 0..row.count / row.group_size {
                    let scale = S::splat(*row.scales.add(16 * group));
                    let bias = S::splat(*row.biases.add(16 * group));
                    let first = group * row.group_size;
                    for k in (first..first + row.group_size).step_by(16) {
                        let scaled = S::mul(scale, S::from_u8(row.from.add(k)));
                        S::store(row.to.add(k), S::add(scaled, bias));
                    }
                }
            }
            Packing::Fp4 => {
                let offset = S::splat(-f32::from(FP4_OFFSET));
                for k in (0..row.count).step_by(16) {
                    let scale = S::splat(*row.scales.add(16 * (k / row.group_size)));
                    let twice = S::add(S::from_u8(row.from.add(k)), offset);
                    S::store(row.to.add(k), S::mul(twice, scale));
                }
            }
            Packing::Fp8 => {
                for k in (0..row.count).step_by(16) {
                    let scale = S::splat(*row.scales.add(16 * (k / row.group_size)));
                    S::store(row.to.add(k), S::mul(S::from_e4m3(row.from.add(k)), scale));
                }
            }
        }
    }
}

/// Quantizes one row, as the scalar twin.
#[inline(always)]
pub(super) unsafe fn quantize_row<S: Simd>(
    layout: ActivationLayout,
    x: *const f32,
    columns: usize,
    out: QuantizedPointers,
    row: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        match layout.planes() {
            1 => quantize_planes::<S, 1>(layout, x, columns, out, row),
            2 => quantize_planes::<S, 2>(layout, x, columns, out, row),
            _ => quantize_planes::<S, 4>(layout, x, columns, out, row),
        }
    }
}

/// The longest group.
const LONGEST_GROUP: usize = 128;

#[inline(always)]
unsafe fn quantize_planes<S: Simd, const PLANES: usize>(
    layout: ActivationLayout,
    x: *const f32,
    columns: usize,
    out: QuantizedPointers,
    row: usize,
) {
    let (group_size, span) = (layout.group_size(), layout.span());
    let mut natural = [0i16; LONGEST_GROUP];
    let (mut high, mut low) = ([0i8; LONGEST_GROUP], [0i8; LONGEST_GROUP]);
    for group in 0..columns / group_size {
        // SAFETY: the caller's contract, as in the scalar twin.
        unsafe {
            let x = x.add(group * group_size);
            let mut max = S::splat_i32(0);
            for k in (0..group_size).step_by(16) {
                max = S::max_magnitude(S::load(x.add(k)), max);
            }
            let to = out.values.add(out.value_at(row, group * group_size));
            let mut sum = 0;
            let scale = match GroupScale::new(S::max_lane(max)) {
                GroupScale::Zero(scale) => {
                    to.write_bytes(0, group_size);
                    to.add(PIECE).write_bytes(0, group_size);
                    scale
                }
                GroupScale::Scaled { scale, multiplier } => {
                    let multiplier = S::splat(multiplier);
                    for k in (0..group_size).step_by(16) {
                        S::store_rounded(natural.as_mut_ptr().add(k), S::mul(S::load(x.add(k)), multiplier));
                    }
                    // Pieces of a fixed length, which compile to vector instructions.
                    let pieces = natural[..group_size].as_chunks::<16>().0;
                    let bytes = high.as_chunks_mut::<16>().0.iter_mut().zip(low.as_chunks_mut::<16>().0);
                    for (natural, (high, low)) in pieces.iter().zip(bytes) {
                        for k in 0..16 {
                            [high[k], low[k]] = bytes_of(natural[k]);
                            sum += i32::from(natural[k]);
                        }
                    }
                    for (from, to) in [(&high, to), (&low, to.add(PIECE))] {
                        match PLANES {
                            1 => to.copy_from_nonoverlapping(from.as_ptr(), group_size),
                            _ => {
                                for block in (0..group_size).step_by(span * PLANES) {
                                    apart::<PLANES>(from.as_ptr().add(block), span, to.add(block));
                                }
                            }
                        }
                    }
                    scale
                }
            };
            let at = row * out.group_stride + group;
            *out.scales.add(at) = scale;
            *out.sums.add(at) = sum;
            *out.scaled_sums.add(at) = scale * sum as f32;
        }
    }
}

/// Bytes that lie side by side, one for each plane, to planes of `span` bytes.
#[inline(always)]
unsafe fn apart<const PLANES: usize>(from: *const i8, span: usize, to: *mut i8) {
    // SAFETY: the caller's buffers; spans are multiples of 8.
    unsafe {
        for byte in (0..span).step_by(8) {
            for plane in 0..PLANES {
                let mut eight = [0i8; 8];
                for (k, value) in eight.iter_mut().enumerate() {
                    *value = *from.add((byte + k) * PLANES + plane);
                }
                to.add(plane * span + byte).cast::<[i8; 8]>().write_unaligned(eight);
            }
        }
    }
}

/// A tile of the integer path: some rows times one or two panels of sixteen outputs, over some groups.
pub(super) struct TileInteger {
    /// `[panels][steps][16 outputs][4]`, codes unpacked; steps follow the order of activations.
    pub panels: *const u8,
    /// Bytes from one panel to the next.
    pub panel_stride: usize,
    /// Groups of this tile.
    pub groups: usize,
    /// Steps of one group.
    pub steps: usize,
    /// What each code lacks to its true value; multiplied with the sum of activations.
    pub code_offset: i32,
    /// `[panels][groups][16]`, from this tile's first group.
    pub scales: *const f32,
    /// Elements from one panel's scales (or biases) to the next's.
    pub parameter_stride: usize,
    /// High bytes of the first row, from this tile's first group; low ones are PIECE further.
    pub values: *const i8,
    /// Bytes from one row's values to the next's.
    pub value_stride: usize,
    /// Activation scales of the first row, from this tile's first group.
    pub activation_scales: *const f32,
    /// Sums of integers, likewise.
    pub sums: *const i32,
    /// Elements from one row's groups to the next's.
    pub group_stride: usize,
    /// Results so far are read from `out` unless this is the first tile of its outputs.
    pub first: bool,
    /// With the last tile of these outputs: the biases, over all groups.
    pub biases: Option<TileBiases>,
    /// `[rows][panels * 16]`.
    pub out: *mut f32,
    /// Elements from one row of `out` to the next.
    pub out_stride: usize,
}

/// The second sum of the integer path.
pub(super) struct TileBiases {
    /// `[panels][groups][16]`.
    pub biases: *const f32,
    /// `xsum` of the first row.
    pub scaled_sums: *const f32,
    /// All groups.
    pub groups: usize,
}

/// `R` rows times `P` panels.
#[inline(always)]
pub(super) unsafe fn tile_integer<S: Simd, const R: usize, const P: usize>(tile: &TileInteger) {
    // SAFETY: the driver hands over pointers to all that the tile's sizes say.
    unsafe {
        let mut acc = [[S::splat(0.0); P]; R];
        if !tile.first {
            for r in 0..R {
                for p in 0..P {
                    acc[r][p] = S::load(tile.out.add(r * tile.out_stride + 16 * p));
                }
            }
        }
        let mut panel = tile.panels;
        let mut values = tile.values;
        for group in 0..tile.groups {
            let mut sums = [[S::splat_i32(0); P]; R];
            // First the products with the high bytes, then those with the low ones on top of 128 times the first.
            for plane in 0..2 {
                if plane == 1 {
                    for r in 0..R {
                        let offset = tile.code_offset * *tile.sums.add(r * tile.group_stride + group);
                        for p in 0..P {
                            sums[r][p] = S::below(sums[r][p], S::splat_i32(offset));
                        }
                    }
                }
                let (mut panel, mut values) = (panel, values.add(plane * PIECE));
                for _ in 0..tile.steps / 4 {
                    for chain in (0..4).step_by(S::CHAIN) {
                        let mut products = [[S::begin(sums[0][0]); P]; R];
                        for r in 0..R {
                            for p in 0..P {
                                products[r][p] = S::begin(sums[r][p]);
                            }
                        }
                        for step in chain..chain + S::CHAIN {
                            let mut codes = [S::codes(panel.add(64 * step)); P];
                            for p in 1..P {
                                codes[p] = S::codes(panel.add(p * tile.panel_stride + 64 * step));
                            }
                            for r in 0..R {
                                let x = S::activations(values.add(r * tile.value_stride + 4 * step));
                                for p in 0..P {
                                    products[r][p] = S::dot(products[r][p], codes[p], x);
                                }
                            }
                        }
                        for r in 0..R {
                            for p in 0..P {
                                sums[r][p] = S::end(sums[r][p], products[r][p]);
                            }
                        }
                    }
                    panel = panel.add(256);
                    values = values.add(16);
                }
            }
            panel = panel.add(64 * tile.steps);
            values = values.add(4 * tile.steps);
            let mut scales = [S::splat(0.0); P];
            for p in 0..P {
                scales[p] = S::load(tile.scales.add(p * tile.parameter_stride + 16 * group));
            }
            for r in 0..R {
                let scale = S::splat(*tile.activation_scales.add(r * tile.group_stride + group));
                for p in 0..P {
                    acc[r][p] = S::fma(S::to_f32(sums[r][p]), S::mul(scales[p], scale), acc[r][p]);
                }
            }
        }
        if let Some(last) = &tile.biases {
            let mut acc_bias = [[S::splat(0.0); P]; R];
            for group in 0..last.groups {
                for p in 0..P {
                    let bias = S::load(last.biases.add(p * tile.parameter_stride + 16 * group));
                    for r in 0..R {
                        let sum = S::splat(*last.scaled_sums.add(r * tile.group_stride + group));
                        acc_bias[r][p] = S::fma(bias, sum, acc_bias[r][p]);
                    }
                }
            }
            for r in 0..R {
                for p in 0..P {
                    acc[r][p] = S::add(acc[r][p], acc_bias[r][p]);
                }
            }
        }
        for r in 0..R {
            for p in 0..P {
                S::store(tile.out.add(r * tile.out_stride + 16 * p), acc[r][p]);
            }
        }
    }
}

/// A tile of the exact path: some rows times some outputs, over some inputs.
pub(super) struct TileF32 {
    /// `[outputs][inputs]`, f32 at any alignment.
    pub weights: *const u8,
    /// Bytes from one output's weights to the next's.
    pub weight_stride: usize,
    /// `[rows][inputs]`.
    pub x: *const f32,
    /// Elements from one row of `x` to the next.
    pub x_stride: usize,
    /// Inputs of this tile, a multiple of 16.
    pub inputs: usize,
    /// Lane sums, `[rows][16 outputs][16 lanes]`.
    pub lanes: *mut f32,
    /// Lane sums start at zero in the first tile of their outputs.
    pub first: bool,
}

/// `R` rows times `N` outputs.
#[inline(always)]
pub(super) unsafe fn tile_f32<S: Simd, const R: usize, const N: usize>(tile: &TileF32) {
    // SAFETY: the driver hands over pointers to all that the tile's sizes say.
    unsafe {
        let mut acc = [[S::splat(0.0); N]; R];
        if !tile.first {
            for r in 0..R {
                for n in 0..N {
                    acc[r][n] = S::load(tile.lanes.add((r * 16 + n) * 16));
                }
            }
        }
        for k in (0..tile.inputs).step_by(16) {
            let mut weights = [S::splat(0.0); N];
            for n in 0..N {
                weights[n] = S::load(tile.weights.add(n * tile.weight_stride + 4 * k).cast());
            }
            for r in 0..R {
                let x = S::load(tile.x.add(r * tile.x_stride + k));
                for n in 0..N {
                    acc[r][n] = S::fma(weights[n], x, acc[r][n]);
                }
            }
        }
        for r in 0..R {
            for n in 0..N {
                S::store(tile.lanes.add((r * 16 + n) * 16), acc[r][n]);
            }
        }
    }
}

/// Sums the lanes of sixteen outputs, `[16 outputs][16 lanes]`, into sixteen results.
#[inline(always)]
pub(super) unsafe fn sum_outputs<S: Simd>(lanes: *const f32, out: *mut f32) {
    // SAFETY: the driver's pointers.
    unsafe {
        let mut registers = [S::splat(0.0); 16];
        for (n, register) in registers.iter_mut().enumerate() {
            *register = S::load(lanes.add(16 * n));
        }
        S::store(out, S::sum_lanes(&registers));
    }
}
