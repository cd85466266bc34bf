//! Multiplications and reads for their own sake, in plain Rust: what a processor does without kernels of its own.

/// Independent chains of each loop.
const CHAINS: usize = 16;

/// Runs `rounds` rounds of independent multiply-adds and returns how many operations that was.
pub(crate) unsafe fn multiply_adds(rounds: usize) -> u64 {
    let (factor, addend) = (std::hint::black_box(0.999_999f32), std::hint::black_box(1e-6f32));
    let mut chains = [1.0f32; CHAINS];
    for _ in 0..rounds {
        for chain in &mut chains {
            *chain = chain.mul_add(factor, addend);
        }
    }
    std::hint::black_box(chains);
    (rounds * CHAINS * 2) as u64
}

/// Runs `rounds` rounds of products of bytes, summed in i32, and returns how many operations that was.
pub(crate) unsafe fn byte_products(rounds: usize) -> u64 {
    let (a, b) = (std::hint::black_box([3i8; CHAINS]), std::hint::black_box([-5i8; CHAINS]));
    let mut sums = [0i32; CHAINS];
    for _ in 0..rounds {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum = sum.wrapping_add(i32::from(a) * i32::from(b));
        }
        // Without it the loop would be one multiplication.
        std::hint::black_box(&mut sums);
    }
    (rounds * CHAINS * 2) as u64
}

/// Reads a row and returns some sum of it.
pub(crate) unsafe fn read(x: *const f32, len: usize) -> f32 {
    let mut sums = [0.0f32; CHAINS];
    for i in 0..len {
        // SAFETY: the caller passes a row of `len` elements.
        sums[i % CHAINS] += unsafe { *x.add(i) };
    }
    sums.iter().sum()
}
