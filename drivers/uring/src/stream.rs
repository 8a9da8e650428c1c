//! One connection: a slot with two state machines, driven by `receive.rs` and `send.rs`.
//!
//! The slot exists until the handle was dropped *and* every operation had its final completion.
//! Only then is the descriptor closed, because closing a descriptor does not end the operations on
//! it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};

use io_uring::types;
use peregrine_driver::{Address, FileRange, Handoff, SendBuf, Stream, UnixCredentials};
use peregrine_slot::Slab;
use socket2::{Domain, SockAddr, SockRef};

use crate::buffer_ring::ChunkQueue;
use crate::chunk::{Chunk, ChunkData, OwnedBuffer};
use crate::executor::Waiter;
use crate::operation::{OpKind, SendOp, Token};
use crate::receive::{ReceiveMode, ReceiveState};
use crate::worker::UringWorker;

/// A connection of a [`Uring`](crate::Uring) worker.
pub struct UringStream {
    pub(crate) worker: Rc<UringWorker>,
    /// The index of the connection's slot, or [`HANDED_OFF`].
    pub(crate) index: u32,
}

/// The index of a stream whose connection was passed to another worker.
const HANDED_OFF: u32 = u32::MAX;

/// A connection's slot: all the memory of an idle connection in this driver.
pub(crate) struct StreamSlot {
    pub(crate) descriptor: OwnedFd,
    pub(crate) generation: u32,
    pub(crate) receive_state: ReceiveState,
    pub(crate) receive_mode: ReceiveMode,
    /// Whether the handle was dropped.
    pub(crate) closing: bool,
    /// The number of operations without their final completion.
    pub(crate) in_flight: u8,
    pub(crate) chunks: ChunkQueue,
    /// The memory of a receive that does not use a shared buffer. If it contains bytes, they are
    /// older than those in `chunks`.
    pub(crate) owned_receive: Option<Box<OwnedBuffer>>,
    pub(crate) receive_waiter: Waiter,
    pub(crate) send_queue: SendQueue,
}

/// The state machine for sending.
pub(crate) struct SendQueue {
    pub(crate) current: SendOp,
    /// The number of bytes that the kernel has accepted.
    pub(crate) bytes_written: u64,
    /// The number of the error that ended sending, or
    /// [`FILE_FAILED`](crate::sendfile::FILE_FAILED), or 0. Nothing is sent after an error.
    pub(crate) error: i32,
    pub(crate) state: SendState,
    pub(crate) shutdown: ShutdownState,
    /// Whether data was passed to `send` after `finish`; it was discarded.
    pub(crate) wrote_after_shutdown: bool,
    pub(crate) flush_waiter: Waiter,
    /// Data queued behind the send in the kernel, if any.
    #[expect(clippy::box_collection, reason = "few connections ever need it")]
    pub(crate) queued: Option<Box<VecDeque<SendBuf>>>,
}

/// The operation in the ring that sends [`SendQueue::current`].
///
/// | from | to | when |
/// |---|---|---|
/// | Idle | Inline | few bytes are sent |
/// | Idle | Armed | many bytes are sent, and the socket did not accept all of them immediately |
/// | Inline | Armed | the socket did not accept all of them, or more bytes were sent |
/// | Inline, Armed | Idle | everything is sent, or sending failed |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendState {
    Idle,
    /// An operation that does not wait for the socket: it completes within the next enter.
    Inline,
    /// An operation that waits until the socket has room, or any operation with bytes queued behind
    /// it.
    Armed,
}

/// The progress of shutting down sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShutdownState {
    Open,
    /// To be shut down once all queued data is sent.
    Requested,
    Sent,
}

impl UringStream {
    pub(crate) fn open(worker: &Rc<UringWorker>, descriptor: OwnedFd) -> Self {
        let connection = StreamSlot {
            descriptor,
            generation: worker.next_generation(),
            receive_state: ReceiveState::Idle,
            receive_mode: ReceiveMode::Multishot,
            closing: false,
            in_flight: 0,
            chunks: ChunkQueue::EMPTY,
            owned_receive: None,
            receive_waiter: Waiter::NONE,
            send_queue: SendQueue {
                current: SendOp::default(),
                bytes_written: 0,
                error: 0,
                state: SendState::Idle,
                shutdown: ShutdownState::Open,
                wrote_after_shutdown: false,
                flush_waiter: Waiter::NONE,
                queued: None,
            },
        };
        let index = worker.streams.borrow_mut().insert(connection) as u32;
        Self { worker: Rc::clone(worker), index }
    }

    /// Returns the descriptor, if the connection was not used yet.
    pub(crate) fn hand_off(mut self) -> io::Result<Handoff> {
        let mut streams = self.worker.streams.borrow_mut();
        let connection = &streams[self.index as usize];
        let is_new = connection.in_flight == 0
            && connection.receive_state == ReceiveState::Idle
            && connection.send_queue.state == SendState::Idle
            && connection.send_queue.shutdown == ShutdownState::Open;
        if !is_new {
            drop(streams);
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let index = std::mem::replace(&mut self.index, HANDED_OFF);
        let connection = streams.remove(index as usize);
        drop(streams);
        let StreamSlot { descriptor, .. } = connection.expect("its fields were just checked");
        match SockRef::from(&descriptor).domain()? {
            Domain::UNIX => Ok(Handoff::Unix(descriptor.into())),
            _ => Ok(Handoff::Tcp(descriptor.into())),
        }
    }

    fn socket_addr(&self, get: fn(&SockRef<'_>) -> io::Result<SockAddr>) -> Address {
        let streams = self.worker.streams.borrow();
        let socket = SockRef::from(&streams[self.index as usize].descriptor);
        let Ok(sock_addr) = get(&socket) else { return Address::Unknown };
        if let Some(address) = sock_addr.as_socket() {
            Address::Tcp(address)
        } else if sock_addr.is_unix() {
            Address::Unix(sock_addr.as_pathname().map(Into::into))
        } else {
            Address::Unknown
        }
    }
}

impl Stream for UringStream {
    type Chunk = Chunk;

    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<io::Result<Chunk>> {
        self.poll_recv_chunk(cx)
    }

    fn try_into_vec(chunk: Chunk) -> Result<Vec<u8>, Chunk> {
        match chunk.bytes {
            ChunkData::Owned(owned) if owned.is_at_least_half_full() => Ok(owned.bytes),
            bytes => Err(Chunk { bytes }),
        }
    }

    fn send(&self, out: &mut Vec<u8>) {
        self.start_send(out, None);
    }

    fn send_shared(&self, out: &mut Vec<u8>, shared: bytes::Bytes) {
        self.start_send(out, Some(SendBuf::from_shared(shared)));
    }

    fn supports_sendfile(&self) -> bool {
        true
    }

    fn send_file(&self, out: &mut Vec<u8>, range: FileRange) {
        self.start_send(out, Some(SendBuf::from_file(range)));
    }

    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flushed(cx)
    }

    fn is_flushed(&self) -> bool {
        let streams = self.worker.streams.borrow();
        let send_queue = &streams[self.index as usize].send_queue;
        send_queue.is_flushed()
    }

    fn is_writable(&self) -> bool {
        let streams = self.worker.streams.borrow();
        let send_queue = &streams[self.index as usize].send_queue;
        send_queue.state != SendState::Armed || send_queue.wrote_after_shutdown
    }

    fn bytes_written(&self) -> u64 {
        self.worker.streams.borrow()[self.index as usize].send_queue.bytes_written
    }

    fn finish(&self) {
        self.start_finish();
    }

    fn is_broken(&self) -> bool {
        let streams = self.worker.streams.borrow();
        let connection = &streams[self.index as usize];
        // If a receive or a send has reported the error, the socket no longer has it.
        let has_failed = matches!(connection.receive_state, ReceiveState::Closed(code) if code != 0)
            || connection.send_queue.error != 0;
        let socket = SockRef::from(&connection.descriptor);
        has_failed || socket.take_error().is_ok_and(|error| error.is_some())
    }

    fn reset_on_drop(&self) {
        // If the option cannot be set, the connection is closed normally.
        let _ = self.worker.streams.borrow()[self.index as usize].reset_on_close();
    }

    fn peer_addr(&self) -> Address {
        self.socket_addr(|socket| socket.peer_addr())
    }

    fn local_addr(&self) -> Address {
        self.socket_addr(|socket| socket.local_addr())
    }

    fn peer_credentials(&self) -> Option<UnixCredentials> {
        let streams = self.worker.streams.borrow();
        let descriptor = &streams[self.index as usize].descriptor;
        if SockRef::from(descriptor).domain().ok()? != Domain::UNIX {
            return None;
        }
        crate::credentials::peer_credentials(descriptor.as_fd()).ok()
    }
}

impl Drop for UringStream {
    fn drop(&mut self) {
        if self.index != HANDED_OFF {
            self.worker.close_stream(self.index);
        }
    }
}

impl StreamSlot {
    pub(crate) fn token(&self, kind: OpKind, index: u32) -> Token {
        Token::new(kind, self.generation, index)
    }

    pub(crate) fn reset_on_close(&self) -> io::Result<()> {
        SockRef::from(&self.descriptor).set_linger(Some(std::time::Duration::ZERO))
    }

    pub(crate) fn fd(&self) -> types::Fd {
        types::Fd(self.descriptor.as_raw_fd())
    }
}

impl UringWorker {
    /// Closes a connection whose handle was dropped: releases its unread chunks and cancels its
    /// operations. The descriptor is closed when all operations have completed.
    fn close_stream(&self, index: u32) {
        // Dropped after the borrow, because destructors of wakers and shared bytes may run any
        // code.
        let (to_drop, freed);
        {
            let mut streams = self.streams.borrow_mut();
            let connection = &mut streams[index as usize];
            connection.closing = true;
            self.wake_on_inline_send(&connection.send_queue);
            to_drop = (
                std::mem::take(&mut connection.receive_waiter),
                std::mem::take(&mut connection.send_queue.flush_waiter),
                connection.send_queue.queued.take(),
            );
            while let Some((buffer, _)) = connection.chunks.pop(&self.buffers) {
                self.buffers.provide(buffer);
            }
            if connection.receive_state == ReceiveState::Armed {
                self.cancel_receive(index, connection);
            }
            if connection.send_queue.state == SendState::Armed {
                let target = connection.token(OpKind::Send, index);
                if self.cancel(target, OpKind::CancelStream).is_ok() {
                    connection.in_flight += 1;
                }
            }
            freed = free_when_done(&mut streams, index);
        }
        drop((to_drop, freed));
    }

    pub(crate) fn on_stream_cancelled(&self, token: Token) {
        let freed = complete_operation(&mut self.streams.borrow_mut(), token);
        drop(freed);
    }
}

/// The connection of a completion, if it still exists.
pub(crate) fn find_live(streams: &mut Slab<StreamSlot>, token: Token) -> Option<&mut StreamSlot> {
    streams.get_mut(token.index as usize).filter(|slot| slot.generation == token.generation)
}

/// Records the final completion of an operation. Returns the connection if it can be freed. The
/// caller must drop it after all borrows have ended, because shared bytes in it may have a
/// destructor of the application.
#[must_use = "drop it after all borrows have ended"]
pub(crate) fn complete_operation(
    streams: &mut Slab<StreamSlot>,
    token: Token,
) -> Option<StreamSlot> {
    let connection = find_live(streams, token)?;
    connection.in_flight -= 1;
    free_when_done(streams, token.index)
}

fn free_when_done(streams: &mut Slab<StreamSlot>, index: u32) -> Option<StreamSlot> {
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
        assert!(size_of::<StreamSlot>() <= 144, "{} bytes", size_of::<StreamSlot>());
        assert_eq!(size_of::<Waiter>(), 16);
    }
}
