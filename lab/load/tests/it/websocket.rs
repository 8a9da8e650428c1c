//! WebSockets as the client speaks them: servers of the test's own, honest ones and ones that lie.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use peregrine_lab_load::calibration::calibrate;
use peregrine_lab_load::client::fault::Fault;
use peregrine_lab_load::client::{Client, Stop, Tally, Target};
use peregrine_lab_load::generator::{self, Plan, Watch};
use peregrine_lab_load::question::{BodyWording, Question, Wording};
use peregrine_lab_load::websocket::accept_key;
use peregrine_lab_load::workload::{self, Asked, ExpectedBody, Workload};

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
const LAST: u8 = 0x80;

type Open = fn(&str) -> String;
type Answer = fn(&[u8]) -> Vec<u8>;

/// How a server of the test's own behaves.
#[derive(Clone, Copy)]
struct Nature {
    /// The head that answers an offer with this accept key.
    open: Open,
    /// What is said to a text message.
    answer: Answer,
    /// Bytes of one write; none: all.
    piece: Option<usize>,
    /// Whether the connection ends after the first answer.
    ends: bool,
}

const HONEST: Nature = Nature { open: switching, answer: echo, piece: None, ends: false };

fn switching(accept: &str) -> String {
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )
}

/// A frame as a server sends it.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        length @ ..126 => frame.push(u8::try_from(length).unwrap()),
        length @ ..65_536 => {
            frame.push(126);
            frame.extend_from_slice(&u16::try_from(length).unwrap().to_be_bytes());
        }
        length => {
            frame.push(127);
            frame.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(payload);
    frame
}

fn echo(text: &[u8]) -> Vec<u8> {
    frame(LAST | TEXT, text)
}

/// What the server heard besides text: opcodes and payloads.
type Heard = Arc<Mutex<Vec<(u8, Vec<u8>)>>>;

fn serve(nature: Nature) -> (SocketAddr, Heard) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let heard = Heard::default();
    let kept = heard.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, heard) = (stream.unwrap(), heard.clone());
            // A client that goes away is no error.
            std::thread::spawn(move || converse(stream, nature, &heard));
        }
    });
    (address, kept)
}

fn converse(mut stream: TcpStream, nature: Nature, heard: &Heard) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("GET /ws HTTP/1.1\r\nHost: "), "{head}");
    let field = |name: &str| {
        head.lines().find_map(|line| Some(line.split_once(": ")?).filter(|(one, _)| *one == name))
    };
    assert_eq!(field("Sec-WebSocket-Version"), Some(("Sec-WebSocket-Version", "13")));
    assert_eq!(field("Upgrade"), Some(("Upgrade", "websocket")));
    assert!(field("Content-Length").is_none(), "{head}");
    let (_, key) = field("Sec-WebSocket-Key").unwrap();
    stream.write_all((nature.open)(&accept_key(key.as_bytes())).as_bytes())?;
    loop {
        let mut start = [0; 2];
        stream.read_exact(&mut start)?;
        assert!(start[1] & 0x80 != 0, "a client masks");
        let length = match start[1] & 0x7f {
            126 => {
                let mut length = [0; 2];
                stream.read_exact(&mut length)?;
                u16::from_be_bytes(length).into()
            }
            127 => {
                let mut length = [0; 8];
                stream.read_exact(&mut length)?;
                usize::try_from(u64::from_be_bytes(length)).unwrap()
            }
            length => length.into(),
        };
        let (mut mask, mut payload) = ([0; 4], vec![0; length]);
        stream.read_exact(&mut mask)?;
        stream.read_exact(&mut payload)?;
        payload.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
        if start[0] != LAST | TEXT {
            heard.lock().unwrap().push((start[0] & 0x0f, payload));
            continue;
        }
        let answer = (nature.answer)(&payload);
        for piece in answer.chunks(nature.piece.unwrap_or(usize::MAX)) {
            stream.write_all(piece)?;
        }
        if nature.ends {
            return Ok(());
        }
    }
}

fn wording(text: &str) -> Wording {
    Wording {
        target: "/ws".into(),
        body: Some(text.as_bytes().to_vec()),
        expected_status: Some(200),
        expected_body: BodyWording::Exact(text.into()),
        is_websocket: true,
        ..Wording::default()
    }
}

/// What the paired client asks: three messages in turn.
fn workload(depth: usize) -> Arc<Workload> {
    let question = Question::new(&wording("hello {counter}")).unwrap();
    let asked = |number: u64| {
        let (mut request, mut text) = (Vec::new(), Vec::new());
        question.render(number, false, &mut Vec::new(), &mut request);
        question.render_body(number, &mut text);
        let body = ExpectedBody::Exact(text);
        let answer = workload::Answer {
            status: 200,
            fields: vec![],
            body,
            trailers: vec![],
            takes_gzip: false,
        };
        Asked { request, answer }
    };
    let Asked { request, answer } = asked(0);
    Arc::new(Workload {
        name: "test".to_owned(),
        request,
        depth,
        is_http2: false,
        is_websocket: true,
        is_tls: false,
        answer,
        others: (1..3).map(asked).collect(),
    })
}

/// What the paired client sees of such a server.
fn paired(nature: Nature, depth: usize) -> Tally {
    let (address, _) = serve(nature);
    let mut client = Client::new(None).unwrap();
    client.set_drain_timeout(Duration::from_millis(500));
    let group = client.group(Target { address, tls: None }, workload(depth), 3);
    client.run(group, Stop::After(Duration::from_millis(50))).unwrap()
}

fn plan(address: SocketAddr, text: &str) -> Plan {
    let question = Question::new(&wording(text)).unwrap();
    Plan {
        connections: 3,
        duration: Duration::from_millis(100),
        timeout: Duration::from_millis(500),
        ..Plan::new(address, Arc::new(question))
    }
}

/// The same of the generator.
fn generated(nature: Nature, depth: usize) -> generator::Outcome {
    let (address, _) = serve(nature);
    let plan = Plan { depth, ..plan(address, "hello {counter}") };
    generator::run(&plan, &Watch::default()).unwrap()
}

#[test]
fn echoes_of_every_form_are_right() {
    let fragments = |text: &[u8]| {
        let (first, rest) = text.split_at(2);
        [frame(TEXT, first), frame(0, b""), frame(LAST | PING, b"x"), frame(LAST, rest)].concat()
    };
    for (name, nature) in [
        ("whole", HONEST),
        ("by bytes", Nature { piece: Some(1), ..HONEST }),
        ("in fragments with a ping between", Nature { answer: fragments, ..HONEST }),
        ("in fragments by bytes", Nature { answer: fragments, piece: Some(1), ..HONEST }),
    ] {
        for depth in [1, 4] {
            let tally = paired(nature, depth);
            assert!(tally.replies > 0 && tally.faults.total() == 0, "{name}: {tally:?}");
            let outcome = generated(nature, depth);
            assert!(outcome.is_valid(), "{name}: {}", outcome.faults);
            assert_eq!(outcome.sent, outcome.replies);
            assert!(outcome.reply_bytes > outcome.body_bytes && outcome.body_bytes > 0);
        }
    }
}

#[test]
fn messages_of_every_length_come_back_as_they_were_sent() {
    for length in [1, 125, 126, 65_535, 65_536, 200_000] {
        let (address, _) = serve(HONEST);
        let plan = Plan {
            requests_max: 6,
            duration: Duration::from_secs(60),
            timeout: Duration::from_secs(30),
            ..plan(address, &"m".repeat(length))
        };
        let outcome = generator::run(&plan, &Watch::default()).unwrap();
        assert!(outcome.is_valid(), "{length}: {}", outcome.faults);
        assert_eq!((outcome.replies, outcome.body_bytes), (6, 6 * length as u64));
    }
}

#[test]
fn pings_and_a_close_are_answered() {
    let answer =
        |_: &[u8]| [frame(LAST | PING, b"still there?"), frame(LAST | CLOSE, &[3, 232])].concat();
    let (address, heard) = serve(Nature { answer, ..HONEST });
    let plan = Plan { requests_max: 3, ..plan(address, "hello") };
    generator::run(&plan, &Watch::default()).unwrap();
    let heard = heard.lock().unwrap();
    assert!(heard.contains(&(PONG, b"still there?".to_vec())), "{heard:?}");
    assert!(heard.contains(&(CLOSE, vec![3, 232])), "{heard:?}");
}

#[test]
fn a_server_that_opens_no_websocket_is_named() {
    let lies: [(&str, Open); 7] = [
        ("another key", |_| switching("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")),
        ("no key", |key| switching(key).replace("Sec-WebSocket-Accept", "X")),
        ("no upgrade", |key| switching(key).replace("Upgrade: ", "X: ")),
        ("no connection", |key| switching(key).replace("Connection: ", "X: ")),
        ("an extension", |key| {
            switching(key)
                .replace("\r\n\r\n", "\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n")
        }),
        ("a subprotocol", |key| {
            switching(key).replace("\r\n\r\n", "\r\nSec-WebSocket-Protocol: chat\r\n\r\n")
        }),
        ("a page", |_| "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello".to_owned()),
    ];
    for (name, open) in lies {
        let tally = paired(Nature { open, ..HONEST }, 1);
        assert!(tally.faults.count(Fault::Upgrade) > 0 && tally.replies == 0, "{name}: {tally:?}");
        let outcome = generated(Nature { open, ..HONEST }, 1);
        let faults = outcome.faults;
        assert!(faults.count(Fault::Upgrade) > 0 && outcome.replies == 0, "{name}: {faults:?}");
        assert!(!outcome.is_valid() && !outcome.is_silent(), "{name}");
    }
}

#[test]
fn each_wrong_echo_has_its_name() {
    let lies: [(&str, Answer, Fault); 10] = [
        ("another text", |_| echo(b"hullo 1"), Fault::WrongBody),
        ("bytes", |text| frame(LAST | BINARY, text), Fault::WrongBody),
        ("two echoes", |text| [echo(text), echo(text)].concat(), Fault::Malformed),
        (
            "a mask",
            |text| [&[LAST | TEXT, 0x80 | text.len() as u8, 0, 0, 0, 0], text].concat(),
            Fault::Malformed,
        ),
        ("a reserved bit", |text| frame(LAST | 0x40 | TEXT, text), Fault::Malformed),
        ("a continuation of nothing", |text| frame(LAST, text), Fault::Malformed),
        ("text within text", |text| [frame(TEXT, text), echo(text)].concat(), Fault::Malformed),
        ("a long ping", |_| frame(LAST | PING, &[0; 126]), Fault::Malformed),
        ("a ping in parts", |_| frame(PING, b"x"), Fault::Malformed),
        (
            "text after the end",
            |text| [frame(LAST | CLOSE, b""), echo(text)].concat(),
            Fault::Malformed,
        ),
    ];
    for (name, answer, fault) in lies {
        let tally = paired(Nature { answer, ..HONEST }, 1);
        assert!(tally.faults.count(fault) > 0, "{name}: {tally:?}");
        let outcome = generated(Nature { answer, ..HONEST }, 1);
        let faults = outcome.faults;
        // The generator tells a body of another length from another body.
        let count = faults.count(fault) + faults.count(Fault::WrongLength);
        assert!(count > 0 && !outcome.is_valid(), "{name}: {faults:?}");
        assert_eq!(outcome.sent, outcome.replies + outcome.failed + outcome.outstanding, "{name}");
    }
}

#[test]
fn an_end_instead_of_an_echo_has_its_name() {
    // A server that ends before it has read everything resets the connection.
    let lies: [(&str, Answer, [Fault; 2]); 3] = [
        ("nothing", |_| Vec::new(), [Fault::Closed, Fault::Reset]),
        ("a good-bye", |_| frame(LAST | CLOSE, b""), [Fault::Closed, Fault::Reset]),
        ("a part", |text| echo(text)[..5].to_vec(), [Fault::ShortBody, Fault::ResetInBody]),
    ];
    for (name, answer, faults) in lies {
        let nature = Nature { answer, ends: true, ..HONEST };
        let tally = paired(nature, 1);
        assert!(faults.iter().any(|fault| tally.faults.count(*fault) > 0), "{name}: {tally:?}");
        let outcome = generated(nature, 1).faults;
        assert!(faults.iter().any(|fault| outcome.count(*fault) > 0), "{name}: {outcome}");
    }
}

#[test]
fn the_null_server_tells_what_the_client_can_do() {
    let (address, _) = serve(HONEST);
    let ceiling = calibrate(&plan(address, "hello {random:100..999}"), &[], &Watch::default());
    assert!(ceiling.unwrap().unwrap().rate > 0.0);
}

#[test]
fn a_plan_over_http2_or_with_connections_made_anew_is_refused() {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let right = plan(address, "hello");
    assert_eq!(right.check(), Ok(()));
    for wrong in [
        Plan { is_http2: true, ..right.clone() },
        Plan { requests_per_connection: Some(5), ..right.clone() },
    ] {
        assert!(wrong.check().unwrap_err().contains("WebSocket"));
    }
}
