//! Responses: status, header fields and body.

pub(crate) mod content;
pub(crate) mod headers;
pub(crate) mod into_response;
pub(crate) mod redirect;

pub use content::{Form, Html, Json};
pub use headers::{AppendHeaders, NoCompression};
pub use into_response::{IntoResponse, IntoResponseParts};
pub use redirect::Redirect;

use crate::http::body::Body;
use crate::http::panic::catch_panic;
use crate::http::upgrade::UpgradeHandler;
use http::header::VARY;
use http::{HeaderName, HeaderValue, StatusCode};
use peregrine_slot::Pool;
use std::fmt;
use std::pin::Pin;

/// A response to a request.
pub struct Response {
    /// The status.
    pub status: StatusCode,
    /// The header fields, which [`Response::headers`] also returns. They do not include the fields
    /// that the server writes itself: `Date`, `Content-Length`, `Transfer-Encoding` and
    /// `Connection`.
    pub headers: Headers,
    /// The body.
    pub body: Body,
    rare: Option<Box<RareParts>>,
}

/// Parts that few responses have.
#[derive(Default)]
struct RareParts {
    extensions: http::Extensions,
    upgrade: Option<UpgradeHandler>,
    after_response: Option<AfterResponse>,
}

/// Work that continues after a response is complete.
#[doc(alias = "BackgroundTask")]
pub type AfterResponse = Pin<Box<dyn Future<Output = ()>>>;

/// The values are the application's, so their destructors may panic. Such a panic must not reach
/// the code that drops the response.
impl Drop for RareParts {
    fn drop(&mut self) {
        let (extensions, upgrade) = (std::mem::take(&mut self.extensions), self.upgrade.take());
        catch_panic("the destructor of a response's extension", || drop(extensions));
        catch_panic("the destructor of an upgrade", || drop(upgrade));
        // See `with_after_response`: the future forwards the request's body.
        let after_response = self.after_response.take();
        catch_panic("the destructor of a request's body", || drop(after_response));
    }
}

impl Response {
    /// A response with `status` and nothing else.
    #[must_use]
    pub fn new(status: StatusCode) -> Self {
        Self { status, headers: Headers::new(), body: Body::empty(), rare: None }
    }

    /// Sets the body.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<Body>) -> Self {
        self.body = body.into();
        self
    }

    /// Sets a header field; earlier fields of that name are replaced.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// The same as [`Response::with_header`], under RFC 9110's name.
    #[must_use]
    pub fn with_field(self, name: HeaderName, value: HeaderValue) -> Self {
        self.with_header(name, value)
    }

    /// The value of the first header field called `name` (case-insensitive), if it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get_str(name)
    }

    /// The same as the field `headers`.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// The same as the field `headers`, for modification.
    pub fn headers_mut(&mut self) -> &mut Headers {
        &mut self.headers
    }

    /// Values attached for outer middleware, such as the error behind the status. `None` if the map
    /// was not created yet.
    #[must_use]
    pub fn extensions(&self) -> Option<&http::Extensions> {
        self.rare.as_deref().map(|rare| &rare.extensions)
    }

    /// Values attached for outer middleware. The map is created on first use.
    pub fn extensions_mut(&mut self) -> &mut http::Extensions {
        &mut self.rare.get_or_insert_default().extensions
    }

    /// Sets the code that takes over the connection, or the HTTP/2 stream, when the server sends
    /// this response, which must have status 101.
    #[must_use]
    pub fn with_upgrade(mut self, upgrade: UpgradeHandler) -> Self {
        self.rare.get_or_insert_default().upgrade = Some(upgrade);
        self
    }

    /// Sets a future that the server continues to poll after the response is complete. It forwards
    /// the request's body to a reader outside the handler, until the body ends or the reader is
    /// dropped. For bridges to other frameworks; a handler that spawns a task does not need it.
    #[doc(hidden)]
    #[must_use]
    pub fn with_after_response(mut self, after_response: AfterResponse) -> Self {
        self.rare.get_or_insert_default().after_response = Some(after_response);
        self
    }

    /// Removes and returns the future set by [`Response::with_after_response`].
    #[doc(hidden)]
    pub fn take_after_response(&mut self) -> Option<AfterResponse> {
        self.rare.as_deref_mut()?.after_response.take()
    }

    /// Removes and returns the upgrade handler set by [`Response::with_upgrade`].
    pub fn take_upgrade(&mut self) -> Option<UpgradeHandler> {
        self.rare.as_deref_mut()?.upgrade.take()
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Response");
        debug.field("status", &self.status).field("fields", &self.headers);
        debug.field("body", &self.body).finish()
    }
}

type Header = (HeaderName, HeaderValue);

thread_local! {
    static HEADER_LISTS: Pool<Vec<Header>> = const { Pool::new(64) };
}

/// The header fields of a response, in the order they are sent.
///
/// The list comes from the thread's pool and returns to it, so it usually costs no allocation. It
/// is a `Vec` rather than an inline array, so that a `Response` is small and cheap for middleware
/// to move.
#[doc(alias = "HeaderMap")]
#[doc(alias = "Fields")]
#[derive(Default)]
pub struct Headers(Vec<Header>);

impl Headers {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self(Vec::new())
    }

    fn push(&mut self, field: Header) {
        if self.0.capacity() == 0 {
            self.0 = Pool::get_local(&HEADER_LISTS);
        }
        self.0.push(field);
    }

    /// Sets the field `name` and removes all earlier fields of that name.
    #[doc(alias = "set")]
    pub fn insert(&mut self, name: HeaderName, value: HeaderValue) {
        let mut matching = self.0.iter_mut().filter(|(other, _)| *other == name);
        let Some((_, existing)) = matching.next() else {
            self.push((name, value));
            return;
        };
        *existing = value;
        if matching.next().is_some() {
            // The first field has the new value; the others are removed.
            let mut has_first = false;
            self.0.retain(|(other, _)| *other != name || !std::mem::replace(&mut has_first, true));
        }
    }

    /// Sets the field `name` unless the list already has such a field.
    #[doc(alias = "if_not_present")]
    #[doc(alias = "or_insert")]
    pub fn insert_if_not_present(&mut self, name: HeaderName, value: HeaderValue) {
        if self.get(&name).is_none() {
            self.push((name, value));
        }
    }

    /// Sets each of these fields unless the list already has a field of that name. The names in
    /// `fields` must all differ.
    pub fn insert_all_if_not_present<'f>(
        &mut self,
        fields: impl IntoIterator<Item = &'f (HeaderName, HeaderValue)>,
    ) {
        let existing_len = self.0.len();
        for (name, value) in fields {
            if self.0[..existing_len].iter().all(|(other, _)| other != name) {
                self.push((name.clone(), value.clone()));
            }
        }
    }

    /// Adds a field and keeps existing fields of the same name.
    pub fn append(&mut self, name: HeaderName, value: HeaderValue) {
        self.push((name, value));
    }

    /// The first value of the field `name`.
    #[must_use]
    pub fn get(&self, name: &HeaderName) -> Option<&HeaderValue> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| value)
    }

    /// The first value of the field `name` (case-insensitive), if it is text.
    #[must_use]
    pub fn get_str(&self, name: &str) -> Option<&str> {
        let mut fields = self.iter();
        let (_, value) = fields.find(|(other, _)| other.as_str().eq_ignore_ascii_case(name))?;
        value.to_str().ok()
    }

    /// Declares that the response depends on the request field `name`: adds the name to `Vary`
    /// unless `Vary` already lists it or is `*`. Panics if the name is not in lower case.
    pub fn add_vary(&mut self, name: &'static str) {
        self.add_vary_name(&HeaderName::from_static(name));
    }

    /// As [`Headers::add_vary`], for a name that is only known at run time.
    pub(crate) fn add_vary_name(&mut self, name: &HeaderName) {
        let lists_name = |value: &HeaderValue| {
            let mut names = value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
            names.any(|listed| {
                listed == b"*" || listed.eq_ignore_ascii_case(name.as_str().as_bytes())
            })
        };
        if !self.iter().any(|(other, value)| *other == VARY && lists_name(value)) {
            self.push((VARY, HeaderValue::from(name.clone())));
        }
    }

    /// Removes every field called `name`.
    pub fn remove(&mut self, name: &HeaderName) {
        self.0.retain(|(other, _)| other != name);
    }

    /// All fields in order.
    pub fn iter(&self) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
        self.0.iter().map(|(name, value)| (name, value))
    }

    /// The number of fields.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Extend<(HeaderName, HeaderValue)> for Headers {
    fn extend<I: IntoIterator<Item = (HeaderName, HeaderValue)>>(&mut self, fields: I) {
        for field in fields {
            self.push(field);
        }
    }
}

impl Clone for Headers {
    fn clone(&self) -> Self {
        let mut clone = Self::new();
        clone.extend(self.iter().map(|(name, value)| (name.clone(), value.clone())));
        clone
    }
}

impl Drop for Headers {
    fn drop(&mut self) {
        if self.0.capacity() > 0 {
            Pool::put_local(&HEADER_LISTS, std::mem::take(&mut self.0));
        }
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::SET_COOKIE;

    #[test]
    fn catches_a_panic_in_the_destructor_of_an_extension() {
        #[derive(Clone)]
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("panic in the destructor");
            }
        }
        let mut response = Response::new(StatusCode::OK);
        response.extensions_mut().insert(Bomb);
        drop(response);
    }

    #[test]
    fn insert_replaces_all_and_append_adds() {
        let value = HeaderValue::from_static;
        let mut fields = Headers::new();
        fields.append(SET_COOKIE, value("a"));
        fields.append(VARY, value("b"));
        fields.append(SET_COOKIE, value("c"));
        fields.insert_if_not_present(VARY, value("ignored"));
        assert_eq!(fields.len(), 3);
        fields.insert(SET_COOKIE, value("d"));
        let all: Vec<_> = fields.iter().map(|(_, value)| value.to_str().expect("ASCII")).collect();
        assert_eq!(all, ["d", "b"]);
        assert_eq!((fields.get_str("VARY"), fields.get_str("etag")), (Some("b"), None));
        fields.remove(&VARY);
        assert_eq!(fields.len(), 1);
    }

    #[test]
    fn vary_names_each_field_once() {
        let mut fields = Headers::new();
        fields.append(VARY, HeaderValue::from_static("Accept , Origin"));
        for name in ["origin", "accept-encoding", "accept", "accept-encoding", "cookie"] {
            fields.add_vary(name);
        }
        let values_of = |fields: &Headers| {
            let values = fields.iter().map(|(_, value)| value.to_str().expect("ASCII").to_owned());
            values.collect::<Vec<_>>()
        };
        assert_eq!(values_of(&fields), ["Accept , Origin", "accept-encoding", "cookie"]);
        fields.insert(VARY, HeaderValue::from_static("*"));
        fields.add_vary("origin");
        assert_eq!(values_of(&fields), ["*"]);
    }
}
