//! A stored response.

use super::policy::{Audience, FreshnessLifetime};
use super::requester::Requester;
use crate::compact;
use bytes::Bytes;
use http::header::{
    AGE, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG,
    LAST_MODIFIED, PROXY_AUTHENTICATE, TE, TRANSFER_ENCODING, UPGRADE, VARY,
};
use http::{HeaderName, HeaderValue, StatusCode};
use peregrine_web::private_response::IdentitySources;
use peregrine_web::response::Headers;
use peregrine_web::response::NoCompression;
use peregrine_web::{Body, RequestHead, Response};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// RFC 9111, section 3.1: fields about one connection, and fields that are generated anew for each
/// response. A client's remaining rate limit does not concern the next client.
const UNSTORED_FIELDS: [HeaderName; 10] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
    AGE,
    HeaderName::from_static("ratelimit"),
    HeaderName::from_static("ratelimit-policy"),
];

/// RFC 9111, section 3.2: fields that a 304 does not update. A matching `ETag` can differ from that
/// of the entry only in its weakness, so the entry keeps its own.
const FIELDS_KEPT_ON_304: [HeaderName; 5] =
    [CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG];

/// How long to wait before the next attempt, after a refresh on behalf of a client has failed.
const REVALIDATION_RETRY_DELAY: Duration = Duration::from_secs(5);

/// A stored response to a GET request.
#[derive(Debug)]
pub(crate) struct CacheEntry {
    status: StatusCode,
    fields: Vec<(HeaderName, HeaderValue)>,
    content: Bytes,
    /// The content includes a secret, which the length of compressed content could reveal.
    forbids_compression: bool,
    /// The request fields named by `Vary`, with their values.
    vary: Vec<(Box<str>, Vec<u8>)>,
    /// The route that produced it: see [`Requester::route_key`].
    route_key: Vec<u8>,
    /// The identities that the handler looked for. Unless the response is for all clients, it is
    /// used only for requests with none of these.
    sources: IdentitySources,
    lifetime: FreshnessLifetime,
    requested_at: Instant,
    revalidation: Mutex<Revalidation>,
}

/// How a stale entry is refreshed next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Revalidation {
    /// In the background, while this response is sent.
    Background,
    /// A background refresh has failed, perhaps because it lacks something that only a request has:
    /// the next request waits for its own refresh.
    Foreground,
    /// A foreground refresh has failed too: no refresh is attempted before this time.
    NotBefore(Instant),
}

/// How an entry may still be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Freshness {
    /// For any request.
    Fresh,
    /// For any request, while a newer response is fetched.
    StaleWhileRevalidate,
    /// Only in place of an error.
    StaleIfError,
    /// Not at all until a handler confirms it.
    Expired,
}

impl CacheEntry {
    /// Creates an entry from the response to this request. Its age is measured from `requested_at`,
    /// when the handler was called.
    pub(crate) fn new(
        response: &Response,
        content: &Bytes,
        lifetime: FreshnessLifetime,
        requester: Requester<'_>,
        requested_at: Instant,
    ) -> Self {
        let mut vary = Vec::new();
        for (_, value) in response.headers.iter().filter(|(name, _)| **name == VARY) {
            let names = value.to_str().unwrap_or_default().split(',').map(str::trim_ascii);
            for name in names.filter(|name| !name.is_empty()) {
                let name = name.to_ascii_lowercase();
                let values = requester.field_values(&name);
                vary.push((name.into_boxed_str(), values));
            }
        }
        // `Connection` names further fields about this connection, which are not stored either.
        let options = response.headers.get(&CONNECTION).map(HeaderValue::as_bytes);
        let options = options.unwrap_or_default().split(|byte| *byte == b',');
        let is_option = |name: &HeaderName| {
            let name = name.as_str().as_bytes();
            options.clone().any(|option| option.trim_ascii().eq_ignore_ascii_case(name))
        };
        let fields = response.headers.iter();
        let fields = fields.filter(|(name, _)| !UNSTORED_FIELDS.contains(name) && !is_option(name));
        Self {
            status: response.status,
            fields: fields.map(compact::compact_field).collect(),
            content: compact::compact_bytes(content),
            forbids_compression: NoCompression::is_set(response),
            vary,
            route_key: requester.route_key(),
            sources: requester.sources,
            lifetime,
            requested_at,
            revalidation: Mutex::new(Revalidation::Background),
        }
    }

    /// Whether the entry may be used for this request too (RFC 9111, section 4.1).
    pub(crate) fn matches(&self, requester: Requester<'_>) -> bool {
        let is_identified = requester.is_identified()
            || self.sources.are_present(requester.head, requester.connection);
        let fits_audience = match self.lifetime.audience {
            Audience::All => true,
            Audience::Unidentified => !is_identified,
            Audience::Assumed => !is_identified && !requester.is_private(),
        };
        fits_audience
            && self.is_from(requester)
            && self.vary.iter().all(|(name, value)| requester.field_values(name) == *value)
    }

    /// Returns the response for a request that the entry matches. Marks the identities that the
    /// handler looked for as read, so that an outer cache knows about them too.
    pub(crate) fn to_response_for(&self, head: &RequestHead) -> Response {
        if self.lifetime.audience != Audience::All {
            self.sources.mark(head);
        }
        self.to_response()
    }

    /// Whether the entry has a validator, so that a handler can confirm it.
    pub(crate) fn has_validators(&self) -> bool {
        self.validator(&ETAG).or(self.validator(&LAST_MODIFIED)).is_some()
    }

    fn validator(&self, name: &HeaderName) -> Option<&HeaderValue> {
        let is_ok = self.status == StatusCode::OK;
        let field = self.fields.iter().find(|(other, _)| is_ok && other == name);
        field.map(|(_, value)| value)
    }

    /// Adds the conditions that revalidate the entry to a request's head (RFC 9111, section 4.3.1).
    /// Returns `false` if the entry has no validators.
    pub(crate) fn add_conditional_fields(&self, head: &mut RequestHead) -> bool {
        let mut add = |condition, name| {
            let value = self.validator(name);
            value.is_some_and(|value| head.append_header(condition, value.as_bytes()))
        };
        let has_tag = add("if-none-match", &ETAG);
        add("if-modified-since", &LAST_MODIFIED) || has_tag
    }

    /// Returns the entry's response, updated by a 304 (RFC 9111, section 4.3.4); `None` if the 304
    /// refers to another representation.
    pub(crate) fn freshen(&self, not_modified: &Response) -> Option<Response> {
        // RFC 9110 §8.8.3.2: weak comparison suffices here.
        let opaque_tag = |value: &HeaderValue| {
            let tag = value.as_bytes();
            tag.strip_prefix(b"W/").unwrap_or(tag).to_vec()
        };
        let (stored_tag, new_tag) = (
            self.validator(&ETAG).map(opaque_tag),
            not_modified.headers.get(&ETAG).map(opaque_tag),
        );
        if stored_tag.is_some() && new_tag.is_some() && stored_tag != new_tag {
            return None;
        }
        let mut fields = Headers::new();
        fields.extend(self.fields.iter().cloned());
        let is_updated = |name: &HeaderName| {
            let is_updatable =
                !UNSTORED_FIELDS.contains(name) && !FIELDS_KEPT_ON_304.contains(name);
            // `Age` is not stored, but the new lifetime is computed from it.
            is_updatable || *name == AGE
        };
        let forbids_compression = NoCompression::is_set(not_modified);
        let updates = || not_modified.headers.iter().filter(|(name, _)| is_updated(name));
        updates().for_each(|(name, _)| fields.remove(name));
        updates().for_each(|(name, value)| fields.append(name.clone(), value.clone()));
        let mut response = self.response_without_fields();
        if forbids_compression {
            NoCompression.apply_to(&mut response);
        }
        response.headers = fields;
        Some(response)
    }

    /// The request fields named by `Vary`.
    pub(crate) fn vary_fields(&self) -> impl Iterator<Item = &str> {
        self.vary.iter().map(|(name, _)| &**name)
    }

    /// Whether the entry is from the route that this request reaches, or, for HEAD, from the one
    /// that GET would reach.
    pub(crate) fn is_from(&self, requester: Requester<'_>) -> bool {
        self.route_key == requester.route_key() || requester.is_plain_head()
    }

    /// Whether the entry is for the same requests as `other`.
    pub(crate) fn has_same_vary(&self, other: &Self) -> bool {
        self.vary == other.vary && self.route_key == other.route_key
    }

    pub(crate) fn freshness(&self) -> Freshness {
        let FreshnessLifetime { max_age, stale_while_revalidate, stale_if_error, .. } =
            self.lifetime;
        let age = self.age();
        match () {
            () if age < max_age => Freshness::Fresh,
            () if age < max_age.saturating_add(stale_while_revalidate) => {
                Freshness::StaleWhileRevalidate
            }
            () if age < max_age.saturating_add(stale_if_error) => Freshness::StaleIfError,
            () => Freshness::Expired,
        }
    }

    /// RFC 9111, section 4.2.3: the age that the response had at first, plus the time since the
    /// request.
    pub(crate) fn age(&self) -> Duration {
        self.lifetime.age.saturating_add(self.requested_at.elapsed())
    }

    /// Decides how to refresh this stale entry now, and records the decision for concurrent
    /// requests. `may_wait`: whether the current request may wait for the refresh.
    pub(crate) fn revalidation(&self, may_wait: bool) -> Revalidation {
        let mut state = self.lock_revalidation();
        let current = *state;
        match current {
            // Only this request waits. Others get the stale response for the retry delay, even if
            // this one is dropped before its refresh ends.
            Revalidation::Foreground if may_wait => *state = retry_later(),
            Revalidation::NotBefore(time) if time <= Instant::now() => {
                *state = Revalidation::Background;
                return Revalidation::Background;
            }
            // This request cannot wait: it gets the stale response, without a refresh.
            Revalidation::Foreground => return Revalidation::NotBefore(Instant::now()),
            Revalidation::Background | Revalidation::NotBefore(_) => {}
        }
        current
    }

    /// Records that a refresh produced nothing that can be stored.
    pub(crate) fn revalidation_failed(&self, is_background: bool) {
        *self.lock_revalidation() =
            if is_background { Revalidation::Foreground } else { retry_later() };
    }

    /// Records that the refresh produced a response for one client only, which says nothing about
    /// other clients.
    pub(crate) fn revalidation_was_private(&self) {
        *self.lock_revalidation() = Revalidation::Background;
    }

    fn lock_revalidation(&self) -> MutexGuard<'_, Revalidation> {
        // No code under this lock panics.
        self.revalidation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The response without its fields.
    fn response_without_fields(&self) -> Response {
        let mut response = Response::new(self.status).with_body(Body::from(self.content.clone()));
        if self.forbids_compression {
            NoCompression.apply_to(&mut response);
        }
        response
    }

    /// The response with its fields and current `Age`.
    pub(crate) fn to_response(&self) -> Response {
        let mut response = self.response_without_fields();
        response.headers.extend(self.fields.iter().cloned());
        response.headers.insert(AGE, HeaderValue::from(self.age().as_secs()));
        response
    }

    /// Approximate memory use, including the allocations themselves.
    pub(crate) fn memory_bytes(&self) -> usize {
        let fields = self.fields.iter().map(|(name, value)| 64 + name.as_str().len() + value.len());
        let vary = self.vary.iter().map(|(name, value)| 64 + name.len() + value.len());
        256 + self.route_key.len()
            + self.content.len()
            + fields.sum::<usize>()
            + vary.sum::<usize>()
    }
}

fn retry_later() -> Revalidation {
    Revalidation::NotBefore(Instant::now() + REVALIDATION_RETRY_DELAY)
}
