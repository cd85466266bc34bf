//! The meaning of attention and of the cache's layout, in plain Rust.

use super::super::math::exp;
use super::super::rows::{LANES, f16_from_f32, f32_from_f16, greater, lane_max, lane_sum};
use super::{Attention, KV_BLOCK, KvElement, KvLayer, SPLIT, Scratch, splits};

/// Reads element `index` of an array of the cache.
unsafe fn element(base: *const u8, index: usize, element: KvElement) -> f32 {
    // SAFETY: the caller passes an index within the layer's memory.
    unsafe {
        match element {
            KvElement::F32 => *base.cast::<f32>().add(index),
            KvElement::F16 => f32_from_f16(*base.cast::<u16>().add(index)),
        }
    }
}

unsafe fn set_element(base: *mut u8, index: usize, element: KvElement, value: f32) {
    // SAFETY: the caller passes an index within the layer's memory.
    unsafe {
        match element {
            KvElement::F32 => *base.cast::<f32>().add(index) = value,
            KvElement::F16 => *base.cast::<u16>().add(index) = f16_from_f32(value),
        }
    }
}

/// Writes one token's keys and values, `[kv_heads, head_dim]` each, into its slot.
pub(crate) unsafe fn kv_append(layer: &KvLayer, slot: usize, k: *const f32, v: *const f32) {
    let (block, offset) = (slot / KV_BLOCK, slot % KV_BLOCK);
    // SAFETY: the caller's slot lies in the cache and its rows hold kv_heads * head_dim elements.
    unsafe {
        let keys = layer.keys.add(block * layer.block_stride_bytes);
        let values = layer.values.add(block * layer.block_stride_bytes);
        for head in 0..layer.kv_heads {
            let base = head * layer.head_elements();
            for d in 0..layer.head_dim {
                let source = head * layer.head_dim + d;
                set_element(keys, base + d * KV_BLOCK + offset, layer.element, *k.add(source));
                set_element(values, base + offset * layer.head_dim + d, layer.element, *v.add(source));
            }
        }
    }
}

/// One query row and one split: writes the weighted values to `sums` and returns (m, l).
unsafe fn split_row(work: &Attention, row: usize, head: usize, split: usize, sums: *mut f32) -> (f32, f32) {
    let layer = &work.layer;
    let first = (work.from[row] as usize).max(split * SPLIT);
    let until = (work.until[row] as usize).min((split + 1) * SPLIT);
    let head_base = work.kv_head * layer.head_elements();
    let block_bytes = |position: usize| work.table[position / KV_BLOCK] as usize * layer.block_stride_bytes;
    let mut scores = [0.0f32; SPLIT];
    let mut lanes = [f32::NEG_INFINITY; LANES];
    // SAFETY: `check` proved the blocks of from..until; the caller vouches for q, out and sums.
    unsafe {
        let q = work.q.add(row * work.q_stride + head * layer.head_dim);
        for position in first..until {
            let keys = layer.keys.add(block_bytes(position));
            let mut parts = [0.0f32; 4];
            for d in 0..layer.head_dim {
                let key = element(keys, head_base + d * KV_BLOCK + position % KV_BLOCK, layer.element);
                parts[d % 4] = (*q.add(d)).mul_add(key, parts[d % 4]);
            }
            let score = ((parts[0] + parts[1]) + (parts[2] + parts[3])) * work.scale;
            scores[position % SPLIT] = score;
            lanes[position % LANES] = greater(score, lanes[position % LANES]);
        }
        let max = lane_max(lanes);
        let mut lanes = [0.0f32; LANES];
        for d in 0..layer.head_dim {
            *sums.add(d) = 0.0;
        }
        for position in first..until {
            let p = exp(scores[position % SPLIT] - max);
            lanes[position % LANES] += p;
            let values = layer.values.add(block_bytes(position));
            for d in 0..layer.head_dim {
                let at = head_base + position % KV_BLOCK * layer.head_dim + d;
                *sums.add(d) = p.mul_add(element(values, at, layer.element), *sums.add(d));
            }
        }
        (max, lane_sum(lanes))
    }
}

/// Joins one more split into a row's running state.
unsafe fn join(state: *mut f32, max: &mut f32, sum: &mut f32, sums: *const f32, split: (f32, f32), head_dim: usize) {
    let top = greater(split.0, *max);
    let (a, b) = (exp(*max - top), exp(split.0 - top));
    *max = top;
    *sum = split.1.mul_add(b, *sum * a);
    for d in 0..head_dim {
        // SAFETY: both hold head_dim elements.
        unsafe { *state.add(d) = (*sums.add(d)).mul_add(b, *state.add(d) * a) };
    }
}

/// One row, one split, every head of the group: a partial result (see `partial_len`).
pub(crate) unsafe fn attention_split(
    work: &Attention,
    row: usize,
    split: usize,
    partial: *mut f32,
    _scratch: &mut [f32],
) {
    let (group, head_dim) = (work.group, work.layer.head_dim);
    for head in 0..group {
        // SAFETY: the partial holds [group, head_dim] sums, then m and l of each head.
        unsafe {
            let (max, sum) = split_row(work, row, head, split, partial.add(head * head_dim));
            *partial.add(group * head_dim + head) = max;
            *partial.add(group * (head_dim + 1) + head) = sum;
        }
    }
}

/// Joins `count` partial results, ascending and contiguous, into `[group, head_dim]` at `out`.
pub(crate) unsafe fn attention_merge(partials: *const f32, count: usize, group: usize, head_dim: usize, out: *mut f32) {
    let stride = super::partial_len(group, head_dim);
    // SAFETY: the caller passes `count` partials and room for [group, head_dim].
    unsafe {
        for head in 0..group {
            let state = out.add(head * head_dim);
            let part = |split: usize| {
                let base = partials.add(split * stride);
                let (max, sum) = (*base.add(group * head_dim + head), *base.add(group * (head_dim + 1) + head));
                (base.add(head * head_dim), max, sum)
            };
            if count == 0 {
                state.write_bytes(0, head_dim);
                continue;
            }
            let (sums, mut max, mut sum) = part(0);
            state.copy_from_nonoverlapping(sums, head_dim);
            for split in 1..count {
                let (sums, split_max, split_sum) = part(split);
                join(state, &mut max, &mut sum, sums, (split_max, split_sum), head_dim);
            }
            for d in 0..head_dim {
                *state.add(d) /= sum;
            }
        }
    }
}

/// Every row of the work, from its first split to its last.
pub(crate) unsafe fn attention_rows(work: &Attention, scratch: &mut [f32]) {
    let (group, head_dim) = (work.group, work.layer.head_dim);
    let scratch = Scratch::cut(scratch, work.rows(), group, head_dim);
    for row in 0..work.rows() {
        let splits = splits(work.from[row], work.until[row]);
        for head in 0..group {
            // SAFETY: the caller gives each row of the result room for [group, head_dim].
            unsafe {
                let state = work.out.add(row * work.out_stride + head * head_dim);
                if splits.is_empty() {
                    state.write_bytes(0, head_dim);
                    continue;
                }
                let (mut max, mut sum) = split_row(work, row, head, splits.start, state);
                for split in splits.start + 1..splits.end {
                    let part = split_row(work, row, head, split, scratch.sums);
                    join(state, &mut max, &mut sum, scratch.sums, part, head_dim);
                }
                for d in 0..head_dim {
                    *state.add(d) /= sum;
                }
            }
        }
    }
}
