//! Attention of one query head over the keys and values that its row sees.

/// `out = softmax(scale * q·k_t) v_t` over the `(key, value)` pairs given, in f64. Panics unless the
/// lengths agree; no pairs give zeros.
pub fn attention<'a>(out: &mut [f32], q: &[f32], scale: f32, visible: impl Iterator<Item = (&'a [f32], &'a [f32])>) {
    let pairs: Vec<(f64, &[f32])> = visible
        .map(|(key, value)| {
            assert!(key.len() == q.len() && value.len() == out.len(), "heads of one size");
            let score: f64 = q.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
            (score * f64::from(scale), value)
        })
        .collect();
    let largest = pairs.iter().map(|(score, _)| *score).fold(f64::NEG_INFINITY, f64::max);
    let mut sums = vec![0.0f64; out.len()];
    let mut total = 0.0;
    for (score, value) in &pairs {
        let weight = (score - largest).exp();
        total += weight;
        for (sum, &value) in sums.iter_mut().zip(*value) {
            *sum += weight * f64::from(value);
        }
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = if pairs.is_empty() { 0.0 } else { (sum / total) as f32 };
    }
}
