//! Scores of query rows against key blocks: sixteen keys are the lanes.

#![allow(clippy::needless_range_loop, reason = "one index steps through several arrays of registers")]

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
        // SAFETY: the caller's contract.
        unsafe { V::load(from) }
    }
    #[inline(always)]
    unsafe fn load_first<V: Lanes>(from: *const f32, count: usize) -> V {
        // SAFETY: the caller's contract.
        unsafe { V::load_first(from, count) }
    }
    #[inline(always)]
    unsafe fn store<V: Lanes>(lanes: V, to: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { lanes.store(to) }
    }
}

// SAFETY: passes on to `Lanes`; u16 are the bits of f16.
unsafe impl Element for u16 {
    const ZERO: u16 = 0;
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const u16) -> V {
        // SAFETY: the caller's contract.
        unsafe { V::load_f16(from) }
    }
    #[inline(always)]
    unsafe fn load_first<V: Lanes>(from: *const u16, count: usize) -> V {
        // SAFETY: the caller's contract.
        unsafe {
            let mut lanes = [0u16; LANES];
            lanes.as_mut_ptr().copy_from_nonoverlapping(from, count);
            V::load_f16(lanes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store<V: Lanes>(lanes: V, to: *mut u16) {
        // SAFETY: the caller's contract.
        unsafe { super::rows::held(lanes).store_f16(to) }
    }
}

/// Where the keys of blocks lie: key dimension `d = part + 4 * i` of block b at
/// `blocks[b] + part * part_stride + i * step`, sixteen keys each.
#[derive(Clone, Copy)]
pub(crate) struct Keys<E, const BLOCKS: usize> {
    pub blocks: [*const E; BLOCKS],
    pub part_stride: usize,
    pub step: usize,
    /// Blocks to be asked for meanwhile, one after the other; null for none.
    pub next: [*const E; BLOCKS],
}

impl<E: Element, const BLOCKS: usize> Keys<E, BLOCKS> {
    /// Blocks as they lie in the cache.
    #[inline(always)]
    pub(crate) fn in_cache(blocks: [*const E; BLOCKS], next: [*const E; BLOCKS]) -> Self {
        Keys { blocks, part_stride: KV_BLOCK, step: 4 * KV_BLOCK, next }
    }

    /// Only block `b`.
    #[inline(always)]
    pub(crate) fn of_block(&self, b: usize) -> Keys<E, 1> {
        Keys { blocks: [self.blocks[b]], part_stride: self.part_stride, step: self.step, next: [self.next[b]] }
    }
}

/// Copies two key blocks as f32, so that the passes of [`scores_in_passes`] read them in order.
///
/// # Safety
/// Each block is `[head_dim, 16]`; `packed` has room for `2 * 16` times `head_dim` rounded up to four.
#[inline(always)]
pub(crate) unsafe fn pack_keys<V: Lanes, E: Element>(
    blocks: [*const E; 2],
    head_dim: usize,
    packed: *mut f32,
) -> Keys<f32, 2> {
    let part_stride = head_dim.div_ceil(4) * 2 * KV_BLOCK;
    // SAFETY: the caller's contract.
    unsafe {
        for d in 0..head_dim {
            let to = packed.add(d % 4 * part_stride + d / 4 * 2 * KV_BLOCK);
            E::load::<V>(blocks[0].add(d * KV_BLOCK)).store(to);
            E::load::<V>(blocks[1].add(d * KV_BLOCK)).store(to.add(KV_BLOCK));
        }
    }
    let blocks = [packed.cast_const(), packed.wrapping_add(KV_BLOCK).cast_const()];
    Keys { blocks, part_stride, step: 2 * KV_BLOCK, next: [std::ptr::null(); 2] }
}

/// `ROWS` queries against `BLOCKS` key blocks, four passes over the dimensions (one for each partial sum), so
/// that every register holds another (row, block) pair.
///
/// # Safety
/// Each query has `head_dim` elements, the keys are as [`Keys`] says, each `out` has room for sixteen and none
/// is another's.
#[inline(always)]
pub(crate) unsafe fn scores_in_passes<V: Lanes, E: Element, const ROWS: usize, const BLOCKS: usize>(
    q: [*const f32; ROWS],
    keys: Keys<E, BLOCKS>,
    head_dim: usize,
    scale: f32,
    out: [[*mut f32; BLOCKS]; ROWS],
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut third = [[V::splat(0.0); BLOCKS]; ROWS];
        let mut ahead = 0;
        for part in 0..4 {
            let mut sums = [[V::splat(0.0); BLOCKS]; ROWS];
            let mut at = part * keys.part_stride;
            let mut d = part;
            while d < head_dim {
                let mut key = [V::splat(0.0); BLOCKS];
                for b in 0..BLOCKS {
                    key[b] = E::load(keys.blocks[b].add(at));
                    if !keys.next[b].is_null() {
                        V::prefetch(keys.next[b].wrapping_add(ahead).cast());
                    }
                }
                for r in 0..ROWS {
                    let query = V::splat(*q[r].add(d));
                    for b in 0..BLOCKS {
                        sums[r][b] = query.fma(key[b], sums[r][b]);
                    }
                }
                d += 4;
                at += keys.step;
                ahead += KV_BLOCK;
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

/// `ROWS` queries against `BLOCKS` key blocks in one pass: all partial sums at once, keys read in the order in
/// which the cache keeps them. For few rows.
///
/// # Safety
/// As for [`scores_in_passes`].
#[inline(always)]
pub(crate) unsafe fn scores_in_order<V: Lanes, E: Element, const ROWS: usize, const BLOCKS: usize>(
    q: [*const f32; ROWS],
    keys: Keys<E, BLOCKS>,
    head_dim: usize,
    scale: f32,
    out: [[*mut f32; BLOCKS]; ROWS],
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = [[[V::splat(0.0); 4]; BLOCKS]; ROWS];
        let mut d = 0;
        while d < head_dim {
            let parts = if d + 4 <= head_dim { 4 } else { head_dim - d };
            for part in 0..4 {
                if part < parts {
                    for b in 0..BLOCKS {
                        let at = part * keys.part_stride + d / 4 * keys.step;
                        let key: V = E::load(keys.blocks[b].add(at));
                        for r in 0..ROWS {
                            sums[r][b][part] = V::splat(*q[r].add(d + part)).fma(key, sums[r][b][part]);
                        }
                    }
                }
            }
            d += 4;
        }
        for r in 0..ROWS {
            for b in 0..BLOCKS {
                let [a0, a1, a2, a3] = sums[r][b];
                a0.add(a1).add(a2.add(a3)).mul(V::splat(scale)).store(out[r][b]);
            }
        }
    }
}
