//! The log of a server: each event once, and every event about a request with that request's ID.
//!
//! The server is a separate process (this test binary with another environment), because a
//! program's subscriber and its standard error are process-wide.
#![cfg(unix)]

use peregrine::prelude::*;
use peregrine::web::testing::block_on;
use peregrine::web::upgrade::UpgradeHandler;
use peregrine_tests::server::bench::{Got, Wire};
use peregrine_tests::server::streams::Streams;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::num::NonZeroUsize;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Set in the child's environment: `subscriber`, or `none`.
const CHILD: &str = "PEREGRINE_LOGS_CHILD";

/// The lines that a server writes to standard error while it answers `requests`, with the
/// responses.
fn lines_of(driver: &str, mode: &str, requests: &[&str]) -> (Vec<String>, Vec<String>) {
    let ask = |mut peer: TcpStream| {
        move |request: &&str| {
            let close = "Host: a\r\nConnection: close\r\n\r\n";
            write!(peer, "{request}{close}").expect("connected");
            let mut answer = String::new();
            peer.read_to_string(&mut answer).expect("a response");
            answer
        }
    };
    lines_while(driver, mode, |connect| {
        requests.iter().map(|request| ask(connect())(request)).collect()
    })
}

/// The lines that a server writes to standard error while clients run `work`.
fn lines_while<T>(
    driver: &str,
    mode: &str,
    work: impl FnOnce(&dyn Fn() -> TcpStream) -> T,
) -> (Vec<String>, T) {
    let mut process =
        Command::new(std::env::current_exe().expect("the current executable has a path"))
            .args(["--exact", "logs::the_child_serves_until_it_is_told_to_end", "--nocapture"])
            .env(CHILD, mode)
            .env("PEREGRINE_DRIVER", driver)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a process can be started");
    let mut errors = BufReader::new(process.stderr.take().expect("the stream is piped"));
    let mut first = String::new();
    errors.read_line(&mut first).expect("the process reports that it runs");
    let (_, rest) = first.split_once("http://").unwrap_or_else(|| panic!("no address: {first}"));
    let address = rest.split(';').next().expect("split yields at least one item");
    let outcome = work(&|| {
        let peer = TcpStream::connect(address).expect("the server accepts connections");
        peer.set_read_timeout(Some(Duration::from_secs(30))).expect("the timeout is not zero");
        peer
    });
    kill_process(Pid::from_child(&process), Signal::TERM).expect("the process is running");
    let mut text = String::new();
    errors.read_to_string(&mut text).expect("text");
    assert!(process.wait().expect("the process exits").success(), "{first}{text}");
    // The default hook reports panics as well.
    let lines = std::iter::once(first.trim_end()).chain(text.lines());
    (lines.map(str::to_owned).collect(), outcome)
}

fn with<'l>(lines: &'l [String], text: &str) -> Vec<&'l str> {
    lines.iter().map(String::as_str).filter(|line| line.contains(text)).collect()
}

fn drivers() -> impl Iterator<Item = &'static str> {
    let uring = cfg!(target_os = "linux").then_some("auto");
    std::iter::once("tokio").chain(uring)
}

#[test]
fn a_server_logs_each_message_once() {
    for (mode, of_subscriber) in [("subscriber", 1), ("none", 0)] {
        let (lines, _) = lines_of("tokio", mode, &[]);
        for text in ["peregrine 0.1.0: http://", "peregrine: stopped after"] {
            let matching = with(&lines, text);
            assert_eq!(matching.len(), 1, "{mode}: {lines:?}");
            let structured = matching.iter().filter(|line| line.contains(" INFO ")).count();
            assert_eq!(structured, of_subscriber, "{mode}: {matching:?}");
        }
    }
}

#[test]
fn what_a_handler_logs_carries_the_request() {
    for driver in drivers() {
        let requests =
            ["GET /tells/7 HTTP/1.1\r\nX-Request-Id: id-7\r\n", "GET /plain HTTP/1.1\r\n"];
        let (lines, _) = lines_of(driver, "subscriber", &requests);
        for text in ["logs: at once", "logs: after a while", "logs: from the body"] {
            let matching = with(&lines, text);
            let [line] = matching[..] else { panic!("{driver}: {text}: {lines:?}") };
            let span = "request{method=\"GET\" route=\"/tells/{id}\" request_id=\"id-7\"}:";
            assert!(line.contains(span), "{driver}: {line}");
        }
        let matching = with(&lines, "without an id");
        let [line] = matching[..] else { panic!("{driver}: {lines:?}") };
        assert!(line.contains("request{method=\"GET\" route=\"/plain\"}:"), "{driver}: {line}");
        let outside: Vec<_> = lines
            .iter()
            .filter(|line| line.contains("peregrine") && line.contains("request{"))
            .collect();
        assert_eq!(outside.len(), 1, "only the access log: {outside:?}");
    }
}

#[test]
fn a_panic_is_logged_with_its_route_and_its_request_and_is_not_a_cancellation() {
    for driver in drivers() {
        let request = "GET /panics/now HTTP/1.1\r\nX-Request-Id: id-8\r\n";
        let (lines, answers) = lines_of(driver, "subscriber", &[request]);
        assert!(answers[0].starts_with("HTTP/1.1 500 "), "{}", answers[0]);
        let matching = with(&lines, "a handler panicked");
        let [line] = matching[..] else { panic!("{driver}: {lines:?}") };
        for field in ["request_id=\"id-8\"", "panic=\"on purpose\"", " route=\"/panics/{when}\" "] {
            assert!(line.contains(field), "{driver}: {field}: {line}");
        }
        let event = line.split_once("peregrine: ").expect("the target").1;
        assert!(event.starts_with("a handler panicked panic="), "one message: {line}");
        assert!(event.contains(" route=\"/panics/{when}\" "), "without its span, too: {line}");
        let access = with(&lines, "peregrine::access");
        let [line] = access[..] else { panic!("{driver}: {lines:?}") };
        assert!(line.contains("ERROR") && line.contains(": panicked "), "{driver}: {line}");
        assert!(line.contains(" status=500 "), "{driver}: {line}");
    }
}

#[test]
fn an_upgraded_protocol_that_blocks_and_panics_is_logged_with_its_request_over_both_protocols() {
    let http1 = |mut peer: TcpStream| {
        let fields =
            "Host: a\r\nX-Request-Id: id-9\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\n";
        write!(peer, "GET /upgrades/now HTTP/1.1\r\n{fields}").expect("connected");
        let mut answer = String::new();
        peer.read_to_string(&mut answer).expect("a response");
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    };
    let http2 = |peer: TcpStream| {
        let mut client = Streams::new(Blocking(peer));
        let fields = [(":protocol", "other"), ("x-request-id", "id-9")];
        let id = client.open("CONNECT", "/upgrades/now", &fields, false);
        assert!(block_on(client.answer(id)).reset.is_some());
    };
    for driver in drivers() {
        for is_http2 in [false, true] {
            let (lines, ()) = lines_while(driver, "subscriber", |connect| match is_http2 {
                false => http1(connect()),
                true => http2(connect()),
            });
            let matching = with(&lines, "an upgraded protocol panicked");
            let [line] = matching[..] else { panic!("{driver} {is_http2}: {lines:?}") };
            let fields =
                ["request_id=\"id-9\"", "panic=\"on purpose\"", " route=\"/upgrades/{when}\" "];
            for field in fields {
                assert!(line.contains(field), "{driver} {is_http2}: {field}: {line}");
            }
            let matching = with(&lines, "a handler blocks its thread");
            let [line] = matching[..] else { panic!("{driver} {is_http2}: {lines:?}") };
            assert!(line.contains("/upgrades/{when}"), "{driver} {is_http2}: {line}");
        }
    }
}

/// A client's connection that blocks its thread.
struct Blocking(TcpStream);

impl Wire for Blocking {
    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("connected");
    }

    fn half_close(&mut self) {
        self.0.shutdown(Shutdown::Write).expect("connected");
    }

    async fn recv(&mut self, _: Duration) -> Got {
        let mut bytes = vec![0; 65_536];
        match self.0.read(&mut bytes).expect("the connection is open") {
            0 => Got::End,
            count => Got::Bytes(bytes[..count].to_vec()),
        }
    }

    fn reset(self) {}
}

#[test]
fn the_access_log_has_the_length_that_was_sent() {
    for driver in drivers() {
        let (lines, answers) = lines_of(driver, "subscriber", &["GET /tells/x HTTP/1.1\r\n"]);
        let (head, body) = answers[0].split_once("\r\n\r\n").expect("a complete head");
        assert!(
            head.to_lowercase().contains(&format!("content-length: {}\r\n", body.len())),
            "{head}"
        );
        let access = with(&lines, "peregrine::access");
        let [line] = access[..] else { panic!("{driver}: {lines:?}") };
        assert!(line.contains(&format!(" bytes={} ", body.len())), "{driver}: {body}: {line}");
    }
}

/// A body that writes to the log.
struct Telling(bool);

impl futures_core::Stream for Telling {
    type Item = Result<&'static str, std::convert::Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        let is_first = !std::mem::replace(&mut self.0, true);
        if is_first {
            tracing::info!("from the body");
        }
        std::task::Poll::Ready(is_first.then_some(Ok("body")))
    }
}

/// The child of all tests here; it does nothing unless one of them started it.
#[test]
fn the_child_serves_until_it_is_told_to_end() {
    let Ok(mode) = std::env::var(CHILD) else { return };
    if mode == "subscriber" {
        tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    }
    let tells = async |Path(id): Path<u8>| {
        tracing::info!(id, "at once");
        tokio::time::sleep(Duration::from_millis(5)).await;
        tracing::info!("after a while");
        Body::from_stream(Telling(false))
    };
    let panics = async |Path(_): Path<String>| -> &'static str { panic!("on purpose") };
    let upgrades = async |Path(_): Path<String>| {
        let panics = UpgradeHandler::new(async |_| {
            std::thread::sleep(Duration::from_millis(500));
            if true {
                panic!("on purpose");
            }
        });
        Response::new(StatusCode::SWITCHING_PROTOCOLS).with_upgrade(panics)
    };
    let plain = async || {
        tracing::info!("without an id");
        "plain"
    };
    let served = Server::bind("127.0.0.1:0").workers(NonZeroUsize::MIN).serve(move || {
        App::new()
            .get("/plain", plain)
            .scope("/", |scope| {
                let scope = scope.wrap(SetRequestId::new()).wrap(AccessLog::new());
                let scope = scope.get("/tells/{id}", tells).get("/panics/{when}", panics);
                scope.get("/upgrades/{when}", upgrades)
            })
            .on_problem(|problem, _| (problem.status, "something shorter"))
    });
    served.expect("the server runs and shuts down");
}
