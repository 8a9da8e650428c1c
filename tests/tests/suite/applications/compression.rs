//! Compressed responses and request bodies through a server on every driver.

use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use futures_core::Stream;
use peregrine::bytes::Bytes;
use peregrine::compression::{Compression, Decompression};
use peregrine::prelude::*;
use peregrine::{DriverChoice, RunningServer};
use peregrine_tests::client::{connect, started};
use peregrine_tests::on_both_drivers;
use std::io::{ErrorKind, Read, Write};
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;

on_both_drivers! {
    small_and_large_responses_arrive_whole,
    head_and_ranges_have_no_coded_content,
    an_event_arrives_before_the_next_is_made,
    compressing_a_large_response_delays_no_other_request,
    packed_bodies_are_read_and_bombs_are_not,
}

const LARGE: usize = 8 << 20;

fn start(choice: DriverChoice, app: fn() -> App) -> Option<RunningServer> {
    let server = Server::bind("127.0.0.1:0").driver(choice).workers(NonZeroUsize::MIN).quiet();
    started(server.start(app))
}

/// The head and the unchunked content of the response to one request.
fn asked(running: &RunningServer, request: &[u8]) -> (String, Vec<u8>) {
    let mut peer = connect(running);
    // A server that has responded may not read the rest.
    let _ = peer.write_all(request);
    let mut all = Vec::new();
    match peer.read_to_end(&mut all) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
        _ => {}
    }
    let end = all.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8(all[..end].to_vec()).expect("text").to_lowercase();
    let content = all.split_off(end + 4);
    let content = if head.contains("transfer-encoding: chunked") {
        unchunked(&content).expect("the chunked body is complete")
    } else {
        content
    };
    (head, content)
}

/// The content of chunks; `None` if the last chunk is missing.
fn unchunked(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let end = bytes.windows(2).position(|two| two == b"\r\n")?;
        let length = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).ok()?, 16).ok()?;
        bytes = &bytes[end + 2..];
        if length == 0 {
            return Some(all);
        }
        all.extend_from_slice(bytes.get(..length)?);
        bytes = bytes.get(length + 2..)?;
    }
}

fn unpacked(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut out).expect("gzip");
    out
}

fn get(path: &str, fields: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n").into_bytes()
}

/// Text that compresses moderately.
fn words(bytes: usize) -> String {
    let (mut text, mut state) = (String::with_capacity(bytes + 8), 1_u64);
    while text.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        text.push_str(["falcon ", "kestrel ", "hobby ", "merlin "][(state >> 62) as usize]);
        text.push(char::from(b'a' + (state >> 40) as u8 % 26));
    }
    text.truncate(bytes);
    text
}

fn pages() -> App {
    App::new()
        .wrap(Compression::new())
        .get("/small", || words(5000))
        .get("/large", || words(LARGE))
        .get("/here", || "here")
        .get("/range", || {
            (StatusCode::PARTIAL_CONTENT, [("content-range", "bytes 0-4999/9000")], words(5000))
        })
}

fn small_and_large_responses_arrive_whole(choice: DriverChoice) {
    let Some(running) = start(choice, pages) else { return };
    for (path, length) in [("/small", 5000), ("/large", LARGE)] {
        let (head, content) = asked(&running, &get(path, "Accept-Encoding: gzip\r\n"));
        assert!(
            head.contains("content-encoding: gzip") && head.contains("vary: accept-encoding"),
            "{head}"
        );
        assert_eq!(head.contains("content-length"), path == "/small", "{head}");
        assert!(content.len() < length / 2 && unpacked(&content) == words(length).as_bytes());
        let (head, content) = asked(&running, &get(path, ""));
        assert!(
            !head.contains("content-encoding") && head.contains("vary: accept-encoding"),
            "{head}"
        );
        assert!(content == words(length).as_bytes());
        for coding in ["zstd", "br", "deflate"] {
            let (head, content) =
                asked(&running, &get(path, &format!("Accept-Encoding: {coding}\r\n")));
            assert!(
                head.contains(&format!("content-encoding: {coding}")) && content.len() < length / 2,
                "{head}"
            );
        }
    }
}

fn head_and_ranges_have_no_coded_content(choice: DriverChoice) {
    let Some(running) = start(choice, pages) else { return };
    let request = b"HEAD /small HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\nGET /here HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let (head, rest) = asked(&running, request);
    assert!(head.contains("content-encoding: gzip") && !head.contains("content-length"), "{head}");
    let rest = String::from_utf8_lossy(&rest).into_owned();
    assert!(
        rest.contains("HTTP/1.1 200") || rest.ends_with("here"),
        "the next response follows at once: {rest}"
    );
    let (head, content) = asked(&running, &get("/range", "Accept-Encoding: gzip\r\n"));
    assert!(!head.contains("content-encoding") && content.len() == 5000, "{head}");
}

/// Events, each of which is produced once the test has received the previous one.
struct OnDemand(tokio::sync::mpsc::UnboundedReceiver<u32>);

impl Stream for OnDemand {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.0
            .poll_recv(cx)
            .map(|next| next.map(|number| Event::default().data(number.to_string())))
    }
}

fn an_event_arrives_before_the_next_is_made(choice: DriverChoice) {
    use std::sync::Mutex;
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
    static SENDERS: Mutex<Vec<UnboundedSender<u32>>> = Mutex::new(Vec::new());
    fn events() -> Sse {
        let (sender, receiver) = unbounded_channel();
        sender.send(0).expect("the receiver is alive");
        SENDERS.lock().expect("the mutex is not poisoned").push(sender);
        Sse::new(OnDemand(receiver))
    }
    // Both drivers' tests share the list; each request takes its own sender.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock();
    let Some(running) = start(choice, || App::new().wrap(Compression::new()).get("/", events))
    else {
        return;
    };
    let mut peer = connect(&running);
    peer.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n")
        .expect("connected");
    let (mut seen, mut bytes, mut next) = (Vec::new(), [0; 4096], 0);
    while next < 5 {
        let count =
            peer.read(&mut bytes).expect("the event arrives before the next one is produced");
        assert!(count > 0, "the stream continues");
        seen.extend_from_slice(&bytes[..count]);
        let Some(end) = seen.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        // All chunks so far, terminated as if they were the last.
        let Some(packed) = unchunked(&[&seen[end + 4..], b"0\r\n\r\n"].concat()) else { continue };
        let mut text = Vec::new();
        let _ = GzDecoder::new(&packed[..]).read_to_end(&mut text);
        if String::from_utf8_lossy(&text).contains(&format!("data: {next}\n")) {
            next += 1;
            SENDERS
                .lock()
                .expect("the mutex is not poisoned")
                .last()
                .expect("of this request")
                .send(next)
                .expect("the receiver is alive");
        }
    }
}

fn compressing_a_large_response_delays_no_other_request(choice: DriverChoice) {
    let Some(running) = start(choice, pages) else { return };
    let mut large = connect(&running);
    // Brotli is the slowest.
    large.write_all(&get("/large", "Accept-Encoding: br\r\n")).expect("connected");
    large.read_exact(&mut [0; 1]).expect("the response begins");
    // The client reads as fast as it can, so that only fairness makes the worker pause.
    let large = thread::spawn(move || {
        let mut rest = Vec::new();
        large.read_to_end(&mut rest).expect("the rest");
        rest
    });
    let mut small = connect(&running);
    let mut answers = 0;
    while !large.is_finished() {
        small.write_all(b"GET /here HTTP/1.1\r\nHost: a\r\n\r\n").expect("connected");
        let mut answer = Vec::new();
        while !answer.ends_with(b"here") {
            let mut bytes = [0; 1024];
            let count = small.read(&mut bytes).expect("a response");
            assert!(count > 0, "the connection is kept alive");
            answer.extend_from_slice(&bytes[..count]);
        }
        answers += 1;
    }
    // One worker serves both: small responses arrive while the large one is in progress, which
    // takes 512 turns.
    assert!(answers > 10, "{answers} small responses arrived during a large one");
    assert!(large.join().expect("the task does not panic").ends_with(b"0\r\n\r\n"));
}

fn packed_bodies_are_read_and_bombs_are_not(choice: DriverChoice) {
    let app =
        || App::new().wrap(Decompression::new()).post("/", |body: Bytes| body.len().to_string());
    let Some(running) = start(choice, app) else { return };
    let pack = |bytes: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(bytes).expect("gzip");
        encoder.finish().expect("gzip")
    };
    let post = |coding: &str, body: &[u8]| {
        let length = body.len();
        let head = format!(
            "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Encoding: {coding}\r\nContent-Length: {length}\r\n\r\n"
        );
        [head.as_bytes(), body].concat()
    };
    let text = words(1 << 20);
    for (coding, body, status, says) in [
        ("gzip", pack(text.as_bytes()), "200", "1048576"),
        ("gzip", pack(&vec![0; 64 << 20]), "413", "/problems/body-"),
        ("gzip", pack(words(3 << 20).as_bytes()), "413", "/problems/body-too-large"),
        ("gzip", pack(text.as_bytes())[..1000].to_vec(), "400", "/problems/invalid-content-coding"),
        ("compress", b"x".to_vec(), "415", "/problems/unsupported-content-coding"),
    ] {
        let (head, content) = asked(&running, &post(coding, &body));
        let content = String::from_utf8_lossy(&content).into_owned();
        assert!(
            head.starts_with(&format!("http/1.1 {status}")) && content.contains(says),
            "{head}\n{content}"
        );
    }
}
