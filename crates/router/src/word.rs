//! Reading text eight bytes at a time, and hashing it so.

/// Eight bytes from `at`, little-endian.
#[inline(always)]
pub(crate) fn word(text: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(text[at..at + 8].try_into().expect("the slice has eight bytes"))
}

/// The whole of a text of fewer than eight bytes, padded with zeros.
#[inline(always)]
pub(crate) fn short_word(text: &[u8]) -> u64 {
    let length = text.len();
    debug_assert!(length < 8);
    if length >= 4 {
        let half = |at: usize| {
            u32::from_le_bytes(text[at..at + 4].try_into().expect("the slice has four bytes"))
        };
        u64::from(half(0)) | u64::from(half(length - 4)) << (8 * (length - 4))
    } else if length > 0 {
        let byte = |at: usize| u64::from(text[at]) << (8 * at);
        byte(0) | byte(length / 2) | byte(length - 1)
    } else {
        0
    }
}

/// The last eight bytes of a text that is not empty, with zeros before it if it is shorter.
#[inline(always)]
pub(crate) fn tail_word(text: &[u8]) -> u64 {
    let length = text.len();
    if length >= 8 { word(text, length - 8) } else { short_word(text) << (8 * (8 - length)) }
}

/// The first eight bytes of `text[start..end]`, padded with zeros if it is shorter.
pub(crate) fn leading_word(text: &[u8], start: usize, end: usize) -> u64 {
    leading_word_beside(text, tail_word(text), start, end)
}

/// As [`leading_word`], for a text whose last eight bytes are known.
///
/// Reads beyond `end` where it can, because one wide load and a mask are cheaper than a choice by
/// length. The piece must not be empty.
#[inline(always)]
pub(crate) fn leading_word_beside(text: &[u8], tail: u64, start: usize, end: usize) -> u64 {
    let length = text.len();
    debug_assert!(start < end && end <= length);
    let wide =
        if start + 8 <= length { word(text, start) } else { tail >> (8 * (start + 8 - length)) };
    let kept = (end - start).min(8);
    wide & (u64::MAX >> (64 - 8 * kept))
}

const MIX: [u64; 3] = [0x9E37_79B9_7F4A_7C15, 0xD1B5_4A32_D192_ED03, 0x8CB9_2BA7_2F3D_8DD7];

/// Multiplies to 128 bits and folds the halves together: every input bit reaches every output bit.
#[inline(always)]
fn fold(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    (product as u64) ^ (product >> 64) as u64
}

/// A hash of the text over overlapping eight-byte words.
#[inline(always)]
pub(crate) fn hash(text: &[u8], seed: u64) -> u64 {
    let length = text.len();
    let key = MIX[0] ^ seed;
    if length < 8 {
        return fold(short_word(text) ^ key, MIX[1] ^ length as u64);
    }
    let mut state = key ^ length as u64;
    let mut at = 0;
    while at + 16 < length {
        state = fold(word(text, at) ^ state, word(text, at + 8) ^ MIX[2]);
        at += 16;
    }
    // At most sixteen bytes are left: two words cover them, overlapping if need be.
    let first = word(text, at.min(length - 8));
    fold(first ^ state, word(text, length - 8) ^ MIX[1])
}

#[cfg(test)]
mod tests {
    use super::{hash, leading_word, short_word};

    #[test]
    fn a_leading_word_never_sees_beyond_its_piece() {
        let text = b"/abcdefghijklmnop";
        for length in 1..=text.len() {
            let text = &text[..length];
            for start in 0..length {
                for end in start + 1..=length {
                    let mut expected = [0; 8];
                    let kept = (end - start).min(8);
                    expected[..kept].copy_from_slice(&text[start..start + kept]);
                    assert_eq!(leading_word(text, start, end), u64::from_le_bytes(expected));
                }
            }
        }
        assert_eq!(short_word(b""), 0);
    }

    #[test]
    fn a_change_of_any_byte_changes_the_hash() {
        let text = [b'x'; 70];
        for length in 1..text.len() {
            for changed in 0..length {
                let mut other = text;
                other[changed] = b'y';
                assert_ne!(hash(&text[..length], 0), hash(&other[..length], 0));
            }
            assert_ne!(hash(&text[..length], 0), hash(&text[..length + 1], 0));
        }
    }
}
