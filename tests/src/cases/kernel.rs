//! Rules that need a real kernel or several threads.

use std::cell::Cell;
use std::future::pending;
use std::io::{ErrorKind, Read, Write};
#[cfg(unix)]
use std::net::Shutdown;
use std::net::{SocketAddr, TcpStream};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use peregrine_driver::{
    Address, Driver, Handoff, Listener, Options, Socket, SocketOptions, Stream,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{A_WHILE, echo, pause};
use crate::harness::{Harness, Peer, accept};
use crate::kernel::{Kernel, Place};
use crate::poll::polled_once;

/// Only a hang takes this long.
const PATIENCE: Duration = Duration::from_secs(40);

/// A handler can use tokio's sockets (for a database, say) on its worker's thread.
pub fn a_handler_may_use_tokio_sockets<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    kernel.check(async |driver: D| {
        let backend = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = backend.local_addr().expect("the socket is bound");
        let _hold = driver.keep_awake();
        driver.spawn(async move {
            let (mut socket, _) = backend.accept().await.expect("the handler connects");
            let mut question = [0; 4];
            socket.read_exact(&mut question).await.expect("the handler sends a request");
            socket.write_all(&question).await.expect("the handler waits");
        });
        let mut socket =
            tokio::net::TcpStream::connect(address).await.expect("the server accepts connections");
        socket.write_all(b"ping").await.expect("the connection is open");
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).await.expect("the stream ends cleanly");
        assert_eq!(answer, b"ping");
    });
}

/// A waker called from another thread wakes a worker that sleeps in the kernel.
pub fn a_waker_works_from_another_thread<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    kernel.check(async |driver: D| {
        for _ in 0..20 {
            let _hold = driver.keep_awake();
            let slot = Arc::new(Mutex::new((false, None::<Waker>)));
            let shared = Arc::clone(&slot);
            let other = thread::spawn(move || {
                thread::sleep(A_WHILE / 20);
                let mut slot = shared.lock().expect("the mutex is not poisoned");
                slot.0 = true;
                slot.1.take().into_iter().for_each(Waker::wake);
            });
            std::future::poll_fn(|cx| {
                let mut slot = slot.lock().expect("the mutex is not poisoned");
                slot.1 = Some(cx.waker().clone());
                if slot.0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            other.join().expect("the thread does not panic");
        }
    });
}

/// Tokio tasks that are always ready, whichever way they yield, starve neither connections nor
/// tokio's own sockets and timers.
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
        let waking = tokio::spawn(std::future::poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        }));
        let client = tokio::spawn(async move {
            let mut answers = Vec::new();
            for _ in 0..20 {
                let stream = tokio::net::TcpStream::connect(address).await;
                let mut stream = stream.expect("the server listens");
                stream.write_all(b"ping").await.expect("the connection is open");
                stream.shutdown().await.expect("the connection is open");
                stream.read_to_end(&mut answers).await.expect("the stream ends cleanly");
                tokio::time::sleep(A_WHILE / 20).await;
            }
            answers
        });
        for _ in 0..20 {
            echo(accept(&listener).await).await;
        }
        assert_eq!(client.await.expect("the client does not panic"), b"ping".repeat(20));
        yielding.abort();
        waking.abort();
    });
    worker.expect("the driver starts");
}

/// When a peer shuts down its receiving side, sends fail. A pending receive must fail too: it would
/// otherwise wait for ever, because the kernel reports this to the sender only.
#[cfg(unix)]
pub fn a_peer_that_reads_no_more_breaks_the_connection<D>(kernel: &Kernel<D>)
where
    D: Driver<Socket = Socket>,
{
    kernel.check(async |driver: D| {
        let (listener, place) = kernel.listen(&driver);
        let Place::Unix(path) = place else { panic!("this case is about Unix sockets") };
        let peer = UnixStream::connect(path).expect("the server listens");
        let stream = Rc::new(accept(&listener).await);
        let sender = Rc::clone(&stream);
        let timer = driver.clone();
        driver.spawn(async move {
            pause(&timer, A_WHILE).await;
            peer.shutdown(Shutdown::Read).expect("the connection is open");
            sender.send(&mut b"anyone there?".to_vec());
            assert!(sender.flush().await.is_err(), "the peer does not read");
            pending::<()>().await;
            drop(peer);
        });
        assert!(stream.recv().await.is_err(), "a send failed");
        assert!(stream.recv().await.is_err(), "the error persists");
    });
}

/// Connections, bytes and timers wake a worker that has no hold.
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
            peer.write_all(b"ping").expect("the connection is open");
            peer.shutdown(std::net::Shutdown::Write).expect("the connection is open");
            peer.read_to_end(&mut answers).expect("the stream ends cleanly");
        }
        answers
    });
    let worker = D::run(&Options::default(), async |driver: D| {
        let listener = driver.listen(socket).expect("a bound socket can listen");
        for _ in 0..3 {
            let stream = accept(&listener).await;
            assert_ne!(stream.peer_addr(), stream.local_addr());
            echo(stream).await;
        }
        pause(&driver, A_WHILE).await;
    });
    worker.expect("the driver starts");
    assert_eq!(client.join().expect("the client does not panic"), b"pingpingping");
}

/// After `refuse_new` the kernel answers no SYN, but peers that are already connected are accepted.
///
/// Linux only: `refuse_new` has no effect elsewhere.
pub fn nobody_new_gets_in_after_refusing<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    if !cfg!(target_os = "linux") {
        return;
    }
    kernel.check(async |driver: D| {
        const QUEUED: usize = 5;
        let (listener, place) = kernel.listen(&driver);
        let Place::Tcp(address) = place else { panic!("this case is about TCP") };
        let queued = [(); QUEUED].map(|()| kernel.connect(&driver, &place));
        listener.refuse_new_connections();
        // Accepting would answer the first SYN at once; a retransmission follows after one second.
        let late =
            tokio::task::spawn_blocking(move || TcpStream::connect_timeout(&address, A_WHILE * 75));
        let error =
            late.await.expect("the task does not panic").expect_err("new connections are refused");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        for _ in 0..QUEUED {
            let stream = accept(&listener).await;
            driver.spawn(echo(stream));
        }
        for peer in queued {
            peer.send(b"still".to_vec()).await.expect("the connection is open");
            assert_eq!(peer.recv_exact(5).await.expect("the connection is open"), b"still");
            peer.half_close().await.expect("the connection is open");
            assert!(peer.recv_all().await.expect("the stream ends cleanly").is_empty());
        }
        assert!(polled_once(listener.accept()).await.is_none(), "no other peer is connected");
    });
}

/// After `refuse_new`, new connections to a Unix socket are refused, connections in the backlog are
/// accepted, and then `accept` reports that the backlog is empty.
///
/// Linux only: `refuse_new` has no effect elsewhere.
#[cfg(unix)]
pub fn who_waits_at_a_unix_socket_is_accepted_after_refusing_and_nobody_else<D>(kernel: &Kernel<D>)
where
    D: Driver<Socket = Socket>,
{
    if !cfg!(target_os = "linux") {
        return;
    }
    kernel.check(async |driver: D| {
        for queued in [0, 1, 5] {
            let (listener, place) = kernel.listen(&driver);
            // The listener may or may not have polled an empty backlog before.
            assert!(queued == 1 || polled_once(listener.accept()).await.is_none());
            let queued: Vec<_> = (0..queued).map(|_| kernel.connect(&driver, &place)).collect();
            listener.refuse_new_connections();
            let Place::Unix(path) = &place else { panic!("this case is about Unix sockets") };
            let late = UnixStream::connect(path).expect_err("new connections are refused");
            assert_eq!(late.kind(), ErrorKind::ConnectionRefused);
            for peer in queued {
                let stream = accept(&listener).await;
                driver.spawn(echo(stream));
                peer.send(b"still".to_vec()).await.expect("the connection is open");
                assert_eq!(peer.recv_exact(5).await.expect("the connection is open"), b"still");
                peer.half_close().await.expect("the connection is open");
                assert!(peer.recv_all().await.expect("the stream ends cleanly").is_empty());
            }
            let nobody = listener.accept().await.err().expect("no other peer is connected");
            assert_eq!(nobody.kind(), ErrorKind::InvalidInput);
        }
    });
}

/// Data that arrived while the worker did not poll the kernel is received in order and exactly once
/// by `recv_now`.
pub fn what_was_not_looked_for_is_received_in_order<D: Driver<Socket = Socket>>(
    kernel: &Kernel<D>,
) {
    kernel.check(async |driver: D| {
        let (listener, place) = kernel.listen(&driver);
        let Place::Tcp(address) = place else { panic!("this case is about TCP") };
        let mut peer = TcpStream::connect(address).expect("the server listens");
        let stream = accept(&listener).await;
        for _ in 0..3 {
            assert!(polled_once(stream.recv()).await.is_none());
            assert!(stream.try_recv().is_none(), "nothing was sent");
            peer.write_all(b"first ").expect("the connection is open");
            let mut all = stream.try_recv().map_or_else(Vec::new, |chunk| chunk.to_vec());
            peer.write_all(b"second").expect("the connection is open");
            while all.len() < 12 {
                let chunk = stream.recv().await.expect("the connection is open");
                assert!(!chunk.is_empty(), "the connection stands");
                all.extend_from_slice(&chunk);
            }
            assert_eq!(all, b"first second");
        }
        drop(peer);
        assert!(stream.try_recv().is_none(), "`recv_now` does not report the end");
        assert!(stream.recv().await.expect("the stream ends cleanly").is_empty());
        assert!(stream.try_recv().is_none());
    });
}

/// When each iteration takes long, a worker accepts more than one connection per iteration.
pub fn a_worker_with_long_turns_accepts_many<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    const CONNECTIONS: usize = 60;
    kernel.check(async |driver: D| {
        let (socket, place) = kernel.bind(&driver);
        let (Socket::Tcp(inner), Place::Tcp(address)) = (&socket, place) else {
            panic!("this case is about TCP")
        };
        inner.set_nonblocking(true).expect("the socket can be made non-blocking");
        let listener = driver.listen(socket).expect("the socket is bound");
        let accepted = Rc::new(Cell::new(0));
        let count = Rc::clone(&accepted);
        driver.spawn(async move {
            let mut streams = Vec::new();
            while count.get() < CONNECTIONS {
                streams.push(accept(&listener).await);
                count.set(streams.len());
            }
        });
        pause(&driver, A_WHILE / 20).await;
        let connect = || TcpStream::connect(address).expect("the server listens");
        let _peers: Vec<_> = (0..CONNECTIONS).map(|_| connect()).collect();
        let (turns, counted, worker) =
            (Rc::new(Cell::new(0)), Rc::clone(&accepted), driver.clone());
        let blocked = Rc::clone(&turns);
        // Handlers that block the thread.
        driver.spawn(std::future::poll_fn(move |cx| {
            if counted.get() == CONNECTIONS {
                return Poll::Ready(());
            }
            thread::sleep(Duration::from_millis(15));
            blocked.set(blocked.get() + 1);
            worker.yield_now(cx);
            Poll::Pending
        }));
        while accepted.get() < CONNECTIONS {
            pause(&driver, A_WHILE / 20).await;
        }
        let turns = turns.get();
        assert!(turns <= CONNECTIONS / 3, "{turns} turns for {CONNECTIONS} connections");
    });
}

/// Resetting a stream leaves no connection in the kernel and reaches the peer, even with data
/// unwritten or in flight.
pub fn a_reset_reaches_the_peer<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    kernel.check(async |driver: D| {
        for (count, has_ended) in
            [(0, false), (1, false), (1, true), (kernel.large(), false), (kernel.large(), true)]
        {
            let (stream, peer) = kernel.pair(&driver).await;
            let Address::Tcp(here) = stream.peer_addr() else { panic!("this case is about TCP") };
            let Address::Tcp(there) = stream.local_addr() else { panic!("this case is about TCP") };
            stream.send(&mut vec![1; count]);
            if has_ended {
                stream.finish();
            }
            pause(&driver, A_WHILE / 20).await;
            stream.reset_on_drop();
            drop(stream);
            while connections_between(there, here) > 0 {
                pause(&driver, A_WHILE / 20).await;
            }
            let ended = has_ended && count < kernel.large();
            match peer.recv_all().await {
                Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
                // A peer that has already received the end may report that first.
                Ok(all) => assert!(ended, "an orderly end after {} bytes", all.len()),
            }
        }
    });
}

/// Connections in any state from the port of `local` to that of `peer` that the kernel keeps, where
/// the system reports them.
fn connections_between(local: SocketAddr, peer: SocketAddr) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let ends = [local, peer].map(|address| format!(":{:04X}", address.port()));
    let is_one = |line: &&str| {
        let mut words = line.split(' ').filter(|word| !word.is_empty()).skip(1);
        ends.iter().all(|end| words.next().is_some_and(|word| word.ends_with(end)))
    };
    table.lines().filter(is_one).count()
}

/// When a peer reads slowly, the count of sent bytes grows in small steps, rather than only after
/// megabytes have left a buffer.
pub fn progress_follows_a_peer_that_reads_little<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    if !cfg!(target_os = "linux") {
        return;
    }
    kernel.check(async |driver: D| {
        const PIECE: usize = 16 * 1024;
        // A peer's kernel announces new receive space only once a good part of its buffer is free.
        const PIECES_MAX: u32 = 32;
        let (listener, place) = kernel.listen(&driver);
        let Place::Tcp(address) = place else { panic!("this case is about TCP") };
        let mut peer = TcpStream::connect(address).expect("the server listens");
        let stream = accept(&listener).await;
        stream.send(&mut vec![1; kernel.large()]);
        let (mut last, mut pieces) = (settled(&driver, || stream.bytes_written()).await, 0);
        for _ in 0..200 {
            peer = tokio::task::spawn_blocking(move || {
                peer.read_exact(&mut [0; PIECE]).map(|()| peer).expect("the connection is open")
            })
            .await
            .expect("the task does not panic");
            pause(&driver, A_WHILE / 20).await;
            pieces = if stream.bytes_written() == last { pieces + 1 } else { 0 };
            assert!(pieces < PIECES_MAX, "{PIECES_MAX} pieces were read without progress");
            last = stream.bytes_written();
        }
    });
}

/// The kernel buffers little for a peer that does not read.
pub fn a_peer_that_does_not_read_costs_little<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    if !cfg!(target_os = "linux") {
        return;
    }
    kernel.check(async |driver: D| {
        const LITTLE: u64 = 1 << 20;
        let (stream, _peer) = kernel.pair(&driver).await;
        stream.send(&mut vec![1; kernel.large()]);
        let progress = settled(&driver, || stream.bytes_written()).await;
        assert!(progress < LITTLE, "the kernel took {progress} bytes");
    });
}

/// The count once it has stopped growing for a while.
async fn settled<D: Driver>(driver: &D, count: impl Fn() -> u64) -> u64 {
    loop {
        let before = count();
        pause(driver, A_WHILE * 3).await;
        if before > 0 && count() == before {
            return before;
        }
    }
}

/// Sharing a non-blocking listening socket with a driver leaves its other descriptors non-blocking.
pub fn a_shared_listener_stays_as_it_was<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    kernel.check(async |driver: D| {
        let (socket, place) = kernel.socket();
        let Socket::Tcp(listener) = socket else { panic!("this case is about TCP") };
        listener.set_nonblocking(true).expect("the socket can be made non-blocking");
        let own = listener.try_clone().expect("a descriptor is free");
        let listener = driver.listen(Socket::Tcp(listener)).expect("a bound socket can listen");
        for _ in 0..3 {
            assert!(polled_once(listener.accept()).await.is_none(), "no peer connected");
            // If this blocks at all, it blocks for ever.
            let error = own.accept().expect_err("no peer connected");
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            let _peer = kernel.connect(&driver, &place);
            drop(accept(&listener).await);
        }
    });
}

/// A driver that was not asked to accept leaves connections in the backlog and holds no descriptors
/// for them.
pub fn connections_wait_in_the_backlog_until_they_are_asked_for<D: Driver<Socket = Socket>>(
    kernel: &Kernel<D>,
) {
    kernel.check(async |driver: D| {
        let (listener, place) = kernel.listen(&driver);
        let mut peers: Vec<_> = (0..3).map(|_| kernel.connect(&driver, &place)).collect();
        let mut streams = vec![accept(&listener).await, accept(&listener).await];
        peers.extend((0..60).map(|_| kernel.connect(&driver, &place)));
        pause(&driver, A_WHILE).await;
        assert_eq!(driver.stats().accepted, 2);
        for _ in 2..63 {
            streams.push(accept(&listener).await);
        }
        assert_eq!(driver.stats().accepted, 63);
    });
}

/// A worker that ends waits for blocking functions while its `outlast` callback returns true.
pub fn blocking_functions_are_outlasted<D: Driver<Socket = Socket>>(_: &Kernel<D>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&asked);
    let worker = D::run(&Options::default(), async |driver: D| {
        let _hold = driver.keep_awake();
        // A thread that is idle at the end does not count.
        tokio::task::spawn_blocking(|| ()).await.expect("the task does not panic");
        let (release, released) = mpsc::channel::<()>();
        drop(tokio::task::spawn_blocking(move || released.recv()));
        let (mut release, begun) = (Some(release), Instant::now());
        driver.wait_for_blocking_tasks_while(move |functions| {
            let mut asked = told.lock().expect("the mutex is not poisoned");
            // On a busy machine an idle thread may take a while to exit.
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
    let asked = asked.lock().expect("the mutex is not poisoned");
    assert_eq!((asked[..3].to_vec(), asked.last()), (vec![1, 1, 1], Some(&0)));
}

/// Queued blocking functions are waited for like running ones.
pub fn blocking_functions_that_wait_for_a_thread_begin<D: Driver<Socket = Socket>>(_: &Kernel<D>) {
    // Tokio's limit is 512 blocking threads.
    const FUNCTIONS: usize = 520;
    let run = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&run);
    let worker = D::run(&Options::default(), async |driver: D| {
        let _hold = driver.keep_awake();
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        for _ in 0..FUNCTIONS {
            let (gate, counted) = (Arc::clone(&gate), Arc::clone(&counted));
            drop(tokio::task::spawn_blocking(move || {
                let open = gate.0.lock().expect("the mutex is not poisoned");
                drop(gate.1.wait_while(open, |open| !*open).expect("the mutex is not poisoned"));
                *counted.lock().expect("the mutex is not poisoned") += 1;
            }));
        }
        driver.wait_for_blocking_tasks_while(move |_| {
            *gate.0.lock().expect("the mutex is not poisoned") = true;
            gate.1.notify_all();
            true
        });
    });
    worker.expect("the driver starts");
    assert_eq!(*run.lock().expect("the mutex is not poisoned"), FUNCTIONS);
}

/// Whether only the one running function is left. Idle or exiting threads count for a moment; a
/// thread that counts for ever fails the case.
fn has_settled(functions: usize, begun: Instant) -> bool {
    assert!(begun.elapsed() < PATIENCE, "{functions} functions are left");
    functions <= 1
}

/// Without an `outlast` callback a worker does not wait for blocking functions, and a callback that
/// returns false ends the wait.
pub fn blocking_functions_without_an_end_hold_no_worker<D: Driver<Socket = Socket>>(_: &Kernel<D>) {
    for is_told in [false, true] {
        let (release, released) = mpsc::channel::<()>();
        let left = Arc::new(Mutex::new(None));
        let told = Arc::clone(&left);
        let worker = D::run(&Options::default(), async |driver: D| {
            drop(tokio::task::spawn_blocking(move || released.recv()));
            if is_told {
                let begun = Instant::now();
                driver.wait_for_blocking_tasks_while(move |functions| {
                    *told.lock().expect("the mutex is not poisoned") = Some(functions);
                    !has_settled(functions, begun)
                });
            }
        });
        worker.expect("the driver starts");
        let left = *left.lock().expect("the mutex is not poisoned");
        assert_eq!(left, is_told.then_some(1));
        drop(release);
    }
}

/// A connection has the configured socket options whatever options its listener had before, and
/// whether it was accepted before or after the driver took the listener. Unix sockets have none of
/// these options.
pub fn connections_have_the_options_of_sockets<D>(kernel: &Kernel<D>)
where
    D: Driver<Socket = Socket, Handoff = Handoff>,
{
    let defaults = SocketOptions::default();
    let second = Duration::from_secs(1);
    assert_eq!(defaults.tcp_keepalive, Some(15 * second));
    assert!(defaults.tcp_user_timeout >= Some(150 * second));
    let others = SocketOptions {
        tcp_keepalive: Some(77 * second),
        tcp_keepalive_interval: 5 * second,
        tcp_keepalive_retries: 3,
        tcp_user_timeout: Some(Duration::from_millis(222_222)),
        ..SocketOptions::default()
    };
    let none =
        SocketOptions { tcp_keepalive: None, tcp_user_timeout: None, ..SocketOptions::default() };
    let endless =
        SocketOptions { tcp_user_timeout: Some(Duration::MAX), ..SocketOptions::default() };
    for sockets in [defaults, others, none, endless] {
        let (socket, place) = kernel.socket();
        if let Socket::Tcp(listener) = &socket {
            let before = socket2::SockRef::from(listener);
            before.set_keepalive(true).expect("the socket is TCP");
            #[cfg(target_os = "linux")]
            before.set_tcp_user_timeout(Some(9 * second)).expect("the socket is TCP");
        }
        let options = Options { socket_options: sockets.clone(), ..Options::default() };
        D::run(&options, async |driver: D| {
            let _hold = driver.keep_awake();
            let _earlier = kernel.connect(&driver, &place);
            let listener = driver.listen(socket).expect("the socket is bound");
            check_options(driver.hand_off(accept(&listener).await), &sockets);
            for _ in 0..2 {
                // When nothing awaits connections, the driver leaves them to the kernel.
                assert!(polled_once(listener.accept()).await.is_none());
                let _later = kernel.connect(&driver, &place);
                check_options(driver.hand_off(accept(&listener).await), &sockets);
            }
        })
        .expect("the driver starts");
    }
}

fn check_options(passed: std::io::Result<Handoff>, expected: &SocketOptions) {
    let stream = match passed.expect("no bytes were received") {
        Handoff::Tcp(stream) => stream,
        #[cfg(unix)]
        Handoff::Unix(stream) => {
            let socket = socket2::SockRef::from(&stream);
            return assert!(!socket.keepalive().expect("a socket"));
        }
    };
    let socket = socket2::SockRef::from(&stream);
    assert_eq!(socket.keepalive().expect("a socket"), expected.tcp_keepalive.is_some());
    if let Some(time) = expected.tcp_keepalive {
        assert_eq!(socket.tcp_keepalive_time().expect("a socket"), time);
        let interval = socket.tcp_keepalive_interval().expect("a socket");
        assert_eq!(interval, expected.tcp_keepalive_interval);
        let probes = socket.tcp_keepalive_retries().expect("a socket");
        assert_eq!(probes, expected.tcp_keepalive_retries);
    }
    #[cfg(target_os = "linux")]
    assert_eq!(socket.tcp_user_timeout().expect("a socket"), expected.tcp_user_timeout_clamped());
}
