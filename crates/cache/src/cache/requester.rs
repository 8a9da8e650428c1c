//! What the cache reads from a request: its identity, route and header fields.

use http::Method;
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::private_response::{IdentitySources, PrivateResponse};
use peregrine_web::{Parts, RequestHead};

/// A request as the cache sees it.
#[derive(Clone, Copy)]
pub(crate) struct Requester<'h> {
    pub(crate) head: &'h RequestHead,
    pub(crate) connection: &'h ConnectionInfo,
    /// The kinds of identities read so far: see [`PrivateResponse`].
    pub(crate) sources: IdentitySources,
}

impl<'h> Requester<'h> {
    pub(crate) fn from_parts(parts: &'h Parts) -> Self {
        let sources = PrivateResponse::watch(parts).sources();
        Self { head: &parts.head, connection: parts.connection_untracked(), sources }
    }

    /// Whether the client was identified, or sent an identity that some code has read.
    pub(crate) fn is_identified(&self) -> bool {
        self.sources.are_client_specific(self.head, self.connection)
    }

    /// Whether the client has credentials. RFC 9111, section 3.5, names `Authorization`; the same
    /// applies to similar fields. The usual field for API keys counts even before a handler reads
    /// it, so that no stored response is sent to its client.
    pub(crate) fn has_credentials(&self) -> bool {
        let has = |name: &&str| self.head.header_bytes_untracked(name).is_some();
        self.is_identified() || ["authorization", "x-api-key"].iter().any(has)
    }

    /// Whether the response may be specific to the client.
    pub(crate) fn is_private(&self) -> bool {
        self.has_credentials() || self.head.header_bytes_untracked("cookie").is_some()
    }

    /// Identifies the route of the request and, inside a mounted application, the path below the
    /// mount. Requests with the same target but different route keys must not share a response.
    pub(crate) fn route_key(&self) -> Vec<u8> {
        let mut key = self.head.routes_hash().to_be_bytes().to_vec();
        if self.head.path() != self.head.original_path() {
            key.extend_from_slice(self.head.path().as_bytes());
        }
        key
    }

    /// Whether this is a HEAD request whose response equals that to GET without its content (RFC
    /// 9110, section 9.3.2), even if HEAD has a separate route. With guards, the route that GET
    /// would reach is unknown.
    pub(crate) fn is_plain_head(&self) -> bool {
        let is_guarded =
            self.head.has_opaque_guards() || !self.head.guard_header_names().is_empty();
        self.head.method() == Method::HEAD && !is_guarded
    }

    /// The values of a request field, encoded so that different values never collide: a handler may
    /// distinguish values that look alike, and a client must not get a response caused by another
    /// client's value.
    pub(crate) fn field_values(&self, name: &str) -> Vec<u8> {
        // RFC 9111 §4.1: in fields known to be lists, whitespace between elements is insignificant.
        let is_list = name.starts_with("accept");
        let mut encoded = Vec::new();
        for value in self.head.header_values_untracked(name) {
            if is_list && !value.contains(&b'"') {
                for (index, element) in value.split(|byte| *byte == b',').enumerate() {
                    encoded.extend_from_slice(if index > 0 { b"," } else { b"" });
                    encoded.extend_from_slice(element.trim_ascii());
                }
            } else {
                encoded.extend_from_slice(value);
            }
            // A newline, which no value contains, ends each value, so that an empty field differs
            // from an absent one.
            encoded.push(b'\n');
        }
        encoded
    }
}
