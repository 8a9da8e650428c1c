//! One connection: the state of both directions, and the receiving side.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use peregrine_driver::{Address, FileRange, Handoff, SendBuf, UnixCredentials};

use crate::buffer_pool::Chunk;
use crate::send_queue::SendQueue;
use crate::socket::AsyncSocket;
use crate::worker::TokioWorker;

/// One connection. Holds no buffer while it waits.
pub struct TokioStream {
    inner: Rc<StreamShared>,
}

/// A connection's state, shared with the background task that sends.
pub(crate) struct StreamShared {
    pub(crate) socket: RefCell<AsyncSocket>,
    pub(crate) worker: Rc<TokioWorker>,
    pub(crate) send_queue: SendQueue,
    /// How the connection broke, in either direction. Stored, because the kernel reports it only
    /// once.
    pub(crate) error: Cell<Option<io::ErrorKind>>,
    /// The waker of the task that waits for bytes. The runtime has registered it too; this copy is
    /// for waking the task when a send fails.
    recv_waker: Cell<Option<Waker>>,
    /// Whether the peer has finished sending.
    is_eof: Cell<bool>,
    /// Whether the last read filled a buffer of the pool. The next read is then a large one,
    /// because each read costs a system call, a wake-up of the reader, and the processing of a
    /// chunk.
    use_large_buffer: Cell<bool>,
}

impl TokioStream {
    pub(crate) fn new(socket: AsyncSocket, worker: Rc<TokioWorker>) -> Self {
        let shared = StreamShared {
            socket: RefCell::new(socket),
            worker,
            send_queue: SendQueue::default(),
            error: Cell::new(None),
            recv_waker: Cell::new(None),
            is_eof: Cell::new(false),
            use_large_buffer: Cell::new(false),
        };
        Self { inner: Rc::new(shared) }
    }

    /// Returns the socket, if the connection was not used yet.
    pub(crate) fn into_handoff(self) -> io::Result<Handoff> {
        let shared = Rc::clone(&self.inner);
        drop(self);
        let is_new = shared.send_queue.bytes_written() == 0 && !shared.is_eof.get();
        match Rc::try_unwrap(shared) {
            Ok(shared) if is_new => shared.socket.into_inner().into_handoff(),
            _ => Err(io::ErrorKind::ResourceBusy.into()),
        }
    }
}

impl peregrine_driver::Stream for TokioStream {
    type Chunk = Chunk;

    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<io::Result<Chunk>> {
        self.inner.poll_recv(cx)
    }

    fn try_recv(&self) -> Option<Chunk> {
        let is_open = !self.inner.is_eof.get() && self.inner.error.get().is_none();
        is_open.then(|| self.inner.try_receive().ok()).flatten()
    }

    fn try_into_vec(chunk: Chunk) -> Result<Vec<u8>, Chunk> {
        chunk.try_into_vec()
    }

    fn send(&self, out: &mut Vec<u8>) {
        self.inner.send(out, None);
    }

    fn send_shared(&self, out: &mut Vec<u8>, shared: Bytes) {
        self.inner.send(out, Some(SendBuf::from_shared(shared)));
    }

    fn supports_sendfile(&self) -> bool {
        cfg!(target_os = "linux")
    }

    fn send_file(&self, out: &mut Vec<u8>, range: FileRange) {
        self.inner.send(out, Some(SendBuf::from_file(range)));
    }

    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.poll_flush(cx)
    }

    fn is_flushed(&self) -> bool {
        self.inner.send_queue.is_flushed()
    }

    fn bytes_written(&self) -> u64 {
        self.inner.send_queue.bytes_written()
    }

    fn finish(&self) {
        self.inner.finish();
    }

    fn is_broken(&self) -> bool {
        self.inner.error.get().is_some() || self.inner.socket.borrow().is_broken()
    }

    fn reset_on_drop(&self) {
        self.inner.socket.borrow().reset_on_drop();
    }

    fn peer_addr(&self) -> Address {
        self.inner.socket.borrow().peer_addr()
    }

    fn peer_credentials(&self) -> Option<UnixCredentials> {
        self.inner.socket.borrow().peer_credentials()
    }

    fn local_addr(&self) -> Address {
        self.inner.socket.borrow().local_addr()
    }
}

impl Drop for TokioStream {
    fn drop(&mut self) {
        // The dropped socket does not wake the background task, which must be stopped explicitly.
        self.inner.send_queue.abort();
    }
}

impl StreamShared {
    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<io::Result<Chunk>> {
        let received = match self.error.get() {
            _ if self.is_eof.get() => Poll::Ready(Ok(Chunk::eof())),
            None => self.poll_receive(cx),
            Some(kind) => Poll::Ready(self.receive_remaining(kind)),
        };
        match received {
            Poll::Ready(Err(error)) => {
                self.fail(error.kind());
                Poll::Ready(Err(error))
            }
            Poll::Pending => {
                store_waker(&self.recv_waker, cx);
                Poll::Pending
            }
            chunk => chunk,
        }
    }

    /// Receives once, or arranges a wake-up. Leases a buffer for the call, and returns it to the
    /// pool unless it has received bytes.
    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<io::Result<Chunk>> {
        let mut socket = self.socket.borrow_mut();
        let pool = &self.worker.pool;
        if self.use_large_buffer.get() {
            return self.poll_receive_owned(&mut socket, cx, self.worker.large_receive_bytes);
        }
        let Some(mut buffer) = pool.get() else {
            // Other connections hold all buffers, so allocate memory if there is something to read.
            let received = self.poll_receive_owned(&mut socket, cx, pool.buffer_bytes);
            if received.is_ready() {
                pool.count_exhausted();
            }
            return received;
        };
        let read = loop {
            match socket.poll_read(cx, &mut buffer) {
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Poll::Ready(read) => break read,
                Poll::Pending => {
                    pool.put(buffer);
                    return Poll::Pending;
                }
            }
        };
        self.worker.stats.record_syscall();
        Poll::Ready(self.make_chunk(buffer, read))
    }

    /// The chunk for the result of a read into a leased buffer.
    fn make_chunk(&self, buffer: Vec<u8>, read: io::Result<usize>) -> io::Result<Chunk> {
        let pool = &self.worker.pool;
        match read {
            Ok(0) | Err(_) => {
                pool.put(buffer);
                read?;
                self.is_eof.set(true);
                Ok(Chunk::eof())
            }
            Ok(filled) => {
                self.use_large_buffer.set(filled == buffer.len());
                Ok(Chunk::new(buffer, filled, Rc::clone(pool)))
            }
        }
    }

    /// Like `poll_receive`, into separate memory. It is allocated only once the socket is readable,
    /// so a connection whose peer pauses holds no memory.
    fn poll_receive_owned(
        &self,
        socket: &mut AsyncSocket,
        cx: &mut Context<'_>,
        bytes_max: usize,
    ) -> Poll<io::Result<Chunk>> {
        let (bytes, read) = loop {
            ready!(socket.poll_read_ready(cx))?;
            let mut bytes = Vec::with_capacity(bytes_max);
            match ready!(socket.poll_read_buf(cx, &mut bytes)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break (bytes, read),
            }
        };
        self.worker.stats.record_syscall();
        let filled = read?;
        self.use_large_buffer.set(filled >= self.worker.pool.buffer_bytes);
        self.is_eof.set(filled == 0);
        Poll::Ready(Ok(if filled == 0 { Chunk::eof() } else { Chunk::owned(bytes) }))
    }

    /// Returns the data received before the connection broke, then the error `kind`. Bypasses the
    /// runtime, which may not know of this data yet. After the kernel has reported an error once,
    /// it reports a regular end of the stream, so that end is also returned as the error.
    fn receive_remaining(&self, kind: io::ErrorKind) -> io::Result<Chunk> {
        self.try_receive().map_err(|_| kind.into())
    }

    /// Receives directly from the kernel, which may have bytes that the runtime does not know of
    /// yet.
    fn try_receive(&self) -> io::Result<Chunk> {
        let mut bytes = vec![0; self.worker.pool.buffer_bytes];
        let filled = self.socket.borrow().try_read(&mut bytes)?;
        if filled == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.worker.stats.record_syscall();
        bytes.truncate(filled);
        Ok(Chunk::owned(bytes))
    }

    /// Records how the connection broke, and wakes the tasks that wait in either direction.
    pub(crate) fn fail(&self, kind: io::ErrorKind) {
        if self.error.get().is_none() {
            self.error.set(Some(kind));
            self.send_queue.abort();
            self.send_queue.wake_flush();
            self.recv_waker.take().into_iter().for_each(Waker::wake);
        }
    }
}

/// Stores the caller's waker in `slot`, replacing any other.
pub(crate) fn store_waker(slot: &Cell<Option<Waker>>, context: &Context<'_>) {
    let current = slot.take().filter(|waker| waker.will_wake(context.waker()));
    slot.set(Some(current.unwrap_or_else(|| context.waker().clone())));
}
