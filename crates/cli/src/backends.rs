//! The backends there are, by name.

use clap::{Args, ValueEnum};
use plan::Backend;

use crate::error::Error;

/// Which device computes, and how.
#[derive(Args, Clone)]
pub struct BackendArguments {
    /// What computes.
    #[arg(long, value_enum, default_value_t = Kind::DEFAULT)]
    pub backend: Kind,
    /// How precisely: `fast` takes 15-bit integer activations with quantized weights, `exact` computes in f32.
    #[arg(long, value_enum, default_value_t = Precision::Fast)]
    pub precision: Precision,
    /// Threads of the CPU [default: one a physical core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

/// A backend's name.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// The processor's vector units.
    #[cfg(feature = "cpu")]
    Cpu,
    /// Plain loops: slow, and the meaning of every result.
    Reference,
}

impl Kind {
    #[cfg(feature = "cpu")]
    const DEFAULT: Kind = Kind::Cpu;
    #[cfg(not(feature = "cpu"))]
    const DEFAULT: Kind = Kind::Reference;
}

/// How precisely a backend computes.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Precision {
    /// Integer activations with quantized weights, keys and values in 16 bits.
    Fast,
    /// Everything in 32 bits.
    Exact,
}

impl BackendArguments {
    /// Threads that the CPU would use.
    pub fn threads(&self) -> usize {
        #[cfg(feature = "cpu")]
        let default = cpu::CpuOptions::default().threads;
        #[cfg(not(feature = "cpu"))]
        let default = 1;
        self.threads.map_or(default, usize::from)
    }

    /// A backend with nothing loaded.
    pub fn make(&self) -> Result<Box<dyn Backend>, Error> {
        match self.backend {
            #[cfg(feature = "cpu")]
            Kind::Cpu => {
                let options = cpu::CpuOptions {
                    threads: self.threads(),
                    precision: match self.precision {
                        Precision::Fast => cpu::Precision::Fast,
                        Precision::Exact => cpu::Precision::Exact,
                    },
                    ..cpu::CpuOptions::default()
                };
                let made = cpu::Cpu::new(options);
                let made = made
                    .map_err(|error| Error::Argument(format!("--threads {}: {error}; take fewer", options.threads)))?;
                Ok(Box::new(made))
            }
            Kind::Reference => match self.threads {
                Some(2..) => Err(Error::Argument("--backend reference has one thread: leave --threads out".into())),
                _ => Ok(Box::new(reference::Reference::new())),
            },
        }
    }
}

/// What this machine can do at most, measured.
pub struct Machine {
    /// Bytes read from memory.
    pub bytes_per_second: f64,
    /// Products and sums of f32, each counted.
    pub f32_operations_per_second: f64,
    /// Products and sums of 8-bit integers, each counted.
    pub i8_operations_per_second: f64,
}

impl Machine {
    /// Takes about a second and a gigabyte.
    #[cfg(feature = "cpu")]
    pub fn measure(threads: usize) -> Machine {
        let rate = cpu::probe::multiply_rate(threads);
        Machine {
            bytes_per_second: cpu::probe::memory_bandwidth(threads, cpu::probe::PROBE_BYTES),
            f32_operations_per_second: rate.f32_flops,
            i8_operations_per_second: rate.i8_ops,
        }
    }

    /// Without the CPU backend nothing measures, and shares are not numbers.
    #[cfg(not(feature = "cpu"))]
    pub fn measure(_threads: usize) -> Machine {
        Machine { bytes_per_second: f64::NAN, f32_operations_per_second: f64::NAN, i8_operations_per_second: f64::NAN }
    }
}
