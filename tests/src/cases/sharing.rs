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
    /// Starts workers that keep what they accept and call `accepted` with their number.
    fn start<D: Driver<Socket = Socket>>(
        socket: &Socket,
        accepted: impl Fn(usize) + Clone + Send + 'static,
    ) -> Self {
        let open = Arc::<[AtomicUsize; WORKERS]>::default();
        let (end, ended) = watch::channel(false);
        let (listens, listening) = mpsc::channel();
        let start = |number: usize| {
            let (socket, open, accepted) = (again(socket), Arc::clone(&open), accepted.clone());
            let (mut ended, listens) = (ended.clone(), listens.clone());
            thread::spawn(move || {
                let worker = D::run(&Options::default(), async |driver: D| {
                    let _hold = driver.keep_awake();
                    let listener = driver.listen(socket).expect("a bound socket can listen");
                    let taking = async {
                        let mut streams = Vec::new();
                        listens.send(()).expect("the receiver is alive");
                        loop {
                            streams.push(accept(&listener).await);
                            open[number].fetch_add(1, Ordering::SeqCst);
                            accepted(number);
                        }
                    };
                    first_of(taking, ended.wait_for(|end| *end)).await;
                });
                worker.expect("the driver starts");
            })
        };
        let threads = (0..WORKERS).map(start).collect();
        (0..WORKERS).for_each(|_| listening.recv().expect("every worker listens"));
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
fn again(socket: &Socket) -> Socket {
    let again = || -> io::Result<Socket> {
        Ok(match socket {
            Socket::Tcp(listener) => Socket::Tcp(listener.try_clone()?),
            #[cfg(unix)]
            Socket::Unix(listener) => Socket::Unix(listener.try_clone()?),
        })
    };
    again().expect("a descriptor is free")
}

/// No worker is starved, and none gets nearly all connections.
pub fn workers_that_share_a_listener_share_its_connections<D>(kernel: &Kernel<D>)
where
    D: Driver<Socket = Socket>,
{
    let (socket, place) = kernel.socket();
    let workers = Workers::start::<D>(&socket, |_| ());
    let mut peers = Vec::new();
    for number in 1..=CONNECTIONS {
        peers.push(ThreadPeer::connect(&place));
        thread::sleep(A_WHILE / 4);
        workers.wait(number);
    }
    let counts = workers.counts();
    let even = CONNECTIONS / WORKERS;
    assert!(counts.iter().all(|count| (even / 2..=even * 2).contains(count)), "{counts:?}");
    workers.end();
}

/// Many simultaneous connections are all accepted.
pub fn workers_that_share_a_listener_take_a_crowd<D>(kernel: &Kernel<D>)
where
    D: Driver<Socket = Socket>,
{
    let (socket, place) = kernel.socket();
    let peers: Vec<_> = (0..100).map(|_| ThreadPeer::connect(&place)).collect();
    let workers = Workers::start::<D>(&socket, |_| ());
    workers.wait(peers.len());
    workers.end();
}

/// Connections that a blocked worker would accept are accepted by the others.
pub fn a_blocked_worker_keeps_no_connection_from_the_others<D>(kernel: &Kernel<D>)
where
    D: Driver<Socket = Socket>,
{
    let (socket, place) = kernel.socket();
    let (block, blocked) = mpsc::channel::<()>();
    // The first worker to accept blocks its thread.
    let blocked = Arc::new(Mutex::new(Some(blocked)));
    let workers = Workers::start::<D>(&socket, move |_| {
        let blocked = blocked.lock().expect("the mutex is not poisoned").take();
        if let Some(blocked) = blocked {
            let _ = blocked.recv();
        }
    });
    let peers: Vec<_> = (0..CONNECTIONS).map(|_| ThreadPeer::connect(&place)).collect();
    workers.wait(peers.len());
    assert!(workers.counts().contains(&1), "{:?}", workers.counts());
    drop(block);
    workers.end();
}

/// The same for a worker that has stopped accepting.
pub fn who_stopped_asking_keeps_no_connection_from_the_others<D>(kernel: &Kernel<D>)
where
    D: Driver<Socket = Socket>,
{
    let (socket, place) = kernel.socket();
    let (end, mut ended) = watch::channel(false);
    let (stops, stopped) = mpsc::channel();
    let shared = again(&socket);
    let idle = thread::spawn(move || {
        let worker = D::run(&Options::default(), async |driver: D| {
            let _hold = driver.keep_awake();
            let listener = driver.listen(shared).expect("a bound socket can listen");
            let over = driver.sleep_until(driver.now() + A_WHILE);
            assert!(first_of(accept(&listener), over).await.is_none(), "no peer connects");
            stops.send(()).expect("the receiver is alive");
            let _ = ended.wait_for(|end| *end).await;
        });
        worker.expect("the driver starts");
    });
    stopped.recv().expect("the worker stops accepting");
    let worker = D::run(&Options::default(), async |driver: D| {
        let listener = driver.listen(socket).expect("a bound socket can listen");
        for number in 0..4 {
            let _peer = ThreadPeer::connect(&place);
            let over = driver.sleep_until(driver.now() + 500 * A_WHILE);
            let accepted = first_of(accept(&listener), over).await;
            assert!(
                accepted.is_some(),
                "connection {number} is held by a worker that stopped accepting"
            );
        }
    });
    worker.expect("the driver starts");
    end.send(true).expect("the worker holds the receiver");
    idle.join().expect("the worker does not panic");
}
