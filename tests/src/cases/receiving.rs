//! Receiving.

use std::cell::Cell;
use std::rc::Rc;

use peregrine_driver::{Driver, Stream};

use super::{A_WHILE, echo, finish, pattern, pause, receive_all, send};
use crate::harness::{Harness, Peer, accept};
use crate::poll::{both, first_of, polled_once};

/// Messages of several sizes come back whole and in order.
pub fn bytes_come_back_as_they_were_sent(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        driver.spawn(echo(stream));
        for (salt, count) in [(1, 1), (2, 511), (3, 4096), (4, 100_000)] {
            let count = count.min(harness.large());
            let message = pattern(salt, count);
            let (sent, back) = both(peer.send(message.clone()), peer.recv_exact(count)).await;
            sent.expect("the connection stands");
            assert!(back.expect("the connection stands") == message, "{count} bytes differ");
        }
        peer.half_close().await.expect("the connection stands");
        assert!(peer.recv_all().await.expect("an orderly end").is_empty());
    });
}

/// Each of many connections gets its own bytes.
pub fn many_connections_do_not_mix(harness: &impl Harness) {
    const CONNECTIONS: u32 = 40;
    let count = harness.large().min(100_000) / 20;
    harness.check(async |driver| {
        let (listener, place) = harness.listen(&driver);
        let server = driver.clone();
        driver.spawn(async move {
            for _ in 0..CONNECTIONS {
                server.spawn(echo(accept(&listener).await));
            }
        });
        let done = Rc::new(Cell::new(0));
        for salt in 0..CONNECTIONS {
            let peer = harness.connect(&driver, &place);
            let done = Rc::clone(&done);
            driver.spawn(async move {
                let message = pattern(salt, count);
                let talk = both(peer.send(message.clone()), peer.recv_exact(count)).await;
                assert!(talk.1.expect("the connection stands") == message, "bytes differ");
                peer.half_close().await.expect("the connection stands");
                assert!(peer.recv_all().await.expect("an orderly end").is_empty());
                done.set(done.get() + 1);
            });
        }
        while done.get() < CONNECTIONS {
            pause(&driver, A_WHILE).await;
        }
        assert_eq!(driver.counters().accepted, u64::from(CONNECTIONS));
    });
}

/// A peer that ends its side still gets its answer, and the end can be received repeatedly.
pub fn the_end_is_an_empty_chunk_again_and_again(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let ask = async {
            peer.send(b"question".to_vec()).await.expect("the connection stands");
            peer.half_close().await.expect("the connection stands");
        };
        assert_eq!(both(ask, receive_all(&stream)).await.1, b"question");
        for _ in 0..3 {
            assert!(stream.recv().await.expect("the end is no error").is_empty());
        }
        let answer = async {
            send(&stream, b"answer".to_vec()).await.expect("the peer still receives");
            assert!(stream.recv().await.expect("the end is no error").is_empty());
            finish(&stream).await.expect("the peer still receives");
        };
        let answered = both(answer, peer.recv_all()).await.1;
        assert_eq!(answered.expect("an orderly end"), b"answer");
    });
}

/// Futures that are dropped before, while and after bytes arrive take none with them.
pub fn a_dropped_receive_loses_nothing(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let message = pattern(5, harness.large().min(50_000));
        let sent = message.clone();
        driver.spawn(async move {
            for part in sent.chunks(1777) {
                peer.send(part.to_vec()).await.expect("the connection stands");
            }
            peer.half_close().await.expect("the connection stands");
        });
        let mut all = Vec::new();
        for attempt in 0.. {
            drop(stream.recv());
            let received = match attempt % 3 {
                0 => polled_once(stream.recv()).await,
                1 => first_of(stream.recv(), pause(&driver, A_WHILE / 20)).await,
                _ => Some(stream.recv().await),
            };
            match received.transpose().expect("nothing breaks the connection") {
                None => {}
                Some(chunk) if chunk.is_empty() => break,
                Some(chunk) => all.extend_from_slice(&chunk),
            }
        }
        assert!(all == message, "{} of {} bytes came", all.len(), message.len());
    });
}

/// A peer cannot fill memory: when nobody receives, its sends stop.
pub fn a_receiver_that_waits_holds_its_peer_back(harness: &impl Harness) {
    const FAR_TOO_MUCH: usize = 64 << 20;
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let whole = Rc::new(Cell::new(false));
        let sent = Rc::clone(&whole);
        driver.spawn(async move {
            // Pieces, so that the simulator need not hold all of it at once.
            for _ in 0..FAR_TOO_MUCH >> 16 {
                if peer.send(vec![7; 1 << 16]).await.is_err() {
                    return;
                }
            }
            sent.set(true);
        });
        let first = stream.recv().await.expect("nothing breaks the connection");
        assert!(first.iter().all(|byte| *byte == 7));
        drop(first);
        for _ in 0..10 {
            pause(&driver, A_WHILE).await;
        }
        assert!(!whole.get(), "64 MiB went to a server that does not receive");
        let more = stream.recv().await.expect("what was held back comes later");
        assert!(!more.is_empty());
    });
}

/// The same in the middle of much that was received before, when a driver may receive in another
/// way than at the beginning.
pub fn a_receiver_that_pauses_in_a_flood_holds_its_peer_back(harness: &impl Harness) {
    const FAR_TOO_MUCH: usize = 64 << 20;
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let sent = Rc::new(Cell::new(0));
        let count = Rc::clone(&sent);
        driver.spawn(async move {
            for _ in 0..FAR_TOO_MUCH >> 16 {
                if peer.send(vec![7; 1 << 16]).await.is_err() {
                    return;
                }
                count.set(count.get() + (1 << 16));
            }
        });
        let mut received = 0;
        while received < harness.large().min(1 << 20) {
            received += stream.recv().await.expect("nothing breaks the connection").len();
        }
        for _ in 0..10 {
            pause(&driver, A_WHILE).await;
        }
        assert!(sent.get() < FAR_TOO_MUCH, "64 MiB went to a server that does not receive");
        let more = stream.recv().await.expect("what was held back comes later");
        assert!(!more.is_empty() && more.iter().all(|byte| *byte == 7));
    });
}

/// However a driver receives much and little in turn, kept memory and dropped futures in between,
/// the bytes come whole and in order.
pub fn a_flood_with_pauses_arrives_whole(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let message = pattern(6, harness.large().min(3 << 20));
        let sent = message.clone();
        let clock = driver.clone();
        driver.spawn(async move {
            let sizes = [1 << 19, 1, 4096, 70_000, 300, 1 << 20, 65_536, 8_192, 33];
            let (mut rest, mut sizes) = (&sent[..], sizes.iter().cycle());
            while !rest.is_empty() {
                let size = rest.len().min(*sizes.next().expect("the sizes go round"));
                peer.send(rest[..size].to_vec()).await.expect("the connection stands");
                rest = &rest[size..];
                if size < 10_000 {
                    pause(&clock, A_WHILE / 20).await;
                }
            }
            peer.half_close().await.expect("the connection stands");
        });
        assert!(receive_variously(&driver, &stream).await == message, "bytes differ");
    });
}

/// Everything until the peer's end, by futures that are dropped now and then, with chunks whose
/// memory is kept where it may be.
async fn receive_variously<D: Driver>(driver: &D, stream: &D::Stream) -> Vec<u8> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    for attempt in 0.. {
        let received = match attempt % 5 {
            0 => polled_once(stream.recv()).await,
            1 => first_of(stream.recv(), pause(driver, A_WHILE / 20)).await,
            _ => Some(stream.recv().await),
        };
        match received.transpose().expect("nothing breaks the connection") {
            None => {}
            Some(chunk) if chunk.is_empty() => break,
            Some(chunk) if attempt % 3 == 0 => all.push(chunk.to_vec()),
            Some(chunk) => all.push(D::Stream::keep(chunk).unwrap_or_else(|chunk| chunk.to_vec())),
        }
        if attempt % 40 == 39 {
            pause(driver, A_WHILE / 20).await;
        }
    }
    all.concat()
}

/// A flood that ends anywhere, in order or not, gives what was sent before its end.
pub fn a_flood_that_ends_is_received_to_its_last_byte(harness: &impl Harness) {
    harness.check(async |driver| {
        for count in [4_095, 4_096, 65_535, 65_536, 65_537, 300_000, 1_000_000] {
            let (stream, peer) = harness.pair(&driver).await;
            let message = pattern(7, harness.large().min(count));
            let flood = async {
                peer.send(message.clone()).await.expect("the connection stands");
                peer.half_close().await.expect("the connection stands");
            };
            let all = both(flood, receive_all(&stream)).await.1;
            assert!(all == message, "{} of {count} bytes came", all.len());
            assert!(stream.recv().await.expect("the end is no error").is_empty());
        }
        let (stream, peer) = harness.pair(&driver).await;
        let count = harness.large().min(300_000);
        driver.spawn(async move {
            peer.send(vec![7; count]).await.expect("the connection stands");
            peer.reset().await;
        });
        let mut received = 0;
        // A reset may take along what the kernel has not handed out yet.
        while let Ok(chunk) = stream.recv().await {
            if chunk.is_empty() {
                break;
            }
            assert!(chunk.iter().all(|byte| *byte == 7));
            received += chunk.len();
        }
        assert!(received <= count, "{received} of {count} bytes came");
    });
}

/// Small messages are answered while other connections never stop to send.
///
/// Only for kernels: virtual time stands still while anybody can go on.
pub fn small_messages_get_through_beside_floods(harness: &impl Harness) {
    harness.check(async |driver| {
        let flood = harness.large().min(1 << 18);
        let (listener, place) = harness.listen(&driver);
        let over = Rc::new(Cell::new(false));
        for _ in 0..4 {
            let peer = harness.connect(&driver, &place);
            let stream = accept(&listener).await;
            let stop = Rc::clone(&over);
            driver.spawn(
                async move { while !stop.get() && peer.send(vec![7; flood]).await.is_ok() {} },
            );
            driver.spawn(async move {
                while let Ok(chunk) = stream.recv().await
                    && !chunk.is_empty()
                {}
            });
        }
        let peer = harness.connect(&driver, &place);
        driver.spawn(echo(accept(&listener).await));
        for round in 0..5 {
            let message = pattern(round, 50);
            peer.send(message.clone()).await.expect("the connection stands");
            let back = peer.recv_exact(50).await.expect("the connection stands");
            assert!(back == message, "bytes differ in round {round}");
        }
        over.set(true);
    });
}

/// A reset is an error, after the bytes that came before it, and stays one.
pub fn a_broken_connection_does_not_look_like_an_orderly_end(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let four = async {
            let mut some = Vec::new();
            while some.len() < 4 {
                some.extend_from_slice(&stream.recv().await.expect("the bytes come first"));
            }
            some
        };
        let (sent, some) = both(peer.send(b"some".to_vec()), four).await;
        sent.expect("the connection stands");
        assert_eq!(some, b"some");
        if peer.reset().await {
            for _ in 0..3 {
                assert!(stream.recv().await.is_err());
            }
            assert!(send(&stream, b"more".to_vec()).await.is_err());
        } else {
            assert!(stream.recv().await.expect("a close is an orderly end").is_empty());
        }
    });
}

/// Whoever does not receive can ask whether the peer broke the connection off.
pub fn a_reset_is_known_without_receiving(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        peer.send(b"x".to_vec()).await.expect("the connection stands");
        pause(&driver, A_WHILE).await;
        assert!(!stream.is_broken());
        if !peer.reset().await {
            pause(&driver, A_WHILE).await;
            assert!(!stream.is_broken(), "a close is an orderly end");
            return;
        }
        let mut looks = 0;
        while !stream.is_broken() {
            looks += 1;
            assert!(looks < 100, "a reset is known");
            pause(&driver, A_WHILE).await;
        }
    });
}

/// A chunk may be read after its stream, and its peer, are gone.
pub fn a_chunk_outlives_its_stream(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        peer.send(b"x".to_vec()).await.expect("the connection stands");
        let chunk = stream.recv().await.expect("the connection stands");
        drop(stream);
        drop(peer);
        pause(&driver, A_WHILE).await;
        assert_eq!(&*chunk, b"x");
    });
}

/// A send that waits for the peer does not keep a receive from going on, nor the reverse.
pub fn both_directions_move_at_the_same_time(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let count = harness.large().min(4 << 20);
        let (down, up) = (pattern(8, count), pattern(9, count));
        let (expected_down, expected_up) = (down.clone(), up.clone());
        driver.spawn(async move {
            let server = both(send(&stream, down), receive_all(&stream)).await;
            server.0.expect("the connection stands");
            assert!(server.1 == expected_up, "bytes differ on the way up");
            finish(&stream).await.expect("the connection stands");
        });
        let upload = async {
            peer.send(up).await.expect("the connection stands");
            peer.half_close().await.expect("the connection stands");
        };
        let all = both(upload, peer.recv_all()).await.1.expect("an orderly end");
        assert!(all == expected_down, "bytes differ on the way down");
    });
}
