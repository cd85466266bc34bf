//! Every instruction set against the plain functions, bit for bit, and those against f64.

use super::*;

/// Row lengths: every tail of two vectors, and sizes of models.
fn lengths() -> impl Iterator<Item = usize> {
    (1..35).chain([256, 512, 1536, 2112, 5376])
}

/// Numbers in about -4..4, the same for the same seed.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((state >> 40) as f32 / 16_777_216.0 - 0.5) * 8.0
        })
        .collect()
}

/// Noise with the numbers that break careless code strewn in.
fn wild(len: usize, seed: u64) -> Vec<f32> {
    let odd = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40, -1e-40, 3e38, -3e38, 88.8, -87.4, 65520.0];
    let mut row = noise(len, seed);
    for (i, x) in row.iter_mut().enumerate() {
        if (i as u64 + seed).is_multiple_of(3) {
            *x = odd[(i / 3 + seed as usize) % odd.len()];
        }
    }
    row
}

/// Asserts equal bits; a NaN equals any NaN.
#[track_caller]
pub(crate) fn assert_same(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(
            got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
            "{what}: [{i}] is {got:e}, not {want:e}"
        );
    }
}

#[track_caller]
fn assert_close(got: &[f32], want: impl Iterator<Item = f64>, tolerance: f64, what: &str) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(error <= tolerance * want.abs().max(1e-30), "{what}: [{i}] is {got:e}, not {want:e}");
    }
}

fn scalar() -> Kernels {
    Kernels::for_isa(Isa::Scalar)
}

/// Runs a row kernel on every instruction set, each output pre-filled with NaN, and compares.
#[track_caller]
fn agree(what: &str, run: impl Fn(&Kernels, &mut [f32], &[f32], &[f32])) {
    for isa in Isa::supported() {
        let kernels = Kernels::for_isa(isa);
        for len in lengths() {
            for seed in 0..4 {
                let (a, b) =
                    if seed == 0 { (noise(len, 1), noise(len, 2)) } else { (wild(len, seed), wild(len, 9 * seed)) };
                let (mut want, mut got) = (vec![f32::NAN; len], vec![f32::NAN; len]);
                run(&scalar(), &mut want, &a, &b);
                run(&kernels, &mut got, &a, &b);
                assert_same(&got, &want, &format!("{what} {isa} {len} seed {seed}"));
            }
        }
    }
}

#[test]
fn element_wise_kernels_have_one_result() {
    agree("gelu_mul", |kernels, out, a, b| kernels.gelu_mul(out, a, b));
    agree("add", |kernels, out, a, b| kernels.add(out, a, b));
    agree("scale", |kernels, out, a, _| kernels.scale(out, a, 0.3));
    agree("softcap", |kernels, out, a, _| kernels.softcap(out, a, 1.5));
    agree("exp_row", |kernels, out, a, _| kernels.exp_row(out, a, 1.25, 0.7));
    agree("add_scaled", |kernels, out, a, b| {
        out.copy_from_slice(b);
        kernels.add_scaled(out, a, 0.3);
    });
}

#[test]
fn in_place_equals_out_of_place() {
    agree("in place", |kernels, out, a, b| {
        type Pair<'a> = (&'a dyn Fn(&mut [f32]), &'a dyn Fn(&mut [f32]));
        let pairs: [Pair; 3] = [
            (&|out| kernels.gelu_mul(out, a, b), &|x| kernels.gelu_mul_in_place(x, b)),
            (&|out| kernels.scale(out, a, 0.3), &|x| kernels.scale_in_place(x, 0.3)),
            (&|out| kernels.exp_row(out, a, 1.0, 2.0), &|x| kernels.exp_row_in_place(x, 1.0, 2.0)),
        ];
        for (apart, in_place) in pairs {
            apart(out);
            let mut row = a.to_vec();
            in_place(&mut row);
            assert_same(&row, out, "in place");
        }
    });
}

#[test]
fn rms_norm_has_one_result() {
    agree("rms_norm", |kernels, out, x, weight| kernels.rms_norm(out, x, Some(weight), 1e-6));
    agree("rms_norm without weight", |kernels, out, x, _| kernels.rms_norm(out, x, None, 1e-6));
}

#[test]
fn rms_norm_is_its_formula() {
    for len in lengths() {
        let (x, weight, mut out) = (noise(len, 3), noise(len, 4), vec![f32::NAN; len]);
        scalar().rms_norm(&mut out, &x, Some(&weight), 1e-6);
        let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / len as f64;
        let want = x.iter().zip(&weight).map(|(x, w)| f64::from(*x) / (mean + 1e-6).sqrt() * f64::from(*w));
        // Sixteen running sums of at most 336 squares, then four roundings.
        assert_close(&out, want, 2e-6, "rms_norm");
    }
}

#[test]
fn rope_has_one_result_and_is_a_rotation() {
    for half in (1..35).chain([64, 128, 256]) {
        let x = noise(2 * half, 5);
        let angles: Vec<f64> = noise(half, 6).iter().map(|x| f64::from(*x)).collect();
        let cos: Vec<f32> = angles.iter().map(|a| a.cos() as f32).collect();
        let sin: Vec<f32> = angles.iter().map(|a| a.sin() as f32).collect();
        let mut want = x.clone();
        scalar().rope(&mut want, &cos, &sin);
        for i in 0..half {
            let (a, b) = (f64::from(x[i]), f64::from(x[i + half]));
            let (s, c) = angles[i].sin_cos();
            assert!((f64::from(want[i]) - (a * c - b * s)).abs() < 2e-6);
            assert!((f64::from(want[i + half]) - (b * c + a * s)).abs() < 2e-6);
        }
        for isa in Isa::supported() {
            let mut got = x.clone();
            Kernels::for_isa(isa).rope(&mut got, &cos, &sin);
            assert_same(&got, &want, &format!("rope {isa} {half}"));
            let (cos, sin) = (wild(half, 1), wild(half, 2));
            let (mut want, mut got) = (wild(2 * half, 3), wild(2 * half, 3));
            scalar().rope(&mut want, &cos, &sin);
            Kernels::for_isa(isa).rope(&mut got, &cos, &sin);
            assert_same(&got, &want, &format!("rope {isa} {half}, wild"));
        }
    }
}

#[test]
fn reductions_have_one_result() {
    for isa in Isa::supported() {
        let kernels = Kernels::for_isa(isa);
        for len in lengths() {
            for seed in 0..6 {
                let x = if seed == 0 { noise(len, 8) } else { wild(len, seed) };
                let what = format!("{isa} {len} seed {seed}");
                assert_eq!(kernels.max(&x), scalar().max(&x), "max {what}");
                assert_eq!(kernels.argmax(&x).0, scalar().argmax(&x).0, "argmax {what}");
            }
        }
    }
}

#[test]
fn argmax_is_the_first_of_the_largest_and_never_nan() {
    for isa in Isa::supported() {
        let kernels = Kernels::for_isa(isa);
        for len in 1..70 {
            for at in 0..len {
                let mut x = vec![-5.0; len];
                x[at] = 2.0;
                x[len - 1] = 2.0;
                x[0] = if at == 0 { 2.0 } else { f32::NAN };
                assert_eq!(kernels.argmax(&x), (at, 2.0), "{isa} {len}");
            }
            assert_eq!(kernels.argmax(&vec![f32::NEG_INFINITY; len]), (0, f32::NEG_INFINITY));
            let (index, value) = kernels.argmax(&vec![f32::NAN; len]);
            assert!(index == 0 && value.is_nan());
        }
    }
}
