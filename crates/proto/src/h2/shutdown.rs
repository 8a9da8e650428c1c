//! The end of a connection: GOAWAY, connection errors, and the end of the received bytes.

use super::connection::{Connection, GoAwayState};
use super::control::SHUTDOWN_PING;
use super::error::Http2Error;
use super::event::Event;
use super::frame::{self, ErrorCode, FrameType, WINDOW_CEILING};
use super::receive::FrameReadState;

impl Connection {
    /// Stops accepting requests, in two steps: GOAWAY and a PING are sent, and requests that the
    /// client sent before receiving them are still served; when the PING is acknowledged, a second
    /// GOAWAY fixes the last stream. If the acknowledgement does not arrive in time, call
    /// [`go_away_now`](Self::go_away_now).
    // RFC 9113 §6.8: a server that shuts down gracefully sends GOAWAY with the largest identifier,
    // and after a round trip another one with the last stream that it serves.
    pub fn begin_shutdown(&mut self, out: &mut Vec<u8>) {
        if self.goaway == GoAwayState::NotSent && self.receive.step != FrameReadState::Closed {
            self.goaway = GoAwayState::Sent;
            frame::write_go_away(WINDOW_CEILING, ErrorCode::NO_ERROR, out);
            frame::write_frame(FrameType::Ping, 0, 0, &SHUTDOWN_PING, out);
        }
    }

    /// Stops accepting requests immediately: those after the last one received are ignored, and the
    /// client can retry them elsewhere.
    pub fn go_away_now(&mut self, out: &mut Vec<u8>) {
        if !matches!(self.goaway, GoAwayState::Final(_))
            && self.receive.step != FrameReadState::Closed
        {
            let last = self.streams.highest();
            self.goaway = GoAwayState::Final(last);
            frame::write_go_away(last, ErrorCode::NO_ERROR, out);
        }
    }

    /// Ends the connection for a reason other than an error of the client, such as a deadline.
    /// Nothing more is received, and nothing more may be written.
    pub fn close(&mut self, code: ErrorCode, out: &mut Vec<u8>) {
        if self.receive.step != FrameReadState::Closed {
            frame::write_go_away(self.last_stream(), code, out);
            self.receive.step = FrameReadState::Closed;
        }
    }

    /// Ends the connection because the peer violated one of its rules.
    // RFC 9113 §5.4.1: an endpoint that encounters a connection error should first send GOAWAY with
    // the last stream that it processed, and must then close the connection.
    #[cold]
    pub(super) fn connection_error(&mut self, error: Http2Error, out: &mut Vec<u8>) -> Event {
        self.close(error.code(), out);
        Event::ConnectionError(error)
    }

    /// Must be called when the peer has finished sending, after all earlier bytes were passed to
    /// [`receive`](Self::receive), which returned [`Event::NeedInput`]. Incomplete requests
    /// fail; responses to complete ones can still be sent, because the peer may have closed only
    /// its own direction.
    pub fn receive_eof(&mut self) -> Event {
        if self.receive.step == FrameReadState::Closed {
            return Event::Closed;
        }
        let is_mid_frame = self.receive.is_mid_frame();
        self.receive.step = FrameReadState::Closed;
        if is_mid_frame { Event::ConnectionError(Http2Error::UnexpectedEof) } else { Event::Closed }
    }

    fn last_stream(&self) -> u32 {
        match self.goaway {
            GoAwayState::Final(last) => last,
            GoAwayState::NotSent | GoAwayState::Sent => self.streams.highest(),
        }
    }
}
