//! Runs other protocols on streams (RFC 8441), as an upgrade does on an HTTP/1.1 connection.
//!
//! The protocol core presents a request for another protocol (an extended CONNECT) as an HTTP/1.1
//! GET with `Upgrade`, so handlers need not distinguish the two. The handler sees no content. The
//! bytes that the peer sends are the input of the other protocol, and its output is sent as the
//! content of the response.

use super::Http2;
use super::streams::{Stream, StreamState};
use crate::exchange::request_body::RequestBodySender;
use crate::io::context::ConnectionContext;
use crate::panic::catch_panic;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use http_body::Frame;
use peregrine_driver::Driver;
use peregrine_proto::BodyLength;
use peregrine_proto::h2::{ErrorCode, StreamKey};
use peregrine_web::head::RequestHead;
use peregrine_web::pipe::pipe;
use peregrine_web::upgrade::{SEND_BUFFER_BYTES_MAX, SendBuffer, Upgraded};
use peregrine_web::{Body, Problem, Response};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

impl Http2 {
    /// Calls the handler of a request for another protocol. The peer's bytes go to a pipe, which
    /// the other protocol reads if the handler accepts the upgrade.
    pub(super) fn begin_tunnel<D: Driver>(
        &mut self,
        slot: u32,
        head: RequestHead,
        body: BodyLength,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        self.begin(slot, head, conn, |stream, _| {
            let (writer, reader) = pipe(SEND_BUFFER_BYTES_MAX, None);
            stream.consumed = Some(writer.consumed_bytes());
            if body == BodyLength::None {
                writer.finish(HeaderMap::new());
            } else {
                let (awaits_continue, has_length) = (false, false);
                stream.request_body =
                    RequestBodySender::Open { pipe: writer, awaits_continue, has_length };
            }
            (stream.is_tunnel, stream.tunnel_reader) = (true, Some(reader));
            Body::empty()
        });
        self.forward_body(slot, conn);
    }

    /// If the handler accepted the upgrade, responds, starts the protocol and returns `None`.
    /// Otherwise, returns the response to send instead.
    pub(super) fn open_tunnel<D: Driver>(
        &mut self,
        slot: u32,
        key: StreamKey,
        mut response: Response,
        conn: &mut ConnectionContext<'_, D>,
    ) -> Option<Response> {
        let stream = self.streams.at(slot);
        let Some(reader) = stream.tunnel_reader.take() else { return Some(response) };
        let is_accepted = response.status == StatusCode::SWITCHING_PROTOCOLS;
        let Some(upgrade_handler) = response.take_upgrade().filter(|_| is_accepted) else {
            // RFC 9110 §9.3.6: any 2xx would mean that the other protocol begins.
            let is_rejection = !is_accepted && !response.status.is_success();
            return Some(if is_rejection {
                response
            } else {
                self.protocol_not_supported(slot, response, conn)
            });
        };
        // RFC 8441 §5: a 200 means what 101 means in HTTP/1.1, and there is no key to accept.
        response.status = StatusCode::OK;
        response.headers.remove(&header::SEC_WEBSOCKET_ACCEPT);
        let outgoing = SendBuffer::default();
        let io = Upgraded::new(reader, outgoing.clone());
        let unused = std::mem::replace(&mut response.body, Body::new(TunnelBody(outgoing)));
        catch_panic("the destructor of a response's body", || drop(unused));
        self.has_tunnel = true;
        let stream = self.streams.at(slot);
        stream.exchange.metrics.set_status(response.status);
        stream.exchange.report_request();
        stream.exchange.set_upgraded(upgrade_handler, io);
        self.respond_streamed(slot, key, response, conn);
        if let Some(stream) = self.streams.get(slot) {
            stream.deadlines.exchange = Duration::MAX;
        }
        None
    }

    /// Creates the response for a handler that indicated success but did not accept the upgrade.
    #[cold]
    fn protocol_not_supported<D: Driver>(
        &mut self,
        slot: u32,
        response: Response,
        conn: &ConnectionContext<'_, D>,
    ) -> Response {
        catch_panic("the destructor of a response", || drop(response));
        let detail = "This resource does not support the requested protocol.";
        let problem = Problem::new(StatusCode::NOT_IMPLEMENTED, "protocol-unknown", detail);
        self.render_problem(slot, problem, conn)
    }

    /// Polls the upgraded protocol of a stream, if there is one. Returns false if the protocol
    /// panicked, which resets the stream.
    pub(super) fn poll_tunnel<D: Driver>(
        &mut self,
        slot: u32,
        conn: &mut ConnectionContext<'_, D>,
    ) -> bool {
        let Stream { is_tunnel, exchange, waker, .. } = self.streams.at(slot);
        if !*is_tunnel {
            return true;
        }
        let mut cx = Context::from_waker(waker);
        let Err(panic) = exchange.poll_upgraded(&mut cx, &conn.worker.heartbeat) else {
            return true;
        };
        exchange.log_panic("an upgraded protocol", &panic, &conn.info.peer);
        self.reset_stream(slot, ErrorCode::INTERNAL_ERROR, conn);
        false
    }

    /// Starts the idle timeout (`upgraded_idle_timeout`), and restarts it if bytes were received or
    /// sent since the last call. Within that time the peer may be silent, so no minimum rate
    /// applies to what it sends. It must still receive output at the minimum rate, as with any
    /// response.
    pub(super) fn update_tunnel_timer<D: Driver>(
        &mut self,
        slot: u32,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let stream = self.streams.at(slot);
        stream.deadlines.receive = Duration::MAX;
        let transferred = stream.received + stream.sent;
        let has_started = matches!(stream.state, StreamState::SendingStreamed(_));
        if has_started
            && (stream.deadlines.current_state == Duration::MAX
                || stream.last_transferred != transferred)
        {
            stream.last_transferred = transferred;
            let timeout = conn.listener.limits.upgraded_idle_timeout.unwrap_or(Duration::MAX);
            stream.deadlines.current_state = conn.worker.driver.now().saturating_add(timeout);
        }
    }
}

/// The output of the upgraded protocol, as a response body. It never ends: the stream ends when the
/// protocol ends.
struct TunnelBody(SendBuffer);

impl http_body::Body for TunnelBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let mut bytes = Vec::new();
        ready!(self.0.poll_take(cx, &mut bytes));
        Poll::Ready(Some(Ok(Frame::data(bytes.into()))))
    }
}

impl Drop for TunnelBody {
    fn drop(&mut self) {
        self.0.close();
    }
}
