//! Interim responses as handlers send them.

use super::FromRequestParts;
use crate::http::head::Head;
use crate::http::interim::InterimError;
use crate::http::problem::Problem;
use crate::http::request::Parts;
use http::header::LINK;
use http::{HeaderMap, HeaderValue, StatusCode};
use std::fmt;

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
        parts.head.interims().mark_used();
        Ok(Self(parts.head.share()))
    }
}

impl fmt::Debug for Interim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Interim")
    }
}
