//! Reads and hashes text eight bytes at a time.

/// Eight bytes from `at`, little-endian.
#[inline(always)]
pub(crate) fn read_u64(text: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(text[at..at + 8].try_into().expect("the slice has eight bytes"))
}

/// A whole text of fewer than eight bytes, padded with zeros.
#[inline(always)]
pub(crate) fn read_short(text: &[u8]) -> u64 {
    let length = text.len();
    debug_assert!(length < 8);
    if length >= 4 {
        let half_at = |at: usize| {
            u32::from_le_bytes(text[at..at + 4].try_into().expect("the slice has four bytes"))
        };
        u64::from(half_at(0)) | u64::from(half_at(length - 4)) << (8 * (length - 4))
    } else if length > 0 {
        let byte_at = |at: usize| u64::from(text[at]) << (8 * at);
        byte_at(0) | byte_at(length / 2) | byte_at(length - 1)
    } else {
        0
    }
}

/// Eight bytes from `start` of a text of at least eight bytes. Bytes beyond the end of the text are
/// zero.
///
/// Always does a single load, from an earlier offset if needed, because a branch on the length
/// would often be mispredicted.
#[inline(always)]
pub(crate) fn read_leading(text: &[u8], start: usize) -> u64 {
    let at = start.min(text.len() - 8);
    // `start` may be the end of the text, before an empty segment. The result is then ignored.
    read_u64(text, at).wrapping_shr(8 * (start - at) as u32)
}

/// The first `length` bytes of a word, at most all eight; the others become zero. The result for a
/// length of 0 is meaningless.
#[inline(always)]
pub(crate) fn mask(word: u64, length: usize) -> u64 {
    word & u64::MAX.wrapping_shr(64 - 8 * length.min(8) as u32)
}

/// Odd pseudo-random constants.
pub(crate) const MIX: [u64; 4] =
    [0x9E37_79B9_7F4A_7C15, 0xD1B5_4A32_D192_ED03, 0x8CB9_2BA7_2F3D_8DD7, 0xA076_1D64_78BD_642F];

/// Multiplies to 128 bits and folds the halves together: every input bit reaches every output bit.
#[inline(always)]
pub(crate) fn fold_mul(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    (product as u64) ^ (product >> 64) as u64
}

/// A hash of the text over overlapping eight-byte words.
#[inline(always)]
pub(crate) fn hash(text: &[u8], seed: u64) -> u64 {
    let length = text.len();
    let key = MIX[0] ^ seed;
    if length < 8 {
        return fold_mul(read_short(text) ^ key, MIX[1] ^ length as u64);
    }
    let mut state = key ^ length as u64;
    let mut at = 0;
    while at + 16 < length {
        state = fold_mul(read_u64(text, at) ^ state, read_u64(text, at + 8) ^ MIX[2]);
        at += 16;
    }
    // At most sixteen bytes are left: two words cover them, with an overlap if needed.
    let first = read_u64(text, at.min(length - 8));
    fold_mul(first ^ state, read_u64(text, length - 8) ^ MIX[1])
}

#[cfg(test)]
mod tests {
    use super::{hash, mask, read_leading, read_short};

    #[test]
    fn masked_leading_words_contain_only_bytes_of_their_segment() {
        let text = b"/abcdefghijklmnop";
        for length in 8..=text.len() {
            let text = &text[..length];
            for start in 0..length {
                for end in start + 1..=length {
                    let mut expected = [0; 8];
                    let word_len = (end - start).min(8);
                    expected[..word_len].copy_from_slice(&text[start..start + word_len]);
                    let actual = mask(read_leading(text, start), end - start);
                    assert_eq!(actual, u64::from_le_bytes(expected));
                }
            }
        }
        assert_eq!(read_short(b""), 0);
    }

    #[test]
    fn a_change_of_any_byte_changes_the_hash() {
        let text = [b'x'; 70];
        for length in 1..text.len() {
            for at in 0..length {
                let mut other = text;
                other[at] = b'y';
                assert_ne!(hash(&text[..length], 0), hash(&other[..length], 0));
            }
            assert_ne!(hash(&text[..length], 0), hash(&text[..length + 1], 0));
        }
    }
}
