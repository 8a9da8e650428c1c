//! Flushes a DEFLATE compressor, for responses and WebSocket messages.

use flate2::{Compress, CompressError, FlushCompress};

/// The minimum by which the buffer grows when the output exceeds the first estimate.
const GROWTH_BYTES: usize = 4 * 1024;

/// Compresses `input`, and appends to `out` everything that the compressor still holds, so that a
/// reader of `out` can decompress everything up to this point. The output ends with 00 00 FF FF.
///
/// # Errors
///
/// The compressor failed.
pub fn flush(
    compress: &mut Compress,
    mut input: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), CompressError> {
    // The output of short input never exceeds this. Longer input usually shrinks to less than half.
    out.reserve(input.len() / 2 + input.len().min(2048) + 64);
    loop {
        take_pending_output(compress, out)?;
        let consumed_before = compress.total_in();
        compress.compress_vec(input, out, FlushCompress::Sync)?;
        let consumed = usize::try_from(compress.total_in() - consumed_before).unwrap_or(usize::MAX);
        input = input.get(consumed..).unwrap_or_default();
        // The compressor had no pending output before this call. If the call left spare capacity,
        // the flush is complete.
        if input.is_empty() && out.len() < out.capacity() {
            return Ok(());
        }
        // If the call filled the buffer, the flush may or may not be complete. A trailing
        // 00 00 FF FF proves nothing, because content may also end with it. If the flush was
        // complete, the next call adds an empty block of five bytes.
        out.reserve((input.len() / 2).max(GROWTH_BYTES));
    }
}

/// Appends output that an earlier call produced and that did not fit. In its next call, miniz_oxide
/// only writes that output, whether or not the call requests a flush, so [`flush`] could mistake
/// that call for a complete flush.
fn take_pending_output(compress: &mut Compress, out: &mut Vec<u8>) -> Result<(), CompressError> {
    loop {
        let before = compress.total_out();
        compress.compress_vec(&[], out, FlushCompress::None)?;
        if compress.total_out() == before {
            return Ok(());
        }
        out.reserve(GROWTH_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, Decompress, FlushDecompress};

    struct Random(u64);

    impl Random {
        fn next(&mut self) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 20) as usize
        }

        /// Content of one of several kinds that compressors treat differently.
        fn content(&mut self, kind: usize, bytes: usize) -> Vec<u8> {
            const BASE64: &[u8] =
                b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
            let mut content = Vec::with_capacity(bytes + 16);
            while content.len() < bytes {
                match kind % 5 {
                    0 => content.push(self.next() as u8),
                    1 => content.push(BASE64[self.next() % 64]),
                    2 => content.extend_from_slice(format!("{},", self.next()).as_bytes()),
                    3 => content.extend_from_slice(b"the same text "),
                    // Stored blocks that end as a flush does.
                    _ => content.extend([self.next() as u8, 0, 0, 0xff, 0xff]),
                }
            }
            content.truncate(bytes);
            content
        }
    }

    /// Decompresses `compressed` in one step.
    fn inflate_all(inflate: &mut Decompress, compressed: &[u8], bytes: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes + 1024);
        let before = inflate.total_in();
        inflate
            .decompress_vec(compressed, &mut out, FlushDecompress::Sync)
            .expect("the input is valid DEFLATE");
        assert_eq!(inflate.total_in() - before, compressed.len() as u64);
        out
    }

    #[test]
    fn a_flush_is_complete_for_every_size_level_and_kind_of_content() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for round in 0..300_u32 {
            let (level, kind) = (round % 10, round as usize / 10);
            let bytes = match random.next() % 4 {
                0 => random.next() % 300,
                1 => random.next() % 5_000,
                2 => 20_000 + random.next() % 50_000,
                // A block ends after 31 KiB of content that does not compress.
                _ => 31 * 1024 * (1 + random.next() % 3) + random.next() % 2_048,
            };
            let mut compress = Compress::new(Compression::new(level), false);
            let mut inflate = Decompress::new(false);
            // The second message may refer to the first one.
            for message in 0..2 {
                let content = random.content(kind, bytes);
                let mut out = Vec::with_capacity(random.next() % (bytes + 100));
                flush(&mut compress, &content, &mut out).expect("compression");
                assert!(out.ends_with(&[0, 0, 0xff, 0xff]));
                let decompressed = inflate_all(&mut inflate, &out, bytes);
                let lengths = (decompressed.len(), content.len());
                assert!(
                    decompressed == content,
                    "{round}, message {message}, level {level}: {lengths:?}"
                );
            }
        }
    }

    #[test]
    fn a_flush_is_complete_for_sizes_around_the_end_of_a_block() {
        let mut random = Random(1);
        let content = random.content(0, 40_000);
        let (mut in_one_step, mut in_chunks) = (Vec::with_capacity(64 * 1024), Vec::new());
        for level in [1, 5, 9] {
            let mut compress = Compress::new(Compression::new(level), false);
            // miniz_oxide ends a block of such content after 31 KiB, while it looks ahead.
            for bytes in (31_700..36_000).step_by(41).chain(31_730..31_770) {
                // In one step, and as responses are compressed: chunks without a flush, then a
                // flush.
                compress.reset();
                flush(&mut compress, &content[..bytes], &mut in_one_step).expect("compression");
                compress.reset();
                let mut written = 0;
                while written < bytes {
                    in_chunks.reserve(4_096);
                    let chunk = &content[written..bytes];
                    compress
                        .compress_vec(chunk, &mut in_chunks, FlushCompress::None)
                        .expect("compression");
                    written = usize::try_from(compress.total_in()).expect("the input was a slice");
                }
                flush(&mut compress, &[], &mut in_chunks).expect("compression");
                for out in [&mut in_one_step, &mut in_chunks] {
                    let decompressed = inflate_all(&mut Decompress::new(false), out, bytes);
                    assert!(
                        decompressed == content[..bytes],
                        "level {level}: {} of {bytes}",
                        decompressed.len()
                    );
                    out.clear();
                    out.shrink_to(bytes / 2);
                }
            }
        }
    }
}
