//! Decoders with a limit on their output.

use crate::coding::ContentCoding;
use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

/// A decoder for one body.
pub(crate) struct Decoder {
    kind: DecoderKind,
    sink: OutputSink,
    /// No input has been decoded yet.
    is_new: bool,
}

enum DecoderKind {
    #[cfg(feature = "gzip")]
    Gzip(Box<flate2::write::MultiGzDecoder<OutputSink>>),
    #[cfg(feature = "deflate")]
    Deflate(Box<zlib::Inflater>),
    #[cfg(feature = "br")]
    Br(Box<brotli::DecompressorWriter<OutputSink>>),
    #[cfg(feature = "zstd")]
    Zstd(zstd::stream::zio::Writer<OutputSink, zstd::stream::raw::Decoder<'static>>),
}

/// Why a body cannot be decoded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DecompressError {
    /// The output exceeds its limit.
    TooLarge,
    /// The input is not valid in its coding.
    Invalid,
}

/// The output of a decoder.
#[derive(Clone, Default)]
struct OutputSink(Rc<RefCell<Output>>);

#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    /// How many more bytes can be written.
    remaining: usize,
    /// Whether a write was refused because it exceeded `remaining`.
    is_full: bool,
}

impl Write for OutputSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut output = self.0.borrow_mut();
        let Some(remaining) = output.remaining.checked_sub(bytes.len()) else {
            output.is_full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        };
        output.remaining = remaining;
        output.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Decoder {
    pub(crate) fn new(coding: ContentCoding) -> io::Result<Self> {
        let sink = OutputSink::default();
        let writer = sink.clone();
        let kind = match coding {
            #[cfg(feature = "gzip")]
            ContentCoding::Gzip => {
                DecoderKind::Gzip(Box::new(flate2::write::MultiGzDecoder::new(writer)))
            }
            #[cfg(feature = "deflate")]
            ContentCoding::Deflate => DecoderKind::Deflate(Box::new(zlib::Inflater::new(writer))),
            #[cfg(feature = "br")]
            ContentCoding::Br => {
                DecoderKind::Br(Box::new(brotli::DecompressorWriter::new(writer, 4096)))
            }
            #[cfg(feature = "zstd")]
            ContentCoding::Zstd => {
                let mut decoder = zstd::stream::raw::Decoder::new()?;
                // RFC 9659 §3: decoders need not support windows of more than 8 MiB.
                decoder.set_parameter(zstd::stream::raw::DParameter::WindowLogMax(23))?;
                DecoderKind::Zstd(zstd::stream::zio::Writer::new(writer, decoder))
            }
        };
        Ok(Self { kind, sink, is_new: true })
    }

    /// Decodes `input` to at most `remaining` bytes.
    pub(crate) fn write(
        &mut self,
        input: &[u8],
        remaining: usize,
    ) -> Result<Vec<u8>, DecompressError> {
        self.sink.0.borrow_mut().remaining = remaining;
        #[cfg_attr(not(feature = "br"), expect(unused_variables, reason = "only Brotli needs it"))]
        let is_first = std::mem::take(&mut self.is_new);
        let result = match &mut self.kind {
            // RFC 7932 §9.1: these bits are not a valid window size. The library treats them as its
            // own extension with windows of up to 1 GiB, which it would allocate at once.
            #[cfg(feature = "br")]
            DecoderKind::Br(_)
                if is_first && input.first().is_some_and(|byte| byte & 0x7f == 0x11) =>
            {
                return Err(DecompressError::Invalid);
            }
            #[cfg(feature = "gzip")]
            DecoderKind::Gzip(decoder) => decoder.write_all(input).and_then(|()| decoder.flush()),
            #[cfg(feature = "deflate")]
            DecoderKind::Deflate(decoder) => decoder.write(input),
            #[cfg(feature = "br")]
            DecoderKind::Br(decoder) => write_brotli(decoder, &self.sink, input),
            #[cfg(feature = "zstd")]
            DecoderKind::Zstd(decoder) => decoder.write_all(input).and_then(|()| decoder.flush()),
        };
        self.take_output(result)
    }

    /// Finishes the input, which must be complete.
    pub(crate) fn finish(&mut self, remaining: usize) -> Result<Vec<u8>, DecompressError> {
        self.sink.0.borrow_mut().remaining = remaining;
        let result = match &mut self.kind {
            #[cfg(feature = "gzip")]
            DecoderKind::Gzip(decoder) => decoder.try_finish(),
            #[cfg(feature = "deflate")]
            DecoderKind::Deflate(decoder) => decoder.finish(),
            #[cfg(feature = "br")]
            DecoderKind::Br(decoder) => decoder.close(),
            #[cfg(feature = "zstd")]
            DecoderKind::Zstd(decoder) => decoder.finish(),
        };
        self.take_output(result)
    }

    fn take_output(&mut self, result: io::Result<()>) -> Result<Vec<u8>, DecompressError> {
        let mut output = self.sink.0.borrow_mut();
        if output.is_full {
            return Err(DecompressError::TooLarge);
        }
        result.map_err(|_| DecompressError::Invalid)?;
        Ok(std::mem::take(&mut output.bytes))
    }
}

/// The library's writer holds back output that did not fit its buffer when the input ended. Empty
/// writes return it.
#[cfg(feature = "br")]
fn write_brotli(
    decoder: &mut brotli::DecompressorWriter<OutputSink>,
    sink: &OutputSink,
    input: &[u8],
) -> io::Result<()> {
    decoder.write_all(input)?;
    let output_len = || sink.0.borrow().bytes.len();
    loop {
        let before = output_len();
        let _written = decoder.write(&[])?;
        if output_len() == before {
            return Ok(());
        }
    }
}

/// flate2's own writer accepts a truncated body as complete.
#[cfg(feature = "deflate")]
mod zlib {
    use super::OutputSink;
    use flate2::{Decompress, FlushDecompress, Status};
    use std::io::{self, Write};

    /// The size of the steps in which output is produced.
    const STEP: usize = 4 * 1024;

    pub(super) struct Inflater {
        inflate: Decompress,
        sink: OutputSink,
        is_ended: bool,
    }

    impl Inflater {
        pub(super) fn new(sink: OutputSink) -> Self {
            Self { inflate: Decompress::new(true), sink, is_ended: false }
        }

        pub(super) fn write(&mut self, mut input: &[u8]) -> io::Result<()> {
            let mut buffer = [0; STEP];
            while !self.is_ended {
                let (consumed, produced) = (self.inflate.total_in(), self.inflate.total_out());
                let status = self.inflate.decompress(input, &mut buffer, FlushDecompress::None)?;
                let count = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
                let (consumed, produced) = (
                    count(self.inflate.total_in() - consumed),
                    count(self.inflate.total_out() - produced),
                );
                self.sink.write_all(buffer.get(..produced).unwrap_or_default())?;
                input = input.get(consumed..).unwrap_or_default();
                self.is_ended = status == Status::StreamEnd;
                // Later calls produce the output that did not fit, even after a call that did not
                // fill the buffer. Only a call without output shows that more input is needed.
                if !self.is_ended && consumed == 0 && produced == 0 {
                    let invalid = || Err(io::ErrorKind::InvalidData.into());
                    return if input.is_empty() { Ok(()) } else { invalid() };
                }
            }
            // Nothing may follow the end.
            if input.is_empty() { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
        }

        pub(super) fn finish(&mut self) -> io::Result<()> {
            if self.is_ended { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
        }
    }
}
