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
use peregrine_driver::FileRange;

use crate::endpoint::SimEndpoint;
use crate::network::{Network, Port};
use crate::state::Side;

/// The error numbers of failed accepts, `EMFILE` and `ENFILE`: the process, or the system, has run
/// out of descriptors. They are the same on all Unix systems.
const ACCEPT_ERRORS: [i32; 2] = [24, 23];

/// Accepts the connections of one [`Port`].
pub struct SimListener {
    network: Network,
    port: u64,
}

impl SimListener {
    pub(crate) fn new(network: Network, port: &Port) -> io::Result<Self> {
        let is_known = network.with(|state| state.ports.contains_key(&port.id));
        if is_known {
            Ok(Self { network, port: port.id })
        } else {
            Err(io::Error::new(io::ErrorKind::NotFound, "the port belongs to another network"))
        }
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<u64>> {
        self.network.with(|state| {
            let port = state.ports.get_mut(&self.port).expect("ports are never removed");
            if port.backlog.is_empty() {
                port.acceptor = Some(cx.waker().clone());
                return Poll::Pending;
            }
            if state.random.chance(state.faults.accept_error_per_mille) {
                let error = ACCEPT_ERRORS[state.random.index(ACCEPT_ERRORS.len())];
                state.record("refuse", [self.port, 0, 0]);
                return Poll::Ready(Err(io::Error::from_raw_os_error(error)));
            }
            let id = port.backlog.pop_front().expect("the backlog is not empty");
            state.stats.accepted += 1;
            state.record("accept", [self.port, id, 0]);
            Poll::Ready(Ok(id))
        })
    }
}

impl peregrine_driver::Listener for SimListener {
    type Stream = SimStream;

    async fn accept(&self) -> io::Result<SimStream> {
        let id = poll_fn(|cx| self.poll_accept(cx)).await?;
        Ok(SimStream::new(&self.network, id, self.port))
    }

    /// New connection attempts are refused, either immediately or when the listener is dropped.
    fn refuse_new_connections(&self) {
        self.network.with(|state| state.refuse_new_connections(self.port));
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        self.network.with(|state| state.close_port(self.port));
    }
}

/// The server's end of a connection.
pub struct SimStream {
    endpoint: SimEndpoint,
    port: u64,
    /// Whether data was passed to `send` after `finish`.
    wrote_after_shutdown: Cell<bool>,
    /// Whether a file was shorter than expected or could not be read.
    file_failed: Cell<bool>,
    reset_on_drop: Cell<bool>,
}

impl Drop for SimStream {
    fn drop(&mut self) {
        if self.reset_on_drop.get() {
            self.endpoint.reset();
        }
    }
}

impl SimStream {
    fn new(network: &Network, id: u64, port: u64) -> Self {
        let endpoint = SimEndpoint::new(network.clone(), id, Side::Server);
        Self {
            endpoint,
            port,
            wrote_after_shutdown: Cell::default(),
            file_failed: Cell::default(),
            reset_on_drop: Cell::default(),
        }
    }

    pub(crate) fn into_handoff(mut self) -> SimHandoff {
        let id = self.endpoint.release();
        let dropped_handoffs = self.endpoint.network.with(|state| {
            state.record("pass", [id, 0, 0]);
            Arc::clone(&state.dropped_handoffs)
        });
        SimHandoff { id: Some(id), port: self.port, dropped_handoffs }
    }

    fn poll_chunk(&self, cx: &mut Context<'_>) -> Poll<io::Result<Chunk>> {
        let network = &self.endpoint.network;
        let has_data = self.endpoint.has_data();
        let bytes_max = network.with(|state| {
            let buffers = &mut state.receive_buffers;
            if has_data && buffers.in_use >= buffers.chunks_max {
                buffers.waiters.push(cx.waker().clone());
                state.stats.buffers_exhausted += 1;
                return None;
            }
            Some(buffers.chunk_bytes_max)
        });
        let Some(bytes_max) = bytes_max else { return Poll::Pending };
        self.endpoint.poll_recv(cx, bytes_max).map_ok(|bytes| {
            if bytes.is_empty() {
                return Chunk { bytes, network: None };
            }
            network.with(|state| state.receive_buffers.in_use += 1);
            Chunk { bytes, network: Some(network.clone()) }
        })
    }
}

impl peregrine_driver::Stream for SimStream {
    type Chunk = Chunk;

    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<io::Result<Chunk>> {
        self.poll_chunk(cx)
    }

    fn send(&self, out: &mut Vec<u8>) {
        if self.file_failed.get() {
            out.clear();
        }
        if !out.is_empty() && self.endpoint.queue(out) == Err(io::ErrorKind::BrokenPipe) {
            self.wrote_after_shutdown.set(true);
        }
        out.clear();
    }

    fn supports_sendfile(&self) -> bool {
        cfg!(unix)
    }

    /// Sends the contents that the range has now, at the time of the call.
    #[cfg(unix)]
    fn send_file(&self, out: &mut Vec<u8>, range: FileRange) {
        use std::os::unix::fs::FileExt;
        self.send(out);
        let (mut bytes, mut filled) = (vec![0; range.len], 0);
        while filled < bytes.len() {
            match range.file.read_at(&mut bytes[filled..], range.offset + filled as u64) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => break,
                Ok(count) => filled += count,
            }
        }
        bytes.truncate(filled);
        self.send(&mut bytes);
        if filled < range.len {
            self.file_failed.set(true);
        }
    }

    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.file_failed.get() {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        if self.wrote_after_shutdown.get() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.endpoint.poll_flushed(cx)
    }

    fn is_flushed(&self) -> bool {
        self.file_failed.get() || self.endpoint.is_flushed()
    }

    fn bytes_written(&self) -> u64 {
        self.endpoint.bytes_written()
    }

    fn finish(&self) {
        self.endpoint.finish();
    }

    fn is_broken(&self) -> bool {
        self.endpoint.is_broken()
    }

    fn reset_on_drop(&self) {
        self.reset_on_drop.set(true);
    }

    /// A documentation address (RFC 5737) derived from the connection's id.
    fn peer_addr(&self) -> Address {
        Address::Tcp(self.endpoint.client_address())
    }

    /// A documentation address (RFC 5737) with a port derived from the [`Port`]'s id.
    fn local_addr(&self) -> Address {
        let port = u16::try_from(self.port % 65_536).expect("below 65,536");
        Address::Tcp(SocketAddr::from((Ipv4Addr::new(198, 51, 100, 1), port)))
    }
}

/// A connection being passed from one worker to another.
#[derive(Debug)]
pub struct SimHandoff {
    id: Option<u64>,
    port: u64,
    /// The ids of connections that the network must close because their handoff was dropped.
    dropped_handoffs: Arc<Mutex<Vec<u64>>>,
}

impl SimHandoff {
    pub(crate) fn into_stream(mut self, network: &Network) -> SimStream {
        let id = self.id.take().expect("only this method and the drop take the id");
        SimStream::new(network, id, self.port)
    }
}

impl Drop for SimHandoff {
    /// May run on any thread, so it cannot access the network.
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.dropped_handoffs.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        }
    }
}

/// Received bytes. A chunk counts as one receive buffer in use until it is dropped.
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
                state.receive_buffers.in_use -= 1;
                state.pending_wakes.append(&mut state.receive_buffers.waiters);
            });
        }
    }
}
