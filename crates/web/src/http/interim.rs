//! Interim responses, which a handler sends before its final response, such as 103 (Early Hints,
//! RFC 8297).
//!
//! They are queued with the request's head, which the handler and the server share. The server
//! takes them after each poll of the handler.

use crate::http::head::RequestHead;
use http::{HeaderMap, StatusCode};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem::take;
use std::rc::Rc;
use std::task::{Context, Waker};

/// The maximum number of pending interim responses of one request.
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
    /// Eight interim responses are already waiting to be sent, because the handler has not been
    /// suspended since it queued them.
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
    is_used: Cell<bool>,
    is_finished: Cell<bool>,
    pending: RefCell<Vec<(StatusCode, HeaderMap)>>,
    server: RefCell<Option<Waker>>,
}

impl PendingInterims {
    /// Records that the handler may send interim responses, so that the server looks for them.
    pub(crate) fn mark_used(&self) {
        self.is_used.set(true);
    }

    pub(crate) fn push(&self, status: StatusCode, fields: HeaderMap) -> Result<(), InterimError> {
        if self.is_finished.get() {
            return Err(InterimError::TooLate);
        }
        let mut pending = self.pending.borrow_mut();
        if pending.len() == PENDING_MAX {
            return Err(InterimError::TooMany);
        }
        pending.push((status, fields));
        drop(pending);
        // A task that the handler spawned may send one while the handler is pending.
        if let Some(server) = self.server.take() {
            server.wake();
        }
        Ok(())
    }

    /// Resets everything for another request.
    pub(crate) fn clear(&mut self) {
        let Self { is_used, is_finished, pending, server } = self;
        is_used.set(false);
        is_finished.set(false);
        pending.get_mut().clear();
        *server.get_mut() = None;
    }
}

/// For the server, and for middleware that replaces a request's head.
impl RequestHead {
    /// Connects this head with `origin`, the head of the same request that the server holds.
    /// Interim responses sent through this head, and identities read from it, are then recorded in
    /// `origin` too. The outer route and the route selection are copied from `origin`.
    pub fn link_to_original(&mut self, origin: &Self) {
        self.set_pending_interims(Rc::clone(origin.pending_interims()));
        self.share_identity_reads(origin);
        self.copy_outer_route(origin);
    }

    /// Takes the pending interim responses; call it after each poll of the handler. `is_finished`
    /// is true if that poll produced the final response, after which no more can be sent.
    /// Otherwise the caller's task is woken when another one is queued.
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
            interims.server.replace(Some(context.waker().clone()));
        }
        take(&mut *interims.pending.borrow_mut())
    }
}
