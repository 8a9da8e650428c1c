//! The form of a request: hyper is given that of HTTP/1.1, and that of HTTP/2 on a connection that speaks it.

use crate::body::Sent;
use crate::pool::Sender;
use crate::upstreams::Upstream;
use http::header::{CONNECTION, HOST, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderName, HeaderValue, Request, Uri};

/// What a request had in the form of HTTP/1.1, and lacks in that of HTTP/2.
#[derive(Default)]
pub(crate) struct Plain(Option<(Uri, Vec<(HeaderName, HeaderValue)>)>);

/// Gives a request the form that a connection wants. `None`: there is no such form, since the host is none.
pub(crate) fn shape(
    request: &mut Request<Sent>,
    sender: &Sender,
    upstream: &Upstream,
) -> Option<Plain> {
    if !sender.is_http2() {
        return Some(Plain::default());
    }
    // RFC 9113 §8.3.1: Host is a part of the target; and §8.2.2: there are no fields of one connection.
    let host = request.headers().get(HOST)?.to_str().ok()?.parse::<Authority>().ok()?;
    let mut parts = request.uri().clone().into_parts();
    parts.scheme = Some(if upstream.is_secure() { Scheme::HTTPS } else { Scheme::HTTP });
    parts.authority = Some(host);
    parts.path_and_query.get_or_insert_with(|| PathAndQuery::from_static("/"));
    let uri = std::mem::replace(request.uri_mut(), Uri::from_parts(parts).ok()?);
    let mut fields = Vec::new();
    for name in [HOST, CONNECTION, TRANSFER_ENCODING, UPGRADE] {
        fields.extend(request.headers_mut().remove(&name).map(|value| (name, value)));
    }
    Some(Plain(Some((uri, fields))))
}

impl Plain {
    /// Makes of a request that was not sent what it was before.
    pub(crate) fn restore(self, request: &mut Request<Sent>) {
        let Some((uri, fields)) = self.0 else { return };
        *request.uri_mut() = uri;
        request.headers_mut().extend(fields);
    }
}
