//! The server's side of connections.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use peregrine_driver::Address;
#[cfg(unix)]
use peregrine_driver::FilePart;

use crate::link::Link;
use crate::network::{Network, Port};
use crate::state::End;

/// The errors of failed accepts: the process, or the system, has run out of descriptors. The
/// numbers are the same on all Unix systems.
const ACCEPT_ERRORS: [i32; 2] = [24, 23];

/// Accepts the connections of one [`Port`].
pub struct Listener {
    network: Network,
    port: u64,
}

impl Listener {
    pub(crate) fn new(network: Network, port: &Port) -> io::Result<Self> {
        let known = network.with(|state| state.ports.contains_key(&port.id));
        if known {
            Ok(Self { network, port: port.id })
        } else {
            Err(io::Error::new(io::ErrorKind::NotFound, "the port belongs to another network"))
        }
    }

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        self.network.with(|state| {
            let port = state.ports.get_mut(&self.port).expect("ports are never removed");
            if port.backlog.is_empty() {
                port.acceptor = Some(context.waker().clone());
                return Poll::Pending;
            }
            if state.random.chance(state.faults.accept_error_per_mille) {
                let error = ACCEPT_ERRORS[state.random.index(ACCEPT_ERRORS.len())];
                state.record("refuse", [self.port, 0, 0]);
                return Poll::Ready(Err(io::Error::from_raw_os_error(error)));
            }
            let id = port.backlog.pop_front().expect("the backlog is not empty");
            state.figures.accepted += 1;
            state.record("accept", [self.port, id, 0]);
            Poll::Ready(Ok(id))
        })
    }
}

impl peregrine_driver::Listener for Listener {
    type Stream = Stream;

    async fn accept(&self) -> io::Result<Stream> {
        let id = poll_fn(|context| self.poll_accept(context)).await?;
        Ok(Stream::new(&self.network, id, self.port))
    }

    /// New connection attempts are refused, or wait until the listener is dropped and are refused
    /// then.
    fn refuse_new(&self) {
        self.network.with(|state| state.refuse_new(self.port));
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.network.with(|state| state.close_port(self.port));
    }
}

/// The server's end of a connection.
pub struct Stream {
    link: Link,
    port: u64,
    /// Data was sent after the end of the stream.
    passed_end: Cell<bool>,
    /// A file was shorter than expected.
    file_failed: Cell<bool>,
    resets: Cell<bool>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.resets.get() {
            self.link.reset();
        }
    }
}

impl Stream {
    fn new(network: &Network, id: u64, port: u64) -> Self {
        let link = Link::new(network.clone(), id, End::Server);
        Self {
            link,
            port,
            passed_end: Cell::default(),
            file_failed: Cell::default(),
            resets: Cell::default(),
        }
    }

    pub(crate) fn pass(mut self) -> Passed {
        let id = self.link.release();
        let lost = self.link.network.with(|state| {
            state.record("pass", [id, 0, 0]);
            Arc::clone(&state.lost)
        });
        Passed { id: Some(id), port: self.port, lost }
    }

    fn poll_chunk(&self, context: &mut Context<'_>) -> Poll<io::Result<Chunk>> {
        let network = &self.link.network;
        let hungry = self.link.has_input();
        let bytes_max = network.with(|state| {
            let loans = &mut state.loans;
            if hungry && loans.chunks >= loans.chunks_max {
                loans.starving.push(context.waker().clone());
                state.figures.exhausted += 1;
                return None;
            }
            Some(loans.chunk_bytes_max)
        });
        let Some(bytes_max) = bytes_max else { return Poll::Pending };
        self.link.poll_recv(context, bytes_max).map_ok(|bytes| {
            if bytes.is_empty() {
                return Chunk { bytes, network: None };
            }
            network.with(|state| state.loans.chunks += 1);
            Chunk { bytes, network: Some(network.clone()) }
        })
    }
}

impl peregrine_driver::Stream for Stream {
    type Chunk = Chunk;

    fn poll_recv(&self, context: &mut Context<'_>) -> Poll<io::Result<Chunk>> {
        self.poll_chunk(context)
    }

    fn send(&self, out: &mut Vec<u8>) {
        if self.file_failed.get() {
            out.clear();
        }
        if !out.is_empty() && self.link.queue(out) == Err(io::ErrorKind::BrokenPipe) {
            self.passed_end.set(true);
        }
        out.clear();
    }

    fn sends_files(&self) -> bool {
        cfg!(unix)
    }

    /// Sends the current contents of the file.
    #[cfg(unix)]
    fn send_file(&self, out: &mut Vec<u8>, part: FilePart) {
        use std::os::unix::fs::FileExt;
        self.send(out);
        let (mut bytes, mut filled) = (vec![0; part.length], 0);
        while filled < bytes.len() {
            match part.file.read_at(&mut bytes[filled..], part.at + filled as u64) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => break,
                Ok(count) => filled += count,
            }
        }
        bytes.truncate(filled);
        self.send(&mut bytes);
        if filled < part.length {
            self.file_failed.set(true);
        }
    }

    fn poll_sent(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.file_failed.get() {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        if self.passed_end.get() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.link.poll_all_sent(context)
    }

    fn is_sent(&self) -> bool {
        self.file_failed.get() || self.link.is_sent()
    }

    fn progress(&self) -> u64 {
        self.link.progress()
    }

    fn finish(&self) {
        self.link.finish();
    }

    fn is_broken(&self) -> bool {
        self.link.is_broken()
    }

    fn reset_on_drop(&self) {
        self.resets.set(true);
    }

    /// An address for documentation (RFC 5737) derived from the connection.
    fn peer(&self) -> Address {
        Address::Tcp(self.link.client_address())
    }

    /// An address for documentation (RFC 5737) with the port's number.
    fn local(&self) -> Address {
        let port = u16::try_from(self.port % 65_536).expect("below 65,536");
        Address::Tcp(SocketAddr::from((Ipv4Addr::new(198, 51, 100, 1), port)))
    }
}

/// A connection between two workers.
#[derive(Debug)]
pub struct Passed {
    id: Option<u64>,
    port: u64,
    /// Connections that the network must close.
    lost: Arc<Mutex<Vec<u64>>>,
}

impl Passed {
    pub(crate) fn adopt(mut self, network: &Network) -> Stream {
        let id = self.id.take().expect("only this and the drop take the number");
        Stream::new(network, id, self.port)
    }
}

impl Drop for Passed {
    /// May run on any thread, where the network cannot be reached.
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.lost.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        }
    }
}

/// Received bytes. They count as a receive buffer until dropped.
pub struct Chunk {
    bytes: Vec<u8>,
    /// `None` in the chunk that marks the end.
    network: Option<Network>,
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl std::fmt::Debug for Chunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Chunk").field(&self.bytes).finish()
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(network) = &self.network {
            network.with(|state| {
                state.loans.chunks -= 1;
                state.wakes.append(&mut state.loans.starving);
            });
        }
    }
}
