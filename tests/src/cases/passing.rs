//! Connections that one worker accepts and another one serves.

use std::sync::mpsc;
use std::thread;

use peregrine_driver::{Driver, Options, Socket, Stream};

use super::{A_WHILE, pause};
use crate::harness::{Harness, Peer, accept};
use crate::kernel::Kernel;
use crate::poll::both;

/// Nothing that came before or meanwhile is lost, and who is there stays the same.
pub fn a_passed_connection_goes_on_as_if_nothing_had_been<H: Harness>(harness: &H) {
    harness.check(async |driver: H::Driver| {
        let (listener, place) = harness.listen(&driver);
        for is_passed_twice in [false, true] {
            let peer = harness.connect(&driver, &place);
            // As much of it comes before as there is room for.
            let sending = peer.send(b"early and late".to_vec());
            let receiving = async {
                let stream = accept(&listener).await;
                let who = (stream.peer(), stream.local(), stream.credentials());
                pause(&driver, A_WHILE / 4).await;
                let mut passed = driver.pass(stream).expect("nothing was begun");
                if is_passed_twice {
                    let stream = driver.adopt(passed).expect("it is a connection");
                    passed = driver.pass(stream).expect("nothing was begun");
                }
                pause(&driver, A_WHILE / 4).await;
                let stream = driver.adopt(passed).expect("it is a connection");
                assert_eq!((stream.peer(), stream.local(), stream.credentials()), who);
                let mut got = Vec::new();
                while got.len() < 14 {
                    got.extend_from_slice(&stream.recv().await.expect("the connection is up"));
                }
                assert_eq!(got, b"early and late");
                stream
            };
            let (sent, stream) = both(sending, receiving).await;
            sent.expect("the connection is up");
            stream.send(&mut b"answer".to_vec());
            let (sent, answer) = both(stream.sent(), peer.recv_exact(6)).await;
            sent.expect("the peer reads");
            assert_eq!(answer.expect("the connection is up"), b"answer");
            drop(stream);
            assert_eq!(peer.recv_all().await.expect("it ends in order"), b"");
        }
    });
}

/// A connection on its way belongs to whoever has it.
pub fn a_passed_connection_that_nobody_adopts_is_closed<H: Harness>(harness: &H) {
    harness.check(async |driver: H::Driver| {
        let (stream, peer) = harness.pair(&driver).await;
        drop(driver.pass(stream).expect("nothing was begun"));
        assert_eq!(peer.recv_all().await.expect("it ends in order"), b"");
    });
}

/// The worker that adopts a connection is another thread's.
pub fn another_worker_adopts_a_connection<D>(kernel: &Kernel<D>)
where
    D: Driver<Socket = Socket>,
{
    let (give, take) = mpsc::channel::<D::Passed>();
    let other = thread::spawn(move || {
        let adopted = D::run(&Options::default(), async |driver: D| {
            let mut count = 0;
            // The thread has nothing else to do.
            while let Ok(passed) = take.recv() {
                let stream = driver.adopt(passed).expect("it is a connection");
                let asked = stream.recv().await.expect("the connection is up").to_vec();
                stream.send(&mut [&b"not "[..], &asked].concat());
                stream.sent().await.expect("the peer reads");
                count += 1;
            }
            count
        });
        adopted.expect("the driver starts")
    });
    kernel.check(async |driver: D| {
        let (listener, place) = kernel.listen(&driver);
        for _ in 0..20 {
            let peer = kernel.connect(&driver, &place);
            let stream = accept(&listener).await;
            give.send(driver.pass(stream).expect("nothing was begun")).expect("it takes all");
            peer.send(b"mine".to_vec()).await.expect("the connection is up");
            assert_eq!(peer.recv_exact(8).await.expect("the connection is up"), b"not mine");
        }
    });
    drop(give);
    assert_eq!(other.join().expect("the worker is well"), 20);
}
