//! Activations as 15-bit integers, two bytes each, with one scale a group, in the order in which packed weights lie, so that
//! kernels meet both without shuffles.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The order and grouping of quantized activations that a weight's packing asks for.
///
/// A byte of weights holds `planes` codes. Activations of each block of `span` weight bytes lie plane by plane:
/// first those of every byte's lowest code, then those of the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ActivationLayout {
    group_size: u32,
    planes: u32,
}

/// Weight bytes that the widest kernel unpacks at once.
const SPAN_BYTES: usize = 32;

impl ActivationLayout {
    pub(super) fn new(group_size: usize, planes: usize) -> ActivationLayout {
        ActivationLayout { group_size: group_size as u32, planes: planes as u32 }
    }

    /// Activations that share a scale.
    pub fn group_size(self) -> usize {
        self.group_size as usize
    }

    pub(super) fn planes(self) -> usize {
        self.planes as usize
    }

    /// Weight bytes of one block.
    pub(super) fn span(self) -> usize {
        (self.group_size() / self.planes()).min(SPAN_BYTES)
    }

    /// Where activation `index` of a group lies within the group.
    pub(super) fn place(self, index: usize) -> usize {
        let block = self.span() * self.planes();
        let within = index % block;
        index - within + within % self.planes() * self.span() + within / self.planes()
    }
}

/// Room for quantized activations of several rows, made once and filled again for each product.
///
/// Rows are written by [`Kernels::quantize_rows`](super::Kernels::quantize_rows), by several threads if each
/// takes its own rows, and read by [`Kernels::linear_integer`](super::Kernels::linear_integer) after all have finished.
/// Of each row and group of activations `x` it holds the integers `xq`, their scale `xs`, the integers' sum, and
/// `xsum = xs * f32(sum)`:
/// - `max = max |x|`; if it is below 2^-112, `xs` and all `xq` are 0;
/// - `xs = max / 16256` and `xq = round_ties_even(x * (16256 / max))`, an integer of 15 bits, kept as two bytes:
///   `xq = 128 * high + low` with `low` from -64 to 63, so that both multiply as signed bytes;
/// - if any `x` is not finite, `xs` is NaN and all `xq` are 0, so that the group's products are NaN.
#[derive(Debug)]
pub struct QuantizedRows {
    values: Box<[std::cell::UnsafeCell<i8>]>,
    scales: Box<[std::cell::UnsafeCell<f32>]>,
    scaled_sums: Box<[std::cell::UnsafeCell<f32>]>,
    sums: Box<[std::cell::UnsafeCell<i32>]>,
    rows: usize,
    columns: usize,
    /// Layout and columns of what was written last, to catch a product with the wrong activations.
    written: AtomicU64,
}

// SAFETY: the cells are written and read through unsafe functions whose contract keeps writers of a row alone.
unsafe impl Sync for QuantizedRows {}

/// Rows are kept in pieces of this many activations, `[pieces][rows][high, low][PIECE]`: a tile of some rows and one
/// piece is then one run of memory.
pub(super) const PIECE: usize = 512;

/// Bytes from one row of a piece to the next.
pub(super) const VALUE_STRIDE: usize = 2 * PIECE;

/// Groups are at least this long.
const SMALLEST_GROUP: usize = 16;

/// Zeros; pages that nobody writes take no memory.
fn cells<T: Number>(len: usize) -> Box<[std::cell::UnsafeCell<T>]> {
    // SAFETY: zero bytes are a number of each of these types.
    unsafe { Box::<[std::cell::UnsafeCell<T>]>::new_zeroed_slice(len).assume_init() }
}

/// Types of which zero bytes are a value.
trait Number: Copy {}
impl Number for i8 {}
impl Number for i32 {}
impl Number for f32 {}

impl QuantizedRows {
    /// Room for `rows` rows of up to `columns` activations in any layout.
    pub fn new(rows: usize, columns: usize) -> QuantizedRows {
        let columns = columns.next_multiple_of(PIECE);
        let groups = columns / SMALLEST_GROUP;
        QuantizedRows {
            values: cells(rows * columns.next_multiple_of(PIECE) * 2),
            scales: cells(rows * groups),
            scaled_sums: cells(rows * groups),
            sums: cells(rows * groups),
            rows,
            columns,
            written: AtomicU64::new(0),
        }
    }

    /// Rows that there is room for.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Activations a row that there is room for.
    pub fn columns(&self) -> usize {
        self.columns
    }

    fn tag(layout: ActivationLayout, columns: usize) -> u64 {
        columns as u64 | u64::from(layout.group_size) << 40 | u64::from(layout.planes) << 56
    }

    /// Where `rows` are to be written.
    pub(super) fn write(&self, layout: ActivationLayout, columns: usize, rows: &Range<usize>) -> QuantizedPointers {
        assert!(rows.end <= self.rows && columns <= self.columns, "quantized rows have room for the activations");
        assert!(columns.is_multiple_of(layout.group_size()), "activations fill whole groups");
        self.written.store(QuantizedRows::tag(layout, columns), Ordering::Relaxed);
        self.pointers()
    }

    /// Where `rows` were written.
    pub(super) fn read(&self, layout: ActivationLayout, columns: usize, rows: &Range<usize>) -> QuantizedPointers {
        assert!(rows.end <= self.rows, "quantized rows hold the rows of the product");
        let written = self.written.load(Ordering::Relaxed);
        assert_eq!(written, QuantizedRows::tag(layout, columns), "activations were quantized for this weight's layout");
        self.pointers()
    }

    fn pointers(&self) -> QuantizedPointers {
        QuantizedPointers {
            values: self.values.as_ptr() as *mut i8,
            scales: self.scales.as_ptr() as *mut f32,
            scaled_sums: self.scaled_sums.as_ptr() as *mut f32,
            sums: self.sums.as_ptr() as *mut i32,
            piece_stride: self.rows * VALUE_STRIDE,
            group_stride: self.columns / SMALLEST_GROUP,
        }
    }
}

/// The arrays of [`QuantizedRows`]: row `r` has its groups from `r * group_stride`.
#[derive(Clone, Copy)]
pub(super) struct QuantizedPointers {
    pub values: *mut i8,
    pub scales: *mut f32,
    pub scaled_sums: *mut f32,
    pub sums: *mut i32,
    pub piece_stride: usize,
    pub group_stride: usize,
}

impl QuantizedPointers {
    /// Where the high bytes of a group, or of a whole piece, begin; the low ones are [`PIECE`] further.
    #[inline(always)]
    pub fn value_at(&self, row: usize, column: usize) -> usize {
        column / PIECE * self.piece_stride + row * VALUE_STRIDE + column % PIECE
    }
}

/// How one group is quantized, from the bits of its largest magnitude.
pub(super) enum GroupScale {
    /// All integers are 0; the scale is 0, or NaN if an activation is not finite.
    Zero(f32),
    /// Integers are `round_ties_even(x * multiplier)`.
    Scaled { scale: f32, multiplier: f32 },
}

/// 2^-112: below it, 16256 / max could overflow.
const SMALLEST_MAXIMUM: f32 = f32::from_bits(15 << 23);

/// The largest integer: 127 in the high byte, 0 in the low one.
const LARGEST: f32 = 16256.0;

/// An integer's high and low byte: `value = 128 * high + low`, `low` from -64 to 63.
#[inline(always)]
pub(super) fn bytes_of(value: i16) -> [i8; 2] {
    let high = (value + 64) >> 7;
    [high as i8, (value - (high << 7)) as i8]
}

impl GroupScale {
    /// `bits` is the largest `x.to_bits() & 0x7fff_ffff`, which orders magnitudes, infinity and NaN in this order.
    #[inline(always)]
    pub fn new(bits: u32) -> GroupScale {
        let max = f32::from_bits(bits);
        if !max.is_finite() {
            GroupScale::Zero(f32::NAN)
        } else if max < SMALLEST_MAXIMUM {
            GroupScale::Zero(0.0)
        } else {
            GroupScale::Scaled { scale: max / LARGEST, multiplier: LARGEST / max }
        }
    }
}
