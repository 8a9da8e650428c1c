//! A server made of the tree.

use super::reload::Configured;
use super::tree::{
    AdminConfig, DriverKind, Field, ListenerConfig, ProxiesConfig, ProxyHeader,
    ProxyProtocolConfig, ServerConfig,
};
use crate::admin::Admin;
use crate::choice::DriverChoice;
use crate::error::Error;
use crate::listener::Listener;
use crate::server::Server;
use peregrine_config::ConfigError;
use peregrine_driver::{Options, SocketOptions};
use peregrine_server::{Live, ProxyProtocol};
#[cfg(feature = "tls")]
use peregrine_tls::Tls;
use peregrine_web::TrustedProxies;
use tokio::sync::watch;

impl Server {
    /// A server with all settings of the tree: see [`config`](crate::config). Certificates are read now.
    ///
    /// What is called on it afterwards is stronger, and stays as it is when the file is read again.
    /// [`listen`](Self::listen) and the like add to the listeners of the tree; what is not set for these is as the tree
    /// says, also when the file is read again.
    ///
    /// ```no_run
    /// use peregrine::config::ServerConfig;
    /// use peregrine::{Limits, prelude::*};
    /// use std::time::Duration;
    ///
    /// fn main() -> peregrine::Result<()> {
    ///     // Weaker than the file.
    ///     let mut code = ServerConfig::default();
    ///     code.limits.idle_timeout = Duration::from_secs(20);
    ///     let config = ServerConfig::load_over(code, "/etc/app/app.toml")?;
    ///     // The file has no say in the listener of the tests.
    ///     let server = Server::from_config(config)?.listen("127.0.0.1:8081");
    ///     server.serve(|| App::new().get("/", || "hello"))
    /// }
    /// ```
    ///
    /// # Errors
    /// A setting cannot be meant, or a certificate cannot be read.
    pub fn from_config(config: ServerConfig) -> Result<Self, Error> {
        config.check()?;
        let mut server = Self::new()
            .limits(config.limits.clone())
            .driver(config.driver.kind.into())
            .driver_options(config.options())
            .pin_workers(config.pin_workers);
        if let Some(workers) = config.workers {
            server = server.workers(workers);
        }
        if config.quiet {
            server = server.quiet();
        }
        if let Some(proxies) = config.proxies()? {
            server = server.trusted_proxies(proxies);
        }
        if let Some(admin) = config.admin.made() {
            server = server.admin(admin);
        }
        if let Some(log) = config.access_log.made() {
            server = server.access_log(log);
        }
        if let Some(traces) = config.traces.made() {
            server = server.traces(traces);
        }
        #[cfg(feature = "otlp")]
        if let Some(otlp) = crate::otlp::Otlp::from_config(&config) {
            server = server.sending(otlp);
        }
        server = config.watch(config.restart(server))?;
        let mut configured = Configured::new(config.clone());
        #[cfg(feature = "tls")]
        let mut of_server = None;
        for (name, of) in &config.listeners {
            let listener = config.listener(name, of)?;
            #[cfg(feature = "tls")]
            let listener = match config.tls(name, of, &mut of_server)? {
                Some(tls) => listener.tls(tls),
                None => listener,
            };
            let (live, changes) = watch::channel(config.live(name, of)?);
            configured.follow(name, live);
            server = server.listen(listener.live(changes));
        }
        Ok(server.configured(configured))
    }
}

impl ServerConfig {
    fn options(&self) -> Options {
        let of = &self.driver;
        Options {
            receive_buffers: of.receive_buffers,
            receive_buffer_bytes: of.receive_buffer_bytes,
            receive_ahead_max: of.receive_ahead_max,
            receive_large_bytes: of.receive_large_bytes,
            spin_us: u32::try_from(of.spin.as_micros()).unwrap_or(u32::MAX),
            sockets: self.socket_options(),
            ..Options::default()
        }
    }

    pub(super) fn socket_options(&self) -> SocketOptions {
        let of = self.sockets.clone();
        SocketOptions {
            backlog: of.backlog,
            nodelay: of.nodelay,
            unsent_bytes_max: of.unsent_bytes_max,
            keep_alive: of.keep_alive,
            keep_alive_interval: of.keep_alive_interval,
            keep_alive_probes: of.keep_alive_probes,
            user_timeout: of.user_timeout,
            receive_buffer_bytes: of.receive_buffer_bytes,
            send_buffer_bytes: of.send_buffer_bytes,
            ipv6_only: of.ipv6_only,
            one_queue: of.one_queue,
        }
    }

    #[cfg(all(target_os = "linux", feature = "restart"))]
    fn restart(&self, server: Server) -> Server {
        let of = &self.restart;
        let mut successor = peregrine_restart::Successor::new().timeout(of.upgrade_timeout);
        if let Some(program) = &of.program {
            successor = successor.program(program);
        }
        if !of.upgrade_at_signal {
            successor = successor.without_signal();
        }
        server.successor(successor)
    }

    #[cfg(not(all(target_os = "linux", feature = "restart")))]
    fn restart(&self, server: Server) -> Server {
        server
    }

    fn watch(&self, server: Server) -> Result<Server, Error> {
        let own = self.listeners.values().filter_map(|listener| listener.tls.as_ref());
        let is_watched = self.tls.watch || own.into_iter().any(|tls| tls.watch);
        #[cfg(feature = "tls-watch")]
        return Ok(if is_watched { server.watch_certificates() } else { server });
        #[cfg(not(feature = "tls-watch"))]
        match is_watched {
            false => Ok(server),
            true => Err(missing("tls.watch", "tls-watch")),
        }
    }

    fn listener(&self, name: &str, of: &ListenerConfig) -> Result<Listener, Error> {
        let section = |section: &str| format!("listeners.{name}.{section}");
        let mut listener = place(of).ok_or_else(|| missing(&section("activated"), "restart"))?;
        if let Some(limits) = &of.limits {
            listener = listener.limits(limits.clone());
        }
        if let Some(mode) = of.unix_mode {
            listener = listener.unix_mode(mode);
        }
        if let Some(user) = &of.unix_owner {
            listener = listener.unix_owner(user);
        }
        if let Some(group) = &of.unix_group {
            listener = listener.unix_group(group);
        }
        if let Some(proxies) = &of.trusted_proxies {
            // A section that names nobody means nobody.
            let proxies = proxies.made(&section("trusted_proxies"))?;
            listener = listener.trusted_proxies(
                proxies.unwrap_or_else(|| TrustedProxies::at(Vec::<String>::new())),
            );
        }
        if let Some(settings) = of.proxy_protocol.made(&section("proxy_protocol"))? {
            listener = listener.proxy_protocol(settings);
        }
        if of.https && cfg!(not(feature = "tls")) {
            return Err(missing(&section("https"), "tls"));
        }
        Ok(listener)
    }

    /// What the listener speaks TLS with. All that have no section of their own share one.
    #[cfg(feature = "tls")]
    fn tls(
        &self,
        name: &str,
        of: &ListenerConfig,
        of_server: &mut Option<Tls>,
    ) -> Result<Option<Tls>, Error> {
        match (&of.tls, of.https) {
            (_, false) => Ok(None),
            (Some(own), true) => own.make(&format!("listeners.{name}.tls")).map(Some),
            (None, true) => {
                if of_server.is_none() {
                    *of_server = Some(self.tls.make("tls")?);
                }
                Ok(of_server.clone())
            }
        }
    }

    pub(super) fn proxies(&self) -> Result<Option<TrustedProxies>, Error> {
        self.trusted_proxies.made("trusted_proxies")
    }

    /// What a reload may change of a listener.
    pub(super) fn live(&self, name: &str, of: &ListenerConfig) -> Result<Live, Error> {
        let proxies = match &of.trusted_proxies {
            Some(own) => own.made(&format!("listeners.{name}.trusted_proxies"))?,
            None => self.proxies()?,
        };
        let limits = of.limits.as_ref().unwrap_or(&self.limits).clone();
        Ok(Live { limits, proxies })
    }
}

#[cfg(all(target_os = "linux", feature = "restart"))]
fn place(of: &ListenerConfig) -> Option<Listener> {
    Some(match (&of.activated, &of.address) {
        (Some(name), Some(address)) => Listener::activated_or(name, address),
        (Some(name), None) => Listener::activated(name),
        (None, address) => Listener::at(address.clone().unwrap_or_default()),
    })
}

#[cfg(not(all(target_os = "linux", feature = "restart")))]
fn place(of: &ListenerConfig) -> Option<Listener> {
    of.activated.is_none().then(|| Listener::at(of.address.clone().unwrap_or_default()))
}

/// A setting for which the program is built without what it needs.
pub(super) fn missing(setting: &str, feature: &str) -> Error {
    let text = format!("this program is built without it: the feature `{feature}` of `peregrine`");
    ConfigError::of_setting(setting, text).into()
}

impl ProxiesConfig {
    /// `None` if it names nobody.
    fn made(&self, section: &str) -> Result<Option<TrustedProxies>, Error> {
        let wrong = |name: &str, text: &str| {
            Error::from(ConfigError::of_setting(&format!("{section}.{name}"), text))
        };
        let mut proxies = match (self.hops, self.from.is_empty()) {
            (None, true) => return Ok(None),
            (None, false) => TrustedProxies::at(&self.from),
            (Some(hops), true) => TrustedProxies::hops(hops),
            (Some(_), false) => {
                let text = "say whom to trust by `from` or by `hops`, not by both";
                return Err(wrong("hops", text));
            }
        };
        if let Some(most) = self.hops_max {
            proxies = proxies.at_most(most);
        }
        proxies = match self.field {
            Field::XForwarded => proxies,
            Field::Forwarded if self.host || self.prefix => {
                let text = "`host` and `prefix` are of `x-forwarded`; `Forwarded` has its own";
                return Err(wrong("field", text));
            }
            Field::Forwarded => proxies.forwarded(),
        };
        if self.host {
            proxies = proxies.host();
        }
        if self.prefix {
            proxies = proxies.prefix();
        }
        match proxies.fault() {
            Some(fault) => Err(wrong(if self.hops.is_some() { "hops" } else { "from" }, fault)),
            None => Ok(Some(proxies)),
        }
    }
}

impl AdminConfig {
    /// `None` if there is no such listener.
    fn made(&self) -> Option<Admin> {
        let mut admin = Admin::at(self.address.as_deref()?).live_within(self.live_within);
        if let Some(mode) = self.unix_mode {
            admin = admin.unix_mode(mode);
        }
        if let Some(user) = &self.unix_owner {
            admin = admin.unix_owner(user);
        }
        if let Some(group) = &self.unix_group {
            admin = admin.unix_group(group);
        }
        Some(admin)
    }
}

impl ProxyProtocolConfig {
    fn made(&self, section: &str) -> Result<Option<ProxyProtocol>, Error> {
        let mut settings = match self.mode {
            ProxyHeader::Off => return Ok(None),
            ProxyHeader::Required => ProxyProtocol::required(),
            ProxyHeader::Optional => ProxyProtocol::optional(),
        };
        if !self.from.is_empty() {
            settings = settings.from(&self.from);
        }
        let settings = settings.header_bytes_max(self.header_bytes_max);
        match settings.fault() {
            Some(fault) => {
                Err(ConfigError::of_setting(&format!("{section}.from"), fault.to_owned()).into())
            }
            None => Ok(Some(settings)),
        }
    }
}

impl From<DriverKind> for DriverChoice {
    fn from(kind: DriverKind) -> Self {
        match kind {
            DriverKind::Auto => Self::Auto,
            DriverKind::Uring => Self::Uring,
            DriverKind::Tokio => Self::Tokio,
        }
    }
}

impl From<DriverChoice> for DriverKind {
    fn from(choice: DriverChoice) -> Self {
        match choice {
            DriverChoice::Auto => Self::Auto,
            DriverChoice::Uring => Self::Uring,
            DriverChoice::Tokio => Self::Tokio,
        }
    }
}
