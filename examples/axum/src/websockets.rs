//! A WebSocket that greets its client by address, then reads and writes in two tasks.

use axum::extract::State;
use axum::extract::connect_info::{ConnectInfo, IntoMakeServiceWithConnectInfo};
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::http::HeaderMap;
use axum::http::header::USER_AGENT;
use axum::response::Response;
use axum::routing::{any, get};
use axum::{Json, Router};
use futures_util::{SinkExt, StreamExt};
use serde::Serialize;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The number of messages that the server sends before it closes.
pub const MESSAGES: usize = 20;

/// The application, which needs its clients' addresses.
pub fn app() -> IntoMakeServiceWithConnectInfo<Router, SocketAddr> {
    Router::new()
        .route("/socket", any(open))
        .route("/ended", get(ended))
        .with_state(Talks::default())
        .into_make_service_with_connect_info::<SocketAddr>()
}

/// The statistics of closed sockets.
#[derive(Clone, Default)]
struct Talks(Arc<Mutex<Vec<Talk>>>);

#[derive(Clone, Debug, Default, Serialize)]
struct Talk {
    sent: usize,
    texts: Vec<String>,
    pongs: usize,
    bytes: usize,
    closed_with: Option<u16>,
}

async fn ended(State(talks): State<Talks>) -> Json<Vec<Talk>> {
    Json(talks.0.lock().expect("no panic while the lock is held").clone())
}

async fn open(
    upgrade: WebSocketUpgrade,
    fields: HeaderMap,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    State(talks): State<Talks>,
) -> Response {
    let agent = fields.get(USER_AGENT).and_then(|agent| agent.to_str().ok());
    let greeting = format!("hello {peer}, {}", agent.unwrap_or("unknown client"));
    upgrade.on_upgrade(async move |socket| {
        let talk = talk(socket, greeting).await;
        talks.0.lock().expect("no panic while the lock is held").push(talk);
    })
}

async fn talk(mut socket: WebSocket, greeting: String) -> Talk {
    let mut talk = Talk::default();
    if socket.send(Message::Ping(vec![1, 2, 3].into())).await.is_err() {
        return talk;
    }
    // Wait for the pong before sending anything else.
    match socket.recv().await {
        Some(Ok(message)) => note(message, &mut talk),
        _ => return talk,
    }
    if socket.send(Message::Text(greeting.into())).await.is_err() {
        return talk;
    }
    let (mut sender, mut receiver) = socket.split();
    let mut sending = tokio::spawn(async move {
        for number in 1..=MESSAGES {
            if sender.send(Message::Text(format!("message {number}").into())).await.is_err() {
                return number - 1;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let frame = CloseFrame { code: close_code::NORMAL, reason: "that is all".into() };
        let _ = sender.send(Message::Close(Some(frame))).await;
        MESSAGES
    });
    let mut receiving = tokio::spawn(async move {
        while let Some(Ok(message)) = receiver.next().await {
            note(message, &mut talk);
        }
        talk
    });
    // The client may close before all messages are sent, or keep sending afterwards.
    tokio::select! {
        sent = &mut sending => {
            let mut talk = receiving.await.expect("the task does not panic");
            talk.sent = sent.expect("the task does not panic");
            talk
        }
        talk = &mut receiving => {
            sending.abort();
            talk.expect("the task does not panic")
        }
    }
}

fn note(message: Message, talk: &mut Talk) {
    match message {
        Message::Text(text) => talk.texts.push(text.to_string()),
        Message::Binary(bytes) => talk.bytes += bytes.len(),
        Message::Pong(_) => talk.pongs += 1,
        Message::Ping(_) => {}
        Message::Close(frame) => talk.closed_with = frame.map(|frame| frame.code),
    }
}
