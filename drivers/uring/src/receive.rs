//! The receiving side of a connection: when and how receives are submitted.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use io_uring::{cqueue, opcode, squeue};

use crate::buffer_ring::BUFFER_GROUP;
use crate::chunk::{Chunk, ChunkData, OwnedBuffer, ProvidedBuffer};
use crate::executor::Waiter;
use crate::operation::{OpKind, Token};
use crate::sendfile::to_io_error;
use crate::stream::{StreamSlot, UringStream, complete_operation, find_live};
use crate::worker::UringWorker;

/// The state machine for receiving.
///
/// | from | to | when |
/// |---|---|---|
/// | Idle | Armed | a reader waits or, after the first time, there is room for more |
/// | Armed | Cancelling | too many chunks are unread, or the handle was dropped |
/// | Armed, Cancelling | Idle | the final completion arrived |
/// | Armed, Cancelling | Starved | it failed because all buffers were in use |
/// | Starved | Armed | buffers are free again, or a reader waits and the worker is about to sleep |
/// | Starved | Idle | no reader waits, and the worker is about to sleep |
/// | Armed, Cancelling | Closed | the peer finished or the connection broke |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveState {
    Idle,
    Armed,
    Cancelling,
    Starved,
    /// With the error number, or 0 if the peer finished sending.
    Closed(i32),
}

/// How the next receive is submitted.
///
/// Each chunk costs a completion and a wake-up of its reader, and without multishot also a
/// submission. So fast uploads are received in large chunks.
///
/// | from | to | when |
/// |---|---|---|
/// | Multishot | Large | too many chunks are unread |
/// | Multishot | Single | the receive waited for buffers |
/// | Single | Large | the socket has more bytes |
/// | Single | Multishot | the socket is empty |
/// | Large | Poll | the socket is empty, after at least a buffer's bytes |
/// | Large | Single | the socket is empty, after fewer bytes |
/// | Poll | Large | the socket has bytes |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveMode {
    /// One operation for many chunks, each in a shared buffer.
    Multishot,
    /// One operation for one chunk in a shared buffer.
    Single,
    /// One operation for one chunk of up to [`UringWorker::large_receive_bytes`] in separate
    /// memory, submitted only when a reader waits for it. It receives what the socket has and never
    /// waits for more, so a connection whose peer pauses holds no such memory.
    Large,
    /// One operation that waits until the socket is readable, before a large chunk. Without it, an
    /// upload that is read faster than it is sent would arrive in two chunks each time: a small one
    /// that is copied, and then the bytes that arrived in the meantime.
    Poll,
}

/// How much a receive returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiveSize {
    /// Less than the size of a shared buffer.
    Short,
    /// At least the size of a shared buffer.
    Full,
}

impl UringStream {
    pub(crate) fn poll_recv_chunk(&self, context: &Context<'_>) -> Poll<io::Result<Chunk>> {
        let worker = &self.worker;
        let mut streams = worker.streams.borrow_mut();
        let connection = &mut streams[self.index as usize];
        let bytes = connection.next_bytes(worker);
        let wants_more = match connection.receive_mode {
            ReceiveMode::Large | ReceiveMode::Poll => bytes.is_none(),
            ReceiveMode::Multishot | ReceiveMode::Single => {
                connection.unread_chunks() < worker.read_ahead_buffers_max
            }
        };
        if connection.receive_state == ReceiveState::Idle && wants_more {
            worker.arm_receive(self.index, connection);
        }
        if let Some(bytes) = bytes {
            return Poll::Ready(Ok(Chunk { bytes }));
        }
        match connection.receive_state {
            ReceiveState::Closed(0) => return Poll::Ready(Ok(Chunk { bytes: ChunkData::Eof })),
            ReceiveState::Closed(code) => {
                return Poll::Ready(Err(to_io_error(code)));
            }
            _ => {}
        }
        if connection.send_queue.error != 0 {
            let code = connection.send_queue.error;
            return Poll::Ready(Err(to_io_error(code)));
        }
        let old = connection.receive_waiter.register(context, &worker.executor);
        drop(streams);
        drop(old);
        Poll::Pending
    }
}

impl StreamSlot {
    /// Records whether the ring accepted a receive. If not, receiving has failed.
    fn track_receive_submission(&mut self, submitted: io::Result<()>) {
        self.receive_state = match submitted {
            Ok(()) => {
                self.in_flight += 1;
                ReceiveState::Armed
            }
            Err(error) => {
                self.owned_receive.take_if(|owned| owned.bytes.is_empty());
                ReceiveState::Closed(error.raw_os_error().unwrap_or(libc::ENOTCONN))
            }
        };
    }

    /// Removes the oldest unread chunk from the slot and returns it.
    fn next_bytes(&mut self, worker: &Rc<UringWorker>) -> Option<ChunkData> {
        if let Some(owned) = self.owned_receive.take_if(|owned| !owned.bytes.is_empty()) {
            return Some(ChunkData::Owned(owned));
        }
        let (buffer, length) = self.chunks.pop(&worker.buffers)?;
        Some(ChunkData::Provided(ProvidedBuffer::new(Rc::clone(worker), buffer, length)))
    }

    pub(crate) fn unread_chunks(&self) -> usize {
        let owned = self.owned_receive.as_ref().is_some_and(|owned| !owned.bytes.is_empty());
        self.chunks.len() + usize::from(owned)
    }
}

impl ReceiveMode {
    /// The mode after the final completion of a receive. `has_more` says whether the socket may
    /// have more bytes.
    fn next_mode(self, received: ReceiveSize, has_more: bool) -> Self {
        match (self, has_more) {
            (Self::Multishot, _) => Self::Multishot,
            (Self::Single | Self::Large, true) | (Self::Poll, _) => Self::Large,
            (Self::Single, false) => Self::Multishot,
            (Self::Large, false) => match received {
                ReceiveSize::Full => Self::Poll,
                ReceiveSize::Short => Self::Single,
            },
        }
    }
}

impl UringWorker {
    fn arm_receive(&self, index: u32, connection: &mut StreamSlot) {
        let entry = match connection.receive_mode {
            ReceiveMode::Multishot => opcode::RecvMulti::new(connection.fd(), BUFFER_GROUP).build(),
            ReceiveMode::Single => {
                let bytes = self.buffers.bytes() as u32;
                opcode::Recv::new(connection.fd(), std::ptr::null_mut(), bytes)
                    .buf_group(BUFFER_GROUP)
                    .build()
                    .flags(squeue::Flags::BUFFER_SELECT)
            }
            ReceiveMode::Large => {
                let bytes = self.large_receive_bytes;
                return self.arm_owned_receive(index, connection, bytes, libc::MSG_DONTWAIT);
            }
            ReceiveMode::Poll => opcode::PollAdd::new(connection.fd(), libc::POLLIN as u32).build(),
        };
        // SAFETY: the kernel writes only to memory of the registered buffers, which `UringWorker`
        // owns until the ring is closed, and lends out only while the kernel does not own it. A
        // poll writes nothing.
        let submitted = unsafe { self.submit(entry, connection.token(OpKind::Receive, index)) };
        connection.track_receive_submission(submitted);
    }

    /// Receives once into separate memory, at most `bytes` bytes.
    fn arm_owned_receive(&self, index: u32, connection: &mut StreamSlot, bytes: usize, flags: i32) {
        let owned = connection
            .owned_receive
            .insert(Box::new(OwnedBuffer { bytes: Vec::with_capacity(bytes) }));
        let start = owned.bytes.as_mut_ptr();
        let entry = opcode::Recv::new(connection.fd(), start, bytes as u32).flags(flags);
        // SAFETY: the slot owns the memory, which has room for `bytes` bytes. While the receive is
        // armed, the memory is neither read, because the vector is empty, nor freed: `in_flight`
        // keeps the slot alive, and `owned_receive` is taken out of the slot only by the completion
        // or, once it contains bytes, by a reader.
        let submitted =
            unsafe { self.submit(entry.build(), connection.token(OpKind::Receive, index)) };
        connection.track_receive_submission(submitted);
    }

    pub(crate) fn cancel_receive(&self, index: u32, connection: &mut StreamSlot) {
        let target = connection.token(OpKind::Receive, index);
        if self.cancel(target, OpKind::CancelStream).is_ok() {
            connection.in_flight += 1;
            connection.receive_state = ReceiveState::Cancelling;
        }
    }

    pub(crate) fn on_receive(&self, token: Token, result: i32, flags: u32) {
        let buffer = cqueue::buffer_select(flags);
        if let Some(buffer) = buffer {
            self.buffers.on_selected(buffer);
        }
        let (mut waiter, mut freed) = (Waiter::NONE, None);
        {
            let mut streams = self.streams.borrow_mut();
            let connection =
                find_live(&mut streams, token).filter(|connection| !connection.closing);
            if let Some(connection) = connection {
                // The result of a poll is a set of events, not a length.
                let length = match connection.receive_mode {
                    ReceiveMode::Poll => 0,
                    _ => usize::try_from(result).unwrap_or(0),
                };
                let has_more =
                    self.store_received(connection, buffer, length) || cqueue::sock_nonempty(flags);
                if !cqueue::more(flags) {
                    connection.in_flight -= 1;
                    if connection.receive_state == ReceiveState::Armed {
                        let received = match length < self.buffers.bytes() {
                            true => ReceiveSize::Short,
                            false => ReceiveSize::Full,
                        };
                        connection.receive_mode =
                            connection.receive_mode.next_mode(received, has_more);
                    }
                    let unread = connection.unread_chunks();
                    let next_state = self.state_after_receive(token, unread, result);
                    connection.receive_state = match next_state {
                        // The kernel reports an error only once. If the sending side got it, this
                        // end is not a regular one.
                        ReceiveState::Closed(0) => {
                            ReceiveState::Closed(connection.send_queue.error)
                        }
                        other => other,
                    };
                }
                self.apply_backpressure(token.index, connection);
                // A cancelled or starved receive has nothing to report.
                let is_closed = matches!(connection.receive_state, ReceiveState::Closed(_));
                if is_closed || connection.unread_chunks() > 0 {
                    waiter = std::mem::take(&mut connection.receive_waiter);
                }
            } else {
                if let Some(unread) = buffer {
                    self.buffers.provide(unread);
                }
                if !cqueue::more(flags) {
                    freed = complete_operation(&mut streams, token);
                }
            }
        }
        drop(freed);
        waiter.wake(&self.executor);
    }

    /// Stores `length` received bytes for the reader. Returns true if they filled the memory of the
    /// receive, which means that there may be more: some kinds of sockets do not report that.
    fn store_received(
        &self,
        connection: &mut StreamSlot,
        buffer: Option<u16>,
        length: usize,
    ) -> bool {
        match (buffer, length) {
            (Some(unused), 0) => {
                self.buffers.provide(unused);
                false
            }
            (Some(buffer), length) => {
                connection.chunks.push(&self.buffers, buffer, length as u32);
                length == self.buffers.bytes()
            }
            // A large receive is not multishot: once it has completed, the kernel no longer uses
            // the memory.
            (None, 0) => {
                connection.owned_receive.take_if(|owned| owned.bytes.is_empty());
                false
            }
            (None, length) => {
                let owned = connection.owned_receive.as_mut();
                let bytes = &mut owned
                    .expect("bytes outside of the shared buffers are in `owned_receive`")
                    .bytes;
                assert!(length <= bytes.capacity(), "the kernel wrote beyond the memory");
                // SAFETY: the receive was for this vector, and the kernel has written its first
                // `length` bytes.
                unsafe { bytes.set_len(length) };
                length == bytes.capacity()
            }
        }
    }

    /// The state after the final completion of a receive.
    fn state_after_receive(&self, token: Token, unread: usize, result: i32) -> ReceiveState {
        match -result {
            0 => ReceiveState::Closed(0),
            code if code < 0 => ReceiveState::Idle,
            libc::ENOBUFS => {
                self.buffers_exhausted.set(self.buffers_exhausted.get() + 1);
                self.buffers.on_exhausted();
                if unread == 0 {
                    self.starved.borrow_mut().push_back((token.index, token.generation));
                    ReceiveState::Starved
                } else {
                    // The reader still has chunks to read, and arms the next receive when it reads
                    // them.
                    ReceiveState::Idle
                }
            }
            libc::ECANCELED | libc::EINTR | libc::EAGAIN => ReceiveState::Idle,
            code => ReceiveState::Closed(code),
        }
    }

    /// Stops receiving for a connection with too many unread chunks, and resumes when there are
    /// fewer.
    fn apply_backpressure(&self, index: u32, connection: &mut StreamSlot) {
        let unread = connection.unread_chunks();
        match (connection.receive_state, connection.receive_mode) {
            (ReceiveState::Armed, ReceiveMode::Multishot)
                if unread >= self.read_ahead_buffers_max =>
            {
                self.cancel_receive(index, connection);
                // If the ring rejected the cancellation, the next chunk causes another attempt.
                if connection.receive_state == ReceiveState::Cancelling {
                    connection.receive_mode = ReceiveMode::Large;
                }
            }
            // The next reader arms the receive.
            (ReceiveState::Idle, ReceiveMode::Large | ReceiveMode::Poll)
                if unread > 0 || connection.receive_waiter.is_none() => {}
            // If nothing is unread, no reader is woken that would arm the receive. If no buffer is
            // free, the receive fails with ENOBUFS and the connection is queued in `starved`.
            (ReceiveState::Idle, _)
                if unread < self.read_ahead_buffers_max
                    && !self.is_shutting_down.get()
                    && (unread == 0 || self.buffers.free() > 0) =>
            {
                self.arm_receive(index, connection);
            }
            _ => {}
        }
    }

    /// Arms receives that ended because no buffer was free, one for each buffer that is free now.
    pub(crate) fn rearm_starved(&self) {
        let mut free = self.buffers.free();
        while free > 0 {
            let Some((index, generation)) = self.starved.borrow_mut().pop_front() else { return };
            let mut streams = self.streams.borrow_mut();
            let Some(connection) = streams.get_mut(index as usize) else { continue };
            if connection.generation != generation
                || connection.receive_state != ReceiveState::Starved
                || connection.closing
            {
                continue;
            }
            // One chunk for each waiting connection, so that the buffers suffice for all.
            connection.receive_mode = ReceiveMode::Single;
            self.arm_receive(index, connection);
            free -= 1;
        }
    }

    /// Called before the worker sleeps while connections are starved. The connections that hold the
    /// buffers may never be read from, so each starved connection with a waiting reader gets
    /// separate memory for one receive.
    pub(crate) fn rearm_starved_owned(&self) {
        loop {
            let Some((index, generation)) = self.starved.borrow_mut().pop_front() else { return };
            let mut streams = self.streams.borrow_mut();
            let Some(connection) = streams.get_mut(index as usize) else { continue };
            if connection.generation != generation
                || connection.receive_state != ReceiveState::Starved
                || connection.closing
            {
                continue;
            }
            if connection.receive_waiter.is_none() {
                // The next reader arms the receive again.
                connection.receive_state = ReceiveState::Idle;
            } else {
                self.arm_owned_receive(index, connection, self.buffers.bytes(), 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receive_mode_follows_what_the_socket_contains() {
        use ReceiveSize::{Full, Short};
        let moves = [
            (ReceiveMode::Multishot, Full, true, ReceiveMode::Multishot),
            (ReceiveMode::Multishot, Short, false, ReceiveMode::Multishot),
            (ReceiveMode::Single, Full, true, ReceiveMode::Large),
            (ReceiveMode::Single, Short, false, ReceiveMode::Multishot),
            (ReceiveMode::Single, Full, false, ReceiveMode::Multishot),
            (ReceiveMode::Large, Full, true, ReceiveMode::Large),
            (ReceiveMode::Large, Short, true, ReceiveMode::Large),
            (ReceiveMode::Large, Full, false, ReceiveMode::Poll),
            (ReceiveMode::Large, Short, false, ReceiveMode::Single),
            (ReceiveMode::Poll, Short, false, ReceiveMode::Large),
            (ReceiveMode::Poll, Short, true, ReceiveMode::Large),
        ];
        for (from, received, has_more, to) in moves {
            assert_eq!(
                from.next_mode(received, has_more),
                to,
                "{from:?}, {received:?}, {has_more}"
            );
        }
    }
}
