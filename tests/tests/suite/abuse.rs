//! Requests that no client should send, over real sockets on both drivers: each gets one error
//! response and a closed connection, and nothing that follows it is answered or reaches a handler.

use peregrine::bytes::Bytes;
use peregrine::prelude::*;
use peregrine::{DriverChoice, Limits, RunningServer};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

macro_rules! on_both_drivers {
    ($($claim:ident,)*) => {
        mod tokio {
            $(
                #[test]
                fn $claim() {
                    super::$claim(super::DriverChoice::Tokio);
                }
            )*
        }
        #[cfg(target_os = "linux")]
        mod uring {
            $(
                #[test]
                fn $claim() {
                    super::$claim(super::DriverChoice::Uring);
                }
            )*
        }
    };
}

on_both_drivers! {
    what_is_malformed_or_ambiguous_gets_one_refusal_and_the_end,
    what_is_odd_but_sound_is_answered_and_the_connection_goes_on,
    a_thousand_pipelined_requests_are_all_answered_in_order,
    heads_that_trickle_in_are_cut_off,
    plain_http_on_the_tls_port_gets_an_explanation,
    garbage_on_the_tls_port_ends_the_connection,
    handshakes_that_trickle_in_are_cut_off,
    a_half_close_at_any_place_ends_in_an_answer_or_an_end,
}

/// The status, and the bytes to send. Each is followed by a request that must not be answered.
const REFUSED: &[(u16, &str)] = &[
    // Two lengths: RFC 9112 §6.3.
    (
        400,
        "POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG",
    ),
    (
        400,
        "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    ),
    (400, "POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n"),
    (400, "POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: 0, 0\r\n\r\n"),
    (400, "POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: +0\r\n\r\n"),
    (400, "POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: 0x0\r\n\r\n"),
    (400, "POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n"),
    (400, "POST /count HTTP/1.1\r\nHost: a\r\nContent-Length : 0\r\n\r\n"),
    // Codings that another implementation might read differently.
    (400, "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    (400, "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
    (400, "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n"),
    (400, "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
    (
        400,
        "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    ),
    (
        400,
        "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    ),
    (400, "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked;a=b\r\n\r\n0\r\n\r\n"),
    (400, "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n"),
    (400, "POST /count HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    (501, "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    // Line ends and white space.
    (400, "GET / HTTP/1.1\nHost: a\n\n"),
    (400, "GET / HTTP/1.1\r\nHost: a\r\nX: y\nContent-Length: 5\r\n\r\n"),
    (400, "GET / HTTP/1.1\r\nHost: a\r\n\n"),
    (400, "GET / HTTP/1.1\r\nHost: a\r\nX: y\rContent-Length: 5\r\n\r\n"),
    (400, "GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n"),
    (400, "GET / HTTP/1.1\r\n Host: a\r\n\r\n"),
    (400, "GET / HTTP/1.1\r\nHost: a\r\nX: y\0z\r\n\r\n"),
    (400, "\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    (400, "GET  / HTTP/1.1\r\nHost: a\r\n\r\n"),
    (400, "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n"),
    // Hosts and targets.
    (400, "GET / HTTP/1.1\r\n\r\n"),
    (400, "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"),
    (400, "GET / HTTP/1.1\r\nHost:\r\n\r\n"),
    (400, "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n"),
    (400, "GET / HTTP/1.1\r\nHost: user@a\r\n\r\n"),
    (400, "GET http://user:password@a/ HTTP/1.1\r\nHost: a\r\n\r\n"),
    (400, "GET http:/// HTTP/1.1\r\nHost: a\r\n\r\n"),
    (400, "GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n"),
    (400, "GET /#fragment HTTP/1.1\r\nHost: a\r\n\r\n"),
    (400, "GET * HTTP/1.1\r\nHost: a\r\n\r\n"),
    (501, "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n"),
    // Versions.
    (400, "GET /\r\n\r\n"),
    (400, "GET / http/1.1\r\nHost: a\r\n\r\n"),
    (505, "GET / HTTP/2.0\r\nHost: a\r\n\r\n"),
    (505, "PRI * HTTP/2.0\r\n\r\nSX\r\n\r\n"),
    // Field names.
    (400, "GET / HTTP/1.1\r\nHost: a\r\n: a\r\n\r\n"),
    (400, "GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n"),
    (400, "GET / HTTP/1.1\r\nHost: a\r\nX\u{e9}: a\r\n\r\n"),
    (400, "\x16\x03\x01\x02\0\x01\0\x01\r\n\r\n"),
    (417, "POST /count HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\nContent-Length: 2\r\n\r\nab"),
    // Chunks: RFC 9112 §7.1.
    (400, "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nabc"),
    (
        400,
        "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
    ),
    (
        400,
        "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3 \r\nabc\r\n0\r\n\r\n",
    ),
    (
        400,
        "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000003\r\nabc\r\n0\r\n\r\n",
    ),
    (
        400,
        "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
    ),
    (
        400,
        "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
    ),
    (
        400,
        "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;a\nabc\r\n0\r\n\r\n",
    ),
    (400, "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\n\r\n"),
    (
        400,
        "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA b: c\r\n\r\n",
    ),
];

/// The status, and the bytes to send. Each is followed by a request that must be answered.
const ANSWERED: &[(u16, &str)] = &[
    (200, "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    (200, "GET / HTTP/1.2\r\nHost: a\r\n\r\n"),
    (200, "GET http://b HTTP/1.1\r\nHost: a\r\n\r\n"),
    (204, "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"),
    (200, "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c, websocket\r\nConnection: upgrade\r\n\r\n"),
    (200, "GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n"),
    (200, "POST /count HTTP/1.1\r\nHost: a\r\nContent_Length: 50\r\n\r\n"),
    (
        200,
        "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: ChUnKeD\r\n\r\n3;a=\"b;\\\"\"\r\nabc\r\n0\r\n\r\n",
    ),
    (
        200,
        "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 50\r\n\r\n",
    ),
];

fn what_is_malformed_or_ambiguous_gets_one_refusal_and_the_end(driver: DriverChoice) {
    let Some(server) = Server::start(driver) else { return };
    let long = [
        (414, format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(20_000))),
        (431, format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "a".repeat(65_536))),
        (431, format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: a\r\n".repeat(1_000))),
        (501, format!("{} / HTTP/1.1\r\nHost: a\r\n\r\n", "A".repeat(200))),
        (
            400,
            format!(
                "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;{}\r\nabc\r\n",
                "a".repeat(100_000)
            ),
        ),
    ];
    let long = long.iter().map(|(status, sent)| (*status, sent.as_str()));
    for (status, sent) in REFUSED.iter().copied().chain(long) {
        let shown = &sent[..sent.len().min(200)];
        let answer = server.ask(&format!("{sent}GET /after HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(statuses(&answer), [status], "{shown:?}: {answer}");
        assert_eq!(server.after.load(Ordering::SeqCst), 0, "{shown:?} reached a handler");
    }
}

fn what_is_odd_but_sound_is_answered_and_the_connection_goes_on(driver: DriverChoice) {
    let Some(server) = Server::start(driver) else { return };
    for (status, sent) in ANSWERED {
        let last = "GET /after HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let answer = server.ask(&format!("{sent}{last}"));
        assert_eq!(statuses(&answer), [*status, 200], "{sent:?}: {answer}");
    }
    assert_eq!(server.after.load(Ordering::SeqCst), ANSWERED.len());
}

fn a_thousand_pipelined_requests_are_all_answered_in_order(driver: DriverChoice) {
    let Some(server) = Server::start(driver) else { return };
    let requests: String = (0..1_000)
        .map(|number| format!("GET /echo/{number} HTTP/1.1\r\nHost: a\r\n\r\n"))
        .collect();
    let mut peer = server.connect();
    peer.write_all(requests.as_bytes()).expect("the server reads");
    peer.shutdown(Shutdown::Write).expect("connected");
    let answers = read_all(&mut peer);
    let numbers: Vec<_> = answers.split("number ").skip(1).map(leading_number).collect();
    assert!(numbers.iter().copied().eq(0..1_000), "{} answers", numbers.len());
}

fn heads_that_trickle_in_are_cut_off(driver: DriverChoice) {
    let Some(server) = Server::start(driver) else { return };
    let mut peer = server.connect();
    trickle(&mut peer, b"GET / HTTP/1.1\r\nHost: a\r\nX: ".iter().chain([b'a'; 10_000].iter()));
    assert_eq!(statuses(&read_all(&mut peer)), [408]);
}

fn plain_http_on_the_tls_port_gets_an_explanation(driver: DriverChoice) {
    let Some(server) = Server::start(driver) else { return };
    let mut peer = connect(server.tls);
    peer.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("connected");
    let answer = read_all(&mut peer);
    assert_eq!(statuses(&answer), [400], "{answer}");
    assert!(answer.contains("HTTPS") || answer.contains("https"), "{answer}");
}

fn garbage_on_the_tls_port_ends_the_connection(driver: DriverChoice) {
    let Some(server) = Server::start(driver) else { return };
    let noise: Vec<u8> = (0..5_000u32).map(|number| (number * number % 251) as u8).collect();
    let long_record = [&b"\x16\x03\x01\xff\xff"[..], &[1; 70_000]].concat();
    let closed = b"\x15\x03\x03\0\x02\x01\0".to_vec();
    for sent in [noise, long_record, closed, b"\x16\x03\x01\0\x04\x01\0\0\0".to_vec()] {
        let mut peer = connect(server.tls);
        let _ = peer.write_all(&sent);
        let _ = read_all(&mut peer);
    }
    assert_eq!(statuses(&server.ask(LAST)), [200]);
}

fn handshakes_that_trickle_in_are_cut_off(driver: DriverChoice) {
    let Some(server) = Server::start(driver) else { return };
    let mut peer = connect(server.tls);
    trickle(&mut peer, b"\x16\x03\x01\x20\0\x01\0\x1f\xfc\x03\x03".iter().chain([7; 8_000].iter()));
    let _ = read_all(&mut peer);
}

fn a_half_close_at_any_place_ends_in_an_answer_or_an_end(driver: DriverChoice) {
    let Some(server) = Server::start(driver) else { return };
    let request = "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                   3\r\nabc\r\n0\r\nX: y\r\n\r\n";
    for cut in 0..=request.len() {
        let mut peer = server.connect();
        peer.write_all(&request.as_bytes()[..cut]).expect("connected");
        peer.shutdown(Shutdown::Write).expect("connected");
        let answer = read_all(&mut peer);
        let statuses = statuses(&answer);
        if cut == request.len() {
            assert_eq!(statuses, [200], "{answer}");
        } else {
            assert!(statuses.len() <= 1 && statuses != [200], "{cut}: {answer}");
        }
    }
}

const LAST: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

struct Server {
    plain: SocketAddr,
    tls: SocketAddr,
    /// The number of requests for `/after`.
    after: Arc<AtomicUsize>,
    _running: RunningServer,
}

impl Server {
    /// `None` if the driver cannot run here.
    fn start(driver: DriverChoice) -> Option<Self> {
        let limits = Limits {
            head_timeout: Duration::from_millis(300),
            handshake_timeout: Duration::from_millis(300),
            ..Limits::default()
        };
        let after = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&after);
        let signed = TlsConfig::self_signed(&["localhost"]).expect("a name");
        let started = peregrine::Server::bind("127.0.0.1:0")
            .listen_tls("127.0.0.1:0", signed.tls)
            .driver(driver)
            .workers(NonZeroUsize::MIN)
            .limits(limits)
            .quiet()
            .start(move || app(Arc::clone(&seen)));
        let running = match started {
            Err(peregrine::Error::Driver { cause, .. }) => {
                println!("not tested: {cause}");
                return None;
            }
            started => started.expect("a port is free"),
        };
        let plain = running.http_address().expect("the server listens on this port");
        let tls = running.https_address().expect("the server listens on this port");
        Some(Self { plain, tls, after, _running: running })
    }

    fn connect(&self) -> TcpStream {
        connect(self.plain)
    }

    /// Sends everything at once, and reads until the server closes.
    fn ask(&self, sent: &str) -> String {
        let mut peer = self.connect();
        // The server may close before it has read everything.
        let _ = peer.write_all(sent.as_bytes());
        read_all(&mut peer)
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let peer = TcpStream::connect(address).expect("the server listens");
    peer.set_read_timeout(Some(Duration::from_secs(20))).expect("the timeout is not zero");
    peer
}

/// Reads until the end of the stream, which must arrive.
fn read_all(peer: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    match peer.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the connection stays open: {error}"),
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Writes one byte at a time until the server closes.
fn trickle<'a>(peer: &mut TcpStream, bytes: impl Iterator<Item = &'a u8>) {
    peer.set_nodelay(true).expect("the socket option can be set");
    peer.set_nonblocking(true).expect("the socket option can be set");
    for byte in bytes {
        let closing = match peer.peek(&mut [0]) {
            Ok(_) => true,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        };
        if closing || peer.write(&[*byte]).is_err() {
            peer.set_nonblocking(false).expect("the socket option can be set");
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the server does not stop an endless request");
}

/// The status of each response. Bodies may contain the version too, but with no number after it.
fn statuses(answers: &str) -> Vec<u16> {
    let answers = answers.split("HTTP/1.1 ").skip(1);
    let answers =
        answers.filter(|answer| answer.starts_with(|letter: char| letter.is_ascii_digit()));
    answers.map(|answer| leading_number(answer) as u16).collect()
}

fn leading_number(text: &str) -> usize {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().expect("a number")
}

async fn count(body: Bytes) -> String {
    body.len().to_string()
}

fn app(after: Arc<AtomicUsize>) -> App {
    App::new()
        .get("/", || async { "here" })
        .get("/after", move || {
            after.fetch_add(1, Ordering::SeqCst);
            async { "after" }
        })
        .get("/echo/{number}", |Path(number): Path<u32>| async move { format!("number {number} ") })
        .post("/count", count)
}
