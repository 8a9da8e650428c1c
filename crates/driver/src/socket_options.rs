//! Options of the sockets that a server listens on, and of their connections.

use std::time::Duration;

/// Options of the sockets that a server listens on, and of their connections. Options that a system
/// does not support are ignored there.
///
/// `backlog`, `receive_buffer_bytes`, `send_buffer_bytes`, `ipv6_only` and `shared_accept_queue`
/// apply only to addresses that the server binds itself. For a socket that was passed to the
/// server, its creator has set them; for an address inherited in an in-place upgrade, the previous
/// process has. `backlog` also applies to Unix domain sockets, all other options only to TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// The number of connections that may wait in the kernel before they are accepted. Default
    /// 4,096; the kernel may allow fewer (`net.core.somaxconn`).
    #[doc(alias = "listen")]
    #[doc(alias = "somaxconn")]
    pub backlog: u32,
    /// Sends small segments immediately (`TCP_NODELAY`), so that responses do not wait for the
    /// peer's delayed acknowledgement. Default true.
    #[doc(alias = "TCP_NODELAY")]
    #[doc(alias = "tcp_nodelay")]
    pub nodelay: bool,
    /// The number of bytes that the kernel accepts for a connection beyond those it can send now
    /// (`TCP_NOTSENT_LOWAT`, on Linux). Default 64 KiB. With this limit, the amount that the kernel
    /// buffers adapts to the peer's speed, and a peer that does not read costs little memory.
    #[doc(alias = "TCP_NOTSENT_LOWAT")]
    pub notsent_lowat_bytes: u32,
    /// How long a connection may be silent before the kernel probes whether the peer is still there
    /// (`SO_KEEPALIVE`, `TCP_KEEPIDLE`). Default 15 s, as in Go; `None` disables probes. Without
    /// them, a client that vanishes without a FIN or RST (a power failure, a lost network) is not
    /// noticed while the server has nothing to send and no timeout applies, such as while a handler
    /// waits.
    #[doc(alias = "SO_KEEPALIVE")]
    #[doc(alias = "so_keepalive")]
    pub tcp_keepalive: Option<Duration>,
    /// The time between two unanswered probes. Default 15 s.
    #[doc(alias = "TCP_KEEPINTVL")]
    pub tcp_keepalive_interval: Duration,
    /// The number of unanswered probes after which the kernel closes the connection. Default 4. On
    /// Linux it applies only if `tcp_user_timeout` is `None`.
    #[doc(alias = "TCP_KEEPCNT")]
    pub tcp_keepalive_retries: u32,
    /// How long data, or probes of `tcp_keepalive`, may stay unacknowledged before the kernel
    /// closes the connection (`TCP_USER_TIMEOUT`, on Linux). Default 150 s; `None` leaves the time
    /// to the kernel, which retransmits for some 15 minutes. The kernel also counts the time during
    /// which a client keeps its window closed, even if the client acknowledges probes, so this
    /// limits how long a client can stop reading. The server raises the timeout above the
    /// `transfer_rate_grace` that its listeners start with, so that the kernel never closes the
    /// connection of a slow reader before the server's own limit does.
    #[doc(alias = "TCP_USER_TIMEOUT")]
    pub tcp_user_timeout: Option<Duration>,
    /// The size of the kernel's receive buffer (`SO_RCVBUF`). Default `None`: the kernel chooses it
    /// and adapts it to the connection.
    #[doc(alias = "SO_RCVBUF")]
    #[doc(alias = "rcvbuf")]
    pub receive_buffer_bytes: Option<usize>,
    /// The size of the kernel's send buffer (`SO_SNDBUF`). Default `None`: the kernel chooses it
    /// and adapts it to the connection.
    #[doc(alias = "SO_SNDBUF")]
    #[doc(alias = "sndbuf")]
    pub send_buffer_bytes: Option<usize>,
    /// Whether an IPv6 address accepts only IPv6. Default false: `[::]` accepts IPv4 too.
    #[doc(alias = "IPV6_V6ONLY")]
    pub ipv6_only: bool,
    /// Whether all workers accept from one queue of an address. Default false: on Linux and Android
    /// each worker has a separate queue (`SO_REUSEPORT`), among which the kernel distributes
    /// connections evenly. Other systems do not distribute them, so there is always one queue, and
    /// the first worker to accept gets the connection.
    ///
    /// In both cases a worker that has more connections than the others passes new ones on. With
    /// one queue, a busy worker leaves connections to the others in the first place, but accepting
    /// costs more CPU time if there are many new connections per second.
    #[doc(alias = "SO_REUSEPORT")]
    #[doc(alias = "reuseport")]
    pub shared_accept_queue: bool,
}

/// The maximum of `TCP_USER_TIMEOUT`: milliseconds in a signed 32-bit number.
const USER_TIMEOUT_MAX: Duration = Duration::from_millis(i32::MAX.unsigned_abs() as u64);

impl SocketOptions {
    /// `tcp_user_timeout`, limited to what the kernel supports.
    #[must_use]
    pub fn tcp_user_timeout_clamped(&self) -> Option<Duration> {
        self.tcp_user_timeout.map(|time| time.min(USER_TIMEOUT_MAX))
    }
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            backlog: 4096,
            nodelay: true,
            notsent_lowat_bytes: 64 * 1024,
            tcp_keepalive: Some(Duration::from_secs(15)),
            tcp_keepalive_interval: Duration::from_secs(15),
            tcp_keepalive_retries: 4,
            tcp_user_timeout: Some(Duration::from_secs(150)),
            receive_buffer_bytes: None,
            send_buffer_bytes: None,
            ipv6_only: false,
            shared_accept_queue: false,
        }
    }
}
