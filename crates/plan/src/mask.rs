//! Which tokens of a vocabulary may be chosen, a bit each.

/// A set of the tokens `0..len`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TokenMask {
    len: usize,
    /// `[len / 64]`, rounded up: token `t` is bit `t % 64` of word `t / 64`; bits beyond `len` are 0.
    words: Vec<u64>,
}

impl TokenMask {
    /// No token of `len`.
    pub fn none(len: usize) -> TokenMask {
        TokenMask { len, words: vec![0; len.div_ceil(64)] }
    }

    /// Every token of `len`.
    pub fn all(len: usize) -> TokenMask {
        let mut words = vec![u64::MAX; len.div_ceil(64)];
        if let (Some(last), beyond @ 1..) = (words.last_mut(), len % 64) {
            *last = (1 << beyond) - 1;
        }
        TokenMask { len, words }
    }

    /// How many tokens the vocabulary has, in the set or not.
    #[expect(clippy::len_without_is_empty, reason = "a vocabulary is never empty; a set without tokens has no first")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// How many tokens are in the set.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the token is in the set; none beyond the vocabulary is.
    pub fn contains(&self, token: u32) -> bool {
        self.words.get(token as usize / 64).is_some_and(|word| word >> (token % 64) & 1 == 1)
    }

    /// The lowest token of the set.
    pub fn first(&self) -> Option<u32> {
        let place = self.words.iter().position(|&word| word != 0)?;
        Some(place as u32 * 64 + self.words[place].trailing_zeros())
    }

    /// Puts a token into the set. Panics if the vocabulary has no such token.
    pub fn set(&mut self, token: u32) {
        *self.word(token) |= 1 << (token % 64);
    }

    /// Takes a token out of the set. Panics if the vocabulary has no such token.
    pub fn clear(&mut self, token: u32) {
        *self.word(token) &= !(1 << (token % 64));
    }

    /// `[len / 64]`, rounded up: token `t` is bit `t % 64` of word `t / 64`; bits beyond the vocabulary are 0.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    fn word(&mut self, token: u32) -> &mut u64 {
        assert!((token as usize) < self.len, "token {token} of a mask of {}", self.len);
        &mut self.words[token as usize / 64]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn is_a_set_of_tokens(
            len in 1usize..300,
            from_all: bool,
            changes in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 0..50),
        ) {
            let mut mask = if from_all { TokenMask::all(len) } else { TokenMask::none(len) };
            let mut set: BTreeSet<u32> = if from_all { (0..len as u32).collect() } else { BTreeSet::new() };
            for (puts, token) in changes {
                let token = token.index(len) as u32;
                if puts {
                    mask.set(token);
                    set.insert(token);
                } else {
                    mask.clear(token);
                    set.remove(&token);
                }
            }
            prop_assert_eq!(mask.len(), len);
            prop_assert_eq!(mask.count(), set.len());
            prop_assert_eq!(mask.first(), set.first().copied());
            prop_assert_eq!((0..len as u32 + 130).filter(|&token| mask.contains(token)).collect::<BTreeSet<_>>(), set);
        }
    }

    #[test]
    #[should_panic(expected = "token 64 of a mask of 64")]
    fn a_token_beyond_the_vocabulary_is_refused() {
        TokenMask::none(64).set(64);
    }
}
