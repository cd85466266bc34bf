//! Attention over sixteen lanes; the meaning is in `kernels::attention`. Query rows (a row times a head of
//! the group) are worked on in tiles, so that each key and value that is loaded serves several of them.

use super::scores::{Element, scores_in_order, scores_in_passes};
use super::values::{ValueBlocks, add_all_values};
use crate::kernels::attention::{Attention, KV_BLOCK, KvElement, KvLayer, SPLIT, Scratch, TILE, partial_len};
use crate::kernels::lanes::Lanes;
use crate::kernels::math::exp;
use crate::kernels::rows::{LANES, greater};

/// Blocks in a split.
const SPLIT_BLOCKS: usize = SPLIT / KV_BLOCK;

#[inline(always)]
pub(crate) unsafe fn kv_append<V: Lanes>(layer: &KvLayer, slot: usize, k: *const f32, v: *const f32) {
    // SAFETY: the caller's contract; the element decides what the bytes are.
    unsafe {
        match layer.element {
            KvElement::F32 => append::<V, f32>(layer, slot, k, v),
            KvElement::F16 => append::<V, u16>(layer, slot, k, v),
        }
    }
}

#[inline(always)]
unsafe fn append<V: Lanes, E: Element>(layer: &KvLayer, slot: usize, k: *const f32, v: *const f32) {
    let (block, offset) = (slot / KV_BLOCK, slot % KV_BLOCK);
    // SAFETY: the caller's slot lies in the cache and its rows hold kv_heads * head_dim elements.
    unsafe {
        let keys = layer.keys.add(block * layer.block_stride_bytes).cast::<E>();
        let values = layer.values.add(block * layer.block_stride_bytes).cast::<E>();
        for head in 0..layer.kv_heads {
            let keys = keys.add(head * layer.head_elements() + offset);
            let values = values.add(head * layer.head_elements() + offset * layer.head_dim);
            let mut d = 0;
            while d < layer.head_dim {
                let count = (layer.head_dim - d).min(LANES);
                let from = head * layer.head_dim + d;
                let mut lanes = [E::ZERO; LANES];
                E::store(V::load_first(k.add(from), count), lanes.as_mut_ptr());
                for (i, key) in lanes.iter().take(count).enumerate() {
                    *keys.add((d + i) * KV_BLOCK) = *key;
                }
                E::store(V::load_first(v.add(from), count), lanes.as_mut_ptr());
                values.add(d).copy_from_nonoverlapping(lanes.as_ptr(), count);
                d += LANES;
            }
        }
    }
}

/// Up to `TILE` query rows, cut to one split.
struct Tile {
    count: usize,
    q: [*const f32; TILE],
    /// First position that each sees in the split.
    from: [usize; TILE],
    until: [usize; TILE],
}

impl Tile {
    /// Query rows `start..start + count` of the work (row `i / group`, head `i % group`), cut to the split.
    #[inline(always)]
    unsafe fn new(work: &Attention, start: usize, count: usize, split: usize) -> Tile {
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
    fn sees(&self, rows: std::ops::Range<usize>, position: usize) -> bool {
        rows.into_iter().any(|i| self.from[i] < position + KV_BLOCK && position < self.until[i])
    }
}

/// Runs `$call` with a constant ROWS of 8, 4, 2 or 1 (no more than `$most`) until `$count` rows are done.
macro_rules! in_row_tiles {
    ($most:expr, $count:expr, $eight:expr, $four:expr, $two:expr, $one:expr, $at:ident) => {{
        let mut $at = 0;
        while $at < $count {
            let left = $count - $at;
            if $most >= 8 && left >= 8 {
                $eight;
                $at += 8;
            } else if left >= 4 {
                $four;
                $at += 4;
            } else if left >= 2 {
                $two;
                $at += 2;
            } else {
                $one;
                $at += 1;
            }
        }
    }};
}

/// The scores of rows `at..at + ROWS` for every block of the split that they see.
#[inline(always)]
unsafe fn score_rows<V: Lanes, E: Element, const ROWS: usize, const BLOCKS: usize, const IN_ORDER: bool>(
    work: &Attention,
    tile: &Tile,
    at: usize,
    split: usize,
    scores: *mut f32,
) {
    // SAFETY: the caller's contract; only blocks that a row sees are touched.
    unsafe {
        let layer = &work.layer;
        let base = layer.keys.cast_const();
        let mut q = [std::ptr::null(); ROWS];
        q.copy_from_slice(&tile.q[at..at + ROWS]);
        let mut pending = 0;
        let mut keys = [std::ptr::null::<E>(); BLOCKS];
        let mut out = [[std::ptr::null_mut::<f32>(); BLOCKS]; ROWS];
        for block in 0..SPLIT_BLOCKS {
            let position = split * SPLIT + block * KV_BLOCK;
            if !tile.sees(at..at + ROWS, position) {
                continue;
            }
            let physical = *work.table.get_unchecked(position / KV_BLOCK) as usize;
            keys[pending] = base.add(physical * layer.block_stride_bytes).cast::<E>();
            keys[pending] = keys[pending].add(work.kv_head * layer.head_elements());
            for (r, out) in out.iter_mut().enumerate() {
                out[pending] = scores.add((at + r) * SPLIT + block * KV_BLOCK);
            }
            pending += 1;
            if pending == BLOCKS {
                if IN_ORDER {
                    scores_in_order::<V, E, ROWS, BLOCKS>(q, keys, layer.head_dim, work.scale, out);
                } else {
                    scores_in_passes::<V, E, ROWS, BLOCKS>(q, keys, layer.head_dim, work.scale, out);
                }
                pending = 0;
            }
        }
        for b in 0..pending {
            let mut last = [[std::ptr::null_mut::<f32>(); 1]; ROWS];
            for (r, last) in last.iter_mut().enumerate() {
                last[0] = out[r][b];
            }
            if IN_ORDER {
                scores_in_order::<V, E, ROWS, 1>(q, [keys[b]], layer.head_dim, work.scale, last);
            } else {
                scores_in_passes::<V, E, ROWS, 1>(q, [keys[b]], layer.head_dim, work.scale, last);
            }
        }
    }
}

/// Turns a row's scores into p, in place; returns (m, l).
#[inline(always)]
unsafe fn soften<V: Lanes>(scores: *mut f32, from: usize, until: usize) -> (f32, f32) {
    // SAFETY: the caller's row holds a score for every block of from..until, which lies in one split.
    unsafe {
        let low = V::splat(f32::NEG_INFINITY);
        let (first, end) = (from / KV_BLOCK, until.div_ceil(KV_BLOCK));
        let at = |block: usize| scores.add(block % SPLIT_BLOCKS * KV_BLOCK);
        for block in [first, end - 1] {
            let position = block * KV_BLOCK;
            let (inside, outside) = (from.saturating_sub(position), (until - position).min(KV_BLOCK));
            V::load(at(block)).only(inside, outside, low).store(at(block));
        }
        let mut lanes = low;
        for block in first..end {
            lanes = V::load(at(block)).greater(lanes);
        }
        let max = lanes.max();
        let mut lanes = V::splat(0.0);
        for block in first..end {
            let p = V::load(at(block)).sub(V::splat(max)).exp();
            p.store(at(block));
            lanes = lanes.add(p);
        }
        (max, lanes.sum())
    }
}

/// The weighted values of rows `at..at + ROWS`, over the positions that each sees.
#[inline(always)]
unsafe fn value_rows<V: Lanes, E: Element, const ROWS: usize, const WIDTH: usize>(
    work: &Attention,
    tile: &Tile,
    at: usize,
    split: usize,
    scratch: &Scratch,
) {
    // SAFETY: the caller's contract; p of position x lies at x - split * SPLIT of its row.
    unsafe {
        let layer = &work.layer;
        let head_dim = layer.head_dim;
        let values = ValueBlocks {
            base: layer.values.cast_const().cast::<E>().add(work.kv_head * layer.head_elements()),
            stride: layer.block_stride_bytes / size_of::<E>(),
            table: work.table,
            head_dim,
        };
        let stride = head_dim.next_multiple_of(LANES);
        let mut p = [std::ptr::null::<f32>(); ROWS];
        let mut sums = [std::ptr::null_mut::<f32>(); ROWS];
        for r in 0..ROWS {
            p[r] = scratch.scores.add((at + r) * SPLIT).wrapping_sub(split * SPLIT);
            sums[r] = scratch.sums.add((at + r) * stride);
            sums[r].write_bytes(0, stride);
        }
        let from = *tile.from[at..at + ROWS].iter().max().expect("a tile has rows");
        let until = *tile.until[at..at + ROWS].iter().min().expect("a tile has rows");
        if from >= until {
            for r in 0..ROWS {
                let range = (tile.from[at + r], tile.until[at + r]);
                add_all_values::<V, E, 1, 1>([p[r]], values, range, [sums[r]]);
            }
            return;
        }
        // What only some rows see, before and after what all see; p * v of an unseen value is not 0 if v is
        // infinite, so nothing is masked here.
        for r in 0..ROWS {
            add_all_values::<V, E, 1, 1>([p[r]], values, (tile.from[at + r], from), [sums[r]]);
        }
        add_all_values::<V, E, ROWS, WIDTH>(p, values, (from, until), sums);
        for r in 0..ROWS {
            add_all_values::<V, E, 1, 1>([p[r]], values, (until, tile.until[at + r]), [sums[r]]);
        }
    }
}

/// One split for one tile: leaves sums, m and l in the scratch. Rows that see nothing of the split get none.
#[inline(always)]
unsafe fn split_tile<V: Lanes, E: Element, const ACCUMULATORS: usize>(
    work: &Attention,
    tile: &Tile,
    split: usize,
    scratch: &Scratch,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let scores = scratch.scores;
        if ACCUMULATORS >= 16 {
            in_row_tiles!(
                8,
                tile.count,
                score_rows::<V, E, 8, 2, false>(work, tile, at, split, scores),
                score_rows::<V, E, 4, 4, false>(work, tile, at, split, scores),
                score_rows::<V, E, 2, 2, true>(work, tile, at, split, scores),
                score_rows::<V, E, 1, 4, true>(work, tile, at, split, scores),
                at
            );
        } else {
            in_row_tiles!(
                4,
                tile.count,
                (),
                score_rows::<V, E, 4, 1, false>(work, tile, at, split, scores),
                score_rows::<V, E, 2, 2, false>(work, tile, at, split, scores),
                score_rows::<V, E, 1, 1, true>(work, tile, at, split, scores),
                at
            );
        }
        for i in 0..tile.count {
            if tile.from[i] < tile.until[i] {
                let (max, sum) = soften::<V>(scores.add(i * SPLIT), tile.from[i], tile.until[i]);
                *scratch.tile_max.add(i) = max;
                *scratch.tile_sum.add(i) = sum;
            }
        }
        if ACCUMULATORS >= 16 {
            in_row_tiles!(
                8,
                tile.count,
                value_rows::<V, E, 8, 2>(work, tile, at, split, scratch),
                value_rows::<V, E, 4, 4>(work, tile, at, split, scratch),
                value_rows::<V, E, 2, 8>(work, tile, at, split, scratch),
                value_rows::<V, E, 1, 8>(work, tile, at, split, scratch),
                at
            );
        } else {
            in_row_tiles!(
                4,
                tile.count,
                (),
                value_rows::<V, E, 4, 1>(work, tile, at, split, scratch),
                value_rows::<V, E, 2, 2>(work, tile, at, split, scratch),
                value_rows::<V, E, 1, 4>(work, tile, at, split, scratch),
                at
            );
        }
    }
}

/// `state = fma(sums, b, state * a)` over `head_dim` elements.
#[inline(always)]
unsafe fn join_sums<V: Lanes>(state: *mut f32, sums: *const f32, head_dim: usize, a: f32, b: f32) {
    // SAFETY: the caller's rows hold `head_dim` elements.
    unsafe {
        let (a, b) = (V::splat(a), V::splat(b));
        let mut d = 0;
        while d < head_dim {
            let count = (head_dim - d).min(LANES);
            let joined = V::load_first(sums.add(d), count).fma(b, V::load_first(state.add(d), count).mul(a));
            joined.store_first(state.add(d), count);
            d += LANES;
        }
    }
}

/// `state = state / sum` over `head_dim` elements.
#[inline(always)]
unsafe fn divide<V: Lanes>(state: *mut f32, sum: f32, head_dim: usize) {
    // SAFETY: the caller's row holds `head_dim` elements.
    unsafe {
        let mut d = 0;
        while d < head_dim {
            let count = (head_dim - d).min(LANES);
            V::load_first(state.add(d), count).div(V::splat(sum)).store_first(state.add(d), count);
            d += LANES;
        }
    }
}

/// Joins one more split (m, l, sums) into a row's running state.
#[inline(always)]
unsafe fn join<V: Lanes>(
    state: *mut f32,
    (max, sum): (&mut f32, &mut f32),
    sums: *const f32,
    (split_max, split_sum): (f32, f32),
    head_dim: usize,
) {
    let top = greater(split_max, *max);
    let (a, b) = (exp(*max - top), exp(split_max - top));
    *max = top;
    *sum = split_sum.mul_add(b, *sum * a);
    // SAFETY: the caller's rows hold `head_dim` elements.
    unsafe { join_sums::<V>(state, sums, head_dim, a, b) };
}

#[inline(always)]
pub(crate) unsafe fn attention_split<V: Lanes, const ACCUMULATORS: usize>(
    work: &Attention,
    row: usize,
    split: usize,
    partial: *mut f32,
    scratch: &mut [f32],
) {
    let (group, head_dim) = (work.group, work.layer.head_dim);
    let scratch = Scratch::cut(scratch, 1, group, head_dim);
    let stride = head_dim.next_multiple_of(LANES);
    // SAFETY: the caller's contract; a group fits a tile.
    unsafe {
        let tile = Tile::new(work, row * group, group, split);
        match work.layer.element {
            KvElement::F32 => split_tile::<V, f32, ACCUMULATORS>(work, &tile, split, &scratch),
            KvElement::F16 => split_tile::<V, u16, ACCUMULATORS>(work, &tile, split, &scratch),
        }
        for head in 0..group {
            partial.add(head * head_dim).copy_from_nonoverlapping(scratch.sums.add(head * stride), head_dim);
        }
        partial.add(group * head_dim).copy_from_nonoverlapping(scratch.tile_max, group);
        partial.add(group * (head_dim + 1)).copy_from_nonoverlapping(scratch.tile_sum, group);
    }
}

#[inline(always)]
pub(crate) unsafe fn attention_merge<V: Lanes>(
    partials: *const f32,
    count: usize,
    group: usize,
    head_dim: usize,
    out: *mut f32,
) {
    let stride = partial_len(group, head_dim);
    // SAFETY: the caller passes `count` partials and room for [group, head_dim].
    unsafe {
        for head in 0..group {
            let state = out.add(head * head_dim);
            if count == 0 {
                state.write_bytes(0, head_dim);
                continue;
            }
            state.copy_from_nonoverlapping(partials.add(head * head_dim), head_dim);
            let mut max = *partials.add(group * head_dim + head);
            let mut sum = *partials.add(group * (head_dim + 1) + head);
            for split in 1..count {
                let base = partials.add(split * stride);
                let part = (*base.add(group * head_dim + head), *base.add(group * (head_dim + 1) + head));
                join::<V>(state, (&mut max, &mut sum), base.add(head * head_dim), part, head_dim);
            }
            divide::<V>(state, sum, head_dim);
        }
    }
}

#[inline(always)]
pub(crate) unsafe fn attention_rows<V: Lanes, const ACCUMULATORS: usize>(work: &Attention, scratch: &mut [f32]) {
    // SAFETY: the caller's contract; the element decides what the bytes are.
    unsafe {
        match work.layer.element {
            KvElement::F32 => rows_of::<V, f32, ACCUMULATORS>(work, scratch),
            KvElement::F16 => rows_of::<V, u16, ACCUMULATORS>(work, scratch),
        }
    }
}

#[inline(always)]
unsafe fn rows_of<V: Lanes, E: Element, const ACCUMULATORS: usize>(work: &Attention, scratch: &mut [f32]) {
    let (group, head_dim) = (work.group, work.layer.head_dim);
    let scratch = Scratch::cut(scratch, work.rows(), group, head_dim);
    let stride = head_dim.next_multiple_of(LANES);
    let state = |i: usize| work.out.wrapping_add(i / group * work.out_stride + i % group * head_dim);
    let query_rows = work.rows() * group;
    let first = work.from.iter().copied().min().unwrap_or(0) as usize / SPLIT;
    let end = (work.until.iter().copied().max().unwrap_or(0) as usize).div_ceil(SPLIT);
    // SAFETY: the caller's contract; the state of a row lies in its result until it is divided.
    unsafe {
        // A split's keys and values serve every tile before the next split is touched.
        for split in first..end {
            for start in (0..query_rows).step_by(TILE) {
                let count = TILE.min(query_rows - start);
                let tile = Tile::new(work, start, count, split);
                if !(0..count).any(|i| tile.from[i] < tile.until[i]) {
                    continue;
                }
                split_tile::<V, E, ACCUMULATORS>(work, &tile, split, &scratch);
                for i in 0..count {
                    if tile.from[i] >= tile.until[i] {
                        continue;
                    }
                    let sums = scratch.sums.add(i * stride);
                    let part = (*scratch.tile_max.add(i), *scratch.tile_sum.add(i));
                    let (max, sum) = (scratch.row_max.add(start + i), scratch.row_sum.add(start + i));
                    // The first split of a row is taken as it is.
                    if tile.from[i] == work.from[(start + i) / group] as usize {
                        state(start + i).copy_from_nonoverlapping(sums, head_dim);
                        (*max, *sum) = part;
                    } else {
                        join::<V>(state(start + i), (&mut *max, &mut *sum), sums, part, head_dim);
                    }
                }
            }
        }
        for i in 0..query_rows {
            if work.from[i / group] == work.until[i / group] {
                state(i).write_bytes(0, head_dim);
            } else {
                divide::<V>(state(i), *scratch.row_sum.add(i), head_dim);
            }
        }
    }
}
