//! Integers with a prefix. RFC 7541 §5.1.

use crate::h2::Http2Error;

/// The largest integer accepted in a header block: lengths of strings, indices, and table sizes all
/// have far lower limits.
const INTEGER_MAX: u32 = 1 << 28;

/// Reads the integer at `at` with a prefix of `bits` bits (1 to 8). Returns it, and the offset
/// after it.
#[inline]
pub(super) fn read(block: &[u8], at: usize, bits: u32) -> Result<(u32, usize), Http2Error> {
    let first = *block.get(at).ok_or(Http2Error::HeaderBlockTruncated)?;
    let mask = 0xff_u8 >> (8 - bits);
    if first & mask < mask {
        return Ok((u32::from(first & mask), at + 1));
    }
    read_more(block, at + 1, u32::from(mask))
}

// RFC 7541 §5.1: integer encodings that exceed an implementation's limits, in value or length, must
// be treated as decoding errors.
fn read_more(block: &[u8], mut at: usize, prefix: u32) -> Result<(u32, usize), Http2Error> {
    let mut number = u64::from(prefix);
    for shift in [0, 7, 14, 21, 28] {
        let byte = *block.get(at).ok_or(Http2Error::HeaderBlockTruncated)?;
        at += 1;
        number += u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return match u32::try_from(number) {
                Ok(number) if number <= INTEGER_MAX => Ok((number, at)),
                _ => Err(Http2Error::IntegerTooLarge),
            };
        }
    }
    Err(Http2Error::IntegerTooLarge)
}

/// Writes an integer with a prefix of `bits` bits, below the bits of `pattern`.
#[inline]
pub(super) fn write(number: usize, bits: u32, pattern: u8, out: &mut Vec<u8>) {
    let mask = 0xff_u8 >> (8 - bits);
    match u8::try_from(number) {
        Ok(small) if small < mask => out.push(pattern | small),
        _ => {
            out.push(pattern | mask);
            let mut remaining = number - usize::from(mask);
            while remaining >= 0x80 {
                out.push(0x80 | low_bits(remaining));
                remaining >>= 7;
            }
            out.push(low_bits(remaining));
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "seven bits fit in a byte")]
fn low_bits(number: usize) -> u8 {
    (number & 0x7f) as u8
}

#[cfg(test)]
mod tests {
    use super::{INTEGER_MAX, read, write};
    use crate::h2::Http2Error;
    use proptest::prelude::*;

    // RFC 7541 C.1.
    #[test]
    fn reads_and_writes_the_examples_of_rfc_7541() {
        for (number, bits, bytes) in
            [(10, 5, &[0b01010][..]), (1337, 5, &[0b11111, 154, 10]), (42, 8, &[42])]
        {
            let mut out = Vec::new();
            write(number as usize, bits, 0, &mut out);
            assert_eq!(out, bytes);
            assert_eq!(read(bytes, 0, bits), Ok((number, bytes.len())));
        }
    }

    #[test]
    fn rejects_integers_that_are_too_large_too_long_or_truncated() {
        assert_eq!(read(&[], 0, 5), Err(Http2Error::HeaderBlockTruncated));
        assert_eq!(read(&[0x1f], 0, 5), Err(Http2Error::HeaderBlockTruncated));
        assert_eq!(read(&[0x1f, 0x80], 0, 5), Err(Http2Error::HeaderBlockTruncated));
        let long = [0x1f, 0x80, 0x80, 0x80, 0x80, 0x80, 0];
        assert_eq!(read(&long, 0, 5), Err(Http2Error::IntegerTooLarge));
        let large = [0x1f, 0xff, 0xff, 0xff, 0xff, 0x7f];
        assert_eq!(read(&large, 0, 5), Err(Http2Error::IntegerTooLarge));
        let zeros = [0x1f, 0x80, 0x80, 0x80, 0x80, 0];
        assert_eq!(read(&zeros, 0, 5), Ok((31, 6)));
    }

    proptest! {
        #[test]
        fn written_integers_are_read_back(number in 0..=INTEGER_MAX, bits in 1..=8_u32) {
            let mut out = Vec::new();
            write(number as usize, bits, 0, &mut out);
            prop_assert_eq!(read(&out, 0, bits), Ok((number, out.len())));
        }
    }
}
