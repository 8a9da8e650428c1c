//! One connection: the state of both directions, and the receiving side.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use peregrine_driver::{Address, Credentials, FilePart, Passed, Piece};

use crate::connection::Connection;
use crate::output::Output;
use crate::pool::Chunk;
use crate::worker::Worker;

/// One connection. Holds no buffer while it waits.
pub struct Stream {
    shared: Rc<Shared>,
}

/// A connection's state, shared with the background task that sends.
pub(crate) struct Shared {
    pub(crate) connection: RefCell<Connection>,
    pub(crate) worker: Rc<Worker>,
    pub(crate) output: Output,
    /// How the connection broke, in either direction. The kernel reports it only once.
    pub(crate) broken: Cell<Option<io::ErrorKind>>,
    /// The task that waits for bytes. The runtime has the waker too; this copy is woken when a send
    /// fails.
    receiving: Cell<Option<Waker>>,
    /// The peer has finished sending.
    ended: Cell<bool>,
    /// The last read filled a buffer of the pool, so the next one is a large one: each read costs a
    /// system call, a wake-up of the reader, and the processing of a chunk.
    large: Cell<bool>,
}

impl Stream {
    pub(crate) fn new(connection: Connection, worker: Rc<Worker>) -> Self {
        let shared = Shared {
            connection: RefCell::new(connection),
            worker,
            output: Output::default(),
            broken: Cell::new(None),
            receiving: Cell::new(None),
            ended: Cell::new(false),
            large: Cell::new(false),
        };
        Self { shared: Rc::new(shared) }
    }

    /// Returns the socket, if it was not used yet.
    pub(crate) fn pass(self) -> io::Result<Passed> {
        let shared = Rc::clone(&self.shared);
        drop(self);
        let is_new = shared.output.progress() == 0 && !shared.ended.get();
        match Rc::try_unwrap(shared) {
            Ok(shared) if is_new => shared.connection.into_inner().pass(),
            _ => Err(io::ErrorKind::ResourceBusy.into()),
        }
    }
}

impl peregrine_driver::Stream for Stream {
    type Chunk = Chunk;

    fn poll_recv(&self, context: &mut Context<'_>) -> Poll<io::Result<Chunk>> {
        self.shared.poll_recv(context)
    }

    fn recv_now(&self) -> Option<Chunk> {
        let is_open = !self.shared.ended.get() && self.shared.broken.get().is_none();
        is_open.then(|| self.shared.receive_now().ok()).flatten()
    }

    fn keep(chunk: Chunk) -> Result<Vec<u8>, Chunk> {
        chunk.keep()
    }

    fn send(&self, out: &mut Vec<u8>) {
        self.shared.send(out, None);
    }

    fn send_shared(&self, out: &mut Vec<u8>, shared: Bytes) {
        self.shared.send(out, Some(Piece::shared(shared)));
    }

    fn sends_files(&self) -> bool {
        cfg!(target_os = "linux")
    }

    fn send_file(&self, out: &mut Vec<u8>, part: FilePart) {
        self.shared.send(out, Some(Piece::file(part)));
    }

    fn poll_sent(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.poll_sent(context)
    }

    fn is_sent(&self) -> bool {
        self.shared.output.is_written()
    }

    fn progress(&self) -> u64 {
        self.shared.output.progress()
    }

    fn finish(&self) {
        self.shared.finish();
    }

    fn is_broken(&self) -> bool {
        self.shared.broken.get().is_some() || self.shared.connection.borrow().is_broken()
    }

    fn reset_on_drop(&self) {
        self.shared.connection.borrow().reset_on_drop();
    }

    fn peer(&self) -> Address {
        self.shared.connection.borrow().peer()
    }

    fn credentials(&self) -> Option<Credentials> {
        self.shared.connection.borrow().credentials()
    }

    fn local(&self) -> Address {
        self.shared.connection.borrow().local()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // The socket no longer wakes the background task, so it must be stopped explicitly.
        self.shared.output.abandon();
    }
}

impl Shared {
    fn poll_recv(&self, context: &mut Context<'_>) -> Poll<io::Result<Chunk>> {
        let received = match self.broken.get() {
            _ if self.ended.get() => Poll::Ready(Ok(Chunk::end())),
            None => self.poll_receive(context),
            Some(kind) => Poll::Ready(self.receive_rest(kind)),
        };
        match received {
            Poll::Ready(Err(error)) => {
                self.break_off(error.kind());
                Poll::Ready(Err(error))
            }
            Poll::Pending => {
                remember(&self.receiving, context);
                Poll::Pending
            }
            chunk => chunk,
        }
    }

    /// Receives once, or arranges a wake-up. The buffer is leased only during this call, unless
    /// bytes arrive in it.
    fn poll_receive(&self, context: &mut Context<'_>) -> Poll<io::Result<Chunk>> {
        let mut connection = self.connection.borrow_mut();
        let pool = &self.worker.pool;
        if self.large.get() {
            return self.poll_receive_own(&mut connection, context, self.worker.large_bytes);
        }
        let Some(mut buffer) = pool.lease() else {
            // Other connections hold all buffers: allocate memory if there is something to read.
            let received = self.poll_receive_own(&mut connection, context, pool.buffer_bytes);
            if received.is_ready() {
                pool.count_exhausted();
            }
            return received;
        };
        let read = loop {
            match connection.poll_read(context, &mut buffer) {
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Poll::Ready(read) => break read,
                Poll::Pending => {
                    pool.give_back(buffer);
                    return Poll::Pending;
                }
            }
        };
        self.worker.figures.call();
        Poll::Ready(self.fill(buffer, read))
    }

    /// The chunk for the result of a read into a leased buffer.
    fn fill(&self, buffer: Vec<u8>, read: io::Result<usize>) -> io::Result<Chunk> {
        let pool = &self.worker.pool;
        match read {
            Ok(0) | Err(_) => {
                pool.give_back(buffer);
                read?;
                self.ended.set(true);
                Ok(Chunk::end())
            }
            Ok(filled) => {
                self.large.set(filled == buffer.len());
                Ok(Chunk::new(buffer, filled, Rc::clone(pool)))
            }
        }
    }

    /// Like `poll_receive`, into memory that is allocated only once the socket is readable: a
    /// connection whose peer pauses holds none.
    fn poll_receive_own(
        &self,
        connection: &mut Connection,
        context: &mut Context<'_>,
        bytes_max: usize,
    ) -> Poll<io::Result<Chunk>> {
        let (bytes, read) = loop {
            ready!(connection.poll_readable(context))?;
            let mut bytes = Vec::with_capacity(bytes_max);
            match ready!(connection.poll_read_more(context, &mut bytes)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break (bytes, read),
            }
        };
        self.worker.figures.call();
        let filled = read?;
        self.large.set(filled >= self.worker.pool.buffer_bytes);
        self.ended.set(filled == 0);
        Poll::Ready(Ok(if filled == 0 { Chunk::end() } else { Chunk::own(bytes) }))
    }

    /// Returns the data received before the connection broke, then the error. Bypasses the runtime,
    /// which may not know of this data yet. The kernel reports an error only once, and a regular
    /// end after it, which must not be mistaken for one.
    fn receive_rest(&self, kind: io::ErrorKind) -> io::Result<Chunk> {
        self.receive_now().map_err(|_| kind.into())
    }

    /// Receives bytes or an error directly from the kernel; the runtime may not know of them yet.
    fn receive_now(&self) -> io::Result<Chunk> {
        let mut bytes = vec![0; self.worker.pool.buffer_bytes];
        let filled = self.connection.borrow().read_now(&mut bytes)?;
        if filled == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.worker.figures.call();
        bytes.truncate(filled);
        Ok(Chunk::own(bytes))
    }

    /// Records how the connection broke, and wakes all tasks that wait for it.
    pub(crate) fn break_off(&self, kind: io::ErrorKind) {
        if self.broken.get().is_none() {
            self.broken.set(Some(kind));
            self.output.abandon();
            self.output.wake();
            self.receiving.take().into_iter().for_each(Waker::wake);
        }
    }
}

/// Stores the caller's waker in `slot`, replacing any other.
pub(crate) fn remember(slot: &Cell<Option<Waker>>, context: &Context<'_>) {
    let known = slot.take().filter(|waker| waker.will_wake(context.waker()));
    slot.set(Some(known.unwrap_or_else(|| context.waker().clone())));
}
