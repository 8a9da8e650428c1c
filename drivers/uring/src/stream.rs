//! One connection: receiving ahead into shared buffers, sending from memory it owns.
//!
//! The two directions are two machines in one small slot. The slot stays until the handle is gone
//! *and* every operation had its final completion; the descriptor is closed then, not before,
//! because closing a descriptor does not end what the kernel does with it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};

use io_uring::{cqueue, opcode, squeue, types};
use peregrine_driver::{Address, Stream};
use slab::Slab;
use socket2::{SockAddr, SockRef};

use crate::buffers::{GROUP, Unread};
use crate::chunk::{Bytes, Chunk, Lent, Relief};
use crate::operation::{Kind, Sending, Token};
use crate::send::SendFuture;
use crate::task::Waiter;
use crate::worker::Shared;

/// A connection of a [`Uring`](crate::Uring) worker.
pub struct UringStream {
    pub(crate) shared: Rc<Shared>,
    pub(crate) index: u32,
}

/// A connection's slot: all that an idle connection costs in this driver.
pub(crate) struct Connection {
    pub(crate) descriptor: OwnedFd,
    pub(crate) generation: u32,
    receiving: Receiving,
    /// Many bytes come: one operation per chunk, so that other connections get their turn.
    bulk: bool,
    /// The handle is gone.
    pub(crate) closing: bool,
    /// Operations without their final completion.
    pub(crate) in_flight: u8,
    unread: Unread,
    /// Older than what is in `unread`, where it holds bytes.
    relief: Option<Box<Relief>>,
    receive_waiter: Waiter,
    pub(crate) outgoing: Outgoing,
}

/// The receiving machine.
///
/// | from | to | when |
/// |---|---|---|
/// | Idle | Armed | a reader wants bytes or, after the first time, there is room for more |
/// | Armed | Ending | too many chunks are unread, or the handle is gone |
/// | Armed, Ending | Idle | the final completion came |
/// | Armed, Ending | Starved | it came because no buffer was free |
/// | Starved | Armed | buffers are free again, or the worker would sleep without one |
/// | Starved | Idle | the same, and nobody waits |
/// | Armed, Ending | Ended | the peer finished or the connection broke |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiving {
    Idle,
    Armed,
    Ending,
    Starved,
    /// With the error number, or 0 for the end of the peer's sending side.
    Ended(i32),
}

/// The sending machine. `finished <= started`, counted around; they differ while bytes are left.
pub(crate) struct Outgoing {
    pub(crate) current: Sending,
    /// Numbers of sends begun and sends ended. A send that began as number `n` is over when
    /// `ended` has reached `n`.
    pub(crate) begun: u32,
    pub(crate) ended: u32,
    /// The error number that ended sending, or 0. Nothing is sent after an error.
    pub(crate) failed: i32,
    /// `current` is in the kernel.
    pub(crate) busy: bool,
    pub(crate) waiter: Waiter,
    /// What only abandoned sends and early `finish` calls need.
    pub(crate) later: Option<Box<Later>>,
}

/// Work that waits for the send in the kernel.
#[derive(Default)]
pub(crate) struct Later {
    pub(crate) queue: VecDeque<Vec<u8>>,
    pub(crate) finish: bool,
    pub(crate) finish_waiter: Waiter,
}

impl UringStream {
    pub(crate) fn open(shared: &Rc<Shared>, descriptor: OwnedFd) -> Self {
        let connection = Connection {
            descriptor,
            generation: shared.next_generation(),
            receiving: Receiving::Idle,
            bulk: false,
            closing: false,
            in_flight: 0,
            unread: Unread::EMPTY,
            relief: None,
            receive_waiter: Waiter::NONE,
            outgoing: Outgoing {
                current: Sending::default(),
                begun: 0,
                ended: 0,
                failed: 0,
                busy: false,
                waiter: Waiter::NONE,
                later: None,
            },
        };
        let index = shared.streams.borrow_mut().insert(connection) as u32;
        Self { shared: Rc::clone(shared), index }
    }

    fn poll_recv(&self, context: &Context<'_>) -> Poll<io::Result<Chunk>> {
        let shared = &self.shared;
        let mut streams = shared.streams.borrow_mut();
        let connection = &mut streams[self.index as usize];
        let bytes = connection.next_bytes(shared);
        if connection.receiving == Receiving::Idle
            && connection.unread_chunks() < shared.receive_ahead_max
        {
            shared.arm_receive(self.index, connection);
        }
        if let Some(bytes) = bytes {
            return Poll::Ready(Ok(Chunk { bytes }));
        }
        match connection.receiving {
            Receiving::Ended(0) => return Poll::Ready(Ok(Chunk { bytes: Bytes::None })),
            Receiving::Ended(code) => {
                return Poll::Ready(Err(io::Error::from_raw_os_error(code)));
            }
            _ => {}
        }
        let old = connection.receive_waiter.register(context, &shared.tasks);
        drop(streams);
        drop(old);
        Poll::Pending
    }

    fn name(&self, ask: fn(&SockRef<'_>) -> io::Result<SockAddr>) -> Address {
        let streams = self.shared.streams.borrow();
        let socket = SockRef::from(&streams[self.index as usize].descriptor);
        let Ok(name) = ask(&socket) else { return Address::Unknown };
        if let Some(address) = name.as_socket() {
            Address::Tcp(address)
        } else if name.is_unix() {
            Address::Unix(name.as_pathname().map(Into::into))
        } else {
            Address::Unknown
        }
    }
}

impl Stream for UringStream {
    type Chunk = Chunk;

    fn recv(&self) -> impl Future<Output = io::Result<Chunk>> {
        poll_fn(|context| self.poll_recv(context))
    }

    fn send(&self, out: Vec<u8>) -> impl Future<Output = (io::Result<()>, Vec<u8>)> {
        SendFuture::begin(self, out)
    }

    fn finish(&self) -> impl Future<Output = io::Result<()>> {
        self.begin_finish();
        poll_fn(|context| self.poll_finish(context))
    }

    fn peer(&self) -> Address {
        self.name(|socket| socket.peer_addr())
    }

    fn local(&self) -> Address {
        self.name(|socket| socket.local_addr())
    }
}

impl Drop for UringStream {
    fn drop(&mut self) {
        self.shared.close_stream(self.index);
    }
}

impl Connection {
    pub(crate) fn token(&self, kind: Kind, index: u32) -> Token {
        Token::new(kind, self.generation, index)
    }

    fn receive_submitted(&mut self, submitted: io::Result<()>) {
        self.receiving = match submitted {
            Ok(()) => {
                self.in_flight += 1;
                Receiving::Armed
            }
            Err(error) => {
                self.relief = None;
                Receiving::Ended(error.raw_os_error().unwrap_or(libc::ENOTCONN))
            }
        };
    }

    /// The oldest bytes that nobody has read.
    fn next_bytes(&mut self, shared: &Rc<Shared>) -> Option<Bytes> {
        if let Some(relief) = self.relief.take_if(|relief| relief.length > 0) {
            return Some(Bytes::Own(relief));
        }
        let (buffer, length) = self.unread.pop(&shared.buffers)?;
        Some(Bytes::Lent(Lent::new(Rc::clone(shared), buffer, length)))
    }

    fn unread_chunks(&self) -> usize {
        let relief = self.relief.as_ref().is_some_and(|relief| relief.length > 0);
        self.unread.len() + usize::from(relief)
    }

    pub(crate) fn target(&self) -> types::Fd {
        types::Fd(self.descriptor.as_raw_fd())
    }
}

impl Shared {
    fn arm_receive(&self, index: u32, connection: &mut Connection) {
        let entry = if connection.bulk {
            let bytes = self.buffers.bytes() as u32;
            opcode::Recv::new(connection.target(), std::ptr::null_mut(), bytes)
                .buf_group(GROUP)
                .build()
                .flags(squeue::Flags::BUFFER_SELECT)
        } else {
            opcode::RecvMulti::new(connection.target(), GROUP).build()
        };
        // SAFETY: the kernel writes to memory of the registered buffers only, which `Shared` keeps
        // until the ring is closed, and which it lends out only while the kernel does not own it.
        let submitted = unsafe { self.submit(entry, connection.token(Kind::Receive, index)) };
        connection.receive_submitted(submitted);
    }

    /// Receives once into memory of the connection's own.
    fn arm_relief(&self, index: u32, connection: &mut Connection) {
        let memory = vec![0; self.buffers.bytes()].into_boxed_slice();
        let relief = connection.relief.insert(Box::new(Relief { memory, length: 0 }));
        let (start, bytes) = (relief.memory.as_mut_ptr(), relief.memory.len() as u32);
        let entry = opcode::Recv::new(connection.target(), start, bytes).build();
        // SAFETY: the slot owns the memory. While the receive is armed it is neither read, since
        // its length is 0, nor dropped: the slot stays because of `in_flight`, and `relief` is
        // taken away by the completion or, with a length, by a reader after it.
        let submitted = unsafe { self.submit(entry, connection.token(Kind::Receive, index)) };
        connection.receive_submitted(submitted);
    }

    fn end_receive(&self, index: u32, connection: &mut Connection) {
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
        let mut waiter = Waiter::NONE;
        {
            let mut streams = self.streams.borrow_mut();
            let connection = current(&mut streams, token).filter(|found| !found.closing);
            if let Some(connection) = connection {
                self.keep_received(connection, buffer, result);
                if !cqueue::more(flags) {
                    connection.in_flight -= 1;
                    let unread = connection.unread_chunks();
                    connection.receiving = self.after_receive(token, unread, result);
                }
                self.steer_receive(token.index, connection, flags);
                // A cancelled or starved receive has nothing to tell.
                let ended = matches!(connection.receiving, Receiving::Ended(_));
                if ended || connection.unread_chunks() > 0 {
                    waiter = std::mem::take(&mut connection.receive_waiter);
                }
            } else {
                if let Some(unread) = buffer {
                    self.buffers.give_back(unread);
                }
                if !cqueue::more(flags) {
                    operation_ended(&mut streams, token);
                }
            }
        }
        waiter.wake(&self.tasks);
    }

    fn keep_received(&self, connection: &mut Connection, buffer: Option<u16>, result: i32) {
        match (buffer, usize::try_from(result).unwrap_or(0)) {
            (Some(unused), 0) => self.buffers.give_back(unused),
            (Some(buffer), length) => {
                connection.unread.push(&self.buffers, buffer, length as u32);
            }
            // One shot: the kernel is done with the memory, whether or not there are bytes in it.
            (None, 0) => connection.relief = None,
            (None, length) => {
                let relief = connection.relief.as_mut();
                relief.expect("bytes outside of the buffers came to the relief").length = length;
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
                if unread == 0 {
                    self.starved.borrow_mut().push_back((token.index, token.generation));
                    Receiving::Starved
                } else {
                    // Its reader has something to do, and arms the receive when it comes back.
                    Receiving::Idle
                }
            }
            libc::ECANCELED | libc::EINTR | libc::EAGAIN => Receiving::Idle,
            code => Receiving::Ended(code),
        }
    }

    /// Keeps a connection from taking more than its share, and lets it go on when it may.
    fn steer_receive(&self, index: u32, connection: &mut Connection, flags: u32) {
        let unread = connection.unread_chunks();
        match connection.receiving {
            Receiving::Armed if unread >= self.receive_ahead_max && !connection.bulk => {
                connection.bulk = true;
                self.end_receive(index, connection);
            }
            Receiving::Idle if unread < self.receive_ahead_max && !self.ending.get() => {
                if unread <= 1 && !cqueue::sock_nonempty(flags) {
                    connection.bulk = false;
                }
                // With nothing unread nobody else would arm it; the lack of buffers is found out.
                if unread == 0 || self.buffers.free() > 0 {
                    self.arm_receive(index, connection);
                }
            }
            _ => {}
        }
    }

    /// Arms the receives that ended for want of buffers, as far as there are buffers now.
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
            // One chunk for each that waited, so that the buffers go round.
            connection.bulk = true;
            self.arm_receive(index, connection);
            free -= 1;
        }
    }

    /// Before the worker sleeps without a free buffer: those who hold the buffers may never read,
    /// so that everyone who waits for bytes gets memory for one receive.
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
                self.arm_relief(index, connection);
            }
        }
    }

    /// Ends a connection whose handle is gone: its bytes, its operations, then its descriptor.
    fn close_stream(&self, index: u32) {
        let foreign;
        {
            let mut streams = self.streams.borrow_mut();
            let connection = &mut streams[index as usize];
            connection.closing = true;
            foreign = (
                std::mem::take(&mut connection.receive_waiter),
                std::mem::take(&mut connection.outgoing.waiter),
                connection.outgoing.later.take(),
            );
            while let Some((buffer, _)) = connection.unread.pop(&self.buffers) {
                self.buffers.give_back(buffer);
            }
            if connection.receiving == Receiving::Armed {
                self.end_receive(index, connection);
            }
            if connection.outgoing.busy {
                let target = connection.token(Kind::Send, index);
                if self.cancel(target, Kind::CancelStream).is_ok() {
                    connection.in_flight += 1;
                }
            }
            free_when_done(&mut streams, index);
        }
        drop(foreign);
    }

    pub(crate) fn on_stream_cancelled(&self, token: Token) {
        operation_ended(&mut self.streams.borrow_mut(), token);
    }
}

/// The connection that a completion is for, if it still is the same one.
pub(crate) fn current(streams: &mut Slab<Connection>, token: Token) -> Option<&mut Connection> {
    streams.get_mut(token.index as usize).filter(|found| found.generation == token.generation)
}

/// Counts out an operation that changes nothing else.
pub(crate) fn operation_ended(streams: &mut Slab<Connection>, token: Token) {
    if let Some(connection) = current(streams, token) {
        connection.in_flight -= 1;
        free_when_done(streams, token.index);
    }
}

fn free_when_done(streams: &mut Slab<Connection>, index: u32) {
    let connection = &streams[index as usize];
    if connection.closing && connection.in_flight == 0 {
        streams.remove(index as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_is_small() {
        assert!(size_of::<Connection>() <= 144, "{} bytes", size_of::<Connection>());
        assert_eq!(size_of::<Waiter>(), 16);
    }
}
