//! One connection: what both directions share, and the receiving side.

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

/// One connection. While it waits it holds no buffer.
pub struct Stream {
    shared: Rc<Shared>,
}

/// A connection's state, in a place that a send in the background can reach.
pub(crate) struct Shared {
    pub(crate) connection: RefCell<Connection>,
    pub(crate) worker: Rc<Worker>,
    pub(crate) output: Output,
    /// How the connection broke, in either direction. The kernel tells only once.
    pub(crate) broken: Cell<Option<io::ErrorKind>>,
    /// Who waits for bytes. The runtime has the waker too; this one is for a send that fails.
    receiving: Cell<Option<Waker>>,
    /// The peer's end was received.
    ended: Cell<bool>,
    /// The last read gave more than the pool's buffers hold, or as much: the next one is a large
    /// one. Each read costs a system call, a wake-up of its reader and a piece of the reader's.
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

    /// The socket, if nothing was begun with it.
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
        // The background task's wake-up goes away with the socket: it must be ended by hand.
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

    /// Receives once, or arranges a wake-up. The buffer is leased for the length of this call
    /// only, unless bytes arrive in it.
    fn poll_receive(&self, context: &mut Context<'_>) -> Poll<io::Result<Chunk>> {
        let mut connection = self.connection.borrow_mut();
        let pool = &self.worker.pool;
        if self.large.get() {
            return self.poll_receive_own(&mut connection, context, self.worker.large_bytes);
        }
        let Some(mut buffer) = pool.lease() else {
            // Others hold all buffers: whoever has something to read gets memory of its own.
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

    /// The chunk that a read into a leased buffer makes.
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

    /// As `poll_receive`, into memory that is made when there is something to read, and not before:
    /// a connection whose peer pauses holds none.
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

    /// What was received before the connection broke, then the error. The runtime is not asked: it
    /// may not know of these bytes yet. The kernel tells an error only once, and an orderly end
    /// after it, which must not pass for one.
    fn receive_rest(&self, kind: io::ErrorKind) -> io::Result<Chunk> {
        self.receive_now().map_err(|_| kind.into())
    }

    /// Receives what the kernel has, of which the runtime may not know yet: some bytes, or an error.
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

    /// Remembers how the connection broke, and tells everybody who waits for it.
    pub(crate) fn break_off(&self, kind: io::ErrorKind) {
        if self.broken.get().is_none() {
            self.broken.set(Some(kind));
            self.output.abandon();
            self.output.wake();
            self.receiving.take().into_iter().for_each(Waker::wake);
        }
    }
}

/// Leaves the caller's waker, and only this one, in `slot`.
pub(crate) fn remember(slot: &Cell<Option<Waker>>, context: &Context<'_>) {
    let known = slot.take().filter(|waker| waker.will_wake(context.waker()));
    slot.set(Some(known.unwrap_or_else(|| context.waker().clone())));
}
