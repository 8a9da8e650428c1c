//! Adds information about the connection to the extensions of `http` requests.

use http::Extensions;
use peregrine_web::Parts;
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::extract::ClientIp;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Fills the extensions of each request to a mounted service or a tower layer.
#[derive(Clone, Default)]
pub(crate) struct ConnectionExtensions(Option<InsertFn>);

/// True if a Peregrine application may run inside a mounted service, on any thread of the process.
static MAY_HAVE_NESTED_APP: AtomicBool = AtomicBool::new(false);

/// Makes the extensions of each later request contain its [`ConnectionInfo`], for an application
/// inside a mounted service. Programs without a nested application do not pay for this copy.
pub(crate) fn expect_nested_app() {
    MAY_HAVE_NESTED_APP.store(true, Ordering::Relaxed);
}

pub(crate) fn may_have_nested_app() -> bool {
    MAY_HAVE_NESTED_APP.load(Ordering::Relaxed)
}

type InsertFn = Arc<dyn Fn(&ConnectionInfo, ClientAddr, &mut Extensions) + Send + Sync>;

/// The sender of a request: the client that a trusted proxy reports, or the connection's peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientAddr {
    pub(crate) address: Option<SocketAddr>,
    /// Whether the connection is from a trusted proxy, so that its requests come from many clients.
    is_forwarded: bool,
}

impl ClientAddr {
    #[inline]
    pub(crate) fn from_parts(parts: &Parts) -> Self {
        let connection = parts.connection_untracked();
        if connection.trusted_proxies.is_none() {
            return Self { address: connection.peer.socket_addr(), is_forwarded: false };
        }
        Self { address: parts.client().address(), is_forwarded: true }
    }
}

impl ConnectionExtensions {
    #[inline]
    pub(crate) fn insert_into(
        &self,
        connection: &ConnectionInfo,
        client_addr: ClientAddr,
        extensions: &mut Extensions,
    ) {
        if client_addr.is_forwarded {
            // For `PerConnection`, which then creates a service for each request.
            extensions.insert(client_addr);
            if let Some(address) = client_addr.address {
                extensions.insert(ClientIp(address.ip()));
            }
        }
        if may_have_nested_app() {
            extensions.get_or_insert_with(|| connection.clone());
        }
        if let Some(insert) = &self.0 {
            insert(connection, client_addr, extensions);
        }
    }

    /// Also adds the value that `make` creates from the connection's [`ConnectionInfo`].
    pub(crate) fn with<T, F>(self, make: F) -> Self
    where
        T: Clone + Send + Sync + 'static,
        F: Fn(&ConnectionInfo) -> T + Send + Sync + 'static,
    {
        self.with_insert(move |connection, _, extensions| {
            extensions.get_or_insert_with(|| make(connection));
        })
    }

    /// Also adds the value that `make` creates from the client's address, if the address is known.
    pub(crate) fn with_client_addr<T, F>(self, make: F) -> Self
    where
        T: Clone + Send + Sync + 'static,
        F: Fn(SocketAddr) -> T + Send + Sync + 'static,
    {
        self.with_insert(move |_, client_addr, extensions| {
            if let Some(address) = client_addr.address {
                extensions.get_or_insert_with(|| make(address));
            }
        })
    }

    fn with_insert<F>(self, insert: F) -> Self
    where
        F: Fn(&ConnectionInfo, ClientAddr, &mut Extensions) + Send + Sync + 'static,
    {
        Self(Some(match self.0 {
            None => Arc::new(insert),
            Some(previous) => Arc::new(move |connection, client_addr, extensions| {
                previous(connection, client_addr, extensions);
                insert(connection, client_addr, extensions);
            }),
        }))
    }
}
