//! The middleware that compresses responses.

use crate::accept_encoding::{Negotiated, negotiate};
use crate::coding::ContentCoding;
use crate::eligible::{essence, is_compressible, is_partial_content, is_transformable};
use crate::encoded_body::{EmptyUnsizedBody, EncodedBody};
use crate::encoder::Encoder;
use http::header::{ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, ETAG};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use peregrine_web::extract::RouteRequirements;
use peregrine_web::memory::{MemoryPressure, pressure};
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::response::NoCompression;
use peregrine_web::{
    Body, IntoResponse, Middleware, Problem, Request, RequestHead, Response, Service, pool,
};
use std::fmt;
use std::rc::Rc;

/// The default minimum length, in bytes. Shorter content fits into one packet with its head, so
/// compressing it gains nothing.
pub(crate) const BYTES_MIN: u64 = 1024;

/// Complete content up to this size is compressed in one step; longer content is compressed in
/// slices while it is sent.
const INLINE_BYTES_MAX: usize = 32 * 1024;

/// Digest fields, which are invalid after coding or decoding the content.
// RFC 9530 §2: Content-Digest covers the content as sent, with its coding.
// RFC 9530 §3: Repr-Digest covers the representation, which includes the coding.
pub(crate) const DIGEST_FIELDS: [&str; 3] = ["content-digest", "repr-digest", "content-md5"];

/// Compresses responses, complete or streamed, with a coding that the client accepts.
///
/// ```
/// use peregrine::compression::Compression;
/// use peregrine::App;
///
/// let page = || "many words, ".repeat(1000);
/// let client = App::new().wrap(Compression::new()).get("/", page).test();
/// let response = client.get("/").header("accept-encoding", "gzip, br;q=0.5").send_blocking();
/// assert_eq!(response.header("content-encoding"), Some("gzip"));
/// assert_eq!(response.header("vary"), Some("accept-encoding"));
/// assert!(response.bytes().len() < 200);
/// ```
///
/// - **Coding**: the one with the highest weight in `Accept-Encoding` (RFC 9110, section 12.5.3).
///   With equal weights, the first of zstd, br, gzip and deflate, or of [`Compression::codings`].
///   If the client rejects all of these and also unencoded content, it gets a 406 before the
///   handler runs.
/// - **Media types**: text, JSON, XML, scripts and other compressible types
///   ([`Compression::content_types`]).
/// - **Length**: 1 KiB or more, or unknown ([`Compression::bytes_min`]).
/// - **Never compressed**: content that has a coding, ranges (206), responses with
///   `Cache-Control: no-transform` or [`NoCompression`], and requests selected by
///   [`Compression::except`].
/// - **`ETag`**: a strong tag becomes weak, since the bytes differ.
/// - **`Vary: Accept-Encoding`** is set on every response that could be compressed.
/// - **HEAD**: the fields are those of the GET response; nothing is compressed.
/// - **Streams** are flushed whenever the producer pauses, so [server-sent
///   events](peregrine_web::sse) arrive immediately.
/// - **Large content** is compressed 16 KiB at a time, and the task yields in between.
/// - **Memory**: about 320 KiB (gzip) or 2.5 MiB (zstd, br) per response in progress, counted
///   against the worker's memory limit. While the worker is low on memory, nothing is compressed.
///
/// # Secrets
///
/// If an attacker can make a visitor's browser send requests, put text into the responses, and see
/// their compressed length, the attacker can guess other content of the same response byte by byte
/// (BREACH). Responses with both a secret and data from the request should therefore not be
/// compressed, or should mask the secret, as `CsrfToken` does. Keep such routes out of the scope,
/// return [`NoCompression`] with the response, or exclude them with [`Compression::except`].
///
/// ```
/// use peregrine::compression::{Compression, NoCompression};
/// use peregrine::App;
///
/// async fn token() -> (NoCompression, String) {
///     (NoCompression, "secret".repeat(1000))
/// }
/// let client = App::new().wrap(Compression::new()).get("/", token).test();
/// let response = client.get("/").header("accept-encoding", "gzip").send_blocking();
/// assert_eq!(response.header("content-encoding"), None);
/// ```
#[doc(alias = "CompressionLayer")]
#[doc(alias = "Compress")]
#[doc(alias = "gzip")]
#[derive(Clone)]
#[must_use = "a middleware does nothing until it is added to an application or a scope"]
pub struct Compression {
    codings: Vec<ContentCoding>,
    level: CompressionLevel,
    bytes_min: u64,
    content_types: Rc<dyn Fn(&str) -> bool>,
    except: Option<ExceptFn>,
}

type ExceptFn = Rc<dyn Fn(&RequestHead) -> bool>;

/// The trade-off between speed and size.
#[doc(alias = "quality")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompressionLevel {
    /// Fastest: level 1 of gzip, zstd and br.
    Fastest,
    /// A good compromise for content generated per request: level 5 of gzip, 3 of zstd, 4 of br.
    #[default]
    Default,
    /// Smallest, for content that is cached: level 9.
    Best,
}

impl Compression {
    /// Creates the middleware with all compiled codings and the defaults above.
    pub fn new() -> Self {
        Self {
            codings: ContentCoding::ALL.to_vec(),
            level: CompressionLevel::default(),
            bytes_min: BYTES_MIN,
            content_types: Rc::new(is_compressible),
            except: None,
        }
    }

    /// Offers only these codings; with equal weights, the first is used.
    pub fn codings(mut self, codings: impl IntoIterator<Item = ContentCoding>) -> Self {
        self.codings = codings.into_iter().collect();
        self
    }

    /// Sets the compression level.
    pub fn level(mut self, level: CompressionLevel) -> Self {
        self.level = level;
        self
    }

    /// Sets the minimum length of content, in bytes, if it is known. The default is 1 KiB.
    pub fn bytes_min(mut self, bytes: u64) -> Self {
        self.bytes_min = bytes;
        self
    }

    /// Sets which media types are compressed. The function receives the type in lower case without
    /// parameters, such as `text/html`. Content without a type is never compressed.
    #[doc(alias = "gzip_types")]
    pub fn content_types(mut self, is_compressible: impl Fn(&str) -> bool + 'static) -> Self {
        self.content_types = Rc::new(is_compressible);
        self
    }

    /// Excludes the requests for which the function returns `true`. A path is matched exactly as
    /// sent, and the same path can be encoded in several ways (`/%61dmin`): for secrets, prefer
    /// [`NoCompression`] or scopes.
    pub fn except(mut self, is_exempt: impl Fn(&RequestHead) -> bool + 'static) -> Self {
        self.except = Some(Rc::new(is_exempt));
        self
    }

    /// Compresses `response` with the negotiated coding, if permitted and useful.
    fn compress_response(
        &self,
        mut response: Response,
        negotiated: Negotiated,
        is_head: bool,
    ) -> Response {
        let forbids_compression = NoCompression::is_set(&response);
        if response.status == StatusCode::NOT_MODIFIED && !forbids_compression {
            // A 304 has the fields that the 200 would have.
            add_vary(&mut response);
            if negotiated.coding.is_some() {
                weaken_etag(&mut response);
                // RFC 9110 §8.6: the length would be that of a 200 to the same request, which is
                // unknown before compression.
                response.headers.remove(&CONTENT_LENGTH);
            }
            return response;
        }
        if forbids_compression {
            return response;
        }
        let has_compressible_type =
            essence(&response).is_some_and(|essence| (self.content_types)(&essence));
        if has_compressible_type && is_partial_content(&response) {
            // RFC 9110 §15.3.7: a 206 has the Vary that a 200 to the same request would have.
            add_vary(&mut response);
            return response;
        }
        if !is_transformable(&response) {
            return response;
        }
        let length = content_length(&response, is_head);
        let is_long = length.is_none_or(|length| length >= self.bytes_min);
        let is_empty = length == Some(0) && !is_head;
        // The client rejects unencoded content.
        let must_encode = !negotiated.identity;
        if is_empty || !(must_encode || (has_compressible_type && is_long)) {
            return response;
        }
        let is_memory_low = pressure() >= MemoryPressure::Moderate && !must_encode;
        let coding = negotiated.coding.filter(|_| !is_memory_low);
        let Some(coding) = coding else {
            add_vary(&mut response);
            return response;
        };
        let encoded = if is_head {
            Ok(Some(Body::new(EmptyUnsizedBody)))
        } else {
            self.encode_body(&mut response.body, coding, length, must_encode)
        };
        match encoded {
            Ok(Some(body)) => response.body = body,
            Ok(None) => {
                add_vary(&mut response);
                return response;
            }
            Err(error) => {
                // Send the content unencoded, unless the encoder has consumed it.
                catch_subscriber_panic(
                    || tracing::error!(target: "peregrine", %coding, %error, "a response could not be compressed"),
                );
                add_vary(&mut response);
                return response;
            }
        }
        add_vary(&mut response);
        weaken_etag(&mut response);
        let fields = &mut response.headers;
        fields.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
        fields.remove(&CONTENT_LENGTH);
        // Ranges would refer to the unencoded content.
        fields.remove(&ACCEPT_RANGES);
        let digests = DIGEST_FIELDS.map(HeaderName::from_static);
        digests.iter().for_each(|digest| fields.remove(digest));
        response
    }

    /// Encodes the body. Returns `None` and leaves `body` in place if it would not become shorter.
    fn encode_body(
        &self,
        body: &mut Body,
        coding: ContentCoding,
        length: Option<u64>,
        must_encode: bool,
    ) -> std::io::Result<Option<Body>> {
        let mut encoder = Encoder::new(coding, self.level, length)?;
        let Some(content) = body.as_slice().filter(|content| content.len() <= INLINE_BYTES_MAX)
        else {
            return Ok(Some(Body::new(EncodedBody::new(std::mem::take(body), encoder))));
        };
        let mut output = pool::get();
        encoder.write(content, &mut output)?;
        encoder.finish(&mut output)?;
        if output.len() >= content.len() && !must_encode {
            pool::put(output);
            return Ok(None);
        }
        Ok(Some(Body::from_pooled(output)))
    }
}

/// Returns the length of the content, or of the content of the response to GET, if it is known.
fn content_length(response: &Response, is_head: bool) -> Option<u64> {
    // RFC 9110 §9.3.2: a response to HEAD has the fields of the response to GET. Its content may
    // have been removed, as by a mounted service, which then declares the length.
    let declared = || response.headers.get(&CONTENT_LENGTH)?.to_str().ok()?.parse::<u64>().ok();
    is_head.then(declared).flatten().or_else(|| response.body.length())
}

/// Marks the response as depending on `Accept-Encoding`.
fn add_vary(response: &mut Response) {
    response.headers.add_vary("accept-encoding");
}

/// Makes the tag of encoded content weak.
fn weaken_etag(response: &mut Response) {
    // RFC 9110 §8.8.3.3: representations with different codings need different strong tags.
    let tag = response.headers.get(&ETAG).filter(|tag| tag.as_bytes().starts_with(b"\""));
    let weak = tag.and_then(|tag| HeaderValue::from_bytes(&[b"W/", tag.as_bytes()].concat()).ok());
    if let Some(weak) = weak {
        response.headers.insert(ETAG, weak);
    }
}

impl Default for Compression {
    fn default() -> Self {
        Self::new()
    }
}

impl Middleware for Compression {
    async fn run<S: Service>(&self, mut request: Request, next: &S) -> Response {
        let head = &mut request.parts.head;
        if self.except.as_ref().is_some_and(|is_exempt| is_exempt(head)) {
            return next.call(request).await;
        }
        let negotiated = negotiate(head, &self.codings);
        if negotiated.coding.is_none() && !negotiated.identity {
            let mut response = not_acceptable(&self.codings).into_response();
            add_vary(&mut response);
            return response;
        }
        // RFC 9110 §8.8.2.2: a date does not tell whether the part that the client has is encoded,
        // so a range of the unencoded content might not continue it. A tag tells.
        let is_date = |value: &[u8]| !value.contains(&b'"');
        if negotiated.coding.is_some() && head.header_bytes("if-range").is_some_and(is_date) {
            head.remove_fields(&["range", "if-range"]);
        }
        let is_head = head.method() == Method::HEAD;
        let (head, states) = (head.share(), Rc::clone(request.parts.states()));
        let response = next.call(request).await;
        // Render problems as the application will send them.
        let response = states.render_problem(response, &head);
        self.compress_response(response, negotiated, is_head)
    }

    fn require(&self, requirements: &mut RouteRequirements) {
        if self.codings.is_empty() {
            requirements.config_error("Compression has no coding; name one, or enable a feature: br, gzip, zstd or deflate");
        }
    }
}

/// RFC 9110, section 15.5.7: the client accepts none of the available representations.
fn not_acceptable(codings: &[ContentCoding]) -> Problem {
    let names: Vec<_> = codings.iter().map(|coding| coding.name()).collect();
    let detail = format!(
        "Accept-Encoding rejects unencoded content and every coding that this server offers: {}.",
        names.join(", ")
    );
    let problem = Problem::new(StatusCode::NOT_ACCEPTABLE, "no-acceptable-coding", detail);
    match HeaderValue::try_from(names.join(", ")) {
        Ok(names) => problem.with_header(ACCEPT_ENCODING, names),
        Err(_) => problem,
    }
}

impl fmt::Debug for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compression")
            .field("codings", &self.codings)
            .field("level", &self.level)
            .field("bytes_min", &self.bytes_min)
            .finish_non_exhaustive()
    }
}
