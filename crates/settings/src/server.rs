//! The configuration tree.
//!
//! Operators read the doc comments of the fields, which appear in the JSON schema and in the
//! guide's commented configuration file.

use super::access_log::{AccessLogConfig, LoggingConfig};
use super::layering::{inherit_server_sections, layers, normalize_header_names, with_location};
use super::tls::TlsSection;
use super::traces::TraceSection;
use peregrine_config::{
    AutoCount, ByteSize, ConfigError, ConfigLoader, HumanDuration, OptionalByteSize, OptionalCount,
    OptionalDuration, OptionalFileMode, OptionalString,
};
use peregrine_driver::{Options, SocketOptions};
use peregrine_server::Limits;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

/// All settings of a server. [The module](super) describes their sources and precedence.
///
/// To add a setting, add a field with a doc comment and a default. Tests then report the other
/// places that must be updated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ServerConfig {
    /// The number of worker threads, or `auto` for one per core that the process may use.
    #[serde(with = "AutoCount")]
    pub workers: Option<NonZeroUsize>,
    /// Pins each worker thread to its own core.
    pub pin_workers: bool,
    /// Suppresses the startup line and the final report on stderr. If a `tracing` subscriber is
    /// installed, both are logged instead, and this setting has no effect.
    pub quiet: bool,
    /// Listeners, by a name of your choice.
    pub listeners: BTreeMap<String, ListenerConfig>,
    /// TLS settings of listeners that have `https = true` and no `tls` section.
    pub tls: TlsSection,
    /// Proxies that are trusted to report client addresses. Applied on reload.
    pub trusted_proxies: TrustedProxiesConfig,
    /// Limits and timeouts. Applied on reload, except `blocking_poll_threshold`,
    /// `lame_duck_period`, `shutdown_timeout` and `background_task_timeout`.
    pub limits: Limits,
    /// The I/O driver.
    pub driver: DriverConfig,
    /// Socket options.
    pub sockets: SocketsConfig,
    /// The program's log. Applied on reload if the program supports it.
    pub logging: LoggingConfig,
    /// The access log: one line per request.
    pub access_log: AccessLogConfig,
    /// Traces of requests, and the collector that receives them.
    pub traces: TraceSection,
    /// The listener for operators: metrics, probes, and this configuration.
    pub admin: AdminConfig,
    /// In-place upgrades. Linux only.
    pub restart: RestartConfig,
    /// The sources from which the configuration was read.
    #[serde(skip)]
    pub(crate) source: Option<ConfigSource>,
}

/// The sources that a reload reads again.
#[derive(Clone, Debug)]
pub struct ConfigSource {
    /// The file and the environment variables.
    pub layers: ConfigLoader,
    /// The settings in code.
    pub defaults: Box<ServerConfig>,
}

/// All sources are equal, so that a comparison of configurations compares only their settings.
impl PartialEq for ConfigSource {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl ServerConfig {
    /// Reads a TOML file, which must exist, and then environment variables. They override the
    /// defaults. A reload reads the file and the variables again.
    ///
    /// # Errors
    /// A [`ConfigError`] names the file and line or the variable, the setting, and what was
    /// expected.
    pub fn load(path: impl Into<PathBuf>) -> Result<Self, ConfigError> {
        Self::load_over(Self::default(), path)
    }

    /// Like [`load`](Self::load), but with the settings in `code` instead of the defaults.
    ///
    /// # Errors
    /// See [`load`](Self::load).
    pub fn load_over(code: Self, path: impl Into<PathBuf>) -> Result<Self, ConfigError> {
        Self::from_layers(code, layers().file(path).env())
    }

    /// Reads only environment variables. They override the settings in `code`.
    ///
    /// # Errors
    /// See [`load`](Self::load).
    pub fn from_env(code: Self) -> Result<Self, ConfigError> {
        Self::from_layers(code, layers().env())
    }

    /// Reads custom layers, for example with another prefix for variables, or without variables.
    ///
    /// # Errors
    /// See [`load`](Self::load).
    pub fn from_layers(code: Self, layers: ConfigLoader) -> Result<Self, ConfigError> {
        let (mut tree_with_locations, mut server_wide_error) = (None, None);
        let config: Self = layers.load_with_overrides(&code, |tree| {
            server_wide_error = super::validate::check_server_wide(tree);
            inherit_server_sections(tree);
            normalize_header_names(tree);
            tree_with_locations = Some(tree.clone());
        })?;
        if let Some(error) = server_wide_error {
            return Err(error);
        }
        config.validate().map_err(|error| with_location(error, tree_with_locations.as_ref()))?;
        Ok(Self { source: Some(ConfigSource { layers, defaults: Box::new(code) }), ..config })
    }

    /// Returns the sources from which the configuration was read, if it was not built in code.
    #[doc(hidden)]
    #[must_use]
    pub fn source(&self) -> Option<&ConfigSource> {
        self.source.as_ref()
    }
}

/// A listener.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ListenerConfig {
    /// The address: `127.0.0.1:8080`, `[::]:80`, `localhost:3000`, or `unix:/run/app.sock`. With
    /// `activated`, the address to use if the service manager passed no sockets at all.
    #[serde(with = "OptionalString")]
    pub address: Option<String>,
    /// The name of sockets passed by a service manager (`FileDescriptorName=` of systemd). Linux
    /// only.
    #[serde(with = "OptionalString")]
    pub activated: Option<String>,
    /// Permissions of the Unix domain socket's file, as an octal string such as `"0660"`; `off`:
    /// determined by the process's umask. Sockets inherited in an upgrade or from a service manager
    /// are not changed.
    #[serde(with = "OptionalFileMode")]
    pub unix_mode: Option<u32>,
    /// The owner of the socket file, by name or number; `off`: the user that runs the server. Only
    /// root can change the owner.
    #[serde(with = "OptionalString")]
    pub unix_owner: Option<String>,
    /// The group of the socket file, by name or number; `off`: the group that runs the server.
    #[serde(with = "OptionalString")]
    pub unix_group: Option<String>,
    /// Whether the listener uses TLS.
    pub https: bool,
    /// TLS settings of this listener. Settings that are left out are inherited from the server's
    /// `tls` section.
    pub tls: Option<TlsSection>,
    /// Limits of this listener. Settings that are left out are inherited from the server's `limits`
    /// section. The listener then counts its connections separately.
    pub limits: Option<Limits>,
    /// Trusted proxies of this listener. Settings that are left out are inherited from the server's
    /// `trusted_proxies` section.
    pub trusted_proxies: Option<TrustedProxiesConfig>,
    /// Whether connections start with a PROXY protocol header.
    pub proxy_protocol: ProxyProtocolConfig,
}

/// Proxies that are trusted to report client addresses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct TrustedProxiesConfig {
    /// Addresses (`10.0.0.7`) and networks (`10.0.0.0/8`) of the proxies, and `unix:` for all
    /// clients of Unix domain sockets.
    pub networks: Vec<String>,
    /// The number of proxies in front of the server, at any addresses, if clients can reach it only
    /// through them. Use it in place of `networks`.
    #[serde(with = "OptionalCount")]
    pub hops: Option<usize>,
    /// The maximum number of proxies in a chain to trust.
    #[serde(with = "OptionalCount")]
    pub hops_max: Option<usize>,
    /// The header fields that the proxies write: `x-forwarded`, or `forwarded` (RFC 7239).
    pub header: ForwardedHeader,
    /// Also reads `X-Forwarded-Host` and `X-Forwarded-Port`. The proxies must set or remove them.
    pub x_forwarded_host: bool,
    /// Also reads `X-Forwarded-Prefix`. The proxies must set or remove it.
    pub x_forwarded_prefix: bool,
}

/// The header fields that trusted proxies write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ForwardedHeader {
    /// `X-Forwarded-For` and `X-Forwarded-Proto`.
    #[default]
    XForwarded,
    /// `Forwarded`.
    Forwarded,
}

/// Whether a listener's connections start with a PROXY protocol header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ProxyProtocolConfig {
    /// `off`, `required`, or `optional`.
    pub mode: ProxyProtocolMode,
    /// Peers that may send a header: addresses, networks, and `unix:`. Default with `required`:
    /// this machine, private networks, and Unix domain sockets.
    pub trusted: Vec<String>,
    /// The maximum length of a version 2 header.
    #[serde(with = "ByteSize")]
    pub header_bytes_max: usize,
}

impl Default for ProxyProtocolConfig {
    fn default() -> Self {
        Self { mode: ProxyProtocolMode::Off, trusted: Vec::new(), header_bytes_max: 4096 }
    }
}

/// Whether connections start with a PROXY protocol header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ProxyProtocolMode {
    /// No header is read.
    #[default]
    #[serde(alias = "none")]
    Off,
    /// Every connection starts with a header.
    Required,
    /// Connections from trusted peers may start with a header.
    Optional,
}

/// Settings of the I/O driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct DriverConfig {
    /// `auto`: io_uring if the kernel allows it, otherwise tokio. `uring`: io_uring, or an error at
    /// startup. `tokio`: tokio. The environment variable `PEREGRINE_DRIVER` overrides this setting.
    pub kind: DriverKind,
    /// Receive buffers shared by all connections of a worker: a power of two from 16 to 32,768.
    pub receive_buffers: u32,
    /// The size of a receive buffer, from 512 B to 64 KiB.
    #[serde(with = "ByteSize")]
    pub receive_buffer_bytes: usize,
    /// The number of unread receive buffers that one connection may hold before the driver stops
    /// receiving for it.
    pub read_ahead_buffers_max: usize,
    /// The size of a receive on a connection that fills its buffers, from 4 KiB to 1 MiB.
    #[serde(with = "ByteSize")]
    pub large_receive_bytes: usize,
    /// How long to poll for completions before sleeping in the kernel. It trades idle CPU time for
    /// lower latency. Only with io_uring.
    #[serde(with = "HumanDuration")]
    pub busy_poll: Duration,
}

/// The I/O driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DriverKind {
    /// io_uring if the kernel allows it, otherwise tokio.
    #[default]
    Auto,
    /// io_uring.
    Uring,
    /// tokio.
    Tokio,
}

impl Default for DriverConfig {
    fn default() -> Self {
        // Names every field, so that a new option cannot be forgotten. `socket_options` has its own
        // section (`sockets`), and `pin_workers` sets `cpu`.
        let Options {
            receive_buffers,
            receive_buffer_bytes,
            read_ahead_buffers_max,
            large_receive_bytes,
            busy_poll_us,
            cpu: _,
            socket_options: _,
            metrics: _,
        } = Options::default();
        Self {
            kind: DriverKind::Auto,
            receive_buffers,
            receive_buffer_bytes,
            read_ahead_buffers_max,
            large_receive_bytes,
            busy_poll: Duration::from_micros(busy_poll_us.into()),
        }
    }
}

/// Options of listening sockets and their connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct SocketsConfig {
    /// The maximum number of connections waiting in the kernel to be accepted. The kernel may lower
    /// it (`net.core.somaxconn`).
    pub backlog: u32,
    /// Sends small segments immediately (`TCP_NODELAY`).
    pub nodelay: bool,
    /// The maximum number of unsent bytes that the kernel buffers per connection
    /// (`TCP_NOTSENT_LOWAT`).
    #[serde(with = "ByteSize")]
    pub notsent_lowat_bytes: u32,
    /// How long a connection may be idle before the kernel sends keep-alive probes (`SO_KEEPALIVE`,
    /// `TCP_KEEPIDLE`).
    #[serde(with = "OptionalDuration")]
    pub tcp_keepalive: Option<Duration>,
    /// The time between two unanswered probes.
    #[serde(with = "HumanDuration")]
    pub tcp_keepalive_interval: Duration,
    /// The number of unanswered probes after which the kernel closes the connection. On Linux, only
    /// used with `tcp_user_timeout = "off"`.
    pub tcp_keepalive_retries: u32,
    /// How long data or probes may stay unacknowledged, or the client's receive window closed,
    /// before the kernel closes the connection (`TCP_USER_TIMEOUT`, on Linux). The server raises it
    /// above `transfer_rate_grace`.
    #[serde(with = "OptionalDuration")]
    pub tcp_user_timeout: Option<Duration>,
    /// The size of the kernel's receive buffer (`SO_RCVBUF`); `off`: chosen by the kernel.
    #[serde(with = "OptionalByteSize")]
    pub receive_buffer_bytes: Option<usize>,
    /// The size of the kernel's send buffer (`SO_SNDBUF`); `off`: chosen by the kernel.
    #[serde(with = "OptionalByteSize")]
    pub send_buffer_bytes: Option<usize>,
    /// Whether IPv6 addresses accept only IPv6. Otherwise `[::]` also accepts IPv4.
    pub ipv6_only: bool,
    /// Whether all workers accept from one queue per address, as they always do on systems other
    /// than Linux. See the guide.
    pub shared_accept_queue: bool,
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
            notsent_lowat_bytes,
            tcp_keepalive,
            tcp_keepalive_interval,
            tcp_keepalive_retries,
            tcp_user_timeout,
            receive_buffer_bytes,
            send_buffer_bytes,
            ipv6_only,
            shared_accept_queue,
        } = options;
        Self {
            backlog,
            nodelay,
            notsent_lowat_bytes,
            tcp_keepalive,
            tcp_keepalive_interval,
            tcp_keepalive_retries,
            tcp_user_timeout,
            receive_buffer_bytes,
            send_buffer_bytes,
            ipv6_only,
            shared_accept_queue,
        }
    }
}

/// The listener for operators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct AdminConfig {
    /// The address: `127.0.0.1:9000`, `unix:/run/app/admin.sock`, or `off`. Anyone who can connect
    /// to it can read everything it shows.
    #[serde(with = "OptionalString")]
    pub address: Option<String>,
    /// How long a handler may block a worker's thread before `/livez` responds with 503.
    #[serde(with = "HumanDuration")]
    pub liveness_threshold: Duration,
    /// Permissions of the Unix domain socket's file, as an octal string such as `"0660"`; `off`:
    /// determined by the process's umask. Inherited sockets are not changed.
    #[serde(with = "OptionalFileMode")]
    pub unix_mode: Option<u32>,
    /// The owner of the socket file, by name or number; `off`: the user that runs the server. Only
    /// root can change the owner.
    #[serde(with = "OptionalString")]
    pub unix_owner: Option<String>,
    /// The group of the socket file, by name or number; `off`: the group that runs the server.
    #[serde(with = "OptionalString")]
    pub unix_group: Option<String>,
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self {
            address: None,
            liveness_threshold: Duration::from_secs(30),
            unix_mode: None,
            unix_owner: None,
            unix_group: None,
        }
    }
}

/// In-place upgrades.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RestartConfig {
    /// Whether SIGUSR2 starts a new process of the program, which takes over once it serves.
    pub upgrade_on_sigusr2: bool,
    /// How long the new process may take to start serving. After that it is killed, and this
    /// process keeps serving.
    #[serde(with = "HumanDuration")]
    pub upgrade_timeout: Duration,
    /// The program to start in an upgrade; `off`: this program.
    #[serde(with = "OptionalString")]
    pub program: Option<String>,
}

impl Default for RestartConfig {
    fn default() -> Self {
        Self { upgrade_on_sigusr2: true, upgrade_timeout: Duration::from_secs(60), program: None }
    }
}
