//! Attention: every instruction set and every way of cutting the work give the same bits, close to f64, and
//! nothing that a row does not see can be felt.

use super::*;
use crate::isa::Isa;
use crate::kernels::Kernels;
use crate::kernels::tests::{assert_same, noise};

/// A sequence in a cache whose every unwritten element is NaN, in blocks of shuffled order.
struct Case {
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    element: KvElement,
    from: Vec<u32>,
    until: Vec<u32>,
    q: Vec<f32>,
    /// [positions, kv_heads, head_dim], as they were before they were stored.
    k: Vec<f32>,
    v: Vec<f32>,
    table: Vec<u32>,
    num_blocks: usize,
    memory: Vec<f32>,
}

impl Case {
    fn new(kv_heads: usize, group: usize, head_dim: usize, element: KvElement, ranges: &[(u32, u32)]) -> Case {
        let positions = ranges.iter().map(|range| range.1).max().expect("rows") as usize;
        let width = kv_heads * head_dim;
        let seed = (kv_heads + 31 * group + 1009 * head_dim) as u64;
        // Scores of a few units, so that many keys count.
        let q = noise(ranges.len() * kv_heads * group * head_dim, seed)
            .iter()
            .map(|q| q / (head_dim as f32).sqrt())
            .collect();
        let blocks = positions.div_ceil(KV_BLOCK);
        let seen = |block: usize| {
            let start = (block * KV_BLOCK) as u32;
            ranges.iter().any(|(from, until)| *from < start + KV_BLOCK as u32 && start < *until)
        };
        let num_blocks = blocks + 3;
        // Blocks that nobody sees have been given back: their entry is no block at all.
        let table = (0..blocks)
            .map(|block| if seen(block) { ((block * 7 + 2) % num_blocks) as u32 } else { u32::MAX })
            .collect::<Vec<_>>();
        let table = if num_blocks.is_multiple_of(7) {
            table.iter().enumerate().map(|(i, at)| if *at == u32::MAX { *at } else { (i + 2) as u32 }).collect()
        } else {
            table
        };
        let block_floats = 2 * width * KV_BLOCK * element.bytes() / 4;
        let mut case = Case {
            kv_heads,
            group,
            head_dim,
            element,
            from: ranges.iter().map(|range| range.0).collect(),
            until: ranges.iter().map(|range| range.1).collect(),
            q,
            k: noise(positions * width, seed + 1),
            v: noise(positions * width, seed + 2),
            table,
            num_blocks,
            // All ones is a NaN in f32 and in f16.
            memory: vec![f32::from_bits(u32::MAX); num_blocks * block_floats],
        };
        case.fill(&Kernels::for_isa(Isa::Scalar));
        case
    }

    fn layer(&mut self) -> KvLayer {
        let half = self.kv_heads * self.head_dim * KV_BLOCK * self.element.bytes();
        let keys = self.memory.as_mut_ptr().cast::<u8>();
        KvLayer {
            keys,
            values: keys.wrapping_add(half),
            block_stride_bytes: 2 * half,
            num_blocks: self.num_blocks,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            element: self.element,
        }
    }

    /// Appends the positions that some row sees.
    fn fill(&mut self, kernels: &Kernels) {
        let layer = self.layer();
        let width = self.kv_heads * self.head_dim;
        for position in 0..self.k.len() / width {
            let seen = |(from, until): (&u32, &u32)| (*from..*until).contains(&(position as u32));
            if self.from.iter().zip(&self.until).any(seen) {
                let slot = self.table[position / KV_BLOCK] as usize * KV_BLOCK + position % KV_BLOCK;
                let row = position * width..(position + 1) * width;
                // SAFETY: the cache is this case's memory, nobody else has it.
                unsafe { kernels.kv_append(&layer, slot, &self.k[row.clone()], &self.v[row]) };
            }
        }
    }

    fn out(&self) -> Vec<f32> {
        vec![f32::NAN; self.q.len()]
    }

    /// Rows `rows` for one key/value head.
    fn work<'a>(&'a self, layer: KvLayer, kv_head: usize, rows: Range<usize>, out: &mut [f32]) -> Attention<'a> {
        let stride = self.kv_heads * self.group * self.head_dim;
        let start = rows.start * stride + kv_head * self.group * self.head_dim;
        Attention {
            layer,
            kv_head,
            group: self.group,
            scale: 0.75,
            table: &self.table,
            from: &self.from[rows.clone()],
            until: &self.until[rows],
            q: self.q[start..].as_ptr(),
            q_stride: stride,
            out: out[start..].as_mut_ptr(),
            out_stride: stride,
        }
    }

    /// Everything by `attention_rows`, `tile` rows a call.
    fn by_rows(&mut self, kernels: &Kernels, tile: usize) -> Vec<f32> {
        let (layer, mut out) = (self.layer(), self.out());
        let rows = self.from.len();
        let mut scratch = vec![f32::NAN; attention_scratch_len(tile, self.group, self.head_dim)];
        for kv_head in 0..self.kv_heads {
            for start in (0..rows).step_by(tile) {
                let work = self.work(layer, kv_head, start..rows.min(start + tile), &mut out);
                // SAFETY: cache, queries and result are this case's own.
                unsafe { kernels.attention_rows(&work, &mut scratch) };
            }
        }
        out
    }

    /// Everything by `attention_split` and `attention_merge`, splits in descending order.
    fn by_splits(&mut self, kernels: &Kernels) -> Vec<f32> {
        let (layer, mut out) = (self.layer(), self.out());
        let len = partial_len(self.group, self.head_dim);
        let mut scratch = vec![f32::NAN; attention_scratch_len(1, self.group, self.head_dim)];
        for kv_head in 0..self.kv_heads {
            for row in 0..self.from.len() {
                let splits = splits(self.from[row], self.until[row]);
                let mut partials = vec![f32::NAN; splits.len() * len];
                let work = self.work(layer, kv_head, 0..self.from.len(), &mut out);
                for split in splits.clone().rev() {
                    let at = (split - splits.start) * len;
                    let partial = &mut partials[at..at + len];
                    // SAFETY: cache, queries and result are this case's own.
                    unsafe { kernels.attention_split(&work, row, split, partial, &mut scratch) };
                }
                let start = (row * self.kv_heads + kv_head) * self.group * self.head_dim;
                let result = &mut out[start..start + self.group * self.head_dim];
                kernels.attention_merge(&partials, self.group, self.head_dim, result);
            }
        }
        out
    }

    /// Softmax attention in f64 over what the cache keeps.
    fn in_f64(&self) -> Vec<f64> {
        let kept = |x: f32| match self.element {
            KvElement::F32 => f64::from(x),
            KvElement::F16 => half::f16::from_f32(x).to_f64(),
        };
        let mut out = Vec::new();
        for row in 0..self.from.len() {
            for head in 0..self.kv_heads * self.group {
                let at = (row * self.kv_heads * self.group + head) * self.head_dim;
                let q = &self.q[at..at + self.head_dim];
                let vector = |position: u32| {
                    let at = (position as usize * self.kv_heads + head / self.group) * self.head_dim;
                    at..at + self.head_dim
                };
                let range = self.from[row]..self.until[row];
                let score = |position| {
                    let k = &self.k[vector(position)];
                    0.75 * q.iter().zip(k).map(|(q, k)| f64::from(*q) * kept(*k)).sum::<f64>()
                };
                let p: Vec<f64> = range.clone().map(|position| score(position).exp()).collect();
                let sum: f64 = p.iter().sum();
                for d in 0..self.head_dim {
                    let value = |position| kept(self.v[vector(position)][d]);
                    let weighted: f64 = p.iter().zip(range.clone()).map(|(p, position)| p * value(position)).sum();
                    out.push(if p.is_empty() { 0.0 } else { weighted / sum });
                }
            }
        }
        out
    }

    /// Compares every instruction set and every cut with the scalar rows, and those with f64.
    fn check(&mut self) {
        let what = format!(
            "{} heads of {}, dim {}, {:?}, rows {:?}..{:?}",
            self.kv_heads, self.group, self.head_dim, self.element, self.from, self.until
        );
        let scalar = Kernels::for_isa(Isa::Scalar);
        let want = self.by_rows(&scalar, 1);
        for (i, (got, want)) in want.iter().zip(self.in_f64()).enumerate() {
            // Values are in -4..4; some hundred roundings of f32, most in the scores.
            assert!((f64::from(*got) - want).abs() < 2e-5, "{what}: [{i}] is {got}, not {want}");
        }
        assert_same(&self.by_splits(&scalar), &want, &format!("scalar splits, {what}"));
        let memory = self.memory.clone();
        for isa in Isa::supported() {
            let kernels = Kernels::for_isa(isa);
            self.memory.fill(f32::from_bits(u32::MAX));
            self.fill(&kernels);
            let same = self.memory.iter().zip(&memory).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "kv_append {isa}, {what}");
            for tile in [1, 3, self.from.len()] {
                assert_same(&self.by_rows(&kernels, tile), &want, &format!("{isa} {tile} rows a call, {what}"));
            }
            assert_same(&self.by_splits(&kernels), &want, &format!("{isa} splits, {what}"));
        }
    }
}

const ELEMENTS: [KvElement; 2] = [KvElement::F32, KvElement::F16];

/// Ranges that start, end and cross at block and split borders.
const BORDERS: [(u32, u32); 12] = [
    (0, 1),
    (0, 16),
    (3, 17),
    (15, 33),
    (0, 0),
    (100, 512),
    (511, 513),
    (512, 530),
    (500, 1030),
    (1024, 1024),
    (1007, 1041),
    (1535, 1600),
];

#[test]
fn every_group_and_head_size() {
    for element in ELEMENTS {
        for group in [1, 2, 3, 8, 16] {
            for head_dim in [1, 3, 4, 16, 20, 64] {
                Case::new(2, group, head_dim, element, &BORDERS).check();
            }
        }
    }
}

#[test]
fn model_sizes() {
    for element in ELEMENTS {
        for (group, head_dim) in [(8, 256), (2, 256), (16, 512)] {
            Case::new(1, group, head_dim, element, &[(30, 70), (500, 530), (505, 531)]).check();
        }
    }
}

#[test]
fn long_rows_join_many_splits() {
    for element in ELEMENTS {
        Case::new(1, 3, 20, element, &[(0, 1600), (7, 1599), (0, 513)]).check();
    }
}

#[test]
fn prefill_of_a_window() {
    // Forty rows around the border of a split, each with the 100 positions up to its own.
    let ranges: Vec<(u32, u32)> = (490..530).map(|position| (position + 1 - 100, position + 1)).collect();
    for (group, element) in [(8, KvElement::F16), (2, KvElement::F32), (1, KvElement::F16)] {
        Case::new(2, group, 32, element, &ranges).check();
    }
}

#[test]
fn rows_far_apart_do_not_touch_what_lies_between() {
    Case::new(1, 2, 16, KvElement::F16, &[(0, 20), (1500, 1520), (40, 41), (300, 310)]).check();
}

#[test]
fn an_infinite_value_reaches_only_rows_that_see_it() {
    for element in ELEMENTS {
        let mut case = Case::new(1, 1, 16, element, &[(0, 20), (0, 21), (19, 21), (0, 18)]);
        let value = case.layer().values.cast::<f32>();
        let physical = case.table[1] as usize;
        // Position 19 is token 3 of logical block 1.
        match element {
            // SAFETY: within this case's memory.
            KvElement::F32 => unsafe {
                *value.byte_add(physical * case.layer().block_stride_bytes).add(3 * 16) = f32::INFINITY;
            },
            // SAFETY: as above.
            KvElement::F16 => unsafe {
                let row = value.byte_add(physical * case.layer().block_stride_bytes).cast::<u16>();
                *row.add(3 * 16) = half::f16::INFINITY.to_bits();
            },
        }
        let want = case.by_rows(&Kernels::for_isa(Isa::Scalar), 1);
        assert!(want[0] == f32::INFINITY && want[16] == f32::INFINITY && want[48].is_finite());
        for isa in Isa::supported() {
            assert_same(&case.by_rows(&Kernels::for_isa(isa), 4), &want, &format!("{isa}"));
        }
    }
}

#[test]
fn a_nan_query_makes_its_row_nan_and_no_other() {
    let mut case = Case::new(1, 2, 16, KvElement::F32, &[(0, 40), (0, 41)]);
    case.q[3] = f32::NAN;
    for isa in Isa::supported() {
        let out = case.by_rows(&Kernels::for_isa(isa), 2);
        assert!(out[..16].iter().all(|x| x.is_nan()), "{isa}");
        assert!(out[16..].iter().all(|x| x.is_finite()), "{isa}");
    }
}

#[test]
#[should_panic(expected = "outside the cache")]
fn a_freed_block_that_is_seen_is_refused() {
    let mut case = Case::new(1, 1, 4, KvElement::F32, &[(0, 20)]);
    case.table[1] = u32::MAX;
    case.by_rows(&Kernels::for_isa(Isa::Scalar), 1);
}

#[test]
fn f16_elements_are_the_nearest_held_at_the_largest_and_read_exactly() {
    // Every f16 there is, and what lies on and beside the middle between each and the next.
    let exact: Vec<f32> = (0..=u16::MAX).map(|bits| half::f16::from_bits(bits).to_f32()).collect();
    let middle: Vec<f32> = (0..=u16::MAX)
        .map(|bits| (exact[usize::from(bits)] + half::f16::from_bits(bits.wrapping_add(1)).to_f32()) / 2.0)
        .collect();
    let above = middle.iter().map(|x| x.next_up()).collect();
    let below = middle.iter().map(|x| x.next_down()).collect();
    let head_dim = exact.len();
    for isa in Isa::supported() {
        let kernels = Kernels::for_isa(isa);
        let mut case = Case::new(1, 1, head_dim, KvElement::F16, &[(0, 1)]);
        let layer = case.layer();
        let block = case.table[0] as usize;
        let start = block * layer.block_stride_bytes;
        let (keys, values) =
            (layer.keys.wrapping_add(start).cast::<u16>(), layer.values.wrapping_add(start).cast::<u16>());
        for row in [&exact, &middle, &above, &below] {
            // SAFETY: the cache is this case's memory, nobody else has it.
            unsafe { kernels.kv_append(&layer, block * KV_BLOCK, row, row) };
            for (d, x) in row.iter().enumerate() {
                let nearest = half::f16::from_f32(*x);
                let want = if nearest.is_infinite() { half::f16::MAX.copysign(nearest) } else { nearest };
                // SAFETY: within this case's memory.
                for got in unsafe { [*keys.add(d * KV_BLOCK), *values.add(d)] }.map(half::f16::from_bits) {
                    let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                    assert!(same, "{isa}: {x:e} is kept as {got:e}, not {want:e}");
                }
            }
        }
        // The row sees one position, so the result is its value.
        case.q.fill(0.0);
        for d in 0..head_dim {
            // SAFETY: as above.
            unsafe {
                *keys.add(d * KV_BLOCK) = 0;
                *values.add(d) = d as u16;
            }
        }
        for (bits, (got, want)) in case.by_rows(&kernels, 1).iter().zip(&exact).enumerate() {
            // Compared as numbers: the sum starts at 0, so -0 comes out as 0.
            assert!(got == want || got.is_nan() && want.is_nan(), "{isa}: {bits:x} is read as {got:e}, not {want:e}");
        }
    }
}
