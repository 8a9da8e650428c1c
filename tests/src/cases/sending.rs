//! Sending data.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use peregrine_driver::{Driver, Stream};

use super::{A_WHILE, finish, pattern, pause, receive_all, send};
use crate::harness::{Harness, Peer};
use crate::poll::{both, first_of, polled_once};

/// `send` leaves an empty vector behind, which may reuse the memory of an earlier send.
pub fn a_sent_vector_is_left_empty(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let mut out = Vec::new();
        let mut progress = stream.bytes_written();
        for count in [0, 1, 999, 0] {
            out.extend(pattern(1, count));
            stream.send(&mut out);
            assert!(out.is_empty());
            let (sent, received) = both(stream.flush(), peer.recv_exact(count)).await;
            sent.expect("the connection is open");
            assert!(received.expect("the connection is open") == pattern(1, count));
            assert_eq!(stream.bytes_written() - progress, count as u64);
            progress = stream.bytes_written();
        }
    });
}

/// Bytes arrive although the send future was dropped, as long as the stream exists.
pub fn a_dropped_send_goes_on_in_the_background(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let message = pattern(2, harness.large());
        assert!(
            polled_once(send(&stream, message.clone())).await.is_none(),
            "the send cannot complete yet"
        );
        pause(&driver, A_WHILE).await;
        let all = peer.recv_exact(message.len()).await.expect("the connection is open");
        assert!(all == message, "bytes differ");
        drop(stream);
    });
}

/// The driver keeps sends in order whether or not their futures are still alive.
pub fn a_send_after_a_dropped_one_keeps_the_order(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let mut message = pattern(3, harness.large());
        assert!(
            polled_once(send(&stream, message.clone())).await.is_none(),
            "the send cannot complete yet"
        );
        for salt in [4, 5] {
            let more = pattern(salt, harness.large().min(30_000));
            message.extend_from_slice(&more);
            // The second send is still queued when its future is dropped.
            assert!(
                polled_once(send(&stream, more)).await.is_none(),
                "the first send is incomplete"
            );
        }
        message.extend_from_slice(b"last");
        driver.spawn(async move {
            send(&stream, b"last".to_vec()).await.expect("the connection is open");
            finish(&stream).await.expect("the connection is open");
        });
        let all = peer.recv_all().await.expect("the stream ends cleanly");
        assert!(all == message, "{} of {} bytes, or different bytes", all.len(), message.len());
    });
}

/// The end is sent after everything else, even if the earlier send futures were dropped.
pub fn finishing_waits_for_a_dropped_send(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let message = pattern(6, harness.large());
        assert!(
            polled_once(send(&stream, message.clone())).await.is_none(),
            "the send cannot complete yet"
        );
        driver.spawn(async move { finish(&stream).await.expect("the connection is open") });
        let all = peer.recv_all().await.expect("the stream ends cleanly");
        assert!(all == message, "{} of {} bytes, or different bytes", all.len(), message.len());
    });
}

/// A sender stalls while its peer does not read, and resumes when it does.
pub fn a_slow_reader_holds_the_sender_back(harness: &impl Harness) {
    const FAR_TOO_MUCH: usize = 64 << 20;
    let piece = harness.large().min(1 << 16);
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let sent = Rc::new(Cell::new(0));
        let enough = Rc::new(Cell::new(false));
        let (counter, stop) = (Rc::clone(&sent), Rc::clone(&enough));
        driver.spawn(async move {
            while counter.get() < FAR_TOO_MUCH && !stop.get() {
                send(&stream, vec![9; piece]).await.expect("the connection is open");
                counter.set(counter.get() + piece);
            }
            finish(&stream).await.expect("the connection is open");
        });
        for _ in 0..10 {
            pause(&driver, A_WHILE).await;
        }
        assert!(sent.get() < FAR_TOO_MUCH, "64 MiB went to a peer that does not read");
        enough.set(true);
        let all = peer.recv_all().await.expect("the stream ends cleanly");
        assert_eq!(all.len(), sent.get());
    });
}

/// Sends to a peer that has closed fail eventually.
pub fn a_send_to_a_closed_peer_fails_in_the_end(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        drop(peer);
        // The first sends may leave before the peer's reset arrives.
        loop {
            if send(&stream, b"anyone there?".to_vec()).await.is_err() {
                break;
            }
            pause(&driver, A_WHILE / 20).await;
        }
        assert!(send(&stream, b"still not?".to_vec()).await.is_err());
        let mut out = b"nor now?".to_vec();
        stream.send(&mut out);
        assert!(out.is_empty());
    });
}

/// A failed send wakes whichever future waits on the stream: the receive, or the send itself.
pub fn a_failed_send_wakes_who_receives(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let stream = Rc::new(stream);
        let (receiver, failed) = (Rc::clone(&stream), Rc::new(Cell::new(false)));
        let tell = Rc::clone(&failed);
        driver.spawn(async move {
            assert!(receiver.recv().await.is_err(), "the receive fails");
            tell.set(true);
        });
        assert!(polled_once(send(&*stream, vec![1; harness.large()])).await.is_none());
        pause(&driver, A_WHILE / 20).await;
        // A peer that closes with unread bytes resets the connection, even without an explicit
        // reset.
        peer.reset().await;
        // Large buffers may have had room for all of it.
        while stream.flush().await.is_ok() {
            stream.send(&mut vec![1; harness.large()]);
            pause(&driver, A_WHILE / 20).await;
        }
        while !failed.get() {
            pause(&driver, A_WHILE / 20).await;
        }
        assert!(stream.recv().await.is_err() && stream.flush().await.is_err());
    });
}

/// Each direction wakes only the last waker registered for it.
pub fn each_direction_remembers_the_last_waker_only(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let asked = [Count::new(), Count::new(), Count::new(), Count::new()];
        let wakers = asked.clone().map(Waker::from);
        let [early, late, early_sent, late_sent] = wakers.each_ref().map(Context::from_waker);
        stream.send(&mut vec![5; harness.large()]);
        for (mut receive, mut sent) in [(early, early_sent), (late, late_sent)] {
            assert!(stream.poll_recv(&mut receive).is_pending(), "nothing was sent");
            assert!(stream.poll_flush(&mut sent).is_pending(), "nothing was read");
        }
        peer.send(b"!".to_vec()).await.expect("the connection is open");
        peer.recv_exact(harness.large()).await.expect("the connection is open");
        while asked[1].get() == 0 || asked[3].get() == 0 {
            pause(&driver, A_WHILE / 20).await;
        }
        assert_eq!((asked[0].get(), asked[2].get()), (0, 0));
        assert_eq!(&*stream.recv().await.expect("the connection is open"), b"!");
        stream.flush().await.expect("the connection is open");
    });
}

/// Counts how often it was woken.
struct Count(AtomicUsize);

impl Count {
    fn new() -> Arc<Self> {
        Arc::new(Self(AtomicUsize::new(0)))
    }

    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Dropping the stream ends the connection for the peer, even with a receive and a send pending.
pub fn a_dropped_stream_closes_the_connection(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        drop(stream);
        assert!(peer.recv_all().await.is_ok_and(|all| all.is_empty()), "the stream ends cleanly");

        let (stream, peer) = harness.pair(&driver).await;
        assert!(polled_once(stream.recv()).await.is_none());
        assert!(polled_once(send(&stream, vec![1; harness.large()])).await.is_none());
        drop(stream);
        // The end or a reset, depending on the bytes in flight.
        let _ = peer.recv_all().await;

        let (stream, peer) = harness.pair(&driver).await;
        let receiving = first_of(stream.recv(), pause(&driver, A_WHILE)).await;
        assert!(receiving.is_none(), "nothing was sent");
        drop(stream);
        assert!(peer.recv_all().await.is_ok_and(|all| all.is_empty()), "the stream ends cleanly");
    });
}

/// Data sent after the end is lost; earlier data and the end still arrive.
pub fn bytes_after_the_end_disturb_nothing_before_it(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let mut message = pattern(7, harness.large());
        stream.send(&mut message.clone());
        let mut more = pattern(8, harness.large().min(30_000));
        message.extend_from_slice(&more);
        stream.send(&mut more);
        stream.finish();
        stream.send(&mut b"too late".to_vec());
        assert!(stream.flush().await.is_err());
        let all = peer.recv_all().await.expect("the stream ends cleanly");
        assert!(all == message, "{} of {} bytes, or different bytes", all.len(), message.len());
        let reply = async {
            peer.send(b"reply".to_vec()).await.expect("this direction is open");
            peer.half_close().await.expect("this direction is open");
        };
        assert_eq!(both(reply, receive_all(&stream)).await.1, b"reply");
    });
}

/// `finish` ends sending but not receiving.
pub fn a_send_fails_after_the_end_was_sent(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        finish(&stream).await.expect("the connection is open");
        assert!(send(&stream, b"too late".to_vec()).await.is_err());
        assert!(peer.recv_all().await.expect("the stream ends cleanly").is_empty());
        let reply = async {
            peer.send(b"reply".to_vec()).await.expect("this direction is open");
            peer.half_close().await.expect("this direction is open");
        };
        assert_eq!(both(reply, receive_all(&stream)).await.1, b"reply");
    });
}

/// `is_flushed` is accurate after one iteration of the worker, and data that the kernel did not
/// accept at once still arrives.
pub fn sends_that_find_no_room_are_not_called_sent(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let mut message = Vec::new();
        let is_reading_first = polled_once(stream.recv()).await.is_none();
        assert!(is_reading_first, "the peer has sent nothing");
        while stream.is_flushed() {
            assert!(message.len() < 64 << 20, "the kernel takes everything");
            let piece = pattern(message.len() as u32, 8_000);
            message.extend_from_slice(&piece);
            stream.send(&mut piece.clone());
            pause(&driver, Duration::from_millis(1)).await;
        }
        let progress = stream.bytes_written();
        assert!(progress < message.len() as u64, "the kernel took everything");
        let (sent, received) = both(stream.flush(), peer.recv_exact(message.len())).await;
        sent.expect("the connection is open");
        assert!(received.expect("the connection is open") == message, "bytes differ");
    });
}
