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
struct Count(AtomicUsize);

impl Count {
    fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A manual clock. It wakes no tasks: the test polls.
#[derive(Clone, Default)]
struct Hand(Rc<Cell<Duration>>, Rc<Cell<bool>>);

struct HandAlarm(Hand, Option<Duration>);

impl TimerSource for Hand {
    fn new_timer(&self) -> Option<Box<dyn Timer>> {
        Some(Box::new(HandAlarm(self.clone(), None)))
    }
}

impl Timer for HandAlarm {
    fn reset(&mut self, after: Duration) {
        self.1 = Some(self.now().saturating_add(after));
    }

    fn poll_elapsed(&mut self, _: &mut Context<'_>) -> Poll<()> {
        if self.1.is_some_and(|at| at <= self.now()) { Poll::Ready(()) } else { Poll::Pending }
    }

    fn now(&self) -> Duration {
        self.0.0.get()
    }

    fn is_draining(&self) -> bool {
        self.0.1.get()
    }
}

/// A WebSocket whose server and peer are the test.
struct Rig {
    running: Option<Pin<Box<dyn Future<Output = ()>>>>,
    incoming: PipeWriter,
    outgoing: SendBuffer,
    woken: Arc<Count>,
    polls: usize,
    clock: Hand,
}

impl Rig {
    fn new<F>(set: impl Fn(WebSocketUpgrade) -> WebSocketUpgrade + 'static, handler: F) -> Self
    where
        F: AsyncFn(WebSocket) + Clone + 'static,
    {
        let handle = move |upgrade: WebSocketUpgrade| {
            let handler = handler.clone();
            set(upgrade).on_upgrade(async move |socket| handler(socket).await)
        };
        let client = App::new().get("/", handle).test();
        let upgrade = client.websocket("/").send_blocking().into_response().take_upgrade();
        let (incoming, reader): (PipeWriter, PipeReader) = pipe(SEND_BUFFER_BYTES_MAX, None);
        let (outgoing, clock) = (SendBuffer::default(), Hand::default());
        install(Rc::new(clock.clone()));
        let running = upgrade.expect("it is a 101").run(Upgraded::new(reader, outgoing.clone()));
        let mut rig = Self {
            running: Some(running),
            incoming,
            outgoing,
            woken: Arc::default(),
            polls: 0,
            clock,
        };
        rig.poll();
        rig.settle();
        rig
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
    fn settle(&mut self) -> usize {
        let from = self.polls;
        while self.woken.take() > 0 {
            self.poll();
            assert!(self.polls - from < 1_000, "the task keeps waking itself");
        }
        self.polls - from
    }

    /// Takes the output like the HTTP/2 server does, without waking the WebSocket.
    fn take(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let _ = self.outgoing.poll_drain(&mut Context::from_waker(Waker::noop()), &mut bytes);
        bytes
    }

    fn push(&mut self, opcode: Opcode, payload: &[u8]) {
        let mut bytes = Vec::new();
        frame::write_frame(opcode, flag::FIN, Some(*b"mask"), payload, &mut bytes);
        self.incoming.send(bytes.into());
    }

    fn pass(&mut self, time: Duration) {
        self.clock.0.set(self.clock.0.get() + time);
        self.poll();
        self.settle();
    }

    /// Advances the clock until the server sends a ping, which takes one or two intervals of
    /// silence.
    fn await_ping(&mut self) {
        self.pass(Duration::from_secs(30));
        self.pass(Duration::from_secs(29));
        self.pass(Duration::from_secs(1));
        assert_eq!(self.take(), b"\x89\x0akeep-alive");
    }

    fn drain(&mut self) {
        self.clock.1.set(true);
        self.poll();
        self.settle();
    }
}

/// Where a handler stores its handles for the test, which acts as another task.
type Left<T> = Rc<RefCell<Option<T>>>;

/// Creates a WebSocket whose handler gives it to the test and returns.
fn leaving(limits: WebSocketLimits) -> (Rig, WebSocket) {
    let left: Left<WebSocket> = Left::default();
    let place = Rc::clone(&left);
    let rig = Rig::new(
        move |upgrade| upgrade.limits(limits),
        move |socket| {
            *place.borrow_mut() = Some(socket);
            async {}
        },
    );
    let socket = left.take().expect("the handler ran");
    (rig, socket)
}

fn poll_once<T>(waker: &Waker, future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(waker))
}

const TEXT: &[u8] = b"text";

#[test]
fn another_task_may_send_again_when_the_server_has_taken_what_was_sent() {
    let (mut rig, socket) =
        leaving(WebSocketLimits { send_queue_bytes_max: 1_000, ..WebSocketLimits::default() });
    for _ in 0..3 {
        socket.try_send(vec![0; 1_000]).expect("there is room");
        assert!(matches!(socket.try_send("x"), Err(TrySendError::Full(_))));
        rig.settle();
        assert!(matches!(socket.try_send("x"), Err(TrySendError::Full(_))));
        assert_eq!(rig.take().len(), 1_004);
        rig.settle();
    }
    drop(socket);
}

#[test]
fn a_close_by_one_sender_is_heard_by_all() {
    let (mut rig, socket) =
        leaving(WebSocketLimits { send_queue_bytes_max: 1, ..WebSocketLimits::default() });
    let (sender, _receiver) = socket.split();
    let other = sender.clone();
    let woken = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut closing = std::pin::pin!(other.wait_closing());
    assert!(poll_once(&waker, closing.as_mut()).is_pending());
    sender.try_send("first").expect("there is room");
    let mut sending = std::pin::pin!(other.send("second"));
    assert!(poll_once(&waker, sending.as_mut()).is_pending());
    sender.try_send(Message::close(CloseCode::NORMAL_CLOSURE, "")).expect("the WebSocket is open");
    assert!(woken.take() > 0, "the tasks waiting for the end are woken");
    assert!(poll_once(&waker, closing.as_mut()).is_ready());
    assert!(poll_once(&waker, sending.as_mut()).is_ready());
    rig.settle();
}

#[test]
fn who_waits_no_more_is_forgotten() {
    let (mut rig, socket) =
        leaving(WebSocketLimits { send_queue_bytes_max: 1, ..WebSocketLimits::default() });
    socket.try_send("much").expect("there is room");
    rig.settle();
    let woken = Arc::new(Count::default());
    for _ in 0..10 {
        let waker = Waker::from(Arc::clone(&woken));
        // A separate task, with its own waker, that gives up.
        let task = Waker::from(Arc::new(Task(waker)));
        assert!(poll_once(&task, std::pin::pin!(socket.wait_closing())).is_pending());
        assert!(poll_once(&task, std::pin::pin!(socket.send("more"))).is_pending());
        drop(task);
    }
    assert_eq!(Arc::strong_count(&woken), 1, "wakers of dropped tasks are kept");
    rig.settle();
}

/// A task's waker that keeps the task alive.
struct Task(Waker);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.wake_by_ref();
    }
}

#[test]
fn the_end_that_a_drain_brings_is_the_end_for_ever() {
    let left: Left<()> = Left::default();
    let place = Rc::clone(&left);
    let mut rig = Rig::new(
        |upgrade| upgrade,
        move |mut socket: WebSocket| {
            let place = Rc::clone(&place);
            async move {
                while let Some(Ok(_)) = socket.recv().await {}
                assert!(place.borrow().is_none());
                // Meanwhile the peer keeps sending.
                poll_fn(|_| if place.borrow().is_some() { Poll::Ready(()) } else { Poll::Pending })
                    .await;
                assert_eq!(socket.recv().await, None);
                socket.send("bye").await.expect("there is time");
                std::future::pending::<()>().await;
            }
        },
    );
    rig.drain();
    // More than the limit of unread messages.
    for _ in 0..40 {
        rig.push(Opcode::Text, &[b'x'; 2_000]);
        rig.poll();
    }
    *left.borrow_mut() = Some(());
    rig.poll();
    rig.settle();
    assert_eq!(rig.take(), b"\x81\x03bye");
    rig.pass(Duration::from_secs(5));
    assert_eq!(rig.take(), b"\x88\x02\x03\xe9");
    // The peer's Close frame is read despite the unread messages before it.
    rig.push(Opcode::Close, b"\x03\xe9");
    rig.poll();
    rig.settle();
    rig.pass(Duration::from_secs(10));
    assert!(rig.running.is_none(), "the close handshake was not seen");
}

#[test]
fn an_answer_that_came_in_time_is_heard_however_late_it_is_read() {
    let (mut rig, socket) = leaving(WebSocketLimits::default());
    for _ in 0..3 {
        rig.await_ping();
        // Meanwhile the worker was blocked.
        rig.push(Opcode::Pong, b"keep-alive");
        rig.pass(Duration::from_secs(300));
        assert!(!socket.is_closed(), "the peer answered in time");
        rig.settle();
        rig.take();
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
fn a_message_costs_one_poll_and_its_answer_none() {
    let mut rig = Rig::new(
        |upgrade| upgrade,
        async |mut socket: WebSocket| {
            while let Some(Ok(message)) = socket.recv().await {
                socket.send(message).await.expect("the WebSocket is open");
            }
        },
    );
    for _ in 0..5 {
        rig.push(Opcode::Text, TEXT);
        assert_eq!(rig.settle(), 1, "polls per message");
        assert_eq!(rig.take(), b"\x81\x04text");
        assert_eq!(rig.settle(), 0, "polls after the server took the output");
    }
}

#[test]
fn copies_of_a_sender_come_and_go_without_a_poll() {
    let (mut rig, socket) = leaving(WebSocketLimits::default());
    let (sender, receiver) = socket.split();
    for _ in 0..5 {
        drop(sender.clone());
    }
    assert_eq!(rig.settle(), 0);
    drop(receiver);
    rig.settle();
    drop(sender);
    assert!(rig.settle() > 0);
    assert_eq!(rig.take(), b"\x88\x02\x03\xe8");
}

#[test]
fn nobody_spins_with_times_of_zero() {
    let left: Left<WebSocket> = Left::default();
    let place = Rc::clone(&left);
    let mut rig = Rig::new(
        |upgrade| {
            let limits = WebSocketLimits {
                receive_queue_bytes_max: 0,
                send_queue_bytes_max: 0,
                ..WebSocketLimits::default()
            };
            let upgrade = upgrade.limits(limits).ping_interval(Duration::from_nanos(1));
            let none = Duration::ZERO;
            upgrade.pong_timeout(none).close_timeout(none).drain_timeout(none)
        },
        move |socket| {
            *place.borrow_mut() = Some(socket);
            async {}
        },
    );
    rig.push(Opcode::Text, TEXT);
    rig.pass(Duration::from_secs(1));
    for _ in 0..5 {
        rig.pass(Duration::from_secs(1));
    }
    rig.drain();
    rig.pass(Duration::from_secs(1));
    assert!(rig.running.is_none());
}

#[test]
fn a_burst_of_pings_by_a_peer_that_reads_is_answered() {
    let mut rig = Rig::new(
        |upgrade| upgrade,
        async |mut socket: WebSocket| {
            while let Some(Ok(_)) = socket.recv().await {}
        },
    );
    for number in 0..300_u32 {
        rig.push(Opcode::Ping, &number.to_be_bytes());
    }
    let mut answers = Vec::new();
    loop {
        rig.settle();
        let more = rig.take();
        if more.is_empty() {
            break;
        }
        answers.extend(more);
    }
    let mut expected = Vec::new();
    for number in 0..300_u32 {
        frame::write_frame(Opcode::Pong, flag::FIN, None, &number.to_be_bytes(), &mut expected);
    }
    assert!(answers == expected, "{} bytes instead of {}", answers.len(), expected.len());
}

#[test]
fn pings_of_a_peer_that_does_not_read_are_not_read_either() {
    let mut rig = Rig::new(
        |upgrade| upgrade,
        async |mut socket: WebSocket| {
            while let Some(Ok(_)) = socket.recv().await {}
        },
    );
    for _ in 0..400 {
        rig.push(Opcode::Ping, &[7; 125]);
        rig.settle();
    }
    let answers = rig.take();
    assert!(answers.len() <= 2 * 101 * 127, "{} bytes", answers.len());
}

#[test]
fn answers_to_our_own_pings_cost_a_peer_nothing() {
    let limits = WebSocketLimits {
        abuse_budget_max: 0,
        abuse_budget_per_second: 0,
        ..WebSocketLimits::default()
    };
    let (mut rig, socket) = leaving(limits);
    for _ in 0..5 {
        rig.await_ping();
        rig.push(Opcode::Pong, b"keep-alive");
        rig.settle();
        assert!(!socket.is_closed(), "{:?}", rig.take());
        rig.settle();
        rig.take();
    }
    // An unsolicited pong is charged.
    rig.push(Opcode::Pong, b"keep-alive");
    rig.settle();
    assert!(socket.is_closed());
}
