//! One connection: a slot with two state machines, driven by `receive.rs` and `send.rs`.
//!
//! The slot is kept until the handle was dropped *and* every operation had its final completion.
//! Only then is the descriptor closed, because closing a descriptor does not end the operations on
//! it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};

use io_uring::types;
use peregrine_driver::{Address, Credentials, FilePart, Passed, Piece, Stream};
use peregrine_slot::Table;
use socket2::{Domain, SockAddr, SockRef};

use crate::buffers::Unread;
use crate::chunk::{Bytes, Chunk, Own};
use crate::operation::{Kind, Sending, Token};
use crate::receive::{Pace, Receiving};
use crate::task::Waiter;
use crate::worker::Shared;

/// A connection of a [`Uring`](crate::Uring) worker.
pub struct UringStream {
    pub(crate) shared: Rc<Shared>,
    /// The index of its slot, or [`PASSED`].
    pub(crate) index: u32,
}

/// The index of a stream whose connection was passed to another worker.
const PASSED: u32 = u32::MAX;

/// A connection's slot: all the memory of an idle connection in this driver.
pub(crate) struct Connection {
    pub(crate) descriptor: OwnedFd,
    pub(crate) generation: u32,
    pub(crate) receiving: Receiving,
    pub(crate) pace: Pace,
    /// The handle was dropped.
    pub(crate) closing: bool,
    /// The number of operations without their final completion.
    pub(crate) in_flight: u8,
    pub(crate) unread: Unread,
    /// The memory of a receive that does not use a shared buffer. If it contains bytes, they are
    /// older than those in `unread`.
    pub(crate) own: Option<Box<Own>>,
    pub(crate) receive_waiter: Waiter,
    pub(crate) outgoing: Outgoing,
}

/// The state machine for sending.
pub(crate) struct Outgoing {
    pub(crate) current: Sending,
    /// The number of bytes that the kernel took.
    pub(crate) taken: u64,
    /// The number of the error that broke the connection, or
    /// [`FILE_FAILED`](crate::file::FILE_FAILED), or 0. Nothing is sent after an error.
    pub(crate) failed: i32,
    pub(crate) under_way: UnderWay,
    pub(crate) end: End,
    /// Data was sent after the end of the stream, and dropped.
    pub(crate) is_overrun: bool,
    pub(crate) waiter: Waiter,
    /// Data queued behind the send in the kernel, if any.
    #[expect(clippy::box_collection, reason = "few connections ever need it")]
    pub(crate) later: Option<Box<VecDeque<Piece>>>,
}

/// The operation for `current` in the ring.
///
/// | from | to | when |
/// |---|---|---|
/// | Nothing | Offered | few bytes are sent |
/// | Nothing | Waiting | many are, and the socket did not take all of them at once |
/// | Offered | Waiting | the socket did not take all of them, or more bytes were sent |
/// | Offered, Waiting | Nothing | everything is sent, or sending failed |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnderWay {
    Nothing,
    /// An operation that does not wait for the socket: it completes within the next enter.
    Offered,
    /// An operation that waits until the socket takes more, or bytes queued behind an operation.
    Waiting,
}

/// The progress of shutting down our sending side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Open,
    /// It is shut down when everything before is sent.
    Asked,
    Sent,
}

impl UringStream {
    pub(crate) fn open(shared: &Rc<Shared>, descriptor: OwnedFd) -> Self {
        let connection = Connection {
            descriptor,
            generation: shared.next_generation(),
            receiving: Receiving::Idle,
            pace: Pace::Stream,
            closing: false,
            in_flight: 0,
            unread: Unread::EMPTY,
            own: None,
            receive_waiter: Waiter::NONE,
            outgoing: Outgoing {
                current: Sending::default(),
                taken: 0,
                failed: 0,
                under_way: UnderWay::Nothing,
                end: End::Open,
                is_overrun: false,
                waiter: Waiter::NONE,
                later: None,
            },
        };
        let index = shared.streams.borrow_mut().insert(connection) as u32;
        Self { shared: Rc::clone(shared), index }
    }

    /// Returns the descriptor, if the connection was not used yet.
    pub(crate) fn pass(mut self) -> io::Result<Passed> {
        let mut streams = self.shared.streams.borrow_mut();
        let connection = &streams[self.index as usize];
        let is_new = connection.in_flight == 0
            && connection.receiving == Receiving::Idle
            && connection.outgoing.under_way == UnderWay::Nothing
            && connection.outgoing.end == End::Open;
        if !is_new {
            drop(streams);
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let index = std::mem::replace(&mut self.index, PASSED);
        let connection = streams.remove(index as usize);
        drop(streams);
        let Connection { descriptor, .. } = connection.expect("its fields were just checked");
        match SockRef::from(&descriptor).domain()? {
            Domain::UNIX => Ok(Passed::Unix(descriptor.into())),
            _ => Ok(Passed::Tcp(descriptor.into())),
        }
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

    fn poll_recv(&self, context: &mut Context<'_>) -> Poll<io::Result<Chunk>> {
        self.poll_chunk(context)
    }

    fn keep(chunk: Chunk) -> Result<Vec<u8>, Chunk> {
        match chunk.bytes {
            Bytes::Own(own) if own.is_worth_keeping() => Ok(own.bytes),
            bytes => Err(Chunk { bytes }),
        }
    }

    fn send(&self, out: &mut Vec<u8>) {
        self.begin_send(out, None);
    }

    fn send_shared(&self, out: &mut Vec<u8>, shared: bytes::Bytes) {
        self.begin_send(out, Some(Piece::shared(shared)));
    }

    fn sends_files(&self) -> bool {
        true
    }

    fn send_file(&self, out: &mut Vec<u8>, part: FilePart) {
        self.begin_send(out, Some(Piece::file(part)));
    }

    fn poll_sent(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_all_sent(context)
    }

    fn is_sent(&self) -> bool {
        let streams = self.shared.streams.borrow();
        let outgoing = &streams[self.index as usize].outgoing;
        outgoing.is_sent()
    }

    fn has_room(&self) -> bool {
        let streams = self.shared.streams.borrow();
        let outgoing = &streams[self.index as usize].outgoing;
        outgoing.under_way != UnderWay::Waiting || outgoing.is_overrun
    }

    fn progress(&self) -> u64 {
        self.shared.streams.borrow()[self.index as usize].outgoing.taken
    }

    fn finish(&self) {
        self.begin_finish();
    }

    fn is_broken(&self) -> bool {
        let streams = self.shared.streams.borrow();
        let connection = &streams[self.index as usize];
        // A receive that ended with the error has cleared it in the socket.
        let has_failed = matches!(connection.receiving, Receiving::Ended(code) if code != 0)
            || connection.outgoing.failed != 0;
        let socket = SockRef::from(&connection.descriptor);
        has_failed || socket.take_error().is_ok_and(|error| error.is_some())
    }

    fn reset_on_drop(&self) {
        // If the option cannot be set, the connection is closed regularly.
        let _ = self.shared.streams.borrow()[self.index as usize].reset_on_close();
    }

    fn peer(&self) -> Address {
        self.name(|socket| socket.peer_addr())
    }

    fn local(&self) -> Address {
        self.name(|socket| socket.local_addr())
    }

    fn credentials(&self) -> Option<Credentials> {
        let streams = self.shared.streams.borrow();
        let descriptor = &streams[self.index as usize].descriptor;
        if SockRef::from(descriptor).domain().ok()? != Domain::UNIX {
            return None;
        }
        crate::credentials::of_peer(descriptor.as_fd()).ok()
    }
}

impl Drop for UringStream {
    fn drop(&mut self) {
        if self.index != PASSED {
            self.shared.close_stream(self.index);
        }
    }
}

impl Connection {
    pub(crate) fn token(&self, kind: Kind, index: u32) -> Token {
        Token::new(kind, self.generation, index)
    }

    pub(crate) fn reset_on_close(&self) -> io::Result<()> {
        SockRef::from(&self.descriptor).set_linger(Some(std::time::Duration::ZERO))
    }

    pub(crate) fn target(&self) -> types::Fd {
        types::Fd(self.descriptor.as_raw_fd())
    }
}

impl Shared {
    /// Ends a connection whose handle was dropped: its bytes, its operations, then its descriptor.
    fn close_stream(&self, index: u32) {
        let (foreign, freed);
        {
            let mut streams = self.streams.borrow_mut();
            let connection = &mut streams[index as usize];
            connection.closing = true;
            self.heed(&connection.outgoing);
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
            if connection.outgoing.under_way == UnderWay::Waiting {
                let target = connection.token(Kind::Send, index);
                if self.cancel(target, Kind::CancelStream).is_ok() {
                    connection.in_flight += 1;
                }
            }
            freed = free_when_done(&mut streams, index);
        }
        drop((foreign, freed));
    }

    pub(crate) fn on_stream_cancelled(&self, token: Token) {
        let freed = operation_ended(&mut self.streams.borrow_mut(), token);
        drop(freed);
    }
}

/// The connection of a completion, if it still exists.
pub(crate) fn current(streams: &mut Table<Connection>, token: Token) -> Option<&mut Connection> {
    streams.get_mut(token.index as usize).filter(|found| found.generation == token.generation)
}

/// Counts out an operation without other effects. Returns the connection if it is over: shared
/// bytes in it may have a destructor of the application, so it must be dropped after all borrows
/// have ended.
#[must_use = "drop it after all borrows have ended"]
pub(crate) fn operation_ended(streams: &mut Table<Connection>, token: Token) -> Option<Connection> {
    let connection = current(streams, token)?;
    connection.in_flight -= 1;
    free_when_done(streams, token.index)
}

fn free_when_done(streams: &mut Table<Connection>, index: u32) -> Option<Connection> {
    let connection = &streams[index as usize];
    if !connection.closing || connection.in_flight > 0 {
        return None;
    }
    streams.remove(index as usize)
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
