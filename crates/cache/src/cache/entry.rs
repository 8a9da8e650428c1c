//! A response that is kept.

use super::policy::Lifetime;
use bytes::Bytes;
use http::header::{AGE, CONNECTION, PROXY_AUTHENTICATE, TE, TRANSFER_ENCODING, UPGRADE, VARY};
use http::{HeaderName, HeaderValue, StatusCode};
use peregrine_web::{Body, Head, Response};
use std::time::Duration;
use tokio::time::Instant;

/// RFC 9111 §3.1: what is about one connection, and what is told anew each time.
const NOT_KEPT: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
    AGE,
];

/// A response to a GET request.
#[derive(Debug)]
pub(crate) struct Entry {
    status: StatusCode,
    fields: Vec<(HeaderName, HeaderValue)>,
    content: Bytes,
    /// The fields of a request that it depends on, and their values.
    varies: Vec<(Box<str>, Vec<u8>)>,
    lifetime: Lifetime,
    since: Instant,
}

/// What an entry may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Freshness {
    /// Everything.
    Fresh,
    /// It is sent, and a newer one is fetched.
    Revalidate,
    /// It is sent if there is nothing better than an error.
    IfError,
    /// Nothing.
    Over,
}

impl Entry {
    /// The response to the request that had this head.
    pub(crate) fn new(
        response: &Response,
        content: Bytes,
        lifetime: Lifetime,
        head: &Head,
    ) -> Self {
        let mut varies = Vec::new();
        for (_, value) in response.fields.iter().filter(|(name, _)| **name == VARY) {
            let names = value.to_str().unwrap_or_default().split(',').map(str::trim_ascii);
            for name in names.filter(|name| !name.is_empty()) {
                let name = name.to_ascii_lowercase();
                let sent = said(head, &name);
                varies.push((name.into_boxed_str(), sent));
            }
        }
        let fields = response.fields.iter().filter(|(name, _)| !NOT_KEPT.contains(name));
        Self {
            status: response.status,
            fields: fields.map(|(name, value)| (name.clone(), value.clone())).collect(),
            content,
            varies,
            lifetime,
            since: Instant::now(),
        }
    }

    /// RFC 9111 §4.1: is it the answer to a request with this head too?
    pub(crate) fn fits(&self, head: &Head) -> bool {
        let is_for_it = !self.lifetime.is_assumed || !is_personal(head);
        is_for_it && self.varies.iter().all(|(name, value)| said(head, name) == *value)
    }

    /// The fields of requests that it depends on.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.varies.iter().map(|(name, _)| &**name)
    }

    /// Is it the answer to the same requests as another?
    pub(crate) fn replaces(&self, other: &Self) -> bool {
        self.varies == other.varies
    }

    pub(crate) fn freshness(&self) -> Freshness {
        let Lifetime { fresh, while_revalidate, if_error, .. } = self.lifetime;
        let age = self.age();
        match () {
            () if age < fresh => Freshness::Fresh,
            () if age < fresh + while_revalidate => Freshness::Revalidate,
            () if age < fresh + if_error => Freshness::IfError,
            () => Freshness::Over,
        }
    }

    /// RFC 9111 §4.2.3: the age that it had when it came, and the time since.
    pub(crate) fn age(&self) -> Duration {
        self.lifetime.age + self.since.elapsed()
    }

    pub(crate) fn to_response(&self) -> Response {
        let mut response = Response::new(self.status).with_body(Body::from(self.content.clone()));
        response.fields.extend(self.fields.iter().cloned());
        response.fields.set(AGE, HeaderValue::from(self.age().as_secs()));
        response
    }

    /// About how much memory it takes.
    pub(crate) fn held_bytes(&self) -> usize {
        let fields = self.fields.iter().map(|(name, value)| 64 + name.as_str().len() + value.len());
        let varies = self.varies.iter().map(|(name, value)| 64 + name.len() + value.len());
        256 + self.content.len() + fields.sum::<usize>() + varies.sum::<usize>()
    }
}

/// Does a request have fields by which a client is known?
pub(crate) fn is_personal(head: &Head) -> bool {
    ["authorization", "cookie"].iter().any(|name| head.field(name).is_some())
}

/// What a request says in the fields of a name. RFC 9111 §4.1: space between elements makes no difference.
pub(crate) fn said(head: &Head, name: &str) -> Vec<u8> {
    let mut all = Vec::new();
    for value in head.fields_named(name) {
        for part in value.split(|byte| *byte == b',') {
            if !all.is_empty() {
                all.push(b',');
            }
            all.extend_from_slice(part.trim_ascii());
        }
    }
    // A field that is there and empty is something else than none.
    if head.field(name).is_some() {
        all.push(b';');
    }
    all
}
