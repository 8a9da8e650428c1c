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
use peregrine_web::panic::catch_log_panic;
use std::task::Context;
use std::time::Duration;

impl Http2 {
    /// Handles the expired deadline of `wait`.
    pub(crate) fn on_timeout<D: Driver>(
        &mut self,
        wait: TimeoutKind,
        link: &mut ConnectionContext<'_, D>,
    ) -> Action {
        match wait {
            TimeoutKind::Head => Action::linger(CloseReason::HeadTimeout),
            TimeoutKind::NextStream => {
                self.check_deadlines(link);
                Action::Continue
            }
            TimeoutKind::Ping => self.send_ping(link),
            _ => Action::Continue,
        }
    }

    /// Schedules the next PING. Called while streams are open. Each received byte starts the
    /// timeout again.
    pub(super) fn schedule_ping<D: Driver>(&mut self, link: &mut ConnectionContext<'_, D>) {
        let Some(after) = link.listener.limits.http2.keep_alive_interval else { return };
        let heard = link.io.input.bytes_received();
        if heard != self.last_bytes_received || link.io.deadlines.get(TimeoutKind::Ping).is_none() {
            (self.last_bytes_received, self.is_ping_pending) = (heard, false);
            link.io
                .deadlines
                .set(TimeoutKind::Ping, link.worker.driver.now().saturating_add(after));
        }
    }

    /// Sends one PING to a silent client, and closes the connection if the client does not react.
    /// While the client still receives output that was queued before the PING, it cannot have seen
    /// the PING: with a large window, a slow reader may be silent for minutes. Output that the
    /// kernel took at once does not count, because it shows nothing about the client.
    fn send_ping<D: Driver>(&mut self, link: &mut ConnectionContext<'_, D>) -> Action {
        // If too much output is waiting, the server does not receive, and the deadline for sending
        // applies instead.
        if link.io.input.bytes_received() != self.last_bytes_received || link.is_output_over_limit()
        {
            return Action::Continue;
        }
        let (taken, waits) = (link.stream.bytes_written(), !link.stream.is_flushed());
        let is_taking = taken != self.last_bytes_written.0 && (waits || self.last_bytes_written.1);
        if self.is_ping_pending && !is_taking {
            return Action::close(CloseReason::PingTimeout);
        }
        if !self.is_ping_pending {
            protocol(&mut self.core).send_keep_alive_ping(&mut link.io.output.plaintext);
        }
        (self.is_ping_pending, self.last_bytes_written) = (true, (taken, waits));
        let until =
            link.worker.driver.now().saturating_add(link.listener.limits.transfer_rate_grace);
        link.io.deadlines.set(TimeoutKind::Ping, until);
        Action::Continue
    }

    /// Starts a timer that wakes the connection when content that the core holds back must be sent.
    /// The timer wheel is too coarse for this.
    pub(super) fn await_release<D: Driver>(
        &mut self,
        link: &ConnectionContext<'_, D>,
        context: &Context<'_>,
    ) {
        let driver = &link.worker.driver;
        let Some(until_ms) = protocol(&mut self.core).next_release_at() else { return };
        // An earlier timer is running. It starts a turn, which calls this method again.
        if self.release_at > driver.now() {
            return;
        }
        let until = Duration::from_millis(until_ms);
        self.release_at = until;
        let (timer, waker) = (driver.clone(), context.waker().clone());
        driver.spawn_boxed(Box::pin(async move {
            timer.sleep_until(until).await;
            waker.wake();
        }));
    }

    /// Schedules a check of a stream's deadlines when the first of them expires.
    pub(super) fn schedule_stream_timer<D: Driver>(
        &mut self,
        number: u32,
        link: &mut ConnectionContext<'_, D>,
    ) {
        let first = self.streams.at(number).deadlines.next_deadline();
        if first != Duration::MAX {
            link.io.deadlines.set_earlier(TimeoutKind::NextStream, first);
        }
    }

    fn check_deadlines<D: Driver>(&mut self, link: &mut ConnectionContext<'_, D>) {
        let now = link.worker.driver.now();
        self.finish_goaway(now, link);
        for number in self.streams.numbers() {
            let Some(before) = self.streams.get(number).map(|stream| stream.deadlines) else {
                continue;
            };
            self.check_stream(number, now, link);
            if let Some(Stream { deadlines, .. }) = self.streams.get(number) {
                // If an expired deadline stayed, the timer would fire at once, again and again.
                let is_over = deadlines.next_deadline() > now || *deadlines != before;
                debug_assert!(is_over, "a deadline passed, and nothing was done");
                self.schedule_stream_timer(number, link);
            }
        }
    }

    /// Stops accepting streams after the peer has had time to receive the GOAWAY.
    fn finish_goaway<D: Driver>(&mut self, now: Duration, link: &mut ConnectionContext<'_, D>) {
        let told_at = self.core.as_ref().and_then(|core| core.goaway_sent_at());
        let Some(told_at) = told_at else { return };
        let until = told_at.saturating_add(link.listener.limits.drain_idle_timeout);
        if until <= now {
            protocol(&mut self.core).go_away_now(&mut link.io.output.plaintext);
        } else {
            link.io.deadlines.set_earlier(TimeoutKind::NextStream, until);
        }
    }

    fn check_stream<D: Driver>(
        &mut self,
        number: u32,
        now: Duration,
        link: &mut ConnectionContext<'_, D>,
    ) {
        let Some(stream) = self.streams.get(number) else { return };
        let deadlines = stream.deadlines;
        let is_handling = matches!(stream.state, StreamState::RunningHandler);
        if is_handling && deadlines.handler.min(deadlines.exchange) <= now {
            link.worker.instrumentation.record_limit(match deadlines.handler <= now {
                true => "route_timeout",
                false => "exchange_timeout",
            });
            stream.exchange.metrics.set_error(ErrorType::Timeout);
            stream.exchange.drop_handler();
            stream.deadlines.exchange = Duration::MAX;
            return self.respond_problem(number, Problem::handler_timeout(), link);
        }
        if deadlines.idle.min(deadlines.exchange) <= now
            && matches!(stream.state, StreamState::ReceivingBody)
        {
            stream.request_body.fail(BodyError::Disconnected);
            return self.drain_body(number, link);
        }
        if deadlines.idle <= now && matches!(stream.state, StreamState::SendingStream(_)) {
            link.worker.instrumentation.record_limit("upgraded_idle_timeout");
            return self.reset_timed_out(
                number,
                "its upgraded protocol was idle for too long",
                link,
            );
        }
        if deadlines.exchange <= now {
            link.worker.instrumentation.record_limit("exchange_timeout");
            return self.reset_timed_out(number, "its exchange took too long", link);
        }
        // RFC 9113 §8.1: after a complete response, the server may ask the client to stop sending
        // the request, by RST_STREAM with NO_ERROR.
        if matches!(stream.state, StreamState::DrainingBody) {
            if deadlines.receive.min(deadlines.idle) <= now {
                self.reset_stream(number, ErrorCode::NO_ERROR, link);
            }
            return;
        }
        if deadlines.receive <= now {
            self.update_receive_timer(number, link);
            let stream = self.streams.at(number);
            if stream.deadlines.receive <= now {
                link.worker.instrumentation.record_limit("transfer_rate_min");
                stream.request_body.fail(BodyError::TooSlow);
                self.discard_body(number, link);
            }
        }
        if deadlines.send <= now {
            self.update_send_timer(number, link);
            if self.streams.at(number).deadlines.send <= now {
                link.worker.instrumentation.record_limit("transfer_rate_min");
                self.reset_timed_out(number, "the peer did not open its window", link);
            }
        }
    }

    fn reset_timed_out<D: Driver>(
        &mut self,
        number: u32,
        why: &str,
        link: &mut ConnectionContext<'_, D>,
    ) {
        let request = self.streams.at(number).exchange.request_name();
        let request = request.map(ToString::to_string).unwrap_or_default();
        let peer = &link.info.peer;
        catch_log_panic(
            || tracing::debug!(target: "peregrine", request, %peer, "a stream was reset: {why}"),
        );
        self.reset_stream(number, ErrorCode::CANCEL, link);
    }
}
