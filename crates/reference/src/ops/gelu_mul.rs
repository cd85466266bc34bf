//! The gated activation of the feed-forward.

/// `out[i] = gelu_tanh(gate[i]) * up[i]`. Panics unless the lengths agree.
pub fn gelu_mul(out: &mut [f32], gate: &[f32], up: &[f32]) {
    assert!(out.len() == gate.len() && gate.len() == up.len(), "rows of one length");
    for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
        *out = (gelu_tanh(f64::from(gate)) * f64::from(up)) as f32;
    }
}

/// `x/2 (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))` (Hendrycks and Gimpel 2016).
fn gelu_tanh(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + inner.tanh())
}
