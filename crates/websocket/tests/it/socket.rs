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
type EventLog = Rc<RefCell<Vec<String>>>;

fn client_for<F>(handler: F) -> TestClient
where
    F: AsyncFn(WebSocket) + Clone + 'static,
{
    client_with(|upgrade| upgrade, handler)
}

fn client_with<F, S>(configure: S, handler: F) -> TestClient
where
    F: AsyncFn(WebSocket) + Clone + 'static,
    S: Fn(WebSocketUpgrade) -> WebSocketUpgrade + 'static,
{
    let handle = move |upgrade: WebSocketUpgrade| {
        let handler = handler.clone();
        configure(upgrade).on_upgrade(async move |socket| handler(socket).await)
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
fn messages_are_echoed_in_order() {
    let mut socket = client_for(echo).websocket("/").connect_blocking();
    for size in [0, 1, 125, 126, 65_535, 65_536, 300_000] {
        let text = "x".repeat(size);
        socket.send_blocking(&*text);
        assert_eq!(socket.recv_blocking().expect("a message is received").text(), text);
        socket.send_blocking(vec![7; size]);
        assert_eq!(socket.recv_blocking(), Some(TestMessage::Binary(vec![7; size].into())));
    }
    socket.send_blocking(TestMessage::Close(Some((1000, "done".into()))));
    assert_eq!(socket.recv_blocking(), close(1000));
    assert_eq!(socket.recv_blocking(), None);
}

#[test]
fn the_halves_are_a_stream_and_a_sink_with_backpressure() {
    let log = EventLog::default();
    let handler_log = Rc::clone(&log);
    let client = client_with(
        |upgrade| {
            upgrade
                .limits(WebSocketLimits { send_queue_bytes_max: 10, ..WebSocketLimits::default() })
        },
        move |socket: WebSocket| {
            let handler_log = Rc::clone(&handler_log);
            async move {
                let (sender, receiver) = socket.split();
                let texts = receiver.filter_map(async |message| match message {
                    Ok(message @ Message::Text(_)) => Some(Ok(message)),
                    _ => None,
                });
                let result = texts.forward(sender).await;
                handler_log.borrow_mut().push(format!("{result:?}"));
            }
        },
    );
    let mut socket = client.websocket("/").connect_blocking();
    for number in 0..100 {
        socket.send_blocking(&*format!("number {number}"));
    }
    for number in 0..100 {
        assert_eq!(
            socket.recv_blocking().expect("a message is received").text(),
            format!("number {number}")
        );
    }
    socket.send_blocking(TestMessage::Close(None));
    assert_eq!(socket.recv_blocking(), Some(TestMessage::Close(None)));
    assert_eq!(socket.recv_blocking(), None);
    assert_eq!(*log.borrow(), ["Ok(())"]);

    // If a stream that the handler forwards ends, the WebSocket closes.
    let client = client_for(|socket: WebSocket| async move {
        let messages = stream::iter(["one", "two"]).map(|text| Ok(Message::from(text)));
        let _ = messages.forward(socket).await;
    });
    let mut socket = client.websocket("/").connect_blocking();
    assert_eq!(socket.recv_blocking().expect("a message is received").text(), "one");
    assert_eq!(socket.recv_blocking().expect("a message is received").text(), "two");
    assert_eq!(socket.recv_blocking(), close(1000));
}

#[test]
fn an_invalid_handshake_is_rejected_with_the_missing_part() {
    let client = App::new().any("/", |upgrade: WebSocketUpgrade| upgrade.on_upgrade(echo)).test();
    let plain = client.get("/").send_blocking();
    assert_eq!((plain.status().as_u16(), plain.header("upgrade")), (426, Some("websocket")));
    let respond_to = |name: &str, value: &str| {
        let mut request = client.get("/").header("connection", "upgrade");
        request = request.header("upgrade", "websocket");
        let valid =
            [("sec-websocket-version", "13"), ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")];
        for (field_name, valid_value) in valid.into_iter().filter(|(known, _)| *known != name) {
            request = request.header(field_name, valid_value);
        }
        request.header(name, value).send_blocking()
    };
    let old_version = respond_to("sec-websocket-version", "8");
    assert_eq!(
        (old_version.status().as_u16(), old_version.header("sec-websocket-version")),
        (426, Some("13"))
    );
    assert_eq!(respond_to("sec-websocket-key", "short").status(), 400);
    let post_response =
        client.post("/").header("connection", "upgrade").header("upgrade", "websocket");
    let post_response = post_response.send_blocking();
    assert_eq!(
        (post_response.status().as_u16(), post_response.header("allow")),
        (405, Some("GET"))
    );
    for (name, value) in [("content-length", "1"), ("transfer-encoding", "chunked")] {
        let response = respond_to(name, value);
        assert_eq!(response.status(), 400, "{name}");
        assert!(response.text().contains("websocket-with-content"), "{name}");
    }
    assert_eq!(client.websocket("/").send_blocking().status(), 101);
}

#[test]
fn an_optional_upgrade_serves_a_page_on_the_same_route() {
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
fn pages_of_other_origins_are_rejected_unless_allowed() {
    let status = |client: &TestClient, origin: &str| {
        client.websocket("/").header("origin", origin).send_blocking().status().as_u16()
    };
    let client = client_for(echo);
    assert_eq!(client.websocket("/").send_blocking().status(), 101);
    assert_eq!(status(&client, "http://test.example"), 101);
    assert_eq!(status(&client, "https://test.example"), 101);
    assert_eq!(status(&client, "https://other.example"), 403);
    assert_eq!(status(&client, "null"), 403);
    let over_tls = ConnectionInfo { tls: Some(Arc::new(TlsInfo::default())), ..Default::default() };
    assert_eq!(status(&client.clone().with_connection(over_tls), "http://test.example"), 403);
    let behind_gateway = ConnectionInfo { behind_gateway: true, ..Default::default() };
    assert_eq!(
        status(&client.clone().with_connection(behind_gateway.clone()), "http://test.example"),
        403
    );
    assert_eq!(status(&client.with_connection(behind_gateway), "https://test.example"), 101);
    let client = client_with(|upgrade| upgrade.allow_origins(["https://other.example"]), echo);
    assert_eq!(status(&client, "https://other.example"), 101);
    assert_eq!(status(&client, "https://third.example"), 403);
    assert_eq!(
        status(&client_with(WebSocketUpgrade::allow_any_origin, echo), "https://third.example"),
        101
    );
}

#[test]
fn the_clients_first_supported_subprotocol_is_chosen() {
    let client = client_with(
        |upgrade| upgrade.protocols(["b", "a"]),
        async |socket: WebSocket| {
            let protocol = socket.protocol().unwrap_or("none").to_owned();
            socket.send(protocol).await.expect("the WebSocket is open");
        },
    );
    let open = |offer: &str| {
        let mut socket =
            client.websocket("/").header("sec-websocket-protocol", offer).connect_blocking();
        let handler_protocol =
            socket.recv_blocking().expect("a message is received").text().to_owned();
        (socket.protocol().map(str::to_owned), handler_protocol)
    };
    assert_eq!(open("x, a, b"), (Some("a".into()), "a".into()));
    assert_eq!(open("x"), (None, "none".into()));
}

#[test]
fn the_websocket_closes_normally_when_the_handler_returns() {
    let mut socket = client_for(async |_| {}).websocket("/").connect_blocking();
    assert_eq!(socket.recv_blocking(), close(1000));
    assert_eq!(socket.recv_blocking(), None);
}

#[test]
fn a_handler_closes_with_a_reason_and_waits_for_the_close_frame() {
    let log = EventLog::default();
    let handler = {
        let log = Rc::clone(&log);
        async move |socket: WebSocket| {
            let closed = socket.close(CloseCode(4000), "enough").await;
            log.borrow_mut().push(format!("{closed:?}"));
        }
    };
    let mut socket = client_for(handler).websocket("/").connect_blocking();
    let expected = TestMessage::Close(Some((4000, "enough".into())));
    assert_eq!(socket.recv_blocking(), Some(expected));
    assert_eq!(socket.recv_blocking(), None);
    assert_eq!(*log.borrow(), ["Ok(())"]);
}

#[test]
fn a_handler_receives_how_the_peer_closed() {
    let log = EventLog::default();
    let handler = {
        let log = Rc::clone(&log);
        async move |mut socket: WebSocket| {
            while let Some(next) = socket.recv().await {
                let text = match next {
                    Ok(Message::Close(None)) => "close".to_owned(),
                    Ok(Message::Close(Some(close))) => format!("{} {}", close.code.0, close.reason),
                    Ok(message) => panic!("{message:?}"),
                    Err(error) => format!("{error:?}"),
                };
                log.borrow_mut().push(text);
            }
            assert_eq!(socket.send("late").await, Err(SendError::Closed));
        }
    };
    let client = client_for(handler);
    let mut socket = client.websocket("/").connect_blocking();
    socket.send_blocking(TestMessage::Close(Some((3001, "tired".into()))));
    assert_eq!(socket.recv_blocking(), close(3001));
    let mut socket = client.websocket("/").connect_blocking();
    socket.send_blocking(TestMessage::Close(None));
    assert_eq!(socket.recv_blocking(), Some(TestMessage::Close(None)));
    let mut socket = client.websocket("/").connect_blocking();
    socket.abort();
    assert_eq!(socket.recv_blocking(), None);
    assert_eq!(*log.borrow(), ["3001 tired", "close", &format!("{:?}", RecvError::ConnectionLost)]);
}

#[test]
fn a_sender_waits_for_room_and_try_send_does_not() {
    let log = EventLog::default();
    let handler = {
        let log = Rc::clone(&log);
        async move |socket: WebSocket| {
            let (sender, mut receiver) = socket.split();
            sender.send(vec![0; 1_000]).await.expect("there is room");
            let full = sender.try_send("more");
            assert!(matches!(full, Err(TrySendError::Full(Message::Text(_)))), "{full:?}");
            log.borrow_mut().push("full".into());
            sender.send("then").await.expect("there is room again");
            log.borrow_mut().push("sent".into());
            while let Some(Ok(_)) = receiver.recv().await {}
        }
    };
    let limits = WebSocketLimits { send_queue_bytes_max: 1_000, ..WebSocketLimits::default() };
    let mut socket = client_with(move |upgrade| upgrade.limits(limits), handler)
        .websocket("/")
        .connect_blocking();
    assert!(matches!(socket.recv_blocking(), Some(TestMessage::Binary(_))));
    assert_eq!(socket.recv_blocking().expect("a message is received").text(), "then");
    assert_eq!(*log.borrow(), ["full", "sent"]);
}

#[derive(serde::Deserialize, serde::Serialize)]
struct Point {
    x: i32,
}

#[test]
fn a_json_socket_carries_values_and_rejects_other_messages() {
    let log = EventLog::default();
    let handler = {
        let log = Rc::clone(&log);
        async move |socket: WebSocket| {
            let mut json_socket = socket.json::<Point, Point>();
            loop {
                match json_socket.recv().await {
                    Some(Ok(Point { x })) => {
                        json_socket.send(&Point { x: x + 1 }).await.expect("the WebSocket is open")
                    }
                    Some(Err(error)) => {
                        let kind = match error {
                            JsonError::Deserialize(_) => "malformed",
                            JsonError::NotText => "not text",
                            _ => "other",
                        };
                        log.borrow_mut().push(kind.into());
                    }
                    None => return,
                }
            }
        }
    };
    let client = client_for(handler);
    let mut socket = client.websocket("/").connect_blocking();
    socket.send_blocking(r#"{"x": 1}"#);
    assert_eq!(socket.recv_blocking().expect("a message is received").text(), r#"{"x":2}"#);
    socket.send_blocking(r#"{"x": "#);
    let Some(TestMessage::Close(Some((1007, reason)))) = socket.recv_blocking() else {
        panic!("expected a Close frame with 1007");
    };
    assert!(reason.contains("line 1"), "{reason}");
    let mut socket = client.websocket("/").connect_blocking();
    socket.send_blocking(b"{}".to_vec());
    assert!(matches!(socket.recv_blocking(), Some(TestMessage::Close(Some((1003, _))))));
    assert_eq!(*log.borrow(), ["malformed", "not text"]);
}

#[test]
fn handshake_problems_use_the_applications_format() {
    let format_problem = |problem: Problem, _: &RequestHead| (problem.status, "refused");
    let handle = |upgrade: WebSocketUpgrade| upgrade.on_upgrade(echo);
    let client = App::new().get("/", handle).on_problem(format_problem).test();
    let response = client.get("/").send_blocking();
    assert_eq!(
        (response.status(), response.text()),
        (StatusCode::UPGRADE_REQUIRED, "refused".into())
    );
    assert_eq!(response.header("upgrade"), Some("websocket"));
    let response = client.websocket("/").header("origin", "http://x.test").send_blocking();
    assert_eq!((response.status(), response.text()), (StatusCode::FORBIDDEN, "refused".into()));
}

#[test]
fn a_panic_when_calling_or_polling_the_handler_closes_with_1011() {
    let panic_on_call = |upgrade: WebSocketUpgrade| {
        upgrade.on_upgrade(|_| -> std::future::Ready<()> { panic!("there is no future") })
    };
    let panic_on_poll =
        |upgrade: WebSocketUpgrade| upgrade.on_upgrade(async |_| panic!("there is a future"));
    let client = App::new().get("/called", panic_on_call).get("/polled", panic_on_poll).test();
    for path in ["/called", "/polled"] {
        let mut socket = client.websocket(path).connect_blocking();
        assert_eq!(socket.recv_blocking(), close(1011), "{path}");
    }
}
