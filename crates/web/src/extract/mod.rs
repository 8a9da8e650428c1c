//! Extractors: typed values from requests.
//!
//! The arguments of a handler are extractors. Extractors that do not read the body
//! ([`FromRequestParts`]) can be in any position; one that reads it ([`FromRequest`]) comes last.
//! If an extractor rejects the request, the handler does not run, and the client receives the
//! extractor's [`Problem`]. An argument `Option<T>` accepts a missing value, and `Result<T,
//! Problem>` accepts any failure.

pub(crate) mod accept;
mod body;
mod client_ip;
mod connection;
pub(crate) mod content_type;
mod deref;
mod finite;
mod form;
#[cfg(any(
    feature = "cbor",
    feature = "fast-json",
    feature = "message-pack",
    feature = "protobuf"
))]
mod formats;
pub(crate) mod interim;
mod json;
pub(crate) mod ndjson;
mod path;
#[cfg(feature = "conditions")]
pub(crate) mod precondition;
mod query;
mod request_head;
mod state;
#[cfg(test)]
pub(crate) mod test_support;
#[cfg(feature = "typed-headers")]
mod typed_header;

#[cfg(any(feature = "cbor", feature = "message-pack", feature = "protobuf"))]
pub(crate) use body::read_body;
pub(crate) use json::json_from_line;
#[cfg(feature = "fast-json")]
pub(crate) use json::json_with_parser;

pub use crate::http::body::limits::DEFAULT_BODY_BYTES_MAX;
pub use crate::http::connection::{ClientIdentity, ConnectionInfo, TlsInfo};
#[cfg(feature = "cookies")]
pub use crate::http::cookies::Cookies;
#[cfg(feature = "cookies-private")]
pub use crate::http::cookies::PrivateCookies;
#[cfg(feature = "cookies-signed")]
pub use crate::http::cookies::SignedCookies;
pub use crate::http::from_request::{FromRequest, FromRequestParts, ViaParts, ViaRequest};
pub use crate::http::interim::InterimError;
pub use crate::http::requirements::RouteRequirements;
pub use crate::http::response::content::{Form, Json};
pub use accept::{Accept, Negotiation};
#[doc(hidden)]
pub use body::optional_from_body;
pub use client_ip::ClientIp;
pub use connection::PeerAddr;
#[cfg(feature = "cbor")]
pub use formats::Cbor;
#[cfg(feature = "message-pack")]
pub use formats::MessagePack;
#[cfg(feature = "protobuf")]
pub use formats::Protobuf;
#[cfg(feature = "fast-json")]
pub use formats::SimdJson;
pub use interim::Interim;
#[doc(hidden)]
pub use json::{field_problem, json_with};
pub use ndjson::NdJson;
pub use path::Path;
#[cfg(feature = "conditions")]
pub use precondition::Preconditions;
pub use query::{Query, RawQuery};
pub use request_head::{MatchedPath, OriginalPath};
pub use state::{Extension, State, StateRef};
#[cfg(feature = "typed-headers")]
pub use typed_header::TypedHeader;

use crate::http::panic::catch_subscriber_panic;
use crate::http::problem::Problem;
use http::StatusCode;
use std::borrow::Cow;

/// Truncates text from a client, so that a problem can include it.
fn truncate(text: &str) -> Cow<'_, str> {
    const BYTES_MAX: usize = 200;
    if text.len() <= BYTES_MAX {
        return text.into();
    }
    format!("{}...", &text[..text.floor_char_boundary(BYTES_MAX)]).into()
}

/// Logs why the server cannot give a handler a value that it needs, and returns the 500 for the
/// client. `cause` includes advice for the developer, so it is only logged: the client cannot act
/// on it, and it would disclose internals of the server.
#[cold]
pub(crate) fn misconfiguration_problem(kind: &'static str, cause: &str) -> Problem {
    catch_subscriber_panic(|| tracing::error!(target: "peregrine", kind, "{cause}"));
    let detail = "the server lacks something that it needs for this request; its log says what";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, kind, detail)
}
