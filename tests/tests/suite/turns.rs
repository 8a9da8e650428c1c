//! A busy connection does not delay a worker's other connections: on both drivers, measured by the
//! work done between two small responses.

use flate2::write::DeflateEncoder;
use futures_core::Stream;
use http_body::{Body as HttpBody, Frame};
use peregrine::bytes::Bytes;
use peregrine::cache::{Cache, CacheStore};
use peregrine::compression::Compression;
use peregrine::prelude::*;
use peregrine::web::ndjson::NdJson;
use peregrine::web::{Body, BodyError};
use peregrine::websocket::{PerMessageDeflate, WebSocketUpgrade};
use peregrine::{DriverChoice, RunningServer};
use peregrine_proto::h2::frame::{self, ErrorCode, FrameHeader, FrameType, flags, setting_id};
use peregrine_tests::client::{PATIENCE, connect, send, started, wait_for};
use peregrine_tests::on_both_drivers;
use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

on_both_drivers! {
    pipelined_requests_do_not_starve_other_connections,
    bodies_that_are_always_ready_do_not_starve_other_connections,
    messages_that_become_large_do_not_starve_other_connections,
    messages_that_are_compressed_do_not_starve_other_connections,
    uploads_in_small_chunks_do_not_starve_other_connections,
    a_client_of_http_2_is_heard_beside_a_body_that_is_always_ready,
    a_request_is_read_beside_a_body_that_is_always_ready,
    what_is_ready_at_the_cut_is_delivered_and_not_called_cut,
}

/// Each test has a worker that never pauses.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Counts the work done for busy connections.
type Done = Arc<AtomicU64>;

/// Does a little work, and counts it.
fn work(done: &Done) {
    let until = Instant::now() + Duration::from_micros(50);
    while Instant::now() < until {
        std::hint::spin_loop();
    }
    done.fetch_add(1, Ordering::Relaxed);
}

/// Always has another piece of this size.
struct Ready(Done, usize);

impl HttpBody for Ready {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        work(&self.0);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![b'a'; self.1])))))
    }
}

impl Stream for Ready {
    type Item = Result<u8, Infallible>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        work(&self.0);
        Poll::Ready(Some(Ok(1)))
    }
}

/// Has another piece as long as the request's content has not ended.
struct UntilEnd(Body, Done);

impl HttpBody for UntilEnd {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            match Pin::new(&mut self.0).poll_frame(cx) {
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Pending => break,
            }
        }
        work(&self.1);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"more")))))
    }
}

fn application(done: &Done) -> App {
    let of = |done: &Done| Arc::clone(done);
    let ready = |done: &Done, bytes: usize| {
        let done = Arc::clone(done);
        move || {
            let body = Body::new(Ready(Arc::clone(&done), bytes));
            ([("content-type", "text/plain"), ("cache-control", "max-age=60")], body)
        }
    };
    let (reported, worked, items, messages) = (of(done), of(done), of(done), of(done));
    let (until_end, parts) = (of(done), of(done));
    let upload = async move |mut body: Body| {
        while let Some(Ok(part)) = body.next().await {
            parts.fetch_add(part.len() as u64, Ordering::Relaxed);
        }
    };
    let count = move |upgrade: WebSocketUpgrade| {
        let messages = Arc::clone(&messages);
        upgrade.permessage_deflate(PerMessageDeflate::default()).on_upgrade(
            async move |mut socket| {
                while let Some(Ok(_)) = socket.recv().await {
                    messages.fetch_add(1, Ordering::Relaxed);
                }
            },
        )
    };
    let (by_task, sent) = (of(done), of(done));
    let upload_by_task = async move |mut body: Body| {
        let parts = Arc::clone(&by_task);
        let reading = tokio::task::spawn_local(async move {
            while let Some(Ok(part)) = body.next().await {
                parts.fetch_add(part.len() as u64, Ordering::Relaxed);
            }
        });
        let _ = reading.await;
    };
    let send = move |upgrade: WebSocketUpgrade, Path((who, times)): Path<(String, usize)>| {
        let sent = Arc::clone(&sent);
        upgrade.permessage_deflate(PerMessageDeflate::default()).on_upgrade(async move |socket| {
            let sending = async move {
                let text = "a small message, and many of them. ".repeat(times);
                while socket.send(text.clone()).await.is_ok() {
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            };
            match &*who {
                "task" => drop(tokio::task::spawn_local(sending).await),
                _ => sending.await,
            }
        })
    };
    App::new()
        .get("/sends/{who}/{times}", send)
        .post("/parts/by-task", upload_by_task.body_limit(u64::MAX))
        .get("/done", move || reported.load(Ordering::Relaxed).to_string())
        .get("/work", move || work(&worked))
        .get("/lines", move || NdJson::response(Ready(Arc::clone(&items), 0)))
        .get("/messages", count)
        .post("/parts", upload.body_limit(u64::MAX))
        .post("/until-end", move |body: Body| Body::new(UntilEnd(body, Arc::clone(&until_end))))
        .get("/plain", ready(done, 50))
        .scope("/packed", |scope| {
            scope
                .wrap(Compression::new())
                .get("/small", ready(done, 50))
                .get("/empty", ready(done, 0))
        })
        .scope("/kept", |scope| {
            scope.wrap(Cache::new(CacheStore::default())).get("/small", ready(done, 50))
        })
}

fn start(choice: DriverChoice) -> Option<RunningServer> {
    let done = Done::default();
    let server = Server::bind("127.0.0.1:0").driver(choice).workers(NonZeroUsize::MIN).quiet();
    started(server.start(move || application(&done)))
}

/// How much work was done before the next response on the same connection.
fn done(peer: &mut TcpStream) -> u64 {
    peer.write_all(b"GET /done HTTP/1.1\r\nHost: a\r\n\r\n").expect("connected");
    let mut answer = String::new();
    loop {
        let mut bytes = [0; 1024];
        let count = peer.read(&mut bytes).expect("a response arrives in time");
        assert!(count > 0, "the connection is kept alive");
        answer.push_str(std::str::from_utf8(&bytes[..count]).expect("text"));
        if let Some((_, content)) = answer.split_once("\r\n\r\n") {
            return content.parse().expect("a number");
        }
    }
}

/// Asserts the median amount of work between two responses. With turns of 64 requests or 32 frames
/// it is some hundreds, since this client waits for its own turns too. Without fair turns it is
/// thousands, or the response never arrives.
fn is_fair(running: &RunningServer, what: &str, most: u64) {
    let mut peer = connect(running);
    let (begin, mut last, mut all) = (Instant::now(), done(&mut peer), Vec::new());
    // If no work was done meanwhile, the busy connection's client did not get to run on this
    // machine.
    while all.len() < 15 {
        assert!(begin.elapsed() < PATIENCE, "{what}: no work is done between {all:?}");
        let now = done(&mut peer);
        let meanwhile = now - std::mem::replace(&mut last, now);
        all.extend((meanwhile > 0).then_some(meanwhile));
    }
    all.sort_unstable();
    let median = all[all.len() / 2];
    assert!(median < most, "{what}: {all:?}");
}

fn pipelined_requests_do_not_starve_other_connections(choice: DriverChoice) {
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    let Some(running) = start(choice) else { return };
    let mut asks = connect(&running);
    let mut reads = asks.try_clone().expect("a descriptor");
    let asking = thread::spawn(move || {
        let many = b"GET /work HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1_000);
        while asks.write_all(&many).is_ok() {}
    });
    let reading = thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        while reads.read(&mut bytes).is_ok_and(|count| count > 0) {}
    });
    is_fair(&running, "/work", 2_000);
    drop(running);
    asking.join().expect("the task does not panic");
    reading.join().expect("the task does not panic");
}

fn bodies_that_are_always_ready_do_not_starve_other_connections(choice: DriverChoice) {
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    for path in ["/plain", "/lines", "/packed/small", "/packed/empty", "/kept/small"] {
        let Some(running) = start(choice) else { return };
        let mut peer = connect(&running);
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
        peer.write_all(request.as_bytes()).expect("connected");
        let mut reads = peer.try_clone().expect("a descriptor");
        let reading = thread::spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            while reads.read(&mut bytes).is_ok_and(|count| count > 0) {}
        });
        is_fair(&running, path, 2_000);
        running.handle().force_close();
        let stopped = running.wait().expect("the server shuts down");
        assert_eq!(stopped.force_closed.len(), 1, "{path}: {stopped}");
        drop(peer);
        reading.join().expect("the task does not panic");
    }
}

/// A WebSocket with compressed messages.
fn packed_socket(running: &RunningServer, path: &str) -> TcpStream {
    let mut peer = connect(running);
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
    );
    peer.write_all(request.as_bytes()).expect("connected");
    let mut answer = [0; 1024];
    let count = peer.read(&mut answer).expect("a response");
    let answer = String::from_utf8_lossy(&answer[..count]).to_lowercase();
    assert!(
        answer.starts_with("http/1.1 101") && answer.contains("permessage-deflate"),
        "{answer}"
    );
    peer
}

fn messages_that_are_compressed_do_not_starve_other_connections(choice: DriverChoice) {
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    // A turn is ten small messages, or one large one. Everything queued for the peer would be
    // thousands, and a turn of the connection is 64.
    for (path, most) in [
        ("/sends/handler/6", 500),
        ("/sends/task/6", 500),
        ("/sends/handler/20000", 40),
        ("/sends/task/20000", 40),
    ] {
        let Some(running) = start(choice) else { return };
        let mut peer = packed_socket(&running, path);
        let reading = thread::spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            while peer.read(&mut bytes).is_ok_and(|count| count > 0) {}
        });
        is_fair(&running, path, most);
        running.handle().force_close();
        drop(running);
        reading.join().expect("the task does not panic");
    }
}

fn messages_that_become_large_do_not_starve_other_connections(choice: DriverChoice) {
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    let Some(running) = start(choice) else { return };
    let mut peer = packed_socket(&running, "/messages");
    // RFC 7692 §7.2.1: without the end of an empty block. A million bytes compressed to a thousand.
    let mut packed = DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    packed.write_all(&vec![0; 1_000_000]).expect("writing to a vector cannot fail");
    packed.flush().expect("writing to a vector cannot fail");
    let mut packed = packed.get_ref().clone();
    packed.truncate(packed.len() - 4);
    // Final, compressed, binary, and masked with zeros.
    let mut frame = vec![0xc2, 0xfe];
    frame
        .extend_from_slice(&u16::try_from(packed.len()).expect("the value is small").to_be_bytes());
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(&packed);
    let flood = thread::spawn(move || while peer.write_all(&frame).is_ok() {});
    // Here one message is a turn.
    is_fair(&running, "/messages", 100);
    drop(running);
    flood.join().expect("the task does not panic");
}

fn uploads_in_small_chunks_do_not_starve_other_connections(choice: DriverChoice) {
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    let chunks = b"4\r\nabcd\r\n".repeat(10_000);
    // One endless body, and many bodies together; and a body read by a separate task.
    for (is_one, path) in
        [(true, "/parts"), (false, "/parts"), (true, "/parts/by-task"), (false, "/parts/by-task")]
    {
        let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        let head = head.into_bytes();
        let Some(running) = start(choice) else { return };
        let mut peer = connect(&running);
        let mut reads = peer.try_clone().expect("a descriptor");
        let mut again = if is_one { Vec::new() } else { head.clone() };
        again.extend_from_slice(&chunks);
        again.extend_from_slice(if is_one { b"" } else { b"0\r\n\r\n" });
        let flood = thread::spawn(move || {
            if is_one {
                peer.write_all(&head).expect("connected");
            }
            while peer.write_all(&again).is_ok() {}
        });
        let reading = thread::spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            while reads.read(&mut bytes).is_ok_and(|count| count > 0) {}
        });
        // Some turns of 256 KiB, of which nearly half is content.
        is_fair(&running, path, 1 << 20);
        running.handle().force_close();
        drop(running);
        flood.join().expect("the task does not panic");
        reading.join().expect("the task does not panic");
    }
}

/// The start of an HTTP/2 connection with the largest windows, and a request on it.
fn get_over_http_2(path: &str) -> Vec<u8> {
    let length = u8::try_from(path.len()).expect("the value fits");
    let block = [&[0x82, 0x86, 0x04, length], path.as_bytes(), &[0x01, 1, b'a']].concat();
    let mut out = frame::PREFACE.to_vec();
    // The largest window that the client can announce.
    frame::write_settings([(setting_id::INITIAL_WINDOW_SIZE, i32::MAX.cast_unsigned())], &mut out);
    frame::write_window_update(0, i32::MAX.cast_unsigned() - 65_535, &mut out);
    frame::write_frame(
        FrameType::Headers,
        flags::END_HEADERS | flags::END_STREAM,
        1,
        &block,
        &mut out,
    );
    out
}

fn a_client_of_http_2_is_heard_beside_a_body_that_is_always_ready(choice: DriverChoice) {
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    let Some(running) = start(choice) else { return };
    let mut peer = connect(&running);
    peer.write_all(&get_over_http_2("/plain")).expect("connected");
    let mut reads = peer.try_clone().expect("a descriptor");
    let (sender, frames) = mpsc::channel();
    let reading = thread::spawn(move || {
        let (mut all, mut bytes) = (Vec::new(), vec![0; 1 << 16]);
        while let Ok(count @ 1..) = reads.read(&mut bytes) {
            all.extend_from_slice(&bytes[..count]);
            let mut at = 0;
            while let Some(header) = FrameHeader::parse(&all[at..])
                && all.len() - at >= 9 + header.length as usize
            {
                at += 9 + header.length as usize;
                let _ = sender.send((header.frame_type, header.has_flags(flags::ACK)));
            }
            all.drain(..at);
        }
    });
    let comes = |what: (FrameType, bool)| {
        while frames.recv_timeout(PATIENCE).expect("the event arrives") != what {}
    };
    comes((FrameType::Data, false));
    let mut ping = Vec::new();
    frame::write_frame(FrameType::Ping, 0, 0, b"is heard", &mut ping);
    peer.write_all(&ping).expect("connected");
    comes((FrameType::Ping, true));
    // Its body is dropped, so no more work is done.
    let mut reset = Vec::new();
    frame::write_rst_stream(1, ErrorCode(8), &mut reset);
    peer.write_all(&reset).expect("connected");
    let mut other = connect(&running);
    wait_for(|| {
        let before = done(&mut other);
        thread::sleep(Duration::from_millis(50));
        done(&mut other) == before
    });
    drop((running, peer));
    reading.join().expect("the task does not panic");
}

fn a_request_is_read_beside_a_body_that_is_always_ready(choice: DriverChoice) {
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    let Some(running) = start(choice) else { return };
    let mut peer = connect(&running);
    let head =
        "POST /until-end HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 10\r\n\r\n";
    peer.write_all(format!("{head}first").as_bytes()).expect("connected");
    let mut some = [0; 1000];
    peer.read_exact(&mut some).expect("the response begins before the request ends");
    peer.write_all(b"other").expect("connected");
    let mut rest = Vec::new();
    peer.read_to_end(&mut rest).expect("the peer closes the connection cleanly");
    assert!(rest.ends_with(b"\r\n0\r\n\r\n"));
    running.graceful_shutdown().expect("the shutdown succeeds");
}

/// A handler that is ready when the order arrives gets its response sent, and a client that
/// received everything is not reported as cut.
fn what_is_ready_at_the_cut_is_delivered_and_not_called_cut(choice: DriverChoice) {
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    let requests = [
        get_over_http_2("/wait"),
        b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"GET /wait HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_vec(),
    ];
    for (request, cut_first) in requests.iter().flat_map(|it| [(it, false), (it, true)]) {
        let (begun, ready) = (Arc::new(AtomicU64::new(0)), Arc::new(tokio::sync::Notify::new()));
        let (release, blocks) = mpsc::channel::<()>();
        let blocks = Arc::new(Mutex::new(blocks));
        let (counts, waits) = (Arc::clone(&begun), Arc::clone(&ready));
        let app = move || {
            let (counted, waits) = (Arc::clone(&counts), Arc::clone(&waits));
            let (counts, blocks) = (Arc::clone(&counts), Arc::clone(&blocks));
            let wait = move || {
                counted.fetch_add(1, Ordering::SeqCst);
                let waits = Arc::clone(&waits);
                async move {
                    waits.notified().await;
                    "waited"
                }
            };
            App::new().get("/wait", wait).get("/block", move || {
                counts.fetch_add(1, Ordering::SeqCst);
                let _ = blocks.lock().expect("the mutex is not poisoned").recv();
            })
        };
        let server = Server::bind("127.0.0.1:0").driver(choice).workers(NonZeroUsize::MIN).quiet();
        let Some(running) = started(server.start(app)) else { return };
        let mut peer = connect(&running);
        peer.write_all(request).expect("connected");
        wait_for(|| begun.load(Ordering::SeqCst) == 1);
        // While the worker is blocked, both happen.
        let block = b"GET /block HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let mut blocked = send(&running, block);
        wait_for(|| begun.load(Ordering::SeqCst) == 2);
        let handle = running.handle();
        if cut_first {
            handle.force_close();
        }
        ready.notify_one();
        if !cut_first {
            handle.force_close();
        }
        drop(release);
        let mut answer = Vec::new();
        peer.read_to_end(&mut answer).expect("the stream ends cleanly");
        assert!(answer.windows(6).any(|six| six == b"waited"), "{cut_first}");
        let _ = blocked.read_to_end(&mut Vec::new());
        let stopped = running.wait().expect("the server shuts down");
        assert!(stopped.force_closed.is_empty(), "{cut_first}: {stopped}");
    }
}
