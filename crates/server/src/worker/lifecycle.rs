//! The lifecycle states of a worker, and the report of a worker that has ended.
//!
//! A task of the worker uses [`run_until`] and [`race`] to wait for an event or for a later
//! lifecycle state.

use crate::observe::WorkerStats;
use crate::observe::close_reason::InFlightStage;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// The lifecycle state of the server, which its workers follow. It only moves forward through these
/// variants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lifecycle {
    /// Prepare, but do not accept connections yet: another process still serves at the same
    /// addresses.
    Standby,
    /// Accept and serve connections.
    #[default]
    Serving,
    /// Accept and serve, but close each connection after its next response. Only a worker enters
    /// this state, before `Draining`, if
    /// [`Limits::lame_duck_period`](crate::Limits::lame_duck_period) is set.
    LameDuck,
    /// Drain without a lame-duck time, because another process serves at the same addresses from
    /// now on. Otherwise the same as `Draining`.
    HandingOver,
    /// Stop accepting, close idle connections, and let busy ones finish until the shutdown timeout.
    Draining,
    /// End all connections and tasks immediately.
    ForceClosing,
}

/// The result of a worker that has ended.
#[derive(Debug, Default)]
pub struct WorkerReport {
    /// The worker's final counts.
    pub stats: WorkerStats,
    /// The connections and handlers that were still busy when the shutdown timeout expired.
    pub force_closed: Vec<ForceClosed>,
}

/// A connection that the shutdown ended in the middle of its work, or a handler that the shutdown
/// aborted after the handler had outlived its connection. An HTTP/2 connection has one value for
/// each unfinished request.
#[doc(alias = "worker_shutdown_timeout")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForceClosed {
    /// The peer of the connection.
    pub peer: String,
    /// Method and route of the request whose response was not completely sent; `None` if there was
    /// no such request.
    pub request: Option<String>,
    /// The work that was unfinished when the connection was force-closed.
    pub stage: InFlightStage,
    /// How long the request had been in progress since it first had to wait. `None` if it never had
    /// to, or if only the delivery of its response was unfinished.
    pub in_flight_for: Option<Duration>,
    /// How long the connection had existed.
    pub connection_age: Duration,
}

impl fmt::Display for ForceClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let request = self.request.as_deref().unwrap_or("(no complete request)");
        write!(f, "{} during {request}: {}", self.peer, self.stage)?;
        if let Some(in_flight_for) = self.in_flight_for {
            write!(f, " after {in_flight_for:.1?}")?;
        }
        write!(f, ", connected for {:.1?}", self.connection_age)
    }
}

/// Returns the output of `future`, or `None` if `end` completes first.
pub(crate) async fn run_until<T>(
    future: impl Future<Output = T>,
    end: impl Future<Output = ()>,
) -> Option<T> {
    let (mut future, mut end) = (pin!(future), pin!(end));
    poll_fn(|cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(value));
        }
        end.as_mut().poll(cx).map(|()| None)
    })
    .await
}

/// Completes when either future completes.
pub(crate) async fn race(a: impl Future<Output = ()>, b: impl Future<Output = ()>) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(
        |cx| {
            if a.as_mut().poll(cx).is_ready() { Poll::Ready(()) } else { b.as_mut().poll(cx) }
        },
    )
    .await;
}
