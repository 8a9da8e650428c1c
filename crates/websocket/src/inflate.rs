//! Decompresses messages and rejects references outside the window.

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::{
    TINFL_FLAG_HAS_MORE_INPUT, TINFL_FLAG_IGNORE_ADLER32, TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF,
};
use miniz_oxide::inflate::core::{DecompressorOxide, decompress_with_limit};
use peregrine_proto::ws::InflateError;

/// The longest distance that a DEFLATE reference can reach back.
const WINDOW_BYTES: usize = 32 * 1024;

/// A decompressor of raw DEFLATE.
///
/// flate2's decompressor on miniz_oxide accepts every distance up to the window size and yields NUL
/// bytes for a reference before the first byte. This one rejects it, as zlib does.
pub(crate) struct Inflater {
    state: Box<DecompressorOxide>,
    window: Box<[u8]>,
    /// Position of the next byte in the window.
    end: usize,
    /// The whole window was written since the last reset.
    is_full: bool,
}

impl Inflater {
    pub(crate) fn new() -> Self {
        let window = vec![0; WINDOW_BYTES].into_boxed_slice();
        Self { state: Box::default(), window, end: 0, is_full: false }
    }

    /// Resets the window. Later messages must not refer to earlier ones.
    pub(crate) fn reset(&mut self) {
        self.state.init();
        self.end = 0;
        self.is_full = false;
    }

    /// Decompresses `input` and appends at most `room` bytes to `out`. Returns how many bytes of
    /// `input` were consumed: all of them, unless `room` was filled.
    pub(crate) fn inflate(
        &mut self,
        input: &[u8],
        room: usize,
        out: &mut Vec<u8>,
    ) -> Result<usize, InflateError> {
        let (mut used, mut made) = (0, 0);
        loop {
            if self.end == WINDOW_BYTES {
                self.end = 0;
                self.is_full = true;
            }
            // Until the window is full it does not wrap, so a distance cannot reach beyond its
            // start.
            let wrapping = if self.is_full { 0 } else { TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF };
            let flags = TINFL_FLAG_HAS_MORE_INPUT | TINFL_FLAG_IGNORE_ADLER32 | wrapping;
            let (status, read, written) = decompress_with_limit(
                &mut self.state,
                &input[used..],
                &mut self.window,
                self.end,
                room - made,
                flags,
            );
            out.extend_from_slice(&self.window[self.end..self.end + written]);
            self.end += written;
            made += written;
            used += read;
            match status {
                TINFLStatus::NeedsMoreInput => return Ok(used),
                TINFLStatus::HasMoreOutput if made == room => return Ok(used),
                TINFLStatus::HasMoreOutput => {}
                // RFC 7692 §7.2.3.4: a block with BFINAL may be followed by other blocks, which may
                // refer to it.
                TINFLStatus::Done => {
                    self.state.init();
                    if used == input.len() {
                        return Ok(used);
                    }
                }
                _ => return Err(InflateError),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes raw DEFLATE bit by bit.
    #[derive(Default)]
    struct Bits {
        bytes: Vec<u8>,
        count: usize,
    }

    impl Bits {
        /// RFC 1951 §3.1.1: values are written with the least significant bit first.
        fn value(&mut self, value: usize, bits: usize) {
            for bit in 0..bits {
                if self.count.is_multiple_of(8) {
                    self.bytes.push(0);
                }
                *self.bytes.last_mut().expect("a byte") |=
                    ((value >> bit & 1) as u8) << (self.count % 8);
                self.count += 1;
            }
        }

        /// RFC 1951 §3.1.1: Huffman codes are written with the most significant bit first.
        fn code(&mut self, code: usize, bits: usize) {
            (0..bits).rev().for_each(|bit| self.value(code >> bit & 1, 1));
        }

        /// A block of fixed codes: `text`, and three bytes copied from `distance` back.
        fn block(&mut self, is_last: bool, text: &str, distance: Option<usize>) {
            self.value(is_last.into(), 1);
            self.value(1, 2);
            text.bytes().for_each(|byte| self.code(0x30 + usize::from(byte), 8));
            if let Some(distance) = distance {
                self.code(1, 7);
                // RFC 1951 §3.2.5: two codes for each number of extra bits, except four for zero
                // bits.
                let (mut code, mut base) = (0, 1);
                let extra = |code: usize| (code / 2).saturating_sub(1);
                while distance >= base + (1 << extra(code)) {
                    base += 1 << extra(code);
                    code += 1;
                }
                self.code(code, 5);
                self.value(distance - base, extra(code));
            }
            self.code(0, 7);
            // The next block starts at a byte boundary.
            if is_last {
                self.count = self.bytes.len() * 8;
            }
        }

        /// Ends like a flushed message whose last four bytes were removed.
        fn message(mut self) -> Vec<u8> {
            self.value(0, 3);
            self.bytes.extend([0, 0, 0xff, 0xff]);
            self.bytes
        }
    }

    fn message(text: &str, distance: Option<usize>) -> Vec<u8> {
        let mut bits = Bits::default();
        bits.block(false, text, distance);
        bits.message()
    }

    fn inflated(
        inflater: &mut Inflater,
        message: &[u8],
        pieces: usize,
        room: usize,
    ) -> Result<Vec<u8>, InflateError> {
        let mut content = Vec::new();
        for piece in message.chunks(pieces) {
            let mut used = 0;
            loop {
                let before = content.len();
                used += inflater.inflate(&piece[used..], room, &mut content)?;
                assert!(content.len() <= before + room);
                if content.len() < before + room {
                    assert_eq!(used, piece.len(), "all input is consumed unless room is filled");
                    break;
                }
            }
        }
        Ok(content)
    }

    /// Stored blocks of `bytes` bytes in total, in which neighbouring positions have different
    /// values.
    fn stored(bytes: usize) -> (Vec<u8>, Vec<u8>) {
        let content: Vec<u8> = (0..bytes).map(|at| (at * at / 7) as u8 | 1).collect();
        let mut packed = Vec::new();
        for block in content.chunks(50_000) {
            let length = u16::try_from(block.len()).expect("50,000 bytes");
            packed.push(0);
            packed.extend(length.to_le_bytes());
            packed.extend((!length).to_le_bytes());
            packed.extend(block);
        }
        (content, packed)
    }

    #[test]
    fn a_reference_reaches_to_the_first_byte_and_no_further() {
        let whole = 32 * 1024;
        for before in [0, 1, 2, 3, 100, whole - 2, whole - 1, whole, whole + 1, 90_000] {
            let (content, start) = stored(before);
            for distance in [1, 2, 3, 4, 5, 99, 100, 101, before, before + 1, whole - 1, whole] {
                if distance == 0 || distance > whole {
                    continue;
                }
                let all = [start.clone(), message("", Some(distance))].concat();
                let mut expected = content.clone();
                let result = (distance <= before).then(|| {
                    (0..3).for_each(|_| expected.push(expected[expected.len() - distance]));
                    expected
                });
                for (pieces, room) in [(all.len(), 200_000), (7, 3), (1, 1_000), (all.len(), 258)] {
                    let read = inflated(&mut Inflater::new(), &all, pieces, room).ok();
                    assert!(read == result, "{before} bytes, {distance} back, {pieces}, {room}");
                }
            }
        }
    }

    #[test]
    fn nothing_refers_to_what_came_before_a_reset() {
        let mut inflater = Inflater::new();
        let mut read = |message: &[u8], resets| {
            let result = inflated(&mut inflater, message, 5, 1_000);
            if resets {
                inflater.reset();
            }
            result
        };
        assert_eq!(read(&message("secret", None), false), Ok(b"secret".to_vec()));
        assert_eq!(read(&message("", Some(6)), true), Ok(b"sec".to_vec()));
        assert_eq!(read(&message("", Some(6)), true), Err(InflateError));
        assert_eq!(read(&message("ab", Some(3)), true), Err(InflateError));
        assert_eq!(read(&message("abc", Some(3)), true), Ok(b"abcabc".to_vec()));
        // The same after enough bytes to wrap the window.
        assert!(read(&stored(100_000).1, true).is_ok());
        for distance in [1, 3, 32_768] {
            assert_eq!(read(&message("", Some(distance)), true), Err(InflateError));
        }
    }

    // RFC 7692 §7.2.3.4: blocks after one with BFINAL use the same window.
    #[test]
    fn a_last_block_ends_neither_the_message_nor_the_window() {
        let mut bits = Bits::default();
        bits.block(true, "abc", None);
        bits.block(false, "d", Some(4));
        bits.block(true, "", Some(1));
        let message = bits.message();
        for (pieces, room) in [(100, 100), (1, 1), (2, 5), (3, 100)] {
            let mut inflater = Inflater::new();
            let expected = Ok(b"abcdabcccc".to_vec());
            assert_eq!(inflated(&mut inflater, &message, pieces, room), expected);
            // A kept window includes them.
            assert_eq!(
                inflated(&mut inflater, &self::message("", Some(10)), 1, 1),
                Ok(b"abc".to_vec())
            );
            assert_eq!(
                inflated(&mut inflater, &self::message("", Some(14)), 1, 1),
                Err(InflateError)
            );
        }
    }
}
