//! The weighted sum of a row's experts.

use super::gelu_mul::gelu_mul;
use super::linear::dot;

/// Decodes row `row` of the matrix of expert `expert` into its last argument.
pub type ReadRow<'a> = dyn FnMut(usize, usize, &mut [f32]) + 'a;

/// The three stacks of a layer's experts.
pub struct Stacks<'a> {
    /// `[experts, intermediate, hidden]`
    pub gate: &'a mut ReadRow<'a>,
    /// `[experts, intermediate, hidden]`
    pub up: &'a mut ReadRow<'a>,
    /// `[experts, hidden, intermediate]`
    pub down: &'a mut ReadRow<'a>,
    /// Columns of gate and up's output.
    pub intermediate: usize,
}

/// `out = sum_j weights[j] * down_e(gelu_tanh(gate_e x) * up_e x)`, `e = experts[j]`, in f64 over j.
pub fn experts(out: &mut [f32], x: &[f32], experts: &[u32], weights: &[f32], stacks: &mut Stacks) {
    let mut sums = vec![0.0f64; out.len()];
    let mut weight_row = vec![0.0; x.len()];
    let mut down_row = vec![0.0; stacks.intermediate];
    let [mut gate, mut up, mut activated] = [(); 3].map(|()| vec![0.0; stacks.intermediate]);
    for (&expert, &share) in experts.iter().zip(weights) {
        for row in 0..stacks.intermediate {
            (stacks.gate)(expert as usize, row, &mut weight_row);
            gate[row] = dot(&weight_row, x);
            (stacks.up)(expert as usize, row, &mut weight_row);
            up[row] = dot(&weight_row, x);
        }
        gelu_mul(&mut activated, &gate, &up);
        for (row, sum) in sums.iter_mut().enumerate() {
            (stacks.down)(expert as usize, row, &mut down_row);
            *sum += f64::from(share) * f64::from(dot(&down_row, &activated));
        }
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = sum as f32;
    }
}
