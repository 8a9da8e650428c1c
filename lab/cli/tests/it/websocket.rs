//! Runs over WebSockets, and the server of the tests as far as it speaks them: it understands what the
//! lab's client says, and no more.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use peregrine_lab_load::websocket::accept_key;
use peregrine_lab_model::check::{Check, Outcome};
use peregrine_lab_model::verdict::{Decision, Measure};

use crate::bench::{Bench, check, verdict};
use crate::server::{Nature, Server};

const OPTIONS: &str = "--tolerate-noise --out runs";

/// What a text message of less than 126 bytes in one frame begins with.
const TEXT: u8 = 0x81;

/// Header and mask of such a frame of a client.
const FRAME_BYTES: usize = 6;

/// Opens the WebSocket that the bytes ask for, and echoes messages until the client leaves.
pub(crate) fn converse(
    mut stream: TcpStream,
    mut pending: Vec<u8>,
    server: &Server,
) -> io::Result<()> {
    let mut is_open = false;
    let mut room = [0; 4096];
    loop {
        let mut out = Vec::new();
        let end = pending.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(end) = end.filter(|_| !is_open) {
            let head = String::from_utf8_lossy(&pending[..end]).into_owned();
            let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "));
            let accept = accept_key(key.unwrap_or_default().as_bytes());
            out = format!(
                "HTTP/1.1 101 Any\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
                 sec-websocket-accept: {accept}\r\n\r\n"
            )
            .into_bytes();
            pending.drain(..end + 4);
            is_open = true;
        }
        while let Some(&[TEXT, length, a, b, c, d]) = pending.first_chunk().filter(|_| is_open) {
            let end = FRAME_BYTES + usize::from(length & 0x7f);
            let Some(text) = pending.get(FRAME_BYTES..end) else { break };
            let mask = [a, b, c, d];
            let text: Vec<u8> = text.iter().zip(mask.iter().cycle()).map(|(x, y)| x ^ y).collect();
            let text = server.echo(&text);
            out.extend_from_slice(&[TEXT, text.len() as u8]);
            out.extend_from_slice(&text);
            pending.drain(..end);
        }
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

fn graceful() -> Nature {
    Nature { end: "graceful".to_owned(), ..Nature::default() }
}

#[test]
fn messages_are_paired_and_judged_as_requests_are() {
    let liar = Nature { lie: "wrong-body".to_owned(), from: "gate".to_owned(), ..graceful() };
    let late = Nature { calls: "honest".to_owned(), from: "slices".to_owned(), ..liar.clone() };
    let bench = Bench::new()
        .contender("one", &graceful())
        .contender("other", &Nature { burn: 100_000, ..graceful() })
        .contender("liar", &liar)
        .contender("late", &late);
    let line = "run messages --contenders one,other,liar,late --blocks 10";
    bench.lab(&format!("{line} {OPTIONS}")).expect(4);
    let file = bench.file("runs/messages-c4.json");
    assert_eq!(file.plan.streams, None);
    assert!(file.calibration.is_some(), "the null server speaks it");
    assert_eq!(file.blocks_of("one").count(), 10);
    assert!(file.blocks_of("one").all(|block| block.requests > 0 && block.errors_total() == 0));
    assert_eq!(verdict(&file, "other", Measure::ServerCpu).decision, Decision::Slower);
    assert_eq!(check(&file, "one", "answers: asked").outcome, Outcome::Passed);
    assert_eq!(check(&file, "one", "answers: a word").outcome, Outcome::Passed);
    // Messages have no fields, and the suite of conduct is about requests.
    let is_of_requests = |name: &str| name.contains("Date") || name.contains("conduct");
    assert!(!file.checks.iter().any(|check| is_of_requests(&check.name)));
    let reason = file.contender("liar").unwrap().skipped.clone().unwrap();
    assert!(reason.contains("wrong body"), "{reason}");
    let late = verdict(&file, "late", Measure::ServerCpu);
    assert_eq!(late.decision, Decision::Void);
    assert!(late.note.contains("wrong body"), "{late:?}");
}

#[test]
fn messages_and_requests_are_asked_in_the_same_blocks() {
    let bench = Bench::new()
        .contender("one", &graceful())
        .contender("other", &Nature { burn: 100_000, ..graceful() });
    let line = "run messages --beside json --contenders one,other --blocks 10";
    bench.lab(&format!("{line} {OPTIONS}")).expect(0).says(&["one (json)", "other (json)"]);
    let file = bench.file("runs/messages-c4.json");
    for name in ["one", "one (again)", "one (json)", "other", "other (json)"] {
        let blocks: Vec<_> = file.blocks_of(name).collect();
        assert_eq!(blocks.len(), 10, "{name}");
        assert!(blocks.iter().all(|block| block.requests > 0 && block.errors_total() == 0));
    }
    let decision = |name| verdict(&file, name, Measure::ServerCpu).decision;
    assert_eq!([decision("other"), decision("other (json)")], [Decision::Slower; 2]);
    // Only requests have the field.
    let has_date = |name: &str| {
        let of_name = |check: &&Check| check.contender.as_deref() == Some(name);
        file.checks.iter().filter(of_name).any(|check| check.name.contains("Date"))
    };
    assert!(has_date("one (json)") && !has_date("one"));
    for (scenario, beside) in [("messages", "churn"), ("messages", "shutdown"), ("churn", "json")] {
        let line = format!("run {scenario} --beside {beside} --contenders one {OPTIONS}");
        bench.lab(&line).complains(&["both have to be closed loops in paired slices"]);
    }
}

#[test]
fn messages_have_their_latency_in_an_open_loop_and_no_form_over_http2() {
    let bench = Bench::new().contender("one", &graceful());
    let line = "run messages --open --contenders one --blocks 2 --duration 60ms --look 250ms";
    bench.lab(&format!("{line} {OPTIONS}")).expect(0);
    let files = bench.files("runs");
    assert_eq!(files.len(), 2);
    assert!(files.iter().all(|file| file.blocks_of("one").all(|block| block.latency.is_some())));
    bench
        .lab(&format!("run messages --http2 --contenders one {OPTIONS}"))
        .expect(64)
        .complains(&["messages: its WebSockets are opened over HTTP/1.1"]);
}
