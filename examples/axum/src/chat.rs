//! A chat room: a broadcast channel between WebSockets.

use axum::Router;
use axum::extract::State;
use axum::extract::ws::{Message, Utf8Bytes, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use axum::routing::{any, get};
use futures_util::{SinkExt, StreamExt};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::broadcast;

/// The application.
pub fn app() -> Router {
    let (said, _) = broadcast::channel(100);
    let room = Room { names: Arc::default(), said };
    Router::new().route("/names", get(names)).route("/chat", any(enter)).with_state(room)
}

#[derive(Clone)]
struct Room {
    names: Arc<Mutex<BTreeSet<String>>>,
    said: broadcast::Sender<String>,
}

impl Room {
    fn names(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.names.lock().expect("no panic while the lock is held")
    }
}

async fn names(State(room): State<Room>) -> String {
    room.names().iter().map(|name| format!("{name}\n")).collect()
}

async fn enter(upgrade: WebSocketUpgrade, State(room): State<Room>) -> Response {
    upgrade.on_upgrade(async move |socket| chat(socket, room).await)
}

/// The first message is a name; all later messages are broadcast.
async fn chat(mut socket: WebSocket, room: Room) {
    let name = loop {
        let Some(Ok(message)) = socket.recv().await else { return };
        let Message::Text(text) = message else { continue };
        let name = text.to_string();
        if room.names().insert(name.clone()) {
            break name;
        }
        let sorry = Utf8Bytes::from_static("that name is taken");
        if socket.send(Message::Text(sorry)).await.is_err() {
            return;
        }
    };
    let (mut sender, mut receiver) = socket.split();
    let mut heard = room.said.subscribe();
    // `send` fails if there are no receivers, which is fine in an empty room.
    let _ = room.said.send(format!("{name} came"));
    let mut hearing = tokio::spawn(async move {
        while let Ok(text) = heard.recv().await {
            if sender.send(Message::Text(text.into())).await.is_err() {
                break;
            }
        }
    });
    let (said, speaker) = (room.said.clone(), name.clone());
    let mut speaking = tokio::spawn(async move {
        while let Some(Ok(Message::Text(text))) = receiver.next().await {
            let _ = said.send(format!("{speaker}: {text}"));
        }
    });
    // The first task to end aborts the other.
    tokio::select! {
        _ = &mut hearing => speaking.abort(),
        _ = &mut speaking => hearing.abort(),
    }
    room.names().remove(&name);
    let _ = room.said.send(format!("{name} left"));
}
