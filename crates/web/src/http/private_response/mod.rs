//! Tracks which responses depend on the identity of the client.
//!
//! Each request carries a set of marks: one bit for each [`IdentitySource`] on which its response
//! depends so far, one for a client that was identified by its credentials, and one for a response
//! that must be sent as private. Code that reads an identity sets the marks. `Cache` uses them to
//! decide for which clients a stored response is valid. All copies of a request's head share the
//! marks.

use crate::http::connection::{ConnectionInfo, ProxyProtocolTls};
use crate::http::head::{IdentityReads, NestedMarks, RequestHead};
use crate::http::request::Parts;
use crate::http::response::Response;
use http::header::CACHE_CONTROL;
use http::{HeaderMap, HeaderValue};
use peregrine_proto::{FieldIndex, KnownField};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Marks responses that depend on the identity of the client.
///
/// A mark records, on the request, that its response depends on the client. Framework code that
/// reads an identity sets it: the accessors of [`RequestHead`], for the fields `Cookie`,
/// `Authorization` and `X-Api-Key`, and the extractors and middleware that identify the client by a
/// session, an API key or a client certificate. A request with an identity that is passed to a
/// mounted tower service is marked too. The response to a marked request is sent with
/// `Cache-Control: private`, and `Cache` does not store it, unless the handler sends `public` or
/// `s-maxage`. If your code identifies clients by another field, it must set the mark itself:
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

/// The client was identified by its credentials. They may be in the query, where
/// [`IdentitySource::is_present`] does not look, so this bit alone makes the response specific to
/// the client.
const IDENTIFIED: u8 = 1 << 4;
/// The response must be sent as private, so that shared caches downstream do not store it.
const SENT_AS_PRIVATE: u8 = 1 << 5;
/// The sources that this module can find in a request: all except [`IdentitySource::Other`]. Code
/// outside this project, such as a tower layer, can read them without setting a mark.
const DETECTABLE_SOURCES: [IdentitySource; 3] =
    [IdentitySource::Cookie, IdentitySource::Credentials, IdentitySource::Connection];
const DETECTABLE_SOURCE_BITS: u8 = IdentitySource::Cookie.bit()
    | IdentitySource::Credentials.bit()
    | IdentitySource::Connection.bit();
const API_KEY: &[u8] = b"x-api-key";
const IDENTITY_FIELDS: [&str; 3] = ["cookie", "authorization", "x-api-key"];

/// The marks of a request before it is passed to a mounted service, the hash of its client's
/// identity at that point, and the marks that an application inside the service sets.
#[derive(Clone, Debug)]
struct ExportedMarks {
    marks: u8,
    identity_hash: Option<u64>,
    nested: NestedMarks,
}

/// Hashes every value that may identify the client; `None` if the request has no such value. The
/// authority counts, because it may name the tenant of an application.
fn hash_identity(head: &RequestHead, connection: &ConnectionInfo) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    let mut has_identity = false;
    let mut add = |name: &str, value: &[u8]| {
        has_identity = true;
        (name, value).hash(&mut hasher);
    };
    for name in IDENTITY_FIELDS {
        head.header_values_untracked(name).for_each(|value| add(name, value));
    }
    if let Some(query) = head.query() {
        add("query", query.as_bytes());
    }
    if !head.authority().is_empty() {
        add("authority", head.authority().as_bytes());
    }
    if let Some(client) = connection.client_identity() {
        add("certificate", &client.fingerprint);
    }
    if identifies_client(connection) {
        // Empty if the client presented its certificate to this server.
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

    /// Whether the request carries an identity from this source.
    fn is_present(self, head: &RequestHead, connection: &ConnectionInfo) -> bool {
        match self {
            Self::Connection => identifies_client(connection),
            source => source.is_in_headers(head),
        }
    }

    /// Whether a header field of the request carries an identity from this source. Costs a few bit
    /// tests unless the request has fields that the parser does not know by name.
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

    /// Marks the response as specific to the client that was identified by its credentials:
    /// `Authorization`, `X-Api-Key` or the query. Caches and idempotency keys distinguish clients
    /// by these values.
    pub fn mark_credentials(parts: &Parts) {
        Self::mark_source(&parts.head, IdentitySource::Credentials);
        parts.head.identity_reads().mark(IDENTIFIED);
    }

    /// Marks the response to the request with this head as dependent on `source`.
    pub fn mark_source(head: &RequestHead, source: IdentitySource) {
        head.identity_reads().mark(source.bit() | SENT_AS_PRIVATE);
    }

    /// Marks the response as dependent on all fields of the request. The response is sent as
    /// private only if the request has a field that identifies the client, because most code that
    /// lists the fields does not use such a field.
    pub(crate) fn mark_all_headers(head: &RequestHead) {
        for source in [IdentitySource::Cookie, IdentitySource::Credentials] {
            if source.is_in_headers(head) {
                Self::mark_source(head, source);
            } else {
                head.identity_reads().mark(source.bit());
            }
        }
    }

    /// Marks the response as dependent on the client identity of the connection. The response is
    /// sent as private only if the connection identifies the client, because most code that reads
    /// the connection uses only its address.
    pub(crate) fn mark_connection(head: &RequestHead, connection: &ConnectionInfo) {
        if identifies_client(connection) {
            Self::mark_source(head, IdentitySource::Connection);
        } else {
            head.identity_reads().mark(IdentitySource::Connection.bit());
        }
    }

    /// Marks a request that is forwarded to code that may read any identity but sets no marks, such
    /// as an upstream server. `Cache` then stores the response only if the request has no identity.
    /// The `Cache-Control` of the response does not change, because that code determines it.
    pub fn mark_forwarded(parts: &Parts) {
        parts.head.identity_reads().mark(DETECTABLE_SOURCE_BITS);
    }

    /// As [`PrivateResponse::mark_forwarded`], for a request that is delegated to code in this
    /// process that does not use this crate's accessors, such as a tower layer or an axum `Router`.
    /// If the request carries an identity, the response is also sent as private.
    pub fn mark_delegated(parts: &Parts) {
        Self::mark_forwarded(parts);
        if Self::carries_identity(parts) {
            parts.head.identity_reads().mark(SENT_AS_PRIVATE);
        }
    }

    /// Stores the marks of a request to a mounted service and a hash of its client's identity in
    /// the extensions. If that service contains an application of this crate, the application reads
    /// them with [`PrivateResponse::import_marks`], and its marks count for this request too.
    #[doc(hidden)]
    pub fn export_marks(parts: &mut Parts) {
        let reads = parts.head.identity_reads();
        let (marks, nested) = (reads.bits(), reads.nested());
        let identity_hash = hash_identity(&parts.head, parts.connection_untracked());
        parts.extensions_mut().insert(ExportedMarks { marks, identity_hash, nested });
    }

    /// Marks a request that an application received through a mounted service. The code around the
    /// application may have read an identity and then removed or replaced it; what
    /// [`PrivateResponse::export_marks`] stored in the extensions shows that. If it is missing,
    /// because the outer server is not Peregrine or because middleware dropped the extensions, the
    /// response counts as specific to the client, but its `Cache-Control` does not change.
    #[doc(hidden)]
    pub fn import_marks(
        head: &RequestHead,
        connection: &ConnectionInfo,
        extensions: &http::Extensions,
    ) {
        head.identity_reads().mark(DETECTABLE_SOURCE_BITS);
        if let Some(outer) = extensions.get::<ExportedMarks>() {
            head.identity_reads().forward_to(&outer.nested);
            head.identity_reads().mark(outer.marks);
            if outer.identity_hash.is_some()
                && outer.identity_hash != hash_identity(head, connection)
            {
                Self::mark_source(head, IdentitySource::Other);
            }
        } else {
            head.identity_reads().mark(IdentitySource::Other.bit());
        }
    }

    /// Marks a request if code that sets no marks has changed or removed an identity in its head,
    /// compared with `original`. That code may have read the value before.
    #[doc(hidden)]
    pub fn mark_changed(head: &RequestHead, original: &RequestHead) {
        let is_changed = |name: &&str| {
            let mut values = original.header_values_untracked(name).peekable();
            values.peek().is_some() && !values.eq(head.header_values_untracked(name))
        };
        let has_other_query = original.query().is_some() && original.query() != head.query();
        let has_other_authority = original.authority() != head.authority();
        if has_other_query || has_other_authority || IDENTITY_FIELDS.iter().any(is_changed) {
            Self::mark_source(head, IdentitySource::Other);
        }
    }

    /// Whether the request carries cookies, credentials or a client certificate, whether or not
    /// they are valid. Does not set a mark.
    #[must_use]
    pub fn carries_identity(parts: &Parts) -> bool {
        DETECTABLE_SOURCES
            .iter()
            .any(|source| source.is_present(&parts.head, parts.connection_untracked()))
    }

    /// Whether the marks so far make the response specific to the client of this request.
    #[must_use]
    pub fn is_marked(parts: &Parts) -> bool {
        Self::watch(parts).sources().are_client_specific(&parts.head, parts.connection_untracked())
    }

    /// Returns a handle to the marks of this request. It also sees marks that are set later, after
    /// the request was moved or its head replaced.
    #[must_use]
    pub fn watch(parts: &Parts) -> IdentityMarks {
        Self::watch_head(&parts.head)
    }

    /// As [`PrivateResponse::watch`], for a head.
    #[must_use]
    pub fn watch_head(head: &RequestHead) -> IdentityMarks {
        IdentityMarks(head.identity_reads().clone())
    }

    /// Completes the header fields of a response for caches: adds `Vary` for the guards by which
    /// the route was selected and, if the response must be sent as private, `Cache-Control:
    /// private`, unless the handler has set a directive about storage.
    #[doc(hidden)]
    pub fn finish_response(head: &RequestHead, response: &mut Response) {
        head.vary_by_guards(response);
        if head.identity_reads().bits() & SENT_AS_PRIVATE > 0 && !response.status.is_informational()
        {
            send_as_private(response);
        }
    }
}

/// RFC 9111 §5.2.2.7: a shared cache must not store a private response. Nothing is added if the
/// handler has set a directive that determines which caches may store the response.
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

/// A handle to the marks of one request: the identities that its response depends on. It can
/// outlive the request.
#[derive(Clone, Debug)]
pub struct IdentityMarks(IdentityReads);

impl IdentityMarks {
    /// The identities that the response depends on so far.
    #[must_use]
    pub fn sources(&self) -> IdentitySources {
        IdentitySources(self.0.bits())
    }

    /// Adds `sources` to the marks of this request. For a response from an application inside a
    /// mounted service, whose request has marks of its own.
    pub fn mark(&self, sources: IdentitySources) {
        self.0.mark(sources.0);
    }
}

/// The identities that a response depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdentitySources(u8);

impl IdentitySources {
    /// Whether the response is specific to the client of this request: whether the client was
    /// identified by its credentials or by an [`IdentitySource::Other`], or the request carries an
    /// identity that was read.
    #[must_use]
    pub fn are_client_specific(self, head: &RequestHead, connection: &ConnectionInfo) -> bool {
        self.0 & IDENTIFIED > 0
            || self.has(IdentitySource::Other)
            || self.are_present(head, connection)
    }

    /// Whether the request carries an identity in one of these sources. If so, a response to a
    /// client without an identity is not valid for this request.
    #[must_use]
    pub fn are_present(self, head: &RequestHead, connection: &ConnectionInfo) -> bool {
        DETECTABLE_SOURCES
            .iter()
            .any(|source| self.has(*source) && source.is_present(head, connection))
    }

    /// Adds these marks to another request, with this head, to which a cache sends the same
    /// response.
    pub fn mark(self, head: &RequestHead) {
        head.identity_reads().mark(self.0);
    }

    /// Whether the response depends on `source`.
    #[must_use]
    pub fn has(self, source: IdentitySource) -> bool {
        self.0 & source.bit() > 0
    }
}

/// Accessors of header fields that set a mark if the field identifies the client.
impl RequestHead {
    /// The value of the first field called `name` (case-insensitive). Reading `Cookie`,
    /// `Authorization` or `X-Api-Key` marks the response as specific to this client
    /// ([`PrivateResponse`]).
    #[doc(alias = "field")]
    #[doc(alias = "get")]
    #[must_use]
    pub fn header_bytes<'h>(&'h self, name: &str) -> Option<&'h [u8]> {
        self.mark_identity(name);
        self.header_bytes_untracked(name)
    }

    /// All values of fields called `name` (case-insensitive), in order. Reading `Cookie`,
    /// `Authorization` or `X-Api-Key` marks the response as specific to this client
    /// ([`PrivateResponse`]).
    #[doc(alias = "get_all")]
    pub fn header_values<'h>(&'h self, name: &'h str) -> impl Iterator<Item = &'h [u8]> + 'h {
        self.mark_identity(name);
        self.header_values_untracked(name)
    }

    /// All fields in order, with names as they were sent. If the request has an identity field,
    /// this marks the response as specific to this client ([`PrivateResponse`]).
    pub fn headers(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        PrivateResponse::mark_all_headers(self);
        self.headers_untracked()
    }

    /// All fields as a [`HeaderMap`]. Allocates; the other accessors do not. Marks the response as
    /// [`RequestHead::headers`] does.
    #[must_use]
    pub fn to_header_map(&self) -> HeaderMap {
        PrivateResponse::mark_all_headers(self);
        self.header_map_untracked()
    }

    /// Removes all fields with one of these names (case-insensitive), as if they had not been sent;
    /// only [`RequestHead::as_bytes`] still contains them. If an identity in such a field was read
    /// before, the response stays specific to this client ([`PrivateResponse`]).
    pub fn remove_fields(&mut self, names: &[&str]) {
        for name in names {
            if source_of(name).is_some_and(|source| self.is_identity_read(source))
                && self.header_bytes_untracked(name).is_some()
            {
                PrivateResponse::mark_source(self, IdentitySource::Other);
            }
        }
        self.remove_fields_untracked(names);
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

    /// Replaces the marks of this head with those of `original`, a head of the same request. The
    /// two heads then share them.
    pub(crate) fn share_identity_reads(&mut self, original: &Self) {
        self.set_identity_reads(original.identity_reads().clone());
    }
}

/// The identity source to which the field with this name belongs, if any.
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
