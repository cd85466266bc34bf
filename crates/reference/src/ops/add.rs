//! Sum of two rows.

/// `out[i] = a[i] + b[i]`. Panics unless the lengths agree.
pub fn add(out: &mut [f32], a: &[f32], b: &[f32]) {
    assert!(out.len() == a.len() && a.len() == b.len(), "rows of one length");
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = a + b;
    }
}
