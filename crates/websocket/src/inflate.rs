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
    /// The position in the window to which the next byte is written.
    end: usize,
    /// Whether the complete window was written since the last reset.
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

    /// Decompresses `input` and appends at most `out_bytes_max` bytes to `out`. Returns how many
    /// bytes of `input` were consumed: all of them, unless `out_bytes_max` was reached.
    pub(crate) fn inflate(
        &mut self,
        input: &[u8],
        out_bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<usize, InflateError> {
        let (mut consumed, mut produced) = (0, 0);
        loop {
            if self.end == WINDOW_BYTES {
                self.end = 0;
                self.is_full = true;
            }
            // Until the window is full, it does not wrap, so a distance cannot reach beyond its
            // start.
            let wrapping = if self.is_full { 0 } else { TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF };
            let flags = TINFL_FLAG_HAS_MORE_INPUT | TINFL_FLAG_IGNORE_ADLER32 | wrapping;
            let (status, read, written) = decompress_with_limit(
                &mut self.state,
                &input[consumed..],
                &mut self.window,
                self.end,
                out_bytes_max - produced,
                flags,
            );
            out.extend_from_slice(&self.window[self.end..self.end + written]);
            self.end += written;
            produced += written;
            consumed += read;
            match status {
                TINFLStatus::NeedsMoreInput => return Ok(consumed),
                TINFLStatus::HasMoreOutput if produced == out_bytes_max => return Ok(consumed),
                TINFLStatus::HasMoreOutput => {}
                // RFC 7692 §7.2.3.4: a block with BFINAL may be followed by other blocks, which may
                // refer to it.
                TINFLStatus::Done => {
                    self.state.init();
                    if consumed == input.len() {
                        return Ok(consumed);
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
    struct BitWriter {
        bytes: Vec<u8>,
        count: usize,
    }

    impl BitWriter {
        /// RFC 1951 §3.1.1: values are written with the least significant bit first.
        fn write_value(&mut self, value: usize, bits: usize) {
            for bit in 0..bits {
                if self.count.is_multiple_of(8) {
                    self.bytes.push(0);
                }
                *self.bytes.last_mut().expect("a byte was pushed if there was none") |=
                    ((value >> bit & 1) as u8) << (self.count % 8);
                self.count += 1;
            }
        }

        /// RFC 1951 §3.1.1: Huffman codes are written with the most significant bit first.
        fn write_code(&mut self, code: usize, bits: usize) {
            (0..bits).rev().for_each(|bit| self.write_value(code >> bit & 1, 1));
        }

        /// Writes a block of fixed codes: `text`, and three bytes copied from `distance` back.
        fn write_block(&mut self, is_last: bool, text: &str, distance: Option<usize>) {
            self.write_value(is_last.into(), 1);
            self.write_value(1, 2);
            text.bytes().for_each(|byte| self.write_code(0x30 + usize::from(byte), 8));
            if let Some(distance) = distance {
                self.write_code(1, 7);
                // RFC 1951 §3.2.5: two codes for each number of extra bits, except four for zero
                // bits.
                let (mut code, mut base) = (0, 1);
                let extra = |code: usize| (code / 2).saturating_sub(1);
                while distance >= base + (1 << extra(code)) {
                    base += 1 << extra(code);
                    code += 1;
                }
                self.write_code(code, 5);
                self.write_value(distance - base, extra(code));
            }
            self.write_code(0, 7);
            // The next block starts at a byte boundary.
            if is_last {
                self.count = self.bytes.len() * 8;
            }
        }

        /// Ends like a flushed message whose last four bytes were removed.
        fn finish_message(mut self) -> Vec<u8> {
            self.write_value(0, 3);
            self.bytes.extend([0, 0, 0xff, 0xff]);
            self.bytes
        }
    }

    fn build_message(text: &str, distance: Option<usize>) -> Vec<u8> {
        let mut writer = BitWriter::default();
        writer.write_block(false, text, distance);
        writer.finish_message()
    }

    fn inflate_all(
        inflater: &mut Inflater,
        message: &[u8],
        chunk_bytes_max: usize,
        out_bytes_max: usize,
    ) -> Result<Vec<u8>, InflateError> {
        let mut content = Vec::new();
        for chunk in message.chunks(chunk_bytes_max) {
            let mut consumed = 0;
            loop {
                let length_before = content.len();
                consumed += inflater.inflate(&chunk[consumed..], out_bytes_max, &mut content)?;
                assert!(content.len() <= length_before + out_bytes_max);
                if content.len() < length_before + out_bytes_max {
                    assert_eq!(
                        consumed,
                        chunk.len(),
                        "all input is consumed unless the output limit is reached"
                    );
                    break;
                }
            }
        }
        Ok(content)
    }

    /// Stored blocks of `content_bytes` bytes in total, in which neighbouring positions have
    /// different values.
    fn stored_blocks(content_bytes: usize) -> (Vec<u8>, Vec<u8>) {
        let content: Vec<u8> =
            (0..content_bytes).map(|index| (index * index / 7) as u8 | 1).collect();
        let mut deflated = Vec::new();
        for block in content.chunks(50_000) {
            let length = u16::try_from(block.len()).expect("50,000 bytes");
            deflated.push(0);
            deflated.extend(length.to_le_bytes());
            deflated.extend((!length).to_le_bytes());
            deflated.extend(block);
        }
        (content, deflated)
    }

    #[test]
    fn a_reference_may_reach_the_first_byte_but_not_beyond() {
        let window = 32 * 1024;
        for before in [0, 1, 2, 3, 100, window - 2, window - 1, window, window + 1, 90_000] {
            let (content, prefix) = stored_blocks(before);
            for distance in [1, 2, 3, 4, 5, 99, 100, 101, before, before + 1, window - 1, window] {
                if distance == 0 || distance > window {
                    continue;
                }
                let deflated = [prefix.clone(), build_message("", Some(distance))].concat();
                let mut expected = content.clone();
                let expected_result = (distance <= before).then(|| {
                    (0..3).for_each(|_| expected.push(expected[expected.len() - distance]));
                    expected
                });
                for (chunk_bytes_max, out_bytes_max) in
                    [(deflated.len(), 200_000), (7, 3), (1, 1_000), (deflated.len(), 258)]
                {
                    let inflated = inflate_all(
                        &mut Inflater::new(),
                        &deflated,
                        chunk_bytes_max,
                        out_bytes_max,
                    )
                    .ok();
                    assert!(
                        inflated == expected_result,
                        "{before} bytes, {distance} back, {chunk_bytes_max}, {out_bytes_max}"
                    );
                }
            }
        }
    }

    #[test]
    fn rejects_a_reference_beyond_a_reset() {
        let mut inflater = Inflater::new();
        let mut read = |message: &[u8], reset_after| {
            let result = inflate_all(&mut inflater, message, 5, 1_000);
            if reset_after {
                inflater.reset();
            }
            result
        };
        assert_eq!(read(&build_message("secret", None), false), Ok(b"secret".to_vec()));
        assert_eq!(read(&build_message("", Some(6)), true), Ok(b"sec".to_vec()));
        assert_eq!(read(&build_message("", Some(6)), true), Err(InflateError));
        assert_eq!(read(&build_message("ab", Some(3)), true), Err(InflateError));
        assert_eq!(read(&build_message("abc", Some(3)), true), Ok(b"abcabc".to_vec()));
        // The same after enough bytes to wrap the window.
        assert!(read(&stored_blocks(100_000).1, true).is_ok());
        for distance in [1, 3, 32_768] {
            assert_eq!(read(&build_message("", Some(distance)), true), Err(InflateError));
        }
    }

    // RFC 7692 §7.2.3.4: blocks after one with BFINAL use the same window.
    #[test]
    fn blocks_after_a_final_block_use_the_same_window() {
        let mut writer = BitWriter::default();
        writer.write_block(true, "abc", None);
        writer.write_block(false, "d", Some(4));
        writer.write_block(true, "", Some(1));
        let message = writer.finish_message();
        for (chunk_bytes_max, out_bytes_max) in [(100, 100), (1, 1), (2, 5), (3, 100)] {
            let mut inflater = Inflater::new();
            let expected = Ok(b"abcdabcccc".to_vec());
            assert_eq!(
                inflate_all(&mut inflater, &message, chunk_bytes_max, out_bytes_max),
                expected
            );
            // A kept window includes them.
            assert_eq!(
                inflate_all(&mut inflater, &build_message("", Some(10)), 1, 1),
                Ok(b"abc".to_vec())
            );
            assert_eq!(
                inflate_all(&mut inflater, &build_message("", Some(14)), 1, 1),
                Err(InflateError)
            );
        }
    }
}
