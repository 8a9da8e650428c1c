//! The reverse proxy on every driver, in front of our own servers and of scripted peers.

use futures_core::Stream;
use peregrine::bytes::Bytes;
use peregrine::prelude::*;
use peregrine::proxy::{LoadBalancing, ReverseProxy, Upstreams};
use peregrine::tower::{Mount, SendBody, into_tower, layer};
use peregrine::web::testing::block_on;
use peregrine::web::upgrade::UpgradeHandler;
use peregrine::{DriverChoice, ListenAddr, RunningServer};
use peregrine_tests::client::{PATIENCE, connect, field, started, wait_for};
use peregrine_tests::on_both_drivers;
use peregrine_tests::server::streams::Streams;
use peregrine_tests::server::{SocketWire, secure};
use socket2::{Domain, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::mem::take;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

on_both_drivers! {
    what_is_asked_and_answered_passes_and_what_is_about_a_connection_does_not,
    a_client_cannot_remove_what_middleware_has_set,
    forwarding_fields_name_the_client_and_cannot_be_forged,
    content_streams_both_ways_and_connections_are_used_again,
    a_client_that_takes_nothing_holds_the_upstream_back,
    trailers_pass_both_ways,
    another_protocol_passes_both_ways_until_either_ends,
    head_keeps_the_length_that_a_get_would_have,
    an_upstream_that_is_down_is_left_out_and_the_others_answer,
    what_may_be_sent_again_is_and_what_may_not_is_not,
    an_upstream_that_says_nothing_or_nonsense_costs_a_gateway_error,
    the_upstream_is_notified_when_a_client_leaves,
    a_client_that_closes_ends_its_request_at_the_upstream,
    a_path_does_not_lead_out_of_what_is_meant,
    health_checks_detect_failed_and_recovered_upstreams,
    a_shutdown_does_not_wait_for_connections_that_wait,
    content_passes_with_any_method_and_no_content_is_said_so,
    no_protocol_leads_around_the_proxy,
    what_an_upstream_says_of_content_that_is_not_there_is_passed_on_or_left_out,
    an_upstream_cannot_answer_the_next_request,
    an_answer_in_a_form_that_the_client_did_not_ask_for_is_none,
    a_time_limit_may_be_as_long_as_a_duration_is,
    a_segment_that_some_servers_take_for_dots_is_one,
    what_is_too_large_is_refused_before_anybody_is_asked,
    an_answer_before_the_content_was_sent_reaches_the_client_and_its_connection_is_given_back,
    an_idle_upstream_connection_closes_without_further_requests,
    a_tunnel_that_one_side_has_ended_does_not_stay_for_ever,
    a_response_with_more_fields_than_the_proxy_takes_says_nothing_about_health,
    a_request_that_says_so_goes_no_further,
    forwarding_and_connection_fields_are_removed_from_trailers,
    a_websocket_of_http2_passes_to_an_upstream_of_http1,
    requests_of_http2_are_whole_for_an_upstream_of_http1,
    interim_responses_pass_and_a_flood_of_them_does_not,
    an_upstream_over_tls_gets_http2_requests_only_with_a_valid_certificate,
    an_upstream_of_http2_gives_and_takes_all_that_one_of_http1_does,
    requests_share_a_connection_of_http2_and_a_new_one_follows_its_end,
}

fn serve(
    choice: DriverChoice,
    app: impl Fn() -> App + Clone + Send + 'static,
) -> Option<RunningServer> {
    let server = Server::bind("127.0.0.1:0").driver(choice).workers(NonZeroUsize::MIN).quiet();
    started(server.start(app))
}

fn url(running: &RunningServer) -> String {
    format!("http://{}", running.http_address().expect("the server has an HTTP listener"))
}

fn proxy(
    choice: DriverChoice,
    upstreams: Upstreams,
    set: impl Fn(ReverseProxy) -> ReverseProxy + Clone + Send + 'static,
) -> Option<RunningServer> {
    serve(choice, move || {
        App::new().subtree("/", set(ReverseProxy::new(upstreams.clone())).body_limit(1 << 30))
    })
}

/// A proxy in front of one server with this application.
fn pair(choice: DriverChoice, app: fn() -> App) -> Option<(RunningServer, RunningServer)> {
    let upstream = serve(choice, app)?;
    let upstreams = Upstreams::new([url(&upstream)]).expect("a URL");
    Some((proxy(choice, upstreams, |proxy| proxy)?, upstream))
}

fn asked(running: &RunningServer, request: &str) -> String {
    let mut peer = connect(running);
    let (mut writer, request) = (peer.try_clone().expect("a handle"), request.to_owned());
    // A server that has responded may not read the rest.
    let writing = thread::spawn(move || drop(writer.write_all(request.as_bytes())));
    let mut all = Vec::new();
    let ended = peer.read_to_end(&mut all);
    drop(peer.shutdown(Shutdown::Both));
    writing.join().expect("the task does not panic");
    match ended {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
        _ => String::from_utf8_lossy(&all).into_owned(),
    }
}

fn get(running: &RunningServer, path: &str, fields: &str) -> String {
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

/// A peer that answers each connection with this function, which gets the connection's number.
fn peer(answer: impl Fn(usize, TcpStream) + Send + Sync + 'static) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("the socket is bound"));
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

/// The head of one request, as received.
fn head_of(stream: &mut TcpStream) -> String {
    let (mut all, mut byte) = (Vec::new(), [0]);
    while !all.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
        all.push(byte[0]);
    }
    String::from_utf8_lossy(&all).into_owned()
}

/// Echoes the method, the target, and all fields in order.
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
    // Fields named by an upstream's Connection are not forwarded either.
    let (url, _) = peer(|_, mut stream| {
        drop(head_of(&mut stream));
        let answer = "HTTP/1.1 200 OK\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nX-Kept: 2\r\nKeep-Alive: a\r\nContent-Length: 0\r\n\r\n";
        let _ = stream.write_all(answer.as_bytes());
    });
    let upstreams = Upstreams::new([url]).expect("a URL");
    let rude = self::proxy(choice, upstreams, |proxy| proxy).expect("the driver is available");
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

/// Sets a field that names the client, replacing the client's own.
struct NameUser;

impl Middleware for NameUser {
    async fn run<N: Service>(&self, mut request: Request, next: &N) -> Response {
        request.parts.head.remove_fields(&["x-user"]);
        assert!(request.parts.head.append_header("X-User", b"guest"));
        next.call(request).await
    }
}

/// The same as a tower layer.
fn name_user() -> impl Middleware {
    layer(tower::util::MapRequestLayer::new(|mut request: http::Request<SendBody>| {
        request.headers_mut().insert("x-user", http::HeaderValue::from_static("guest"));
        request
    }))
}

/// Fields that a client lists in `Connection` are removed only from what the client sent: not
/// fields that middleware has set, nor fields that frame the request.
fn a_client_cannot_remove_what_middleware_has_set(choice: DriverChoice) {
    let app = || {
        App::new().subtree("/", async |mut request: Request| {
            let body =
                std::mem::take(&mut request.body).collect(100).await.expect("the body is complete");
            format!("{}\nbody: {}\n", echo(&request), String::from_utf8_lossy(&body))
        })
    };
    let Some(upstream) = serve(choice, app) else { return };
    for is_http2 in [false, true] {
        let upstreams = Upstreams::new([url(&upstream)]).expect("a URL");
        let upstreams = if is_http2 { upstreams.http2_prior_knowledge() } else { upstreams };
        let mounted =
            axum::Router::new().fallback(async |headers: http::HeaderMap| format!("{headers:?}"));
        let front = serve(choice, move || {
            let proxy = || ReverseProxy::new(upstreams.clone());
            App::new()
                .scope("/own", |scope| scope.wrap(NameUser).subtree("/", proxy()))
                .scope("/layer", |scope| scope.wrap(name_user()).subtree("/", proxy()))
                .scope("/both", |scope| {
                    scope.wrap(NameUser).wrap(name_user()).subtree("/", proxy())
                })
                .scope("/nested", |scope| {
                    let nested = into_tower(App::new().subtree("/", proxy()));
                    scope.wrap(NameUser).mount("/", nested.expect("the application is valid"))
                })
                .scope("/mounted", |scope| scope.wrap(NameUser).mount("/", mounted.clone()))
                .subtree("/", proxy())
        });
        let front = front.expect("the driver is available");
        let post = |path: &str, user: &str| {
            asked(
                &front,
                &format!(
                    "POST {path} HTTP/1.1\r\nHost: a.example\r\n{user}X-Mine: 1\r\nX-Kept: 1\r\nContent-Length: 2\r\n\
                    Connection: close, X-User, x-mine, Host, Content-Length, Transfer-Encoding\r\n\r\nhi"
                ),
            )
        };
        // Sending the same field, with the same value or another, does not remove it either.
        for user in ["", "X-User: guest\r\n", "X-User: root\r\n"] {
            for path in ["/own/", "/layer/", "/both/", "/nested/"] {
                let answer = post(path, user);
                assert_eq!(status(&answer), 200, "{path} {answer}");
                assert_eq!(answer.matches("x-user: ").count(), 1, "{path} {user} {answer}");
                for line in ["x-user: guest\n", "x-kept: 1\n", "body: hi\n"] {
                    assert!(answer.contains(line), "{path} {user} {line} {answer}");
                }
                assert!(is_http2 || answer.contains("host: a.example\n"), "{path} {answer}");
                assert!(!answer.contains("x-mine"), "{path} {answer}");
            }
            let answer = post("/mounted/", user);
            assert!(answer.contains("\"x-user\": \"guest\""), "{answer}");
            assert!(!answer.to_lowercase().contains("close, x-user"), "{answer}");
            let answer = post("/", user);
            assert!(!answer.contains("x-user") && !answer.contains("x-mine"), "{answer}");
            assert!(answer.contains("body: hi\n"), "{answer}");
        }
    }
    // Nor can an upstream remove the framing of its response.
    let (url, _) = peer(|_, mut stream| {
        drop(head_of(&mut stream));
        let answer = "HTTP/1.1 200 OK\r\nConnection: close, Content-Length, Date, X-Hop\r\nX-Hop: 1\r\nContent-Length: 2\r\n\r\nhi and more";
        let _ = stream.write_all(answer.as_bytes());
    });
    let rude = proxy(choice, Upstreams::new([url]).expect("a URL"), |proxy| proxy);
    let answer = get(&rude.expect("the driver is available"), "/", "");
    assert_eq!((status(&answer), field(&answer, "content-length")), (200, Some("2")), "{answer}");
    assert!(answer.ends_with("\r\n\r\nhi") && field(&answer, "date").is_some(), "{answer}");
}

/// A server around our application may set fields too, and forwards the fields that its client
/// listed.
#[test]
fn what_was_named_to_the_server_around_an_application_is_passed_on() {
    let app = App::new().subtree("/", |request: Request| echo(&request));
    let service = into_tower(app).expect("the application is valid");
    let request = http::Request::get("/")
        .header("host", "a")
        .header("connection", "close, x-user")
        .header("x-user", "guest");
    let request = request.body(String::new()).expect("the application is valid");
    let answer = block_on(async {
        let response = tower::ServiceExt::oneshot(service, request).await.expect("infallible");
        response.into_body().collect(1000).await.expect("the body is complete")
    });
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(
        answer.contains("\nconnection: close") && !answer.contains("close, x-user"),
        "{answer}"
    );
    assert!(answer.contains("\nx-user: guest"), "{answer}");
}

fn forwarding_fields_name_the_client_and_cannot_be_forged(choice: DriverChoice) {
    let app = || App::new().subtree("/", |request: Request| echo(&request));
    let Some(upstream) = serve(choice, app) else { return };
    let upstreams = Upstreams::new([url(&upstream)]).expect("a URL");
    let forged = "X-Forwarded-For: 1.2.3.4\r\nX_Forwarded_For: 1.2.3.5\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: evil\r\n\
        X-Real-IP: 1.2.3.6\r\nForwarded: for=1.2.3.7\r\nX-Forwarded-Prefix: /evil\r\nX-Forwarded-Ssl: on\r\nX_Forwarded_User: root\r\n";
    let ours = |answer: &str| {
        let lines = answer.lines().filter(|line| {
            line.contains("forwarded") || line.contains("x_") || line.starts_with("x-real")
        });
        let mut lines: Vec<_> = lines.map(str::to_owned).collect();
        lines.sort();
        lines.join("|")
    };
    let plain = proxy(choice, upstreams.clone(), |proxy| proxy).expect("the driver is available");
    let expected = "x-forwarded-for: 127.0.0.1|x-forwarded-host: a.example|x-forwarded-proto: http";
    assert_eq!(ours(&get(&plain, "/", forged)), expected);
    let standard = proxy(choice, upstreams.clone(), ReverseProxy::use_forwarded_header)
        .expect("the driver is available");
    assert_eq!(
        ours(&get(&standard, "/", forged)),
        "forwarded: for=127.0.0.1;proto=http;host=\"a.example\""
    );
    let silent =
        proxy(choice, upstreams.clone(), |proxy| proxy.no_forwarding_headers().use_upstream_host())
            .expect("the driver is available");
    let answer = get(&silent, "/", forged);
    assert_eq!(ours(&answer), "");
    let host = upstream.http_address().expect("the server has an HTTP listener").to_string();
    assert!(answer.contains(&format!("\nhost: {host}")), "{answer}");
    // The list of trusted proxies in front of this one is extended.
    let trusting = Server::bind("127.0.0.1:0").driver(choice).workers(NonZeroUsize::MIN).quiet();
    let trusting = trusting.trusted_proxies(["127.0.0.1"]);
    let behind =
        trusting.start(move || App::new().subtree("/", ReverseProxy::new(upstreams.clone())));
    let answer = get(
        &behind.expect("the server starts"),
        "/",
        "X-Forwarded-For: 9.9.9.9, 8.8.8.8\r\nX-Forwarded-Proto: https\r\nX-Forwarded-User: ada\r\n",
    );
    let expected = "x-forwarded-for: 9.9.9.9, 8.8.8.8, 127.0.0.1|x-forwarded-host: a.example|x-forwarded-proto: https|x-forwarded-user: ada";
    assert_eq!(ours(&answer), expected);
}

fn content_streams_both_ways_and_connections_are_used_again(choice: DriverChoice) {
    let app = || {
        App::new()
            .post("/echo", (async |body: Body| body).body_limit(1 << 30))
            .get("/port", |peer: PeerAddr| format!("{peer:?}"))
            .get("/large", || vec![b'x'; 20 << 20])
    };
    let Some((proxy, _upstream)) = pair(choice, app) else { return };
    // The beginning is echoed before the end is sent.
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
    // Large content of known length, in both directions.
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
    // One upstream connection suffices for sequential requests.
    let ports: Vec<_> = (0..5)
        .map(|_| get(&proxy, "/port", "").split("\r\n\r\n").nth(1).map(str::to_owned))
        .collect();
    assert!(ports.iter().all(|port| port.is_some() && *port == ports[0]), "{ports:?}");
}

/// Counts the pieces that it has yielded.
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
        App::new().get("/", move || Body::from_stream(Endless(Arc::clone(&made))))
    }) else {
        return;
    };
    let upstreams = Upstreams::new([url(&upstream)]).expect("a URL");
    let proxy = proxy(choice, upstreams.clone(), |proxy| proxy).expect("the driver is available");
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
    assert!(last < 1000, "{last} pieces of 64 KiB were buffered");
    assert_eq!(upstreams.statuses()[0].in_flight, 1);
    drop(client);
    wait_for(|| upstreams.statuses()[0].in_flight == 0);
}

fn trailers_pass_both_ways(choice: DriverChoice) {
    let (url, _) = peer(|_, mut stream| {
        let head = head_of(&mut stream).to_lowercase();
        assert!(head.contains("te: trailers") && head.contains("trailer: x-sum"), "{head}");
        let mut content = Vec::new();
        while !content.ends_with(b"x-sum: 7\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("the trailers arrive");
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
                let echo = UpgradeHandler::new(async |mut io| {
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
        client.read_exact(&mut back).expect("the server echoes every byte");
        writing.join().expect("the task does not panic").expect("every byte was written");
        assert!(back == large);
        if ends {
            client.shutdown(Shutdown::Write).expect("connected");
        } else {
            client.write_all(b"bye").expect("connected");
        }
        let mut end = Vec::new();
        client.read_to_end(&mut end).expect("the upstream closes the connection cleanly");
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
    // Bound but not listening: the kernel refuses connections, and no other test gets the port.
    let reserved = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    reserved.bind(&any_port.into()).expect("a port");
    let address = reserved.local_addr().expect("the socket is bound").as_socket();
    let nobody = format!("http://{}", address.expect("an IP address"));
    let (one, two) = (peer(named("one")).0, peer(named("two")).0);
    for balance in [LoadBalancing::RoundRobin, LoadBalancing::LeastRequests] {
        let upstreams =
            Upstreams::new([nobody.as_str(), one.as_str(), two.as_str()]).expect("URLs");
        let upstreams = upstreams
            .load_balancing(balance)
            .failures_max(2)
            .fail_timeout(Duration::from_secs(3600));
        let Some(proxy) = proxy(choice, upstreams.clone(), |proxy| proxy) else { return };
        let answers: Vec<_> = (0..20).map(|_| get(&proxy, "/", "")).collect();
        for name in ["one", "two"] {
            let count = answers.iter().filter(|answer| answer.ends_with(name)).count();
            assert!((5..=15).contains(&count), "{name} {count}");
        }
        let states = upstreams.statuses();
        assert_eq!(
            states.iter().map(|it| it.is_healthy).collect::<Vec<_>>(),
            [false, true, true],
            "{states:?}"
        );
        assert!(states[0].failures == 2 && states.iter().all(|it| it.in_flight == 0), "{states:?}");
        // A POST that no upstream has received is retried elsewhere too.
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
    // Reads a request, and closes the connection instead of responding.
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
    // A kept connection that is closed when the next request arrives: the request is sent on a new
    // one, whatever its method.
    let (brief, asked_brief) = peer(|_, mut stream| {
        drop(head_of(&mut stream));
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    });
    let upstreams = Upstreams::new([brief]).expect("a URL");
    let Some(proxy) = proxy(choice, upstreams, |proxy| proxy) else { return };
    // If the connection closes after the next request was sent, the upstream may have seen it: only
    // idempotent requests are sent again, to the same upstream.
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
    assert_eq!(alone.statuses()[0].failures, 0);
    for number in 1..=5 {
        let post = asked(
            &proxy,
            "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        );
        assert_eq!((status(&post), asked_brief.load(Ordering::SeqCst)), (200, number));
        // The close arrives while the request is in flight.
        thread::sleep(Duration::from_millis(50));
    }
}

fn an_upstream_that_says_nothing_or_nonsense_costs_a_gateway_error(choice: DriverChoice) {
    let quick = |proxy: ReverseProxy| {
        proxy
            .response_timeout(Duration::from_millis(300))
            .body_idle_timeout(Duration::from_millis(300))
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
            // Keeps the connection open as long as the other side does.
            let _ = stream.read(&mut [0]);
        });
        let upstreams = Upstreams::new([url]).expect("a URL");
        let Some(proxy) = proxy(choice, upstreams, quick) else { return };
        let got = get(&proxy, "/", "");
        assert_eq!(status(&got), expected, "{answer:?} {got}");
    }
    // A response that stalls too long is cut off, so that it is not taken for a complete one.
    let (url, _) = peer(|_, mut stream| {
        drop(head_of(&mut stream));
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
        let _ = stream.read(&mut [0]);
    });
    let Some(proxy) = proxy(choice, Upstreams::new([url]).expect("a URL"), quick) else { return };
    let broken = get(&proxy, "/", "");
    assert!(status(&broken) == 200 && broken.ends_with("half"), "{broken}");
}

fn the_upstream_is_notified_when_a_client_leaves(choice: DriverChoice) {
    let left = Arc::new(AtomicUsize::new(0));
    let noted = Arc::clone(&left);
    let (url, asked) = peer(move |_, mut stream| {
        drop(head_of(&mut stream));
        // Only the end arrives now.
        if stream.read(&mut [0]).is_ok_and(|read| read == 0) {
            noted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let upstreams = Upstreams::new([url]).expect("a URL");
    let Some(proxy) = proxy(choice, upstreams.clone(), |proxy| proxy) else { return };
    let mut client = connect(&proxy);
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("connected");
    wait_for(|| asked.load(Ordering::SeqCst) == 1 && upstreams.statuses()[0].in_flight == 1);
    drop(client);
    wait_for(|| left.load(Ordering::SeqCst) == 1 && upstreams.statuses()[0].in_flight == 0);
    assert!(upstreams.statuses()[0].failures == 0, "the upstream is not blamed");
}

/// A stream of one piece that then has nothing to send. Its drop is counted.
struct Quiet {
    piece: Option<Bytes>,
    ended: Arc<AtomicUsize>,
}

impl Stream for Quiet {
    type Item = Result<Bytes, std::io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.piece.take().map_or(Poll::Pending, |piece| Poll::Ready(Some(Ok(piece))))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// When a client ends its side, the upstream's work for it is cancelled, before a response and
/// within one, over either upstream protocol.
fn a_client_that_closes_ends_its_request_at_the_upstream(choice: DriverChoice) {
    for is_http2 in [false, true] {
        let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (began, ends) = (Arc::clone(&begun), Arc::clone(&ended));
        let app = move || {
            let (began, ends, ended) = (Arc::clone(&began), Arc::clone(&ends), Arc::clone(&ends));
            App::new()
                .get("/wait", async move || {
                    let _watch = Quiet { piece: None, ended: Arc::clone(&ends) };
                    began.fetch_add(1, Ordering::SeqCst);
                    std::future::pending::<()>().await;
                })
                .get("/quiet", move || {
                    let piece = Some(Bytes::from_static(b"a piece"));
                    Body::from_stream(Quiet { piece, ended: Arc::clone(&ended) })
                })
        };
        let Some(upstream) = serve(choice, app) else { return };
        let upstreams = Upstreams::new([url(&upstream)]).expect("a URL");
        let upstreams = if is_http2 { upstreams.http2_prior_knowledge() } else { upstreams };
        let Some(proxy) = proxy(choice, upstreams.clone(), |proxy| proxy) else { return };
        let clients = [("/wait", false), ("/wait", true), ("/quiet", false), ("/quiet", true)];
        for (count, (path, shuts_down)) in clients.into_iter().enumerate() {
            let mut client = connect(&proxy);
            write!(client, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").expect("connected");
            if path == "/wait" {
                wait_for(|| begun.load(Ordering::SeqCst) > count);
            } else {
                let mut came = Vec::new();
                while !came.ends_with(b"a piece\r\n") {
                    let mut byte = [0];
                    client.read_exact(&mut byte).expect("the chunk arrives");
                    came.push(byte[0]);
                }
            }
            if shuts_down {
                client.shutdown(Shutdown::Write).expect("connected");
                let mut rest = Vec::new();
                let _ = client.read_to_end(&mut rest);
                assert!(rest.is_empty(), "{}", rest.escape_ascii());
            } else {
                drop(client);
            }
            wait_for(|| ended.load(Ordering::SeqCst) == count + 1);
            wait_for(|| upstreams.statuses()[0].in_flight == 0);
        }
        assert_eq!(upstreams.statuses()[0].failures, 0, "the upstream is not blamed");
    }
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

fn health_checks_detect_failed_and_recovered_upstreams(choice: DriverChoice) {
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
    let upstreams = upstreams.failures_max(1).fail_timeout(Duration::from_secs(3600));
    let upstreams = upstreams.health_check("/health", Duration::from_millis(500));
    let Some(proxy) = proxy(choice, upstreams.clone(), |proxy| proxy) else { return };
    // Requests trigger the health checks. Successful responses mark the upstream as healthy until
    // the next check.
    let ask = || get(&proxy, "/", "");
    wait_for(|| {
        ask();
        !upstreams.statuses()[0].is_healthy
    });
    assert!(upstreams.statuses()[1].is_healthy);
    is_ill.store(0, Ordering::SeqCst);
    wait_for(|| ask().ends_with("moody"));
}

fn a_shutdown_does_not_wait_for_connections_that_wait(choice: DriverChoice) {
    let app = || App::new().get("/", || "hello");
    let Some((proxy, upstream)) = pair(choice, app) else { return };
    assert_eq!(status(&get(&proxy, "/", "")), 200);
    let begun = Instant::now();
    let stopped = proxy.graceful_shutdown().expect("the shutdown succeeds");
    assert!(begun.elapsed() < PATIENCE / 3, "{:?}", begun.elapsed());
    assert_eq!((stopped.aborted_tasks(), stopped.force_closed.len()), (0, 0), "{stopped}");
    drop(upstream);
}

/// A peer that gives every request this response, and records the requests.
fn answering(answer: &'static str) -> (String, Arc<Mutex<Vec<String>>>) {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&heads);
    let (url, _) = peer(move |_, mut stream| {
        loop {
            let head = head_of(&mut stream);
            if head.is_empty() {
                break;
            }
            shared.lock().expect("the mutex is not poisoned").push(head);
            if stream.write_all(answer.as_bytes()).is_err() {
                break;
            }
        }
    });
    (url, heads)
}

fn content_passes_with_any_method_and_no_content_is_said_so(choice: DriverChoice) {
    let app = || {
        App::new().subtree("/", async |request: Request| {
            let text = echo(&request);
            let body = request.body.into_bytes(1 << 20).await.expect("content");
            format!("{text}\n\n{}", String::from_utf8_lossy(&body))
        })
    };
    let Some((proxy, _upstream)) = pair(choice, app) else { return };
    let send = |method: &str, fields: &str, body: &str| {
        asked(
            &proxy,
            &format!("{method} / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n{body}"),
        )
    };
    for method in ["GET", "POST", "DELETE", "OPTIONS", "SEARCH"] {
        for (fields, body) in [
            ("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n"),
            ("Content-Length: 5\r\n", "hello"),
        ] {
            let answer = send(method, fields, body);
            assert!(
                status(&answer) == 200 && answer.ends_with("\n\nhello"),
                "{method} {fields} {answer}"
            );
        }
    }
    // Content that is still arriving when the request is forwarded.
    let piece = "p".repeat(0x4000);
    for method in ["GET", "POST"] {
        let mut client = connect(&proxy);
        let head = format!(
            "{method} / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
        client.write_all(head.as_bytes()).expect("connected");
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(10));
            client.write_all(format!("4000\r\n{piece}\r\n").as_bytes()).expect("connected");
        }
        client.write_all(b"0\r\n\r\n").expect("connected");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("a response");
        let content = answer.rsplit("\n\n").next().unwrap_or_default();
        assert_eq!((status(&answer), content.len()), (200, 20 * 0x4000), "{method}");
    }
    // RFC 9110 §8.6: a POST without content sends Content-Length: 0; some servers require it.
    for method in ["POST", "PUT", "PATCH"] {
        let answer = send(method, "Content-Length: 0\r\n", "");
        assert!(answer.contains("\ncontent-length: 0\n"), "{method} {answer}");
    }
    let answer = send("GET", "", "");
    let echoed = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
    assert!(!echoed.contains("\ncontent-length") && !echoed.contains("\ntransfer-"), "{answer}");
}

fn no_protocol_leads_around_the_proxy(choice: DriverChoice) {
    // If a connection switched to HTTP/2 here, later requests would reach the upstream unchecked.
    let (url, heads) = answering(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    );
    let upstreams = Upstreams::new([url]).expect("a URL");
    let Some(proxy) = proxy(choice, upstreams, |proxy| proxy.retries(0)) else { return };
    let ask = |protocols: &str| {
        asked(
            &proxy,
            &format!(
                "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: {protocols}\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
            ),
        )
    };
    for protocols in ["h2c", "H2C", "TLS/1.3", "HTTP/2.0", "h2c, TLS/1.0", "websocket, h2c", "chat"]
    {
        let answer = ask(protocols);
        assert_eq!(status(&answer), 502, "{protocols} {answer}");
        let head = heads
            .lock()
            .expect("the mutex is not poisoned")
            .pop()
            .expect("a request arrived")
            .to_lowercase();
        for word in ["h2c", "tls", "http/2", "http2-settings"] {
            assert!(!head.contains(word), "{protocols} {head}");
        }
        let is_left = ["websocket", "chat"].iter().any(|left| protocols.contains(left));
        assert_eq!(head.contains("\r\nupgrade: "), is_left, "{protocols} {head}");
    }
}

fn what_an_upstream_says_of_content_that_is_not_there_is_passed_on_or_left_out(
    choice: DriverChoice,
) {
    for (method, answer, expected, length) in [
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 200, Some("5")),
        ("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 200, None),
        ("HEAD", "HTTP/1.1 200 OK\r\nX-A: b\r\n\r\n", 200, None),
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, Some("0")),
        ("GET", "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n", 304, None),
        ("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", 304, Some("7")),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n", 204, None),
        ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, Some("0")),
        ("GET", "HTTP/1.1 999 Denied\r\nContent-Length: 0\r\n\r\n", 999, Some("0")),
    ] {
        let (url, _) = answering(answer);
        let upstreams = Upstreams::new([url]).expect("a URL");
        let Some(proxy) = proxy(choice, upstreams, |proxy| proxy) else { return };
        for _ in 0..2 {
            let got = asked(
                &proxy,
                &format!("{method} / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
            );
            assert_eq!(
                (status(&got), field(&got, "content-length")),
                (expected, length),
                "{method} {answer:?} {got}"
            );
            assert_eq!(got.to_lowercase().matches("\r\ndate: ").count(), 1, "{got}");
        }
    }
    let (url, _) = answering(
        "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nServer: other\r\nContent-Length: 0\r\n\r\n",
    );
    let upstreams = Upstreams::new([url]).expect("a URL");
    let proxy = proxy(choice, upstreams, |proxy| proxy).expect("the driver is available");
    let got = get(&proxy, "/", "");
    assert_eq!(got.to_lowercase().matches("\r\ndate: ").count(), 1, "{got}");
    assert!(got.contains("06 Nov 1994") && field(&got, "server") == Some("other"), "{got}");
}

fn an_upstream_cannot_answer_the_next_request(choice: DriverChoice) {
    let (url, heads) = answering(
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison",
    );
    let upstreams = Upstreams::new([url]).expect("a URL");
    let Some(proxy) = proxy(choice, upstreams, |proxy| proxy) else { return };
    let mut client = connect(&proxy);
    // As close together as possible.
    let count = 50;
    let pipeline = "GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(count - 1)
        + "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    client.write_all(pipeline.as_bytes()).expect("connected");
    let mut all = String::new();
    client.read_to_string(&mut all).expect("the responses arrive");
    assert!(!all.contains("poison"), "{all}");
    assert_eq!(all.matches("\r\n\r\nok").count(), count, "{all}");
    assert!(heads.lock().expect("the mutex is not poisoned").len() >= count);
}

fn an_answer_in_a_form_that_the_client_did_not_ask_for_is_none(choice: DriverChoice) {
    for answer in [
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nConnection: close\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ] {
        let (url, _) = answering(answer);
        let upstreams = Upstreams::new([url]).expect("a URL");
        let Some(proxy) = proxy(choice, upstreams, |proxy| proxy.retries(0)) else { return };
        let got = get(&proxy, "/", "");
        assert_eq!(status(&got), 502, "{answer:?} {got}");
    }
}

fn a_time_limit_may_be_as_long_as_a_duration_is(choice: DriverChoice) {
    // Both the head and the content are late, so that all timers are active.
    let (url, _) = peer(|_, mut stream| {
        drop(head_of(&mut stream));
        thread::sleep(Duration::from_millis(50));
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no");
        thread::sleep(Duration::from_millis(50));
        let _ = stream.write_all(b"k");
    });
    let upstreams = Upstreams::new([url]).expect("a URL").fail_timeout(Duration::MAX);
    let upstreams = upstreams.health_check("/", Duration::MAX);
    let long = |proxy: ReverseProxy| {
        let (most, proxy) = (Duration::MAX, proxy.idle_connections(8, Duration::MAX));
        proxy.connect_timeout(most).response_timeout(most).body_idle_timeout(most)
    };
    let Some(proxy) = proxy(choice, upstreams, long) else { return };
    let got = get(&proxy, "/", "");
    assert!(status(&got) == 200 && got.ends_with("ok"), "{got}");
}

fn a_segment_that_some_servers_take_for_dots_is_one(choice: DriverChoice) {
    let app = || App::new().subtree("/", |request: Request| echo(&request));
    let Some(upstream) = serve(choice, app) else { return };
    let upstreams = Upstreams::new([format!("{}/base/", url(&upstream))]).expect("a URL");
    let Some(proxy) = proxy(choice, upstreams, |proxy| proxy) else { return };
    for path in [
        "/..;/secret",
        "/a/..;x=y/secret",
        "/a/%2e%2e;/secret",
        "/a/..%2fsecret",
        "/a/..%2Fsecret",
        "/a%2f..%2fsecret",
        "/..%5csecret",
        "/a/..\\secret",
        "/%2e./x",
    ] {
        let answer = get(&proxy, path, "");
        assert_eq!(status(&answer), 400, "{path} {answer}");
    }
    for path in ["/a;b/c", "/a%2fb", "/...", "/..a;b", "/a%2e.b"] {
        let answer = get(&proxy, path, "");
        assert!(answer.contains(&format!("\r\n\r\nGET /base{path}\n")), "{path} {answer}");
    }
    // Every character of a target either passes unchanged, or gets a 400.
    for letter in (0x21..0x7f_u8).map(char::from).filter(|letter| !"?./%".contains(*letter)) {
        let answer = get(&proxy, &format!("/a{letter}b?c{letter}d"), "");
        let echoed = format!("\r\n\r\nGET /base/a{letter}b?c{letter}d\n");
        assert!(status(&answer) == 400 || answer.contains(&echoed), "{letter} {answer}");
    }
    let whole = asked(&proxy, "OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(!whole.contains("/base*") && status(&whole) < 500, "{whole}");
}

fn what_is_too_large_is_refused_before_anybody_is_asked(choice: DriverChoice) {
    let (url, asked_it) = peer(named("kind"));
    let upstreams = Upstreams::new([url]).expect("a URL");
    let small = upstreams.clone();
    let Some(proxy) = serve(choice, move || {
        App::new().subtree("/", ReverseProxy::new(small.clone()).body_limit(10))
    }) else {
        return;
    };
    for expect in ["", "Expect: 100-continue\r\n"] {
        let answer = asked(
            &proxy,
            &format!(
                "PUT / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{expect}Content-Length: 1000000\r\n\r\nxx"
            ),
        );
        assert_eq!(status(&answer), 413, "{answer}");
    }
    assert_eq!(asked_it.load(Ordering::SeqCst), 0);
    let chunked = asked(
        &proxy,
        "PUT / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n14\r\n01234567890123456789\r\n0\r\n\r\n",
    );
    assert_eq!(status(&chunked), 413, "{chunked}");
    assert_eq!((upstreams.statuses()[0].failures, upstreams.statuses()[0].in_flight), (0, 0));
}

fn an_answer_before_the_content_was_sent_reaches_the_client_and_its_connection_is_given_back(
    choice: DriverChoice,
) {
    let left = Arc::new(AtomicUsize::new(0));
    let noted = Arc::clone(&left);
    let (url, came) = peer(move |number, mut stream| {
        drop(head_of(&mut stream));
        let end = if number % 2 == 0 { "Connection: close\r\n" } else { "" };
        let answer = format!("HTTP/1.1 403 Forbidden\r\n{end}Content-Length: 2\r\n\r\nno");
        let _ = stream.write_all(answer.as_bytes());
        // Reads no more, and waits for the end.
        let mut socket = [0; 1024];
        while let Ok(1..) = stream.read(&mut socket) {
            thread::sleep(Duration::from_millis(1));
        }
        noted.fetch_add(1, Ordering::SeqCst);
    });
    let upstreams = Upstreams::new([url]).expect("a URL");
    let Some(proxy) =
        proxy(choice, upstreams.clone(), |proxy| proxy.idle_connections(8, Duration::ZERO))
    else {
        return;
    };
    for _ in 0..4 {
        let mut client = connect(&proxy);
        client
            .write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\nsome")
            .expect("connected");
        let answer = head_of(&mut client);
        assert_eq!(status(&answer), 403, "{answer}");
        drop(client);
    }
    wait_for(|| left.load(Ordering::SeqCst) == came.load(Ordering::SeqCst));
    assert_eq!((upstreams.statuses()[0].in_flight, upstreams.statuses()[0].failures), (0, 0));
}

fn an_idle_upstream_connection_closes_without_further_requests(choice: DriverChoice) {
    let left = Arc::new(AtomicUsize::new(0));
    let noted = Arc::clone(&left);
    let (url, _) = peer(move |_, mut stream| {
        while !head_of(&mut stream).is_empty() {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
        noted.fetch_add(1, Ordering::SeqCst);
    });
    let upstreams = Upstreams::new([url]).expect("a URL");
    let short = |proxy: ReverseProxy| proxy.idle_connections(8, Duration::from_millis(300));
    let Some(proxy) = proxy(choice, upstreams, short) else { return };
    for round in 1..=2 {
        let mut client = connect(&proxy);
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("connected");
        assert_eq!(status(&head_of(&mut client)), 200);
        wait_for(|| left.load(Ordering::SeqCst) == round);
    }
    // A waiting connection does not delay the shutdown.
    let mut client = connect(&proxy);
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("connected");
    assert_eq!(status(&head_of(&mut client)), 200);
    drop(client);
    proxy.graceful_shutdown().expect("the shutdown succeeds");
}

fn a_tunnel_that_one_side_has_ended_does_not_stay_for_ever(choice: DriverChoice) {
    let (url, _) = peer(|_, mut stream| {
        drop(head_of(&mut stream));
        let _ = stream.write_all(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: chat\r\n\r\n",
        );
        // Never ends its side, and sends nothing.
        thread::sleep(PATIENCE * 2);
        drop(stream);
    });
    let upstreams = Upstreams::new([url]).expect("a URL");
    let quick = |proxy: ReverseProxy| proxy.body_idle_timeout(Duration::from_millis(300));
    let Some(proxy) = proxy(choice, upstreams.clone(), quick) else { return };
    let begin = || {
        let mut client = connect(&proxy);
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n")
            .expect("connected");
        assert_eq!(status(&head_of(&mut client)), 101);
        client
    };
    let silent = begin();
    let ended = begin();
    ended.shutdown(Shutdown::Write).expect("connected");
    wait_for(|| upstreams.statuses()[0].in_flight == 1);
    // As long as neither side has ended, silence is allowed.
    thread::sleep(Duration::from_millis(600));
    assert_eq!(upstreams.statuses()[0].in_flight, 1);
    drop(silent);
    wait_for(|| upstreams.statuses()[0].in_flight == 0);
}

fn a_response_with_more_fields_than_the_proxy_takes_says_nothing_about_health(
    choice: DriverChoice,
) {
    let with_cookies = |count: usize| -> &'static str {
        let cookies = "Set-Cookie: a=1\r\n".repeat(count);
        format!("HTTP/1.1 200 OK\r\n{cookies}Content-Length: 0\r\n\r\n").leak()
    };
    for (count, expected) in [(200, 200), (300, 502)] {
        let (url, _) = answering(with_cookies(count));
        let upstreams = Upstreams::new([url]).expect("a URL");
        let Some(proxy) = proxy(choice, upstreams.clone(), |it| it) else { return };
        for _ in 0..4 {
            assert_eq!(status(&get(&proxy, "/", "")), expected, "{count} fields");
        }
        assert!(upstreams.statuses()[0].is_healthy, "{count} fields");
    }
}

fn a_request_that_says_so_goes_no_further(choice: DriverChoice) {
    let app = || App::new().subtree("/", |request: Request| echo(&request));
    let Some((proxy, _upstream)) = pair(choice, app) else { return };
    let options = |hops: &str| {
        asked(
            &proxy,
            &format!(
                "OPTIONS /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\nMax-Forwards: {hops}\r\n\r\n"
            ),
        )
    };
    assert!(options("7").contains("\nmax-forwards: 6\n"), "{}", options("7"));
    let last = options("0");
    assert!(status(&last) == 204 && !last.contains("via: 1.1"), "{last}");
    assert!(field(&last, "allow").is_some_and(|allow| allow.contains("GET")), "{last}");
    // RFC 9110 §7.6.2: other methods ignore it.
    let answer = get(&proxy, "/", "Max-Forwards: 0\r\n");
    assert!(answer.contains("\nmax-forwards: 0\n"), "{answer}");
}

fn forwarding_and_connection_fields_are_removed_from_trailers(choice: DriverChoice) {
    let seen = Arc::new(Mutex::new(String::new()));
    let shared = Arc::clone(&seen);
    let (url, _) = peer(move |_, mut stream| {
        drop(head_of(&mut stream));
        let mut content = Vec::new();
        while !content.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if stream.read_exact(&mut byte).is_err() {
                break;
            }
            content.push(byte[0]);
        }
        *shared.lock().expect("the mutex is not poisoned") =
            String::from_utf8_lossy(&content).to_lowercase();
        let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 8\r\n\
            Transfer-Encoding: chunked\r\nContent-Length: 3\r\nConnection: close\r\nKeep-Alive: 5\r\n\r\n";
        let _ = stream.write_all(answer.as_bytes());
    });
    let upstreams = Upstreams::new([url]).expect("a URL");
    let Some(proxy) = proxy(choice, upstreams, |proxy| proxy) else { return };
    let answer = asked(
        &proxy,
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n\
        Trailer: x-sum, x-forwarded-for, forwarded, x_real_ip, connection, upgrade\r\n\r\n\
        2\r\nhi\r\n0\r\nx-sum: 7\r\nx-forwarded-for: 6.6.6.6\r\nforwarded: for=6.6.6.6\r\nx_real_ip: 6.6.6.6\r\nconnection: close\r\nupgrade: x\r\n\r\n",
    );
    let (head, content) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    assert_eq!(status(head), 200, "{answer}");
    assert_eq!(content.to_lowercase(), "2\r\nok\r\n0\r\nx-sum: 8\r\n\r\n", "{answer}");
    assert_eq!(
        *seen.lock().expect("the mutex is not poisoned"),
        "2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n"
    );
}

/// An HTTP/2 client.
fn streams(running: &RunningServer) -> Streams<SocketWire> {
    let address = running.http_address().expect("the server has an HTTP listener");
    let mut client = Streams::new(SocketWire::connect(&ListenAddr::Tcp(address)));
    client.authority = "a.example".to_owned();
    client
}

fn requests_of_http2_are_whole_for_an_upstream_of_http1(choice: DriverChoice) {
    let app = || {
        App::new().subtree("/", async |request: Request| {
            let text = echo(&request);
            let body = request.body.into_bytes(1 << 20).await.expect("content");
            format!("{text}\n\n{}", String::from_utf8_lossy(&body))
        })
    };
    let Some((proxy, _upstream)) = pair(choice, app) else { return };
    block_on(async {
        let mut client = streams(&proxy);
        let fields = [("cookie", "a=b"), ("cookie", "c=d"), ("te", "trailers"), ("x-a", "1")];
        let id = client.open("GET", "/x?y", &fields, true);
        let answer = client.answer(id).await;
        let text = format!("{}\n", answer.text());
        for line in [
            "\nhost: a.example\n",
            "\ncookie: a=b; c=d\n",
            "\nte: trailers\n",
            "\nvia: 2.0 peregrine\n",
        ] {
            assert!(text.contains(line), "{line:?} {text}");
        }
        assert!(text.starts_with("GET /x?y\n") && !text.contains("\n:"), "{text}");
        for method in ["POST", "GET"] {
            let id = client.open(method, "/", &[], false);
            client.upload(id, b"content of unknown length").await;
            let answer = client.answer(id).await;
            let text = answer.text();
            assert!(text.ends_with("\n\ncontent of unknown length"), "{method} {text}");
        }
    });
}

fn a_websocket_of_http2_passes_to_an_upstream_of_http1(choice: DriverChoice) {
    let app = || {
        App::new()
            .get("/chat", |upgrade: peregrine::websocket::WebSocketUpgrade| {
                upgrade.protocols(["birds"]).on_upgrade(async move |mut socket| {
                    while let Some(Ok(message)) = socket.recv().await {
                        if socket.send(message).await.is_err() {
                            break;
                        }
                    }
                })
            })
            .get("/plain", || "no")
    };
    let Some((proxy, _upstream)) = pair(choice, app) else { return };
    block_on(async {
        let mut client = streams(&proxy);
        let fields = [
            (":protocol", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-protocol", "birds"),
        ];
        let id = client.open("CONNECT", "/chat", &fields, false);
        client.expect_head(id).await;
        let answer = client.so_far(id);
        assert_eq!((answer.status(), answer.field("sec-websocket-protocol")), (200, Some("birds")));
        for name in ["sec-websocket-accept", "connection", "upgrade"] {
            assert_eq!(answer.field(name), None, "{answer:?}");
        }
        // A text message of one frame with a zero mask, and a Close; each is echoed without a mask.
        client.data(id, b"\x81\x85\0\0\0\0hello", false);
        client.expect(id, b"\x81\x05hello".len()).await;
        client.data(id, b"\x88\x82\0\0\0\0\x03\xe8", false);
        let answer = client.answer(id).await;
        assert_eq!(answer.body, b"\x81\x05hello\x88\x02\x03\xe8");
        // A resource without WebSocket responds normally, and the connection stays open.
        let id = client.open("CONNECT", "/plain", &fields, true);
        let answer = client.answer(id).await;
        assert!(answer.status() != 0 && answer.reset.is_none(), "{answer:?}");
        let id = client.get("/plain");
        assert_eq!(client.answer(id).await.text(), "no");
    });
}

fn interim_responses_pass_and_a_flood_of_them_does_not(choice: DriverChoice) {
    let early = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\nConnection: x-hop\r\nX-Hop: 1\r\n\r\n";
    // Before the response, and together with it.
    for (count, is_slow) in [(1, true), (3, true), (1, false), (3, false), (1000, false)] {
        let (url, _) = peer(move |_, mut stream| {
            drop(head_of(&mut stream));
            let _ = stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
            let mut unsent = String::new();
            for _ in 0..count {
                unsent.push_str(early);
                if is_slow {
                    let _ = stream.write_all(take(&mut unsent).as_bytes());
                    thread::sleep(Duration::from_millis(20));
                }
            }
            unsent.push_str("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            let _ = stream.write_all(unsent.as_bytes());
        });
        let upstreams = Upstreams::new([url]).expect("a URL");
        let Some(proxy) = proxy(choice, upstreams, |proxy| proxy) else { return };
        let answer = get(&proxy, "/", "");
        let hints = answer.matches("HTTP/1.1 103").count();
        assert!(answer.ends_with("\r\n\r\nok") && !answer.contains("x-hop"), "{answer}");
        assert!(!answer.contains("HTTP/1.1 100"), "{answer}");
        if count < 5 {
            assert_eq!(hints, count, "{answer}");
            assert!(answer.to_lowercase().contains("link: </a.css>; rel=preload"), "{answer}");
        } else {
            assert!(hints <= 16, "{hints}");
        }
        // An HTTP/1.0 client does not understand them.
        let old = asked(&proxy, "GET / HTTP/1.0\r\nHost: a\r\n\r\n");
        assert!(!old.contains(" 103 ") && old.ends_with("ok"), "{old}");
    }
}

/// Reports the protocol of the request, and has a WebSocket.
fn versions() -> App {
    App::new()
        .get("/version", |request: Request| {
            format!("{:?}\n{}", request.parts.head.version(), echo(&request))
        })
        .get("/port", |peer: PeerAddr| format!("{peer:?}"))
        .get("/large", || vec![b'x'; 3 << 20])
        .post("/echo", (async |body: Body| body).body_limit(1 << 30))
        .get("/chat", |upgrade: peregrine::websocket::WebSocketUpgrade| {
            upgrade.on_upgrade(async move |mut socket| {
                while let Some(Ok(message)) = socket.recv().await {
                    if socket.send(message).await.is_err() {
                        break;
                    }
                }
            })
        })
}

/// The HTTPS URL of a server, with a name from its certificate.
fn secure_url(running: &RunningServer) -> String {
    let address = running.addresses().find_map(|place| match place {
        ListenAddr::Tcp(address) => Some(*address),
        _ => None,
    });
    format!("https://localhost:{}", address.expect("the server listens on this port").port())
}

fn over_tls(choice: DriverChoice) -> Option<RunningServer> {
    let server = Server::new().listen_tls("127.0.0.1:0", secure::server_tls()).driver(choice);
    started(server.workers(NonZeroUsize::MIN).quiet().start(versions))
}

fn talks(proxy: &RunningServer) {
    let mut client = connect(proxy);
    let request = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    client.write_all(request.as_bytes()).expect("connected");
    let head = head_of(&mut client);
    assert_eq!(
        (status(&head), field(&head, "sec-websocket-accept")),
        (101, Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="))
    );
    client.write_all(b"\x81\x85\0\0\0\0hello").expect("connected");
    let mut answer = [0; 7];
    client.read_exact(&mut answer).expect("a response");
    assert_eq!(&answer, b"\x81\x05hello");
}

fn an_upstream_over_tls_gets_http2_requests_only_with_a_valid_certificate(choice: DriverChoice) {
    let Some(upstream) = over_tls(choice) else { return };
    let url = secure_url(&upstream);
    for version in secure::VERSIONS {
        let config = secure::client_config(version);
        let upstreams = Upstreams::with_tls_config([url.as_str()], &config).expect("a URL");
        let upstreams = upstreams.health_check("/version", Duration::from_millis(1));
        let proxy =
            proxy(choice, upstreams.clone(), |proxy| proxy).expect("the driver is available");
        for _ in 0..3 {
            let answer = get(&proxy, "/version", "TE: trailers\r\n");
            assert!(status(&answer) == 200 && answer.contains("\r\n\r\nHTTP/2.0\n"), "{answer}");
            assert!(answer.contains("\nte: trailers\n"), "{answer}");
            // The host that the client requested, not the connection's.
            assert!(answer.contains("\nx-forwarded-host: a.example"), "{answer}");
            assert_eq!(field(&answer, "via"), Some("2.0 peregrine"), "{answer}");
        }
        talks(&proxy);
        assert_eq!(upstreams.statuses()[0].failures, 0);
        // A name that the certificate does not have.
        let other = url.replace("localhost", "127.0.0.2");
        let upstreams = Upstreams::with_tls_config([other], &config).expect("a URL");
        let proxy = self::proxy(choice, upstreams, |proxy| proxy).expect("the driver is available");
        assert_eq!(status(&get(&proxy, "/version", "")), 502);
    }
    // No CA that the system trusts has signed it; a machine without trusted CAs reports that at
    // once.
    if let Ok(upstreams) = Upstreams::new([url]) {
        let proxy = proxy(choice, upstreams, |proxy| proxy).expect("the driver is available");
        let answer = get(&proxy, "/version", "");
        assert!(status(&answer) == 502 && answer.contains("upstream-unreachable"), "{answer}");
    }
}

fn an_upstream_of_http2_gives_and_takes_all_that_one_of_http1_does(choice: DriverChoice) {
    let Some(upstream) = serve(choice, versions) else { return };
    let upstreams = Upstreams::new([url(&upstream)]).expect("a URL").http2_prior_knowledge();
    let Some(proxy) = proxy(choice, upstreams.clone(), |proxy| proxy) else { return };
    assert!(get(&proxy, "/version", "").contains("\r\n\r\nHTTP/2.0\n"));
    let answer = get(&proxy, "/large", "");
    assert_eq!(field(&answer, "content-length"), Some("3145728"));
    assert_eq!(answer.split_once("\r\n\r\n").expect("a head").1.len(), 3 << 20);
    let large = "y".repeat(3 << 20);
    let length = large.len();
    let answer = asked(
        &proxy,
        &format!(
            "POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{large}"
        ),
    );
    assert!(answer.ends_with(&large), "{}", &answer[..300.min(answer.len())]);
    let answer = asked(
        &proxy,
        "POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close, te\r\nTE: trailers\r\nTrailer: x-sum\r\n\
        Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nx-sum: 7\r\n\r\n",
    );
    let answer = answer.to_lowercase();
    assert!(answer.ends_with("4\r\nbody\r\n0\r\nx-sum: 7\r\n\r\n"), "{answer}");
    let head = asked(&proxy, "HEAD /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert_eq!((status(&head), field(&head, "content-length")), (200, Some("3145728")));
    talks(&proxy);
    assert_eq!(status(&get(&proxy, "/none", "")), 404);
    let states = upstreams.statuses();
    assert!(states[0].failures == 0 && states[0].in_flight <= 1, "{states:?}");
}

fn requests_share_a_connection_of_http2_and_a_new_one_follows_its_end(choice: DriverChoice) {
    let Some(upstream) = serve(choice, versions) else { return };
    let address = upstream.http_address().expect("the server has an HTTP listener");
    let upstreams = Upstreams::new([url(&upstream)]).expect("a URL").http2_prior_knowledge();
    let Some(proxy) = proxy(choice, upstreams.clone(), |proxy| proxy) else { return };
    let port = || get(&proxy, "/port", "").split("\r\n\r\n").nth(1).map(str::to_owned);
    let first = port();
    // Unread responses neither block other requests nor use a connection each.
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let mut client = connect(&proxy);
            client.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").expect("connected");
            assert_eq!(status(&head_of(&mut client)), 200);
            client
        })
        .collect();
    assert!(first.is_some() && port() == first);
    assert!(upstreams.statuses()[0].in_flight > 0);
    drop(waiting);
    wait_for(|| upstreams.statuses()[0].in_flight == 0);
    assert_eq!(port(), first);
    // The upstream stops, and another one takes its address.
    drop(upstream.graceful_shutdown().expect("the shutdown succeeds"));
    assert_eq!(status(&get(&proxy, "/port", "")), 502);
    let place = address.to_string();
    let server = Server::bind(place.as_str()).driver(choice).workers(NonZeroUsize::MIN).quiet();
    let again = server.start(versions).expect("the address is free again");
    let answer = get(&proxy, "/port", "");
    assert!(status(&answer) == 200, "{answer}");
    drop(again);
}
