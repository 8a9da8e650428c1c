//! The address of the client, even behind proxies.

use super::{FromRequestParts, misconfiguration_problem};
use crate::http::problem::Problem;
use crate::http::request::Parts;
use std::net::IpAddr;

/// The address of the client: the address that trusted proxies report, otherwise the peer's
/// address. Limits and logs identify clients by this address.
///
/// In tests, and on a Unix domain socket whose peer is not trusted, there is no address: the
/// extractor then responds 500, and `Option<ClientIp>` is `None`. See
/// [`Server::trusted_proxies`] and [`ClientInfo`](crate::ClientInfo).
///
/// ```
/// use peregrine::web::extract::ClientIp;
///
/// async fn whoami(ClientIp(address): ClientIp) -> String {
///     format!("you are {address}")
/// }
/// # let _ = whoami;
/// ```
///
/// [`Server::trusted_proxies`]: https://docs.rs/peregrine/latest/peregrine/struct.Server.html
#[doc(alias = "RealIp")]
#[doc(alias = "remote_addr")]
#[doc(alias = "X-Forwarded-For")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientIp(pub IpAddr);

impl FromRequestParts for ClientIp {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        parts.client().ip().map(Self).ok_or_else(|| {
            misconfiguration_problem(
                "no-client-address",
                "the handler needs the client's address, but there is none: the connection is \
                 not TCP, and its peer is not a trusted proxy that forwards one; take \
                 `Option<ClientIp>`, or add `.trusted_proxies([\"unix:\"])` to the server",
            )
        })
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        Ok(parts.client().ip().map(Self))
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{assert_ready, from_parts, get, parts_on};
    use super::*;
    use crate::http::connection::{ConnectionAddr, ConnectionInfo};

    #[test]
    fn without_trusted_proxies_the_address_is_that_of_the_peer() {
        let peer = ConnectionAddr::Tcp("[::ffff:192.0.2.7]:4000".parse().expect("an address"));
        let mut parts = parts_on(ConnectionInfo { peer, ..ConnectionInfo::default() });
        let ClientIp(address) = assert_ready(from_parts(&mut parts)).expect("TCP");
        assert_eq!(address.to_string(), "192.0.2.7", "an IPv4-mapped address becomes IPv4");
    }

    #[test]
    fn without_an_address_responds_500_and_an_option_is_none() {
        let mut parts = get("/").parts;
        let problem = assert_ready(ClientIp::from_request_parts(&mut parts)).expect_err("not TCP");
        assert_eq!((problem.status.as_u16(), problem.kind.as_ref()), (500, "no-client-address"));
        assert_eq!(assert_ready(from_parts::<Option<ClientIp>>(&mut parts)), Ok(None));
    }
}
