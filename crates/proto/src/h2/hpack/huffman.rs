//! The Huffman code of HPACK. RFC 7541 §5.2 and Appendix B.
//!
//! The code is canonical: the lengths of its codes define it. From these lengths, a table that maps
//! the next ten bits to a symbol is built at compile time; it covers all ordinary text. Longer
//! codes are found by the range of codes of each length.

use crate::h2::Http2Error;

/// The number of bits that index the lookup table.
const LOOKUP_BITS: u32 = 10;
/// The longest code, in bits.
const CODE_BITS_MAX: usize = 30;

/// Appends the decoded bytes of `code`.
///
/// The output is at most 8/5 as long as the input, so the limit on blocks bounds it.
// RFC 7541 §5.2: padding is shorter than 8 bits and consists of the first bits of EOS, which are
// ones; a string that contains EOS is a decoding error.
pub(super) fn decode(code: &[u8], out: &mut Vec<u8>) -> Result<(), Http2Error> {
    out.reserve(code.len() * 8 / 5);
    // The unread bits, from the highest down; all below them are ones.
    let (mut bits, mut count) = (u64::MAX, 0_u32);
    let mut input = code;
    loop {
        if count < 32 {
            (bits, count, input) = refill(bits, count, input);
        }
        let entry = LOOKUP[(bits >> (64 - LOOKUP_BITS)) as usize];
        let (symbol, length) = if entry.length == 0 {
            find_long_code(bits)
        } else {
            (entry.symbol, u32::from(entry.length))
        };
        if length > count {
            // Padding: fewer than eight bits remain, and all are ones.
            let is_padding = count < 8 && bits == u64::MAX;
            return if is_padding { Ok(()) } else { Err(Http2Error::HuffmanInvalid) };
        }
        if length == EOS_LENGTH {
            return Err(Http2Error::HuffmanInvalid);
        }
        out.push(symbol);
        bits = bits << length | ((1 << length) - 1);
        count -= length;
    }
}

/// Adds as many whole bytes after the unread bits as are available and fit.
#[inline]
fn refill(bits: u64, count: u32, input: &[u8]) -> (u64, u32, &[u8]) {
    if let Some((chunk, input)) = input.split_first_chunk::<4>() {
        let word = u64::from(u32::from_be_bytes(*chunk));
        let shift = 32 - count;
        let unread = bits & !(0xffff_ffff << shift);
        return (unread | word << shift, count + 32, input);
    }
    let (mut bits, mut count) = (bits, count);
    for byte in input {
        let shift = 56 - count;
        bits = bits & !(0xff << shift) | u64::from(*byte) << shift;
        count += 8;
    }
    (bits, count, &[])
}

/// The symbol of a code of more than ten bits, and its length.
#[cold]
fn find_long_code(bits: u64) -> (u8, u32) {
    for (length, range) in CODES.iter().enumerate().skip(LOOKUP_BITS as usize + 1) {
        #[expect(clippy::cast_possible_truncation, reason = "at most 30 bits remain")]
        let code = (bits >> (64 - length)) as u32;
        let (first, count, offset) = *range;
        if code.wrapping_sub(first) < count {
            let at = usize::from(offset) + (code - first) as usize;
            #[expect(
                clippy::cast_possible_truncation,
                reason = "all symbols except EOS are bytes"
            )]
            return match SYMBOLS[at] {
                EOS => (0, EOS_LENGTH),
                symbol => (symbol as u8, length as u32),
            };
        }
    }
    (0, EOS_LENGTH)
}

/// The symbol that ends a string, which is never sent.
const EOS: u16 = 256;
/// A length that no code has, which marks EOS: the input must not contain it.
const EOS_LENGTH: u32 = 31;

#[derive(Clone, Copy)]
struct Entry {
    symbol: u8,
    /// 0 for a code of more than ten bits.
    length: u8,
}

/// For each length: the first code, the number of codes, and where their symbols begin.
static CODES: [(u32, u32, u16); CODE_BITS_MAX + 1] = {
    let mut codes = [(0, 0, 0); CODE_BITS_MAX + 1];
    let (mut code, mut offset, mut length) = (0_u32, 0_u16, 1);
    while length <= CODE_BITS_MAX {
        code <<= 1;
        let (mut count, mut symbol) = (0, 0);
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] as usize == length {
                count += 1;
            }
            symbol += 1;
        }
        codes[length] = (code, count, offset);
        code += count;
        offset += count as u16;
        length += 1;
    }
    assert!(code == 1 << CODE_BITS_MAX, "the code is complete");
    codes
};

/// All symbols in the order of their codes.
static SYMBOLS: [u16; LENGTHS.len()] = {
    let mut symbols = [0; LENGTHS.len()];
    let (mut at, mut length) = (0, 1);
    while length <= CODE_BITS_MAX {
        let mut symbol = 0;
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] as usize == length {
                symbols[at] = symbol as u16;
                at += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    symbols
};

static LOOKUP: [Entry; 1 << LOOKUP_BITS] = {
    let mut lookup = [Entry { symbol: 0, length: 0 }; 1 << LOOKUP_BITS];
    let mut length = 1;
    while length <= LOOKUP_BITS as usize {
        let (first, count, offset) = CODES[length];
        let mut at = 0;
        while at < count {
            let spread = 1_usize << (LOOKUP_BITS as usize - length);
            let start = (first + at) as usize * spread;
            let mut slot = 0;
            while slot < spread {
                let symbol = SYMBOLS[offset as usize + at as usize] as u8;
                lookup[start + slot] = Entry { symbol, length: length as u8 };
                slot += 1;
            }
            at += 1;
        }
        length += 1;
    }
    lookup
};

/// RFC 7541 Appendix B: the length of each symbol's code in bits, the last one that of EOS.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

#[cfg(test)]
mod tests {
    use super::{CODES, LENGTHS, SYMBOLS, decode};
    use crate::h2::Http2Error;
    use proptest::prelude::*;

    /// The code of each symbol, bit by bit.
    fn encode(text: &[u8]) -> Vec<u8> {
        let mut bits = Vec::new();
        for symbol in text {
            let length = usize::from(LENGTHS[usize::from(*symbol)]);
            let (first, _, offset) = CODES[length];
            let at = SYMBOLS.iter().position(|other| *other == u16::from(*symbol)).unwrap();
            let code = first as usize + at - usize::from(offset);
            bits.extend((0..length).rev().map(|bit| code >> bit & 1 == 1));
        }
        while bits.len() % 8 != 0 {
            bits.push(true);
        }
        let byte = |bits: &[bool]| bits.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
        bits.chunks(8).map(byte).collect()
    }

    fn decoded(code: &[u8]) -> Result<Vec<u8>, Http2Error> {
        let mut out = Vec::new();
        decode(code, &mut out).map(|()| out)
    }

    // RFC 7541 C.4.1, C.6.1.
    #[test]
    fn decodes_the_examples_of_rfc_7541() {
        let host = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        assert_eq!(decoded(&host).unwrap(), b"www.example.com");
        assert_eq!(encode(b"www.example.com"), host);
        assert_eq!(decoded(&[0x64, 0x02]).unwrap(), b"302");
        assert_eq!(decoded(&[]).unwrap(), b"");
    }

    #[test]
    fn rejects_invalid_padding_and_eos() {
        for code in [&[0xff][..], &[0x00], &[0xf1, 0xff, 0xff], &[0xff; 4], &[0xff; 8]] {
            assert_eq!(decoded(code), Err(Http2Error::HuffmanInvalid), "{code:?}");
        }
        // 'a' is 00011, and padding has ones.
        assert_eq!(decoded(&[0b0001_1111]).unwrap(), b"a");
        for padding in 0..7 {
            assert_eq!(decoded(&[0b0001_1000 | padding]), Err(Http2Error::HuffmanInvalid));
        }
    }

    #[test]
    fn decodes_every_byte_alone_and_between_others() {
        for byte in 0..=255 {
            assert_eq!(decoded(&encode(&[byte])).unwrap(), [byte]);
            let text = [b'a', byte, b'~', byte, byte, 0, b'z'];
            assert_eq!(decoded(&encode(&text)).unwrap(), text);
        }
    }

    proptest! {
        #[test]
        fn encoded_text_decodes_to_itself(
            text in proptest::collection::vec(prop_oneof![0x20..0x7f_u8, any::<u8>()], 0..80),
        ) {
            prop_assert_eq!(decoded(&encode(&text)).unwrap(), text);
        }

        #[test]
        fn decoded_text_encodes_to_the_same_code(
            code in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            if let Ok(text) = decoded(&code) {
                prop_assert_eq!(encode(&text), code);
            }
        }
    }
}
