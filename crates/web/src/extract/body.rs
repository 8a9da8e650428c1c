//! Extractors for the raw body: bytes, text, a stream, or the whole request.

use super::FromRequest;
use crate::http::body::{Body, pool};
use crate::http::problem::Problem;
use crate::http::request::Request;
use bytes::Bytes;
use http::StatusCode;

/// Passes the whole body to `read`. A body that is already complete is not copied. Any other body
/// is collected in a buffer, which returns to the thread's pool afterwards.
pub(crate) async fn read_body<T>(body: Body, read: impl FnOnce(&[u8]) -> T) -> Result<T, Problem> {
    if let Some(bytes) = body.as_slice() {
        return Ok(read(bytes));
    }
    let limit = body.buffer_limit();
    let buffer = body.collect(limit).await?;
    let result = read(&buffer);
    pool::put(buffer);
    Ok(result)
}

/// Whether the request has neither a body nor a `Content-Type`. With a `Content-Type`, it has a
/// body, even if the body is empty.
pub(super) fn has_no_body(request: &Request) -> bool {
    request.body.length() == Some(0) && request.parts.head.header_bytes("content-type").is_none()
}

/// Implements [`FromRequest::optional_from_request`] for a value that is absent if the request has
/// neither a body nor a `Content-Type`.
///
/// # Errors
/// Those of [`FromRequest::from_request`].
pub async fn optional_from_body<T: FromRequest>(request: Request) -> Result<Option<T>, Problem> {
    if has_no_body(&request) {
        return Ok(None);
    }
    T::from_request(request).await.map(Some)
}

/// The whole body, up to its limit ([`DEFAULT_BODY_BYTES_MAX`](super::DEFAULT_BODY_BYTES_MAX)).
///
/// `Option<Bytes>` is `None` for a request with neither a body nor a `Content-Type`.
///
/// ```
/// async fn count(bytes: peregrine::bytes::Bytes) -> String {
///     format!("{} bytes", bytes.len())
/// }
/// # let _ = count;
/// ```
impl FromRequest for Bytes {
    async fn from_request(request: Request) -> Result<Self, Problem> {
        let limit = request.body.buffer_limit();
        Ok(request.body.into_bytes(limit).await?)
    }

    async fn optional_from_request(request: Request) -> Result<Option<Self>, Problem> {
        optional_from_body(request).await
    }
}

/// The whole body, up to its limit ([`DEFAULT_BODY_BYTES_MAX`](super::DEFAULT_BODY_BYTES_MAX)).
///
/// `Option<Vec<u8>>` is `None` for a request with neither a body nor a `Content-Type`.
impl FromRequest for Vec<u8> {
    async fn from_request(request: Request) -> Result<Self, Problem> {
        let limit = request.body.buffer_limit();
        Ok(request.body.collect(limit).await?)
    }

    async fn optional_from_request(request: Request) -> Result<Option<Self>, Problem> {
        optional_from_body(request).await
    }
}

/// The whole body as text, up to its limit
/// ([`DEFAULT_BODY_BYTES_MAX`](super::DEFAULT_BODY_BYTES_MAX)). It must be UTF-8, regardless of the
/// `Content-Type`.
///
/// `Option<String>` is `None` for a request with neither a body nor a `Content-Type`.
impl FromRequest for String {
    async fn from_request(request: Request) -> Result<Self, Problem> {
        let limit = request.body.buffer_limit();
        let bytes = request.body.collect(limit).await?;
        String::from_utf8(bytes).map_err(|error| {
            let offset = error.utf8_error().valid_up_to();
            Problem::new(
                StatusCode::BAD_REQUEST,
                "invalid-utf8",
                format!("the body must be UTF-8 text, but the byte at offset {offset} is not"),
            )
            .with_member("offset", offset)
        })
    }

    async fn optional_from_request(request: Request) -> Result<Option<Self>, Problem> {
        optional_from_body(request).await
    }
}

/// The body as a stream of chunks. `Option<Body>` is always `Some`.
///
/// ```
/// use peregrine::web::{Body, Problem};
///
/// async fn count(mut body: Body) -> Result<String, Problem> {
///     let mut bytes = 0;
///     while let Some(chunk) = body.next().await {
///         bytes += chunk?.len();
///     }
///     Ok(format!("{bytes} bytes"))
/// }
/// # let _ = count;
/// ```
impl FromRequest for Body {
    async fn from_request(request: Request) -> Result<Self, Problem> {
        Ok(request.body)
    }
}

/// The whole request.
impl FromRequest for Request {
    async fn from_request(request: Request) -> Result<Self, Problem> {
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::super::DEFAULT_BODY_BYTES_MAX;
    use super::super::test_support::{assert_ready, incoming, post};
    use super::*;

    #[test]
    fn extracts_the_body_as_bytes_text_or_a_stream() {
        for body in [|| Body::from("caf\u{e9}"), || incoming(&["caf", "\u{e9}"], 5)] {
            let request = || post("/", &[], body());
            assert_eq!(assert_ready(Bytes::from_request(request())).expect("bytes"), "caf\u{e9}");
            assert_eq!(
                assert_ready(Vec::from_request(request())).expect("bytes"),
                "caf\u{e9}".as_bytes()
            );
            assert_eq!(assert_ready(String::from_request(request())).expect("UTF-8"), "caf\u{e9}");
            let mut body = assert_ready(Body::from_request(request())).expect("a body");
            assert!(
                assert_ready(body.next()).expect("a chunk").expect("no error").starts_with(b"caf")
            );
            assert_eq!(
                assert_ready(Request::from_request(request())).expect("the request").path(),
                "/"
            );
        }
    }

    #[test]
    fn text_that_is_not_utf8_is_a_400_with_the_offset() {
        let request = post("/", &[], Body::from(&b"ab\xFFcd"[..]));
        let problem = assert_ready(String::from_request(request)).expect_err("not UTF-8");
        assert_eq!((problem.status.as_u16(), problem.kind.as_ref()), (400, "invalid-utf8"));
        assert!(problem.detail.contains("offset 2"), "{}", problem.detail);
        assert_eq!(problem.members, [("offset".into(), 2.into())]);
    }

    #[test]
    fn a_body_over_its_limit_is_a_413_with_the_limit() {
        let problem = assert_ready(Bytes::from_request(post("/", &[], incoming(&["12345"], 4))));
        let problem = problem.expect_err("five bytes exceed the limit of four");
        assert_eq!((problem.status.as_u16(), problem.kind.as_ref()), (413, "body-too-large"));
        assert!(problem.detail.contains("4 bytes"));
        assert_eq!(problem.members, [("limit".into(), 4.into())]);
    }

    #[test]
    fn a_stream_without_a_limit_has_the_default_limit() {
        let chunk = vec![b' '; 1024 * 1024];
        let body = || Body::new(http_body_util::StreamBody::new(Chunks(3, chunk.clone())));
        let problem =
            assert_ready(String::from_request(post("/", &[], body()))).expect_err("too large");
        assert_eq!(problem.members, [("limit".into(), DEFAULT_BODY_BYTES_MAX.into())]);
    }

    #[test]
    fn a_body_that_ends_early_is_a_400_of_its_own_kind() {
        let (writer, reader) = crate::http::body::pipe::pipe(100, Some(10));
        writer.send(Bytes::from_static(b"half"));
        drop(writer);
        let request = post("/", &[], Body::incoming(reader, 100));
        let problem = assert_ready(Bytes::from_request(request)).expect_err("an incomplete body");
        assert_eq!((problem.status.as_u16(), problem.kind.as_ref()), (400, "incomplete-body"));
    }

    /// The number of chunks that remain, and the content of each.
    struct Chunks(u8, Vec<u8>);

    impl futures_core::Stream for Chunks {
        type Item = Result<http_body::Frame<Bytes>, std::io::Error>;

        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Self::Item>> {
            let remaining = self.0.checked_sub(1);
            self.0 = remaining.unwrap_or_default();
            let frame = http_body::Frame::data(Bytes::copy_from_slice(&self.1));
            std::task::Poll::Ready(remaining.map(|_| Ok(frame)))
        }
    }
}
