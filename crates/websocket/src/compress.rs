//! permessage-deflate (RFC 7692).

use crate::inflate::Inflater;
use flate2::{Compress as Deflater, Compression as Level};
use peregrine_proto::ws::deflate::{Agreed, Wishes};
use peregrine_proto::ws::{Compression, Malformed};
use peregrine_web::account::Charge;
use peregrine_web::deflate::flush;
use std::cell::RefCell;
use std::fmt;

/// The maximum number of idle compressors, and of idle decompressors, that a thread keeps.
const STOCK_MAX: usize = 4;

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
#[derive(Clone, Copy, Debug, Default)]
pub struct Compress {
    keeps_sent: bool,
    keeps_received: bool,
}

impl Compress {
    /// Lets sent messages refer to earlier ones, unless the peer forbids it.
    #[must_use]
    pub fn keep_sent(mut self) -> Self {
        self.keeps_sent = true;
        self
    }

    /// Lets received messages refer to earlier ones.
    #[must_use]
    pub fn keep_received(mut self) -> Self {
        self.keeps_received = true;
        self
    }

    pub(crate) fn wishes(self) -> Wishes {
        Wishes {
            server_forgets: !self.keeps_sent,
            client_forgets: !self.keeps_received,
            ..Wishes::default()
        }
    }
}

/// The compression state of both directions of one WebSocket. Windows are kept only if needed.
pub(crate) struct Deflate {
    deflater: Option<Deflater>,
    inflater: Option<Inflater>,
    forgets: bool,
    peer_forgets: bool,
    charge: Charge,
}

impl Deflate {
    pub(crate) fn new(agreed: Agreed) -> Self {
        let Agreed { server_forgets, client_forgets, .. } = agreed;
        let (deflater, inflater) = (None, None);
        Self {
            deflater,
            inflater,
            forgets: server_forgets,
            peer_forgets: client_forgets,
            charge: Charge::new(),
        }
    }

    /// Updates the memory accounting.
    fn weigh(&mut self) {
        let deflater = if self.deflater.is_some() { DEFLATER_BYTES } else { 0 };
        let inflater = if self.inflater.is_some() { INFLATER_BYTES } else { 0 };
        self.charge.set(deflater + inflater);
    }
}

fn take<T>(stock: &RefCell<Vec<T>>, make: impl FnOnce() -> T) -> T {
    stock.borrow_mut().pop().unwrap_or_else(make)
}

fn give<T>(stock: &RefCell<Vec<T>>, unused: T) {
    let mut stock = stock.borrow_mut();
    if stock.len() < STOCK_MAX {
        stock.push(unused);
    }
}

impl Compression for Deflate {
    fn inflate(
        &mut self,
        input: &[u8],
        room: usize,
        out: &mut Vec<u8>,
    ) -> Result<usize, Malformed> {
        let make = || INFLATERS.with(|stock| take(stock, Inflater::new));
        let inflater = self.inflater.get_or_insert_with(make);
        let used = inflater.inflate(input, room, out);
        self.weigh();
        used
    }

    fn end_inflate(&mut self) {
        if self.peer_forgets
            && let Some(mut inflater) = self.inflater.take()
        {
            inflater.reset();
            INFLATERS.with(|stock| give(stock, inflater));
            self.weigh();
        }
    }

    fn deflate(&mut self, input: &[u8], out: &mut Vec<u8>) {
        let make = || DEFLATERS.with(|stock| take(stock, || Deflater::new(Level::fast(), false)));
        let deflater = self.deflater.get_or_insert_with(make);
        flush(deflater, input, out).expect("compression cannot fail");
        self.weigh();
    }

    fn end_deflate(&mut self) {
        if self.forgets
            && let Some(mut deflater) = self.deflater.take()
        {
            deflater.reset();
            DEFLATERS.with(|stock| give(stock, deflater));
            self.weigh();
        }
    }
}

impl fmt::Debug for Deflate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Deflate")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_web::account::held;

    const END: [u8; 4] = [0, 0, 0xff, 0xff];

    fn both(server_forgets: bool, client_forgets: bool) -> Deflate {
        let (server_window_bits, client_window_bits) = (15, 15);
        Deflate::new(Agreed {
            server_forgets,
            client_forgets,
            server_window_bits,
            client_window_bits,
        })
    }

    /// Inflates a message like a connection does, in steps of at most `room` bytes.
    fn inflated(
        deflate: &mut Deflate,
        message: &[u8],
        pieces: usize,
        room: usize,
    ) -> Result<Vec<u8>, Malformed> {
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
        let before = held();
        let (mut forgets, mut keeps, mut out) = (both(true, true), both(false, false), Vec::new());
        for deflate in [&mut forgets, &mut keeps] {
            deflate.deflate(b"hello", &mut out);
            deflate.inflate(&out, 100, &mut Vec::new()).expect("the message was just compressed");
            out.clear();
        }
        let both = DEFLATER_BYTES + INFLATER_BYTES;
        assert_eq!(held() - before, 2 * both);
        for deflate in [&mut forgets, &mut keeps] {
            deflate.end_deflate();
            deflate.end_inflate();
        }
        assert_eq!(held() - before, both);
        drop((forgets, keeps));
        assert_eq!(held(), before);
    }
}
