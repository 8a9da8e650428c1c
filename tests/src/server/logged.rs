//! The access log on every driver: one line per request, with its result.

use crate::server::bench::{Bench, Served, ServerOptions};
use crate::server::client::{Length, Way};
use crate::server::peer::Peer;
use crate::server::secure::server_tls;
use crate::server::streams::Streams;
use bytes::Bytes;
use http_body::Frame;
use peregrine::Limits;
use peregrine::access_log::AccessLogFormat;
use peregrine::prelude::*;
use peregrine::web::HandlerExt;
use peregrine::web::upgrade::UpgradeHandler;
use peregrine_proto::h2::frame::{self, ErrorCode, FrameType, flags};
use peregrine_server::AccessLogSink;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

/// Collects what a log writes.
#[derive(Clone, Debug, Default)]
pub struct Collected(Arc<Mutex<Vec<u8>>>);

impl Collected {
    /// The lines so far.
    ///
    /// # Panics
    /// If they are not text, or the last one is incomplete.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let text = String::from_utf8(bytes).expect("lines are text");
        assert!(text.is_empty() || text.ends_with('\n'), "{text}");
        text.lines().map(str::to_owned).collect()
    }

    fn add(&self, bytes: &[u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
    }
}

impl AccessLogSink for Collected {
    fn write_line(&self, line: &[u8]) {
        self.add(line);
    }
}

impl Write for Collected {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.add(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A timeout that expires soon.
const SHORT: Duration = Duration::from_millis(300);

fn limits() -> Limits {
    Limits { shutdown_timeout: Duration::from_secs(20), ..Limits::default() }
}

/// A stream that ends, or fails, after some pieces.
struct Pieces {
    remaining: usize,
    fails: bool,
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.remaining > 0 {
            self.remaining -= 1;
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"piece")))));
        }
        Poll::Ready(self.fails.then(|| Err(io::Error::other("on purpose"))))
    }
}

async fn upgraded() -> Response {
    let protocol =
        UpgradeHandler::new(|mut io| async move { while let Ok(Some(_)) = io.recv().await {} });
    Response::new(StatusCode::SWITCHING_PROTOCOLS)
        .with_header(HeaderName::from_static("upgrade"), HeaderValue::from_static("test"))
        .with_upgrade(protocol)
}

fn app(waiting: &Arc<AtomicUsize>) -> App {
    let (waiting, reading) = (Arc::clone(waiting), Arc::clone(waiting));
    let late = async || std::future::pending::<&str>().await;
    App::new()
        .get("/hello", || "hello")
        .get("/birds/{bird}", |Path(bird): Path<String>| bird)
        .get("/large", || "x".repeat(200_000))
        .get("/stream", || Body::new(Pieces { remaining: 3, fails: false }))
        .get("/breaks", || Body::new(Pieces { remaining: 1, fails: true }))
        .get("/panic", || -> &'static str { panic!("on purpose") })
        .get("/late", late.timeout(SHORT))
        .get("/never", move || {
            waiting.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<&str>()
        })
        .post("/small", (async |body: Bytes| body).body_limit(10))
        .post("/count", async move |body: Bytes| {
            reading.fetch_add(1, Ordering::SeqCst);
            body.len().to_string()
        })
        .get("/upgrade", upgraded)
}

struct Site<B: Bench> {
    server: B::Server,
    lines: Collected,
    waiting: Arc<AtomicUsize>,
}

fn begin<B: Bench>(bench: &B, way: Way, form: AccessLogFormat) -> Site<B> {
    begin_behind(bench, way, form, ServerOptions::default(), limits())
}

fn begin_behind<B: Bench>(
    bench: &B,
    way: Way,
    form: AccessLogFormat,
    server_options: ServerOptions,
    limits: Limits,
) -> Site<B> {
    let (lines, waiting) = (Collected::default(), Arc::<AtomicUsize>::default());
    let tls = way.is_secure().then(server_tls);
    let server_options = ServerOptions { log: Some((form, lines.clone())), ..server_options };
    let shared = Arc::clone(&waiting);
    let server = bench.start_behind(server_options, limits, tls, move || app(&shared));
    Site { server, lines, waiting }
}

impl<B: Bench> Site<B> {
    /// Ends the server and returns all lines.
    async fn end(self) -> Vec<String> {
        self.server.shut_down();
        self.server.ended().await;
        self.lines.lines()
    }
}

/// The value of a number in a line of JSON.
fn number(line: &str, name: &str) -> Option<u64> {
    let (_, tail) = line.split_once(&format!("\"{name}\":"))?;
    tail.split([',', '}']).next()?.parse().ok()
}

fn text<'l>(line: &'l str, name: &str) -> Option<&'l str> {
    let (_, tail) = line.split_once(&format!("\"{name}\":\""))?;
    tail.split('"').next()
}

/// However a request ends, it has one line, with its status, its bytes and its error.
pub async fn every_request_has_one_line<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let site = begin(bench, way, AccessLogFormat::Json);
    let requests = [
        ("GET", "/hello", 0, Some(200), None),
        ("HEAD", "/hello", 0, Some(200), None),
        ("GET", "/birds/eagle", 0, Some(200), None),
        ("GET", "/large", 0, Some(200), None),
        ("GET", "/stream", 0, Some(200), None),
        ("GET", "/breaks", 0, Some(200), Some("aborted")),
        ("GET", "/nowhere", 0, Some(404), None),
        ("POST", "/hello", 0, Some(405), None),
        ("POST", "/small", 11, Some(413), None),
        ("POST", "/count", 100, Some(200), None),
        ("GET", "/panic", 0, Some(500), Some("panic")),
        ("GET", "/late", 0, Some(503), Some("timeout")),
        ("GET", "/never", 0, None, Some("cancelled")),
        ("MADE-UP", "/hello", 0, Some(405), None),
    ];
    let mut sent_bytes = Vec::new();
    for (number, (method, path, length, status, _)) in requests.into_iter().enumerate() {
        let mut client = way.connect(&site.server).await;
        let content = if length > 0 { Length::Declared(length) } else { Length::None };
        let id = client.begin(method, &format!("{path}?n={number}"), &[], content);
        if length > 0 {
            client.upload(id, &vec![7; length]).await;
        }
        if status.is_none() {
            let waiting = || site.waiting.load(Ordering::SeqCst) > 1;
            client.wait_until(bench, "the handler waits", waiting).await;
            client.cancel(id);
            sent_bytes.push(0);
        } else {
            let response = client.answer(id).await;
            assert_eq!(Some(response.status()), status, "{way:?} {path}");
            sent_bytes.push(response.body.len() as u64);
        }
    }
    let lines = site.end().await;
    assert_eq!(lines.len(), requests.len(), "{way:?}: {lines:?}");
    for (index, (method, path, length, status, error)) in requests.into_iter().enumerate() {
        let query = format!("\"url.query\":\"n={index}\"");
        let matching: Vec<_> = lines.iter().filter(|line| line.contains(&query)).collect();
        let [line] = matching[..] else { panic!("{way:?} {path}: {matching:?}") };
        assert_eq!(number(line, "http.response.status_code"), status.map(u64::from), "{line}");
        assert_eq!(number(line, "http.response.body.size"), Some(sent_bytes[index]), "{line}");
        assert_eq!(text(line, "error.type"), error, "{line}");
        assert_eq!(text(line, "url.path"), Some(path), "{line}");
        let logged_method = if method == "MADE-UP" { "_OTHER" } else { method };
        assert_eq!(text(line, "http.request.method"), Some(logged_method), "{line}");
        let scheme = if way.is_secure() { "https" } else { "http" };
        assert_eq!(text(line, "url.scheme"), Some(scheme), "{line}");
        assert_eq!(text(line, "network.protocol.version"), Some(way.differs("1.1", "2")), "{line}");
        if status == Some(200) {
            assert_eq!(number(line, "http.request.body.size"), Some(length as u64), "{line}");
        }
    }
}

/// Lines in Apache's formats count the same bytes, and have a dash for missing values.
pub async fn lines_have_the_formats_of_other_servers<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let site = begin(bench, way, AccessLogFormat::Combined);
    let mut client = way.connect(&site.server).await;
    let fields = [("user-agent", "a \"quoted\" agent"), ("referer", "http://birds.example/?a\\b")];
    for (path, fields) in [("/birds/eagle?a=b", &fields[..]), ("/hello", &[])] {
        let id = client.ask("GET", path, fields);
        client.answer(id).await;
    }
    let id = client.ask("HEAD", "/hello", &[]);
    client.answer(id).await;
    client.close().await;
    let lines = site.end().await;
    let version = way.differs("1.1", "2.0");
    let suffixes = [
        format!(
            "] \"GET /birds/eagle?a=b HTTP/{version}\" 200 5 \"http://birds.example/?a\\\\b\" \
             \"a \\\"quoted\\\" agent\""
        ),
        format!("] \"GET /hello HTTP/{version}\" 200 5 \"-\" \"-\""),
        format!("] \"HEAD /hello HTTP/{version}\" 200 - \"-\" \"-\""),
    ];
    assert_eq!(lines.len(), suffixes.len(), "{lines:?}");
    for (line, suffix) in lines.iter().zip(suffixes) {
        assert!(line.contains(" - - [") && line.ends_with(&suffix), "{line} is not {suffix}");
    }
}

/// The client in a line is the one named by a trusted proxy, and by no other peer.
pub async fn trusted_proxies_determine_the_client<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    for (proxies, is_forwarded) in
        [(Some(["0.0.0.0/0", "::/0", "unix:"].into()), true), (None, false)]
    {
        let server_options = ServerOptions { proxies, ..ServerOptions::default() };
        let site = begin_behind(bench, way, AccessLogFormat::Common, server_options, limits());
        let mut client = way.connect(&site.server).await;
        let id = client.ask("GET", "/hello", &[("x-forwarded-for", "192.0.2.7")]);
        client.answer(id).await;
        client.close().await;
        let lines = site.end().await;
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert_eq!(lines[0].starts_with("192.0.2.7 - - ["), is_forwarded, "{lines:?}");
    }
}

/// Aborted requests have a line too.
pub async fn aborted_requests_have_a_line<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let site = begin(bench, way, AccessLogFormat::Json);
    let mut client = way.connect(&site.server).await;
    let _id = client.get("/never");
    let waiting = || site.waiting.load(Ordering::SeqCst) == 1;
    client.wait_until(bench, "the handler waits", waiting).await;
    site.server.cut();
    let lines = site.end().await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(text(&lines[0], "error.type"), Some("cancelled"), "{lines:?}");
    assert_eq!(number(&lines[0], "http.response.status_code"), None, "{lines:?}");
    drop(client);
}

/// Invalid requests have one line, with the received text; silent connections have none.
pub async fn invalid_requests_have_one_line<B: Bench>(bench: &B) {
    bench.calm();
    let limits = Limits { head_timeout: SHORT, ..limits() };
    let site =
        begin_behind(bench, Way::HTTP1, AccessLogFormat::Common, ServerOptions::default(), limits);
    for (request, line) in [
        ("no http\r\n\r\n", "\"no http\" 400 "),
        ("GET /a\x1b[2J\" 200 1 HTTP/1.1\r\n\r\n", "\"GET /a\\x1b[2J\\\" 200 1 HTTP/1.1\" 400 "),
        ("GET /slow HTTP/1.1\r\nHo", "\"GET /slow HTTP/1.1\" 408 "),
        ("", ""),
    ] {
        let mut peer = Peer::new(site.server.connect());
        if line.is_empty() {
            peer.half_close();
        } else {
            peer.send(request);
            let status = if request.contains("slow") { 408 } else { 400 };
            assert_eq!(peer.reply().await.status, status, "{request:?}");
        }
        peer.expect_end().await;
    }
    let lines = site.end().await;
    assert_eq!(lines.len(), 3, "{lines:?}");
    for expected in
        ["\"no http\" 400 ", "\\x1b[2J\\\" 200 1 HTTP/1.1\" 400 ", "\"GET /slow HTTP/1.1\" 408 "]
    {
        assert_eq!(lines.iter().filter(|line| line.contains(expected)).count(), 1, "{lines:?}");
    }
}

/// A request whose stream ends while its content arrives has a line that names it.
pub async fn requests_that_end_while_content_arrives_have_a_line<B: Bench>(bench: &B) {
    bench.calm();
    let site = begin(bench, Way::HTTP1, AccessLogFormat::Json);
    let mut client = Streams::new(site.server.connect());
    let mut bytes = Vec::new();
    // In one piece, so that the server sees the end before it calls the handler.
    for (stream, path) in [(1, "/count?n=reset"), (3, "/count?n=short")] {
        let block = client.block("POST", path, &[("content-length", "5")]);
        frame::write_frame(FrameType::Headers, flags::END_HEADERS, stream, &block, &mut bytes);
    }
    frame::write_rst_stream(1, ErrorCode::CANCEL, &mut bytes);
    frame::write_frame(FrameType::Data, flags::END_STREAM, 3, b"abc", &mut bytes);
    client.send(&bytes);
    client.round_trip().await;
    drop(client);
    let lines = site.end().await;
    assert_eq!(lines.len(), 2, "{lines:?}");
    for query in ["n=reset", "n=short"] {
        let is_match = |line: &&String| text(line, "url.query") == Some(query);
        assert_eq!(lines.iter().filter(is_match).count(), 1, "{query}: {lines:?}");
    }
}

/// A connection or stream that switches protocols has one line, written when it switches.
pub async fn an_upgrade_has_one_line<B: Bench>(bench: &B) {
    bench.calm();
    let site = begin(bench, Way::HTTP1, AccessLogFormat::Common);
    let mut peer = Peer::new(site.server.connect());
    peer.send(
        "GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: test\r\n\r\nbytes",
    );
    assert_eq!(peer.reply().await.status, 101);
    peer.half_close();
    peer.expect_end().await;
    let mut client = Streams::new(site.server.connect());
    let id = client.open("CONNECT", "/upgrade", &[(":protocol", "test")], false);
    client.upload(id, b"bytes").await;
    assert_eq!(client.answer(id).await.status(), 200);
    drop(client);
    let lines = site.end().await;
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].ends_with("\"GET /upgrade HTTP/1.1\" 101 -"), "{lines:?}");
    assert!(lines[1].ends_with("/upgrade HTTP/2.0\" 200 -"), "{lines:?}");
}

/// Tests the access log on a driver: `logged!(name, benches)` generates the module `name`.
#[macro_export]
macro_rules! logged {
    ($name:ident, $benches:expr) => {
        $crate::suite!(
            logged, $name, $benches,
            [http1 = HTTP1, http1_tls = HTTP1_TLS, http2 = HTTP2, http2_tls = HTTP2_TLS],
            each [
                every_request_has_one_line,
                lines_have_the_formats_of_other_servers,
                trusted_proxies_determine_the_client,
                aborted_requests_have_a_line,
            ],
            once [
                invalid_requests_have_one_line,
                requests_that_end_while_content_arrives_have_a_line,
                an_upgrade_has_one_line,
            ],
        );
    };
}
