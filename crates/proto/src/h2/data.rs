//! DATA frames: flow control, the checks of their content, and the content itself.

use super::budget::Cost;
use super::connection::Connection;
use super::control::RTT_PING;
use super::error::Http2Error;
use super::event::Event;
use super::frame::{self, FrameHeader, FrameType, flags};
use super::limits::Limits;
use super::receive::{FrameReadState, Outcome, len_u32, min_len};
use super::recent::CloseKind;
use super::streams::{StreamKey, StreamLookup};

impl Connection {
    /// Starts a DATA frame: counts all of it against the windows, and decides whether its content
    /// is yielded.
    // RFC 9113 §6.9.1: flow control counts whole DATA payloads, padding included, also of frames
    // that are in error.
    pub(super) fn begin_data(
        &mut self,
        limits: &Limits,
        header: FrameHeader,
        padding: u8,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Http2Error> {
        let overhead = u32::from(header.has_flags(flags::PADDED)) + u32::from(padding);
        let length = header.length - overhead;
        let end_stream = header.has_flags(flags::END_STREAM);
        self.flow.window =
            self.flow.window.checked_sub(header.length).ok_or(Http2Error::WindowExceeded)?;
        if length == 0 && !end_stream {
            self.budget.charge(Cost::EmptyData)?;
        }
        if padding > 0 {
            self.budget.charge(Cost::Padding(u32::from(padding)))?;
        }
        self.receive.step = FrameReadState::Data;
        self.receive.bytes_left = length;
        self.receive.padding = padding;
        self.receive.end_stream = end_stream;
        self.receive.stream = None;
        let event = match self.streams.find(header.stream_id) {
            StreamLookup::Open(slot) => {
                let key = StreamKey { id: header.stream_id, slot };
                self.begin_stream_data(limits, key, header.length, length, out)?
            }
            // RFC 9113 §5.1: DATA on an idle stream is a connection error.
            StreamLookup::Idle => return Err(Http2Error::StreamIdle),
            // RFC 9113 §5.1: after END_STREAM from both sides, it is one of type STREAM_CLOSED.
            StreamLookup::Closed(CloseKind::EndStream | CloseKind::Unknown) => {
                return Err(Http2Error::StreamClosed);
            }
            StreamLookup::Closed(CloseKind::ResetByPeer) => {
                let (id, error) = (header.stream_id, Http2Error::StreamReset);
                self.write_peer_caused_reset(limits, id, error, out)?;
                Some(Event::StreamError { id, error })
            }
            // RFC 9113 §5.1: after sending RST_STREAM, frames in transit are ignored.
            StreamLookup::Closed(CloseKind::ResetByServer) => {
                self.budget.charge_late_data(header.length)?;
                None
            }
        };
        self.update_connection_window(out);
        Ok(event)
    }

    /// Starts a DATA frame on an open stream: `length` bytes of content, `total` with the padding.
    fn begin_stream_data(
        &mut self,
        limits: &Limits,
        key: StreamKey,
        total: u32,
        length: u32,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Http2Error> {
        let end_stream = self.receive.end_stream;
        let stream = self.streams.at_mut(key.slot);
        stream.expects_continue = false;
        let content = u64::from(length);
        let error = if !stream.is_receiving() {
            // RFC 9113 §5.1: frames on a half-closed (remote) stream are a STREAM_CLOSED error.
            Some(Http2Error::StreamHalfClosed)
        } else if total > 0 && total.cast_signed() > stream.recv_window {
            // RFC 9113 §6.9.1: frames without a payload need no window.
            Some(Http2Error::StreamWindowExceeded)
        } else if content > stream.content_length_left
            || (end_stream
                && stream.content_length_left != u64::MAX
                && content != stream.content_length_left)
        {
            // RFC 9113 §8.1.1: a request is malformed if its content-length is not the sum of its
            // DATA.
            Some(Http2Error::ContentLengthMismatch)
        } else {
            None
        };
        if let Some(error) = error {
            return self.stream_error(limits, key, error, out);
        }
        stream.recv_window -= total.cast_signed();
        stream.has_content |= total > 0;
        if stream.content_length_left != u64::MAX {
            stream.content_length_left -= content;
        }
        self.receive.stream = Some(key);
        if stream.discarding {
            return Ok(None);
        }
        if content > stream.body_bytes_allowed {
            (stream.discarding, stream.was_refused) = (true, true);
            let error = crate::RequestError::BodyTooLarge;
            return Ok(Some(Event::RequestError { stream: key, error }));
        }
        stream.body_bytes_allowed -= content;
        stream.unreleased += length;
        self.flow.unreleased += length;
        if total > length && !end_stream {
            // Padding counts as consumed immediately.
            self.release_capacity(key, 0, out);
        }
        self.budget.credit_received(limits, length);
        if self.flow.on_data(limits, length) {
            frame::write_frame(FrameType::Ping, 0, 0, &RTT_PING, out);
        }
        Ok(None)
    }

    /// Reads content, padding, or the end of a DATA frame.
    #[inline]
    pub(super) fn receive_data(&mut self, unread: &[u8], at: usize, out: &mut Vec<u8>) -> Outcome {
        let available = unread.len() - at;
        let padding = u32::from(self.receive.padding);
        if available == 0 && self.receive.bytes_left + padding > 0 {
            return Outcome::NeedInput;
        }
        if self.receive.bytes_left > 0 {
            let len = min_len(available, self.receive.bytes_left);
            self.receive.bytes_left -= len_u32(len);
            // The server may have reset the stream in the meantime, or may not want its content.
            let wanted_stream = self.receive.stream.filter(|key| self.wants_data(*key));
            let range = at..at + len;
            return Outcome::from_event(
                len,
                wanted_stream.map(|stream| Event::Data { stream, range }),
            );
        }
        if padding > 0 {
            let len = min_len(available, padding);
            self.receive.padding -= u8::try_from(len).expect("padding is counted in a byte");
            return Outcome::Used(len);
        }
        self.receive.step = FrameReadState::Frame;
        let stream = self.receive.stream.take().filter(|_| self.receive.end_stream);
        let Some(key) = stream.filter(|key| self.streams.get(*key).is_some()) else {
            return Outcome::Used(0);
        };
        let should_report = self.wants_data(key);
        self.receive_end_stream(key, out);
        Outcome::from_event(0, should_report.then_some(Event::End { stream: key }))
    }

    #[inline]
    fn wants_data(&self, key: StreamKey) -> bool {
        self.streams.get(key).is_some_and(|stream| !stream.discarding)
    }
}
