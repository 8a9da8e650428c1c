//! Converts a request for hyper to the form of HTTP/1.1 or HTTP/2, as its connection requires.

use crate::body::UpstreamRequestBody;
use crate::pool::UpstreamConnection;
use crate::upstreams::Upstream;
use http::header::{CONNECTION, HOST, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderName, HeaderValue, Request, Uri};

/// The parts of a request that exist only in the HTTP/1.1 form; `None` if the request still has it.
#[derive(Default)]
pub(crate) struct Http1Form(Option<(Uri, Vec<(HeaderName, HeaderValue)>)>);

/// Converts a request to the form that a connection requires. `None` if the host is invalid.
pub(crate) fn convert_to_version(
    request: &mut Request<UpstreamRequestBody>,
    sender: &UpstreamConnection,
    upstream: &Upstream,
) -> Option<Http1Form> {
    if !sender.is_http2() {
        return Some(Http1Form::default());
    }
    // RFC 9113 §8.3.1: Host is part of the target; and §8.2.2: there are no connection-specific
    // fields.
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
    Some(Http1Form(Some((uri, fields))))
}

impl Http1Form {
    /// Undoes [`convert_to_version`] for a request that was not sent.
    pub(crate) fn restore(self, request: &mut Request<UpstreamRequestBody>) {
        let Some((uri, fields)) = self.0 else { return };
        *request.uri_mut() = uri;
        request.headers_mut().extend(fields);
    }
}
