//! Who calls, behind proxies, on every driver; and what mounted routers and tower layers see of that.

use axum::extract::ConnectInfo;
use axum::routing::get;
use axum::{Extension, Router};
use peregrine::prelude::*;
use peregrine::tower::{Mount, layer, tower};
use peregrine::{DriverChoice, Listener, ProxyProtocol};
use peregrine_tests::callers;
use peregrine_tests::server::{KernelBenches, SimulatedBenches};
use std::net::SocketAddr;

callers!(sim, SimulatedBenches::seeds(0..20));
callers!(tokio, KernelBenches::tcp(DriverChoice::Tokio));
callers!(uring, KernelBenches::tcp(DriverChoice::Uring));
#[cfg(unix)]
callers!(@plain tokio_unix, KernelBenches::unix(DriverChoice::Tokio));
#[cfg(unix)]
callers!(@plain uring_unix, KernelBenches::unix(DriverChoice::Uring));

/// What routers and layers are told, in each way that they are mounted.
fn mounts() -> App {
    async fn peer(ConnectInfo(peer): ConnectInfo<SocketAddr>) -> String {
        peer.to_string()
    }
    async fn client(Extension(ClientAddress(ip)): Extension<ClientAddress>) -> String {
        ip.to_string()
    }
    #[derive(Clone)]
    struct Seen(SocketAddr);
    let router = Router::new().route("/peer", get(peer)).route("/client", get(client));
    let made = router.clone().into_make_service_with_connect_info::<SocketAddr>();
    let seen = tower::util::MapRequestLayer::new(|mut request: http::Request<_>| {
        let ConnectInfo(peer) = *request.extensions().get::<ConnectInfo<SocketAddr>>().expect("it is told");
        request.extensions_mut().insert(Seen(peer));
        request
    });
    App::new()
        .mount("/told", tower(router).connect_info(ConnectInfo))
        .mount("/made", made)
        .scope("/layer", |scope| {
            let say = async |Extension(Seen(peer)): peregrine::web::extract::Extension<Seen>| peer.to_string();
            scope.with(layer(seen).connect_info(ConnectInfo)).get("/peer", say)
        })
}

#[test]
fn routers_and_layers_see_the_client_that_a_trusted_proxy_tells() {
    let client = mounts().test().behind(["10.0.0.0/8"]);
    for path in ["/told/peer", "/made/peer", "/layer/peer"] {
        // One connection of a proxy, and two clients.
        for (list, expected) in [("1.1.1.1, 192.0.2.1:40", "192.0.2.1:40"), ("192.0.2.2", "192.0.2.2:0")] {
            let response = client.get(path).header("x-forwarded-for", list).send_now();
            assert_eq!(response.text(), expected, "{path}");
        }
    }
    let response = client.get("/told/client").header("x-forwarded-for", "192.0.2.1").send_now();
    assert_eq!(response.text(), "192.0.2.1");
}
