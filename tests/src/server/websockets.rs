//! Handlers with a WebSocket, and a client for them over any protocol.

use crate::server::app::Shared;
use crate::server::bench::{Bench, PATIENCE, Wire};
use crate::server::events::{AnyWire, Way, connect};
use crate::server::peer::Peer;
use crate::server::streams::Streams;
use flate2::{Compress as Deflater, Decompress as Inflater, FlushDecompress, Status};
use peregrine::App;
use peregrine::web::deflate::flush;
use peregrine::web::extract::{Path, State};
use peregrine::websocket::{
    CloseCode, Message, PerMessageDeflate, WebSocket, WebSocketLimits, WebSocketReceiver,
    WebSocketSender, WebSocketUpgrade,
};
use peregrine_proto::ws::frame::{self, Opcode};
use peregrine_proto::ws::{
    self, Connection, DeflateCodec, Event, InflateError, MessagePayload, Role,
};
use std::future::Future;
use std::time::Duration;

/// Adds a route whose handler has a WebSocket.
fn route<F, T>(app: App, path: &str, set: fn(WebSocketUpgrade) -> WebSocketUpgrade, run: F) -> App
where
    F: Fn(WebSocket, Shared) -> T + Clone + 'static,
    T: Future<Output = ()> + 'static,
{
    app.get(path, move |upgrade: WebSocketUpgrade, State(shared): State<Shared>| {
        let run = run.clone();
        set(upgrade).on_upgrade(async move |socket| {
            let watch = shared.begin();
            run(socket, shared).await;
            watch.finish();
        })
    })
}

/// Handlers that use WebSockets. Each counts its start and its end.
pub(super) fn websocket_handlers(app: App) -> App {
    let app = closing_handlers(echo_handlers(app));
    // Reads and writes nothing until the case opens the gate.
    let app = route(app, "/ws/quiet", |upgrade| upgrade, quiet);
    let app = route(
        app,
        "/ws/impatient",
        |upgrade| {
            upgrade
                .drain_timeout(Duration::from_millis(200))
                .close_timeout(Duration::from_millis(200))
        },
        quiet,
    );
    let app = route(app, "/ws/end", |upgrade| upgrade, async |_, _| {});
    let app = route(
        app,
        "/ws/panic",
        |upgrade| upgrade,
        async |mut socket, _| {
            let _ = socket.recv().await;
            panic!("on purpose");
        },
    );
    let app = route(
        app,
        "/ws/flood",
        |upgrade| upgrade,
        async |socket, shared| {
            while socket.send(vec![7; 1_000]).await.is_ok() {
                shared.produced.add(1_000);
            }
        },
    );
    let app = route(
        app,
        "/ws/listen",
        |upgrade| upgrade,
        async |mut socket, shared| {
            while let Some(Ok(message)) = socket.recv().await {
                shared.consumed.add(message.as_bytes().len());
            }
        },
    );
    let app = route(app, "/ws/halves", |upgrade| upgrade, halves);
    route(
        app,
        "/ws/pinger",
        |upgrade| upgrade,
        async |mut socket, _| {
            let _ = socket.send(Message::Ping("are you there?".into())).await;
            while let Some(Ok(message)) = socket.recv().await {
                if let Message::Pong(payload) = message {
                    let _ = socket.send(payload).await;
                }
            }
        },
    )
}

fn echo_handlers(app: App) -> App {
    let app = route(app, "/ws/echo", |upgrade| upgrade.protocols(["v2", "v1"]), echo);
    let app = route(app, "/ws/small", |upgrade| upgrade.limits(small()), echo);
    let app = route(
        app,
        "/ws/deflate",
        |upgrade| upgrade.permessage_deflate(PerMessageDeflate::default()),
        echo,
    );
    let app = route(
        app,
        "/ws/deflate-kept",
        |upgrade| {
            upgrade.permessage_deflate(
                PerMessageDeflate::default().server_context_takeover().client_context_takeover(),
            )
        },
        echo,
    );
    route(
        app,
        "/ws/deflate-small",
        |upgrade| upgrade.permessage_deflate(PerMessageDeflate::default()).limits(small()),
        echo,
    )
}

/// Handlers that end WebSockets, or notice their end.
fn closing_handlers(app: App) -> App {
    let app = route(
        app,
        "/ws/goodbye",
        |upgrade| upgrade,
        async |mut socket, _| {
            while let Some(Ok(_)) = socket.recv().await {}
            let _ = socket.send("goodbye").await;
        },
    );
    let app = route(
        app,
        "/ws/closing",
        |upgrade| upgrade,
        async |socket, _| {
            socket.wait_closing().await;
            let _ = socket.send("closing").await;
        },
    );
    app.get(
        "/ws/close/{code}",
        |upgrade: WebSocketUpgrade, State(shared): State<Shared>, Path(code)| {
            upgrade.on_upgrade(async move |socket| {
                let watch = shared.begin();
                if socket.close(CloseCode(code), "on purpose").await.is_ok() {
                    watch.finish();
                }
            })
        },
    )
}

fn small() -> WebSocketLimits {
    WebSocketLimits { message_bytes_max: 1_000, frame_bytes_max: 800, ..WebSocketLimits::default() }
}

async fn quiet(socket: WebSocket, shared: Shared) {
    shared.pass().await;
    drop(socket);
}

async fn echo(mut socket: WebSocket, _: Shared) {
    while let Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) = socket.recv().await {
        if socket.send(message).await.is_err() {
            return;
        }
    }
}

/// Each half in a separate task.
async fn halves(socket: WebSocket, shared: Shared) {
    async fn forward(sender: WebSocketSender, mut receiver: WebSocketReceiver) {
        while let Some(Ok(message @ Message::Text(_))) = receiver.recv().await {
            if sender.send(message).await.is_err() {
                return;
            }
        }
    }
    async fn count(sender: WebSocketSender, shared: Shared) {
        for number in 1.. {
            shared.pass().await;
            if sender.send(format!("number {number}")).await.is_err() {
                return;
            }
        }
    }
    let (sender, receiver) = socket.split();
    let counter = tokio::task::spawn_local(count(sender.clone(), shared));
    let _ = tokio::task::spawn_local(forward(sender, receiver)).await;
    counter.abort();
}

/// An event on a WebSocket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// Text.
    Text(String),
    /// Bytes.
    Binary(Vec<u8>),
    /// A ping, which was answered unless the client is dumb.
    Ping(Vec<u8>),
    /// A pong.
    Pong(Vec<u8>),
    /// The end, with its code; 1005 if it had none.
    Close(u16),
    /// The server cleanly ended its side of the connection or of the stream.
    End,
    /// The connection broke, or the stream was reset with this code.
    Broken(u32),
}

enum Link<W> {
    Http1(Peer<AnyWire<W>>),
    Http2(Box<Streams<AnyWire<W>>>, u32, usize),
}

/// A WebSocket client.
pub struct Socket<W> {
    link: Link<W>,
    protocol: Connection<DeflateContext>,
    limits: ws::Limits,
    unread: Vec<u8>,
    /// The fields of the handshake response.
    pub fields: String,
    /// Whether the client answers no ping and no Close frame.
    pub is_dumb: bool,
}

const LIMITS: ws::Limits = ws::Limits {
    message_bytes_max: u64::MAX,
    frame_bytes_max: u64::MAX,
    compress_bytes_min: 0,
    abuse_budget_max: u32::MAX,
    ..ws::Limits::DEFAULT
};

/// The key of every handshake, and the matching accept value.
const KEY: (&str, &str) = ("dGhlIHNhbXBsZSBub25jZQ==", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");

impl<W: Wire> Socket<W> {
    /// Connects, and opens a WebSocket.
    ///
    /// # Panics
    /// If it is refused.
    pub async fn open<B: Bench<Wire = W>>(server: &B::Server, way: Way, path: &str) -> Self {
        Self::open_with::<B>(server, way, path, &[]).await
    }

    /// Connects, and opens a WebSocket with these fields in the request.
    ///
    /// # Panics
    /// If it is refused.
    pub async fn open_with<B: Bench<Wire = W>>(
        server: &B::Server,
        way: Way,
        path: &str,
        fields: &[(&str, &str)],
    ) -> Self {
        match Self::ask::<B>(server, way, path, fields).await {
            Ok(socket) => socket,
            Err(status) => panic!("the server answered {status} over {way:?}"),
        }
    }

    /// Connects and requests a WebSocket with these fields. Returns the status if it is refused.
    ///
    /// # Panics
    /// If the response is malformed.
    pub async fn ask<B: Bench<Wire = W>>(
        server: &B::Server,
        way: Way,
        path: &str,
        fields: &[(&str, &str)],
    ) -> Result<Self, u16> {
        Self::over(connect::<B>(server, way).await, way, path, fields).await
    }

    /// Requests a WebSocket on an existing connection. Returns the status if it is refused, or 0 if
    /// no response arrives.
    ///
    /// # Panics
    /// If the response is malformed.
    pub async fn over(
        wire: AnyWire<W>,
        way: Way,
        path: &str,
        fields: &[(&str, &str)],
    ) -> Result<Self, u16> {
        let (link, response_fields, unread) = if way.is_http2 {
            Self::over_http2(wire, way, path, fields).await?
        } else {
            Self::over_http1(wire, path, fields).await?
        };
        let compression = response_fields
            .contains("permessage-deflate")
            .then(|| DeflateContext::new(&response_fields));
        Ok(Self {
            link,
            protocol: Connection::new(&LIMITS, Role::Client(|| *b"mask"), compression),
            limits: LIMITS,
            unread,
            fields: response_fields,
            is_dumb: false,
        })
    }

    async fn over_http2(
        wire: AnyWire<W>,
        way: Way,
        path: &str,
        fields: &[(&str, &str)],
    ) -> Result<(Link<W>, String, Vec<u8>), u16> {
        let mut client = Streams::new(wire);
        client.scheme = if way.is_secure { "https" } else { "http" };
        let mut all = vec![(":protocol", "websocket"), ("sec-websocket-version", "13")];
        all.extend(fields);
        let id = client.open("CONNECT", path, &all, false);
        while client.so_far(id).heads.is_empty() {
            if !client.fill(PATIENCE).await {
                return Err(0);
            }
        }
        let response = client.so_far(id);
        if response.status() != 200 {
            return Err(response.status());
        }
        assert_eq!(response.field("sec-websocket-accept"), None);
        let lines = response.heads[0].iter().map(|(name, value)| format!("{name}: {value}\n"));
        let response_fields = lines.collect();
        Ok((Link::Http2(Box::new(client), id, 0), response_fields, Vec::new()))
    }

    async fn over_http1(
        wire: AnyWire<W>,
        path: &str,
        fields: &[(&str, &str)],
    ) -> Result<(Link<W>, String, Vec<u8>), u16> {
        let mut peer = Peer::new(wire);
        let mut head = format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {}\r\n",
            KEY.0
        );
        for (name, value) in fields {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        peer.send(head + "\r\n");
        let mut received = Vec::new();
        let end = loop {
            if let Some(at) = received.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            match peer.more(PATIENCE).await {
                Ok(Some(bytes)) => received.extend(bytes),
                _ => return Err(0),
            }
        };
        let unread = received.split_off(end);
        let head = String::from_utf8(received).expect("ASCII");
        let status = head.get(9..12).and_then(|status| status.parse().ok());
        if status != Some(101) {
            return Err(status.unwrap_or(0));
        }
        assert!(head.contains(KEY.1), "{head}");
        Ok((Link::Http1(peer), head.to_lowercase(), unread))
    }

    /// Sends raw bytes. Bytes that the server does not accept are discarded.
    pub async fn push(&mut self, mut bytes: &[u8]) {
        match &mut self.link {
            Link::Http1(peer) => peer.send(bytes),
            Link::Http2(client, id, _) => {
                while !bytes.is_empty() {
                    let count = client.data_that_fits(*id, bytes, false);
                    bytes = &bytes[count..];
                    if count == 0 && !client.fill(PATIENCE).await {
                        return;
                    }
                }
            }
        }
    }

    /// Sends a frame with these flags.
    pub async fn frame(&mut self, opcode: Opcode, flags: u8, payload: &[u8]) {
        let mut bytes = Vec::new();
        frame::write_frame(opcode, flags, Some(*b"mask"), payload, &mut bytes);
        self.push(&bytes).await;
    }

    /// Sends a message.
    ///
    /// # Panics
    /// If the WebSocket is closed.
    pub async fn send(&mut self, content: MessagePayload<'_>) {
        let mut bytes = Vec::new();
        self.protocol.send(&self.limits, content, &mut bytes).expect("the WebSocket is open");
        self.push(&bytes).await;
    }

    /// Sends a text message.
    pub async fn text(&mut self, text: &str) {
        self.send(MessagePayload::Text(text)).await;
    }

    /// Sends a Close frame.
    ///
    /// # Panics
    /// If the WebSocket is closed.
    pub async fn close(&mut self, code: u16) {
        let mut bytes = Vec::new();
        let close = Some((ws::CloseCode(code), ""));
        self.protocol.close(close, &mut bytes).expect("the WebSocket is open");
        self.push(&bytes).await;
    }

    /// Ends the sending side without a Close frame.
    pub fn half_close(&mut self) {
        match &mut self.link {
            Link::Http1(peer) => peer.half_close(),
            Link::Http2(client, id, _) => client.data(*id, &[], true),
        }
    }

    /// Resets the connection.
    pub fn reset(self) {
        match self.link {
            Link::Http1(peer) => peer.reset(),
            Link::Http2(client, ..) => client.break_off(),
        }
    }

    /// Stops opening the HTTP/2 windows.
    pub fn keep_windows_shut(&mut self) {
        if let Link::Http2(client, ..) = &mut self.link {
            client.keep_windows_shut();
        }
    }

    /// The next event, within `timeout`.
    ///
    /// # Panics
    /// If the server violates the protocol.
    pub async fn next_within(&mut self, timeout: Duration) -> Option<Said> {
        loop {
            let mut out = Vec::new();
            let (used, event) = self.protocol.receive(&self.limits, &mut self.unread, &mut out);
            let event = match event {
                Event::NeedInput | Event::Closed => None,
                Event::Text(text) => Some(Said::Text(text.into())),
                Event::Binary(bytes) => Some(Said::Binary(bytes.into())),
                Event::Ping(payload) => Some(Said::Ping(payload.into())),
                Event::Pong(payload) => Some(Said::Pong(payload.into())),
                Event::Close(close) => Some(Said::Close(close.code.0)),
                other => panic!("{other:?}"),
            };
            self.unread.drain(..used);
            if !out.is_empty() && !self.is_dumb {
                self.push(&out).await;
                self.protocol.output_flushed();
            }
            if event.is_some() {
                return event;
            }
            match self.more(timeout).await {
                Ok(Some(bytes)) => self.unread.extend(bytes),
                Ok(None) => return None,
                Err(end) => return Some(end),
            }
        }
    }

    /// More bytes, if some arrive in time; or how the server ended.
    async fn more(&mut self, timeout: Duration) -> Result<Option<Vec<u8>>, Said> {
        match &mut self.link {
            Link::Http1(peer) => peer
                .more(timeout)
                .await
                .map_err(|is_end| if is_end { Said::End } else { Said::Broken(0) }),
            Link::Http2(client, id, from) => {
                let response = client.more(*id, *from, timeout).await;
                *from += response.0.len();
                match response {
                    (bytes, _, _) if !bytes.is_empty() => Ok(Some(bytes)),
                    // The server may also stop the client's side.
                    (_, true, _) => Err(Said::End),
                    (_, _, Some(code)) => Err(Said::Broken(code)),
                    _ => Ok(None),
                }
            }
        }
    }

    /// The next event, except pings.
    ///
    /// # Panics
    /// If nothing arrives.
    pub async fn next(&mut self) -> Said {
        loop {
            match self.next_within(PATIENCE).await {
                None => panic!("nothing arrives"),
                Some(Said::Ping(_)) => {}
                Some(event) => return event,
            }
        }
    }

    /// Asserts that `event` is next.
    ///
    /// # Panics
    /// If something else is.
    pub async fn expect(&mut self, event: Said) {
        let next = self.next().await;
        assert!(next == event, "{next:?} instead of {event:?}");
    }

    /// Asserts that this text is next.
    ///
    /// # Panics
    /// If something else is.
    pub async fn expect_text(&mut self, text: &str) {
        self.expect(Said::Text(text.to_owned())).await;
    }

    /// Asserts that a Close frame with this code is next, and then the end of the connection or
    /// stream.
    ///
    /// # Panics
    /// If something else is.
    pub async fn expect_close(&mut self, code: u16) {
        self.expect(Said::Close(code)).await;
        self.expect(Said::End).await;
    }

    /// Answers pings for `time`, during which nothing else may arrive. Returns the number of pings.
    ///
    /// # Panics
    /// If something else arrives.
    pub async fn listen<B: Bench>(&mut self, bench: &B, time: Duration) -> usize {
        // An HTTP/2 PING restarts the timeout, so waiting for minutes at once would never end.
        const TIMEOUT_MAX: Duration = Duration::from_secs(10);
        let (end, mut pings) = (bench.now() + time, 0);
        while bench.now() < end {
            match self.next_within(TIMEOUT_MAX.min(end - bench.now())).await {
                None => {}
                Some(Said::Ping(_)) => pings += 1,
                Some(other) => panic!("unexpected {other:?}"),
            }
        }
        pings
    }
}

/// The client's side of permessage-deflate.
struct DeflateContext {
    inflater: Inflater,
    deflater: Deflater,
    resets_context: bool,
    peer_resets_context: bool,
}

impl DeflateContext {
    fn new(response: &str) -> Self {
        Self {
            inflater: Inflater::new(false),
            deflater: Deflater::new(flate2::Compression::fast(), false),
            resets_context: response.contains("client_no_context_takeover"),
            peer_resets_context: response.contains("server_no_context_takeover"),
        }
    }
}

impl DeflateCodec for DeflateContext {
    fn inflate(
        &mut self,
        input: &[u8],
        out_bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<usize, InflateError> {
        let start = out.len();
        out.resize(start + out_bytes_max, 0);
        let before = (self.inflater.total_in(), self.inflater.total_out());
        let status = self.inflater.decompress(input, &mut out[start..], FlushDecompress::None);
        let used = usize::try_from(self.inflater.total_in() - before.0)
            .expect("the count fits in a usize");
        let produced = usize::try_from(self.inflater.total_out() - before.1)
            .expect("the count fits in a usize");
        out.truncate(start + produced);
        assert!(!matches!(status, Ok(Status::StreamEnd)), "the server ends no stream");
        status.map(|_| used).map_err(|_| InflateError)
    }

    fn end_inflate(&mut self) {
        if self.peer_resets_context {
            self.inflater.reset(false);
        }
    }

    fn deflate(&mut self, input: &[u8], out: &mut Vec<u8>) {
        flush(&mut self.deflater, input, out).expect("compression does not fail");
    }

    fn end_deflate(&mut self) {
        if self.resets_context {
            self.deflater.reset();
        }
    }
}
