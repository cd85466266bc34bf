//! One output of a matrix product.

/// `sum_k weight[k] * x[k]`, in f64. Panics unless the lengths agree.
pub fn dot(weight: &[f32], x: &[f32]) -> f32 {
    assert_eq!(weight.len(), x.len(), "a weight for each input");
    weight.iter().zip(x).map(|(&weight, &x)| f64::from(weight) * f64::from(x)).sum::<f64>() as f32
}
