//! Receiving data.

use std::cell::Cell;
use std::rc::Rc;

use peregrine_driver::{Driver, Stream};

use super::{A_WHILE, echo, finish, pattern, pause, receive_all, send};
use crate::harness::{Harness, Peer, accept};
use crate::poll::{both, first_of, polled_once};

/// Messages of several sizes are echoed complete and in order.
pub fn bytes_are_echoed_unchanged(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        driver.spawn(echo(stream));
        for (salt, count) in [(1, 1), (2, 511), (3, 4096), (4, 100_000)] {
            let count = count.min(harness.large());
            let message = pattern(salt, count);
            let (sent, back) = both(peer.send(message.clone()), peer.recv_exact(count)).await;
            sent.expect("the connection is open");
            assert!(back.expect("the connection is open") == message, "{count} bytes differ");
        }
        peer.half_close().await.expect("the connection is open");
        assert!(peer.recv_all().await.expect("the stream ends cleanly").is_empty());
    });
}

/// Each of many connections gets its own bytes.
pub fn many_connections_do_not_mix(harness: &impl Harness) {
    const CONNECTIONS: u32 = 40;
    let count = harness.large().min(100_000) / 20;
    harness.check(async |driver| {
        let (listener, server_address) = harness.listen(&driver);
        let server = driver.clone();
        driver.spawn(async move {
            for _ in 0..CONNECTIONS {
                server.spawn(echo(accept(&listener).await));
            }
        });
        let done = Rc::new(Cell::new(0));
        for salt in 0..CONNECTIONS {
            let peer = harness.connect(&driver, &server_address);
            let done = Rc::clone(&done);
            driver.spawn(async move {
                let message = pattern(salt, count);
                let exchange = both(peer.send(message.clone()), peer.recv_exact(count)).await;
                assert!(exchange.1.expect("the connection is open") == message, "bytes differ");
                peer.half_close().await.expect("the connection is open");
                assert!(peer.recv_all().await.expect("the stream ends cleanly").is_empty());
                done.set(done.get() + 1);
            });
        }
        while done.get() < CONNECTIONS {
            pause(&driver, A_WHILE).await;
        }
        assert_eq!(driver.stats().accepted, u64::from(CONNECTIONS));
    });
}

/// After a peer ends its side it still gets its response, and the end can be received repeatedly.
pub fn the_end_is_reported_repeatedly_as_an_empty_chunk(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let send_request = async {
            peer.send(b"request".to_vec()).await.expect("the connection is open");
            peer.half_close().await.expect("the connection is open");
        };
        assert_eq!(both(send_request, receive_all(&stream)).await.1, b"request");
        for _ in 0..3 {
            assert!(stream.recv().await.expect("the end of the stream is not an error").is_empty());
        }
        let respond = async {
            send(&stream, b"response".to_vec()).await.expect("the peer still receives");
            assert!(stream.recv().await.expect("the end of the stream is not an error").is_empty());
            finish(&stream).await.expect("the peer still receives");
        };
        let response = both(respond, peer.recv_all()).await.1;
        assert_eq!(response.expect("the stream ends cleanly"), b"response");
    });
}

/// Receive futures dropped before, while and after bytes arrive lose no data.
pub fn a_dropped_receive_loses_nothing(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let message = pattern(5, harness.large().min(50_000));
        let sent = message.clone();
        driver.spawn(async move {
            for part in sent.chunks(1777) {
                peer.send(part.to_vec()).await.expect("the connection is open");
            }
            peer.half_close().await.expect("the connection is open");
        });
        let mut all = Vec::new();
        for attempt in 0.. {
            drop(stream.recv());
            let received = match attempt % 3 {
                0 => polled_once(stream.recv()).await,
                1 => first_of(stream.recv(), pause(&driver, A_WHILE / 20)).await,
                _ => Some(stream.recv().await),
            };
            match received.transpose().expect("the connection is open") {
                None => {}
                Some(chunk) if chunk.is_empty() => break,
                Some(chunk) => all.extend_from_slice(&chunk),
            }
        }
        assert!(all == message, "{} of {} bytes arrived", all.len(), message.len());
    });
}

/// A peer cannot fill the server's memory: if the server does not receive, the peer's sends stall.
pub fn a_waiting_receiver_blocks_its_peer(harness: &impl Harness) {
    const BYTES_MAX: usize = 64 << 20;
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let is_all_sent = Rc::new(Cell::new(false));
        let set_sent = Rc::clone(&is_all_sent);
        driver.spawn(async move {
            // In pieces, so that the simulator need not hold everything at once.
            for _ in 0..BYTES_MAX >> 16 {
                if peer.send(vec![7; 1 << 16]).await.is_err() {
                    return;
                }
            }
            set_sent.set(true);
        });
        let first = stream.recv().await.expect("the connection is open");
        assert!(first.iter().all(|byte| *byte == 7));
        drop(first);
        for _ in 0..10 {
            pause(&driver, A_WHILE).await;
        }
        assert!(!is_all_sent.get(), "64 MiB went to a server that does not receive");
        let more = stream.recv().await.expect("the rest of the data arrives later");
        assert!(!more.is_empty());
    });
}

/// A receiver that pauses blocks its peer even after much data was received, when a driver may
/// receive in a different way than at the start.
pub fn a_receiver_that_pauses_during_a_flood_blocks_its_peer(harness: &impl Harness) {
    const BYTES_MAX: usize = 64 << 20;
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let sent = Rc::new(Cell::new(0));
        let sent_count = Rc::clone(&sent);
        driver.spawn(async move {
            for _ in 0..BYTES_MAX >> 16 {
                if peer.send(vec![7; 1 << 16]).await.is_err() {
                    return;
                }
                sent_count.set(sent_count.get() + (1 << 16));
            }
        });
        let mut received = 0;
        while received < harness.large().min(1 << 20) {
            received += stream.recv().await.expect("the connection is open").len();
        }
        for _ in 0..10 {
            pause(&driver, A_WHILE).await;
        }
        assert!(sent.get() < BYTES_MAX, "64 MiB went to a server that does not receive");
        let more = stream.recv().await.expect("the rest of the data arrives later");
        assert!(!more.is_empty() && more.iter().all(|byte| *byte == 7));
    });
}

/// Bytes arrive complete and in order when data arrives in bursts, chunks are kept, and futures are
/// dropped in between.
pub fn a_flood_with_pauses_arrives_complete(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let message = pattern(6, harness.large().min(3 << 20));
        let sent = message.clone();
        let clock = driver.clone();
        driver.spawn(async move {
            let sizes = [1 << 19, 1, 4096, 70_000, 300, 1 << 20, 65_536, 8_192, 33];
            let (mut remaining, mut sizes) = (&sent[..], sizes.iter().cycle());
            while !remaining.is_empty() {
                let size = remaining.len().min(*sizes.next().expect("the iterator is infinite"));
                peer.send(remaining[..size].to_vec()).await.expect("the connection is open");
                remaining = &remaining[size..];
                if size < 10_000 {
                    pause(&clock, A_WHILE / 20).await;
                }
            }
            peer.half_close().await.expect("the connection is open");
        });
        assert!(receive_variously(&driver, &stream).await == message, "bytes differ");
    });
}

/// Everything until the peer's end, received by futures that are sometimes dropped, keeping the
/// memory of some chunks.
async fn receive_variously<D: Driver>(driver: &D, stream: &D::Stream) -> Vec<u8> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    for attempt in 0.. {
        let received = match attempt % 5 {
            0 => polled_once(stream.recv()).await,
            1 => first_of(stream.recv(), pause(driver, A_WHILE / 20)).await,
            _ => Some(stream.recv().await),
        };
        match received.transpose().expect("the connection is open") {
            None => {}
            Some(chunk) if chunk.is_empty() => break,
            Some(chunk) if attempt % 3 == 0 => all.push(chunk.to_vec()),
            Some(chunk) => {
                all.push(D::Stream::try_into_vec(chunk).unwrap_or_else(|chunk| chunk.to_vec()))
            }
        }
        if attempt % 40 == 39 {
            pause(driver, A_WHILE / 20).await;
        }
    }
    all.concat()
}

/// When a large transfer ends at any point, cleanly or not, everything sent before the end is
/// received.
pub fn a_flood_that_ends_is_received_to_its_last_byte(harness: &impl Harness) {
    harness.check(async |driver| {
        for count in [4_095, 4_096, 65_535, 65_536, 65_537, 300_000, 1_000_000] {
            let (stream, peer) = harness.pair(&driver).await;
            let message = pattern(7, harness.large().min(count));
            let flood = async {
                peer.send(message.clone()).await.expect("the connection is open");
                peer.half_close().await.expect("the connection is open");
            };
            let all = both(flood, receive_all(&stream)).await.1;
            assert!(all == message, "{} of {count} bytes arrived", all.len());
            assert!(stream.recv().await.expect("the end of the stream is not an error").is_empty());
        }
        let (stream, peer) = harness.pair(&driver).await;
        let count = harness.large().min(300_000);
        driver.spawn(async move {
            peer.send(vec![7; count]).await.expect("the connection is open");
            peer.reset().await;
        });
        let mut received = 0;
        // A reset may discard data that the kernel has not handed out yet.
        while let Ok(chunk) = stream.recv().await {
            if chunk.is_empty() {
                break;
            }
            assert!(chunk.iter().all(|byte| *byte == 7));
            received += chunk.len();
        }
        assert!(received <= count, "{received} of {count} bytes arrived");
    });
}

/// Small messages are answered while other connections send without pause.
///
/// Kernel drivers only: virtual time does not advance while any task is ready.
pub fn small_messages_arrive_during_floods(harness: &impl Harness) {
    harness.check(async |driver| {
        let flood_bytes = harness.large().min(1 << 18);
        let (listener, server_address) = harness.listen(&driver);
        let is_done = Rc::new(Cell::new(false));
        for _ in 0..4 {
            let peer = harness.connect(&driver, &server_address);
            let stream = accept(&listener).await;
            let stop = Rc::clone(&is_done);
            driver.spawn(async move {
                while !stop.get() && peer.send(vec![7; flood_bytes]).await.is_ok() {}
            });
            driver.spawn(async move {
                while let Ok(chunk) = stream.recv().await
                    && !chunk.is_empty()
                {}
            });
        }
        let peer = harness.connect(&driver, &server_address);
        driver.spawn(echo(accept(&listener).await));
        for round in 0..5 {
            let message = pattern(round, 50);
            peer.send(message.clone()).await.expect("the connection is open");
            let back = peer.recv_exact(50).await.expect("the connection is open");
            assert!(back == message, "bytes differ in round {round}");
        }
        is_done.set(true);
    });
}

/// A reset is an error, reported after the bytes that arrived before it, and the error persists.
pub fn a_broken_connection_does_not_look_like_a_clean_close(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let receive_four = async {
            let mut received = Vec::new();
            while received.len() < 4 {
                received.extend_from_slice(&stream.recv().await.expect("the bytes come first"));
            }
            received
        };
        let (sent, received) = both(peer.send(b"some".to_vec()), receive_four).await;
        sent.expect("the connection is open");
        assert_eq!(received, b"some");
        if peer.reset().await {
            for _ in 0..3 {
                assert!(stream.recv().await.is_err());
            }
            assert!(send(&stream, b"more".to_vec()).await.is_err());
        } else {
            assert!(stream.recv().await.expect("a close is a clean end of stream").is_empty());
        }
    });
}

/// `is_broken` reports a reset without receiving.
pub fn a_reset_is_known_without_receiving(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        peer.send(b"x".to_vec()).await.expect("the connection is open");
        pause(&driver, A_WHILE).await;
        assert!(!stream.is_broken());
        if !peer.reset().await {
            pause(&driver, A_WHILE).await;
            assert!(!stream.is_broken(), "a close is a clean end of stream");
            return;
        }
        let mut polls = 0;
        while !stream.is_broken() {
            polls += 1;
            assert!(polls < 100, "the reset is not reported");
            pause(&driver, A_WHILE).await;
        }
    });
}

/// A chunk stays readable after its stream and its peer are gone.
pub fn a_chunk_outlives_its_stream(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        peer.send(b"x".to_vec()).await.expect("the connection is open");
        let chunk = stream.recv().await.expect("the connection is open");
        drop(stream);
        drop(peer);
        pause(&driver, A_WHILE).await;
        assert_eq!(&*chunk, b"x");
    });
}

/// A send that waits for the peer does not block a receive, nor the reverse.
pub fn both_directions_work_concurrently(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let count = harness.large().min(4 << 20);
        let (down, up) = (pattern(8, count), pattern(9, count));
        let (expected_down, expected_up) = (down.clone(), up.clone());
        driver.spawn(async move {
            let results = both(send(&stream, down), receive_all(&stream)).await;
            results.0.expect("the connection is open");
            assert!(results.1 == expected_up, "bytes differ on the way up");
            finish(&stream).await.expect("the connection is open");
        });
        let upload = async {
            peer.send(up).await.expect("the connection is open");
            peer.half_close().await.expect("the connection is open");
        };
        let all = both(upload, peer.recv_all()).await.1.expect("the stream ends cleanly");
        assert!(all == expected_down, "bytes differ on the way down");
    });
}
