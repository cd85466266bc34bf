//! Which instruction sets this processor runs; kernels are chosen by it once, at start.

use std::fmt;

/// An instruction set that has kernels of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust, on every processor: the meaning of each kernel.
    Scalar,
    /// 128-bit NEON of AArch64, with dot products where the processor has them.
    Neon,
    /// 256-bit AVX2 with FMA and F16C.
    Avx2,
    /// 512-bit AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
}

impl Isa {
    /// Every set that this processor runs, slowest first. Tests go through them all.
    pub fn supported() -> Vec<Isa> {
        let mut sets = vec![Isa::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
                sets.push(Isa::Avx2);
            }
            if sets.contains(&Isa::Avx2)
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni")
            {
                sets.push(Isa::Avx512);
            }
        }
        #[cfg(target_arch = "aarch64")]
        sets.push(Isa::Neon);
        sets
    }

    /// The fastest set that this processor runs.
    pub fn best() -> Isa {
        *Isa::supported().last().unwrap_or(&Isa::Scalar)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        })
    }
}
