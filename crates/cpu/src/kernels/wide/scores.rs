//! Scores of query rows against key blocks: sixteen keys are the lanes.

use crate::kernels::attention::KV_BLOCK;
use crate::kernels::lanes::Lanes;
use crate::kernels::rows::LANES;

/// An element of the cache.
///
/// # Safety
/// As for [`Lanes`].
pub(crate) unsafe trait Element: Copy {
    unsafe fn load<V: Lanes>(from: *const Self) -> V;
    unsafe fn load_first<V: Lanes>(from: *const Self, count: usize) -> V;
    /// Writes sixteen lanes, saturating.
    unsafe fn store<V: Lanes>(lanes: V, to: *mut Self);
    const ZERO: Self;
}

// SAFETY: passes on to `Lanes`.
unsafe impl Element for f32 {
    const ZERO: f32 = 0.0;
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const f32) -> V {
        unsafe { V::load(from) }
    }
    #[inline(always)]
    unsafe fn load_first<V: Lanes>(from: *const f32, count: usize) -> V {
        unsafe { V::load_first(from, count) }
    }
    #[inline(always)]
    unsafe fn store<V: Lanes>(lanes: V, to: *mut f32) {
        unsafe { lanes.store(to) }
    }
}

// SAFETY: passes on to `Lanes`; u16 are the bits of f16.
unsafe impl Element for u16 {
    const ZERO: u16 = 0;
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const u16) -> V {
        unsafe { V::load_f16(from) }
    }
    #[inline(always)]
    unsafe fn load_first<V: Lanes>(from: *const u16, count: usize) -> V {
        unsafe {
            let mut lanes = [0u16; LANES];
            lanes.as_mut_ptr().copy_from_nonoverlapping(from, count);
            V::load_f16(lanes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store<V: Lanes>(lanes: V, to: *mut u16) {
        unsafe { super::rows::held(lanes).store_f16(to) }
    }
}

/// `ROWS` queries against `BLOCKS` key blocks, four passes over the dimensions (one for each partial sum), so
/// that every register holds another (row, block) pair.
///
/// # Safety
/// Each query has `head_dim` elements, each block `[head_dim, 16]`, each `out` room for `BLOCKS * 16`.
#[inline(always)]
pub(crate) unsafe fn scores_in_passes<V: Lanes, E: Element, const ROWS: usize, const BLOCKS: usize>(
    q: [*const f32; ROWS],
    keys: [*const E; BLOCKS],
    head_dim: usize,
    scale: f32,
    out: [[*mut f32; BLOCKS]; ROWS],
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut third = [[V::splat(0.0); BLOCKS]; ROWS];
        for part in 0..4 {
            let mut sums = [[V::splat(0.0); BLOCKS]; ROWS];
            let mut d = part;
            while d < head_dim {
                let mut key = [V::splat(0.0); BLOCKS];
                for b in 0..BLOCKS {
                    key[b] = E::load(keys[b].add(d * KV_BLOCK));
                }
                for r in 0..ROWS {
                    let query = V::splat(*q[r].add(d));
                    for b in 0..BLOCKS {
                        sums[r][b] = query.fma(key[b], sums[r][b]);
                    }
                }
                d += 4;
            }
            for r in 0..ROWS {
                for b in 0..BLOCKS {
                    let to = out[r][b];
                    match part {
                        0 => sums[r][b].store(to),
                        1 => V::load(to).add(sums[r][b]).store(to),
                        2 => third[r][b] = sums[r][b],
                        _ => V::load(to).add(third[r][b].add(sums[r][b])).mul(V::splat(scale)).store(to),
                    }
                }
            }
        }
    }
}

/// `ROWS` queries against `BLOCKS` key blocks in one pass: all partial sums at once, keys read in order.
///
/// # Safety
/// As for [`scores_in_passes`].
#[inline(always)]
pub(crate) unsafe fn scores_in_order<V: Lanes, E: Element, const ROWS: usize, const BLOCKS: usize>(
    q: [*const f32; ROWS],
    keys: [*const E; BLOCKS],
    head_dim: usize,
    scale: f32,
    out: [[*mut f32; BLOCKS]; ROWS],
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = [[[V::splat(0.0); 4]; BLOCKS]; ROWS];
        let mut d = 0;
        while d + 4 <= head_dim {
            for part in 0..4 {
                for b in 0..BLOCKS {
                    let key: V = E::load(keys[b].add((d + part) * KV_BLOCK));
                    for r in 0..ROWS {
                        sums[r][b][part] = V::splat(*q[r].add(d + part)).fma(key, sums[r][b][part]);
                    }
                }
            }
            d += 4;
        }
        for part in 0..3 {
            if d + part < head_dim {
                for b in 0..BLOCKS {
                    let key: V = E::load(keys[b].add((d + part) * KV_BLOCK));
                    for r in 0..ROWS {
                        sums[r][b][part] = V::splat(*q[r].add(d + part)).fma(key, sums[r][b][part]);
                    }
                }
            }
        }
        for r in 0..ROWS {
            for b in 0..BLOCKS {
                let [a0, a1, a2, a3] = sums[r][b];
                a0.add(a1).add(a2.add(a3)).mul(V::splat(scale)).store(out[r][b]);
            }
        }
    }
}
