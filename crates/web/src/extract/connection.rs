//! Properties of the request's connection.

use super::{FromRequestParts, misconfiguration_problem};
use crate::http::connection::{ClientIdentity, ConnectionInfo, TlsInfo};
use crate::http::problem::Problem;
use crate::http::request::Parts;
use http::StatusCode;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

/// The address of the peer, which may be a proxy. In tests and on a Unix domain socket there is no
/// address: the extractor then responds 500, and `Option<PeerAddr>` is `None`.
///
/// ```
/// use peregrine::web::extract::PeerAddr;
///
/// async fn whoami(PeerAddr(address): PeerAddr) -> String {
///     format!("you are {}", address.ip())
/// }
/// # let _ = whoami;
/// ```
#[doc(alias = "ConnectInfo")]
#[doc(alias = "remote_addr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddr(pub SocketAddr);

impl FromRequestParts for PeerAddr {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        // The address does not identify the client, so this does not mark the response as specific
        // to the client, as `Parts::connection` would.
        parts.connection_untracked().peer.socket_addr().map(Self).ok_or_else(|| {
            misconfiguration_problem(
                "no-peer-address",
                "the handler needs the peer's address, but the connection is not TCP; take \
                 `Option<PeerAddr>` or `ConnectionInfo`",
            )
        })
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        Ok(parts.connection_untracked().peer.socket_addr().map(Self))
    }
}

/// All properties of the connection, cloned. `Rc<ConnectionInfo>` shares them instead.
impl FromRequestParts for ConnectionInfo {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        Ok(ConnectionInfo::clone(parts.connection()))
    }
}

/// All properties of the connection.
impl FromRequestParts for Rc<ConnectionInfo> {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        Ok(Rc::clone(parts.connection()))
    }
}

/// The parameters negotiated in the TLS handshake. On a connection without TLS, the extractor
/// responds 403, and `Option<TlsInfo>` is `None`.
///
/// ```
/// use peregrine::web::extract::TlsInfo;
///
/// async fn secure(tls: Option<TlsInfo>) -> &'static str {
///     tls.map_or("plain", |tls| tls.version)
/// }
/// # let _ = secure;
/// ```
impl FromRequestParts for TlsInfo {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        parts.connection().tls.as_deref().cloned().ok_or_else(|| {
            Problem::new(
                StatusCode::FORBIDDEN,
                "tls-required",
                "this resource requires an encrypted connection; use https",
            )
        })
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        Ok(parts.connection().tls.as_deref().cloned())
    }
}

/// The client's identity from its certificate, shared. Without a certificate, the extractor
/// responds 403, and `Option<Arc<ClientIdentity>>` is `None`.
impl FromRequestParts for Arc<ClientIdentity> {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        parts.connection().client_identity().cloned().ok_or_else(|| {
            Problem::new(
                StatusCode::FORBIDDEN,
                "client-certificate-required",
                "this resource requires a client certificate; connect again with one",
            )
        })
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        Ok(parts.connection().client_identity().cloned())
    }
}

/// The client's identity from its certificate, cloned. `Arc<ClientIdentity>` shares it instead.
impl FromRequestParts for ClientIdentity {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        let shared = Arc::<Self>::from_request_parts(parts).await?;
        Ok(Self::clone(&shared))
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        let shared = Arc::<Self>::optional_from_request_parts(parts).await?;
        Ok(shared.map(|client| Self::clone(&client)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{assert_ready, from_parts, get, parts_on};
    use super::*;
    use crate::http::connection::ConnectionAddr;

    fn secure_tcp() -> ConnectionInfo {
        ConnectionInfo {
            peer: ConnectionAddr::Tcp("192.0.2.7:4000".parse().expect("an address")),
            tls: Some(Arc::new(TlsInfo { version: "TLSv1.3", ..TlsInfo::default() })),
            ..ConnectionInfo::default()
        }
    }

    #[test]
    fn extracts_the_peer_the_tls_parameters_and_the_connection() {
        let mut parts = parts_on(secure_tcp());
        let PeerAddr(peer) = assert_ready(from_parts(&mut parts)).expect("TCP");
        let tls: TlsInfo = assert_ready(from_parts(&mut parts)).expect("TLS");
        let info: Rc<ConnectionInfo> =
            assert_ready(from_parts(&mut parts)).expect("the extractor never fails");
        let copy: ConnectionInfo =
            assert_ready(from_parts(&mut parts)).expect("the extractor never fails");
        assert_eq!((peer.to_string().as_str(), tls.version), ("192.0.2.7:4000", "TLSv1.3"));
        assert_eq!(
            (&info.peer, &copy.peer),
            (&ConnectionAddr::Tcp(peer), &ConnectionAddr::Tcp(peer))
        );
    }

    #[test]
    fn without_tcp_or_tls_responds_with_a_problem_and_an_option_is_none() {
        let mut parts = get("/").parts;
        let problem = assert_ready(PeerAddr::from_request_parts(&mut parts)).expect_err("not TCP");
        assert_eq!((problem.status.as_u16(), problem.kind.as_ref()), (500, "no-peer-address"));
        // The advice to take an `Option<PeerAddr>` is for the log, not for the client.
        assert!(!problem.detail.contains("PeerAddr"), "{}", problem.detail);
        let problem = assert_ready(TlsInfo::from_request_parts(&mut parts)).expect_err("no TLS");
        assert_eq!((problem.status.as_u16(), problem.kind.as_ref()), (403, "tls-required"));
        assert!(problem.detail.contains("https"));
        assert_eq!(assert_ready(from_parts::<Option<PeerAddr>>(&mut parts)), Ok(None));
        assert_eq!(assert_ready(from_parts::<Option<TlsInfo>>(&mut parts)), Ok(None));
    }

    #[test]
    fn extracts_the_client_identity_only_if_there_is_a_certificate() {
        let mut parts = parts_on(secure_tcp());
        let problem =
            assert_ready(ClientIdentity::from_request_parts(&mut parts)).expect_err("no client");
        let kind = (problem.status.as_u16(), problem.kind.as_ref());
        assert_eq!(kind, (403, "client-certificate-required"));
        assert_eq!(assert_ready(from_parts::<Option<ClientIdentity>>(&mut parts)), Ok(None));
        assert_eq!(assert_ready(from_parts::<Option<Arc<ClientIdentity>>>(&mut parts)), Ok(None));

        let client = ClientIdentity { subject: "CN=a".to_owned(), ..ClientIdentity::default() };
        let tls = TlsInfo { client_identity: Some(Arc::new(client.clone())), ..TlsInfo::default() };
        let mut parts =
            parts_on(ConnectionInfo { tls: Some(Arc::new(tls)), ..ConnectionInfo::default() });
        assert_eq!(assert_ready(from_parts(&mut parts)), Ok(client.clone()));
        assert_eq!(assert_ready(from_parts(&mut parts)), Ok(Some(client.clone())));
        assert_eq!(assert_ready(from_parts(&mut parts)), Ok(Arc::new(client.clone())));
        assert_eq!(assert_ready(from_parts(&mut parts)), Ok(Some(Arc::new(client))));
    }
}
