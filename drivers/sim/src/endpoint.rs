//! One end of a connection, used by both the server's stream and the client.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::network::Network;
use crate::pipe::{ReceiverState, SenderState, take_front};
use crate::state::{Connection, NetworkState, Side};

/// One end of a connection, closed when dropped.
pub(crate) struct SimEndpoint {
    pub(crate) network: Network,
    pub(crate) id: u64,
    side: Side,
    /// Whether dropping this handle must close its end of the connection.
    is_open: bool,
}

impl SimEndpoint {
    pub(crate) fn new(network: Network, id: u64, side: Side) -> Self {
        Self { network, id, side, is_open: true }
    }

    /// Returns the connection's id. It is then up to the caller to close the connection.
    pub(crate) fn release(&mut self) -> u64 {
        self.is_open = false;
        self.id
    }

    fn with<T>(&self, update: impl FnOnce(&mut NetworkState, u64, Side) -> T) -> T {
        self.network.with(|state| update(state, self.id, self.side))
    }

    /// A documentation address (RFC 5737) derived from the connection's id.
    pub(crate) fn client_address(&self) -> SocketAddr {
        let host = u8::try_from(1 + self.id % 254).expect("at most 254");
        let port = u16::try_from(1024 + self.id % 60_000).expect("at most 61,023");
        SocketAddr::from((Ipv4Addr::new(192, 0, 2, host), port))
    }

    /// Receives the next bytes, at most `bytes_max`; empty at the end.
    pub(crate) fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bytes_max: usize,
    ) -> Poll<io::Result<Vec<u8>>> {
        self.with(|state, id, side| {
            let split_per_mille = state.faults.split_per_mille;
            let random = &mut state.random;
            let connection = connection(&mut state.connections, id);
            let error_kind = connection.error_kind();
            let pipe = connection.pipe(side.peer());
            if !pipe.receive_buffer.is_empty() {
                let available = pipe.receive_buffer.len().min(bytes_max);
                let size = if random.chance(split_per_mille) {
                    1 + random.index(available)
                } else {
                    available
                };
                let bytes = take_front(&mut pipe.receive_buffer, size);
                state.record("receive", [id, u64::try_from(size).unwrap_or(u64::MAX), 0]);
                state.flush(id, side.peer());
                return Poll::Ready(Ok(bytes));
            }
            match pipe.receiver {
                ReceiverState::Open => {
                    pipe.recv_waker = Some(cx.waker().clone());
                    Poll::Pending
                }
                ReceiverState::FinReceived => Poll::Ready(Ok(Vec::new())),
                ReceiverState::Reset | ReceiverState::Closed => Poll::Ready(Err(error_kind.into())),
            }
        })
    }

    /// Returns whether [`SimEndpoint::poll_recv`] would complete immediately with bytes, without
    /// arranging a wake-up.
    pub(crate) fn has_data(&self) -> bool {
        self.with(|state, id, side| {
            let pipe = connection(&mut state.connections, id).pipe(side.peer());
            !pipe.receive_buffer.is_empty()
        })
    }

    /// Returns whether [`SimEndpoint::poll_recv`] would be ready.
    pub(crate) fn is_readable(&self) -> bool {
        self.with(|state, id, side| {
            let pipe = connection(&mut state.connections, id).pipe(side.peer());
            !pipe.receive_buffer.is_empty() || pipe.receiver != ReceiverState::Open
        })
    }

    /// Queues bytes. Returns a target: the pipe has accepted the bytes once `poll_flushed_to` is
    /// ready for it.
    pub(crate) fn queue(&self, bytes: &[u8]) -> Result<u64, io::ErrorKind> {
        self.with(|state, id, side| {
            let connection = connection(&mut state.connections, id);
            let error_kind = connection.error_kind();
            let pipe = connection.pipe(side);
            match pipe.sender {
                SenderState::Open => {}
                SenderState::Reset => return Err(error_kind),
                SenderState::FinQueued | SenderState::FinSent => {
                    return Err(io::ErrorKind::BrokenPipe);
                }
            }
            pipe.pending.extend(bytes);
            pipe.queued += u64::try_from(bytes.len()).expect("a length has at most 64 bits");
            let target = pipe.queued;
            state.flush(id, side);
            Ok(target)
        })
    }

    /// Ready when the pipe has accepted everything up to `target`.
    pub(crate) fn poll_flushed_to(
        &self,
        cx: &mut Context<'_>,
        target: u64,
    ) -> Poll<io::Result<()>> {
        self.with(|state, id, side| {
            let connection = connection(&mut state.connections, id);
            let error_kind = connection.error_kind();
            let pipe = connection.pipe(side);
            if pipe.bytes_written >= target {
                return Poll::Ready(Ok(()));
            }
            if pipe.sender == SenderState::Reset {
                return Poll::Ready(Err(error_kind.into()));
            }
            pipe.register_sender(cx.waker());
            Poll::Pending
        })
    }

    /// Ready when the pipe has accepted everything and, if requested, the end.
    pub(crate) fn poll_flushed(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|state, id, side| {
            let connection = connection(&mut state.connections, id);
            let error_kind = connection.error_kind();
            let pipe = connection.pipe(side);
            if pipe.sender == SenderState::Reset {
                return Poll::Ready(Err(error_kind.into()));
            }
            if pipe.bytes_written < pipe.queued || pipe.sender == SenderState::FinQueued {
                // According to the driver contract, only the last caller is woken.
                pipe.send_wakers.clear();
                pipe.register_sender(cx.waker());
                return Poll::Pending;
            }
            Poll::Ready(Ok(()))
        })
    }

    /// Returns whether `poll_flushed` would be ready.
    pub(crate) fn is_flushed(&self) -> bool {
        self.with(|state, id, side| {
            let pipe = connection(&mut state.connections, id).pipe(side);
            let is_pending =
                pipe.bytes_written < pipe.queued || pipe.sender == SenderState::FinQueued;
            pipe.sender == SenderState::Reset || !is_pending
        })
    }

    /// Returns whether the connection is broken, as far as this end knows.
    pub(crate) fn is_broken(&self) -> bool {
        self.with(|state, id, side| {
            let connection = connection(&mut state.connections, id);
            let is_reset = connection.pipe(side.peer()).receiver == ReceiverState::Reset;
            is_reset || connection.pipe(side).sender == SenderState::Reset
        })
    }

    /// The number of bytes that the pipe has accepted.
    pub(crate) fn bytes_written(&self) -> u64 {
        self.with(|state, id, side| connection(&mut state.connections, id).pipe(side).bytes_written)
    }

    /// Shuts down the sending side after everything before it was sent.
    pub(crate) fn finish(&self) {
        self.with(|state, id, side| {
            let pipe = connection(&mut state.connections, id).pipe(side);
            if pipe.sender == SenderState::Open {
                pipe.sender = SenderState::FinQueued;
                state.flush(id, side);
            }
        });
    }

    /// Like [`SimEndpoint::finish`], and waits until the end of the stream was sent.
    pub(crate) fn poll_finish(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.finish();
        self.with(|state, id, side| {
            let connection = connection(&mut state.connections, id);
            let error_kind = connection.error_kind();
            let pipe = connection.pipe(side);
            match pipe.sender {
                SenderState::Open | SenderState::FinQueued => {
                    pipe.register_sender(cx.waker());
                    Poll::Pending
                }
                SenderState::FinSent => Poll::Ready(Ok(())),
                SenderState::Reset => Poll::Ready(Err(error_kind.into())),
            }
        })
    }

    /// Resets the connection.
    pub(crate) fn reset(&self) {
        self.with(NetworkState::reset);
    }

    /// Delays everything that is sent from now on by at least `duration`.
    pub(crate) fn stall(&self, duration: Duration) {
        self.with(|state, id, side| {
            let until = state.now.saturating_add(duration);
            connection(&mut state.connections, id).pipe(side).stall(until);
        });
    }
}

/// The connection with this id, which exists because the caller holds one of its ends.
fn connection(
    connections: &mut std::collections::BTreeMap<u64, Connection>,
    id: u64,
) -> &mut Connection {
    connections.get_mut(&id).expect("a held connection exists")
}

impl Drop for SimEndpoint {
    fn drop(&mut self) {
        if self.is_open {
            self.with(NetworkState::close);
        }
    }
}
