//! Where each value lives. A value is live from the launch that writes it through the last launch that
//! reads it, inclusive, so a launch's output can never overlap its own input.

use thiserror::Error;

/// One buffer to place: its size, and the launches between which it must keep what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetime {
    /// Size.
    pub bytes: usize,
    /// The launch that writes it.
    pub written: usize,
    /// The last launch that reads it, at least `written`.
    pub last_read: usize,
}

impl Lifetime {
    fn meets(&self, other: &Lifetime) -> bool {
        self.written <= other.last_read && other.written <= self.last_read
    }
}

/// Places in one arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Byte offset of each buffer.
    pub offsets: Vec<usize>,
    /// Size of the arena.
    pub bytes: usize,
}

/// Two buffers that are live together share bytes, or one is not where it should be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("memory layout: {0}")]
pub struct LayoutError(pub String);

/// Offsets are multiples of this: a cache line, and the widest vector.
const ALIGNMENT: usize = 64;

/// Places the buffers, larger ones first, each at the lowest offset that no buffer live with it uses.
pub fn lay_out(lifetimes: &[Lifetime]) -> Layout {
    let mut order: Vec<usize> = (0..lifetimes.len()).collect();
    order.sort_by_key(|&index| (std::cmp::Reverse(lifetimes[index].bytes), index));
    let mut offsets = vec![0; lifetimes.len()];
    let mut placed: Vec<usize> = vec![];
    let mut bytes = 0;
    for index in order {
        let wanted = lifetimes[index].bytes.next_multiple_of(ALIGNMENT);
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .filter(|&&other| lifetimes[other].meets(&lifetimes[index]))
            .map(|&other| (offsets[other], offsets[other] + lifetimes[other].bytes.next_multiple_of(ALIGNMENT)))
            .collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (first, end) in taken {
            if first >= offset + wanted {
                break;
            }
            offset = offset.max(end);
        }
        offsets[index] = offset;
        bytes = bytes.max(offset + wanted);
        placed.push(index);
    }
    Layout { offsets, bytes }
}

impl Layout {
    /// Proves that no two buffers that are live together share a byte, and that all lie in the arena.
    pub fn check(&self, lifetimes: &[Lifetime]) -> Result<(), LayoutError> {
        if self.offsets.len() != lifetimes.len() {
            return Err(LayoutError(format!("{} offsets for {} buffers", self.offsets.len(), lifetimes.len())));
        }
        for (index, (lifetime, &offset)) in lifetimes.iter().zip(&self.offsets).enumerate() {
            if !offset.is_multiple_of(ALIGNMENT)
                || offset.checked_add(lifetime.bytes).is_none_or(|end| end > self.bytes)
            {
                return Err(LayoutError(format!("buffer {index} at {offset} is outside the arena or unaligned")));
            }
            if lifetime.last_read < lifetime.written {
                return Err(LayoutError(format!("buffer {index} is read before it is written")));
            }
            for (other, (with, &at)) in lifetimes.iter().zip(&self.offsets).enumerate().skip(index + 1) {
                let apart = offset + lifetime.bytes <= at || at + with.bytes <= offset;
                if lifetime.meets(with) && !apart {
                    return Err(LayoutError(format!(
                        "buffers {index} and {other} are live together and share bytes {}..{}",
                        offset.max(at),
                        (offset + lifetime.bytes).min(at + with.bytes)
                    )));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn output_never_lies_over_the_input_of_the_same_launch() {
        let lifetimes = [
            Lifetime { bytes: 256, written: 0, last_read: 1 },
            Lifetime { bytes: 256, written: 1, last_read: 2 },
            Lifetime { bytes: 256, written: 2, last_read: 3 },
        ];
        let layout = lay_out(&lifetimes);
        assert_eq!(layout.check(&lifetimes), Ok(()));
        assert_eq!(layout.bytes, 512, "the third takes the first one's place");
    }

    #[test]
    fn a_shared_byte_is_found() {
        let lifetimes =
            [Lifetime { bytes: 100, written: 0, last_read: 3 }, Lifetime { bytes: 100, written: 3, last_read: 4 }];
        let broken = Layout { offsets: vec![0, 64], bytes: 256 };
        assert!(broken.check(&lifetimes).is_err());
    }

    proptest! {
        #[test]
        fn no_two_live_values_overlap(spans in prop::collection::vec((0usize..5000, 0usize..60, 0usize..60), 0..80)) {
            let lifetimes: Vec<Lifetime> = spans
                .iter()
                .map(|&(bytes, a, b)| Lifetime { bytes, written: a.min(b), last_read: a.max(b) })
                .collect();
            prop_assert_eq!(lay_out(&lifetimes).check(&lifetimes), Ok(()));
        }
    }
}
