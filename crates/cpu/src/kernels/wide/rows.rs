//! Row kernels over sixteen lanes; the meaning is in `kernels::rows`.

use crate::kernels::lanes::Lanes;
use crate::kernels::rows::{F16_MAX, LANES};

/// Calls `$full` for every whole sixteen and `$part` for the rest, with the index and the count.
macro_rules! sixteens {
    ($len:expr, |$i:ident| $full:expr, |$j:ident, $count:ident| $part:expr) => {{
        let whole = $len / LANES * LANES;
        let mut $i = 0;
        while $i < whole {
            $full;
            $i += LANES;
        }
        let ($j, $count) = (whole, $len - whole);
        if $count > 0 {
            $part;
        }
    }};
}

/// An element-wise kernel: `$value` from the lanes that are named.
macro_rules! elementwise {
    ($out:ident, $len:ident, ($($row:ident),+) => $value:expr) => {
        sixteens!(
            $len,
            |i| {
                $(let $row = V::load($row.add(i));)+
                $value.store($out.add(i))
            },
            |i, count| {
                $(let $row = V::load_first($row.add(i), count);)+
                $value.store_first($out.add(i), count)
            }
        )
    };
}

#[inline(always)]
pub(crate) unsafe fn rms_norm<V: Lanes>(out: *mut f32, x: *const f32, weight: *const f32, len: usize, eps: f32) {
    // SAFETY: the caller runs the instruction set and passes rows of `len` elements, or a null weight.
    unsafe {
        let mut lanes = V::splat(0.0);
        sixteens!(
            len,
            |i| {
                let value = V::load(x.add(i));
                lanes = value.fma(value, lanes);
            },
            |i, count| {
                // The lanes beyond the row add 0 to a sum that is not negative: its bits stay.
                let value = V::load_first(x.add(i), count);
                lanes = value.fma(value, lanes);
            }
        );
        let factor = V::splat(1.0 / (lanes.sum() / len as f32 + eps).sqrt());
        if weight.is_null() {
            elementwise!(out, len, (x) => x.mul(factor));
        } else {
            elementwise!(out, len, (x, weight) => x.mul(factor).mul(weight));
        }
    }
}

#[inline(always)]
pub(crate) unsafe fn rope<V: Lanes>(x: *mut f32, cos: *const f32, sin: *const f32, half: usize) {
    // SAFETY: the caller runs the instruction set and passes `2 * half` elements and tables of `half`.
    unsafe {
        let other = x.add(half);
        // -0 - y is -y for every y, zeros too.
        let minus_zero = V::splat(-0.0);
        sixteens!(
            half,
            |i| {
                let (a, b) = (V::load(x.add(i)), V::load(other.add(i)));
                let (c, s) = (V::load(cos.add(i)), V::load(sin.add(i)));
                a.fma(c, minus_zero.sub(b.mul(s))).store(x.add(i));
                b.fma(c, a.mul(s)).store(other.add(i));
            },
            |i, n| {
                let (a, b) = (V::load_first(x.add(i), n), V::load_first(other.add(i), n));
                let (c, s) = (V::load_first(cos.add(i), n), V::load_first(sin.add(i), n));
                a.fma(c, minus_zero.sub(b.mul(s))).store_first(x.add(i), n);
                b.fma(c, a.mul(s)).store_first(other.add(i), n);
            }
        );
    }
}

#[inline(always)]
pub(crate) unsafe fn gelu_mul<V: Lanes>(out: *mut f32, gate: *const f32, up: *const f32, len: usize) {
    // SAFETY: the caller runs the instruction set and passes rows of `len` elements.
    unsafe {
        elementwise!(out, len, (gate, up) => gate.gelu_tanh().mul(up));
    }
}

#[inline(always)]
pub(crate) unsafe fn add<V: Lanes>(out: *mut f32, a: *const f32, b: *const f32, len: usize) {
    // SAFETY: the caller runs the instruction set and passes rows of `len` elements.
    unsafe {
        elementwise!(out, len, (a, b) => a.add(b));
    }
}

#[inline(always)]
pub(crate) unsafe fn scale<V: Lanes>(out: *mut f32, x: *const f32, factor: f32, len: usize) {
    // SAFETY: the caller runs the instruction set and passes rows of `len` elements.
    unsafe {
        elementwise!(out, len, (x) => x.mul(V::splat(factor)));
    }
}

#[inline(always)]
pub(crate) unsafe fn add_scaled<V: Lanes>(out: *mut f32, x: *const f32, factor: f32, len: usize) {
    let sum = out.cast_const();
    // SAFETY: the caller runs the instruction set and passes rows of `len` elements.
    unsafe {
        elementwise!(out, len, (x, sum) => x.fma(V::splat(factor), sum));
    }
}

#[inline(always)]
pub(crate) unsafe fn softcap<V: Lanes>(out: *mut f32, x: *const f32, cap: f32, len: usize) {
    // SAFETY: the caller runs the instruction set and passes rows of `len` elements.
    unsafe {
        elementwise!(out, len, (x) => V::splat(cap).mul(x.div(V::splat(cap)).tanh()));
    }
}

#[inline(always)]
pub(crate) unsafe fn exp_row<V: Lanes>(out: *mut f32, x: *const f32, max: f32, factor: f32, len: usize) {
    // SAFETY: the caller runs the instruction set and passes rows of `len` elements.
    unsafe {
        elementwise!(out, len, (x) => x.sub(V::splat(max)).mul(V::splat(factor)).exp());
    }
}

#[inline(always)]
pub(crate) unsafe fn max<V: Lanes>(x: *const f32, len: usize) -> f32 {
    // SAFETY: the caller runs the instruction set and passes a row of `len` elements.
    unsafe {
        let mut lanes = V::splat(f32::NEG_INFINITY);
        sixteens!(len, |i| lanes = V::load(x.add(i)).greater(lanes), |i, count| {
            let low = V::splat(f32::NEG_INFINITY);
            lanes = V::load_first(x.add(i), count).only(0, count, low).greater(lanes)
        });
        lanes.max()
    }
}

#[inline(always)]
pub(crate) unsafe fn find<V: Lanes>(x: *const f32, value: f32, len: usize) -> usize {
    // SAFETY: the caller runs the instruction set and passes a row of `len` elements.
    unsafe {
        let wanted = V::splat(value);
        let mut start = 0;
        while start + LANES <= len && !V::any(V::load(x.add(start)).is_equal(wanted)) {
            start += LANES;
        }
        while start < len && *x.add(start) != value {
            start += 1;
        }
        start
    }
}

/// Holds the lanes at the largest finite f16; NaN stays.
#[inline(always)]
pub(crate) unsafe fn held<V: Lanes>(x: V) -> V {
    // SAFETY: the caller runs the instruction set.
    unsafe {
        let (low, high) = (V::splat(-F16_MAX), V::splat(F16_MAX));
        let x = V::select(x.above(high), high, x);
        V::select(low.above(x), low, x)
    }
}
