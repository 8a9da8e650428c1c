//! The server that clients and proxies from outside try: `outside FOLDER [LAME_DUCK_MS]`.
//!
//! It takes free ports, names them in its first line on standard error, writes the certificate that
//! clients are to trust to `FOLDER/authority.pem`, and serves until it is told to end. The driver is
//! that of `PEREGRINE_DRIVER`. With `BEHIND_GATEWAY` set, plain connections may ask for `https`, as
//! HAProxy does over HTTP/2. `ADMIN` is the address of an admin listener.

use bytes::Bytes;
use futures_core::Stream;
use http::StatusCode;
use peregrine::prelude::*;
use peregrine::websocket::{CloseCode, Compress, Message, WebSocket, WebSocketUpgrade};
use peregrine::{App, Limits, Server, Shutdown};
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// What peers ask for that never read it.
static LARGE: [u8; 10_000_000] = [b'x'; 10_000_000];

fn application() -> App {
    App::new()
        .get("/hello", || "hello")
        // These answer without a look at the body.
        .post("/early/{status}", async |Path(status): Path<u16>| {
            (StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST), "early")
        })
        // This reads it, up to the limit of 2 MiB.
        .post("/read", async |body: Bytes| body.len().to_string())
        .get("/large", || Bytes::from_static(&LARGE))
        .get("/ws", |upgrade: WebSocketUpgrade| {
            upgrade.compress(Compress::default()).on_upgrade(echo)
        })
        .get("/ws/closes/{code}", |upgrade: WebSocketUpgrade, Path(code): Path<u16>| {
            upgrade.on_upgrade(async move |socket| {
                let _ = socket.close(CloseCode(code), "on purpose").await;
            })
        })
        .get("/events", || Sse::new(Five(0)))
        // What a browser runs.
        .get("/page", || Html(include_str!("page.html")))
        .get("/ready", async || {
            if Shutdown::current().is_ordered() {
                StatusCode::SERVICE_UNAVAILABLE
            } else {
                StatusCode::OK
            }
        })
}

/// Events with the numbers from 0 to 4.
struct Five(u32);

impl Stream for Five {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Event>> {
        let number = self.0;
        self.0 += 1;
        Poll::Ready((number < 5).then(|| Event::default().data(number.to_string())))
    }
}

async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        let is_content = matches!(message, Message::Text(_) | Message::Binary(_));
        if is_content && socket.send(message).await.is_err() {
            return;
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("which folder?")?);
    let lame_duck = match arguments.next() {
        Some(text) => Duration::from_millis(text.to_string_lossy().parse()?),
        None => Duration::ZERO,
    };
    let made = Tls::self_signed(&["localhost", "127.0.0.1"])?;
    std::fs::write(folder.join("authority.pem"), &made.certificate_pem)?;
    let behind_gateway = std::env::var_os("BEHIND_GATEWAY").is_some();
    let limits = Limits { lame_duck, behind_gateway, ..Limits::default() };
    let mut server = Server::bind("127.0.0.1:0").tls("127.0.0.1:0", made.tls).limits(limits);
    if let Ok(address) = std::env::var("ADMIN") {
        server = server.admin(address);
    }
    server.serve(application)?;
    Ok(())
}
