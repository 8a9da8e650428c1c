//! A stored response.

use super::asker::Asker;
use super::policy::{Audience, Lifetime};
use crate::owned;
use bytes::Bytes;
use http::header::{
    AGE, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG,
    LAST_MODIFIED, PROXY_AUTHENTICATE, TE, TRANSFER_ENCODING, UPGRADE, VARY,
};
use http::{HeaderName, HeaderValue, StatusCode};
use peregrine_web::personal::IdentitySources;
use peregrine_web::respond::Uncompressed;
use peregrine_web::response::Fields;
use peregrine_web::{Body, Head, Response};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// RFC 9111, section 3.1: fields about one connection, and fields that are generated anew for each
/// response. A client's remaining rate limit does not concern the next client.
const NOT_KEPT: [HeaderName; 10] = [
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

/// RFC 9111, section 3.2: fields that a 304 does not update. The tag is that of the entry, except
/// perhaps for its weakness.
const NOT_UPDATED: [HeaderName; 5] =
    [CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG];

/// How long to wait before the next attempt, after a refresh on behalf of a client has failed.
const RENEW_AGAIN: Duration = Duration::from_secs(5);

/// A stored response to a GET request.
#[derive(Debug)]
pub(crate) struct Entry {
    status: StatusCode,
    fields: Vec<(HeaderName, HeaderValue)>,
    content: Bytes,
    /// The content includes a secret and must not be compressed.
    is_uncompressed: bool,
    /// The request fields named by `Vary`, with their values.
    varies: Vec<(Box<str>, Vec<u8>)>,
    /// The route that produced it, among those of the same target.
    place: Vec<u8>,
    /// The identities that the handler looked for. Unless the response is for all clients, it is
    /// used only for requests with none of these.
    sources: IdentitySources,
    lifetime: Lifetime,
    since: Instant,
    renewal: Mutex<Renewal>,
}

/// How the next refresh of a stale entry is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// In the background, while this response is sent.
    Beside,
    /// A background refresh has failed, perhaps because it lacks something that only a request has:
    /// the next client waits for its own.
    First,
    /// That has failed too: not before this time.
    NotBefore(Instant),
}

/// The remaining uses of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Freshness {
    /// Any request.
    Fresh,
    /// Any request, while a newer response is fetched.
    Revalidate,
    /// Only in place of an error.
    IfError,
    /// Nothing.
    Over,
}

impl Entry {
    /// The response to this request, generated at `since`.
    pub(crate) fn new(
        response: &Response,
        content: &Bytes,
        lifetime: Lifetime,
        asker: Asker<'_>,
        since: Instant,
    ) -> Self {
        let mut varies = Vec::new();
        for (_, value) in response.fields.iter().filter(|(name, _)| **name == VARY) {
            let names = value.to_str().unwrap_or_default().split(',').map(str::trim_ascii);
            for name in names.filter(|name| !name.is_empty()) {
                let name = name.to_ascii_lowercase();
                let sent = asker.said(&name);
                varies.push((name.into_boxed_str(), sent));
            }
        }
        let options = response.fields.get(&CONNECTION).map(HeaderValue::as_bytes);
        let options = options.unwrap_or_default().split(|byte| *byte == b',');
        let is_option = |name: &HeaderName| {
            let name = name.as_str().as_bytes();
            options.clone().any(|option| option.trim_ascii().eq_ignore_ascii_case(name))
        };
        let fields = response.fields.iter();
        let fields = fields.filter(|(name, _)| !NOT_KEPT.contains(name) && !is_option(name));
        Self {
            status: response.status,
            fields: fields.map(owned::field).collect(),
            content: owned::content(content),
            is_uncompressed: Uncompressed::is_on(response),
            varies,
            place: asker.place(),
            sources: asker.sources,
            lifetime,
            since,
            renewal: Mutex::new(Renewal::Beside),
        }
    }

    /// Whether the entry may answer this request too (RFC 9111, section 4.1).
    pub(crate) fn fits(&self, asker: Asker<'_>) -> bool {
        let is_known = asker.is_known() || self.sources.are_carried(asker.head, asker.connection);
        let is_for_it = match self.lifetime.audience {
            Audience::All => true,
            Audience::Unknown => !is_known,
            Audience::Assumed => !is_known && !asker.is_personal(),
        };
        is_for_it
            && self.is_from(asker)
            && self.varies.iter().all(|(name, value)| asker.said(name) == *value)
    }

    /// The response for this request, which it fits.
    pub(crate) fn to_response_for(&self, head: &Head) -> Response {
        if self.lifetime.audience != Audience::All {
            self.sources.mark(head);
        }
        self.to_response()
    }

    /// Whether it has a validator, so that a handler can confirm it.
    pub(crate) fn has_validators(&self) -> bool {
        self.validator(&ETAG).or(self.validator(&LAST_MODIFIED)).is_some()
    }

    fn validator(&self, name: &HeaderName) -> Option<&HeaderValue> {
        let is_whole = self.status == StatusCode::OK;
        let found = self.fields.iter().find(|(other, _)| is_whole && other == name);
        found.map(|(_, value)| value)
    }

    /// Adds conditions to a request that ask whether the entry is still valid (RFC 9111, section
    /// 4.3.1). `false` if the entry has no validators.
    pub(crate) fn add_conditions(&self, head: &mut Head) -> bool {
        let mut add = |condition, name| {
            let value = self.validator(name);
            value.is_some_and(|value| head.add_field(condition, value.as_bytes()))
        };
        let has_tag = add("if-none-match", &ETAG);
        add("if-modified-since", &LAST_MODIFIED) || has_tag
    }

    /// The entry's response updated by a 304 (RFC 9111, section 4.3.4); `None` if the 304 is about
    /// another state.
    pub(crate) fn updated(&self, news: &Response) -> Option<Response> {
        // RFC 9110 §8.8.3.2: weak comparison suffices here.
        let plain = |value: &HeaderValue| {
            let tag = value.as_bytes();
            tag.strip_prefix(b"W/").unwrap_or(tag).to_vec()
        };
        let (own, said) = (self.validator(&ETAG).map(plain), news.fields.get(&ETAG).map(plain));
        if own.is_some() && said.is_some() && own != said {
            return None;
        }
        let mut fields = Fields::new();
        fields.extend(self.fields.iter().cloned());
        let is_news = |name: &HeaderName| {
            let is_about_this = !NOT_KEPT.contains(name) && !NOT_UPDATED.contains(name);
            is_about_this || *name == AGE
        };
        let is_secret = Uncompressed::is_on(news);
        let news = || news.fields.iter().filter(|(name, _)| is_news(name));
        news().for_each(|(name, _)| fields.remove(name));
        news().for_each(|(name, value)| fields.append(name.clone(), value.clone()));
        let mut response = self.bare_response();
        if is_secret {
            Uncompressed.put_on(&mut response);
        }
        response.fields = fields;
        Some(response)
    }

    /// The request fields named by `Vary`.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.varies.iter().map(|(name, _)| &**name)
    }

    /// Whether it is from the route that answers this request.
    pub(crate) fn is_from(&self, asker: Asker<'_>) -> bool {
        self.place == asker.place() || asker.is_plain_head()
    }

    /// Whether it answers the same requests as `other`.
    pub(crate) fn replaces(&self, other: &Self) -> bool {
        self.varies == other.varies && self.place == other.place
    }

    pub(crate) fn freshness(&self) -> Freshness {
        let Lifetime { fresh, while_revalidate, if_error, .. } = self.lifetime;
        let age = self.age();
        match () {
            () if age < fresh => Freshness::Fresh,
            () if age < fresh.saturating_add(while_revalidate) => Freshness::Revalidate,
            () if age < fresh.saturating_add(if_error) => Freshness::IfError,
            () => Freshness::Over,
        }
    }

    /// RFC 9111, section 4.2.3: the age on arrival plus the time since.
    pub(crate) fn age(&self) -> Duration {
        self.lifetime.age.saturating_add(self.since.elapsed())
    }

    /// How to refresh this stale entry now. `may_wait`: whether the current request may wait for
    /// it.
    pub(crate) fn renewal(&self, may_wait: bool) -> Renewal {
        let mut renewal = self.lock_renewal();
        let now = *renewal;
        match now {
            // Only this request waits: even if its client disconnects or times out, others get the
            // stale response.
            Renewal::First if may_wait => *renewal = again(),
            Renewal::NotBefore(time) if time <= Instant::now() => {
                *renewal = Renewal::Beside;
                return Renewal::Beside;
            }
            Renewal::First => return Renewal::NotBefore(Instant::now()),
            Renewal::Beside | Renewal::NotBefore(_) => {}
        }
        now
    }

    /// A background or foreground refresh produced nothing that can be stored.
    pub(crate) fn not_renewed(&self, is_beside: bool) {
        *self.lock_renewal() = if is_beside { Renewal::First } else { again() };
    }

    /// The refresh produced a response for one client only, which says nothing about other clients.
    pub(crate) fn not_renewed_by_one(&self) {
        *self.lock_renewal() = Renewal::Beside;
    }

    fn lock_renewal(&self) -> MutexGuard<'_, Renewal> {
        // No code under this lock panics.
        self.renewal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The response without its fields.
    fn bare_response(&self) -> Response {
        let mut response = Response::new(self.status).with_body(Body::from(self.content.clone()));
        if self.is_uncompressed {
            Uncompressed.put_on(&mut response);
        }
        response
    }

    pub(crate) fn to_response(&self) -> Response {
        let mut response = self.bare_response();
        response.fields.extend(self.fields.iter().cloned());
        response.fields.set(AGE, HeaderValue::from(self.age().as_secs()));
        response
    }

    /// Approximate memory use.
    pub(crate) fn held_bytes(&self) -> usize {
        let fields = self.fields.iter().map(|(name, value)| 64 + name.as_str().len() + value.len());
        let varies = self.varies.iter().map(|(name, value)| 64 + name.len() + value.len());
        256 + self.place.len() + self.content.len() + fields.sum::<usize>() + varies.sum::<usize>()
    }
}

fn again() -> Renewal {
    Renewal::NotBefore(Instant::now() + RENEW_AGAIN)
}
