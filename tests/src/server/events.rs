//! Streams of server-sent events, and clients that read a response of any protocol incrementally.

use crate::server::app::{Shared, produced};
use crate::server::bench::{Bench, Got, Served, Wire};
use crate::server::peer::Peer;
use crate::server::secure::{Secure, client_config};
use crate::server::streams::Streams;
use peregrine::web::extract::{Path, State};
use peregrine::web::sse::{self, Event, Sse};
use peregrine::{App, Shutdown};
use peregrine_tls::rustls::version;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Handlers that respond with events.
pub(super) fn event_handlers(app: App) -> App {
    app.get("/events/gated", async |State(shared): State<Shared>| Sse::new(gated(shared)))
        .get("/events/quiet", async |State(shared): State<Shared>| {
            Sse::new(gated(shared)).keep_alive(None)
        })
        .get("/events/goodbye", async |State(shared): State<Shared>| {
            Sse::new(gated(shared)).final_event(Event::default().event("end").data("bye"))
        })
        .get("/events/through", async |State(shared): State<Shared>| {
            let shutdown = Shutdown::current();
            let mut shutdown_requested = Box::pin(async move { shutdown.requested().await });
            let mut events = Box::pin(gated(shared));
            let mut has_sent_notice = false;
            let events = produced(move |cx: &mut Context<'_>| {
                use futures_core::Stream as _;
                if !has_sent_notice && shutdown_requested.as_mut().poll(cx).is_ready() {
                    has_sent_notice = true;
                    return Poll::Ready(Some(Event::default().data("shutdown")));
                }
                events.as_mut().poll_next(cx)
            });
            Sse::new(events).continue_during_drain()
        })
        .get("/events/endless", async |State(shared): State<Shared>| {
            let watch = shared.begin();
            Sse::new(produced(move |_: &mut Context<'_>| {
                let event = Event::default().data("x".repeat(1_000));
                watch.shared().produced.add(1_000);
                Poll::Ready(Some(event))
            }))
        })
        .get("/events/pushed/{count}", pushed)
        .get("/events/silent", async |shared: State<Shared>| {
            pushed(shared, Path(0)).await.keep_alive(None)
        })
        .get("/events/flood", flood)
}

/// One event per permit of the case. Its first poll counts as a start, its drop as an end.
fn gated(shared: Shared) -> impl futures_core::Stream<Item = Event> {
    let (mut number, mut watch) = (0, None);
    let mut permit: Option<Pin<Box<dyn Future<Output = ()>>>> = None;
    produced(move |cx: &mut Context<'_>| {
        watch.get_or_insert_with(|| shared.begin());
        let gate = shared.clone();
        let waiting = permit.get_or_insert_with(|| Box::pin(async move { gate.pass().await }));
        if waiting.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        permit = None;
        number += 1;
        Poll::Ready(Some(Event::default().data(number.to_string())))
    })
}

/// A task pushes `count` events at once, and waits for the end of the stream.
async fn pushed(State(shared): State<Shared>, Path(count): Path<u32>) -> Sse {
    let (sender, sse) = sse::channel();
    tokio::task::spawn_local(async move {
        let watch = shared.begin();
        for number in 1..=count {
            let event = Event::default().data(number.to_string());
            if sender.send(event).await.is_err() {
                return;
            }
            shared.produced.add(1);
        }
        sender.closed().await;
        watch.finish();
    });
    sse
}

/// A task pushes events endlessly, as fast as there is room.
async fn flood(State(shared): State<Shared>) -> Sse {
    let (sender, sse) = sse::channel();
    tokio::task::spawn_local(async move {
        let watch = shared.begin();
        while sender.send(Event::default().data("x".repeat(1_000))).await.is_ok() {
            shared.produced.add(1_000);
        }
        watch.finish();
    });
    sse
}

/// The protocols, with and without TLS.
pub const WAYS: [Way; 4] = [
    Way { is_http2: false, is_secure: false },
    Way { is_http2: true, is_secure: false },
    Way { is_http2: false, is_secure: true },
    Way { is_http2: true, is_secure: true },
];

/// How a client connects to the server.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// HTTP/2 if set, otherwise HTTP/1.1.
    pub is_http2: bool,
    /// Uses TLS.
    pub is_secure: bool,
}

/// A wire, with or without TLS.
pub enum AnyWire<W> {
    /// Without TLS.
    Plain(W),
    /// With TLS.
    Secure(Box<Secure<W>>),
}

impl<W: Wire> Wire for AnyWire<W> {
    fn send(&mut self, bytes: &[u8]) {
        match self {
            Self::Plain(wire) => wire.send(bytes),
            Self::Secure(wire) => wire.send(bytes),
        }
    }

    fn half_close(&mut self) {
        match self {
            Self::Plain(wire) => wire.half_close(),
            Self::Secure(wire) => wire.half_close(),
        }
    }

    async fn recv(&mut self, timeout: Duration) -> Got {
        match self {
            Self::Plain(wire) => wire.recv(timeout).await,
            Self::Secure(wire) => wire.recv(timeout).await,
        }
    }

    fn reset(self) {
        match self {
            Self::Plain(wire) => wire.reset(),
            Self::Secure(wire) => wire.reset(),
        }
    }
}

/// Connects to `server`, and completes the TLS handshake.
pub(super) async fn connect<B: Bench>(server: &B::Server, way: Way) -> AnyWire<B::Wire> {
    if !way.is_secure {
        return AnyWire::Plain(server.connect());
    }
    let mut config = (*client_config(&version::TLS13)).clone();
    let protocol: &[u8] = if way.is_http2 { b"h2" } else { b"http/1.1" };
    config.alpn_protocols = vec![protocol.to_vec()];
    let mut wire = Secure::new(server.connect_secure(), &Arc::new(config));
    wire.shake_hands(Duration::from_secs(20)).await;
    AnyWire::Secure(Box::new(wire))
}

/// A client that reads one response incrementally.
pub enum Reader<W> {
    /// Over HTTP/1.1.
    Http1(Peer<AnyWire<W>>),
    /// Over HTTP/2: the client, the stream, and how much of its content was read.
    Http2(Box<Streams<AnyWire<W>>>, u32, usize),
}

impl<W: Wire> Reader<W> {
    /// Connects to `server`, requests `path`, and waits for the head of the response.
    ///
    /// # Panics
    /// If it does not arrive, or is not a 200.
    pub async fn begin<B: Bench<Wire = W>>(server: &B::Server, way: Way, path: &str) -> Self {
        let wire = connect::<B>(server, way).await;
        if way.is_http2 {
            let mut client = Streams::new(wire);
            client.scheme = if way.is_secure { "https" } else { "http" };
            let id = client.get(path);
            client.expect_head(id).await;
            assert_eq!(client.so_far(id).status(), 200);
            Self::Http2(Box::new(client), id, 0)
        } else {
            let mut peer = Peer::new(wire);
            peer.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
            let head = peer.expect("\r\n\r\n").await;
            assert!(head.starts_with(b"HTTP/1.1 200 OK\r\n"), "{}", head.escape_ascii());
            Self::Http1(peer)
        }
    }

    /// Resets the connection.
    pub fn reset(self) {
        match self {
            Self::Http1(peer) => peer.reset(),
            Self::Http2(client, ..) => client.break_off(),
        }
    }

    /// Asserts that `piece` is the next piece of content.
    ///
    /// # Panics
    /// If it is not, or does not arrive.
    pub async fn expect(&mut self, piece: &str) {
        let received = match self {
            Self::Http1(peer) => {
                let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
                let received = peer.expect(&chunk).await;
                assert_eq!(String::from_utf8_lossy(&received), chunk);
                return;
            }
            Self::Http2(client, id, from) => {
                client.expect(*id, *from + piece.len()).await;
                let body = client.so_far(*id).body;
                let received = body[*from..*from + piece.len()].to_vec();
                *from += piece.len();
                received
            }
        };
        assert_eq!(String::from_utf8_lossy(&received), piece);
    }

    /// Asserts that nothing arrives for `time`.
    ///
    /// # Panics
    /// If something does.
    pub async fn expect_nothing(&mut self, time: Duration) {
        match self {
            Self::Http1(peer) => peer.expect_nothing(time).await,
            Self::Http2(client, id, from) => {
                // The server sends a PING every minute, which also counts as received data.
                let step = time.min(Duration::from_secs(30));
                for _ in 0..time.div_duration_f64(step).ceil() as u32 {
                    client.listen(step).await;
                }
                let response = client.so_far(*id);
                assert_eq!(response.body.len(), *from, "unexpected content: {response:?}");
                assert!(!response.is_complete && response.reset.is_none(), "{response:?}");
            }
        }
    }

    /// Asserts that the response is complete and ended cleanly.
    ///
    /// # Panics
    /// If it is not.
    pub async fn expect_end(&mut self) {
        match self {
            Self::Http1(peer) => assert_eq!(peer.expect("0\r\n\r\n").await, b"0\r\n\r\n"),
            Self::Http2(client, id, from) => {
                let response = client.answer(*id).await;
                assert!(response.is_complete && response.body.len() == *from, "{response:?}");
            }
        }
    }
}
