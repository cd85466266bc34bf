//! Products of few rows: weights are read once, each row of them from its start to its end, and as fast as memory gives
//! them.
//!
//! Four rows of weights at a time are multiplied with the activations; the integer sum of each group is kept for a block
//! of sixteen outputs, and then summed over the groups in the order that `scalar.rs` gives. Nothing is laid out anew.

use super::quantized_rows::{PIECE, VALUE_STRIDE};
use super::simd::{PanelSource, Simd};

/// Rows of weights that are read side by side.
pub(super) const ROWS_AT_ONCE: usize = 4;

/// The shortest groups, in bytes of a row: half of a lane of 128 bits would be another's.
pub(super) const SHORTEST_GROUP_BYTES: usize = 16;

/// Groups past a row's last one that may be written.
pub(super) const SLACK_GROUPS: usize = 4;

/// A register of bytes, or of i32.
///
/// # Safety
/// All functions: the processor has the instruction set, and pointers hold what is read or written there, at any
/// alignment.
pub(super) trait Register {
    /// Bytes of one.
    const BYTES: usize;
    type V: Copy;

    unsafe fn zero() -> Self::V;
    /// `BYTES` bytes.
    unsafe fn load(from: *const u8) -> Self::V;
    /// The first `len` bytes, a multiple of 4; zeros for the rest.
    unsafe fn load_first(from: *const u8, len: usize) -> Self::V;
    /// Pieces of 16 bytes, `from`, `from + step`, ...
    unsafe fn gather_16(from: *const i8, step: usize) -> Self::V;
    /// Pieces of 32 bytes, likewise.
    unsafe fn gather_32(from: *const i8, step: usize) -> Self::V;
    /// `bytes >> SHIFT & MASK` in each byte.
    unsafe fn field<const SHIFT: u32, const MASK: u8>(bytes: Self::V) -> Self::V;
    /// fp4 codes below 16 as the panel's codes.
    unsafe fn fp4(codes: Self::V) -> Self::V;
    /// `128 * codes * high + codes * low`, summed in each i32 over its four bytes and over the planes. `WIDE`: codes of
    /// 8 bits; else the largest sum of two products over all planes fits 16 bits.
    unsafe fn dot<const PLANES: usize, const WIDE: bool>(
        codes: &[Self::V; PLANES],
        high: &[Self::V; PLANES],
        low: &[Self::V; PLANES],
    ) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    /// In each lane of 128 bits the sums of the four registers' lanes.
    unsafe fn sum_lanes(registers: [Self::V; 4]) -> Self::V;
    /// Adds up the lanes of each group of `GROUP` bytes, and stores four i32 for each, sixteen i32 apart.
    unsafe fn store_groups<const GROUP: usize>(to: *mut i32, lanes: Self::V);
    /// Asks for a cache line; the address need not be readable.
    unsafe fn prefetch(line: *const u8);
}

/// Four rows of weights times some rows of activations.
pub(super) struct GroupSums {
    pub source: PanelSource,
    /// Bytes of a row that share a scale.
    pub group_bytes: usize,
    /// The first row.
    pub weights: *const u8,
    /// Bytes from one row to the next.
    pub stride: usize,
    /// Bytes of each row, whole groups.
    pub bytes: usize,
    /// What is wanted next, as far after each row's first byte as that is; it need not be readable.
    pub ahead: usize,
    /// High bytes of the first row of activations; low ones are PIECE further.
    pub values: *const i8,
    /// Bytes from one piece to the next.
    pub piece_stride: usize,
    /// Rows of activations.
    pub rows: usize,
    /// `[rows][groups][16]`, of which four are written, for up to [`SLACK_GROUPS`] groups more.
    pub out: *mut i32,
    /// Elements from one row to the next.
    pub out_stride: usize,
}

/// The sums of all groups.
#[inline(always)]
pub(super) unsafe fn group_sums<R: Register>(sums: &GroupSums) {
    // SAFETY: the driver's pointers.
    unsafe {
        match (sums.source, sums.group_bytes, R::BYTES) {
            (PanelSource::Nibbles, 16, _) => run::<R, 2, 2, 16, 16, 1>(sums),
            (PanelSource::Nibbles, 32, _) => run::<R, 2, 2, 32, 32, 1>(sums),
            (PanelSource::Nibbles, 64, 32) => run::<R, 2, 2, 32, 64, 2>(sums),
            (PanelSource::Nibbles, 64, _) => run::<R, 2, 2, 32, 64, 1>(sums),
            (PanelSource::Fp4, 16, _) => run::<R, 3, 2, 16, 16, 1>(sums),
            (PanelSource::Pairs, 16, _) => run::<R, 4, 4, 16, 16, 1>(sums),
            (PanelSource::Pairs, 32, _) => run::<R, 4, 4, 32, 32, 1>(sums),
            (PanelSource::Bytes, 32, _) => run::<R, 1, 1, 64, 32, 1>(sums),
            (PanelSource::Bytes, 64, 32) => run::<R, 1, 1, 64, 64, 2>(sums),
            (PanelSource::Bytes, 64, _) => run::<R, 1, 1, 64, 64, 1>(sums),
            (PanelSource::Bytes, 128, 32) => run::<R, 1, 1, 64, 128, 4>(sums),
            (PanelSource::Bytes, 128, _) => run::<R, 1, 1, 64, 128, 2>(sums),
            (PanelSource::Spread, 32, _) => run::<R, 0, 1, 64, 32, 1>(sums),
            (PanelSource::Spread, 64, 32) => run::<R, 0, 1, 64, 64, 2>(sums),
            (PanelSource::Spread, 64, _) => run::<R, 0, 1, 64, 64, 1>(sums),
            (PanelSource::Spread, 128, 32) => run::<R, 0, 1, 64, 128, 4>(sums),
            (PanelSource::Spread, 128, _) => run::<R, 0, 1, 64, 128, 2>(sums),
            (source, bytes, _) => unreachable!("no sums of {source:?} in groups of {bytes} bytes"),
        }
    }
}

/// `SOURCE` is the place in [`PanelSource`], `SPAN` the weight bytes whose activations lie plane by plane, `CHUNKS` the
/// registers that a group takes.
#[inline(always)]
unsafe fn run<
    R: Register,
    const SOURCE: usize,
    const PLANES: usize,
    const SPAN: usize,
    const GROUP: usize,
    const CHUNKS: usize,
>(
    sums: &GroupSums,
) {
    // SAFETY: the driver's pointers.
    unsafe {
        let mut out = sums.out;
        let mut values = sums.values;
        let piece_bytes = PIECE / PLANES;
        for piece in (0..sums.bytes).step_by(piece_bytes) {
            let end = sums.bytes.min(piece + piece_bytes);
            for unit in (piece..end).step_by(CHUNKS * R::BYTES) {
                let mut codes = [[[R::zero(); PLANES]; ROWS_AT_ONCE]; CHUNKS];
                for (chunk, codes) in codes.iter_mut().enumerate() {
                    let at = unit + chunk * R::BYTES;
                    for (row, codes) in codes.iter_mut().enumerate() {
                        let from = sums.weights.add(row * sums.stride + at);
                        if R::BYTES == 64 || at.is_multiple_of(64) {
                            R::prefetch(from.wrapping_add(sums.ahead));
                        }
                        let left = end - at;
                        let bytes = if left < R::BYTES { R::load_first(from, left) } else { R::load(from) };
                        unpack::<R, SOURCE, PLANES>(bytes, codes);
                    }
                }
                for row in 0..sums.rows {
                    let mut lanes = [R::zero(); ROWS_AT_ONCE];
                    for (chunk, codes) in codes.iter().enumerate() {
                        let at = (unit - piece + chunk * R::BYTES) * PLANES;
                        let high = values.add(row * VALUE_STRIDE + at);
                        let x = [high, high.add(PIECE)].map(|from| planes::<R, PLANES, SPAN>(from));
                        for (lanes, codes) in lanes.iter_mut().zip(codes) {
                            let dot = if SOURCE == 1 {
                                R::dot::<PLANES, true>(codes, &x[0], &x[1])
                            } else {
                                R::dot::<PLANES, false>(codes, &x[0], &x[1])
                            };
                            *lanes = if chunk == 0 { dot } else { R::add(*lanes, dot) };
                        }
                    }
                    R::store_groups::<GROUP>(out.add(row * sums.out_stride), R::sum_lanes(lanes));
                }
                out = out.add(16 * (CHUNKS * R::BYTES / GROUP));
            }
            values = values.add(sums.piece_stride);
        }
    }
}

/// The codes of each plane.
#[inline(always)]
unsafe fn unpack<R: Register, const SOURCE: usize, const PLANES: usize>(bytes: R::V, codes: &mut [R::V; PLANES]) {
    // SAFETY: values alone.
    unsafe {
        match SOURCE {
            0 | 1 => codes[0] = bytes,
            2 | 3 => {
                codes[0] = R::field::<0, 15>(bytes);
                codes[1] = R::field::<4, 15>(bytes);
                if SOURCE == 3 {
                    *codes = codes.map(|codes| R::fp4(codes));
                }
            }
            _ => {
                codes[0] = R::field::<0, 3>(bytes);
                codes[1] = R::field::<2, 3>(bytes);
                codes[2] = R::field::<4, 3>(bytes);
                codes[3] = R::field::<6, 3>(bytes);
            }
        }
    }
}

/// The activations that each plane of a register of weight bytes meets.
#[inline(always)]
unsafe fn planes<R: Register, const PLANES: usize, const SPAN: usize>(from: *const i8) -> [R::V; PLANES] {
    // SAFETY: the driver's pointers.
    unsafe {
        let mut x = [R::zero(); PLANES];
        for (plane, x) in x.iter_mut().enumerate() {
            let from = from.add(plane * SPAN);
            *x = match SPAN {
                16 => R::gather_16(from, 16 * PLANES),
                32 => R::gather_32(from, 32 * PLANES),
                _ => R::load(from.cast()),
            };
        }
        x
    }
}

/// Sums of groups, to results of sixteen outputs.
pub(super) struct Finish {
    pub groups: usize,
    /// `[groups][16]`, as [`GroupSums::out`].
    pub sums: *const i32,
    /// What each code lacks to its true value; multiplied with the sum of activations.
    pub code_offset: i32,
    /// `[groups][16]`
    pub scales: *const f32,
    /// `[groups][16]`, where the format has them.
    pub biases: Option<*const f32>,
    /// `[groups]`, the activations' scales.
    pub activation_scales: *const f32,
    /// `[groups]`, their sums as integers.
    pub activation_sums: *const i32,
    /// `[groups]`, the same with the scale.
    pub scaled_sums: *const f32,
    pub out: *mut f32,
}

/// The float operations of the integer path, in the order that `scalar.rs` gives.
#[inline(always)]
pub(super) unsafe fn finish<S: Simd>(finish: &Finish) {
    // SAFETY: the driver's pointers.
    unsafe {
        let mut acc = S::splat(0.0);
        for group in 0..finish.groups {
            let mut sums = S::load_i32(finish.sums.add(16 * group));
            if finish.code_offset != 0 {
                sums = S::add_i32(sums, S::splat_i32(finish.code_offset * *finish.activation_sums.add(group)));
            }
            let scale = S::mul(S::load(finish.scales.add(16 * group)), S::splat(*finish.activation_scales.add(group)));
            acc = S::fma(S::to_f32(sums), scale, acc);
        }
        if let Some(biases) = finish.biases {
            let mut acc_bias = S::splat(0.0);
            for group in 0..finish.groups {
                let bias = S::load(biases.add(16 * group));
                acc_bias = S::fma(bias, S::splat(*finish.scaled_sums.add(group)), acc_bias);
            }
            acc = S::add(acc, acc_bias);
        }
        S::store(finish.out, acc);
    }
}
