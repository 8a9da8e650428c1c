//! WebSockets polled by hand, with a manual clock: which tasks are woken, and how often.

use bytes::Bytes;
use peregrine::prelude::*;
use peregrine::web::pipe::{PipeReader, PipeWriter, pipe};
use peregrine::web::timer::{Timer, TimerSource, install};
use peregrine::web::upgrade::{SEND_BUFFER_BYTES_MAX, SendBuffer, Upgraded};
use peregrine::websocket::{
    CloseCode, Message, TrySendError, WebSocket, WebSocketLimits, WebSocketUpgrade,
};
use peregrine_proto::ws::frame::{self, Opcode, flag};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Counts wake-ups.
#[derive(Default)]
struct WakeCounter(AtomicUsize);

impl WakeCounter {
    fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A manual clock. It wakes no tasks: the test polls.
#[derive(Clone, Default)]
struct ManualClock(Rc<Cell<Duration>>, Rc<Cell<bool>>);

struct ManualTimer(ManualClock, Option<Duration>);

impl TimerSource for ManualClock {
    fn new_timer(&self) -> Option<Box<dyn Timer>> {
        Some(Box::new(ManualTimer(self.clone(), None)))
    }
}

impl Timer for ManualTimer {
    fn reset(&mut self, after: Duration) {
        self.1 = Some(self.now().saturating_add(after));
    }

    fn poll_elapsed(&mut self, _: &mut Context<'_>) -> Poll<()> {
        if self.1.is_some_and(|at| at <= self.now()) { Poll::Ready(()) } else { Poll::Pending }
    }

    fn now(&self) -> Duration {
        self.0.0.get()
    }

    fn is_server_draining(&self) -> bool {
        self.0.1.get()
    }
}

/// A WebSocket connection whose server and peer are the test.
struct TestConnection {
    running: Option<Pin<Box<dyn Future<Output = ()>>>>,
    incoming: PipeWriter,
    outgoing: SendBuffer,
    woken: Arc<WakeCounter>,
    polls: usize,
    clock: ManualClock,
}

impl TestConnection {
    fn new<F>(
        configure: impl Fn(WebSocketUpgrade) -> WebSocketUpgrade + 'static,
        handler: F,
    ) -> Self
    where
        F: AsyncFn(WebSocket) + Clone + 'static,
    {
        let handle = move |upgrade: WebSocketUpgrade| {
            let handler = handler.clone();
            configure(upgrade).on_upgrade(async move |socket| handler(socket).await)
        };
        let client = App::new().get("/", handle).test();
        let upgrade = client.websocket("/").send_blocking().into_response().take_upgrade();
        let (incoming, reader): (PipeWriter, PipeReader) = pipe(SEND_BUFFER_BYTES_MAX, None);
        let (outgoing, clock) = (SendBuffer::default(), ManualClock::default());
        install(Rc::new(clock.clone()));
        let running =
            upgrade.expect("the response is a 101").run(Upgraded::new(reader, outgoing.clone()));
        let mut connection = Self {
            running: Some(running),
            incoming,
            outgoing,
            woken: Arc::default(),
            polls: 0,
            clock,
        };
        connection.poll();
        connection.poll_while_woken();
        connection
    }

    fn poll(&mut self) {
        self.polls += 1;
        let waker = Waker::from(Arc::clone(&self.woken));
        let mut cx = Context::from_waker(&waker);
        let Some(running) = &mut self.running else { return };
        if running.as_mut().poll(&mut cx).is_ready() {
            self.running = None;
        }
    }

    /// Polls while the task is woken. Returns the number of polls.
    fn poll_while_woken(&mut self) -> usize {
        let polls_before = self.polls;
        while self.woken.take() > 0 {
            self.poll();
            assert!(self.polls - polls_before < 1_000, "the task keeps waking itself");
        }
        self.polls - polls_before
    }

    /// Takes the output like the HTTP/2 server does, without waking the WebSocket.
    fn take_output(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let _ = self.outgoing.poll_take(&mut Context::from_waker(Waker::noop()), &mut bytes);
        bytes
    }

    fn receive_frame(&mut self, opcode: Opcode, payload: &[u8]) {
        let mut bytes = Vec::new();
        frame::write_frame(opcode, flag::FIN, Some(*b"mask"), payload, &mut bytes);
        self.incoming.send(bytes.into());
    }

    fn advance_clock(&mut self, time: Duration) {
        self.clock.0.set(self.clock.0.get() + time);
        self.poll();
        self.poll_while_woken();
    }

    /// Advances the clock until the server sends a ping, which takes one or two intervals of
    /// silence.
    fn await_ping(&mut self) {
        self.advance_clock(Duration::from_secs(30));
        self.advance_clock(Duration::from_secs(29));
        self.advance_clock(Duration::from_secs(1));
        assert_eq!(self.take_output(), b"\x89\x0akeep-alive");
    }

    fn drain(&mut self) {
        self.clock.1.set(true);
        self.poll();
        self.poll_while_woken();
    }
}

/// Where a handler stores a value for the test, which acts as another task.
type Shared<T> = Rc<RefCell<Option<T>>>;

/// Creates a WebSocket whose handler passes it to the test and returns.
fn detached_socket(limits: WebSocketLimits) -> (TestConnection, WebSocket) {
    let shared: Shared<WebSocket> = Shared::default();
    let handler_shared = Rc::clone(&shared);
    let connection = TestConnection::new(
        move |upgrade| upgrade.limits(limits),
        move |socket| {
            *handler_shared.borrow_mut() = Some(socket);
            async {}
        },
    );
    let socket = shared.take().expect("the handler ran");
    (connection, socket)
}

fn poll_once<T>(waker: &Waker, future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(waker))
}

const TEXT: &[u8] = b"text";

#[test]
fn another_task_may_send_again_after_the_server_took_the_output() {
    let (mut connection, socket) = detached_socket(WebSocketLimits {
        send_queue_bytes_max: 1_000,
        ..WebSocketLimits::default()
    });
    for _ in 0..3 {
        socket.try_send(vec![0; 1_000]).expect("there is room");
        assert!(matches!(socket.try_send("x"), Err(TrySendError::Full(_))));
        connection.poll_while_woken();
        assert!(matches!(socket.try_send("x"), Err(TrySendError::Full(_))));
        assert_eq!(connection.take_output().len(), 1_004);
        connection.poll_while_woken();
    }
    drop(socket);
}

#[test]
fn a_close_by_one_sender_wakes_all_senders() {
    let (mut connection, socket) =
        detached_socket(WebSocketLimits { send_queue_bytes_max: 1, ..WebSocketLimits::default() });
    let (sender, _receiver) = socket.split();
    let other = sender.clone();
    let wake_counter = Arc::new(WakeCounter::default());
    let waker = Waker::from(Arc::clone(&wake_counter));
    let mut closing = std::pin::pin!(other.wait_closing());
    assert!(poll_once(&waker, closing.as_mut()).is_pending());
    sender.try_send("first").expect("there is room");
    let mut sending = std::pin::pin!(other.send("second"));
    assert!(poll_once(&waker, sending.as_mut()).is_pending());
    sender.try_send(Message::close(CloseCode::NORMAL_CLOSURE, "")).expect("the WebSocket is open");
    assert!(wake_counter.take() > 0, "the waiting tasks are woken");
    assert!(poll_once(&waker, closing.as_mut()).is_ready());
    assert!(poll_once(&waker, sending.as_mut()).is_ready());
    connection.poll_while_woken();
}

#[test]
fn wakers_of_dropped_futures_are_removed() {
    let (mut connection, socket) =
        detached_socket(WebSocketLimits { send_queue_bytes_max: 1, ..WebSocketLimits::default() });
    socket.try_send("much").expect("there is room");
    connection.poll_while_woken();
    let wake_counter = Arc::new(WakeCounter::default());
    for _ in 0..10 {
        let waker = Waker::from(Arc::clone(&wake_counter));
        // A separate task, with its own waker, that gives up.
        let task_waker = Waker::from(Arc::new(TaskWaker(waker)));
        assert!(poll_once(&task_waker, std::pin::pin!(socket.wait_closing())).is_pending());
        assert!(poll_once(&task_waker, std::pin::pin!(socket.send("more"))).is_pending());
        drop(task_waker);
    }
    assert_eq!(Arc::strong_count(&wake_counter), 1, "wakers of dropped tasks are kept");
    connection.poll_while_woken();
}

/// The waker of a task, which keeps the task alive.
struct TaskWaker(Waker);

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.0.wake_by_ref();
    }
}

#[test]
fn recv_returns_none_forever_after_a_drain() {
    let resume: Shared<()> = Shared::default();
    let handler_resume = Rc::clone(&resume);
    let mut connection = TestConnection::new(
        |upgrade| upgrade,
        move |mut socket: WebSocket| {
            let handler_resume = Rc::clone(&handler_resume);
            async move {
                while let Some(Ok(_)) = socket.recv().await {}
                assert!(handler_resume.borrow().is_none());
                // Meanwhile the peer keeps sending.
                poll_fn(|_| {
                    if handler_resume.borrow().is_some() { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
                assert_eq!(socket.recv().await, None);
                socket.send("bye").await.expect("there is time");
                std::future::pending::<()>().await;
            }
        },
    );
    connection.drain();
    // More than the limit of unread messages.
    for _ in 0..40 {
        connection.receive_frame(Opcode::Text, &[b'x'; 2_000]);
        connection.poll();
    }
    *resume.borrow_mut() = Some(());
    connection.poll();
    connection.poll_while_woken();
    assert_eq!(connection.take_output(), b"\x81\x03bye");
    connection.advance_clock(Duration::from_secs(5));
    assert_eq!(connection.take_output(), b"\x88\x02\x03\xe9");
    // The peer's Close frame is read despite the unread messages before it.
    connection.receive_frame(Opcode::Close, b"\x03\xe9");
    connection.poll();
    connection.poll_while_woken();
    connection.advance_clock(Duration::from_secs(10));
    assert!(connection.running.is_none(), "the close handshake was not seen");
}

#[test]
fn a_pong_received_in_time_counts_even_if_it_is_read_late() {
    let (mut connection, socket) = detached_socket(WebSocketLimits::default());
    for _ in 0..3 {
        connection.await_ping();
        // Meanwhile the worker was blocked.
        connection.receive_frame(Opcode::Pong, b"keep-alive");
        connection.advance_clock(Duration::from_secs(300));
        assert!(!socket.is_closed(), "the peer answered in time");
        connection.poll_while_woken();
        connection.take_output();
    }
}

trait IsClosed {
    fn is_closed(&self) -> bool;
}

impl IsClosed for WebSocket {
    fn is_closed(&self) -> bool {
        matches!(self.try_send(Message::Pong(Bytes::new())), Err(TrySendError::Send(_)))
    }
}

#[test]
fn an_echoed_message_costs_one_poll() {
    let mut connection = TestConnection::new(
        |upgrade| upgrade,
        async |mut socket: WebSocket| {
            while let Some(Ok(message)) = socket.recv().await {
                socket.send(message).await.expect("the WebSocket is open");
            }
        },
    );
    for _ in 0..5 {
        connection.receive_frame(Opcode::Text, TEXT);
        assert_eq!(connection.poll_while_woken(), 1, "polls per message");
        assert_eq!(connection.take_output(), b"\x81\x04text");
        assert_eq!(connection.poll_while_woken(), 0, "polls after the server took the output");
    }
}

#[test]
fn cloning_and_dropping_senders_causes_no_poll() {
    let (mut connection, socket) = detached_socket(WebSocketLimits::default());
    let (sender, receiver) = socket.split();
    for _ in 0..5 {
        drop(sender.clone());
    }
    assert_eq!(connection.poll_while_woken(), 0);
    drop(receiver);
    connection.poll_while_woken();
    drop(sender);
    assert!(connection.poll_while_woken() > 0);
    assert_eq!(connection.take_output(), b"\x88\x02\x03\xe8");
}

#[test]
fn zero_timeouts_and_limits_do_not_spin() {
    let shared: Shared<WebSocket> = Shared::default();
    let handler_shared = Rc::clone(&shared);
    let mut connection = TestConnection::new(
        |upgrade| {
            let limits = WebSocketLimits {
                receive_queue_bytes_max: 0,
                send_queue_bytes_max: 0,
                ..WebSocketLimits::default()
            };
            let upgrade = upgrade.limits(limits).ping_interval(Duration::from_nanos(1));
            let zero = Duration::ZERO;
            upgrade.pong_timeout(zero).close_timeout(zero).drain_timeout(zero)
        },
        move |socket| {
            *handler_shared.borrow_mut() = Some(socket);
            async {}
        },
    );
    connection.receive_frame(Opcode::Text, TEXT);
    connection.advance_clock(Duration::from_secs(1));
    for _ in 0..5 {
        connection.advance_clock(Duration::from_secs(1));
    }
    connection.drain();
    connection.advance_clock(Duration::from_secs(1));
    assert!(connection.running.is_none());
}

#[test]
fn all_pings_of_a_peer_that_reads_get_a_pong() {
    let mut connection = TestConnection::new(
        |upgrade| upgrade,
        async |mut socket: WebSocket| {
            while let Some(Ok(_)) = socket.recv().await {}
        },
    );
    for index in 0..300_u32 {
        connection.receive_frame(Opcode::Ping, &index.to_be_bytes());
    }
    let mut pongs = Vec::new();
    loop {
        connection.poll_while_woken();
        let output = connection.take_output();
        if output.is_empty() {
            break;
        }
        pongs.extend(output);
    }
    let mut expected = Vec::new();
    for index in 0..300_u32 {
        frame::write_frame(Opcode::Pong, flag::FIN, None, &index.to_be_bytes(), &mut expected);
    }
    assert!(pongs == expected, "{} bytes instead of {}", pongs.len(), expected.len());
}

#[test]
fn pongs_are_limited_if_the_peer_does_not_read() {
    let mut connection = TestConnection::new(
        |upgrade| upgrade,
        async |mut socket: WebSocket| {
            while let Some(Ok(_)) = socket.recv().await {}
        },
    );
    for _ in 0..400 {
        connection.receive_frame(Opcode::Ping, &[7; 125]);
        connection.poll_while_woken();
    }
    let pongs = connection.take_output();
    assert!(pongs.len() <= 2 * 101 * 127, "{} bytes", pongs.len());
}

#[test]
fn pongs_for_the_servers_pings_are_not_charged() {
    let limits = WebSocketLimits {
        abuse_budget_max: 0,
        abuse_budget_per_second: 0,
        ..WebSocketLimits::default()
    };
    let (mut connection, socket) = detached_socket(limits);
    for _ in 0..5 {
        connection.await_ping();
        connection.receive_frame(Opcode::Pong, b"keep-alive");
        connection.poll_while_woken();
        assert!(!socket.is_closed(), "{:?}", connection.take_output());
        connection.poll_while_woken();
        connection.take_output();
    }
    // An unsolicited pong is charged.
    connection.receive_frame(Opcode::Pong, b"keep-alive");
    connection.poll_while_woken();
    assert!(socket.is_closed());
}
