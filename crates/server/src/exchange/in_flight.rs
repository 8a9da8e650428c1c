//! Describes a request in progress, and runs the protocol that it was upgraded to.

use crate::observe::close_reason::InFlightStage;
use peregrine_proto::Method;
use peregrine_web::route::display_pattern;
use peregrine_web::upgrade::{UpgradeHandler, Upgraded};
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Names a request in logs and in the shutdown report.
pub(crate) struct RequestName {
    pub(super) method: Method,
    /// The route's pattern. The path is not used, because it might contain private data.
    pub(super) pattern: Option<Rc<str>>,
}

impl fmt::Display for RequestName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let method = self.method.name().unwrap_or("(extension)");
        write!(f, "{method} {}", display_pattern(self.pattern.as_deref().unwrap_or("(no route)")))
    }
}

/// A request in progress, for the shutdown report.
pub(crate) struct InFlightRequest<'a> {
    pub(crate) name: &'a RequestName,
    pub(crate) stage: InFlightStage,
    /// When the request first had to wait; `None` if it never did.
    pub(crate) pending_since: Option<Duration>,
}

impl<'a> InFlightRequest<'a> {
    /// A request whose response is written, but might not have reached the peer yet.
    pub(crate) fn in_delivery(name: &'a RequestName) -> Self {
        Self { name, stage: InFlightStage::Delivery, pending_since: None }
    }
}

/// Runs the protocol that a stream or a connection was upgraded to.
pub(super) enum UpgradedTask {
    /// Not polled yet. `None` after `run` panicked.
    NotStarted(Option<(UpgradeHandler, Upgraded)>),
    Running(Pin<Box<dyn Future<Output = ()>>>),
}

impl UpgradedTask {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Self::NotStarted(start) = self {
            // Not reached with `None`, because the exchange does not poll the task after a panic.
            let Some((handler, io)) = start.take() else { return Poll::Ready(()) };
            *self = Self::Running(handler.run(io));
        }
        match self {
            Self::Running(future) => future.as_mut().poll(cx),
            Self::NotStarted(_) => Poll::Ready(()),
        }
    }
}
