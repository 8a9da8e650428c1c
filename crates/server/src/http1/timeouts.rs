//! Handles the expired deadlines of an exchange, and starts the timeout of the whole exchange.

use super::{ExchangeState, Http1};
use crate::exchange::request_body::RequestBodySender;
use crate::io::context::{Action, ConnectionContext};
use crate::io::timeouts::TimeoutKind;
use crate::observe::close_reason::CloseReason;
use crate::observe::metrics::ErrorType;
use peregrine_driver::{Driver, Stream};
use peregrine_web::Problem;
use peregrine_web::body::BodyError;
use std::time::Duration;

impl Http1 {
    /// Handles an expired deadline.
    pub(crate) fn on_timeout<D: Driver>(
        &mut self,
        kind: TimeoutKind,
        conn: &mut ConnectionContext<'_, D>,
    ) -> Action {
        match (kind, &self.state) {
            (TimeoutKind::Head, _) => {
                conn.protocol.stop_after_response();
                self.respond_problem(Problem::head_timeout(), conn);
                Action::linger(CloseReason::HeadTimeout)
            }
            (TimeoutKind::Receive, ExchangeState::DiscardingBody) => {
                Action::linger(CloseReason::BodyTooSlow)
            }
            (TimeoutKind::Receive, ExchangeState::ReceivingAfterResponse { .. }) => {
                self.request_body.fail(BodyError::TooSlow);
                Action::linger(CloseReason::BodyTooSlow)
            }
            // The peer is not too slow: the task that reads the body is, or the exchange takes too
            // long. `BodyError` has no variant for that, so the task gets `Disconnected`.
            (
                TimeoutKind::BodyReader | TimeoutKind::Exchange,
                ExchangeState::ReceivingAfterResponse { .. },
            ) => {
                self.request_body.fail(BodyError::Disconnected);
                self.request_body = RequestBodySender::Discarding;
                Action::Continue
            }
            // During an exchange, only a bidirectional stream sets `Silence`. If bytes have moved
            // meanwhile, the next turn sets it again.
            (TimeoutKind::Silence, _) if !conn.is_silence_expired() => Action::Continue,
            // The handler gets the error when it reads the body, and may still respond. Its
            // response is the connection's last one.
            (TimeoutKind::Receive | TimeoutKind::Silence, _) => {
                conn.worker.instrumentation.record_limit(match kind {
                    TimeoutKind::Receive => "transfer_rate_min",
                    _ => "upgraded_idle_timeout",
                });
                self.request_body.fail(BodyError::TooSlow);
                self.request_body = RequestBodySender::Discarding;
                conn.protocol.stop_after_response();
                Action::Continue
            }
            (TimeoutKind::Handler | TimeoutKind::Exchange, ExchangeState::RunningHandler) => {
                conn.worker.instrumentation.record_limit(match kind {
                    TimeoutKind::Handler => "route_timeout",
                    _ => "exchange_timeout",
                });
                self.exchange.metrics.set_error(ErrorType::Timeout);
                self.exchange.drop_handler();
                let response = self.render_problem(Problem::handler_timeout(), conn);
                self.respond(Ok(response), conn)
            }
            (TimeoutKind::Exchange, _) => Action::close(CloseReason::ExchangeTimeout),
            // The server is not receiving, so only this check detects that the peer has reset the
            // connection.
            (TimeoutKind::Probe, _) if conn.stream.is_broken() => {
                self.request_body.fail(BodyError::Disconnected);
                Action::close(CloseReason::PeerAborted)
            }
            // The next turn sends or schedules the next probe.
            (TimeoutKind::Probe, _) => Action::Continue,
            // The other kinds belong to other states, to other phases of the connection, or to
            // HTTP/2.
            _ => Action::Continue,
        }
    }

    /// Marks the exchange as waiting, and starts the timeout of the whole exchange, if configured.
    pub(super) fn start_exchange_timer<D: Driver>(
        &mut self,
        now: Duration,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        self.exchange.mark_pending(now);
        if let Some(timeout) = conn.listener.limits.exchange_timeout {
            conn.io.deadlines.set_if_unset(TimeoutKind::Exchange, now.saturating_add(timeout));
        }
    }
}
