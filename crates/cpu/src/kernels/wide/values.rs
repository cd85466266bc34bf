//! Weighted sums of values: dimensions are the lanes, keys are taken in order.

use super::scores::Element;
use crate::kernels::attention::KV_BLOCK;
use crate::kernels::lanes::Lanes;
use crate::kernels::rows::LANES;

/// Where the values of consecutive blocks lie.
#[derive(Clone, Copy)]
pub(crate) struct ValueBlocks<'a, E> {
    /// The head's values in block 0 of the cache.
    pub base: *const E,
    /// Elements from a block to the next.
    pub stride: usize,
    /// Logical to physical block.
    pub table: &'a [u32],
    pub head_dim: usize,
}

/// Adds `p[position] * value[position]` for `first..until` to `ROWS` rows of sums, sixteen dimensions times
/// `WIDTH` from `dim`; with a `tail`, `WIDTH` is 1 and only so many lanes are read.
///
/// # Safety
/// `p[r]` is valid at `first..until`, the blocks of these positions are in the table and in the cache, and
/// `sums[r]` holds the dimensions rounded up to sixteen.
#[inline(always)]
pub(crate) unsafe fn add_values<V: Lanes, E: Element, const ROWS: usize, const WIDTH: usize>(
    p: [*const f32; ROWS],
    values: ValueBlocks<E>,
    (first, until): (usize, usize),
    sums: [*mut f32; ROWS],
    dim: usize,
    tail: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut acc = [[V::splat(0.0); WIDTH]; ROWS];
        for r in 0..ROWS {
            for w in 0..WIDTH {
                acc[r][w] = V::load(sums[r].add(dim + w * LANES));
            }
        }
        let mut position = first;
        while position < until {
            let block = *values.table.get_unchecked(position / KV_BLOCK) as usize;
            let end = until.min((position / KV_BLOCK + 1) * KV_BLOCK);
            let mut row = values.base.add(block * values.stride + position % KV_BLOCK * values.head_dim + dim);
            while position < end {
                let mut value = [V::splat(0.0); WIDTH];
                for w in 0..WIDTH {
                    value[w] = if tail > 0 { E::load_first(row, tail) } else { E::load(row.add(w * LANES)) };
                }
                for r in 0..ROWS {
                    let weight = V::splat(*p[r].wrapping_add(position));
                    for w in 0..WIDTH {
                        acc[r][w] = weight.fma(value[w], acc[r][w]);
                    }
                }
                row = row.add(values.head_dim);
                position += 1;
            }
        }
        for r in 0..ROWS {
            for w in 0..WIDTH {
                acc[r][w].store(sums[r].add(dim + w * LANES));
            }
        }
    }
}

/// [`add_values`] over every dimension, `WIDTH` vectors at a time.
///
/// # Safety
/// As for [`add_values`].
#[inline(always)]
pub(crate) unsafe fn add_all_values<V: Lanes, E: Element, const ROWS: usize, const WIDTH: usize>(
    p: [*const f32; ROWS],
    values: ValueBlocks<E>,
    range: (usize, usize),
    sums: [*mut f32; ROWS],
) {
    // SAFETY: the caller's contract.
    unsafe {
        let whole = values.head_dim / LANES * LANES;
        let mut dim = 0;
        while dim + WIDTH * LANES <= whole {
            add_values::<V, E, ROWS, WIDTH>(p, values, range, sums, dim, 0);
            dim += WIDTH * LANES;
        }
        while dim < whole {
            add_values::<V, E, ROWS, 1>(p, values, range, sums, dim, 0);
            dim += LANES;
        }
        if whole < values.head_dim {
            add_values::<V, E, ROWS, 1>(p, values, range, sums, whole, values.head_dim - whole);
        }
    }
}
