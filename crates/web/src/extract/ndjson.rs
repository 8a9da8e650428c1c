//! Newline-delimited JSON, in requests and responses.

use crate::extract::content_type::check_content_type;
use crate::extract::{FromRequest, json_from_line, optional_from_body};
use crate::http::body::{Body, BodyError};
use crate::http::coop::yield_now;
use crate::http::memory::{MemoryPressure, MemoryReservation, pressure};
use crate::http::problem::Problem;
use crate::http::request::Request;
use crate::http::response::{IntoResponse, Response};
use bytes::{Buf, Bytes, BytesMut};
use futures_core::Stream;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use http_body::{Body as HttpBody, Frame};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The default maximum length of a line: 64 KiB.
pub const DEFAULT_LINE_BYTES_MAX: usize = 64 * 1024;

/// The number of lines that are read or written before the task yields to other tasks.
const LINES_PER_POLL: u32 = 256;
/// A response frame is sent once it has this many bytes.
const FRAME_BYTES_TARGET: usize = 16 * 1024;
/// A response frame is sent once it has this many items, even short ones, because each item may be
/// expensive to produce.
const FRAME_ITEMS: usize = 32;

const MEDIA_TYPE: &str = "application/x-ndjson";

/// The JSON documents of a request, one per line, read as they arrive (`application/x-ndjson`,
/// `application/ndjson`, `application/jsonl`). [`NdJson::response`] creates a response of such
/// lines.
///
/// If a line cannot be read as a `T`, [`NdJson::next`] returns a [`Problem`] with the line's
/// number. If a line is longer than 64 KiB ([`NdJson::line_bytes_max`]), it also returns a problem,
/// and stops reading. Empty lines are skipped. The whole body has the usual limit (see [`Body`]):
/// set [`body_limit`](crate::HandlerExt::body_limit) if a stream may be longer. `Option<NdJson<T>>`
/// is `None` for a request with neither a body nor a `Content-Type`.
///
/// ```
/// use peregrine::App;
/// use peregrine::web::Problem;
/// use peregrine::web::extract::NdJson;
///
/// async fn sum(mut numbers: NdJson<u64>) -> Result<String, Problem> {
///     let mut sum = 0;
///     while let Some(number) = numbers.next().await {
///         sum += number?;
///     }
///     Ok(sum.to_string())
/// }
/// let client = App::new().post("/sum", sum).test();
/// let post = |text: &'static str| {
///     let request = client.post("/sum").header("content-type", "application/x-ndjson");
///     request.body(text).send_blocking()
/// };
/// assert_eq!(post("1\n2\n3\n").text(), "6");
/// assert_eq!(post("1\ntwo\n").status(), 400);
/// ```
#[doc(alias = "JsonLines")]
pub struct NdJson<T> {
    body: Body,
    line_bytes_max: usize,
    /// Received bytes that are not yet parsed.
    bytes: BytesMut,
    reservation: MemoryReservation,
    /// The length of the prefix of `bytes` that is known to contain no line break.
    searched: usize,
    /// The number of the last line that was read; lines count from 1.
    line_number: u64,
    /// Lines, including empty ones, since the task last yielded.
    work_since_yield: u32,
    /// The body has ended, or reading was stopped because of an error.
    is_finished: bool,
    value: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> NdJson<T> {
    fn new(body: Body) -> Self {
        Self {
            body,
            line_bytes_max: DEFAULT_LINE_BYTES_MAX,
            bytes: BytesMut::new(),
            reservation: MemoryReservation::empty(),
            searched: 0,
            line_number: 0,
            work_since_yield: 0,
            is_finished: false,
            value: PhantomData,
        }
    }

    /// Sets the maximum length of a line in bytes.
    #[must_use]
    pub fn line_bytes_max(mut self, bytes: usize) -> Self {
        self.line_bytes_max = bytes;
        self
    }

    /// Returns the next document, or `None` at the end. If a line cannot be read as a `T`, the
    /// following lines can still be read.
    pub async fn next(&mut self) -> Option<Result<T, Problem>> {
        poll_fn(|cx| self.poll_line(cx)).await
    }

    fn poll_line(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, Problem>>> {
        // Whether this poll has received more of a line that is still incomplete.
        let mut has_grown = false;
        loop {
            if self.work_since_yield >= LINES_PER_POLL {
                self.work_since_yield = 0;
                yield_now(cx);
                return Poll::Pending;
            }
            if let Some(line) = self.next_line() {
                self.work_since_yield += 1;
                match line {
                    Ok(line) if line.trim_ascii().is_empty() => continue,
                    Ok(line) => return Poll::Ready(Some(self.parse_line(&line))),
                    Err(problem) => return Poll::Ready(Some(Err(problem))),
                }
            }
            if self.is_finished {
                return Poll::Ready(None);
            }
            if has_grown && pressure() >= MemoryPressure::Critical {
                // Buffering the rest of the line would need even more memory.
                self.finish();
                return Poll::Ready(Some(Err(BodyError::Overloaded.into())));
            }
            let polled = Pin::new(&mut self.body).poll_frame(cx);
            if polled.is_pending() {
                // Waiting for the body already yields to other tasks.
                self.work_since_yield = 0;
            }
            match ready!(polled) {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.bytes.extend_from_slice(&data);
                        self.reservation.resize(self.bytes.capacity());
                        has_grown = true;
                    }
                }
                Some(Err(error)) => {
                    self.finish();
                    return Poll::Ready(Some(Err(error.into())));
                }
                None => self.is_finished = true,
            }
        }
    }

    /// The next line without its line break, if all of it has arrived. After the end of the body,
    /// what remains is a line. A line that is too long is an error, even if it is incomplete.
    fn next_line(&mut self) -> Option<Result<BytesMut, Problem>> {
        let end = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n');
        let length = end.map_or(self.bytes.len(), |end| self.searched + end);
        if length > self.line_bytes_max {
            self.line_number += 1;
            self.finish();
            let (number, limit) = (self.line_number, self.line_bytes_max);
            let detail = format!("line {number} is longer than the limit of {limit} bytes");
            let problem = Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "line-too-long", detail);
            return Some(Err(problem.with_member("line", number).with_member("limit", limit)));
        }
        if end.is_none() && !(self.is_finished && length > 0) {
            self.searched = length;
            return None;
        }
        let line = self.bytes.split_to(length);
        if end.is_some() {
            self.bytes.advance(1);
        }
        if self.bytes.is_empty() {
            // The next line may arrive much later. This drops our handle to the buffer, so that the
            // buffer is freed together with the returned line.
            self.bytes = BytesMut::new();
        }
        self.reservation.resize(self.bytes.capacity());
        self.searched = 0;
        self.line_number += 1;
        Some(Ok(line))
    }

    fn parse_line(&self, line: &[u8]) -> Result<T, Problem> {
        json_from_line(line, self.line_number)
    }

    /// Stops reading and frees the buffer.
    fn finish(&mut self) {
        self.is_finished = true;
        self.body = Body::empty();
        self.bytes = BytesMut::new();
        self.reservation.resize(0);
        self.searched = 0;
    }
}

// `()` has no meaning here: it lets callers write `NdJson::response` without a type.
impl NdJson<()> {
    /// Creates a response with one line for each item, and sends the lines as the items are
    /// produced. Items that are ready at the same time share a frame. If an item is an error or
    /// cannot be serialized, the response is aborted, so that the client does not mistake it for
    /// complete.
    ///
    /// ```
    /// use peregrine::App;
    /// use peregrine::web::extract::NdJson;
    /// # struct Numbers(u8);
    /// # impl futures_core::Stream for Numbers {
    /// #     type Item = Result<u8, std::io::Error>;
    /// #     fn poll_next(
    /// #         mut self: std::pin::Pin<&mut Self>,
    /// #         _: &mut std::task::Context<'_>,
    /// #     ) -> std::task::Poll<Option<Self::Item>> {
    /// #         self.0 += 1;
    /// #         std::task::Poll::Ready((self.0 < 4).then_some(Ok(self.0)))
    /// #     }
    /// # }
    /// // `Numbers` is a stream of `Result<u8, _>`.
    /// let client = App::new().get("/", || NdJson::response(Numbers(0))).test();
    /// assert_eq!(client.get("/").send_blocking().text(), "1\n2\n3\n");
    /// ```
    pub fn response<S, T, E>(items: S) -> Response
    where
        S: Stream<Item = Result<T, E>> + 'static,
        T: Serialize,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let body = Body::new(LinesBody {
            items: Box::pin(items),
            is_finished: false,
            work_since_yield: 0,
            error: None,
        });
        let mut response = body.into_response();
        response.headers.append(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        response
    }
}

impl<T: DeserializeOwned> FromRequest for NdJson<T> {
    async fn from_request(request: Request) -> Result<Self, Problem> {
        let is_ndjson = |essence: &[u8]| {
            [MEDIA_TYPE, "application/ndjson", "application/jsonl"]
                .iter()
                .any(|name| essence.eq_ignore_ascii_case(name.as_bytes()))
        };
        check_content_type(&request.parts.head, MEDIA_TYPE, is_ndjson)?;
        Ok(Self::new(request.body))
    }

    async fn optional_from_request(request: Request) -> Result<Option<Self>, Problem> {
        optional_from_body(request).await
    }
}

impl<T: DeserializeOwned> Stream for NdJson<T> {
    type Item = Result<T, Problem>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_line(cx)
    }
}

impl<T> fmt::Debug for NdJson<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NdJson")
            .field("line", &self.line_number)
            .field("line_bytes_max", &self.line_bytes_max)
            .finish_non_exhaustive()
    }
}

/// A body that writes items as lines.
struct LinesBody<S> {
    items: Pin<Box<S>>,
    /// The stream of items has ended, or an item failed.
    is_finished: bool,
    /// Items since the task last yielded.
    work_since_yield: u32,
    /// The error of an item. The lines before that item are sent first.
    error: Option<BodyError>,
}

impl<S, T, E> HttpBody for LinesBody<S>
where
    S: Stream<Item = Result<T, E>>,
    T: Serialize,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.work_since_yield >= LINES_PER_POLL {
            self.work_since_yield = 0;
            yield_now(cx);
            return Poll::Pending;
        }
        // `complete_len` is the length of the complete lines in `frame`.
        let (mut frame, mut complete_len, mut item_count) = (Vec::new(), 0, 0);
        while !self.is_finished && frame.len() < FRAME_BYTES_TARGET && item_count < FRAME_ITEMS {
            let item = match self.items.as_mut().poll_next(cx) {
                Poll::Pending if frame.is_empty() => {
                    self.work_since_yield = 0;
                    return Poll::Pending;
                }
                Poll::Pending => break,
                Poll::Ready(item) => item,
            };
            item_count += 1;
            self.work_since_yield += 1;
            let result = match item {
                None => {
                    self.is_finished = true;
                    break;
                }
                Some(Ok(item)) => serde_json::to_writer(&mut frame, &item).map_err(Into::into),
                Some(Err(error)) => Err(error.into()),
            };
            if let Err(error) = result {
                // Removes the item, which may have been written in part.
                frame.truncate(complete_len);
                self.is_finished = true;
                self.error = Some(BodyError::Stream(error));
                break;
            }
            frame.push(b'\n');
            complete_len = frame.len();
        }
        if frame.is_empty() {
            return Poll::Ready(self.error.take().map(Err));
        }
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(frame)))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extract::test_support::{assert_ready, from_request, incoming, post};

    const NDJSON: &[(&str, &str)] = &[("content-type", "application/x-ndjson; charset=utf-8")];

    /// Reads a body of these chunks. Returns its numbers, or the statuses and documents of
    /// problems.
    fn read(chunks: &[&'static str], line_bytes_max: usize) -> Vec<Result<u64, (u16, String)>> {
        let request = post("/", NDJSON, incoming(chunks, 10_000));
        let lines = assert_ready(from_request::<NdJson<u64>>(request)).expect("an NDJSON body");
        let mut lines = lines.line_bytes_max(line_bytes_max);
        let mut items = Vec::new();
        while let Some(item) = assert_ready(lines.next()) {
            items.push(item.map_err(|problem| (problem.status.as_u16(), problem.to_json())));
        }
        items
    }

    #[test]
    fn reads_lines_however_the_body_is_split() {
        let text = "1\n22\r\n\n  \n333";
        for cut in 0..text.len() {
            let (left, right) = text.split_at(cut);
            assert_eq!(read(&[left, right], 5), [Ok(1), Ok(22), Ok(333)], "{cut}");
        }
        assert_eq!(read(&[], 5), []);
        assert_eq!(read(&["\n\n"], 5), []);
    }

    #[test]
    fn a_line_that_exceeds_the_memory_limit_of_the_worker_is_a_503() {
        use crate::http::memory::{reserved, set_limit};
        let before = reserved();
        set_limit(Some(before + 3_000));
        let part = "9".repeat(1_000).leak();
        let items = read(&[part, part, part, part, part, "\n1\n"], 10_000);
        set_limit(None);
        assert_eq!(items.len(), 1, "{items:?}");
        assert!(matches!(&items[0], Err((503, _))), "{items:?}");
        assert_eq!(reserved(), before);
    }

    #[test]
    fn yields_to_other_tasks_while_many_lines_are_buffered() {
        for (line, expected) in [("1\n", 2000), ("\n", 0)] {
            let request = post("/", NDJSON, Body::from(line.repeat(2000)));
            let mut lines =
                assert_ready(from_request::<NdJson<u64>>(request)).expect("an NDJSON body");
            let mut cx = Context::from_waker(std::task::Waker::noop());
            let (mut sum, mut yields) = (0, 0);
            loop {
                match lines.poll_line(&mut cx) {
                    Poll::Ready(None) => break,
                    Poll::Ready(Some(item)) => sum += item.expect("a number"),
                    Poll::Pending => yields += 1,
                }
            }
            assert_eq!((sum, yields), (expected, 2000 / LINES_PER_POLL), "{line:?}");
        }
    }

    #[test]
    fn an_invalid_line_is_a_problem_and_the_following_lines_are_read() {
        let items = read(&["1\noops\n\"a\"\n-1\n5"], 100);
        let statuses: Vec<_> =
            items.iter().map(|item| item.as_ref().map_err(|(status, _)| *status)).collect();
        assert_eq!(statuses, [Ok(&1), Err(400), Err(422), Err(422), Ok(&5)]);
        let lines = items.iter().filter_map(|item| item.as_ref().err());
        for ((_, json), line) in lines.zip(2..) {
            assert!(json.contains(&format!("\"line\":{line}")), "{json}");
        }
    }

    #[test]
    fn a_line_over_the_limit_stops_reading_even_if_it_is_incomplete() {
        for chunks in [&["1\n1234567\n2\n"][..], &["1\n123", "456", "7"], &["1\n123456"]] {
            let items = read(chunks, 5);
            assert_eq!(items[0], Ok(1));
            let [_, Err((413, json))] = &items[..] else { panic!("{items:?}") };
            assert!(json.contains("line-too-long") && json.contains("\"line\":2"), "{json}");
        }
        assert_eq!(read(&["12345\n12345"], 5), [Ok(12345), Ok(12345)]);
    }

    #[test]
    fn rejects_another_content_type_and_reports_an_incomplete_body() {
        let request = post("/", &[("content-type", "application/json")], Body::from("1"));
        assert_eq!(
            assert_ready(from_request::<NdJson<u64>>(request)).expect_err("not NDJSON").status,
            415
        );
        let (writer, reader) = crate::http::body::pipe::pipe(100, Some(10));
        writer.send(Bytes::from_static(b"1\n2"));
        drop(writer);
        let request = post("/", NDJSON, Body::incoming(reader, 100));
        let mut lines = assert_ready(from_request::<NdJson<u64>>(request)).expect("an NDJSON body");
        assert_eq!(assert_ready(lines.next()), Some(Ok(1)));
        let problem =
            assert_ready(lines.next()).expect("an error").expect_err("an incomplete line");
        assert_eq!((problem.status.as_u16(), assert_ready(lines.next())), (400, None));
    }

    /// Yields items; pauses once at each `None`.
    struct Items(Vec<Option<Result<u8, &'static str>>>);

    impl Stream for Items {
        type Item = Result<u8, &'static str>;

        fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            if self.0.is_empty() {
                return Poll::Ready(None);
            }
            match self.0.remove(0) {
                Some(item) => Poll::Ready(Some(item)),
                None => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            }
        }
    }

    #[test]
    fn items_that_are_ready_share_a_frame_and_an_error_aborts_the_response() {
        let items = Items(vec![Some(Ok(1)), Some(Ok(2)), None, Some(Ok(3)), Some(Err("no more"))]);
        let mut body = NdJson::response(items).body;
        assert_eq!(
            assert_ready(body.next()).expect("a chunk").expect("the body is complete"),
            "1\n2\n"
        );
        assert_eq!(
            assert_ready(body.next()).expect("a chunk").expect("the body is complete"),
            "3\n"
        );
        let error = assert_ready(body.next()).expect("an error");
        assert!(error.is_err() && assert_ready(body.next()).is_none(), "{error:?}");
    }
}
