//! Spans sent to a collector: what the collector receives, and what an unresponsive collector
//! costs.
//!
//! The server is a separate process (this test binary with another environment), because a
//! program's subscriber is process-wide.
#![cfg(unix)]

use peregrine::config::ServerConfig;
use peregrine::otlp::Otlp;
use peregrine::prelude::*;
use peregrine::trace::TraceConfig;
use prost::Message;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Set in the environment of a child that serves: the collector's address.
const CHILD: &str = "PEREGRINE_OTLP_CHILD";

/// Set instead in the environment of a child with a configuration file: its path.
const FILE: &str = "OTLP_TEST_FILE";

/// Set in addition: how long the child's shutdown waits for the collector, in milliseconds.
const END: &str = "PEREGRINE_OTLP_END";

const PATIENCE: Duration = Duration::from_secs(30);

/// The parts of OpenTelemetry's messages that are checked here.
mod proto {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Export {
        #[prost(message, repeated, tag = "1")]
        pub(super) resources: Vec<ResourceSpans>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ResourceSpans {
        #[prost(message, optional, tag = "1")]
        pub(super) resource: Option<Resource>,
        #[prost(message, repeated, tag = "2")]
        pub(super) scopes: Vec<ScopeSpans>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Resource {
        #[prost(message, repeated, tag = "1")]
        pub(super) attributes: Vec<KeyValue>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ScopeSpans {
        #[prost(message, repeated, tag = "2")]
        pub(super) spans: Vec<Span>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Span {
        #[prost(bytes = "vec", tag = "1")]
        pub(super) trace_id: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        pub(super) span_id: Vec<u8>,
        #[prost(string, tag = "3")]
        pub(super) trace_state: String,
        #[prost(bytes = "vec", tag = "4")]
        pub(super) parent_span_id: Vec<u8>,
        #[prost(string, tag = "5")]
        pub(super) name: String,
        #[prost(int32, tag = "6")]
        pub(super) kind: i32,
        #[prost(message, repeated, tag = "9")]
        pub(super) attributes: Vec<KeyValue>,
        #[prost(message, optional, tag = "15")]
        pub(super) status: Option<Status>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Status {
        #[prost(int32, tag = "3")]
        pub(super) code: i32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct KeyValue {
        #[prost(string, tag = "1")]
        pub(super) key: String,
        #[prost(message, optional, tag = "2")]
        pub(super) value: Option<AnyValue>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct AnyValue {
        #[prost(oneof = "Value", tags = "1, 2, 3, 4")]
        pub(super) value: Option<Value>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(super) enum Value {
        #[prost(string, tag = "1")]
        Text(String),
        #[prost(bool, tag = "2")]
        Truth(bool),
        #[prost(int64, tag = "3")]
        Whole(i64),
        #[prost(double, tag = "4")]
        Real(f64),
    }
}

use proto::{Export, KeyValue, Span, Value};

fn attribute(all: &[KeyValue], key: &str) -> Option<String> {
    let found = all.iter().find(|attribute| attribute.key == key)?;
    Some(match found.value.as_ref()?.value.as_ref()? {
        Value::Text(text) => text.clone(),
        Value::Truth(truth) => truth.to_string(),
        Value::Whole(number) => number.to_string(),
        Value::Real(number) => number.to_string(),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A collector. It ends with the test's process.
struct Collector {
    address: SocketAddr,
    exports: mpsc::Receiver<(String, Export)>,
}

impl Collector {
    /// A collector that responds, or one that only listens.
    fn start(answers: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("the socket is bound");
        let (sender, exports) = mpsc::channel();
        thread::spawn(move || {
            let mut held = Vec::new();
            for peer in listener.incoming().flatten() {
                if answers {
                    let sender = sender.clone();
                    thread::spawn(move || collect(peer, &sender));
                } else {
                    held.push(peer);
                }
            }
        });
        Self { address, exports }
    }

    /// All spans received until the server ended, with their services.
    fn spans(self) -> Vec<(String, Span)> {
        let exports = self.exports.try_iter().flat_map(|(head, export)| {
            assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
            assert!(
                head.to_lowercase().contains("content-type: application/x-protobuf\r\n"),
                "{head}"
            );
            assert!(head.contains("x-tenant: birds\r\n"), "{head}");
            export.resources
        });
        let spans = exports.flat_map(|resource| {
            let attributes = resource.resource.unwrap_or_default().attributes;
            let service = attribute(&attributes, "service.name").unwrap_or_default();
            let spans = resource.scopes.into_iter().flat_map(|scope| scope.spans);
            spans.map(move |span| (service.clone(), span))
        });
        spans.collect()
    }
}

/// Answers requests on one connection.
fn collect(peer: TcpStream, exports: &mpsc::Sender<(String, Export)>) {
    let mut peer = BufReader::new(peer);
    loop {
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let before = head.len();
            if peer.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
            let line = head[before..].trim_end().to_lowercase();
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().expect("a number");
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        peer.read_exact(&mut body).expect("a complete body");
        let export = Export::decode(&body[..]).expect("the body is an OTLP export");
        exports.send((head, export)).expect("the receiver is alive");
        let answer =
            b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n";
        peer.get_mut().write_all(answer).expect("connected");
    }
}

/// A server that sends its spans to this address.
struct Serving {
    process: Child,
    address: SocketAddr,
    admin: SocketAddr,
    rest: thread::JoinHandle<String>,
}

impl Serving {
    fn start(driver: &str, collector: SocketAddr, flush_timeout: Duration) -> Self {
        Self::start_with(driver, |command| {
            command.env(CHILD, format!("http://{collector}"));
            command.env(END, flush_timeout.as_millis().to_string());
        })
    }

    /// A server configured by this file.
    fn of_file(driver: &str, file: &std::path::Path) -> Self {
        Self::start_with(driver, |command| {
            command.env(FILE, file);
        })
    }

    fn start_with(driver: &str, change: impl FnOnce(&mut Command)) -> Self {
        let mut command =
            Command::new(std::env::current_exe().expect("the current executable has a path"));
        change(&mut command);
        let mut process = command
            .args(["--exact", "otlp::the_child_serves_until_it_is_told_to_end", "--nocapture"])
            .env("PEREGRINE_DRIVER", driver)
            .env_remove("RUST_LOG")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a process can be started");
        let mut errors = BufReader::new(process.stderr.take().expect("the stream is piped"));
        let mut first = String::new();
        while !first.contains("http://127") {
            first.clear();
            assert!(
                errors.read_line(&mut first).expect("text") > 0,
                "the process reports that it runs"
            );
        }
        let (_, rest) =
            first.split_once("0: http://").unwrap_or_else(|| panic!("no address: {first}"));
        let address = rest.split([';', ',']).next().and_then(|address| address.parse().ok());
        let admin = first.split("admin http://").nth(1).and_then(|rest| rest.trim().parse().ok());
        let rest = thread::spawn(move || {
            let mut text = String::new();
            let _ = errors.read_to_string(&mut text);
            text
        });
        let (address, admin) = (address.expect("an address"), admin.expect("an address"));
        Self { process, address, admin, rest }
    }

    fn ask(&self, path: &str, fields: &str) -> String {
        Self::ask_at(self.address, path, fields)
    }

    /// The span counters: created, exported, dropped because the queue was full, failed, waiting.
    fn spans(&self) -> [u64; 5] {
        let page = Self::ask_at(self.admin, "/metrics", "");
        let of = |name: &str| {
            let name = format!("peregrine_trace_{name} ");
            let line = page.lines().find_map(|line| line.strip_prefix(&name));
            line.unwrap_or_else(|| panic!("no {name}: {page}")).parse().expect("a number")
        };
        [
            of("spans_total"),
            of("exported_spans_total"),
            of("dropped_spans_total{reason=\"queue_full\"}"),
            of("dropped_spans_total{reason=\"send_failed\"}"),
            of("queued_spans"),
        ]
    }

    fn ask_at(address: SocketAddr, path: &str, fields: &str) -> String {
        let mut peer = TcpStream::connect(address).expect("the server accepts connections");
        peer.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
        // In one write: with two, Nagle's algorithm would delay the second until the first is
        // acknowledged.
        let head = "HTTP/1.1\r\nHost: birds.example:80\r\nConnection: close";
        let request = format!("GET {path} {head}\r\n{fields}\r\n");
        peer.write_all(request.as_bytes()).expect("connected");
        let mut answer = String::new();
        peer.read_to_string(&mut answer).expect("a response");
        answer.split_once("\r\n\r\n").expect("a complete head").1.to_owned()
    }

    /// Shuts the server down; returns its output.
    fn end(mut self) -> String {
        kill_process(Pid::from_child(&self.process), Signal::TERM).expect("the process is running");
        assert!(self.process.wait().expect("the process exits").success());
        self.rest.join().expect("the task does not panic")
    }
}

fn drivers() -> impl Iterator<Item = &'static str> {
    let uring = cfg!(target_os = "linux").then_some("auto");
    std::iter::once("tokio").chain(uring)
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

#[test]
fn a_collector_gets_each_sampled_request_as_one_span() {
    for driver in drivers() {
        let collector = Collector::start(true);
        let serving = Serving::start(driver, collector.address, PATIENCE);
        let parent = format!("traceparent: 00-{TRACE}-{PARENT}-01\r\ntracestate: a=1\r\n");
        let forwarded = serving.ask("/birds/7?secret", &parent);
        let alone = serving.ask("/birds/8", "");
        let unsampled = serving.ask("/birds/9", &parent.replace("-01\r\n", "-00\r\n"));
        serving.ask("/panic", "");
        serving.ask("/probe", &parent);
        let said = serving.end();
        let spans = collector.spans();
        let names: Vec<_> = spans.iter().map(|(_, span)| &*span.name).collect();
        let count = |name: &str| names.iter().filter(|found| **found == name).count();
        // A handler's own span is one more for each sampled request, and none for others.
        assert_eq!(
            (count("GET /birds/{id}"), count("GET /panic"), count("inside")),
            (2, 1, 2),
            "{names:?} {said}"
        );
        assert_eq!(spans.len(), 5, "{names:?}");
        let of = |path: &str| {
            let is_of = |span: &&(String, Span)| {
                attribute(&span.1.attributes, "url.path").as_deref() == Some(path)
            };
            spans.iter().find(is_of).unwrap_or_else(|| panic!("no {path}: {spans:?}"))
        };
        let (service, span) = of("/birds/7");
        assert_eq!((&**service, span.kind), ("birds", 2), "a server span");
        assert_eq!(
            (hex(&span.trace_id), hex(&span.parent_span_id)),
            (TRACE.to_owned(), PARENT.to_owned())
        );
        assert_eq!(span.trace_state, "a=1");
        for (key, value) in [
            ("http.request.method", "GET"),
            ("http.route", "/birds/{id}"),
            ("http.response.status_code", "200"),
            ("url.scheme", "http"),
            ("server.address", "birds.example"),
            ("server.port", "80"),
            ("client.address", "127.0.0.1"),
            ("network.protocol.version", "1.1"),
        ] {
            assert_eq!(attribute(&span.attributes, key).as_deref(), Some(value), "{driver} {key}");
        }
        assert!(!format!("{spans:?}").contains("secret"));
        // The handler's outgoing requests belong to its own span, whose parent is the request's
        // span.
        let inside = |outer: &Span| {
            let of = |span: &&(String, Span)| {
                span.1.name == "inside" && span.1.parent_span_id == outer.span_id
            };
            spans.iter().find(of).map(|(_, span)| span.clone()).expect("the handler's span")
        };
        assert_eq!(forwarded, format!("00-{TRACE}-{}-01 a=1", hex(&inside(span).span_id)));
        let (_, root) = of("/birds/8");
        assert!(root.parent_span_id.is_empty() && hex(&root.trace_id) != TRACE);
        let expected = format!("00-{}-{}-0", hex(&root.trace_id), hex(&inside(root).span_id));
        assert!(alone.starts_with(&expected), "{alone} {expected}");
        assert!(
            unsampled.starts_with(&format!("00-{TRACE}-")) && unsampled.ends_with("-00 a=1"),
            "{unsampled}"
        );
        let (_, panic) = of("/panic");
        assert_eq!(panic.status.as_ref().map(|status| status.code), Some(2), "an error");
        assert_eq!(attribute(&panic.attributes, "error.type").as_deref(), Some("panic"));
    }
}

#[test]
fn a_server_made_of_a_file_sends_its_spans_where_that_says() {
    for driver in drivers() {
        let collector = Collector::start(true);
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        let file = folder.path().join("app.toml");
        let text = format!(
            "workers = 1\n[listeners.web]\naddress = '127.0.0.1:0'\n\
             [admin]\naddress = '127.0.0.1:0'\n\
             [traces]\nenabled = true\nroute_sample_ratios.'/probe' = 0.0\n\
             [traces.otlp]\nendpoint = 'http://{}'\nservice_name = 'birds'\nflush_timeout = '30s'\n\
             [traces.otlp.headers]\nx-tenant = 'birds'\n",
            collector.address
        );
        std::fs::write(&file, text).expect("a new file");
        let serving = Serving::of_file(driver, &file);
        let forwarded = serving.ask("/birds/7", "");
        serving.ask("/probe", "");
        let said = serving.end();
        let spans = collector.spans();
        let mut names: Vec<_> =
            spans.iter().map(|(service, span)| (&**service, &*span.name)).collect();
        names.sort_unstable();
        assert_eq!(names, [("birds", "GET /birds/{id}"), ("birds", "inside")], "{said}");
        let inside =
            spans.iter().find(|(_, span)| span.name == "inside").expect("the span was exported");
        assert!(forwarded.contains(&hex(&inside.1.span_id)), "{forwarded}");
    }
}

#[test]
fn a_collector_that_does_not_respond_delays_no_request() {
    let refused = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let (deaf, refused) = (Collector::start(false), refused.expect("a port is free"));
    let answers = Collector::start(true);
    // More than the queue of spans holds.
    let asked = |driver, collector| {
        let serving = Serving::start(driver, collector, Duration::from_millis(200));
        let begin = Instant::now();
        for _ in 0..1500 {
            serving.ask("/birds/1", "");
        }
        let taken = begin.elapsed();
        // Two spans per request, the last of which may end after its response arrived.
        let [made, exported, full, failed, waiting] = loop {
            let all = serving.spans();
            // The request for the page may be traced as well.
            if all[0] >= 3000 {
                break all;
            }
            assert!(begin.elapsed() < PATIENCE * 10, "{all:?}");
        };
        // The page may be generated while a span moves between the counters.
        assert!(exported + full + failed + waiting >= made, "{exported} {full} {failed} {waiting}");
        assert_eq!(
            exported > 0,
            collector == answers.address,
            "{exported} {full} {failed} {waiting}"
        );
        assert!(full > 0 || collector != deaf.address, "the queue holds {waiting}");
        // The server shuts down cleanly, after a bounded wait.
        serving.end();
        taken.as_secs_f64()
    };
    for driver in drivers() {
        let usual = asked(driver, answers.address);
        for collector in [deaf.address, refused] {
            let ratio = asked(driver, collector) / usual;
            assert!(
                ratio < 10.0,
                "{driver}: {ratio:.1} times as long as with a responsive collector"
            );
        }
    }
}

#[test]
fn an_address_that_is_none_is_an_error() {
    let error =
        Otlp::new("birds").endpoint("no address").install().expect_err("the endpoint is invalid");
    assert!(error.to_string().contains("http://collector:4318"), "{error}");
}

#[test]
fn what_a_collector_asks_for_is_not_shown() {
    let otlp = Otlp::new("birds").endpoint("http://me:secret@collector:4318");
    let shown = format!("{:?}", otlp.header("authorization", "secret"));
    assert!(shown.contains("birds") && shown.contains("authorization"), "{shown}");
    assert!(!shown.contains("secret"), "{shown}");
}

/// The child of tests here; it does nothing unless one of them started it.
#[test]
fn the_child_serves_until_it_is_told_to_end() {
    let (endpoint, file) = (std::env::var(CHILD).ok(), std::env::var_os(FILE));
    if endpoint.is_none() && file.is_none() {
        return;
    }
    let birds = async |Path(_): Path<u32>| {
        let inside = tracing::info_span!("inside").in_scope(peregrine::trace::headers);
        let text = |name| inside.get(name).map_or("-", |value| value.to_str().expect("text"));
        format!("{} {}", text("traceparent"), text("tracestate"))
    };
    let app = move || {
        App::new()
            .get("/birds/{id}", birds)
            .get("/panic", || -> &'static str { panic!("on purpose") })
            .get("/probe", || "well")
    };
    if let Some(file) = file {
        let config = ServerConfig::load(file).expect("the configuration is valid");
        return Server::from_config(config)
            .and_then(|server| server.serve(app))
            .expect("the server shuts down cleanly");
    }
    let end = std::env::var(END).ok().and_then(|text| text.parse().ok()).expect("a number");
    Otlp::new("birds")
        .endpoint(endpoint.expect("the endpoint is set"))
        .header("x-tenant", "birds")
        .flush_timeout(Duration::from_millis(end))
        .install()
        .expect("the endpoint is valid");
    let traces = TraceConfig::new().route_sample_ratio("/probe", 0.0);
    let server = Server::bind("127.0.0.1:0").workers(NonZeroUsize::MIN).traces(traces);
    let server = server.admin("127.0.0.1:0");
    server.serve(app).expect("the server runs and shuts down");
}
