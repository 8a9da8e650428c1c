//! The client against servers that lie: each lie is caught and has its name.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use peregrine_lab_load::certificate;
use peregrine_lab_load::client::fault::{Fault, Faults};
use peregrine_lab_load::client::{Client, EngineKind, Stop, Tally, Target, tls};
use peregrine_lab_load::workload::{Answer, Asked, ExpectedBody, Workload};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Serves each connection on a thread of its own with `behave`, until the test process ends.
fn server(behave: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let behave = Arc::new(behave);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, behave) = (stream.unwrap(), behave.clone());
            std::thread::spawn(move || behave(stream));
        }
    });
    address
}

/// Reads one request without a body; false at the end of the stream.
fn read_request(stream: &mut impl Read) -> bool {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") {
        if !matches!(stream.read(&mut byte), Ok(1)) {
            return false;
        }
        request.push(byte[0]);
    }
    true
}

/// A server that answers the first request of each connection with `reply` and then closes.
fn answering(reply: &str) -> SocketAddr {
    let reply = reply.as_bytes().to_vec();
    server(move |mut stream| {
        if read_request(&mut stream) {
            let _ = stream.write_all(&reply);
        }
    })
}

/// A server that answers every request with the bytes that `send` writes.
fn keeping_alive(send: impl Fn(&mut TcpStream) + Send + Sync + 'static) -> SocketAddr {
    server(move |mut stream| {
        stream.set_nodelay(true).unwrap();
        while read_request(&mut stream) {
            send(&mut stream);
        }
    })
}

fn workload(depth: usize) -> Arc<Workload> {
    Arc::new(Workload {
        is_http2: false,
        is_websocket: false,
        name: "test".to_owned(),
        request: b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        depth,
        is_tls: false,
        answer: Answer {
            status: 200,
            fields: vec![("content-type".to_owned(), "text/plain".to_owned())],
            body: ExpectedBody::Exact(b"hello".to_vec()),
            trailers: Vec::new(),
            takes_gzip: false,
        },
        others: Vec::new(),
    })
}

const RIGHT: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello";

/// The ring only where the kernel allows it; readiness everywhere.
fn clients() -> Vec<Client> {
    let mut clients = vec![Client::new(Some(EngineKind::Epoll)).unwrap()];
    clients.extend(Client::new(Some(EngineKind::Ring)));
    clients
}

fn once(client: &mut Client, address: SocketAddr, depth: usize) -> Tally {
    let target = Target { address, tls: None };
    let group = client.group(target, workload(depth), 1);
    client.run(group, Stop::Once).unwrap()
}

fn faults(seen: &[Fault]) -> Faults {
    let mut faults = Faults::default();
    seen.iter().for_each(|&fault| faults.record(fault));
    faults
}

#[test]
fn each_wrong_reply_is_named() {
    let right_head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: ";
    let cases: [(String, &[Fault]); 9] = [
        (format!("{right_head}6\r\n\r\nhello"), &[Fault::ShortBody]),
        // What is left over behind a body that was too short is nobody's reply.
        (format!("{right_head}4\r\n\r\nhello"), &[Fault::WrongBody, Fault::Malformed]),
        (format!("{right_head}5\r\n\r\nhullo"), &[Fault::WrongBody]),
        (format!("{right_head}5\r\n"), &[Fault::Closed]),
        (String::new(), &[Fault::Closed]),
        (RIGHT.replace("200 OK", "500 Internal Server Error"), &[Fault::WrongStatus]),
        (RIGHT.replace("text/plain", "text/html"), &[Fault::WrongHeader]),
        (RIGHT.replace("Content-Type: text/plain\r\n", ""), &[Fault::WrongHeader]),
        (RIGHT.replace("HTTP/1.1", "HTTP/2.0"), &[Fault::Malformed]),
    ];
    for mut client in clients() {
        for (reply, expected) in &cases {
            let tally = once(&mut client, answering(reply), 1);
            assert_eq!(tally.faults, faults(expected), "{reply:?} over {:?}", client.kind());
            assert_eq!(tally.replies, 0, "{reply:?}");
        }
    }
}

#[test]
fn a_refused_connection_is_named() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for mut client in clients() {
        assert_eq!(once(&mut client, address, 1).faults, faults(&[Fault::Connect]));
    }
}

#[test]
fn a_reset_is_named() {
    // Closing with unread bytes resets the connection.
    let address = server(|mut stream| {
        let _ = stream.read_exact(&mut [0]);
    });
    for mut client in clients() {
        assert_eq!(once(&mut client, address, 1).faults, faults(&[Fault::Reset]));
    }
}

#[test]
fn silence_is_a_timeout() {
    let address = keeping_alive(|_| {});
    for mut client in clients() {
        client.set_drain_timeout(Duration::from_millis(50));
        assert_eq!(once(&mut client, address, 1).faults, faults(&[Fault::Timeout]));
    }
}

#[test]
fn a_server_without_tls_is_named() {
    let address = server(|mut stream| {
        let _ = stream.write_all(b"no handshake");
    });
    for mut client in clients() {
        let target = Target { address, tls: Some(tls::config()) };
        let group = client.group(target, workload(1), 1);
        assert_eq!(client.run(group, Stop::Once).unwrap().faults, faults(&[Fault::Tls]));
    }
}

#[test]
fn right_replies_count_however_they_arrive() {
    let whole = keeping_alive(|stream| stream.write_all(RIGHT.as_bytes()).unwrap());
    let byte_at_a_time = keeping_alive(|stream| {
        for byte in RIGHT.as_bytes() {
            stream.write_all(&[*byte]).unwrap();
        }
    });
    let chunked = keeping_alive(|stream| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n";
        for part in [head, "\r\n", "2\r\nhe", "\r\n3\r\nllo\r\n0\r", "\n\r\n"] {
            stream.write_all(part.as_bytes()).unwrap();
        }
    });
    for mut client in clients() {
        for address in [whole, byte_at_a_time, chunked] {
            for depth in [1, 16] {
                let tally = once(&mut client, address, depth);
                assert_eq!(tally.faults, Faults::default());
                assert_eq!(tally.replies, depth as u64);
            }
        }
    }
}

#[test]
fn a_fault_within_a_pipeline_leaves_the_other_replies_counted() {
    let address = server(|mut stream| {
        for number in 0.. {
            if !read_request(&mut stream) {
                return;
            }
            let reply =
                if number % 4 == 3 { RIGHT.replace("hello", "hullo") } else { RIGHT.into() };
            stream.write_all(reply.as_bytes()).unwrap();
        }
    });
    for mut client in clients() {
        let tally = once(&mut client, address, 16);
        assert_eq!(tally.replies, 12);
        assert_eq!(tally.faults.count(Fault::WrongBody), 4);
        assert_eq!(tally.faults.total(), 4);
    }
}

#[test]
fn a_closed_loop_goes_on_until_its_time_is_over_and_leaves_nothing_behind() {
    let address = keeping_alive(|stream| stream.write_all(RIGHT.as_bytes()).unwrap());
    for mut client in clients() {
        let group = client.group(Target { address, tls: None }, workload(2), 3);
        for _ in 0..3 {
            let time = Duration::from_millis(20);
            let tally = client.run(group, Stop::After(time)).unwrap();
            assert_eq!(tally.faults, Faults::default());
            assert!(tally.replies >= 6, "only {} replies", tally.replies);
            assert_eq!(tally.replies % 2, 0, "a batch was not drained");
            assert!(tally.wall >= time);
            assert!(tally.client_cpu > Duration::ZERO);
            assert_eq!(client.open(group), 3);
        }
        let quiet = client.idle(Duration::from_millis(5)).unwrap();
        assert_eq!((quiet.replies, quiet.faults), (0, Faults::default()));
    }
}

#[test]
fn connections_that_the_server_ends_are_made_anew_in_the_next_run() {
    let last = RIGHT.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    let address = answering(&last);
    for mut client in clients() {
        let group = client.group(Target { address, tls: None }, workload(1), 4);
        for _ in 0..3 {
            let tally = client.run(group, Stop::Once).unwrap();
            assert_eq!((tally.replies, tally.faults), (4, Faults::default()));
            assert_eq!(client.open(group), 0);
        }
    }
}

#[test]
fn a_reply_larger_than_any_buffer_is_put_together() {
    let body = "x".repeat(300_000);
    let reply = RIGHT.replace("5\r\n\r\nhello", &format!("{}\r\n\r\n{body}", body.len()));
    let address = keeping_alive(move |stream| stream.write_all(reply.as_bytes()).unwrap());
    let mut large = (*workload(3)).clone();
    large.answer.body = ExpectedBody::Length(body.len());
    for mut client in clients() {
        let group = client.group(Target { address, tls: None }, Arc::new(large.clone()), 8);
        let tally = client.run(group, Stop::Once).unwrap();
        assert_eq!((tally.replies, tally.faults), (24, Faults::default()));
    }
}

#[test]
fn requests_that_differ_are_judged_by_their_own_answers() {
    let letters = ["a", "b", "c", "d", "e"];
    let asked = |letter: &str| Asked {
        request: format!("GET /{letter} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes(),
        answer: Answer {
            status: 200,
            fields: vec![],
            body: ExpectedBody::Exact(letter.into()),
            trailers: vec![],
            takes_gzip: false,
        },
    };
    let Asked { request, answer } = asked(letters[0]);
    let others = letters[1..].iter().map(|letter| asked(letter)).collect();
    let varied = Arc::new(Workload { request, answer, others, ..(*workload(3)).clone() });
    let echo = |shift: usize| {
        server(move |mut stream| {
            let mut head = [0; 36];
            while stream.read_exact(&mut head).is_ok() {
                let letter = (head[5] - b'a' + u8::try_from(shift).unwrap()) % 5 + b'a';
                let head = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n";
                stream.write_all(format!("{head}{}", char::from(letter)).as_bytes()).unwrap();
            }
        })
    };
    for mut client in clients() {
        for (shift, is_right) in [(0, true), (1, false)] {
            let target = Target { address: echo(shift), tls: None };
            let group = client.group(target, varied.clone(), 4);
            for _ in 0..7 {
                let tally = client.run(group, Stop::Once).unwrap();
                let wrong = tally.faults.count(Fault::WrongBody);
                assert_eq!((tally.replies, wrong), if is_right { (12, 0) } else { (0, 12) });
            }
        }
    }
}

#[test]
fn a_request_larger_than_the_socket_buffers_is_sent_whole() {
    const BODY_BYTES: usize = 8 << 20;
    let address = server(|mut stream| {
        while read_request(&mut stream) {
            // The client has to wait for room meanwhile.
            std::thread::sleep(Duration::from_millis(5));
            let mut body = vec![0; BODY_BYTES];
            stream.read_exact(&mut body).unwrap();
            assert!(body.iter().enumerate().all(|(place, &byte)| byte == (place % 251) as u8));
            stream.write_all(RIGHT.as_bytes()).unwrap();
        }
    });
    let mut large = (*workload(1)).clone();
    large.request = format!("POST / HTTP/1.1\r\nContent-Length: {BODY_BYTES}\r\n\r\n").into();
    large.request.extend((0..BODY_BYTES).map(|place| (place % 251) as u8));
    let large = Arc::new(large);
    for mut client in clients() {
        let group = client.group(Target { address, tls: None }, large.clone(), 2);
        for _ in 0..2 {
            let tally = client.run(group, Stop::Once).unwrap();
            assert_eq!((tally.replies, tally.faults), (2, Faults::default()));
        }
    }
}

#[test]
fn replies_through_tls_are_judged_like_others() {
    let folder = tempfile::tempdir().unwrap();
    let files = certificate::write(folder.path()).unwrap();
    let certificate = CertificateDer::from_pem_file(&files.certificate).unwrap();
    let key = PrivateKeyDer::from_pem_file(&files.key).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let config = Arc::new(config);
    let address = server(move |stream| {
        let session = rustls::ServerConnection::new(config.clone()).unwrap();
        let mut stream = rustls::StreamOwned::new(session, stream);
        for number in 0.. {
            if !read_request(&mut stream) {
                return;
            }
            let reply = if number == 7 { RIGHT.replace("200", "500") } else { RIGHT.into() };
            stream.write_all(reply.as_bytes()).unwrap();
        }
    });
    for mut client in clients() {
        let target = Target { address, tls: Some(tls::config()) };
        let group = client.group(target, workload(5), 2);
        let first = client.run(group, Stop::Once).unwrap();
        assert_eq!((first.replies, first.faults), (10, Faults::default()));
        let second = client.run(group, Stop::Once).unwrap();
        assert_eq!(second.replies, 8);
        assert_eq!(second.faults, faults(&[Fault::WrongStatus, Fault::WrongStatus]));
    }
}
