//! Upgrades in the form that mounted services use: hyper's `OnUpgrade` in the request's
//! extensions.
//!
//! Only hyper can create that type, and only for a connection that it serves. So for each request
//! that requests an upgrade, hyper serves an in-memory connection and reads a fixed request from
//! it. The real request gets the `OnUpgrade` of the fixed one. When the mounted service responds
//! with 101, the fixed request's handler also responds with 101. hyper writes this response, which
//! is discarded, and treats the in-memory connection as upgraded. From then on, the in-memory
//! connection carries the bytes of the real connection, which our [`Upgraded`] represents.

use bytes::{Buf, Bytes};
use http::{HeaderMap, StatusCode};
use http_body::{Body as HttpBody, Frame};
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use hyper::server::conn::http1;
use peregrine_web::BodyError;
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::pipe::{PipeWriter, pipe};
use peregrine_web::upgrade::{SEND_BUFFER_BYTES_MAX, SendBuffer, UpgradeHandler, Upgraded};
use std::cell::Cell;
use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use tokio::sync::oneshot;

/// The fixed upgrade request that hyper reads.
const UPGRADE_REQUEST: &[u8] =
    b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: a\r\n\r\n";

/// An upgrade that the service may still accept. If it is dropped, the service's `OnUpgrade` fails.
pub(crate) struct PendingUpgrade {
    /// hyper's future that serves the in-memory connection.
    connection: Pin<Box<dyn Future<Output = hyper::Result<()>>>>,
    /// Makes the fixed request's handler respond with 101.
    accept: oneshot::Sender<()>,
    io: UpgradeIo,
}

impl PendingUpgrade {
    /// Creates an `OnUpgrade` for the request's extensions, and the `PendingUpgrade` that completes
    /// it. Returns `None` if hyper does not create an `OnUpgrade`.
    pub(crate) fn new(cx: &mut Context<'_>) -> Option<(hyper::upgrade::OnUpgrade, Box<Self>)> {
        let upgrade_io = UpgradeIo::default();
        let (accept, accepted) = oneshot::channel();
        let accepted = Cell::new(Some(accepted));
        let on_upgrade = Rc::new(Cell::new(None));
        let on_upgrade_cell = Rc::clone(&on_upgrade);
        let fixed_service = hyper::service::service_fn(move |request| {
            on_upgrade_cell
                .set(Some(hyper::upgrade::on::<http::Request<hyper::body::Incoming>>(request)));
            let accepted = accepted.take();
            async move {
                if let Some(accepted) = accepted {
                    // If the mounted service refuses the upgrade, the `PendingUpgrade` is dropped,
                    // and with it the in-memory connection and this future.
                    let _ = accepted.await;
                }
                let mut response = http::Response::new(EmptyBody);
                *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
                Ok::<_, Infallible>(response)
            }
        });
        let io = HyperIo(Arc::clone(&upgrade_io.0));
        // 8192 is the smallest limit that hyper allows.
        let connection =
            http1::Builder::new().max_buf_size(8192).serve_connection(io, fixed_service);
        let mut connection = Box::pin(connection.with_upgrades());
        // One poll reads the fixed request and calls `fixed_service`, which sets `on_upgrade`.
        let _ = connection.as_mut().poll(cx);
        Some((on_upgrade.take()?, Box::new(Self { connection, accept, io: upgrade_io })))
    }

    /// Returns the handler that completes the `OnUpgrade`. The server runs it after it has sent the
    /// 101.
    pub(crate) fn into_upgrade_handler(self: Box<Self>) -> UpgradeHandler {
        UpgradeHandler::new(async move |upgraded| {
            let Self { connection, accept, io } = *self;
            if accept.send(()).is_err() || connection.await.is_err() {
                catch_subscriber_panic(
                    || tracing::error!(target: "peregrine", "hyper did not complete an upgrade"),
                );
                return;
            }
            io.run(upgraded).await;
        })
    }
}

/// Our end of the in-memory connection. If the real connection breaks or is closed by force, the
/// server drops the future that owns this end. hyper's end then fails, so that the protocol does
/// not wait for bytes that can no longer arrive.
#[derive(Default)]
struct UpgradeIo(Arc<Mutex<SharedIo>>);

impl UpgradeIo {
    /// Copies bytes between the real connection and the upgraded protocol, until the protocol has
    /// closed its sending side and all of its bytes are sent, or until sending fails.
    async fn run(self, mut upgraded: Upgraded) {
        let mut chunk = Vec::new();
        poll_fn(|cx| {
            self.receive(&mut upgraded, cx);
            loop {
                let capacity = upgraded.poll_capacity(cx);
                let mut shared = lock(&self.0);
                shared.run_waker.clone_from(cx.waker());
                if shared.outgoing.is_empty() && shared.is_outgoing_ended
                    || matches!(capacity, Poll::Ready(Err(_)))
                {
                    return Poll::Ready(());
                }
                if shared.outgoing.is_empty() || capacity.is_pending() {
                    return Poll::Pending;
                }
                std::mem::swap(&mut chunk, &mut shared.outgoing);
                let hyper_write_waker = shared.hyper_write_waker.take();
                drop(shared);
                if let Some(hyper_write_waker) = hyper_write_waker {
                    hyper_write_waker.wake();
                }
                upgraded.start_send(&chunk);
                chunk.clear();
            }
        })
        .await;
    }

    /// Receives the next bytes for the protocol, if it has read the previous ones.
    fn receive(&self, upgraded: &mut Upgraded, cx: &mut Context<'_>) {
        {
            let mut shared = lock(&self.0);
            shared.run_waker.clone_from(cx.waker());
            if !shared.incoming.is_empty() || shared.is_incoming_ended || shared.is_aborted {
                return;
            }
        }
        let Poll::Ready(received) = upgraded.poll_recv(cx) else { return };
        let mut shared = lock(&self.0);
        match received {
            Ok(Some(bytes)) => shared.incoming = bytes,
            Ok(None) => shared.is_incoming_ended = true,
            Err(_) => {
                drop(shared);
                return self.abort();
            }
        }
        let hyper_read_waker = shared.hyper_read_waker.take();
        drop(shared);
        if let Some(hyper_read_waker) = hyper_read_waker {
            hyper_read_waker.wake();
        }
    }

    /// Makes reads and writes on hyper's end fail, and wakes the tasks that wait for them. The
    /// protocol can still read bytes that were received earlier.
    fn abort(&self) {
        let mut shared = lock(&self.0);
        shared.is_aborted = true;
        let unsent = std::mem::take(&mut shared.outgoing);
        let wakers = [shared.hyper_read_waker.take(), shared.hyper_write_waker.take()];
        drop(shared);
        drop(unsent);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Drop for UpgradeIo {
    fn drop(&mut self) {
        self.abort();
    }
}

/// The state that both ends of the in-memory connection share.
struct SharedIo {
    phase: Phase,
    /// Bytes that hyper's end has not yet read.
    incoming: Bytes,
    /// Bytes that hyper's end has written and our end has not yet sent.
    outgoing: Vec<u8>,
    /// The peer has closed its sending side, so no bytes follow `incoming`.
    is_incoming_ended: bool,
    /// The real connection failed, or our end was dropped: no more bytes are received or sent.
    is_aborted: bool,
    /// The protocol has closed its sending side or was dropped, so no bytes follow `outgoing`.
    is_outgoing_ended: bool,
    /// Wakes the task that reads from hyper's end, when `incoming` has bytes or has ended.
    hyper_read_waker: Option<Waker>,
    /// Wakes the task that writes to hyper's end, when `outgoing` has space.
    hyper_write_waker: Option<Waker>,
    /// The waker of the task that polls [`UpgradeIo::run`].
    run_waker: Waker,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// hyper reads the fixed request. The response that hyper writes is discarded.
    Handshake,
    /// The bytes are those of the real connection.
    Established,
}

impl Default for SharedIo {
    fn default() -> Self {
        Self {
            phase: Phase::Handshake,
            incoming: Bytes::from_static(UPGRADE_REQUEST),
            outgoing: Vec::new(),
            is_incoming_ended: false,
            is_aborted: false,
            is_outgoing_ended: false,
            hyper_read_waker: None,
            hyper_write_waker: None,
            run_waker: Waker::noop().clone(),
        }
    }
}

/// Ignores poisoning, because no code panics while it holds this lock.
fn lock(shared: &Mutex<SharedIo>) -> MutexGuard<'_, SharedIo> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// hyper's end of the in-memory connection.
struct HyperIo(Arc<Mutex<SharedIo>>);

impl Read for HyperIo {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut shared = lock(&self.0);
        if shared.incoming.is_empty() {
            if shared.is_aborted {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            if shared.is_incoming_ended {
                return Poll::Ready(Ok(()));
            }
            shared.hyper_read_waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let count = shared.incoming.len().min(buffer.remaining());
        buffer.put_slice(&shared.incoming[..count]);
        shared.incoming.advance(count);
        if shared.incoming.is_empty() && shared.phase == Phase::Established {
            let run_waker = shared.run_waker.clone();
            drop(shared);
            run_waker.wake();
        }
        Poll::Ready(Ok(()))
    }
}

impl Write for HyperIo {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut shared = lock(&self.0);
        if shared.phase == Phase::Handshake {
            if bytes.ends_with(b"\r\n\r\n") {
                // The head of the 101 ends here. hyper writes nothing more until it has completed
                // the upgrade.
                shared.phase = Phase::Established;
            }
            return Poll::Ready(Ok(bytes.len()));
        }
        if shared.is_aborted || shared.is_outgoing_ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if shared.outgoing.len() >= SEND_BUFFER_BYTES_MAX {
            shared.hyper_write_waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let count = bytes.len().min(SEND_BUFFER_BYTES_MAX - shared.outgoing.len());
        shared.outgoing.extend_from_slice(&bytes[..count]);
        let run_waker = shared.run_waker.clone();
        drop(shared);
        run_waker.wake();
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut shared = lock(&self.0);
        if shared.phase == Phase::Established {
            shared.is_outgoing_ended = true;
            let run_waker = shared.run_waker.clone();
            drop(shared);
            run_waker.wake();
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for HyperIo {
    fn drop(&mut self) {
        let mut shared = lock(&self.0);
        shared.is_outgoing_ended = true;
        let run_waker = shared.run_waker.clone();
        drop(shared);
        run_waker.wake();
    }
}

/// The body of the discarded response.
struct EmptyBody;

impl HttpBody for EmptyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        true
    }
}

impl fmt::Debug for PendingUpgrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PendingUpgrade")
    }
}

/// The reverse of [`PendingUpgrade`]: runs our upgrade handler on a connection that hyper has
/// upgraded. It runs as a local task, because it is not `Send`.
pub(crate) fn spawn_upgrade(on_upgrade: hyper::upgrade::OnUpgrade, handler: UpgradeHandler) {
    tokio::task::spawn_local(async move {
        let Ok(mut io) = on_upgrade.await else { return };
        let (writer, reader) = pipe(SEND_BUFFER_BYTES_MAX, None);
        let outgoing = SendBuffer::default();
        let mut protocol = handler.run(Upgraded::new(reader, outgoing.clone()));
        let mut tunnel =
            Tunnel { writer: Some(writer), outgoing, chunk: Vec::new(), chunk_sent: 0 };
        let mut has_protocol_ended = false;
        poll_fn(|cx| {
            has_protocol_ended = has_protocol_ended || protocol.as_mut().poll(cx).is_ready();
            tunnel.poll_receive(&mut io, cx);
            match tunnel.poll_send(&mut io, cx) {
                Poll::Ready(Err(_)) => Poll::Ready(()),
                // Nothing is left in `outgoing`: otherwise, `poll_send` would have taken it. So the
                // protocol's last bytes are sent.
                Poll::Pending if tunnel.is_chunk_sent() && has_protocol_ended => Poll::Ready(()),
                _ => Poll::Pending,
            }
        })
        .await;
        let _ = poll_fn(|cx| Pin::new(&mut io).poll_shutdown(cx)).await;
    });
}

/// Copies bytes between hyper's connection and our protocol.
struct Tunnel {
    /// Passes received bytes to the protocol. `None` after the peer has closed its sending side or
    /// the connection has failed.
    writer: Option<PipeWriter>,
    /// The bytes that the protocol has written.
    outgoing: SendBuffer,
    /// The bytes taken from `outgoing`, of which the first `chunk_sent` have been sent.
    chunk: Vec<u8>,
    chunk_sent: usize,
}

impl Tunnel {
    /// Whether all bytes that were taken from `outgoing` are sent. More may be in `outgoing`.
    fn is_chunk_sent(&self) -> bool {
        self.chunk_sent == self.chunk.len()
    }

    fn poll_receive(&mut self, io: &mut hyper::upgrade::Upgraded, cx: &mut Context<'_>) {
        while let Some(writer) = &self.writer {
            if writer.poll_capacity(cx) != Poll::Ready(Ok(())) {
                return;
            }
            let mut space = [MaybeUninit::uninit(); 8192];
            let mut buffer = ReadBuf::uninit(&mut space);
            match Pin::new(&mut *io).poll_read(cx, buffer.unfilled()) {
                Poll::Pending => return,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    writer.send(Bytes::copy_from_slice(buffer.filled()));
                }
                Poll::Ready(result) => {
                    let Some(writer) = self.writer.take() else { return };
                    match result {
                        Ok(()) => writer.finish(HeaderMap::new()),
                        Err(_) => writer.send_error(BodyError::Disconnected),
                    }
                }
            }
        }
    }

    /// Sends until the connection accepts no more bytes or there are none left to send. Is ready
    /// only if sending fails.
    fn poll_send(
        &mut self,
        io: &mut hyper::upgrade::Upgraded,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.is_chunk_sent() {
                self.chunk.clear();
                self.chunk_sent = 0;
                if self.outgoing.poll_take(cx, &mut self.chunk).is_pending() {
                    return match ready!(Pin::new(&mut *io).poll_flush(cx)) {
                        Ok(()) => Poll::Pending,
                        Err(error) => self.fail(error),
                    };
                }
            }
            match ready!(Pin::new(&mut *io).poll_write(cx, &self.chunk[self.chunk_sent..])) {
                Ok(0) => return self.fail(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.chunk_sent += count,
                Err(error) => return self.fail(error),
            }
        }
    }

    fn fail(&mut self, error: io::Error) -> Poll<io::Result<()>> {
        self.outgoing.close();
        Poll::Ready(Err(error))
    }
}
