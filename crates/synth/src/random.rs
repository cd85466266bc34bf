//! Random numbers by their place: word `i` of a stream is a function of the stream's key and `i`
//! alone, so that a tensor can be filled in any pieces, by any number of threads.

/// A stream of 64-bit words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    key: u64,
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Stream {
    /// The stream of one tensor of one seed.
    pub fn new(seed: u64, name: &str) -> Stream {
        // FNV-1a, then mixed, so that names which differ in one letter have unlike keys.
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        Stream { key: mix(mix(hash) ^ mix(seed.wrapping_add(GOLDEN))) }
    }

    /// Word `index`: the sequence known as SplitMix64, entered at `index`.
    pub fn word(self, index: u64) -> u64 {
        mix(self.key.wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN)))
    }

    /// Half a word: 32 bits a place.
    pub fn half(self, index: u64) -> u32 {
        (self.word(index / 2) >> (32 * (index % 2))) as u32
    }

    /// From 0 to below 1, in steps of 2^-24.
    pub fn unit(self, index: u64) -> f32 {
        (self.half(index) >> 8) as f32 / (1 << 24) as f32
    }
}

fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// Deviation of [`near_normal`].
pub(crate) const NEAR_NORMAL_DEVIATION: f32 = 147.801; // sqrt(4 * (256² - 1) / 12)

/// The sum of the four bytes of `bits` about its mean: a whole number from -510 to 510 whose
/// distribution is nearly normal. Exact, so that it is the same on every machine.
pub(crate) fn near_normal(bits: u32) -> f32 {
    let pairs = (bits & 0x00ff_00ff) + (bits >> 8 & 0x00ff_00ff);
    let sum = (pairs & 0xffff) + (pairs >> 16);
    sum as f32 - 510.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_normal_numbers_have_the_stated_deviation_and_no_mean() {
        let stream = Stream::new(3, "test");
        let values: Vec<f64> = (0..100_000).map(|index| f64::from(near_normal(stream.half(index)))).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let deviation = (values.iter().map(|value| value * value).sum::<f64>() / values.len() as f64).sqrt();
        assert!(mean.abs() < 2.0, "{mean}");
        assert!((deviation / f64::from(NEAR_NORMAL_DEVIATION) - 1.0).abs() < 0.01, "{deviation}");
    }

    #[test]
    fn every_bit_of_a_word_is_set_half_of_the_time() {
        let stream = Stream::new(0, "");
        for bit in 0..64 {
            let set = (0..10_000).filter(|index| stream.word(*index) >> bit & 1 == 1).count();
            assert!((4_700..5_300).contains(&set), "bit {bit}: {set} of 10000");
        }
    }

    #[test]
    fn names_and_seeds_make_other_streams() {
        let first = Stream::new(1, "layers.0").word(0);
        assert_ne!(first, Stream::new(1, "layers.1").word(0));
        assert_ne!(first, Stream::new(2, "layers.0").word(0));
    }
}
