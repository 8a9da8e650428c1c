//! Listening sockets: which worker accepts a connection, how many it accepts, and what stays
//! unchanged.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::harness::{TEST_TIMEOUT, echo, join, pause, tcp, worker};
use peregrine_driver::{Driver, Listener, Options, Socket, Stream};
use socket2::SockRef;

const WORKERS: usize = 4;

/// A command from a test to a worker.
enum Command {
    /// Blocks its thread until the sender is dropped.
    Block(Receiver<()>),
    End,
}

/// Workers that share a listening socket and greet each connection with their number.
struct Workers {
    commands: Vec<tokio::sync::mpsc::UnboundedSender<Command>>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Each connection blocks its worker's thread for `work`.
    fn start(sockets: impl IntoIterator<Item = Socket>, work: Duration) -> Self {
        let (mut commands, mut threads) = (Vec::new(), Vec::new());
        for (number, socket) in sockets.into_iter().enumerate() {
            let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
            let (started_sender, started) = mpsc::channel();
            commands.push(sender);
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
                started_sender.send(()).unwrap();
                while let Some(Command::Block(until)) = receiver.recv().await {
                    let _ = until.recv();
                }
            }));
            started.recv_timeout(TEST_TIMEOUT).unwrap();
        }
        Self { commands, threads }
    }

    fn end(self) {
        for command in &self.commands {
            let _ = command.send(Command::End);
        }
        self.threads.into_iter().for_each(join);
    }
}

/// Opens a connection to a shared listener.
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

/// Runs `test` on clones of one TCP and one Unix listener, each blocking and non-blocking.
fn for_each_shared_listener(mut test: impl FnMut(Vec<Socket>, Connect)) {
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

/// The number of the worker that accepted a connection.
fn accepting_worker(peer: &mut dyn Peer) -> usize {
    peer.wait_at_most(TEST_TIMEOUT);
    let mut number = [0];
    peer.read_exact(&mut number).unwrap();
    usize::from(number[0])
}

#[test]
fn workers_that_share_a_listener_share_its_connections() {
    for_each_shared_listener(|sockets, connect| {
        let workers = Workers::start(sockets, Duration::ZERO);
        assert_eventually_spread(|| {
            let mut accepted = [0; WORKERS];
            for _ in 0..8 * WORKERS {
                // A worker that has just taken a connection is still awake and may be faster than
                // the next one.
                thread::sleep(Duration::from_millis(3));
                accepted[accepting_worker(&mut *connect())] += 1;
            }
            accepted
        });
        workers.end();
    });
}

#[test]
fn a_busy_worker_leaves_connections_to_the_others() {
    for_each_shared_listener(|sockets, connect| {
        let workers = Workers::start(sockets, Duration::from_millis(1));
        assert_eventually_spread(|| {
            let mut peers: Vec<_> = (0..15 * WORKERS).map(|_| connect()).collect();
            let mut accepted = [0; WORKERS];
            for peer in &mut peers {
                accepted[accepting_worker(&mut **peer)] += 1;
            }
            accepted
        });
        workers.end();
    });
}

/// Retries until every worker has accepted some connections: on a busy machine a worker may not run
/// during one attempt. If one worker accepted everything it could, all attempts would fail.
fn assert_eventually_spread(mut accepted_counts: impl FnMut() -> [usize; WORKERS]) {
    let attempts: Vec<_> = (0..20)
        .map(|_| accepted_counts())
        .take_while(|accepted_counts| !is_spread(accepted_counts))
        .collect();
    assert!(attempts.len() < 20, "{attempts:?}");
}

/// Returns whether every worker has accepted some connections, and none has accepted most. The
/// shares may differ much, because a worker may not get to run.
fn is_spread(accepted_counts: &[usize]) -> bool {
    let sum: usize = accepted_counts.iter().sum();
    accepted_counts.iter().all(|&count| count > 0 && count <= sum * 3 / 4)
}

#[test]
fn a_blocked_worker_does_not_accept_connections() {
    for_each_shared_listener(|sockets, connect| {
        let workers = Workers::start(sockets, Duration::ZERO);
        let (release, released) = mpsc::channel();
        workers.commands[1].send(Command::Block(released)).unwrap();
        thread::sleep(Duration::from_millis(30));
        let mut peers: Vec<_> = (0..5 * WORKERS).map(|_| connect()).collect();
        // The connection that woke the blocked worker is taken together with the next one.
        for peer in &mut peers {
            assert_ne!(accepting_worker(&mut **peer), 1);
        }
        drop(release);
        workers.end();
    });
}

#[test]
fn connections_are_accepted_only_while_a_task_waits() {
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
fn the_blocking_mode_of_a_listener_is_not_changed() {
    for is_nonblocking in [true, false] {
        let (Socket::Tcp(socket), address) = tcp() else { panic!("TCP") };
        socket.set_nonblocking(is_nonblocking).unwrap();
        let other = socket.try_clone().unwrap();
        let mode_changer = socket.try_clone().unwrap();
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
                    mode_changer.set_nonblocking(!is_nonblocking).unwrap();
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
fn a_listener_that_refuses_new_connections_still_accepts_its_backlog() {
    let (socket, address) = tcp();
    join(worker(Options::default(), move |driver| async move {
        let listener = driver.listen(socket).unwrap();
        let mut clients: Vec<_> = (0..5).map(|_| TcpStream::connect(address).unwrap()).collect();
        listener.refuse_new_connections();
        let error = try_to_connect(address).expect_err("no new connections");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        for client in &mut clients {
            client.write_all(b"here").unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
            echo(listener.accept().await.unwrap()).await;
            let mut back = Vec::new();
            client.read_to_end(&mut back).unwrap();
            assert_eq!(back, b"here");
        }
        drop(listener);
        // The filter disappears with the socket, which the kernel closes a little later.
        let accepts_again =
            || TcpListener::bind(address).is_ok_and(|_listening| try_to_connect(address).is_ok());
        let mut attempts = 0;
        while !accepts_again() {
            attempts += 1;
            assert!(attempts < 100, "new connections are still refused");
            driver.sleep_until(driver.now() + Duration::from_millis(10)).await;
        }
    }));
}

#[test]
fn a_unix_listener_that_refuses_new_connections_still_accepts_its_backlog() {
    let folder = tempfile::tempdir().unwrap();
    for is_blocking in [true, false] {
        let path = folder.path().join(format!("blocking {is_blocking}"));
        let socket = UnixListener::bind(&path).unwrap();
        socket.set_nonblocking(!is_blocking).unwrap();
        join(worker(Options::default(), move |driver| async move {
            let listener = driver.listen(Socket::Unix(socket)).unwrap();
            let _client = UnixStream::connect(&path).unwrap();
            listener.refuse_new_connections();
            let error = UnixStream::connect(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            listener.accept().await.unwrap();
            let error = listener.accept().await.err().unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }));
    }
}
