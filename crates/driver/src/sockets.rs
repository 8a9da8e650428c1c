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
    /// How long a connection may be silent before the kernel probes whether the peer is still there
    /// (`SO_KEEPALIVE`, `TCP_KEEPIDLE`). Default 15 s, as in Go; `None` turns probes off. Without
    /// them, a client that vanishes without a FIN or RST (a power failure, a lost network) is not
    /// noticed while the server has nothing to send and no timeout of its own, such as while a
    /// handler waits.
    pub keep_alive: Option<Duration>,
    /// The time between two unanswered probes. Default 15 s.
    pub keep_alive_interval: Duration,
    /// Unanswered probes after which the kernel breaks the connection. Default 4. On Linux it
    /// counts only where `user_timeout` is `None`.
    pub keep_alive_probes: u32,
    /// How long data, or probes of `keep_alive`, may stay unacknowledged before the kernel breaks
    /// the connection (`TCP_USER_TIMEOUT`, on Linux). Default 150 s; `None` leaves it to the
    /// kernel, which retransmits for some 15 minutes. The kernel also counts the time in which a
    /// client keeps its window closed, even if the client answers, so a client may stop reading for
    /// that long. The server raises it above the `rate_slack` that its listeners start with, so
    /// that it never ends a slow reader before the server's own limit does.
    pub user_timeout: Option<Duration>,
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

/// What `TCP_USER_TIMEOUT` takes: milliseconds in a signed 32-bit number.
const USER_TIMEOUT_MAX: Duration = Duration::from_millis(i32::MAX.unsigned_abs() as u64);

impl SocketOptions {
    /// `user_timeout` as far as the kernel can keep it.
    #[must_use]
    pub fn user_timeout_kept(&self) -> Option<Duration> {
        self.user_timeout.map(|time| time.min(USER_TIMEOUT_MAX))
    }
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            backlog: 4096,
            nodelay: true,
            unsent_bytes_max: 64 * 1024,
            keep_alive: Some(Duration::from_secs(15)),
            keep_alive_interval: Duration::from_secs(15),
            keep_alive_probes: 4,
            user_timeout: Some(Duration::from_secs(150)),
            receive_buffer_bytes: None,
            send_buffer_bytes: None,
            ipv6_only: false,
            one_queue: false,
        }
    }
}
