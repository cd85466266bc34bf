//! The pieces in which attention is worked on: tiles of query rows and the blocks of a split that they see.

use crate::kernels::attention::{Attention, KV_BLOCK, SPLIT, TILE};
use std::ops::Range;

/// Blocks in a split.
pub(crate) const SPLIT_BLOCKS: usize = SPLIT / KV_BLOCK;

/// One tile in one split of the work.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub work: &'a Attention<'a>,
    pub tile: &'a Tile,
    pub split: usize,
}

/// Up to `TILE` query rows, cut to one split.
pub(crate) struct Tile {
    pub count: usize,
    pub q: [*const f32; TILE],
    /// First position that each sees in the split.
    pub from: [usize; TILE],
    pub until: [usize; TILE],
}

impl Tile {
    /// Query rows `start..start + count` of the work (row `i / group`, head `i % group`), cut to the split.
    #[inline(always)]
    pub(crate) unsafe fn new(work: &Attention, start: usize, count: usize, split: usize) -> Tile {
        let mut tile = Tile { count, q: [std::ptr::null(); TILE], from: [0; TILE], until: [0; TILE] };
        for i in 0..count {
            let (row, head) = ((start + i) / work.group, (start + i) % work.group);
            // SAFETY: the caller's rows of queries hold [group, head_dim].
            tile.q[i] = unsafe { work.q.add(row * work.q_stride + head * work.layer.head_dim) };
            tile.from[i] = (work.from[row] as usize).max(split * SPLIT);
            tile.until[i] = (work.until[row] as usize).min((split + 1) * SPLIT).max(tile.from[i]);
        }
        tile
    }

    /// Whether any of the rows sees a position of the block that starts at `position`.
    #[inline(always)]
    pub(crate) fn sees(&self, rows: Range<usize>, position: usize) -> bool {
        rows.into_iter().any(|i| self.from[i] < position + KV_BLOCK && position < self.until[i])
    }

    /// Whether each of the rows sees all of the block that starts at `position`.
    #[inline(always)]
    pub(crate) fn sees_all(&self, rows: Range<usize>, position: usize) -> bool {
        rows.into_iter().all(|i| self.from[i] <= position && position + KV_BLOCK <= self.until[i])
    }

    /// The tokens of the block at `position` that row `i` sees.
    #[inline(always)]
    pub(crate) fn tokens(&self, i: usize, position: usize) -> (usize, usize) {
        let at = |end: usize| end.clamp(position, position + KV_BLOCK) - position;
        (at(self.from[i]), at(self.until[i]))
    }
}

/// One or two blocks of a split, by their places in it.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    pub places: [usize; 2],
    pub count: usize,
}

/// The blocks of a split that some row of a tile sees, in pairs.
pub(crate) struct Seen {
    pub places: [u8; SPLIT_BLOCKS + 1],
    pub count: usize,
}

impl Seen {
    #[inline(always)]
    pub(crate) fn new(tile: &Tile, split: usize) -> Seen {
        let mut seen = Seen { places: [0; SPLIT_BLOCKS + 1], count: 0 };
        for place in 0..SPLIT_BLOCKS {
            if tile.sees(0..tile.count, split * SPLIT + place * KV_BLOCK) {
                seen.places[seen.count] = place as u8;
                seen.count += 1;
            }
        }
        seen
    }

    /// The pair that starts with the `index`-th block; a lone last block stands in both places.
    #[inline(always)]
    pub(crate) fn pair(&self, index: usize) -> Option<Pair> {
        if index >= self.count {
            return None;
        }
        let second = if index + 1 < self.count { index + 1 } else { index };
        let places = [usize::from(self.places[index]), usize::from(self.places[second])];
        Some(Pair { places, count: second - index + 1 })
    }
}

/// The addresses of a pair's keys or values (`base` of block 0) for the key/value head of the work.
#[inline(always)]
pub(crate) unsafe fn addresses<E>(work: &Attention, base: *mut u8, split: usize, pair: Option<Pair>) -> [*const E; 2] {
    let Some(pair) = pair else { return [std::ptr::null(); 2] };
    pair.places.map(|place| {
        // SAFETY: a row sees this block, so `Attention::check` found it in the table and in the cache.
        unsafe {
            let block = *work.table.get_unchecked(split * SPLIT_BLOCKS + place) as usize;
            let keys = base.add(block * work.layer.block_stride_bytes).cast_const().cast::<E>();
            keys.add(work.kv_head * work.layer.head_elements())
        }
    })
}
