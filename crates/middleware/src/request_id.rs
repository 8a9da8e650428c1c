//! Request IDs, for finding requests in logs.

use http::{HeaderName, HeaderValue, StatusCode};
use peregrine_web::extract::FromRequestParts;
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::{Middleware, Parts, Problem, Request, Response, Service};
use std::cell::Cell;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use tracing::Span;
use tracing::level_filters::LevelFilter;

/// The maximum length in bytes of an ID from a client; a longer one is replaced.
pub const REQUEST_ID_BYTES_MAX: usize = 128;

/// Assigns an ID to each request: the one it arrived with if that is well-formed, otherwise a new
/// one.
///
/// The ID is in the response's `X-Request-Id`, in events of [`crate::AccessLog`] inside this
/// middleware, and in the handler argument [`RequestId`]. It is also recorded as `request_id`
/// in the current `tracing` span: a server runs each request in a span with this field, so all of a
/// handler's events contain the ID.
///
/// A well-formed ID has 1 to 128 bytes, which are ASCII letters, digits, or one of `-_.:/+=@`.
/// Therefore an ID can neither break a log line nor fill the log. A new ID has 32 hexadecimal
/// digits: 16 chosen at random by each worker when it starts, and 16 that count its requests in a
/// scrambled order. IDs are unique, but not secret.
///
/// ```
/// use peregrine::middleware::{RequestId, SetRequestId};
/// use peregrine::App;
///
/// async fn show(id: RequestId) -> String {
///     id.to_string()
/// }
///
/// let client = App::new().wrap(SetRequestId::new()).get("/", show).test();
/// let response = client.get("/").header("X-Request-Id", "from-the-proxy").send_blocking();
/// assert_eq!(response.text(), "from-the-proxy");
/// assert_eq!(response.header("x-request-id"), Some("from-the-proxy"));
/// ```
#[doc(alias = "SetRequestIdLayer")]
#[doc(alias = "x-request-id")]
#[derive(Clone, Debug)]
pub struct SetRequestId {
    name: HeaderName,
    inbound: InboundId,
}

/// How IDs of incoming requests are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InboundId {
    Accept,
    Replace,
}

impl SetRequestId {
    /// Uses the field `X-Request-Id`, and accepts IDs of incoming requests.
    #[must_use]
    pub const fn new() -> Self {
        Self { name: HeaderName::from_static("x-request-id"), inbound: InboundId::Accept }
    }

    /// Uses the field `name` instead, in requests and responses.
    #[must_use]
    pub fn header(mut self, name: HeaderName) -> Self {
        self.name = name;
        self
    }

    /// Creates a new ID for every request, for servers whose peers are not trusted to choose one.
    #[must_use]
    pub fn replace_inbound(mut self) -> Self {
        self.inbound = InboundId::Replace;
        self
    }

    fn choose_id(&self, parts: &Parts) -> RequestId {
        let inbound = match self.inbound {
            InboundId::Accept => parts.head.header_bytes(self.name.as_str()),
            InboundId::Replace => None,
        };
        inbound.and_then(RequestId::parse).unwrap_or_else(RequestId::generate)
    }
}

impl Default for SetRequestId {
    fn default() -> Self {
        Self::new()
    }
}

impl Middleware for SetRequestId {
    async fn run<S: Service>(&self, mut request: Request, next: &S) -> Response {
        let id = self.choose_id(&request.parts);
        request.parts.extensions_mut().insert(id);
        // Without a subscriber, this is one comparison. `enabled!` would evaluate the filters of a
        // subscriber's layers, and its result would apply to the next event too: layers of
        // `tracing-subscriber` would lose that event.
        if LevelFilter::current() >= LevelFilter::ERROR {
            Span::current().record("request_id", id.as_str());
        }
        let mut response = next.call(request).await;
        let value = HeaderValue::from_str(id.as_str()).expect("an ID is visible ASCII");
        response.headers.insert(self.name.clone(), value);
        response
    }
}

/// The ID of a request. As a handler argument it requires [`SetRequestId`] around the handler;
/// otherwise the problem has status 500, and `Option<RequestId>` is `None`.
#[doc(alias = "MakeRequestId")]
#[doc(alias = "x-request-id")]
#[derive(Clone, Copy)]
pub struct RequestId {
    bytes: [u8; REQUEST_ID_BYTES_MAX],
    length: u8,
}

impl RequestId {
    /// The ID.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let bytes = &self.bytes[..usize::from(self.length)];
        std::str::from_utf8(bytes).expect("an ID is ASCII")
    }

    /// Parses an ID from a client, if it is well-formed (see [`SetRequestId`]).
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let well_formed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(byte);
        if text.is_empty() || text.len() > REQUEST_ID_BYTES_MAX || !text.iter().all(well_formed) {
            return None;
        }
        let mut bytes = [0; REQUEST_ID_BYTES_MAX];
        bytes[..text.len()].copy_from_slice(text);
        let length = u8::try_from(text.len()).expect("the limit fits in a byte");
        Some(Self { bytes, length })
    }

    /// Creates a new ID.
    fn generate() -> Self {
        let (worker, number) = SEQUENCE.with(IdSequence::next);
        let mut bytes = [0; REQUEST_ID_BYTES_MAX];
        write_hex(worker, &mut bytes[..16]);
        write_hex(number, &mut bytes[16..32]);
        Self { bytes, length: 32 }
    }
}

thread_local! {
    static SEQUENCE: IdSequence = IdSequence::new();
}

/// Generates the IDs of one worker.
struct IdSequence {
    worker: u64,
    count: Cell<u64>,
}

impl IdSequence {
    /// Draws random numbers without a dependency: the standard library seeds each `RandomState`
    /// differently, from the operating system's randomness.
    fn new() -> Self {
        let random = || RandomState::new().hash_one("request id");
        Self { worker: random(), count: Cell::new(random()) }
    }

    fn next(&self) -> (u64, u64) {
        // Multiplying by an odd factor maps the numbers below 2^64 one to one. This factor also
        // separates neighbors, so an ID does not reveal how many requests came before.
        const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
        let count = self.count.get();
        self.count.set(count.wrapping_add(1));
        (self.worker, count.wrapping_mul(ODD))
    }
}

fn write_hex(number: u64, output: &mut [u8]) {
    for (index, digit) in output.iter_mut().enumerate() {
        let nibble = (number >> (60 - 4 * index)) & 15;
        *digit = b"0123456789abcdef"[nibble as usize];
    }
}

impl FromRequestParts for RequestId {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        from_parts(parts).ok_or_else(|| {
            catch_subscriber_panic(|| {
                tracing::error!(target: "peregrine",
                "the handler needs the request's id; add `.wrap(SetRequestId::new())` around it")
            });
            let detail =
                "the server lacks something that it needs for this request; its log says what";
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "missing-request-id", detail)
        })
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        Ok(from_parts(parts))
    }
}

/// The ID that [`SetRequestId`] assigned to a request.
pub(crate) fn from_parts(parts: &Parts) -> Option<RequestId> {
    parts.extensions().get().copied()
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RequestId").field(&self.as_str()).finish()
    }
}

impl PartialEq for RequestId {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for RequestId {}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_web::App;
    use std::collections::HashSet;
    use std::thread;

    async fn show(id: RequestId) -> String {
        id.to_string()
    }

    #[test]
    fn a_well_formed_id_is_kept_and_any_other_is_replaced() {
        let client = App::new().wrap(SetRequestId::new()).get("/", show).test();
        let longest = "a".repeat(REQUEST_ID_BYTES_MAX);
        for id in ["7", "Root=1-5759e988-bd862e3f/x+y@z:1_2.3", &longest] {
            let response = client.get("/").header("x-request-id", id).send_blocking();
            assert_eq!((response.text().as_str(), response.field("x-request-id")), (id, Some(id)));
        }
        let too_long = "a".repeat(REQUEST_ID_BYTES_MAX + 1);
        for id in ["", "a b", "a\"b", "caf\u{e9}", "<script>", &too_long] {
            let response = client.get("/").header("x-request-id", id).send_blocking();
            let text = response.text();
            assert!(text.len() == 32 && text != id, "{id} became {text}");
            assert_eq!(response.field("x-request-id"), Some(text.as_str()));
        }
    }

    #[test]
    fn client_ids_can_be_replaced_and_the_field_renamed() {
        let name = HeaderName::from_static("x-trace");
        let middleware = SetRequestId::new().header(name).replace_inbound();
        let client = App::new().wrap(middleware).get("/", show).test();
        let response = client.get("/").header("x-trace", "mine").send_blocking();
        assert_ne!(response.field("x-trace"), Some("mine"));
        assert_eq!(
            (response.field("x-trace").map(str::len), response.field("x-request-id")),
            (Some(32), None)
        );
    }

    #[test]
    fn new_ids_are_hexadecimal_and_differ_between_requests_and_workers() {
        let generate = || (0..1000).map(|_| RequestId::generate().to_string()).collect::<Vec<_>>();
        let mut ids: Vec<String> = generate();
        ids.extend(thread::spawn(generate).join().expect("no panic"));
        assert!(ids.iter().all(|id| id.bytes().all(|byte| byte.is_ascii_hexdigit())));
        assert_ne!(ids[0][..16], ids[1000][..16], "each worker has a random first half");
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 2000);
    }

    #[test]
    fn without_the_middleware_the_response_does_not_reveal_the_fix() {
        let client =
            App::new().get("/", show).get(
                "/maybe",
                async |id: Option<RequestId>| {
                    if id.is_some() { "some" } else { "none" }
                },
            );
        let client = client.test();
        let response = client.get("/").send_blocking();
        assert_eq!(response.status(), 500);
        assert!(response.text().contains("missing-request-id"), "{}", response.text());
        assert!(!response.text().contains("RequestId::new"), "{}", response.text());
        assert_eq!(client.get("/maybe").send_blocking().text(), "none");
    }
}
