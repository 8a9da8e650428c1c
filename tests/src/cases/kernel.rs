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
use crate::kernel::{Kernel, ServerAddress};
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
            let mut request = [0; 4];
            socket.read_exact(&mut request).await.expect("the handler sends a request");
            socket.write_all(&request).await.expect("the handler waits");
        });
        let mut socket =
            tokio::net::TcpStream::connect(address).await.expect("the server accepts connections");
        socket.write_all(b"ping").await.expect("the connection is open");
        let mut response = Vec::new();
        socket.read_to_end(&mut response).await.expect("the stream ends cleanly");
        assert_eq!(response, b"ping");
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
pub fn busy_tasks_do_not_starve_others<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    let (socket, server_address) = kernel.socket();
    let ServerAddress::Tcp(address) = server_address else { panic!("this case is about TCP") };
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
            let mut responses = Vec::new();
            for _ in 0..20 {
                let stream = tokio::net::TcpStream::connect(address).await;
                let mut stream = stream.expect("the server listens");
                stream.write_all(b"ping").await.expect("the connection is open");
                stream.shutdown().await.expect("the connection is open");
                stream.read_to_end(&mut responses).await.expect("the stream ends cleanly");
                tokio::time::sleep(A_WHILE / 20).await;
            }
            responses
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
/// otherwise wait forever, because the kernel reports this to the sender only.
#[cfg(unix)]
pub fn a_peer_that_stops_reading_breaks_the_connection<D>(kernel: &Kernel<D>)
where
    D: Driver<Socket = Socket>,
{
    kernel.check(async |driver: D| {
        let (listener, server_address) = kernel.listen(&driver);
        let ServerAddress::Unix(path) = server_address else {
            panic!("this case is about Unix sockets")
        };
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
pub fn an_idle_worker_needs_no_hold<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    let (socket, server_address) = kernel.socket();
    let ServerAddress::Tcp(address) = server_address else { panic!("this case is about TCP") };
    let client = thread::spawn(move || {
        let mut responses = Vec::new();
        for _ in 0..3 {
            thread::sleep(A_WHILE);
            let mut peer = TcpStream::connect(address).expect("the server listens");
            thread::sleep(A_WHILE);
            peer.write_all(b"ping").expect("the connection is open");
            peer.shutdown(std::net::Shutdown::Write).expect("the connection is open");
            peer.read_to_end(&mut responses).expect("the stream ends cleanly");
        }
        responses
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

/// After `refuse_new_connections` the kernel answers no SYN, but peers that are already connected
/// are accepted.
///
/// Linux only: `refuse_new_connections` has no effect elsewhere.
pub fn no_connection_is_accepted_after_refuse_new_connections<D: Driver<Socket = Socket>>(
    kernel: &Kernel<D>,
) {
    if !cfg!(target_os = "linux") {
        return;
    }
    kernel.check(async |driver: D| {
        const QUEUED: usize = 5;
        let (listener, server_address) = kernel.listen(&driver);
        let ServerAddress::Tcp(address) = server_address else { panic!("this case is about TCP") };
        let queued = [(); QUEUED].map(|()| kernel.connect(&driver, &server_address));
        listener.refuse_new_connections();
        // Accepting would answer the first SYN at once; a retransmission follows after one second.
        let late_connect =
            tokio::task::spawn_blocking(move || TcpStream::connect_timeout(&address, A_WHILE * 75));
        let error = late_connect
            .await
            .expect("the task does not panic")
            .expect_err("new connections are refused");
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

/// After `refuse_new_connections`, new connections to a Unix socket are refused, connections in the
/// backlog are accepted, and then `accept` reports that the backlog is empty.
///
/// Linux only: `refuse_new_connections` has no effect elsewhere.
#[cfg(unix)]
pub fn only_queued_unix_connections_are_accepted_after_refuse_new_connections<D>(kernel: &Kernel<D>)
where
    D: Driver<Socket = Socket>,
{
    if !cfg!(target_os = "linux") {
        return;
    }
    kernel.check(async |driver: D| {
        for queued in [0, 1, 5] {
            let (listener, server_address) = kernel.listen(&driver);
            // The listener may or may not have polled an empty backlog before.
            assert!(queued == 1 || polled_once(listener.accept()).await.is_none());
            let queued: Vec<_> =
                (0..queued).map(|_| kernel.connect(&driver, &server_address)).collect();
            listener.refuse_new_connections();
            let ServerAddress::Unix(path) = &server_address else {
                panic!("this case is about Unix sockets")
            };
            let refused = UnixStream::connect(path).expect_err("new connections are refused");
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            for peer in queued {
                let stream = accept(&listener).await;
                driver.spawn(echo(stream));
                peer.send(b"still".to_vec()).await.expect("the connection is open");
                assert_eq!(peer.recv_exact(5).await.expect("the connection is open"), b"still");
                peer.half_close().await.expect("the connection is open");
                assert!(peer.recv_all().await.expect("the stream ends cleanly").is_empty());
            }
            let error = listener.accept().await.err().expect("no other peer is connected");
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
    });
}

/// Data that arrived while the worker did not poll the kernel is received in order and exactly once
/// by `try_recv`.
pub fn skipped_data_is_received_in_order<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    kernel.check(async |driver: D| {
        let (listener, server_address) = kernel.listen(&driver);
        let ServerAddress::Tcp(address) = server_address else { panic!("this case is about TCP") };
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
                assert!(!chunk.is_empty(), "the connection is open");
                all.extend_from_slice(&chunk);
            }
            assert_eq!(all, b"first second");
        }
        drop(peer);
        assert!(stream.try_recv().is_none(), "`try_recv` does not report the end");
        assert!(stream.recv().await.expect("the stream ends cleanly").is_empty());
        assert!(stream.try_recv().is_none());
    });
}

/// When each iteration takes long, a worker accepts more than one connection per iteration.
pub fn a_worker_with_long_iterations_accepts_many<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    const CONNECTIONS: usize = 60;
    kernel.check(async |driver: D| {
        let (socket, server_address) = kernel.bind(&driver);
        let (Socket::Tcp(inner), ServerAddress::Tcp(address)) = (&socket, server_address) else {
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
        let (iterations, accepted_count, worker) =
            (Rc::new(Cell::new(0)), Rc::clone(&accepted), driver.clone());
        let iteration_count = Rc::clone(&iterations);
        // Handlers that block the thread.
        driver.spawn(std::future::poll_fn(move |cx| {
            if accepted_count.get() == CONNECTIONS {
                return Poll::Ready(());
            }
            thread::sleep(Duration::from_millis(15));
            iteration_count.set(iteration_count.get() + 1);
            worker.yield_now(cx);
            Poll::Pending
        }));
        while accepted.get() < CONNECTIONS {
            pause(&driver, A_WHILE / 20).await;
        }
        let iterations = iterations.get();
        assert!(
            iterations <= CONNECTIONS / 3,
            "{iterations} iterations for {CONNECTIONS} connections"
        );
    });
}

/// Resetting a stream leaves no connection in the kernel and reaches the peer, even with data
/// unwritten or in flight.
pub fn a_reset_reaches_the_peer<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    kernel.check(async |driver: D| {
        for (count, is_finished) in
            [(0, false), (1, false), (1, true), (kernel.large(), false), (kernel.large(), true)]
        {
            let (stream, peer) = kernel.pair(&driver).await;
            let Address::Tcp(peer_address) = stream.peer_addr() else {
                panic!("this case is about TCP")
            };
            let Address::Tcp(local_address) = stream.local_addr() else {
                panic!("this case is about TCP")
            };
            stream.send(&mut vec![1; count]);
            if is_finished {
                stream.finish();
            }
            pause(&driver, A_WHILE / 20).await;
            stream.reset_on_drop();
            drop(stream);
            while connections_between(local_address, peer_address) > 0 {
                pause(&driver, A_WHILE / 20).await;
            }
            let may_end_cleanly = is_finished && count < kernel.large();
            match peer.recv_all().await {
                Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
                // A peer that has already received the end may report that first.
                Ok(all) => assert!(may_end_cleanly, "a clean end after {} bytes", all.len()),
            }
        }
    });
}

/// Connections in any state from the port of `local` to that of `peer` that the kernel keeps, where
/// the system reports them.
fn connections_between(local: SocketAddr, peer: SocketAddr) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let port_suffixes = [local, peer].map(|address| format!(":{:04X}", address.port()));
    let is_match = |line: &&str| {
        let mut columns = line.split(' ').filter(|column| !column.is_empty()).skip(1);
        port_suffixes
            .iter()
            .all(|suffix| columns.next().is_some_and(|column| column.ends_with(suffix)))
    };
    table.lines().filter(is_match).count()
}

/// When a peer reads slowly, the count of sent bytes grows in small steps, rather than only after
/// megabytes have left a buffer.
pub fn progress_follows_a_slow_reader<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    if !cfg!(target_os = "linux") {
        return;
    }
    kernel.check(async |driver: D| {
        const PIECE: usize = 16 * 1024;
        // A peer's kernel announces new receive space only once a good part of its buffer is free.
        const PIECES_MAX: u32 = 32;
        let (listener, server_address) = kernel.listen(&driver);
        let ServerAddress::Tcp(address) = server_address else { panic!("this case is about TCP") };
        let mut peer = TcpStream::connect(address).expect("the server listens");
        let stream = accept(&listener).await;
        stream.send(&mut vec![1; kernel.large()]);
        let (mut last, mut stalled_pieces) = (settled(&driver, || stream.bytes_written()).await, 0);
        for _ in 0..200 {
            peer = tokio::task::spawn_blocking(move || {
                peer.read_exact(&mut [0; PIECE]).map(|()| peer).expect("the connection is open")
            })
            .await
            .expect("the task does not panic");
            pause(&driver, A_WHILE / 20).await;
            stalled_pieces = if stream.bytes_written() == last { stalled_pieces + 1 } else { 0 };
            assert!(stalled_pieces < PIECES_MAX, "{PIECES_MAX} pieces were read without progress");
            last = stream.bytes_written();
        }
    });
}

/// The kernel buffers little for a peer that does not read.
pub fn a_peer_that_does_not_read_uses_little_memory<D: Driver<Socket = Socket>>(
    kernel: &Kernel<D>,
) {
    if !cfg!(target_os = "linux") {
        return;
    }
    kernel.check(async |driver: D| {
        const BUFFERED_BYTES_MAX: u64 = 1 << 20;
        let (stream, _peer) = kernel.pair(&driver).await;
        stream.send(&mut vec![1; kernel.large()]);
        let progress = settled(&driver, || stream.bytes_written()).await;
        assert!(progress < BUFFERED_BYTES_MAX, "the kernel accepted {progress} bytes");
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
pub fn a_shared_listener_keeps_its_options<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    kernel.check(async |driver: D| {
        let (socket, server_address) = kernel.socket();
        let Socket::Tcp(listener) = socket else { panic!("this case is about TCP") };
        listener.set_nonblocking(true).expect("the socket can be made non-blocking");
        let duplicate = listener.try_clone().expect("a descriptor is free");
        let listener = driver.listen(Socket::Tcp(listener)).expect("a bound socket can listen");
        for _ in 0..3 {
            assert!(polled_once(listener.accept()).await.is_none(), "no peer connected");
            // If this blocks at all, it blocks forever.
            let error = duplicate.accept().expect_err("no peer connected");
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            let _peer = kernel.connect(&driver, &server_address);
            drop(accept(&listener).await);
        }
    });
}

/// Without a pending `accept`, a driver leaves connections in the backlog and holds no descriptors
/// for them.
pub fn connections_wait_in_the_backlog_until_they_are_accepted<D: Driver<Socket = Socket>>(
    kernel: &Kernel<D>,
) {
    kernel.check(async |driver: D| {
        let (listener, server_address) = kernel.listen(&driver);
        let mut peers: Vec<_> = (0..3).map(|_| kernel.connect(&driver, &server_address)).collect();
        let mut streams = vec![accept(&listener).await, accept(&listener).await];
        peers.extend((0..60).map(|_| kernel.connect(&driver, &server_address)));
        pause(&driver, A_WHILE).await;
        assert_eq!(driver.stats().accepted, 2);
        for _ in 2..63 {
            streams.push(accept(&listener).await);
        }
        assert_eq!(driver.stats().accepted, 63);
    });
}

/// A worker that ends waits for blocking functions while the callback of
/// `keep_waiting_for_blocking_tasks_while` returns true.
pub fn the_worker_waits_for_blocking_functions<D: Driver<Socket = Socket>>(_: &Kernel<D>) {
    let reported = Arc::new(Mutex::new(Vec::new()));
    let callback_reports = Arc::clone(&reported);
    let worker = D::run(&Options::default(), async |driver: D| {
        let _hold = driver.keep_awake();
        // A thread that is idle at the end does not count.
        tokio::task::spawn_blocking(|| ()).await.expect("the task does not panic");
        let (release, released) = mpsc::channel::<()>();
        drop(tokio::task::spawn_blocking(move || released.recv()));
        let (mut release, start) = (Some(release), Instant::now());
        driver.keep_waiting_for_blocking_tasks_while(move |functions| {
            let mut reported = callback_reports.lock().expect("the mutex is not poisoned");
            // On a busy machine an idle thread may take a while to exit.
            if !reported.is_empty() || has_settled(functions, start) {
                reported.push(functions);
            }
            if reported.len() == 3 {
                drop(release.take());
            }
            true
        });
    });
    worker.expect("the driver starts");
    let reported = reported.lock().expect("the mutex is not poisoned");
    assert_eq!((reported[..3].to_vec(), reported.last()), (vec![1, 1, 1], Some(&0)));
}

/// Queued blocking functions are waited for like running ones.
pub fn queued_blocking_functions_start<D: Driver<Socket = Socket>>(_: &Kernel<D>) {
    // Tokio's limit is 512 blocking threads.
    const FUNCTIONS: usize = 520;
    let completed = Arc::new(Mutex::new(0));
    let completed_count = Arc::clone(&completed);
    let worker = D::run(&Options::default(), async |driver: D| {
        let _hold = driver.keep_awake();
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        for _ in 0..FUNCTIONS {
            let (gate, completed_count) = (Arc::clone(&gate), Arc::clone(&completed_count));
            drop(tokio::task::spawn_blocking(move || {
                let open = gate.0.lock().expect("the mutex is not poisoned");
                drop(gate.1.wait_while(open, |open| !*open).expect("the mutex is not poisoned"));
                *completed_count.lock().expect("the mutex is not poisoned") += 1;
            }));
        }
        driver.keep_waiting_for_blocking_tasks_while(move |_| {
            *gate.0.lock().expect("the mutex is not poisoned") = true;
            gate.1.notify_all();
            true
        });
    });
    worker.expect("the driver starts");
    assert_eq!(*completed.lock().expect("the mutex is not poisoned"), FUNCTIONS);
}

/// Whether only the one running function remains. Idle or exiting threads count for a moment; a
/// thread that counts forever fails the case.
fn has_settled(functions: usize, start: Instant) -> bool {
    assert!(start.elapsed() < PATIENCE, "{functions} functions remain");
    functions <= 1
}

/// Without a `keep_waiting_for_blocking_tasks_while` callback a worker does not wait for blocking
/// functions, and a callback that returns false ends the wait.
pub fn endless_blocking_functions_do_not_delay_a_worker<D: Driver<Socket = Socket>>(_: &Kernel<D>) {
    for has_callback in [false, true] {
        let (release, released) = mpsc::channel::<()>();
        let remaining = Arc::new(Mutex::new(None));
        let reported = Arc::clone(&remaining);
        let worker = D::run(&Options::default(), async |driver: D| {
            drop(tokio::task::spawn_blocking(move || released.recv()));
            if has_callback {
                let start = Instant::now();
                driver.keep_waiting_for_blocking_tasks_while(move |functions| {
                    *reported.lock().expect("the mutex is not poisoned") = Some(functions);
                    !has_settled(functions, start)
                });
            }
        });
        worker.expect("the driver starts");
        let remaining = *remaining.lock().expect("the mutex is not poisoned");
        assert_eq!(remaining, has_callback.then_some(1));
        drop(release);
    }
}

/// A connection has the configured socket options whatever options its listener had before, and
/// whether it was accepted before or after the driver took the listener. Unix sockets have none of
/// these options.
pub fn connections_have_the_socket_options<D>(kernel: &Kernel<D>)
where
    D: Driver<Socket = Socket, Handoff = Handoff>,
{
    let defaults = SocketOptions::default();
    let second = Duration::from_secs(1);
    assert_eq!(defaults.tcp_keepalive, Some(15 * second));
    assert!(defaults.tcp_user_timeout >= Some(150 * second));
    let custom = SocketOptions {
        tcp_keepalive: Some(77 * second),
        tcp_keepalive_interval: 5 * second,
        tcp_keepalive_retries: 3,
        tcp_user_timeout: Some(Duration::from_millis(222_222)),
        ..SocketOptions::default()
    };
    let disabled =
        SocketOptions { tcp_keepalive: None, tcp_user_timeout: None, ..SocketOptions::default() };
    let unlimited =
        SocketOptions { tcp_user_timeout: Some(Duration::MAX), ..SocketOptions::default() };
    for socket_options in [defaults, custom, disabled, unlimited] {
        let (socket, server_address) = kernel.socket();
        if let Socket::Tcp(listener) = &socket {
            let socket_ref = socket2::SockRef::from(listener);
            socket_ref.set_keepalive(true).expect("the socket is TCP");
            #[cfg(target_os = "linux")]
            socket_ref.set_tcp_user_timeout(Some(9 * second)).expect("the socket is TCP");
        }
        let options = Options { socket_options: socket_options.clone(), ..Options::default() };
        D::run(&options, async |driver: D| {
            let _hold = driver.keep_awake();
            let _earlier = kernel.connect(&driver, &server_address);
            let listener = driver.listen(socket).expect("the socket is bound");
            check_options(driver.hand_off(accept(&listener).await), &socket_options);
            for _ in 0..2 {
                // When nothing awaits connections, the driver leaves them to the kernel.
                assert!(polled_once(listener.accept()).await.is_none());
                let _later = kernel.connect(&driver, &server_address);
                check_options(driver.hand_off(accept(&listener).await), &socket_options);
            }
        })
        .expect("the driver starts");
    }
}

fn check_options(handoff: std::io::Result<Handoff>, expected: &SocketOptions) {
    let stream = match handoff.expect("no bytes were received") {
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
