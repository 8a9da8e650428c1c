//! Compressed responses.

use crate::accept::{Accepted, accepted};
use crate::coding::Coding;
use crate::eligible::{essence, is_compressible, is_part, may_change};
use crate::encode::Encoder;
use crate::encoded::{Encoded, Untold};
use http::header::{ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, ETAG};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use peregrine_web::account::{Filling, filling};
use peregrine_web::panics::contained;
use peregrine_web::requirements::Requirements;
use peregrine_web::respond::Uncompressed;
use peregrine_web::{
    Body, Head, IntoResponse, Middleware, Problem, Request, Response, Service, pool,
};
use std::fmt;
use std::rc::Rc;

/// Content shorter than this, in bytes, is left as it is: it fits into the packet that its head is in.
pub(crate) const BYTES_MIN: u64 = 1024;

/// Content that is here, and no longer than this, is compressed at once; longer content while it is sent, slice by slice.
const AT_ONCE_BYTES_MAX: usize = 32 * 1024;

/// Digests of content, which is other content once it is packed or unpacked.
// RFC 9530 §2: Content-Digest is of the content as it is sent, with its coding.
// RFC 9530 §3: Repr-Digest is of the representation, of which the coding is a part.
pub(crate) const DIGESTS: [&str; 3] = ["content-digest", "repr-digest", "content-md5"];

/// Compresses responses in a coding that the client accepts, whole ones and streams.
///
/// ```
/// use peregrine::compression::Compression;
/// use peregrine::App;
///
/// let client = App::new().with(Compression::new()).get("/", || "many words, ".repeat(1000)).test();
/// let response = client.get("/").header("accept-encoding", "gzip, br;q=0.5").send_now();
/// assert_eq!(response.header("content-encoding"), Some("gzip"));
/// assert_eq!(response.header("vary"), Some("accept-encoding"));
/// assert!(response.bytes().len() < 200);
/// ```
///
/// | what | how |
/// |---|---|
/// | coding | the one that the client gives the highest weight (RFC 9110 §12.5.3); among equal ones, zstd, br, gzip, deflate, or as [`Compression::codings`] says |
/// | a client that accepts nothing of this, not even no coding | 406, before the handler runs |
/// | media types | text, JSON, XML, scripts, and the like; [`Compression::types`] |
/// | length | from 1 KiB; all content of unknown length; [`Compression::bytes_min`] |
/// | left alone | content that has a coding, ranges (206), `Cache-Control: no-transform`, [`Uncompressed`], [`Compression::except`] |
/// | `ETag` | a strong one becomes weak, since the bytes are others |
/// | `Vary` | `Accept-Encoding`, on every response that could be compressed, whether it is or not |
/// | HEAD | the fields are those of the GET, and nothing is compressed |
/// | streams | whenever the producer pauses, its readers get all there is; so [server-sent events](peregrine_web::sse) arrive at once |
/// | large content | 16 KiB at a time; then others have their turn |
/// | memory | about 320 KiB (gzip), 2.5 MiB (zstd, br) for each response in progress, charged to the worker's account; while memory is short, nothing is compressed |
///
/// # Secrets
///
/// Who can make a visitor's browser send requests, put text of their own into the responses, and see how long they are,
/// can guess what else is in there, letter by letter, if it is compressed (BREACH). So pages that have a secret and something of the request's
/// in one response should not be compressed, or show the secret masked, as `CsrfToken` is: leave such routes out of the scope, return
/// [`Uncompressed`] with the response, or name them by [`Compression::except`].
///
/// ```
/// use peregrine::compression::{Compression, Uncompressed};
/// use peregrine::App;
///
/// async fn token() -> (Uncompressed, String) {
///     (Uncompressed, "secret".repeat(1000))
/// }
/// let client = App::new().with(Compression::new()).get("/", token).test();
/// let response = client.get("/").header("accept-encoding", "gzip").send_now();
/// assert_eq!(response.header("content-encoding"), None);
/// ```
#[derive(Clone)]
#[must_use = "a middleware does nothing until it is added to an application or a scope"]
pub struct Compression {
    codings: Vec<Coding>,
    level: Level,
    bytes_min: u64,
    types: Rc<dyn Fn(&str) -> bool>,
    except: Option<Except>,
}

type Except = Rc<dyn Fn(&Head) -> bool>;

/// How hard it is tried to make content small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Level {
    /// As quickly as possible: 1 of gzip, zstd and br.
    Fast,
    /// What is worth it for content that is made for each request: 5 of gzip, 3 of zstd, 4 of br.
    #[default]
    Middle,
    /// For content that many get from a cache: 9.
    Small,
}

impl Compression {
    /// All codings of this build, and the defaults above.
    pub fn new() -> Self {
        Self {
            codings: Coding::ALL.to_vec(),
            level: Level::default(),
            bytes_min: BYTES_MIN,
            types: Rc::new(is_compressible),
            except: None,
        }
    }

    /// Only these codings; among those that a client likes as much, the first.
    pub fn codings(mut self, codings: impl IntoIterator<Item = Coding>) -> Self {
        self.codings = codings.into_iter().collect();
        self
    }

    /// How hard it is tried.
    pub fn level(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    /// The least length of content, in bytes, where it is known. The default is 1 KiB.
    pub fn bytes_min(mut self, bytes: u64) -> Self {
        self.bytes_min = bytes;
        self
    }

    /// Which media types are compressed: those for which this says so, which gets them in lower case and without
    /// parameters, such as `text/html`. Content without a type never is.
    pub fn types(mut self, is_compressible: impl Fn(&str) -> bool + 'static) -> Self {
        self.types = Rc::new(is_compressible);
        self
    }

    /// Requests whose responses are left alone. A path is as it was sent, and can be written in more than one way
    /// (`/%61dmin`): for secrets, [`Uncompressed`] and scopes are surer.
    pub fn except(mut self, is_exempt: impl Fn(&Head) -> bool + 'static) -> Self {
        self.except = Some(Rc::new(is_exempt));
        self
    }

    /// `response` in the coding that was agreed on, if it may and should have one.
    fn compressed(&self, mut response: Response, accepted: Accepted, is_head: bool) -> Response {
        let is_marked = Uncompressed::is_on(&response);
        if response.status == StatusCode::NOT_MODIFIED && !is_marked {
            // It stands for a response that would have them.
            self.varies(&mut response, accepted.coding.is_some());
            if accepted.coding.is_some() {
                // RFC 9110 §8.6: the length is that of a 200 to the same request, which nobody knows before it is compressed.
                response.fields.remove(&CONTENT_LENGTH);
            }
            return response;
        }
        if is_marked {
            return response;
        }
        let is_type = essence(&response).is_some_and(|essence| (self.types)(&essence));
        if is_type && is_part(&response) {
            // RFC 9110 §15.3.7: a 206 has the Vary that a 200 to the same request would have.
            self.varies(&mut response, false);
            return response;
        }
        if !may_change(&response) {
            return response;
        }
        let length = response.body.length();
        let is_long = length.is_none_or(|length| length >= self.bytes_min);
        let is_empty = length == Some(0) && !is_head;
        let must = !accepted.identity;
        if is_empty || !(must || (is_type && is_long)) {
            return response;
        }
        let is_tight = filling() >= Filling::Tight && !must;
        let coding = accepted.coding.filter(|_| !is_tight);
        let Some(coding) = coding else {
            self.varies(&mut response, false);
            return response;
        };
        let encoded = if is_head {
            Ok(Some(Body::new(Untold)))
        } else {
            self.encoded(&mut response.body, coding, length, must)
        };
        match encoded {
            Ok(Some(body)) => response.body = body,
            Ok(None) => {
                self.varies(&mut response, false);
                return response;
            }
            Err(error) => {
                // The content is sent as it is, if the encoder has not taken it.
                contained(
                    || tracing::error!(target: "peregrine", %coding, %error, "a response could not be compressed"),
                );
                self.varies(&mut response, false);
                return response;
            }
        }
        self.varies(&mut response, true);
        let fields = &mut response.fields;
        fields.set(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
        fields.remove(&CONTENT_LENGTH);
        // Ranges would be of the content as it was.
        fields.remove(&ACCEPT_RANGES);
        let digests = DIGESTS.map(HeaderName::from_static);
        digests.iter().for_each(|digest| fields.remove(digest));
        response
    }

    /// The body in this coding; none if it would not be shorter. The body stays where that is so.
    fn encoded(
        &self,
        body: &mut Body,
        coding: Coding,
        length: Option<u64>,
        must: bool,
    ) -> std::io::Result<Option<Body>> {
        let mut encoder = Encoder::new(coding, self.level, length)?;
        let Some(content) = body.as_slice().filter(|content| content.len() <= AT_ONCE_BYTES_MAX)
        else {
            return Ok(Some(Body::new(Encoded::new(std::mem::take(body), encoder))));
        };
        let mut out = pool::take();
        encoder.write(content, &mut out)?;
        encoder.finish(&mut out)?;
        if out.len() >= content.len() && !must {
            pool::give(out);
            return Ok(None);
        }
        Ok(Some(Body::buffer(out)))
    }

    /// Says that the response depends on what the client accepts, and, if it is not what the handler made, that it is the same in meaning only.
    fn varies(&self, response: &mut Response, is_changed: bool) {
        response.fields.vary("accept-encoding");
        if !is_changed {
            return;
        }
        // RFC 9110 §8.8.3.3: representations that differ in their coding differ in strong tags.
        let tag = response.fields.get(&ETAG).filter(|tag| tag.as_bytes().starts_with(b"\""));
        let weak =
            tag.and_then(|tag| HeaderValue::from_bytes(&[b"W/", tag.as_bytes()].concat()).ok());
        if let Some(weak) = weak {
            response.fields.set(ETAG, weak);
        }
    }
}

impl Default for Compression {
    fn default() -> Self {
        Self::new()
    }
}

impl Middleware for Compression {
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        let head = &request.parts.head;
        if self.except.as_ref().is_some_and(|is_exempt| is_exempt(head)) {
            return next.call(request).await;
        }
        let accepted = accepted(head, &self.codings);
        if accepted.coding.is_none() && !accepted.identity {
            let mut response = unacceptable(&self.codings).into_response();
            self.varies(&mut response, false);
            return response;
        }
        let is_head = request.method() == Method::HEAD;
        let (head, states) = (head.share(), Rc::clone(request.parts.states()));
        let response = next.call(request).await;
        // The application's form of a problem is what will be sent.
        let response = states.render(response, &head);
        self.compressed(response, accepted, is_head)
    }

    fn require(&self, requirements: &mut Requirements) {
        if self.codings.is_empty() {
            requirements.fault("Compression has no coding; name one, or turn a feature on: br, gzip, zstd or deflate");
        }
    }
}

/// RFC 9110 §15.5.7: there is no representation that the client accepts.
fn unacceptable(codings: &[Coding]) -> Problem {
    let names: Vec<_> = codings.iter().map(|coding| coding.name()).collect();
    let detail = format!(
        "Accept-Encoding refuses content without a coding, and every coding that this server has: {}.",
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
