//! Streamed responses, including server-sent events.

use crate::axum_behaviour::cases;
use crate::axum_behaviour::compare::Case;
use crate::axum_behaviour::reply::Ask;
use axum::body::Body;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::get;
use axum::{Router, response::IntoResponse};
use futures_core::Stream;
use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, channel};

cases! {
    a_stream_is_sent_in_chunks,
    a_stream_for_http_1_0_ends_with_the_connection,
    an_empty_stream_is_an_empty_body,
    pieces_of_a_stream_come_as_they_are_made,
    a_stream_that_fails_is_cut_off,
    a_stream_with_a_length_is_not_chunked,
    a_stream_that_is_longer_than_its_length_is_cut_there,
    a_stream_that_is_shorter_than_its_length_ends_its_connection,
    events_are_written_line_by_line,
    events_say_that_they_are_events,
    a_quiet_stream_of_events_is_kept_alive,
    keeping_alive_ends_with_the_stream,
    a_stream_of_events_answers_head,
    a_stream_may_be_fed_by_a_task,
}

/// The items of an iterator, as a stream.
pub(crate) struct Frames<I>(I);

impl<I: Iterator + Unpin> Frames<I> {
    pub(crate) fn of(items: impl IntoIterator<IntoIter = I>) -> Self {
        Self(items.into_iter())
    }
}

impl<I: Iterator + Unpin> Stream for Frames<I> {
    type Item = Result<I::Item, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.0.next().map(Ok))
    }
}

/// A body of pieces, of unknown length.
pub(crate) fn body<T, I>(pieces: I) -> Body
where
    T: Into<axum::body::Bytes> + 'static,
    I: IntoIterator<Item = T, IntoIter: Unpin + Send + 'static>,
{
    Body::from_stream(Frames::of(pieces))
}

/// The items that a task sends, as a stream.
pub(crate) struct Received<T>(pub(crate) Receiver<T>);

impl<T> Stream for Received<T> {
    type Item = Result<T, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|next| next.map(Ok))
    }
}

fn a_stream_is_sent_in_chunks(case: &mut Case) {
    case.serve(Router::new().route("/", get(async || body(["one ", "two ", "three"]))));
    let reply = case.get("/");
    reply.is(200, "one two three").has("transfer-encoding", "chunked").lacks("content-length");
}

fn a_stream_for_http_1_0_ends_with_the_connection(case: &mut Case) {
    case.serve(Router::new().route("/", get(async || body(["one ", "two"]))));
    let text = case.each(|server| {
        let text = server.talk("GET / HTTP/1.0\r\n\r\n");
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
        format!("{} {body}", head.contains("transfer-encoding"))
    });
    assert_eq!(text, "false one two");
}

fn an_empty_stream_is_an_empty_body(case: &mut Case) {
    case.serve(Router::new().route("/", get(async || body([""; 0]))));
    case.get("/").is(200, "").has("transfer-encoding", "chunked");
}

/// Reads until `text` has arrived, within the connection's read timeout.
pub(crate) fn read_until(stream: &mut impl Read, text: &str) -> String {
    let (mut seen, mut byte) = (Vec::new(), [0]);
    while !seen.ends_with(text.as_bytes()) {
        match stream.read(&mut byte) {
            Ok(1) => seen.push(byte[0]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return format!("{:?}, then {other:?}", String::from_utf8_lossy(&seen)),
        }
    }
    String::from_utf8_lossy(&seen).into_owned()
}

fn pieces_of_a_stream_come_as_they_are_made(case: &mut Case) {
    let handler = async || {
        let (sender, receiver) = channel::<&str>(1);
        tokio::spawn(async move {
            for piece in ["first", "second", "third"] {
                tokio::time::sleep(Duration::from_millis(15)).await;
                if sender.send(piece).await.is_err() {
                    return;
                }
            }
        });
        Body::from_stream(Received(receiver))
    };
    case.serve(Router::new().route("/", get(handler)));
    let pieces = case.each(|server| {
        let mut stream = server.connect();
        stream.write_all(&Ask::new("GET", "/").bytes()).expect("the server reads");
        read_until(&mut stream, "\r\n\r\n");
        let pieces = ["first", "second", "third"].map(|piece| read_until(&mut stream, piece));
        format!("{pieces:?}{}", read_until(&mut stream, "0\r\n\r\n"))
    });
    let expected = r#"["5\r\nfirst", "\r\n6\r\nsecond", "\r\n5\r\nthird"]"#;
    assert_eq!(pieces, format!("{expected}\r\n0\r\n\r\n"));
}

fn a_stream_that_fails_is_cut_off(case: &mut Case) {
    struct Fails(u8);
    impl Stream for Fails {
        type Item = io::Result<&'static str>;
        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            self.0 += 1;
            let is_first = self.0 == 1;
            Poll::Ready(Some(if is_first { Ok("some") } else { Err(io::ErrorKind::Other.into()) }))
        }
    }
    case.serve(Router::new().route("/", get(async || Body::from_stream(Fails(0)))));
    let whole = case.each(|server| {
        let text = server.talk(Ask::new("GET", "/").bytes());
        text.contains("0\r\n\r\n").to_string()
    });
    assert_eq!(whole, "false", "the response does not look complete");
}

fn a_stream_with_a_length_is_not_chunked(case: &mut Case) {
    let handler = async || ([("content-length", "6")], body(["one", "two"])).into_response();
    case.serve(Router::new().route("/", get(handler)));
    case.get("/").is(200, "onetwo").has("content-length", "6").lacks("transfer-encoding");
}

fn a_stream_that_is_longer_than_its_length_is_cut_there(case: &mut Case) {
    let handler = async || ([("content-length", "4")], body(["one", "two"])).into_response();
    case.serve(Router::new().route("/", get(handler)));
    case.get("/").is(200, "onet").has("content-length", "4");
}

fn a_stream_that_is_shorter_than_its_length_ends_its_connection(case: &mut Case) {
    let handler = async || ([("content-length", "9")], body(["one", "two"])).into_response();
    case.serve(Router::new().route("/", get(handler)));
    let is_whole = case.each(|server| {
        let text = server.talk(Ask::new("GET", "/").bytes());
        let body = text.split_once("\r\n\r\n").unwrap_or_default().1;
        (body.len() == 9).to_string()
    });
    assert_eq!(is_whole, "false");
}

fn some_events() -> [Event; 4] {
    let all = Event::default().event("kind").id("7").retry(Duration::from_secs(2)).comment("why");
    [
        Event::default().data("one"),
        Event::default().data("two\nlines"),
        all.data(" spaced"),
        Event::default().json_data([1, 2]).expect("numbers are JSON"),
    ]
}

fn events_are_written_line_by_line(case: &mut Case) {
    case.serve(Router::new().route("/", get(async || Sse::new(Frames::of(some_events())))));
    let expected = "data: one\n\ndata: two\ndata: lines\n\n\
        event: kind\nid: 7\nretry: 2000\n: why\ndata:  spaced\n\ndata: [1,2]\n\n";
    case.get("/").is(200, expected);
}

fn events_say_that_they_are_events(case: &mut Case) {
    case.serve(Router::new().route("/", get(async || Sse::new(Frames::of(some_events())))));
    let reply = case.send(&Ask::new("GET", "/").field("accept", "text/event-stream"));
    reply.has("content-type", "text/event-stream").has("cache-control", "no-cache");
    reply.has("transfer-encoding", "chunked");
}

fn a_quiet_stream_of_events_is_kept_alive(case: &mut Case) {
    let handler = async || {
        let keep_alive = KeepAlive::new().interval(Duration::from_millis(10)).text("still here");
        let (sender, receiver) = channel::<Event>(1);
        tokio::spawn(async move { sender.closed().await });
        Sse::new(Received(receiver)).keep_alive(keep_alive)
    };
    case.serve(Router::new().route("/", get(handler)));
    let seen = case.each(|server| {
        let mut stream = server.connect();
        stream.write_all(&Ask::new("GET", "/").bytes()).expect("the server reads");
        read_until(&mut stream, "\r\n\r\n");
        // The digits of a chunk size may be upper or lower case.
        let comments = (0..3).map(|_| read_until(&mut stream, "\n\n\r\n"));
        comments.collect::<String>().to_ascii_lowercase()
    });
    assert_eq!(seen, "e\r\n: still here\n\n\r\n".repeat(3));
}

fn keeping_alive_ends_with_the_stream(case: &mut Case) {
    let handler = async || {
        let keep_alive = KeepAlive::new().interval(Duration::from_secs(100));
        Sse::new(Frames::of([Event::default().data("last")])).keep_alive(keep_alive)
    };
    case.serve(Router::new().route("/", get(handler)));
    case.get("/").is(200, "data: last\n\n");
}

fn a_stream_of_events_answers_head(case: &mut Case) {
    case.serve(Router::new().route("/", get(async || Sse::new(Frames::of(some_events())))));
    case.head("/").is(200, "").has("content-type", "text/event-stream").lacks("content-length");
}

fn a_stream_may_be_fed_by_a_task(case: &mut Case) {
    let handler = async || {
        let (sender, receiver) = channel::<String>(2);
        tokio::spawn(async move {
            for number in 0..500 {
                if sender.send(format!("{number},")).await.is_err() {
                    return;
                }
            }
        });
        Body::from_stream(Received(receiver))
    };
    case.serve(Router::new().route("/", get(handler)));
    let expected: String = (0..500).map(|number| format!("{number},")).collect();
    case.get("/").is(200, &expected);
}
