//! A row times a number.

/// `out[i] = x[i] * factor`. Panics unless the lengths agree.
pub fn scale(out: &mut [f32], x: &[f32], factor: f32) {
    assert_eq!(out.len(), x.len(), "rows of one length");
    for (out, x) in out.iter_mut().zip(x) {
        *out = x * factor;
    }
}
