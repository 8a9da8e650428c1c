//! Compares the responses of both servers to the same bytes, field by field.

use crate::harness::{Engine, Host, Served, check};
use peregrine_axum_examples::catalogue::{EXAMPLES, Program};
use peregrine_axum_examples::hello_world;
use std::collections::BTreeMap;

/// Requests of all kinds, as bytes on the wire. Each is sent on its own connection.
const REQUESTS: &[&str] = &[
    "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n",
    "OPTIONS / HTTP/1.1\r\nHost: a\r\n\r\n",
    "DELETE / HTTP/1.1\r\nHost: a\r\n\r\n",
    "TRACE / HTTP/1.1\r\nHost: a\r\n\r\n",
    "SING / HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET http://a.example/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET http://a.example HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /?a=b&c=%20 HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET // HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /nowhere/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /%2F%00%FF HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /a/../b HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET / HTTP/1.0\r\n\r\n",
    "HEAD /implicit HTTP/1.1\r\nHost: a\r\n\r\n",
    "HEAD /explicit HTTP/1.1\r\nHost: a\r\n\r\n",
    "HEAD /length HTTP/1.1\r\nHost: a\r\n\r\n",
    "HEAD /text HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n",
    "HEAD /lines HTTP/1.1\r\nHost: a\r\nRange: bytes=0-9\r\n\r\n",
    "GET /lines HTTP/1.1\r\nHost: a\r\nRange: bytes=10-19\r\n\r\n",
    "GET /lines HTTP/1.1\r\nHost: a\r\nRange: bytes=0-0,5-6\r\n\r\n",
    "GET /assets/style.css HTTP/1.1\r\nHost: a\r\nIf-Modified-Since: Fri, 31 Dec 2100 00:00:00 GMT\r\n\r\n",
    "GET /ticks/3 HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /ticks/3 HTTP/1.0\r\n\r\n",
    "GET /drip/3 HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 6\r\n\r\nname=a",
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Type: application/x-www-form-urlencoded\r\n\r\n3\r\nnam\r\n3\r\ne=b\r\n0\r\nX-Trailer: t\r\n\r\n",
    "POST /upper HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
    "POST /todos HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{\"text\":\"a\"}",
    "GET /todos?limit=x HTTP/1.1\r\nHost: a\r\n\r\n",
    "PUT /values/k HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nv",
    "GET /admin/keys HTTP/1.1\r\nHost: a\r\n\r\n",
    "DELETE /admin/keys HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /birds HTTP/1.1\r\nHost: a\r\nOrigin: http://localhost:3000\r\n\r\n",
    "GET /secret HTTP/1.1\r\nHost: a\r\nCookie: a=b\r\nCookie: session=9\r\n\r\n",
    "POST /login HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 6\r\n\r\nname=a",
    "GET /broken/x HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /flocks/%20/birds/-1 HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nX-Same: 1\r\nx-same: 2\r\nX-Empty:\r\n\r\n",
];

/// A response without its date.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    status: String,
    fields: BTreeMap<String, Vec<String>>,
    body: Vec<u8>,
}

/// Parses responses with an independent parser.
fn seen(bytes: &[u8]) -> Vec<Seen> {
    let mut all = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let end = rest.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a whole head");
        let head = std::str::from_utf8(&rest[..end]).expect("a head is text");
        let mut lines = head.split("\r\n");
        let status = lines.next().expect("there is a first line").to_owned();
        let mut fields = BTreeMap::<String, Vec<String>>::new();
        for line in lines {
            let (name, value) = line.split_once(": ").expect("a field has a name");
            fields.entry(name.to_lowercase()).or_default().push(value.to_owned());
        }
        fields.remove("date");
        rest = &rest[end + 4..];
        if status.starts_with("HTTP/1.1 1") {
            // A server may omit the 100 response if content has already arrived (RFC 9110 §10.1.1),
            // so whether it is sent depends on timing.
            continue;
        }
        let is_chunked = fields.contains_key("transfer-encoding");
        let body = if is_chunked { unchunked(rest) } else { rest.to_vec() };
        all.push(Seen { status, fields, body });
        rest = &[];
    }
    all
}

/// Decodes a chunked body.
fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while !rest.is_empty() {
        let end = rest.windows(2).position(|bytes| bytes == b"\r\n").expect("a whole line");
        let line = std::str::from_utf8(&rest[..end]).expect("a size is text");
        let size = usize::from_str_radix(line, 16).expect("a size is a number");
        rest = &rest[end + 2..];
        if size == 0 {
            break;
        }
        body.extend_from_slice(&rest[..size]);
        rest = &rest[size + 2..];
    }
    body
}

/// Requests that Peregrine answers before they reach the router: the statuses under axum and under
/// Peregrine.
const BEFORE_THE_ROUTER: &[(&str, u16, u16)] = &[
    // An HTTP/1.1 request has exactly one valid Host field (RFC 9112 §3.2).
    ("GET / HTTP/1.1\r\n\r\n", 200, 400),
    ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 200, 400),
    ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 200, 400),
    // A request with Content-Length and Transfer-Encoding may be a smuggling attempt (RFC 9112
    // §6.1).
    (
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n\
         0\r\n\r\n",
        405,
        400,
    ),
    // A fragment is not sent to servers (RFC 3986 §3.5), and a target is ASCII.
    ("GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", 404, 400),
    ("GET /\u{e9} HTTP/1.1\r\nHost: a\r\n\r\n", 404, 400),
    // A server may reject an unknown expectation (RFC 9110 §10.1.1).
    ("GET / HTTP/1.1\r\nHost: a\r\nExpect: the best\r\n\r\n", 200, 417),
    // This request is about the server as a whole (RFC 9110 §9.3.7), so the server answers it.
    ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 404, 204),
    // The server does not provide tunnels, so CONNECT is not passed to the router.
    ("CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n", 404, 501),
    ("GET / HTTP/2.1\r\nHost: a\r\n\r\n", 400, 505),
    ("GET / HTTP/1.1\r\nHost: a\r\nX Y: z\r\n\r\n", 400, 400),
];

/// The responses to `request` on a connection that is closed after it.
async fn answers(server: &Served, request: &str) -> Vec<Seen> {
    let mut raw = server.connect().await;
    let is_old = request.contains("HTTP/1.0");
    let closing = request.replacen("\r\n", "\r\nConnection: close\r\n", 1);
    raw.send(if is_old { request } else { &closing }).await;
    seen(&raw.bytes().await)
}

/// The responses expected of Peregrine if those of `axum::serve` are `right`: the same, except for
/// what the server adds for HTTP/1.0 clients.
fn expected(mut right: Vec<Seen>) -> Vec<Seen> {
    for seen in &mut right {
        if let Some(rest) = seen.status.strip_prefix("HTTP/1.0 ") {
            // A server responds with its highest version (RFC 9110 §2.5).
            seen.status = format!("HTTP/1.1 {rest}");
            // A server that will close sends `Connection: close` (RFC 9112 §9.6); hyper relies on
            // the version.
            seen.fields.insert("connection".to_owned(), vec!["close".to_owned()]);
        }
    }
    right
}

fn forget_private(seen: &mut Seen) {
    if seen.fields.get("cache-control").is_some_and(|values| *values == ["private"]) {
        seen.fields.remove("cache-control");
    }
}

fn both_answer_the_same(engine: Engine) {
    check(engine, async |host| {
        let reference = Host { engine: Engine::Axum };
        for example in EXAMPLES {
            let Program::Plain(app) = example.program else { continue };
            let (right, ours) = (reference.serve(app()), host.serve(app()));
            for request in REQUESTS {
                let right = expected(answers(&right, request).await);
                let mut ours = answers(&ours, request).await;
                // Peregrine keeps responses to requests with credentials out of shared caches.
                if request.contains("Cookie: ") || request.contains("Authorization: ") {
                    ours.iter_mut().for_each(forget_private);
                }
                assert_eq!(ours, right, "{}: {request:?}", example.name);
            }
            right.end().await;
            ours.end().await;
        }
    });
}

/// Peregrine validates requests more strictly than hyper.
fn what_breaks_a_rule_is_refused(engine: Engine) {
    check(engine, async |host| {
        let right = Host { engine: Engine::Axum }.serve(hello_world::app());
        let ours = host.serve(hello_world::app());
        for (request, by_hyper, by_peregrine) in BEFORE_THE_ROUTER {
            let by = async |server| {
                let answers = answers(server, request).await;
                let [answer] = answers.as_slice() else { panic!("{request:?}: {answers:?}") };
                answer.status.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok())
            };
            let found = (by(&right).await, by(&ours).await);
            assert_eq!(found, (Some(*by_hyper), Some(*by_peregrine)), "{request:?}");
        }
        right.end().await;
        ours.end().await;
    });
}

#[test]
fn tokio_s_driver_answers_as_axum_does() {
    both_answer_the_same(Engine::Tokio);
}

#[test]
fn io_uring_answers_as_axum_does() {
    both_answer_the_same(Engine::Uring);
}

#[test]
fn tokio_s_driver_refuses_what_breaks_a_rule() {
    what_breaks_a_rule_is_refused(Engine::Tokio);
}

#[test]
fn io_uring_refuses_what_breaks_a_rule() {
    what_breaks_a_rule_is_refused(Engine::Uring);
}
