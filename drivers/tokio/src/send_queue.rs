//! The sending side of a connection.
//!
//! A send immediately writes as much as the kernel accepts. If that is everything, the memory stays
//! with the caller, and neither a task nor a waker is needed. Otherwise a background task writes
//! the rest, and later sends are queued behind it. Shared bytes and ranges of files are queued
//! without copying.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use peregrine_driver::SendBuf;
use tokio::task::AbortHandle;
use tokio::task::coop::unconstrained;

use crate::stream::{StreamShared, store_waker};
use crate::worker::TokioWorker;

/// The state of one connection's sending side.
#[derive(Default)]
pub(crate) struct SendQueue {
    /// Boxed, because few connections ever need it.
    pending: RefCell<Option<Box<PendingWrites>>>,
    /// The number of bytes that the kernel has accepted.
    bytes_written: Cell<u64>,
    shutdown: Cell<ShutdownState>,
    /// The task that waits until everything is written.
    flush_waker: Cell<Option<Waker>>,
}

/// The progress of shutting down sending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ShutdownState {
    #[default]
    Open,
    /// To be shut down once everything is written.
    Requested,
    Sent,
    /// Data was passed to `send` after `finish`, and discarded.
    WroteAfter,
}

/// Data that the kernel has not accepted yet, except for `written` bytes of the first buffer.
struct PendingWrites {
    bufs: VecDeque<SendBuf>,
    written: usize,
    task: Option<AbortHandle>,
}

/// Vectors up to this length are appended to the previous vector in the queue.
const COALESCE_BYTES_MAX: usize = 4 * 1024;

impl PendingWrites {
    /// Appends a buffer. Small vectors are merged up to a limit, so that many of them need few
    /// system calls.
    fn append(&mut self, buf: SendBuf) {
        if buf.is_empty() {
            return;
        }
        match (self.bufs.back_mut(), buf) {
            (Some(SendBuf::Owned(last)), SendBuf::Owned(mut bytes))
                if last.len().max(bytes.len()) <= COALESCE_BYTES_MAX =>
            {
                last.append(&mut bytes);
            }
            (_, buf) => self.bufs.push_back(buf),
        }
    }
}

impl SendQueue {
    /// Stops the background task and drops its unwritten data.
    pub(crate) fn abort(&self) {
        if let Some(pending) = self.pending.take()
            && let Some(task) = pending.task
        {
            task.abort();
        }
    }

    pub(crate) fn is_flushed(&self) -> bool {
        self.pending.borrow().is_none()
    }

    /// Wakes the task that waits until everything is written.
    pub(crate) fn wake_flush(&self) {
        self.flush_waker.take().into_iter().for_each(Waker::wake);
    }

    pub(crate) fn bytes_written(&self) -> u64 {
        self.bytes_written.get()
    }
}

impl StreamShared {
    /// Sends `out`, leaving it empty, and then `shared`.
    pub(crate) fn send(self: &Rc<Self>, out: &mut Vec<u8>, shared: Option<SendBuf>) {
        let send_queue = &self.send_queue;
        let shared = shared.filter(|shared| !shared.is_empty());
        if send_queue.shutdown.get() != ShutdownState::Open && (!out.is_empty() || shared.is_some())
        {
            send_queue.shutdown.set(ShutdownState::WroteAfter);
        }
        if self.error.get().is_some() || send_queue.shutdown.get() != ShutdownState::Open {
            out.clear();
        } else if let Some(pending) = &mut *send_queue.pending.borrow_mut() {
            pending.append(SendBuf::Owned(std::mem::take(out)));
            pending.append(shared.unwrap_or_default());
        } else {
            self.try_write(out, shared);
        }
    }

    /// Writes as much as the kernel accepts, leaves the rest to the background task, and empties
    /// `out`.
    fn try_write(self: &Rc<Self>, out: &mut Vec<u8>, shared: Option<SendBuf>) {
        let mut written = 0;
        let shared = shared.unwrap_or_default();
        let write = poll_fn(|cx| self.poll_write(cx, out, &shared, &mut written));
        // Unconstrained, to write even if the task has no budget left: the background task would
        // otherwise have to.
        let write = pin!(unconstrained(write));
        match write.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => self.fail(error.kind()),
            Poll::Pending => {
                let mut pending = PendingWrites { bufs: VecDeque::new(), written, task: None };
                if written < out.len() {
                    pending.bufs.push_back(SendBuf::Owned(std::mem::take(out)));
                } else {
                    pending.written -= out.len();
                }
                pending.bufs.extend((!shared.is_empty()).then_some(shared));
                self.write_in_background(pending);
            }
        }
        out.clear();
    }

    /// Writes `first` and then `shared`, skipping the first `written` bytes, and updates `written`.
    fn poll_write(
        &self,
        cx: &mut Context<'_>,
        first: &[u8],
        shared: &SendBuf,
        written: &mut usize,
    ) -> Poll<io::Result<()>> {
        let mut socket = self.socket.borrow_mut();
        while *written < first.len() + shared.len() {
            let result = ready!(match (first.get(*written..), shared) {
                (Some(remaining @ [_, ..]), SendBuf::File(_)) => {
                    socket.poll_write_more(cx, remaining)
                }
                (Some(remaining @ [_, ..]), _) if !shared.is_empty() => {
                    let both = [IoSlice::new(remaining), IoSlice::new(shared.as_bytes())];
                    socket.poll_write_vectored(cx, &both)
                }
                (Some(remaining @ [_, ..]), _) => socket.poll_write(cx, remaining),
                (_, SendBuf::File(range)) => {
                    socket.poll_sendfile(cx, range, *written - first.len())
                }
                _ => socket.poll_write(cx, &shared.as_bytes()[*written - first.len()..]),
            });
            self.worker.stats.record_syscall();
            match result {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    *written += count;
                    let bytes_written = &self.send_queue.bytes_written;
                    bytes_written.set(bytes_written.get() + count as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Writes `pending` in the background.
    fn write_in_background(self: &Rc<Self>, pending: PendingWrites) {
        // Without a runtime the worker has ended, and its connections with it.
        if tokio::runtime::Handle::try_current().is_err() {
            return self.fail(io::ErrorKind::NotConnected);
        }
        *self.send_queue.pending.borrow_mut() = Some(Box::new(pending));
        let task = tokio::task::spawn_local(background_writer(self)).abort_handle();
        if let Some(pending) = &mut *self.send_queue.pending.borrow_mut() {
            pending.task = Some(task);
        }
    }

    /// Writes the remaining data, then shuts down sending if requested.
    fn poll_pending_writes(&self, cx: &mut Context<'_>) -> Poll<()> {
        let send_queue = &self.send_queue;
        let result = loop {
            match ready!(self.poll_write_front(cx)) {
                // The buffer is dropped while nothing is borrowed.
                Ok(Some(_buf)) => {}
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        send_queue.pending.take();
        match result {
            Err(error) => self.fail(error.kind()),
            Ok(()) => {
                if send_queue.shutdown.get() != ShutdownState::Open {
                    self.shutdown_write();
                }
                send_queue.wake_flush();
            }
        }
        Poll::Ready(())
    }

    /// Writes the first buffer of the remaining data and returns it, to be dropped. Returns `None`
    /// if nothing remains.
    fn poll_write_front(&self, cx: &mut Context<'_>) -> Poll<io::Result<Option<SendBuf>>> {
        let mut pending = self.send_queue.pending.borrow_mut();
        let Some(PendingWrites { bufs, written, .. }) = pending.as_deref_mut() else {
            return Poll::Ready(Ok(None));
        };
        let Some(first) = bufs.front() else { return Poll::Ready(Ok(None)) };
        ready!(self.poll_write(cx, &[], first, written))?;
        *written = 0;
        Poll::Ready(Ok(bufs.pop_front()))
    }

    /// Ready when everything is written and, if requested, sending was shut down.
    pub(crate) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let send_queue = &self.send_queue;
        if let Some(kind) = self.error.get() {
            return Poll::Ready(Err(kind.into()));
        }
        if send_queue.shutdown.get() == ShutdownState::WroteAfter {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if send_queue.pending.borrow().is_some() {
            store_waker(&send_queue.flush_waker, cx);
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    /// Shuts down sending, either now or when everything is written.
    pub(crate) fn finish(&self) {
        if self.send_queue.shutdown.get() == ShutdownState::Open {
            self.send_queue.shutdown.set(ShutdownState::Requested);
            if self.send_queue.pending.borrow().is_none() {
                self.shutdown_write();
            }
        }
    }

    fn shutdown_write(&self) {
        if self.error.get().is_none() {
            let mut cx = Context::from_waker(Waker::noop());
            let result = self.socket.borrow_mut().poll_shutdown(&mut cx);
            if let Poll::Ready(Err(error)) = result {
                self.fail(error.kind());
            }
        }
        if self.send_queue.shutdown.get() == ShutdownState::Requested {
            self.send_queue.shutdown.set(ShutdownState::Sent);
        }
    }
}

/// The background task. It does not keep the connection alive.
fn background_writer(shared: &Rc<StreamShared>) -> impl Future<Output = ()> + 'static {
    let stream = Rc::downgrade(shared);
    let guard = PendingWritesGuard::new(&shared.worker);
    async move {
        let _guard = guard;
        poll_fn(|cx| match stream.upgrade() {
            Some(shared) => shared.poll_pending_writes(cx),
            None => Poll::Ready(()),
        })
        .await;
    }
}

/// Counts one connection with unwritten bytes until dropped.
struct PendingWritesGuard(Rc<TokioWorker>);

impl PendingWritesGuard {
    fn new(worker: &Rc<TokioWorker>) -> Self {
        worker.stats.add_pending_writes(1);
        Self(Rc::clone(worker))
    }
}

impl Drop for PendingWritesGuard {
    fn drop(&mut self) {
        self.0.stats.add_pending_writes(-1);
    }
}
