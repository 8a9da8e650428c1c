//! One end of a connection, used by both the server's stream and the client.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::network::Network;
use crate::pipe::{Source, Target, take_front};
use crate::state::{Connection, End, State};

/// One end of a connection, closed when dropped.
pub(crate) struct Link {
    pub(crate) network: Network,
    pub(crate) id: u64,
    end: End,
    /// This handle has to close it.
    is_held: bool,
}

impl Link {
    pub(crate) fn new(network: Network, id: u64, end: End) -> Self {
        Self { network, id, end, is_held: true }
    }

    /// Returns the connection's number. The caller must close it.
    pub(crate) fn release(&mut self) -> u64 {
        self.is_held = false;
        self.id
    }

    fn with<T>(&self, work: impl FnOnce(&mut State, u64, End) -> T) -> T {
        self.network.with(|state| work(state, self.id, self.end))
    }

    /// An address for documentation (RFC 5737) that follows from the connection.
    pub(crate) fn client_address(&self) -> SocketAddr {
        let host = u8::try_from(1 + self.id % 254).expect("at most 254");
        let port = u16::try_from(1024 + self.id % 60_000).expect("at most 61,023");
        SocketAddr::from((Ipv4Addr::new(192, 0, 2, host), port))
    }

    /// Receives the next bytes, at most `bytes_max`; empty at the end.
    pub(crate) fn poll_recv(
        &self,
        context: &mut Context<'_>,
        bytes_max: usize,
    ) -> Poll<io::Result<Vec<u8>>> {
        self.with(|state, id, end| {
            let cut = state.faults.cut_per_mille;
            let random = &mut state.random;
            let connection = connection(&mut state.connections, id);
            let fault = connection.fault();
            let pipe = connection.pipe(end.other());
            if !pipe.arrived.is_empty() {
                let most = pipe.arrived.len().min(bytes_max);
                let size = if random.chance(cut) { 1 + random.index(most) } else { most };
                let bytes = take_front(&mut pipe.arrived, size);
                state.record("receive", [id, u64::try_from(size).unwrap_or(u64::MAX), 0]);
                state.pump(id, end.other());
                return Poll::Ready(Ok(bytes));
            }
            match pipe.target {
                Target::Open => {
                    pipe.receiver = Some(context.waker().clone());
                    Poll::Pending
                }
                Target::Ended => Poll::Ready(Ok(Vec::new())),
                Target::Broken | Target::Closed => Poll::Ready(Err(fault.into())),
            }
        })
    }

    /// Returns whether [`Link::poll_recv`] would complete immediately with bytes, without arranging
    /// a wake-up.
    pub(crate) fn has_input(&self) -> bool {
        self.with(|state, id, end| {
            let pipe = connection(&mut state.connections, id).pipe(end.other());
            !pipe.arrived.is_empty()
        })
    }

    /// Returns whether [`Link::poll_recv`] would be ready.
    pub(crate) fn has_something(&self) -> bool {
        self.with(|state, id, end| {
            let pipe = connection(&mut state.connections, id).pipe(end.other());
            !pipe.arrived.is_empty() || pipe.target != Target::Open
        })
    }

    /// Queues bytes. They are in transit when the result is reached; see `poll_sent`.
    pub(crate) fn queue(&self, bytes: &[u8]) -> Result<u64, io::ErrorKind> {
        self.with(|state, id, end| {
            let connection = connection(&mut state.connections, id);
            let fault = connection.fault();
            let pipe = connection.pipe(end);
            match pipe.source {
                Source::Open => {}
                Source::Broken => return Err(fault),
                Source::Ending | Source::Ended => return Err(io::ErrorKind::BrokenPipe),
            }
            pipe.outgoing.extend(bytes);
            pipe.queued += u64::try_from(bytes.len()).expect("a length has at most 64 bits");
            let target = pipe.queued;
            state.pump(id, end);
            Ok(target)
        })
    }

    /// Ready when the pipe has accepted everything up to `target`.
    pub(crate) fn poll_sent(&self, context: &mut Context<'_>, target: u64) -> Poll<io::Result<()>> {
        self.with(|state, id, end| {
            let connection = connection(&mut state.connections, id);
            let fault = connection.fault();
            let pipe = connection.pipe(end);
            if pipe.taken >= target {
                return Poll::Ready(Ok(()));
            }
            if pipe.source == Source::Broken {
                return Poll::Ready(Err(fault.into()));
            }
            pipe.wait_to_send(context.waker());
            Poll::Pending
        })
    }

    /// Ready when the pipe has accepted everything and, if requested, the end.
    pub(crate) fn poll_all_sent(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|state, id, end| {
            let connection = connection(&mut state.connections, id);
            let fault = connection.fault();
            let pipe = connection.pipe(end);
            if pipe.source == Source::Broken {
                return Poll::Ready(Err(fault.into()));
            }
            if pipe.taken < pipe.queued || pipe.source == Source::Ending {
                // According to the driver contract, only the last caller is woken.
                pipe.senders.clear();
                pipe.wait_to_send(context.waker());
                return Poll::Pending;
            }
            Poll::Ready(Ok(()))
        })
    }

    /// Returns whether `poll_all_sent` would be ready.
    pub(crate) fn is_sent(&self) -> bool {
        self.with(|state, id, end| {
            let pipe = connection(&mut state.connections, id).pipe(end);
            let is_under_way = pipe.taken < pipe.queued || pipe.source == Source::Ending;
            pipe.source == Source::Broken || !is_under_way
        })
    }

    /// Returns whether a reset arrived or a call failed.
    pub(crate) fn is_broken(&self) -> bool {
        self.with(|state, id, end| {
            let connection = connection(&mut state.connections, id);
            let is_reset = connection.pipe(end.other()).target == Target::Broken;
            is_reset || connection.pipe(end).source == Source::Broken
        })
    }

    /// The number of bytes that the pipe has accepted.
    pub(crate) fn progress(&self) -> u64 {
        self.with(|state, id, end| connection(&mut state.connections, id).pipe(end).taken)
    }

    /// Shuts down the sending side after everything before it was sent.
    pub(crate) fn finish(&self) {
        self.with(|state, id, end| {
            let pipe = connection(&mut state.connections, id).pipe(end);
            if pipe.source == Source::Open {
                pipe.source = Source::Ending;
                state.pump(id, end);
            }
        });
    }

    /// Shuts down the sending side, and waits until everything before it was sent.
    pub(crate) fn poll_finish(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.finish();
        self.with(|state, id, end| {
            let connection = connection(&mut state.connections, id);
            let fault = connection.fault();
            let pipe = connection.pipe(end);
            match pipe.source {
                Source::Open | Source::Ending => {
                    pipe.wait_to_send(context.waker());
                    Poll::Pending
                }
                Source::Ended => Poll::Ready(Ok(())),
                Source::Broken => Poll::Ready(Err(fault.into())),
            }
        })
    }

    /// Resets the connection.
    pub(crate) fn reset(&self) {
        self.with(State::break_off);
    }

    /// Delays everything that is sent from now on by at least `duration`.
    pub(crate) fn stall(&self, duration: Duration) {
        self.with(|state, id, end| {
            let until = state.now.saturating_add(duration);
            connection(&mut state.connections, id).pipe(end).stall(until);
        });
    }
}

/// A connection exists as long as one end is held.
fn connection(
    connections: &mut std::collections::BTreeMap<u64, Connection>,
    id: u64,
) -> &mut Connection {
    connections.get_mut(&id).expect("a held connection exists")
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.is_held {
            self.with(State::close);
        }
    }
}
