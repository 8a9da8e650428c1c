//! WebSockets for hours: messages, fragments, pings, silence, and every kind of end.

use super::world::World;
use crate::server::app::pattern;
use crate::server::events::{AnyWire, Way};
use crate::server::simulated::SimulatedWire;
use crate::server::websockets::{Said, Socket};
use peregrine::App;
use peregrine::web::extract::Path;
use peregrine::websocket::{CloseCode, Message, WebSocket, WebSocketSender, WebSocketUpgrade};
use peregrine_driver_sim::{Client, SocketBuffers};
use peregrine_proto::ws::MessagePayload;
use peregrine_proto::ws::frame::{Opcode, flag};
use std::rc::Rc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// When a message must arrive that waits for nothing.
const SOON: Duration = Duration::from_secs(60);
/// How often some handlers send a message by themselves.
const TICKS: Duration = Duration::from_secs(40);
const TICK_TEXT: &str = "tick";
/// The close code of the handler that closes by itself.
const CLOSED_BY_HANDLER: u16 = 4_000;

/// Handlers that echo, each in another way.
pub(super) fn handlers(app: App) -> App {
    app.get("/ws/echo", |upgrade: WebSocketUpgrade| upgrade.on_upgrade(echo))
        .get("/ws/ticks", |upgrade: WebSocketUpgrade| upgrade.on_upgrade(ticks))
        .get("/ws/tasks", |upgrade: WebSocketUpgrade| upgrade.on_upgrade(tasks))
        .get("/ws/slow", |upgrade: WebSocketUpgrade| upgrade.on_upgrade(slow))
        .get("/ws/closes/{seconds}", |upgrade: WebSocketUpgrade, Path(seconds): Path<u64>| {
            upgrade.on_upgrade(async move |mut socket| {
                let until = tokio::time::Instant::now() + Duration::from_secs(seconds);
                while let Ok(Some(Ok(message))) =
                    tokio::time::timeout_at(until, socket.recv()).await
                {
                    if is_content(&message) && socket.send(message).await.is_err() {
                        return;
                    }
                }
                let _ = socket.close(CloseCode(CLOSED_BY_HANDLER), "").await;
            })
        })
}

fn is_content(message: &Message) -> bool {
    matches!(message, Message::Text(_) | Message::Binary(_))
}

async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        if is_content(&message) && socket.send(message).await.is_err() {
            return;
        }
    }
}

/// Receives in one `select!` arm, and sends in the other.
async fn ticks(mut socket: WebSocket) {
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + TICKS, TICKS);
    loop {
        let message = tokio::select! {
            message = socket.recv() => message,
            _ = ticks.tick() => Some(Ok(TICK_TEXT.into())),
        };
        let Some(Ok(message)) = message else { return };
        if is_content(&message) && socket.send(message).await.is_err() {
            return;
        }
    }
}

/// Receives in one task and sends in others, one for each message.
async fn tasks(socket: WebSocket) {
    async fn send_back(sender: WebSocketSender, message: Message) {
        // In a separate task, there is room as soon as the server has accepted the previous
        // message.
        tokio::select! {
            () = sender.wait_closing() => {}
            _ = sender.send(message) => {}
        }
    }
    let (sender, mut receiver) = socket.split();
    let receiving = tokio::task::spawn_local(async move {
        while let Some(Ok(message)) = receiver.recv().await {
            if is_content(&message) {
                let sending = send_back(sender.clone(), message);
                let _ = tokio::task::spawn_local(sending).await;
            }
        }
    });
    let _ = receiving.await;
}

/// Pauses after each message before reading the next.
async fn slow(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        tokio::select! {
            () = socket.wait_closing() => {}
            () = tokio::time::sleep(5 * SECOND) => {}
        }
        if is_content(&message) && socket.send(message).await.is_err() {
            return;
        }
    }
}

/// A peer's WebSocket.
struct Peer {
    world: Rc<World>,
    client: Rc<Client>,
    socket: Socket<SimulatedWire>,
    kind: &'static str,
    path: &'static str,
    start: Duration,
    /// The handler may close by itself from this time.
    closes_from: Duration,
    is_over: bool,
}

impl Peer {
    async fn open(world: &Rc<World>, is_http2: bool) -> Option<Self> {
        let kind = if is_http2 { "websocket of HTTP/2" } else { "websocket" };
        let sizes = world.choose(&[0, 300, 5_000, 100_000]);
        let client = Rc::new(world.connect((sizes > 0).then(|| SocketBuffers::with_size(sizes))));
        world.add_peer(kind, client.address());
        let wire = AnyWire::Plain(SimulatedWire::new(Rc::clone(&client), &world.network));
        let (path, closes_from) = match world.network.random_below(7) {
            0 => ("/ws/ticks", Duration::MAX),
            1 => ("/ws/tasks", Duration::MAX),
            2 => ("/ws/slow", Duration::MAX),
            3 => ("/ws/closes/100", 100 * SECOND),
            _ => ("/ws/echo", Duration::MAX),
        };
        let start = world.network.now();
        let transport = Way { is_http2, is_secure: false };
        let opened = Socket::over(wire, transport, path, &[]).await;
        let record_end = |at: Duration| {
            world.update_record(&client, |record, _| {
                record.may_end_from(at);
                record.ended_at = Some(at);
            })
        };
        match opened {
            Ok(socket) => {
                let closes_from = closes_from.saturating_add(start);
                let world = Rc::clone(world);
                Some(Self { world, client, socket, kind, path, start, closes_from, is_over: false })
            }
            Err(status) => {
                if world.must_answer(start) {
                    world.record_failure(format!("{kind} since {start:?}: {path} got a {status}"));
                }
                record_end(world.network.now());
                None
            }
        }
    }

    fn now(&self) -> Duration {
        self.world.network.now()
    }

    fn record_failure(&self, text: &str) {
        if !self.world.is_shutting_down() {
            let Self { kind, path, start, .. } = self;
            self.world.record_failure(format!(
                "{kind}, {path}, since {start:?}, at {:?}: {text}",
                self.now()
            ));
        }
    }

    /// The next event within `time`, except pings, which are answered, and ticks.
    async fn next(&mut self, time: Duration) -> Option<Said> {
        let until = self.now() + time;
        while self.now() < until {
            // An HTTP/2 PING restarts the timeout.
            let timeout = (until - self.now()).min(10 * SECOND);
            match self.socket.next_within(timeout).await {
                None | Some(Said::Ping(_)) => {}
                Some(Said::Text(text)) if text == TICK_TEXT => {}
                Some(event) => {
                    self.is_over |= matches!(event, Said::End | Said::Broken(_) | Said::Close(_));
                    return Some(event);
                }
            }
        }
        None
    }

    /// Asserts that `event` is next. Returns false if it is not, which is a failure unless the
    /// server or the handler is ending.
    async fn expect(&mut self, event: Said) -> bool {
        match self.next(SOON).await {
            Some(next) if next == event => return true,
            Some(Said::Close(CLOSED_BY_HANDLER)) if self.now() >= self.closes_from => {}
            Some(Said::Close(1_001)) if self.world.is_shutting_down() => {}
            other => {
                let text =
                    format!("{:.60} instead of {:.60}", format!("{other:?}"), format!("{event:?}"));
                self.record_failure(&text);
            }
        }
        false
    }

    /// Asserts that nothing arrives for `time`, while the peer only answers pings.
    async fn listen(&mut self, time: Duration) -> bool {
        match self.next(time).await {
            None => return true,
            Some(Said::Close(CLOSED_BY_HANDLER)) if self.now() >= self.closes_from => {}
            Some(Said::Close(1_001)) if self.world.is_shutting_down() => {}
            Some(other) => self.record_failure(&format!("{:.60} in silence", format!("{other:?}"))),
        }
        false
    }

    /// Sends something that is answered. Returns false if the WebSocket has ended.
    async fn exchange_message(&mut self) -> bool {
        let length = self.world.choose(&[0, 1, 125, 126, 3_000, 20_000]);
        match self.world.network.random_below(6) {
            0 => {
                let text = "x".repeat(length);
                self.socket.text(&text).await;
                self.expect(Said::Text(text)).await
            }
            1 => {
                let bytes = pattern(length);
                self.socket.send(MessagePayload::Binary(&bytes)).await;
                self.expect(Said::Binary(bytes)).await
            }
            2 => {
                self.socket.frame(Opcode::Ping, flag::FIN, b"there?").await;
                self.expect(Said::Pong(b"there?".to_vec())).await
            }
            3 => {
                let bytes = pattern(length);
                let (first_part, second_part) = bytes.split_at(length / 3);
                self.socket.frame(Opcode::Binary, 0, first_part).await;
                self.socket.frame(Opcode::Ping, flag::FIN, b"within").await;
                let is_quiet = self.expect(Said::Pong(b"within".to_vec())).await
                    && self
                        .listen(self.world.time(self.world.choose(&[SECOND, 1_200 * SECOND])))
                        .await;
                if !is_quiet {
                    return false;
                }
                self.socket.frame(Opcode::Continuation, flag::FIN, second_part).await;
                self.expect(Said::Binary(bytes)).await
            }
            4 => {
                for number in 0..8 {
                    self.socket.text(&format!("number {number}")).await;
                }
                for number in 0..8 {
                    if !self.expect(Said::Text(format!("number {number}"))).await {
                        return false;
                    }
                }
                true
            }
            _ => {
                let pause_max = self.world.choose(&[SECOND, 100 * SECOND, 4 * 3_600 * SECOND]);
                self.listen(self.world.time(pause_max)).await
            }
        }
    }

    /// Asserts that the end arrives, possibly after other messages.
    async fn expect_end(&mut self, code: Option<u16>, time: Duration) {
        let until = self.now() + time;
        let mut closed = None;
        while self.now() < until {
            match self.next(until - self.now()).await {
                Some(Said::Close(code)) => closed = Some(code),
                Some(Said::End) => {
                    if closed != code && self.now() < self.closes_from {
                        self.record_failure(&format!(
                            "the end is with {closed:?} instead of {code:?}"
                        ));
                    }
                    return;
                }
                Some(Said::Broken(reset)) => {
                    return self.record_failure(&format!("reset: {reset}"));
                }
                _ => {}
            }
        }
        self.record_failure("the end does not arrive");
    }

    /// Ends in any way.
    async fn end(mut self) {
        match self.world.network.random_below(7) {
            0 => {
                self.socket.close(3_000).await;
                self.expect_end(Some(3_000), SOON).await;
            }
            1 => {
                // The server echoes nothing that follows a Close frame.
                self.socket.close(3_001).await;
                self.socket.frame(Opcode::Text, flag::FIN, b"behind").await;
                self.expect_end(Some(3_001), SOON).await;
            }
            2 => {
                self.socket.frame(Opcode::Continuation, flag::FIN, b"of nothing").await;
                self.expect_end(Some(1_002), SOON).await;
            }
            3 => {
                self.socket.half_close();
                self.expect_end(None, SOON).await;
            }
            4 => {
                // The peer becomes silent above TCP: the server pings it, sends a Close frame, and
                // disconnects it.
                self.socket.is_dumb = true;
                self.expect_end(Some(1_008), 110 * SECOND).await;
            }
            5 => {
                // The peer disconnects in the middle of a message.
                self.socket.frame(Opcode::Text, 0, b"begun").await;
                self.client.reset();
            }
            _ => {}
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let now = self.now();
        self.world.update_record(&self.client, |record, _| {
            record.may_end_from(now);
            record.ended_at.get_or_insert(now);
        });
    }
}

/// Exchanges messages for hours, and ends in any way.
pub(super) async fn talker(world: Rc<World>, is_http2: bool) {
    let Some(mut peer) = Peer::open(&world, is_http2).await else { return };
    for _ in 0..world.network.random_below(10) {
        if !peer.exchange_message().await {
            return;
        }
        world.check_loans();
    }
    if !world.is_shutting_down() {
        peer.end().await;
    }
}
