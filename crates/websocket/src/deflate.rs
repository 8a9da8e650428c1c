//! permessage-deflate (RFC 7692).

use crate::inflate::Inflater;
use flate2::{Compress as Deflater, Compression as Level};
use peregrine_proto::ws::deflate::{DeflateConfig, DeflateParams};
use peregrine_proto::ws::{DeflateCodec, InflateError};
use peregrine_web::deflate::flush;
use peregrine_web::memory::MemoryReservation;
use std::cell::RefCell;
use std::fmt;

/// The maximum number of idle compressors, and of idle decompressors, that a thread keeps.
const POOL_MAX: usize = 4;

/// Memory held by a compressor: its window, the hash tables over it, and its output buffer.
const DEFLATER_BYTES: usize = 320 * 1024;

/// Memory held by a decompressor: its window and the codes of a block.
const INFLATER_BYTES: usize = 44 * 1024;

thread_local! {
    static DEFLATERS: RefCell<Vec<Deflater>> = const { RefCell::new(Vec::new()) };
    static INFLATERS: RefCell<Vec<Inflater>> = const { RefCell::new(Vec::new()) };
}

/// Enables permessage-deflate, if the peer offers it.
///
/// By default messages do not refer to earlier ones, so a WebSocket holds no window between
/// messages and all WebSockets of a thread share its compressors. Keeping windows makes small,
/// similar messages shorter, at the cost of one compressor (to send) and one decompressor (to
/// receive) per WebSocket.
#[doc(alias = "compression")]
#[doc(alias = "deflate")]
#[derive(Clone, Copy, Debug, Default)]
pub struct PerMessageDeflate {
    server_context_takeover: bool,
    client_context_takeover: bool,
}

impl PerMessageDeflate {
    /// Lets sent messages refer to earlier ones, unless the peer forbids it.
    #[must_use]
    pub fn server_context_takeover(mut self) -> Self {
        self.server_context_takeover = true;
        self
    }

    /// Lets received messages refer to earlier ones.
    #[must_use]
    pub fn client_context_takeover(mut self) -> Self {
        self.client_context_takeover = true;
        self
    }

    pub(crate) fn to_config(self) -> DeflateConfig {
        DeflateConfig {
            server_no_context_takeover: !self.server_context_takeover,
            client_no_context_takeover: !self.client_context_takeover,
            ..DeflateConfig::default()
        }
    }
}

/// The compression state of both directions of one WebSocket. Windows are kept only if needed.
pub(crate) struct DeflateContext {
    deflater: Option<Deflater>,
    inflater: Option<Inflater>,
    server_no_context_takeover: bool,
    client_no_context_takeover: bool,
    reservation: MemoryReservation,
}

impl DeflateContext {
    pub(crate) fn new(agreed: DeflateParams) -> Self {
        let DeflateParams {
            server_no_context_takeover: server_forgets,
            client_no_context_takeover: client_forgets,
            ..
        } = agreed;
        let (deflater, inflater) = (None, None);
        Self {
            deflater,
            inflater,
            server_no_context_takeover: server_forgets,
            client_no_context_takeover: client_forgets,
            reservation: MemoryReservation::empty(),
        }
    }

    /// Updates the memory accounting.
    fn update_reservation(&mut self) {
        let deflater = if self.deflater.is_some() { DEFLATER_BYTES } else { 0 };
        let inflater = if self.inflater.is_some() { INFLATER_BYTES } else { 0 };
        self.reservation.resize(deflater + inflater);
    }
}

fn take_pooled<T>(stock: &RefCell<Vec<T>>, make: impl FnOnce() -> T) -> T {
    stock.borrow_mut().pop().unwrap_or_else(make)
}

fn return_to_pool<T>(stock: &RefCell<Vec<T>>, unused: T) {
    let mut stock = stock.borrow_mut();
    if stock.len() < POOL_MAX {
        stock.push(unused);
    }
}

impl DeflateCodec for DeflateContext {
    fn inflate(
        &mut self,
        input: &[u8],
        room: usize,
        out: &mut Vec<u8>,
    ) -> Result<usize, InflateError> {
        let make = || INFLATERS.with(|stock| take_pooled(stock, Inflater::new));
        let inflater = self.inflater.get_or_insert_with(make);
        let used = inflater.inflate(input, room, out);
        self.update_reservation();
        used
    }

    fn end_inflate(&mut self) {
        if self.client_no_context_takeover
            && let Some(mut inflater) = self.inflater.take()
        {
            inflater.reset();
            INFLATERS.with(|stock| return_to_pool(stock, inflater));
            self.update_reservation();
        }
    }

    fn deflate(&mut self, input: &[u8], out: &mut Vec<u8>) {
        let make =
            || DEFLATERS.with(|stock| take_pooled(stock, || Deflater::new(Level::fast(), false)));
        let deflater = self.deflater.get_or_insert_with(make);
        flush(deflater, input, out).expect("compression cannot fail");
        self.update_reservation();
    }

    fn end_deflate(&mut self) {
        if self.server_no_context_takeover
            && let Some(mut deflater) = self.deflater.take()
        {
            deflater.reset();
            DEFLATERS.with(|stock| return_to_pool(stock, deflater));
            self.update_reservation();
        }
    }
}

impl fmt::Debug for DeflateContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeflateContext")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_web::memory::reserved;

    const END: [u8; 4] = [0, 0, 0xff, 0xff];

    fn both(server_forgets: bool, client_forgets: bool) -> DeflateContext {
        let (server_window_bits, client_window_bits) = (15, 15);
        DeflateContext::new(DeflateParams {
            server_no_context_takeover: server_forgets,
            client_no_context_takeover: client_forgets,
            server_max_window_bits: server_window_bits,
            client_max_window_bits: client_window_bits,
        })
    }

    /// Inflates a message like a connection does, in steps of at most `room` bytes.
    fn inflated(
        deflate: &mut DeflateContext,
        message: &[u8],
        pieces: usize,
        room: usize,
    ) -> Result<Vec<u8>, InflateError> {
        let mut content = Vec::new();
        for piece in message.chunks(pieces).chain([&END[..]]) {
            let mut used = 0;
            loop {
                let before = content.len();
                used += deflate.inflate(&piece[used..], room, &mut content)?;
                if used == piece.len() && content.len() < before + room {
                    break;
                }
            }
        }
        deflate.end_inflate();
        Ok(content)
    }

    #[test]
    fn messages_arrive_whole_whatever_their_size_and_content() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 20) as usize
        };
        for (server_forgets, client_forgets) in [(true, true), (false, true), (false, false)] {
            // Both directions: each end is the server of one and the client of the other.
            let mut server = both(server_forgets, client_forgets);
            let mut client = both(client_forgets, server_forgets);
            for number in 0..150 {
                // Blocks of incompressible data end after 31 KiB.
                let bytes = match number % 3 {
                    0 => next() % 6_000,
                    1 => 31_700 + next() % 4_300,
                    _ => 20_000 + next() % 60_000,
                };
                let kind = next() % 3;
                let content: Vec<u8> = (0..bytes)
                    .map(|at| match kind {
                        0 => next() as u8,
                        1 => b'0' + (next() % 64) as u8,
                        _ => b"a text that repeats itself"[at % 26],
                    })
                    .collect();
                let (from, to) = match number % 2 {
                    0 => (&mut server, &mut client),
                    _ => (&mut client, &mut server),
                };
                let mut message = Vec::new();
                // In up to three frames.
                for frame in content.chunks(content.len() / (1 + next() % 3) + 1) {
                    from.deflate(frame, &mut message);
                }
                from.end_deflate();
                if message.ends_with(&END) {
                    message.truncate(message.len() - END.len());
                }
                let read = inflated(to, &message, 1 + next() % 40_000, 1 + next() % 70_000);
                let read = read.expect("the message was just compressed");
                assert!(read == content, "{number}: sent {bytes}, got {}", read.len());
            }
        }
    }

    /// Some clients keep their window although they agreed to reset it.
    #[test]
    fn a_message_that_refers_to_a_forgotten_one_is_malformed() {
        for forgets in [true, false] {
            let (mut peer, mut server) = (both(false, false), both(false, forgets));
            for number in 0..2 {
                let mut message = Vec::new();
                peer.deflate(b"the quick brown fox", &mut message);
                peer.end_deflate();
                message.truncate(message.len() - END.len());
                let read = inflated(&mut server, &message, 1_000, 1_000);
                let is_broken = forgets && number == 1;
                assert_eq!(read.ok(), (!is_broken).then(|| b"the quick brown fox".to_vec()));
            }
        }
    }

    #[test]
    fn windows_count_as_long_as_they_are_held() {
        let before = reserved();
        let (mut forgets, mut keeps, mut out) = (both(true, true), both(false, false), Vec::new());
        for deflate in [&mut forgets, &mut keeps] {
            deflate.deflate(b"hello", &mut out);
            deflate.inflate(&out, 100, &mut Vec::new()).expect("the message was just compressed");
            out.clear();
        }
        let both = DEFLATER_BYTES + INFLATER_BYTES;
        assert_eq!(reserved() - before, 2 * both);
        for deflate in [&mut forgets, &mut keeps] {
            deflate.end_deflate();
            deflate.end_inflate();
        }
        assert_eq!(reserved() - before, both);
        drop((forgets, keeps));
        assert_eq!(reserved(), before);
    }
}
