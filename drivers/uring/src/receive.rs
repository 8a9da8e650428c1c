//! The receiving side of a connection: when and how receives are submitted.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use io_uring::{cqueue, opcode, squeue};

use crate::buffers::GROUP;
use crate::chunk::{Bytes, Chunk, Lent, Own};
use crate::file::error_of;
use crate::operation::{Kind, Token};
use crate::stream::{Connection, UringStream, current, operation_ended};
use crate::task::Waiter;
use crate::worker::Shared;

/// The state machine for receiving.
///
/// | from | to | when |
/// |---|---|---|
/// | Idle | Armed | a reader waits or, after the first time, there is room for more |
/// | Armed | Ending | too many chunks are unread, or the handle was dropped |
/// | Armed, Ending | Idle | the final completion arrived |
/// | Armed, Ending | Starved | it failed because all buffers were in use |
/// | Starved | Armed | buffers are free again, or the worker would sleep without one |
/// | Starved | Idle | the same, and no reader waits |
/// | Armed, Ending | Ended | the peer finished or the connection broke |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiving {
    Idle,
    Armed,
    Ending,
    Starved,
    /// With the error number, or 0 if the peer finished sending.
    Ended(i32),
}

/// How the next receive is submitted.
///
/// Each chunk costs a completion and a wake-up of its reader, and each single receive a submission
/// too. So fast uploads are received in large chunks.
///
/// | from | to | when |
/// |---|---|---|
/// | Stream | Large | too many chunks are unread |
/// | Stream | Single | it waited for buffers |
/// | Single | Large | the socket has more bytes |
/// | Single | Stream | the socket is empty |
/// | Large | Poll | the socket is empty, after at least a buffer's bytes |
/// | Large | Single | the socket is empty, after fewer bytes |
/// | Poll | Large | the socket has bytes |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// One operation for many chunks, each in a shared buffer.
    Stream,
    /// One operation for one chunk in a shared buffer.
    Single,
    /// One operation for one chunk of up to [`Shared::large_bytes`] in separate memory, submitted
    /// only when a reader waits for it. It takes what the socket has and never waits for more, so a
    /// connection whose peer pauses holds no such memory.
    Large,
    /// One operation that waits until the socket is readable, before a large chunk. Otherwise an
    /// upload that is faster than its peer would arrive in two pieces each time: a small one that
    /// is copied, and the bytes that arrived in the meantime.
    Poll,
}

/// How much a receive returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Received {
    /// Less than the size of a shared buffer.
    Little,
    /// At least the size of a shared buffer.
    Much,
}

impl UringStream {
    pub(crate) fn poll_chunk(&self, context: &Context<'_>) -> Poll<io::Result<Chunk>> {
        let shared = &self.shared;
        let mut streams = shared.streams.borrow_mut();
        let connection = &mut streams[self.index as usize];
        let bytes = connection.next_bytes(shared);
        let wants_more = match connection.pace {
            Pace::Large | Pace::Poll => bytes.is_none(),
            Pace::Stream | Pace::Single => connection.unread_chunks() < shared.receive_ahead_max,
        };
        if connection.receiving == Receiving::Idle && wants_more {
            shared.arm_receive(self.index, connection);
        }
        if let Some(bytes) = bytes {
            return Poll::Ready(Ok(Chunk { bytes }));
        }
        match connection.receiving {
            Receiving::Ended(0) => return Poll::Ready(Ok(Chunk { bytes: Bytes::None })),
            Receiving::Ended(code) => {
                return Poll::Ready(Err(error_of(code)));
            }
            _ => {}
        }
        if connection.outgoing.failed != 0 {
            let code = connection.outgoing.failed;
            return Poll::Ready(Err(error_of(code)));
        }
        let old = connection.receive_waiter.register(context, &shared.tasks);
        drop(streams);
        drop(old);
        Poll::Pending
    }
}

impl Connection {
    fn receive_submitted(&mut self, submitted: io::Result<()>) {
        self.receiving = match submitted {
            Ok(()) => {
                self.in_flight += 1;
                Receiving::Armed
            }
            Err(error) => {
                self.own.take_if(|own| own.bytes.is_empty());
                Receiving::Ended(error.raw_os_error().unwrap_or(libc::ENOTCONN))
            }
        };
    }

    /// Takes the oldest unread bytes.
    fn next_bytes(&mut self, shared: &Rc<Shared>) -> Option<Bytes> {
        if let Some(own) = self.own.take_if(|own| !own.bytes.is_empty()) {
            return Some(Bytes::Own(own));
        }
        let (buffer, length) = self.unread.pop(&shared.buffers)?;
        Some(Bytes::Lent(Lent::new(Rc::clone(shared), buffer, length)))
    }

    pub(crate) fn unread_chunks(&self) -> usize {
        let own = self.own.as_ref().is_some_and(|own| !own.bytes.is_empty());
        self.unread.len() + usize::from(own)
    }
}

impl Pace {
    /// The pace after the final completion of a receive that returned `received` bytes.
    fn after(self, received: Received, more_waits: bool) -> Self {
        match (self, more_waits) {
            (Self::Stream, _) => Self::Stream,
            (Self::Single | Self::Large, true) | (Self::Poll, _) => Self::Large,
            (Self::Single, false) => Self::Stream,
            (Self::Large, false) => match received {
                Received::Much => Self::Poll,
                Received::Little => Self::Single,
            },
        }
    }
}

impl Shared {
    fn arm_receive(&self, index: u32, connection: &mut Connection) {
        let entry = match connection.pace {
            Pace::Stream => opcode::RecvMulti::new(connection.target(), GROUP).build(),
            Pace::Single => {
                let bytes = self.buffers.bytes() as u32;
                opcode::Recv::new(connection.target(), std::ptr::null_mut(), bytes)
                    .buf_group(GROUP)
                    .build()
                    .flags(squeue::Flags::BUFFER_SELECT)
            }
            Pace::Large => {
                let bytes = self.large_bytes;
                return self.arm_own(index, connection, bytes, libc::MSG_DONTWAIT);
            }
            Pace::Poll => opcode::PollAdd::new(connection.target(), libc::POLLIN as u32).build(),
        };
        // SAFETY: the kernel writes only to memory of the registered buffers, which `Shared` keeps
        // until the ring is closed, and lends out only while the kernel does not own it. A poll
        // writes nothing.
        let submitted = unsafe { self.submit(entry, connection.token(Kind::Receive, index)) };
        connection.receive_submitted(submitted);
    }

    /// Receives once into separate memory, at most `bytes` bytes.
    fn arm_own(&self, index: u32, connection: &mut Connection, bytes: usize, flags: i32) {
        let own = connection.own.insert(Box::new(Own { bytes: Vec::with_capacity(bytes) }));
        let start = own.bytes.as_mut_ptr();
        let entry = opcode::Recv::new(connection.target(), start, bytes as u32).flags(flags);
        // SAFETY: the slot owns the memory, which has room for `bytes` bytes. While the receive is
        // armed it is neither read, because the vector is empty, nor dropped: `in_flight` keeps the
        // slot, and `own` is only taken by the completion or, once it contains bytes, by a reader
        // after that.
        let submitted =
            unsafe { self.submit(entry.build(), connection.token(Kind::Receive, index)) };
        connection.receive_submitted(submitted);
    }

    pub(crate) fn end_receive(&self, index: u32, connection: &mut Connection) {
        let target = connection.token(Kind::Receive, index);
        if self.cancel(target, Kind::CancelStream).is_ok() {
            connection.in_flight += 1;
            connection.receiving = Receiving::Ending;
        }
    }

    pub(crate) fn on_receive(&self, token: Token, result: i32, flags: u32) {
        let buffer = cqueue::buffer_select(flags);
        if let Some(buffer) = buffer {
            self.buffers.take(buffer);
        }
        let (mut waiter, mut freed) = (Waiter::NONE, None);
        {
            let mut streams = self.streams.borrow_mut();
            let connection = current(&mut streams, token).filter(|found| !found.closing);
            if let Some(connection) = connection {
                // The result of a poll is a set of events, not a length.
                let length = match connection.pace {
                    Pace::Poll => 0,
                    _ => usize::try_from(result).unwrap_or(0),
                };
                let more_waits =
                    self.keep_received(connection, buffer, length) || cqueue::sock_nonempty(flags);
                if !cqueue::more(flags) {
                    connection.in_flight -= 1;
                    if connection.receiving == Receiving::Armed {
                        let received = match length < self.buffers.bytes() {
                            true => Received::Little,
                            false => Received::Much,
                        };
                        connection.pace = connection.pace.after(received, more_waits);
                    }
                    let unread = connection.unread_chunks();
                    connection.receiving = match self.after_receive(token, unread, result) {
                        // The kernel reports an error only once, and has reported it to the sending
                        // side.
                        Receiving::Ended(0) => Receiving::Ended(connection.outgoing.failed),
                        receiving => receiving,
                    };
                }
                self.steer_receive(token.index, connection);
                // A cancelled or starved receive has nothing to report.
                let ended = matches!(connection.receiving, Receiving::Ended(_));
                if ended || connection.unread_chunks() > 0 {
                    waiter = std::mem::take(&mut connection.receive_waiter);
                }
            } else {
                if let Some(unread) = buffer {
                    self.buffers.give_back(unread);
                }
                if !cqueue::more(flags) {
                    freed = operation_ended(&mut streams, token);
                }
            }
        }
        drop(freed);
        waiter.wake(&self.tasks);
    }

    /// Returns true if the bytes filled the available memory, so that there may be more: some kinds
    /// of sockets do not report that.
    fn keep_received(
        &self,
        connection: &mut Connection,
        buffer: Option<u16>,
        length: usize,
    ) -> bool {
        match (buffer, length) {
            (Some(unused), 0) => {
                self.buffers.give_back(unused);
                false
            }
            (Some(buffer), length) => {
                connection.unread.push(&self.buffers, buffer, length as u32);
                length == self.buffers.bytes()
            }
            // One shot: the kernel no longer uses the memory, whether or not it wrote to it.
            (None, 0) => {
                connection.own.take_if(|own| own.bytes.is_empty());
                false
            }
            (None, length) => {
                let own = connection.own.as_mut();
                let bytes = &mut own.expect("bytes outside of the buffers are in `own`").bytes;
                assert!(length <= bytes.capacity(), "the kernel wrote beyond the memory");
                // SAFETY: the receive was for this vector, and the kernel has written its first
                // `length` bytes.
                unsafe { bytes.set_len(length) };
                length == bytes.capacity()
            }
        }
    }

    /// The state after the final completion of a receive.
    fn after_receive(&self, token: Token, unread: usize, result: i32) -> Receiving {
        match -result {
            0 => Receiving::Ended(0),
            code if code < 0 => Receiving::Idle,
            libc::ENOBUFS => {
                self.buffers_exhausted.set(self.buffers_exhausted.get() + 1);
                self.buffers.ran_out();
                if unread == 0 {
                    self.starved.borrow_mut().push_back((token.index, token.generation));
                    Receiving::Starved
                } else {
                    // The reader has chunks to read and arms the receive when it returns.
                    Receiving::Idle
                }
            }
            libc::ECANCELED | libc::EINTR | libc::EAGAIN => Receiving::Idle,
            code => Receiving::Ended(code),
        }
    }

    /// Stops a connection that exceeds its share of buffers, and resumes it when it may continue.
    fn steer_receive(&self, index: u32, connection: &mut Connection) {
        let unread = connection.unread_chunks();
        match (connection.receiving, connection.pace) {
            (Receiving::Armed, Pace::Stream) if unread >= self.receive_ahead_max => {
                self.end_receive(index, connection);
                // If the ring did not take the cancellation, the next chunk tries again.
                if connection.receiving == Receiving::Ending {
                    connection.pace = Pace::Large;
                }
            }
            // A later reader arms it.
            (Receiving::Idle, Pace::Large | Pace::Poll)
                if unread > 0 || connection.receive_waiter.is_none() => {}
            // With nothing unread, nothing else would arm it. A lack of buffers shows then.
            (Receiving::Idle, _)
                if unread < self.receive_ahead_max
                    && !self.ending.get()
                    && (unread == 0 || self.buffers.free() > 0) =>
            {
                self.arm_receive(index, connection);
            }
            _ => {}
        }
    }

    /// Arms the receives that ended because of a lack of buffers, as far as buffers are free.
    pub(crate) fn feed_starved(&self) {
        let mut free = self.buffers.free();
        while free > 0 {
            let Some((index, generation)) = self.starved.borrow_mut().pop_front() else { return };
            let mut streams = self.streams.borrow_mut();
            let Some(connection) = streams.get_mut(index as usize) else { continue };
            if connection.generation != generation
                || connection.receiving != Receiving::Starved
                || connection.closing
            {
                continue;
            }
            // One chunk for each waiting connection, so that the buffers suffice for all.
            connection.pace = Pace::Single;
            self.arm_receive(index, connection);
            free -= 1;
        }
    }

    /// Called before the worker sleeps without a free buffer. The connections that hold the buffers
    /// may never be read from, so each connection with a waiting reader gets memory for one
    /// receive.
    pub(crate) fn relieve_starved(&self) {
        loop {
            let Some((index, generation)) = self.starved.borrow_mut().pop_front() else { return };
            let mut streams = self.streams.borrow_mut();
            let Some(connection) = streams.get_mut(index as usize) else { continue };
            if connection.generation != generation
                || connection.receiving != Receiving::Starved
                || connection.closing
            {
                continue;
            }
            if connection.receive_waiter.is_none() {
                // The next reader arms it again.
                connection.receiving = Receiving::Idle;
            } else {
                self.arm_own(index, connection, self.buffers.bytes(), 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_follows_what_waits_in_the_socket() {
        use Received::{Little, Much};
        let moves = [
            (Pace::Stream, Much, true, Pace::Stream),
            (Pace::Stream, Little, false, Pace::Stream),
            (Pace::Single, Much, true, Pace::Large),
            (Pace::Single, Little, false, Pace::Stream),
            (Pace::Single, Much, false, Pace::Stream),
            (Pace::Large, Much, true, Pace::Large),
            (Pace::Large, Little, true, Pace::Large),
            (Pace::Large, Much, false, Pace::Poll),
            (Pace::Large, Little, false, Pace::Single),
            (Pace::Poll, Little, false, Pace::Large),
            (Pace::Poll, Little, true, Pace::Large),
        ];
        for (from, received, more_waits, to) in moves {
            assert_eq!(
                from.after(received, more_waits),
                to,
                "{from:?}, {received:?}, {more_waits}"
            );
        }
    }
}
