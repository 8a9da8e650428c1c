//! Sends data: as much as the socket accepts immediately, the rest with one ring operation at a
//! time.
//!
//! Most sends are small and fit into the socket's buffer. They are sent *inline*: with a ring
//! operation that does not wait for room, so it completes within the enter in which the worker goes
//! to sleep. That completion is expected and does not end the sleep; meanwhile the connection
//! continues as if the socket had room. If the socket turns out to have none, the waiting tasks are
//! woken. If something depends on an inline send (more bytes, the end of the stream, or a task
//! waiting until it is sent), its completion ends the sleep.
//!
//! Large sends start with a plain system call, because their connection needs to know whether there
//! is room for more. The rest is sent by a ring operation as the peer reads. Data that is passed in
//! the meantime is queued behind it.
//!
//! Shared bytes are sent by the same system call as the bytes before them; what remains is sent by
//! separate operations. The connection's slot holds them until the kernel has accepted them. For
//! files, the ring reports when there is room, and a plain call (`sendfile.rs`) sends.

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

/// The maximum length of an inline send. Above that, a system call costs little compared to the
/// copying that it does.
const INLINE_SEND_BYTES_MAX: usize = 16 * 1024;

/// The maximum number of inline sends per iteration, which is the number of pooled vectors. Beyond
/// that, system calls are cheaper than new vectors.
const INLINE_SENDS_MAX: u32 = 64;

/// How long to wait after nothing of a file could be sent although the socket has room. The kernel
/// is then short of memory, and polling for room would complete immediately each time.
static FILE_RETRY_DELAY: types::Timespec = types::Timespec::new().nsec(10_000_000);

impl UringStream {
    /// Sends `out` and then `shared`, or queues them behind earlier data.
    pub(crate) fn start_send(&self, out: &mut Vec<u8>, shared: Option<SendBuf>) {
        // What is not sent or queued is dropped at the end, after all borrows have ended.
        let mut shared = shared.filter(|shared| !shared.is_empty());
        if out.is_empty() && shared.is_none() {
            return;
        }
        let mut streams = self.worker.streams.borrow_mut();
        let connection = &mut streams[self.index as usize];
        let send_queue = &mut connection.send_queue;
        if let ReceiveState::Closed(code) = connection.receive_state
            && send_queue.error == 0
        {
            // A broken connection accepts no data, and an inline send would report that too late.
            send_queue.error = code;
        }
        if send_queue.error != 0 || send_queue.shutdown != ShutdownState::Open {
            send_queue.wrote_after_shutdown |= send_queue.shutdown != ShutdownState::Open;
            out.clear();
        } else if send_queue.state != SendState::Idle {
            let queued = send_queue.queued.get_or_insert_default();
            if !out.is_empty() {
                queued.push_back(SendBuf::Owned(std::mem::replace(
                    out,
                    self.worker.buffer_pool.get(),
                )));
            }
            queued.extend(shared.take());
            self.worker.wake_on_inline_send(send_queue);
            send_queue.state = SendState::Armed;
        } else if shared.is_none()
            && out.len() <= INLINE_SEND_BYTES_MAX
            && self.worker.can_send_inline()
        {
            let bytes = std::mem::replace(out, self.worker.buffer_pool.get());
            send_queue.current = SendOp::new(SendBuf::Owned(bytes));
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
        let send_queue = &mut streams[self.index as usize].send_queue;
        if send_queue.is_flushed() {
            return Poll::Ready(send_queue.result());
        }
        self.worker.wake_on_inline_send(send_queue);
        let old = send_queue.flush_waiter.register(context, &self.worker.executor);
        drop(streams);
        drop(old);
        Poll::Pending
    }

    /// Shuts down sending, either now or after the data that is still being sent.
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
    /// Returns whether `poll_flush` is ready: all data was sent, or sending has failed.
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
    /// Shuts down sending with a plain system call, because the ring would use another thread for
    /// it.
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

    /// Records whether the ring accepted a send operation, and returns it. If not, sending has
    /// failed.
    fn track_submission(&mut self, result: io::Result<()>) -> bool {
        match result {
            Ok(()) => self.in_flight += 1,
            Err(ref error) => {
                self.send_queue.error = error.raw_os_error().unwrap_or(libc::ENOTCONN);
            }
        }
        result.is_ok()
    }

    /// Removes and returns the tasks that wait in either direction.
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

    /// Sends what the kernel accepts immediately, and submits the rest to the ring. Takes `shared`
    /// only if a part of it remains to be sent.
    fn send_sync(
        &self,
        index: u32,
        connection: &mut StreamSlot,
        out: &mut Vec<u8>,
        shared: &mut Option<SendBuf>,
    ) {
        let send_queue = &mut connection.send_queue;
        if self.is_shutting_down.get() {
            send_queue.error = libc::ENOTCONN;
            out.clear();
            return;
        }
        let socket = SockRef::from(&connection.descriptor);
        let mut written = match send_vectored(&socket, out, shared.as_ref()) {
            Ok(written) => written,
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM) => 0,
                code => {
                    send_queue.error = code.unwrap_or(libc::EPIPE);
                    out.clear();
                    return;
                }
            },
        };
        send_queue.bytes_written += written as u64;
        if let Some(SendBuf::File(range)) = shared
            && written == out.len()
        {
            let (sent, error_code) = sendfile::sendfile(connection.descriptor.as_fd(), range, 0);
            send_queue.bytes_written += sent as u64;
            written += sent;
            if error_code != 0 {
                send_queue.error = error_code;
                out.clear();
                return;
            }
        }
        if written == out.len() + shared.as_ref().map_or(0, SendBuf::len) {
            out.clear();
            return;
        }
        if let Some(shared_written) = written.checked_sub(out.len()) {
            out.clear();
            send_queue.current = SendOp::new(shared.take().unwrap_or_default());
            send_queue.current.advance(shared_written);
        } else {
            let bytes = std::mem::replace(out, self.buffer_pool.get());
            send_queue.current = SendOp::new(SendBuf::Owned(bytes));
            send_queue.current.advance(written);
            if let Some(shared) = shared.take() {
                send_queue.queued.get_or_insert_default().push_back(shared);
            }
        }
        self.submit_armed_send(index, connection);
    }

    /// Submits an inline send of the current bytes, which sends as much as the socket has room for.
    fn submit_inline_send(&self, index: u32, connection: &mut StreamSlot) {
        if self.submit_send(index, connection, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) {
            connection.send_queue.state = SendState::Inline;
            self.ring.borrow_mut().expect_inline_completion();
        }
    }

    /// Makes the completion of an inline send end the sleep, because something depends on it.
    pub(crate) fn wake_on_inline_send(&self, send_queue: &SendQueue) {
        if send_queue.state == SendState::Inline {
            self.ring.borrow_mut().wake_on_inline_completion();
        }
    }

    /// Submits an operation that sends the rest of the current bytes when there is room. For a
    /// file, the operation only polls for room.
    fn submit_armed_send(&self, index: u32, connection: &mut StreamSlot) {
        if self.submit_send(index, connection, libc::MSG_NOSIGNAL) {
            connection.send_queue.state = SendState::Armed;
        }
    }

    /// Submits an operation for the rest of the current data. Returns false if the ring rejects it,
    /// which ends sending.
    fn submit_send(&self, index: u32, connection: &mut StreamSlot, flags: i32) -> bool {
        let (current, target) = (&connection.send_queue.current, connection.fd());
        let entry = if current.file().is_some() {
            opcode::PollAdd::new(target, libc::POLLOUT as u32).build()
        } else {
            let remaining = current.remaining();
            opcode::Send::new(target, remaining.as_ptr(), remaining.len() as u32)
                .flags(flags)
                .build()
        };
        // SAFETY: `current` owns the bytes, or has a handle of shared bytes, which are immutable
        // and stay in place as long as any handle exists. Until the completion, which alone clears
        // `state`, `current` is neither changed nor taken, and `in_flight` keeps the slot alive.
        let submitted = unsafe { self.submit(entry, connection.token(OpKind::Send, index)) };
        connection.track_submission(submitted)
    }

    /// Submits a timeout, after which the rest of a file is tried again.
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
        let mut completed = None;
        let mut unsent = None;
        {
            let mut streams = self.streams.borrow_mut();
            let Some(connection) = find_live(&mut streams, token) else { return };
            let previous_state = connection.send_queue.state;
            connection.send_queue.state = SendState::Idle;
            if connection.closing {
                let remaining = connection.send_queue.current.remaining().len();
                if previous_state == SendState::Inline && usize::try_from(result) != Ok(remaining) {
                    // A FIN would tell the peer that everything was sent.
                    let _ = connection.reset_on_close();
                }
                let freed = complete_operation(&mut streams, token);
                drop(streams);
                drop(freed);
                return;
            }
            connection.in_flight -= 1;
            let send_queue = &mut connection.send_queue;
            let bytes_before = send_queue.bytes_written;
            let is_file = send_queue.current.file().is_some();
            let is_complete = match result {
                1.. if is_file => send_queue.send_file(connection.descriptor.as_fd()),
                // The pause is over.
                _ if is_file && result == -libc::ETIME => false,
                1.. => {
                    send_queue.bytes_written += u64::from(result.unsigned_abs());
                    send_queue.current.advance(result as usize)
                }
                _ if result == -libc::EINTR || result == -libc::EAGAIN => false,
                // The kernel is short of memory; an operation that waits may still succeed.
                _ if previous_state == SendState::Inline
                    && (result == -libc::ENOBUFS || result == -libc::ENOMEM) =>
                {
                    false
                }
                // A stream socket that accepts zero bytes is treated as broken.
                0 => send_queue.fail(libc::EPIPE),
                _ => send_queue.fail(-result),
            };
            if is_complete {
                match std::mem::take(&mut send_queue.current).into_buf() {
                    SendBuf::Owned(bytes) => self.buffer_pool.put(bytes),
                    other => completed = Some(other),
                }
                unsent = self.start_next_send(token.index, connection);
            } else if is_file && result > 0 && send_queue.bytes_written == bytes_before {
                self.start_file_retry(token.index, connection);
            } else {
                self.submit_armed_send(token.index, connection);
            }
            waiters = match (previous_state, connection.send_queue.state) {
                _ if connection.send_queue.error != 0 => connection.take_waiters(),
                (_, SendState::Idle) => {
                    [std::mem::take(&mut connection.send_queue.flush_waiter), Waiter::NONE]
                }
                // `is_writable` has returned true until now, so the tasks must check again.
                (SendState::Inline, _) => connection.take_waiters(),
                _ => [Waiter::NONE, Waiter::NONE],
            };
        }
        waiters.into_iter().for_each(|waiter| waiter.wake(&self.executor));
        drop((completed, unsent));
    }

    /// Starts sending the data queued behind a finished send. If sending has failed, returns the
    /// unsent data to be dropped.
    #[expect(clippy::box_collection, reason = "stored as a box")]
    fn start_next_send(
        &self,
        index: u32,
        connection: &mut StreamSlot,
    ) -> Option<Box<VecDeque<SendBuf>>> {
        let send_queue = &mut connection.send_queue;
        if send_queue.error == 0
            && let Some(next) = send_queue.queued.as_mut().and_then(|queued| queued.pop_front())
        {
            send_queue.current = SendOp::new(next);
            self.submit_armed_send(index, connection);
            return None;
        }
        let unsent = send_queue.queued.take();
        if send_queue.shutdown == ShutdownState::Requested {
            connection.shutdown_write();
        }
        unsent
    }
}

/// Sends `first` and `shared` in one system call that does not wait. If a file follows `first`, the
/// kernel holds `first` back briefly, so that both share a packet.
fn send_vectored(
    socket: &SockRef<'_>,
    first: &[u8],
    shared: Option<&SendBuf>,
) -> io::Result<usize> {
    let is_file = matches!(shared, Some(SendBuf::File(_)));
    let more = if is_file { libc::MSG_MORE } else { 0 };
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | more;
    match (first, shared.map_or(&[][..], SendBuf::as_bytes)) {
        ([], []) => Ok(0),
        (bytes, []) | ([], bytes) => socket.send_with_flags(bytes, flags),
        (first, second) => {
            let both = [IoSlice::new(first), IoSlice::new(second)];
            socket.send_vectored_with_flags(&both, flags)
        }
    }
}

impl SendQueue {
    /// Sends as much of the current file as the socket accepts. Returns true if it is complete or
    /// has failed.
    fn send_file(&mut self, socket: BorrowedFd<'_>) -> bool {
        let range = self.current.file();
        let (sent, error_code) = range
            .map(|(range, offset)| sendfile::sendfile(socket, range, offset))
            .unwrap_or_default();
        self.bytes_written += sent as u64;
        if error_code == 0 { self.current.advance(sent) } else { self.fail(error_code) }
    }

    /// Ends sending with an error. Returns true, because the current data is finished.
    fn fail(&mut self, code: i32) -> bool {
        self.error = code;
        true
    }
}
