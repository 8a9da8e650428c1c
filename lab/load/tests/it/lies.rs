//! The load generator against one server with a mode per lie: each lie is caught and named.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use peregrine_lab_load::client::EngineKind;
use peregrine_lab_load::client::fault::Fault;
use peregrine_lab_load::generator::{Outcome, Plan, Secured, Watch, checks, run};
use peregrine_lab_load::question::{BodyWording, Question, Wording};
use peregrine_lab_load::schedule::Schedule;
use rustls::pki_types::ServerName;

/// What the server does to every reply, or to every connection.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Lie {
    Nothing,
    Status,
    TooShort,
    TooLong,
    Body,
    Header,
    Truncated,
    ClosedEarly,
    ResetInBody,
    ResetBeforeHead,
    Garbage,
    Silence,
    Reordered,
    Slow,
    SameDate,
}

/// Serves each connection on a thread of its own until the test process ends.
fn liar(lie: Lie) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            std::thread::spawn(move || serve(stream, lie));
        }
    });
    address
}

/// Reads requests and answers what arrived together together.
fn serve(mut stream: TcpStream, lie: Lie) {
    stream.set_nodelay(true).unwrap();
    let (mut pending, mut bytes) = (Vec::new(), [0; 4096]);
    loop {
        let Ok(count @ 1..) = stream.read(&mut bytes) else { return };
        pending.extend_from_slice(&bytes[..count]);
        let mut ids = Vec::new();
        let mut is_last = false;
        while let Some(end) = pending.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8(pending.drain(..end + 4).collect()).unwrap();
            ids.push(head.split([' ', '/']).nth(2).unwrap().to_owned());
            is_last |= head.contains("Connection: close");
        }
        let mut replies: Vec<Vec<u8>> = ids.iter().map(|id| reply(id, lie, is_last)).collect();
        match lie {
            Lie::Silence => continue,
            Lie::Slow => std::thread::sleep(Duration::from_millis(5)),
            Lie::Reordered => replies.reverse(),
            // Closing with unread bytes, or with a linger of zero, resets the connection.
            Lie::ResetInBody | Lie::ResetBeforeHead => {
                let _ = stream.write_all(&replies.concat());
                std::thread::sleep(Duration::from_millis(20));
                reset_on_close(&stream);
                return;
            }
            _ => {}
        }
        let _ = stream.write_all(&replies.concat());
        if is_last || matches!(lie, Lie::Truncated | Lie::ClosedEarly) {
            return;
        }
    }
}

fn reset_on_close(stream: &TcpStream) {
    rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO)).unwrap();
}

fn reply(id: &str, lie: Lie, is_last: bool) -> Vec<u8> {
    let close = if is_last { "Connection: close\r\n" } else { "" };
    let (status, mut body) = match lie {
        Lie::Status => ("500 No", format!("hello {id}")),
        Lie::TooShort => ("200 OK", "hello".to_owned()),
        Lie::Body => ("200 OK", format!("hallo {id}")),
        _ => ("200 OK", format!("hello {id}")),
    };
    let length = body.len() + usize::from(matches!(lie, Lie::Truncated | Lie::ResetInBody));
    if lie == Lie::TooLong {
        body.push('!');
    }
    let echo = if lie == Lie::Header { "0" } else { id };
    let date = if lie == Lie::SameDate { "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n" } else { "" };
    let head = format!("HTTP/1.1 {status}\r\nX-Id: {echo}\r\n{date}{close}");
    match lie {
        Lie::ClosedEarly => head.into_bytes(),
        Lie::ResetBeforeHead => Vec::new(),
        Lie::Garbage => b"ICY 200 OK\r\n\r\n".to_vec(),
        _ => format!("{head}Content-Length: {length}\r\n\r\n{body}").into_bytes(),
    }
}

/// A plan whose answers depend on their requests.
fn plan(address: SocketAddr, engine: EngineKind) -> Plan {
    let wording = Wording {
        target: "/{counter}".into(),
        expected_status: Some(200),
        expected_body: BodyWording::Exact("hello {counter}".into()),
        expected_fields: vec![("x-id".into(), Some("{counter}".into()))],
        ..Wording::default()
    };
    let question = Arc::new(Question::new(&wording).unwrap());
    Plan {
        connections: 3,
        requests_max: 30,
        // So long no thread of this test is without a turn, on a machine with much else to do.
        timeout: Duration::from_secs(2),
        engine: Some(engine),
        ..Plan::new(address, question)
    }
}

/// The ring only where the kernel allows it; readiness everywhere.
fn engines() -> Vec<EngineKind> {
    let has_ring = peregrine_lab_load::client::Client::new(Some(EngineKind::Ring)).is_ok();
    let mut engines = vec![EngineKind::Epoll];
    engines.extend(has_ring.then_some(EngineKind::Ring));
    engines
}

fn outcome(plan: &Plan) -> Outcome {
    let outcome = run(plan, &Watch::default()).unwrap();
    for check in checks(plan, &outcome, None) {
        if check.name != "every answer is right" && check.is_voiding {
            assert_ne!(check.holds, Some(false), "{check:?}");
        }
    }
    outcome
}

#[test]
fn each_lie_is_caught_and_named() {
    let cases = [
        (Lie::Status, Fault::WrongStatus),
        (Lie::TooShort, Fault::WrongLength),
        (Lie::TooLong, Fault::Malformed),
        (Lie::Body, Fault::WrongBody),
        (Lie::Truncated, Fault::ShortBody),
        (Lie::ClosedEarly, Fault::Closed),
        (Lie::ResetInBody, Fault::ResetInBody),
        (Lie::ResetBeforeHead, Fault::Reset),
        (Lie::Garbage, Fault::Malformed),
        (Lie::Silence, Fault::Timeout),
    ];
    let check = |(lie, fault), engine| {
        let outcome = outcome(&Plan { requests_max: 6, ..plan(liar(lie), engine) });
        let others = outcome.faults.total() - outcome.faults.count(fault);
        assert!(outcome.faults.count(fault) > 0, "{lie:?}: {}", outcome.faults);
        assert_eq!(others, 0, "{lie:?}: {}", outcome.faults);
        assert!(!outcome.is_valid());
        // The byte too many comes after a right reply.
        assert!(outcome.replies == 0 || lie == Lie::TooLong, "{lie:?}");
    };
    std::thread::scope(|scope| {
        for engine in engines() {
            scope.spawn(move || cases.into_iter().for_each(|case| check(case, engine)));
        }
    });
}

#[test]
fn a_wrong_echo_of_the_first_requests_is_a_wrong_header() {
    for engine in engines() {
        let outcome = outcome(&plan(liar(Lie::Header), engine));
        // The request of number 0 is echoed rightly by accident.
        assert_eq!(outcome.faults.count(Fault::WrongHeader), 29);
        assert_eq!((outcome.replies, outcome.failed), (1, 29));
    }
}

#[test]
fn reordered_pipelined_replies_are_named() {
    for engine in engines() {
        let plan = Plan { depth: 4, connections: 1, ..plan(liar(Lie::Reordered), engine) };
        let outcome = outcome(&plan);
        assert!(outcome.faults.count(Fault::Reordered) > 0, "{}", outcome.faults);
        assert_eq!(outcome.sent, 30);
    }
}

#[test]
fn an_honest_server_is_right_in_every_manner() {
    let address = liar(Lie::Nothing);
    for engine in engines() {
        for (depth, requests_per_connection, threads) in
            [(1, None, 1), (8, None, 1), (1, Some(1), 1), (1, Some(3), 2), (4, Some(6), 1)]
        {
            let base = plan(address, engine);
            let plan = Plan { depth, requests_per_connection, threads, requests_max: 240, ..base };
            let outcome = outcome(&plan);
            assert_eq!(outcome.faults.total(), 0, "{}", outcome.faults);
            assert_eq!((outcome.sent, outcome.replies), (240, 240));
            assert_eq!(outcome.latency.count(), 240);
            assert_eq!(outcome.closes_ignored, 0);
            if let Some(requests) = requests_per_connection {
                assert!(outcome.connecting.count() >= 240 / requests, "{requests}");
            } else {
                assert_eq!(outcome.connecting.count(), 3);
            }
        }
    }
}

#[test]
fn an_open_loop_counts_the_wait_for_a_connection() {
    // One connection at 5 ms a reply serves 200 a second; 1,000 a second are asked for.
    for engine in engines() {
        let base = plan(liar(Lie::Slow), engine);
        let plan = Plan {
            connections: 1,
            schedule: Schedule::Constant { rate: 1000.0 },
            duration: Duration::from_millis(400),
            timeout: Duration::from_secs(5),
            waiting_max: 100,
            requests_max: 100_000,
            ..base
        };
        let outcome = outcome(&plan);
        assert_eq!(outcome.faults.total(), 0, "{}", outcome.faults);
        assert!(outcome.late > 0 && outcome.dropped > 100, "{} dropped", outcome.dropped);
        // A closed loop would call every one of these replies quick.
        let median = outcome.latency.percentile(50.0).nanoseconds.unwrap();
        assert!(median > 20_000_000, "{median}");
    }
}

#[test]
fn timeouts_stay_in_the_histogram_as_long_as_the_timeout() {
    for engine in engines() {
        let outcome = outcome(&Plan { requests_max: 3, ..plan(liar(Lie::Silence), engine) });
        assert_eq!(outcome.faults.count(Fault::Timeout), 3, "{}", outcome.faults);
        assert_eq!((outcome.latency.count(), outcome.latency.censored()), (3, 3));
        assert!(outcome.latency.percentile(50.0).nanoseconds.unwrap() >= 1_999_000_000);
    }
}

#[test]
fn a_date_that_stands_still_is_noticed() {
    let base = plan(liar(Lie::SameDate), EngineKind::Epoll);
    let plan = Plan {
        schedule: Schedule::Constant { rate: 50.0 },
        duration: Duration::from_millis(1600),
        requests_max: 1000,
        ..base
    };
    let outcome = outcome(&plan);
    let date = checks(&plan, &outcome, None).into_iter().find(|one| one.name.starts_with("Date"));
    assert_eq!(date.unwrap().holds, Some(false));
}

#[test]
fn a_server_without_tls_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.write_all(b"no handshake");
            // Kept open until the client has read it.
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.read(&mut [0; 4096]);
        }
    });
    let server_name = ServerName::try_from("localhost").unwrap();
    let tls = Some(Secured { server_name, is_resuming: false });
    for engine in engines() {
        let outcome = outcome(&Plan { tls: tls.clone(), ..plan(address, engine) });
        assert_eq!(outcome.faults.count(Fault::Tls), 3, "{}", outcome.faults);
        assert_eq!((outcome.sent, outcome.faults.total()), (0, 3));
    }
}

#[test]
fn a_refused_connection_ends_the_run_at_once_and_is_named() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for engine in engines() {
        let outcome = outcome(&plan(address, engine));
        assert_eq!(outcome.faults.count(Fault::Connect), 3);
        assert_eq!((outcome.sent, outcome.connection_faults), (0, 3));
    }
}
