//! Attention over the paged cache: what its kernels are given, how work can be cut, and its one meaning
//! (the plain functions of `scalar`), which every instruction set and every way of cutting repeats bit for bit.
//!
//! Query row t sees the keys at positions `from..until` of its own sequence.
//! - Score: `s = ((a0 + a1) + (a2 + a3)) * scale`, where `a_j` takes `fma(q[d], k[d], a_j)` for d = j, j + 4, ...
//!   ascending, from 0.
//! - Keys are taken in splits of [`SPLIT`] absolute positions (split i: `SPLIT * i ..`), cut to `from..until`. In
//!   a split: `m` = the largest score; `p = exp(s - m)`; `l` = the sum of p in 16 lanes (lane = position mod 16,
//!   positions ascending, then the tree of [`lane_sum`](super::rows::lane_sum)); `acc[d]` takes
//!   `fma(p, v[d], acc[d])`, positions ascending, from 0.
//! - Splits are joined in ascending order, the first as it is, each further one (m2, l2, acc2) by
//!   `top = greater(m2, m)`, `a = exp(m - top)`, `b = exp(m2 - top)`, `l = fma(l2, b, l * a)`,
//!   `acc = fma(acc2, b, acc * a)`, `m = top`; at last `out[d] = acc[d] / l`.
//! - A row that sees nothing (`from == until`) gives zeros.
//!
//! A NaN among the scores a row sees makes the row NaN. Positions outside `from..until` never change a result,
//! whatever lies there, and blocks that hold none of these positions are never touched.

pub(crate) mod scalar;
#[cfg(test)]
mod tests;

use std::ops::Range;

/// Tokens in one block of the cache.
pub const KV_BLOCK: usize = 16;
/// Positions in one split: the unit by which the keys of one row can be cut.
pub const SPLIT: usize = 512;
/// Most query heads that share one key/value head.
pub const MAX_GROUP: usize = 16;

/// How an element of the cache is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvElement {
    /// 4 bytes, exact.
    F32,
    /// 2 bytes; values are rounded to nearest even and held at ±65504.
    F16,
}

impl KvElement {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            KvElement::F32 => 4,
            KvElement::F16 => 2,
        }
    }
}

/// One layer's part of the paged cache. In each block of this layer keys lie as
/// `[kv_heads, head_dim, 16]` (tokens in lanes), values as `[kv_heads, 16, head_dim]`.
///
/// It is an address with a shape and owns nothing: the unsafe functions that take it say who must keep
/// the memory alive and who may write.
#[derive(Debug, Clone, Copy)]
pub struct KvLayer {
    /// Where this layer's keys of block 0 start; aligned to the element.
    pub keys: *mut u8,
    /// Where this layer's values of block 0 start; aligned to the element.
    pub values: *mut u8,
    /// Bytes from a block to the next, for keys and values alike.
    pub block_stride_bytes: usize,
    /// Blocks in the cache.
    pub num_blocks: usize,
    /// Key/value heads of this layer.
    pub kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
    /// How elements are kept.
    pub element: KvElement,
}

// SAFETY: a plain address; every access through it is in an unsafe function with a contract of its own.
unsafe impl Send for KvLayer {}
// SAFETY: as above.
unsafe impl Sync for KvLayer {}

impl KvLayer {
    /// Bytes of one block's keys (its values take as many).
    pub fn block_bytes(&self) -> usize {
        self.kv_heads * self.head_dim * KV_BLOCK * self.element.bytes()
    }

    /// Elements from the start of one head's keys (or values) in a block to the next head's.
    #[inline(always)]
    pub(crate) fn head_elements(&self) -> usize {
        self.head_dim * KV_BLOCK
    }
}

/// Query rows of one sequence and the key/value head they read.
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    /// The cache of this layer.
    pub layer: KvLayer,
    /// Which key/value head.
    pub kv_head: usize,
    /// Query heads that share it, 1 to [`MAX_GROUP`].
    pub group: usize,
    /// Factor of each score.
    pub scale: f32,
    /// Logical to physical block of the sequence.
    pub table: &'a [u32],
    /// First position that each row sees, `[rows]`.
    pub from: &'a [u32],
    /// The position after the last that each row sees, `[rows]`.
    pub until: &'a [u32],
    /// Row 0 of the queries of this key/value head: `[group, head_dim]`, contiguous in a row.
    pub q: *const f32,
    /// Elements from a row of queries to the next.
    pub q_stride: usize,
    /// Row 0 of the result for these heads: `[group, head_dim]`, contiguous in a row.
    pub out: *mut f32,
    /// Elements from a row of the result to the next.
    pub out_stride: usize,
}

impl Attention<'_> {
    /// Rows of this piece of work.
    #[inline]
    pub fn rows(&self) -> usize {
        self.from.len()
    }

    /// Panics unless the shapes agree and every block that is to be read lies in the cache.
    pub(crate) fn check(&self, rows: Range<usize>) {
        assert_eq!(self.from.len(), self.until.len(), "as many ends as starts");
        assert!((1..=MAX_GROUP).contains(&self.group), "1 to {MAX_GROUP} query heads a key/value head");
        assert!(self.kv_head < self.layer.kv_heads, "key/value head {} of {}", self.kv_head, self.layer.kv_heads);
        let (mut checked_from, mut checked_until) = (0, 0);
        for row in rows {
            let (from, until) = (self.from[row] as usize, self.until[row] as usize);
            assert!(from <= until, "row {row} sees {from}..{until}");
            let (first, end) = (from / KV_BLOCK, until.div_ceil(KV_BLOCK));
            assert!(end <= self.table.len(), "row {row} sees block {end} of {}", self.table.len());
            if from == until || (checked_from <= first && end <= checked_until) {
                continue;
            }
            // Neighbouring rows see almost the same blocks: only what the row before did not see is looked at.
            for logical in first..end {
                if !(checked_from..checked_until).contains(&logical) {
                    let physical = self.table[logical] as usize;
                    assert!(physical < self.layer.num_blocks, "block {logical} is at {physical}, outside the cache");
                }
            }
            (checked_from, checked_until) = (first, end);
        }
    }
}

/// The splits of a row that sees `from..until`, empty if it sees nothing.
#[inline]
pub fn splits(from: u32, until: u32) -> Range<usize> {
    if from == until {
        return 0..0;
    }
    from as usize / SPLIT..(until as usize).div_ceil(SPLIT)
}

/// Floats of one partial result of one row, key/value head and split: `[group, head_dim]` sums, then
/// `[group]` largest scores, then `[group]` sums of p.
#[inline]
pub fn partial_len(group: usize, head_dim: usize) -> usize {
    group * (head_dim + 2)
}

/// Most query rows (a row times a head of the group) that are worked on together: their scores, sums and packed
/// keys fit a core's second-level cache.
pub(crate) const TILE: usize = 64;
/// Room to start at a cache line.
const ALIGN_FLOATS: usize = 16;

/// Floats of scratch that a call on `rows` rows needs, whatever the instruction set.
pub fn attention_scratch_len(rows: usize, group: usize, head_dim: usize) -> usize {
    let (tile, padded) = ((rows * group).min(TILE), head_dim.next_multiple_of(16));
    // Scores and sums of one tile, two blocks of keys or values, m and l of the tile and of every query row.
    ALIGN_FLOATS + tile * (SPLIT + padded + 2) + 2 * KV_BLOCK * padded + 2 * rows * group
}

/// The scratch of a call, cut into its parts.
pub(crate) struct Scratch {
    /// [tile, SPLIT] scores, then p.
    pub scores: *mut f32,
    /// [tile, head_dim rounded up to 16] weighted sums of values.
    pub sums: *mut f32,
    /// Two blocks of keys or values of one head, as f32.
    pub packed: *mut f32,
    /// [tile] largest scores.
    pub tile_max: *mut f32,
    /// [tile] sums of p.
    pub tile_sum: *mut f32,
    /// [rows, group] largest scores so far.
    pub row_max: *mut f32,
    /// [rows, group] sums of p so far.
    pub row_sum: *mut f32,
}

impl Scratch {
    /// Panics if `scratch` is shorter than [`attention_scratch_len`].
    #[inline]
    pub(crate) fn cut(scratch: &mut [f32], rows: usize, group: usize, head_dim: usize) -> Scratch {
        assert!(scratch.len() >= attention_scratch_len(rows, group, head_dim), "attention scratch is too short");
        let skip = scratch.as_ptr().align_offset(4 * ALIGN_FLOATS).min(ALIGN_FLOATS);
        let (tile, padded) = ((rows * group).min(TILE), head_dim.next_multiple_of(16));
        // SAFETY: the lengths below add up to `attention_scratch_len`, less the alignment that was skipped.
        unsafe {
            let scores = scratch.as_mut_ptr().add(skip);
            let sums = scores.add(tile * SPLIT);
            let packed = sums.add(tile * padded);
            let tile_max = packed.add(2 * KV_BLOCK * padded);
            let tile_sum = tile_max.add(tile);
            let row_max = tile_sum.add(tile);
            let row_sum = row_max.add(rows * group);
            Scratch { scores, sums, packed, tile_max, tile_sum, row_max, row_sum }
        }
    }
}
