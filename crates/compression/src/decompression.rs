//! The middleware that decodes request bodies.

use crate::coding::Coding;
use crate::compression::DIGESTS;
use crate::decode::{Broken, Decoder};
use bytes::{Buf, Bytes};
use http::header::ACCEPT_ENCODING;
use http::{HeaderValue, StatusCode};
use http_body::{Body as HttpBody, Frame};
use peregrine_web::account::{Charge, Filling, filling};
use peregrine_web::requirements::Requirements;
use peregrine_web::turn::others_first;
use peregrine_web::{
    Body, BodyError, Head, IntoResponse, Middleware, Problem, Request, Response, Service,
};
use std::pin::Pin;
use std::task::{Context, Poll};

/// The default limit of output bytes per input byte: text rarely exceeds 20.
const RATIO_MAX: u32 = 100;
/// The ratio is not checked below this size: small bodies may compress very well.
const RATIO_FROM_BYTES: usize = 64 * 1024;
/// The maximum number of codings of one body.
const CODINGS_MAX: usize = 2;
/// The number of input bytes decoded at a time, which bounds the output of one step.
const SLICE_BYTES: usize = 4 * 1024;
/// The number of output bytes between yields.
const TURN_BYTES: usize = 256 * 1024;
/// The cost of an input byte in output bytes, even if it produces none, like empty gzip members.
const WORK_OF_SENT: usize = 16;
/// The cost of a frame in output bytes, whatever its size.
const WORK_OF_FRAME: usize = TURN_BYTES / 32;
/// The memory of a decoder besides its window.
const DECODER_BYTES: usize = 64 * 1024;
/// The largest window of any coding here, which grows with the output.
const WINDOW_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Decodes request bodies with a `Content-Encoding`.
///
/// ```
/// use peregrine::compression::Decompression;
/// use peregrine::App;
///
/// async fn echo(text: String) -> String {
///     text
/// }
/// let client = App::new().with(Decompression::new()).post("/", echo).test();
/// // "hello" in gzip.
/// let packed = [
///     31, 139, 8, 0, 0, 0, 0, 0, 0, 255, 203, 72, 205, 201, 201, 7, 0, 134, 166, 16, 54, 5, 0,
///     0, 0,
/// ];
/// let send = |coding: &str, body: Vec<u8>| {
///     client.post("/").header("content-encoding", coding).body(body).send_now()
/// };
/// assert_eq!(send("gzip", packed.to_vec()).text(), "hello");
/// assert_eq!(send("lzma", b"?".to_vec()).status(), 415);
/// ```
///
/// The body is decoded while it is read. Handlers do not see `Content-Encoding`, `Content-Length`
/// and the digest fields (`Content-Digest`, `Repr-Digest`, `Content-MD5`), which describe the
/// encoded body.
///
/// - Body limits apply to the encoded and to the decoded body: the server's and any `BodyLimit` to
///   both, the route's own to the decoded one. A decompression bomb gets a 413 when it reaches the
///   limit, and no more than that is kept.
/// - More than 100 output bytes per input byte ([`Decompression::ratio_max`]), after the first 64
///   KiB, get a 413 (`body-inflates`).
/// - An unknown coding, or more than two codings, get a 415, with `Accept-Encoding`.
/// - Invalid, truncated or trailing data gets a 400 (`body-undecodable`).
/// - A decoder's memory is charged to the worker's memory account. While that is nearly full,
///   bodies are not decoded (503).
///
/// Without this middleware, handlers get encoded bodies unchanged.
#[derive(Clone, Debug)]
#[must_use = "a middleware does nothing until it is added to an application or a scope"]
pub struct Decompression {
    ratio_max: u32,
}

impl Decompression {
    /// Creates the middleware with the limits above.
    pub const fn new() -> Self {
        Self { ratio_max: RATIO_MAX }
    }

    /// Sets the limit of output bytes per input byte, which applies after the first 64 KiB of
    /// output. The default is 100.
    pub const fn ratio_max(mut self, ratio: u32) -> Self {
        self.ratio_max = ratio;
        self
    }
}

impl Default for Decompression {
    fn default() -> Self {
        Self::new()
    }
}

impl Middleware for Decompression {
    async fn run<S: Service>(&self, mut request: Request, next: &S) -> Response {
        let head = &request.parts.head;
        if head.field("content-encoding").is_none() {
            return next.call(request).await;
        }
        let codings = match codings_of(head) {
            Ok(codings) => codings,
            Err(problem) => return problem.into_response(),
        };
        request.parts.head.remove_fields(&["content-encoding", "content-length"]);
        if !codings.is_empty() {
            request.parts.head.remove_fields(&DIGESTS);
        }
        // RFC 9110 §8.4: the codings are listed in the order in which they were applied.
        for coding in codings.into_iter().rev() {
            let limits = request.body.limits();
            let body =
                Body::new(Decoded::new(std::mem::take(&mut request.body), coding, self.ratio_max));
            request.body = body.with_limits(limits);
        }
        next.call(request).await
    }

    fn require(&self, requirements: &mut Requirements) {
        if Coding::ALL.is_empty() {
            requirements
                .fault("Decompression has no coding; enable a feature: br, gzip, zstd or deflate");
        }
        if self.ratio_max == 0 {
            requirements.fault(
                "Decompression has ratio_max(0), which lets no body through; 100 is the default",
            );
        }
    }
}

/// The codings of a request's body, in the order in which they were applied.
fn codings_of(head: &Head) -> Result<Vec<Coding>, Problem> {
    let mut codings = Vec::new();
    for value in head.fields_named("content-encoding") {
        for name in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            // RFC 9110 §12.5.3: "identity" is not a coding, and should not be there.
            if name.is_empty() || name.eq_ignore_ascii_case(b"identity") {
                continue;
            }
            let coding = Coding::find(name).ok_or_else(|| {
                let name = String::from_utf8_lossy(name.get(..40).unwrap_or(name)).into_owned();
                let detail = format!(
                    "The content coding `{name}` is not supported; use one of {}, or none.",
                    Coding::names()
                );
                refused(detail).with("coding", name)
            })?;
            if codings.len() == CODINGS_MAX {
                let detail = format!(
                    "The body has more than {CODINGS_MAX} content codings; use one, or none."
                );
                return Err(refused(detail));
            }
            codings.push(coding);
        }
    }
    Ok(codings)
}

/// RFC 9110, section 12.5.3: a 415 due to the coding should have `Accept-Encoding`.
fn refused(detail: String) -> Problem {
    let problem =
        Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-content-coding", detail);
    match HeaderValue::try_from(Coding::names()) {
        Ok(names) => problem.with_header(ACCEPT_ENCODING, names),
        Err(_) => problem,
    }
}

/// A body that is decoded while it is read.
struct Decoded {
    body: Body,
    coding: Coding,
    ratio_max: u32,
    state: State,
    /// Received but not decoded yet.
    input: Bytes,
    /// The numbers of input and output bytes so far.
    taken: usize,
    made: usize,
    /// The cost since the last yield.
    unbroken: usize,
    trailers: Option<Frame<Bytes>>,
    charge: Charge,
}

enum State {
    /// Nothing has been received yet, so no decoder exists.
    New,
    Busy(Box<Decoder>),
    Ended,
}

impl Decoded {
    fn new(body: Body, coding: Coding, ratio_max: u32) -> Self {
        Self {
            body,
            coding,
            ratio_max,
            state: State::New,
            input: Bytes::new(),
            taken: 0,
            made: 0,
            unbroken: 0,
            trailers: None,
            charge: Charge::new(),
        }
    }

    /// How many more bytes the ratio permits.
    fn room(&self) -> usize {
        let ratio = usize::try_from(self.ratio_max).unwrap_or(usize::MAX);
        self.taken.saturating_mul(ratio).saturating_add(RATIO_FROM_BYTES).saturating_sub(self.made)
    }

    /// Creates the decoder when the first byte arrives.
    fn begin(&mut self) -> Result<(), BodyError> {
        if matches!(self.state, State::New) {
            if filling() >= Filling::Full {
                return Err(BodyError::Overloaded);
            }
            let decoder =
                Decoder::new(self.coding).map_err(|error| BodyError::Failed(error.into()))?;
            self.charge.set(DECODER_BYTES);
            self.state = State::Busy(Box::new(decoder));
        }
        Ok(())
    }

    /// Decodes a slice of the available input.
    fn advance(&mut self) -> Result<Vec<u8>, BodyError> {
        self.begin()?;
        let length = self.input.len().min(SLICE_BYTES);
        let slice = self.input.split_to(length);
        self.taken = self.taken.saturating_add(length);
        self.unbroken += length * WORK_OF_SENT;
        let room = self.room();
        let State::Busy(decoder) = &mut self.state else { return Ok(Vec::new()) };
        let made = decoder.write(&slice, room);
        self.grown(made)
    }

    /// Finishes the body.
    fn end(&mut self) -> Result<Vec<u8>, BodyError> {
        let room = self.room();
        let made = match &mut self.state {
            // An empty body is not valid in any coding, but clients do send it.
            State::New | State::Ended => Ok(Vec::new()),
            State::Busy(decoder) => decoder.finish(room),
        };
        self.state = State::Ended;
        let made = self.grown(made);
        self.charge.set(0);
        made
    }

    fn grown(&mut self, made: Result<Vec<u8>, Broken>) -> Result<Vec<u8>, BodyError> {
        let made = made.map_err(|broken| match broken {
            Broken::TooMuch => BodyError::Inflated { ratio_max: self.ratio_max },
            Broken::Invalid => BodyError::Undecodable { coding: self.coding.name() },
        })?;
        self.made = self.made.saturating_add(made.len());
        self.unbroken += made.len();
        self.charge.set(DECODER_BYTES + self.made.saturating_mul(2).min(WINDOW_BYTES_MAX));
        Ok(made)
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            if matches!(self.state, State::Ended) {
                return Poll::Ready(self.trailers.take().map(Ok));
            }
            if self.unbroken >= TURN_BYTES {
                self.unbroken = 0;
                others_first(context);
                return Poll::Pending;
            }
            let made = if self.input.has_remaining() {
                self.advance()
            } else {
                match Pin::new(&mut self.body).poll_frame(context) {
                    Poll::Pending => {
                        self.unbroken = 0;
                        return Poll::Pending;
                    }
                    Poll::Ready(None) => self.end(),
                    Poll::Ready(Some(Err(error))) => Err(error),
                    Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                        Ok(data) => {
                            self.input = data;
                            self.unbroken += WORK_OF_FRAME;
                            continue;
                        }
                        Err(mut trailers) => {
                            if let Some(fields) = trailers.trailers_mut() {
                                DIGESTS.iter().for_each(|digest| drop(fields.remove(*digest)));
                            }
                            self.trailers = Some(trailers);
                            self.end()
                        }
                    },
                }
            };
            match made {
                Ok(made) if made.is_empty() => {}
                Ok(made) => return Poll::Ready(Some(Ok(Frame::data(made.into())))),
                Err(error) => {
                    self.state = State::Ended;
                    self.trailers = None;
                    self.charge.set(0);
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }
}

impl HttpBody for Decoded {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.poll(context)
    }
}
