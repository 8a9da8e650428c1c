//! One place to listen, and what holds there.

use crate::error::Error;
use crate::listen::socket_file::FileOwner;
use peregrine_driver::Socket;
use peregrine_restart::internal::Secrets;
use peregrine_server::{Limits, Listen, Live, ProxyProtocol, Shared};
#[cfg(feature = "tls")]
use peregrine_tls::TicketKeys;
use peregrine_tls::Tls;
use peregrine_web::TrustedProxies;
#[cfg(feature = "tls")]
use peregrine_web::panics::contained;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;
use tokio::sync::watch;

/// One place to listen, and what holds for its connections: TLS, limits, PROXY headers, trusted proxies.
///
/// ```
/// use peregrine::{Limits, Listener, ProxyProtocol, Server};
///
/// let open = Limits { connections_max: 1000, ..Limits::default() };
/// let server = Server::bind("0.0.0.0:80")
///     .listen(Listener::at("0.0.0.0:8080").limits(open))
///     .listen(Listener::at("10.0.0.1:81").proxy_protocol(ProxyProtocol::required()))
///     .listen(Listener::at("unix:/run/app.sock").trusted_proxies(["unix:"]));
/// # let _ = server;
/// ```
#[derive(Debug)]
#[must_use = "a place to listen does nothing until `Server::listen`"]
pub struct Listener {
    source: Source,
    owner: FileOwner,
    tls: Option<Tls>,
    limits: Option<Limits>,
    proxy_protocol: Option<ProxyProtocol>,
    proxies: Option<TrustedProxies>,
    /// What changes of these while the server runs.
    live: Option<watch::Receiver<Live>>,
}

/// Where to listen.
#[derive(Debug)]
pub(crate) enum Source {
    Address(String),
    /// What somebody else bound.
    Bound(Socket),
    /// Sockets of the service manager, by name, and where to listen if it made none.
    #[cfg(all(target_os = "linux", feature = "restart"))]
    Activated(String, Option<String>),
}

impl Source {
    /// Where this process listens by itself, if it may come to that.
    pub(crate) fn address(&self) -> Option<&str> {
        match self {
            Self::Address(address) => Some(address),
            Self::Bound(_) => None,
            #[cfg(all(target_os = "linux", feature = "restart"))]
            Self::Activated(_, address) => address.as_deref(),
        }
    }
}

impl Listener {
    /// Plain HTTP at `address`: `127.0.0.1:8080`, `[::]:80`, `localhost:3000`, or `unix:/run/app.sock`. Port 0 takes
    /// any free port.
    pub fn at(address: impl Into<String>) -> Self {
        Self::new(Source::Address(address.into()))
    }

    /// The sockets called `name` that a service manager made; see
    /// [`Server::activated`](crate::Server::activated).
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub fn activated(name: impl Into<String>) -> Self {
        Self::new(Source::Activated(name.into(), None))
    }

    /// The same, or `address` where no sockets at all were handed to this process.
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub fn activated_or(name: impl Into<String>, address: impl Into<String>) -> Self {
        Self::new(Source::Activated(name.into(), Some(address.into())))
    }

    /// The `rate_slack` of its own limits, as they are now.
    pub(crate) fn rate_slack(&self) -> Option<Duration> {
        let live = self.live.as_ref().map(|live| live.borrow().limits.rate_slack);
        live.or_else(|| self.limits.as_ref().map(|limits| limits.rate_slack))
    }

    fn new(source: Source) -> Self {
        Self {
            source,
            owner: FileOwner::default(),
            tls: None,
            limits: None,
            proxy_protocol: None,
            proxies: None,
            live: None,
        }
    }

    /// Who may connect to a Unix domain socket, as the mode of its file, such as `0o660`: whoever may write to it.
    /// Default: as the process's umask leaves it. Nobody gets in before the mode is set. A socket that was inherited, by an
    /// upgrade in place or from a service manager, stays as it is.
    pub fn unix_mode(mut self, mode: u32) -> Self {
        self.owner.mode = Some(mode);
        self
    }

    /// The user whom the file of a Unix domain socket belongs to, by name or number. Only root may give files away.
    pub fn unix_owner(mut self, user: impl Into<String>) -> Self {
        self.owner.user = Some(user.into());
        self
    }

    /// The group that the file of a Unix domain socket belongs to, by name or number: one that this process is in, or any
    /// for root.
    pub fn unix_group(mut self, group: impl Into<String>) -> Self {
        self.owner.group = Some(group.into());
        self
    }

    /// Speaks HTTPS. With the feature `tls`, which is on by default.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets limits and timeouts for this place alone, in place of those of the server. Its connections and handshakes
    /// are counted apart from those of others, so that neither keeps the other out (`connections_max`,
    /// `handshakes_max`). What concerns the server as a whole is taken from the server's: `poll_budget`, `lame_duck`,
    /// `shutdown_timeout`, `background_timeout` and `overload`.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = Some(limits);
        self
    }

    /// Connections begin with a PROXY header, by which a proxy tells whose they are; see [`ProxyProtocol`].
    pub fn proxy_protocol(mut self, settings: ProxyProtocol) -> Self {
        self.proxy_protocol = Some(settings);
        self
    }

    /// Sets the trusted proxies for this place alone, in place of those of the server
    /// ([`Server::trusted_proxies`](crate::Server::trusted_proxies)).
    pub fn trusted_proxies(mut self, proxies: impl Into<TrustedProxies>) -> Self {
        self.proxies = Some(proxies.into());
        self
    }

    /// From now on, limits and trusted proxies are what this says last.
    #[cfg(feature = "config")]
    pub(crate) fn live(mut self, live: watch::Receiver<Live>) -> Self {
        self.follow(live);
        self
    }

    /// The same.
    #[cfg(feature = "config")]
    pub(crate) fn follow(&mut self, live: watch::Receiver<Live>) {
        self.live = Some(live);
    }

    /// What of these the program has set for it, unless something says already what holds.
    #[cfg(feature = "config")]
    pub(crate) fn own(&self) -> Option<(Option<Limits>, Option<TrustedProxies>)> {
        self.live.is_none().then(|| (self.limits.clone(), self.proxies.clone()))
    }

    /// What it speaks TLS with.
    #[cfg(feature = "tls")]
    pub(crate) fn certificates(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Where to listen, and what holds there. `proxies` are those of the server.
    pub(crate) fn parts(
        self,
        proxies: Option<&TrustedProxies>,
    ) -> Result<(Source, Settings), Error> {
        let proxies = self.proxies.or_else(|| proxies.cloned());
        let place = || match &self.source {
            Source::Address(address) => address.clone(),
            Source::Bound(_) => "(a given listener)".to_owned(),
            #[cfg(all(target_os = "linux", feature = "restart"))]
            Source::Activated(name, _) => name.clone(),
        };
        let faults = [
            ("PROXY protocol", self.proxy_protocol.as_ref().and_then(ProxyProtocol::fault)),
            ("trusted proxies", proxies.as_ref().and_then(TrustedProxies::fault)),
        ];
        for (what, fault) in faults {
            if let Some(fault) = fault {
                return Err(Error::Config(format!("{what} of {}: {fault}", place())));
            }
        }
        self.owner.check(self.source.address())?;
        let Self { source, owner, tls, limits, proxy_protocol, live, .. } = self;
        Ok((source, Settings { owner, tls, limits, proxy_protocol, proxies, live }))
    }
}

/// What holds for the connections of a place, on every worker.
pub struct Settings {
    pub(crate) owner: FileOwner,
    tls: Option<Tls>,
    limits: Option<Limits>,
    proxy_protocol: Option<ProxyProtocol>,
    proxies: Option<TrustedProxies>,
    live: Option<watch::Receiver<Live>>,
}

impl Settings {
    /// Is TLS spoken there?
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Clients resume the sessions that they began with the process before this one.
    pub(crate) fn inherit(&self, Secrets(secrets): &Secrets) {
        #[cfg(feature = "tls")]
        if let (Some(keys), false) = (self.tickets(), secrets.is_empty())
            && let Err(error) = keys.inherit(secrets.iter().copied())
        {
            contained(
                || tracing::warn!(target: "peregrine", %error, "the ticket keys of the predecessor"),
            );
        }
        #[cfg(not(feature = "tls"))]
        let _ = secrets;
    }

    #[cfg(feature = "tls")]
    pub(crate) fn tickets(&self) -> Option<TicketKeys> {
        self.tls.as_ref().and_then(Tls::ticket_keys)
    }

    /// What one worker listens on.
    pub fn listen<S>(&self, socket: S, shared: Shared) -> Listen<S> {
        Listen {
            tls: self.tls.clone(),
            shared,
            limits: self.limits.clone(),
            proxy_protocol: self.proxy_protocol.clone(),
            proxies: self.proxies.clone(),
            live: self.live.clone(),
            ..Listen::on(socket)
        }
    }
}

impl From<&str> for Listener {
    fn from(address: &str) -> Self {
        Self::at(address)
    }
}

impl From<String> for Listener {
    fn from(address: String) -> Self {
        Self::at(address)
    }
}

impl From<&String> for Listener {
    fn from(address: &String) -> Self {
        Self::at(address)
    }
}

impl From<SocketAddr> for Listener {
    fn from(address: SocketAddr) -> Self {
        Self::at(address.to_string())
    }
}

/// A socket bound elsewhere, such as by a service manager. All workers share it.
impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Socket::from(listener).into()
    }
}

/// A socket bound elsewhere, such as by a service manager. All workers share it, and its file is left in place, for its
/// owner.
#[cfg(unix)]
impl From<std::os::unix::net::UnixListener> for Listener {
    fn from(listener: std::os::unix::net::UnixListener) -> Self {
        Socket::from(listener).into()
    }
}

/// A socket bound elsewhere, such as by a service manager. All workers share it.
impl From<Socket> for Listener {
    fn from(socket: Socket) -> Self {
        Self::new(Source::Bound(socket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::listeners::Entrances;
    use peregrine_driver::SocketOptions;
    use peregrine_web::App;

    fn fault(server: crate::Server) -> String {
        let started = server.quiet().start(App::new);
        started.map(|_| ()).expect_err("the settings are wrong").to_string()
    }

    #[test]
    fn settings_that_cannot_be_meant_are_told_at_the_start_with_their_place() {
        let at = |settings| Listener::at("127.0.0.1:0").proxy_protocol(settings);
        for (listener, expected) in [
            (at(ProxyProtocol::optional()), ".from("),
            (at(ProxyProtocol::required().from([""; 0])), ".from("),
            (at(ProxyProtocol::required().from(["10.0.0.0/33"])), "`10.0.0.0/33`"),
            (Listener::at("127.0.0.1:0").trusted_proxies(["proxy.local"]), "`proxy.local`"),
            (Listener::at("127.0.0.1:0").trusted_proxies(TrustedProxies::hops(0)), "0 hops"),
            (Listener::at("127.0.0.1:0").unix_mode(0o600), "is no Unix domain socket"),
            (Listener::at("127.0.0.1:0").unix_group("www"), "is no Unix domain socket"),
        ] {
            let text = fault(crate::Server::bind(listener));
            assert!(text.contains(expected) && text.contains("127.0.0.1:0"), "{text}");
        }
        let text = fault(crate::Server::bind("127.0.0.1:0").trusted_proxies(["10.0.0/8"]));
        assert!(text.contains("trusted proxies") && text.contains("`10.0.0/8`"), "{text}");
    }

    #[test]
    fn a_place_is_whatever_can_be_listened_at() {
        let address: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let bound = TcpListener::bind(address).expect("a free port");
        let text = "127.0.0.1:0".to_owned();
        let all = [Listener::from("127.0.0.1:0"), (&text).into(), address.into(), bound.into()];
        for (listener, is_shared) in all.into_iter().zip([false, false, false, true]) {
            let all =
                Entrances::open(vec![listener], None, 2, &SocketOptions::default(), &mut None)
                    .expect("it is free");
            for plan in all.plans {
                let shared: Vec<_> = plan.iter().map(|listen| listen.shared.is_so()).collect();
                assert_eq!(shared, [is_shared], "each worker accepts there");
            }
        }
    }
}
