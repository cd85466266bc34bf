//! The experts of a layer. Rows are gathered by expert, so that each expert's weights are read once however
//! many rows it has; a row's experts are summed in the order of the router's choice whatever that order is.

use plan::{Op, Step, WeightShape};

use crate::executable::{Arena, ThreadScratch};
use crate::linear::{InputRows, LANES, Matrix, OutputRows, Product, Scratch};
use crate::run::Run;
use crate::team::Member;

impl Run<'_> {
    /// One experts launch; a slot is one row's visit to one expert, a place is where it stands among those of all
    /// experts.
    ///
    /// # Safety
    /// The layout holds (see [`Run::work`]); every thread of the team calls it with the same step.
    pub(crate) unsafe fn experts(&self, member: &Member, step: &Step, scratch: &mut ThreadScratch) {
        let Op::Experts { x, experts, weights, gate, up, down, out } = step.op else {
            unreachable!("an experts launch")
        };
        let buffers = self.executable.experts.as_ref().expect("compile made buffers for experts");
        let WeightShape::Experts { experts: count, rows: intermediate, columns: hidden } =
            self.plan().weight(gate).shape
        else {
            unreachable!("a checked plan has stacks here")
        };
        let top_k = self.plan().value(experts).columns;
        let rows = self.view(self.plan().value(x).rows).rows();
        let slots = rows * top_k;
        if slots == 0 {
            return;
        }
        let chosen = |slot: usize| {
            // SAFETY: the router's launch is finished.
            unsafe { self.row(experts, slot / top_k)[slot % top_k].to_bits() as usize }
        };
        let ThreadScratch { linear, slots: order, places, firsts, .. } = scratch;
        sort_slots(slots, count, chosen, order, places, firsts);
        let firsts = &firsts[..=count];
        for place in member.share(slots, 1) {
            // SAFETY: `x` is finished, and this thread alone writes this place.
            unsafe {
                let x = self.row(x, order[place] as usize / top_k);
                numbers(&buffers.x, place, hidden).copy_from_slice(x);
            }
        }
        let [gate, up, down] = [gate, up, down].map(|weight| self.weights.matrices(weight));
        // SAFETY: places are gathered but for the barrier, with which `stacks` begins.
        unsafe { self.stacks(member, &[(gate, &buffers.gate), (up, &buffers.up)], &buffers.x, firsts, linear) };
        member.barrier();
        for place in member.share(slots, 1) {
            // SAFETY: gate and up are finished, and this thread alone writes this place.
            let [gate, up] = [&buffers.gate, &buffers.up].map(|arena| unsafe { numbers(arena, place, intermediate) });
            self.kernels.gelu_mul_in_place(gate, up);
        }
        // SAFETY: places are activated but for the barrier, with which `stacks` begins.
        unsafe { self.stacks(member, &[(down, &buffers.down)], &buffers.gate, firsts, linear) };
        member.barrier();
        for row in member.share(rows, 1) {
            // SAFETY: all places are finished, and this thread alone writes this row.
            let (out, shares) = unsafe { (self.row_mut(out, row), self.row(weights, row)) };
            for (j, &share) in shares.iter().enumerate() {
                // SAFETY: nobody writes places now.
                let part = unsafe { numbers(&buffers.down, places[row * top_k + j] as usize, hidden) };
                match j {
                    0 => self.kernels.scale(out, part, share),
                    _ => self.kernels.add_scaled(out, part, share),
                }
            }
        }
    }

    /// Each expert's places of `x` times its matrix in each stack; `firsts` says where an expert's places begin.
    ///
    /// # Safety
    /// As [`Run::experts`]; `x` is finished but for a barrier.
    unsafe fn stacks(
        &self,
        member: &Member,
        stacks: &[(&[Matrix], &Arena)],
        x: &Arena,
        firsts: &[u32],
        scratch: &mut Scratch,
    ) {
        let quantized = &self.executable.experts.as_ref().expect("compile made buffers for experts").quantized;
        let columns = stacks[0].0[0].columns();
        let input = InputRows { start: x.start(), stride: columns };
        let slots = firsts.last().map_or(0, |&slots| slots as usize);
        let mut held = None;
        member.barrier();
        for (stack, out) in stacks {
            let layout = self.layout(&stack[0], false);
            if let Some(layout) = layout
                && held != Some(layout)
            {
                if held.is_some() {
                    // The places still hold another layout, which slower threads may be reading.
                    member.barrier();
                }
                // SAFETY: this thread alone writes its share of places.
                unsafe { self.products.quantize_rows(layout, input, columns, member.share(slots, 1), quantized) };
                member.barrier();
                held = Some(layout);
            }
            for (expert, matrix) in stack.iter().enumerate() {
                let rows = firsts[expert] as usize..firsts[expert + 1] as usize;
                let outputs = member.share(matrix.rows(), LANES);
                if rows.is_empty() || outputs.is_empty() {
                    continue;
                }
                let out = OutputRows { start: out.start(), stride: matrix.rows() };
                let product = Product { matrix, rows, outputs, out };
                // SAFETY: each thread writes its own outputs.
                unsafe {
                    match layout {
                        Some(_) => self.products.linear_integer(&product, quantized, scratch),
                        None => self.products.linear_f32(&product, input, scratch),
                    }
                }
            }
        }
    }
}

/// Row `row` of `columns` numbers.
///
/// # Safety
/// The arena has this row, and this thread alone writes it, or nobody does.
#[expect(clippy::mut_from_ref, reason = "the arena is memory that threads share by rows, not a value of its own")]
unsafe fn numbers(arena: &Arena, row: usize, columns: usize) -> &mut [f32] {
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts_mut(arena.start().add(row * columns), columns) }
}

/// Sorts slots by the expert that each chose, those of one expert in ascending order: `order[place] = slot`,
/// `places[slot] = place`, and the places of expert e are `firsts[e]..firsts[e + 1]`.
fn sort_slots(
    slots: usize,
    experts: usize,
    chosen: impl Fn(usize) -> usize,
    order: &mut [u32],
    places: &mut [u32],
    firsts: &mut [u32],
) {
    firsts[..=experts].fill(0);
    for slot in 0..slots {
        firsts[chosen(slot) + 1] += 1;
    }
    for expert in 0..experts {
        firsts[expert + 1] += firsts[expert];
    }
    for slot in 0..slots {
        let next = &mut firsts[chosen(slot)];
        order[*next as usize] = slot as u32;
        places[slot] = *next;
        *next += 1;
    }
    // Each first has become the next one's: shift back.
    firsts.copy_within(0..experts, 1);
    firsts[0] = 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_sorted_by_expert_and_found_again() {
        let chosen = [2, 0, 2, 1, 0];
        let (mut order, mut places, mut firsts) = (vec![9; 5], vec![9; 5], vec![9; 5]);
        sort_slots(5, 4, |slot| chosen[slot], &mut order, &mut places, &mut firsts);
        assert_eq!((order.as_slice(), firsts.as_slice()), (&[1, 4, 3, 0, 2][..], &[0, 2, 3, 5, 5][..]));
        assert_eq!(places, [3, 0, 4, 2, 1]);
    }
}
