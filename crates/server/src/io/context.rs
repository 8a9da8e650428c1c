//! What a protocol can access during a turn: the connection's input, output and deadlines, and the
//! state of its listener and worker.

use super::ConnectionIo;
use super::timeouts::TimeoutKind;
use super::transfer_rate::TransferRate;
use super::transport::Transport;
use crate::admission::{AdmissionPermit, AdmissionRequest, ShedReason};
use crate::listener::ListenerContext;
use crate::observe::close_reason::CloseReason;
use crate::worker::Worker;
use crate::worker::lifecycle::{Lifecycle, race};
use peregrine_driver::{Driver, Stream};
use peregrine_proto::{RequestError, h1};
use peregrine_web::built::MatchedEndpoint;
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::head::RequestHead;
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::upgrade::UpgradeHandler;
use std::rc::Rc;
use std::sync::Once;
use std::time::Duration;

/// A busy connection during one turn.
pub(crate) struct ConnectionContext<'t, D: Driver> {
    pub(crate) worker: &'t Rc<Worker<D>>,
    /// The state shared by the connections of the listener.
    pub(crate) listener: &'t ListenerContext,
    pub(crate) stream: &'t D::Stream,
    pub(crate) transport: &'t mut Transport,
    /// The protocol core of HTTP/1.
    pub(crate) protocol: &'t mut h1::Connection,
    pub(crate) info: &'t mut Rc<ConnectionInfo>,
    pub(crate) io: &'t mut ConnectionIo<D>,
    /// When the connection was accepted, on the driver's clock.
    pub(crate) accepted_at: Duration,
    /// Whether the connection uses a reserved slot.
    pub(crate) uses_reserved_slot: bool,
}

/// What the connection must do after a protocol's turn.
#[derive(Debug)]
pub(crate) enum Action {
    /// Run another turn without waiting.
    Continue,
    /// Receive if the `Interest` is `readable`, then let other tasks be polled, then run another
    /// turn.
    Yield(Interest),
    /// Wait for these events, a deadline, a lifecycle change, or a wake-up by an exchange.
    Wait(Interest),
    /// No request is in progress. The connection is idle once all output is sent.
    Idle,
    /// Switch to another protocol.
    Upgrade(UpgradeHandler),
    /// Close the connection.
    Close(Close),
}

/// The I/O events that a protocol waits for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Interest {
    /// More bytes, or the end of the peer's sending side.
    pub(crate) readable: bool,
    /// Room to send more.
    pub(crate) writable: bool,
}

/// How a connection is to be closed.
#[derive(Debug)]
pub(crate) struct Close {
    pub(crate) reason: CloseReason,
    /// Whether the server receives and discards data for a while, because the peer may still be
    /// sending. If a socket is closed with unread input, the kernel sends a reset, and a reset may
    /// destroy a response that the peer has not read yet (RFC 9112 §9.6).
    pub(crate) linger: bool,
}

impl Action {
    pub(crate) fn close(reason: CloseReason) -> Self {
        Self::Close(Close { reason, linger: false })
    }

    pub(crate) fn linger(reason: CloseReason) -> Self {
        Self::Close(Close { reason, linger: true })
    }
}

impl<D: Driver> ConnectionContext<'_, D> {
    /// Returns whether so much output is waiting that no more may be produced.
    pub(crate) fn is_output_full(&self) -> bool {
        self.io.output.is_full(self.listener.limits.write_buffer_bytes_max.max(1))
    }

    /// Returns whether the driver can send parts of files itself. With TLS, it cannot, because the
    /// server must read and encrypt the content.
    pub(crate) fn supports_sendfile(&self) -> bool {
        matches!(self.transport, Transport::Plain) && self.stream.supports_sendfile()
    }

    /// Returns whether more may be received before the current response is complete.
    pub(crate) fn may_read_ahead(&self) -> bool {
        self.io.input.unread().len() < self.listener.limits.read_ahead_bytes_max
    }

    /// Returns whether so much output is waiting (twice `write_buffer_bytes_max`) that HTTP/2 must
    /// stop reading. While `is_output_full` is true but this is not, HTTP/2 continues to read,
    /// because the peer's frames open windows and reset streams, and require only small replies.
    pub(crate) fn is_output_over_limit(&self) -> bool {
        self.io.output.plaintext.len() / 2 >= self.listener.limits.write_buffer_bytes_max.max(1)
    }

    /// Returns whether the peer has ended its sending side.
    pub(crate) fn is_eof(&self) -> bool {
        self.io.input.is_eof(self.transport)
    }

    // RFC 9110 §7.4: reject a request if the connection is not secured for the request's origin.
    #[inline]
    pub(crate) fn check_origin(&mut self, head: &RequestHead) -> Result<(), RequestError> {
        // `trusted_proxies` is set if the peer is a trusted proxy, which may have used TLS with its
        // client.
        let is_secure = self.info.is_secure() || self.info.trusted_proxies.is_some();
        if let Err(error) = head.index().check_https_over_tls(is_secure) {
            return Err(warn_misdirected(error));
        }
        let Some(hosts) = self.transport.allowed_hosts() else { return Ok(()) };
        // Only HTTP/1.0 may omit the host.
        let authority = head.authority();
        let is_covered = authority.is_empty() || hosts.matches(authority);
        if is_covered { Ok(()) } else { Err(RequestError::Misdirected) }
    }

    /// Admits a request or returns why it is rejected.
    #[inline]
    pub(crate) fn admit(
        &self,
        target: &MatchedEndpoint<'_>,
        head: &RequestHead,
        has_content: bool,
    ) -> Result<AdmissionPermit, ShedReason> {
        let driver = &self.worker.driver;
        let request = AdmissionRequest {
            target,
            head,
            info: self.info,
            has_content,
            uses_reserved_slot: self.uses_reserved_slot,
        };
        let admission = &self.worker.admission;
        let result = admission.admit(&request, || (driver.polled_at(), driver.coarse_now()));
        if admission.needs_watcher() {
            driver.spawn_boxed(Box::pin(watch_shedding(Rc::clone(self.worker))));
        }
        result
    }

    /// Starts the timeout for request content from the peer, which must arrive at the minimum rate.
    pub(crate) fn start_body_timer(&mut self) {
        let (now, rate) = (self.worker.driver.now(), self.listener.limits.min_rate());
        let deadline = self.io.receive_rate.start(now, self.io.input.payload_bytes(), rate);
        self.io.deadlines.clear(TimeoutKind::Silence);
        self.io.deadlines.set(TimeoutKind::Receive, deadline);
    }

    /// Starts the timeout for silence of both sides of a bidirectional stream: the response has
    /// begun, so either side may send next.
    pub(crate) fn start_silence_timer(&mut self) {
        self.io.deadlines.clear(TimeoutKind::Receive);
        let rate = self.listener.limits.bidi_min_rate();
        let deadline =
            self.io.activity_rate.start(self.worker.driver.now(), self.bytes_transferred(), rate);
        self.io.deadlines.set(TimeoutKind::Silence, deadline);
    }

    /// Returns whether both sides of a bidirectional stream have been silent for too long.
    pub(crate) fn is_silence_expired(&mut self) -> bool {
        let rate = self.listener.limits.bidi_min_rate();
        self.io.activity_rate.is_too_slow(self.worker.driver.now(), self.bytes_transferred(), rate)
    }

    /// The number of bytes that have moved in either direction.
    fn bytes_transferred(&self) -> u64 {
        self.io.input.bytes_received().wrapping_add(self.stream.bytes_written())
    }

    /// Stops both timeouts for content, so that no further time counts against the peer.
    pub(crate) fn stop_body_timers(&mut self) {
        let (now, rate) = (self.worker.driver.now(), self.listener.limits.min_rate());
        self.io.receive_rate.pause(now, self.io.input.payload_bytes(), rate);
        self.io.activity_rate = TransferRate::default();
        self.io.deadlines.clear(TimeoutKind::Receive);
        self.io.deadlines.clear(TimeoutKind::Silence);
    }

    /// Returns whether the current request must be the connection's last one, because the worker is
    /// shutting down or the connection has reached its maximum age.
    pub(crate) fn should_close(&self) -> bool {
        let has_age_limit = self.listener.limits.connection_age_max.is_some();
        self.worker.lifecycle() >= Lifecycle::LameDuck
            || has_age_limit && self.worker.driver.now() >= self.expires_at()
    }

    /// When the connection reaches its maximum age.
    pub(crate) fn expires_at(&self) -> Duration {
        self.listener.limits.expires_at(self.accepted_at)
    }
}

/// Resets the `is_shedding` metric when no request has arrived for an interval. Otherwise, only the
/// next request would update the metric.
async fn watch_shedding<D: Driver>(worker: Rc<Worker<D>>) {
    let timer = worker.timers.timer();
    while let Some(next_update) = worker.admission.update_shedding_metric(worker.driver.now())
        && worker.lifecycle() < Lifecycle::ForceClosing
    {
        race(
            worker.driver.sleep_until(next_update),
            worker.lifecycle_reached(&timer, Lifecycle::ForceClosing),
        )
        .await;
    }
}

/// Logs, once per process, the usual cause of `error`, which the peer gets as a 421: a gateway in
/// front of this server terminates TLS. Returns `error`.
#[cold]
fn warn_misdirected(error: RequestError) -> RequestError {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        catch_subscriber_panic(|| {
            tracing::warn!(target: "peregrine",
            "a request for https arrived on a plain connection and got a 421: if a gateway in \
             front of this server uses TLS with the clients, name it in Server::trusted_proxies, \
             or set Limits::behind_gateway")
        });
    });
    error
}
