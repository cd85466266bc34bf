//! Root-mean-square norm.

/// `out[i] = x[i] / sqrt(mean(x²) + eps) * weight[i]`, one row or head, summed in f64; no weight is
/// a weight of 1. The weight itself multiplies, not 1 + weight. Panics unless the lengths agree.
pub fn rms_norm(out: &mut [f32], x: &[f32], weight: Option<&[f32]>, eps: f32) {
    assert!(out.len() == x.len() && weight.is_none_or(|weight| weight.len() == x.len()), "rows of one length");
    let mean = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (mean + f64::from(eps)).sqrt();
    for (i, (out, &x)) in out.iter_mut().zip(x).enumerate() {
        let weight = weight.map_or(1.0, |weight| f64::from(weight[i]));
        *out = (f64::from(x) * factor * weight) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weight_multiplies_as_it_is() {
        let mut out = [f32::NAN; 2];
        rms_norm(&mut out, &[3.0, 4.0], Some(&[2.0, 0.5]), 0.0);
        let rms = 12.5f32.sqrt();
        assert_eq!(out, [3.0 / rms * 2.0, 4.0 / rms * 0.5]);
    }

    #[test]
    fn zeros_stay_zeros() {
        let mut out = [f32::NAN; 3];
        rms_norm(&mut out, &[0.0; 3], None, 1e-6);
        assert_eq!(out, [0.0; 3]);
    }
}
