//! Content in many formats, and endless content, through a server on every driver.

use futures_core::Stream;
use peregrine::prelude::*;
use peregrine::web::extract::{Cbor, MessagePack, NdJson, Protobuf, SimdJson};
use peregrine::{DriverChoice, RunningServer};
use peregrine_tests::client::{PATIENCE, connect, started};
use peregrine_tests::on_both_drivers;
use std::io::{Read, Write};
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

on_both_drivers! {
    every_form_comes_and_goes,
    lines_are_read_as_they_come_and_sent_as_they_are_made,
    invalid_too_long_and_truncated_lines_are_reported,
    a_reader_that_waits_holds_its_writer_back,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Bird {
    #[prost(string, tag = "1")]
    name: String,
}

/// Yields numbers up to a limit, with a pause before each.
struct Numbers(u64, bool);

impl Stream for Numbers {
    type Item = Result<u64, std::io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.1 = !self.1;
        if self.1 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let left = self.0.checked_sub(1);
        self.0 = left.unwrap_or_default();
        Poll::Ready(left.map(Ok))
    }
}

fn start(choice: DriverChoice, read: Arc<AtomicUsize>) -> Option<RunningServer> {
    let app = move || {
        let read = Arc::clone(&read);
        let slow = async move |mut lines: NdJson<String>| -> Result<String, Problem> {
            let mut count = 0;
            while let Some(line) = lines.next().await {
                line?;
                count += 1;
                // The rest waits until the test has checked.
                while read.load(Ordering::SeqCst) == 0 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                read.fetch_add(1, Ordering::SeqCst);
            }
            Ok(count.to_string())
        };
        App::new()
            .post("/pack", async |MessagePack(all): MessagePack<Vec<u32>>| MessagePack(all))
            .post("/cbor", async |Cbor(all): Cbor<Vec<u32>>| Cbor(all))
            .post("/json", async |SimdJson(all): SimdJson<Vec<u32>>| SimdJson(all))
            .post("/proto", async |Protobuf(bird): Protobuf<Bird>| Protobuf(bird))
            .post("/sum", async |mut lines: NdJson<u64>| -> Result<String, Problem> {
                let mut sum = 0;
                while let Some(number) = lines.next().await {
                    sum += number?;
                }
                Ok(sum.to_string())
            })
            // Each line is answered before the next is read.
            .post("/count", async |mut lines: NdJson<u64>| {
                let first = lines.next().await.and_then(Result::ok).unwrap_or_default();
                NdJson::response(Numbers(first, false))
            })
            .post("/slow", slow.body_limit(1 << 30))
    };
    let server = Server::bind("127.0.0.1:0").driver(choice).workers(NonZeroUsize::MIN).quiet();
    started(server.start(app))
}

fn post(running: &RunningServer, path: &str, media_type: &str, body: &[u8]) -> (String, Vec<u8>) {
    let mut peer = connect(running);
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\n\r\n"
    );
    peer.write_all(&[head.as_bytes(), body].concat()).expect("connected");
    let mut all = Vec::new();
    peer.read_to_end(&mut all).expect("a response");
    let end = all.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    (String::from_utf8_lossy(&all[..end]).into_owned(), all.split_off(end + 4))
}

fn every_form_comes_and_goes(choice: DriverChoice) {
    let Some(running) = start(choice, Arc::default()) else { return };
    for (path, media_type, body) in [
        ("/pack", "application/vnd.msgpack", &b"\x93\x01\x02\x03"[..]),
        ("/cbor", "application/cbor", b"\x83\x01\x02\x03"),
        ("/json", "application/json", b"[1,2,3]"),
        ("/proto", "application/protobuf", b"\x0a\x05hobby"),
    ] {
        let (head, content) = post(&running, path, media_type, body);
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains(media_type), "{head}");
        assert_eq!(content, body, "{path}");
        let (head, _) = post(&running, path, "text/plain", body);
        assert!(head.starts_with("HTTP/1.1 415 "), "{head}");
        let (head, _) = post(&running, path, media_type, &body[..body.len() - 1]);
        assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    }
}

fn lines_are_read_as_they_come_and_sent_as_they_are_made(choice: DriverChoice) {
    let Some(running) = start(choice, Arc::default()) else { return };
    let mut peer = connect(&running);
    peer.write_all(b"POST /count HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n3\n\r\n")
        .expect("connected");
    let mut all = String::new();
    while !all.ends_with("0\r\n\r\n") {
        let mut byte = [0];
        peer.read_exact(&mut byte).expect("the response arrives before the request ends");
        all.push(char::from(byte[0]));
    }
    let head = all.to_lowercase();
    assert!(head.contains("content-type: application/x-ndjson"), "{all}");
    assert!(all.ends_with("2\r\n2\n\r\n2\r\n1\n\r\n2\r\n0\n\r\n0\r\n\r\n"), "{all}");
    let many: String = (0..100_000).map(|number| format!("{number}\n")).collect();
    let (_, sum) = post(&running, "/sum", "application/x-ndjson", many.as_bytes());
    assert_eq!(sum, b"4999950000");
}

fn invalid_too_long_and_truncated_lines_are_reported(choice: DriverChoice) {
    let Some(running) = start(choice, Arc::default()) else { return };
    for (body, status, part) in [
        ("1\nx\n".to_owned(), 400, "\"line\":2"),
        ("1\n\"a\"\n".to_owned(), 422, "\"line\":2"),
        (format!("1\n{}", "1".repeat(70_000)), 413, "line-too-long"),
        ("1\n".repeat(2 << 20), 413, "body-too-large"),
    ] {
        let (head, content) = post(&running, "/sum", "application/x-ndjson", body.as_bytes());
        let text = String::from_utf8_lossy(&content);
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")) && text.contains(part),
            "{head} {text}"
        );
    }
}

fn a_reader_that_waits_holds_its_writer_back(choice: DriverChoice) {
    let read = Arc::<AtomicUsize>::default();
    let Some(running) = start(choice, Arc::clone(&read)) else { return };
    let mut peer = connect(&running);
    let line = format!("\"{}\"\n", "x".repeat(1000));
    let count = 40_000;
    let head = format!(
        "POST /slow HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/jsonl\r\nContent-Length: {}\r\n\r\n",
        line.len() * count
    );
    peer.write_all(head.as_bytes()).expect("connected");
    peer.set_write_timeout(Some(Duration::from_millis(200))).expect("the timeout is not zero");
    let mut sent = 0;
    let all = line.repeat(count);
    while let Ok(more) = peer.write(&all.as_bytes()[sent..]) {
        sent += more;
        if sent == all.len() {
            break;
        }
    }
    // The system's buffers hold some megabytes; the content has 40.
    assert!(sent < all.len(), "the reader waits, but everything was accepted");
    read.store(1, Ordering::SeqCst);
    peer.set_write_timeout(Some(PATIENCE)).expect("the timeout is not zero");
    peer.write_all(&all.as_bytes()[sent..]).expect("the server keeps reading");
    let mut answer = String::new();
    peer.read_to_string(&mut answer).expect("a response");
    assert!(answer.ends_with(&count.to_string()), "{answer}");
    assert_eq!(read.load(Ordering::SeqCst), count + 1);
}
