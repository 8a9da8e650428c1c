//! The middleware that decodes request bodies.

use crate::coding::ContentCoding;
use crate::compression::DIGEST_FIELDS;
use crate::decoder::{Decoder, DecompressError};
use bytes::{Buf, Bytes};
use http::header::ACCEPT_ENCODING;
use http::{HeaderValue, StatusCode};
use http_body::{Body as HttpBody, Frame};
use peregrine_web::coop::yield_now;
use peregrine_web::extract::RouteRequirements;
use peregrine_web::memory::{MemoryPressure, MemoryReservation, pressure};
use peregrine_web::{
    Body, BodyError, IntoResponse, Middleware, Problem, Request, RequestHead, Response, Service,
};
use std::pin::Pin;
use std::task::{Context, Poll};

/// The default limit of output bytes per input byte: text rarely exceeds 20.
const RATIO_MAX: u32 = 100;
/// The ratio is not checked for the first part of the output, of this size: small bodies may
/// compress very well.
const RATIO_FREE_BYTES: usize = 64 * 1024;
/// The maximum number of codings of one body.
const CODINGS_MAX: usize = 2;
/// The number of input bytes decoded at a time, which bounds the output of one step.
const SLICE_BYTES: usize = 4 * 1024;
/// The number of output bytes between yields.
const YIELD_BYTES: usize = 256 * 1024;
/// The cost of an input byte in output bytes, even if it produces none, like empty gzip members.
const COST_PER_INPUT_BYTE: usize = 16;
/// The cost of a frame in output bytes, whatever its size.
const COST_PER_FRAME: usize = YIELD_BYTES / 32;
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
/// let client = App::new().wrap(Decompression::new()).post("/", echo).test();
/// // "hello" in gzip.
/// let packed = [
///     31, 139, 8, 0, 0, 0, 0, 0, 0, 255, 203, 72, 205, 201, 201, 7, 0, 134, 166, 16, 54, 5, 0,
///     0, 0,
/// ];
/// let send = |coding: &str, body: Vec<u8>| {
///     client.post("/").header("content-encoding", coding).body(body).send_blocking()
/// };
/// assert_eq!(send("gzip", packed.to_vec()).text(), "hello");
/// assert_eq!(send("lzma", b"?".to_vec()).status(), 415);
/// ```
///
/// The body is decoded while it is read. Handlers do not see `Content-Encoding`, `Content-Length`
/// and the digest fields (`Content-Digest`, `Repr-Digest`, `Content-MD5`), which describe the
/// encoded body.
///
/// - Body limits apply to the encoded and to the decoded body. If the route has a limit, it
///   replaces the server's for both. A decompression bomb gets a 413 when it reaches the limit, and
///   no more than that is kept.
/// - More than 100 output bytes per input byte ([`Decompression::ratio_max`]), after the first 64
///   KiB, get a 413 (`body-decompressed-too-large`).
/// - An unknown coding, or more than two codings, get a 415, with `Accept-Encoding`.
/// - Invalid, truncated or trailing data gets a 400 (`invalid-content-coding`).
/// - A decoder's memory counts against the worker's memory limit. While the worker is low on
///   memory, bodies are not decoded, and the request gets a 503.
///
/// Without this middleware, handlers get encoded bodies unchanged.
#[doc(alias = "RequestDecompressionLayer")]
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
        if head.header_bytes("content-encoding").is_none() {
            return next.call(request).await;
        }
        let codings = match parse_content_codings(head) {
            Ok(codings) => codings,
            Err(problem) => return problem.into_response(),
        };
        request.parts.head.remove_fields(&["content-encoding", "content-length"]);
        if !codings.is_empty() {
            request.parts.head.remove_fields(&DIGEST_FIELDS);
        }
        // RFC 9110 §8.4: the codings are listed in the order in which they were applied.
        for coding in codings.into_iter().rev() {
            let limits = request.body.limits();
            let body = Body::new(DecodedBody::new(
                std::mem::take(&mut request.body),
                coding,
                self.ratio_max,
            ));
            request.body = body.with_limits(limits);
        }
        next.call(request).await
    }

    fn require(&self, requirements: &mut RouteRequirements) {
        if ContentCoding::ALL.is_empty() {
            requirements.config_error(
                "Decompression has no coding; enable a feature: br, gzip, zstd or deflate",
            );
        }
        if self.ratio_max == 0 {
            requirements.config_error(
                "Decompression has ratio_max(0), which lets no body through; 100 is the default",
            );
        }
    }
}

/// Parses the codings of a request's body, in the order in which they were applied.
fn parse_content_codings(head: &RequestHead) -> Result<Vec<ContentCoding>, Problem> {
    let mut codings = Vec::new();
    for value in head.header_values("content-encoding") {
        for name in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            // RFC 9110 §12.5.3: "identity" is not a coding, and should not be there.
            if name.is_empty() || name.eq_ignore_ascii_case(b"identity") {
                continue;
            }
            let coding = ContentCoding::from_name(name).ok_or_else(|| {
                let name = String::from_utf8_lossy(name.get(..40).unwrap_or(name)).into_owned();
                let detail = format!(
                    "The content coding `{name}` is not supported; use one of {}, or none.",
                    ContentCoding::names()
                );
                unsupported_media_type(detail).with_member("coding", name)
            })?;
            if codings.len() == CODINGS_MAX {
                let detail = format!(
                    "The body has more than {CODINGS_MAX} content codings; use one, or none."
                );
                return Err(unsupported_media_type(detail));
            }
            codings.push(coding);
        }
    }
    Ok(codings)
}

/// RFC 9110, section 12.5.3: a 415 due to the coding should have `Accept-Encoding`.
fn unsupported_media_type(detail: String) -> Problem {
    let problem =
        Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-content-coding", detail);
    match HeaderValue::try_from(ContentCoding::names()) {
        Ok(names) => problem.with_header(ACCEPT_ENCODING, names),
        Err(_) => problem,
    }
}

/// A body that is decoded while it is read.
struct DecodedBody {
    body: Body,
    coding: ContentCoding,
    ratio_max: u32,
    state: DecoderState,
    /// Received but not decoded yet.
    input: Bytes,
    /// The numbers of input and output bytes so far.
    bytes_in: usize,
    bytes_out: usize,
    /// The cost since the last yield.
    work_since_yield: usize,
    trailers: Option<Frame<Bytes>>,
    reservation: MemoryReservation,
}

enum DecoderState {
    /// Nothing has been received yet, so no decoder exists.
    New,
    Decoding(Box<Decoder>),
    Ended,
}

impl DecodedBody {
    fn new(body: Body, coding: ContentCoding, ratio_max: u32) -> Self {
        Self {
            body,
            coding,
            ratio_max,
            state: DecoderState::New,
            input: Bytes::new(),
            bytes_in: 0,
            bytes_out: 0,
            work_since_yield: 0,
            trailers: None,
            reservation: MemoryReservation::empty(),
        }
    }

    /// Returns how many more bytes of output the ratio permits.
    fn output_allowed(&self) -> usize {
        let ratio = usize::try_from(self.ratio_max).unwrap_or(usize::MAX);
        self.bytes_in
            .saturating_mul(ratio)
            .saturating_add(RATIO_FREE_BYTES)
            .saturating_sub(self.bytes_out)
    }

    /// Creates the decoder when the first byte arrives.
    fn create_decoder(&mut self) -> Result<(), BodyError> {
        if matches!(self.state, DecoderState::New) {
            if pressure() >= MemoryPressure::Critical {
                return Err(BodyError::Overloaded);
            }
            let decoder =
                Decoder::new(self.coding).map_err(|error| BodyError::Stream(error.into()))?;
            self.reservation.resize(DECODER_BYTES);
            self.state = DecoderState::Decoding(Box::new(decoder));
        }
        Ok(())
    }

    /// Decodes a slice of the available input.
    fn decode_slice(&mut self) -> Result<Vec<u8>, BodyError> {
        self.create_decoder()?;
        let length = self.input.len().min(SLICE_BYTES);
        let slice = self.input.split_to(length);
        self.bytes_in = self.bytes_in.saturating_add(length);
        self.work_since_yield += length * COST_PER_INPUT_BYTE;
        let remaining = self.output_allowed();
        let DecoderState::Decoding(decoder) = &mut self.state else { return Ok(Vec::new()) };
        let output = decoder.write(&slice, remaining);
        self.check_output(output)
    }

    /// Finishes the body.
    fn finish(&mut self) -> Result<Vec<u8>, BodyError> {
        let remaining = self.output_allowed();
        let output = match &mut self.state {
            // An empty body is not valid in any coding, but clients do send it.
            DecoderState::New | DecoderState::Ended => Ok(Vec::new()),
            DecoderState::Decoding(decoder) => decoder.finish(remaining),
        };
        self.state = DecoderState::Ended;
        let output = self.check_output(output);
        self.reservation.resize(0);
        output
    }

    /// Converts the error of the decoder, or accounts for its output.
    fn check_output(
        &mut self,
        output: Result<Vec<u8>, DecompressError>,
    ) -> Result<Vec<u8>, BodyError> {
        let output = output.map_err(|error| match error {
            DecompressError::TooLarge => {
                BodyError::DecompressedTooLarge { ratio_max: self.ratio_max }
            }
            DecompressError::Invalid => BodyError::DecodeFailed { coding: self.coding.name() },
        })?;
        self.bytes_out = self.bytes_out.saturating_add(output.len());
        self.work_since_yield += output.len();
        self.reservation
            .resize(DECODER_BYTES + self.bytes_out.saturating_mul(2).min(WINDOW_BYTES_MAX));
        Ok(output)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            if matches!(self.state, DecoderState::Ended) {
                return Poll::Ready(self.trailers.take().map(Ok));
            }
            if self.work_since_yield >= YIELD_BYTES {
                self.work_since_yield = 0;
                yield_now(cx);
                return Poll::Pending;
            }
            let output = if self.input.has_remaining() {
                self.decode_slice()
            } else {
                match Pin::new(&mut self.body).poll_frame(cx) {
                    Poll::Pending => {
                        self.work_since_yield = 0;
                        return Poll::Pending;
                    }
                    Poll::Ready(None) => self.finish(),
                    Poll::Ready(Some(Err(error))) => Err(error),
                    Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                        Ok(data) => {
                            self.input = data;
                            self.work_since_yield += COST_PER_FRAME;
                            continue;
                        }
                        Err(mut trailers) => {
                            if let Some(fields) = trailers.trailers_mut() {
                                DIGEST_FIELDS
                                    .iter()
                                    .for_each(|digest| drop(fields.remove(*digest)));
                            }
                            self.trailers = Some(trailers);
                            self.finish()
                        }
                    },
                }
            };
            match output {
                Ok(output) if output.is_empty() => {}
                Ok(output) => return Poll::Ready(Some(Ok(Frame::data(output.into())))),
                Err(error) => {
                    self.state = DecoderState::Ended;
                    self.trailers = None;
                    self.reservation.resize(0);
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }
}

impl HttpBody for DecodedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.poll(cx)
    }
}
