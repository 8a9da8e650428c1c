//! One connection: what both directions share, and the receiving side.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use peregrine_driver::Address;

use crate::connection::Connection;
use crate::output::Output;
use crate::pool::Chunk;
use crate::worker::{Worker, increment};

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
    /// The peer's end was received.
    ended: Cell<bool>,
    /// The last read gave more than the pool's buffers hold, or as much: the next one is a large
    /// one. Each read costs a system call, a wake-up of its reader and a piece of the reader's.
    large: Cell<bool>,
}

/// Bytes of a large read. Larger ones gain nothing and make the other connections wait.
const LARGE_BYTES: usize = 64 * 1024;

impl Stream {
    pub(crate) fn new(connection: Connection, worker: Rc<Worker>) -> Self {
        let shared = Shared {
            connection: RefCell::new(connection),
            worker,
            output: Output::default(),
            broken: Cell::new(None),
            ended: Cell::new(false),
            large: Cell::new(false),
        };
        Self { shared: Rc::new(shared) }
    }
}

impl peregrine_driver::Stream for Stream {
    type Chunk = Chunk;

    fn poll_recv(&self, context: &mut Context<'_>) -> Poll<io::Result<Chunk>> {
        self.shared.poll_receive(context)
    }

    fn keep(chunk: Chunk) -> Result<Vec<u8>, Chunk> {
        chunk.keep()
    }

    fn send(&self, out: &mut Vec<u8>) {
        self.shared.send(out);
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

    fn reset_on_drop(&self) {
        self.shared.connection.borrow().reset_on_drop();
    }

    fn peer(&self) -> Address {
        self.shared.connection.borrow().peer()
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
    /// Receives once, or arranges a wake-up. The buffer is leased for the length of this call
    /// only, unless bytes arrive in it.
    fn poll_receive(&self, context: &mut Context<'_>) -> Poll<io::Result<Chunk>> {
        if self.ended.get() {
            return Poll::Ready(Ok(Chunk::end()));
        }
        let mut connection = self.connection.borrow_mut();
        let pool = &self.worker.pool;
        let leased = if self.large.get() { None } else { pool.lease() };
        // Where others hold all buffers, whoever has something to read gets memory of its own.
        let Some(mut buffer) = leased else {
            return self.poll_receive_large(&mut connection, context);
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
        increment(&self.worker.figures.calls);
        match read {
            Ok(0) | Err(_) => pool.give_back(buffer),
            Ok(filled) => {
                self.large.set(filled == buffer.len());
                let chunk = Chunk::new(buffer, filled, Rc::clone(pool));
                return Poll::Ready(Ok(chunk));
            }
        }
        Poll::Ready(self.end(read.err()))
    }

    /// As `poll_receive`, into memory that is made when there is something to read, and not before:
    /// a connection whose peer pauses holds none.
    fn poll_receive_large(
        &self,
        connection: &mut Connection,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Chunk>> {
        let (bytes, read) = loop {
            ready!(connection.poll_readable(context))?;
            let mut bytes = Vec::with_capacity(LARGE_BYTES);
            match ready!(connection.poll_read_more(context, &mut bytes)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break (bytes, read),
            }
        };
        increment(&self.worker.figures.calls);
        Poll::Ready(match read {
            Ok(0) | Err(_) => self.end(read.err()),
            Ok(filled) => {
                self.large.set(filled >= self.worker.pool.buffer_bytes);
                Ok(Chunk::own(bytes))
            }
        })
    }

    /// Nothing more will be received. After a break the kernel, which tells an error only once,
    /// reports an orderly end: that must not pass for one.
    fn end(&self, error: Option<io::Error>) -> io::Result<Chunk> {
        match (error, self.broken.get()) {
            (Some(error), _) => Err(self.break_off(error)),
            (None, Some(kind)) => Err(kind.into()),
            (None, None) => {
                self.ended.set(true);
                Ok(Chunk::end())
            }
        }
    }

    /// Remembers that the connection broke.
    pub(crate) fn break_off(&self, error: io::Error) -> io::Error {
        self.broken.set(Some(error.kind()));
        error
    }
}
