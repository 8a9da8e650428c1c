//! Converts settings to the types that the server's crates use.

use crate::server::{
    ForwardedHeader, ListenerConfig, ProxyProtocolConfig, ProxyProtocolMode, ServerConfig,
    TrustedProxiesConfig,
};
use peregrine_config::ConfigError;
use peregrine_driver::{Options, SocketOptions};
use peregrine_server::{ProxyProtocol, ReloadableConfig};
use peregrine_web::TrustedProxies;

impl ServerConfig {
    /// Returns the driver options of each worker.
    #[doc(hidden)]
    #[must_use]
    pub fn driver_options(&self) -> Options {
        let driver = &self.driver;
        Options {
            receive_buffers: driver.receive_buffers,
            receive_buffer_bytes: driver.receive_buffer_bytes,
            read_ahead_buffers_max: driver.read_ahead_buffers_max,
            large_receive_bytes: driver.large_receive_bytes,
            busy_poll_us: u32::try_from(driver.busy_poll.as_micros()).unwrap_or(u32::MAX),
            socket_options: self.socket_options(),
            ..Options::default()
        }
    }

    /// Returns the options of the listening sockets.
    #[doc(hidden)]
    #[must_use]
    pub fn socket_options(&self) -> SocketOptions {
        let sockets = self.sockets.clone();
        SocketOptions {
            backlog: sockets.backlog,
            nodelay: sockets.nodelay,
            notsent_lowat_bytes: sockets.notsent_lowat_bytes,
            tcp_keepalive: sockets.tcp_keepalive,
            tcp_keepalive_interval: sockets.tcp_keepalive_interval,
            tcp_keepalive_retries: sockets.tcp_keepalive_retries,
            tcp_user_timeout: sockets.tcp_user_timeout,
            receive_buffer_bytes: sockets.receive_buffer_bytes,
            send_buffer_bytes: sockets.send_buffer_bytes,
            ipv6_only: sockets.ipv6_only,
            shared_accept_queue: sockets.shared_accept_queue,
        }
    }

    /// Returns the server's trusted proxies, if there are any.
    ///
    /// # Errors
    /// A setting is invalid.
    #[doc(hidden)]
    pub fn to_trusted_proxies(&self) -> Result<Option<TrustedProxies>, ConfigError> {
        self.trusted_proxies.to_trusted_proxies("trusted_proxies")
    }

    /// Returns the settings of a listener that a reload can change.
    ///
    /// # Errors
    /// A setting is invalid.
    #[doc(hidden)]
    pub fn to_reloadable(
        &self,
        name: &str,
        listener: &ListenerConfig,
    ) -> Result<ReloadableConfig, ConfigError> {
        let trusted_proxies = match &listener.trusted_proxies {
            Some(section) => {
                section.to_trusted_proxies(&format!("listeners.{name}.trusted_proxies"))?
            }
            None => self.to_trusted_proxies()?,
        };
        let limits = listener.limits.as_ref().unwrap_or(&self.limits).clone();
        Ok(ReloadableConfig { limits, trusted_proxies })
    }
}

impl TrustedProxiesConfig {
    /// Converts the section, whose path is `section`. Returns `None` if it trusts no proxies.
    ///
    /// # Errors
    /// A setting is invalid.
    #[doc(hidden)]
    pub fn to_trusted_proxies(&self, section: &str) -> Result<Option<TrustedProxies>, ConfigError> {
        let error_for =
            |name: &str, text: &str| ConfigError::for_key(&format!("{section}.{name}"), text);
        let mut proxies = match (self.hops, self.networks.is_empty()) {
            (None, true) => return Ok(None),
            (None, false) => TrustedProxies::from_networks(&self.networks),
            (Some(hops), true) => TrustedProxies::hops(hops),
            (Some(_), false) => {
                let text = "set either `networks` or `hops`, not both";
                return Err(error_for("hops", text));
            }
        };
        if let Some(hops_max) = self.hops_max {
            proxies = proxies.hops_max(hops_max);
        }
        proxies = match self.header {
            ForwardedHeader::XForwarded => proxies,
            ForwardedHeader::Forwarded if self.x_forwarded_host || self.x_forwarded_prefix => {
                let text = "`x_forwarded_host` and `x_forwarded_prefix` need \
                            `header = \"x-forwarded\"`";
                return Err(error_for("header", text));
            }
            ForwardedHeader::Forwarded => proxies.forwarded_header(),
        };
        if self.x_forwarded_host {
            proxies = proxies.x_forwarded_host();
        }
        if self.x_forwarded_prefix {
            proxies = proxies.x_forwarded_prefix();
        }
        match proxies.config_error() {
            Some(error) => {
                Err(error_for(if self.hops.is_some() { "hops" } else { "networks" }, error))
            }
            None => Ok(Some(proxies)),
        }
    }
}

impl ProxyProtocolConfig {
    /// Converts the section, whose path is `section`. Returns `None` if no header is read.
    ///
    /// # Errors
    /// A setting is invalid.
    #[doc(hidden)]
    pub fn to_proxy_protocol(&self, section: &str) -> Result<Option<ProxyProtocol>, ConfigError> {
        let mut settings = match self.mode {
            ProxyProtocolMode::Off => return Ok(None),
            ProxyProtocolMode::Required => ProxyProtocol::required(),
            ProxyProtocolMode::Optional => ProxyProtocol::optional(),
        };
        if !self.trusted.is_empty() {
            settings = settings.trust(&self.trusted);
        }
        let settings = settings.header_bytes_max(self.header_bytes_max);
        match settings.config_error() {
            Some(error) => {
                Err(ConfigError::for_key(&format!("{section}.trusted"), error.to_owned()))
            }
            None => Ok(Some(settings)),
        }
    }
}
