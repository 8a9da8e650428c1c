//! A form as it arrives, field by field and chunk by chunk.

use crate::error::MultipartError;
use crate::limits::MultipartLimits;
use crate::parser::{Event, Parser};
use crate::part_headers::{PartHeaders, is_utf8, parse_boundary};
use crate::uploaded_file::{UploadWriter, UploadedFile};
use bytes::Bytes;
use futures_core::Stream;
use http::StatusCode;
use http_body::Body as _;
use peregrine_web::extract::{FromRequest, optional_from_body};
use peregrine_web::memory::{MemoryPressure, MemoryReservation, pressure};
use peregrine_web::{Body, BodyError, Problem, Request};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// A multipart form, read as it arrives. An extractor for the last argument of a handler.
///
/// Slow handlers apply backpressure to the client. For limits, see [`MultipartLimits`]. It fails
/// with 415 for a `Content-Type` other than `multipart/form-data`, 400 for a form that is malformed
/// or incomplete, 413 for one that exceeds a limit, and with the problem of the body if it cannot
/// be read. `Option<Multipart>` is `None` for a request with neither body nor `Content-Type`.
///
/// ```
/// use peregrine::multipart::Multipart;
/// use peregrine::web::{App, Problem};
///
/// async fn sizes(mut form: Multipart) -> Result<String, Problem> {
///     let mut text = String::new();
///     while let Some(mut field) = form.next_field().await? {
///         let mut bytes = 0;
///         while let Some(chunk) = field.chunk().await? {
///             bytes += chunk.len();
///         }
///         text += &format!("{}: {bytes}\n", field.name());
///     }
///     Ok(text)
/// }
///
/// let client = App::new().post("/", sizes).test();
/// let form = "--b\r\nContent-Disposition: form-data; name=\"bird\"\r\n\r\nlanner\r\n--b--\r\n";
/// let request = client.post("/").header("content-type", "multipart/form-data; boundary=b");
/// assert_eq!(request.body(form).send_blocking().text(), "bird: 6\n");
/// ```
#[doc(alias = "form-data")]
pub struct Multipart {
    body: Body,
    boundary: String,
    parser: Parser,
    limits: MultipartLimits,
    /// Received but not parsed yet.
    input: Bytes,
    state: MultipartState,
    progress: MultipartProgress,
    on_progress: Option<Box<dyn FnMut(MultipartProgress)>>,
}

#[derive(Debug)]
enum MultipartState {
    BetweenFields,
    /// Inside a part.
    InField,
    Ended,
    Failed(Problem),
}

/// How much of a form has been received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MultipartProgress {
    /// The bytes of the body received so far.
    pub received: u64,
    /// The length of the whole body, if the client announced it.
    pub expected: Option<u64>,
}

/// One field of a form, which is also a stream of its chunks. If it is dropped before its end, the
/// rest is skipped.
pub struct Field<'m> {
    form: &'m mut Multipart,
    head: PartHeaders,
}

const MEDIA_TYPE: &str = "multipart/form-data";

impl FromRequest for Multipart {
    async fn from_request(request: Request) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let Some(content_type) = parts.head.header_bytes("content-type") else {
            let detail = format!("the request has no Content-Type; send one that is {MEDIA_TYPE}");
            return Err(unsupported(detail));
        };
        let Some(boundary) = parse_boundary(content_type) else {
            let content_type = String::from_utf8_lossy(content_type);
            let content_type = &content_type[..content_type.floor_char_boundary(200)];
            let detail = format!("the Content-Type is `{content_type}`, but must be {MEDIA_TYPE}");
            return Err(unsupported(detail).with_member("sent", content_type));
        };
        let limits = parts.extensions().get::<MultipartLimits>().copied().unwrap_or_default();
        Self::new(boundary?, body, limits)
    }

    async fn optional_from_request(request: Request) -> Result<Option<Self>, Problem> {
        optional_from_body(request).await
    }
}

fn unsupported(detail: String) -> Problem {
    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", detail)
        .with_member("expected", MEDIA_TYPE)
}

impl Multipart {
    fn new(boundary: String, body: Body, limits: MultipartLimits) -> Result<Self, Problem> {
        Ok(Self {
            parser: Parser::new(boundary.as_bytes(), &limits)?,
            progress: MultipartProgress { received: 0, expected: body.length() },
            body,
            boundary,
            limits,
            input: Bytes::new(),
            state: MultipartState::BetweenFields,
            on_progress: None,
        })
    }

    /// Sets limits before anything is read, instead of those of the route.
    ///
    /// # Panics
    /// If something was read already.
    #[must_use]
    pub fn with_limits(self, limits: MultipartLimits) -> Self {
        assert!(self.progress.received == 0, "limits are set before a form is read");
        let parser = Parser::new(self.boundary.as_bytes(), &limits);
        Self { parser: parser.expect("the boundary was validated before"), limits, ..self }
    }

    /// Calls `callback` with the progress so far for each chunk of the body that is received. The
    /// next chunk is not read until it returns.
    #[must_use]
    pub fn on_progress(self, callback: impl FnMut(MultipartProgress) + 'static) -> Self {
        Self { on_progress: Some(Box::new(callback)), ..self }
    }

    /// How much of the form has been received.
    #[must_use]
    pub fn progress(&self) -> MultipartProgress {
        self.progress
    }

    /// Returns the next field; `None` at the end of the form. The rest of the previous field is
    /// skipped.
    ///
    /// # Errors
    /// The form is malformed, exceeds a limit, or cannot be read. The problem is the response for
    /// the client. Later calls fail in the same way.
    pub async fn next_field(&mut self) -> Result<Option<Field<'_>>, Problem> {
        while matches!(self.state, MultipartState::InField) {
            poll_fn(|cx| self.poll_chunk(None, cx)).await?;
        }
        match self.state {
            MultipartState::BetweenFields => {}
            MultipartState::Failed(ref problem) => return Err(problem.clone()),
            MultipartState::InField | MultipartState::Ended => return Ok(None),
        }
        match poll_fn(|cx| self.poll_event(None, cx)).await? {
            Event::PartStart(head) => {
                self.state = MultipartState::InField;
                Ok(Some(Field { form: self, head }))
            }
            _ => {
                self.state = MultipartState::Ended;
                self.read_epilogue().await?;
                Ok(None)
            }
        }
    }

    /// Reads the data after the last delimiter, so that the connection stays usable.
    async fn read_epilogue(&mut self) -> Result<(), Problem> {
        loop {
            let result = self.parser.receive(&mut self.input).map_err(Problem::from);
            result.or_else(|problem| self.fail(problem))?;
            if !poll_fn(|cx| self.poll_body(cx)).await? {
                return Ok(());
            }
        }
    }

    /// Polls for a chunk of the current part; `None` at its end. A problem names the field `name`.
    fn poll_chunk(
        &mut self,
        name: Option<&str>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, Problem>> {
        match &self.state {
            MultipartState::InField => {}
            MultipartState::Failed(problem) => return Poll::Ready(Err(problem.clone())),
            MultipartState::BetweenFields | MultipartState::Ended => return Poll::Ready(Ok(None)),
        }
        match ready!(self.poll_event(name, cx))? {
            Event::Data(bytes) => Poll::Ready(Ok(Some(bytes))),
            _ => {
                self.state = MultipartState::BetweenFields;
                Poll::Ready(Ok(None))
            }
        }
    }

    /// Polls for the next event. A problem names the field `name`.
    fn poll_event(
        &mut self,
        name: Option<&str>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Event, Problem>> {
        loop {
            match self.parser.receive(&mut self.input) {
                Ok(Some(event)) => return Poll::Ready(Ok(event)),
                Ok(None) => {}
                Err(error) => return Poll::Ready(self.fail(error.to_problem(name))),
            }
            if !ready!(self.poll_body(cx))? {
                return Poll::Ready(self.fail(MultipartError::Incomplete.to_problem(name)));
            }
        }
    }

    /// Receives more of the body; `false` at its end.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, Problem>> {
        loop {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None => return Poll::Ready(Ok(false)),
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(self.fail(error.into())),
            };
            // Trailers have no meaning for a form.
            let Ok(data) = frame.into_data() else { continue };
            self.progress.received += data.len() as u64;
            self.input = data;
            if let Some(on_progress) = &mut self.on_progress {
                on_progress(self.progress);
            }
            return Poll::Ready(Ok(true));
        }
    }

    fn fail<T>(&mut self, problem: Problem) -> Result<T, Problem> {
        self.state = MultipartState::Failed(problem.clone());
        self.input = Bytes::new();
        Err(problem)
    }
}

impl fmt::Debug for Multipart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Multipart")
            .field("state", &self.state)
            .field("progress", &self.progress)
            .finish_non_exhaustive()
    }
}

impl Field<'_> {
    /// The field's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.head.name()
    }

    /// The file name sent by the client, see [`PartHeaders::file_name`].
    #[must_use]
    pub fn file_name(&self) -> Option<&str> {
        self.head.file_name()
    }

    /// The media type sent by the client.
    #[must_use]
    pub fn content_type(&self) -> Option<&str> {
        self.head.content_type()
    }

    /// The head of the part.
    #[must_use]
    pub fn headers(&self) -> &PartHeaders {
        &self.head
    }

    /// How much of the whole form has been received.
    #[must_use]
    pub fn progress(&self) -> MultipartProgress {
        self.form.progress
    }

    /// Returns the next chunk, never empty; `None` at the field's end.
    ///
    /// # Errors
    /// As for [`Multipart::next_field`].
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Problem> {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Problem>> {
        self.form.poll_chunk(Some(self.head.name()), cx)
    }

    /// Reads the rest of the field into memory, up to the limit for files or other fields in
    /// [`MultipartLimits`].
    ///
    /// # Errors
    /// As for [`Multipart::next_field`], or if the worker's memory is full.
    pub async fn bytes(mut self) -> Result<Bytes, Problem> {
        let Some(first) = self.chunk().await? else { return Ok(Bytes::new()) };
        let mut reservation = MemoryReservation::new(first.len());
        let Some(second) = self.chunk().await? else { return Ok(first) };
        let mut buffer = [first, second].concat();
        reservation.resize(buffer.capacity());
        while let Some(chunk) = self.chunk().await? {
            buffer.extend_from_slice(&chunk);
            reservation.resize(buffer.capacity());
            if pressure() >= MemoryPressure::Critical {
                return Err(BodyError::Overloaded.into());
            }
        }
        Ok(buffer.into())
    }

    /// Reads the rest of the field as UTF-8 text.
    ///
    /// # Errors
    /// As for [`Field::bytes`]; 400 if it is not UTF-8, and 415 if its type names another charset.
    pub async fn text(self) -> Result<String, Problem> {
        let name = self.head.name().to_owned();
        if !self.head.content_type().is_none_or(is_utf8) {
            return Err(MultipartError::UnsupportedCharset.to_problem(Some(&name)));
        }
        let bytes = self.bytes().await?;
        String::from_utf8(bytes.into())
            .map_err(|_| MultipartError::InvalidUtf8.to_problem(Some(&name)))
    }

    /// Reads the rest of the field as a file: in memory, or in a temporary file if it exceeds
    /// [`MultipartLimits::in_memory_bytes_max`].
    ///
    /// # Errors
    /// As for [`Field::bytes`]; status 500 or 507 if it cannot be stored.
    pub async fn into_file(mut self) -> Result<UploadedFile, Problem> {
        let mut writer = UploadWriter::new(self.form.limits.in_memory_bytes_max);
        while let Some(chunk) = self.chunk().await? {
            writer.write(chunk).await?;
        }
        writer.finish(self.head).await
    }
}

impl Stream for Field<'_> {
    type Item = Result<Bytes, Problem>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // A failure is yielded once, so that code that collects the stream terminates.
        if matches!(self.form.state, MultipartState::Failed(_)) {
            return Poll::Ready(None);
        }
        self.poll(cx).map(Result::transpose)
    }
}

impl fmt::Debug for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Field").field("head", &self.head).finish_non_exhaustive()
    }
}
