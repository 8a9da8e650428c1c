//! WebSockets through the test client, without a network and with virtual time.

use futures_util::{StreamExt, stream};
use peregrine::http::StatusCode;
use peregrine::prelude::*;
use peregrine::web::connection::{ConnectionInfo, TlsInfo};
use peregrine::web::testing::{TestClient, TestMessage};
use peregrine::websocket::{
    CloseCode, JsonError, Message, RecvError, SendError, TrySendError, WebSocket, WebSocketLimits,
    WebSocketUpgrade,
};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Events recorded by the handlers.
type Seen = Rc<RefCell<Vec<String>>>;

fn on<F>(handler: F) -> TestClient
where
    F: AsyncFn(WebSocket) + Clone + 'static,
{
    with(|upgrade| upgrade, handler)
}

fn with<F, S>(set: S, handler: F) -> TestClient
where
    F: AsyncFn(WebSocket) + Clone + 'static,
    S: Fn(WebSocketUpgrade) -> WebSocketUpgrade + 'static,
{
    let handle = move |upgrade: WebSocketUpgrade| {
        let handler = handler.clone();
        set(upgrade).on_upgrade(async move |socket| handler(socket).await)
    };
    App::new().get("/", handle).test()
}

async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) = socket.recv().await {
        if socket.send(message).await.is_err() {
            return;
        }
    }
}

fn close(code: u16) -> Option<TestMessage> {
    Some(TestMessage::Close(Some((code, String::new()))))
}

#[test]
fn messages_go_both_ways_in_order() {
    let mut socket = on(echo).websocket("/").connect_blocking();
    for size in [0, 1, 125, 126, 65_535, 65_536, 300_000] {
        let text = "x".repeat(size);
        socket.send_blocking(&*text);
        assert_eq!(socket.recv_blocking().expect("an answer").text(), text);
        socket.send_blocking(vec![7; size]);
        assert_eq!(socket.recv_blocking(), Some(TestMessage::Binary(vec![7; size].into())));
    }
    socket.send_blocking(TestMessage::Close(Some((1000, "done".into()))));
    assert_eq!(socket.recv_blocking(), close(1000));
    assert_eq!(socket.recv_blocking(), None);
}

#[test]
fn halves_are_a_stream_and_a_sink_which_waits_for_room() {
    let seen = Seen::default();
    let sent = Rc::clone(&seen);
    let client = with(
        |upgrade| {
            upgrade
                .limits(WebSocketLimits { send_queue_bytes_max: 10, ..WebSocketLimits::default() })
        },
        move |socket: WebSocket| {
            let sent = Rc::clone(&sent);
            async move {
                let (sender, receiver) = socket.split();
                let texts = receiver.filter_map(async |message| match message {
                    Ok(message @ Message::Text(_)) => Some(Ok(message)),
                    _ => None,
                });
                let result = texts.forward(sender).await;
                sent.borrow_mut().push(format!("{result:?}"));
            }
        },
    );
    let mut socket = client.websocket("/").connect_blocking();
    for number in 0..100 {
        socket.send_blocking(&*format!("number {number}"));
    }
    for number in 0..100 {
        assert_eq!(socket.recv_blocking().expect("an answer").text(), format!("number {number}"));
    }
    socket.send_blocking(TestMessage::Close(None));
    assert_eq!(socket.recv_blocking(), Some(TestMessage::Close(None)));
    assert_eq!(socket.recv_blocking(), None);
    assert_eq!(*seen.borrow(), ["Ok(())"]);

    // If a stream that the handler forwards ends, the WebSocket closes.
    let client = on(|socket: WebSocket| async move {
        let counted = stream::iter(["one", "two"]).map(|text| Ok(Message::from(text)));
        let _ = counted.forward(socket).await;
    });
    let mut socket = client.websocket("/").connect_blocking();
    assert_eq!(socket.recv_blocking().expect("a message").text(), "one");
    assert_eq!(socket.recv_blocking().expect("a message").text(), "two");
    assert_eq!(socket.recv_blocking(), close(1000));
}

#[test]
fn what_is_no_handshake_is_refused_with_what_it_lacks() {
    let client = App::new().any("/", |upgrade: WebSocketUpgrade| upgrade.on_upgrade(echo)).test();
    let plain = client.get("/").send_blocking();
    assert_eq!((plain.status().as_u16(), plain.header("upgrade")), (426, Some("websocket")));
    let of = |name: &str, value: &str| {
        let mut request = client.get("/").header("connection", "upgrade");
        request = request.header("upgrade", "websocket");
        for (field, right) in
            [("sec-websocket-version", "13"), ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")]
        {
            request = request.header(field, if field == name { value } else { right });
        }
        request.send_blocking()
    };
    let old = of("sec-websocket-version", "8");
    assert_eq!((old.status().as_u16(), old.header("sec-websocket-version")), (426, Some("13")));
    assert_eq!(of("sec-websocket-key", "short").status(), 400);
    let posted = client.post("/").header("connection", "upgrade").header("upgrade", "websocket");
    let posted = posted.send_blocking();
    assert_eq!((posted.status().as_u16(), posted.header("allow")), (405, Some("GET")));
    assert_eq!(client.websocket("/").send_blocking().status(), 101);
}

#[test]
fn a_page_without_a_websocket_may_have_the_same_route() {
    async fn page(upgrade: Option<WebSocketUpgrade>) -> Response {
        upgrade.map_or_else(|| "a page".into_response(), |upgrade| upgrade.on_upgrade(echo))
    }
    let client = App::new().get("/", page).test();
    assert_eq!(client.get("/").send_blocking().text(), "a page");
    assert_eq!(client.websocket("/").send_blocking().status(), 101);
    let old = client.get("/").header("connection", "upgrade").header("upgrade", "websocket");
    assert_eq!(old.send_blocking().status(), 426);
}

#[test]
fn pages_of_other_origins_are_refused_unless_they_are_named() {
    let status = |client: &TestClient, origin: &str| {
        client.websocket("/").header("origin", origin).send_blocking().status().as_u16()
    };
    let client = on(echo);
    assert_eq!(client.websocket("/").send_blocking().status(), 101);
    assert_eq!(status(&client, "http://test.example"), 101);
    assert_eq!(status(&client, "https://test.example"), 101);
    assert_eq!(status(&client, "https://other.example"), 403);
    assert_eq!(status(&client, "null"), 403);
    let secure = ConnectionInfo { tls: Some(Arc::new(TlsInfo::default())), ..Default::default() };
    assert_eq!(status(&client.clone().with_connection(secure), "http://test.example"), 403);
    let behind = ConnectionInfo { behind_gateway: true, ..Default::default() };
    assert_eq!(status(&client.clone().with_connection(behind.clone()), "http://test.example"), 403);
    assert_eq!(status(&client.with_connection(behind), "https://test.example"), 101);
    let client = with(|upgrade| upgrade.allow_origins(["https://other.example"]), echo);
    assert_eq!(status(&client, "https://other.example"), 101);
    assert_eq!(status(&client, "https://third.example"), 403);
    assert_eq!(
        status(&with(WebSocketUpgrade::allow_any_origin, echo), "https://third.example"),
        101
    );
}

#[test]
fn the_client_s_first_subprotocol_that_is_known_is_chosen() {
    let client = with(
        |upgrade| upgrade.protocols(["b", "a"]),
        async |socket: WebSocket| {
            let chosen = socket.protocol().unwrap_or("none").to_owned();
            socket.send(chosen).await.expect("open");
        },
    );
    let open = |offer: &str| {
        let mut socket =
            client.websocket("/").header("sec-websocket-protocol", offer).connect_blocking();
        let seen = socket.recv_blocking().expect("a text").text().to_owned();
        (socket.protocol().map(str::to_owned), seen)
    };
    assert_eq!(open("x, a, b"), (Some("a".into()), "a".into()));
    assert_eq!(open("x"), (None, "none".into()));
}

#[test]
fn a_handler_that_ends_closes_in_order() {
    let mut socket = on(async |_| {}).websocket("/").connect_blocking();
    assert_eq!(socket.recv_blocking(), close(1000));
    assert_eq!(socket.recv_blocking(), None);
}

#[test]
fn a_handler_says_why_it_closes_and_hears_the_end() {
    let seen = Seen::default();
    let handler = {
        let seen = Rc::clone(&seen);
        async move |socket: WebSocket| {
            let closed = socket.close(CloseCode(4000), "enough").await;
            seen.borrow_mut().push(format!("{closed:?}"));
        }
    };
    let mut socket = on(handler).websocket("/").connect_blocking();
    let expected = TestMessage::Close(Some((4000, "enough".into())));
    assert_eq!(socket.recv_blocking(), Some(expected));
    assert_eq!(socket.recv_blocking(), None);
    assert_eq!(*seen.borrow(), ["Ok(())"]);
}

#[test]
fn a_handler_sees_how_its_peer_ended() {
    let seen = Seen::default();
    let handler = {
        let seen = Rc::clone(&seen);
        async move |mut socket: WebSocket| {
            while let Some(next) = socket.recv().await {
                let text = match next {
                    Ok(Message::Close(None)) => "close".to_owned(),
                    Ok(Message::Close(Some(close))) => format!("{} {}", close.code.0, close.reason),
                    Ok(other) => panic!("{other:?}"),
                    Err(error) => format!("{error:?}"),
                };
                seen.borrow_mut().push(text);
            }
            assert_eq!(socket.send("late").await, Err(SendError::Closed));
        }
    };
    let client = on(handler);
    let mut socket = client.websocket("/").connect_blocking();
    socket.send_blocking(TestMessage::Close(Some((3001, "tired".into()))));
    assert_eq!(socket.recv_blocking(), close(3001));
    let mut socket = client.websocket("/").connect_blocking();
    socket.send_blocking(TestMessage::Close(None));
    assert_eq!(socket.recv_blocking(), Some(TestMessage::Close(None)));
    let mut socket = client.websocket("/").connect_blocking();
    socket.abort();
    assert_eq!(socket.recv_blocking(), None);
    assert_eq!(
        *seen.borrow(),
        ["3001 tired", "close", &format!("{:?}", RecvError::ConnectionLost)]
    );
}

#[test]
fn a_sender_waits_for_room_and_try_send_does_not() {
    let seen = Seen::default();
    let handler = {
        let seen = Rc::clone(&seen);
        async move |socket: WebSocket| {
            let (sender, mut receiver) = socket.split();
            sender.send(vec![0; 1_000]).await.expect("there is room");
            let full = sender.try_send("more");
            assert!(matches!(full, Err(TrySendError::Full(Message::Text(_)))), "{full:?}");
            seen.borrow_mut().push("full".into());
            sender.send("then").await.expect("there is room again");
            seen.borrow_mut().push("sent".into());
            while let Some(Ok(_)) = receiver.recv().await {}
        }
    };
    let limits = WebSocketLimits { send_queue_bytes_max: 1_000, ..WebSocketLimits::default() };
    let mut socket =
        with(move |upgrade| upgrade.limits(limits), handler).websocket("/").connect_blocking();
    assert!(matches!(socket.recv_blocking(), Some(TestMessage::Binary(_))));
    assert_eq!(socket.recv_blocking().expect("a text").text(), "then");
    assert_eq!(*seen.borrow(), ["full", "sent"]);
}

#[derive(serde::Deserialize, serde::Serialize)]
struct Point {
    x: i32,
}

#[test]
fn a_channel_of_json_carries_values_and_tells_what_is_none() {
    let seen = Seen::default();
    let handler = {
        let seen = Rc::clone(&seen);
        async move |socket: WebSocket| {
            let mut channel = socket.json::<Point, Point>();
            loop {
                match channel.recv().await {
                    Some(Ok(Point { x })) => channel.send(&Point { x: x + 1 }).await.expect("open"),
                    Some(Err(error)) => {
                        let kind = match error {
                            JsonError::Deserialize(_) => "malformed",
                            JsonError::NotText => "not text",
                            _ => "other",
                        };
                        seen.borrow_mut().push(kind.into());
                    }
                    None => return,
                }
            }
        }
    };
    let client = on(handler);
    let mut socket = client.websocket("/").connect_blocking();
    socket.send_blocking(r#"{"x": 1}"#);
    assert_eq!(socket.recv_blocking().expect("a value").text(), r#"{"x":2}"#);
    socket.send_blocking(r#"{"x": "#);
    let Some(TestMessage::Close(Some((1007, reason)))) = socket.recv_blocking() else {
        panic!("expected a Close frame with 1007");
    };
    assert!(reason.contains("line 1"), "{reason}");
    let mut socket = client.websocket("/").connect_blocking();
    socket.send_blocking(b"{}".to_vec());
    assert!(matches!(socket.recv_blocking(), Some(TestMessage::Close(Some((1003, _))))));
    assert_eq!(*seen.borrow(), ["malformed", "not text"]);
}

#[test]
fn the_form_of_problems_is_the_application_s() {
    let form = |problem: Problem, _: &RequestHead| (problem.status, "refused");
    let handle = |upgrade: WebSocketUpgrade| upgrade.on_upgrade(echo);
    let client = App::new().get("/", handle).on_problem(form).test();
    let answer = client.get("/").send_blocking();
    assert_eq!((answer.status(), answer.text()), (StatusCode::UPGRADE_REQUIRED, "refused".into()));
    assert_eq!(answer.header("upgrade"), Some("websocket"));
    let answer = client.websocket("/").header("origin", "http://x.test").send_blocking();
    assert_eq!((answer.status(), answer.text()), (StatusCode::FORBIDDEN, "refused".into()));
}

#[test]
fn a_handler_that_panics_before_it_has_a_future_is_a_1011_too() {
    let called = |upgrade: WebSocketUpgrade| {
        upgrade.on_upgrade(|_| -> std::future::Ready<()> { panic!("there is no future") })
    };
    let polled =
        |upgrade: WebSocketUpgrade| upgrade.on_upgrade(async |_| panic!("there is a future"));
    let client = App::new().get("/called", called).get("/polled", polled).test();
    for path in ["/called", "/polled"] {
        let mut socket = client.websocket(path).connect_blocking();
        assert_eq!(socket.recv_blocking(), close(1011), "{path}");
    }
}
