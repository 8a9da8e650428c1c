//! Listening sockets: which worker takes a connection, how many it takes, and what stays unchanged.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::harness::{PATIENCE, echo, join, pause, tcp, worker};
use peregrine_driver::{Driver, Listener, Options, Socket, Stream};
use socket2::SockRef;

const WORKERS: usize = 4;

/// A command from a test to a worker.
enum Order {
    /// Blocks its thread until the sender is dropped.
    Block(Receiver<()>),
    End,
}

/// Workers that share a listening socket and greet each connection with their number.
struct Workers {
    orders: Vec<tokio::sync::mpsc::UnboundedSender<Order>>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Each connection blocks its worker's thread for `work`.
    fn start(sockets: impl IntoIterator<Item = Socket>, work: Duration) -> Self {
        let (mut orders, mut threads) = (Vec::new(), Vec::new());
        for (number, socket) in sockets.into_iter().enumerate() {
            let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
            let (told, started) = mpsc::channel();
            orders.push(sender);
            threads.push(worker(Options::default(), move |driver| async move {
                let listener = driver.listen(socket).unwrap();
                driver.spawn(async move {
                    let mut streams = Vec::new();
                    loop {
                        let stream = listener.accept().await.unwrap();
                        thread::sleep(work);
                        stream.send(&mut vec![number as u8]);
                        streams.push(stream);
                    }
                });
                pause(&driver, 5).await;
                told.send(()).unwrap();
                while let Some(Order::Block(until)) = receiver.recv().await {
                    let _ = until.recv();
                }
            }));
            started.recv_timeout(PATIENCE).unwrap();
        }
        Self { orders, threads }
    }

    fn end(self) {
        for order in &self.orders {
            let _ = order.send(Order::End);
        }
        self.threads.into_iter().for_each(join);
    }
}

/// Clones of one TCP and one Unix listener in either mode, and a way to connect.
type Connect = Box<dyn Fn() -> Box<dyn Peer>>;

trait Peer: Read {
    fn wait_at_most(&self, limit: Duration);
}

impl Peer for TcpStream {
    fn wait_at_most(&self, limit: Duration) {
        self.set_read_timeout(Some(limit)).unwrap();
    }
}

impl Peer for UnixStream {
    fn wait_at_most(&self, limit: Duration) {
        self.set_read_timeout(Some(limit)).unwrap();
    }
}

fn each_shared_listener(mut test: impl FnMut(Vec<Socket>, Connect)) {
    for is_nonblocking in [true, false] {
        let (Socket::Tcp(listener), address) = tcp() else { panic!("TCP") };
        listener.set_nonblocking(is_nonblocking).unwrap();
        let sockets = (0..WORKERS).map(|_| Socket::Tcp(listener.try_clone().unwrap()));
        let connect =
            Box::new(move || -> Box<dyn Peer> { Box::new(TcpStream::connect(address).unwrap()) });
        test(sockets.collect(), connect);

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(is_nonblocking).unwrap();
        let sockets = (0..WORKERS).map(|_| Socket::Unix(listener.try_clone().unwrap()));
        let connect =
            Box::new(move || -> Box<dyn Peer> { Box::new(UnixStream::connect(&path).unwrap()) });
        test(sockets.collect(), connect);
    }
}

/// The worker that took a connection.
fn taker(peer: &mut dyn Peer) -> usize {
    peer.wait_at_most(PATIENCE);
    let mut number = [0];
    peer.read_exact(&mut number).unwrap();
    usize::from(number[0])
}

#[test]
fn workers_that_share_a_listener_share_its_connections() {
    each_shared_listener(|sockets, connect| {
        let workers = Workers::start(sockets, Duration::ZERO);
        once_spread(|| {
            let mut taken = [0; WORKERS];
            for _ in 0..8 * WORKERS {
                // A worker that has just taken a connection is still awake and may be faster than
                // the next one.
                thread::sleep(Duration::from_millis(3));
                taken[taker(&mut *connect())] += 1;
            }
            taken
        });
        workers.end();
    });
}

#[test]
fn a_busy_worker_leaves_connections_to_the_others() {
    each_shared_listener(|sockets, connect| {
        let workers = Workers::start(sockets, Duration::from_millis(1));
        once_spread(|| {
            let mut peers: Vec<_> = (0..15 * WORKERS).map(|_| connect()).collect();
            let mut taken = [0; WORKERS];
            for peer in &mut peers {
                taken[taker(&mut **peer)] += 1;
            }
            taken
        });
        workers.end();
    });
}

/// Retries until every worker has taken some connections: on a busy machine a worker may not run
/// during one attempt. If one worker took everything it could, all attempts would fail.
fn once_spread(mut taken: impl FnMut() -> [usize; WORKERS]) {
    let tries: Vec<_> = (0..20).map(|_| taken()).take_while(|taken| !is_spread(taken)).collect();
    assert!(tries.len() < 20, "{tries:?}");
}

/// A worker that does not get to run may take only a few.
fn is_spread(taken: &[usize]) -> bool {
    let sum: usize = taken.iter().sum();
    taken.iter().all(|&count| count > 0 && count <= sum * 3 / 4)
}

#[test]
fn a_blocked_worker_takes_no_connections_from_those_that_are_free() {
    each_shared_listener(|sockets, connect| {
        let workers = Workers::start(sockets, Duration::ZERO);
        let (release, released) = mpsc::channel();
        workers.orders[1].send(Order::Block(released)).unwrap();
        thread::sleep(Duration::from_millis(30));
        let mut peers: Vec<_> = (0..5 * WORKERS).map(|_| connect()).collect();
        // The connection that woke the blocked worker is taken together with the next one.
        for peer in &mut peers {
            assert_ne!(taker(&mut **peer), 1);
        }
        drop(release);
        workers.end();
    });
}

#[test]
fn nothing_is_accepted_that_nobody_asked_for() {
    for is_nonblocking in [true, false] {
        let (Socket::Tcp(listener), address) = tcp() else { panic!("TCP") };
        listener.set_nonblocking(is_nonblocking).unwrap();
        join(worker(Options::default(), move |driver| async move {
            let listener = driver.listen(Socket::Tcp(listener)).unwrap();
            let mut streams = Vec::new();
            let burst = thread::spawn(move || {
                (0..300).map(|_| TcpStream::connect(address).unwrap()).collect::<Vec<_>>()
            });
            for _ in 0..10 {
                streams.push(listener.accept().await.unwrap());
            }
            let peers = join(burst);
            pause(&driver, 20).await;
            assert_eq!(driver.stats().accepted, 10);
            assert_eq!(driver.stats().in_flight, 0, "nothing is armed");
            // A cancelled `accept` leaves nothing armed.
            tokio::select! {
                biased;
                _ = listener.accept() => {}
                () = std::future::ready(()) => {}
            }
            pause(&driver, 20).await;
            assert!(driver.stats().accepted <= 11);
            assert_eq!(driver.stats().in_flight, 0, "nothing is armed");
            drop(peers);
        }));
    }
}

#[test]
fn the_mode_of_a_listener_is_left_as_it_is() {
    for is_nonblocking in [true, false] {
        let (Socket::Tcp(socket), address) = tcp() else { panic!("TCP") };
        socket.set_nonblocking(is_nonblocking).unwrap();
        let other = socket.try_clone().unwrap();
        let changed = socket.try_clone().unwrap();
        let client = thread::spawn(move || {
            for round in 0..6u8 {
                let mut client = TcpStream::connect(address).unwrap();
                client.write_all(&[round]).unwrap();
                client.read_exact(&mut [0]).unwrap();
            }
        });
        join(worker(Options::default(), move |driver| async move {
            let listener = driver.listen(Socket::Tcp(socket)).unwrap();
            for round in 0..6 {
                // Another process may change the mode, between connections and while this worker
                // waits.
                if round == 3 {
                    changed.set_nonblocking(!is_nonblocking).unwrap();
                }
                echo(listener.accept().await.unwrap()).await;
            }
        }));
        join(client);
        assert_eq!(SockRef::from(&other).nonblocking().unwrap(), !is_nonblocking);
    }
}

/// Connects with a short timeout.
fn try_to_connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    TcpStream::connect_timeout(&address, Duration::from_millis(100))
}

#[test]
fn a_listener_that_refuses_new_connections_yields_those_that_began() {
    let (socket, address) = tcp();
    join(worker(Options::default(), move |driver| async move {
        let listener = driver.listen(socket).unwrap();
        let mut begun: Vec<_> = (0..5).map(|_| TcpStream::connect(address).unwrap()).collect();
        listener.refuse_new_connections();
        let late = try_to_connect(address).expect_err("no new connections");
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        for client in &mut begun {
            client.write_all(b"here").unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
            echo(listener.accept().await.unwrap()).await;
            let mut back = Vec::new();
            client.read_to_end(&mut back).unwrap();
            assert_eq!(back, b"here");
        }
        drop(listener);
        // The filter disappears with the socket.
        let again = TcpListener::bind(address);
        assert!(again.is_ok_and(|_listening| try_to_connect(address).is_ok()));
    }));
}

#[test]
fn a_unix_listener_that_refuses_accepts_who_waits() {
    let folder = tempfile::tempdir().unwrap();
    for is_blocking in [true, false] {
        let path = folder.path().join(format!("blocking {is_blocking}"));
        let socket = UnixListener::bind(&path).unwrap();
        socket.set_nonblocking(!is_blocking).unwrap();
        join(worker(Options::default(), move |driver| async move {
            let listener = driver.listen(Socket::Unix(socket)).unwrap();
            let _client = UnixStream::connect(&path).unwrap();
            listener.refuse_new_connections();
            let late = UnixStream::connect(&path).unwrap_err();
            assert_eq!(late.kind(), ErrorKind::ConnectionRefused);
            listener.accept().await.unwrap();
            let nobody = listener.accept().await.err().unwrap();
            assert_eq!(nobody.kind(), ErrorKind::InvalidInput);
        }));
    }
}
