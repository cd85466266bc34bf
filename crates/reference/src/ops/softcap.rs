//! A soft bound of magnitude.

/// `out[i] = cap * tanh(x[i] / cap)`, in f64. Panics unless the lengths agree.
pub fn softcap(out: &mut [f32], x: &[f32], cap: f32) {
    assert_eq!(out.len(), x.len(), "rows of one length");
    let cap = f64::from(cap);
    for (out, x) in out.iter_mut().zip(x) {
        *out = (cap * (f64::from(*x) / cap).tanh()) as f32;
    }
}
