//! Tests of the portable driver beyond the suite for all drivers.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::time::Duration;

use peregrine_driver::{Address, Driver, Listener, Options, Socket, SocketOptions, Stream};
use peregrine_driver_tokio::Tokio;

fn bind() -> (Socket, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = listener.local_addr().expect("the socket is bound");
    (Socket::Tcp(listener), address)
}

/// Sends `bytes` and waits until the kernel has them.
async fn send(stream: &impl Stream, mut bytes: Vec<u8>) -> io::Result<()> {
    stream.send(&mut bytes);
    stream.flush().await
}

#[test]
fn a_receive_without_a_free_buffer_allocates_memory() {
    let (socket, address) = bind();
    let clients: Vec<_> = (0..17)
        .map(|_| {
            let mut client = TcpStream::connect(address).expect("the server listens");
            client.write_all(b"x").expect("the connection is open");
            client
        })
        .collect();
    let options = Options { receive_buffers: 16, ..Options::default() };
    let stats = Tokio::run(&options, async |driver: Tokio| {
        let listener = driver.listen(socket).expect("the socket listens");
        let mut chunks = Vec::new();
        for _ in &clients {
            let stream = listener.accept().await.expect("a client waits");
            chunks.push(stream.recv().await.expect("a byte waits"));
        }
        assert!(chunks.iter().all(|chunk| **chunk == *b"x"));
        driver.stats()
    })
    .expect("the runtime starts");
    assert_eq!(stats.buffers_exhausted, 1);
    assert_eq!(stats.accepted, 17);
    assert!(stats.syscalls >= 34, "17 accepts and 17 reads");
}

#[test]
fn listening_disables_a_keep_alive_set_by_a_previous_owner() {
    let socket = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let duplicate = socket.try_clone().expect("descriptors are available");
    let duplicate = socket2::SockRef::from(&duplicate);
    duplicate.set_keepalive(true).expect("a TCP socket");
    let socket_options = SocketOptions { tcp_keepalive: None, ..SocketOptions::default() };
    Tokio::run(&Options { socket_options, ..Options::default() }, async |driver: Tokio| {
        let _listener = driver.listen(Socket::Tcp(socket)).expect("the socket listens");
        assert!(!duplicate.keepalive().expect("a TCP socket"));
    })
    .expect("the runtime starts");
}

#[test]
fn a_send_is_counted_until_its_last_byte_is_written() {
    let (socket, address) = bind();
    let mut client = TcpStream::connect(address).expect("the server listens");
    Tokio::run(&Options::default(), async |driver: Tokio| {
        let listener = driver.listen(socket).expect("the socket listens");
        let stream = listener.accept().await.expect("a client waits");
        assert_eq!(stream.local_addr(), Address::Tcp(address));
        assert_eq!(stream.peer_addr(), Address::Tcp(client.local_addr().expect("connected")));
        let bytes = 32 << 20;
        stream.send(&mut vec![b'a'; bytes]);
        assert_eq!(driver.stats().in_flight, 1);
        let reader = std::thread::spawn(move || {
            let mut received = Vec::new();
            client.read_to_end(&mut received).expect("a regular end");
            received.len()
        });
        stream.finish();
        stream.flush().await.expect("everything is written");
        assert_eq!(driver.stats().in_flight, 0);
        assert_eq!(reader.join().expect("the reader has not panicked"), bytes);
    })
    .expect("the runtime starts");
}

#[test]
fn a_worker_can_shut_down_with_an_unfinished_send() {
    let (socket, address) = bind();
    let client = TcpStream::connect(address).expect("the server listens");
    let stream = Tokio::run(&Options::default(), async |driver: Tokio| {
        let listener = driver.listen(socket).expect("the socket listens");
        let stream = Rc::new(listener.accept().await.expect("a client waits"));
        let sender = Rc::clone(&stream);
        driver.spawn(async move {
            send(&*sender, vec![0; 32 << 20]).await.expect("the send fails");
        });
        tokio::task::yield_now().await;
        stream
    })
    .expect("the runtime starts");
    drop(stream);
    drop(client);
}

#[cfg(target_os = "linux")]
#[test]
fn workers_are_pinned_to_the_allowed_cpus_modulo_their_number() {
    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    let this_thread = nix::unistd::Pid::from_raw(0);
    let cpus = |set: &CpuSet| {
        (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect()
    };
    let allowed: Vec<usize> = cpus(&sched_getaffinity(this_thread).expect("the kernel call"));
    let count = allowed.len();
    for index in [0, 1, count - 1, count, 3 * count + 1, usize::MAX] {
        let options = Options { cpu: Some(index), ..Options::default() };
        let pinned: Vec<usize> = Tokio::run(&options, async |_| sched_getaffinity(this_thread))
            .expect("the runtime starts")
            .map(|set| cpus(&set))
            .expect("the kernel call");
        assert_eq!(pinned, [allowed[index % count]]);
        let after: Vec<usize> = cpus(&sched_getaffinity(this_thread).expect("the kernel call"));
        assert_eq!(after, allowed, "the thread is unbound after the worker");
    }
    // A process that is bound to one CPU has only that one.
    std::thread::spawn(move || {
        let mut last = CpuSet::new();
        last.set(allowed[count - 1]).expect("the CPU fits into a set");
        sched_setaffinity(this_thread, &last).expect("the thread may use it");
        let options = Options { cpu: Some(0), ..Options::default() };
        let pinned = Tokio::run(&options, async |_| sched_getaffinity(this_thread));
        assert!(pinned.expect("the runtime starts").expect("the kernel call") == last);
    })
    .join()
    .expect("the worker has not panicked");
}

#[test]
fn an_idle_worker_sleeps() {
    let (socket, address) = bind();
    let client = TcpStream::connect(address).expect("the server listens");
    Tokio::run(&Options::default(), async |driver: Tokio| {
        let listener = driver.listen(socket).expect("the socket listens");
        let stream = listener.accept().await.expect("a client waits");
        driver.spawn(async move { drop(stream.recv().await) });
        driver.spawn(async move { drop(listener.accept().await) });
        let timer = driver.clone();
        driver.spawn(async move { timer.sleep_until(Duration::from_secs(600)).await });
        // Much longer than any interval in a driver; only the number of system calls matters.
        let (wake, woken) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(2));
            wake.send(()).expect("the worker waits");
        });
        let before = driver.stats().syscalls;
        woken.await.expect("the other thread sends");
        let syscalls = driver.stats().syscalls - before;
        assert!(syscalls <= 5, "{syscalls} system calls with nothing to do");
        thread.join().expect("the thread has not panicked");
    })
    .expect("the runtime starts");
    drop(client);
}
