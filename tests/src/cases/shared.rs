//! Sending bytes that are shared with other owners.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;

use bytes::Bytes;
use peregrine_driver::{Driver, Stream};

use super::{A_WHILE, finish, pattern, pause, send};
use crate::harness::{Harness, Peer};
use crate::poll::{both, polled_once};

/// Counts how many owners were dropped.
#[derive(Clone, Default)]
struct DropCounter(Arc<AtomicUsize>);

impl DropCounter {
    fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// Shared bytes whose drop is counted.
    fn bytes(&self, bytes: Vec<u8>) -> Bytes {
        Bytes::from_owner(Owner { bytes, drops: self.clone(), waker: None, panics: false })
    }
}

/// The owner of shared bytes, as an application might define it, with a destructor.
struct Owner {
    bytes: Vec<u8>,
    drops: DropCounter,
    waker: Option<Waker>,
    panics: bool,
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Makes any use after this point visible.
        self.bytes.fill(0xdd);
        self.drops.0.fetch_add(1, Ordering::SeqCst);
        self.waker.take().into_iter().for_each(Waker::wake);
        assert!(!self.panics, "an application's destructor may panic");
    }
}

/// Owned and shared bytes arrive in the order of the calls, followed by the end of the stream,
/// whether or not the kernel has room for them.
pub fn owned_and_shared_bytes_keep_their_order(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let large = harness.large();
        let mut message = Vec::new();
        let drops = DropCounter::default();
        let sizes =
            [(0, 0), (9, 0), (0, 9), (9, 90), (100, large), (0, 50), (large, 7), (3, large)];
        for (round, (owned, shared)) in sizes.into_iter().enumerate() {
            let mut out = pattern(round as u32, owned);
            let behind = pattern(100 + round as u32, shared);
            message.extend_from_slice(&out);
            message.extend_from_slice(&behind);
            stream.send_shared(&mut out, drops.bytes(behind));
            assert!(out.is_empty());
            let mut small = pattern(200 + round as u32, round);
            message.extend_from_slice(&small);
            stream.send(&mut small);
            assert!(small.is_empty());
        }
        let progress = stream.bytes_written();
        assert!(progress < message.len() as u64, "the kernel took everything");
        stream.finish();
        let (sent, received) = both(stream.flush(), peer.recv_all()).await;
        sent.expect("the connection is open");
        let received = received.expect("the stream ends cleanly");
        assert!(
            received == message,
            "{} of {} bytes, or different bytes",
            received.len(),
            message.len()
        );
        assert_eq!(stream.bytes_written(), message.len() as u64);
        while drops.get() < sizes.len() {
            pause(&driver, A_WHILE / 20).await;
        }
    });
}

/// Shared bytes are sent unchanged, in pieces of any size, while other owners hold them.
pub fn shared_bytes_may_be_sent_repeatedly(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let all = Bytes::from(pattern(1, harness.large()));
        let mut message = Vec::new();
        for piece in [all.len(), 1, all.len() / 2, all.len() / 3] {
            let from = all.len() - piece;
            stream.send_shared(&mut b"head".to_vec(), all.slice(from..));
            message.extend_from_slice(b"head");
            message.extend_from_slice(&all[from..]);
        }
        let (sent, received) = both(stream.flush(), peer.recv_exact(message.len())).await;
        sent.expect("the connection is open");
        assert!(received.expect("the connection is open") == message, "bytes differ");
        assert_eq!(stream.bytes_written(), message.len() as u64);
        assert!(all == pattern(1, harness.large()), "the shared bytes changed");
    });
}

/// Progress is visible while the kernel accepts shared bytes in small steps.
pub fn progress_counts_shared_bytes(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let message = pattern(2, harness.large());
        stream.send_shared(&mut Vec::new(), Bytes::from(message.clone()));
        assert!(polled_once(stream.flush()).await.is_none(), "there is no room for all of it");
        let (mut steps, mut last) = (0, stream.bytes_written());
        let mut received = Vec::new();
        while received.len() < message.len() {
            received.extend(peer.recv().await.expect("the connection is open"));
            pause(&driver, A_WHILE / 20).await;
            let progress = stream.bytes_written();
            assert!(progress >= last && progress >= received.len() as u64);
            steps += usize::from(progress > last);
            last = progress;
        }
        assert!(received == message, "bytes differ");
        stream.flush().await.expect("the connection is open");
        assert_eq!(stream.bytes_written(), message.len() as u64);
        assert!(steps > 0, "no progress was reported");
    });
}

/// The driver releases shared bytes when the connection breaks or the stream is dropped: not before
/// the kernel is finished with them, and not much later.
pub fn shared_bytes_are_released(harness: &impl Harness) {
    harness.check(async |driver| {
        let drops = DropCounter::default();
        // The peer resets the connection.
        let (stream, peer) = harness.pair(&driver).await;
        for _ in 0..3 {
            let bytes = drops.bytes(pattern(3, harness.large()));
            stream.send_shared(&mut b"head".to_vec(), bytes);
        }
        pause(&driver, A_WHILE / 20).await;
        peer.reset().await;
        assert!(stream.flush().await.is_err());
        while drops.get() < 3 {
            pause(&driver, A_WHILE / 20).await;
        }
        stream.send_shared(&mut b"late".to_vec(), drops.bytes(b"too late".to_vec()));
        assert_eq!(drops.get(), 4, "sending has stopped");
        drop(stream);
        // The stream is dropped.
        let (stream, peer) = harness.pair(&driver).await;
        for _ in 0..3 {
            let bytes = drops.bytes(pattern(4, harness.large()));
            stream.send_shared(&mut b"head".to_vec(), bytes);
        }
        pause(&driver, A_WHILE / 20).await;
        drop(stream);
        let message = [b"head", &*pattern(4, harness.large())].concat();
        if let Ok(all) = peer.recv_all().await {
            let prefix = &all[..all.len().min(message.len())];
            assert!(message.starts_with(prefix), "bytes were sent that had been freed");
        }
        while drops.get() < 7 {
            pause(&driver, A_WHILE / 20).await;
        }
    });
}

/// The destructor of a shared owner may wake tasks and panic without harming anything else.
pub fn destructors_of_shared_bytes_may_panic(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let stream = Rc::new(stream);
        let drops = DropCounter::default();
        let (woken, task_stream) = (Rc::new(AtomicBool::new(false)), Rc::clone(&stream));
        let set_woken = Rc::clone(&woken);
        let (tx, rx) = tokio::sync::oneshot::channel();
        driver.spawn(async move {
            let waker = std::future::poll_fn(|cx| std::task::Poll::Ready(cx.waker().clone())).await;
            tx.send(waker).expect("the receiver is alive");
            let mut polls = 0;
            std::future::poll_fn(|_| {
                polls += 1;
                // The destructor uses the stream from inside the driver's own work.
                let _ = task_stream.is_flushed();
                if polls > 1 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
            set_woken.store(true, Ordering::SeqCst);
        });
        let _hold = driver.keep_awake();
        let waker = rx.await.expect("the task is alive");
        let message = pattern(5, harness.large());
        stream.send_shared(
            &mut Vec::new(),
            Bytes::from_owner(Owner {
                bytes: message.clone(),
                drops: drops.clone(),
                waker: Some(waker),
                panics: true,
            }),
        );
        let (sent, received) = both(stream.flush(), peer.recv_exact(message.len())).await;
        sent.expect("the connection is open");
        assert!(received.expect("the connection is open") == message, "bytes differ");
        while drops.get() == 0 || !woken.load(Ordering::SeqCst) {
            pause(&driver, A_WHILE / 20).await;
        }
        let (sent, received) = both(send(&*stream, b"on".to_vec()), peer.recv_exact(2)).await;
        sent.expect("the connection is open");
        assert_eq!(received.expect("the connection is open"), b"on");
        finish(&*stream).await.expect("the connection is open");
    });
}

/// A worker that ends releases all shared bytes.
pub fn a_worker_that_ends_releases_shared_bytes(harness: &impl Harness) {
    let drops = DropCounter::default();
    let sends = AtomicUsize::new(0);
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        for _ in 0..2 {
            sends.fetch_add(1, Ordering::SeqCst);
            let bytes = drops.bytes(pattern(6, harness.large()));
            stream.send_shared(&mut b"head".to_vec(), bytes);
        }
        driver.spawn(async move {
            let _connection = (stream, peer);
            std::future::pending::<()>().await;
        });
        pause(&driver, A_WHILE / 20).await;
    });
    assert_eq!(drops.get(), sends.load(Ordering::SeqCst));
}
