use crate::harness::{Host, Served, Socket, answer, socket, wait_until};
use futures_util::{SinkExt, StreamExt, future::join_all};
use peregrine_axum_examples::websockets::{MESSAGES, app};
use reqwest::Method;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

/// Opens a socket and receives the ping, and the greeting that follows the pong.
async fn greeted(server: &Served, agent: &str) -> (Socket, String) {
    let mut socket = socket(server, "/socket", Some(agent)).await;
    let ping = socket.next().await.expect("the socket is open").expect("a valid frame");
    assert_eq!(ping, Message::Ping(vec![1, 2, 3].into()));
    let greeting = socket.next().await.expect("the socket is open").expect("a valid frame");
    let own = socket.get_ref().local_addr().expect("it is connected");
    let greeting = greeting.into_text().expect("a text message").to_string();
    assert_eq!(greeting, format!("hello {own}, {agent}"));
    (socket, greeting)
}

/// The statistics of closed sockets, once there are `count` of them.
async fn ended(server: &Served, count: usize) -> Vec<Value> {
    let talks = async || {
        let text = server.get("/ended").await.text().to_owned();
        serde_json::from_str::<Vec<Value>>(&text).expect("a list")
    };
    wait_until("the sockets have ended", async || talks().await.len() == count).await;
    talks().await
}

pub(crate) async fn both_sides_talk_at_once_until_the_server_closes(host: Host) {
    let server = host.serve_by_peer(app());
    let (mut socket, _) = greeted(&server, "a test").await;
    for text in ["one", "two", "three"] {
        socket.send(Message::text(text)).await.expect("the socket is open");
    }
    socket.send(Message::binary(vec![7; 200_000])).await.expect("the socket is open");
    let mut texts = Vec::new();
    let close = loop {
        match socket.next().await.expect("the socket is open").expect("a valid frame") {
            Message::Text(text) => texts.push(text.to_string()),
            Message::Close(frame) => break frame.expect("a reason"),
            other => panic!("{other:?}"),
        }
    };
    let all: Vec<_> = (1..=MESSAGES).map(|number| format!("message {number}")).collect();
    assert_eq!(texts, all);
    assert_eq!((close.code, close.reason.as_str()), (CloseCode::Normal, "that is all"));
    assert!(socket.next().await.is_none_or(|end| end.is_err()), "nothing follows the close");
    let talk = json!({
        "sent": MESSAGES, "texts": ["one", "two", "three"], "pongs": 1, "bytes": 200_000,
        "closed_with": 1000,
    });
    assert_eq!(ended(&server, 1).await, [talk]);
    server.end().await;
}

pub(crate) async fn a_peer_may_close_first(host: Host) {
    let server = host.serve_by_peer(app());
    let (mut socket, _) = greeted(&server, "in a hurry").await;
    socket.send(Message::text("bye")).await.expect("the socket is open");
    let frame = CloseFrame { code: CloseCode::Away, reason: "".into() };
    socket.close(Some(frame)).await.expect("the socket is open");
    while let Some(Ok(_)) = socket.next().await {}
    let talks = ended(&server, 1).await;
    assert_eq!((&talks[0]["texts"], &talks[0]["closed_with"]), (&json!(["bye"]), &json!(1001)));
    server.end().await;
}

pub(crate) async fn a_peer_may_vanish(host: Host) {
    let server = host.serve_by_peer(app());
    let (socket, _) = greeted(&server, "a ghost").await;
    drop(socket);
    let talks = ended(&server, 1).await;
    assert_eq!(talks[0]["closed_with"], Value::Null);
    server.end().await;
}

pub(crate) async fn many_sockets_do_not_disturb_each_other(host: Host) {
    let server = host.serve_by_peer(app());
    let server = &server;
    let counts = join_all((0..12).map(async |number| {
        let (mut socket, _) = greeted(server, &format!("number {number}")).await;
        let mut count = 0;
        while let Some(Ok(message)) = socket.next().await {
            count += usize::from(message.is_text());
        }
        count
    }));
    assert_eq!(counts.await, [MESSAGES; 12]);
    assert_eq!(ended(server, 12).await.len(), 12);
}

pub(crate) async fn a_request_for_no_socket_is_refused(host: Host) {
    let server = host.serve_by_peer(app());
    let refused = server.get("/socket").await;
    assert_eq!(refused.brief(), (400, "Connection header did not include 'upgrade'"));
    let half = server.request(Method::GET, "/socket");
    let refused = answer(half.header("connection", "upgrade").header("upgrade", "other")).await;
    assert_eq!(refused.brief(), (400, "`Upgrade` header did not include 'websocket'"));
    server.end().await;
}
