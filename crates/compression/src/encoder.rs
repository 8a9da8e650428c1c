//! Encoders for all codings.

use crate::coding::ContentCoding;
use crate::compression::CompressionLevel;
use std::io;

/// An encoder for one body.
pub(crate) enum Encoder {
    #[cfg(any(feature = "gzip", feature = "deflate"))]
    Deflate(deflate::Deflater),
    #[cfg(feature = "br")]
    Br(Box<br::Compressor>),
    #[cfg(feature = "zstd")]
    Zstd(zstandard::Compressor),
}

impl Encoder {
    /// Creates an encoder for `length` bytes, if known.
    pub(crate) fn new(
        coding: ContentCoding,
        level: CompressionLevel,
        length: Option<u64>,
    ) -> io::Result<Self> {
        #[cfg(not(any(feature = "br", feature = "zstd")))]
        let _ = length;
        Ok(match coding {
            #[cfg(feature = "gzip")]
            ContentCoding::Gzip => {
                Self::Deflate(deflate::Deflater::new(deflate::Container::Gzip, level))
            }
            #[cfg(feature = "deflate")]
            ContentCoding::Deflate => {
                Self::Deflate(deflate::Deflater::new(deflate::Container::Zlib, level))
            }
            #[cfg(feature = "br")]
            ContentCoding::Br => Self::Br(Box::new(br::Compressor::new(level, length))),
            #[cfg(feature = "zstd")]
            ContentCoding::Zstd => Self::Zstd(zstandard::Compressor::new(level, length)?),
        })
    }

    /// Approximate memory use, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            #[cfg(any(feature = "gzip", feature = "deflate"))]
            Self::Deflate(_) => deflate::MEMORY_BYTES,
            #[cfg(feature = "br")]
            Self::Br(compressor) => compressor.memory_bytes,
            #[cfg(feature = "zstd")]
            Self::Zstd(compressor) => compressor.memory_bytes,
        }
    }

    /// Compresses `input`, and appends finished output to `out`.
    pub(crate) fn write(&mut self, input: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        match self {
            #[cfg(any(feature = "gzip", feature = "deflate"))]
            Self::Deflate(deflater) => deflater.write(input, out),
            #[cfg(feature = "br")]
            Self::Br(compressor) => compressor.write(input, out),
            #[cfg(feature = "zstd")]
            Self::Zstd(compressor) => compressor.write(input, out),
        }
    }

    /// Appends all pending output to `out`, so that the client can decode everything written so
    /// far.
    pub(crate) fn flush(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        match self {
            #[cfg(any(feature = "gzip", feature = "deflate"))]
            Self::Deflate(deflater) => deflater.flush(out),
            #[cfg(feature = "br")]
            Self::Br(compressor) => compressor.flush(out),
            #[cfg(feature = "zstd")]
            Self::Zstd(compressor) => compressor.flush(out),
        }
    }

    /// Appends the end of the encoded body to `out`.
    pub(crate) fn finish(self, out: &mut Vec<u8>) -> io::Result<()> {
        match self {
            #[cfg(any(feature = "gzip", feature = "deflate"))]
            Self::Deflate(deflater) => deflater.finish(out),
            #[cfg(feature = "br")]
            Self::Br(compressor) => compressor.finish(out),
            #[cfg(feature = "zstd")]
            Self::Zstd(compressor) => compressor.finish(out),
        }
    }
}

#[cfg(any(feature = "gzip", feature = "deflate"))]
mod deflate {
    use super::CompressionLevel;
    use flate2::{Compress, Compression, Crc, FlushCompress, Status};
    use peregrine_web::deflate::flush;
    use std::cell::RefCell;
    use std::io;

    /// The memory of the window, the tables and the pending output.
    pub(super) const MEMORY_BYTES: usize = 320 * 1024;

    /// How many idle compressors a thread keeps for reuse: creating one costs more than compressing
    /// a small response.
    const POOL_MAX: usize = 2;

    /// The size of the steps in which output space is reserved.
    const STEP: usize = 4 * 1024;

    thread_local! {
        static POOL: RefCell<Vec<(CompressionLevel, Container, Compress)>> = const { RefCell::new(Vec::new()) };
    }

    /// The container format.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(super) enum Container {
        #[cfg(feature = "gzip")]
        Gzip,
        #[cfg(feature = "deflate")]
        Zlib,
    }

    pub(crate) struct Deflater {
        /// `None` once the compressor has been returned to the pool.
        compress: Option<Compress>,
        level: CompressionLevel,
        container: Container,
        /// The checksum of the content.
        crc: Crc,
        header_written: bool,
    }

    impl Deflater {
        pub(super) fn new(container: Container, level: CompressionLevel) -> Self {
            let has_header = match container {
                #[cfg(feature = "gzip")]
                Container::Gzip => false,
                #[cfg(feature = "deflate")]
                Container::Zlib => true,
            };
            let compress = take_pooled(level, container)
                .unwrap_or_else(|| Compress::new(flate2_level(level), has_header));
            Self {
                compress: Some(compress),
                level,
                container,
                crc: Crc::new(),
                header_written: false,
            }
        }

        /// Returns the compressor, after writing the header on first use.
        #[cfg_attr(not(feature = "gzip"), expect(unused_variables, reason = "no other header"))]
        fn compressor(&mut self, out: &mut Vec<u8>) -> &mut Compress {
            #[cfg(feature = "gzip")]
            if !self.header_written && self.container == Container::Gzip {
                // RFC 1952 §2.3: magic, DEFLATE, no flags, no time, no extra flags, an unknown
                // system.
                out.extend_from_slice(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255]);
            }
            self.header_written = true;
            self.compress.as_mut().expect("the compressor is taken only on drop")
        }

        pub(super) fn write(&mut self, mut input: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
            if input.is_empty() {
                return Ok(());
            }
            self.crc.update(input);
            let compress = self.compressor(out);
            while !input.is_empty() {
                out.reserve(STEP);
                let before = compress.total_in();
                compress.compress_vec(input, out, FlushCompress::None).map_err(io::Error::other)?;
                let consumed = usize::try_from(compress.total_in() - before).unwrap_or(usize::MAX);
                input = input.get(consumed..).unwrap_or_default();
            }
            Ok(())
        }

        pub(super) fn flush(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
            flush(self.compressor(out), &[], out).map_err(io::Error::other)
        }

        pub(super) fn finish(mut self, out: &mut Vec<u8>) -> io::Result<()> {
            let compress = self.compressor(out);
            loop {
                out.reserve(STEP);
                let status = compress.compress_vec(&[], out, FlushCompress::Finish);
                if status.map_err(io::Error::other)? == Status::StreamEnd {
                    break;
                }
            }
            #[cfg(feature = "gzip")]
            if self.container == Container::Gzip {
                // RFC 1952 §2.3.1: the checksum, and the length modulo 2^32.
                out.extend_from_slice(&self.crc.sum().to_le_bytes());
                out.extend_from_slice(&self.crc.amount().to_le_bytes());
            }
            Ok(())
        }
    }

    impl Drop for Deflater {
        fn drop(&mut self) {
            let Some(mut compress) = self.compress.take() else { return };
            // The pool no longer exists while the thread exits.
            let _ = POOL.try_with(|pool| {
                let mut pool = pool.borrow_mut();
                if pool.len() < POOL_MAX {
                    compress.reset();
                    pool.push((self.level, self.container, compress));
                }
            });
        }
    }

    fn take_pooled(level: CompressionLevel, container: Container) -> Option<Compress> {
        POOL.with(|pool| {
            let mut pool = pool.borrow_mut();
            let fits =
                |(pooled_level, pooled_container, _): &(CompressionLevel, Container, Compress)| {
                    *pooled_level == level && *pooled_container == container
                };
            let index = pool.iter().position(fits)?;
            Some(pool.swap_remove(index).2)
        })
    }

    fn flate2_level(level: CompressionLevel) -> Compression {
        Compression::new(match level {
            CompressionLevel::Fastest => 1,
            CompressionLevel::Default => 5,
            CompressionLevel::Best => 9,
        })
    }
}

#[cfg(feature = "br")]
mod br {
    use super::CompressionLevel;
    use brotli::CompressorWriter;
    use brotli::enc::BrotliEncoderParams;
    use std::io::{self, Write};

    /// The binary logarithm of the window size. Larger windows gain little and need memory for
    /// every response in progress.
    const WINDOW: u32 = 18;
    const WINDOW_MIN: u32 = 12;

    pub(crate) struct Compressor {
        writer: CompressorWriter<Vec<u8>>,
        pub(super) memory_bytes: usize,
    }

    impl Compressor {
        pub(super) fn new(level: CompressionLevel, length: Option<u64>) -> Self {
            let quality = match level {
                CompressionLevel::Fastest => 1,
                CompressionLevel::Default => 4,
                CompressionLevel::Best => 9,
            };
            // A window longer than the content is useless.
            let bits = length.map_or(WINDOW, |length| 64 - length.leading_zeros());
            let window = bits.clamp(WINDOW_MIN, WINDOW);
            let mut params = BrotliEncoderParams { quality, ..BrotliEncoderParams::default() };
            params.lgwin = i32::try_from(window).unwrap_or(18);
            params.size_hint = length.and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
            // The ring buffer, commands and hash tables.
            let memory_bytes = (8 << window) + 512 * 1024;
            Self { writer: CompressorWriter::with_params(Vec::new(), 4096, &params), memory_bytes }
        }

        pub(super) fn write(&mut self, input: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
            self.writer.write_all(input)?;
            out.append(self.writer.get_mut());
            Ok(())
        }

        pub(super) fn flush(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
            self.writer.flush()?;
            out.append(self.writer.get_mut());
            Ok(())
        }

        pub(super) fn finish(self, out: &mut Vec<u8>) -> io::Result<()> {
            out.append(&mut self.writer.into_inner());
            Ok(())
        }
    }
}

#[cfg(feature = "zstd")]
mod zstandard {
    use super::CompressionLevel;
    use std::io;
    use zstd::stream::raw::{CParameter, Encoder, Operation, OutBuffer};

    /// The binary logarithm of the window size. RFC 8878, section 3.1.1.1.2: decoders need not
    /// support more than 8 MiB.
    const WINDOW: u32 = 19;
    const WINDOW_MIN: u32 = 10;
    const STEP: usize = 4 * 1024;

    pub(crate) struct Compressor {
        encoder: Encoder<'static>,
        pub(super) memory_bytes: usize,
    }

    impl Compressor {
        pub(super) fn new(level: CompressionLevel, length: Option<u64>) -> io::Result<Self> {
            let quality = match level {
                CompressionLevel::Fastest => 1,
                CompressionLevel::Default => 3,
                CompressionLevel::Best => 9,
            };
            let bits = length.map_or(WINDOW, |length| 64 - length.leading_zeros());
            let window = bits.clamp(WINDOW_MIN, WINDOW);
            let mut encoder = Encoder::new(quality)?;
            encoder.set_parameter(CParameter::WindowLog(window))?;
            if length.is_some() {
                encoder.set_pledged_src_size(length)?;
            }
            // The window, two blocks, and the tables.
            let memory_bytes = (4 << window) + 512 * 1024;
            Ok(Self { encoder, memory_bytes })
        }

        pub(super) fn write(&mut self, mut input: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
            let mut buffer = [0; STEP];
            while !input.is_empty() {
                let status = self.encoder.run_on_buffers(input, &mut buffer)?;
                out.extend_from_slice(&buffer[..status.bytes_written]);
                input = &input[status.bytes_read..];
            }
            Ok(())
        }

        pub(super) fn flush(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
            self.drain(out, |encoder, buffer| encoder.flush(buffer))
        }

        pub(super) fn finish(mut self, out: &mut Vec<u8>) -> io::Result<()> {
            self.drain(out, |encoder, buffer| encoder.finish(buffer, true))
        }

        fn drain(
            &mut self,
            out: &mut Vec<u8>,
            step: impl Fn(&mut Encoder<'static>, &mut OutBuffer<'_, [u8]>) -> io::Result<usize>,
        ) -> io::Result<()> {
            loop {
                let mut space = [0_u8; STEP];
                let mut out_buffer = OutBuffer::around(&mut space[..]);
                let remaining = step(&mut self.encoder, &mut out_buffer)?;
                let written = out_buffer.pos();
                out.extend_from_slice(&space[..written]);
                if remaining == 0 {
                    return Ok(());
                }
            }
        }
    }
}
