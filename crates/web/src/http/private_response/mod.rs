//! Tracks which responses depend on the identity of the client.

use crate::http::connection::{ConnectionInfo, ProxyProtocolTls};
use crate::http::head::{IdentityReads, RequestHead};
use crate::http::request::Parts;
use crate::http::response::Response;
use http::header::CACHE_CONTROL;
use http::{HeaderMap, HeaderValue};
use peregrine_proto::{FieldIndex, KnownField};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Marks responses that depend on the identity of the client.
///
/// Framework code that reads an identity marks the request: the accessors of [`RequestHead`], for
/// the fields `Cookie`, `Authorization` and `X-Api-Key`, and the extractors and middleware that
/// identify the client by a session, an API key or a client certificate. A request with an identity
/// that is passed to a mounted tower service is marked too. The response to a marked request is
/// sent with `Cache-Control: private`, and `Cache` does not store it, unless the handler sends
/// `public` or `s-maxage`. If your code identifies clients by another field, it must mark the
/// request:
///
/// ```
/// use peregrine::prelude::*;
/// use peregrine::web::private_response::PrivateResponse;
///
/// #[derive(Clone)]
/// struct Customer(String);
///
/// async fn find_customer(mut request: Request, next: Next<'_>) -> Response {
///     if let Some(name) = request.header("x-customer").map(str::to_owned) {
///         request.parts.extensions_mut().insert(Customer(name));
///         PrivateResponse::mark(&request.parts);
///     }
///     next.run(request).await
/// }
/// ```
#[doc(alias = "Cache-Control")]
#[doc(alias = "private")]
#[derive(Clone, Copy, Debug)]
pub enum PrivateResponse {}

/// The part of a request that identifies its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IdentitySource {
    /// The `Cookie` field.
    Cookie,
    /// `Authorization`, `X-Api-Key` or the query. Caches and idempotency keys distinguish clients
    /// by these values.
    Credentials,
    /// The connection: a client certificate, presented to this server or to the proxy in front of
    /// it.
    Connection,
    /// Anything else.
    Other,
}

/// The client was identified by its credentials, in whichever part of the request they are.
const IDENTIFIED: u8 = 1 << 4;
/// The response must be sent as private, so that shared caches downstream do not store it.
const SENT_AS_PRIVATE: u8 = 1 << 5;
/// The sources that code outside this project can read without marking the request.
const UNMARKED_SOURCES: [IdentitySource; 3] =
    [IdentitySource::Cookie, IdentitySource::Credentials, IdentitySource::Connection];
const UNMARKED_SOURCE_BITS: u8 = IdentitySource::Cookie.bit()
    | IdentitySource::Credentials.bit()
    | IdentitySource::Connection.bit();
const API_KEY: &[u8] = b"x-api-key";
const IDENTITY_FIELDS: [&str; 3] = ["cookie", "authorization", "x-api-key"];

/// The marks of the request outside the mounted service, and a hash of its client's identity.
#[derive(Clone, Copy, Debug)]
struct ExportedMarks {
    marks: u8,
    identity: Option<u64>,
}

/// A hash of every value that may identify the client; `None` if the request has no such value.
fn identity_of(head: &RequestHead, connection: &ConnectionInfo) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    let mut has_identity = false;
    let mut add = |name: &str, value: &[u8]| {
        has_identity = true;
        (name, value).hash(&mut hasher);
    };
    for name in IDENTITY_FIELDS {
        head.peek_header_values(name).for_each(|value| add(name, value));
    }
    if let Some(query) = head.query() {
        add("query", query.as_bytes());
    }
    if let Some(client) = connection.client_identity() {
        add("certificate", &client.fingerprint);
    }
    if identifies_client(connection) {
        let proxied = connection.proxy_protocol.as_ref().and_then(|proxy| proxy.tls.as_ref());
        let certificate = proxied.map(ProxyProtocolTls::client_bytes).unwrap_or_default();
        add("proxied certificate", &certificate);
    }
    has_identity.then(|| hasher.finish())
}

impl IdentitySource {
    const fn bit(self) -> u8 {
        match self {
            Self::Cookie => 1,
            Self::Credentials => 1 << 1,
            Self::Connection => 1 << 2,
            Self::Other => 1 << 3,
        }
    }

    /// Whether the request carries this identity.
    fn is_present(self, head: &RequestHead, connection: &ConnectionInfo) -> bool {
        match self {
            Self::Connection => identifies_client(connection),
            source => source.is_in_headers(head),
        }
    }

    /// Whether a field of the request carries this identity. Costs a few bit tests unless the
    /// request has fields that the parser does not know by name.
    fn is_in_headers(self, head: &RequestHead) -> bool {
        let index = head.index();
        let is_api_key = |field: &FieldIndex| {
            field.known == KnownField::Other
                && field.name.len() == API_KEY.len()
                && head.slice(field.name).eq_ignore_ascii_case(API_KEY)
        };
        match self {
            Self::Cookie => index.contains(KnownField::Cookie),
            Self::Credentials => {
                index.contains(KnownField::Authorization)
                    || (index.contains(KnownField::Other) && index.fields.iter().any(is_api_key))
            }
            Self::Connection | Self::Other => false,
        }
    }
}

/// Whether the connection itself identifies the client.
fn identifies_client(connection: &ConnectionInfo) -> bool {
    let proxied = connection.proxy_protocol.as_ref().and_then(|proxy| proxy.tls.as_ref());
    connection.client_identity().is_some()
        || proxied.is_some_and(|tls| tls.has_certificate || tls.common_name.is_some())
}

impl PrivateResponse {
    /// Marks the response to this request as dependent on the client's identity.
    pub fn mark(parts: &Parts) {
        Self::mark_source(&parts.head, IdentitySource::Other);
    }

    /// Marks the response as dependent on `Authorization`, `X-Api-Key` or the query, by which
    /// caches and idempotency keys distinguish clients.
    pub fn mark_credentials(parts: &Parts) {
        Self::mark_source(&parts.head, IdentitySource::Credentials);
        parts.head.identity_reads().mark(IDENTIFIED);
    }

    /// Marks the response to the request with this head as dependent on an identity.
    pub fn mark_source(head: &RequestHead, source: IdentitySource) {
        head.identity_reads().mark(source.bit() | SENT_AS_PRIVATE);
    }

    /// Marks the response as dependent on all fields of the request. Most code that lists the
    /// fields does not use those that identify the client, so the response is sent as private only
    /// if the request has such a field.
    pub(crate) fn mark_all_headers(head: &RequestHead) {
        for source in [IdentitySource::Cookie, IdentitySource::Credentials] {
            if source.is_in_headers(head) {
                Self::mark_source(head, source);
            } else {
                head.identity_reads().mark(source.bit());
            }
        }
    }

    /// Marks the response as dependent on the client identity of the connection. Most code that
    /// reads the connection uses only its address, so the response is sent as private only if the
    /// connection identifies the client.
    pub(crate) fn mark_connection(head: &RequestHead, connection: &ConnectionInfo) {
        if identifies_client(connection) {
            Self::mark_source(head, IdentitySource::Connection);
        } else {
            head.identity_reads().mark(IdentitySource::Connection.bit());
        }
    }

    /// Marks a request that is passed to code that reads identities without marking them, such as a
    /// tower layer or an upstream server. `Cache` then stores its response only for clients without
    /// an identity. The fields of the response do not change.
    pub fn mark_forwarded(parts: &Parts) {
        parts.head.identity_reads().mark(UNMARKED_SOURCE_BITS);
    }

    /// As [`PrivateResponse::mark_forwarded`], for a service that produces the response instead of
    /// a handler, such as an axum `Router`. If the request carries an identity, the response is
    /// also sent as private.
    pub fn mark_delegated(parts: &Parts) {
        Self::mark_forwarded(parts);
        if Self::carries_identity(parts) {
            parts.head.identity_reads().mark(SENT_AS_PRIVATE);
        }
    }

    /// Passes the marks of a request, and a hash of its client's identity, to the applications
    /// inside a mounted service.
    #[doc(hidden)]
    pub fn export_marks(parts: &mut Parts) {
        let marks = parts.head.identity_reads().bits();
        let identity = identity_of(&parts.head, parts.peek_connection());
        parts.extensions_mut().insert(ExportedMarks { marks, identity });
    }

    /// Marks the request of an application inside a mounted service. The enclosing code may have
    /// read an identity, and may have removed or replaced it afterwards. Without exported marks,
    /// because the server is another one or middleware has dropped the extensions, nothing is known
    /// about that, and the response counts as specific to the client. Its fields do not change.
    #[doc(hidden)]
    pub fn import_marks(
        head: &RequestHead,
        connection: &ConnectionInfo,
        extensions: &http::Extensions,
    ) {
        head.identity_reads().mark(UNMARKED_SOURCE_BITS);
        if let Some(outer) = extensions.get::<ExportedMarks>() {
            head.identity_reads().mark(outer.marks);
            if outer.identity.is_some() && outer.identity != identity_of(head, connection) {
                Self::mark_source(head, IdentitySource::Other);
            }
        } else {
            head.identity_reads().mark(IdentitySource::Other.bit());
        }
    }

    /// Marks a request whose head was changed by code that reads identities without marking them.
    /// That code may have read a value before it removed or replaced it.
    #[doc(hidden)]
    pub fn mark_changed(head: &RequestHead, origin: &RequestHead) {
        let is_changed = |name: &&str| {
            let mut original = origin.peek_header_values(name).peekable();
            original.peek().is_some() && !original.eq(head.peek_header_values(name))
        };
        let has_other_query = origin.query().is_some() && origin.query() != head.query();
        if has_other_query || IDENTITY_FIELDS.iter().any(is_changed) {
            Self::mark_source(head, IdentitySource::Other);
        }
    }

    /// Whether the request carries cookies, credentials or a client certificate, valid or not. This
    /// does not mark the request.
    #[must_use]
    pub fn carries_identity(parts: &Parts) -> bool {
        UNMARKED_SOURCES
            .iter()
            .any(|source| source.is_present(&parts.head, parts.peek_connection()))
    }

    /// Whether the response is marked, so far, as dependent on an identity of the request.
    #[must_use]
    pub fn is_marked(parts: &Parts) -> bool {
        Self::watch(parts).sources().are_client_specific(&parts.head, parts.peek_connection())
    }

    /// Returns a watch that also sees later marks, even if the request was moved or replaced.
    #[must_use]
    pub fn watch(parts: &Parts) -> PrivateResponseWatch {
        Self::watch_head(&parts.head)
    }

    /// As [`PrivateResponse::watch`], for a head.
    #[must_use]
    pub fn watch_head(head: &RequestHead) -> PrivateResponseWatch {
        PrivateResponseWatch(head.identity_reads().clone())
    }

    /// Completes the fields of a response for caches: adds `Vary` for the guards by which the route
    /// was selected, and sends a response that depends on an identity as private, unless the
    /// handler has set a directive about storage.
    #[doc(hidden)]
    pub fn finish_response(head: &RequestHead, response: &mut Response) {
        head.vary_by_guards(response);
        if head.identity_reads().bits() & SENT_AS_PRIVATE > 0 && !response.status.is_informational()
        {
            send_as_private(response);
        }
    }
}

/// RFC 9111 §5.2.2.7: a shared cache must not store a private response. If the handler has set a
/// directive that determines which caches may store the response, the fields do not change.
#[cold]
fn send_as_private(response: &mut Response) {
    let is_storage_directive = |directive: &[u8]| {
        let name = directive.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii();
        let storage_directives: [&[u8]; 4] = [b"private", b"public", b"no-store", b"s-maxage"];
        storage_directives.iter().any(|known| name.eq_ignore_ascii_case(known))
    };
    let has_storage_directive = response.headers.iter().any(|(name, value)| {
        *name == CACHE_CONTROL
            && value.as_bytes().split(|byte| *byte == b',').any(is_storage_directive)
    });
    if !has_storage_directive {
        response.headers.append(CACHE_CONTROL, HeaderValue::from_static("private"));
    }
}

/// Observes which identities the response to a request depends on.
#[derive(Clone, Debug)]
pub struct PrivateResponseWatch(IdentityReads);

impl PrivateResponseWatch {
    /// The identities that the response depends on so far.
    #[must_use]
    pub fn sources(&self) -> IdentitySources {
        IdentitySources(self.0.bits())
    }

    /// Adds the marks of a response that was made elsewhere.
    pub fn mark(&self, sources: IdentitySources) {
        self.0.mark(sources.0);
    }
}

/// The identities that a response depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdentitySources(u8);

impl IdentitySources {
    /// Whether the response is specific to the client of this request. It is if the client was
    /// identified by its credentials or by an [`IdentitySource::Other`], or if the request carries
    /// an identity that was read.
    #[must_use]
    pub fn are_client_specific(self, head: &RequestHead, connection: &ConnectionInfo) -> bool {
        self.0 & IDENTIFIED > 0
            || self.has(IdentitySource::Other)
            || self.are_present(head, connection)
    }

    /// Whether the request carries an identity in one of these sources. If so, a response that was
    /// made for a client without an identity is not valid for this request.
    #[must_use]
    pub fn are_present(self, head: &RequestHead, connection: &ConnectionInfo) -> bool {
        UNMARKED_SOURCES
            .iter()
            .any(|source| self.has(*source) && source.is_present(head, connection))
    }

    /// Applies these marks to another request, to which a cache sends the same response.
    pub fn mark(self, head: &RequestHead) {
        head.identity_reads().mark(self.0);
    }

    /// Whether the response depends on `source`.
    #[must_use]
    pub fn has(self, source: IdentitySource) -> bool {
        self.0 & source.bit() > 0
    }
}

/// Accessors of fields that mark identity reads.
impl RequestHead {
    /// The value of the first field called `name`, in any case. Reading `Cookie`, `Authorization`
    /// or `X-Api-Key` marks the response as specific to this client ([`PrivateResponse`]).
    #[doc(alias = "field")]
    #[doc(alias = "get")]
    #[must_use]
    pub fn header_bytes<'h>(&'h self, name: &str) -> Option<&'h [u8]> {
        self.mark_identity(name);
        self.peek_header_bytes(name)
    }

    /// All values of fields called `name`, in any case, in order. Reading `Cookie`, `Authorization`
    /// or `X-Api-Key` marks the response as specific to this client ([`PrivateResponse`]).
    #[doc(alias = "get_all")]
    pub fn header_values<'h>(&'h self, name: &'h str) -> impl Iterator<Item = &'h [u8]> + 'h {
        self.mark_identity(name);
        self.peek_header_values(name)
    }

    /// All fields in order, with names as they were sent. If the request has an identity field,
    /// this marks the response as specific to this client ([`PrivateResponse`]).
    pub fn headers(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        PrivateResponse::mark_all_headers(self);
        self.peek_headers()
    }

    /// All fields as a [`HeaderMap`]. Allocates; the other accessors do not. Marks the response as
    /// [`RequestHead::headers`] does.
    #[must_use]
    pub fn to_header_map(&self) -> HeaderMap {
        PrivateResponse::mark_all_headers(self);
        self.peek_header_map()
    }

    /// Removes all fields with one of these names, in any case, as if they had not been sent; only
    /// [`RequestHead::as_bytes`] still contains them. If an identity in such a field was read
    /// before, the response stays specific to this client ([`PrivateResponse`]).
    pub fn remove_fields(&mut self, names: &[&str]) {
        for name in names {
            if source_of(name).is_some_and(|source| self.is_identity_read(source))
                && self.peek_header_bytes(name).is_some()
            {
                PrivateResponse::mark_source(self, IdentitySource::Other);
            }
        }
        self.omit_headers(names);
    }

    /// Marks the response as dependent on the field `name` if that field identifies clients.
    #[inline]
    fn mark_identity(&self, name: &str) {
        if let Some(source) = source_of(name) {
            PrivateResponse::mark_source(self, source);
        }
    }

    fn is_identity_read(&self, source: IdentitySource) -> bool {
        self.identity_reads().bits() & source.bit() > 0
    }

    /// Shares the marks of `origin`, a head of the same request.
    pub(crate) fn share_identity_reads(&mut self, origin: &Self) {
        self.set_identity_reads(origin.identity_reads().clone());
    }
}

/// The identity source that corresponds to the field with this name.
#[inline]
fn source_of(name: &str) -> Option<IdentitySource> {
    match KnownField::from_name(name.as_bytes()) {
        KnownField::Cookie => Some(IdentitySource::Cookie),
        KnownField::Authorization => Some(IdentitySource::Credentials),
        KnownField::Other if name.as_bytes().eq_ignore_ascii_case(API_KEY) => {
            Some(IdentitySource::Credentials)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
