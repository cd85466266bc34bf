//! Attention at the sizes of Gemma 4: decode (one row, splits over the threads) as bytes of keys and values a
//! second, prefill (tiles of rows over the threads) as floating-point operations a second, each with its share of
//! what the machine can do.
//!
//! `cargo bench -p markbase-cpu --bench attention [-- THREADS [avx512|avx2|neon|scalar]]`

use markbase_cpu::isa::Isa;
use markbase_cpu::kernels::Kernels;
use markbase_cpu::kernels::attention::{
    Attention, KV_BLOCK, KvElement, KvLayer, attention_scratch_len, partial_len, splits,
};
use markbase_cpu::probe::{PROBE_BYTES, memory_bandwidth, multiply_rate};
use markbase_cpu::team::{Team, default_threads};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Rows of one piece of prefill.
const TILE_ROWS: usize = 16;

struct Shape {
    name: &'static str,
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    /// Keys that a row sees.
    window: usize,
    /// Query rows; 1 is decode.
    rows: usize,
}

const SHAPES: [Shape; 10] = [
    Shape { name: "E2B sliding", kv_heads: 1, group: 8, head_dim: 256, window: 512, rows: 1 },
    Shape { name: "E2B full 8k", kv_heads: 1, group: 8, head_dim: 512, window: 8192, rows: 1 },
    Shape { name: "E2B full 32k", kv_heads: 1, group: 8, head_dim: 512, window: 32768, rows: 1 },
    Shape { name: "31B sliding", kv_heads: 16, group: 2, head_dim: 256, window: 1024, rows: 1 },
    Shape { name: "31B full 8k", kv_heads: 4, group: 8, head_dim: 512, window: 8192, rows: 1 },
    Shape { name: "12B full 8k", kv_heads: 1, group: 16, head_dim: 512, window: 8192, rows: 1 },
    Shape { name: "one head 32k", kv_heads: 1, group: 1, head_dim: 256, window: 32768, rows: 1 },
    Shape { name: "E2B sliding", kv_heads: 1, group: 8, head_dim: 256, window: 512, rows: 512 },
    Shape { name: "E2B full 2k", kv_heads: 1, group: 8, head_dim: 512, window: 2048, rows: 512 },
    Shape { name: "31B sliding", kv_heads: 16, group: 2, head_dim: 256, window: 1024, rows: 128 },
];

fn main() {
    // Cargo passes --bench.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let threads = arguments.first().map_or(default_threads(), |count| count.parse().expect("a number of threads"));
    let isa = arguments.get(1).map_or(Isa::best(), |name| {
        Isa::supported().into_iter().find(|isa| isa.to_string() == *name).expect("an instruction set of this processor")
    });
    let bandwidth = memory_bandwidth(threads, PROBE_BYTES);
    let rate = multiply_rate(threads);
    println!(
        "{threads} threads, {isa}; memory {:.1} GB/s; {} {:.0} GFLOP/s, {:.0} i8 GOP/s",
        bandwidth / 1e9,
        rate.isa,
        rate.f32_flops / 1e9,
        rate.i8_ops / 1e9
    );
    let mut team = Team::new(threads).expect("the system starts a thread");
    for shape in &SHAPES {
        for element in [KvElement::F16, KvElement::F32] {
            let (seconds, bytes, flops) = measure(&mut team, Kernels::for_isa(isa), shape, element);
            println!(
                "{:13} {:4} rows {element:?}: {:9.1} us, {:6.1} GB/s ({:3.0}%), {:6.1} GFLOP/s ({:3.0}%)",
                shape.name,
                shape.rows,
                seconds * 1e6,
                bytes / seconds / 1e9,
                100.0 * bytes / seconds / bandwidth,
                flops / seconds / 1e9,
                100.0 * flops / seconds / rate.f32_flops
            );
        }
    }
}

/// Seconds of one call, and what it reads (each key and value of each row's or tile's window once) and computes.
fn measure(team: &mut Team, kernels: Kernels, shape: &Shape, element: KvElement) -> (f64, f64, f64) {
    let positions = shape.window + shape.rows - 1;
    let blocks = positions.div_ceil(KV_BLOCK);
    let half = shape.kv_heads * shape.head_dim * KV_BLOCK * element.bytes();
    // Several layers in turn, so that decode reads memory and not the cache of the call before.
    let layers = if shape.rows > 1 { 1 } else { (800_000_000 / (blocks * 2 * half)).clamp(1, 64) };
    let mut memory = vec![0u16; layers * blocks * half];
    let mut state = 1u32;
    for element in &mut memory {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // As f16 and as the upper half of an f32: numbers around 0.1 of either sign.
        *element = (state >> 16) as u16 & 0x83ff | if element_is_low(state) { 0x2c00 } else { 0x3c00 };
    }
    let base = memory.as_mut_ptr().cast::<u8>();
    let layer = |index: usize| KvLayer {
        keys: base.wrapping_add(index * blocks * 2 * half),
        values: base.wrapping_add(index * blocks * 2 * half + half),
        block_stride_bytes: 2 * half,
        num_blocks: blocks,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        element,
    };
    let table: Vec<u32> = (0..blocks as u32).collect();
    let from: Vec<u32> = (0..shape.rows as u32).collect();
    let until: Vec<u32> = from.iter().map(|from| from + shape.window as u32).collect();
    let stride = shape.kv_heads * shape.group * shape.head_dim;
    let q = vec![0.05f32; shape.rows * stride];
    let mut out = vec![0.0f32; shape.rows * stride];
    let (q_address, out_address) = (q.as_ptr() as usize, out.as_mut_ptr() as usize);
    let work = |layer: KvLayer, kv_head: usize, rows: std::ops::Range<usize>| {
        let start = rows.start * stride + kv_head * shape.group * shape.head_dim;
        Attention {
            layer,
            kv_head,
            group: shape.group,
            scale: 1.0,
            table: &table,
            from: &from[rows.clone()],
            until: &until[rows],
            q: (q_address as *const f32).wrapping_add(start),
            q_stride: stride,
            out: (out_address as *mut f32).wrapping_add(start),
            out_stride: stride,
        }
    };
    let scratch_len = attention_scratch_len(TILE_ROWS, shape.group, shape.head_dim);
    let scratch: Vec<Mutex<Vec<f32>>> = (0..team.threads()).map(|_| Mutex::new(vec![0.0; scratch_len])).collect();
    let row_splits = splits(from[0], until[0]).len();
    let len = partial_len(shape.group, shape.head_dim);
    let partials: Vec<Mutex<Vec<f32>>> = (0..shape.kv_heads).map(|_| Mutex::new(vec![0.0; row_splits * len])).collect();
    let addresses: Vec<usize> = partials.iter().map(|p| p.lock().expect("one thread").as_mut_ptr() as usize).collect();
    let mut best = f64::INFINITY;
    let started = Instant::now();
    let mut round = 0;
    while round < 5 || started.elapsed().as_secs_f64() < 0.4 {
        let layer = layer(round % layers);
        let (computed, merged) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let call = Instant::now();
        team.run(&|member| {
            let mut scratch = scratch[member.thread].lock().expect("one thread each");
            if shape.rows == 1 {
                let pieces = shape.kv_heads * row_splits;
                while let Some(piece) = next(&computed, pieces) {
                    let (kv_head, split) = (piece / row_splits, piece % row_splits);
                    // SAFETY: each piece has its own partial; the cache is only read.
                    unsafe {
                        let partial = (addresses[kv_head] as *mut f32).add(split * len);
                        let partial = std::slice::from_raw_parts_mut(partial, len);
                        kernels.attention_split(&work(layer, kv_head, 0..1), 0, split, partial, &mut scratch);
                    }
                }
                member.barrier();
                while let Some(head) = next(&merged, shape.kv_heads) {
                    let work = work(layer, head, 0..1);
                    // SAFETY: after the barrier the partials are complete; each head has its own result.
                    unsafe {
                        let partials = std::slice::from_raw_parts(addresses[head] as *const f32, row_splits * len);
                        let out = std::slice::from_raw_parts_mut(work.out, shape.group * shape.head_dim);
                        kernels.attention_merge(partials, shape.group, shape.head_dim, out);
                    }
                }
            } else {
                let tiles = shape.rows.div_ceil(TILE_ROWS);
                while let Some(piece) = next(&computed, tiles * shape.kv_heads) {
                    let start = piece % tiles * TILE_ROWS;
                    let rows = start..shape.rows.min(start + TILE_ROWS);
                    // SAFETY: each piece has its own rows and heads of the result; the cache is only read.
                    unsafe { kernels.attention_rows(&work(layer, piece / tiles, rows), &mut scratch) };
                }
            }
        });
        best = best.min(call.elapsed().as_secs_f64());
        round += 1;
    }
    assert!(out.iter().all(|x| x.is_finite()), "every result is a number");
    let tiles = shape.rows.div_ceil(TILE_ROWS);
    let bytes = (2 * half / KV_BLOCK * (shape.window * tiles + shape.rows - tiles)) as f64;
    let flops = (4 * shape.window * shape.rows * shape.kv_heads * shape.group * shape.head_dim) as f64;
    (best, bytes, flops)
}

/// The next of `0..total` that no thread has taken.
fn next(taken: &AtomicUsize, total: usize) -> Option<usize> {
    // Relaxed: the counter only deals out; what the work reads was published before the run or by a barrier.
    Some(taken.fetch_add(1, Ordering::Relaxed)).filter(|piece| *piece < total)
}

fn element_is_low(state: u32) -> bool {
    state & 1 == 0
}
