//! Entity tags and conditional requests.

use crate::cache::request_like;
use crate::collect::{Collected, collect_body};
use http::header::{CACHE_CONTROL, ETAG, SET_COOKIE};
use http::{HeaderValue, Method, StatusCode};
use peregrine_web::precondition::{
    PreconditionOutcome, Validators, not_modified, precondition_failed,
};
use peregrine_web::{Body, IntoResponse, Middleware, Request, RequestHead, Response, Service};
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// The default size limit of content that gets a tag.
const HASHED_BYTES_MAX: u64 = 1024 * 1024;

/// Adds an `ETag` to responses. Sends a 304 to clients that already have the same content, and a
/// 412 if `If-Match` names other content (RFC 9110, section 13).
///
/// ```
/// use peregrine::App;
/// use peregrine::cache::Etag;
///
/// let client = App::new().wrap(Etag::new()).get("/", || "a page").test();
/// let first = client.get("/").send_blocking();
/// let tag = first.header("etag").unwrap();
/// let again = client.get("/").header("if-none-match", tag).send_blocking();
/// assert_eq!((again.status().as_u16(), again.text().as_str()), (304, ""));
/// ```
///
/// - **Requests**: GET and HEAD. The handler always runs; only the transfer is saved. For unsafe
///   methods, check conditions before making changes with
///   [`Preconditions`](peregrine_web::extract::Preconditions).
/// - **Validators set by the handler**: an `ETag` or `Last-Modified` from the handler is used as
///   is. A handler that knows them without generating the content is cheaper.
/// - **The tag** is 128 bits of the SHA-256 of the content, the same on all workers and machines.
/// - **Content**: complete content and streams of known length, up to 1 MiB ([`Etag::bytes_max`]);
///   never streams of unknown length.
/// - **Responses**: a 200 gets a tag unless it has `Cache-Control: no-store`. Conditions apply to
///   all 2xx responses.
/// - **HEAD**: a response has the fields of the GET response if its content is generated, as it is
///   by GET routes. Without content, as from a proxy, the response keeps its length and gets no
///   tag.
/// - **Ranges** are left to the handler. A handler without tags may send a part of another version
///   than the one the client has. Therefore, if the request has a tag (`If-Range`, `If-None-Match`,
///   `If-Match`) or a date that differs from the part's, the handler is called again without
///   `Range`, and the client gets the whole content. Put middleware that must run only once for
///   each request, such as sessions and rate limits, outside (add it before) `Etag`.
/// - **A 304** has the fields of the response except those that describe the omitted content. **A
///   412** has only its tag and its cookies.
///
/// # With compression
///
/// Put `Etag` inside (add it after) `Compression`. The tag is then computed before compression;
/// `Compression` makes it weak, all codings share it, and a 304 costs no compression. In the
/// reverse order, only content that is compressed in full before it is sent gets a tag, and each
/// coding is hashed separately.
#[doc(alias = "conditional_get")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a middleware does nothing until it is added to an application or a scope"]
pub struct Etag {
    bytes_max: u64,
    is_weak: bool,
}

impl Etag {
    /// Creates strong tags: two responses with the same tag are identical byte for byte.
    pub const fn new() -> Self {
        Self { bytes_max: HASHED_BYTES_MAX, is_weak: false }
    }

    /// Creates weak tags, for content that outer middleware changes without changing its meaning.
    /// They do not work with ranges and `If-Match`.
    pub const fn weak(mut self) -> Self {
        self.is_weak = true;
        self
    }

    /// Sets the size limit of content that is hashed. The default is 1 MiB.
    pub const fn bytes_max(mut self, bytes: u64) -> Self {
        self.bytes_max = bytes;
        self
    }

    /// Adds a tag to the response if it should have one and has none yet.
    async fn add_etag(&self, response: &mut Response, is_head: bool) {
        let has_tag = response.headers.get(&ETAG).is_some();
        let permits_storing = |value: &HeaderValue| {
            !value.as_bytes().to_ascii_lowercase().windows(8).any(|part| part == b"no-store")
        };
        let is_storable = response
            .headers
            .iter()
            .filter(|(name, _)| **name == CACHE_CONTROL)
            .all(|(_, value)| permits_storing(value));
        // Content of unknown length can take forever: it could be an event stream.
        let is_short = response.body.length().is_some_and(|length| length <= self.bytes_max);
        // A handler that responds to HEAD itself has generated no content.
        let has_content = !is_head || response.body.length() != Some(0);
        if has_tag || !is_storable || !is_short || !has_content || response.status != StatusCode::OK
        {
            return;
        }
        if response.body.as_slice().is_none() {
            let body = std::mem::take(&mut response.body);
            response.body = match collect_body(body, self.bytes_max, None).await {
                Collected::Complete(bytes) => Body::from(bytes),
                Collected::Incomplete(body) => body,
            };
        }
        if let Some(content) = response.body.as_slice() {
            let tag = compute_etag(content, self.is_weak);
            response.headers.insert(ETAG, tag);
        }
    }
}

/// Computes the tag of this content.
fn compute_etag(content: &[u8], is_weak: bool) -> HeaderValue {
    let hash = Sha256::digest(content);
    let mut tag = String::from(if is_weak { "W/\"" } else { "\"" });
    for byte in &hash[..16] {
        // Writing to a string never fails.
        let _ = write!(tag, "{byte:02x}");
    }
    tag.push('"');
    HeaderValue::try_from(tag).expect("digits and quotes are plain text")
}

impl Default for Etag {
    fn default() -> Self {
        Self::new()
    }
}

impl Middleware for Etag {
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        let method = request.method();
        if !matches!(method, Method::GET | Method::HEAD) {
            return next.call(request).await;
        }
        let head = request.parts.head.share();
        let full_request = without_range(&request);
        let mut response = next.call(request).await;
        if let Some(full_request) =
            full_request.filter(|_| !is_full_or_verified_part(&response, &head))
        {
            response = next.call(full_request).await;
        }
        // RFC 9110 §13.2.1: conditions apply only if the response without them would be a success.
        if !response.status.is_success() {
            return response;
        }
        self.add_etag(&mut response, method == Method::HEAD).await;
        let validators = Validators::from_headers(&response.headers);
        if validators == Validators::default() {
            return response;
        }
        match validators.evaluate(&head) {
            PreconditionOutcome::Proceed => response,
            PreconditionOutcome::NotModified => {
                not_modified(&mut response);
                response
            }
            PreconditionOutcome::Failed => {
                // The handler has run, so the cookies that it set are in effect: without the new
                // cookie of its session, for example, the client would lose the session.
                let mut failed = precondition_failed(validators).into_response();
                for (name, value) in response.headers.iter() {
                    if *name == SET_COOKIE {
                        failed.headers.append(name.clone(), value.clone());
                    }
                }
                failed
            }
        }
    }
}

/// The conditions that may accompany `Range`.
const RANGE_CONDITIONS: [&str; 3] = ["if-range", "if-none-match", "if-match"];

/// Returns the request without `Range`, if it has a `Range` with a condition.
fn without_range(request: &Request) -> Option<Request> {
    let head = &request.parts.head;
    let has = |name: &str| head.header_bytes(name).is_some();
    if !has("range") || !RANGE_CONDITIONS.into_iter().any(has) || request.body.length() != Some(0) {
        return None;
    }
    let mut full_head = head.share();
    // RFC 9110 §13.1.5: If-Range has no meaning without Range.
    full_head.remove_fields(&["range", "if-range"]);
    Some(request_like(&request.parts, full_head))
}

/// Whether the response is complete, or the handler could check that it is a part of the version
/// named by the request's conditions.
fn is_full_or_verified_part(response: &Response, head: &RequestHead) -> bool {
    if response.status != StatusCode::PARTIAL_CONTENT {
        return true;
    }
    let validators = Validators::from_headers(&response.headers);
    // RFC 9110 §13.2.2: If-None-Match and If-Match come before Range, and need the tag of the
    // whole.
    let has_tags = RANGE_CONDITIONS[1..].iter().any(|name| head.header_bytes(name).is_some());
    validators.if_range_matches(head) && (validators.etag.is_some() || !has_tags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_compression::Compression;
    use peregrine_web::extract::Path;
    use peregrine_web::response::AppendHeaders;
    use peregrine_web::testing::{TestClient, TestResponse};
    use peregrine_web::{App, HandlerExt};
    use std::cell::Cell;
    use std::rc::Rc;

    fn client(etag: Etag) -> TestClient {
        App::new()
            .wrap(etag)
            .get("/text", || "content")
            .get("/own", || ([("etag", "\"own\""), ("content-language", "en")], "content"))
            .get("/dated", || ([("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT")], "content"))
            .get("/secret", || ([("cache-control", "private, NO-STORE")], "content"))
            .get("/twice", || {
                let control = |value| AppendHeaders([("cache-control", value)]);
                (control("private"), control("no-store"), "content")
            })
            .get("/missing", || (StatusCode::NOT_FOUND, [("etag", "\"m\"")], "content"))
            .get("/partial", || (StatusCode::PARTIAL_CONTENT, "con"))
            .get("/long", || "x".repeat(100))
            .get("/empty", || "")
            .post("/text", || "content")
            .on(Method::HEAD, "/own-head", || [("x-made", "no")])
            .test()
    }

    fn get(client: &TestClient, path: &str, name: &str, value: &str) -> TestResponse {
        client.get(path).header(name, value).send_blocking()
    }

    #[test]
    fn unchanged_content_keeps_its_tag_and_is_not_sent_again() {
        let client = client(Etag::new());
        let first = client.get("/text").send_blocking();
        let tag = first.header("etag").expect("a tag").to_owned();
        assert_eq!((tag.len(), first.text().as_str()), (34, "content"));
        for sent in [tag.clone(), format!("\"a\", W/{tag}"), "*".to_owned()] {
            let not_modified = get(&client, "/text", "if-none-match", &sent);
            assert_eq!(
                (not_modified.status().as_u16(), not_modified.header("etag")),
                (304, Some(tag.as_str()))
            );
            assert_eq!(
                (not_modified.header("content-type"), not_modified.text().as_str()),
                (None, "")
            );
        }
        assert_eq!(get(&client, "/text", "if-none-match", "\"other\"").status(), 200);
        assert_eq!(get(&client, "/text", "if-match", &tag).status(), 200);
        let failed = get(&client, "/text", "if-match", "\"other\"");
        assert_eq!((failed.status().as_u16(), failed.header("etag")), (412, Some(tag.as_str())));
        assert!(failed.text().contains("/problems/precondition-failed"), "{}", failed.text());
    }

    #[test]
    fn validators_of_the_handler_take_precedence() {
        let client = client(Etag::new());
        assert_eq!(client.get("/own").send_blocking().header("etag"), Some("\"own\""));
        let not_modified = get(&client, "/own", "if-none-match", "\"own\"");
        assert_eq!(
            (not_modified.status().as_u16(), not_modified.header("content-language")),
            (304, None)
        );
        let since = get(&client, "/dated", "if-modified-since", "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(since.status(), 304);
        assert!(since.header("last-modified").is_some());
        let before = get(&client, "/dated", "if-unmodified-since", "Sun, 06 Nov 1994 08:49:36 GMT");
        assert_eq!(before.status(), 412);
    }

    #[test]
    fn cookies_are_set_even_if_the_content_is_not_sent() {
        let page = || {
            let cookies = [("set-cookie", "a=1"), ("set-cookie", "b=2")];
            ([("etag", "\"own\"")], AppendHeaders(cookies), "content")
        };
        let client = App::new().wrap(Etag::new()).get("/", page).test();
        let conditions = [("if-none-match", "\"own\"", 304), ("if-match", "\"other\"", 412)];
        for (name, tag, status) in conditions {
            let response = get(&client, "/", name, tag);
            assert_eq!(response.status().as_u16(), status);
            assert_eq!(response.header_values("set-cookie").collect::<Vec<_>>(), ["a=1", "b=2"]);
        }
    }

    #[test]
    fn incomplete_unstorable_and_long_content_gets_no_tag() {
        let client = client(Etag::new().bytes_max(99));
        for path in ["/secret", "/twice", "/partial", "/long"] {
            assert_eq!(client.get(path).send_blocking().header("etag"), None, "{path}");
        }
        assert!(client.get("/empty").send_blocking().header("etag").is_some());
        assert_eq!(get(&client, "/missing", "if-none-match", "\"m\"").status(), 404);
        assert_eq!(client.head("/own-head").send_blocking().header("etag"), None);
        let posted = client.post("/text").header("if-match", "\"x\"").send_blocking();
        assert_eq!((posted.status().as_u16(), posted.header("etag")), (200, None));
    }

    #[test]
    fn head_has_the_tag_of_get() {
        let client = client(Etag::new().weak());
        let tag = client.get("/text").send_blocking().header("etag").expect("a tag").to_owned();
        assert!(tag.starts_with("W/\""));
        assert_eq!(client.head("/text").send_blocking().header("etag"), Some(tag.as_str()));
        let not_modified =
            client.head("/text").header("if-none-match", tag.as_str()).send_blocking();
        assert_eq!(not_modified.status(), 304);
        assert_eq!(
            get(&client, "/text", "if-match", &tag).status(),
            412,
            "If-Match never matches a weak tag"
        );
    }

    /// Chunks of known or unknown total length, and how many were polled.
    struct Chunks {
        remaining: u64,
        is_known: bool,
        polls: Rc<Cell<u64>>,
    }

    impl http_body::Body for Chunks {
        type Data = bytes::Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
            let frame = self.remaining.checked_sub(1).map(|remaining| {
                self.remaining = remaining;
                self.polls.set(self.polls.get() + 1);
                Ok(http_body::Frame::data(bytes::Bytes::from_static(b"0123456789")))
            });
            std::task::Poll::Ready(frame)
        }

        fn size_hint(&self) -> http_body::SizeHint {
            if self.is_known {
                return http_body::SizeHint::with_exact(self.remaining * 10);
            }
            http_body::SizeHint::default()
        }
    }

    #[test]
    fn only_short_streams_of_known_length_are_hashed() {
        let polls = Rc::new(Cell::new(0));
        let counter = Rc::clone(&polls);
        let stream = move |Path((chunks, is_known)): Path<(u64, bool)>| {
            let polls = Rc::clone(&counter);
            Body::new(Chunks { remaining: chunks, is_known, polls })
        };
        let client =
            App::new().wrap(Etag::new().bytes_max(50)).get("/{chunks}/{known}", stream).test();
        let short = client.get("/5/true").send_blocking();
        let tag = short.header("etag").expect("a tag").to_owned();
        assert_eq!(short.text().len(), 50);
        assert_eq!(get(&client, "/5/true", "if-none-match", &tag).status(), 304);
        for path in ["/6/true", "/5/false"] {
            polls.set(0);
            let response = client.get(path).send_blocking();
            assert_eq!((response.header("etag"), polls.get()), (None, 0), "{path}");
            assert!(response.text().len() >= 50);
        }
    }

    /// A ten-byte file in several versions, from a handler that supports ranges but not tags, like
    /// tower-http's `ServeDir`.
    fn versions(etag: Etag) -> (TestClient, Rc<Cell<&'static str>>) {
        let now = Rc::new(Cell::new("aaaaaaaaaa"));
        let current = Rc::clone(&now);
        let serve = move |request: Request| {
            let content = current.get();
            let day = if content.starts_with('a') { "Sun, 06" } else { "Mon, 07" };
            let modified = format!("{day} Nov 1994 08:49:37 GMT");
            let dated = [("last-modified", modified.as_str())];
            match request.header("range") {
                Some("bytes=5-") => {
                    let part = [("content-range", "bytes 5-9/10")];
                    (StatusCode::PARTIAL_CONTENT, dated, part, &content[5..]).into_response()
                }
                _ => (dated, content).into_response(),
            }
        };
        let tagged = |request: Request| {
            let status = match request.header("range") {
                Some(_) => StatusCode::PARTIAL_CONTENT,
                None => StatusCode::OK,
            };
            (status, [("etag", "\"own\"")], "bytes")
        };
        let app = App::new().wrap(etag).get("/file", serve).get("/own", tagged);
        (app.test(), now)
    }

    #[test]
    fn a_resumed_download_never_mixes_versions() {
        for etag in [Etag::new(), Etag::new().weak(), Etag::new().bytes_max(5)] {
            let (client, now) = versions(etag);
            let resume = |condition: &str| {
                let request = client.get("/file").header("range", "bytes=5-");
                let part = request.header("if-range", condition).send_blocking();
                (part.status().as_u16(), part.text())
            };
            let first = client.get("/file").send_blocking();
            let tag = first.header("etag").unwrap_or("\"none\"").to_owned();
            let date = first.header("last-modified").expect("a date").to_owned();
            assert_eq!(resume(&date), (206, "aaaaa".to_owned()), "the date is that of the part");
            assert_eq!(resume(&tag), (200, "aaaaaaaaaa".to_owned()), "{etag:?}");
            now.set("bbbbbbbbbb");
            for condition in [tag.as_str(), date.as_str(), "\"another\"", "W/\"x\"", "nonsense"] {
                let part = resume(condition);
                assert_eq!(part, (200, "bbbbbbbbbb".to_owned()), "{etag:?}, {condition}");
            }
            let plain = client.get("/file").header("range", "bytes=5-").send_blocking();
            assert_eq!((plain.status().as_u16(), plain.text().as_str()), (206, "bbbbb"));
        }
    }

    #[test]
    fn tag_conditions_are_evaluated_before_ranges() {
        let (client, now) = versions(Etag::new());
        let tag = client.get("/file").send_blocking().header("etag").expect("a tag").to_owned();
        let part = |name: &str, value: &str| {
            client.get("/file").header("range", "bytes=5-").header(name, value).send_blocking()
        };
        assert_eq!(part("if-none-match", &tag).status(), 304);
        assert_eq!(part("if-match", &tag).text(), "aaaaaaaaaa");
        now.set("bbbbbbbbbb");
        assert_eq!(part("if-none-match", &tag).text(), "bbbbbbbbbb");
        assert_eq!(part("if-match", &tag).status(), 412);
    }

    #[test]
    fn a_handler_with_its_own_tags_serves_ranges() {
        let (client, _) = versions(Etag::new());
        let part = |name: &str, value: &str| {
            let request = client.get("/own").header("range", "bytes=0-4").header(name, value);
            request.send_blocking().status().as_u16()
        };
        assert_eq!((part("if-range", "\"own\""), part("if-match", "\"own\"")), (206, 206));
        assert_eq!((part("if-none-match", "\"own\""), part("if-range", "\"old\"")), (304, 200));
    }

    /// An empty body with the length of the GET response, like a proxy's response to HEAD.
    struct Promised;

    impl http_body::Body for Promised {
        type Data = bytes::Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
            std::task::Poll::Ready(None)
        }

        fn size_hint(&self) -> http_body::SizeHint {
            http_body::SizeHint::with_exact(60)
        }
    }

    #[test]
    fn a_head_response_without_content_keeps_its_length_and_gets_no_tag() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            for (tag, is_head) in [(None, true), (None, false), (Some("\"own\""), true)] {
                let mut response = Response::new(StatusCode::OK).with_body(Body::new(Promised));
                if let Some(tag) = tag {
                    response.headers.insert(ETAG, HeaderValue::from_static(tag));
                }
                Etag::new().add_etag(&mut response, is_head).await;
                assert_eq!((response.header("etag"), response.body.length()), (tag, Some(60)));
            }
        });
    }

    #[test]
    fn compression_makes_a_tag_weak_and_all_codings_share_it() {
        let page = || ([("content-type", "text/plain")], "many words, ".repeat(1000));
        let client = App::new()
            .wrap(Compression::new())
            .wrap(Etag::new())
            .get("/", page.body_limit(1))
            .test();
        let packed = get(&client, "/", "accept-encoding", "gzip");
        let tag = packed.header("etag").expect("a tag").to_owned();
        assert!(tag.starts_with("W/\"") && packed.header("content-encoding") == Some("gzip"));
        let plain = client.get("/").send_blocking();
        assert_eq!(plain.header("etag"), tag.strip_prefix("W/"));
        for coding in ["gzip", "identity"] {
            let response = client.get("/").header("accept-encoding", coding);
            let response = response.header("if-none-match", tag.as_str()).send_blocking();
            assert_eq!(
                (response.status().as_u16(), response.header("vary")),
                (304, Some("accept-encoding"))
            );
            assert_eq!(response.header("content-encoding"), None);
        }
    }
}
