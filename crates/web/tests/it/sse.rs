//! Server-sent events: encoding, channels between handler and client, and keep-alive comments.

use futures_core::Stream;
use peregrine_web::prelude::*;
use peregrine_web::sse::{self, InvalidEvent, SendError, Sender};
use peregrine_web::testing::{TestClient, TestEvent, TestEventReader, block_on};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// A stream that calls a function at each poll.
struct PollStream<F>(F);

impl<T, F: FnMut(&mut Context<'_>) -> Poll<Option<T>> + Unpin> Stream for PollStream<F> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        (self.0)(cx)
    }
}

fn stream_of<T: Unpin + 'static>(
    items: impl IntoIterator<Item = T>,
) -> PollStream<impl FnMut(&mut Context<'_>) -> Poll<Option<T>> + Unpin> {
    let mut items = items.into_iter().collect::<Vec<_>>().into_iter();
    PollStream(move |_: &mut Context<'_>| Poll::Ready(items.next()))
}

fn data(text: &str) -> Event {
    Event::default().data(text)
}

fn message(text: &str) -> TestEvent {
    TestEvent { name: "message".into(), data: text.into(), id: String::new() }
}

fn poll_once<T>(future: impl Future<Output = T>) -> Poll<T> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Converts line breaks to LF, as parsing an event does.
fn with_lf(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), "[a: \r\n\0\u{feff}\u{85}]{0,12}"]
}

#[derive(Clone, Debug)]
enum Part {
    Data(String),
    Name(String),
    Id(String),
    Comment(String),
    Retry(u32),
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let part = prop_oneof![
        text().prop_map(Part::Data),
        text().prop_map(Part::Name),
        text().prop_map(Part::Id),
        text().prop_map(Part::Comment),
        any::<u32>().prop_map(Part::Retry),
    ];
    prop::collection::vec(part, 0..6)
}

proptest! {
    #[test]
    fn written_events_are_read_back(events in prop::collection::vec(parts(), 0..6)) {
        let (mut reader, mut expected) = (TestEventReader::default(), Vec::new());
        let (mut id, mut retry) = (String::new(), None);
        for parts in &events {
            let (mut event, mut name, mut lines) = (Event::default(), String::new(), Vec::new());
            let (mut is_valid, mut event_id, mut event_retry) = (true, None, None);
            for part in parts {
                event = match part {
                    Part::Data(text) => { lines.push(with_lf(text)); event.data(text) }
                    Part::Name(text) => {
                        is_valid &= !text.contains(['\r', '\n']);
                        name.clone_from(text);
                        event.event(text)
                    }
                    Part::Id(text) => {
                        is_valid &= !text.contains(['\r', '\n', '\0']);
                        event_id = Some(text.clone());
                        event.id(text)
                    }
                    Part::Comment(text) => event.comment(text),
                    Part::Retry(time) => {
                        let time = Duration::from_millis(u64::from(*time));
                        event_retry = Some(time);
                        event.retry(time)
                    }
                };
            }
            let Ok(wire) = event.into_bytes() else {
                prop_assert!(!is_valid, "a valid event is rejected: {parts:?}");
                continue;
            };
            prop_assert!(is_valid, "an invalid event is written: {parts:?}");
            reader.feed(&wire);
            id = event_id.unwrap_or(id);
            retry = event_retry.or(retry);
            if !lines.is_empty() {
                let name = if name.is_empty() { "message".into() } else { name };
                expected.push(TestEvent { name, data: lines.join("\n"), id: id.clone() });
            }
        }
        let read: Vec<_> = std::iter::from_fn(|| reader.next_event()).collect();
        prop_assert_eq!(read, expected);
        prop_assert_eq!(reader.retry(), retry);
    }
}

#[test]
fn an_sse_response_has_the_headers_of_an_event_stream() {
    let client = App::new().get("/", || Sse::new(stream_of([data("a")]))).test();
    let response = client.get("/").send_blocking();
    let field = |name| response.header(name).unwrap_or_default().to_owned();
    assert_eq!(response.status(), 200);
    assert_eq!(field("content-type"), "text/event-stream");
    assert_eq!(
        (field("cache-control"), field("x-accel-buffering")),
        ("no-store".into(), "no".into())
    );
    assert_eq!(response.text(), "data: a\n\n");
    assert_eq!(client.head("/").send_blocking().text(), "");
    let accepted = App::new().get("/", || {
        (
            http::StatusCode::ACCEPTED,
            [("cache-control", "no-cache")],
            Sse::new(stream_of([data("a")])),
        )
    });
    let response = accepted.test().get("/").send_blocking();
    assert_eq!(
        (response.status().as_u16(), response.header("cache-control")),
        (202, Some("no-cache"))
    );
}

#[test]
fn a_stream_may_yield_events_or_results_and_need_not_be_send() {
    let count = Rc::new(Cell::new(0));
    let app = App::new()
        .get("/plain", || Sse::new(stream_of([data("a"), data("b")])))
        .get("/fine", || Sse::new(stream_of([Ok::<_, Infallible>(data("a")), Ok(data("b"))])))
        .get("/counted", move || {
            let count = Rc::clone(&count);
            Sse::new(PollStream(move |_: &mut Context<'_>| {
                count.set(count.get() + 1);
                Poll::Ready((count.get() < 3).then(|| data(["a", "b"][count.get() - 1])))
            }))
        });
    let client = app.test();
    for path in ["/plain", "/fine", "/counted"] {
        let mut response = client.get(path).send_blocking();
        assert_eq!(response.event_blocking(), Some(message("a")), "{path}");
        assert_eq!(response.event_blocking(), Some(message("b")), "{path}");
        assert_eq!(response.event_blocking(), None, "{path}");
    }
}

#[test]
fn a_failed_stream_or_an_invalid_event_aborts_the_response() {
    let app = App::new()
        .get("/failed", || {
            Sse::new(stream_of([Ok(data("a")), Err(io::Error::other("on purpose")), Ok(data("b"))]))
        })
        .get("/invalid", || Sse::new(stream_of([data("a"), data("b").id("1\n2"), data("c")])));
    let client = app.test();
    for (path, reason) in [("/failed", "on purpose"), ("/invalid", "the id of an event")] {
        let mut response = client.get(path).send_blocking();
        assert_eq!(response.event_blocking(), Some(message("a")), "{path}");
        let error = block_on(response.event()).expect("an error").expect_err("an error");
        assert!(error.to_string().contains(reason), "{error}");
        assert!(block_on(response.event()).is_none(), "{path}");
    }
}

/// An application whose event streams put their senders into a list.
fn push_client(capacity: usize) -> (TestClient, Rc<RefCell<Vec<Sender>>>) {
    let senders = Rc::<RefCell<Vec<Sender>>>::default();
    let list = Rc::clone(&senders);
    let app = App::new().get("/", move || {
        let (sender, sse) = sse::channel_with_capacity(capacity);
        list.borrow_mut().push(sender);
        sse
    });
    (app.test(), senders)
}

#[test]
fn pushed_events_arrive_in_order_until_the_last_sender_is_dropped() {
    let (client, senders) = push_client(16);
    let mut response = client.get("/").send_blocking();
    let sender = senders.borrow_mut().pop().expect("a stream was opened");
    let second_sender = sender.clone();
    assert_eq!(poll_once(sender.send(data("a"))), Poll::Ready(Ok(())));
    assert_eq!(second_sender.try_send(data("b")), Ok(()));
    drop(sender);
    assert_eq!(response.event_blocking(), Some(message("a")));
    assert_eq!(response.event_blocking(), Some(message("b")));
    assert!(poll_once(response.event()).is_pending());
    assert_eq!(second_sender.try_send(data("c")), Ok(()));
    drop(second_sender);
    assert_eq!(response.event_blocking(), Some(message("c")));
    assert_eq!(response.event_blocking(), None);
}

#[test]
fn dropped_waiters_leave_no_waker_behind() {
    struct Task;
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    let (sender, sse) = sse::channel_with_capacity(1);
    assert_eq!(sender.try_send(data("fills the channel")), Ok(()));
    for _ in 0..10 {
        let task = Arc::new(Task);
        let waker = Waker::from(Arc::clone(&task));
        let mut cx = Context::from_waker(&waker);
        assert!(pin!(sender.closed()).poll(&mut cx).is_pending());
        assert!(pin!(sender.send(data("late"))).poll(&mut cx).is_pending());
        drop(waker);
        assert_eq!(Arc::strong_count(&task), 1);
    }
    drop(sse);
}

#[test]
fn a_slow_reader_blocks_only_its_own_sender() {
    let (client, senders) = push_client(2);
    let (mut slow, mut quick) = (client.get("/").send_blocking(), client.get("/").send_blocking());
    for text in ["a", "b", "c", "d"] {
        // A slow reader misses events for which its channel has no space.
        senders.borrow_mut().retain(|reader| reader.try_send(data(text)) != Err(SendError::Closed));
        assert_eq!(quick.event_blocking(), Some(message(text)));
    }
    let sender = senders.borrow()[0].clone();
    assert_eq!(sender.try_send(data("e")), Err(SendError::Full));
    let mut send = pin!(sender.send(data("f")));
    assert!(poll_once(send.as_mut()).is_pending(), "the channel is full");
    assert_eq!(slow.event_blocking(), Some(message("a")));
    assert_eq!(poll_once(send), Poll::Ready(Ok(())));
    for text in ["b", "f"] {
        assert_eq!(slow.event_blocking(), Some(message(text)));
    }
}

#[test]
fn a_sender_is_notified_when_the_stream_is_closed() {
    let (client, senders) = push_client(1);
    let response = client.get("/").send_blocking();
    let sender = senders.borrow_mut().pop().expect("a stream was opened");
    assert_eq!(sender.try_send(data("a").event("\n")), Err(SendError::Invalid(InvalidEvent::Name)));
    assert_eq!(sender.try_send(data("a")), Ok(()));
    let mut closed = pin!(sender.closed());
    let mut send = pin!(sender.send(data("b")));
    assert!(poll_once(closed.as_mut()).is_pending() && poll_once(send.as_mut()).is_pending());
    assert!(!sender.is_closed());
    drop(response);
    assert!(poll_once(closed).is_ready() && sender.is_closed());
    assert_eq!(poll_once(send), Poll::Ready(Err(SendError::Closed)));
    assert_eq!(sender.try_send(data("c")), Err(SendError::Closed));
}

#[test]
fn events_can_be_pushed_from_any_thread() {
    let (client, senders) = push_client(3);
    let mut response = client.get("/").send_blocking();
    let sender = senders.borrow_mut().pop().expect("a stream was opened");
    let thread = std::thread::spawn(move || {
        for number in 0..1_000 {
            block_on(sender.send(data(&number.to_string()))).expect("the stream is open");
        }
    });
    for number in 0..1_000 {
        assert_eq!(response.event_blocking(), Some(message(&number.to_string())));
    }
    assert_eq!(response.event_blocking(), None);
    thread.join().expect("the thread does not panic");
}

#[test]
fn a_silent_stream_sends_comments_unless_disabled() {
    let silent = || PollStream(|_: &mut Context<'_>| Poll::<Option<Event>>::Pending);
    let app = App::new()
        .get("/", move || Sse::new(silent()).keep_alive(Duration::from_secs(7)))
        .get("/by-default", move || Sse::new(silent()))
        .get("/never", move || Sse::new(silent()).keep_alive(None));
    // Each sleep ends immediately, and its duration is recorded.
    let sleeps = Rc::new(RefCell::new(Vec::new()));
    let log = Rc::clone(&sleeps);
    let client = app.test().with_timer(move |time| {
        log.borrow_mut().push(time.as_secs());
        let mut was_polled = false;
        poll_fn(move |cx| {
            cx.waker().wake_by_ref();
            if std::mem::replace(&mut was_polled, true) { Poll::Ready(()) } else { Poll::Pending }
        })
    });
    for (path, seconds) in [("/", 7), ("/by-default", 15)] {
        let mut response = client.get(path).send_blocking();
        for _ in 0..3 {
            let chunk = block_on(response.chunk()).expect("a chunk").expect("no error");
            assert_eq!(chunk, ":\n\n", "{path}");
        }
        assert_eq!(sleeps.take(), [seconds; 3], "{path}");
    }
    let mut response = client.get("/never").send_blocking();
    assert!(poll_once(response.chunk()).is_pending());
    assert!(sleeps.take().is_empty());
}

#[test]
fn a_last_event_id_may_be_missing_empty_or_invalid() {
    let app = App::new()
        .get("/number", async |last: Option<LastEventId<u64>>| format!("{last:?}"))
        .get("/text", async |last: Option<LastEventId>| format!("{last:?}"))
        .get("/must", async |LastEventId(last): LastEventId| last);
    let client = app.test();
    let send = |path: &str, id: Option<&[u8]>| {
        let request = client.get(path);
        let request = match id {
            Some(id) => request.header("Last-Event-ID", id),
            None => request,
        };
        let response = request.send_blocking();
        (response.status().as_u16(), response.text())
    };
    let ok = |text: &str| (200, text.to_owned());
    assert_eq!(send("/number", None), ok("None"));
    assert_eq!(send("/number", Some(b"")), ok("None"));
    assert_eq!(send("/number", Some(b"7")), ok("Some(LastEventId(7))"));
    assert_eq!(send("/number", Some(b"seven")).0, 400);
    assert_eq!(send("/text", Some("\u{e9} 1".as_bytes())), ok("Some(LastEventId(\"\u{e9} 1\"))"));
    assert_eq!(send("/text", Some(b"\xff")).0, 400);
    let (status, text) = send("/must", None);
    assert_eq!(status, 400);
    assert!(text.contains("missing-header"), "{text}");
}
