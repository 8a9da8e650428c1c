//! permessage-deflate (RFC 7692).

use crate::inflate::Inflater;
use flate2::{Compress as Deflater, Compression as Level};
use peregrine_proto::ws::deflate::{DeflateConfig, DeflateParams};
use peregrine_proto::ws::{DeflateCodec, InflateError};
use peregrine_web::deflate::flush;
use peregrine_web::memory::MemoryReservation;
use std::cell::RefCell;
use std::fmt;

/// The maximum number of idle compressors, and of idle decompressors, that a thread stores.
const POOL_MAX: usize = 4;

/// The memory of a compressor: its window, the hash tables over it, and its output buffer.
const DEFLATER_BYTES: usize = 320 * 1024;

/// The memory of a decompressor: its window and the codes of a block.
const INFLATER_BYTES: usize = 44 * 1024;

thread_local! {
    static DEFLATERS: RefCell<Vec<Deflater>> = const { RefCell::new(Vec::new()) };
    static INFLATERS: RefCell<Vec<Inflater>> = const { RefCell::new(Vec::new()) };
}

/// Enables permessage-deflate, if the peer offers it.
///
/// By default, messages do not refer to earlier ones, so a WebSocket holds no window between
/// messages, and all WebSockets of a thread share its compressors. Keeping windows makes small,
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

/// The compression state of both directions of one WebSocket. Windows are stored only if later
/// messages can refer to them.
pub(crate) struct DeflateContext {
    deflater: Option<Deflater>,
    inflater: Option<Inflater>,
    server_no_context_takeover: bool,
    client_no_context_takeover: bool,
    reservation: MemoryReservation,
}

impl DeflateContext {
    pub(crate) fn new(params: DeflateParams) -> Self {
        let DeflateParams { server_no_context_takeover, client_no_context_takeover, .. } = params;
        Self {
            deflater: None,
            inflater: None,
            server_no_context_takeover,
            client_no_context_takeover,
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

fn take_pooled<T>(pool: &RefCell<Vec<T>>, create: impl FnOnce() -> T) -> T {
    pool.borrow_mut().pop().unwrap_or_else(create)
}

fn return_to_pool<T>(pool: &RefCell<Vec<T>>, item: T) {
    let mut pool = pool.borrow_mut();
    if pool.len() < POOL_MAX {
        pool.push(item);
    }
}

impl DeflateCodec for DeflateContext {
    fn inflate(
        &mut self,
        input: &[u8],
        out_bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<usize, InflateError> {
        let create = || INFLATERS.with(|pool| take_pooled(pool, Inflater::new));
        let inflater = self.inflater.get_or_insert_with(create);
        let result = inflater.inflate(input, out_bytes_max, out);
        self.update_reservation();
        result
    }

    fn end_inflate(&mut self) {
        if self.client_no_context_takeover
            && let Some(mut inflater) = self.inflater.take()
        {
            inflater.reset();
            INFLATERS.with(|pool| return_to_pool(pool, inflater));
            self.update_reservation();
        }
    }

    fn deflate(&mut self, input: &[u8], out: &mut Vec<u8>) {
        let create =
            || DEFLATERS.with(|pool| take_pooled(pool, || Deflater::new(Level::fast(), false)));
        let deflater = self.deflater.get_or_insert_with(create);
        flush(deflater, input, out).expect("compression into a growing buffer cannot fail");
        self.update_reservation();
    }

    fn end_deflate(&mut self) {
        if self.server_no_context_takeover
            && let Some(mut deflater) = self.deflater.take()
        {
            deflater.reset();
            DEFLATERS.with(|pool| return_to_pool(pool, deflater));
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

    fn context(server_no_takeover: bool, client_no_takeover: bool) -> DeflateContext {
        DeflateContext::new(DeflateParams {
            server_no_context_takeover: server_no_takeover,
            client_no_context_takeover: client_no_takeover,
            server_max_window_bits: 15,
            client_max_window_bits: 15,
        })
    }

    /// Inflates a message like a connection does, in steps that output at most `step_bytes_max`
    /// bytes.
    fn inflate_message(
        context: &mut DeflateContext,
        message: &[u8],
        chunk_bytes_max: usize,
        step_bytes_max: usize,
    ) -> Result<Vec<u8>, InflateError> {
        let mut content = Vec::new();
        for chunk in message.chunks(chunk_bytes_max).chain([&END[..]]) {
            let mut consumed = 0;
            loop {
                let length_before = content.len();
                consumed += context.inflate(&chunk[consumed..], step_bytes_max, &mut content)?;
                if consumed == chunk.len() && content.len() < length_before + step_bytes_max {
                    break;
                }
            }
        }
        context.end_inflate();
        Ok(content)
    }

    #[test]
    fn messages_of_any_size_and_content_round_trip() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 20) as usize
        };
        for (server_no_takeover, client_no_takeover) in
            [(true, true), (false, true), (false, false)]
        {
            // Both directions: each end is the server of one and the client of the other.
            let mut server = context(server_no_takeover, client_no_takeover);
            let mut client = context(client_no_takeover, server_no_takeover);
            for index in 0..150 {
                // Blocks of incompressible data end after 31 KiB.
                let length = match index % 3 {
                    0 => next() % 6_000,
                    1 => 31_700 + next() % 4_300,
                    _ => 20_000 + next() % 60_000,
                };
                let kind = next() % 3;
                let content: Vec<u8> = (0..length)
                    .map(|position| match kind {
                        0 => next() as u8,
                        1 => b'0' + (next() % 64) as u8,
                        _ => b"a text that repeats itself"[position % 26],
                    })
                    .collect();
                let (compressor, decompressor) = match index % 2 {
                    0 => (&mut server, &mut client),
                    _ => (&mut client, &mut server),
                };
                let mut message = Vec::new();
                // In up to three frames.
                for frame in content.chunks(content.len() / (1 + next() % 3) + 1) {
                    compressor.deflate(frame, &mut message);
                }
                compressor.end_deflate();
                if message.ends_with(&END) {
                    message.truncate(message.len() - END.len());
                }
                let inflated = inflate_message(
                    decompressor,
                    &message,
                    1 + next() % 40_000,
                    1 + next() % 70_000,
                );
                let inflated = inflated.expect("the message was just compressed");
                assert!(inflated == content, "{index}: sent {length}, got {}", inflated.len());
            }
        }
    }

    /// Some clients keep their window although they agreed to reset it.
    #[test]
    fn rejects_a_reference_to_a_message_before_a_reset() {
        for no_takeover in [true, false] {
            let (mut peer, mut server) = (context(false, false), context(false, no_takeover));
            for index in 0..2 {
                let mut message = Vec::new();
                peer.deflate(b"the quick brown fox", &mut message);
                peer.end_deflate();
                message.truncate(message.len() - END.len());
                let inflated = inflate_message(&mut server, &message, 1_000, 1_000);
                let is_broken = no_takeover && index == 1;
                assert_eq!(inflated.ok(), (!is_broken).then(|| b"the quick brown fox".to_vec()));
            }
        }
    }

    #[test]
    fn windows_are_accounted_while_they_are_kept() {
        let reserved_before = reserved();
        let (mut no_takeover, mut takeover, mut out) =
            (context(true, true), context(false, false), Vec::new());
        for context in [&mut no_takeover, &mut takeover] {
            context.deflate(b"hello", &mut out);
            context.inflate(&out, 100, &mut Vec::new()).expect("the message was just compressed");
            out.clear();
        }
        let context_bytes = DEFLATER_BYTES + INFLATER_BYTES;
        assert_eq!(reserved() - reserved_before, 2 * context_bytes);
        for context in [&mut no_takeover, &mut takeover] {
            context.end_deflate();
            context.end_inflate();
        }
        assert_eq!(reserved() - reserved_before, context_bytes);
        drop((no_takeover, takeover));
        assert_eq!(reserved(), reserved_before);
    }
}
