//! The meaning of `exp` and `tanh` on this backend: one order of operations, built only from operations
//! that every processor rounds alike, so all instruction sets give the same bits.

/// Above this `exp` is infinite: the logarithm of the largest f32.
pub(crate) const EXP_HIGH: f32 = 88.722_83;
/// Below this `exp` is zero: results that would be subnormal are flushed.
pub(crate) const EXP_LOW: f32 = -87.336_54;
/// 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits.
pub(crate) const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts, subtracted one after the other.
pub(crate) const LN_2: [f32; 2] = [std::f32::consts::LN_2, -1.904_654_3e-9];
/// exp(r) = 1 + r + r² q(r) for |r| <= ln 2 / 2; q, highest power first. Fitted for the relative error of exp.
pub(crate) const EXP: [f32; 5] = [0.001_395_054, 0.008_368_918, 0.041_666_206, 0.166_665_18, 0.5];
/// tanh(x) = x + x z p(z), z = x², for |x| < 0.625; p, highest power first. Fitted for the relative error of tanh.
pub(crate) const TANH: [f32; 5] = [-0.005_717_044_7, 0.020_650_586, -0.053_743_497, 0.133_314_91, -0.333_332_84];
/// Where tanh changes from its polynomial to its exponential form.
pub(crate) const TANH_BEND: f32 = 0.625;
/// sqrt(2 / pi), the inner factor of the tanh form of gelu.
pub(crate) const GELU_INNER: f32 = 0.797_884_6;
/// The cubic factor of the tanh form of gelu.
pub(crate) const GELU_CUBIC: f32 = 0.044_715;

/// `e^x`, within 1.25 units in the last place. Below -87.33654 it is 0 (no subnormals), above 88.72283
/// infinity; NaN gives NaN.
#[inline]
pub fn exp(x: f32) -> f32 {
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN_2[1], n.mul_add(-LN_2[0], x));
    let mut q = EXP[0];
    for c in &EXP[1..] {
        q = q.mul_add(r, *c);
    }
    let p = (r * r).mul_add(q, r) + 1.0;
    // The low bits of `shifted` are n: moved to the exponent they multiply by 2^n.
    let scaled = f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23));
    if x > EXP_HIGH {
        f32::INFINITY
    } else if x < EXP_LOW {
        0.0
    } else if x.is_nan() {
        x
    } else {
        scaled
    }
}

/// `tanh(x)`, within 2 units in the last place; NaN gives NaN, -0 gives -0.
#[inline]
pub fn tanh(x: f32) -> f32 {
    let z = x * x;
    let mut p = TANH[0];
    for c in &TANH[1..] {
        p = p.mul_add(z, *c);
    }
    let near = (x * z).mul_add(p, x);
    let far = 1.0 - 2.0 / (exp(x.abs() + x.abs()) + 1.0);
    // The sign is set in both: the polynomial would turn -0 into 0.
    (if x.abs() < TANH_BEND { near } else { far }).copysign(x)
}

/// The tanh form of gelu, `0.5 x (1 + tanh(y))` with `y = sqrt(2/pi) (x + 0.044715 x³)`, computed as the
/// equal `x / (1 + e^(-2y))`, which keeps its relative precision where `1 + tanh` would cancel.
#[inline]
pub fn gelu_tanh(x: f32) -> f32 {
    let y = GELU_INNER * (x * x * x).mul_add(GELU_CUBIC, x);
    x / (1.0 + exp(-(y + y)))
}

/// `ln(x)` of a normal number above 0, within 2 units in the last place: with `x = 2^e m` and `s = (m - 1) / (m + 1)`
/// it is `e ln 2 + 2 atanh(s)`, by the series of atanh.
pub fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let (mut e, mut m) = ((bits >> 52) as f64 - 1023.0, f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52));
    if m > std::f64::consts::SQRT_2 {
        (e, m) = (e + 1.0, 0.5 * m);
    }
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    // |s| is below 0.172: the eleventh term is below 2^-54.
    let series = (1..=10).rev().fold(0.0, |sum, k| (sum + 1.0 / f64::from(2 * k + 1)) * z);
    e * std::f64::consts::LN_2 + (2.0 * s + 2.0 * s * series)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance of `got` from `want` in units of the last place of `want` as f32.
    fn ulps(got: f32, want: f64) -> f64 {
        let unit = (want.abs() as f32).max(f32::MIN_POSITIVE);
        let unit = f64::from(f32::from_bits(unit.to_bits() + 1)) - f64::from(unit);
        (f64::from(got) - want).abs() / unit
    }

    /// A dense sweep of f32 over all exponents: every 1009th bit pattern.
    fn sweep() -> impl Iterator<Item = f32> {
        (0..=u32::MAX).step_by(1009).map(f32::from_bits).filter(|x| x.is_finite())
    }

    #[test]
    fn exp_is_within_its_bound() {
        let dense = (0..400_000).map(|i| -88.0 + i as f32 * 0.000_442);
        for x in sweep().chain(dense) {
            let want = f64::from(x).exp();
            if want > f64::from(f32::MAX) {
                assert!(exp(x) == f32::INFINITY, "exp({x:e}) = {:e}", exp(x));
            } else if want < f64::from(f32::MIN_POSITIVE) * 1.000_01 {
                assert!(exp(x) == 0.0 || ulps(exp(x), want) <= 1.25, "exp({x:e}) = {:e}", exp(x));
            } else {
                assert!(ulps(exp(x), want) <= 1.25, "exp({x:e}) = {:e}, not {want:e}", exp(x));
            }
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(EXP_HIGH).is_finite(), "{}", exp(EXP_HIGH));
    }

    #[test]
    fn tanh_is_within_two_units() {
        let dense = (0..400_000).map(|i| -10.0 + i as f32 * 0.000_05);
        for x in sweep().chain(dense) {
            let want = f64::from(x).tanh();
            assert!(ulps(tanh(x), want) <= 2.0, "tanh({x:e}) = {:e}, not {want:e}", tanh(x));
        }
        assert_eq!(tanh(f32::INFINITY), 1.0);
        assert_eq!(tanh(f32::NEG_INFINITY), -1.0);
        assert_eq!(tanh(-0.0).to_bits(), (-0.0f32).to_bits());
        assert!(tanh(f32::NAN).is_nan());
    }

    #[test]
    fn gelu_agrees_with_its_formula() {
        for i in -40_000..40_000 {
            let x = i as f32 * 0.000_25;
            let wide = f64::from(x);
            let y = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044715 * wide.powi(3));
            // The formula in its uncancelled form, in f64.
            let want = wide / (1.0 + (-2.0 * y).exp());
            let got = f64::from(gelu_tanh(x));
            // The error of the exponent's argument (a few half units of 2y) is carried over by exp.
            let bound = 1e-37 + want.abs() * 6e-8 * (4.0 + 8.0 * y.abs());
            assert!((got - want).abs() <= bound, "gelu_tanh({x}) = {got:e}, not {want:e}");
        }
        assert_eq!(gelu_tanh(1e30), 1e30);
        assert_eq!(gelu_tanh(-1e30), 0.0);
        assert!(gelu_tanh(f32::NAN).is_nan());
    }

    #[test]
    fn ln_is_within_its_bound() {
        let magnitudes = (-300..300).map(|exponent| 1.37 * 10f64.powi(exponent));
        let near_one = (-400_000..400_000).map(|i| 1.0 + f64::from(i) * 1e-6);
        let sums = (0..400_000).map(|i| 1.0 + f64::from(i) * 0.731);
        for x in magnitudes.chain(near_one).chain(sums) {
            let want = x.ln();
            let unit = f64::from_bits(want.abs().to_bits() + 1) - want.abs();
            assert!((ln(x) - want).abs() <= 2.0 * unit, "ln({x:e}) = {:e}, not {want:e}", ln(x));
        }
        assert_eq!(ln(1.0).to_bits(), 0);
    }
}
