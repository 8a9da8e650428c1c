//! The reverse proxy on every driver, before servers of our own and before peers that answer whatever a test says.

use futures_core::Stream;
use peregrine::bytes::Bytes;
use peregrine::prelude::*;
use peregrine::proxy::{Balance, Proxy, Upstreams};
use peregrine::web::upgrade::OnUpgrade;
use peregrine::{DriverChoice, Running};
use peregrine_tests::client::{PATIENCE, connect, field, started, wait_for};
use peregrine_tests::on_both_drivers;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

on_both_drivers! {
    what_is_asked_and_answered_passes_and_what_is_about_a_connection_does_not,
    who_asks_is_told_and_cannot_be_forged,
    content_streams_both_ways_and_connections_are_used_again,
    a_client_that_takes_nothing_holds_the_upstream_back,
    trailers_pass_both_ways,
    another_protocol_passes_both_ways_until_either_ends,
    head_keeps_the_length_that_a_get_would_have,
    an_upstream_that_is_down_is_left_out_and_the_others_answer,
    what_may_be_sent_again_is_and_what_may_not_is_not,
    an_upstream_that_says_nothing_or_nonsense_costs_a_gateway_error,
    a_client_that_leaves_is_told_to_the_upstream,
    a_path_does_not_lead_out_of_what_is_meant,
    checks_find_who_is_ill_and_who_is_well_again,
    a_shutdown_does_not_wait_for_connections_that_wait,
}

fn serve(choice: DriverChoice, app: impl Fn() -> App + Clone + Send + 'static) -> Option<Running> {
    let server = Server::bind("127.0.0.1:0").driver(choice).workers(NonZeroUsize::MIN).quiet();
    started(server.start(app))
}

fn url(running: &Running) -> String {
    format!("http://{}", running.http_address().expect("it speaks HTTP"))
}

fn proxy(
    choice: DriverChoice,
    upstreams: Upstreams,
    set: impl Fn(Proxy) -> Proxy + Clone + Send + 'static,
) -> Option<Running> {
    serve(choice, move || {
        App::new().subtree("/", set(Proxy::new(upstreams.clone())).body_limit(1 << 30))
    })
}

/// A proxy before one server with this application.
fn pair(choice: DriverChoice, app: fn() -> App) -> Option<(Running, Running)> {
    let upstream = serve(choice, app)?;
    let upstreams = Upstreams::new([url(&upstream)]).expect("a URL");
    Some((proxy(choice, upstreams, |proxy| proxy)?, upstream))
}

fn asked(running: &Running, request: &str) -> String {
    let mut peer = connect(running);
    let (mut writer, request) = (peer.try_clone().expect("a handle"), request.to_owned());
    // A server that has answered may not read the rest.
    let writing = thread::spawn(move || drop(writer.write_all(request.as_bytes())));
    let mut all = Vec::new();
    let ended = peer.read_to_end(&mut all);
    drop(peer.shutdown(Shutdown::Both));
    writing.join().expect("it does not panic");
    match ended {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
        _ => String::from_utf8_lossy(&all).into_owned(),
    }
}

fn get(running: &Running, path: &str, fields: &str) -> String {
    asked(
        running,
        &format!("GET {path} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n{fields}\r\n"),
    )
}

fn status(answer: &str) -> u16 {
    answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or_else(|| panic!("{answer:?}"))
}

/// A peer that answers each connection by this function, which gets the number of the connection.
fn peer(answer: impl Fn(usize, TcpStream) + Send + Sync + 'static) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let (count, answer) = (Arc::new(AtomicUsize::new(0)), Arc::new(answer));
    let counted = Arc::clone(&count);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            let answer = Arc::clone(&answer);
            thread::spawn(move || answer(number, stream));
        }
    });
    (url, count)
}

/// The head of one request, as it came.
fn head_of(stream: &mut TcpStream) -> String {
    let (mut all, mut byte) = (Vec::new(), [0]);
    while !all.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
        all.push(byte[0]);
    }
    String::from_utf8_lossy(&all).into_owned()
}

/// Says what came: method, target, and all fields in order.
fn echo(request: &Request) -> String {
    let head = &request.parts.head;
    let mut text = format!("{} {}", request.method(), head.path());
    if let Some(query) = head.query() {
        text.push('?');
        text.push_str(query);
    }
    for (name, value) in request.headers() {
        let (name, value) =
            (String::from_utf8_lossy(name).to_lowercase(), String::from_utf8_lossy(value));
        text.push_str(&format!("\n{name}: {value}"));
    }
    text
}

fn what_is_asked_and_answered_passes_and_what_is_about_a_connection_does_not(choice: DriverChoice) {
    let app = || {
        App::new().subtree("/", |request: Request| {
            let fields = [("x-answer", "1"), ("keep-alive", "timeout=5"), ("via", "1.0 other")];
            (StatusCode::CREATED, fields, echo(&request))
        })
    };
    let Some((proxy, _upstream)) = pair(choice, app) else { return };
    let request = "REPORT /a%20b/c?d=%41&e HTTP/1.1\r\nHost: a.example\r\nX-One: 1\r\nX-One: 2\r\nX-Nominated: no\r\n\
        Connection: close, X-Nominated, keep-alive\r\nKeep-Alive: timeout=5\r\nProxy-Connection: close\r\nProxy-Authorization: no\r\n\
        TE: trailers, gzip\r\nExpect: 100-continue\r\nCookie: a=b\r\nContent-Length: 0\r\n\r\n";
    let answer = asked(&proxy, request);
    assert_eq!(status(&answer), 201, "{answer}");
    assert_eq!(
        (field(&answer, "x-answer"), field(&answer, "via")),
        (Some("1"), Some("1.0 other, 1.1 peregrine"))
    );
    assert_eq!(field(&answer, "keep-alive"), None, "{answer}");
    let echoed = answer.split_once("\r\n\r\n").expect("a head").1;
    assert!(echoed.starts_with("REPORT /a%20b/c?d=%41&e\n"), "{echoed}");
    for line in [
        "\nx-one: 1\n",
        "\nx-one: 2\n",
        "\ncookie: a=b\n",
        "\nte: trailers\n",
        "\nhost: a.example",
        "\nvia: 1.1 peregrine",
    ] {
        assert!(format!("{echoed}\n").contains(line), "{line:?} {echoed}");
    }
    for word in ["nominated", "proxy-", "keep-alive", "gzip", "expect"] {
        assert!(!echoed.contains(word), "{word} {echoed}");
    }
    // What an upstream's Connection names goes no further either.
    let (url, _) = peer(|_, mut stream| {
        drop(head_of(&mut stream));
        let answer = "HTTP/1.1 200 OK\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nX-Kept: 2\r\nKeep-Alive: a\r\nContent-Length: 0\r\n\r\n";
        let _ = stream.write_all(answer.as_bytes());
    });
    let upstreams = Upstreams::new([url]).expect("a URL");
    let rude = self::proxy(choice, upstreams, |proxy| proxy).expect("as the other");
    let answer = get(&rude, "/", "");
    assert_eq!((field(&answer, "x-hop"), field(&answer, "keep-alive")), (None, None), "{answer}");
    assert_eq!((status(&answer), field(&answer, "x-kept")), (200, Some("2")));
    let circle = format!("Via: {}\r\n", ["1.1 p"; 16].join(", "));
    assert_eq!(status(&get(&proxy, "/", &circle)), 508);
    assert_eq!(
        status(&asked(&proxy, "TRACE / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")),
        405
    );
    let options = asked(&proxy, "OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(status(&options) < 500, "{options}");
}

fn who_asks_is_told_and_cannot_be_forged(choice: DriverChoice) {
    let app = || App::new().subtree("/", |request: Request| echo(&request));
    let Some(upstream) = serve(choice, app) else { return };
    let upstreams = Upstreams::new([url(&upstream)]).expect("a URL");
    let forged = "X-Forwarded-For: 1.2.3.4\r\nX_Forwarded_For: 1.2.3.5\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: evil\r\n\
        X-Real-IP: 1.2.3.6\r\nForwarded: for=1.2.3.7\r\nX-Forwarded-Prefix: /evil\r\n";
    let ours = |answer: &str| {
        let lines =
            answer.lines().filter(|line| line.contains("forwarded") || line.starts_with("x-real"));
        let mut lines: Vec<_> = lines.map(str::to_owned).collect();
        lines.sort();
        lines.join("|")
    };
    let plain = proxy(choice, upstreams.clone(), |proxy| proxy).expect("as the other");
    let expected = "x-forwarded-for: 127.0.0.1|x-forwarded-host: a.example|x-forwarded-proto: http";
    assert_eq!(ours(&get(&plain, "/", forged)), expected);
    let standard = proxy(choice, upstreams.clone(), Proxy::forwarded).expect("as the other");
    assert_eq!(
        ours(&get(&standard, "/", forged)),
        "forwarded: for=127.0.0.1;proto=http;host=\"a.example\""
    );
    let silent = proxy(choice, upstreams.clone(), |proxy| proxy.anonymous().upstream_host())
        .expect("as the other");
    let answer = get(&silent, "/", forged);
    assert_eq!(ours(&answer), "");
    let host = upstream.http_address().expect("it speaks HTTP").to_string();
    assert!(answer.contains(&format!("\nhost: {host}")), "{answer}");
    // Proxies before this one that are trusted are continued.
    let trusting = Server::bind("127.0.0.1:0").driver(choice).workers(NonZeroUsize::MIN).quiet();
    let trusting = trusting.trusted_proxies(["127.0.0.1"]);
    let behind = trusting.start(move || App::new().subtree("/", Proxy::new(upstreams.clone())));
    let answer = get(
        &behind.expect("it starts"),
        "/",
        "X-Forwarded-For: 9.9.9.9, 8.8.8.8\r\nX-Forwarded-Proto: https\r\n",
    );
    let expected = "x-forwarded-for: 9.9.9.9, 8.8.8.8, 127.0.0.1|x-forwarded-host: a.example|x-forwarded-proto: https";
    assert_eq!(ours(&answer), expected);
}

fn content_streams_both_ways_and_connections_are_used_again(choice: DriverChoice) {
    let app = || {
        App::new()
            .post("/echo", (async |body: Body| body).body_limit(1 << 30))
            .get("/port", |peer: PeerAddress| format!("{peer:?}"))
            .get("/large", || vec![b'x'; 20 << 20])
    };
    let Some((proxy, _upstream)) = pair(choice, app) else { return };
    // The beginning comes back before the end is sent.
    let mut client = connect(&proxy);
    client
        .write_all(
            b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n",
        )
        .expect("connected");
    let mut answer = head_of(&mut client);
    assert_eq!((status(&answer), field(&answer, "transfer-encoding")), (200, Some("chunked")));
    let mut piece = [0; 10];
    client.read_exact(&mut piece).expect("a chunk");
    assert_eq!(&piece, b"5\r\nfirst\r\n");
    client.write_all(b"3\r\nend\r\n0\r\n\r\n").expect("connected");
    let mut rest = [0; 13];
    client.read_exact(&mut rest).expect("the end");
    assert_eq!(&rest, b"3\r\nend\r\n0\r\n\r\n");
    // Large content of known length, both ways.
    let large = "y".repeat(5 << 20);
    let length = large.len();
    answer = asked(
        &proxy,
        &format!(
            "POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{large}"
        ),
    );
    assert!(
        status(&answer) == 200 && answer.ends_with(&large),
        "{}",
        &answer[..200.min(answer.len())]
    );
    answer = get(&proxy, "/large", "");
    assert_eq!(field(&answer, "content-length"), Some("20971520"));
    assert_eq!(answer.split_once("\r\n\r\n").expect("a head").1.len(), 20 << 20);
    // One connection to the upstream is enough for requests that come one after the other.
    let ports: Vec<_> = (0..5)
        .map(|_| get(&proxy, "/port", "").split("\r\n\r\n").nth(1).map(str::to_owned))
        .collect();
    assert!(ports.iter().all(|port| port.is_some() && *port == ports[0]), "{ports:?}");
}

/// Counts what was asked of it.
struct Endless(Arc<AtomicUsize>);

impl Stream for Endless {
    type Item = Result<Bytes, std::io::Error>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Poll::Ready(Some(Ok(Bytes::from(vec![b'z'; 64 * 1024]))))
    }
}

fn a_client_that_takes_nothing_holds_the_upstream_back(choice: DriverChoice) {
    let made = Arc::new(AtomicUsize::new(0));
    let shared = Arc::clone(&made);
    let Some(upstream) = serve(choice, move || {
        let made = Arc::clone(&shared);
        App::new().get("/", move || Body::stream(Endless(Arc::clone(&made))))
    }) else {
        return;
    };
    let upstreams = Upstreams::new([url(&upstream)]).expect("a URL");
    let proxy = proxy(choice, upstreams.clone(), |proxy| proxy).expect("as the other");
    let mut client = connect(&proxy);
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("connected");
    assert_eq!(status(&head_of(&mut client)), 200);
    // Until all buffers on the way are full.
    let mut last = usize::MAX;
    wait_for(|| {
        thread::sleep(Duration::from_millis(200));
        let now = made.load(Ordering::SeqCst);
        let is_still = now == last;
        last = now;
        is_still
    });
    assert!(last < 1000, "{last} pieces of 64 KiB wait");
    assert_eq!(upstreams.states()[0].busy, 1);
    drop(client);
    wait_for(|| upstreams.states()[0].busy == 0);
}

fn trailers_pass_both_ways(choice: DriverChoice) {
    let (url, _) = peer(|_, mut stream| {
        let head = head_of(&mut stream).to_lowercase();
        assert!(head.contains("te: trailers") && head.contains("trailer: x-sum"), "{head}");
        let mut content = Vec::new();
        while !content.ends_with(b"x-sum: 7\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("the trailers come");
            content.push(byte[0]);
        }
        let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-back\r\n\r\n2\r\nok\r\n0\r\nx-back: 8\r\n\r\n";
        stream.write_all(answer.as_bytes()).expect("connected");
    });
    let upstreams = Upstreams::new([url]).expect("a URL");
    let Some(proxy) = proxy(choice, upstreams, |proxy| proxy) else { return };
    let answer = asked(
        &proxy,
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: close, te\r\nTE: trailers\r\nTrailer: x-sum\r\n\
        Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nx-sum: 7\r\n\r\n",
    );
    assert!(
        status(&answer) == 200 && answer.to_lowercase().ends_with("0\r\nx-back: 8\r\n\r\n"),
        "{answer}"
    );
}

fn another_protocol_passes_both_ways_until_either_ends(choice: DriverChoice) {
    let app = || {
        App::new()
            .get("/chat", |request: Request| {
                assert!(request.header("upgrade").is_some_and(|it| it == "chat"));
                let echo = OnUpgrade::new(async |mut io| {
                    while let Ok(Some(bytes)) = io.recv().await {
                        if bytes.starts_with(b"bye") || io.send(bytes).await.is_err() {
                            break;
                        }
                    }
                    let _ = io.send(Bytes::from_static(b"over")).await;
                });
                Response::new(StatusCode::SWITCHING_PROTOCOLS)
                    .with_header(
                        HeaderName::from_static("upgrade"),
                        HeaderValue::from_static("chat"),
                    )
                    .with_upgrade(echo)
            })
            .get("/plain", || "no")
    };
    let Some((proxy, _upstream)) = pair(choice, app) else { return };
    let begin = |path: &str| {
        let mut client = connect(&proxy);
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n"
        );
        client.write_all(request.as_bytes()).expect("connected");
        let head = head_of(&mut client);
        (client, head)
    };
    for ends in [true, false] {
        let (mut client, head) = begin("/chat");
        assert_eq!((status(&head), field(&head, "upgrade")), (101, Some("chat")), "{head}");
        let large = vec![b'm'; 3 << 20];
        let mut writer = client.try_clone().expect("a handle");
        let sent = large.clone();
        let writing = thread::spawn(move || writer.write_all(&sent));
        let mut back = vec![0; large.len()];
        client.read_exact(&mut back).expect("all comes back");
        writing.join().expect("no panic").expect("all was taken");
        assert!(back == large);
        if ends {
            client.shutdown(Shutdown::Write).expect("connected");
        } else {
            client.write_all(b"bye").expect("connected");
        }
        let mut end = Vec::new();
        client.read_to_end(&mut end).expect("an end");
        assert_eq!(end, b"over");
    }
    let (_, head) = begin("/plain");
    assert_eq!((status(&head), field(&head, "content-length")), (200, Some("2")), "{head}");
}

fn head_keeps_the_length_that_a_get_would_have(choice: DriverChoice) {
    let app = || App::new().get("/", || "12345");
    let Some((proxy, _upstream)) = pair(choice, app) else { return };
    for _ in 0..3 {
        let answer = asked(&proxy, "HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        assert_eq!((status(&answer), field(&answer, "content-length")), (200, Some("5")));
        assert!(answer.ends_with("\r\n\r\n"), "{answer}");
        assert!(get(&proxy, "/", "").ends_with("\r\n\r\n12345"));
    }
}

fn named(name: &'static str) -> impl Fn(usize, TcpStream) + Send + Sync {
    move |_, mut stream| {
        while !head_of(&mut stream).is_empty() {
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len());
            if stream.write_all(answer.as_bytes()).is_err() {
                break;
            }
        }
    }
}

fn an_upstream_that_is_down_is_left_out_and_the_others_answer(choice: DriverChoice) {
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        format!("http://{}", listener.local_addr().expect("bound"))
    };
    let (one, two) = (peer(named("one")).0, peer(named("two")).0);
    for balance in [Balance::RoundRobin, Balance::LeastConnections] {
        let upstreams =
            Upstreams::new([nobody.as_str(), one.as_str(), two.as_str()]).expect("URLs");
        let upstreams =
            upstreams.balance(balance).failures_max(2).down_for(Duration::from_secs(3600));
        let Some(proxy) = proxy(choice, upstreams.clone(), |proxy| proxy) else { return };
        let answers: Vec<_> = (0..20).map(|_| get(&proxy, "/", "")).collect();
        for name in ["one", "two"] {
            let count = answers.iter().filter(|answer| answer.ends_with(name)).count();
            assert!((5..=15).contains(&count), "{name} {count}");
        }
        let states = upstreams.states();
        assert_eq!(
            states.iter().map(|it| it.is_up).collect::<Vec<_>>(),
            [false, true, true],
            "{states:?}"
        );
        assert!(states[0].failures == 2 && states.iter().all(|it| it.busy == 0), "{states:?}");
        // A POST of which nobody has seen anything goes elsewhere too.
        let post = asked(
            &proxy,
            "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        );
        assert_eq!(status(&post), 200);
    }
    let upstreams = Upstreams::new([nobody]).expect("a URL").failures_max(1);
    let Some(proxy) = proxy(choice, upstreams, |proxy| proxy) else { return };
    for _ in 0..2 {
        let answer = get(&proxy, "/", "");
        assert!(status(&answer) == 502 && answer.contains("upstream-unreachable"), "{answer}");
    }
}

fn what_may_be_sent_again_is_and_what_may_not_is_not(choice: DriverChoice) {
    // Takes a request, and ends the connection instead of an answer.
    let (rude, asked_rude) = peer(|_, mut stream| drop(head_of(&mut stream)));
    let (kind, asked_kind) = peer(named("kind"));
    let send = |method: &str, body: &str| {
        let upstreams = Upstreams::new([rude.as_str(), kind.as_str()]).expect("URLs");
        let proxy = proxy(choice, upstreams, |proxy| proxy)?;
        let length = body.len();
        let text = format!(
            "{method} / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        Some(status(&asked(&proxy, &text)))
    };
    for (method, body, expected) in [
        ("GET", "", 200),
        ("DELETE", "", 200),
        ("PUT", "", 200),
        ("POST", "", 502),
        ("PATCH", "", 502),
    ] {
        let before = asked_kind.load(Ordering::SeqCst);
        let Some(status) = send(method, body) else { return };
        let more = asked_kind.load(Ordering::SeqCst) - before;
        assert_eq!((status, more), (expected, usize::from(expected == 200)), "{method}");
    }
    assert!(asked_rude.load(Ordering::SeqCst) >= 5);
    // A connection that was kept and is closed when the next request comes: that goes out on a new one, whatever its method.
    let (brief, asked_brief) = peer(|_, mut stream| {
        drop(head_of(&mut stream));
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    });
    let upstreams = Upstreams::new([brief]).expect("a URL");
    let Some(proxy) = proxy(choice, upstreams, |proxy| proxy) else { return };
    // Where the end comes with the next request, that may have been seen: only what is idempotent goes out again, to the same upstream.
    let (late, asked_late) = peer(|_, mut stream| {
        drop(head_of(&mut stream));
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        drop(head_of(&mut stream));
    });
    let alone = Upstreams::new([late]).expect("a URL");
    let Some(behind) = self::proxy(choice, alone.clone(), |proxy| proxy) else { return };
    for number in 1..=4 {
        assert!(get(&behind, "/", "").ends_with("ok"));
        assert_eq!(asked_late.load(Ordering::SeqCst), number);
    }
    assert_eq!(alone.states()[0].failures, 0);
    for number in 1..=5 {
        let post = asked(
            &proxy,
            "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        );
        assert_eq!((status(&post), asked_brief.load(Ordering::SeqCst)), (200, number));
        // Its end comes on the way.
        thread::sleep(Duration::from_millis(50));
    }
}

fn an_upstream_that_says_nothing_or_nonsense_costs_a_gateway_error(choice: DriverChoice) {
    let quick = |proxy: Proxy| {
        proxy
            .response_timeout(Duration::from_millis(300))
            .idle_timeout(Duration::from_millis(300))
            .retries(0)
    };
    for (answer, expected) in [
        ("", 504),
        ("HTTP/1.1 200 O", 504),
        ("NONSENSE\r\n\r\n", 502),
        ("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", 502),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\nabcdef", 502),
        ("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", 502),
        ("HTTP/1.1 200 OK\r\nA: b\r\n c: d\r\n\r\n", 502),
    ] {
        let (url, _) = peer(move |_, mut stream| {
            drop(head_of(&mut stream));
            let _ = stream.write_all(answer.as_bytes());
            // It stays for as long as the other side does.
            let _ = stream.read(&mut [0]);
        });
        let upstreams = Upstreams::new([url]).expect("a URL");
        let Some(proxy) = proxy(choice, upstreams, quick) else { return };
        let got = get(&proxy, "/", "");
        assert_eq!(status(&got), expected, "{answer:?} {got}");
    }
    // Content that pauses too long is broken off, so that nobody takes it for whole.
    let (url, _) = peer(|_, mut stream| {
        drop(head_of(&mut stream));
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
        let _ = stream.read(&mut [0]);
    });
    let Some(proxy) = proxy(choice, Upstreams::new([url]).expect("a URL"), quick) else { return };
    let broken = get(&proxy, "/", "");
    assert!(status(&broken) == 200 && broken.ends_with("half"), "{broken}");
}

fn a_client_that_leaves_is_told_to_the_upstream(choice: DriverChoice) {
    let left = Arc::new(AtomicUsize::new(0));
    let noted = Arc::clone(&left);
    let (url, asked) = peer(move |_, mut stream| {
        drop(head_of(&mut stream));
        // Nothing more comes but the end.
        if stream.read(&mut [0]).is_ok_and(|read| read == 0) {
            noted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let upstreams = Upstreams::new([url]).expect("a URL");
    let Some(proxy) = proxy(choice, upstreams.clone(), |proxy| proxy) else { return };
    let mut client = connect(&proxy);
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("connected");
    wait_for(|| asked.load(Ordering::SeqCst) == 1 && upstreams.states()[0].busy == 1);
    drop(client);
    wait_for(|| left.load(Ordering::SeqCst) == 1 && upstreams.states()[0].busy == 0);
    assert!(upstreams.states()[0].failures == 0, "it is not the upstream's fault");
}

fn a_path_does_not_lead_out_of_what_is_meant(choice: DriverChoice) {
    let app = || App::new().subtree("/", |request: Request| echo(&request));
    let Some(upstream) = serve(choice, app) else { return };
    let upstreams = Upstreams::new([format!("{}/base/", url(&upstream))]).expect("a URL");
    let Some(proxy) = proxy(choice, upstreams, |proxy| proxy.strip_prefix("/api/")) else { return };
    for (path, expected) in [
        ("/api/x?y=1", Some("GET /base/x?y=1")),
        ("/api", Some("GET /base/")),
        ("/api/", Some("GET /base/")),
        ("/api//x", Some("GET /base//x")),
        ("/api/..x/a.b", Some("GET /base/..x/a.b")),
        ("/apix", None),
        ("/other", None),
        ("/api/../secret", None),
        ("/api/%2e%2E/secret", None),
        ("/api/.%2e/secret", None),
        ("/api/a/..", None),
        ("/api/./a", None),
    ] {
        let answer = get(&proxy, path, "");
        match expected {
            Some(line) => assert!(answer.contains(&format!("\r\n\r\n{line}\n")), "{path} {answer}"),
            None => assert!([400, 404].contains(&status(&answer)), "{path} {answer}"),
        }
    }
}

fn checks_find_who_is_ill_and_who_is_well_again(choice: DriverChoice) {
    let is_ill = Arc::new(AtomicUsize::new(1));
    let shared = Arc::clone(&is_ill);
    let (moody, _) = peer(move |_, mut stream| {
        loop {
            let head = head_of(&mut stream);
            if head.is_empty() {
                break;
            }
            let is_ill = shared.load(Ordering::SeqCst) == 1 && head.starts_with("GET /health ");
            let line = if is_ill { "503 Service Unavailable" } else { "200 OK" };
            let answer = format!("HTTP/1.1 {line}\r\nContent-Length: 5\r\n\r\nmoody");
            if stream.write_all(answer.as_bytes()).is_err() {
                break;
            }
        }
    });
    let (sound, _) = peer(named("sound"));
    let upstreams = Upstreams::new([moody, sound]).expect("URLs");
    let upstreams = upstreams.failures_max(1).down_for(Duration::from_secs(3600));
    let upstreams = upstreams.check("/health", Duration::from_millis(50));
    let Some(proxy) = proxy(choice, upstreams.clone(), |proxy| proxy) else { return };
    // Requests drive the checks. Answers of its own say that it is up, until the next check.
    let ask = || get(&proxy, "/", "");
    wait_for(|| {
        ask();
        !upstreams.states()[0].is_up
    });
    assert!(upstreams.states()[1].is_up);
    is_ill.store(0, Ordering::SeqCst);
    wait_for(|| ask().ends_with("moody"));
}

fn a_shutdown_does_not_wait_for_connections_that_wait(choice: DriverChoice) {
    let app = || App::new().get("/", || "hello");
    let Some((proxy, upstream)) = pair(choice, app) else { return };
    assert_eq!(status(&get(&proxy, "/", "")), 200);
    let begun = Instant::now();
    let stopped = proxy.shut_down().expect("it ends");
    assert!(begun.elapsed() < PATIENCE / 3, "{:?}", begun.elapsed());
    assert_eq!((stopped.tasks_cut(), stopped.cut.len()), (0, 0), "{stopped}");
    drop(upstream);
}
