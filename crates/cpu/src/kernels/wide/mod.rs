//! The kernels over sixteen lanes, written once; each instruction set compiles them for its own [`Lanes`].
//! They repeat the operations of `rows` and `attention::scalar` in the same order.
//!
//! [`Lanes`]: super::lanes::Lanes

pub(crate) mod attention;
pub(crate) mod rate;
pub(crate) mod rows;
pub(crate) mod scores;
pub(crate) mod tile;
pub(crate) mod values;

/// Compiles every kernel for one instruction set: its features, its `Lanes`, and how many accumulators of
/// sixteen lanes its registers hold at once beside operands. Nothing here may be called on a processor
/// without the features; the kernels are inlined into these functions, so all of it is compiled for them.
macro_rules! entries {
    ($features:literal, $lanes:ty, $accumulators:literal) => {
        pub(crate) mod rows {
            use crate::kernels::wide::rows as wide;
            crate::kernels::wide::entries!(@ $features, $lanes, wide, {
                fn rms_norm(out: *mut f32, x: *const f32, weight: *const f32, len: usize, eps: f32);
                fn rope(x: *mut f32, cos: *const f32, sin: *const f32, half: usize);
                fn gelu_mul(out: *mut f32, gate: *const f32, up: *const f32, len: usize);
                fn add(out: *mut f32, a: *const f32, b: *const f32, len: usize);
                fn scale(out: *mut f32, x: *const f32, factor: f32, len: usize);
                fn add_scaled(out: *mut f32, x: *const f32, factor: f32, len: usize);
                fn softcap(out: *mut f32, x: *const f32, cap: f32, len: usize);
                fn exp_row(out: *mut f32, x: *const f32, max: f32, factor: f32, len: usize);
                fn max(x: *const f32, len: usize) -> f32;
                fn find(x: *const f32, value: f32, len: usize) -> usize;
            });
        }
        pub(crate) mod attention {
            use crate::kernels::attention::{Attention, KvLayer, Scratch};
            use crate::kernels::wide::attention::{self as wide, Tiles};
            use crate::kernels::wide::scores::{Element, Keys};
            use crate::kernels::wide::tile::{Pair, Piece};
            use crate::kernels::wide::values::Values;

            /// The tiles of this instruction set.
            enum Here {}

            // SAFETY: the trait's contract: called only in code compiled for these features.
            unsafe impl Tiles for Here {
                type V = $lanes;
                const ACCUMULATORS: usize = $accumulators;

                #[inline(always)]
                unsafe fn score_pair<E: Element>(of: Piece, pair: Pair, keys: Keys<E, 2>, scores: *mut f32) {
                    // SAFETY: the caller's contract.
                    unsafe { score_pair(of, pair, keys, scores) }
                }
                #[inline(always)]
                unsafe fn value_pair<E: Element>(of: Piece, pair: Pair, values: Values<E>, scratch: &Scratch) {
                    // SAFETY: the caller's contract.
                    unsafe { value_pair(of, pair, values, scratch) }
                }
            }

            #[inline(never)]
            #[target_feature(enable = $features)]
            unsafe fn score_pair<E: Element>(of: Piece, pair: Pair, keys: Keys<E, 2>, scores: *mut f32) {
                // SAFETY: the caller's contract, and the features are enabled here.
                unsafe { wide::score_pair::<Here, E>(of, pair, keys, scores) }
            }
            #[inline(never)]
            #[target_feature(enable = $features)]
            unsafe fn value_pair<E: Element>(of: Piece, pair: Pair, values: Values<E>, scratch: &Scratch) {
                // SAFETY: the caller's contract, and the features are enabled here.
                unsafe { wide::value_pair::<Here, E>(of, pair, values, scratch) }
            }

            crate::kernels::wide::entries!(@ $features, $lanes, wide, {
                fn kv_append(layer: &KvLayer, slot: usize, k: *const f32, v: *const f32);
                fn attention_merge(partials: *const f32, count: usize, group: usize, head_dim: usize, out: *mut f32);
            });
            #[target_feature(enable = $features)]
            pub(crate) unsafe fn attention_split(
                work: &Attention,
                row: usize,
                split: usize,
                partial: *mut f32,
                scratch: &mut [f32],
            ) {
                // SAFETY: the caller's contract, and the features are enabled here.
                unsafe { wide::attention_split::<Here>(work, row, split, partial, scratch) }
            }
            #[target_feature(enable = $features)]
            pub(crate) unsafe fn attention_rows(work: &Attention, scratch: &mut [f32]) {
                // SAFETY: the caller's contract, and the features are enabled here.
                unsafe { wide::attention_rows::<Here>(work, scratch) }
            }
        }
        pub(crate) mod rate {
            use crate::kernels::wide::rate as wide;
            crate::kernels::wide::entries!(@ $features, $lanes, wide, {
                fn read(x: *const f32, len: usize) -> f32;
            });
            /// Runs `rounds` rounds of independent multiply-adds and returns how many operations that was.
            #[target_feature(enable = $features)]
            pub(crate) unsafe fn multiply_adds(rounds: usize) -> u64 {
                // SAFETY: the features are enabled here.
                unsafe { wide::multiply_adds::<$lanes, $accumulators>(rounds) }
            }
        }
    };
    (@ $features:literal, $lanes:ty, $wide:ident, {
        $(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*
    }) => {
        $(
            #[target_feature(enable = $features)]
            pub(crate) unsafe fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: the caller's contract, and the features are enabled here.
                unsafe { $wide::$name::<$lanes>($($argument),*) }
            }
        )*
    };
}
pub(crate) use entries;
