//! A compression codec for tests, on flate2.

use flate2::{Compress, Compression as Level, Decompress, FlushCompress, FlushDecompress, Status};
use peregrine_proto::ws::{DeflateCodec, InflateError};

/// Both directions of permessage-deflate, with windows of 15 bits.
pub(crate) struct Inflater {
    inflate: Decompress,
    deflate: Compress,
    /// Whether the peer resets its window after each message.
    peer_resets: bool,
    /// Whether this end does.
    resets: bool,
    /// The decompressed size of the current message so far.
    pub(crate) produced: usize,
}

impl Inflater {
    pub(crate) fn new(resets: bool, peer_resets: bool) -> Self {
        Self {
            inflate: Decompress::new(false),
            deflate: Compress::new(Level::fast(), false),
            peer_resets,
            resets,
            produced: 0,
        }
    }
}

impl DeflateCodec for Inflater {
    fn inflate(
        &mut self,
        input: &[u8],
        room: usize,
        out: &mut Vec<u8>,
    ) -> Result<usize, InflateError> {
        let start = out.len();
        out.resize(start + room, 0);
        let (mut used, mut written) = (0, 0);
        let status = loop {
            let totals_before = (self.inflate.total_in(), self.inflate.total_out());
            let free = &mut out[start + written..];
            let status = self.inflate.decompress(&input[used..], free, FlushDecompress::None);
            used += (self.inflate.total_in() - totals_before.0) as usize;
            written += (self.inflate.total_out() - totals_before.1) as usize;
            match status {
                Ok(Status::StreamEnd) => self.inflate.reset(false),
                Ok(Status::Ok) if written < room && used < input.len() => {}
                status => break status,
            }
        };
        out.truncate(start + written);
        self.produced += written;
        status.map(|_| used).map_err(|_| InflateError)
    }

    fn end_inflate(&mut self) {
        self.produced = 0;
        if self.peer_resets {
            self.inflate.reset(false);
        }
    }

    fn deflate(&mut self, input: &[u8], out: &mut Vec<u8>) {
        // One call completes the flush if it cannot fill the room, including the library's buffered
        // data.
        out.reserve(2 * input.len() + 128 * 1024);
        let total_before = self.deflate.total_in();
        let status = self.deflate.compress_vec(input, out, FlushCompress::Sync);
        status.expect("compression does not fail");
        let used =
            usize::try_from(self.deflate.total_in() - total_before).expect("the input is a slice");
        assert!(used == input.len() && out.len() < out.capacity(), "the room was large enough");
    }

    fn end_deflate(&mut self) {
        if self.resets {
            self.deflate.reset();
        }
    }
}
