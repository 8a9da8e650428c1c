//! Which responses depend on who the client is.

use crate::http::connection::ConnectionInfo;
use crate::http::head::{Head, IdentityReads};
use crate::http::request::Parts;
use crate::http::response::Response;
use http::header::CACHE_CONTROL;
use http::{HeaderMap, HeaderValue};
use peregrine_proto::{FieldIndex, Known};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Marks responses that depend on who the client is.
///
/// Every read of an identity in this project marks the request: reading the fields `Cookie` and
/// `Authorization` through [`Head`] does, and so do extractors and middleware that
/// identify the client by a session, an API key or a client certificate, and requests with an
/// identity that are passed to a mounted tower service. Such a response is sent with
/// `Cache-Control: private`, and `Cache` does not store it, unless the handler says `public` or
/// `s-maxage`. Code of yours that identifies clients by a field of its own marks the request too:
///
/// ```
/// use peregrine::prelude::*;
/// use peregrine::web::personal::Personal;
///
/// #[derive(Clone)]
/// struct Customer(String);
///
/// async fn find_customer(mut request: Request, next: Next<'_>) -> Response {
///     if let Some(name) = request.header("x-customer").map(str::to_owned) {
///         request.parts.extensions_mut().insert(Customer(name));
///         Personal::note(&request.parts);
///     }
///     next.run(request).await
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Personal {}

/// Where a request says who its client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IdentitySource {
    /// The field `Cookie`.
    Cookie,
    /// `Authorization`, `X-Api-Key` or the query, by which caches and idempotency keys tell clients
    /// apart.
    Credentials,
    /// The connection: a client certificate, shown to this server or to the proxy before it.
    Connection,
    /// Anything else.
    Other,
}

/// The client was identified by its credentials, wherever these are.
const IDENTIFIED: u8 = 1 << 4;
/// The response must not be shared by caches further out.
const SENT_AS_PRIVATE: u8 = 1 << 5;
/// The sources that code outside of this project can read without a mark.
const UNSEEN: [IdentitySource; 3] =
    [IdentitySource::Cookie, IdentitySource::Credentials, IdentitySource::Connection];
const UNSEEN_BITS: u8 = IdentitySource::Cookie.bit()
    | IdentitySource::Credentials.bit()
    | IdentitySource::Connection.bit();
const API_KEY: &[u8] = b"x-api-key";
const IDENTITY_FIELDS: [&str; 3] = ["cookie", "authorization", "x-api-key"];

/// The marks of the request outside of a mounted service, and a hash of what identified its client.
#[derive(Clone, Copy, Debug)]
struct HandedDown {
    marks: u8,
    identity: Option<u64>,
}

/// A hash of everything that may identify the client; `None` if there is nothing.
fn identity_of(head: &Head, connection: &ConnectionInfo) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    let mut is_any = false;
    let mut add = |name: &str, value: &[u8]| {
        is_any = true;
        (name, value).hash(&mut hasher);
    };
    for name in IDENTITY_FIELDS {
        head.peek_fields_named(name).for_each(|value| add(name, value));
    }
    if let Some(query) = head.query() {
        add("query", query.as_bytes());
    }
    if let Some(client) = connection.client() {
        add("certificate", &client.fingerprint);
    }
    if identifies_client(connection) {
        let proxied = connection.proxy.as_ref().and_then(|proxy| proxy.tls.as_ref());
        let name = proxied.and_then(|tls| tls.common_name.as_deref());
        add("proxied certificate", name.unwrap_or_default().as_bytes());
    }
    is_any.then(|| hasher.finish())
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
    fn is_present(self, head: &Head, connection: &ConnectionInfo) -> bool {
        match self {
            Self::Connection => identifies_client(connection),
            field => field.is_in_fields(head),
        }
    }

    /// Whether a field of the request carries this identity. Costs a few bit tests unless the
    /// request has fields that the parser does not know by name.
    fn is_in_fields(self, head: &Head) -> bool {
        let index = head.index();
        let is_api_key = |field: &FieldIndex| {
            field.known == Known::Other
                && field.name.len() == API_KEY.len()
                && head.slice(field.name).eq_ignore_ascii_case(API_KEY)
        };
        match self {
            Self::Cookie => index.has(Known::Cookie),
            Self::Credentials => {
                index.has(Known::Authorization)
                    || (index.has(Known::Other) && index.fields.iter().any(is_api_key))
            }
            Self::Connection | Self::Other => false,
        }
    }
}

/// Does the connection itself say who the client is?
fn identifies_client(connection: &ConnectionInfo) -> bool {
    let proxied = connection.proxy.as_ref().and_then(|proxy| proxy.tls.as_ref());
    connection.client().is_some()
        || proxied.is_some_and(|tls| tls.has_certificate || tls.common_name.is_some())
}

impl Personal {
    /// Marks the response to this request as dependent on who its client is.
    pub fn note(parts: &Parts) {
        Self::depends_on(&parts.head, IdentitySource::Other);
    }

    /// Marks the response as dependent on `Authorization`, `X-Api-Key` or the query, by which
    /// caches and idempotency keys tell clients apart.
    pub fn note_credentials(parts: &Parts) {
        Self::depends_on(&parts.head, IdentitySource::Credentials);
        parts.head.identity_reads().mark(IDENTIFIED);
    }

    /// Marks the response to the request with this head as dependent on an identity: the one
    /// function behind all others.
    pub fn depends_on(head: &Head, source: IdentitySource) {
        head.identity_reads().mark(source.bit() | SENT_AS_PRIVATE);
    }

    /// Marks the response as dependent on all fields of the request. Most readers of a list of
    /// fields want others than these: a response is sent as private only where one of them is
    /// there.
    pub(crate) fn depends_on_fields(head: &Head) {
        for source in [IdentitySource::Cookie, IdentitySource::Credentials] {
            if source.is_in_fields(head) {
                Self::depends_on(head, source);
            } else {
                head.identity_reads().mark(source.bit());
            }
        }
    }

    /// Marks the response as dependent on what the connection says of the client. Most readers of a
    /// connection want an address: a response is sent as private only where the connection does
    /// identify the client.
    pub(crate) fn depends_on_connection(head: &Head, connection: &ConnectionInfo) {
        if identifies_client(connection) {
            Self::depends_on(head, IdentitySource::Connection);
        } else {
            head.identity_reads().mark(IdentitySource::Connection.bit());
        }
    }

    /// Marks a request that is passed to code which reads identities without a mark: a tower layer,
    /// an upstream server. `Cache` then stores its response only for clients without an identity.
    /// The fields of the response are left as they are.
    pub fn passed_on(parts: &Parts) {
        parts.head.identity_reads().mark(UNSEEN_BITS);
    }

    /// As [`Personal::passed_on`], for a service that answers the request in place of a handler,
    /// such as an axum `Router`: where the request carries an identity, the response is sent as
    /// private too.
    pub fn served_elsewhere(parts: &Parts) {
        Self::passed_on(parts);
        if Self::carries_identity(parts) {
            parts.head.identity_reads().mark(SENT_AS_PRIVATE);
        }
    }

    /// Hands the marks of a request, and what identifies its client, to the applications inside of
    /// a mounted service.
    #[doc(hidden)]
    pub fn hand_down(parts: &mut Parts) {
        let marks = parts.head.identity_reads().bits();
        let identity = identity_of(&parts.head, parts.peek_connection());
        if marks > 0 || identity.is_some() {
            parts.extensions_mut().insert(HandedDown { marks, identity });
        }
    }

    /// Marks the request of an application inside of a mounted service. Any code around it may have
    /// read what identifies the client, and may have removed or replaced it afterwards.
    #[doc(hidden)]
    pub fn inherit(head: &Head, connection: &ConnectionInfo, extensions: &http::Extensions) {
        head.identity_reads().mark(UNSEEN_BITS);
        if let Some(outer) = extensions.get::<HandedDown>() {
            head.identity_reads().mark(outer.marks);
            if outer.identity.is_some() && outer.identity != identity_of(head, connection) {
                Self::depends_on(head, IdentitySource::Other);
            }
        }
    }

    /// Marks a request whose head was changed by code that reads identities without a mark: that
    /// code may have read what it has removed or replaced.
    #[doc(hidden)]
    pub fn changed(head: &Head, origin: &Head) {
        let is_changed = |name: &&str| {
            let mut before = origin.peek_fields_named(name).peekable();
            before.peek().is_some() && !before.eq(head.peek_fields_named(name))
        };
        let has_other_query = origin.query().is_some() && origin.query() != head.query();
        if has_other_query || IDENTITY_FIELDS.iter().any(is_changed) {
            Self::depends_on(head, IdentitySource::Other);
        }
    }

    /// Does the request carry cookies, credentials, or a client certificate, whatever they are
    /// worth? This is no mark.
    #[must_use]
    pub fn carries_identity(parts: &Parts) -> bool {
        UNSEEN.iter().any(|source| source.is_present(&parts.head, parts.peek_connection()))
    }

    /// Is the response marked so far as one that depends on an identity of the request?
    #[must_use]
    pub fn is_noted(parts: &Parts) -> bool {
        Self::watch(parts).sources().are_noted(&parts.head, parts.peek_connection())
    }

    /// Sees marks that are made later, wherever the request is by then.
    #[must_use]
    pub fn watch(parts: &Parts) -> PersonalWatch {
        Self::watch_head(&parts.head)
    }

    /// As [`Personal::watch`], by the head.
    #[must_use]
    pub fn watch_head(head: &Head) -> PersonalWatch {
        PersonalWatch(head.identity_reads().clone())
    }

    /// Says in a response that depends on an identity that it is for one client, unless the handler
    /// says for whom it is; and by what its route was chosen.
    #[doc(hidden)]
    pub fn finish(head: &Head, response: &mut Response) {
        head.vary_by_guards(response);
        if head.identity_reads().bits() & SENT_AS_PRIVATE > 0 && !response.status.is_informational()
        {
            send_as_private(response);
        }
    }
}

/// RFC 9111 §5.2.2.7: no shared cache may store a private response. A directive that says who may
/// store it stays alone.
#[cold]
fn send_as_private(response: &mut Response) {
    let says = |directive: &[u8]| {
        let name = directive.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii();
        let decided: [&[u8]; 4] = [b"private", b"public", b"no-store", b"s-maxage"];
        decided.iter().any(|known| name.eq_ignore_ascii_case(known))
    };
    let is_decided = response.fields.iter().any(|(name, value)| {
        *name == CACHE_CONTROL && value.as_bytes().split(|byte| *byte == b',').any(says)
    });
    if !is_decided {
        response.fields.append(CACHE_CONTROL, HeaderValue::from_static("private"));
    }
}

/// Sees whether the response to a request depends on who the client is.
#[derive(Clone, Debug)]
pub struct PersonalWatch(IdentityReads);

impl PersonalWatch {
    /// What the response depends on so far.
    #[must_use]
    pub fn sources(&self) -> IdentitySources {
        IdentitySources(self.0.bits())
    }

    /// Marks the response as one that was made elsewhere, with these marks.
    pub fn mark(&self, sources: IdentitySources) {
        self.0.mark(sources.0);
    }
}

/// The identities that a response depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdentitySources(u8);

impl IdentitySources {
    /// Is the response to this request one for its client? It is where an identity was found by
    /// anything else than `Cookie`, `Authorization`, `X-Api-Key` and the connection, or where the
    /// request carries one that was read.
    #[must_use]
    pub fn are_noted(self, head: &Head, connection: &ConnectionInfo) -> bool {
        self.0 & IDENTIFIED > 0
            || self.has(IdentitySource::Other)
            || self.are_carried(head, connection)
    }

    /// Does a request carry an identity in one of these places, so that the response to a client
    /// without one is not for it?
    #[must_use]
    pub fn are_carried(self, head: &Head, connection: &ConnectionInfo) -> bool {
        UNSEEN.iter().any(|source| self.has(*source) && source.is_present(head, connection))
    }

    /// Marks the response to another request as this one was, because it is the same response: for
    /// caches.
    pub fn mark(self, head: &Head) {
        head.identity_reads().mark(self.0);
    }

    /// Does the response depend on this?
    #[must_use]
    pub fn has(self, source: IdentitySource) -> bool {
        self.0 & source.bit() > 0
    }
}

/// Reading fields, with the marks.
impl Head {
    /// The value of the first field called `name`, in any case. Reading `Cookie`, `Authorization` or
    /// `X-Api-Key` marks the response as one for this client ([`Personal`]).
    #[must_use]
    pub fn field<'h>(&'h self, name: &str) -> Option<&'h [u8]> {
        self.mark_identity(name);
        self.peek_field(name)
    }

    /// All values of fields called `name`, in any case, in order. Reading `Cookie`, `Authorization`
    /// or `X-Api-Key` marks the response as one for this client ([`Personal`]).
    pub fn fields_named<'h>(&'h self, name: &'h str) -> impl Iterator<Item = &'h [u8]> + 'h {
        self.mark_identity(name);
        self.peek_fields_named(name)
    }

    /// All fields in order, names as they were sent. This marks the response as one for this
    /// client, if the request has a `Cookie` or `Authorization` ([`Personal`]).
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        Personal::depends_on_fields(self);
        self.peek_fields()
    }

    /// All fields as a [`HeaderMap`]. Allocates; the other accessors do not. Marks the response as
    /// [`Head::fields`] does.
    #[must_use]
    pub fn to_header_map(&self) -> HeaderMap {
        Personal::depends_on_fields(self);
        self.peek_header_map()
    }

    /// Removes all fields with one of these names, in any case, as if they had not been sent; only
    /// [`Head::as_bytes`] still contains them. If the identity in such a field was read before, the
    /// response remains one for this client ([`Personal`]).
    pub fn remove_fields(&mut self, names: &[&str]) {
        for name in names {
            if source_of(name).is_some_and(|source| self.is_read(source))
                && self.peek_field(name).is_some()
            {
                Personal::depends_on(self, IdentitySource::Other);
            }
        }
        self.omit_fields(names);
    }

    /// Marks the response as dependent on this field, if clients are identified by it.
    #[inline]
    fn mark_identity(&self, name: &str) {
        if let Some(source) = source_of(name) {
            Personal::depends_on(self, source);
        }
    }

    fn is_read(&self, source: IdentitySource) -> bool {
        self.identity_reads().bits() & source.bit() > 0
    }

    /// This head is the same request's as `origin`.
    pub(crate) fn share_identity_reads(&mut self, origin: &Self) {
        self.set_identity_reads(origin.identity_reads().clone());
    }
}

/// The identity in the field with this name.
#[inline]
fn source_of(name: &str) -> Option<IdentitySource> {
    match Known::find(name.as_bytes()) {
        Known::Cookie => Some(IdentitySource::Cookie),
        Known::Authorization => Some(IdentitySource::Credentials),
        Known::Other if name.as_bytes().eq_ignore_ascii_case(API_KEY) => {
            Some(IdentitySource::Credentials)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
