//! Configuration of trusted proxies.

use crate::http::connection::ConnectionAddr;
use ipnet::IpNet;
use std::net::IpAddr;

/// A set of IP networks, which may also include all Unix domain sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    ip_networks: Vec<IpNet>,
    has_unix: bool,
    /// The error in the first text that is not a network.
    config_error: Option<String>,
}

impl Networks {
    /// Parses addresses (`10.0.0.7`, `::1`), networks (`10.0.0.0/8`), and `unix:` for all peers on
    /// Unix domain sockets.
    pub fn parse(texts: impl IntoIterator<Item: AsRef<str>>) -> Self {
        let mut networks = Self::default();
        for text in texts {
            let text = text.as_ref().trim();
            if text == "unix:" {
                networks.has_unix = true;
            } else if let Some(network) = parse_network(text) {
                networks.ip_networks.push(network);
            } else {
                networks.config_error.get_or_insert_with(|| {
                    format!(
                        "`{text}` is not a network: write an address (`10.0.0.7`), a network \
                         (`10.0.0.0/8`, `fd00::/8`), or `unix:` for Unix domain sockets"
                    )
                });
            }
        }
        networks
    }

    /// This machine, the networks that are not routed on the internet (RFC 1918, RFC 4193, RFC
    /// 6598, link-local), and Unix domain sockets.
    #[must_use]
    pub fn private() -> Self {
        Self::parse([
            "127.0.0.0/8",
            "::1",
            "10.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "100.64.0.0/10",
            "169.254.0.0/16",
            "fc00::/7",
            "fe80::/10",
            "unix:",
        ])
    }

    /// Whether an address is in one of the networks. An IPv4-mapped IPv6 address is looked up as an
    /// IPv4 address.
    #[must_use]
    pub fn contains_ip(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.ip_networks.iter().any(|network| network.contains(&address))
    }

    /// Whether a connection's peer is in the set.
    #[must_use]
    pub fn contains(&self, peer: &ConnectionAddr) -> bool {
        match peer {
            ConnectionAddr::Tcp(address) => self.contains_ip(address.ip()),
            ConnectionAddr::Unix { .. } => self.has_unix,
            ConnectionAddr::None => false,
        }
    }

    /// The error in the parsed texts, if there is one.
    #[must_use]
    pub fn config_error(&self) -> Option<&str> {
        self.config_error.as_deref()
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ip_networks.is_empty() && !self.has_unix
    }
}

fn parse_network(text: &str) -> Option<IpNet> {
    let network = match text.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address),
        Err(_) => text.parse().ok()?,
    };
    // An IPv4-mapped IPv6 network becomes an IPv4 network, because addresses are compared as IPv4.
    let IpNet::V6(v6) = network else { return Some(network) };
    match (v6.addr().to_ipv4_mapped(), v6.prefix_len().checked_sub(96)) {
        (Some(address), Some(length)) => Some(IpNet::new(address.into(), length).ok()?),
        _ => Some(network),
    }
}

/// The proxies that are trusted to report a request's client, and the fields in which they report
/// it.
///
/// The fields are read from the right, where the nearest proxy has appended its entry. As long as
/// an address belongs to a trusted proxy, the entry to its left is used as well. The first address
/// that is not trusted is the client's. The client may have written any entries to the left of that
/// address, so they are never read.
///
/// The fields `X-Forwarded-For` and `X-Forwarded-Proto` are read, or `Forwarded` if that is chosen,
/// but never both: a proxy that writes one forwards the other as the client wrote it. For the same
/// reason `X-Forwarded-Host`, `-Port` and `-Prefix` are read only if that is enabled.
///
/// ```
/// use peregrine::Server;
/// use peregrine::web::TrustedProxies;
///
/// // nginx on this machine, by TCP or by a Unix domain socket.
/// let server = Server::bind("127.0.0.1:8080").trusted_proxies(["127.0.0.1", "::1", "unix:"]);
/// // HAProxy with `option forwarded`.
/// let proxies = TrustedProxies::from_networks(["10.0.0.0/8"]).forwarded_header();
/// let server = server.trusted_proxies(proxies);
/// # let _ = server;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedProxies {
    /// `None` means that every address is trusted.
    networks: Option<Networks>,
    pub(super) hops_max: Option<usize>,
    pub(super) header: ForwardedHeader,
}

/// The fields that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForwardedHeader {
    /// `X-Forwarded-For` and `X-Forwarded-Proto`, with `host` also `-Host` and `-Port`, and with
    /// `prefix` also `-Prefix`.
    XForwarded { host: bool, prefix: bool },
    /// `Forwarded` (RFC 7239).
    Forwarded,
}

impl TrustedProxies {
    /// Trusts the proxies at these addresses (`10.0.0.7`) and networks (`10.0.0.0/8`); `unix:`
    /// stands for every peer on a Unix domain socket. Any other text is an error when the server
    /// starts.
    #[doc(alias = "set_real_ip_from")]
    pub fn from_networks(networks: impl IntoIterator<Item: AsRef<str>>) -> Self {
        Self {
            networks: Some(Networks::parse(networks)),
            hops_max: None,
            header: ForwardedHeader::DEFAULT,
        }
    }

    /// Trusts `count` proxies, at any addresses: the connection's peer and the `count - 1` proxies
    /// before it. Use it only if clients can reach the server solely through these proxies.
    #[must_use]
    pub fn hops(count: usize) -> Self {
        Self { networks: None, hops_max: Some(count), header: ForwardedHeader::DEFAULT }
    }

    /// Trusts at most `count` proxies, even if further addresses belong to trusted proxies.
    #[doc(alias = "max_hops")]
    #[doc(alias = "trust proxy")]
    #[must_use]
    pub fn hops_max(mut self, count: usize) -> Self {
        self.hops_max = Some(count);
        self
    }

    /// Reads `Forwarded` (RFC 7239) instead of the `X-Forwarded-*` fields.
    #[must_use]
    pub fn forwarded_header(mut self) -> Self {
        self.header = ForwardedHeader::Forwarded;
        self
    }

    /// Also reads `X-Forwarded-Host` and `X-Forwarded-Port`. The proxies must set or remove these
    /// fields; otherwise any client can choose the host. Has no effect if `Forwarded` is read
    /// instead.
    #[must_use]
    pub fn x_forwarded_host(mut self) -> Self {
        if let ForwardedHeader::XForwarded { host, .. } = &mut self.header {
            *host = true;
        }
        self
    }

    /// Also reads `X-Forwarded-Prefix`, the prefix that a proxy removed from the path. The proxies
    /// must set or remove the field; otherwise any client can choose the prefix. Has no effect if
    /// `Forwarded` is read instead.
    #[must_use]
    pub fn x_forwarded_prefix(mut self) -> Self {
        if let ForwardedHeader::XForwarded { prefix, .. } = &mut self.header {
            *prefix = true;
        }
        self
    }

    /// Whether a connection's peer is one of the trusted proxies.
    #[must_use]
    pub fn trusts(&self, peer: &ConnectionAddr) -> bool {
        self.networks.as_ref().is_none_or(|networks| networks.contains(peer))
    }

    pub(super) fn trusts_ip(&self, address: IpAddr) -> bool {
        self.networks.as_ref().is_none_or(|networks| networks.contains_ip(address))
    }

    /// The error in these settings, if there is one.
    #[must_use]
    pub fn config_error(&self) -> Option<&str> {
        match &self.networks {
            _ if self.hops_max == Some(0) => Some("0 hops trust no proxy: remove the setting"),
            Some(networks) => networks.config_error(),
            None => None,
        }
    }
}

impl ForwardedHeader {
    const DEFAULT: Self = Self::XForwarded { host: false, prefix: false };
}

impl<T: AsRef<str>, const N: usize> From<[T; N]> for TrustedProxies {
    fn from(networks: [T; N]) -> Self {
        Self::from_networks(networks)
    }
}

impl<T: AsRef<str>> From<Vec<T>> for TrustedProxies {
    fn from(networks: Vec<T>) -> Self {
        Self::from_networks(networks)
    }
}

impl<T: AsRef<str>> From<&[T]> for TrustedProxies {
    fn from(networks: &[T]) -> Self {
        Self::from_networks(networks)
    }
}
