//! One end of a connection, as both the server's stream and the client use it.

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
    /// Nobody else has taken it over.
    is_held: bool,
}

impl Link {
    pub(crate) fn new(network: Network, id: u64, end: End) -> Self {
        Self { network, id, end, is_held: true }
    }

    /// The connection's number. Who has that is to close it.
    pub(crate) fn release(&mut self) -> u64 {
        self.is_held = false;
        self.id
    }

    fn with<T>(&self, work: impl FnOnce(&mut State, u64, End) -> T) -> T {
        self.network.with(|state| work(state, self.id, self.end))
    }

    /// An address for documentation (RFC 5737) that follows from the connection.
    pub(crate) fn client_address(&self) -> SocketAddr {
        let host = u8::try_from(1 + self.id % 254).expect("it is at most 254");
        let port = u16::try_from(1024 + self.id % 60_000).expect("it is at most 61,023");
        SocketAddr::from((Ipv4Addr::new(192, 0, 2, host), port))
    }

    /// The next bytes, at most `bytes_max`; empty at the end.
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

    /// Whether [`Link::poll_recv`] would return at once, without asking for a wake-up.
    pub(crate) fn has_input(&self) -> bool {
        self.with(|state, id, end| {
            let pipe = connection(&mut state.connections, id).pipe(end.other());
            !pipe.arrived.is_empty()
        })
    }

    /// Whether [`Link::poll_recv`] would be ready.
    pub(crate) fn has_something(&self) -> bool {
        self.with(|state, id, end| {
            let pipe = connection(&mut state.connections, id).pipe(end.other());
            !pipe.arrived.is_empty() || pipe.target != Target::Open
        })
    }

    /// Hands over bytes. They are on their way when the result is reached, see `poll_sent`.
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

    /// Ends when the pipe has taken everything up to `target`.
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

    /// Ends when the pipe has taken everything, and the end if one was asked for.
    pub(crate) fn poll_all_sent(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|state, id, end| {
            let connection = connection(&mut state.connections, id);
            let fault = connection.fault();
            let pipe = connection.pipe(end);
            if pipe.source == Source::Broken {
                return Poll::Ready(Err(fault.into()));
            }
            if pipe.taken < pipe.queued || pipe.source == Source::Ending {
                // The contract remembers the last caller only.
                pipe.senders.clear();
                pipe.wait_to_send(context.waker());
                return Poll::Pending;
            }
            Poll::Ready(Ok(()))
        })
    }

    /// Would `poll_all_sent` be ready?
    pub(crate) fn is_sent(&self) -> bool {
        self.with(|state, id, end| {
            let pipe = connection(&mut state.connections, id).pipe(end);
            let is_under_way = pipe.taken < pipe.queued || pipe.source == Source::Ending;
            pipe.source == Source::Broken || !is_under_way
        })
    }

    /// Did a reset arrive, or a call fail?
    pub(crate) fn is_broken(&self) -> bool {
        self.with(|state, id, end| {
            let connection = connection(&mut state.connections, id);
            let is_reset = connection.pipe(end.other()).target == Target::Broken;
            is_reset || connection.pipe(end).source == Source::Broken
        })
    }

    /// Bytes that the pipe has taken.
    pub(crate) fn progress(&self) -> u64 {
        self.with(|state, id, end| connection(&mut state.connections, id).pipe(end).taken)
    }

    /// Ends the sending side when everything before has left.
    pub(crate) fn finish(&self) {
        self.with(|state, id, end| {
            let pipe = connection(&mut state.connections, id).pipe(end);
            if pipe.source == Source::Open {
                pipe.source = Source::Ending;
                state.pump(id, end);
            }
        });
    }

    /// Ends the sending side. The end leaves when everything before it has left.
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

    /// Breaks the connection off.
    pub(crate) fn reset(&self) {
        self.with(State::break_off);
    }

    /// Lets nothing that is sent from here on arrive before `duration` has passed.
    pub(crate) fn stall(&self, duration: Duration) {
        self.with(|state, id, end| {
            let until = state.now.saturating_add(duration);
            connection(&mut state.connections, id).pipe(end).stall(until);
        });
    }
}

/// A connection is there as long as one end is held.
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
