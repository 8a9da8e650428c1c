//! HTTP/2 as the client speaks it: frames without I/O, and servers of the test's own.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use peregrine_lab_load::calibration::calibrate;
use peregrine_lab_load::client::fault::Fault;
use peregrine_lab_load::client::{Client, Stop, Tally, Target};
use peregrine_lab_load::generator::{self, Plan, Watch};
use peregrine_lab_load::http2::{Http2, Request};
use peregrine_lab_load::question::Question;
use peregrine_lab_load::workload::Workload;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const PREFACE_BYTES: usize = 24;

const BODY: &[u8] = br#"{"message":"Hello, World!"}"#;

/// `:status: 200`, `content-type: application/json`, none of them remembered.
const HEAD: &[u8] = b"\x88\x0f\x10\x10application/json";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    let mut frame = vec![a, b, c, kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

fn settings(pairs: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (parameter, value) in pairs {
        payload.extend_from_slice(&parameter.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    frame(SETTINGS, 0, 0, &payload)
}

fn reply(stream: u32, body: &[u8]) -> Vec<u8> {
    [frame(HEADERS, 4, stream, HEAD), frame(DATA, 1, stream, body)].concat()
}

type Came = Vec<(u64, Result<(u16, Vec<u8>), Fault>)>;

/// `grpc-status: 0`, not remembered.
const TRAILERS: &[u8] = b"\x00\x0bgrpc-status\x010";

fn get() -> Request {
    Request::of(b"GET /json HTTP/1.1\r\nHost: localhost\r\n\r\n", false)
}

/// What comes of two requests, which have the streams 1 and 3 and the numbers 10 and 11, when the
/// server says this, in pieces of so many bytes.
fn heard(frames: &[u8], piece: usize) -> (Came, Result<(), Fault>) {
    let mut out = Vec::new();
    let mut http2 = Http2::new(&mut out);
    let mut came = Vec::new();
    http2.receive(&settings(&[]), &mut out, &mut |_, _| {}).unwrap();
    http2.ask(&get(), 10, &mut out);
    http2.ask(&get(), 11, &mut out);
    for piece in frames.chunks(piece) {
        let end = http2.receive(piece, &mut out, &mut |number, reply| {
            came.push((number, reply.map(|(reply, _)| (reply.status, reply.body.to_vec()))));
        });
        if end.is_err() {
            return (came, end);
        }
    }
    (came, Ok(()))
}

type Form = (&'static str, Vec<u8>, Came);

fn right(number: u64) -> (u64, Result<(u16, Vec<u8>), Fault>) {
    (number, Ok((200, b"hello".to_vec())))
}

fn check_forms(forms: Vec<Form>) {
    for (name, frames, expected) in forms {
        for piece in [usize::MAX, 1, 7] {
            assert_eq!(heard(&frames, piece), (expected.clone(), Ok(())), "{name} by {piece}");
        }
    }
}

#[test]
fn replies_of_every_form_are_read_in_any_order_and_in_any_pieces() {
    let padded = b"\x03hel\0\0\0";
    let with_priority = [b"\x02\0\0\0\0\x10".as_slice(), HEAD, b"\0\0"].concat();
    check_forms(vec![
        ("in order", [reply(1, b"hello"), reply(3, b"hello")].concat(), vec![right(10), right(11)]),
        (
            "backwards",
            [reply(3, b"hello"), reply(1, b"hello")].concat(),
            vec![right(11), right(10)],
        ),
        (
            "in parts, padded",
            [
                frame(HEADERS, 4 | 8 | 32, 1, &with_priority),
                frame(DATA, 8, 1, padded),
                frame(DATA, 0, 1, b"lo"),
                frame(DATA, 1, 1, b""),
            ]
            .concat(),
            vec![right(10)],
        ),
        (
            "between each other",
            [
                frame(HEADERS, 4, 1, HEAD),
                frame(HEADERS, 4, 3, HEAD),
                frame(DATA, 0, 1, b"hel"),
                frame(DATA, 1, 3, b"hello"),
                frame(DATA, 1, 1, b"lo"),
            ]
            .concat(),
            vec![right(11), right(10)],
        ),
        (
            "continued",
            [
                frame(HEADERS, 0, 1, &HEAD[..7]),
                frame(CONTINUATION, 0, 1, &HEAD[7..9]),
                frame(CONTINUATION, 4, 1, &HEAD[9..]),
                frame(DATA, 1, 1, b"hello"),
            ]
            .concat(),
            vec![right(10)],
        ),
    ]);
}

#[test]
fn what_stands_around_replies_is_understood() {
    let empty = (10, Ok((200, Vec::new())));
    let sized = b"\x88\x0f\x0d\x015";
    check_forms(vec![
        (
            "after an interim reply, with trailers",
            [
                frame(HEADERS, 4, 1, b"\x08\x03103"),
                frame(HEADERS, 4, 1, sized),
                frame(DATA, 0, 1, b"hello"),
                frame(HEADERS, 4 | 1, 1, b"\x00\x01a\x01b"),
            ]
            .concat(),
            vec![right(10)],
        ),
        ("without a body", frame(HEADERS, 4 | 1, 1, HEAD), vec![empty]),
        (
            "after frames of no concern",
            [frame(200, 0, 0, b"x"), frame(2, 0, 1, b"\0\0\0\0\0"), reply(1, b"hello")].concat(),
            vec![right(10)],
        ),
        (
            "reset, and the other right",
            [frame(RESET, 0, 1, &[0, 0, 0, 7]), reply(3, b"hello")].concat(),
            vec![(10, Err(Fault::StreamReset)), right(11)],
        ),
        (
            "the first only, and good-bye",
            [frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]), reply(1, b"hello")].concat(),
            vec![(11, Err(Fault::GoneAway)), right(10)],
        ),
        (
            "another length than was said",
            [frame(HEADERS, 4, 1, sized), frame(DATA, 1, 1, b"hell")].concat(),
            vec![(10, Err(Fault::Malformed))],
        ),
    ]);
}

#[test]
fn what_breaks_the_protocol_ends_the_connection() {
    for (name, frames) in [
        ("a body without a head", frame(DATA, 1, 1, b"x")),
        ("a stream that never began", reply(5, b"x")),
        ("a stream of the server's", reply(2, b"x")),
        ("a second reply", [reply(1, b"x"), reply(1, b"x")].concat()),
        ("a push", frame(PUSH_PROMISE, 4, 1, b"\0\0\0\x02\x82")),
        ("a head within a head", [frame(HEADERS, 0, 1, HEAD), frame(HEADERS, 4, 3, HEAD)].concat()),
        ("a continuation of nothing", frame(CONTINUATION, 4, 1, HEAD)),
        ("a head without a status", frame(HEADERS, 4, 1, b"\x00\x01a\x01b")),
        ("a head that cannot be read", frame(HEADERS, 4, 1, b"\x88\xff\xff\xff")),
        ("padding longer than the frame", frame(DATA, 8, 1, b"\x09x")),
        ("a frame longer than allowed", frame(DATA, 0, 1, &vec![0; (1 << 14) + 1])),
        ("an update by nothing", frame(WINDOW_UPDATE, 0, 0, &[0; 4])),
        ("a window without end", frame(WINDOW_UPDATE, 0, 0, &[0x7f, 255, 255, 255])),
        ("settings of no length", frame(SETTINGS, 0, 0, b"x")),
        ("a ping of no length", frame(PING, 0, 0, b"x")),
    ] {
        let (_, end) = heard(&frames, usize::MAX);
        assert_eq!(end, Err(Fault::Malformed), "{name}");
    }
    let (_, end) = heard(&frame(GOAWAY, 0, 0, &[0, 0, 0, 3, 0, 0, 0, 2]), usize::MAX);
    assert_eq!(end, Err(Fault::GoneAway));
    let mut first = Http2::new(&mut Vec::new());
    let end = first.receive(&frame(PING, 0, 0, &[0; 8]), &mut Vec::new(), &mut |_, _| {});
    assert_eq!(end, Err(Fault::Malformed), "SETTINGS come first");
}

#[test]
fn settings_and_pings_are_answered_and_limits_kept() {
    let mut out = Vec::new();
    let mut http2 = Http2::new(&mut out);
    assert_eq!(http2.room(), 0, "nothing is asked before the limits are known");
    out.clear();
    http2.receive(&settings(&[(3, 2)]), &mut out, &mut |_, _| {}).unwrap();
    assert_eq!(out, frame(SETTINGS, 1, 0, b""));
    assert_eq!(http2.room(), 2);
    http2.ask(&get(), 1, &mut out);
    http2.ask(&get(), 2, &mut out);
    assert_eq!(http2.room(), 0);
    out.clear();
    let frames = [frame(PING, 0, 0, b"12345678"), frame(PING, 1, 0, b"12345678")].concat();
    http2.receive(&frames, &mut out, &mut |_, _| {}).unwrap();
    assert_eq!(out, frame(PING, 1, 0, b"12345678"));
    http2.receive(&reply(3, b"x"), &mut out, &mut |_, _| {}).unwrap();
    assert_eq!(http2.room(), 1);
    let goodbye = frame(GOAWAY, 0, 0, &[0x7f, 255, 255, 255, 0, 0, 0, 0]);
    http2.receive(&goodbye, &mut out, &mut |_, _| {}).unwrap();
    assert!(http2.is_leaving() && http2.room() == 0);
}

#[test]
fn a_body_is_sent_as_far_as_the_windows_allow() {
    const BYTES: usize = 200_000;
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {BYTES}\r\n\r\n");
    let request = Request::of(&[head.as_bytes(), &[b'x'; BYTES]].concat(), true);
    let mut out = Vec::new();
    let mut http2 = Http2::new(&mut out);
    http2.receive(&settings(&[(4, 50_000)]), &mut out, &mut |_, _| {}).unwrap();
    let mut sent = 0;
    let mut step = |http2: &mut Http2, out: &mut Vec<u8>, says: Option<Vec<u8>>| {
        out.clear();
        match says {
            None => http2.ask(&request, 1, out),
            Some(frames) => http2.receive(&frames, out, &mut |_, _| {}).unwrap(),
        }
        let mut rest = out.as_slice();
        let mut ends = false;
        while let [a, b, c, kind, flags, _, _, _, _, after @ ..] = rest {
            let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            assert!(length <= 1 << 14);
            if *kind == DATA {
                sent += length;
                ends = flags & 1 == 1;
            }
            rest = &after[length..];
        }
        (sent, ends)
    };
    let update = |stream, by: u32| Some(frame(WINDOW_UPDATE, 0, stream, &by.to_be_bytes()));
    assert_eq!(step(&mut http2, &mut out, None), (50_000, false));
    assert_eq!(step(&mut http2, &mut out, update(1, 40_000)), (65_535, false));
    assert_eq!(step(&mut http2, &mut out, update(0, 1_000_000)), (90_000, false));
    assert_eq!(step(&mut http2, &mut out, Some(settings(&[(4, 60_000)]))), (100_000, false));
    assert_eq!(step(&mut http2, &mut out, update(1, 500_000)), (BYTES, true));
}

/// How a server of the test's own answers.
#[derive(Clone, Copy, Default)]
struct Nature {
    streams_max: Option<u32>,
    body: Option<&'static [u8]>,
    /// The block of trailers that ends each reply.
    trailers: Option<&'static [u8]>,
    /// Every so many requests, the stream is reset.
    resets: Option<usize>,
    /// After so many requests, the server says GOAWAY with this code.
    leaves: Option<(usize, u32)>,
    /// Bytes of one write; none: all.
    piece: Option<usize>,
}

/// A server that answers all that came with one read in the reverse order, and the most requests that
/// were under way.
fn serve(nature: Nature) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let most = Arc::new(AtomicUsize::new(0));
    let seen = most.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, seen) = (stream.unwrap(), seen.clone());
            // A client that goes away is no error.
            std::thread::spawn(move || converse(stream, nature, &seen));
        }
    });
    (address, most)
}

fn converse(mut stream: std::net::TcpStream, nature: Nature, most: &AtomicUsize) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let (mut bytes, mut room, mut used, mut asked) = (Vec::new(), [0; 65536], PREFACE_BYTES, 0);
    let limit = nature.streams_max.map(|most| (3, most));
    stream.write_all(&settings(limit.as_slice())).ok()?;
    loop {
        let count = stream.read(&mut room).ok().filter(|&count| count > 0)?;
        bytes.extend_from_slice(&room[..count]);
        let mut streams = Vec::new();
        while let Some([a, b, c, kind, flags, d, e, f, g]) =
            bytes.get(used..).and_then(<[u8]>::first_chunk)
        {
            let end = used + 9 + u32::from_be_bytes([0, *a, *b, *c]) as usize;
            if bytes.len() < end {
                break;
            }
            used = end;
            if *kind <= HEADERS && flags & 1 == 1 {
                streams.push(u32::from_be_bytes([*d, *e, *f, *g]));
            }
        }
        most.fetch_max(streams.len(), Ordering::Relaxed);
        let mut out = Vec::new();
        for &stream in streams.iter().rev() {
            asked += 1;
            if nature.resets.is_some_and(|every| asked % every == 0) {
                out.extend(frame(RESET, 0, stream, &[0, 0, 0, 2]));
                continue;
            }
            let body = nature.body.unwrap_or(BODY);
            let Some(trailers) = nature.trailers else {
                out.extend(reply(stream, body));
                continue;
            };
            out.extend(frame(HEADERS, 4, stream, HEAD));
            out.extend(frame(DATA, 0, stream, body));
            out.extend(frame(HEADERS, 4 | 1, stream, trailers));
        }
        if let Some((after, code)) = nature.leaves.filter(|&(after, _)| asked >= after) {
            let _ = after;
            let last = streams.iter().max().copied().unwrap_or(0);
            out.extend(frame(GOAWAY, 0, 0, &[last.to_be_bytes(), code.to_be_bytes()].concat()));
            stream.write_all(&out).ok()?;
            // What comes later is read and not answered, so that the good-bye is not lost.
            stream.shutdown(std::net::Shutdown::Write).ok()?;
            while stream.read(&mut room).ok()? > 0 {}
            return None;
        }
        for piece in out.chunks(nature.piece.unwrap_or(usize::MAX)) {
            stream.write_all(piece).ok()?;
        }
    }
}

fn workload(depth: usize) -> Arc<Workload> {
    let named = Workload::named("get-json").unwrap();
    Arc::new(Workload { depth, is_http2: true, ..named })
}

/// What the paired client sees of such a server, and the most requests under way.
fn paired(nature: Nature) -> (Tally, usize) {
    paired_with(nature, workload(10))
}

fn paired_with(nature: Nature, workload: Arc<Workload>) -> (Tally, usize) {
    let (address, most) = serve(nature);
    let mut client = Client::new(None).unwrap();
    let group = client.group(Target { address, tls: None }, workload, 2);
    let tally = client.run(group, Stop::After(Duration::from_millis(100))).unwrap();
    (tally, most.load(Ordering::Relaxed))
}

/// The same of the generator.
fn generated(nature: Nature) -> (generator::Outcome, usize) {
    generated_with(nature, &workload(1))
}

fn generated_with(nature: Nature, workload: &Workload) -> (generator::Outcome, usize) {
    let (address, most) = serve(nature);
    let question = Question::of(workload);
    let plan = Plan {
        connections: 2,
        depth: 10,
        is_http2: true,
        duration: Duration::from_millis(200),
        ..Plan::new(address, Arc::new(question))
    };
    let outcome = generator::run(&plan, &Watch::default()).unwrap();
    (outcome, most.load(Ordering::Relaxed))
}

#[test]
fn right_replies_in_reverse_order_and_in_pieces_are_right() {
    for piece in [None, Some(1)] {
        let nature = Nature { piece, ..Nature::default() };
        let (tally, most) = paired(nature);
        assert!(tally.replies > 0 && tally.faults.total() == 0, "{tally:?}");
        assert_eq!(most, 10);
        let (outcome, most) = generated(nature);
        assert!(outcome.is_valid() && outcome.replies > 0, "{:?}", outcome.faults);
        assert_eq!(outcome.sent, outcome.replies);
        assert_eq!(outcome.body_bytes, outcome.replies * BODY.len() as u64);
        assert_eq!(most, 10);
    }
}

#[test]
fn the_servers_limit_of_streams_is_kept() {
    let nature = Nature { streams_max: Some(3), ..Nature::default() };
    let (tally, most) = paired(nature);
    assert!(tally.replies > 0 && tally.faults.total() == 0, "{tally:?}");
    assert_eq!(most, 3);
    let (outcome, most) = generated(nature);
    assert!(outcome.is_valid(), "{:?}", outcome.faults);
    assert_eq!(most, 3);
}

/// As `workload`, with a trailer that must be there.
fn with_trailer() -> Arc<Workload> {
    let mut workload = (*workload(10)).clone();
    workload.answer.trailers = vec![("grpc-status".to_owned(), "0".to_owned())];
    Arc::new(workload)
}

#[test]
fn trailers_are_judged() {
    let plain = Nature::default();
    let with = |trailers| Nature { trailers: Some(trailers), ..plain };
    for piece in [None, Some(1)] {
        let nature = Nature { piece, ..with(TRAILERS) };
        let (tally, _) = paired_with(nature, with_trailer());
        assert!(tally.replies > 0 && tally.faults.total() == 0, "{tally:?}");
        let (outcome, _) = generated_with(nature, &with_trailer());
        assert!(outcome.is_valid(), "{:?}", outcome.faults);
    }
    for nature in [
        plain,
        with(b"\x00\x0bgrpc-status\x015"),
        with(b"\x00\x0bgrpc-status\x0200"),
        with(b"\x00\x0cgrpc-message\x010"),
    ] {
        let (tally, _) = paired_with(nature, with_trailer());
        assert!(tally.faults.count(Fault::WrongTrailer) > 0 && tally.replies == 0, "{tally:?}");
        let (outcome, _) = generated_with(nature, &with_trailer());
        let faults = outcome.faults;
        assert!(faults.count(Fault::WrongTrailer) > 0 && outcome.replies == 0, "{faults:?}");
    }
}

#[test]
fn trailers_of_the_null_server_are_right() {
    let (address, _) = serve(Nature::default());
    let plan = Plan {
        is_http2: true,
        duration: Duration::from_millis(100),
        ..Plan::new(address, Arc::new(Question::of(&with_trailer())))
    };
    let ceiling = calibrate(&plan, &[], &Watch::default()).unwrap();
    assert!(ceiling.unwrap().rate > 0.0);
}

#[test]
fn a_limit_of_streams_below_what_was_asked_for_is_told() {
    for (streams_max, holds) in [(Some(3), false), (Some(10), true), (None, true)] {
        let (address, _) = serve(Nature { streams_max, ..Nature::default() });
        let plan = Plan {
            connections: 2,
            depth: 10,
            is_http2: true,
            duration: Duration::from_millis(100),
            warmup: Duration::from_millis(20),
            ..Plan::new(address, Arc::new(Question::of(&workload(1))))
        };
        let outcome = generator::run(&plan, &Watch::default()).unwrap();
        assert_eq!(outcome.streams_max, streams_max.map(|most| most as usize));
        let checks = generator::checks(&plan, &outcome, None);
        let check = checks.iter().find(|check| check.name == "streams as asked").unwrap();
        assert_eq!((check.holds, check.is_voiding), (Some(holds), false), "{}", check.detail);
    }
}

#[test]
fn each_fault_has_its_name() {
    for (nature, fault) in [
        (Nature { body: Some(b"{}"), ..Nature::default() }, Fault::WrongBody),
        (Nature { resets: Some(7), ..Nature::default() }, Fault::StreamReset),
        (Nature { leaves: Some((50, 2)), ..Nature::default() }, Fault::GoneAway),
    ] {
        let (tally, _) = paired(nature);
        assert!(tally.faults.count(fault) > 0, "{fault:?}: {tally:?}");
        let (outcome, _) = generated(nature);
        let faults = outcome.faults;
        // The generator tells a body of another length from another body.
        let count = faults.count(fault) + faults.count(Fault::WrongLength);
        assert!(count > 0 && !outcome.is_valid(), "{fault:?}: {faults:?}");
        assert_eq!(outcome.sent, outcome.replies + outcome.failed + outcome.outstanding);
    }
}
