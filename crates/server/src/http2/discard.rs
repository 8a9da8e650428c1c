//! Discards content of requests that is not needed.
//!
//! [`Http2::discard_body`] discards the rest of a request whose reader was dropped or got an error,
//! although its handler may still run and its response may be incomplete.
//! [`Http2::discard_after_response`] discards the rest of a request whose response is complete. The
//! stream then stays in [`StreamState::DiscardingBody`] until the client has ended the request or
//! the stream is reset.

use super::streams::{StreamDeadlines, StreamState};
use super::{Http2, protocol};
use crate::exchange::request_body::RequestBodySender;
use crate::io::context::ConnectionContext;
use crate::worker::lifecycle::Lifecycle;
use peregrine_driver::Driver;
use peregrine_proto::h2::{ErrorCode, StreamKey};
use std::mem::take;
use std::time::Duration;

impl Http2 {
    /// Discards the rest of a request's content, because its reader was dropped or got an error.
    /// The content in the pipe occupies the windows until the reader reads it or is dropped.
    pub(super) fn discard_body<D: Driver>(
        &mut self,
        slot: u32,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let stream = self.streams.at(slot);
        stream.request_body = RequestBodySender::Discarding;
        let buffered_len = take(&mut stream.buffered).len();
        stream.awaits_data = false;
        stream.deadlines.receive = Duration::MAX;
        if let Some(key) = stream.key {
            protocol(&mut self.core).release_capacity(
                key,
                buffered_len,
                &mut conn.io.output.plaintext,
            );
            self.release_capacity(slot, key, conn);
        }
        let stream = self.streams.at(slot);
        let is_request_complete = stream.pending_trailers.take().is_some();
        if !matches!(stream.state, StreamState::ReceivingAfterResponse) {
            return;
        }
        if is_request_complete {
            self.streams.close(slot);
        } else {
            self.discard_after_response(slot, conn);
        }
    }

    /// Begins to discard the rest of a request whose response is complete.
    pub(super) fn discard_after_response<D: Driver>(
        &mut self,
        slot: u32,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let stream = self.streams.at(slot);
        stream.request_body = RequestBodySender::Discarding;
        (stream.buffered, stream.consumed, stream.awaits_data) = (Vec::new(), None, false);
        // Part of the received content was released already. The core counts each byte only once.
        let received_len = usize::try_from(stream.received).unwrap_or(usize::MAX);
        if let Some(key) = stream.key {
            protocol(&mut self.core).release_capacity(
                key,
                received_len,
                &mut conn.io.output.plaintext,
            );
        }
        let stream = self.streams.at(slot);
        stream.state = StreamState::DiscardingBody;
        let (now, limits) = (conn.worker.driver.now(), &conn.listener.limits);
        // The other deadlines no longer have any effect, so clear them.
        stream.deadlines = StreamDeadlines {
            receive: now.saturating_add(limits.linger_timeout),
            current_state: now.saturating_add(limits.linger_time_max),
            ..StreamDeadlines::NONE
        };
        self.streams.discarding += 1;
        self.schedule_stream_timer(slot, conn);
    }

    /// Discards received content. Opens the windows by its length until the stream exceeds
    /// `drain_bytes_max`.
    pub(super) fn discard_data<D: Driver>(
        &mut self,
        slot: u32,
        key: StreamKey,
        bytes: usize,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let limits = &conn.listener.limits;
        let stream = self.streams.at(slot);
        stream.discarded_bytes += bytes as u64;
        let out = &mut conn.io.output.plaintext;
        if stream.discarded_bytes > u64::from(limits.drain_bytes_max) {
            // After this call, the core yields no more content of this stream and does not open its
            // window again.
            return protocol(&mut self.core).discard_body(key, out);
        }
        protocol(&mut self.core).release_capacity(key, bytes, out);
        if matches!(stream.state, StreamState::DiscardingBody) {
            let now = conn.worker.driver.now();
            stream.deadlines.receive = now.saturating_add(limits.linger_timeout);
        }
    }

    /// Closes those streams in [`StreamState::DiscardingBody`] that the core has closed, and resets
    /// those that must not be received to their end. Called at the end of a turn.
    pub(super) fn close_discarding_streams<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        if self.streams.discarding == 0 {
            return;
        }
        // If little of each request remains, the server receives it, because some clients treat a
        // reset as an error. If more remains, the core resets the streams, but one round trip
        // later, so that the peer has received its responses. The core would also discard the
        // content of streams in `ReceivingAfterResponse`, so the reset waits for those.
        let bytes_max = u64::from(conn.listener.limits.drain_bytes_max);
        if self.streams.exceeds_discard_limit(bytes_max) && !self.streams.has_receiving() {
            protocol(&mut self.core).reset_unfinished(&mut conn.io.output.plaintext, |_| {});
        }
        let is_shutting_down = conn.worker.lifecycle() >= Lifecycle::Draining;
        for slot in self.streams.slots() {
            let Some(stream) = self.streams.get(slot) else { continue };
            let (StreamState::DiscardingBody, Some(key)) = (&stream.state, stream.key) else {
                continue;
            };
            if !protocol(&mut self.core).is_stream_open(key) {
                self.streams.close(slot);
            } else if is_shutting_down {
                self.reset_stream(slot, ErrorCode::NO_ERROR, conn);
            }
        }
    }
}
