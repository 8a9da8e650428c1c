//! The facts about a connection that requests of the `http` crate carry.

use http::Extensions;
use peregrine_web::connection::ConnectionInfo;
use std::net::SocketAddr;
use std::sync::Arc;

/// Fills the extensions of each request, for mounted services and tower layers alike.
#[derive(Clone, Default)]
pub(crate) struct Facts(Option<Insert>);

type Insert = Arc<dyn Fn(&ConnectionInfo, &mut Extensions) + Send + Sync>;

impl Facts {
    #[inline]
    pub(crate) fn tell(&self, connection: &ConnectionInfo, extensions: &mut Extensions) {
        if let Some(insert) = &self.0 {
            insert(connection, extensions);
        }
    }

    /// Also adds what `make` makes from the connection's facts.
    pub(crate) fn and<T, F>(self, make: F) -> Self
    where
        T: Clone + Send + Sync + 'static,
        F: Fn(&ConnectionInfo) -> T + Send + Sync + 'static,
    {
        self.inserting(move |connection, extensions| {
            extensions.get_or_insert_with(|| make(connection));
        })
    }

    /// Also adds what `make` makes from the peer's address, if the peer connected over TCP.
    pub(crate) fn and_address<T, F>(self, make: F) -> Self
    where
        T: Clone + Send + Sync + 'static,
        F: Fn(SocketAddr) -> T + Send + Sync + 'static,
    {
        self.inserting(move |connection, extensions| {
            if let Some(peer) = connection.peer.tcp() {
                extensions.get_or_insert_with(|| make(peer));
            }
        })
    }

    fn inserting<F>(self, insert: F) -> Self
    where
        F: Fn(&ConnectionInfo, &mut Extensions) + Send + Sync + 'static,
    {
        Self(Some(match self.0 {
            None => Arc::new(insert),
            Some(before) => Arc::new(move |connection, extensions| {
                before(connection, extensions);
                insert(connection, extensions);
            }),
        }))
    }
}
