//! The orders that move a worker through its life, and its report at the end.
//!
//! A task of the worker uses [`before`] and [`first_of`] to wait for an event or for a later order.

use crate::observe::Snapshot;
use crate::observe::close_reason::Unfinished;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// An order to all workers. The orders of a worker only move forward through these variants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// Prepare, but do not accept connections yet: another process still serves at the same
    /// addresses.
    Wait,
    /// Accept and serve connections.
    #[default]
    Serve,
    /// Accept and serve, but close each connection after its next response. If a worker is ordered
    /// to drain and [`Limits::lame_duck`](crate::Limits::lame_duck) is set, it gives itself this
    /// order first.
    LameDuck,
    /// Drain without a lame-duck time, because another process serves at the same addresses from
    /// now on. Otherwise the same as `Drain`.
    Leave,
    /// Stop accepting, close idle connections, and let busy ones finish until the shutdown timeout.
    Drain,
    /// End all connections and tasks at once.
    Cut,
}

/// The result of a worker that has ended.
#[derive(Debug, Default)]
pub struct Report {
    /// The worker's final counts.
    pub snapshot: Snapshot,
    /// The connections that were still busy when the shutdown timeout expired.
    pub cut: Vec<Cut>,
}

/// A connection that the shutdown ended in the middle of its work, or a handler that had outlived
/// its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The peer of the connection.
    pub peer: String,
    /// Method and route of the request whose response was not sent yet; `None` if there was none.
    pub request: Option<String>,
    /// The work that was unfinished when the connection was cut.
    pub unfinished: Unfinished,
    /// How long ago the request first had to wait; `None` if it never did.
    pub busy: Option<Duration>,
    /// How long the connection had existed.
    pub age: Duration,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let request = self.request.as_deref().unwrap_or("(no complete request)");
        write!(f, "{} during {request}: {}", self.peer, self.unfinished)?;
        if let Some(busy) = self.busy {
            write!(f, " after {busy:.1?}")?;
        }
        write!(f, ", connected for {:.1?}", self.age)
    }
}

/// Returns the output of `future`, or `None` if `end` completes first.
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

/// Completes when either future completes.
pub(crate) async fn first_of(a: impl Future<Output = ()>, b: impl Future<Output = ()>) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(|context| {
        if a.as_mut().poll(context).is_ready() { Poll::Ready(()) } else { b.as_mut().poll(context) }
    })
    .await;
}
