//! Interim responses: what a handler says before its response, such as 103 (Early Hints, RFC 8297).
//!
//! They wait with the request's head, which the handler and the server share, until the server looks
//! after each poll of the handler.

use crate::http::head::Head;
use http::{HeaderMap, StatusCode};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem::take;
use std::rc::Rc;
use std::task::{Context, Waker};

/// How many interim responses of one request may wait for the server.
const WAITING_MAX: usize = 8;

/// Why an interim response was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InterimError {
    /// The status is not from 102 to 199.
    NotInterim(StatusCode),
    /// A link is no value of a field.
    InvalidLink,
    /// The response has begun.
    TooLate,
    /// Eight interim responses wait for the server already, since the handler has not waited.
    TooMany,
}

impl fmt::Display for InterimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInterim(status) => write!(f, "an interim response has no status {status}"),
            Self::InvalidLink => f.write_str("a link has characters that no field may have"),
            Self::TooLate => f.write_str("the response has begun"),
            Self::TooMany => f.write_str("too many interim responses wait"),
        }
    }
}

impl std::error::Error for InterimError {}

/// The interim responses of one request that wait for the server.
#[derive(Default)]
pub(crate) struct Interims {
    is_used: Cell<bool>,
    is_over: Cell<bool>,
    waiting: RefCell<Vec<(StatusCode, HeaderMap)>>,
    server: RefCell<Option<Waker>>,
}

impl Interims {
    /// Notes that the handler may send some, so that the server looks for them.
    pub(crate) fn mark_used(&self) {
        self.is_used.set(true);
    }

    pub(crate) fn push(&self, status: StatusCode, fields: HeaderMap) -> Result<(), InterimError> {
        if self.is_over.get() {
            return Err(InterimError::TooLate);
        }
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() == WAITING_MAX {
            return Err(InterimError::TooMany);
        }
        waiting.push((status, fields));
        drop(waiting);
        // A task of the handler's may send too, while the handler waits.
        if let Some(server) = self.server.take() {
            server.wake();
        }
        Ok(())
    }

    /// Forgets everything, for another request.
    pub(crate) fn clear(&mut self) {
        let Self { is_used, is_over, waiting, server } = self;
        is_used.set(false);
        is_over.set(false);
        waiting.get_mut().clear();
        *server.get_mut() = None;
    }
}

/// What the server does, and whoever makes a head anew.
impl Head {
    /// What a handler of this head says before its response goes to the server that has `origin`: this head
    /// is the same request's, and counts as it does.
    pub fn share_interims(&mut self, origin: &Self) {
        self.set_interims(Rc::clone(origin.interims()));
        self.share_identity_reads(origin);
        self.share_outer_route(origin);
    }

    /// The interim responses that wait, after the handler was polled. `response` tells whether its response
    /// came: then there are no more. Registers the caller for more otherwise.
    #[must_use]
    pub fn take_interims(
        &self,
        response: bool,
        context: &Context<'_>,
    ) -> Vec<(StatusCode, HeaderMap)> {
        let interims = self.interims();
        if !interims.is_used.get() {
            return Vec::new();
        }
        interims.is_over.set(response);
        if !response {
            interims.server.replace(Some(context.waker().clone()));
        }
        take(&mut *interims.waiting.borrow_mut())
    }
}
