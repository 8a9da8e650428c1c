//! The tree.
//!
//! The comments of its fields are what operators read: they are in the JSON schema, and in the guide's commented file.

use super::access_log::AccessLogConfig;
use super::layering::{inherit, layers, name_fields, placed};
use super::tls::TlsConfig;
use super::traces::TracesConfig;
use peregrine_config::{
    Automatic, ConfigError, Layers, MaybeCount, MaybeMode, MaybeSize, MaybeText, MaybeTime, Size,
    Time,
};
use peregrine_driver::{Options, SocketOptions};
use peregrine_server::Limits;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

/// All settings of a server. See [the module](super) for where they are said, and which one counts.
///
/// To add one, add a field with a comment and a default: it is read, printed, checked for typing errors, told of by a
/// reload as one that needs a restart, and in the schema. `tests/` say what else must follow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ServerConfig {
    /// Workers, each with its own thread: a number, or `auto` for as many as the cores that the process may use.
    #[serde(with = "Automatic")]
    pub workers: Option<NonZeroUsize>,
    /// Keeps each worker's thread on its own core.
    pub pin_workers: bool,
    /// Suppresses the line at the start and the report at the end, where no log takes them.
    pub quiet: bool,
    /// Where to listen, each place by a name that is for people.
    pub listeners: BTreeMap<String, ListenerConfig>,
    /// TLS of listeners with `https = true` that have no section `tls` of their own.
    pub tls: TlsConfig,
    /// Proxies whose word counts about who sent a request. A reload changes them.
    pub trusted_proxies: ProxiesConfig,
    /// Limits and timeouts. A reload changes them, but for `poll_budget`, `lame_duck`, `shutdown_timeout` and
    /// `background_timeout`.
    pub limits: Limits,
    /// The driver: how workers speak with the kernel.
    pub driver: DriverConfig,
    /// Options of sockets.
    pub sockets: SocketsConfig,
    /// What is logged. A reload changes it, where the program listens to that.
    pub logs: LogsConfig,
    /// The access log: a line for each request.
    pub access_log: AccessLogConfig,
    /// Traces of requests, and the collector that they are sent to.
    pub traces: TracesConfig,
    /// The listener for those who run the server: metrics, probes, this configuration.
    pub admin: AdminConfig,
    /// Upgrades in place, and the service manager. On Linux.
    pub restart: RestartConfig,
    /// Where this was read.
    #[serde(skip)]
    pub(crate) source: Option<Source>,
}

/// What a reload reads again.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file and the environment.
    pub layers: Layers,
    /// What the program said.
    pub code: Box<ServerConfig>,
}

/// Where it was read is no setting.
impl PartialEq for Source {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl ServerConfig {
    /// Reads a file of TOML, which must be there, and then the environment, over the defaults. A reload reads them
    /// again.
    ///
    /// # Errors
    /// A [`ConfigError`] names the file and its line, or the variable; the setting; and what was expected.
    pub fn load(path: impl Into<PathBuf>) -> Result<Self, ConfigError> {
        Self::load_over(Self::default(), path)
    }

    /// The same over what the program says, which is weaker than the file.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_over(code: Self, path: impl Into<PathBuf>) -> Result<Self, ConfigError> {
        Self::read(code, layers().file(path).environment())
    }

    /// Reads the environment alone, over what the program says.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn from_environment(code: Self) -> Result<Self, ConfigError> {
        Self::read(code, layers().environment())
    }

    /// Reads other layers: variables with another prefix, or none.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn read(code: Self, layers: Layers) -> Result<Self, ConfigError> {
        let (mut said, mut misplaced) = (None, None);
        let read: Self = layers.load_with(&code, |tree| {
            misplaced = super::validate::of_the_server(tree);
            inherit(tree);
            name_fields(tree);
            said = Some(tree.clone());
        })?;
        if let Some(error) = misplaced {
            return Err(error);
        }
        read.check().map_err(|error| placed(error, said.as_ref()))?;
        Ok(Self { source: Some(Source { layers, code: Box::new(code) }), ..read })
    }

    /// Where it was read, if it was.
    #[doc(hidden)]
    #[must_use]
    pub fn source(&self) -> Option<&Source> {
        self.source.as_ref()
    }
}

/// One place to listen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ListenerConfig {
    /// Where: `127.0.0.1:8080`, `[::]:80`, `localhost:3000`, or `unix:/run/app.sock`. With `activated`, where to
    /// listen if the service manager made no sockets at all.
    #[serde(with = "MaybeText")]
    pub address: Option<String>,
    /// The name of sockets that a service manager made (`FileDescriptorName=` of systemd). On Linux.
    #[serde(with = "MaybeText")]
    pub activated: Option<String>,
    /// Who may connect to a Unix domain socket: the mode of its file in octal, as a text such as `"0660"`; `off`: as the
    /// process's umask leaves it. A socket that was handed over, by an upgrade or by a service manager, stays as it is.
    #[serde(with = "MaybeMode")]
    pub unix_mode: Option<u32>,
    /// The user whom that file belongs to, by name or number; `off`: who runs the server. Only root may give files away.
    #[serde(with = "MaybeText")]
    pub unix_owner: Option<String>,
    /// The group that it belongs to, by name or number; `off`: that of who runs the server.
    #[serde(with = "MaybeText")]
    pub unix_group: Option<String>,
    /// Whether TLS is spoken there.
    pub https: bool,
    /// TLS of this place alone; what is not said is as in the server's section `tls`.
    pub tls: Option<TlsConfig>,
    /// Limits of this place alone; what is not said is as in the server's section `limits`. Its connections are counted
    /// apart then.
    pub limits: Option<Limits>,
    /// Trusted proxies of this place alone; what is not said is as in the server's section `trusted_proxies`.
    pub trusted_proxies: Option<ProxiesConfig>,
    /// Whether connections begin with a PROXY header.
    pub proxy_protocol: ProxyProtocolConfig,
}

/// Proxies whose word counts about who sent a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ProxiesConfig {
    /// Their addresses (`10.0.0.7`), networks (`10.0.0.0/8`), and `unix:` for whoever connects to a Unix domain socket.
    pub from: Vec<String>,
    /// So many proxies, at whatever addresses, for a server that nobody else can reach: in place of `from`.
    #[serde(with = "MaybeCount")]
    pub hops: Option<usize>,
    /// At most so many of them are believed.
    #[serde(with = "MaybeCount")]
    pub hops_max: Option<usize>,
    /// The fields that they write: `x-forwarded`, or `forwarded` (RFC 7239).
    pub field: Field,
    /// Reads `X-Forwarded-Host` and `X-Forwarded-Port` too. The proxies must set them or remove them.
    pub host: bool,
    /// Reads `X-Forwarded-Prefix` too. The proxies must set it or remove it.
    pub prefix: bool,
}

/// The fields that trusted proxies write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Field {
    /// `X-Forwarded-For` and `X-Forwarded-Proto`.
    #[default]
    XForwarded,
    /// `Forwarded`.
    Forwarded,
}

/// Whether connections of a listener begin with a PROXY header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ProxyProtocolConfig {
    /// `off`, `required`, or `optional`.
    pub mode: ProxyHeader,
    /// Who may send one: addresses, networks, and `unix:`. Without any, where it is required: this machine, private
    /// networks and Unix domain sockets.
    pub from: Vec<String>,
    /// The longest header of version 2 that is read.
    #[serde(with = "Size")]
    pub header_bytes_max: usize,
}

impl Default for ProxyProtocolConfig {
    fn default() -> Self {
        Self { mode: ProxyHeader::Off, from: Vec::new(), header_bytes_max: 4096 }
    }
}

/// Whether there is a PROXY header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ProxyHeader {
    /// None is read.
    #[default]
    #[serde(alias = "none")]
    Off,
    /// Every connection begins with one.
    Required,
    /// Connections from whom is trusted may.
    Optional,
}

/// The driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct DriverConfig {
    /// `auto`: io_uring where the kernel allows it, else tokio. `uring`, or an error. `tokio`. The variable
    /// `PEREGRINE_DRIVER` says the same.
    pub kind: DriverKind,
    /// Receive buffers shared by all connections of a worker: a power of two from 16 to 32,768.
    pub receive_buffers: u32,
    /// Bytes of one of them, from 512 B to 64 KiB.
    #[serde(with = "Size")]
    pub receive_buffer_bytes: usize,
    /// Unread ones that one connection may have before the driver stops receiving for it.
    pub receive_ahead_max: usize,
    /// Bytes of a receive on a connection that fills its buffers, from 4 KiB to 1 MiB.
    #[serde(with = "Size")]
    pub receive_large_bytes: usize,
    /// How long to look for completions before sleeping in the kernel. Spends idle CPU to lower latency. With io_uring.
    #[serde(with = "Time")]
    pub spin: Duration,
}

/// Which driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DriverKind {
    /// io_uring where the kernel allows it, else tokio.
    #[default]
    Auto,
    /// io_uring.
    Uring,
    /// tokio.
    Tokio,
}

impl Default for DriverConfig {
    fn default() -> Self {
        // Each of its fields has a place in the tree: `sockets` are a section, `cpu` is `pin_workers`.
        let Options {
            receive_buffers,
            receive_buffer_bytes,
            receive_ahead_max,
            receive_large_bytes,
            spin_us,
            cpu: _,
            sockets: _,
            figures: _,
        } = Options::default();
        Self {
            kind: DriverKind::Auto,
            receive_buffers,
            receive_buffer_bytes,
            receive_ahead_max,
            receive_large_bytes,
            spin: Duration::from_micros(spin_us.into()),
        }
    }
}

/// Options of the sockets that the server listens on, and of their connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct SocketsConfig {
    /// Connections that may wait in the kernel before they are accepted; it may allow fewer (`net.core.somaxconn`).
    pub backlog: u32,
    /// Sends small segments at once (`TCP_NODELAY`).
    pub nodelay: bool,
    /// Bytes that the kernel takes of a connection beyond those it can send (`TCP_NOTSENT_LOWAT`).
    #[serde(with = "Size")]
    pub unsent_bytes_max: u32,
    /// How long a connection may be silent before the kernel probes whether the peer is still there
    /// (`SO_KEEPALIVE`, `TCP_KEEPIDLE`).
    #[serde(with = "MaybeTime")]
    pub keep_alive: Option<Duration>,
    /// The time between two unanswered probes.
    #[serde(with = "Time")]
    pub keep_alive_interval: Duration,
    /// Unanswered probes after which the kernel breaks the connection. On Linux it counts only with
    /// `user_timeout = "off"`.
    pub keep_alive_probes: u32,
    /// How long data, or probes, may stay unacknowledged before the kernel breaks the connection
    /// (`TCP_USER_TIMEOUT`, on Linux), and how long a client may keep its window closed. The server
    /// raises it above `rate_slack`.
    #[serde(with = "MaybeTime")]
    pub user_timeout: Option<Duration>,
    /// The kernel's buffer for what a peer sent (`SO_RCVBUF`); `off`: as large as it finds right.
    #[serde(with = "MaybeSize")]
    pub receive_buffer_bytes: Option<usize>,
    /// The kernel's buffer for what is to be sent (`SO_SNDBUF`); `off`: as large as it finds right.
    #[serde(with = "MaybeSize")]
    pub send_buffer_bytes: Option<usize>,
    /// Whether an address of IPv6 means IPv6 alone: otherwise `[::]` means IPv4 too.
    pub ipv6_only: bool,
    /// Whether all workers accept from one queue of an address, as they always do on other systems than Linux. See the
    /// guide.
    pub one_queue: bool,
}

impl Default for SocketsConfig {
    fn default() -> Self {
        SocketOptions::default().into()
    }
}

impl From<SocketOptions> for SocketsConfig {
    fn from(options: SocketOptions) -> Self {
        let SocketOptions {
            backlog,
            nodelay,
            unsent_bytes_max,
            keep_alive,
            keep_alive_interval,
            keep_alive_probes,
            user_timeout,
            receive_buffer_bytes,
            send_buffer_bytes,
            ipv6_only,
            one_queue,
        } = options;
        Self {
            backlog,
            nodelay,
            unsent_bytes_max,
            keep_alive,
            keep_alive_interval,
            keep_alive_probes,
            user_timeout,
            receive_buffer_bytes,
            send_buffer_bytes,
            ipv6_only,
            one_queue,
        }
    }
}

/// What is logged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct LogsConfig {
    /// What the program's log has, as `tracing-subscriber` reads it: `info`, or `info,peregrine=debug`. The program
    /// gives it to its subscriber.
    pub level: String,
}

impl Default for LogsConfig {
    fn default() -> Self {
        Self { level: "info".to_owned() }
    }
}

/// The listener for those who run the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct AdminConfig {
    /// Where: `127.0.0.1:9000`, `unix:/run/app/admin.sock`, or `off`. Whoever reaches it may know everything it tells.
    #[serde(with = "MaybeText")]
    pub address: Option<String>,
    /// How long a handler may keep a worker's thread before `/livez` says 503.
    #[serde(with = "Time")]
    pub live_within: Duration,
    /// Who may connect to a Unix domain socket: the mode of its file in octal, as a text such as `"0660"`; `off`: as the
    /// process's umask leaves it. A socket that was handed over stays as it is.
    #[serde(with = "MaybeMode")]
    pub unix_mode: Option<u32>,
    /// The user whom that file belongs to, by name or number; `off`: who runs the server. Only root may give files away.
    #[serde(with = "MaybeText")]
    pub unix_owner: Option<String>,
    /// The group that it belongs to, by name or number; `off`: that of who runs the server.
    #[serde(with = "MaybeText")]
    pub unix_group: Option<String>,
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self {
            address: None,
            live_within: Duration::from_secs(30),
            unix_mode: None,
            unix_owner: None,
            unix_group: None,
        }
    }
}

/// Upgrades in place, and the service manager.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RestartConfig {
    /// Whether SIGUSR2 starts the program again, which takes over when it serves.
    pub upgrade_at_signal: bool,
    /// How long it may take until it serves. Passing it: it is killed, and this process goes on.
    #[serde(with = "Time")]
    pub upgrade_timeout: Duration,
    /// What is started in place of this program; `off`: the same again.
    #[serde(with = "MaybeText")]
    pub program: Option<String>,
}

impl Default for RestartConfig {
    fn default() -> Self {
        let upgrade_timeout = Duration::from_secs(60);
        Self { upgrade_at_signal: true, upgrade_timeout, program: None }
    }
}
