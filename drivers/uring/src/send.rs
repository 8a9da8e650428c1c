//! Sends data: immediately as much as the socket takes, the rest with one ring operation at a time.
//!
//! Most sends are small and fit into the socket's buffer. They are *offered* to it with an
//! operation that does not wait, so they are sent by the same enter in which the worker goes to
//! sleep. Their completion is expected and does not end that sleep; meanwhile their connections
//! continue as if the socket had room. If it has none, the waiting task is woken. If something
//! depends on such a send (more bytes, the end of the stream, or a task waiting until it is sent),
//! its completion ends the sleep.
//!
//! Large sends start with a plain call, because it matters to their connection whether there is
//! room for more. The rest is sent by a ring operation as the peer reads. Data that is sent in the
//! meantime is queued behind it.
//!
//! Shared bytes are sent by the same call as the bytes before them, and the rest of them with
//! separate operations. The connection's slot keeps them until the kernel took them. For files the
//! ring reports when there is room, and a call (`sendfile.rs`) sends.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll};

use io_uring::{opcode, types};
use peregrine_driver::SendBuf;
use socket2::SockRef;

use crate::executor::Waiter;
use crate::operation::{OpKind, SendOp, Token};
use crate::receive::ReceiveState;
use crate::sendfile;
use crate::stream::{
    SendQueue, SendState, ShutdownState, StreamSlot, UringStream, complete_operation, find_live,
};
use crate::worker::UringWorker;

/// The maximum number of bytes offered by a ring operation. Above that a system call is cheap
/// compared to the work it does.
const INLINE_SEND_BYTES_MAX: usize = 16 * 1024;

/// The maximum number of offers per iteration, which is the number of pooled vectors. With more
/// offers, system calls are cheaper than new vectors.
const INLINE_SENDS_MAX: u32 = 64;

/// The pause after nothing of a file could be sent although the socket has room: 10 ms. The kernel
/// is then short of memory, and polls would keep reporting that there is room.
static FILE_RETRY_DELAY: types::Timespec = types::Timespec::new().nsec(10_000_000);

impl UringStream {
    /// Sends `out` and then `shared`, or queues them behind earlier data.
    pub(crate) fn start_send(&self, out: &mut Vec<u8>, shared: Option<SendBuf>) {
        // Dropped at the end if it is still here, after all borrows have ended.
        let mut shared = shared.filter(|shared| !shared.is_empty());
        if out.is_empty() && shared.is_none() {
            return;
        }
        let mut streams = self.worker.streams.borrow_mut();
        let connection = &mut streams[self.index as usize];
        let outgoing = &mut connection.send_queue;
        if let ReceiveState::Closed(code) = connection.receive_state
            && outgoing.error == 0
        {
            // A broken connection takes nothing. An offer would report that too late.
            outgoing.error = code;
        }
        if outgoing.error != 0 || outgoing.shutdown != ShutdownState::Open {
            outgoing.wrote_after_shutdown |= outgoing.shutdown != ShutdownState::Open;
            out.clear();
        } else if outgoing.state != SendState::Idle {
            let later = outgoing.queued.get_or_insert_default();
            if !out.is_empty() {
                later.push_back(SendBuf::Owned(std::mem::replace(
                    out,
                    self.worker.buffer_pool.get(),
                )));
            }
            later.extend(shared.take());
            self.worker.wake_on_inline_send(outgoing);
            outgoing.state = SendState::Armed;
        } else if shared.is_none()
            && out.len() <= INLINE_SEND_BYTES_MAX
            && self.worker.can_send_inline()
        {
            let bytes = std::mem::replace(out, self.worker.buffer_pool.get());
            outgoing.current = SendOp::new(SendBuf::Owned(bytes));
            self.worker.submit_inline_send(self.index, connection);
        } else {
            self.worker.send_sync(self.index, connection, out, &mut shared);
        }
        if connection.send_queue.error != 0 {
            // Both directions report that the connection is broken.
            let waiters = connection.take_waiters();
            drop(streams);
            waiters.into_iter().for_each(|waiter| waiter.wake(&self.worker.executor));
        } else {
            drop(streams);
        }
        drop(shared);
    }

    pub(crate) fn poll_flushed(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut streams = self.worker.streams.borrow_mut();
        let outgoing = &mut streams[self.index as usize].send_queue;
        if outgoing.is_flushed() {
            return Poll::Ready(outgoing.result());
        }
        self.worker.wake_on_inline_send(outgoing);
        let old = outgoing.flush_waiter.register(context, &self.worker.executor);
        drop(streams);
        drop(old);
        Poll::Pending
    }

    /// Shuts down sending, now or after the data being sent.
    pub(crate) fn start_finish(&self) {
        let mut streams = self.worker.streams.borrow_mut();
        let connection = &mut streams[self.index as usize];
        if connection.send_queue.shutdown == ShutdownState::Open {
            connection.send_queue.shutdown = ShutdownState::Requested;
            self.worker.wake_on_inline_send(&connection.send_queue);
            if connection.send_queue.state == SendState::Idle {
                connection.shutdown_write();
            }
        }
    }
}

impl SendQueue {
    /// Returns whether all data was sent.
    pub(crate) fn is_flushed(&self) -> bool {
        self.state == SendState::Idle || self.wrote_after_shutdown
    }

    fn result(&self) -> io::Result<()> {
        match self.error {
            0 if self.wrote_after_shutdown => Err(io::ErrorKind::BrokenPipe.into()),
            0 => Ok(()),
            code => Err(sendfile::to_io_error(code)),
        }
    }
}

impl StreamSlot {
    /// Shuts down sending. A direct call: the ring would use another thread for it.
    fn shutdown_write(&mut self) {
        if self.send_queue.error != 0 {
            return;
        }
        self.send_queue.shutdown = ShutdownState::Sent;
        let socket = SockRef::from(&self.descriptor);
        if let Err(error) = socket.shutdown(std::net::Shutdown::Write) {
            self.send_queue.error = error.raw_os_error().unwrap_or(libc::EPIPE);
        }
    }

    /// Records whether the ring took a send operation. If not, sending ends.
    fn track_submission(&mut self, result: io::Result<()>) -> bool {
        match result {
            Ok(()) => self.in_flight += 1,
            Err(ref error) => {
                self.send_queue.error = error.raw_os_error().unwrap_or(libc::ENOTCONN);
            }
        }
        result.is_ok()
    }

    /// The tasks that wait in either direction.
    fn take_waiters(&mut self) -> [Waiter; 2] {
        [
            std::mem::take(&mut self.send_queue.flush_waiter),
            std::mem::take(&mut self.receive_waiter),
        ]
    }
}

impl UringWorker {
    fn can_send_inline(&self) -> bool {
        !self.is_shutting_down.get() && self.ring.borrow().inline_completions() < INLINE_SENDS_MAX
    }

    /// Sends what the kernel takes immediately, and gives the rest to the ring. The shared piece
    /// stays with the caller unless a part of it is left to be sent.
    fn send_sync(
        &self,
        index: u32,
        connection: &mut StreamSlot,
        out: &mut Vec<u8>,
        shared: &mut Option<SendBuf>,
    ) {
        let outgoing = &mut connection.send_queue;
        if self.is_shutting_down.get() {
            outgoing.error = libc::ENOTCONN;
            out.clear();
            return;
        }
        let socket = SockRef::from(&connection.descriptor);
        let mut taken = match send_vectored(&socket, out, shared.as_ref()) {
            Ok(taken) => taken,
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM) => 0,
                code => {
                    outgoing.error = code.unwrap_or(libc::EPIPE);
                    out.clear();
                    return;
                }
            },
        };
        outgoing.bytes_written += taken as u64;
        if let Some(SendBuf::File(part)) = shared
            && taken == out.len()
        {
            let (sent, failed) = sendfile::sendfile(connection.descriptor.as_fd(), part, 0);
            outgoing.bytes_written += sent as u64;
            taken += sent;
            if failed != 0 {
                outgoing.error = failed;
                out.clear();
                return;
            }
        }
        if taken == out.len() + shared.as_ref().map_or(0, SendBuf::len) {
            out.clear();
            return;
        }
        if let Some(of_shared) = taken.checked_sub(out.len()) {
            out.clear();
            outgoing.current = SendOp::new(shared.take().unwrap_or_default());
            outgoing.current.advance(of_shared);
        } else {
            let bytes = std::mem::replace(out, self.buffer_pool.get());
            outgoing.current = SendOp::new(SendBuf::Owned(bytes));
            outgoing.current.advance(taken);
            if let Some(shared) = shared.take() {
                outgoing.queued.get_or_insert_default().push_back(shared);
            }
        }
        self.start_send(index, connection);
    }

    /// Gives the current bytes to the ring, which sends as much as the socket has room for.
    fn submit_inline_send(&self, index: u32, connection: &mut StreamSlot) {
        if self.submit_send(index, connection, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) {
            connection.send_queue.state = SendState::Inline;
            self.ring.borrow_mut().expect_inline_completion();
        }
    }

    /// A task depends on the offered data being sent: no sleep may outlast that.
    pub(crate) fn wake_on_inline_send(&self, outgoing: &SendQueue) {
        if outgoing.state == SendState::Inline {
            self.ring.borrow_mut().wake_on_inline_completion();
        }
    }

    /// Gives the rest of the current bytes to the ring, to be sent when there is room. For a file,
    /// polls for room.
    fn start_send(&self, index: u32, connection: &mut StreamSlot) {
        if self.submit_send(index, connection, libc::MSG_NOSIGNAL) {
            connection.send_queue.state = SendState::Armed;
        }
    }

    /// Returns false if the ring does not take the operation, which ends sending.
    fn submit_send(&self, index: u32, connection: &mut StreamSlot, flags: i32) -> bool {
        let (current, target) = (&connection.send_queue.current, connection.fd());
        let entry = if current.file().is_some() {
            opcode::PollAdd::new(target, libc::POLLOUT as u32).build()
        } else {
            let rest = current.remaining();
            opcode::Send::new(target, rest.as_ptr(), rest.len() as u32).flags(flags).build()
        };
        // SAFETY: `current` owns the bytes, or has a handle of shared ones, which are immutable and
        // stay in place as long as any handle exists. Until the completion, which alone clears
        // `state`, it is neither changed nor taken, and `in_flight` keeps the slot.
        let submitted = unsafe { self.submit(entry, connection.token(OpKind::Send, index)) };
        connection.track_submission(submitted)
    }

    /// Starts a pause before the rest of a file is tried again.
    fn start_file_retry(&self, index: u32, connection: &mut StreamSlot) {
        let entry = opcode::Timeout::new(&raw const FILE_RETRY_DELAY).build();
        // SAFETY: the kernel reads a static constant.
        let submitted = unsafe { self.submit(entry, connection.token(OpKind::Send, index)) };
        if connection.track_submission(submitted) {
            connection.send_queue.state = SendState::Armed;
        }
    }

    pub(crate) fn on_send(&self, token: Token, result: i32) {
        let waiters;
        // Finished shared bytes are dropped after all borrows have ended.
        let mut done = None;
        let mut later = None;
        {
            let mut streams = self.streams.borrow_mut();
            let Some(connection) = find_live(&mut streams, token) else { return };
            let before = connection.send_queue.state;
            connection.send_queue.state = SendState::Idle;
            if connection.closing {
                let whole = connection.send_queue.current.remaining().len();
                if before == SendState::Inline && usize::try_from(result) != Ok(whole) {
                    // A regular end would mean that everything was sent.
                    let _ = connection.reset_on_close();
                }
                let freed = complete_operation(&mut streams, token);
                drop(streams);
                drop(freed);
                return;
            }
            connection.in_flight -= 1;
            let outgoing = &mut connection.send_queue;
            let taken = outgoing.bytes_written;
            let is_file = outgoing.current.file().is_some();
            let is_whole = match result {
                1.. if is_file => outgoing.send_file(connection.descriptor.as_fd()),
                // The pause is over.
                _ if is_file && result == -libc::ETIME => false,
                1.. => {
                    outgoing.bytes_written += u64::from(result.unsigned_abs());
                    outgoing.current.advance(result as usize)
                }
                _ if result == -libc::EINTR || result == -libc::EAGAIN => false,
                // Short of memory: an operation that waits may succeed.
                _ if before == SendState::Inline
                    && (result == -libc::ENOBUFS || result == -libc::ENOMEM) =>
                {
                    false
                }
                // A stream socket that takes zero bytes is as good as broken.
                0 => outgoing.fail(libc::EPIPE),
                _ => outgoing.fail(-result),
            };
            if is_whole {
                match std::mem::take(&mut outgoing.current).into_buf() {
                    SendBuf::Owned(bytes) => self.buffer_pool.put(bytes),
                    others => done = Some(others),
                }
                later = self.start_next_send(token.index, connection);
            } else if is_file && result > 0 && outgoing.bytes_written == taken {
                self.start_file_retry(token.index, connection);
            } else {
                self.start_send(token.index, connection);
            }
            waiters = match (before, connection.send_queue.state) {
                _ if connection.send_queue.error != 0 => connection.take_waiters(),
                (_, SendState::Idle) => {
                    [std::mem::take(&mut connection.send_queue.flush_waiter), Waiter::NONE]
                }
                // There was believed to be room, but there is none.
                (SendState::Inline, _) => connection.take_waiters(),
                _ => [Waiter::NONE, Waiter::NONE],
            };
        }
        waiters.into_iter().for_each(|waiter| waiter.wake(&self.executor));
        drop((done, later));
    }

    /// Starts sending the data queued behind a finished send. Returns the queue if it must not be
    /// sent.
    #[expect(clippy::box_collection, reason = "stored as a box")]
    fn start_next_send(
        &self,
        index: u32,
        connection: &mut StreamSlot,
    ) -> Option<Box<VecDeque<SendBuf>>> {
        let outgoing = &mut connection.send_queue;
        if outgoing.error == 0
            && let Some(next) = outgoing.queued.as_mut().and_then(|later| later.pop_front())
        {
            outgoing.current = SendOp::new(next);
            self.start_send(index, connection);
            return None;
        }
        let left = outgoing.queued.take();
        if outgoing.shutdown == ShutdownState::Requested {
            connection.shutdown_write();
        }
        left
    }
}

/// Offers both to the socket in one call that does not wait. Bytes before a file are held back
/// briefly, so that they share a packet with its contents.
fn send_vectored(
    socket: &SockRef<'_>,
    first: &[u8],
    behind: Option<&SendBuf>,
) -> io::Result<usize> {
    let is_file = matches!(behind, Some(SendBuf::File(_)));
    let more = if is_file { libc::MSG_MORE } else { 0 };
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | more;
    match (first, behind.map_or(&[][..], SendBuf::as_bytes)) {
        ([], []) => Ok(0),
        (bytes, []) | ([], bytes) => socket.send_with_flags(bytes, flags),
        (first, second) => {
            let both = [IoSlice::new(first), IoSlice::new(second)];
            socket.send_vectored_with_flags(&both, flags)
        }
    }
}

impl SendQueue {
    /// Sends as much of the current file as the socket takes. Returns true if nothing of it is
    /// left.
    fn send_file(&mut self, socket: BorrowedFd<'_>) -> bool {
        let part = self.current.file();
        let (sent, failed) =
            part.map(|(part, from)| sendfile::sendfile(socket, part, from)).unwrap_or_default();
        self.bytes_written += sent as u64;
        if failed == 0 { self.current.advance(sent) } else { self.fail(failed) }
    }

    fn fail(&mut self, code: i32) -> bool {
        self.error = code;
        true
    }
}
