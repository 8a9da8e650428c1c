//! Server-sent events: encoding, channels between handler and client, and keep-alive comments.

use futures_core::Stream;
use peregrine_web::prelude::*;
use peregrine_web::sse::{self, InvalidEvent, SendError, Sender};
use peregrine_web::testing::{TestEvent, TestEventReader, block_on};
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

/// A stream that polls a function.
struct Made<F>(F);

impl<T, F: FnMut(&mut Context<'_>) -> Poll<Option<T>> + Unpin> Stream for Made<F> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        (self.0)(cx)
    }
}

fn list<T: Unpin + 'static>(
    items: impl IntoIterator<Item = T>,
) -> Made<impl FnMut(&mut Context<'_>) -> Poll<Option<T>> + Unpin> {
    let mut items = items.into_iter().collect::<Vec<_>>().into_iter();
    Made(move |_: &mut Context<'_>| Poll::Ready(items.next()))
}

fn data(text: &str) -> Event {
    Event::default().data(text)
}

fn message(text: &str) -> TestEvent {
    TestEvent { name: "message".into(), data: text.into(), id: String::new() }
}

fn now<T>(future: impl Future<Output = T>) -> Poll<T> {
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
    fn what_is_written_is_read_back(events in prop::collection::vec(parts(), 0..6)) {
        let (mut reader, mut expected) = (TestEventReader::default(), Vec::new());
        let (mut id, mut retry) = (String::new(), None);
        for parts in &events {
            let (mut event, mut name, mut lines) = (Event::default(), String::new(), Vec::new());
            let (mut is_valid, mut own_id, mut own_retry) = (true, None, None);
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
                        own_id = Some(text.clone());
                        event.id(text)
                    }
                    Part::Comment(text) => event.comment(text),
                    Part::Retry(time) => {
                        let time = Duration::from_millis(u64::from(*time));
                        own_retry = Some(time);
                        event.retry(time)
                    }
                };
            }
            let Ok(wire) = event.into_bytes() else {
                prop_assert!(!is_valid, "a valid event is refused: {parts:?}");
                continue;
            };
            prop_assert!(is_valid, "an invalid event is written: {parts:?}");
            reader.feed(&wire);
            id = own_id.unwrap_or(id);
            retry = own_retry.or(retry);
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
fn a_response_of_events_says_what_it_is() {
    let client = App::new().get("/", || Sse::new(list([data("a")]))).test();
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
        (http::StatusCode::ACCEPTED, [("cache-control", "no-cache")], Sse::new(list([data("a")])))
    });
    let response = accepted.test().get("/").send_blocking();
    assert_eq!(
        (response.status().as_u16(), response.header("cache-control")),
        (202, Some("no-cache"))
    );
}

#[test]
fn a_stream_may_give_events_or_results_and_need_not_be_send() {
    let count = Rc::new(Cell::new(0));
    let app = App::new()
        .get("/plain", || Sse::new(list([data("a"), data("b")])))
        .get("/fine", || Sse::new(list([Ok::<_, Infallible>(data("a")), Ok(data("b"))])))
        .get("/counted", move || {
            let count = Rc::clone(&count);
            Sse::new(Made(move |_: &mut Context<'_>| {
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
fn a_stream_that_fails_and_an_invalid_event_break_the_response_off() {
    let app = App::new()
        .get("/failed", || {
            Sse::new(list([Ok(data("a")), Err(io::Error::other("on purpose")), Ok(data("b"))]))
        })
        .get("/invalid", || Sse::new(list([data("a"), data("b").id("1\n2"), data("c")])));
    let client = app.test();
    for (path, why) in [("/failed", "on purpose"), ("/invalid", "the id of an event")] {
        let mut response = client.get(path).send_blocking();
        assert_eq!(response.event_blocking(), Some(message("a")), "{path}");
        let error = block_on(response.event()).expect("an error").expect_err("an error");
        assert!(error.to_string().contains(why), "{error}");
        assert!(block_on(response.event()).is_none(), "{path}");
    }
}

/// An application whose event streams put their senders into a list.
fn pushed(events_max: usize) -> (TestClientOf, Rc<RefCell<Vec<Sender>>>) {
    let senders = Rc::<RefCell<Vec<Sender>>>::default();
    let list = Rc::clone(&senders);
    let app = App::new().get("/", move || {
        let (sender, sse) = sse::channel_with_capacity(events_max);
        list.borrow_mut().push(sender);
        sse
    });
    (app.test(), senders)
}

type TestClientOf = peregrine_web::testing::TestClient;

#[test]
fn pushed_events_arrive_in_order_and_the_last_sender_ends_the_stream() {
    let (client, senders) = pushed(16);
    let mut response = client.get("/").send_blocking();
    let sender = senders.borrow_mut().pop().expect("a stream was opened");
    let other = sender.clone();
    assert_eq!(now(sender.send(data("a"))), Poll::Ready(Ok(())));
    assert_eq!(other.try_send(data("b")), Ok(()));
    drop(sender);
    assert_eq!(response.event_blocking(), Some(message("a")));
    assert_eq!(response.event_blocking(), Some(message("b")));
    assert!(now(response.event()).is_pending());
    assert_eq!(other.try_send(data("c")), Ok(()));
    drop(other);
    assert_eq!(response.event_blocking(), Some(message("c")));
    assert_eq!(response.event_blocking(), None);
}

#[test]
fn who_waited_for_the_end_and_is_gone_leaves_nothing() {
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
fn a_slow_reader_holds_its_sender_back_and_nobody_else() {
    let (client, senders) = pushed(2);
    let (mut slow, mut quick) = (client.get("/").send_blocking(), client.get("/").send_blocking());
    for text in ["a", "b", "c", "d"] {
        // A slow reader misses events for which its channel has no space.
        senders.borrow_mut().retain(|reader| reader.try_send(data(text)) != Err(SendError::Closed));
        assert_eq!(quick.event_blocking(), Some(message(text)));
    }
    let sender = senders.borrow()[0].clone();
    assert_eq!(sender.try_send(data("e")), Err(SendError::Full));
    let mut waiting = pin!(sender.send(data("f")));
    assert!(now(waiting.as_mut()).is_pending(), "the channel is full");
    assert_eq!(slow.event_blocking(), Some(message("a")));
    assert_eq!(now(waiting), Poll::Ready(Ok(())));
    for text in ["b", "f"] {
        assert_eq!(slow.event_blocking(), Some(message(text)));
    }
}

#[test]
fn a_sender_hears_that_nobody_reads_any_more() {
    let (client, senders) = pushed(1);
    let response = client.get("/").send_blocking();
    let sender = senders.borrow_mut().pop().expect("a stream was opened");
    assert_eq!(sender.try_send(data("a").event("\n")), Err(SendError::Invalid(InvalidEvent::Name)));
    assert_eq!(sender.try_send(data("a")), Ok(()));
    let mut closed = pin!(sender.closed());
    let mut waiting = pin!(sender.send(data("b")));
    assert!(now(closed.as_mut()).is_pending() && now(waiting.as_mut()).is_pending());
    assert!(!sender.is_closed());
    drop(response);
    assert!(now(closed).is_ready() && sender.is_closed());
    assert_eq!(now(waiting), Poll::Ready(Err(SendError::Closed)));
    assert_eq!(sender.try_send(data("c")), Err(SendError::Closed));
}

#[test]
fn events_are_pushed_from_any_thread() {
    let (client, senders) = pushed(3);
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
fn a_silent_stream_sends_comments_unless_it_is_told_not_to() {
    let silent = || Made(|_: &mut Context<'_>| Poll::<Option<Event>>::Pending);
    let app = App::new()
        .get("/", move || Sse::new(silent()).keep_alive(Duration::from_secs(7)))
        .get("/by-default", move || Sse::new(silent()))
        .get("/never", move || Sse::new(silent()).keep_alive(None));
    // Each sleep ends immediately, and its duration is recorded.
    let slept = Rc::new(RefCell::new(Vec::new()));
    let log = Rc::clone(&slept);
    let client = app.test().with_timer(move |time| {
        log.borrow_mut().push(time.as_secs());
        let mut is_over = false;
        poll_fn(move |cx| {
            cx.waker().wake_by_ref();
            if std::mem::replace(&mut is_over, true) { Poll::Ready(()) } else { Poll::Pending }
        })
    });
    for (path, seconds) in [("/", 7), ("/by-default", 15)] {
        let mut response = client.get(path).send_blocking();
        for _ in 0..3 {
            let piece = block_on(response.chunk()).expect("a piece").expect("no error");
            assert_eq!(piece, ":\n\n", "{path}");
        }
        assert_eq!(slept.take(), [seconds; 3], "{path}");
    }
    let mut response = client.get("/never").send_blocking();
    assert!(now(response.chunk()).is_pending());
    assert!(slept.take().is_empty());
}

#[test]
fn a_last_event_id_may_be_missing_empty_or_wrong() {
    let app = App::new()
        .get("/number", async |last: Option<LastEventId<u64>>| format!("{last:?}"))
        .get("/text", async |last: Option<LastEventId>| format!("{last:?}"))
        .get("/must", async |LastEventId(last): LastEventId| last);
    let client = app.test();
    let ask = |path: &str, id: Option<&[u8]>| {
        let request = client.get(path);
        let request = match id {
            Some(id) => request.header("Last-Event-ID", id),
            None => request,
        };
        let response = request.send_blocking();
        (response.status().as_u16(), response.text())
    };
    let fine = |text: &str| (200, text.to_owned());
    assert_eq!(ask("/number", None), fine("None"));
    assert_eq!(ask("/number", Some(b"")), fine("None"));
    assert_eq!(ask("/number", Some(b"7")), fine("Some(LastEventId(7))"));
    assert_eq!(ask("/number", Some(b"seven")).0, 400);
    assert_eq!(ask("/text", Some("\u{e9} 1".as_bytes())), fine("Some(LastEventId(\"\u{e9} 1\"))"));
    assert_eq!(ask("/text", Some(b"\xff")).0, 400);
    let (status, text) = ask("/must", None);
    assert_eq!(status, 400);
    assert!(text.contains("missing-header"), "{text}");
}
