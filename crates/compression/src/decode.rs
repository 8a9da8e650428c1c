//! Decompressors, which make no more of their input than they may.

use crate::coding::Coding;
use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

/// A decompressor of one body.
pub(crate) struct Decoder {
    kind: Kind,
    sink: Sink,
}

enum Kind {
    #[cfg(feature = "gzip")]
    Gzip(flate2::write::MultiGzDecoder<Sink>),
    #[cfg(feature = "deflate")]
    Deflate(flate2::write::ZlibDecoder<Sink>),
    #[cfg(feature = "br")]
    Br(Box<brotli::DecompressorWriter<Sink>>),
    #[cfg(feature = "zstd")]
    Zstd(zstd::stream::zio::Writer<Sink, zstd::stream::raw::Decoder<'static>>),
}

/// Why a body cannot be unpacked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// More comes of it than may.
    TooMuch,
    /// It is not in its coding.
    Invalid,
}

/// Where decompressed bytes go.
#[derive(Clone, Default)]
struct Sink(Rc<RefCell<Output>>);

#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    /// How many bytes more it takes.
    room: usize,
    is_over: bool,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut output = self.0.borrow_mut();
        let Some(room) = output.room.checked_sub(bytes.len()) else {
            output.is_over = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        };
        output.room = room;
        output.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Decoder {
    pub(crate) fn new(coding: Coding) -> io::Result<Self> {
        let sink = Sink::default();
        let into = sink.clone();
        let kind = match coding {
            #[cfg(feature = "gzip")]
            Coding::Gzip => Kind::Gzip(flate2::write::MultiGzDecoder::new(into)),
            #[cfg(feature = "deflate")]
            Coding::Deflate => Kind::Deflate(flate2::write::ZlibDecoder::new(into)),
            #[cfg(feature = "br")]
            Coding::Br => Kind::Br(Box::new(brotli::DecompressorWriter::new(into, 4096))),
            #[cfg(feature = "zstd")]
            Coding::Zstd => {
                let mut decoder = zstd::stream::raw::Decoder::new()?;
                // RFC 9659 §3: a window of more than 8 MiB need not be taken.
                decoder.set_parameter(zstd::stream::raw::DParameter::WindowLogMax(23))?;
                Kind::Zstd(zstd::stream::zio::Writer::new(into, decoder))
            }
        };
        Ok(Self { kind, sink })
    }

    /// Unpacks `input`, which may make no more than `room` bytes.
    pub(crate) fn write(&mut self, input: &[u8], room: usize) -> Result<Vec<u8>, Broken> {
        self.sink.0.borrow_mut().room = room;
        let written = match &mut self.kind {
            #[cfg(feature = "gzip")]
            Kind::Gzip(decoder) => decoder.write_all(input).and_then(|()| decoder.flush()),
            #[cfg(feature = "deflate")]
            Kind::Deflate(decoder) => decoder.write_all(input).and_then(|()| decoder.flush()),
            #[cfg(feature = "br")]
            Kind::Br(decoder) => decoder.write_all(input).and_then(|()| decoder.flush()),
            #[cfg(feature = "zstd")]
            Kind::Zstd(decoder) => decoder.write_all(input).and_then(|()| decoder.flush()),
        };
        self.taken(written)
    }

    /// The end: nothing may be missing.
    pub(crate) fn finish(&mut self, room: usize) -> Result<Vec<u8>, Broken> {
        self.sink.0.borrow_mut().room = room;
        let ended = match &mut self.kind {
            #[cfg(feature = "gzip")]
            Kind::Gzip(decoder) => decoder.try_finish(),
            #[cfg(feature = "deflate")]
            Kind::Deflate(decoder) => decoder.try_finish(),
            #[cfg(feature = "br")]
            Kind::Br(decoder) => decoder.close(),
            #[cfg(feature = "zstd")]
            Kind::Zstd(decoder) => decoder.finish(),
        };
        self.taken(ended)
    }

    fn taken(&mut self, result: io::Result<()>) -> Result<Vec<u8>, Broken> {
        let mut output = self.sink.0.borrow_mut();
        if output.is_over {
            return Err(Broken::TooMuch);
        }
        result.map_err(|_| Broken::Invalid)?;
        Ok(std::mem::take(&mut output.bytes))
    }
}
