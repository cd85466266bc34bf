//! Weighted sums of values: dimensions are the lanes, keys are taken in order.

#![allow(clippy::needless_range_loop, reason = "one index steps through several arrays of registers")]

use super::scores::Element;
use crate::kernels::attention::KV_BLOCK;
use crate::kernels::lanes::Lanes;
use crate::kernels::rows::LANES;

/// How the values of a block lie.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Layout {
    /// `[16, head_dim]`.
    Cache,
    /// As [`pack_values`] leaves them.
    Packed,
}

/// The values of up to two blocks of one head.
#[derive(Clone, Copy)]
pub(crate) struct Values<E> {
    pub blocks: [*const E; 2],
    /// Blocks in use, and from which to which token each is taken.
    pub count: usize,
    pub tokens: (usize, usize),
    /// The number of each block's first token in the layout.
    pub first_token: [usize; 2],
    pub layout: Layout,
    pub head_dim: usize,
    /// Blocks to be asked for meanwhile; null for none.
    pub next: [*const E; 2],
}

impl<E> Values<E> {
    /// Blocks as they lie in the cache.
    #[inline(always)]
    pub(crate) fn in_cache(blocks: [*const E; 2], count: usize, head_dim: usize, next: [*const E; 2]) -> Self {
        Values { blocks, count, tokens: (0, KV_BLOCK), first_token: [0; 2], layout: Layout::Cache, head_dim, next }
    }

    /// Only the `tokens` of block `b`.
    #[inline(always)]
    pub(crate) fn of_block(&self, b: usize, tokens: (usize, usize)) -> Self {
        Values {
            blocks: [self.blocks[b]; 2],
            count: 1,
            tokens,
            first_token: [self.first_token[b]; 2],
            layout: self.layout,
            head_dim: self.head_dim,
            next: [self.next[b]; 2],
        }
    }
}

impl Values<f32> {
    /// Two blocks that [`pack_values`] copied.
    #[inline(always)]
    pub(crate) fn packed(packed: *const f32, count: usize, head_dim: usize) -> Values<f32> {
        Values {
            blocks: [packed; 2],
            count,
            tokens: (0, KV_BLOCK),
            first_token: [0, KV_BLOCK],
            layout: Layout::Packed,
            head_dim,
            next: [std::ptr::null(); 2],
        }
    }
}

/// Copies two blocks of values as f32: `WIDTH * 16` dimensions of all tokens, then the next so many; the last
/// dimensions sixteen at a time, padded with 0.
///
/// # Safety
/// Each block is `[16, head_dim]`; `packed` has room for `2 * 16` times `head_dim` rounded up to sixteen.
#[inline(always)]
pub(crate) unsafe fn pack_values<V: Lanes, E: Element, const WIDTH: usize>(
    blocks: [*const E; 2],
    head_dim: usize,
    packed: *mut f32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let whole = head_dim / LANES * LANES;
        let mut dim = 0;
        while dim + WIDTH * LANES <= whole {
            for token in 0..2 * KV_BLOCK {
                let from = blocks[token / KV_BLOCK].add(token % KV_BLOCK * head_dim + dim);
                let to = packed.add(dim * 2 * KV_BLOCK + token * WIDTH * LANES);
                for w in 0..WIDTH {
                    E::load::<V>(from.add(w * LANES)).store(to.add(w * LANES));
                }
            }
            dim += WIDTH * LANES;
        }
        while dim < head_dim {
            for token in 0..2 * KV_BLOCK {
                let from = blocks[token / KV_BLOCK].add(token % KV_BLOCK * head_dim + dim);
                let value: V = if dim < whole { E::load(from) } else { E::load_first(from, head_dim - whole) };
                value.store(packed.add(dim * 2 * KV_BLOCK + token * LANES));
            }
            dim += LANES;
        }
    }
}

/// Adds `p * value`, tokens ascending, to `WIDTH` times sixteen dimensions from `dim` of `ROWS` rows of sums;
/// with a `tail`, `WIDTH` is 1 and only so many lanes are read.
///
/// # Safety
/// `p[r]` holds sixteen weights for each block in use, the values are as [`Values`] says, `sums[r]` holds the
/// dimensions rounded up to sixteen.
#[inline(always)]
unsafe fn add_dims<V: Lanes, E: Element, const ROWS: usize, const WIDTH: usize>(
    p: [[*const f32; 2]; ROWS],
    values: &Values<E>,
    sums: [*mut f32; ROWS],
    dim: usize,
    tail: usize,
) {
    // Vectors of sixteen elements in a cache line of 64 bytes.
    let per_line = 64 / (LANES * size_of::<E>());
    // SAFETY: the caller's contract.
    unsafe {
        let mut acc = [[V::splat(0.0); WIDTH]; ROWS];
        for r in 0..ROWS {
            for w in 0..WIDTH {
                acc[r][w] = V::load(sums[r].add(dim + w * LANES));
            }
        }
        for b in 0..values.count {
            let (block, token_step) = match values.layout {
                Layout::Cache => (values.blocks[b].add(dim), values.head_dim),
                Layout::Packed => {
                    let first = values.first_token[b] * WIDTH * LANES;
                    (values.blocks[b].add(dim * 2 * KV_BLOCK + first), WIDTH * LANES)
                }
            };
            for token in values.tokens.0..values.tokens.1 {
                let row = block.add(token * token_step);
                let mut value = [V::splat(0.0); WIDTH];
                for w in 0..WIDTH {
                    value[w] = if tail > 0 { E::load_first(row, tail) } else { E::load(row.add(w * LANES)) };
                    if !values.next[b].is_null() && w % per_line == 0 {
                        let ahead = dim * KV_BLOCK + (token * WIDTH + w) * LANES;
                        V::prefetch(values.next[b].wrapping_add(ahead).cast());
                    }
                }
                for r in 0..ROWS {
                    let weight = V::splat(*p[r][b].add(token));
                    for w in 0..WIDTH {
                        acc[r][w] = weight.fma(value[w], acc[r][w]);
                    }
                }
            }
        }
        for r in 0..ROWS {
            for w in 0..WIDTH {
                acc[r][w].store(sums[r].add(dim + w * LANES));
            }
        }
    }
}

/// Adds `p * value`, tokens ascending, to `ROWS` rows of sums.
///
/// # Safety
/// As for [`add_dims`]; packed values were packed with this `WIDTH`.
#[inline(always)]
pub(crate) unsafe fn add_values<V: Lanes, E: Element, const ROWS: usize, const WIDTH: usize>(
    p: [[*const f32; 2]; ROWS],
    values: &Values<E>,
    sums: [*mut f32; ROWS],
) {
    let whole = values.head_dim / LANES * LANES;
    // SAFETY: the caller's contract.
    unsafe {
        let mut dim = 0;
        while dim + WIDTH * LANES <= whole {
            add_dims::<V, E, ROWS, WIDTH>(p, values, sums, dim, 0);
            dim += WIDTH * LANES;
        }
        while dim < whole {
            add_dims::<V, E, ROWS, 1>(p, values, sums, dim, 0);
            dim += LANES;
        }
        if whole < values.head_dim {
            // Packed values are padded.
            let tail = if values.layout == Layout::Packed { 0 } else { values.head_dim - whole };
            add_dims::<V, E, ROWS, 1>(p, values, sums, whole, tail);
        }
    }
}
