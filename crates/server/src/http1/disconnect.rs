//! Detects that the peer has disconnected while a handler runs or a response is being sent.

use super::{ExchangeState, Http1};
use crate::io::context::{Action, ConnectionContext, Interest};
use crate::io::timeouts::TimeoutKind;
use crate::observe::close_reason::CloseReason;
use peregrine_driver::Driver;
use peregrine_web::coop;

/// Whether the response's body has produced content in this turn. A handler that has not responded
/// has produced none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseProgress {
    NoContent,
    Content,
}

impl Http1 {
    /// Handles a peer that has ended its sending side, when nothing more of its request is needed.
    /// Nearly every client that does so has closed its socket. So the server closes the connection
    /// if the handler, or a response stream of unknown length, has to wait. A response of known
    /// length is sent to its end. With `half_close`, the server assumes that the client only shut
    /// down its sending side, and continues in any case.
    pub(super) fn on_peer_eof<D: Driver>(
        &mut self,
        progress: ResponseProgress,
        conn: &mut ConnectionContext<'_, D>,
    ) -> Action {
        if conn.listener.limits.http1.half_close {
            // A probe checks the socket, which shows a reset only if the server has sent something.
            // An interim response is possible only before the final response. Once that has begun,
            // the next write shows whether the peer is still connected.
            let is_probe_scheduled = conn.io.deadlines.get(TimeoutKind::Probe).is_some();
            if self.can_probe
                && !is_probe_scheduled
                && matches!(self.state, ExchangeState::RunningHandler)
            {
                self.send_interim_probe(conn);
            }
        } else if self.is_response_length_unknown() && !coop::has_yield_request() {
            return match progress {
                // The body might only have yielded, for example because its Tokio budget is used
                // up. The next poll shows whether it has more content.
                ResponseProgress::Content => Action::Yield(Interest::default()),
                ResponseProgress::NoContent => Action::close(CloseReason::PeerAborted),
            };
        }
        // A future that requested to yield is not waiting. The caller of the turn replaces this
        // `Wait` by a yield, and the next turn polls the future again.
        self.schedule_probe(conn);
        Action::Wait(Interest::default())
    }

    /// Returns whether the length of the response is still unknown: the handler has not responded,
    /// or it returned a stream of unknown length.
    fn is_response_length_unknown(&self) -> bool {
        match &self.state {
            ExchangeState::RunningHandler => true,
            ExchangeState::SendingStreamed(writer) => writer.has_unknown_length(),
            ExchangeState::ReadingHead
            | ExchangeState::SendingFull(_)
            | ExchangeState::ReceivingAfterResponse { .. }
            | ExchangeState::DiscardingBody => false,
        }
    }

    /// Schedules a check of the socket, unless one is scheduled. Called while the server does not
    /// receive: the reader of the request's body does not read, the read-ahead limit is reached, or
    /// the peer has ended its sending side. Without receiving, the server detects a reset only by
    /// checking the socket from time to time.
    pub(super) fn schedule_probe<D: Driver>(&mut self, conn: &mut ConnectionContext<'_, D>) {
        self.probe.schedule_if_unset(|| conn.worker.driver.now(), &mut conn.io.deadlines);
    }

    /// Sends an interim response, so that the next probe finds out whether the peer is still
    /// connected. With `half_close`, a peer that has ended its sending side may have disconnected,
    /// or may wait for its response. TCP reveals the difference only when the server sends: a
    /// closed socket responds with a reset.
    // RFC 9110 §15.2: a client must be able to parse interim responses that it does not expect.
    fn send_interim_probe<D: Driver>(&mut self, conn: &mut ConnectionContext<'_, D>) {
        conn.protocol.send_interim(102, std::iter::empty(), &mut conn.io.output.plaintext);
        self.probe.schedule(conn.worker.driver.now(), &mut conn.io.deadlines);
    }
}
