//! How far a backend may be from the reference in one step: the one table, each bound with its reason.
//!
//! Differences are shares of the root mean square of the reference's numbers, or of what is to be expected of them
//! where few numbers may cancel (see `Case`). Numbers of cases are at most three deviations large.

use serde::Serialize;

/// What a backend computes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Arithmetic {
    /// Activations, keys and values in f32, sums in f32.
    F32,
    /// Activations of quantized weights as integers of 15 bits, one scale a group at the least; keys and values in
    /// f16.
    FifteenBit,
}

/// A kind of number that a step writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Quantity {
    /// One f32 operation on numbers that are the same on both sides, a copy, or an index.
    Same,
    /// A decoded row of a table, scaled.
    Decoded,
    /// A norm.
    Norm,
    /// A product with a dense matrix.
    DenseProduct,
    /// A product with a quantized matrix.
    QuantizedProduct,
    /// Heads turned.
    Turned,
    /// A value read back from the cache.
    Cached,
    /// Attention.
    Attended,
    /// `gelu_tanh(gate) * up`.
    Gated,
    /// `cap * tanh(x / cap)`.
    Capped,
    /// Weights of experts.
    Shares,
    /// Sums of dense experts.
    DenseExperts,
    /// Sums of quantized experts.
    QuantizedExperts,
    /// Log-probabilities.
    LogProbabilities,
}

/// A bound and why it is what it is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Tolerance {
    /// Its name in reports.
    pub name: &'static str,
    /// The largest difference.
    pub largest: f32,
    /// The largest mean of all differences of a value.
    pub mean: f32,
    /// Why.
    pub reason: &'static str,
}

/// Deviation of an f32 rounding, as a share of the number: 2^-24 / sqrt(3).
const F32_ROUNDING: f32 = 3.4e-8;

/// Deviation of integer activations as a share of theirs: a group's largest number, three deviations, is that many
/// steps; a rounding deviates by a step / sqrt(12). A product of independent numbers deviates by the same share.
const FIFTEEN_BIT_ROUNDING: f32 = 3.0 / 16256.0 / 3.464;

/// Mean magnitude of normal numbers in deviations, and a fifth more for small samples.
const MEAN: f32 = 0.8 * 1.2;

const SAME: Tolerance = Tolerance {
    name: "same",
    largest: 0.0,
    mean: 0.0,
    reason: "one operation that IEEE 754 defines, on the same numbers",
};
const DECODED: Tolerance = Tolerance {
    name: "decoded",
    largest: 2e-6,
    mean: 2e-7,
    reason: "scale, bias and factor may be joined in one rounding or three, where scale * code and bias cancel",
};
const NORM: Tolerance = Tolerance {
    name: "norm",
    largest: 2e-6,
    mean: 2e-7,
    reason: "a sum of squares in f32 lanes, a reciprocal root of a few ulp, two products, numbers of three deviations",
};
const DENSE_PRODUCT: Tolerance = Tolerance {
    name: "f32 product",
    largest: 100.0 * F32_ROUNDING,
    mean: 10.0 * F32_ROUNDING,
    reason: "up to 400 products summed in f32: partial sums as large as the result, sqrt(400) roundings, five deviations",
};
const QUANTIZED_PRODUCT: Tolerance = Tolerance {
    name: "f32 product of codes",
    largest: 400.0 * F32_ROUNDING,
    mean: 40.0 * F32_ROUNDING,
    reason: "as an f32 product, but codes and biases may be summed apart and are a few times larger than the weights",
};
const FIFTEEN_BIT_PRODUCT: Tolerance = Tolerance {
    name: "15-bit product",
    largest: 6.0 * FIFTEEN_BIT_ROUNDING,
    mean: MEAN * FIFTEEN_BIT_ROUNDING,
    reason: INTEGER_PRODUCT,
};
const INTEGER_PRODUCT: &str = "the rounding of integer activations; six deviations, sums being nearly normal";
const TURNED: Tolerance = Tolerance {
    name: "turned",
    largest: 1e-6,
    mean: 1e-7,
    reason: "sine and cosine rounded to f32, two products and a sum, numbers of three deviations",
};
const CACHED_F16: Tolerance = Tolerance {
    name: "f16 cache",
    largest: 3.0 / 2048.0,
    mean: 1.0 / 4096.0,
    reason: "half an ulp of f16, numbers of three deviations",
};
const ATTENDED: Tolerance = Tolerance {
    name: "f32 attention",
    largest: 3e-5,
    mean: 3e-6,
    reason: "scores deviate by up to 16 and are summed in f32, so that exponentials are right to 16 * 2^-22",
};
const ATTENDED_F16: Tolerance = Tolerance {
    name: "f16 attention",
    largest: 2e-2,
    mean: 2e-3,
    reason: "keys rounded to 2^-12 change scores that deviate by 16 by 3e-3 and more; six deviations",
};
const GATED: Tolerance = Tolerance {
    name: "gated",
    largest: 3e-6,
    mean: 3e-7,
    reason: "1 + tanh is right to an ulp of 1, multiplied with numbers of three deviations",
};
const CAPPED: Tolerance =
    Tolerance { name: "capped", largest: 2e-6, mean: 2e-7, reason: "tanh of a few ulp, numbers of three deviations" };
const SHARES: Tolerance = Tolerance {
    name: "shares",
    largest: 4e-6,
    mean: 1e-6,
    reason: "exponentials of a few ulp, their sum and two quotients in f32",
};
const DENSE_EXPERTS: Tolerance = Tolerance {
    name: "f32 experts",
    largest: 400.0 * F32_ROUNDING,
    mean: 40.0 * F32_ROUNDING,
    reason: "three f32 products after each other, the gated numbers having rare large ones",
};
const QUANTIZED_EXPERTS: Tolerance = Tolerance {
    name: "f32 experts of codes",
    largest: 1600.0 * F32_ROUNDING,
    mean: 160.0 * F32_ROUNDING,
    reason: "three f32 products of codes after each other, the gated numbers having rare large ones",
};
const FIFTEEN_BIT_EXPERTS: Tolerance = Tolerance {
    name: "15-bit experts",
    largest: 6.0 * 3.5 * FIFTEEN_BIT_ROUNDING,
    mean: MEAN * 3.5 * FIFTEEN_BIT_ROUNDING,
    reason: INTEGER_EXPERTS,
};
const INTEGER_EXPERTS: &str = "integer products of x for gate and up (a share of sqrt(2)), and of the gated numbers, \
                               whose largest is ten deviations (a share of 10/3)";

const LOG_PROBABILITIES: Tolerance = Tolerance {
    name: "log-probabilities",
    largest: 4e-7,
    mean: 2e-8,
    reason: "the same f64 but for a sum right to 2^-24, rounded to f32: at times to the next number, of numbers up to \
             three times their size",
};

/// The bound of a quantity.
pub fn tolerance(quantity: Quantity, arithmetic: Arithmetic) -> &'static Tolerance {
    use Arithmetic::{F32, FifteenBit};
    match (quantity, arithmetic) {
        (Quantity::Same, _) | (Quantity::Cached, F32) => &SAME,
        (Quantity::Decoded, _) => &DECODED,
        (Quantity::Norm, _) => &NORM,
        (Quantity::DenseProduct, _) => &DENSE_PRODUCT,
        (Quantity::QuantizedProduct, F32) => &QUANTIZED_PRODUCT,
        (Quantity::QuantizedProduct, FifteenBit) => &FIFTEEN_BIT_PRODUCT,
        (Quantity::Turned, _) => &TURNED,
        (Quantity::Cached, FifteenBit) => &CACHED_F16,
        (Quantity::Attended, F32) => &ATTENDED,
        (Quantity::Attended, FifteenBit) => &ATTENDED_F16,
        (Quantity::Gated, _) => &GATED,
        (Quantity::Capped, _) => &CAPPED,
        (Quantity::Shares, _) => &SHARES,
        (Quantity::DenseExperts, _) => &DENSE_EXPERTS,
        (Quantity::QuantizedExperts, F32) => &QUANTIZED_EXPERTS,
        (Quantity::QuantizedExperts, FifteenBit) => &FIFTEEN_BIT_EXPERTS,
        (Quantity::LogProbabilities, _) => &LOG_PROBABILITIES,
    }
}
