//! Options of the sockets that a server listens on, and of their connections.

use std::time::Duration;

/// Options of the sockets that a server listens on, and of their connections. A system that lacks one does without it.
///
/// `backlog`, `receive_buffer_bytes`, `send_buffer_bytes`, `ipv6_only` and `one_queue` are for addresses that the server
/// binds itself; who hands over a socket has decided about them, and so has the process before this one for addresses
/// that an upgrade in place hands over. `backlog` is for Unix domain sockets too, all others are for TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// Connections that may wait in the kernel before they are accepted. Default 4,096; the kernel may allow fewer
    /// (`net.core.somaxconn`).
    pub backlog: u32,
    /// Sends small segments at once (`TCP_NODELAY`), so that no response waits for the peer's delayed
    /// acknowledgement. Default true.
    pub nodelay: bool,
    /// Bytes that the kernel takes of a connection beyond those it can send (`TCP_NOTSENT_LOWAT`, on Linux). Default
    /// 64 KiB. What it takes grows with what the peer takes then, and a peer that does not read costs little.
    pub unsent_bytes_max: u32,
    /// How long a connection may be silent until the kernel asks whether the peer's is still there (`SO_KEEPALIVE`,
    /// `TCP_KEEPIDLE`). Default `None`: it never asks, since every wait of the server has an end.
    pub keep_alive: Option<Duration>,
    /// How long it waits for an answer until it asks again. Default 15 s.
    pub keep_alive_interval: Duration,
    /// How often it asks until it breaks the connection. Default 4.
    pub keep_alive_probes: u32,
    /// The kernel's buffer for what a peer sent (`SO_RCVBUF`). Default `None`: the kernel decides, and changes it as a
    /// connection needs.
    pub receive_buffer_bytes: Option<usize>,
    /// The kernel's buffer for what is to be sent (`SO_SNDBUF`). Default `None`: the kernel decides, and changes it as a
    /// connection needs.
    pub send_buffer_bytes: Option<usize>,
    /// Whether an address of IPv6 means IPv6 alone. Default false: `[::]` means IPv4 too.
    pub ipv6_only: bool,
    /// Whether all workers accept from one queue of an address. Default false: on Linux and Android each worker has a
    /// queue of its own (`SO_REUSEPORT`), among which the kernel distributes connections evenly. Elsewhere it would not
    /// distribute them, so there is one queue in any case, and whichever worker comes first accepts.
    ///
    /// Either way, a worker that has more connections than others passes on what it accepts. With one queue, a worker
    /// that is busy leaves connections to the others before. With many new connections in a second, it costs more.
    pub one_queue: bool,
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            backlog: 4096,
            nodelay: true,
            unsent_bytes_max: 64 * 1024,
            keep_alive: None,
            keep_alive_interval: Duration::from_secs(15),
            keep_alive_probes: 4,
            receive_buffer_bytes: None,
            send_buffer_bytes: None,
            ipv6_only: false,
            one_queue: false,
        }
    }
}
