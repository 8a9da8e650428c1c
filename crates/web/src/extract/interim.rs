//! Lets handlers send interim responses.

use super::FromRequestParts;
use crate::http::head::RequestHead;
use crate::http::interim::InterimError;
use crate::http::problem::Problem;
use crate::http::request::Parts;
use http::header::LINK;
use http::{HeaderMap, HeaderValue, StatusCode};
use std::fmt;

/// Sends interim responses (RFC 9110 §15.2) before the handler's final response.
///
/// The server sends them when the handler next suspends. Therefore early hints are useful only if
/// the handler then awaits an operation, such as a database query. An HTTP/1.0 client receives
/// none, and intermediaries may drop them. An application that is served as a tower service
/// (`into_tower`) cannot send them. The test client collects them in
/// [`TestResponse::interim`](crate::testing::TestResponse::interim).
///
/// ```
/// use peregrine::prelude::*;
///
/// async fn page(interim: Interim) -> Html<&'static str> {
///     // Hints are optional, so a failure is ignored.
///     let _ = interim.early_hints(["</style.css>; rel=preload; as=style"]);
///     // ... slow work ...
///     Html("<link rel=stylesheet href=/style.css>")
/// }
///
/// let response = App::new().get("/", page).test().get("/").send_blocking();
/// let (status, fields) = &response.interim()[0];
/// assert_eq!(status.as_u16(), 103);
/// assert_eq!(fields["link"], "</style.css>; rel=preload; as=style");
/// ```
#[doc(alias = "early_hints")]
#[doc(alias = "informational")]
#[doc(alias = "103")]
pub struct Interim(RequestHead);

impl Interim {
    /// Sends a 103 (Early Hints) with these `Link` values. The client may request the linked
    /// resources before it has the response.
    ///
    /// # Errors
    /// If a link is not a valid field value; otherwise as for [`Interim::send`].
    pub fn early_hints<L>(&self, links: impl IntoIterator<Item = L>) -> Result<(), InterimError>
    where
        L: TryInto<HeaderValue>,
    {
        let mut fields = HeaderMap::new();
        for link in links {
            let link = link.try_into().map_err(|_| InterimError::InvalidLink)?;
            fields.append(LINK, link);
        }
        // Older versions of `http` have no constant for 103.
        let early_hints = StatusCode::from_u16(103).expect("103 is a valid status code");
        self.send(early_hints, fields)
    }

    /// Sends an interim response with a status from 102 to 199. The server itself sends 100, and a
    /// 101 is a final response. Fields that control the connection or the message framing are
    /// removed.
    ///
    /// # Errors
    /// If the status is outside this range, the response has begun, or eight interim responses are
    /// already queued.
    pub fn send(&self, status: StatusCode, fields: HeaderMap) -> Result<(), InterimError> {
        if !(102..200).contains(&status.as_u16()) {
            return Err(InterimError::NotInterim(status));
        }
        self.0.pending_interims().push(status, fields)
    }
}

impl FromRequestParts for Interim {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        // Without this, the server does not look for interim responses.
        parts.head.pending_interims().mark_used();
        Ok(Self(parts.head.share()))
    }
}

impl fmt::Debug for Interim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Interim")
    }
}
