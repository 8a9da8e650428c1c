//! Connections as an application sees them: kept, closed, shut down gracefully.

use crate::axum_behaviour::cases;
use crate::axum_behaviour::compare::Case;
use crate::axum_behaviour::reply::{Ask, Reply};
use axum::Router;
use axum::http::{StatusCode, Version};
use axum::routing::{any, get, post};
use std::io::{BufReader, Read, Write};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

cases! {
    requests_on_one_connection_are_answered_one_by_one,
    requests_sent_at_once_are_answered_in_order,
    a_connection_ends_when_its_peer_asks_for_it,
    a_connection_ends_when_the_handler_asks_for_it,
    http_1_0_is_answered_and_closed,
    http_1_0_may_ask_to_be_kept,
    a_body_that_nobody_read_does_not_disturb_the_next_request,
    a_body_in_chunks_that_nobody_read_does_not_disturb_the_next_request,
    a_panic_of_a_handler_ends_its_connection_only,
    a_handler_is_dropped_when_its_peer_leaves,
    a_quiet_stream_is_dropped_when_its_peer_leaves,
    shutting_down_lets_a_request_be_answered,
    shutting_down_ends_idle_connections,
    shutting_down_takes_no_new_connections,
    options_of_the_whole_server_reach_the_router,
    connect_reaches_the_fallback,
    requests_that_are_none_are_a_400,
    a_head_that_is_too_large_is_a_431,
}

/// Sends requests on one connection, and returns the responses and any data after them.
fn on_one_connection(case: &mut Case, asks: &[Ask], at_once: bool) -> String {
    case.each(|server| {
        let mut stream = server.connect();
        if at_once {
            let all: Vec<u8> = asks.iter().flat_map(Ask::bytes).collect();
            stream.write_all(&all).expect("the server reads");
        }
        let mut reader = BufReader::new(stream.try_clone().expect("a descriptor is free"));
        let mut text = String::new();
        for ask in asks {
            if !at_once {
                stream.write_all(&ask.bytes()).expect("the server reads");
            }
            match Reply::take(&mut reader, ask.is_head()) {
                Ok(reply) => text += &format!("{} {};", reply.status(), reply.text()),
                Err(_) => text += "none;",
            }
        }
        text
    })
}

fn some_answers() -> Router {
    Router::new()
        .route("/", get("root"))
        .route("/echo", post(async |text: String| text))
        .route("/deaf", post("deaf"))
}

fn requests_on_one_connection_are_answered_one_by_one(case: &mut Case) {
    case.serve(some_answers());
    let asks = [
        Ask::new("GET", "/"),
        Ask::new("POST", "/echo").body("one"),
        Ask::new("GET", "/x"),
        Ask::new("HEAD", "/"),
        Ask::new("POST", "/echo").chunked("two", 1),
        Ask::new("POST", "/"),
        Ask::new("GET", "/"),
    ];
    let seen = on_one_connection(case, &asks, false);
    assert_eq!(seen, "200 root;200 one;404 ;200 ;200 two;405 ;200 root;");
}

fn requests_sent_at_once_are_answered_in_order(case: &mut Case) {
    case.serve(some_answers());
    let asks = [
        Ask::new("POST", "/echo").body("one"),
        Ask::new("GET", "/"),
        Ask::new("POST", "/echo").chunked("two", 2),
        Ask::new("GET", "/x"),
    ];
    assert_eq!(on_one_connection(case, &asks, true), "200 one;200 root;200 two;404 ;");
}

fn a_connection_ends_when_its_peer_asks_for_it(case: &mut Case) {
    case.serve(some_answers());
    let asks = [Ask::new("GET", "/").field("connection", "close"), Ask::new("GET", "/")];
    assert_eq!(on_one_connection(case, &asks, true), "200 root;none;");
    let field = case.each(|server| {
        let text = server.talk("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        text.to_ascii_lowercase().contains("\r\nconnection: close\r\n").to_string()
    });
    assert_eq!(field, "true");
}

fn a_connection_ends_when_the_handler_asks_for_it(case: &mut Case) {
    case.serve(Router::new().route("/", get(([("connection", "close")], "last"))));
    let asks = [Ask::new("GET", "/"), Ask::new("GET", "/")];
    assert_eq!(on_one_connection(case, &asks, true), "200 last;none;");
}

fn http_1_0_is_answered_and_closed(case: &mut Case) {
    case.serve(Router::new().route("/", get(async |version: Version| format!("{version:?}"))));
    let text = case.each(|server| {
        let text = server.talk("GET / HTTP/1.0\r\n\r\n");
        text.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned()
    });
    assert_eq!(text, "HTTP/1.0");
}

fn http_1_0_may_ask_to_be_kept(case: &mut Case) {
    case.serve(some_answers());
    let text = case.each(|server| {
        let mut stream = server.connect();
        let mut text = String::new();
        for _ in 0..2 {
            let ask = b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n";
            stream.write_all(ask).expect("the server reads");
            let reply = Reply::read(&mut stream, false).expect("a response");
            text += &format!("{} {};", reply.status(), reply.text());
        }
        text
    });
    assert_eq!(text, "200 root;200 root;");
}

fn a_body_that_nobody_read_does_not_disturb_the_next_request(case: &mut Case) {
    case.serve(some_answers());
    let asks = [Ask::new("POST", "/deaf").body("a".repeat(1000)), Ask::new("GET", "/")];
    assert_eq!(on_one_connection(case, &asks, false), "200 deaf;200 root;");
}

fn a_body_in_chunks_that_nobody_read_does_not_disturb_the_next_request(case: &mut Case) {
    case.serve(some_answers());
    let asks = [Ask::new("POST", "/deaf").chunked("a".repeat(1000), 100), Ask::new("GET", "/")];
    // The reference closes such a connection; Peregrine keeps it.
    case.differs(r#""200 deaf;none;" is "200 deaf;200 root;""#);
    assert_eq!(on_one_connection(case, &asks, false), "200 deaf;none;");
}

fn a_panic_of_a_handler_ends_its_connection_only(case: &mut Case) {
    let panics = async || -> &'static str { panic!("on purpose") };
    case.serve(Router::new().route("/panic", get(panics)).route("/", get("root")));
    // The reference closes without a response; Peregrine sends a 500 first.
    case.differs(r#""" is "HTTP/1.1 500"#);
    case.each(|server| {
        let text = server.talk(Ask::new("GET", "/panic").bytes());
        text.split(" Internal").next().unwrap_or_default().to_owned()
    });
    case.get("/").is(200, "root");
}

/// State shared by a case and the handlers of [`gated`].
#[derive(Clone)]
struct Gate {
    /// A permit lets one handler respond.
    open: Arc<Semaphore>,
    /// One permit per handler that has started.
    begun: Arc<Semaphore>,
    /// One permit per handler that was dropped, whether or not it had responded.
    dropped: Arc<Semaphore>,
}

struct Watch(Arc<Semaphore>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

/// A handler that waits for the gate, and counts its start and its drop.
fn gated() -> (Router, Gate) {
    let new = || Arc::new(Semaphore::new(0));
    let gate = Gate { open: new(), begun: new(), dropped: new() };
    let shared = gate.clone();
    let handler = get(move || {
        let Gate { open, begun, dropped } = shared.clone();
        async move {
            let _watch = Watch(dropped);
            begun.add_permits(1);
            open.acquire().await.map_or("shut", |permit| {
                permit.forget();
                "open"
            })
        }
    });
    (Router::new().route("/", handler).route("/now", get("now")), gate)
}

/// Waits until `condition` holds. Returns false if it does not hold within ten seconds.
fn wait_until(condition: impl Fn() -> bool) -> bool {
    (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        condition()
    })
}

fn a_handler_is_dropped_when_its_peer_leaves(case: &mut Case) {
    let (router, gate) = gated();
    case.serve(router);
    let seen = case.each(|server| {
        let before = [&gate.begun, &gate.dropped].map(|count| count.available_permits());
        let mut stream = server.connect();
        stream.write_all(&Ask::new("GET", "/").bytes()).expect("the server reads");
        let has_begun = wait_until(|| gate.begun.available_permits() > before[0]);
        drop(stream);
        let is_dropped = wait_until(|| gate.dropped.available_permits() > before[1]);
        format!("{has_begun} {is_dropped}")
    });
    assert_eq!(seen, "true true");
}

fn a_quiet_stream_is_dropped_when_its_peer_leaves(case: &mut Case) {
    use tokio::sync::mpsc::{Sender, channel};
    let senders = Arc::new(std::sync::Mutex::new(Vec::<Sender<String>>::new()));
    let kept = senders.clone();
    let handler = get(async move || {
        let (sender, receiver) = channel(1);
        kept.lock().expect("the mutex is not poisoned").push(sender);
        axum::body::Body::from_stream(crate::axum_behaviour::streams::Received(receiver))
    });
    case.serve(Router::new().route("/", handler));
    let seen = case.each(|server| {
        let mut stream = server.connect();
        stream.write_all(&Ask::new("GET", "/").bytes()).expect("the server reads");
        // Once everything is read, closing sends FIN and no reset.
        crate::axum_behaviour::streams::read_until(&mut stream, "\r\n\r\n");
        drop(stream);
        let sender =
            senders.lock().expect("the mutex is not poisoned").pop().expect("a request arrived");
        wait_until(|| sender.is_closed()).to_string()
    });
    assert_eq!(seen, "true");
}

fn shutting_down_lets_a_request_be_answered(case: &mut Case) {
    let (router, gate) = gated();
    case.serve(router);
    let seen = case.each(|server| {
        let before = gate.begun.available_permits();
        let mut stream = server.connect();
        stream.write_all(&Ask::new("GET", "/").bytes()).expect("the server reads");
        assert!(wait_until(|| gate.begun.available_permits() > before), "the handler begins");
        server.shut_down();
        // The shutdown has started once connections are refused.
        assert!(
            wait_until(|| std::net::TcpStream::connect(server.address).is_err()),
            "the shutdown starts"
        );
        gate.open.add_permits(1);
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("the server closes the connection cleanly");
        format!("{} {}", text.starts_with("HTTP/1.1 200"), text.ends_with("open"))
    });
    assert_eq!(seen, "true true");
}

fn shutting_down_ends_idle_connections(case: &mut Case) {
    case.serve(some_answers());
    let seen = case.each(|server| {
        let mut stream = server.connect();
        stream.write_all(&Ask::new("GET", "/").bytes()).expect("the server reads");
        let reply = Reply::read(&mut stream, false).expect("a response");
        server.shut_down();
        let mut rest = Vec::new();
        let ended = stream.read_to_end(&mut rest).map_err(|error| error.kind());
        format!("{} {ended:?}", reply.text())
    });
    assert_eq!(seen, "root Ok(0)");
}

fn shutting_down_takes_no_new_connections(case: &mut Case) {
    case.serve(some_answers());
    let seen = case.each(|server| {
        assert!(server.talk("GET / HTTP/1.0\r\n\r\n").ends_with("root"));
        server.shut_down();
        let is_refused = || std::net::TcpStream::connect(server.address).is_err();
        wait_until(is_refused).to_string()
    });
    assert_eq!(seen, "true");
}

fn options_of_the_whole_server_reach_the_router(case: &mut Case) {
    let fallback = async |uri: axum::http::Uri| (StatusCode::NOT_FOUND, uri.to_string());
    case.serve(Router::new().route("/", any("root")).fallback(fallback));
    // Here the server itself responds.
    for known in ["status 404 is 204", "body", "content-length 1 is (none)", "content-type"] {
        case.differs(known);
    }
    case.ask("OPTIONS", "*").is(404, "*");
}

fn connect_reaches_the_fallback(case: &mut Case) {
    let fallback = async |uri: axum::http::Uri| (StatusCode::NOT_FOUND, format!("no {uri}"));
    case.serve(Router::new().route("/", any("root")).fallback(fallback));
    // Here the server refuses CONNECT.
    for known in ["status 404 is 501", "body", "content-length 16 is", "content-type"] {
        case.differs(known);
    }
    case.ask("CONNECT", "b.example:443").is(404, "no b.example:443");
}

fn requests_that_are_none_are_a_400(case: &mut Case) {
    case.serve(some_answers());
    let seen = case.each(|server| {
        let requests = ["nonsense\r\n\r\n", "GET / HTTP/1.1\r\nbad field\r\n\r\n"];
        let status = requests.map(|request| {
            let text = server.talk(request);
            text.split(' ').nth(1).unwrap_or_default().to_owned()
        });
        status.join(" ")
    });
    assert_eq!(seen, "400 400");
}

fn a_head_that_is_too_large_is_a_431(case: &mut Case) {
    case.serve(some_answers());
    let seen = case.each(|server| {
        let text = server.talk(format!(
            "GET / HTTP/1.1\r\nhost: a\r\n{}\r\n",
            "x-field: value\r\n".repeat(1000)
        ));
        text.split(' ').nth(1).unwrap_or_default().to_owned()
    });
    assert_eq!(seen, "431");
}
