//! How a token is chosen from logits. Backends agree on it because the rule and the random numbers are
//! defined here and nowhere else.

/// The sampling rule of one row.
///
/// Logits are divided by `temperature`; the `top_k` largest are kept (ties: the lower id first); their
/// softmax is taken; the shortest prefix in descending order whose probabilities sum to at least `top_p`
/// is kept (never less than one token); one of these is drawn in proportion, with
/// [`uniform`]`(seed, position)` for the position that the drawn token will have.
///
/// NaN and -inf are never chosen; +0 and -0 are equal; if a logit is +inf, the first such is chosen; if nothing can
/// be chosen, id 0 is. A temperature whose reciprocal is not finite in f32 counts as 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// 0 takes the largest logit, the lowest id among equals.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// In (0, 1]; 1 keeps all.
    pub top_p: f32,
    /// Key of the generator.
    pub seed: u64,
}

impl Sampling {
    /// Takes the largest logit.
    pub const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 };
}

/// A number in [0, 1) that depends on `seed` and `position` alone, so that a sequence draws the same
/// numbers whatever runs beside it: two rounds of the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
pub fn uniform(seed: u64, position: u32) -> f32 {
    let mixed = mix(mix(seed).wrapping_add(u64::from(position).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    (mixed >> 40) as f32 * (1.0 / (1u64 << 24) as f32)
}

fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_is_even_and_differs_by_seed_and_position() {
        let mean: f64 = (0..10_000).map(|position| f64::from(uniform(7, position))).sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
        assert!((0..10_000).all(|position| (0.0..1.0).contains(&uniform(7, position))));
        assert_ne!(uniform(1, 5), uniform(2, 5));
        assert_ne!(uniform(1, 5), uniform(1, 6));
    }
}
