//! [`Listener`]: one listen address and the settings of its connections.

use crate::error::Error;
use crate::listen::socket_file::SocketFilePermissions;
use peregrine_driver::Socket;
use peregrine_restart::internal::TicketSecrets;
use peregrine_server::{BoundListener, Limits, ProxyProtocol, ReloadableConfig, SocketSharing};
#[cfg(feature = "tls")]
use peregrine_tls::TicketKeys;
use peregrine_tls::TlsConfig;
use peregrine_web::TrustedProxies;
#[cfg(feature = "tls")]
use peregrine_web::panic::catch_subscriber_panic;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;
use tokio::sync::watch;

/// One listen address and the settings of its connections: TLS, limits, PROXY headers and trusted
/// proxies.
///
/// ```
/// use peregrine::{Limits, Listener, ProxyProtocol, Server};
///
/// let limits = Limits { connections_max: 1000, ..Limits::default() };
/// let server = Server::bind("0.0.0.0:80")
///     .listen(Listener::bind("0.0.0.0:8080").limits(limits))
///     .listen(Listener::bind("10.0.0.1:81").proxy_protocol(ProxyProtocol::required()))
///     .listen(Listener::bind("unix:/run/app.sock").trusted_proxies(["unix:"]));
/// # let _ = server;
/// ```
#[derive(Debug)]
#[must_use = "a listener does nothing until it is passed to `Server::listen`"]
pub struct Listener {
    source: ListenSource,
    permissions: SocketFilePermissions,
    tls: Option<TlsConfig>,
    limits: Option<Limits>,
    proxy_protocol: Option<ProxyProtocol>,
    trusted_proxies: Option<TrustedProxies>,
    /// The channel for the limits and trusted proxies, if reloads can change them.
    updates: Option<watch::Receiver<ReloadableConfig>>,
}

/// The source of a listener's sockets.
#[derive(Debug)]
pub(crate) enum ListenSource {
    Address(String),
    /// A socket bound elsewhere, which the program passed.
    FromProgram(Socket),
    /// The name of sockets from the service manager, and the address to bind if it passed no
    /// sockets.
    #[cfg(all(target_os = "linux", feature = "restart"))]
    Activated(String, Option<String>),
}

impl ListenSource {
    /// Returns the address that this process itself binds, or would bind if the service manager
    /// passed no sockets.
    pub(crate) fn own_address(&self) -> Option<&str> {
        match self {
            Self::Address(address) => Some(address),
            Self::FromProgram(_) => None,
            #[cfg(all(target_os = "linux", feature = "restart"))]
            Self::Activated(_, address) => address.as_deref(),
        }
    }
}

impl Listener {
    /// Listens for plain HTTP at `address`: `127.0.0.1:8080`, `[::]:80`, `localhost:3000`, or
    /// `unix:/run/app.sock`. Port 0 selects any free port.
    #[doc(alias = "new")]
    pub fn bind(address: impl Into<String>) -> Self {
        Self::new(ListenSource::Address(address.into()))
    }

    /// Listens on the sockets called `name` that a service manager created; see
    /// `Server::listen_activated`.
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub fn activated(name: impl Into<String>) -> Self {
        Self::new(ListenSource::Activated(name.into(), None))
    }

    /// Like [`activated`](Self::activated), but binds `address` if no sockets at all were passed to
    /// this process.
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub fn activated_or(name: impl Into<String>, address: impl Into<String>) -> Self {
        Self::new(ListenSource::Activated(name.into(), Some(address.into())))
    }

    /// Returns this listener's current `transfer_rate_grace`; `None` if the server's applies.
    #[doc(hidden)]
    #[must_use]
    pub fn transfer_rate_grace(&self) -> Option<Duration> {
        let current =
            self.updates.as_ref().map(|updates| updates.borrow().limits.transfer_rate_grace);
        current.or_else(|| self.limits.as_ref().map(|limits| limits.transfer_rate_grace))
    }

    fn new(source: ListenSource) -> Self {
        Self {
            source,
            permissions: SocketFilePermissions::default(),
            tls: None,
            limits: None,
            proxy_protocol: None,
            trusted_proxies: None,
            updates: None,
        }
    }

    /// Sets the mode of a Unix domain socket's file, such as `0o660`. Users with write permission
    /// can connect. By default the process's umask determines the mode. The mode is set before any
    /// peer can connect. The files of sockets inherited through an upgrade in place or from a
    /// service manager are not changed.
    pub fn unix_mode(mut self, mode: u32) -> Self {
        self.permissions.mode = Some(mode);
        self
    }

    /// Sets the owner of a Unix domain socket's file, by user name or id. Only root can change
    /// owners.
    pub fn unix_owner(mut self, user: impl Into<String>) -> Self {
        self.permissions.user = Some(user.into());
        self
    }

    /// Sets the group of a Unix domain socket's file, by name or id. It must be a group that this
    /// process is in, unless the process runs as root.
    pub fn unix_group(mut self, group: impl Into<String>) -> Self {
        self.permissions.group = Some(group.into());
        self
    }

    /// Makes the listener serve HTTPS. Requires the feature `tls`, which is on by default.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: TlsConfig) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets limits and timeouts for this listener, in place of the server's. Its connections and
    /// handshakes are counted separately (`connections_max`, `handshakes_max`), so that this
    /// listener and the others cannot exhaust each other's limits. Limits of the server as a whole
    /// still come from the server: `blocking_poll_threshold`, `lame_duck_period`,
    /// `shutdown_timeout`, `background_task_timeout` and `overload`.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = Some(limits);
        self
    }

    /// Expects connections to begin with a PROXY header, in which a proxy reports the client's
    /// address; see [`ProxyProtocol`].
    pub fn proxy_protocol(mut self, settings: ProxyProtocol) -> Self {
        self.proxy_protocol = Some(settings);
        self
    }

    /// Sets the trusted proxies for this listener, in place of the server's
    /// (`Server::trusted_proxies`).
    pub fn trusted_proxies(mut self, proxies: impl Into<TrustedProxies>) -> Self {
        self.trusted_proxies = Some(proxies.into());
        self
    }

    /// Makes the limits and trusted proxies follow the latest value of this channel.
    #[cfg(feature = "config")]
    #[doc(hidden)]
    pub fn set_updates(&mut self, updates: watch::Receiver<ReloadableConfig>) {
        self.updates = Some(updates);
    }

    /// Returns the limits and trusted proxies that the program set for this listener, or `None` if
    /// they follow a channel ([`set_updates`](Self::set_updates)).
    #[cfg(feature = "config")]
    #[doc(hidden)]
    #[must_use]
    pub fn own_settings(&self) -> Option<(Option<Limits>, Option<TrustedProxies>)> {
        self.updates.is_none().then(|| (self.limits.clone(), self.trusted_proxies.clone()))
    }

    /// Returns the TLS settings, if this listener uses TLS.
    #[cfg(feature = "tls")]
    #[doc(hidden)]
    #[must_use]
    pub fn tls_config(&self) -> Option<&TlsConfig> {
        self.tls.as_ref()
    }

    /// Whether connections use TLS.
    #[doc(hidden)]
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Checks the settings and separates them from the source. `server_proxies` are used if this
    /// listener has no trusted proxies of its own.
    pub(crate) fn into_parts(
        self,
        server_proxies: Option<&TrustedProxies>,
    ) -> Result<(ListenSource, ListenerSettings), Error> {
        let trusted_proxies = self.trusted_proxies.or_else(|| server_proxies.cloned());
        let name = || match &self.source {
            ListenSource::Address(address) => address.clone(),
            ListenSource::FromProgram(_) => "(a listener bound elsewhere)".to_owned(),
            #[cfg(all(target_os = "linux", feature = "restart"))]
            ListenSource::Activated(socket_name, _) => socket_name.clone(),
        };
        let errors = [
            ("PROXY protocol", self.proxy_protocol.as_ref().and_then(ProxyProtocol::config_error)),
            ("trusted proxies", trusted_proxies.as_ref().and_then(TrustedProxies::config_error)),
        ];
        for (setting, error) in errors {
            if let Some(error) = error {
                return Err(Error::Config(format!("{setting} of {}: {error}", name())));
            }
        }
        self.permissions.validate(self.source.own_address())?;
        let Self { source, permissions, tls, limits, proxy_protocol, updates, .. } = self;
        Ok((
            source,
            ListenerSettings { permissions, tls, limits, proxy_protocol, trusted_proxies, updates },
        ))
    }
}

/// Checks the settings of `listener` and returns them without the source of its sockets.
/// `server_proxies` are used if the listener has no trusted proxies of its own.
///
/// # Errors
/// A setting is invalid.
pub fn into_settings(
    listener: Listener,
    server_proxies: Option<&TrustedProxies>,
) -> Result<ListenerSettings, Error> {
    listener.into_parts(server_proxies).map(|(_, settings)| settings)
}

/// The settings of a listener's connections, on every worker.
pub struct ListenerSettings {
    pub(crate) permissions: SocketFilePermissions,
    tls: Option<TlsConfig>,
    limits: Option<Limits>,
    proxy_protocol: Option<ProxyProtocol>,
    trusted_proxies: Option<TrustedProxies>,
    updates: Option<watch::Receiver<ReloadableConfig>>,
}

impl ListenerSettings {
    /// Whether connections use TLS.
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Replaces the ticket keys, if they were generated at random, with keys from the previous
    /// process's secrets, so that clients can resume their TLS sessions.
    pub(crate) fn inherit_ticket_secrets(&self, TicketSecrets(secrets): &TicketSecrets) {
        #[cfg(feature = "tls")]
        if let (Some(keys), false) = (self.ticket_keys(), secrets.is_empty())
            && let Err(error) = keys.replace_generated_keys(secrets.iter().copied())
        {
            catch_subscriber_panic(
                || tracing::warn!(target: "peregrine", %error, "cannot use the old ticket keys"),
            );
        }
        #[cfg(not(feature = "tls"))]
        let _ = secrets;
    }

    #[cfg(feature = "tls")]
    pub(crate) fn ticket_keys(&self) -> Option<TicketKeys> {
        self.tls.as_ref().and_then(TlsConfig::ticket_keys)
    }

    /// Creates one worker's listener on this socket.
    pub fn bound_listener<S>(&self, socket: S, sharing: SocketSharing) -> BoundListener<S> {
        BoundListener {
            tls: self.tls.clone(),
            sharing,
            limits: self.limits.clone(),
            proxy_protocol: self.proxy_protocol.clone(),
            trusted_proxies: self.trusted_proxies.clone(),
            updates: self.updates.clone(),
            ..BoundListener::new(socket)
        }
    }
}

impl From<&str> for Listener {
    fn from(address: &str) -> Self {
        Self::bind(address)
    }
}

impl From<String> for Listener {
    fn from(address: String) -> Self {
        Self::bind(address)
    }
}

impl From<&String> for Listener {
    fn from(address: &String) -> Self {
        Self::bind(address)
    }
}

impl From<SocketAddr> for Listener {
    fn from(address: SocketAddr) -> Self {
        Self::bind(address.to_string())
    }
}

/// Creates a listener on a socket that was bound elsewhere, for example by a service manager. All
/// workers share it.
impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Socket::from(listener).into()
    }
}

/// Creates a listener on a socket that was bound elsewhere, for example by a service manager. All
/// workers share it, and the server does not remove its file.
#[cfg(unix)]
impl From<std::os::unix::net::UnixListener> for Listener {
    fn from(listener: std::os::unix::net::UnixListener) -> Self {
        Socket::from(listener).into()
    }
}

/// Creates a listener on a socket that was bound elsewhere, for example by a service manager. All
/// workers share it.
impl From<Socket> for Listener {
    fn from(socket: Socket) -> Self {
        Self::new(ListenSource::FromProgram(socket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::listeners::Listeners;
    use peregrine_driver::SocketOptions;

    fn bind_error(listener: Listener, server_proxies: Option<&TrustedProxies>) -> String {
        let (listeners, options) = (vec![listener], SocketOptions::default());
        let result = Listeners::bind(listeners, server_proxies, 1, &options, &mut None);
        result.map(|_| ()).expect_err("the settings are wrong").to_string()
    }

    #[test]
    fn the_startup_error_for_invalid_settings_names_the_address() {
        let with_proxy_protocol = |settings| Listener::bind("127.0.0.1:0").proxy_protocol(settings);
        for (listener, expected) in [
            (with_proxy_protocol(ProxyProtocol::optional()), ".trust("),
            (with_proxy_protocol(ProxyProtocol::required().trust([""; 0])), ".trust("),
            (
                with_proxy_protocol(ProxyProtocol::required().trust(["10.0.0.0/33"])),
                "`10.0.0.0/33`",
            ),
            (Listener::bind("127.0.0.1:0").trusted_proxies(["proxy.local"]), "`proxy.local`"),
            (Listener::bind("127.0.0.1:0").trusted_proxies(TrustedProxies::hops(0)), "0 hops"),
            (Listener::bind("127.0.0.1:0").unix_mode(0o600), "is not a Unix domain socket"),
            (Listener::bind("127.0.0.1:0").unix_group("www"), "is not a Unix domain socket"),
        ] {
            let text = bind_error(listener, None);
            assert!(text.contains(expected) && text.contains("127.0.0.1:0"), "{text}");
        }
        let text = bind_error(Listener::bind("127.0.0.1:0"), Some(&["10.0.0/8"].into()));
        assert!(text.contains("trusted proxies") && text.contains("`10.0.0/8`"), "{text}");
    }

    #[test]
    fn listeners_convert_from_addresses_and_sockets() {
        let address: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let std_listener = TcpListener::bind(address).expect("a free port");
        let string = "127.0.0.1:0".to_owned();
        let listeners =
            [Listener::from("127.0.0.1:0"), (&string).into(), address.into(), std_listener.into()];
        for (listener, is_shared) in listeners.into_iter().zip([false, false, false, true]) {
            let bound =
                Listeners::bind(vec![listener], None, 2, &SocketOptions::default(), &mut None)
                    .expect("the port is free");
            for listeners in bound.per_worker {
                let shared: Vec<_> =
                    listeners.iter().map(|listener| listener.sharing.is_shared()).collect();
                assert_eq!(shared, [is_shared], "each worker has one listener");
            }
        }
    }
}
