//! Times matrix products of decoding (weights from memory) and prefill (many rows), beside what this machine's memory
//! gives. Words after `--` choose lines that contain them all: `cargo bench -p markbase-cpu --bench linear -- q4 rows=1`.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use checkpoint::{DType, QuantFormat};
use markbase_cpu::isa::Isa;
use markbase_cpu::linear::{Bytes, InputRows, Kernels, LANES, Matrix, OutputRows, Parameters, Product};
use markbase_cpu::linear::{QuantizedRows, Scratch};

/// Weights of decoding are read in turn from so much memory that no cache keeps them.
const POOL_BYTES: usize = 1100 << 20;

/// A line's figure is the fastest of the products made in this time.
const TIME_A_LINE: Duration = Duration::from_millis(700);

#[derive(Clone, Copy)]
enum Format {
    Affine { bits: u8, group_size: u32 },
    Mxfp4,
    Bf16,
}

impl Format {
    fn name(self) -> String {
        match self {
            Format::Affine { bits, group_size } => format!("q{bits}g{group_size}"),
            Format::Mxfp4 => "mxfp4".into(),
            Format::Bf16 => "bf16".into(),
        }
    }

    fn weight_bytes(self, [rows, columns]: [usize; 2]) -> usize {
        match self {
            Format::Affine { bits, .. } => rows * columns / 8 * bits as usize,
            Format::Mxfp4 => rows * columns / 2,
            Format::Bf16 => rows * columns * 2,
        }
    }

    /// As many matrices as the pool holds, one after the other; never more than 256.
    fn matrices(self, shape: [usize; 2], pool: &Arc<Vec<u8>>) -> Vec<Matrix> {
        let bytes = self.weight_bytes(shape);
        let place = |index: usize| Bytes::within(pool.clone(), move |pool| &pool[index * bytes..][..bytes]);
        let make = |index| match self {
            Format::Bf16 => Matrix::dense(DType::BF16, shape[0], shape[1], place(index)),
            Format::Mxfp4 => {
                let scales = vec![120; shape[0] * shape[1] / 32];
                let scales = Parameters { dtype: DType::U8, bytes: &scales };
                Matrix::quantized(QuantFormat::Mxfp4, shape, place(index), scales, None)
            }
            Format::Affine { bits, group_size } => {
                // 0x3c01 as bf16 is about 0.0079.
                let bytes = [0x01, 0x3c].repeat(shape[0] * shape[1] / group_size as usize);
                let parameters = Parameters { dtype: DType::BF16, bytes: &bytes };
                let format = QuantFormat::Affine { bits, group_size };
                Matrix::quantized(format, shape, place(index), parameters, Some(parameters))
            }
        };
        (0..(pool.len() / bytes).min(256)).map(|index| make(index).expect("the bench's sizes agree")).collect()
    }
}

/// Runs `work(thread, iteration)` on all threads, iterations in step; the seconds of the fastest one.
fn best_seconds(threads: usize, work: impl Fn(usize, usize) + Sync) -> f64 {
    let arrived = AtomicUsize::new(0);
    let meet = |round: usize| {
        arrived.fetch_add(1, Ordering::AcqRel);
        while arrived.load(Ordering::Acquire) < round * threads {
            std::hint::spin_loop();
        }
    };
    let stop = AtomicUsize::new(usize::MAX);
    let run = |thread: usize| {
        let (started, mut best) = (Instant::now(), f64::INFINITY);
        for iteration in 0.. {
            // Thread 0 decides one iteration ahead, so that all stop at the same one.
            if thread == 0 && iteration > 0 && started.elapsed() > TIME_A_LINE {
                stop.fetch_min(iteration + 1, Ordering::Relaxed);
            }
            let begun = Instant::now();
            work(thread, iteration);
            meet(iteration + 1);
            best = best.min(begun.elapsed().as_secs_f64());
            if iteration + 1 >= stop.load(Ordering::Relaxed) {
                break;
            }
        }
        best
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        let best = run(0);
        // A thread that starts late measures less than all did.
        others.into_iter().map(|other| other.join().expect("no thread panicked")).fold(best, f64::max)
    })
}

/// Bytes a second of plain reading, in turn from all of the pool.
fn read_bandwidth(threads: usize, pool: &[u8]) -> f64 {
    const PIECE_BYTES: usize = 8 << 20;
    let pieces = pool.len() / PIECE_BYTES;
    let seconds = best_seconds(threads, |thread, iteration| {
        let piece = (iteration * threads + thread) % pieces;
        let mut sums = [0u64; 16];
        for line in pool[piece * PIECE_BYTES..][..PIECE_BYTES].as_chunks::<128>().0 {
            for (sum, raw) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
                *sum = sum.wrapping_add(u64::from_le_bytes(*raw));
            }
        }
        std::hint::black_box(sums);
    });
    (PIECE_BYTES * threads) as f64 / seconds
}

struct Line<'a> {
    matrices: &'a [Matrix],
    format: Format,
    rows: usize,
    threads: usize,
    isa: Isa,
    bandwidth: f64,
}

impl Line<'_> {
    fn path(&self) -> &'static str {
        if self.matrices[0].activation_layout().is_some() { "i8" } else { "f32" }
    }

    fn name(&self) -> String {
        let [n, k] = [self.matrices[0].rows(), self.matrices[0].columns()];
        let (format, rows, threads, isa) = (self.format.name(), self.rows, self.threads, self.isa);
        format!("{n}x{k} {format:6} {:4} rows={rows:<4} threads={threads} {isa}", self.path())
    }

    fn run(&self) {
        let matrix = &self.matrices[0];
        let [n, k] = [matrix.rows(), matrix.columns()];
        let kernels = Kernels::for_isa(self.isa);
        let x: Vec<f32> = (0..self.rows * k).map(|index| (index % 83) as f32 / 41.0 - 1.0).collect();
        let input = InputRows { start: x.as_ptr(), stride: k };
        let quantized = QuantizedRows::new(self.rows, k);
        if let Some(layout) = matrix.activation_layout() {
            // SAFETY: `x` holds the rows; one thread.
            unsafe { kernels.quantize_rows(layout, input, k, 0..self.rows, &quantized) };
        }
        let mut out = vec![0f32; self.rows * n];
        let out = OutputRows { start: out.as_mut_ptr(), stride: n };
        let parts: Vec<Range<usize>> = (0..self.threads).map(|t| part(n, self.threads, t)).collect();
        let scratches: Vec<_> =
            (0..self.threads).map(|_| std::sync::Mutex::new(Scratch::for_matrices([matrix]))).collect();
        let few = self.rows < 16;
        let seconds = best_seconds(self.threads, |thread, iteration| {
            let matrix = &self.matrices[if few { iteration % self.matrices.len() } else { 0 }];
            let product = Product { matrix, rows: 0..self.rows, outputs: parts[thread].clone(), out };
            let mut scratch = scratches[thread].lock().expect("no thread panicked");
            // SAFETY: threads write their own outputs; inputs are not written.
            unsafe {
                match self.path() {
                    "i8" => kernels.linear_integer(&product, &quantized, &mut scratch),
                    _ => kernels.linear_f32(&product, input, &mut scratch),
                }
            }
        });
        let (bytes, macs) = (matrix.footprint_bytes() as f64, (self.rows * n * k) as f64);
        println!(
            "{:56} {:9.3} ms {:7.2} GB/s {:4.0} % of reading {:8.1} GMAC/s",
            self.name(),
            seconds * 1e3,
            bytes / seconds / 1e9,
            bytes / seconds / self.bandwidth * 100.0,
            macs / seconds / 1e9
        );
    }
}

/// A thread's outputs.
fn part(outputs: usize, threads: usize, thread: usize) -> Range<usize> {
    let blocks = outputs.div_ceil(LANES);
    let at = |thread: usize| (blocks * thread / threads * LANES).min(outputs);
    at(thread)..at(thread + 1)
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let mut noise = 1u64;
    let next = |_| {
        noise = noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        // Two bf16 between 0.5 and 1: numbers below the normal ones would be slower.
        (noise >> 32) as u32 & 0x807f_807f | 0x3f00_3f00
    };
    let pool: Arc<Vec<u8>> = Arc::new((0..POOL_BYTES / 4).map(next).flat_map(u32::to_le_bytes).collect());
    println!("cargo bench -p markbase-cpu --bench linear -- {}", words.join(" "));
    let bandwidths = [1, 2].map(|threads| read_bandwidth(threads, &pool));
    println!(
        "reading {} MiB: {:.2} GB/s with 1 thread, {:.2} with 2",
        POOL_BYTES >> 20,
        bandwidths[0] / 1e9,
        bandwidths[1] / 1e9
    );
    let q = |bits, group_size| Format::Affine { bits, group_size };
    let formats = [q(4, 64), q(8, 64), Format::Bf16, q(4, 32), q(6, 64), q(3, 64), Format::Mxfp4];
    for shape in [[6144, 1536], [21504, 5376]] {
        for format in formats {
            let matrices = format.matrices(shape, &pool);
            for isa in Isa::supported().into_iter().rev().filter(|isa| *isa != Isa::Scalar) {
                for rows in [1, 4, 8, 16, 512] {
                    for threads in [1, 2] {
                        let bandwidth = bandwidths[threads - 1];
                        let line = Line { matrices: &matrices, format, rows, threads, isa, bandwidth };
                        let name = line.name();
                        if words.iter().all(|word| name.split(' ').any(|part| part == word)) {
                            line.run();
                        }
                    }
                }
            }
        }
    }
}
