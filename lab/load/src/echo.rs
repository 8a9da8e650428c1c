//! The echo server: it sends back what it receives. It stands for the database or the other service
//! that a handler asks, and it counts, so that a contender that answers without asking is noticed.

use std::collections::HashMap;
use std::io::{self, PipeWriter, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use rustix::event::{Timespec, epoll};

/// What stands for the listener among the tokens of connections.
const LISTENER: u64 = u64::MAX;

/// What stands for the pipe whose end is the server's end.
const END: u64 = u64::MAX - 1;

/// The most bytes that one read takes.
const READ_BYTES_MAX: usize = 16 << 10;

/// How long nobody is accepted when the process is out of descriptors, unless something else happens.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// An echo server on a thread of its own, ended when dropped.
#[derive(Debug)]
pub struct EchoServer {
    address: SocketAddr,
    bytes: Arc<AtomicU64>,
    /// Closing it ends the thread, which sleeps until something happens.
    end: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl EchoServer {
    /// Starts a server on a free port of the loopback interface, on `cpus` (empty: anywhere).
    ///
    /// # Errors
    ///
    /// The kernel's, if it cannot listen.
    pub fn start(cpus: Vec<usize>) -> io::Result<EchoServer> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let (reader, end) = io::pipe()?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&poll, &listener, LISTENER)?;
        watch(&poll, &reader, END)?;
        let bytes = Arc::new(AtomicU64::new(0));
        let counter = bytes.clone();
        let thread = std::thread::Builder::new().name("echo".to_owned()).spawn(move || {
            // Where it runs decides how fast it is, not whether it is right.
            let _ = crate::system::pin_this_thread(&cpus);
            // The epoll set knows the pipe only as long as it is open here.
            let _reader = reader;
            let _ = serve(&listener, &poll, &counter);
        })?;
        Ok(EchoServer { address, bytes, end: Some(end), thread: Some(thread) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many bytes it has received so far, all of which it sends back.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch(poll: &OwnedFd, source: impl AsFd, token: u64) -> io::Result<()> {
    Ok(epoll::add(poll, source, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?)
}

fn set_interest(
    poll: &OwnedFd,
    source: impl AsFd,
    token: u64,
    interest: epoll::EventFlags,
) -> io::Result<()> {
    Ok(epoll::modify(poll, source, epoll::EventData::new_u64(token), interest)?)
}

/// One connection, with what could not be sent back yet.
struct Peer {
    stream: TcpStream,
    unsent: Vec<u8>,
}

fn serve(listener: &TcpListener, poll: &OwnedFd, counter: &AtomicU64) -> io::Result<()> {
    let mut peers: HashMap<u64, Peer> = HashMap::new();
    let (mut next, mut is_full) = (0, false);
    let mut events = Vec::with_capacity(64);
    let mut bytes = vec![0; READ_BYTES_MAX];
    loop {
        events.clear();
        let timeout = is_full.then_some(&PAUSE);
        match epoll::wait(poll, rustix::buffer::spare_capacity(&mut events), timeout) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if std::mem::take(&mut is_full) {
            set_interest(poll, listener, LISTENER, epoll::EventFlags::IN)?;
        }
        for event in events.drain(..) {
            let (id, flags) = (event.data.u64(), event.flags);
            if id == END {
                return Ok(());
            }
            if id == LISTENER {
                is_full = !accept(listener, poll, &mut peers, &mut next);
                if is_full {
                    // It would be ready again and again.
                    set_interest(poll, listener, LISTENER, epoll::EventFlags::empty())?;
                }
                continue;
            }
            let Some(peer) = peers.get_mut(&id) else { continue };
            let goes_on = peer.on_ready(&mut bytes, counter).and_then(|is_sent| {
                if is_sent && !flags.contains(epoll::EventFlags::OUT) {
                    return Ok(());
                }
                // Nothing more is read from who does not take what it was sent.
                let interest = if is_sent { epoll::EventFlags::IN } else { epoll::EventFlags::OUT };
                set_interest(poll, &peer.stream, id, interest)
            });
            if goes_on.is_err() {
                // Closing the descriptor takes it out of the epoll set.
                peers.remove(&id);
            }
        }
    }
}

/// Takes the connections that wait; false if the process may have no more for now. One that broke off
/// in the meantime, or that cannot be watched, is dropped, and the others are served.
fn accept(
    listener: &TcpListener,
    poll: &OwnedFd,
    peers: &mut HashMap<u64, Peer>,
    next: &mut u64,
) -> bool {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return true,
                io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => continue,
                _ => return false,
            },
        };
        let is_ready = stream
            .set_nonblocking(true)
            .and_then(|()| stream.set_nodelay(true))
            .and_then(|()| watch(poll, &stream, *next));
        if is_ready.is_ok() {
            peers.insert(*next, Peer { stream, unsent: Vec::new() });
            *next += 1;
        }
    }
}

impl Peer {
    /// Sends what is left, or reads what is there and sends it back; whether all of it is sent. An
    /// error is the end of the connection.
    fn on_ready(&mut self, bytes: &mut [u8], counter: &AtomicU64) -> io::Result<bool> {
        if self.unsent.is_empty() {
            let count = match self.stream.read(bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            };
            counter.fetch_add(count as u64, Ordering::Relaxed);
            self.unsent.extend_from_slice(&bytes[..count]);
        }
        match self.stream.write(&self.unsent) {
            Ok(count) => drop(self.unsent.drain(..count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(self.unsent.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_comes_back_and_is_counted() {
        let server = EchoServer::start(Vec::new()).unwrap();
        let mut peers = [(); 3].map(|()| TcpStream::connect(server.address()).unwrap());
        for round in 0_u8..20 {
            for (place, peer) in peers.iter_mut().enumerate() {
                let sent = [round, place as u8, 0];
                peer.write_all(&sent).unwrap();
                let mut back = [9; 3];
                peer.read_exact(&mut back).unwrap();
                assert_eq!(back, sent);
            }
        }
        assert_eq!(server.bytes(), 20 * 3 * 3);
    }

    #[test]
    fn who_does_not_read_loses_nothing_and_delays_nobody() {
        let server = EchoServer::start(Vec::new()).unwrap();
        let mut slow = TcpStream::connect(server.address()).unwrap();
        let sent: Vec<u8> = (0..8_u32 << 20).map(|place| (place % 251) as u8).collect();
        let writer = {
            let (mut slow, sent) = (slow.try_clone().unwrap(), sent.clone());
            std::thread::spawn(move || slow.write_all(&sent).unwrap())
        };
        let mut quick = TcpStream::connect(server.address()).unwrap();
        quick.write_all(b"quick").unwrap();
        let mut back = [0; 5];
        quick.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"quick");
        let mut back = vec![0; sent.len()];
        slow.read_exact(&mut back).unwrap();
        assert!(back == sent);
        writer.join().unwrap();
    }

    #[test]
    fn who_breaks_off_harms_nobody_else() {
        let server = EchoServer::start(Vec::new()).unwrap();
        let mut other = TcpStream::connect(server.address()).unwrap();
        for round in 0_u8..50 {
            let mut rude = TcpStream::connect(server.address()).unwrap();
            if round % 2 == 0 {
                rude.write_all(&[round; 1000]).unwrap();
            }
            // With no time to linger, closing is a reset.
            let linger = Some(std::time::Duration::ZERO);
            rustix::net::sockopt::set_socket_linger(&rude, linger).unwrap();
            drop(rude);
            other.write_all(&[round]).unwrap();
            let mut back = [0];
            other.read_exact(&mut back).unwrap();
            assert_eq!(back, [round]);
        }
    }

    #[test]
    fn it_ends_when_it_is_dropped_also_with_connections() {
        let server = EchoServer::start(Vec::new()).unwrap();
        let mut peer = TcpStream::connect(server.address()).unwrap();
        peer.write_all(b"a").unwrap();
        peer.read_exact(&mut [0]).unwrap();
        drop(server);
        assert_eq!(peer.read(&mut [0]).unwrap(), 0);
    }
}
