//! The sending side of a connection.
//!
//! A send writes from its own future as long as that lives. When the future is dropped early, the
//! bytes that are left move to a queue, and a task writes them in the background. So at any time at
//! most one party writes; the others wait for their turn.
//!
//! | from         | event                                  | to           |
//! |--------------|----------------------------------------|--------------|
//! | `Free`       | a send begins                          | `Sending`    |
//! | `Sending`    | it ends                                | `Free`       |
//! | `Free`, `Sending` | a send is dropped, bytes are left | `Background` |
//! | `Background` | all is written, or the connection broke | `Free`      |
//! | `Free`       | `finish`                               | `Finished`   |
//! | `Background` | all is written, `finish` was called    | `Finished`   |

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::mem::take;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use tokio::task::AbortHandle;

use crate::stream::Shared;
use crate::worker::{Worker, increment};

/// The state of one connection's sending side.
#[derive(Default)]
pub(crate) struct Output {
    turn: Cell<Turn>,
    /// Who waits for `Free`.
    waiting: Cell<Option<Waker>>,
    /// Boxed, because few connections ever need it. It is there exactly in `Background`.
    left: RefCell<Option<Box<Left>>>,
}

/// Who may write to the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Turn {
    #[default]
    Free,
    Sending,
    Background,
    Finished,
}

/// What dropped sends left to be written.
struct Left {
    pieces: VecDeque<Piece>,
    finish: bool,
    task: Option<AbortHandle>,
}

/// Bytes of which the first `sent` are written: `sent <= bytes.len()`.
struct Piece {
    bytes: Vec<u8>,
    sent: usize,
}

impl Piece {
    fn poll_write(&mut self, shared: &Shared, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut connection = shared.connection.borrow_mut();
        while self.sent < self.bytes.len() {
            let written = ready!(connection.poll_write(context, &self.bytes[self.sent..]));
            increment(&shared.worker.figures.calls);
            match written {
                Ok(0) => {
                    let error = io::ErrorKind::WriteZero.into();
                    return Poll::Ready(Err(shared.break_off(error)));
                }
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(shared.break_off(error))),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Output {
    /// Ends the background task: the connection is being closed.
    pub(crate) fn abandon(&self) {
        if let Some(left) = self.left.take()
            && let Some(task) = left.task
        {
            task.abort();
        }
    }

    /// Ends a turn and tells the one who waits for it.
    fn release(&self, turn: Turn) {
        self.turn.set(turn);
        if let Some(waker) = self.waiting.take() {
            waker.wake();
        }
    }
}

/// One send. Bytes that are unwritten when it is dropped are written in the background.
pub(crate) struct Sending<'a> {
    shared: &'a Rc<Shared>,
    piece: Piece,
    has_turn: bool,
}

impl<'a> Sending<'a> {
    pub(crate) fn new(shared: &'a Rc<Shared>, bytes: Vec<u8>) -> Self {
        Self { shared, piece: Piece { bytes, sent: 0 }, has_turn: false }
    }

    fn poll_all(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.has_turn {
            let output = &self.shared.output;
            if let Some(kind) = self.shared.broken.get() {
                return Poll::Ready(Err(kind.into()));
            }
            match output.turn.get() {
                Turn::Free => output.turn.set(Turn::Sending),
                Turn::Sending | Turn::Background => {
                    output.waiting.set(Some(context.waker().clone()));
                    return Poll::Pending;
                }
                Turn::Finished => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
            self.has_turn = true;
        }
        self.piece.poll_write(self.shared, context)
    }
}

impl Future for Sending<'_> {
    type Output = (io::Result<()>, Vec<u8>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let sent = ready!(self.poll_all(context));
        if take(&mut self.has_turn) {
            self.shared.output.release(Turn::Free);
        }
        let mut bytes = take(&mut self.piece.bytes);
        bytes.clear();
        self.piece.sent = 0;
        Poll::Ready((sent, bytes))
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if self.has_turn {
            self.shared.output.release(Turn::Free);
        }
        if self.piece.sent < self.piece.bytes.len() {
            let bytes = take(&mut self.piece.bytes);
            self.shared.leave(Piece { bytes, sent: self.piece.sent });
        }
    }
}

impl Shared {
    /// Has `piece` written in the background, after all that is there already.
    fn leave(self: &Rc<Self>, piece: Piece) {
        let output = &self.output;
        if let Some(left) = &mut *output.left.borrow_mut() {
            left.pieces.push_back(piece);
            return;
        }
        // Without a runtime the worker has ended, and its connections with it.
        let alive = tokio::runtime::Handle::try_current().is_ok();
        if self.broken.get().is_some() || output.turn.get() == Turn::Finished || !alive {
            return;
        }
        debug_assert_eq!(output.turn.get(), Turn::Free, "a stream has at most one send at a time");
        output.turn.set(Turn::Background);
        let left = Left { pieces: VecDeque::from([piece]), finish: false, task: None };
        *output.left.borrow_mut() = Some(Box::new(left));
        let task = tokio::task::spawn_local(write_left(self)).abort_handle();
        if let Some(left) = &mut *output.left.borrow_mut() {
            left.task = Some(task);
        }
    }

    /// Writes what dropped sends left.
    fn poll_left(&self, context: &mut Context<'_>) -> Poll<()> {
        let output = &self.output;
        let mut finish = false;
        if let Some(left) = &mut *output.left.borrow_mut() {
            while let Some(piece) = left.pieces.front_mut() {
                // How it broke is remembered, and the next call on the stream reports it.
                if ready!(piece.poll_write(self, context)).is_err() {
                    break;
                }
                left.pieces.pop_front();
            }
            finish = left.finish && self.broken.get().is_none();
        }
        output.left.take();
        if finish {
            // The one who asked may be gone. A failure here means that the peer is gone as well.
            let _ = self.shut_down(context);
        } else {
            output.release(Turn::Free);
        }
        Poll::Ready(())
    }

    /// Ends the sending side after everything that was sent before.
    pub(crate) fn poll_finish(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(kind) = self.broken.get() {
            return Poll::Ready(Err(kind.into()));
        }
        match self.output.turn.get() {
            Turn::Free => self.shut_down(context),
            Turn::Finished => Poll::Ready(Ok(())),
            Turn::Sending | Turn::Background => {
                if let Some(left) = &mut *self.output.left.borrow_mut() {
                    left.finish = true;
                }
                self.output.waiting.set(Some(context.waker().clone()));
                Poll::Pending
            }
        }
    }

    fn shut_down(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let finished = ready!(self.connection.borrow_mut().poll_finish(context));
        self.output.release(Turn::Finished);
        Poll::Ready(finished.map_err(|error| self.break_off(error)))
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

/// Counts one send in the background for as long as it lives.
struct InFlight(Rc<Worker>);

impl InFlight {
    fn new(worker: &Rc<Worker>) -> Self {
        increment(&worker.figures.left);
        Self(Rc::clone(worker))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let left = &self.0.figures.left;
        left.set(left.get() - 1);
    }
}
