//! The facts about a connection that requests of the `http` crate carry.

use http::Extensions;
use peregrine_web::Parts;
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::extract::ClientAddress;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Fills the extensions of each request, for mounted services and tower layers alike.
#[derive(Clone, Default)]
pub(crate) struct Facts(Option<Insert>);

/// Whether an application of ours may be inside of a mounted service, on any thread.
static IS_NESTED: AtomicBool = AtomicBool::new(false);

/// From now on, requests carry the facts of their connection and of their client, for an
/// application inside of a mounted service. Programs without one do not pay for that.
pub(crate) fn serve_nested() {
    IS_NESTED.store(true, Ordering::Relaxed);
}

pub(crate) fn is_nested() -> bool {
    IS_NESTED.load(Ordering::Relaxed)
}

type Insert = Arc<dyn Fn(&ConnectionInfo, Caller, &mut Extensions) + Send + Sync>;

/// Who sent a request: the client that a trusted proxy tells, or the connection's peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) address: Option<SocketAddr>,
    /// The connection is a trusted proxy's, whose requests come from many clients.
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

    /// Also adds what `make` makes from the connection's facts.
    pub(crate) fn and<T, F>(self, make: F) -> Self
    where
        T: Clone + Send + Sync + 'static,
        F: Fn(&ConnectionInfo) -> T + Send + Sync + 'static,
    {
        self.inserting(move |connection, _, extensions| {
            extensions.get_or_insert_with(|| make(connection));
        })
    }

    /// Also adds what `make` makes from the client's address, if that is known.
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
