//! The stages of a worker's life, and its report after the last one.
//!
//! With [`before`] and [`first_of`], a task of the worker waits for an event or for a later stage.

use crate::observe::Snapshot;
use crate::observe::close_reason::Unfinished;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// An order to all workers. Orders only go forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// Be ready, but accept nobody yet: another process still serves here.
    Wait,
    /// Serve.
    #[default]
    Serve,
    /// Serve, but let each connection end with its next response. A worker gives this order to
    /// itself when it is told to drain and has [`Limits::lame_duck`](crate::Limits::lame_duck).
    LameDuck,
    /// Drain, without being a lame duck before: another process serves here from now on. For a worker
    /// it is the order to drain.
    Leave,
    /// Stop accepting, close what is idle, let the rest finish until the shutdown timeout.
    Drain,
    /// End everything at once.
    Cut,
}

/// What a worker did, told when it has ended.
#[derive(Debug, Default)]
pub struct Report {
    /// Its figures.
    pub snapshot: Snapshot,
    /// Connections that were still busy when the time to shut down was over.
    pub cut: Vec<Cut>,
}

/// A connection that was ended in the middle of its work, or a handler that had outlived its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Who was at the other end.
    pub peer: String,
    /// Method and route of the request whose response was not sent yet; `None` if there was none.
    pub request: Option<String>,
    /// What was not over: why the connection was cut.
    pub unfinished: Unfinished,
    /// How long the request had been waited for; `None` if it was not.
    pub busy: Option<Duration>,
    /// How long the connection had existed.
    pub age: Duration,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let request = self.request.as_deref().unwrap_or("(no whole request)");
        write!(f, "{} during {request}: {}", self.peer, self.unfinished)?;
        if let Some(busy) = self.busy {
            write!(f, " after {busy:.1?}")?;
        }
        write!(f, ", connected for {:.1?}", self.age)
    }
}

/// What `future` gives, unless `end` comes before it.
pub(crate) async fn before<T>(
    future: impl Future<Output = T>,
    end: impl Future<Output = ()>,
) -> Option<T> {
    let (mut future, mut end) = (pin!(future), pin!(end));
    poll_fn(|context| {
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        end.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// Ends when one of the two ends.
pub(crate) async fn first_of(a: impl Future<Output = ()>, b: impl Future<Output = ()>) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(|context| {
        if a.as_mut().poll(context).is_ready() { Poll::Ready(()) } else { b.as_mut().poll(context) }
    })
    .await;
}
