//! Attention over sixteen lanes; the meaning is in `kernels::attention`. Query rows (a row times a head of
//! the group) are worked on in tiles, so that each key and value that is loaded serves several of them.

use super::scores::{Element, Keys, pack_keys, scores_in_order, scores_in_passes};
use super::tile::{Pair, Piece, SPLIT_BLOCKS, Seen, Tile, addresses};
use super::values::{Layout, Values, add_values, pack_values};
use crate::kernels::attention::{Attention, KV_BLOCK, KvElement, KvLayer, SPLIT, Scratch, TILE, partial_len};
use crate::kernels::lanes::Lanes;
use crate::kernels::math::exp;
use crate::kernels::rows::{LANES, greater};

/// From so many query rows on, keys and values are first copied as f32 in the order in which they are read.
const PACK_ROWS: usize = 32;

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

/// The inner work of one instruction set, compiled once for each element and shared by all that needs it.
///
/// # Safety
/// As for [`Lanes`]; `ACCUMULATORS` is how many of them the registers hold beside operands.
pub(crate) unsafe trait Tiles {
    type V: Lanes;
    const ACCUMULATORS: usize;

    /// See [`score_pair`].
    unsafe fn score_pair<E: Element>(of: Piece, pair: Pair, keys: Keys<E, 2>, scores: *mut f32);
    /// See [`value_pair`].
    unsafe fn value_pair<E: Element>(of: Piece, pair: Pair, values: Values<E>, scratch: &Scratch);
}

/// Runs the first expression that fits, for 8 (if there is one), 4, 2 or 1 rows from `$at`, until `$count` are
/// done.
macro_rules! in_row_tiles {
    ($count:expr, $at:ident => $of_eight:expr, $of_four:expr, $of_two:expr, $of_one:expr) => {{
        let mut start = 0;
        while start + 8 <= $count {
            let $at = start;
            $of_eight;
            start += 8;
        }
        in_row_tiles!(@ start, $count, $at => $of_four, $of_two, $of_one);
    }};
    ($count:expr, $at:ident => $of_four:expr, $of_two:expr, $of_one:expr) => {{
        let mut start = 0;
        in_row_tiles!(@ start, $count, $at => $of_four, $of_two, $of_one);
    }};
    (@ $start:ident, $count:expr, $at:ident => $of_four:expr, $of_two:expr, $of_one:expr) => {
        while $start < $count {
            let ($at, left) = ($start, $count - $start);
            if left >= 4 {
                $of_four;
                $start += 4;
            } else if left >= 2 {
                $of_two;
                $start += 2;
            } else {
                $of_one;
                $start += 1;
            }
        }
    };
}

/// How scores of two blocks are computed: the shape that fits the registers.
const TOGETHER: u8 = 0;
const ONE_BY_ONE: u8 = 1;
const IN_ORDER: u8 = 2;

/// The scores of rows `at..at + ROWS` for those blocks of a pair that one of them sees.
#[inline(always)]
unsafe fn score_rows<V: Lanes, E: Element, const ROWS: usize, const HOW: u8>(
    of: Piece,
    at: usize,
    pair: Pair,
    keys: Keys<E, 2>,
    scores: *mut f32,
) {
    let seen = |b: usize| b < pair.count && of.tile.sees(at..at + ROWS, of.split * SPLIT + pair.places[b] * KV_BLOCK);
    let (head_dim, scale) = (of.work.layer.head_dim, of.work.scale);
    let mut q = [std::ptr::null(); ROWS];
    let mut out = [[std::ptr::null_mut::<f32>(); 2]; ROWS];
    // SAFETY: the caller's contract.
    unsafe {
        for r in 0..ROWS {
            q[r] = of.tile.q[at + r];
            out[r] = pair.places.map(|place| scores.add((at + r) * SPLIT + place * KV_BLOCK));
        }
        if HOW == TOGETHER && seen(0) && seen(1) {
            return scores_in_passes::<V, E, ROWS, 2>(q, keys, head_dim, scale, out);
        }
        for b in 0..2 {
            if seen(b) {
                let (keys, out) = (keys.of_block(b), out.map(|out| [out[b]]));
                if HOW == IN_ORDER {
                    scores_in_order::<V, E, ROWS, 1>(q, keys, head_dim, scale, out);
                } else {
                    scores_in_passes::<V, E, ROWS, 1>(q, keys, head_dim, scale, out);
                }
            }
        }
    }
}

/// The scores of every row of the tile for a pair of blocks.
#[inline(always)]
pub(crate) unsafe fn score_pair<T: Tiles, E: Element>(of: Piece, pair: Pair, mut keys: Keys<E, 2>, scores: *mut f32) {
    let mut keys_for = |at: usize| {
        // Only the first rows ask for the next blocks.
        if at > 0 {
            keys.next = [std::ptr::null(); 2];
        }
        keys
    };
    // SAFETY: the caller's contract.
    unsafe {
        if T::ACCUMULATORS >= 16 {
            in_row_tiles!(of.tile.count, at =>
                score_rows::<T::V, E, 8, TOGETHER>(of, at, pair, keys_for(at), scores),
                score_rows::<T::V, E, 4, TOGETHER>(of, at, pair, keys_for(at), scores),
                score_rows::<T::V, E, 2, IN_ORDER>(of, at, pair, keys_for(at), scores),
                score_rows::<T::V, E, 1, IN_ORDER>(of, at, pair, keys_for(at), scores)
            );
        } else {
            in_row_tiles!(of.tile.count, at =>
                score_rows::<T::V, E, 4, ONE_BY_ONE>(of, at, pair, keys_for(at), scores),
                score_rows::<T::V, E, 2, TOGETHER>(of, at, pair, keys_for(at), scores),
                score_rows::<T::V, E, 1, IN_ORDER>(of, at, pair, keys_for(at), scores)
            );
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

/// Adds a pair of blocks to the weighted values of rows `at..at + ROWS`, over the positions that each sees.
#[inline(always)]
unsafe fn value_rows<V: Lanes, E: Element, const ROWS: usize, const WIDTH: usize>(
    of: Piece,
    at: usize,
    pair: Pair,
    values: Values<E>,
    scratch: &Scratch,
) {
    let position = |b: usize| of.split * SPLIT + pair.places[b] * KV_BLOCK;
    let rows = at..at + ROWS;
    let stride = values.head_dim.next_multiple_of(LANES);
    let mut p = [[std::ptr::null::<f32>(); 2]; ROWS];
    let mut sums = [std::ptr::null_mut::<f32>(); ROWS];
    // SAFETY: the caller's contract.
    unsafe {
        for r in 0..ROWS {
            p[r] = pair.places.map(|place| scratch.scores.add((at + r) * SPLIT + place * KV_BLOCK).cast_const());
            sums[r] = scratch.sums.add((at + r) * stride);
        }
        if (0..pair.count).all(|b| of.tile.sees_all(rows.clone(), position(b))) {
            return add_values::<V, E, ROWS, WIDTH>(p, &values, sums);
        }
        for b in 0..pair.count {
            let (mut from, mut until) = (0, KV_BLOCK);
            for i in rows.clone() {
                let tokens = of.tile.tokens(i, position(b));
                (from, until) = (from.max(tokens.0), until.min(tokens.1));
            }
            // If no token is seen by all, each row goes alone.
            let until = until.max(from);
            // What only some rows see, before and after what all see, is added row by row. Nothing is masked:
            // 0 * v is not 0 if an unseen v is infinite.
            for (first, end, alone) in [(0, from, true), (from, until, false), (until, KV_BLOCK, true)] {
                if first < end && !alone {
                    let p = p.map(|row| [row[b]; 2]);
                    add_values::<V, E, ROWS, WIDTH>(p, &values.of_block(b, (first, end)), sums);
                }
                for r in 0..if alone { ROWS } else { 0 } {
                    let tokens = of.tile.tokens(at + r, position(b));
                    let (first, end) = (first.max(tokens.0), end.min(tokens.1));
                    if first < end {
                        let values = values.of_block(b, (first, end));
                        add_values::<V, E, 1, WIDTH>([[p[r][b]; 2]], &values, [sums[r]]);
                    }
                }
            }
        }
    }
}

/// Adds a pair of blocks to the weighted values of every row of the tile.
#[inline(always)]
pub(crate) unsafe fn value_pair<T: Tiles, E: Element>(of: Piece, pair: Pair, mut values: Values<E>, scratch: &Scratch) {
    let packed = values.layout == Layout::Packed;
    let mut values_for = |at: usize| {
        // Only the first rows ask for the next blocks.
        if at > 0 {
            values.next = [std::ptr::null(); 2];
        }
        values
    };
    // SAFETY: the caller's contract. Packed values have one width for any number of rows.
    unsafe {
        if T::ACCUMULATORS >= 16 && packed {
            in_row_tiles!(of.tile.count, at =>
                value_rows::<T::V, E, 8, 2>(of, at, pair, values_for(at), scratch),
                value_rows::<T::V, E, 4, 2>(of, at, pair, values_for(at), scratch),
                value_rows::<T::V, E, 2, 2>(of, at, pair, values_for(at), scratch),
                value_rows::<T::V, E, 1, 2>(of, at, pair, values_for(at), scratch)
            );
        } else if T::ACCUMULATORS >= 16 {
            in_row_tiles!(of.tile.count, at =>
                value_rows::<T::V, E, 8, 2>(of, at, pair, values_for(at), scratch),
                value_rows::<T::V, E, 4, 4>(of, at, pair, values_for(at), scratch),
                value_rows::<T::V, E, 2, 8>(of, at, pair, values_for(at), scratch),
                value_rows::<T::V, E, 1, 8>(of, at, pair, values_for(at), scratch)
            );
        } else if packed {
            in_row_tiles!(of.tile.count, at =>
                value_rows::<T::V, E, 4, 1>(of, at, pair, values_for(at), scratch),
                value_rows::<T::V, E, 2, 1>(of, at, pair, values_for(at), scratch),
                value_rows::<T::V, E, 1, 1>(of, at, pair, values_for(at), scratch)
            );
        } else {
            in_row_tiles!(of.tile.count, at =>
                value_rows::<T::V, E, 4, 1>(of, at, pair, values_for(at), scratch),
                value_rows::<T::V, E, 2, 2>(of, at, pair, values_for(at), scratch),
                value_rows::<T::V, E, 1, 4>(of, at, pair, values_for(at), scratch)
            );
        }
    }
}

/// One split for one tile: leaves sums, m and l in the scratch; m and l of rows that see nothing of the split
/// are left as they were.
#[inline(always)]
unsafe fn split_tile<T: Tiles, E: Element>(work: &Attention, tile: &Tile, split: usize, scratch: &Scratch) {
    let (layer, head_dim) = (&work.layer, work.layer.head_dim);
    let seen = Seen::new(tile, split);
    let of = Piece { work, tile, split };
    // SAFETY: the caller's contract.
    unsafe {
        for index in (0..seen.count).step_by(2) {
            let Some(pair) = seen.pair(index) else { break };
            let blocks = addresses::<E>(work, layer.keys, split, Some(pair));
            if tile.count >= PACK_ROWS {
                let keys = pack_keys::<T::V, E>(blocks, head_dim, scratch.packed);
                T::score_pair::<f32>(of, pair, keys, scratch.scores);
            } else {
                let next = addresses::<E>(work, layer.keys, split, seen.pair(index + 2));
                T::score_pair::<E>(of, pair, Keys::in_cache(blocks, next), scratch.scores);
            }
        }
        for i in 0..tile.count {
            if tile.from[i] < tile.until[i] {
                let (max, sum) = soften::<T::V>(scratch.scores.add(i * SPLIT), tile.from[i], tile.until[i]);
                *scratch.tile_max.add(i) = max;
                *scratch.tile_sum.add(i) = sum;
            }
        }
        scratch.sums.write_bytes(0, tile.count * head_dim.next_multiple_of(LANES));
        for index in (0..seen.count).step_by(2) {
            let Some(pair) = seen.pair(index) else { break };
            let blocks = addresses::<E>(work, layer.values, split, Some(pair));
            if tile.count >= PACK_ROWS {
                if T::ACCUMULATORS >= 16 {
                    pack_values::<T::V, E, 2>(blocks, head_dim, scratch.packed);
                } else {
                    pack_values::<T::V, E, 1>(blocks, head_dim, scratch.packed);
                }
                let values = Values::packed(scratch.packed, pair.count, head_dim);
                T::value_pair::<f32>(of, pair, values, scratch);
            } else {
                let next = addresses::<E>(work, layer.values, split, seen.pair(index + 2));
                let values = Values::in_cache(blocks, pair.count, head_dim, next);
                T::value_pair::<E>(of, pair, values, scratch);
            }
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
pub(crate) unsafe fn attention_split<T: Tiles>(
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
            KvElement::F32 => split_tile::<T, f32>(work, &tile, split, &scratch),
            KvElement::F16 => split_tile::<T, u16>(work, &tile, split, &scratch),
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
pub(crate) unsafe fn attention_rows<T: Tiles>(work: &Attention, scratch: &mut [f32]) {
    // SAFETY: the caller's contract; the element decides what the bytes are.
    unsafe {
        match work.layer.element {
            KvElement::F32 => rows_of::<T, f32>(work, scratch),
            KvElement::F16 => rows_of::<T, u16>(work, scratch),
        }
    }
}

#[inline(always)]
unsafe fn rows_of<T: Tiles, E: Element>(work: &Attention, scratch: &mut [f32]) {
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
                split_tile::<T, E>(work, &tile, split, &scratch);
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
                        join::<T::V>(state(start + i), (&mut *max, &mut *sum), sums, part, head_dim);
                    }
                }
            }
        }
        for i in 0..query_rows {
            if work.from[i / group] == work.until[i / group] {
                state(i).write_bytes(0, head_dim);
            } else {
                divide::<T::V>(state(i), *scratch.row_sum.add(i), head_dim);
            }
        }
    }
}
