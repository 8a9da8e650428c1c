//! Interim responses: what a handler says before its response, such as 103 (Early Hints, RFC 8297).
//!
//! They wait with the request's head, which the handler and the server share, until the server looks
//! after each poll of the handler.

use crate::http::from_request::FromRequestParts;
use crate::http::head::Head;
use crate::http::problem::Problem;
use crate::http::request::Parts;
use http::header::LINK;
use http::{HeaderMap, HeaderValue, StatusCode};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem::take;
use std::rc::Rc;
use std::task::{Context, Waker};

/// How many interim responses of one request may wait for the server.
const WAITING_MAX: usize = 8;

/// Sends interim responses (RFC 9110 §15.2) before the handler's own.
///
/// The server sends them when the handler waits for the first time after this, so hints are of use in a
/// handler that then waits for something else. A client of HTTP/1.0 gets none of them, and an
/// intermediary may keep them to itself; nor do they leave an application that is served as a tower
/// service (`into_tower`). The test client has them in
/// [`TestResponse::interim`](crate::test::TestResponse::interim).
///
/// ```
/// use peregrine::prelude::*;
///
/// async fn page(interim: Interim) -> Html<&'static str> {
///     // Without hints the page is as good, only later.
///     let _ = interim.early_hints(["</style.css>; rel=preload; as=style"]);
///     // ... what takes its time ...
///     Html("<link rel=stylesheet href=/style.css>")
/// }
///
/// let response = App::new().get("/", page).test().get("/").send_now();
/// let (status, fields) = &response.interim()[0];
/// assert_eq!(status.as_u16(), 103);
/// assert_eq!(fields["link"], "</style.css>; rel=preload; as=style");
/// ```
pub struct Interim(Head);

impl Interim {
    /// Sends a 103 (Early Hints) with these values of Link, for which the client may ask before it has
    /// the response.
    ///
    /// # Errors
    /// A link is no value of a field; or as [`Interim::send`].
    pub fn early_hints<L>(&self, links: impl IntoIterator<Item = L>) -> Result<(), InterimError>
    where
        L: TryInto<HeaderValue>,
    {
        let mut fields = HeaderMap::new();
        for link in links {
            let link = link.try_into().map_err(|_| InterimError::InvalidLink)?;
            fields.append(LINK, link);
        }
        // Older versions of `http` have no name for it.
        let early_hints = StatusCode::from_u16(103).expect("it has three digits");
        self.send(early_hints, fields)
    }

    /// Sends an interim response with a status from 102 to 199: the 100 is the server's, and a 101 is a
    /// response. Fields of the connection and of its framing are left out.
    ///
    /// # Errors
    /// It is another status, the response has begun, or eight interim responses wait already.
    pub fn send(&self, status: StatusCode, fields: HeaderMap) -> Result<(), InterimError> {
        if !(102..200).contains(&status.as_u16()) {
            return Err(InterimError::NotInterim(status));
        }
        self.0.interims().push(status, fields)
    }
}

impl FromRequestParts for Interim {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        parts.head.interims().is_used.set(true);
        Ok(Self(parts.head.share()))
    }
}

impl fmt::Debug for Interim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Interim")
    }
}

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
    fn push(&self, status: StatusCode, fields: HeaderMap) -> Result<(), InterimError> {
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
