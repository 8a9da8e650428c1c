//! The end of a pod: SIGTERM, then a grace period, then SIGKILL, which must find no process.

use crate::restart::on_both_drivers;
use crate::restart::program::{Program, answer, ask, say, wait_until};
use futures_core::Stream;
use peregrine::prelude::*;
use peregrine::websocket::{WebSocket, WebSocketUpgrade};
use peregrine::{App, Shutdown};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

on_both_drivers! {
    requests_in_flight_complete_and_the_report_names_those_that_were_cut,
    readiness_goes_before_the_door_is_shut,
}

/// Routes for requests that are in progress when the pod ends.
pub(crate) fn routes(app: App) -> App {
    app.get("/upload", || "put it")
        .post("/upload", async |body: String| body.len().to_string())
        .get("/stream", || Body::from_stream(UntilEnd(Shutdown::current(), None)))
        .get("/events", || Sse::new(OneEvent(false)))
        .get("/talk", |upgrade: WebSocketUpgrade| upgrade.on_upgrade(talk))
        .get("/endless", async || {
            say("an endless request has arrived");
            std::future::pending::<()>().await;
        })
}

/// Sends an event at once, and another one when the server shuts down.
struct UntilEnd(Shutdown, Option<Pin<Box<dyn Future<Output = ()>>>>);

impl Stream for UntilEnd {
    type Item = Result<&'static str, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self(shutdown, ordered) = &mut *self;
        match ordered {
            Some(ordered) => ordered.as_mut().poll(cx).map(|()| None),
            None => {
                let shutdown = shutdown.clone();
                *ordered = Some(Box::pin(async move { shutdown.requested().await }));
                Poll::Ready(Some(Ok("hello ")))
            }
        }
    }
}

/// One event, and no end.
struct OneEvent(bool);

impl Stream for OneEvent {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Event>> {
        match std::mem::replace(&mut self.0, true) {
            false => Poll::Ready(Some(Event::default().data("first"))),
            true => Poll::Pending,
        }
    }
}

async fn talk(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        if socket.send(message).await.is_err() {
            return;
        }
    }
}

/// A connection on which the first line of the response to `head` has arrived.
fn begins(program: &Program, head: &str) -> BufReader<TcpStream> {
    let mut stream = program.connects();
    stream.write_all(head.as_bytes()).expect("the server reads the request");
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).expect("a response");
    assert!(line.starts_with("HTTP/1.1 "), "{line}");
    stream
}

fn rest(mut stream: impl Read) -> Vec<u8> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).expect("the peer closes the connection cleanly");
    all
}

fn requests_in_flight_complete_and_the_report_names_those_that_were_cut(driver: &str) {
    let mut program = Program::start(driver, "app tcp unix tls workers=2 shutdown=5");
    // An idle client, a slow request, an incomplete upload, streams, and a WebSocket.
    let mut idle = begins(&program, "GET /ready HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut slow = program.connects();
    ask(&mut slow, "/slow");
    let mut upload = program.connects();
    let head = "POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345";
    upload.write_all(head.as_bytes()).expect("the server reads the request");
    let stream = begins(&program, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
    let events = begins(&program, "GET /events HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut socket = begins(
        &program,
        "GET /talk HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
    let mut endless = program.connects();
    ask(&mut endless, "/endless");
    program.says("an endless request has arrived");
    let process = program.process;

    program.signal(Signal::TERM);
    // The rest of the upload arrives after the signal.
    thread::sleep(Duration::from_millis(100));
    upload.write_all(b"67890").expect("the server reads the request");
    assert_eq!(answer(upload), "10");
    answer(slow);
    let text = String::from_utf8(rest(stream)).expect("text");
    assert!(text.contains("hello ") && text.ends_with("0\r\n\r\n"), "{text}");
    let text = String::from_utf8(rest(events)).expect("text");
    assert!(text.contains("data: first") && text.ends_with("0\r\n\r\n"), "{text}");
    // RFC 6455 §7.4.1: 1001, the server is going away.
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        socket.read_line(&mut line).expect("the head's rest");
    }
    let mut close = [0; 4];
    socket.read_exact(&mut close).expect("a Close frame");
    assert_eq!((close[0], u16::from_be_bytes([close[2], close[3]])), (0x88, 1001), "{close:?}");
    socket
        .get_mut()
        .write_all(&[0x88, 0x82, 0, 0, 0, 0, close[2], close[3]])
        .expect("the server reads the close frame");
    let mut all = Vec::new();
    idle.read_to_end(&mut all).expect("the peer closes the connection cleanly");

    // SIGKILL would follow the grace period, but the process has already exited.
    assert!(program.first_ends().success(), "exit code 0");
    let _ = endless.read(&mut [0; 1]);
    let mut report = program.says("cut at the deadline");
    assert!(report.contains("; 1 cut at the deadline:"), "{report}");
    report = program.says("during");
    let peer = endless.local_addr().expect("the socket is connected").to_string();
    assert!(
        report.contains(&peer) && report.contains("GET /endless: its handler had not responded"),
        "{report}"
    );
    assert!(!crate::restart::program::is_running(process));
}

fn readiness_goes_before_the_door_is_shut(driver: &str) {
    let mut program = Program::start(driver, "app tcp lame=2");
    assert_eq!(program.get("/ready"), "yes");
    program.signal(Signal::TERM);
    wait_until("the readiness probe fails", || program.get("/ready") == "no");
    assert!(program.first_ends().success());
    assert!(TcpStream::connect(program.address()).is_err());
}
