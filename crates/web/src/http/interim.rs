//! Interim responses, which a handler sends before its final response, such as 103 (Early Hints,
//! RFC 8297).
//!
//! They are queued in the request's head, which the handler and the server share. After each poll
//! of the handler, the server takes them from the queue and sends them.

use crate::http::head::RequestHead;
use http::{HeaderMap, StatusCode};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem::take;
use std::rc::Rc;
use std::task::{Context, Waker};

/// The maximum number of queued interim responses of one request.
const PENDING_MAX: usize = 8;

/// Why an interim response was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InterimError {
    /// The status is outside the range 102 to 199.
    NotInterim(StatusCode),
    /// A link is not a valid value of a header field.
    InvalidLink,
    /// The final response has begun.
    TooLate,
    /// Eight interim responses are already queued. The server sends them when the handler next
    /// suspends.
    TooMany,
}

impl fmt::Display for InterimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInterim(status) => write!(f, "{status} is not an interim status"),
            Self::InvalidLink => f.write_str("a link is not a valid header value"),
            Self::TooLate => f.write_str("the response has begun"),
            Self::TooMany => f.write_str("too many interim responses are waiting to be sent"),
        }
    }
}

impl std::error::Error for InterimError {}

/// The interim responses of one request that are waiting to be sent.
#[derive(Default)]
pub(crate) struct PendingInterims {
    /// Whether an extractor gave the handler access to the queue. If not, the server does not check
    /// the queue.
    is_used: Cell<bool>,
    /// Whether the handler has returned the final response, so that nothing more can be queued.
    is_finished: Cell<bool>,
    queue: RefCell<Vec<(StatusCode, HeaderMap)>>,
    /// Wakes the task that polls the handler, which then takes the queue.
    server_waker: RefCell<Option<Waker>>,
}

impl PendingInterims {
    /// Records that the handler may send interim responses, so that the server checks the queue
    /// after each poll.
    pub(crate) fn mark_used(&self) {
        self.is_used.set(true);
    }

    pub(crate) fn push(&self, status: StatusCode, fields: HeaderMap) -> Result<(), InterimError> {
        if self.is_finished.get() {
            return Err(InterimError::TooLate);
        }
        let mut queue = self.queue.borrow_mut();
        if queue.len() == PENDING_MAX {
            return Err(InterimError::TooMany);
        }
        queue.push((status, fields));
        drop(queue);
        // A task that the handler spawned may queue a response while the handler itself is
        // suspended.
        if let Some(waker) = self.server_waker.take() {
            waker.wake();
        }
        Ok(())
    }

    /// Clears everything before the head is reused for another request.
    pub(crate) fn clear(&mut self) {
        let Self { is_used, is_finished, queue, server_waker } = self;
        is_used.set(false);
        is_finished.set(false);
        queue.get_mut().clear();
        *server_waker.get_mut() = None;
    }
}

/// For the server, and for middleware that replaces a request's head.
impl RequestHead {
    /// Links this head to `original`, the head that the server holds for the same request. Interim
    /// responses sent through this head then reach the server, and both heads share one set of
    /// identity marks ([`private_response`](crate::private_response)). The outer route and the
    /// route selection are copied from `original`.
    pub fn link_to_original(&mut self, original: &Self) {
        self.set_pending_interims(Rc::clone(original.pending_interims()));
        self.share_identity_reads(original);
        self.copy_outer_route(original);
    }

    /// Removes and returns the queued interim responses; call it after each poll of the handler.
    /// `is_finished` says whether that poll completed the handler. If so, no more can be queued; if
    /// not, the caller's task is woken when the next one is queued.
    #[must_use]
    pub fn take_interim_responses(
        &self,
        is_finished: bool,
        context: &Context<'_>,
    ) -> Vec<(StatusCode, HeaderMap)> {
        let interims = self.pending_interims();
        if !interims.is_used.get() {
            return Vec::new();
        }
        interims.is_finished.set(is_finished);
        if !is_finished {
            interims.server_waker.replace(Some(context.waker().clone()));
        }
        take(&mut *interims.queue.borrow_mut())
    }
}
