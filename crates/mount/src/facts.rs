//! Adds facts about the connection to the extensions of `http` requests.

use http::Extensions;
use peregrine_web::Parts;
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::extract::ClientAddress;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Fills the extensions of each request to a mounted service or a tower layer.
#[derive(Clone, Default)]
pub(crate) struct Facts(Option<Insert>);

/// True if a Peregrine application may run inside a mounted service, on any thread of the process.
static IS_NESTED: AtomicBool = AtomicBool::new(false);

/// From now on, the extensions of each request contain its [`ConnectionInfo`], for an application
/// inside a mounted service. Programs without a nested application do not pay for this copy.
pub(crate) fn serve_nested() {
    IS_NESTED.store(true, Ordering::Relaxed);
}

pub(crate) fn is_nested() -> bool {
    IS_NESTED.load(Ordering::Relaxed)
}

type Insert = Arc<dyn Fn(&ConnectionInfo, Caller, &mut Extensions) + Send + Sync>;

/// The sender of a request: the client that a trusted proxy reports, or the connection's peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) address: Option<SocketAddr>,
    /// The connection is from a trusted proxy, so its requests come from many clients.
    is_told: bool,
}

impl Caller {
    #[inline]
    pub(crate) fn of(parts: &Parts) -> Self {
        let connection = parts.peek_connection();
        if connection.proxies.is_none() {
            return Self { address: connection.peer.tcp(), is_told: false };
        }
        Self { address: parts.client().address(), is_told: true }
    }
}

impl Facts {
    #[inline]
    pub(crate) fn tell(
        &self,
        connection: &ConnectionInfo,
        caller: Caller,
        extensions: &mut Extensions,
    ) {
        if caller.is_told {
            extensions.insert(caller);
            if let Some(address) = caller.address {
                extensions.insert(ClientAddress(address.ip()));
            }
        }
        if is_nested() {
            extensions.get_or_insert_with(|| connection.clone());
        }
        if let Some(insert) = &self.0 {
            insert(connection, caller, extensions);
        }
    }

    /// Also adds the value that `make` creates from the connection's [`ConnectionInfo`].
    pub(crate) fn and<T, F>(self, make: F) -> Self
    where
        T: Clone + Send + Sync + 'static,
        F: Fn(&ConnectionInfo) -> T + Send + Sync + 'static,
    {
        self.inserting(move |connection, _, extensions| {
            extensions.get_or_insert_with(|| make(connection));
        })
    }

    /// Also adds the value that `make` creates from the client's address, if the address is known.
    pub(crate) fn and_address<T, F>(self, make: F) -> Self
    where
        T: Clone + Send + Sync + 'static,
        F: Fn(SocketAddr) -> T + Send + Sync + 'static,
    {
        self.inserting(move |_, caller, extensions| {
            if let Some(address) = caller.address {
                extensions.get_or_insert_with(|| make(address));
            }
        })
    }

    fn inserting<F>(self, insert: F) -> Self
    where
        F: Fn(&ConnectionInfo, Caller, &mut Extensions) + Send + Sync + 'static,
    {
        Self(Some(match self.0 {
            None => Arc::new(insert),
            Some(before) => Arc::new(move |connection, caller, extensions| {
                before(connection, caller, extensions);
                insert(connection, caller, extensions);
            }),
        }))
    }
}
