//! Compressed request bodies.

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

/// More bytes of one are a bomb: text rarely makes more than 20, and what does has little to say.
const RATIO_MAX: u32 = 100;
/// Small bodies may be packed ever so well.
const RATIO_FROM_BYTES: usize = 64 * 1024;
/// How often a body may be packed.
const CODINGS_MAX: usize = 2;
/// So much is unpacked at a time, which bounds what comes of it before anybody looks.
const SLICE_BYTES: usize = 4 * 1024;
/// After so much of what was unpacked, others have their turn.
const TURN_BYTES: usize = 256 * 1024;
/// A byte that was sent is as much work as so many that come of it, even where nothing does, as of empty members of gzip.
const WORK_OF_SENT: usize = 16;
/// The same for a frame, however little it has.
const WORK_OF_FRAME: usize = TURN_BYTES / 32;
/// What a decompressor has beside its window.
const DECODER_BYTES: usize = 64 * 1024;
/// The largest window of any coding here, which grows with what is unpacked.
const WINDOW_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Unpacks request bodies that say by `Content-Encoding` that they are packed.
///
/// ```
/// use peregrine::compression::Decompression;
/// use peregrine::App;
///
/// async fn echo(text: String) -> String {
///     text
/// }
/// let client = App::new().with(Decompression::new()).post("/", echo).test();
/// // "hello" by gzip.
/// let packed = [31, 139, 8, 0, 0, 0, 0, 0, 0, 255, 203, 72, 205, 201, 201, 7, 0, 134, 166, 16, 54, 5, 0, 0, 0];
/// let response = client.post("/").header("content-encoding", "gzip").body(packed.to_vec()).send_now();
/// assert_eq!(response.text(), "hello");
/// let response = client.post("/").header("content-encoding", "lzma").body("?").send_now();
/// assert_eq!(response.status(), 415);
/// ```
///
/// The body is unpacked while it is read. Handlers see no `Content-Encoding`, no `Content-Length` and no digest
/// (`Content-Digest`, `Repr-Digest`, `Content-MD5`), for they are of the body as it was sent.
///
/// - Body limits count for what was sent and again for what comes of it: the server's, and any
///   `BodyLimit`, and the route's own for the second. So a bomb is 413, when the limit is reached, and nothing of it is kept beyond that.
/// - More than 100 bytes of one ([`Decompression::ratio_max`]), beyond the first 64 KiB, are 413 too (`body-inflates`).
/// - A coding that is unknown is 415 with `Accept-Encoding`; so are more than two codings one after the other.
/// - What is not in its coding, breaks off, or has something behind its end, is 400 (`body-undecodable`).
/// - What a decompressor holds is charged to the worker's account, and while that is all but full, nothing is unpacked (503).
///
/// Without this middleware, handlers get packed bodies as they come.
#[derive(Clone, Debug)]
#[must_use = "a middleware does nothing until it is added to an application or a scope"]
pub struct Decompression {
    ratio_max: u32,
}

impl Decompression {
    /// The limits above.
    pub const fn new() -> Self {
        Self { ratio_max: RATIO_MAX }
    }

    /// How many bytes of one a body may make, beyond the first 64 KiB.
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
                .fault("Decompression has no coding; turn a feature on: br, gzip, zstd or deflate");
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
            // RFC 9110 §12.5.3: "identity" is no coding, and should not be there.
            if name.is_empty() || name.eq_ignore_ascii_case(b"identity") {
                continue;
            }
            let coding = Coding::find(name).ok_or_else(|| {
                let name = String::from_utf8_lossy(name.get(..40).unwrap_or(name)).into_owned();
                let detail = format!(
                    "The content coding `{name}` is not known here; send one of {}, or none.",
                    Coding::names()
                );
                refused(detail).with("coding", name)
            })?;
            if codings.len() == CODINGS_MAX {
                let detail = format!(
                    "The body has more than {CODINGS_MAX} content codings; send it with one, or none."
                );
                return Err(refused(detail));
            }
            codings.push(coding);
        }
    }
    Ok(codings)
}

/// RFC 9110 §12.5.3: a 415 because of the coding should have Accept-Encoding.
fn refused(detail: String) -> Problem {
    let problem =
        Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-content-coding", detail);
    match HeaderValue::try_from(Coding::names()) {
        Ok(names) => problem.with_header(ACCEPT_ENCODING, names),
        Err(_) => problem,
    }
}

/// A body that is unpacked while it is read.
struct Decoded {
    body: Body,
    coding: Coding,
    ratio_max: u32,
    state: State,
    /// Received, and not unpacked yet.
    input: Bytes,
    /// Bytes that were unpacked, and what came of them.
    taken: usize,
    made: usize,
    /// Made since others had their turn, and what was taken for it, weighed.
    unbroken: usize,
    trailers: Option<Frame<Bytes>>,
    charge: Charge,
}

enum State {
    /// Nothing is received yet, so nothing is held.
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

    /// How much more may come of what was taken.
    fn room(&self) -> usize {
        let ratio = usize::try_from(self.ratio_max).unwrap_or(usize::MAX);
        self.taken.saturating_mul(ratio).saturating_add(RATIO_FROM_BYTES).saturating_sub(self.made)
    }

    /// The decompressor, made when the first byte is there.
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

    /// Unpacks a slice of what is here.
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

    /// The body's end.
    fn end(&mut self) -> Result<Vec<u8>, BodyError> {
        let room = self.room();
        let made = match &mut self.state {
            // No coding makes nothing of nothing, but that is what clients send.
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
