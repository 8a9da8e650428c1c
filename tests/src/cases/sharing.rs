//! Workers that accept from one listening socket.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};

use peregrine_driver::{Driver, Options, Socket};
use tokio::sync::watch;

use super::A_WHILE;
use crate::harness::accept;
use crate::kernel::{Kernel, ThreadPeer};
use crate::poll::first_of;

const WORKERS: usize = 4;
const CONNECTIONS: usize = 32;

/// The workers of one listening socket.
struct Workers {
    /// The number of connections each worker holds.
    open: Arc<[AtomicUsize; WORKERS]>,
    end: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts workers that keep what they accept and call `on_accept` with their number.
    fn start<D: Driver<Socket = Socket>>(
        socket: &Socket,
        on_accept: impl Fn(usize) + Clone + Send + 'static,
    ) -> Self {
        let open = Arc::<[AtomicUsize; WORKERS]>::default();
        let (end, end_receiver) = watch::channel(false);
        let (listening_sender, listening_receiver) = mpsc::channel();
        let start = |number: usize| {
            let (socket, open, on_accept) =
                (duplicate(socket), Arc::clone(&open), on_accept.clone());
            let (mut end_receiver, listening_sender) =
                (end_receiver.clone(), listening_sender.clone());
            thread::spawn(move || {
                let worker = D::run(&Options::default(), async |driver: D| {
                    let _hold = driver.keep_awake();
                    let listener = driver.listen(socket).expect("a bound socket can listen");
                    let accepting = async {
                        let mut streams = Vec::new();
                        listening_sender.send(()).expect("the receiver is alive");
                        loop {
                            streams.push(accept(&listener).await);
                            open[number].fetch_add(1, Ordering::SeqCst);
                            on_accept(number);
                        }
                    };
                    first_of(accepting, end_receiver.wait_for(|end| *end)).await;
                });
                worker.expect("the driver starts");
            })
        };
        let threads = (0..WORKERS).map(start).collect();
        (0..WORKERS).for_each(|_| listening_receiver.recv().expect("every worker listens"));
        Self { open, end, threads }
    }

    fn counts(&self) -> [usize; WORKERS] {
        self.open.each_ref().map(|count| count.load(Ordering::SeqCst))
    }

    /// Waits until all workers together hold `count` connections.
    fn wait(&self, count: usize) {
        while self.counts().iter().sum::<usize>() < count {
            thread::sleep(A_WHILE / 20);
        }
    }

    fn end(self) {
        self.end.send(true).expect("the workers hold the receiver");
        self.threads
            .into_iter()
            .for_each(|thread| thread.join().expect("the worker does not panic"));
    }
}

/// Another descriptor of the same socket.
fn duplicate(socket: &Socket) -> Socket {
    let duplicate = || -> io::Result<Socket> {
        Ok(match socket {
            Socket::Tcp(listener) => Socket::Tcp(listener.try_clone()?),
            #[cfg(unix)]
            Socket::Unix(listener) => Socket::Unix(listener.try_clone()?),
        })
    };
    duplicate().expect("a descriptor is free")
}

/// No worker is starved, and none gets nearly all connections.
pub fn workers_that_share_a_listener_share_its_connections<D>(kernel: &Kernel<D>)
where
    D: Driver<Socket = Socket>,
{
    let (socket, server_address) = kernel.socket();
    let workers = Workers::start::<D>(&socket, |_| ());
    let mut peers = Vec::new();
    for number in 1..=CONNECTIONS {
        peers.push(ThreadPeer::connect(&server_address));
        thread::sleep(A_WHILE / 4);
        workers.wait(number);
    }
    let counts = workers.counts();
    let fair_share = CONNECTIONS / WORKERS;
    assert!(
        counts.iter().all(|count| (fair_share / 2..=fair_share * 2).contains(count)),
        "{counts:?}"
    );
    workers.end();
}

/// Many simultaneous connections are all accepted.
pub fn workers_that_share_a_listener_accept_many_connections<D>(kernel: &Kernel<D>)
where
    D: Driver<Socket = Socket>,
{
    let (socket, server_address) = kernel.socket();
    let peers: Vec<_> = (0..100).map(|_| ThreadPeer::connect(&server_address)).collect();
    let workers = Workers::start::<D>(&socket, |_| ());
    workers.wait(peers.len());
    workers.end();
}

/// Connections that a blocked worker would accept are accepted by the others.
pub fn a_blocked_worker_withholds_no_connection_from_the_others<D>(kernel: &Kernel<D>)
where
    D: Driver<Socket = Socket>,
{
    let (socket, server_address) = kernel.socket();
    let (unblock, blocking_receiver) = mpsc::channel::<()>();
    // The first worker to accept blocks its thread.
    let blocking_receiver = Arc::new(Mutex::new(Some(blocking_receiver)));
    let workers = Workers::start::<D>(&socket, move |_| {
        let blocking_receiver = blocking_receiver.lock().expect("the mutex is not poisoned").take();
        if let Some(blocking_receiver) = blocking_receiver {
            let _ = blocking_receiver.recv();
        }
    });
    let peers: Vec<_> = (0..CONNECTIONS).map(|_| ThreadPeer::connect(&server_address)).collect();
    workers.wait(peers.len());
    assert!(workers.counts().contains(&1), "{:?}", workers.counts());
    drop(unblock);
    workers.end();
}

/// Connections that a worker would accept are accepted by the others once it has stopped accepting.
pub fn a_worker_that_stopped_accepting_withholds_no_connection_from_the_others<D>(
    kernel: &Kernel<D>,
) where
    D: Driver<Socket = Socket>,
{
    let (socket, server_address) = kernel.socket();
    let (end, mut end_receiver) = watch::channel(false);
    let (stopped_sender, stopped_receiver) = mpsc::channel();
    let shared = duplicate(&socket);
    let idle_worker = thread::spawn(move || {
        let worker = D::run(&Options::default(), async |driver: D| {
            let _hold = driver.keep_awake();
            let listener = driver.listen(shared).expect("a bound socket can listen");
            let timer = driver.sleep_until(driver.now() + A_WHILE);
            assert!(first_of(accept(&listener), timer).await.is_none(), "no peer connects");
            stopped_sender.send(()).expect("the receiver is alive");
            let _ = end_receiver.wait_for(|end| *end).await;
        });
        worker.expect("the driver starts");
    });
    stopped_receiver.recv().expect("the worker stops accepting");
    let worker = D::run(&Options::default(), async |driver: D| {
        let listener = driver.listen(socket).expect("a bound socket can listen");
        for number in 0..4 {
            let _peer = ThreadPeer::connect(&server_address);
            let timer = driver.sleep_until(driver.now() + 500 * A_WHILE);
            let accepted = first_of(accept(&listener), timer).await;
            assert!(
                accepted.is_some(),
                "connection {number} is held by a worker that stopped accepting"
            );
        }
    });
    worker.expect("the driver starts");
    end.send(true).expect("the worker holds the receiver");
    idle_worker.join().expect("the worker does not panic");
}
