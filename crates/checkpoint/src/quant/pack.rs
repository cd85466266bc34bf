//! Integers of 2 to 8 bits in a row of bytes: value `i` takes bits `i * bits` up to
//! `(i + 1) * bits` of the little-endian stream. For 2, 4 and 8 bits that is what packing into
//! 32-bit words gives; 3, 5 and 6 bits straddle bytes, eight values in `bits` bytes.

/// Unpacks `out.len()` values. Panics unless `bits` is 2, 3, 4, 5, 6 or 8, the values are a multiple
/// of eight, and `bytes` holds exactly them.
pub fn unpack(bits: u8, bytes: &[u8], out: &mut [u8]) {
    assert!(out.len().is_multiple_of(8), "whole runs of eight values");
    assert_eq!(bytes.len(), out.len() / 8 * usize::from(bits), "packed bytes of the values");
    match bits {
        2 => unpack_eights::<2>(bytes, out),
        3 => unpack_eights::<3>(bytes, out),
        4 => unpack_eights::<4>(bytes, out),
        5 => unpack_eights::<5>(bytes, out),
        6 => unpack_eights::<6>(bytes, out),
        8 => out.copy_from_slice(bytes),
        _ => panic!("values of {bits} bits are not read"),
    }
}

/// Packs values, appending to `out`. Panics unless `bits` is 2, 3, 4, 5, 6 or 8, the values are a
/// multiple of eight, and each fits its bits.
pub fn pack(bits: u8, values: &[u8], out: &mut Vec<u8>) {
    assert!(values.len().is_multiple_of(8), "whole runs of eight values");
    assert!(values.iter().all(|value| u16::from(*value) < 1 << bits), "values of {bits} bits");
    match bits {
        2 => pack_eights::<2>(values, out),
        3 => pack_eights::<3>(values, out),
        4 => pack_eights::<4>(values, out),
        5 => pack_eights::<5>(values, out),
        6 => pack_eights::<6>(values, out),
        8 => out.extend_from_slice(values),
        _ => panic!("values of {bits} bits are not read"),
    }
}

/// Eight values fill `BITS` bytes, whatever the bits: the unit that no value straddles.
fn unpack_eights<const BITS: usize>(bytes: &[u8], out: &mut [u8]) {
    let (packed, _) = bytes.as_chunks::<BITS>();
    let (values, _) = out.as_chunks_mut::<8>();
    for (packed, values) in packed.iter().zip(values) {
        let mut word = [0; 8];
        word[..BITS].copy_from_slice(packed);
        let word = u64::from_le_bytes(word);
        for (index, value) in values.iter_mut().enumerate() {
            *value = (word >> (index * BITS)) as u8 & ((1 << BITS) - 1);
        }
    }
}

fn pack_eights<const BITS: usize>(values: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + values.len() / 8 * BITS, 0);
    let (packed, _) = out[start..].as_chunks_mut::<BITS>();
    let (values, _) = values.as_chunks::<8>();
    for (packed, values) in packed.iter_mut().zip(values) {
        let mut word = 0u64;
        for (index, value) in values.iter().enumerate() {
            word |= u64::from(*value) << (index * BITS);
        }
        packed.copy_from_slice(&word.to_le_bytes()[..BITS]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_bit_values_straddle_bytes_from_the_low_end() {
        let values = [1, 0, 0, 0, 0, 0, 31, 2];
        let mut packed = Vec::new();
        pack(5, &values, &mut packed);
        // 1 in bits 0-4, 31 in bits 30-34, 2 in bits 35-39.
        assert_eq!(packed, (1u64 | 31 << 30 | 2 << 35).to_le_bytes()[..5]);
        let mut back = [0xff; 8];
        unpack(5, &packed, &mut back);
        assert_eq!(back, values);
    }

    #[test]
    fn four_bit_values_lie_low_nibble_first() {
        let mut out = [0; 8];
        unpack(4, &[0x21, 0x43, 0x65, 0x87], &mut out);
        assert_eq!(out, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    proptest::proptest! {
        #[test]
        fn packed_values_come_back(bits in proptest::sample::select(vec![2u8, 3, 4, 5, 6, 8]), eights in 0usize..9, seed: u64) {
            let mut state = seed | 1;
            let values: Vec<u8> = (0..eights * 8).map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 56) as u8 & (((1u16 << bits) - 1) as u8)
            }).collect();
            let mut packed = Vec::new();
            pack(bits, &values, &mut packed);
            proptest::prop_assert_eq!(packed.len(), eights * usize::from(bits));
            let mut back = vec![0xff; values.len()];
            unpack(bits, &packed, &mut back);
            proptest::prop_assert_eq!(back, values);
        }
    }
}
