//! Handles expired deadlines: of heads, streams, PING and GOAWAY.

use super::streams::{Stream, StreamState};
use super::{Http2, protocol};
use crate::io::context::{Action, ConnectionContext};
use crate::io::timeouts::TimeoutKind;
use crate::observe::close_reason::CloseReason;
use crate::observe::metrics::ErrorType;
use peregrine_driver::{Driver, Stream as _};
use peregrine_proto::h2::ErrorCode;
use peregrine_web::Problem;
use peregrine_web::body::BodyError;
use peregrine_web::panic::catch_subscriber_panic;
use std::task::Context;
use std::time::Duration;

impl Http2 {
    /// Handles an expired deadline.
    pub(crate) fn on_timeout<D: Driver>(
        &mut self,
        kind: TimeoutKind,
        conn: &mut ConnectionContext<'_, D>,
    ) -> Action {
        match kind {
            TimeoutKind::Head => Action::linger(CloseReason::HeadTimeout),
            TimeoutKind::NextStream => {
                self.check_deadlines(conn);
                Action::Continue
            }
            TimeoutKind::Ping => self.on_ping_deadline(conn),
            _ => Action::Continue,
        }
    }

    /// Schedules the next PING, unless one is already scheduled or waits for its reply. Received
    /// bytes restart the interval. Called while streams are open.
    pub(super) fn schedule_ping<D: Driver>(&mut self, conn: &mut ConnectionContext<'_, D>) {
        let Some(interval) = conn.listener.limits.http2.keep_alive_interval else { return };
        let received = conn.io.input.bytes_received();
        if received != self.last_bytes_received
            || conn.io.deadlines.get(TimeoutKind::Ping).is_none()
        {
            (self.last_bytes_received, self.is_ping_pending) = (received, false);
            conn.io
                .deadlines
                .set(TimeoutKind::Ping, conn.worker.driver.now().saturating_add(interval));
        }
    }

    /// Sends one PING to a silent client. When called again, closes the connection if the client
    /// has sent no bytes since then.
    ///
    /// While the client still receives output that was queued before the PING, it cannot have seen
    /// the PING, so the check is repeated: with a large window, a slow reader may be silent for
    /// minutes. Output that the kernel accepted immediately does not count, because it shows
    /// nothing about the client.
    fn on_ping_deadline<D: Driver>(&mut self, conn: &mut ConnectionContext<'_, D>) -> Action {
        // If bytes were received, `schedule_ping` restarts the interval. If too much output is
        // waiting, the server does not receive, and the send deadline applies instead.
        if conn.io.input.bytes_received() != self.last_bytes_received || conn.is_output_over_limit()
        {
            return Action::Continue;
        }
        let (written, is_output_waiting) = (conn.stream.bytes_written(), !conn.stream.is_flushed());
        let is_progressing =
            written != self.last_bytes_written && (is_output_waiting || self.was_output_waiting);
        if self.is_ping_pending && !is_progressing {
            return Action::close(CloseReason::PingTimeout);
        }
        if !self.is_ping_pending {
            protocol(&mut self.core).send_keep_alive_ping(&mut conn.io.output.plaintext);
        }
        (self.is_ping_pending, self.last_bytes_written) = (true, written);
        self.was_output_waiting = is_output_waiting;
        let reply_timeout = conn.listener.limits.transfer_rate_grace;
        let deadline = conn.worker.driver.now().saturating_add(reply_timeout);
        conn.io.deadlines.set(TimeoutKind::Ping, deadline);
        Action::Continue
    }

    /// If the core holds content back, starts a timer that wakes the connection when the content
    /// must be sent. The timer wheel is too coarse for this.
    pub(super) fn schedule_held_content<D: Driver>(
        &mut self,
        conn: &ConnectionContext<'_, D>,
        cx: &Context<'_>,
    ) {
        let driver = &conn.worker.driver;
        let Some(release_at_ms) = protocol(&mut self.core).next_release_at() else { return };
        if self.held_until > driver.now() {
            // A timer is already running. When it fires, the next turn calls this method again.
            return;
        }
        let held_until = Duration::from_millis(release_at_ms);
        self.held_until = held_until;
        let (driver_clone, waker) = (driver.clone(), cx.waker().clone());
        driver.spawn_boxed(Box::pin(async move {
            driver_clone.sleep_until(held_until).await;
            waker.wake();
        }));
    }

    /// Schedules a check of a stream's deadlines when the first of them expires.
    pub(super) fn schedule_stream_timer<D: Driver>(
        &mut self,
        slot: u32,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let deadline = self.streams.at(slot).deadlines.next_deadline();
        if deadline != Duration::MAX {
            conn.io.deadlines.set_if_earlier(TimeoutKind::NextStream, deadline);
        }
    }

    /// Handles the expired deadlines of all streams, and schedules the next check.
    fn check_deadlines<D: Driver>(&mut self, conn: &mut ConnectionContext<'_, D>) {
        let now = conn.worker.driver.now();
        self.finish_goaway(now, conn);
        for slot in self.streams.slots() {
            let Some(previous) = self.streams.get(slot).map(|stream| stream.deadlines) else {
                continue;
            };
            self.check_stream(slot, now, conn);
            if let Some(Stream { deadlines, .. }) = self.streams.get(slot) {
                // If an expired deadline remained, the timer would fire immediately, in a loop.
                let is_handled = deadlines.next_deadline() > now || *deadlines != previous;
                debug_assert!(is_handled, "an expired deadline was neither moved nor cleared");
                self.schedule_stream_timer(slot, conn);
            }
        }
    }

    /// Stops accepting streams once the peer has had time to receive the GOAWAY.
    fn finish_goaway<D: Driver>(&mut self, now: Duration, conn: &mut ConnectionContext<'_, D>) {
        let goaway_sent_at = self.core.as_ref().and_then(|core| core.goaway_sent_at());
        let Some(goaway_sent_at) = goaway_sent_at else { return };
        let deadline = goaway_sent_at.saturating_add(conn.listener.limits.drain_idle_timeout);
        if deadline <= now {
            protocol(&mut self.core).go_away_now(&mut conn.io.output.plaintext);
        } else {
            conn.io.deadlines.set_if_earlier(TimeoutKind::NextStream, deadline);
        }
    }

    /// Handles the expired deadlines of a stream.
    fn check_stream<D: Driver>(
        &mut self,
        slot: u32,
        now: Duration,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let Some(stream) = self.streams.get(slot) else { return };
        let deadlines = stream.deadlines;
        let is_running = matches!(stream.state, StreamState::RunningHandler);
        if is_running && deadlines.handler.min(deadlines.exchange) <= now {
            conn.worker.instrumentation.record_limit(match deadlines.handler <= now {
                true => "route_timeout",
                false => "exchange_timeout",
            });
            stream.exchange.metrics.set_error(ErrorType::Timeout);
            stream.exchange.drop_handler();
            stream.deadlines.exchange = Duration::MAX;
            return self.respond_problem(slot, Problem::handler_timeout(), conn);
        }
        // The response is complete, but a task still reads the body, and it took too long.
        // `BodyError` has no variant for that, so the task gets `Disconnected`.
        if deadlines.current_state.min(deadlines.exchange) <= now
            && matches!(stream.state, StreamState::ReceivingAfterResponse)
        {
            stream.request_body.fail(BodyError::Disconnected);
            return self.discard_after_response(slot, conn);
        }
        // In `SendingStreamed`, only an upgraded protocol (a tunnel) sets `current_state`: its idle
        // timeout.
        if deadlines.current_state <= now && matches!(stream.state, StreamState::SendingStreamed(_))
        {
            conn.worker.instrumentation.record_limit("upgraded_idle_timeout");
            return self.reset_timed_out(slot, "its upgraded protocol was idle for too long", conn);
        }
        if deadlines.exchange <= now {
            conn.worker.instrumentation.record_limit("exchange_timeout");
            return self.reset_timed_out(slot, "its exchange took too long", conn);
        }
        // RFC 9113 §8.1: after a complete response, the server may request that the client stop
        // sending, by RST_STREAM with NO_ERROR.
        if matches!(stream.state, StreamState::DiscardingBody) {
            if deadlines.receive.min(deadlines.current_state) <= now {
                self.reset_stream(slot, ErrorCode::NO_ERROR, conn);
            }
            return;
        }
        // The peer may have sent content or opened its windows after these deadlines were set. If
        // so, the update moves the deadline.
        if deadlines.receive <= now {
            self.update_receive_timer(slot, conn);
            let stream = self.streams.at(slot);
            if stream.deadlines.receive <= now {
                conn.worker.instrumentation.record_limit("transfer_rate_min");
                stream.request_body.fail(BodyError::TooSlow);
                self.discard_body(slot, conn);
            }
        }
        if deadlines.send <= now {
            self.update_send_timer(slot, conn);
            if self.streams.at(slot).deadlines.send <= now {
                conn.worker.instrumentation.record_limit("transfer_rate_min");
                self.reset_timed_out(slot, "the peer did not open its window", conn);
            }
        }
    }

    /// Resets a stream because of an expired deadline, and logs the `reason`.
    fn reset_timed_out<D: Driver>(
        &mut self,
        slot: u32,
        reason: &str,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let request = self.streams.at(slot).exchange.request_name();
        let request = request.map(ToString::to_string).unwrap_or_default();
        let peer = &conn.info.peer;
        catch_subscriber_panic(
            || tracing::debug!(target: "peregrine", request, %peer, "a stream was reset: {reason}"),
        );
        self.reset_stream(slot, ErrorCode::CANCEL, conn);
    }
}
