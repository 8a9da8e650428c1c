//! Listening sockets that workers of one process share, and which worker accepts next.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::Socket;

/// How long a worker lets others go first, for each of them that has fewer connections. An idle worker
/// needs less than this.
const MOMENT: Duration = Duration::from_millis(1);
/// The longest wait, in such moments.
const MOMENTS_MAX: u32 = 4;

/// One worker's share of a listening socket.
///
/// The kernel wakes all workers that wait for a connection, or the same one again and again, so that
/// one worker may get all connections. A worker that asks here lets workers with fewer open connections
/// from this socket go first, but only for a moment: a worker that is blocked, or has enough, keeps no
/// connection from the others. If connections still wait after that moment, more of them arrive than
/// the others take, and the worker may get further ahead before it lets others go first again.
///
/// A socket is known by its identity in the kernel, however it was duplicated.
#[derive(Debug)]
pub struct Share {
    all: Arc<Shares>,
    own: Arc<AtomicUsize>,
    /// Connections that this worker may have beyond another worker's.
    lead: Cell<usize>,
    /// Whether the last moment was left to the others.
    waited: Cell<bool>,
}

/// Counts one open connection until it is dropped.
#[derive(Debug)]
pub struct Open(Arc<AtomicUsize>);

/// Open connections by worker.
type Shares = Mutex<Vec<Arc<AtomicUsize>>>;

/// A socket's device and number.
#[cfg(unix)]
type Identity = (u64, u64);

/// Where sockets have no number, the address: within a process, nobody else listens there.
#[cfg(not(unix))]
type Identity = std::net::SocketAddr;

/// All sockets of the process on which workers listen.
static SOCKETS: Mutex<Vec<(Identity, Weak<Shares>)>> = Mutex::new(Vec::new());

impl Share {
    /// Takes part in accepting from `socket`, until the share is dropped.
    ///
    /// # Errors
    /// The kernel cannot identify the socket, for lack of descriptors.
    pub fn of(socket: &Socket) -> io::Result<Self> {
        let all = match identity(socket)? {
            None => Arc::default(),
            Some(identity) => {
                let mut sockets = lock(&SOCKETS);
                sockets.retain(|(_, shares)| shares.strong_count() > 0);
                let known = sockets.iter().find(|(known, _)| *known == identity);
                known.and_then(|(_, shares)| shares.upgrade()).unwrap_or_else(|| {
                    let shares = Arc::default();
                    sockets.push((identity, Arc::downgrade(&shares)));
                    shares
                })
            }
        };
        let own = Arc::default();
        lock(&all).push(Arc::clone(&own));
        Ok(Self { all, own, lead: Cell::new(0), waited: Cell::new(false) })
    }

    /// How long to let others go first, before the next connection is accepted. `None` if it is this
    /// worker's turn.
    pub fn moment(&self) -> Option<Duration> {
        let own = self.own.load(Ordering::Relaxed);
        let has_fewer = |other: &&Arc<AtomicUsize>| {
            other.load(Ordering::Relaxed).saturating_add(self.lead.get()) < own
        };
        let fewer = lock(&self.all).iter().filter(has_fewer).take(MOMENTS_MAX as usize).count();
        self.waited.set(fewer > 0);
        u32::try_from(fewer).ok().filter(|fewer| *fewer > 0).map(|fewer| MOMENT * fewer)
    }

    /// Notes that a connection was accepted.
    pub fn accepted(&self) -> Open {
        if self.waited.take() {
            self.lead.set(self.lead.get().saturating_mul(2).max(1));
        }
        self.own.fetch_add(1, Ordering::Relaxed);
        Open(Arc::clone(&self.own))
    }

    /// Notes that no connection waits.
    pub fn found_none(&self) {
        self.waited.set(false);
        self.lead.set(0);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        lock(&self.all).retain(|share| !Arc::ptr_eq(share, &self.own));
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The map stays whole, even if a thread panicked while it held the lock.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(unix)]
fn identity(socket: &Socket) -> io::Result<Option<Identity>> {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    let descriptor = match socket {
        Socket::Tcp(listener) => listener.as_fd(),
        Socket::Unix(listener) => listener.as_fd(),
    };
    // A process that is out of descriptors gets no answer either. The worker then acts alone, which
    // costs fairness and nothing else.
    let Ok(duplicate) = descriptor.try_clone_to_owned() else { return Ok(None) };
    let metadata = std::fs::File::from(duplicate).metadata()?;
    Ok(Some((metadata.dev(), metadata.ino())))
}

#[cfg(not(unix))]
fn identity(socket: &Socket) -> io::Result<Option<Identity>> {
    let Socket::Tcp(listener) = socket;
    listener.local_addr().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A socket twice, and another one.
    fn shares() -> [Share; 3] {
        let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (socket, other) = (bind(), bind());
        let again = socket.try_clone().unwrap();
        [socket, again, other].map(|listener| Share::of(&Socket::Tcp(listener)).unwrap())
    }

    #[test]
    fn who_has_more_connections_lets_the_others_go_first() {
        let [first, second, alone] = shares();
        assert_eq!((first.moment(), second.moment()), (None, None));
        let open = first.accepted();
        assert_eq!((first.moment(), second.moment()), (Some(MOMENT), None));
        let _open = second.accepted();
        assert_eq!((first.moment(), second.moment()), (None, None));
        drop(open);
        assert_eq!((first.moment(), second.moment()), (None, Some(MOMENT)));
        drop(first);
        assert_eq!(second.moment(), None);
        let _more = [alone.accepted(), alone.accepted()];
        assert_eq!(alone.moment(), None);
    }

    #[test]
    fn many_connections_that_nobody_else_takes_cost_few_moments() {
        let [worker, _blocked, _] = shares();
        let mut moments = 0;
        let accept = |_| {
            moments += u32::from(worker.moment().is_some());
            worker.accepted()
        };
        let open: Vec<_> = (0..3000).map(accept).collect();
        assert!(moments < 20, "{moments} moments");
        worker.found_none();
        assert!(worker.moment().is_some(), "a pause is a new beginning");
        drop(open);
        assert!(worker.moment().is_none());
    }
}
