//! Upgrades of a connection to another protocol (RFC 9110 §7.8), or of an HTTP/2 stream (RFC 8441).

use crate::http::body::pipe::{PipeReader, register_waker};
use crate::http::memory::MemoryReservation;
use bytes::Bytes;
use std::cell::RefCell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The number of unsent bytes on an upgraded connection at which its sender must pause.
pub const SEND_BUFFER_BYTES_MAX: usize = 64 * 1024;

/// Code that takes over a connection after a response with status 101, or an HTTP/2 stream, whose
/// client gets a 200 instead.
///
/// ```
/// use peregrine::http::StatusCode;
/// use peregrine::web::{Response, upgrade::UpgradeHandler};
///
/// let echo = UpgradeHandler::new(|mut io| async move {
///     while let Ok(Some(bytes)) = io.recv().await {
///         if io.send(bytes).await.is_err() {
///             break;
///         }
///     }
/// });
/// let response = Response::new(StatusCode::SWITCHING_PROTOCOLS).with_upgrade(echo);
/// # let _ = response;
/// ```
#[doc(alias = "on_upgrade")]
#[doc(alias = "OnUpgrade")]
pub struct UpgradeHandler(Box<dyn FnOnce(Upgraded) -> UpgradeFuture>);

type UpgradeFuture = Pin<Box<dyn Future<Output = ()>>>;

impl UpgradeHandler {
    /// Calls `run` with the connection's byte stream once the server begins to send the response.
    /// The connection, or the HTTP/2 stream, is closed when the future completes.
    pub fn new<F, Fut>(run: F) -> Self
    where
        F: FnOnce(Upgraded) -> Fut + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        Self(Box::new(|io| Box::pin(run(io))))
    }

    /// Starts the other protocol.
    #[must_use]
    pub fn run(self, io: Upgraded) -> Pin<Box<dyn Future<Output = ()>>> {
        (self.0)(io)
    }
}

impl fmt::Debug for UpgradeHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UpgradeHandler")
    }
}

/// A connection or stream that no longer speaks HTTP. It transfers bytes in both directions, with
/// back-pressure.
#[derive(Debug)]
pub struct Upgraded {
    incoming: PipeReader,
    send_buffer: SendBuffer,
}

impl Upgraded {
    /// Combines the receiving and the sending half.
    #[must_use]
    pub fn new(incoming: PipeReader, send_buffer: SendBuffer) -> Self {
        Self { incoming, send_buffer }
    }

    /// The next bytes from the peer; `None` when the peer has closed its sending side.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn recv(&mut self) -> io::Result<Option<Bytes>> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// As [`Upgraded::recv`], for hand-written futures.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        use crate::http::body::pipe::PipeFrame;
        loop {
            return Poll::Ready(match std::task::ready!(self.incoming.poll_frame(cx)) {
                None => Ok(None),
                Some(Ok(PipeFrame::Data(bytes))) => Ok(Some(bytes)),
                Some(Ok(PipeFrame::Trailers(_))) => continue,
                Some(Err(error)) => Err(io::Error::new(io::ErrorKind::ConnectionReset, error)),
            });
        }
    }

    /// Queues `bytes` for sending. Waits while [`SEND_BUFFER_BYTES_MAX`] bytes or more are unsent.
    ///
    /// # Errors
    /// The connection is closed.
    pub async fn send(&mut self, bytes: Bytes) -> io::Result<()> {
        poll_fn(|cx| self.send_buffer.poll_capacity(cx)).await?;
        self.send_buffer.push(&bytes);
        Ok(())
    }

    /// Ready when fewer than [`SEND_BUFFER_BYTES_MAX`] bytes are unsent.
    #[doc(alias = "poll_ready")]
    pub fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.send_buffer.poll_capacity(cx)
    }

    /// Queues bytes without waiting, or discards them if the connection is closed. Call it after
    /// [`Upgraded::poll_capacity`] was ready.
    pub fn start_send(&mut self, bytes: &[u8]) {
        self.send_buffer.push(bytes);
    }

    /// Moves all of `bytes` to the send buffer, without a copy if that is empty, or discards them
    /// if the connection is closed. Leaves `bytes` without capacity.
    pub fn append(&mut self, bytes: &mut Vec<u8>) {
        self.send_buffer.append(bytes);
    }

    /// The number of bytes that the server has not yet taken from the send buffer.
    #[must_use]
    pub fn unsent_bytes(&self) -> usize {
        self.send_buffer.0.borrow().bytes.len()
    }

    /// A handle that reads [`Upgraded::unsent_bytes`], for code other than the sender.
    #[must_use]
    pub fn unsent_bytes_handle(&self) -> UnsentBytes {
        UnsentBytes(self.send_buffer.clone())
    }

    /// Ready when the server has taken all bytes from the send buffer.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.send_buffer.poll_below(1, cx)
    }
}

/// Reports how many bytes the server has not yet taken from the send buffer.
#[derive(Clone, Debug)]
pub struct UnsentBytes(SendBuffer);

impl UnsentBytes {
    /// The number of bytes.
    #[must_use]
    pub fn get(&self) -> usize {
        self.0.0.borrow().bytes.len()
    }
}

/// The unsent bytes of an upgraded connection, shared by [`Upgraded`] and the server.
#[derive(Clone)]
pub struct SendBuffer(Rc<RefCell<SendBufferState>>);

#[derive(Default)]
struct SendBufferState {
    bytes: Vec<u8>,
    closed: bool,
    sender_waker: Option<Waker>,
    server_waker: Option<Waker>,
    /// Whether the server polls the buffer next, so that it need not be woken.
    server_polls_next: bool,
    reservation: MemoryReservation,
}

impl SendBufferState {
    fn wake_server(&mut self) {
        if !self.server_polls_next
            && let Some(waker) = self.server_waker.take()
        {
            waker.wake();
        }
    }

    /// Updates the memory reservation to the buffer's capacity.
    fn update_reservation(&mut self) {
        self.reservation.resize(self.bytes.capacity());
    }
}

impl Default for SendBuffer {
    fn default() -> Self {
        Self(Rc::new(RefCell::new(SendBufferState::default())))
    }
}

impl SendBuffer {
    fn poll_capacity(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_below(SEND_BUFFER_BYTES_MAX, cx)
    }

    /// Ready when fewer than `limit` bytes are unsent, or with an error when the connection is
    /// closed.
    fn poll_below(&self, limit: usize, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.borrow_mut();
        if state.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if state.bytes.len() < limit {
            return Poll::Ready(Ok(()));
        }
        register_waker(&mut state.sender_waker, cx);
        Poll::Pending
    }

    fn push(&self, bytes: &[u8]) {
        let mut state = self.0.borrow_mut();
        if state.closed {
            return;
        }
        state.bytes.extend_from_slice(bytes);
        state.update_reservation();
        state.wake_server();
    }

    fn append(&self, bytes: &mut Vec<u8>) {
        let mut state = self.0.borrow_mut();
        if state.closed {
            bytes.clear();
        } else if state.bytes.is_empty() {
            std::mem::swap(&mut state.bytes, bytes);
        } else {
            state.bytes.append(bytes);
        }
        state.update_reservation();
        // `bytes` is empty now, but may have capacity (after the swap, that of the former send
        // buffer). Free it: the connection may be idle for days, and the allocator's recently freed
        // memory is more likely to be in the CPU's cache than a buffer of an idle connection.
        *bytes = Vec::new();
        state.wake_server();
    }

    /// For the server: runs `protocol`, after which the server takes the unsent bytes. Bytes queued
    /// meanwhile do not wake the server.
    pub fn run_protocol<T>(&self, protocol: impl FnOnce() -> T) -> T {
        self.0.borrow_mut().server_polls_next = true;
        let output = protocol();
        self.0.borrow_mut().server_polls_next = false;
        output
    }

    /// For the server: moves all unsent bytes to `out`, which must be empty. Registers the waker
    /// even if it returns `Ready`, so that later bytes wake the server.
    pub fn poll_take(&self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<()> {
        let mut state = self.0.borrow_mut();
        register_waker(&mut state.server_waker, cx);
        if state.bytes.is_empty() {
            return Poll::Pending;
        }
        *out = std::mem::take(&mut state.bytes);
        state.update_reservation();
        if let Some(waker) = state.sender_waker.take() {
            waker.wake();
        }
        Poll::Ready(())
    }

    /// For the server: closes the buffer, because nothing can be sent any more.
    pub fn close(&self) {
        let mut state = self.0.borrow_mut();
        state.closed = true;
        // Free the bytes now: they will not be sent, and the protocol may hold its end of the
        // buffer for a long time.
        state.bytes = Vec::new();
        state.update_reservation();
        if let Some(waker) = state.sender_waker.take() {
            waker.wake();
        }
    }
}

impl fmt::Debug for SendBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SendBuffer({} bytes)", self.0.borrow().bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::memory::reserved;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn bytes_queued_while_the_protocol_runs_do_not_wake_the_server_but_later_bytes_do() {
        let counter = Arc::new(WakeCounter::default());
        let waker = Waker::from(Arc::clone(&counter));
        let mut context = Context::from_waker(&waker);
        let wake_count = || counter.0.load(Ordering::Relaxed);
        let (send_buffer, mut drained) = (SendBuffer::default(), Vec::new());
        assert!(send_buffer.poll_take(&mut context, &mut drained).is_pending());
        send_buffer.run_protocol(|| send_buffer.push(b"a"));
        assert!(send_buffer.poll_take(&mut context, &mut drained).is_ready());
        assert_eq!((wake_count(), &drained[..]), (0, &b"a"[..]));
        // Later bytes wake the server, even though its last poll found some.
        send_buffer.push(b"b");
        assert_eq!(wake_count(), 1);
    }

    #[test]
    fn send_without_wake_wakes_only_a_reader_of_another_task() {
        use crate::http::body::pipe::pipe;
        let counters = [Arc::new(WakeCounter::default()), Arc::new(WakeCounter::default())];
        let wakers = counters.clone().map(Waker::from);
        let [mut this_task, mut other_task] = wakers.each_ref().map(Context::from_waker);
        let (writer, mut reader) = pipe(SEND_BUFFER_BYTES_MAX, None);
        for context in [&mut this_task, &mut other_task] {
            assert!(reader.poll_frame(context).is_pending());
            let caller = Context::from_waker(&wakers[0]);
            writer.send_without_wake(Bytes::from_static(b"a"), &caller);
            assert!(reader.poll_frame(context).is_ready());
        }
        assert_eq!(counters.map(|counter| counter.0.load(Ordering::Relaxed)), [0, 1]);
    }

    #[test]
    fn a_closed_send_buffer_frees_its_bytes_and_discards_new_ones() {
        let before = reserved();
        let send_buffer = SendBuffer::default();
        send_buffer.push(&[1; 100_000]);
        assert!(reserved() - before >= 100_000);
        send_buffer.close();
        assert_eq!(reserved(), before);
        // A protocol may continue to send without checking for the end.
        send_buffer.push(&[1; 100_000]);
        let mut more = vec![1; 100_000];
        send_buffer.append(&mut more);
        assert_eq!((reserved(), more.len()), (before, 0));
    }
}
