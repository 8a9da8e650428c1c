//! Control frames: SETTINGS, PING, WINDOW_UPDATE, RST_STREAM, and priorities.

use super::budget::Deed;
use super::connection::{Connection, Going};
use super::event::{Cause, Event};
use super::frame::{
    self, Code, Header, Kind, PAYLOAD_BYTES_CEILING, PAYLOAD_BYTES_DEFAULT, SETTING_BYTES,
    WINDOW_CEILING, flag, setting,
};
use super::limits::{Limits, WINDOW_DEFAULT};
use super::priority::Priority;
use super::receive::Step;
use super::reject::Reject;
use super::streams::{Found, Move, Sending, Slot, StreamKey};

/// The payload of a PING that measures the round trip.
pub(super) const MEASURE: [u8; 8] = *b"measure?";
/// The payload of a PING whose answer shows that the client has seen the responses before it.
pub(super) const LEAVE: [u8; 8] = *b"answered";
/// The payload of a PING whose answer shows that the client has received the GOAWAY before it.
pub(super) const GOING: [u8; 8] = *b"go away?";
/// The payload of a PING that checks whether the client is there.
pub(super) const ASK: [u8; 8] = *b"present?";

impl Connection {
    /// Reads a SETTINGS frame.
    pub(super) fn settings(
        &mut self,
        limits: &Limits,
        header: Header,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Reject> {
        if header.has(flag::ACK) {
            if self.settings_hold {
                self.budget.charge(Deed::Unknown)?;
            } else {
                self.settings_hold = true;
                self.apply_own_settings(limits, out);
            }
            return Ok(None);
        }
        if self.receive.step == Step::Frame {
            self.budget.charge(Deed::Settings(payload.len() / SETTING_BYTES))?;
        }
        self.receive.step = Step::Frame;
        // RFC 9113 §6.5.3: the values are processed in the order in which they appear.
        for (identifier, value) in frame::settings(payload) {
            self.apply_setting(identifier, value)?;
        }
        // RFC 9113 §6.5.3: after all values were processed, the acknowledgement is sent
        // immediately.
        self.budget.answer(limits)?;
        frame::write(Kind::Settings, flag::ACK, 0, &[], out);
        Ok(Some(Event::Settings))
    }

    /// Applies the server's settings, which the client has acknowledged.
    fn apply_own_settings(&mut self, limits: &Limits, out: &mut Vec<u8>) {
        self.decoder.set_size_max(limits.decoder_table_bytes_max);
        // RFC 9113 §6.9.3: a client may have used the larger window before it received the setting.
        let less = WINDOW_DEFAULT.saturating_sub(limits.stream_window);
        if less == 0 {
            return;
        }
        for key in self.streams.keys().collect::<Vec<_>>() {
            let stream = self.streams.at_mut(key.slot);
            stream.window -= less.cast_signed();
            if !stream.discarding {
                // Content sent with the larger window may already be consumed.
                self.consumed(key, 0, out);
            }
        }
    }

    // RFC 9113 §6.5.2: the valid values of each setting. Unknown ones must be ignored.
    fn apply_setting(&mut self, identifier: u16, value: u32) -> Result<(), Reject> {
        match identifier {
            setting::HEADER_TABLE_SIZE => self.encoder.set_size_allowed(value),
            setting::ENABLE_PUSH if value > 1 => return Err(Reject::SettingPush),
            setting::INITIAL_WINDOW_SIZE => {
                let window = i32::try_from(value).map_err(|_| Reject::SettingWindow)?;
                self.change_initial_window(window)?;
            }
            setting::MAX_FRAME_SIZE => {
                if !(PAYLOAD_BYTES_DEFAULT..=PAYLOAD_BYTES_CEILING).contains(&value) {
                    return Err(Reject::SettingFrameSize);
                }
                self.frame_bytes_max = value;
            }
            // RFC 8441 §3: the value must be 0 or 1.
            setting::ENABLE_CONNECT_PROTOCOL if value > 1 => return Err(Reject::SettingConnect),
            // RFC 9218 §2.1: any value other than 0 and 1 must be treated as a connection error.
            setting::NO_RFC7540_PRIORITIES if value > 1 => return Err(Reject::SettingPriorities),
            _ => {}
        }
        Ok(())
    }

    // RFC 9113 §6.9.2: a new initial window changes the windows of all streams by the difference,
    // which may make them negative; one that grows too large is a connection error.
    fn change_initial_window(&mut self, window: i32) -> Result<(), Reject> {
        let before = std::mem::replace(&mut self.initial_window, window);
        let difference = window - before;
        for slot in 0..self.streams.places() {
            let stream = self.streams.at_mut(slot);
            if stream.id == 0 {
                continue;
            }
            let window = stream.send_window.checked_add(difference);
            stream.send_window = window.ok_or(Reject::InitialWindowOverflow)?;
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
    pub(super) fn ping(
        &mut self,
        limits: &Limits,
        header: Header,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Reject> {
        if !header.has(flag::ACK) {
            self.budget.charge(Deed::Ping)?;
            self.budget.answer(limits)?;
            // RFC 9113 §6.7: a PING is answered by one with the same payload.
            frame::write(Kind::Ping, flag::ACK, 0, payload, out);
        } else if payload == MEASURE && self.flow.is_measuring() {
            self.flow.measured(limits);
        } else if payload == LEAVE && self.asked_to_leave {
            self.asked_to_leave = false;
            self.reset_leaving(out);
        } else if payload == GOING && self.going == Going::Told {
            self.drain_at_once(out);
        } else if payload != ASK || !std::mem::take(&mut self.asked) {
            self.budget.charge(Deed::Unknown)?;
        }
        Ok(None)
    }

    /// Checks by PING whether the client is there. Anything it then sends counts as an answer.
    pub fn ask(&mut self, out: &mut Vec<u8>) {
        if self.receive.step != Step::Closed {
            self.asked = true;
            frame::write(Kind::Ping, 0, 0, &ASK, out);
        }
    }

    /// Reads a WINDOW_UPDATE frame.
    pub(super) fn window_update(
        &mut self,
        limits: &Limits,
        header: Header,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Reject> {
        self.budget.window_update()?;
        let increment = frame::number(payload).unwrap_or_default() & WINDOW_CEILING;
        let increment = increment.cast_signed();
        if header.stream == 0 {
            // RFC 9113 §6.9: an increment of 0 is an error; §6.9.1: so is a window above 2^31-1.
            if increment == 0 {
                return Err(Reject::WindowZero);
            }
            let window = self.send_window.checked_add(increment);
            self.send_window = window.ok_or(Reject::WindowOverflow)?;
            let acknowledged = increment.cast_unsigned();
            self.unacknowledged = self.unacknowledged.saturating_sub(acknowledged);
            return Ok(None);
        }
        let slot = match self.streams.find(header.stream) {
            Found::Open(slot) => slot,
            Found::Idle => return Err(Reject::StreamIdle),
            // RFC 9113 §5.1: WINDOW_UPDATE may arrive for a short time after a stream's end, for
            // each frame of a long burst. It is charged above, like every other.
            Found::Closed(_) => return Ok(None),
        };
        let state = self.streams.at_mut(slot);
        let reject = match state.send_window.checked_add(increment) {
            _ if increment == 0 => Reject::StreamWindowZero,
            None => Reject::StreamWindowOverflow,
            Some(window) => {
                state.send_window = window;
                let acknowledged = increment.cast_unsigned();
                state.unacknowledged = state.unacknowledged.saturating_sub(acknowledged);
                self.requeue(slot);
                return Ok(None);
            }
        };
        let stream = StreamKey { id: header.stream, slot };
        self.fault(limits, stream, reject, out)
    }

    /// Reads an RST_STREAM frame.
    pub(super) fn reset_stream(
        &mut self,
        header: Header,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Reject> {
        let code = Code(frame::number(payload).unwrap_or_default());
        match self.streams.find(header.stream) {
            Found::Open(slot) => {
                let state = self.streams.at(slot);
                let is_known = !state.leaving;
                let deed = match state.sending {
                    // After a complete response, a reset only means that the client sends no more.
                    _ if state.is_unfinished() => Deed::Late,
                    Sending::Waiting => Deed::Reset,
                    Sending::Exact | Sending::Unknown | Sending::Done => Deed::ResetWithin,
                };
                self.budget.charge(deed)?;
                let stream = StreamKey { id: header.stream, slot };
                self.close_stream(stream, Move::ResetByPeer, out);
                Ok(is_known.then_some(Event::Reset { stream, cause: Cause::Peer(code) }))
            }
            // RFC 9113 §6.4: RST_STREAM on an idle stream is a connection error.
            Found::Idle => Err(Reject::StreamIdle),
            Found::Closed(_) => self.budget.charge(Deed::Late).map(|()| None),
        }
    }

    /// Reads a PRIORITY frame, which no longer has an effect.
    // RFC 9113 §6.3: a PRIORITY frame with a length other than 5 is a stream error.
    pub(super) fn priority(
        &mut self,
        limits: &Limits,
        header: Header,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Reject> {
        let reject = Reject::PriorityLength;
        self.budget.charge(Deed::Priority)?;
        match self.streams.find(header.stream) {
            _ if header.length == 5 => Ok(None),
            Found::Open(slot) => {
                let stream = StreamKey { id: header.stream, slot };
                self.fault(limits, stream, reject, out)
            }
            // Without an open stream, there is nothing to reset.
            Found::Idle | Found::Closed(_) => Err(reject),
        }
    }

    /// Reads a PRIORITY_UPDATE frame.
    // RFC 9218 §7.1: the frame names its stream, which must be one that a client may open; for an
    // idle stream the last one is kept until the request arrives.
    pub(super) fn priority_update(&mut self, payload: &[u8]) -> Result<Option<Event>, Reject> {
        self.budget.charge(Deed::PriorityUpdate)?;
        let id = frame::number(payload).unwrap_or_default() & WINDOW_CEILING;
        if id.is_multiple_of(2) {
            return Err(Reject::PriorityUpdateStream);
        }
        let priority = Priority::parse(payload.get(4..).unwrap_or_default());
        match self.streams.find(id) {
            Found::Open(slot) => {
                self.queues.remove(&mut self.streams, slot);
                self.streams.at_mut(slot).priority = priority;
                self.requeue(slot);
            }
            Found::Idle => {
                let known = self.early.iter().position(|(early, _)| *early == id);
                // The oldest priority is replaced.
                let last = known.unwrap_or(self.early.len() - 1);
                self.early[..=last].rotate_right(1);
                self.early[0] = (id, priority);
            }
            Found::Closed(_) => {}
        }
        Ok(None)
    }
}
