//! What needs a real kernel, or threads.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;

use peregrine_driver::{Driver, Options, Socket, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{A_WHILE, echo, pause};
use crate::harness::{Harness, accept};
use crate::kernel::{Kernel, Place};

/// A handler can talk to a database, say, in the thread of its worker.
pub fn a_handler_may_use_tokio_sockets<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    kernel.check(async |driver: D| {
        let backend = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = backend.local_addr().expect("it is bound");
        let _hold = driver.hold();
        driver.spawn(async move {
            let (mut socket, _) = backend.accept().await.expect("the handler connects");
            let mut question = [0; 4];
            socket.read_exact(&mut question).await.expect("the handler asks");
            socket.write_all(&question).await.expect("the handler waits");
        });
        let mut socket = tokio::net::TcpStream::connect(address).await.expect("it listens");
        socket.write_all(b"ping").await.expect("the connection stands");
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).await.expect("an orderly end");
        assert_eq!(answer, b"ping");
    });
}

/// A worker that sleeps in the kernel hears a waker that another thread calls.
pub fn a_waker_works_from_another_thread<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    kernel.check(async |driver: D| {
        for _ in 0..20 {
            let _hold = driver.hold();
            let slot = Arc::new(Mutex::new((false, None::<Waker>)));
            let shared = Arc::clone(&slot);
            let other = thread::spawn(move || {
                thread::sleep(A_WHILE / 20);
                let mut slot = shared.lock().expect("nobody panics with it");
                slot.0 = true;
                slot.1.take().into_iter().for_each(Waker::wake);
            });
            std::future::poll_fn(|context| {
                let mut slot = slot.lock().expect("nobody panics with it");
                slot.1 = Some(context.waker().clone());
                if slot.0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            other.join().expect("the thread ends well");
        }
    });
}

/// Connections, bytes and timers wake a worker that holds nothing.
pub fn a_worker_that_only_waits_for_the_driver_needs_no_hold<D: Driver<Socket = Socket>>(
    kernel: &Kernel<D>,
) {
    let (socket, place) = kernel.socket();
    let Place::Tcp(address) = place else { panic!("this case is about TCP") };
    let client = thread::spawn(move || {
        let mut answers = Vec::new();
        for _ in 0..3 {
            thread::sleep(A_WHILE);
            let mut peer = TcpStream::connect(address).expect("the server listens");
            thread::sleep(A_WHILE);
            peer.write_all(b"ping").expect("the connection stands");
            peer.shutdown(std::net::Shutdown::Write).expect("the connection stands");
            peer.read_to_end(&mut answers).expect("an orderly end");
        }
        answers
    });
    let worker = D::run(&Options::default(), async |driver: D| {
        let listener = driver.listen(socket).expect("a bound socket can listen");
        for _ in 0..3 {
            let stream = accept(&listener).await;
            assert_ne!(stream.peer(), stream.local());
            echo(stream).await;
        }
        pause(&driver, A_WHILE).await;
    });
    worker.expect("the driver starts");
    assert_eq!(client.join().expect("the client ends well"), b"pingpingping");
}
