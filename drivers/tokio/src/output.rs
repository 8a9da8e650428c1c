//! The sending side of a connection.
//!
//! A send is written immediately, as much as the kernel takes. If that is all of it, the memory
//! stays with the caller, and neither a task nor a waker is needed. The rest is kept and written by
//! a background task; later sends are queued behind it. Shared bytes and parts of files are kept
//! without copying.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use peregrine_driver::Piece;
use tokio::task::AbortHandle;
use tokio::task::coop::unconstrained;

use crate::stream::{Shared, remember};
use crate::worker::Worker;

/// The state of one connection's sending side.
#[derive(Default)]
pub(crate) struct Output {
    /// Boxed, because few connections ever need it.
    left: RefCell<Option<Box<Left>>>,
    /// The number of bytes that the kernel took.
    taken: Cell<u64>,
    end: Cell<End>,
    /// The task that waits until everything is written.
    waiting: Cell<Option<Waker>>,
}

/// The progress of shutting down our sending side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    #[default]
    Open,
    /// It is shut down when everything is written.
    Ordered,
    Sent,
    /// Data was sent after the shutdown.
    Passed,
}

/// Data that the kernel did not take yet. `written` bytes of the first piece were taken.
struct Left {
    pieces: VecDeque<Piece>,
    written: usize,
    task: Option<AbortHandle>,
}

/// Vectors up to this length are appended to the previous vector in the queue.
const JOINED_BYTES_MAX: usize = 4 * 1024;

impl Left {
    /// Appends a piece. Small vectors are merged up to a limit, so that many of them need few
    /// calls.
    fn append(&mut self, piece: Piece) {
        if piece.is_empty() {
            return;
        }
        match (self.pieces.back_mut(), piece) {
            (Some(Piece::Owned(last)), Piece::Owned(mut bytes))
                if last.len().max(bytes.len()) <= JOINED_BYTES_MAX =>
            {
                last.append(&mut bytes);
            }
            (_, piece) => self.pieces.push_back(piece),
        }
    }
}

impl Output {
    /// Stops the background task and drops the data it had to write.
    pub(crate) fn abandon(&self) {
        if let Some(left) = self.left.take()
            && let Some(task) = left.task
        {
            task.abort();
        }
    }

    pub(crate) fn is_written(&self) -> bool {
        self.left.borrow().is_none()
    }

    /// Wakes the task that waits until everything is written.
    pub(crate) fn wake(&self) {
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    pub(crate) fn progress(&self) -> u64 {
        self.taken.get()
    }
}

impl Shared {
    /// Sends `out`, leaving it empty, and then `shared`.
    pub(crate) fn send(self: &Rc<Self>, out: &mut Vec<u8>, shared: Option<Piece>) {
        let output = &self.output;
        let shared = shared.filter(|shared| !shared.is_empty());
        if output.end.get() != End::Open && (!out.is_empty() || shared.is_some()) {
            output.end.set(End::Passed);
        }
        if self.broken.get().is_some() || output.end.get() != End::Open {
            out.clear();
        } else if let Some(left) = &mut *output.left.borrow_mut() {
            left.append(Piece::Owned(std::mem::take(out)));
            left.append(shared.unwrap_or_default());
        } else {
            self.write_now(out, shared);
        }
    }

    /// Writes as much as the kernel takes, leaves the rest to the background task, and empties
    /// `out`.
    fn write_now(self: &Rc<Self>, out: &mut Vec<u8>, shared: Option<Piece>) {
        let mut written = 0;
        let shared = shared.unwrap_or_default();
        let write = poll_fn(|context| self.poll_write(context, out, &shared, &mut written));
        // Also send if the task has no budget left; otherwise the background task would be needed.
        let write = pin!(unconstrained(write));
        match write.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => self.break_off(error.kind()),
            Poll::Pending => {
                let mut left = Left { pieces: VecDeque::new(), written, task: None };
                if written < out.len() {
                    left.pieces.push_back(Piece::Owned(std::mem::take(out)));
                } else {
                    left.written -= out.len();
                }
                left.pieces.extend((!shared.is_empty()).then_some(shared));
                self.leave(left);
            }
        }
        out.clear();
    }

    /// Writes `first` and then `behind`, skipping the first `written` bytes, and updates `written`.
    fn poll_write(
        &self,
        context: &mut Context<'_>,
        first: &[u8],
        behind: &Piece,
        written: &mut usize,
    ) -> Poll<io::Result<()>> {
        let mut connection = self.connection.borrow_mut();
        while *written < first.len() + behind.len() {
            let wrote = ready!(match (first.get(*written..), behind) {
                (Some(rest @ [_, ..]), Piece::File(_)) => {
                    connection.poll_write_before_file(context, rest)
                }
                (Some(rest @ [_, ..]), _) if !behind.is_empty() => {
                    let both = [IoSlice::new(rest), IoSlice::new(behind.bytes())];
                    connection.poll_write_both(context, &both)
                }
                (Some(rest @ [_, ..]), _) => connection.poll_write(context, rest),
                (_, Piece::File(part)) => {
                    connection.poll_write_file(context, part, *written - first.len())
                }
                _ => connection.poll_write(context, &behind.bytes()[*written - first.len()..]),
            });
            self.worker.figures.call();
            match wrote {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    *written += count;
                    let taken = &self.output.taken;
                    taken.set(taken.get() + count as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Writes `left` in the background.
    fn leave(self: &Rc<Self>, left: Left) {
        // Without a runtime the worker has ended, and its connections with it.
        if tokio::runtime::Handle::try_current().is_err() {
            return self.break_off(io::ErrorKind::NotConnected);
        }
        *self.output.left.borrow_mut() = Some(Box::new(left));
        let task = tokio::task::spawn_local(write_left(self)).abort_handle();
        if let Some(left) = &mut *self.output.left.borrow_mut() {
            left.task = Some(task);
        }
    }

    /// Writes the remaining data, then shuts down sending if requested.
    fn poll_left(&self, context: &mut Context<'_>) -> Poll<()> {
        let output = &self.output;
        let written = loop {
            match ready!(self.poll_first(context)) {
                // The piece is dropped while nothing is borrowed.
                Ok(Some(_piece)) => {}
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        output.left.take();
        match written {
            Err(error) => self.break_off(error.kind()),
            Ok(()) => {
                if output.end.get() != End::Open {
                    self.shut_down();
                }
                output.wake();
            }
        }
        Poll::Ready(())
    }

    /// Writes the first piece of the remaining data and returns it; `None` if nothing remains.
    fn poll_first(&self, context: &mut Context<'_>) -> Poll<io::Result<Option<Piece>>> {
        let mut left = self.output.left.borrow_mut();
        let Some(Left { pieces, written, .. }) = left.as_deref_mut() else {
            return Poll::Ready(Ok(None));
        };
        let Some(first) = pieces.front() else { return Poll::Ready(Ok(None)) };
        ready!(self.poll_write(context, &[], first, written))?;
        *written = 0;
        Poll::Ready(Ok(pieces.pop_front()))
    }

    /// Ready when everything is written and, if requested, sending was shut down.
    pub(crate) fn poll_sent(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let output = &self.output;
        if let Some(kind) = self.broken.get() {
            return Poll::Ready(Err(kind.into()));
        }
        if output.end.get() == End::Passed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if output.left.borrow().is_some() {
            remember(&output.waiting, context);
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    /// Shuts down sending, now or when everything is written.
    pub(crate) fn finish(&self) {
        if self.output.end.get() == End::Open {
            self.output.end.set(End::Ordered);
            if self.output.left.borrow().is_none() {
                self.shut_down();
            }
        }
    }

    fn shut_down(&self) {
        if self.broken.get().is_none() {
            let mut context = Context::from_waker(Waker::noop());
            let finished = self.connection.borrow_mut().poll_finish(&mut context);
            if let Poll::Ready(Err(error)) = finished {
                self.break_off(error.kind());
            }
        }
        if self.output.end.get() == End::Ordered {
            self.output.end.set(End::Sent);
        }
    }
}

/// The background task. It does not keep the connection alive.
fn write_left(shared: &Rc<Shared>) -> impl Future<Output = ()> + 'static {
    let connection = Rc::downgrade(shared);
    let counted = InFlight::new(&shared.worker);
    async move {
        let _counted = counted;
        poll_fn(|context| match connection.upgrade() {
            Some(shared) => shared.poll_left(context),
            None => Poll::Ready(()),
        })
        .await;
    }
}

/// Counts one background send while it lives.
struct InFlight(Rc<Worker>);

impl InFlight {
    fn new(worker: &Rc<Worker>) -> Self {
        worker.figures.leave(1);
        Self(Rc::clone(worker))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.figures.leave(-1);
    }
}
