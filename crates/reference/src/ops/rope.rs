//! Rotary position embedding (Su et al. 2021), halves paired as in transformers' `rotate_half`.

use plan::Rope;

/// Turns one head: `out[i] = x[i] cos - x[i + d/2] sin`, `out[i + d/2] = x[i + d/2] cos + x[i] sin` at the
/// angle `position * frequency(i)`, in f64. Panics unless the lengths agree and are even.
pub fn rope(out: &mut [f32], x: &[f32], rope: &Rope, position: u32) {
    assert!(out.len() == x.len() && x.len().is_multiple_of(2), "a head of pairs");
    let half = x.len() / 2;
    for i in 0..half {
        let (sin, cos) = (f64::from(position) * rope.frequency(i, x.len())).sin_cos();
        let (a, b) = (f64::from(x[i]), f64::from(x[i + half]));
        out[i] = (a * cos - b * sin) as f32;
        out[i + half] = (b * cos + a * sin) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Full-attention layers of Gemma 4: 512 lanes, 64 pairs that turn.
    #[test]
    fn proportional_pairs_reach_over_half_the_head_and_divide_by_all_of_it() {
        let proportional = Rope { theta: 1e6, turned_pairs: 64, factor: 1.0 };
        for position in [1, 5_000] {
            for lane in [0, 63, 64, 320, 256] {
                let mut x = [0.0; 512];
                x[lane] = 1.0;
                let mut out = [f32::NAN; 512];
                rope(&mut out, &x, &proportional, position);
                let pair = lane % 256;
                let angle = f64::from(position) * 1e6f64.powf(-2.0 * pair as f64 / 512.0);
                let (cos, sin) = if pair < 64 { (angle.cos(), angle.sin()) } else { (1.0, 0.0) };
                let partner = (lane + 256) % 512;
                let signed = if lane < 256 { sin } else { -sin };
                assert_eq!((out[lane], out[partner]), (cos as f32, signed as f32), "lane {lane} at {position}");
                assert_eq!(out.iter().filter(|out| **out != 0.0).count(), if sin == 0.0 { 1 } else { 2 });
            }
        }
    }
}
