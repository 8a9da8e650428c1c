//! The server for external clients and proxies: `outside FOLDER [LAME_DUCK_MS]`.
//!
//! It binds free ports, prints them in its first line on standard error, writes the certificate
//! that clients should trust to `FOLDER/authority.pem`, and runs until a signal shuts it down.
//! `PEREGRINE_DRIVER` selects the driver. With `BEHIND_GATEWAY` set, plain connections may request
//! `https`, as HAProxy does over HTTP/2. `ADMIN` is the address of an admin listener. With
//! `CALLERS` set, it also listens on Unix domain sockets in the folder, behind proxies that send
//! the client's address: `x.sock`, `forwarded.sock`, `proxy.sock` and `proxy-tls.sock`. `UPSTREAM`
//! is the URL of a server that answers requests below `/through`, and `PORT` a fixed port to listen
//! on.

use bytes::Bytes;
use futures_core::Stream;
use http::StatusCode;
use peregrine::prelude::*;
use peregrine::proxy::{ReverseProxy, Upstreams};
use peregrine::websocket::{CloseCode, Message, PerMessageDeflate, WebSocket, WebSocketUpgrade};
use peregrine::{App, Limits, Listener, ProxyProtocol, Server, Shutdown, TrustedProxies};
use std::path::{Path as FilePath, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// A large response for peers that do not read it.
static LARGE: [u8; 10_000_000] = [b'x'; 10_000_000];

fn application(upstreams: Option<Upstreams>) -> App {
    let mut app = App::new();
    if let Some(upstreams) = upstreams {
        let proxy = ReverseProxy::new(upstreams)
            .strip_prefix("/through")
            .response_timeout(Duration::from_secs(2));
        app = app.subtree("/through", proxy.body_limit(100 << 20));
    }
    app.get("/hello", || "hello")
        // These routes respond without reading the body.
        .post("/early/{status}", async |Path(status): Path<u16>| {
            (StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST), "early")
        })
        // This route reads it, up to the limit of 2 MiB.
        .post("/read", async |body: Bytes| body.len().to_string())
        // The client's address: from the request, and from the connection.
        .get("/client", async |request: Request| {
            let client = request.client();
            let ip = client.ip().map_or("-".to_owned(), |ip| ip.to_string());
            format!("{ip} {} {}\n", client.origin(), client.hops())
        })
        .get("/end", end)
        .get("/large", || Bytes::from_static(&LARGE))
        .get("/ws", |upgrade: WebSocketUpgrade| {
            upgrade.permessage_deflate(PerMessageDeflate::default()).on_upgrade(echo)
        })
        .get("/ws/closes/{code}", |upgrade: WebSocketUpgrade, Path(code): Path<u16>| {
            upgrade.on_upgrade(async move |socket| {
                let _ = socket.close(CloseCode(code), "on purpose").await;
            })
        })
        .get("/events", || Sse::new(Five(0)))
        // The page for the browser.
        .get("/page", || Html(include_str!("page.html")))
        .get("/ready", async || {
            if Shutdown::current().is_requested() {
                StatusCode::SERVICE_UNAVAILABLE
            } else {
                StatusCode::OK
            }
        })
}

async fn end(request: Request) -> String {
    let info = request.parts.connection();
    let version = info.proxy_protocol.as_ref().map_or(0, |proxy| proxy.version);
    let mut text = format!("{} {} v{version} {}", info.peer, info.local, request.client().scheme());
    if let Some(tls) =
        info.proxy_protocol.as_ref().and_then(|proxy| proxy.tls.as_ref()).filter(|tls| tls.is_tls)
    {
        let version = tls.version.as_deref().unwrap_or("-");
        let id = info
            .proxy_protocol
            .as_ref()
            .and_then(|proxy| proxy.unique_id.as_deref())
            .unwrap_or(b"-");
        text.push_str(&format!(" {version} {}", id.escape_ascii()));
    }
    text + "\n"
}

/// The same server behind proxies that send the client's address.
fn behind_proxies(server: Server, folder: &FilePath, tls: TlsConfig) -> Server {
    let at = |name: &str| Listener::bind(format!("unix:{}/{name}", folder.display()));
    // The proxy in front of nginx has its own address.
    let proxies = TrustedProxies::from_networks(["unix:", "127.0.0.1"]);
    let header = || ProxyProtocol::required().trust(["unix:"]);
    server
        .listen(at("x.sock").trusted_proxies(proxies.clone()))
        .listen(at("forwarded.sock").trusted_proxies(proxies.forwarded_header()))
        .listen(at("proxy.sock").proxy_protocol(header()))
        .listen(at("proxy-tls.sock").proxy_protocol(header()).tls(tls))
}

/// Events numbered from 0 to 4.
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
    let folder = PathBuf::from(arguments.next().ok_or("usage: outside FOLDER [LAME_DUCK_MS]")?);
    let lame_duck_period = match arguments.next() {
        Some(text) => Duration::from_millis(text.to_string_lossy().parse()?),
        None => Duration::ZERO,
    };
    let made = TlsConfig::self_signed(&["localhost", "127.0.0.1"])?;
    std::fs::write(folder.join("authority.pem"), &made.certificate_pem)?;
    let behind_gateway = std::env::var_os("BEHIND_GATEWAY").is_some();
    let limits = Limits { lame_duck_period, behind_gateway, ..Limits::default() };
    let port = std::env::var("PORT").unwrap_or_else(|_| "0".to_owned());
    let mut server = Server::bind(format!("127.0.0.1:{port}"))
        .listen_tls("127.0.0.1:0", made.tls.clone())
        .limits(limits);
    if let Ok(address) = std::env::var("ADMIN") {
        server = server.admin(address);
    }
    if std::env::var_os("CALLERS").is_some() {
        server = behind_proxies(server, &folder, made.tls);
    }
    let upstreams = std::env::var("UPSTREAM").ok().map(|url| Upstreams::new([url])).transpose()?;
    server.serve(move || application(upstreams.clone()))?;
    Ok(())
}
