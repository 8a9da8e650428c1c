//! Whose word counts.

use crate::http::connection::Peer;
use ipnet::IpNet;
use std::net::IpAddr;

/// Networks, and perhaps Unix domain sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    all: Vec<IpNet>,
    has_unix: bool,
    /// What is wrong with the first of the texts that is none.
    fault: Option<String>,
}

impl Networks {
    /// Reads addresses (`10.0.0.7`, `::1`), networks (`10.0.0.0/8`), and `unix:` for all peers on Unix domain
    /// sockets.
    pub fn read(texts: impl IntoIterator<Item: AsRef<str>>) -> Self {
        let mut networks = Self::default();
        for text in texts {
            let text = text.as_ref().trim();
            if text == "unix:" {
                networks.has_unix = true;
            } else if let Some(network) = network(text) {
                networks.all.push(network);
            } else {
                networks.fault.get_or_insert_with(|| {
                    format!(
                        "`{text}` is no network: write an address (`10.0.0.7`), a network \
                         (`10.0.0.0/8`, `fd00::/8`), or `unix:` for Unix domain sockets"
                    )
                });
            }
        }
        networks
    }

    /// This machine, the networks that the internet does not route (RFC 1918, RFC 4193, RFC 6598, link-local
    /// ones), and Unix domain sockets.
    #[must_use]
    pub fn private() -> Self {
        Self::read([
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

    /// Is an address in one of them? An IPv4 address is looked for as one, in whichever form a socket has it.
    #[must_use]
    pub fn has_address(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.all.iter().any(|network| network.contains(&address))
    }

    /// Is a connection's peer in one of them?
    #[must_use]
    pub fn has(&self, peer: &Peer) -> bool {
        match peer {
            Peer::Tcp(address) => self.has_address(address.ip()),
            Peer::Unix { .. } => self.has_unix,
            Peer::None => false,
        }
    }

    /// What is wrong with the texts that were read.
    #[must_use]
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Is nothing in them?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty() && !self.has_unix
    }
}

fn network(text: &str) -> Option<IpNet> {
    let network = match text.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address),
        Err(_) => text.parse().ok()?,
    };
    // A network of IPv4 in the form of IPv6: addresses are compared as IPv4.
    let IpNet::V6(v6) = network else { return Some(network) };
    match (v6.addr().to_ipv4_mapped(), v6.prefix_len().checked_sub(96)) {
        (Some(address), Some(length)) => Some(IpNet::new(address.into(), length).ok()?),
        _ => Some(network),
    }
}

/// The proxies whose word counts about who sent a request, and which fields they say it in.
///
/// A proxy's fields are read from the right, where the nearest one wrote: as long as an address is that of a trusted
/// proxy, what it says about who connected to it counts as well. The first address that is not trusted is the client's.
/// What the client wrote itself is left of that, and never read.
///
/// The fields `X-Forwarded-For` and `X-Forwarded-Proto` are read, or `Forwarded` if that is chosen, never both: proxies that
/// write the one pass the other on as the client wrote it. For the same reason `X-Forwarded-Host`, `-Port` and
/// `-Prefix` are read only where that is said.
///
/// ```
/// use peregrine::Server;
/// use peregrine::web::TrustedProxies;
///
/// // nginx on this machine, by TCP or by a Unix domain socket.
/// let server = Server::bind("127.0.0.1:8080").trusted_proxies(["127.0.0.1", "::1", "unix:"]);
/// // HAProxy with `option forwarded`.
/// let server = server.trusted_proxies(TrustedProxies::at(["10.0.0.0/8"]).forwarded());
/// # let _ = server;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedProxies {
    /// `None`: everybody.
    networks: Option<Networks>,
    pub(super) hops_max: Option<usize>,
    pub(super) reads: Reads,
}

/// The fields that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// `X-Forwarded-For` and `X-Forwarded-Proto`, and what else the proxies set or remove.
    XForwarded { host: bool, prefix: bool },
    /// `Forwarded` (RFC 7239).
    Forwarded,
}

impl TrustedProxies {
    /// Proxies at these addresses (`10.0.0.7`) and networks (`10.0.0.0/8`); `unix:` stands for whoever connects to a
    /// Unix domain socket. A text that is none of these is an error when the server starts.
    pub fn at(networks: impl IntoIterator<Item: AsRef<str>>) -> Self {
        Self { networks: Some(Networks::read(networks)), hops_max: None, reads: Reads::DEFAULT }
    }

    /// Exactly `count` proxies, at whatever addresses: the connection's peer, whoever it is, and `count - 1`
    /// before it. Only for a server that nobody but the proxies can reach.
    #[must_use]
    pub fn hops(count: usize) -> Self {
        Self { networks: None, hops_max: Some(count), reads: Reads::DEFAULT }
    }

    /// At most `count` proxies are believed, even if there are more addresses that are trusted.
    #[must_use]
    pub fn at_most(mut self, count: usize) -> Self {
        self.hops_max = Some(count);
        self
    }

    /// Reads `Forwarded` (RFC 7239), and none of the fields `X-Forwarded-*`.
    #[must_use]
    pub fn forwarded(mut self) -> Self {
        self.reads = Reads::Forwarded;
        self
    }

    /// Reads `X-Forwarded-Host` and `X-Forwarded-Port` too. The proxies must set them or remove them: else each client
    /// says for itself which host it asked for.
    #[must_use]
    pub fn host(mut self) -> Self {
        if let Reads::XForwarded { host, .. } = &mut self.reads {
            *host = true;
        }
        self
    }

    /// Reads `X-Forwarded-Prefix` too: what a proxy removed from the beginning of paths. The proxies must set it or
    /// remove it.
    #[must_use]
    pub fn prefix(mut self) -> Self {
        if let Reads::XForwarded { prefix, .. } = &mut self.reads {
            *prefix = true;
        }
        self
    }

    /// Is a connection's peer one of them?
    #[must_use]
    pub fn trusts(&self, peer: &Peer) -> bool {
        self.networks.as_ref().is_none_or(|networks| networks.has(peer))
    }

    pub(super) fn trusts_address(&self, address: IpAddr) -> bool {
        self.networks.as_ref().is_none_or(|networks| networks.has_address(address))
    }

    /// What is wrong with them.
    #[must_use]
    pub fn fault(&self) -> Option<&str> {
        match &self.networks {
            _ if self.hops_max == Some(0) => Some("0 hops are no proxies: leave them out instead"),
            Some(networks) => networks.fault(),
            None => None,
        }
    }
}

impl Reads {
    const DEFAULT: Self = Self::XForwarded { host: false, prefix: false };
}

impl<T: AsRef<str>, const N: usize> From<[T; N]> for TrustedProxies {
    fn from(networks: [T; N]) -> Self {
        Self::at(networks)
    }
}

impl<T: AsRef<str>> From<Vec<T>> for TrustedProxies {
    fn from(networks: Vec<T>) -> Self {
        Self::at(networks)
    }
}

impl<T: AsRef<str>> From<&[T]> for TrustedProxies {
    fn from(networks: &[T]) -> Self {
        Self::at(networks)
    }
}
