//! Converts settings to the types of the crates that use them.

use crate::server::{
    Field, ListenerConfig, ProxiesConfig, ProxyHeader, ProxyProtocolConfig, ServerConfig,
};
use peregrine_config::ConfigError;
use peregrine_driver::{Options, SocketOptions};
use peregrine_server::{Live, ProxyProtocol};
use peregrine_web::TrustedProxies;

impl ServerConfig {
    /// The driver options of each worker.
    #[doc(hidden)]
    #[must_use]
    pub fn options(&self) -> Options {
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

    /// The options of the listening sockets.
    #[doc(hidden)]
    #[must_use]
    pub fn socket_options(&self) -> SocketOptions {
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

    /// The server's trusted proxies, if there are any.
    ///
    /// # Errors
    /// A setting is invalid.
    #[doc(hidden)]
    pub fn proxies(&self) -> Result<Option<TrustedProxies>, ConfigError> {
        self.trusted_proxies.made("trusted_proxies")
    }

    /// The settings of a listener that a reload can change.
    ///
    /// # Errors
    /// A setting is invalid.
    #[doc(hidden)]
    pub fn live(&self, name: &str, of: &ListenerConfig) -> Result<Live, ConfigError> {
        let proxies = match &of.trusted_proxies {
            Some(own) => own.made(&format!("listeners.{name}.trusted_proxies"))?,
            None => self.proxies()?,
        };
        let limits = of.limits.as_ref().unwrap_or(&self.limits).clone();
        Ok(Live { limits, proxies })
    }
}

impl ProxiesConfig {
    /// Returns `None` if the section trusts no proxies.
    ///
    /// # Errors
    /// A setting is invalid.
    #[doc(hidden)]
    pub fn made(&self, section: &str) -> Result<Option<TrustedProxies>, ConfigError> {
        let wrong =
            |name: &str, text: &str| ConfigError::of_setting(&format!("{section}.{name}"), text);
        let mut proxies = match (self.hops, self.from.is_empty()) {
            (None, true) => return Ok(None),
            (None, false) => TrustedProxies::at(&self.from),
            (Some(hops), true) => TrustedProxies::hops(hops),
            (Some(_), false) => {
                let text = "set either `from` or `hops`, not both";
                return Err(wrong("hops", text));
            }
        };
        if let Some(most) = self.hops_max {
            proxies = proxies.at_most(most);
        }
        proxies = match self.field {
            Field::XForwarded => proxies,
            Field::Forwarded if self.host || self.prefix => {
                let text = "`host` and `prefix` need `field = \"x-forwarded\"`";
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

impl ProxyProtocolConfig {
    /// Returns `None` if no header is read.
    ///
    /// # Errors
    /// A setting is invalid.
    #[doc(hidden)]
    pub fn made(&self, section: &str) -> Result<Option<ProxyProtocol>, ConfigError> {
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
                Err(ConfigError::of_setting(&format!("{section}.from"), fault.to_owned()))
            }
            None => Ok(Some(settings)),
        }
    }
}
