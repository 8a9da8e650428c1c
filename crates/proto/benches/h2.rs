//! The cost of HTTP/2 without a kernel: `cargo bench -p peregrine-proto --bench h2`.
//!
//! Each line is the minimum of many rounds, in nanoseconds per named operation. It is meant for
//! comparing two versions of this crate on one machine, not for claims.

#![forbid(unsafe_code)]

use peregrine_proto::h1::ResponseLength;
use peregrine_proto::h2::hpack::{Decoder, Encoder, Field, FieldSink};
use peregrine_proto::h2::{Connection, Event, Limits, MoreData, frame};
use peregrine_proto::{Date, HeadIndex, KnownField};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 200;
const STREAMS: u32 = 100;

fn main() {
    turn("h2load, its fields in the table", &H2LOAD);
    turn("a browser, its fields in the table", &BROWSER);
    decode("decode a browser's block, in the table", &BROWSER, true);
    decode("decode a browser's block, all literal", &BROWSER, false);
    encode();
}

fn report(name: &str, total_ns: u128, count: u128) {
    println!("{name:<60} {:>6} ns", total_ns / count);
}

/// 100 requests in one turn, each with a response of 13 bytes.
fn turn(name: &str, fields: &[(&str, &str)]) {
    let (limits, date) = (Limits::DEFAULT, Date::from_unix_seconds(784_111_777));
    let (mut bytes, mut head, mut out) = (Vec::new(), HeadIndex::new(), Vec::new());
    let mut connection = Connection::new(&limits, &mut out);
    let mut oracle = loona_hpack::Encoder::new();
    let mut unread = frame::PREFACE.to_vec();
    frame::write_settings([(4, 1 << 30)], &mut unread);
    frame::write_window_update(0, 1 << 30, &mut unread);
    let (mut id, mut best_ns) = (1, u128::MAX);
    let response: [(&[u8], &[u8]); 2] =
        [(b"content-type", b"text/plain; charset=utf-8"), (b"server", b"peregrine")];
    for _ in 0..ROUNDS {
        for _ in 0..STREAMS {
            let headers = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
            let block = oracle.encode(headers);
            frame::write_frame(frame::FrameType::Headers, 5, id, &block, &mut unread);
            id += 2;
        }
        out.clear();
        let start = Instant::now();
        let (mut at, mut count) = (0, 0);
        loop {
            let (used, event) =
                connection.receive(&limits, &unread[at..], &mut bytes, &mut head, &mut out);
            at += used;
            match event {
                Event::Request(request) => {
                    let (stream, length) = (request.stream, ResponseLength::Exact(13));
                    connection
                        .send_response(&limits, stream, 200, response, length, &date, &mut out);
                    if connection.send_capacity(&limits, stream) >= 13 {
                        let data = black_box(b"Hello, World!");
                        connection.send_data(&limits, stream, data, MoreData::End, &mut out);
                    }
                    count += 1;
                }
                Event::NeedInput => break,
                event => assert_eq!(event, Event::Settings),
            }
        }
        connection.reset_unfinished(&mut out, |_| {});
        best_ns = best_ns.min(start.elapsed().as_nanos());
        assert_eq!(count, STREAMS);
        black_box(&out);
        unread.clear();
    }
    report(&format!("receive, respond, 13 bytes: {name}"), best_ns, u128::from(STREAMS));
}

struct ValueBytes(usize);

impl FieldSink for ValueBytes {
    fn field(&mut self, field: Field<'_>) -> bool {
        self.0 += field.value.len();
        true
    }
}

fn decode(name: &str, fields: &[(&str, &str)], indexed: bool) {
    let mut oracle = loona_hpack::Encoder::new();
    let headers = || fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    let mut decoder = Decoder::new();
    let first = oracle.encode(headers());
    let mut best_ns = u128::MAX;
    let block = if indexed { oracle.encode(headers()) } else { first.clone() };
    decoder.decode(&first, 1 << 20, &mut ValueBytes(0)).expect("a valid block");
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..100 {
            let mut count = ValueBytes(0);
            decoder.decode(black_box(&block), 1 << 20, &mut count).expect("a valid block");
            black_box(count.0);
        }
        best_ns = best_ns.min(start.elapsed().as_nanos());
    }
    report(name, best_ns, 100);
}

fn encode() {
    let fields: [(KnownField, &[u8], &[u8]); 4] = [
        (KnownField::ContentType, b"content-type", b"application/json"),
        (KnownField::Other, b"server", b"peregrine"),
        (KnownField::Date, b"date", b"Sun, 06 Nov 1994 08:49:37 GMT"),
        (KnownField::ContentLength, b"content-length", b"13"),
    ];
    let (mut encoder, mut out, mut best_ns) = (Encoder::new(2048), Vec::new(), u128::MAX);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..100 {
            out.clear();
            encoder.begin_block(&mut out);
            encoder.status(200, &mut out);
            for (known, name, value) in black_box(fields) {
                encoder.field(known, name, value, &mut out);
            }
            black_box(&out);
        }
        best_ns = best_ns.min(start.elapsed().as_nanos());
    }
    report("encode a response's block, in the table", best_ns, 100);
}

const H2LOAD: [(&str, &str); 5] = [
    (":method", "GET"),
    (":scheme", "http"),
    (":path", "/"),
    (":authority", "127.0.0.1:8080"),
    ("user-agent", "h2load nghttp2/1.52.0"),
];

const BROWSER: [(&str, &str); 14] = [
    (":method", "GET"),
    (":authority", "www.example.org"),
    (":scheme", "https"),
    (":path", "/api/v1/projects/42/items?page=2"),
    ("sec-ch-ua-platform", "\"Linux\""),
    (
        "user-agent",
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36",
    ),
    (
        "accept",
        "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8",
    ),
    ("sec-fetch-site", "same-origin"),
    ("sec-fetch-mode", "cors"),
    ("sec-fetch-dest", "empty"),
    ("referer", "https://www.example.org/projects/42"),
    ("accept-encoding", "gzip, deflate, br, zstd"),
    ("accept-language", "en-US,en;q=0.9"),
    ("cookie", "session=0123456789abcdef0123456789abcdef; theme=dark"),
];
