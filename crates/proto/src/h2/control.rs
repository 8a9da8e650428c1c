//! Control frames: SETTINGS, PING, WINDOW_UPDATE, RST_STREAM, and priorities.

use super::budget::Cost;
use super::connection::{Connection, GoAwayState};
use super::error::Http2Error;
use super::event::{Event, ResetCause};
use super::frame::{
    self, ErrorCode, FrameHeader, FrameType, PAYLOAD_BYTES_CEILING, PAYLOAD_BYTES_DEFAULT,
    SETTING_BYTES, WINDOW_CEILING, flags, setting_id,
};
use super::limits::{Limits, WINDOW_DEFAULT};
use super::priority::Priority;
use super::receive::FrameReadState;
use super::streams::{ResponseState, Slot, StreamKey, StreamLookup, Transition};

/// The payload of a PING that measures the round trip.
pub(super) const RTT_PING: [u8; 8] = *b"measure?";
/// The payload of a PING whose acknowledgement shows that the client has seen the responses before
/// it.
pub(super) const RESPONSES_SEEN_PING: [u8; 8] = *b"answered";
/// The payload of a PING whose acknowledgement shows that the client has received the GOAWAY before
/// it.
pub(super) const SHUTDOWN_PING: [u8; 8] = *b"go away?";
/// The payload of a PING that checks whether the client is alive.
pub(super) const KEEP_ALIVE_PING: [u8; 8] = *b"present?";

impl Connection {
    /// Reads a SETTINGS frame.
    pub(super) fn receive_settings(
        &mut self,
        limits: &Limits,
        header: FrameHeader,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Http2Error> {
        if header.has_flags(flags::ACK) {
            if self.settings_acked {
                self.budget.charge(Cost::Unknown)?;
            } else {
                self.settings_acked = true;
                self.apply_own_settings(limits, out);
            }
            return Ok(None);
        }
        if self.receive.step == FrameReadState::Frame {
            self.budget.charge(Cost::Settings(payload.len() / SETTING_BYTES))?;
        }
        self.receive.step = FrameReadState::Frame;
        // RFC 9113 §6.5.3: the values are processed in the order in which they appear.
        for (identifier, value) in frame::parse_settings(payload) {
            self.apply_setting(identifier, value)?;
        }
        // RFC 9113 §6.5.3: after all values were processed, the acknowledgement is sent
        // immediately.
        self.budget.count_control_frame(limits)?;
        frame::write_frame(FrameType::Settings, flags::ACK, 0, &[], out);
        Ok(Some(Event::Settings))
    }

    /// Applies the server's settings, which the client has acknowledged.
    fn apply_own_settings(&mut self, limits: &Limits, out: &mut Vec<u8>) {
        self.decoder.set_size_max(limits.hpack_decoder_table_bytes_max);
        // RFC 9113 §6.9.3: a client may have used the larger window before it received the setting.
        let difference = WINDOW_DEFAULT.saturating_sub(limits.initial_stream_window);
        if difference == 0 {
            return;
        }
        for key in self.streams.keys().collect::<Vec<_>>() {
            let stream = self.streams.at_mut(key.slot);
            stream.recv_window -= difference.cast_signed();
            if !stream.discarding {
                // Content sent with the larger window may already be consumed.
                self.release_capacity(key, 0, out);
            }
        }
    }

    // RFC 9113 §6.5.2: the valid values of each setting. Unknown ones must be ignored.
    fn apply_setting(&mut self, identifier: u16, value: u32) -> Result<(), Http2Error> {
        match identifier {
            setting_id::HEADER_TABLE_SIZE => self.encoder.set_peer_size_limit(value),
            setting_id::ENABLE_PUSH if value > 1 => return Err(Http2Error::EnablePushInvalid),
            setting_id::INITIAL_WINDOW_SIZE => {
                let window =
                    i32::try_from(value).map_err(|_| Http2Error::InitialWindowSizeInvalid)?;
                self.change_initial_window(window)?;
            }
            setting_id::MAX_FRAME_SIZE => {
                if !(PAYLOAD_BYTES_DEFAULT..=PAYLOAD_BYTES_CEILING).contains(&value) {
                    return Err(Http2Error::MaxFrameSizeInvalid);
                }
                self.peer_frame_bytes_max = value;
            }
            // RFC 8441 §3: the value must be 0 or 1.
            setting_id::ENABLE_CONNECT_PROTOCOL if value > 1 => {
                return Err(Http2Error::EnableConnectProtocolInvalid);
            }
            // RFC 9218 §2.1: any value other than 0 and 1 must be treated as a connection error.
            setting_id::NO_RFC7540_PRIORITIES if value > 1 => {
                return Err(Http2Error::NoRfc7540PrioritiesInvalid);
            }
            _ => {}
        }
        Ok(())
    }

    // RFC 9113 §6.9.2: a new initial window changes the windows of all streams by the difference,
    // which may make them negative; one that grows too large is a connection error.
    fn change_initial_window(&mut self, window: i32) -> Result<(), Http2Error> {
        let previous = std::mem::replace(&mut self.peer_initial_window, window);
        let difference = window - previous;
        for slot in 0..self.streams.slots() {
            let stream = self.streams.at_mut(slot);
            if stream.id == 0 {
                continue;
            }
            let window = stream.send_window.checked_add(difference);
            stream.send_window = window.ok_or(Http2Error::InitialWindowOverflow)?;
            self.requeue(slot);
        }
        Ok(())
    }

    /// Adds a stream to its queue or removes it, after its window has changed.
    #[inline]
    pub(super) fn requeue(&mut self, slot: Slot) {
        let stream = self.streams.at(slot);
        match (stream.may_send(), stream.queued) {
            (true, false) => self.queues.insert(&mut self.streams, slot),
            (false, true) => self.queues.remove(&mut self.streams, slot),
            _ => {}
        }
    }

    /// Reads a PING frame.
    pub(super) fn receive_ping(
        &mut self,
        limits: &Limits,
        header: FrameHeader,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Http2Error> {
        if !header.has_flags(flags::ACK) {
            self.budget.charge(Cost::Ping)?;
            self.budget.count_control_frame(limits)?;
            // RFC 9113 §6.7: a PING is answered by one with the same payload.
            frame::write_frame(FrameType::Ping, flags::ACK, 0, payload, out);
        } else if payload == RTT_PING && self.flow.is_measuring() {
            self.flow.on_rtt_pong(limits);
        } else if payload == RESPONSES_SEEN_PING && self.responses_seen_ping_pending {
            self.responses_seen_ping_pending = false;
            self.reset_unfinished_requests(out);
        } else if payload == SHUTDOWN_PING && self.goaway == GoAwayState::Sent {
            self.go_away_now(out);
        } else if payload != KEEP_ALIVE_PING || !std::mem::take(&mut self.keep_alive_ping_pending) {
            self.budget.charge(Cost::Unknown)?;
        }
        Ok(None)
    }

    /// Sends a PING to check whether the client is alive. Not only the acknowledgement proves that,
    /// but any bytes that arrive later.
    pub fn send_keep_alive_ping(&mut self, out: &mut Vec<u8>) {
        if self.receive.step != FrameReadState::Closed {
            self.keep_alive_ping_pending = true;
            frame::write_frame(FrameType::Ping, 0, 0, &KEEP_ALIVE_PING, out);
        }
    }

    /// Reads a WINDOW_UPDATE frame.
    pub(super) fn receive_window_update(
        &mut self,
        limits: &Limits,
        header: FrameHeader,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Http2Error> {
        self.budget.charge_window_update()?;
        let increment = frame::read_u32(payload).unwrap_or_default() & WINDOW_CEILING;
        let increment = increment.cast_signed();
        if header.stream_id == 0 {
            // RFC 9113 §6.9: an increment of 0 is an error; §6.9.1: so is a window above 2^31-1.
            if increment == 0 {
                return Err(Http2Error::WindowZero);
            }
            let window = self.send_window.checked_add(increment);
            self.send_window = window.ok_or(Http2Error::WindowOverflow)?;
            let acknowledged = increment.cast_unsigned();
            self.unacknowledged = self.unacknowledged.saturating_sub(acknowledged);
            return Ok(None);
        }
        let slot = match self.streams.find(header.stream_id) {
            StreamLookup::Open(slot) => slot,
            StreamLookup::Idle => return Err(Http2Error::StreamIdle),
            // RFC 9113 §5.1: WINDOW_UPDATE may arrive for a short time after a stream's end, for
            // each frame of a long burst. It is charged above, like every other.
            StreamLookup::Closed(_) => return Ok(None),
        };
        let state = self.streams.at_mut(slot);
        let error = match state.send_window.checked_add(increment) {
            _ if increment == 0 => Http2Error::StreamWindowZero,
            None => Http2Error::StreamWindowOverflow,
            Some(window) => {
                state.send_window = window;
                let acknowledged = increment.cast_unsigned();
                state.unacknowledged = state.unacknowledged.saturating_sub(acknowledged);
                self.requeue(slot);
                return Ok(None);
            }
        };
        let stream = StreamKey { id: header.stream_id, slot };
        self.stream_error(limits, stream, error, out)
    }

    /// Reads an RST_STREAM frame.
    pub(super) fn receive_rst_stream(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Http2Error> {
        let code = ErrorCode(frame::read_u32(payload).unwrap_or_default());
        match self.streams.find(header.stream_id) {
            StreamLookup::Open(slot) => {
                let state = self.streams.at(slot);
                let should_report = !state.is_closing;
                let cost = match state.sending {
                    // After a complete response, a reset only means that the client sends no more.
                    _ if state.has_unfinished_request() => Cost::FrameOnClosedStream,
                    ResponseState::Waiting => Cost::StreamReset,
                    ResponseState::Exact | ResponseState::Unknown | ResponseState::Done => {
                        Cost::StreamResetDuringResponse
                    }
                };
                self.budget.charge(cost)?;
                let stream = StreamKey { id: header.stream_id, slot };
                self.close_stream(stream, Transition::ResetByPeer, out);
                Ok(should_report
                    .then_some(Event::Reset { stream, cause: ResetCause::Remote(code) }))
            }
            // RFC 9113 §6.4: RST_STREAM on an idle stream is a connection error.
            StreamLookup::Idle => Err(Http2Error::StreamIdle),
            StreamLookup::Closed(_) => self.budget.charge(Cost::FrameOnClosedStream).map(|()| None),
        }
    }

    /// Reads a PRIORITY frame, which no longer has an effect.
    // RFC 9113 §6.3: a PRIORITY frame with a length other than 5 is a stream error.
    pub(super) fn receive_priority(
        &mut self,
        limits: &Limits,
        header: FrameHeader,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Http2Error> {
        let error = Http2Error::PriorityLength;
        self.budget.charge(Cost::Priority)?;
        match self.streams.find(header.stream_id) {
            _ if header.length == 5 => Ok(None),
            StreamLookup::Open(slot) => {
                let stream = StreamKey { id: header.stream_id, slot };
                self.stream_error(limits, stream, error, out)
            }
            // Without an open stream, there is nothing to reset.
            StreamLookup::Idle | StreamLookup::Closed(_) => Err(error),
        }
    }

    /// Reads a PRIORITY_UPDATE frame.
    // RFC 9218 §7.1: the frame names its stream, which must be one that a client may open; for an
    // idle stream the last one is kept until the request arrives.
    pub(super) fn receive_priority_update(
        &mut self,
        payload: &[u8],
    ) -> Result<Option<Event>, Http2Error> {
        self.budget.charge(Cost::PriorityUpdate)?;
        let id = frame::read_u32(payload).unwrap_or_default() & WINDOW_CEILING;
        if id.is_multiple_of(2) {
            return Err(Http2Error::PriorityUpdateStream);
        }
        let priority = Priority::parse(payload.get(4..).unwrap_or_default());
        match self.streams.find(id) {
            StreamLookup::Open(slot) => {
                self.queues.remove(&mut self.streams, slot);
                self.streams.at_mut(slot).priority = priority;
                self.requeue(slot);
            }
            StreamLookup::Idle => {
                let existing = self.early_priorities.iter().position(|(early, _)| *early == id);
                // The newest priority is first. If there is no room, the oldest is dropped.
                let index = existing.unwrap_or(self.early_priorities.len() - 1);
                self.early_priorities[..=index].rotate_right(1);
                self.early_priorities[0] = (id, priority);
            }
            StreamLookup::Closed(_) => {}
        }
        Ok(None)
    }
}
