//! The reverse proxy in front of misbehaving TLS and HTTP/2 upstreams.
#![cfg(target_os = "linux")]

use peregrine::prelude::*;
use peregrine::proxy::{ReverseProxy, Upstreams};
use peregrine::{DriverChoice, Http2Limits, Limits, RunningServer};
use peregrine_tests::client::{PATIENCE, connect, started, wait_for};
use peregrine_tests::on_both_drivers;
use peregrine_tls::rustls::crypto::aws_lc_rs;
use peregrine_tls::rustls::{
    ClientConfig, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

on_both_drivers! {
    an_upstream_with_an_invalid_certificate_receives_no_request,
    a_handshake_that_breaks_or_hangs_costs_a_gateway_error,
    what_alpn_agreed_on_is_what_is_spoken,
    content_that_is_cut_off_is_not_taken_for_whole,
    an_upstream_of_http2_that_breaks_its_rules_costs_a_gateway_error,
    an_upstream_that_takes_few_requests_at_a_time_gets_more_connections,
    what_an_upstream_of_http2_has_not_begun_is_asked_again,
}

type Wire = StreamOwned<ServerConnection, TcpStream>;

/// The identity of a TLS peer.
#[derive(Clone)]
struct Identity {
    server: Arc<ServerConfig>,
    certificate: CertificateDer<'static>,
}

fn identity(names: &[&str], alpn: &[&[u8]], is_expired: bool) -> Identity {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("names");
    if is_expired {
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
    }
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate").der().clone();
    let der = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth();
    let mut config = config
        .with_single_cert(vec![certificate.clone()], der)
        .expect("the key matches the certificate");
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Identity { server: Arc::new(config), certificate }
}

/// A client that trusts this identity.
fn trusting(identity: &Identity) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(identity.certificate.clone()).expect("the certificate is valid");
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions");
    Arc::new(config.with_root_certificates(roots).with_no_client_auth())
}

/// A listener whose connections are answered by this function; returns its port, and a counter of
/// connections.
fn peer(answer: impl Fn(usize, TcpStream) + Send + Sync + 'static) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("the socket is bound").port();
    let (count, answer) = (Arc::new(AtomicUsize::new(0)), Arc::new(answer));
    let counted = Arc::clone(&count);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            stream.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
            let number = counted.fetch_add(1, Ordering::SeqCst);
            let answer = Arc::clone(&answer);
            thread::spawn(move || answer(number, stream));
        }
    });
    (port, count)
}

/// The same over TLS.
fn secure_peer(
    identity: &Identity,
    answer: impl Fn(usize, Wire) + Send + Sync + 'static,
) -> (u16, Arc<AtomicUsize>) {
    let server = Arc::clone(&identity.server);
    peer(move |number, stream| {
        let session =
            ServerConnection::new(Arc::clone(&server)).expect("the TLS configuration is valid");
        answer(number, StreamOwned::new(session, stream));
    })
}

fn proxy(choice: DriverChoice, upstreams: &Upstreams) -> Option<RunningServer> {
    let upstreams = upstreams.clone();
    let server = Server::bind("127.0.0.1:0").driver(choice).workers(NonZeroUsize::MIN).quiet();
    started(server.start(move || {
        let proxy =
            ReverseProxy::new(upstreams.clone()).connect_timeout(Duration::from_millis(700));
        App::new().subtree("/", proxy.response_timeout(Duration::from_secs(2)))
    }))
}

fn over(config: &Arc<ClientConfig>, host: &str, port: u16) -> Upstreams {
    Upstreams::with_tls_config([format!("https://{host}:{port}")], config).expect("a URL")
}

/// The response up to its end; the connection may break.
fn asked(proxy: &RunningServer, request: &str) -> String {
    let mut client = connect(proxy);
    client.write_all(request.as_bytes()).expect("connected");
    let mut all = Vec::new();
    let _ = client.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

fn get(proxy: &RunningServer) -> String {
    asked(proxy, "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n")
}

fn status(answer: &str) -> u16 {
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.unwrap_or_else(|| panic!("{answer:?}"))
}

/// The head of one request.
fn head_of(wire: &mut impl Read) -> String {
    let (mut all, mut byte) = (Vec::new(), [0]);
    while !all.ends_with(b"\r\n\r\n") && wire.read(&mut byte).is_ok_and(|read| read == 1) {
        all.push(byte[0]);
    }
    String::from_utf8_lossy(&all).into_owned()
}

fn an_upstream_with_an_invalid_certificate_receives_no_request(choice: DriverChoice) {
    let heard = Arc::new(Mutex::new(String::new()));
    let good = identity(&["localhost"], &[], false);
    let others = [
        ("another name", identity(&["example.org"], &[], false), None),
        ("no longer valid", identity(&["localhost"], &[], true), None),
        (
            "signed by an unknown authority",
            identity(&["localhost"], &[], false),
            Some(trusting(&good)),
        ),
        ("no name of a name", identity(&["127.0.0.1"], &[], false), None),
    ];
    for (what, identity, config) in others {
        let all = Arc::clone(&heard);
        let (port, count) = secure_peer(&identity, move |_, mut wire| {
            all.lock().expect("the mutex is not poisoned").push_str(&head_of(&mut wire));
        });
        let config = config.unwrap_or_else(|| trusting(&identity));
        let Some(proxy) = proxy(choice, &over(&config, "localhost", port)) else { return };
        let answer = get(&proxy);
        assert!(
            status(&answer) == 502 && answer.contains("upstream-unreachable"),
            "{what}: {answer}"
        );
        assert!(count.load(Ordering::SeqCst) > 0, "{what}");
    }
    assert_eq!(*heard.lock().expect("the mutex is not poisoned"), "");
    // An IP address is a valid name, too.
    let identity = identity(&["127.0.0.1"], &[], false);
    let (port, _) = secure_peer(&identity, |_, mut wire| {
        head_of(&mut wire);
        let _ = wire.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    });
    let proxy = proxy(choice, &over(&trusting(&identity), "127.0.0.1", port))
        .expect("the driver is available");
    assert_eq!(status(&get(&proxy)), 200);
}

fn a_handshake_that_breaks_or_hangs_costs_a_gateway_error(choice: DriverChoice) {
    let identity = identity(&["localhost"], &[], false);
    let held = Arc::new(Mutex::new(Vec::new()));
    for (expected, way) in [(502, 0), (502, 1), (502, 2), (504, 3), (504, 4)] {
        let held = Arc::clone(&held);
        let (port, _) = peer(move |_, mut stream| {
            let mut hello = [0; 64];
            match way {
                0 => {}
                1 => {
                    let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
                }
                2 => {
                    let _ = stream.read(&mut hello);
                }
                // Sends nothing, or an incomplete response.
                3 => held.lock().expect("the mutex is not poisoned").push(stream),
                _ => {
                    let _ = stream.read(&mut hello);
                    let _ = stream.write_all(&[22, 3, 3, 0x3f]);
                    held.lock().expect("the mutex is not poisoned").push(stream);
                }
            }
        });
        let upstreams = over(&trusting(&identity), "localhost", port);
        let Some(proxy) = proxy(choice, &upstreams) else { return };
        assert_eq!(status(&get(&proxy)), expected, "{way}");
        wait_for(|| upstreams.statuses()[0].in_flight == 0);
    }
}

fn what_alpn_agreed_on_is_what_is_spoken(choice: DriverChoice) {
    for (alpn, speaks_http2, expected) in [
        (&[][..], false, 200),
        (&[&b"http/1.1"[..]][..], false, 200),
        (&[&b"h2"[..]][..], true, 200),
        (&[&b"h2"[..], b"http/1.1"][..], true, 200),
        // ALPN and the actual protocol differ.
        (&[&b"h2"[..]][..], false, 502),
        (&[&b"http/1.1"[..]][..], true, 502),
        (&[][..], true, 502),
    ] {
        let identity = identity(&["localhost"], alpn, false);
        let (port, _) = secure_peer(&identity, move |_, mut wire| {
            if speaks_http2 {
                let _ = Http2::begin(&mut wire, &[]).map(|mut http2| http2.answer(b"ok"));
            } else {
                head_of(&mut wire);
                let _ = wire.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            }
        });
        let upstreams = over(&trusting(&identity), "localhost", port);
        let Some(proxy) = proxy(choice, &upstreams) else { return };
        let answer = get(&proxy);
        assert_eq!(status(&answer), expected, "{alpn:?} {speaks_http2}: {answer}");
        assert_eq!(answer.contains("\r\nok"), expected == 200, "{answer}");
    }
}

/// Anyone on the path can cut a connection: without TLS's close_notify, the content is incomplete.
fn content_that_is_cut_off_is_not_taken_for_whole(choice: DriverChoice) {
    let identity = identity(&["localhost"], &[], false);
    for (head, is_said) in [
        ("HTTP/1.1 200 OK\r\n\r\n", false),
        ("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", false),
        ("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n", false),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n", true),
    ] {
        let (port, _) = secure_peer(&identity, move |_, mut wire| {
            head_of(&mut wire);
            let _ = wire.write_all(format!("{head}part").as_bytes());
            let _ = wire.flush();
            if is_said {
                wire.conn.send_close_notify();
                let _ = wire.flush();
            }
        });
        let Some(proxy) = proxy(choice, &over(&trusting(&identity), "localhost", port)) else {
            return;
        };
        let answer = get(&proxy);
        let is_chunked = answer.to_lowercase().contains("transfer-encoding: chunked");
        let is_whole = match is_chunked {
            true => answer.ends_with("0\r\n\r\n"),
            false => {
                !answer.contains("content-length: 10") && !answer.contains("Content-Length: 10")
            }
        };
        assert!(!is_whole || status(&answer) == 502, "{head:?} {is_said}: {answer}");
    }
}

/// An HTTP/2 server made of raw frames.
struct Http2<'w, W>(&'w mut W);

const SETTINGS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("the value fits").to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

impl<'w, W: Read + Write> Http2<'w, W> {
    /// Sends its settings, and reads the client's preface.
    fn begin(wire: &'w mut W, settings: &[u8]) -> std::io::Result<Self> {
        let mut preface = [0; 24];
        wire.write_all(&frame(SETTINGS, 0, 0, settings))?;
        wire.flush()?;
        wire.read_exact(&mut preface)?;
        Ok(Self(wire))
    }

    /// The stream of the next request.
    fn request(&mut self) -> std::io::Result<u32> {
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head)?;
            let length =
                usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            let mut payload = vec![0; length];
            self.0.read_exact(&mut payload)?;
            match head[3] {
                SETTINGS if head[4] & 1 == 0 => self.send(&frame(SETTINGS, 1, 0, &[]))?,
                1 => return Ok(u32::from_be_bytes([head[5], head[6], head[7], head[8]])),
                _ => {}
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.write_all(bytes)?;
        self.0.flush()
    }

    /// Answers requests until the client disconnects.
    fn answer(&mut self, content: &[u8]) {
        while let Ok(stream) = self.request() {
            let answer = [frame(1, 4, stream, &[0x88]), frame(0, 1, stream, content)].concat();
            if self.send(&answer).is_err() {
                return;
            }
        }
    }
}

/// A field without compression.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut field = vec![0];
    for text in [name, value] {
        field.push(u8::try_from(text.len()).expect("the value fits"));
        field.extend(text.as_bytes());
    }
    field
}

/// A name, the frames sent on stream 1, and whether a head gets through.
type Broken = (&'static str, Vec<u8>, bool);

/// The fields of a 200.
fn ok(more: &[(&str, &str)]) -> Vec<u8> {
    let fields: Vec<_> = more.iter().flat_map(|(name, value)| literal(name, value)).collect();
    [vec![0x88], fields].concat()
}

/// Responses that end early, or have forbidden fields.
fn broken_heads() -> Vec<Broken> {
    vec![
        ("a reset", frame(3, 0, 1, &2_u32.to_be_bytes()), false),
        (
            "a reset after the head",
            [frame(1, 4, 1, &ok(&[])), frame(0, 0, 1, b"pa"), frame(3, 0, 1, &2_u32.to_be_bytes())]
                .concat(),
            true,
        ),
        ("an end", Vec::new(), false),
        ("an end after the head", [frame(1, 4, 1, &ok(&[])), frame(0, 0, 1, b"pa")].concat(), true),
        ("no status", frame(1, 5, 1, &literal("a", "b")), false),
        ("two statuses", frame(1, 5, 1, &[0x88, 0x88]), false),
        ("a switch", frame(1, 5, 1, &literal(":status", "101")), false),
        ("a field of one connection", frame(1, 5, 1, &ok(&[("connection", "close")])), false),
        (
            "chunks",
            [
                frame(1, 4, 1, &ok(&[("transfer-encoding", "chunked")])),
                frame(0, 1, 1, b"0\r\n\r\n"),
            ]
            .concat(),
            false,
        ),
        ("a capital", frame(1, 5, 1, &ok(&[("X-Big", "a")])), false),
        ("a line end in a value", frame(1, 5, 1, &ok(&[("x-a", "b\r\nset-cookie: c=d")])), false),
        ("a zero in a value", frame(1, 5, 1, &ok(&[("x-a", "b\0c")])), false),
        ("a line end in a name", frame(1, 5, 1, &ok(&[("x-a\r\nb", "c")])), false),
    ]
}

/// Invalid lengths, and lengths that differ from the content.
fn broken_lengths() -> Vec<Broken> {
    vec![
        (
            "two lengths",
            [
                frame(1, 4, 1, &ok(&[("content-length", "1"), ("content-length", "2")])),
                frame(0, 1, 1, b"x"),
            ]
            .concat(),
            false,
        ),
        (
            "a length that is none",
            [frame(1, 4, 1, &ok(&[("content-length", "+2")])), frame(0, 1, 1, b"xx")].concat(),
            false,
        ),
        (
            "less than its length",
            [frame(1, 4, 1, &ok(&[("content-length", "5")])), frame(0, 1, 1, b"xx")].concat(),
            true,
        ),
        (
            "more than its length",
            [frame(1, 4, 1, &ok(&[("content-length", "1")])), frame(0, 1, 1, b"xxGET")].concat(),
            true,
        ),
    ]
}

/// Forbidden frames.
fn broken_frames() -> Vec<Broken> {
    vec![
        ("data before the head", frame(0, 1, 1, b"xx"), false),
        ("a promise", frame(5, 4, 1, &[0, 0, 0, 2, 0x82]), false),
        ("a frame on a stream that is none", frame(1, 5, 7, &ok(&[])), false),
        ("a table that is none", frame(1, 5, 1, &[0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]), false),
        ("too large a frame", frame(0, 0, 1, &vec![0; 20_000]), false),
        ("settings of a wrong size", frame(SETTINGS, 0, 0, &[0; 5]), false),
        ("a window that overflows", frame(8, 0, 0, &0x7fff_ffff_u32.to_be_bytes()), false),
        ("a refusal of all", frame(7, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 11]), false),
        (
            "fields without an end",
            [frame(1, 0, 1, &ok(&[])), frame(9, 0, 1, &literal("a", "b")).repeat(5_000)].concat(),
            false,
        ),
        ("no HTTP/2 at all", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec(), false),
    ]
}

fn an_upstream_of_http2_that_breaks_its_rules_costs_a_gateway_error(choice: DriverChoice) {
    let cases = [broken_heads(), broken_lengths(), broken_frames()].into_iter().flatten();
    for (what, answer, has_head) in cases {
        let (port, _) = peer(move |_, mut stream| {
            let Ok(mut http2) = Http2::begin(&mut stream, &[]) else { return };
            if http2.request().is_ok() {
                let _ = http2.send(&answer);
                // Gives the data time to arrive before a reset overtakes it.
                thread::sleep(Duration::from_millis(50));
            }
        });
        let upstreams = Upstreams::new([format!("http://127.0.0.1:{port}")])
            .expect("a URL")
            .http2_prior_knowledge();
        let Some(proxy) = proxy(choice, &upstreams) else { return };
        let request =
            "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi";
        let answer = asked(&proxy, request);
        let is_whole = match answer.to_lowercase().contains("transfer-encoding: chunked") {
            true => answer.ends_with("0\r\n\r\n"),
            false => !has_head,
        };
        let is_cut = answer.is_empty() || !is_whole || !answer.contains("xxGET");
        assert!(is_cut && !answer.contains("set-cookie: c=d"), "{what}: {answer}");
        match has_head {
            true => assert!(
                answer.is_empty() || matches!(status(&answer), 200 | 502),
                "{what}: {answer}"
            ),
            false => assert!(matches!(status(&answer), 502 | 504), "{what}: {answer}"),
        }
        wait_for(|| upstreams.statuses()[0].in_flight == 0);
    }
}

fn an_upstream_that_takes_few_requests_at_a_time_gets_more_connections(choice: DriverChoice) {
    async fn slow() -> &'static str {
        tokio::time::sleep(Duration::from_secs(60)).await;
        "slow"
    }
    let http2 = Http2Limits { concurrent_streams_max: 2, ..Http2Limits::default() };
    let limits = Limits { http2, ..Limits::default() };
    let server = Server::bind("127.0.0.1:0").driver(choice).limits(limits).quiet();
    let server = server.workers(NonZeroUsize::MIN);
    let app = || App::new().get("/slow", slow).get("/", || "quick");
    let Some(upstream) = started(server.start(app)) else { return };
    let url =
        format!("http://{}", upstream.http_address().expect("the server has an HTTP listener"));
    let upstreams = Upstreams::new([url]).expect("a URL").http2_prior_knowledge();
    let proxy = proxy(choice, &upstreams).expect("the driver is available");
    let waiting: Vec<_> = (0..5)
        .map(|number| {
            let mut client = connect(&proxy);
            client.write_all(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").expect("connected");
            wait_for(|| upstreams.statuses()[0].in_flight > number);
            client
        })
        .collect();
    let answer = get(&proxy);
    assert!(status(&answer) == 200 && answer.ends_with("quick"), "{answer}");
    drop(waiting);
    wait_for(|| upstreams.statuses()[0].in_flight == 0);
    assert_eq!(status(&get(&proxy)), 200);
}

/// RFC 9113 §8.7: a request that was refused, or came after the last stream of a GOAWAY, was not
/// processed.
fn what_an_upstream_of_http2_has_not_begun_is_asked_again(choice: DriverChoice) {
    for way in 0..2 {
        let (port, count) = peer(move |number, mut stream| {
            let Ok(mut http2) = Http2::begin(&mut stream, &[]) else { return };
            if number > 0 {
                return http2.answer(b"at last");
            }
            let Ok(stream) = http2.request() else { return };
            let refusal = match way {
                0 => frame(3, 0, stream, &7_u32.to_be_bytes()),
                _ => frame(7, 0, 0, &[0; 8]),
            };
            let _ = http2.send(&refusal);
            thread::sleep(Duration::from_millis(100));
        });
        let url = format!("http://127.0.0.1:{port}");
        let Some(proxy) = proxy(
            choice,
            &Upstreams::new([url.clone(), url]).expect("URLs").http2_prior_knowledge(),
        ) else {
            return;
        };
        // This request must not be processed twice.
        let answer = asked(
            &proxy,
            "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        );
        assert!(status(&answer) == 200 && answer.contains("at last"), "{way}: {answer}");
        assert_eq!(count.load(Ordering::SeqCst), 2, "{way}");
    }
}
