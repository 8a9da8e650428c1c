//! The client of a request, even behind proxies: its address, and the host and scheme that it used.
//!
//! `trusted_proxies.rs` configures which proxies are trusted, `forwarded.rs` parses the fields that
//! they write, and [`ClientInfo`] combines the two.

mod forwarded;
mod trusted_proxies;

pub use trusted_proxies::{Networks, TrustedProxies};

use self::forwarded::{
    ForwardedElement, ForwardedValue, forwarded_elements_rev, list_values_rev, nth_list_value_rev,
    parse_x_forwarded_for,
};
use self::trusted_proxies::ForwardedHeader;
use crate::http::connection::ConnectionInfo;
use crate::http::head::RequestHead;
use peregrine_proto::{Scheme, is_host_and_port};
use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

/// The client that sent a request: its address, and the host, scheme and path prefix that it used.
///
/// If the connection's peer is a trusted proxy ([`TrustedProxies`]), these are the values that the
/// proxies report. Otherwise they are those of the connection and the request. They are computed on
/// demand, so requests that do not need them have no cost.
///
/// ```
/// use peregrine::App;
/// use peregrine::web::{Request, TrustedProxies};
///
/// async fn login(request: Request) -> String {
///     format!("{}/login", request.client().origin())
/// }
/// let client = App::new().get("/", login).test().with_trusted_proxies(TrustedProxies::hops(1));
/// let request = client.get("/").header("host", "a.example").header("x-forwarded-proto", "https");
/// assert_eq!(request.send_blocking().text(), "https://a.example/login");
/// ```
#[doc(alias = "RealIp")]
#[doc(alias = "realip_remote_addr")]
#[doc(alias = "X-Forwarded-For")]
#[derive(Clone, Copy, Debug)]
pub struct ClientInfo<'r> {
    head: &'r RequestHead,
    connection: &'r ConnectionInfo,
    address: Option<SocketAddr>,
    /// The number of trusted proxies that reported the address of their peer.
    hops: usize,
    /// The scheme in `Forwarded`, as reported by the outermost of the trusted proxies that report
    /// one; `None` if none does, or if the `X-Forwarded-*` fields are used. `host` likewise.
    scheme: Option<&'r str>,
    host: Option<ForwardedValue<'r>>,
}

impl<'r> ClientInfo<'r> {
    /// The client of a request.
    #[must_use]
    pub fn new(head: &'r RequestHead, connection: &'r ConnectionInfo) -> Self {
        let address = connection.peer.socket_addr();
        let client = Self { head, connection, address, hops: 0, scheme: None, host: None };
        match connection.trusted_proxies.as_deref() {
            None => client,
            Some(proxies) => match proxies.header {
                ForwardedHeader::XForwarded { .. } => client.walk_x_forwarded_for(proxies),
                ForwardedHeader::Forwarded => client.walk_forwarded(proxies),
            },
        }
    }

    /// `X-Forwarded-For`: each proxy appends its peer's address on the right.
    fn walk_x_forwarded_for(mut self, proxies: &TrustedProxies) -> Self {
        let mut entries = list_values_rev(self.head, "x-forwarded-for");
        while self.is_trusted_hop(proxies)
            && let Some(address) = entries.next().and_then(parse_x_forwarded_for)
        {
            self.step_to(address);
        }
        self
    }

    /// `Forwarded` (RFC 7239): each proxy appends an element on the right.
    fn walk_forwarded(mut self, proxies: &TrustedProxies) -> Self {
        let mut elements = forwarded_elements_rev(self.head, "forwarded");
        while self.is_trusted_hop(proxies)
            && let Some(ForwardedElement { address, scheme, host }) = elements.next().flatten()
        {
            self.scheme = scheme.or(self.scheme);
            self.host = host.or(self.host);
            // If a proxy reports no valid address, the walk ends, but its other values are used.
            match address {
                Some(address) => self.step_to(address),
                None => break,
            }
        }
        self
    }

    /// Whether `address` is that of a trusted proxy within `hops_max`, so that the next entry,
    /// which it wrote, is used. The connection's peer (hop 0) was checked when the connection was
    /// accepted.
    fn is_trusted_hop(&self, proxies: &TrustedProxies) -> bool {
        let is_within_max = proxies.hops_max.is_none_or(|hops_max| self.hops < hops_max);
        let is_trusted = |address: SocketAddr| proxies.trusts_ip(address.ip());
        is_within_max && (self.hops == 0 || self.address.is_some_and(is_trusted))
    }

    /// Continues with the peer of the current proxy, at `address`.
    fn step_to(&mut self, address: SocketAddr) {
        self.address = Some(address);
        self.hops += 1;
    }

    /// The client's address. `None` on a Unix domain socket and in tests, unless a trusted proxy
    /// reports an address. The port is 0 if a proxy does not report it. An IPv4-mapped IPv6 address
    /// is returned as IPv4.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address.map(|address| SocketAddr::new(address.ip().to_canonical(), address.port()))
    }

    /// The client's address without the port.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        Some(self.address?.ip().to_canonical())
    }

    /// The number of trusted proxies that forwarded the request and reported the address of their
    /// peer in a header field. It is 0 without a proxy, and also if the proxies only send PROXY
    /// headers.
    #[must_use]
    pub fn hops(&self) -> usize {
        self.hops
    }

    /// Whether the client used TLS, with the outermost trusted proxy or with this server.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        let scheme = match self.connection.trusted_proxies.as_deref().map(|proxies| proxies.header)
        {
            None => return self.connection.is_secure(),
            Some(ForwardedHeader::Forwarded) => self.scheme.map(str::as_bytes),
            Some(ForwardedHeader::XForwarded { .. }) => self.entry("x-forwarded-proto"),
        };
        match scheme {
            Some(scheme) if equals_any(scheme, ["https", "wss"]) => true,
            Some(scheme) if equals_any(scheme, ["http", "ws"]) => false,
            // Over HTTP/2, HAProxy and Envoy report the scheme in `:scheme`.
            _ => self.connection.is_secure() || self.head.index().scheme == Some(Scheme::Https),
        }
    }

    /// `https` or `http`.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        if self.is_secure() { "https" } else { "http" }
    }

    /// The host that the client requested, as in the `Host` field: with a port unless it is the
    /// scheme's default. Empty if an HTTP/1.0 client sent none.
    #[must_use]
    pub fn host(&self) -> Cow<'r, str> {
        let request_host = || Cow::Borrowed(self.head.authority());
        let Some(proxies) = self.connection.trusted_proxies.as_deref() else {
            return request_host();
        };
        let host = match proxies.header {
            ForwardedHeader::Forwarded => self.host.map(ForwardedValue::unquoted),
            ForwardedHeader::XForwarded { host: false, .. } => return request_host(),
            ForwardedHeader::XForwarded { .. } => {
                let host = self.entry("x-forwarded-host").map(String::from_utf8_lossy);
                let host = host.filter(|host| is_host_and_port(host.as_bytes()));
                return self.with_port(host.unwrap_or_else(request_host));
            }
        };
        host.filter(|host| is_host_and_port(host.as_bytes())).unwrap_or_else(request_host)
    }

    /// The host, with the port of `X-Forwarded-Port` if `host` has none and that port is not the
    /// scheme's default.
    fn with_port(&self, host: Cow<'r, str>) -> Cow<'r, str> {
        let text = self.entry("x-forwarded-port").and_then(|port| std::str::from_utf8(port).ok());
        let port = text.filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
        let port: Option<u16> = port.and_then(|port| port.parse().ok());
        let default_port = if self.is_secure() { 443 } else { 80 };
        // A colon within brackets is part of an IPv6 address.
        let has_port = host.rsplit(']').next().is_some_and(|suffix| suffix.contains(':'));
        match port {
            Some(port) if port != default_port && port != 0 && !has_port && !host.is_empty() => {
                Cow::Owned(format!("{host}:{port}"))
            }
            _ => host,
        }
    }

    /// Scheme and host together, such as `https://example.com`. Use it to build absolute URLs of
    /// this server, for emails and other places outside of the page.
    #[must_use]
    pub fn origin(&self) -> String {
        format!("{}://{}", self.scheme(), self.host())
    }

    /// The prefix that a proxy removed from the path, such as `/shop`, without a slash at its end;
    /// empty if there is none. The redirects of routes (`TrailingSlash`) put it before their paths.
    #[must_use]
    pub fn prefix(&self) -> &'r str {
        let proxies = self.connection.trusted_proxies.as_deref();
        if !proxies.is_some_and(|proxies| {
            matches!(proxies.header, ForwardedHeader::XForwarded { prefix: true, .. })
        }) {
            return "";
        }
        let prefix = self.entry("x-forwarded-prefix");
        prefix
            .and_then(|prefix| std::str::from_utf8(prefix).ok())
            .and_then(parse_prefix)
            .unwrap_or("")
    }

    /// The entry of the field `name` that the outermost trusted proxy wrote. If there are fewer
    /// entries than hops, it is the leftmost, because a proxy that replaces the field leaves only
    /// one.
    fn entry(&self, name: &'r str) -> Option<&'r [u8]> {
        nth_list_value_rev(self.head, name, self.hops.saturating_sub(1))
            .filter(|entry| !entry.is_empty())
    }
}

fn equals_any(value: &[u8], expected: [&str; 2]) -> bool {
    expected.iter().any(|expected| value.eq_ignore_ascii_case(expected.as_bytes()))
}

/// Returns the prefix without its trailing slash, if it is safe to put before other paths. Two
/// slashes would start a host name, and browsers treat a backslash as a slash.
fn parse_prefix(prefix: &str) -> Option<&str> {
    let path = prefix.trim_end_matches('/');
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@%".contains(&byte);
    let is_path = path.starts_with('/') && !path.contains("//") && path.bytes().all(is_plain);
    let has_dot_segments = path.split('/').any(|segment| segment == ".." || segment == ".");
    (is_path && !has_dot_segments).then_some(path)
}

#[cfg(test)]
mod tests;
