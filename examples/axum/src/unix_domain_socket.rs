//! An application on a Unix domain socket, with a handler that reads the peer's socket name.

use axum::Router;
use axum::extract::ConnectInfo;
use axum::extract::connect_info::Connected;
use axum::routing::get;
use axum::serve::IncomingStream;
use peregrine::tower::{SharedService, TowerHandler, tower};
use peregrine::web::connection::{ConnectionAddr, ConnectionInfo};
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// The path of the peer's socket. Most clients do not bind their socket to a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixPeer(pub Option<PathBuf>);

/// The application. Its server puts a [`ConnectInfo`] of a [`UnixPeer`] into each request.
pub fn app() -> Router {
    Router::new().route("/", get(hello))
}

async fn hello(ConnectInfo(peer): ConnectInfo<UnixPeer>) -> String {
    let name = peer.0.as_deref().and_then(Path::file_name).unwrap_or("nobody".as_ref());
    format!("Hello, {}!", name.display())
}

/// For `axum::serve`, through `into_make_service_with_connect_info`.
impl Connected<IncomingStream<'_, UnixListener>> for UnixPeer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        Self(stream.remote_addr().as_pathname().map(Path::to_path_buf))
    }
}

impl From<&ConnectionInfo> for UnixPeer {
    fn from(connection: &ConnectionInfo) -> Self {
        match &connection.peer {
            ConnectionAddr::Unix { path, .. } => Self(path.clone()),
            _ => Self(None),
        }
    }
}

/// For Peregrine: an extension built from the connection's information.
pub fn app_with_peers() -> TowerHandler<SharedService<Router>> {
    tower(app()).extension(|connection| ConnectInfo(UnixPeer::from(connection)))
}
