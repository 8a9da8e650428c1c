//! The ID of the last event that a reader received before it reconnected.

use crate::extract::FromRequestParts;
use crate::http::problem::Problem;
use crate::http::request::Parts;
use http::StatusCode;
use std::str::FromStr;

const HEADER: &str = "last-event-id";

/// The id of the last event that the reader received, from `Last-Event-ID`. A reader that connects
/// for the first time sends none, so handlers take an `Option`.
///
/// An id that does not parse as `T` is rejected with a 400, after which a browser's `EventSource`
/// does not reconnect. `LastEventId<String>` accepts any id.
///
/// ```
/// use peregrine::prelude::*;
///
/// async fn news(last: Option<LastEventId<u64>>) -> String {
///     let next = last.map_or(0, |LastEventId(last)| last + 1);
///     format!("from {next} on")
/// }
///
/// let client = App::new().get("/news", news).test();
/// assert_eq!(client.get("/news").send_blocking().text(), "from 0 on");
/// let resumed = client.get("/news").header("last-event-id", "7").send_blocking();
/// assert_eq!(resumed.text(), "from 8 on");
/// assert_eq!(client.get("/news").header("last-event-id", "x").send_blocking().status(), 400);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastEventId<T = String>(pub T);

impl<T: FromStr> FromRequestParts for LastEventId<T> {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        parse(parts)?.ok_or_else(|| {
            Problem::new(
                StatusCode::BAD_REQUEST,
                "missing-header",
                format!("the request needs the header field `{HEADER}`"),
            )
            .with_member("header", HEADER)
        })
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        parse(parts)
    }
}

fn parse<T: FromStr>(parts: &Parts) -> Result<Option<LastEventId<T>>, Problem> {
    // A reader without an id sends no field; some libraries send an empty one.
    let Some(value) = parts.head.header_bytes(HEADER).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let id = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    id.map(|id| Some(LastEventId(id))).ok_or_else(|| {
        Problem::new(
            StatusCode::BAD_REQUEST,
            "invalid-header",
            format!("the header field `{HEADER}` is not an event id of this stream"),
        )
        .with_member("header", HEADER)
    })
}
