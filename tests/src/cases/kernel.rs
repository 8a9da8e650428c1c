//! What needs a real kernel, or threads.

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

use peregrine_driver::{Address, Driver, Listener, Options, Passed, Socket, SocketOptions, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{A_WHILE, echo, pause};
use crate::harness::{Harness, Peer, accept};
use crate::kernel::{Kernel, Place};
use crate::poll::polled_once;

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

/// A peer that ends its receiving side makes sends fail. Who waits for bytes would wait for ever: the
/// kernel tells of this the sender only.
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
            peer.shutdown(Shutdown::Read).expect("the connection stands");
            sender.send(&mut b"anyone there?".to_vec());
            assert!(sender.sent().await.is_err(), "nobody reads");
            pending::<()>().await;
            drop(peer);
        });
        assert!(stream.recv().await.is_err(), "a send failed");
        assert!(stream.recv().await.is_err(), "it still is so");
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

/// After `refuse_new` the kernel answers no SYN, and who is connected already is accepted.
///
/// Only on Linux, the only system on which it does anything.
pub fn nobody_new_gets_in_after_refusing<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    if !cfg!(target_os = "linux") {
        return;
    }
    kernel.check(async |driver: D| {
        const QUEUED: usize = 5;
        let (listener, place) = kernel.listen(&driver);
        let Place::Tcp(address) = place else { panic!("this case is about TCP") };
        let queued = [(); QUEUED].map(|()| kernel.connect(&driver, &place));
        listener.refuse_new();
        // The first attempt would be answered at once, the second one comes after a second.
        let late =
            tokio::task::spawn_blocking(move || TcpStream::connect_timeout(&address, A_WHILE * 75));
        let error = late.await.expect("it does not panic").expect_err("nobody new gets in");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        for _ in 0..QUEUED {
            let stream = accept(&listener).await;
            driver.spawn(echo(stream));
        }
        for peer in queued {
            peer.send(b"still".to_vec()).await.expect("the connection stands");
            assert_eq!(peer.recv_exact(5).await.expect("the connection stands"), b"still");
            peer.half_close().await.expect("the connection stands");
            assert!(peer.recv_all().await.expect("an orderly end").is_empty());
        }
        assert!(polled_once(listener.accept()).await.is_none(), "nobody else is connected");
    });
}

/// After `refuse_new` nobody connects to a Unix socket, who waits there is accepted, and then it is known that nobody is left.
///
/// Only on Linux, the only system on which it does anything.
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
            // It has waited in vain before, or has not.
            assert!(queued == 1 || polled_once(listener.accept()).await.is_none());
            let queued: Vec<_> = (0..queued).map(|_| kernel.connect(&driver, &place)).collect();
            listener.refuse_new();
            let Place::Unix(path) = &place else { panic!("this case is about Unix sockets") };
            let late = UnixStream::connect(path).expect_err("nobody new gets in");
            assert_eq!(late.kind(), ErrorKind::ConnectionRefused);
            for peer in queued {
                let stream = accept(&listener).await;
                driver.spawn(echo(stream));
                peer.send(b"still".to_vec()).await.expect("the connection stands");
                assert_eq!(peer.recv_exact(5).await.expect("the connection stands"), b"still");
                peer.half_close().await.expect("the connection stands");
                assert!(peer.recv_all().await.expect("an orderly end").is_empty());
            }
            let nobody = listener.accept().await.err().expect("nobody else is connected");
            assert_eq!(nobody.kind(), ErrorKind::InvalidInput);
        }
    });
}

/// What came while the worker had no time to look is received by who asks for what is here, in order and once.
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
            assert!(stream.recv_now().is_none(), "nothing was sent");
            peer.write_all(b"first ").expect("the connection stands");
            let mut all = stream.recv_now().map_or_else(Vec::new, |chunk| chunk.to_vec());
            peer.write_all(b"second").expect("the connection stands");
            while all.len() < 12 {
                let chunk = stream.recv().await.expect("the connection stands");
                assert!(!chunk.is_empty(), "the connection stands");
                all.extend_from_slice(&chunk);
            }
            assert_eq!(all, b"first second");
        }
        drop(peer);
        assert!(stream.recv_now().is_none(), "an end is told by all who receive");
        assert!(stream.recv().await.expect("an orderly end").is_empty());
        assert!(stream.recv_now().is_none());
    });
}

/// Where each turn takes long, new connections are not taken one in a turn.
pub fn a_worker_with_long_turns_accepts_many<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    const CONNECTIONS: usize = 60;
    kernel.check(async |driver: D| {
        let (socket, place) = kernel.bind(&driver);
        let (Socket::Tcp(inner), Place::Tcp(address)) = (&socket, place) else {
            panic!("this case is about TCP")
        };
        inner.set_nonblocking(true).expect("any socket can be told so");
        let listener = driver.listen(socket).expect("it is bound");
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
        // Handlers that block.
        driver.spawn(std::future::poll_fn(move |context| {
            if counted.get() == CONNECTIONS {
                return Poll::Ready(());
            }
            thread::sleep(Duration::from_millis(15));
            blocked.set(blocked.get() + 1);
            worker.others_first(context);
            Poll::Pending
        }));
        while accepted.get() < CONNECTIONS {
            pause(&driver, A_WHILE / 20).await;
        }
        let turns = turns.get();
        assert!(turns <= CONNECTIONS / 3, "{turns} turns for {CONNECTIONS} connections");
    });
}

/// A stream that is to be reset leaves nothing in the kernel, and its peer hears of it, whatever is
/// still to be written or on its way.
pub fn a_reset_reaches_the_peer<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    kernel.check(async |driver: D| {
        for (count, has_ended) in
            [(0, false), (1, false), (1, true), (kernel.large(), false), (kernel.large(), true)]
        {
            let (stream, peer) = kernel.pair(&driver).await;
            let Address::Tcp(here) = stream.peer() else { panic!("this case is about TCP") };
            let Address::Tcp(there) = stream.local() else { panic!("this case is about TCP") };
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
                // Who has received the end as well may be told of that first.
                Ok(all) => assert!(ended, "an orderly end after {} bytes", all.len()),
            }
        }
    });
}

/// Connections from the port of `local` to that of `peer` that the kernel keeps, in whatever state,
/// where it tells.
fn connections_between(local: SocketAddr, peer: SocketAddr) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let ends = [local, peer].map(|address| format!(":{:04X}", address.port()));
    let is_one = |line: &&str| {
        let mut words = line.split(' ').filter(|word| !word.is_empty()).skip(1);
        ends.iter().all(|end| words.next().is_some_and(|word| word.ends_with(end)))
    };
    table.lines().filter(is_one).count()
}

/// A peer that reads little by little makes the count of what was sent grow little by little, and not
/// only when megabytes have left a buffer.
pub fn progress_follows_a_peer_that_reads_little<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    if !cfg!(target_os = "linux") {
        return;
    }
    kernel.check(async |driver: D| {
        const PIECE: usize = 16 * 1024;
        // A peer's kernel tells of new room not before there is a good part of its buffer.
        const PIECES_MAX: u32 = 32;
        let (listener, place) = kernel.listen(&driver);
        let Place::Tcp(address) = place else { panic!("this case is about TCP") };
        let mut peer = TcpStream::connect(address).expect("the server listens");
        let stream = accept(&listener).await;
        stream.send(&mut vec![1; kernel.large()]);
        let (mut last, mut pieces) = (settled(&driver, || stream.progress()).await, 0);
        for _ in 0..200 {
            peer = tokio::task::spawn_blocking(move || {
                peer.read_exact(&mut [0; PIECE]).map(|()| peer).expect("the connection stands")
            })
            .await
            .expect("it does not panic");
            pause(&driver, A_WHILE / 20).await;
            pieces = if stream.progress() == last { pieces + 1 } else { 0 };
            assert!(pieces < PIECES_MAX, "{PIECES_MAX} pieces were read without progress");
            last = stream.progress();
        }
    });
}

/// The kernel takes little for a peer that does not read.
pub fn a_peer_that_does_not_read_costs_little<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    if !cfg!(target_os = "linux") {
        return;
    }
    kernel.check(async |driver: D| {
        const LITTLE: u64 = 1 << 20;
        let (stream, _peer) = kernel.pair(&driver).await;
        stream.send(&mut vec![1; kernel.large()]);
        let progress = settled(&driver, || stream.progress()).await;
        assert!(progress < LITTLE, "the kernel took {progress} bytes");
    });
}

/// The count when it does not grow any more for a while.
async fn settled<D: Driver>(driver: &D, count: impl Fn() -> u64) -> u64 {
    loop {
        let before = count();
        pause(driver, A_WHILE * 3).await;
        if before > 0 && count() == before {
            return before;
        }
    }
}

/// Who has a duplicate of a listening socket that does not block does not block.
pub fn a_shared_listener_stays_as_it_was<D: Driver<Socket = Socket>>(kernel: &Kernel<D>) {
    kernel.check(async |driver: D| {
        let (socket, place) = kernel.socket();
        let Socket::Tcp(listener) = socket else { panic!("this case is about TCP") };
        listener.set_nonblocking(true).expect("the kernel can");
        let own = listener.try_clone().expect("there are free descriptors");
        let listener = driver.listen(Socket::Tcp(listener)).expect("a bound socket can listen");
        for _ in 0..3 {
            assert!(polled_once(listener.accept()).await.is_none(), "nobody connected");
            // Blocked for ever, if at all.
            let error = own.accept().expect_err("nobody connected");
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            let _peer = kernel.connect(&driver, &place);
            drop(accept(&listener).await);
        }
    });
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

/// A connection has the options that were asked for, whoever made its listener and whatever it had
/// before: one that was in the backlog when the listener was taken, and those after it. Unix
/// sockets have none of them.
pub fn connections_have_the_options_of_sockets<D>(kernel: &Kernel<D>)
where
    D: Driver<Socket = Socket, Passed = Passed>,
{
    let defaults = SocketOptions::default();
    let second = Duration::from_secs(1);
    assert_eq!(defaults.keep_alive, Some(15 * second));
    assert!(defaults.user_timeout >= Some(150 * second));
    let others = SocketOptions {
        keep_alive: Some(77 * second),
        keep_alive_interval: 5 * second,
        keep_alive_probes: 3,
        user_timeout: Some(Duration::from_millis(222_222)),
        ..SocketOptions::default()
    };
    let none = SocketOptions { keep_alive: None, user_timeout: None, ..SocketOptions::default() };
    let endless = SocketOptions { user_timeout: Some(Duration::MAX), ..SocketOptions::default() };
    for sockets in [defaults, others, none, endless] {
        let (socket, place) = kernel.socket();
        if let Socket::Tcp(listener) = &socket {
            let before = socket2::SockRef::from(listener);
            before.set_keepalive(true).expect("it is TCP");
            #[cfg(target_os = "linux")]
            before.set_tcp_user_timeout(Some(9 * second)).expect("it is TCP");
        }
        let options = Options { sockets: sockets.clone(), ..Options::default() };
        D::run(&options, async |driver: D| {
            let _hold = driver.hold();
            let _earlier = kernel.connect(&driver, &place);
            let listener = driver.listen(socket).expect("it is bound");
            check_options(driver.pass(accept(&listener).await), &sockets);
            for _ in 0..2 {
                // Where nobody waits any more, the driver leaves it to the kernel.
                assert!(polled_once(listener.accept()).await.is_none());
                let _later = kernel.connect(&driver, &place);
                check_options(driver.pass(accept(&listener).await), &sockets);
            }
        })
        .expect("the driver starts");
    }
}

fn check_options(passed: std::io::Result<Passed>, expected: &SocketOptions) {
    let stream = match passed.expect("nothing was received") {
        Passed::Tcp(stream) => stream,
        #[cfg(unix)]
        Passed::Unix(stream) => {
            let socket = socket2::SockRef::from(&stream);
            return assert!(!socket.keepalive().expect("a socket"));
        }
    };
    let socket = socket2::SockRef::from(&stream);
    assert_eq!(socket.keepalive().expect("a socket"), expected.keep_alive.is_some());
    if let Some(time) = expected.keep_alive {
        assert_eq!(socket.tcp_keepalive_time().expect("a socket"), time);
        let interval = socket.tcp_keepalive_interval().expect("a socket");
        assert_eq!(interval, expected.keep_alive_interval);
        let probes = socket.tcp_keepalive_retries().expect("a socket");
        assert_eq!(probes, expected.keep_alive_probes);
    }
    #[cfg(target_os = "linux")]
    assert_eq!(socket.tcp_user_timeout().expect("a socket"), expected.user_timeout_kept());
}
