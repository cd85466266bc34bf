//! Row and attention kernels, one table an instruction set. Each kernel has one order of floating-point
//! operations (stated at its method), written plainly in `math`, `rows` and `attention::scalar`; every
//! instruction set gives the same bits.

pub mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod lanes;
pub mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
mod rate;
pub mod route;
pub mod rows;
pub mod sample;
#[cfg(test)]
mod tests;
mod wide;

use crate::isa::Isa;
use attention::{Attention, KvLayer, partial_len};

type Binary = unsafe fn(*mut f32, *const f32, *const f32, usize);
type WithFactor = unsafe fn(*mut f32, *const f32, f32, usize);

/// The row and attention kernels of one instruction set.
///
/// Methods named `_in_place` read and write the same row. All rows of one call have the same length, else the
/// method panics. NaN stays NaN; which NaN is not promised.
#[derive(Debug, Clone, Copy)]
pub struct Kernels {
    isa: Isa,
    rms_norm: unsafe fn(*mut f32, *const f32, *const f32, usize, f32),
    rope: unsafe fn(*mut f32, *const f32, *const f32, usize),
    gelu_mul: Binary,
    add: Binary,
    scale: WithFactor,
    add_scaled: WithFactor,
    softcap: WithFactor,
    exp_row: unsafe fn(*mut f32, *const f32, f32, f32, usize),
    max: unsafe fn(*const f32, usize) -> f32,
    find: unsafe fn(*const f32, f32, usize) -> usize,
    kv_append: unsafe fn(&KvLayer, usize, *const f32, *const f32),
    attention_split: unsafe fn(&Attention, usize, usize, *mut f32, &mut [f32]),
    attention_merge: unsafe fn(*const f32, usize, usize, usize, *mut f32),
    attention_rows: unsafe fn(&Attention, &mut [f32]),
    read: unsafe fn(*const f32, usize) -> f32,
    multiply_adds: unsafe fn(usize) -> u64,
    byte_products: unsafe fn(usize) -> u64,
}

/// The table of a module that has every kernel under the name of its field.
macro_rules! table {
    ($isa:expr, $rows:path, $attention:path, $rate:path, $byte_products:path) => {{
        use $attention as attention_kernels;
        use $rate as rate_kernels;
        use $rows as row_kernels;
        Kernels {
            isa: $isa,
            rms_norm: row_kernels::rms_norm,
            rope: row_kernels::rope,
            gelu_mul: row_kernels::gelu_mul,
            add: row_kernels::add,
            scale: row_kernels::scale,
            add_scaled: row_kernels::add_scaled,
            softcap: row_kernels::softcap,
            exp_row: row_kernels::exp_row,
            max: row_kernels::max,
            find: row_kernels::find,
            kv_append: attention_kernels::kv_append,
            attention_split: attention_kernels::attention_split,
            attention_merge: attention_kernels::attention_merge,
            attention_rows: attention_kernels::attention_rows,
            read: rate_kernels::read,
            multiply_adds: rate_kernels::multiply_adds,
            byte_products: $byte_products,
        }
    }};
}

impl Kernels {
    /// The table of one instruction set. Panics if this processor does not run it.
    pub fn for_isa(isa: Isa) -> Kernels {
        // This check is what makes the calls below sound, so it cannot be left to the caller.
        assert!(Isa::supported().contains(&isa), "this processor does not run {isa}");
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                table!(isa, avx512::rows, avx512::attention, avx512::rate, avx512::byte_products)
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                table!(isa, avx2::rows, avx2::attention, avx2::rate, avx2::byte_products)
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => table!(isa, neon::rows, neon::attention, neon::rate, neon::byte_products),
            _ => table!(isa, rows, attention::scalar, rate, rate::byte_products),
        }
    }

    /// The instruction set of this table.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// `out[i] = x[i] * (1 / sqrt(mean(x²) + eps)) * weight[i]`, multiplied in this order; without a weight the
    /// last product is left out. The sum of squares takes `fma(x, x, lane)` in 16 lanes (see [`rows`]).
    pub fn rms_norm(&self, out: &mut [f32], x: &[f32], weight: Option<&[f32]>, eps: f32) {
        same_lengths(&[out.len(), x.len(), weight.map_or(x.len(), <[f32]>::len)]);
        // SAFETY: `for_isa` proved the instruction set; the lengths agree.
        unsafe { (self.rms_norm)(out.as_mut_ptr(), x.as_ptr(), weight_pointer(weight), x.len(), eps) }
    }

    /// Turns one head by one position in place: with `half = x.len() / 2`, `a = x[i]`, `b = x[i + half]`,
    /// `x[i] = fma(a, cos[i], -(b * sin[i]))`, `x[i + half] = fma(b, cos[i], a * sin[i])`.
    pub fn rope(&self, x: &mut [f32], cos: &[f32], sin: &[f32]) {
        same_lengths(&[x.len(), 2 * cos.len(), 2 * sin.len()]);
        // SAFETY: `for_isa` proved the instruction set; x holds two halves, the tables one each.
        unsafe { (self.rope)(x.as_mut_ptr(), cos.as_ptr(), sin.as_ptr(), cos.len()) }
    }

    /// `out[i] = gelu_tanh(gate[i]) * up[i]`, see [`math::gelu_tanh`].
    pub fn gelu_mul(&self, out: &mut [f32], gate: &[f32], up: &[f32]) {
        self.binary(self.gelu_mul, out, gate, up);
    }

    /// `gate[i] = gelu_tanh(gate[i]) * up[i]`.
    pub fn gelu_mul_in_place(&self, gate: &mut [f32], up: &[f32]) {
        same_lengths(&[gate.len(), up.len()]);
        let row = gate.as_mut_ptr();
        // SAFETY: as in `binary`; the kernel reads an element before it writes it.
        unsafe { (self.gelu_mul)(row, row, up.as_ptr(), gate.len()) }
    }

    /// `out[i] = a[i] + b[i]`.
    pub fn add(&self, out: &mut [f32], a: &[f32], b: &[f32]) {
        self.binary(self.add, out, a, b);
    }

    /// `out[i] = x[i] * factor`.
    pub fn scale(&self, out: &mut [f32], x: &[f32], factor: f32) {
        self.with_factor(self.scale, out, x, factor);
    }

    /// `x[i] = x[i] * factor`.
    pub fn scale_in_place(&self, x: &mut [f32], factor: f32) {
        let row = x.as_mut_ptr();
        // SAFETY: as in `with_factor`; the kernel reads an element before it writes it.
        unsafe { (self.scale)(row, row, factor, x.len()) }
    }

    /// `out[i] = fma(x[i], factor, out[i])`.
    pub fn add_scaled(&self, out: &mut [f32], x: &[f32], factor: f32) {
        self.with_factor(self.add_scaled, out, x, factor);
    }

    /// `out[i] = cap * tanh(x[i] / cap)`, see [`math::tanh`].
    pub fn softcap(&self, out: &mut [f32], x: &[f32], cap: f32) {
        self.with_factor(self.softcap, out, x, cap);
    }

    /// `out[i] = exp((x[i] - max) * factor)`, see [`math::exp`].
    pub fn exp_row(&self, out: &mut [f32], x: &[f32], max: f32, factor: f32) {
        same_lengths(&[out.len(), x.len()]);
        // SAFETY: `for_isa` proved the instruction set; the lengths agree.
        unsafe { (self.exp_row)(out.as_mut_ptr(), x.as_ptr(), max, factor, x.len()) }
    }

    /// `x[i] = exp((x[i] - max) * factor)`.
    pub fn exp_row_in_place(&self, x: &mut [f32], max: f32, factor: f32) {
        let row = x.as_mut_ptr();
        // SAFETY: as in `exp_row`; the kernel reads an element before it writes it.
        unsafe { (self.exp_row)(row, row, max, factor, x.len()) }
    }

    /// The largest element; NaN is skipped, and a row with nothing above -inf gives -inf. Of +0 and -0 either.
    pub fn max(&self, x: &[f32]) -> f32 {
        // SAFETY: `for_isa` proved the instruction set.
        unsafe { (self.max)(x.as_ptr(), x.len()) }
    }

    /// The first index of the largest element, and that element. NaN is never the largest; a row of nothing but
    /// NaN gives index 0 and NaN. Panics if the row is empty.
    pub fn argmax(&self, x: &[f32]) -> (usize, f32) {
        assert!(!x.is_empty(), "an empty row has no largest element");
        // SAFETY: `for_isa` proved the instruction set.
        let index = unsafe { (self.find)(x.as_ptr(), self.max(x), x.len()) };
        let index = if index == x.len() { 0 } else { index };
        (index, x[index])
    }

    /// Writes one token's keys and values (`[kv_heads, head_dim]` each) into slot `block * 16 + offset`.
    /// Panics if the slot lies outside the cache or a row has the wrong length.
    ///
    /// # Safety
    /// The layer's memory must be as [`KvLayer`] says, alive, and nobody else may touch this slot meanwhile.
    pub unsafe fn kv_append(&self, layer: &KvLayer, slot: usize, k: &[f32], v: &[f32]) {
        same_lengths(&[layer.kv_heads * layer.head_dim, k.len(), v.len()]);
        assert!(slot / attention::KV_BLOCK < layer.num_blocks, "slot {slot} of {} blocks", layer.num_blocks);
        // SAFETY: `for_isa` proved the instruction set; the rest is the caller's promise.
        unsafe { (self.kv_append)(layer, slot, k.as_ptr(), v.as_ptr()) }
    }

    /// One row, one split, all heads of the group: a partial result of [`partial_len`] floats, to be joined by
    /// [`Kernels::attention_merge`]. `split` must be one of [`attention::splits`] of the row. `scratch` has
    /// [`attention::attention_scratch_len`] of one row. The meaning is at [`attention`].
    ///
    /// # Safety
    /// Cache, queries and results must be as [`Attention`] says and alive; nobody may write the positions that
    /// the row sees meanwhile. `out` is not touched.
    pub unsafe fn attention_split(
        &self,
        work: &Attention,
        row: usize,
        split: usize,
        partial: &mut [f32],
        scratch: &mut [f32],
    ) {
        work.check(row..row + 1);
        assert!(attention::splits(work.from[row], work.until[row]).contains(&split), "row {row} has no split {split}");
        same_lengths(&[partial.len(), partial_len(work.group, work.layer.head_dim)]);
        // SAFETY: `for_isa` proved the instruction set; `check` the blocks; the rest is the caller's promise.
        unsafe { (self.attention_split)(work, row, split, partial.as_mut_ptr(), scratch) }
    }

    /// Joins the partial results of all splits of one row and key/value head, in ascending order, into
    /// `out: [group, head_dim]`; no partial results give zeros.
    pub fn attention_merge(&self, partials: &[f32], group: usize, head_dim: usize, out: &mut [f32]) {
        let count = partials.len() / partial_len(group, head_dim);
        same_lengths(&[partials.len(), count * partial_len(group, head_dim)]);
        same_lengths(&[out.len(), group * head_dim]);
        // SAFETY: `for_isa` proved the instruction set; the lengths agree.
        unsafe { (self.attention_merge)(partials.as_ptr(), count, group, head_dim, out.as_mut_ptr()) }
    }

    /// Every row of the work, all its splits. `scratch` has [`attention::attention_scratch_len`] of these rows.
    ///
    /// # Safety
    /// Cache, queries and results must be as [`Attention`] says and alive; nobody may write the positions that
    /// these rows see, nor touch the results, meanwhile.
    pub unsafe fn attention_rows(&self, work: &Attention, scratch: &mut [f32]) {
        work.check(0..work.rows());
        // SAFETY: `for_isa` proved the instruction set; `check` the blocks; the rest is the caller's promise.
        unsafe { (self.attention_rows)(work, scratch) }
    }

    /// Reads a row at the speed of memory and returns its sum, in no stated order: for measuring.
    pub fn read(&self, x: &[f32]) -> f32 {
        // SAFETY: `for_isa` proved the instruction set.
        unsafe { (self.read)(x.as_ptr(), x.len()) }
    }

    /// Runs `rounds` rounds of independent f32 multiply-adds in registers and returns how many floating-point
    /// operations that was: for measuring what the processor can do at most.
    pub fn multiply_adds(&self, rounds: usize) -> u64 {
        // SAFETY: `for_isa` proved the instruction set.
        unsafe { (self.multiply_adds)(rounds) }
    }

    /// Runs `rounds` rounds of products of bytes, summed in i32, and returns how many operations (a product and a
    /// sum count as two) that was.
    pub fn byte_products(&self, rounds: usize) -> u64 {
        // SAFETY: `for_isa` proved the instruction set.
        unsafe { (self.byte_products)(rounds) }
    }

    fn binary(&self, kernel: Binary, out: &mut [f32], a: &[f32], b: &[f32]) {
        same_lengths(&[out.len(), a.len(), b.len()]);
        // SAFETY: `for_isa` proved the instruction set; the lengths agree.
        unsafe { kernel(out.as_mut_ptr(), a.as_ptr(), b.as_ptr(), a.len()) }
    }

    fn with_factor(&self, kernel: WithFactor, out: &mut [f32], x: &[f32], factor: f32) {
        same_lengths(&[out.len(), x.len()]);
        // SAFETY: `for_isa` proved the instruction set; the lengths agree.
        unsafe { kernel(out.as_mut_ptr(), x.as_ptr(), factor, x.len()) }
    }
}

fn weight_pointer(weight: Option<&[f32]>) -> *const f32 {
    weight.map_or(std::ptr::null(), <[f32]>::as_ptr)
}

fn same_lengths(lengths: &[usize]) {
    assert!(lengths.windows(2).all(|pair| pair[0] == pair[1]), "rows of one call have one length, not {lengths:?}");
}
