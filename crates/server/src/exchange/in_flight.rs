//! What is known of a request until its exchange is over, and the protocol that it may become.

use crate::observe::close_reason::Unfinished;
use peregrine_proto::Method;
use peregrine_web::route::readable;
use peregrine_web::upgrade::{OnUpgrade, Upgraded};
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// What names a request in logs and in the report of a shutdown.
pub(crate) struct RequestName {
    pub(super) method: Method,
    /// The route's pattern: a path may hold what no report should.
    pub(super) pattern: Option<Rc<str>>,
}

impl fmt::Display for RequestName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let method = self.method.name().unwrap_or("(extension)");
        write!(f, "{method} {}", readable(self.pattern.as_deref().unwrap_or("(no route)")))
    }
}

/// A request that is not over.
pub(crate) struct InProgress<'a> {
    pub(crate) name: &'a RequestName,
    pub(crate) unfinished: Unfinished,
    /// Since when it has been waited for.
    pub(crate) since: Option<Duration>,
}

impl<'a> InProgress<'a> {
    /// One whose response is complete, and not with the peer.
    pub(crate) fn delivery(name: &'a RequestName) -> Self {
        Self { name, unfinished: Unfinished::Delivery, since: None }
    }
}

/// What a stream or a connection speaks instead of HTTP.
pub(super) enum Protocol {
    /// Nothing of it has run.
    Beginning(Option<(OnUpgrade, Upgraded)>),
    Running(Pin<Box<dyn Future<Output = ()>>>),
}

impl Protocol {
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Self::Beginning(beginning) = self {
            // It was taken already where beginning has panicked, after which this is not called again.
            let Some((upgrade, io)) = beginning.take() else { return Poll::Ready(()) };
            *self = Self::Running(upgrade.run(io));
        }
        match self {
            Self::Running(protocol) => protocol.as_mut().poll(context),
            Self::Beginning(_) => Poll::Ready(()),
        }
    }
}
