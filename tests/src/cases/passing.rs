//! Connections accepted by one worker and served by another.

use std::sync::mpsc;
use std::thread;

use peregrine_driver::{Driver, Options, Socket, Stream};

use super::{A_WHILE, pause};
use crate::harness::{Harness, Peer, accept};
use crate::kernel::Kernel;
use crate::poll::both;

/// Passing loses no data, whenever it arrived, and keeps the addresses.
pub fn a_passed_connection_continues_unchanged<H: Harness>(harness: &H) {
    harness.check(async |driver: H::Driver| {
        let (listener, server_address) = harness.listen(&driver);
        for is_passed_twice in [false, true] {
            let peer = harness.connect(&driver, &server_address);
            // As much of it arrives before the connection is passed as the buffers hold.
            let sending = peer.send(b"early and late".to_vec());
            let receiving = async {
                let stream = accept(&listener).await;
                let addresses =
                    (stream.peer_addr(), stream.local_addr(), stream.peer_credentials());
                pause(&driver, A_WHILE / 4).await;
                let mut handoff = driver.hand_off(stream).expect("no operation has started");
                if is_passed_twice {
                    let stream =
                        driver.accept_handoff(handoff).expect("the socket is a connection");
                    handoff = driver.hand_off(stream).expect("no operation has started");
                }
                pause(&driver, A_WHILE / 4).await;
                let stream = driver.accept_handoff(handoff).expect("the socket is a connection");
                assert_eq!(
                    (stream.peer_addr(), stream.local_addr(), stream.peer_credentials()),
                    addresses
                );
                let mut received = Vec::new();
                while received.len() < 14 {
                    received
                        .extend_from_slice(&stream.recv().await.expect("the connection is open"));
                }
                assert_eq!(received, b"early and late");
                stream
            };
            let (sent, stream) = both(sending, receiving).await;
            sent.expect("the connection is open");
            stream.send(&mut b"answer".to_vec());
            let (sent, answer) = both(stream.flush(), peer.recv_exact(6)).await;
            sent.expect("the peer reads");
            assert_eq!(answer.expect("the connection is open"), b"answer");
            drop(stream);
            assert_eq!(peer.recv_all().await.expect("the stream ends cleanly"), b"");
        }
    });
}

/// A connection that was passed but not adopted is closed when it is dropped.
pub fn a_passed_connection_that_is_not_adopted_is_closed<H: Harness>(harness: &H) {
    harness.check(async |driver: H::Driver| {
        let (stream, peer) = harness.pair(&driver).await;
        drop(driver.hand_off(stream).expect("no operation has started"));
        assert_eq!(peer.recv_all().await.expect("the stream ends cleanly"), b"");
    });
}

/// The adopting worker runs on another thread.
pub fn another_worker_adopts_a_connection<D>(kernel: &Kernel<D>)
where
    D: Driver<Socket = Socket>,
{
    let (handoff_sender, handoff_receiver) = mpsc::channel::<D::Handoff>();
    let other = thread::spawn(move || {
        let adopted = D::run(&Options::default(), async |driver: D| {
            let mut count = 0;
            // This thread has nothing else to do, so blocking is fine.
            while let Ok(handoff) = handoff_receiver.recv() {
                let stream = driver.accept_handoff(handoff).expect("the socket is a connection");
                let received = stream.recv().await.expect("the connection is open").to_vec();
                stream.send(&mut [&b"not "[..], &received].concat());
                stream.flush().await.expect("the peer reads");
                count += 1;
            }
            count
        });
        adopted.expect("the driver starts")
    });
    kernel.check(async |driver: D| {
        let (listener, server_address) = kernel.listen(&driver);
        for _ in 0..20 {
            let peer = kernel.connect(&driver, &server_address);
            let stream = accept(&listener).await;
            handoff_sender
                .send(driver.hand_off(stream).expect("no operation has started"))
                .expect("the channel is open");
            peer.send(b"mine".to_vec()).await.expect("the connection is open");
            assert_eq!(peer.recv_exact(8).await.expect("the connection is open"), b"not mine");
        }
    });
    drop(handoff_sender);
    assert_eq!(other.join().expect("the worker does not panic"), 20);
}
