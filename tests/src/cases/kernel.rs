//! What needs a real kernel, or threads.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use peregrine_driver::{Driver, Options, Socket, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{A_WHILE, echo, pause};
use crate::harness::{Harness, accept};
use crate::kernel::{Kernel, Place};

/// Only a hang takes so long.
const PATIENCE: Duration = Duration::from_secs(40);

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

/// Tasks of tokio that are always ready, in both ways that there are, leave a connection its turn,
/// and tokio's own sockets and timers theirs.
pub fn tasks_that_never_rest_starve_nobody<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    let (socket, place) = kernel.socket();
    let Place::Tcp(address) = place else { panic!("this case is about TCP") };
    let worker = D::run(&Options::default(), async |driver: D| {
        let listener = driver.listen(socket).expect("a bound socket can listen");
        let yielding = tokio::spawn(async {
            loop {
                tokio::task::yield_now().await;
            }
        });
        let waking = tokio::spawn(std::future::poll_fn(|context| {
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        }));
        let client = tokio::spawn(async move {
            let mut answers = Vec::new();
            for _ in 0..20 {
                let stream = tokio::net::TcpStream::connect(address).await;
                let mut stream = stream.expect("the server listens");
                stream.write_all(b"ping").await.expect("the connection stands");
                stream.shutdown().await.expect("the connection stands");
                stream.read_to_end(&mut answers).await.expect("an orderly end");
                tokio::time::sleep(A_WHILE / 20).await;
            }
            answers
        });
        for _ in 0..20 {
            echo(accept(&listener).await).await;
        }
        assert_eq!(client.await.expect("the client ends well"), b"ping".repeat(20));
        yielding.abort();
        waking.abort();
    });
    worker.expect("the driver starts");
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

/// Whoever has no room does not ask, and then holds no descriptors of connections.
pub fn connections_wait_in_the_backlog_until_they_are_asked_for<D: Driver<Socket = Socket>>(
    kernel: &Kernel<D>,
) {
    kernel.check(async |driver: D| {
        let (listener, place) = kernel.listen(&driver);
        let mut peers: Vec<_> = (0..3).map(|_| kernel.connect(&driver, &place)).collect();
        let mut streams = vec![accept(&listener).await, accept(&listener).await];
        peers.extend((0..60).map(|_| kernel.connect(&driver, &place)));
        pause(&driver, A_WHILE).await;
        assert_eq!(driver.counters().accepted, 2);
        for _ in 2..63 {
            streams.push(accept(&listener).await);
        }
        assert_eq!(driver.counters().accepted, 63);
    });
}

/// A worker that ends waits for functions on blocking threads as long as it was told to.
pub fn blocking_functions_are_outlasted<D: Driver<Socket = Socket>>(_: &Kernel<D>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&asked);
    let worker = D::run(&Options::default(), async |driver: D| {
        let _hold = driver.hold();
        // A thread that is idle at the end does not count.
        tokio::task::spawn_blocking(|| ()).await.expect("it does not panic");
        let (release, released) = mpsc::channel::<()>();
        drop(tokio::task::spawn_blocking(move || released.recv()));
        let (mut release, begun) = (Some(release), Instant::now());
        driver.outlast(move |functions| {
            let mut asked = told.lock().expect("nobody panics with it");
            // On a busy machine the idle thread may take its time to end.
            if !asked.is_empty() || has_settled(functions, begun) {
                asked.push(functions);
            }
            if asked.len() == 3 {
                drop(release.take());
            }
            true
        });
    });
    worker.expect("the driver starts");
    let asked = asked.lock().expect("nobody panics with it");
    assert_eq!((asked[..3].to_vec(), asked.last()), (vec![1, 1, 1], Some(&0)));
}

/// Functions that wait for a thread are no less waited for than those that have one.
pub fn blocking_functions_that_wait_for_a_thread_begin<D: Driver<Socket = Socket>>(_: &Kernel<D>) {
    // tokio has 512 threads for them.
    const FUNCTIONS: usize = 520;
    let run = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&run);
    let worker = D::run(&Options::default(), async |driver: D| {
        let _hold = driver.hold();
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        for _ in 0..FUNCTIONS {
            let (gate, counted) = (Arc::clone(&gate), Arc::clone(&counted));
            drop(tokio::task::spawn_blocking(move || {
                let open = gate.0.lock().expect("nobody panics with it");
                drop(gate.1.wait_while(open, |open| !*open).expect("nobody panics with it"));
                *counted.lock().expect("nobody panics with it") += 1;
            }));
        }
        driver.outlast(move |_| {
            *gate.0.lock().expect("nobody panics with it") = true;
            gate.1.notify_all();
            true
        });
    });
    worker.expect("the driver starts");
    assert_eq!(*run.lock().expect("nobody panics with it"), FUNCTIONS);
}

/// Is only the one function left that runs? Threads that are idle, or are about to end, count for a
/// moment; one that counts for ever fails the case.
fn has_settled(functions: usize, begun: Instant) -> bool {
    assert!(begun.elapsed() < PATIENCE, "{functions} functions are left");
    functions <= 1
}

/// A worker that was told nothing waits for no function, and one without patience only asks.
pub fn blocking_functions_without_an_end_hold_no_worker<D: Driver<Socket = Socket>>(_: &Kernel<D>) {
    for is_told in [false, true] {
        let (release, released) = mpsc::channel::<()>();
        let left = Arc::new(Mutex::new(None));
        let told = Arc::clone(&left);
        let worker = D::run(&Options::default(), async |driver: D| {
            drop(tokio::task::spawn_blocking(move || released.recv()));
            if is_told {
                let begun = Instant::now();
                driver.outlast(move |functions| {
                    *told.lock().expect("nobody panics with it") = Some(functions);
                    !has_settled(functions, begun)
                });
            }
        });
        worker.expect("the driver starts");
        let left = *left.lock().expect("nobody panics with it");
        assert_eq!(left, is_told.then_some(1));
        drop(release);
    }
}
