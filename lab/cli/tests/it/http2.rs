//! Runs over HTTP/2, and the server of the tests as far as it speaks that: it understands what the
//! lab's client says, and no more.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use peregrine_lab_model::check::Outcome;
use peregrine_lab_model::verdict::{Decision, Measure};

use crate::bench::{Bench, check, verdict};
use crate::server::{Nature, Server};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

const PREFACE_BYTES: usize = 24;

const OPTIONS: &str = "--tolerate-noise --out runs";

/// Answers requests on a connection whose first bytes are `pending`, until the client leaves.
pub(crate) fn converse(
    mut stream: TcpStream,
    mut pending: Vec<u8>,
    server: &Server,
) -> io::Result<()> {
    let mut room = [0; 16 << 10];
    let mut used = PREFACE_BYTES;
    stream.write_all(&frame(SETTINGS, 0, 0, b""))?;
    loop {
        let mut out = Vec::new();
        while let Some([a, b, c, kind, flags, d, e, f, g]) =
            pending.get(used..).and_then(<[u8]>::first_chunk)
        {
            let start = used + 9;
            let end = start + u32::from_be_bytes([0, *a, *b, *c]) as usize;
            let id = u32::from_be_bytes([*d, *e, *f, *g]);
            let Some(payload) = pending.get(start..end) else { break };
            match *kind {
                HEADERS => {
                    let (status, media, body) = server.reply_to(&path(payload));
                    let mut block = format!("\x08\x03{status}").into_bytes();
                    for (name, value) in [("content-type", media), ("date", "today")] {
                        block.extend_from_slice(&[0, name.len() as u8]);
                        block.extend_from_slice(name.as_bytes());
                        block.push(value.len() as u8);
                        block.extend_from_slice(value.as_bytes());
                    }
                    out.extend(frame(HEADERS, END_HEADERS, id, &block));
                    out.extend(frame(DATA, END_STREAM, id, body.as_bytes()));
                }
                SETTINGS if flags & ACK == 0 => out.extend(frame(SETTINGS, ACK, 0, b"")),
                _ => {}
            }
            used = end;
        }
        pending.drain(..used);
        used = 0;
        stream.write_all(&out)?;
        match stream.read(&mut room) {
            Ok(0) => return Ok(()),
            Ok(count) => pending.extend_from_slice(&room[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if server.is_over() {
                    return Ok(());
                }
            }
            Err(error) => return Err(error),
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    let mut frame = vec![a, b, c, kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// The path in a head of the lab's client: a literal with the name of number 4, after one-byte fields.
fn path(block: &[u8]) -> String {
    match block.iter().position(|byte| *byte < 0x80) {
        Some(place) if block[place] == 4 => {
            let length = usize::from(block[place + 1]);
            String::from_utf8_lossy(&block[place + 2..place + 2 + length]).into_owned()
        }
        _ => "/".to_owned(),
    }
}

fn graceful() -> Nature {
    Nature { end: "graceful".to_owned(), ..Nature::default() }
}

#[test]
fn over_http2_contenders_are_paired_and_who_does_not_speak_it_is_left_out() {
    let bench = Bench::new()
        .contender("one", &graceful())
        .contender("other", &Nature { burn: 100_000, ..graceful() })
        .recipe("old", "name = \"old\"\nrun = [\"true\"]\n");
    let line = "run json --http2 --streams 10 --contenders one,other,old --concurrency 1,4";
    bench
        .lab(&format!("{line} --blocks 10 {OPTIONS}"))
        .expect(0)
        .says(&["json-h2, 1 connection x 10 streams, ", "json-h2, 4 connections x 10 streams, "]);
    for connections in [1, 4] {
        let file = bench.file(&format!("runs/json-h2-c{connections}.json"));
        assert_eq!(file.plan.streams, Some(10));
        assert!(file.calibration.is_some(), "the null server speaks HTTP/2");
        assert_eq!(file.blocks_of("one").count(), 10);
        assert!(file.blocks_of("one").all(|block| block.errors_total() == 0));
        assert_eq!(verdict(&file, "other", Measure::ServerCpu).decision, Decision::Slower);
        let old = file.contenders.iter().find(|one| one.name == "old").unwrap();
        assert_eq!(old.skipped.as_deref(), Some("it does not speak HTTP/2 without TLS"));
        assert_eq!(check(&file, "one", "answers: asked").outcome, Outcome::Passed);
    }
    assert!(bench.text("runs/report.md").contains("4 connections x 10 streams"));
}

#[test]
fn over_http2_a_wrong_answer_voids_and_an_open_loop_has_its_latency() {
    let liar = Nature { lie: "wrong-body".to_owned(), from: "gate".to_owned(), ..graceful() };
    let bench = Bench::new().contender("one", &graceful()).contender("liar", &liar);
    let ended = bench.lab(&format!("run json --http2 --contenders one,liar --blocks 2 {OPTIONS}"));
    ended.expect(4);
    let file = bench.file("runs/json-h2-c4.json");
    let reason = file.contenders.iter().find(|one| one.name == "liar").unwrap();
    assert!(reason.skipped.as_deref().unwrap().contains("wrong body"), "{reason:?}");
    let line = "run json --http2 --streams 5 --open --contenders one --blocks 2 --duration 60ms --look 250ms";
    bench.lab(&format!("{line} {OPTIONS}")).expect(0);
    let files = bench.files("runs");
    let open: Vec<_> = files.iter().filter(|file| file.plan.scenario == "json-h2-open").collect();
    assert_eq!(open.len(), 2);
    assert!(open.iter().all(|file| file.blocks_of("one").all(|block| block.latency.is_some())));
}

#[test]
fn what_http2_has_no_form_of_is_refused_with_a_reason() {
    let bench = Bench::new().contender("one", &graceful());
    for (scenario, reason) in [
        ("churn", "churn: its connections are made anew"),
        ("shutdown", "shutdown: its kind is measured over HTTP/1.1 only"),
        ("json --streams 5000", "json: a connection has 1 to 1024 streams"),
    ] {
        let ended = bench.lab(&format!("run {scenario} --http2 --contenders one {OPTIONS}"));
        ended.expect(64).complains(&[reason]);
    }
}
