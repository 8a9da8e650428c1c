//! Who sent a request, and by which address, where proxies stand between.
//!
//! `trusted_proxies.rs` says whose word counts, `forwarded.rs` reads what they say, and [`Client`] is what comes of it.

mod forwarded;
mod trusted_proxies;

pub use trusted_proxies::{Networks, TrustedProxies};

use self::forwarded::{Element, elements, entries, nth_entry, plain_address};
use self::trusted_proxies::Reads;
use crate::http::connection::ConnectionInfo;
use crate::http::head::Head;
use peregrine_proto::{Scheme, is_host_and_port};
use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

/// Who sent a request: the client's address, and the host, scheme and prefix that the client knows.
///
/// Where the connection's peer is one of the trusted proxies ([`TrustedProxies`]), this is what they say;
/// else it is what the connection and the request say themselves. It is worked out when it is asked for, and
/// costs nothing where it is not.
///
/// ```
/// use peregrine::App;
/// use peregrine::web::{Request, TrustedProxies};
///
/// async fn login(request: Request) -> String {
///     format!("{}/login", request.client().origin())
/// }
/// let client = App::new().get("/", login).test().behind(TrustedProxies::hops(1));
/// let request = client.get("/").header("host", "a.example").header("x-forwarded-proto", "https");
/// assert_eq!(request.send_now().text(), "https://a.example/login");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Client<'r> {
    head: &'r Head,
    connection: &'r ConnectionInfo,
    address: Option<SocketAddr>,
    /// How many proxies passed the request on, as far as they are trusted.
    hops: usize,
    /// What `Forwarded` says of the hop that was reached, and of those nearer.
    scheme: Option<&'r str>,
    host: Option<Word<'r>>,
}

/// A word that may have been quoted.
type Word<'r> = forwarded::Word<'r>;

impl<'r> Client<'r> {
    /// The client of a request.
    #[must_use]
    pub fn of(head: &'r Head, connection: &'r ConnectionInfo) -> Self {
        let address = connection.peer.tcp();
        let client = Self { head, connection, address, hops: 0, scheme: None, host: None };
        match connection.proxies.as_deref() {
            None => client,
            Some(proxies) => match proxies.reads {
                Reads::XForwarded { .. } => client.walk_addresses(proxies),
                Reads::Forwarded => client.walk_elements(proxies),
            },
        }
    }

    /// `X-Forwarded-For`: each proxy adds the address that it was connected from to the right.
    fn walk_addresses(mut self, proxies: &TrustedProxies) -> Self {
        let mut all = entries(self.head, "x-forwarded-for");
        while self.is_at_proxy(proxies)
            && let Some(address) = all.next().and_then(plain_address)
        {
            self.reach(address);
        }
        self
    }

    /// `Forwarded` (RFC 7239): each proxy adds an element to the right.
    fn walk_elements(mut self, proxies: &TrustedProxies) -> Self {
        let mut all = elements(self.head, "forwarded");
        while self.is_at_proxy(proxies)
            && let Some(Element { address, scheme, host }) = all.next().flatten()
        {
            self.scheme = scheme.or(self.scheme);
            self.host = host.or(self.host);
            // Who hides where a request came from ends the walk, and is believed in all else.
            match address {
                Some(address) => self.reach(address),
                None => break,
            }
        }
        self
    }

    /// Is what was reached so far a proxy that is trusted? The connection's peer was looked at before.
    fn is_at_proxy(&self, proxies: &TrustedProxies) -> bool {
        let may_go_on = proxies.hops_max.is_none_or(|most| self.hops < most);
        let trusts = |address: SocketAddr| proxies.trusts_address(address.ip());
        may_go_on && (self.hops == 0 || self.address.is_some_and(trusts))
    }

    fn reach(&mut self, address: SocketAddr) {
        self.address = Some(address);
        self.hops += 1;
    }

    /// The client's address; `None` on a Unix domain socket, and in tests, if no trusted proxy tells it. The
    /// port is 0 where a proxy does not tell it. An IPv4 address is one, even if the socket has it in the form of
    /// IPv6.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address.map(|address| SocketAddr::new(address.ip().to_canonical(), address.port()))
    }

    /// The same without a port.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        Some(self.address?.ip().to_canonical())
    }

    /// Through how many proxies the request came, as far as they are trusted. With PROXY headers only, and
    /// without any proxy, 0.
    #[must_use]
    pub fn hops(&self) -> usize {
        self.hops
    }

    /// Did the client speak TLS, with the first of the proxies that are trusted, or with this server?
    #[must_use]
    pub fn is_secure(&self) -> bool {
        let said = match self.connection.proxies.as_deref().map(|proxies| proxies.reads) {
            None => return self.connection.is_secure(),
            Some(Reads::Forwarded) => self.scheme.map(str::as_bytes),
            Some(Reads::XForwarded { .. }) => self.entry("x-forwarded-proto"),
        };
        match said {
            Some(said) if is_one_of(said, ["https", "wss"]) => true,
            Some(said) if is_one_of(said, ["http", "ws"]) => false,
            // HAProxy and Envoy say it in the target of HTTP/2.
            _ => self.connection.is_secure() || self.head.index().scheme == Some(Scheme::Https),
        }
    }

    /// `https` or `http`.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        if self.is_secure() { "https" } else { "http" }
    }

    /// The host that the client asked for, as in the field `Host`: with a port if that is not the scheme's own.
    /// Empty if a client of HTTP/1.0 named none.
    #[must_use]
    pub fn host(&self) -> Cow<'r, str> {
        let own = || Cow::Borrowed(self.head.authority());
        let Some(proxies) = self.connection.proxies.as_deref() else { return own() };
        let said = match proxies.reads {
            Reads::Forwarded => self.host.map(Word::text),
            Reads::XForwarded { host: false, .. } => return own(),
            Reads::XForwarded { .. } => {
                let said = self.entry("x-forwarded-host").map(String::from_utf8_lossy);
                let said = said.filter(|host| is_host_and_port(host.as_bytes()));
                return self.with_port(said.unwrap_or_else(own));
            }
        };
        said.filter(|host| is_host_and_port(host.as_bytes())).unwrap_or_else(own)
    }

    /// The host with the port of `X-Forwarded-Port`, if it has none.
    fn with_port(&self, host: Cow<'r, str>) -> Cow<'r, str> {
        let said = self.entry("x-forwarded-port").and_then(|port| std::str::from_utf8(port).ok());
        let port = said.filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
        let port: Option<u16> = port.and_then(|port| port.parse().ok());
        let own = if self.is_secure() { 443 } else { 80 };
        // A colon within brackets is part of an address.
        let has_port = host.rsplit(']').next().is_some_and(|end| end.contains(':'));
        match port {
            Some(port) if port != own && port != 0 && !has_port && !host.is_empty() => {
                Cow::Owned(format!("{host}:{port}"))
            }
            _ => host,
        }
    }

    /// Scheme and host together, such as `https://example.com`: what begins a URL of this server's, for mails
    /// and other places that are outside of the page.
    #[must_use]
    pub fn origin(&self) -> String {
        format!("{}://{}", self.scheme(), self.host())
    }

    /// What a proxy removed from the beginning of the path, such as `/shop`, without a slash at its end; empty if
    /// there is nothing. The redirects of routes (`SlashPolicy`) have it before them.
    #[must_use]
    pub fn prefix(&self) -> &'r str {
        let proxies = self.connection.proxies.as_deref();
        if !proxies
            .is_some_and(|proxies| matches!(proxies.reads, Reads::XForwarded { prefix: true, .. }))
        {
            return "";
        }
        let said = self.entry("x-forwarded-prefix");
        said.and_then(|said| std::str::from_utf8(said).ok()).and_then(prefix).unwrap_or("")
    }

    /// The entry of a list that belongs to the hop that was reached; the leftmost if there are fewer. Proxies that
    /// replace the field leave one.
    fn entry(&self, name: &'r str) -> Option<&'r [u8]> {
        nth_entry(self.head, name, self.hops.saturating_sub(1)).filter(|entry| !entry.is_empty())
    }
}

fn is_one_of(said: &[u8], all: [&str; 2]) -> bool {
    all.iter().any(|one| said.eq_ignore_ascii_case(one.as_bytes()))
}

/// A path that may stand before others. Two slashes would begin a host, and a backslash is one for browsers.
fn prefix(said: &str) -> Option<&str> {
    let path = said.trim_end_matches('/');
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@%".contains(&byte);
    let is_one = path.starts_with('/') && !path.contains("//") && path.bytes().all(is_plain);
    let goes_up = path.split('/').any(|segment| segment == ".." || segment == ".");
    (is_one && !goes_up).then_some(path)
}

#[cfg(test)]
mod tests;
