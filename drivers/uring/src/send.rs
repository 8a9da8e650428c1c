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
//! ring reports when there is room, and a call (`file.rs`) sends.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll};

use io_uring::{opcode, types};
use peregrine_driver::Piece;
use socket2::SockRef;

use crate::file;
use crate::operation::{Kind, Sending, Token};
use crate::receive::Receiving;
use crate::stream::{Connection, End, Outgoing, UnderWay, UringStream, current, operation_ended};
use crate::task::Waiter;
use crate::worker::Shared;

/// The maximum number of bytes offered by a ring operation. Above that a system call is cheap
/// compared to the work it does.
const OFFER_BYTES_MAX: usize = 16 * 1024;

/// The maximum number of offers per turn, which is the number of pooled vectors. With more offers,
/// system calls are cheaper than new vectors.
const OFFERS_MAX: u32 = 64;

/// The pause after nothing of a file could be sent although the socket has room: 10 ms. The kernel
/// is then short of memory, and polls would keep reporting that there is room.
static REST: types::Timespec = types::Timespec::new().nsec(10_000_000);

impl UringStream {
    /// Sends `out` and then `shared`, or queues them behind earlier data.
    pub(crate) fn begin_send(&self, out: &mut Vec<u8>, shared: Option<Piece>) {
        // Dropped at the end if it is still here, after all borrows have ended.
        let mut shared = shared.filter(|shared| !shared.is_empty());
        if out.is_empty() && shared.is_none() {
            return;
        }
        let mut streams = self.shared.streams.borrow_mut();
        let connection = &mut streams[self.index as usize];
        let outgoing = &mut connection.outgoing;
        if let Receiving::Ended(code) = connection.receiving
            && outgoing.failed == 0
        {
            // A broken connection takes nothing. An offer would report that too late.
            outgoing.failed = code;
        }
        if outgoing.failed != 0 || outgoing.end != End::Open {
            outgoing.is_overrun |= outgoing.end != End::Open;
            out.clear();
        } else if outgoing.under_way != UnderWay::Nothing {
            let later = outgoing.later.get_or_insert_default();
            if !out.is_empty() {
                later.push_back(Piece::Owned(std::mem::replace(out, self.shared.spare.take())));
            }
            later.extend(shared.take());
            self.shared.heed(outgoing);
            outgoing.under_way = UnderWay::Waiting;
        } else if shared.is_none() && out.len() <= OFFER_BYTES_MAX && self.shared.can_offer() {
            let bytes = std::mem::replace(out, self.shared.spare.take());
            outgoing.current = Sending::new(Piece::Owned(bytes));
            self.shared.offer(self.index, connection);
        } else {
            self.shared.send_now(self.index, connection, out, &mut shared);
        }
        if connection.outgoing.failed != 0 {
            // Both directions report that the connection is broken.
            let waiters = connection.take_waiters();
            drop(streams);
            waiters.into_iter().for_each(|waiter| waiter.wake(&self.shared.tasks));
        } else {
            drop(streams);
        }
        drop(shared);
    }

    pub(crate) fn poll_all_sent(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut streams = self.shared.streams.borrow_mut();
        let outgoing = &mut streams[self.index as usize].outgoing;
        if outgoing.is_sent() {
            return Poll::Ready(outgoing.result());
        }
        self.shared.heed(outgoing);
        let old = outgoing.waiter.register(context, &self.shared.tasks);
        drop(streams);
        drop(old);
        Poll::Pending
    }

    /// Shuts down sending, now or after the data being sent.
    pub(crate) fn begin_finish(&self) {
        let mut streams = self.shared.streams.borrow_mut();
        let connection = &mut streams[self.index as usize];
        if connection.outgoing.end == End::Open {
            connection.outgoing.end = End::Asked;
            self.shared.heed(&connection.outgoing);
            if connection.outgoing.under_way == UnderWay::Nothing {
                connection.shut_down_sending();
            }
        }
    }
}

impl Outgoing {
    /// Returns whether all data was sent.
    pub(crate) fn is_sent(&self) -> bool {
        self.under_way == UnderWay::Nothing || self.is_overrun
    }

    fn result(&self) -> io::Result<()> {
        match self.failed {
            0 if self.is_overrun => Err(io::ErrorKind::BrokenPipe.into()),
            0 => Ok(()),
            code => Err(file::error_of(code)),
        }
    }
}

impl Connection {
    /// Shuts down sending. A direct call: the ring would use another thread for it.
    fn shut_down_sending(&mut self) {
        if self.outgoing.failed != 0 {
            return;
        }
        self.outgoing.end = End::Sent;
        let socket = SockRef::from(&self.descriptor);
        if let Err(error) = socket.shutdown(std::net::Shutdown::Write) {
            self.outgoing.failed = error.raw_os_error().unwrap_or(libc::EPIPE);
        }
    }

    /// Records whether the ring took a send operation. If not, sending ends.
    fn submitted(&mut self, result: io::Result<()>) -> bool {
        match result {
            Ok(()) => self.in_flight += 1,
            Err(ref error) => {
                self.outgoing.failed = error.raw_os_error().unwrap_or(libc::ENOTCONN);
            }
        }
        result.is_ok()
    }

    /// The tasks that wait in either direction.
    fn take_waiters(&mut self) -> [Waiter; 2] {
        [std::mem::take(&mut self.outgoing.waiter), std::mem::take(&mut self.receive_waiter)]
    }
}

impl Shared {
    fn can_offer(&self) -> bool {
        !self.ending.get() && self.ring.borrow().expected() < OFFERS_MAX
    }

    /// Sends what the kernel takes immediately, and gives the rest to the ring. The shared piece
    /// stays with the caller unless a part of it is left to be sent.
    fn send_now(
        &self,
        index: u32,
        connection: &mut Connection,
        out: &mut Vec<u8>,
        shared: &mut Option<Piece>,
    ) {
        let outgoing = &mut connection.outgoing;
        if self.ending.get() {
            outgoing.failed = libc::ENOTCONN;
            out.clear();
            return;
        }
        let socket = SockRef::from(&connection.descriptor);
        let mut taken = match send_both(&socket, out, shared.as_ref()) {
            Ok(taken) => taken,
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM) => 0,
                code => {
                    outgoing.failed = code.unwrap_or(libc::EPIPE);
                    out.clear();
                    return;
                }
            },
        };
        outgoing.taken += taken as u64;
        if let Some(Piece::File(part)) = shared
            && taken == out.len()
        {
            let (sent, failed) = file::send(connection.descriptor.as_fd(), part, 0);
            outgoing.taken += sent as u64;
            taken += sent;
            if failed != 0 {
                outgoing.failed = failed;
                out.clear();
                return;
            }
        }
        if taken == out.len() + shared.as_ref().map_or(0, Piece::len) {
            out.clear();
            return;
        }
        if let Some(of_shared) = taken.checked_sub(out.len()) {
            out.clear();
            outgoing.current = Sending::new(shared.take().unwrap_or_default());
            outgoing.current.advance(of_shared);
        } else {
            let bytes = std::mem::replace(out, self.spare.take());
            outgoing.current = Sending::new(Piece::Owned(bytes));
            outgoing.current.advance(taken);
            if let Some(shared) = shared.take() {
                outgoing.later.get_or_insert_default().push_back(shared);
            }
        }
        self.start_send(index, connection);
    }

    /// Gives the current bytes to the ring, which sends as much as the socket has room for.
    fn offer(&self, index: u32, connection: &mut Connection) {
        if self.submit_send(index, connection, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) {
            connection.outgoing.under_way = UnderWay::Offered;
            self.ring.borrow_mut().expect_completion();
        }
    }

    /// A task depends on the offered data being sent: no sleep may outlast that.
    pub(crate) fn heed(&self, outgoing: &Outgoing) {
        if outgoing.under_way == UnderWay::Offered {
            self.ring.borrow_mut().heed_completion();
        }
    }

    /// Gives the rest of the current bytes to the ring, to be sent when there is room. For a file,
    /// polls for room.
    fn start_send(&self, index: u32, connection: &mut Connection) {
        if self.submit_send(index, connection, libc::MSG_NOSIGNAL) {
            connection.outgoing.under_way = UnderWay::Waiting;
        }
    }

    /// Returns false if the ring does not take the operation, which ends sending.
    fn submit_send(&self, index: u32, connection: &mut Connection, flags: i32) -> bool {
        let (current, target) = (&connection.outgoing.current, connection.target());
        let entry = if current.file().is_some() {
            opcode::PollAdd::new(target, libc::POLLOUT as u32).build()
        } else {
            let rest = current.rest();
            opcode::Send::new(target, rest.as_ptr(), rest.len() as u32).flags(flags).build()
        };
        // SAFETY: `current` owns the bytes, or has a handle of shared ones, which are immutable and
        // stay in place as long as any handle exists. Until the completion, which alone clears
        // `under_way`, it is neither changed nor taken, and `in_flight` keeps the slot.
        let submitted = unsafe { self.submit(entry, connection.token(Kind::Send, index)) };
        connection.submitted(submitted)
    }

    /// Starts a pause before the rest of a file is tried again.
    fn start_rest(&self, index: u32, connection: &mut Connection) {
        let entry = opcode::Timeout::new(&raw const REST).build();
        // SAFETY: the kernel reads a static constant.
        let submitted = unsafe { self.submit(entry, connection.token(Kind::Send, index)) };
        if connection.submitted(submitted) {
            connection.outgoing.under_way = UnderWay::Waiting;
        }
    }

    pub(crate) fn on_send(&self, token: Token, result: i32) {
        let waiters;
        // Finished shared bytes are dropped after all borrows have ended.
        let mut done = None;
        let mut later = None;
        {
            let mut streams = self.streams.borrow_mut();
            let Some(connection) = current(&mut streams, token) else { return };
            let before = connection.outgoing.under_way;
            connection.outgoing.under_way = UnderWay::Nothing;
            if connection.closing {
                let whole = connection.outgoing.current.rest().len();
                if before == UnderWay::Offered && usize::try_from(result) != Ok(whole) {
                    // A regular end would mean that everything was sent.
                    let _ = connection.reset_on_close();
                }
                let freed = operation_ended(&mut streams, token);
                drop(streams);
                drop(freed);
                return;
            }
            connection.in_flight -= 1;
            let outgoing = &mut connection.outgoing;
            let taken = outgoing.taken;
            let is_file = outgoing.current.file().is_some();
            let is_whole = match result {
                1.. if is_file => outgoing.send_file(connection.descriptor.as_fd()),
                // The pause is over.
                _ if is_file && result == -libc::ETIME => false,
                1.. => {
                    outgoing.taken += u64::from(result.unsigned_abs());
                    outgoing.current.advance(result as usize)
                }
                _ if result == -libc::EINTR || result == -libc::EAGAIN => false,
                // Short of memory: an operation that waits may succeed.
                _ if before == UnderWay::Offered
                    && (result == -libc::ENOBUFS || result == -libc::ENOMEM) =>
                {
                    false
                }
                // A stream socket that takes zero bytes is as good as broken.
                0 => outgoing.fail(libc::EPIPE),
                _ => outgoing.fail(-result),
            };
            if is_whole {
                match std::mem::take(&mut outgoing.current).into_piece() {
                    Piece::Owned(bytes) => self.spare.give(bytes),
                    others => done = Some(others),
                }
                later = self.go_on(token.index, connection);
            } else if is_file && result > 0 && outgoing.taken == taken {
                self.start_rest(token.index, connection);
            } else {
                self.start_send(token.index, connection);
            }
            waiters = match (before, connection.outgoing.under_way) {
                _ if connection.outgoing.failed != 0 => connection.take_waiters(),
                (_, UnderWay::Nothing) => {
                    [std::mem::take(&mut connection.outgoing.waiter), Waiter::NONE]
                }
                // There was believed to be room, but there is none.
                (UnderWay::Offered, _) => connection.take_waiters(),
                _ => [Waiter::NONE, Waiter::NONE],
            };
        }
        waiters.into_iter().for_each(|waiter| waiter.wake(&self.tasks));
        drop((done, later));
    }

    /// Starts sending the data queued behind a finished send. Returns the queue if it must not be
    /// sent.
    #[expect(clippy::box_collection, reason = "stored as a box")]
    fn go_on(&self, index: u32, connection: &mut Connection) -> Option<Box<VecDeque<Piece>>> {
        let outgoing = &mut connection.outgoing;
        if outgoing.failed == 0
            && let Some(next) = outgoing.later.as_mut().and_then(|later| later.pop_front())
        {
            outgoing.current = Sending::new(next);
            self.start_send(index, connection);
            return None;
        }
        let left = outgoing.later.take();
        if outgoing.end == End::Asked {
            connection.shut_down_sending();
        }
        left
    }
}

/// Offers both to the socket in one call that does not wait. Bytes before a file are held back
/// briefly, so that they share a packet with its contents.
fn send_both(socket: &SockRef<'_>, first: &[u8], behind: Option<&Piece>) -> io::Result<usize> {
    let is_file = matches!(behind, Some(Piece::File(_)));
    let more = if is_file { libc::MSG_MORE } else { 0 };
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | more;
    match (first, behind.map_or(&[][..], Piece::bytes)) {
        ([], []) => Ok(0),
        (bytes, []) | ([], bytes) => socket.send_with_flags(bytes, flags),
        (first, second) => {
            let both = [IoSlice::new(first), IoSlice::new(second)];
            socket.send_vectored_with_flags(&both, flags)
        }
    }
}

impl Outgoing {
    /// Sends as much of the current file as the socket takes. Returns true if nothing of it is
    /// left.
    fn send_file(&mut self, socket: BorrowedFd<'_>) -> bool {
        let part = self.current.file();
        let (sent, failed) =
            part.map(|(part, from)| file::send(socket, part, from)).unwrap_or_default();
        self.taken += sent as u64;
        if failed == 0 { self.current.advance(sent) } else { self.fail(failed) }
    }

    fn fail(&mut self, code: i32) -> bool {
        self.failed = code;
        true
    }
}
