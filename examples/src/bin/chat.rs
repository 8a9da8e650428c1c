//! A WebSocket chat room: every message goes to all clients. A client that reads too slowly is
//! disconnected, so that it does not delay the others.

use mimalloc::MiMalloc;
use peregrine::prelude::*;
use peregrine::websocket::{
    CloseCode, Message, TrySendError, Utf8Bytes, WebSocket, WebSocketUpgrade,
};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError as Full};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The number of messages that may be queued for one client.
const WAITING_MAX: usize = 100;

/// The clients of all workers. A socket stays on its worker; only the text is sent across threads.
#[derive(Clone, Default)]
struct Room(Arc<Mutex<Vec<Sender<Utf8Bytes>>>>);

impl Room {
    fn enter(&self) -> Receiver<Utf8Bytes> {
        let (sender, receiver) = channel(WAITING_MAX);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        receiver
    }

    /// Sends `text` to all clients and drops those whose queue is full.
    fn tell(&self, text: &Utf8Bytes) {
        let mut listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|listener| match listener.try_send(text.clone()) {
            Ok(()) => true,
            Err(Full::Full(_) | Full::Closed(_)) => false,
        });
    }
}

async fn join(upgrade: WebSocketUpgrade, State(room): State<Room>) -> Response {
    upgrade.on_upgrade(async move |socket| talk(socket, &room).await)
}

async fn talk(mut socket: WebSocket, room: &Room) {
    let mut heard = room.enter();
    loop {
        tokio::select! {
            message = socket.recv() => match message {
                Some(Ok(Message::Text(text))) => room.tell(&text),
                Some(Ok(_)) => {}
                // The client closed the connection, or the server is shutting down.
                Some(Err(_)) | None => return,
            },
            text = heard.recv() => {
                let Some(text) = text else { break };
                match socket.try_send(text) {
                    Ok(()) => {}
                    Err(TrySendError::Full(_)) => break,
                    Err(TrySendError::Send(_)) => return,
                }
            }
        }
    }
    let _ = socket.close(CloseCode::TRY_AGAIN_LATER, "too slow").await;
}

const PAGE: &str = "<!doctype html><meta charset=utf-8><title>Room</title>
<input id=text autofocus><ul id=heard></ul><script>
const socket = new WebSocket('/room'.replace(/^/, location.origin.replace('http', 'ws')));
socket.onmessage = event => {
  const item = document.createElement('li');
  item.textContent = event.data;
  document.getElementById('heard').prepend(item);
};
document.getElementById('text').onchange = event => {
  socket.send(event.target.value);
  event.target.value = '';
};
</script>";

const ABOUT: &str = "\
A WebSocket chat room: every message goes to all clients.

Try: curl http://127.0.0.1:8080/, or open that page in two browser windows";

fn main() -> peregrine::Result<()> {
    let address = peregrine_examples::address(ABOUT);
    let room = Room::default();
    Server::bind(address)
        .serve(move || App::new().state(room.clone()).get("/", || Html(PAGE)).get("/room", join))
}
