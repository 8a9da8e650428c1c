//! Client addresses behind proxies, on every driver, as mounted routers and tower layers see them.

use axum::extract::ConnectInfo;
use axum::routing::get;
use axum::{Extension, Router};
use peregrine::prelude::*;
use peregrine::tower::{Mount, SendBody, layer, tower};
use peregrine::web::extract::Extension as Attached;
use peregrine::{DriverChoice, Limits};
use peregrine_tests::callers;
use peregrine_tests::server::bench::{Bench, Served, ServerOptions};
use peregrine_tests::server::client::Way;
use peregrine_tests::server::{KernelBenches, SimulatedBenches};
use std::net::SocketAddr;

callers!(sim, SimulatedBenches::seeds(0..8));
callers!(tokio, KernelBenches::tcp(DriverChoice::Tokio));
callers!(uring, KernelBenches::tcp(DriverChoice::Uring));
#[cfg(unix)]
callers!(@plain tokio_unix, KernelBenches::unix(DriverChoice::Tokio));
#[cfg(unix)]
callers!(@plain uring_unix, KernelBenches::unix(DriverChoice::Uring));

/// Routers and layers mounted in each way, which report the client's address.
fn mounts() -> App {
    async fn peer(ConnectInfo(peer): ConnectInfo<SocketAddr>) -> String {
        peer.to_string()
    }
    async fn client(Extension(ClientIp(ip)): Extension<ClientIp>) -> String {
        ip.to_string()
    }
    #[derive(Clone)]
    struct Seen(SocketAddr);
    let router = Router::new().route("/peer", get(peer)).route("/client", get(client));
    let made = router.clone().into_make_service_with_connect_info::<SocketAddr>();
    let seen = tower::util::MapRequestLayer::new(|mut request: http::Request<SendBody>| {
        let connect_info = request.extensions().get::<ConnectInfo<SocketAddr>>();
        let ConnectInfo(peer) = *connect_info.expect("the layer has it");
        request.extensions_mut().insert(Seen(peer));
        request
    });
    App::new().mount("/tower", tower(router).connect_info(ConnectInfo)).mount("/made", made).scope(
        "/layer",
        |scope| {
            let say = async |Attached(Seen(peer)): Attached<Seen>| peer.to_string();
            scope.wrap(layer(seen).connect_info(ConnectInfo)).get("/peer", say)
        },
    )
}

/// The paths of each way, an address list, and the client address expected for its leftmost entry.
const PEER_PATHS: [&str; 3] = ["/tower/peer", "/made/peer", "/layer/peer"];
const CLIENTS: [(&str, &str); 3] =
    [("1.1.1.1, 192.0.2.1:40", "192.0.2.1:40"), ("192.0.2.2", "192.0.2.2:0"), ("junk", "")];

#[test]
fn routers_and_layers_see_the_client_that_a_trusted_proxy_tells() {
    let client = mounts().test().with_trusted_proxies(["10.0.0.0/8"]);
    for path in PEER_PATHS {
        for (list, expected) in CLIENTS.into_iter().take(2) {
            let response = client.get(path).header("x-forwarded-for", list).send_blocking();
            assert_eq!(response.text(), expected, "{path}");
        }
    }
    let response =
        client.get("/tower/client").header("x-forwarded-for", "192.0.2.1").send_blocking();
    assert_eq!(response.text(), "192.0.2.1");
}

/// Many clients share one connection of a proxy.
fn routers_see_the_client_of_each_request_on(choice: DriverChoice) {
    KernelBenches::tcp(choice).check(async |bench| {
        let server_options =
            ServerOptions { proxies: Some(["127.0.0.0/8"].into()), ..ServerOptions::default() };
        let server = bench.start_behind(server_options, Limits::default(), None, mounts);
        for way in [Way::HTTP1, Way::HTTP2] {
            let mut client = way.connect(&server).await;
            for path in PEER_PATHS {
                for (list, expected) in CLIENTS {
                    let id = client.ask("GET", path, &[("x-forwarded-for", list)]);
                    let answer = client.answer(id).await;
                    let said = answer.text();
                    let is_peer = expected.is_empty() && said.starts_with("127.0.0.1:");
                    assert!(is_peer || said == expected, "{path} {list}: {said}");
                }
            }
            client.close().await;
        }
        server.shut_down();
        server.ended().await;
    });
}

#[test]
fn routers_see_the_client_of_each_request_on_tokio() {
    routers_see_the_client_of_each_request_on(DriverChoice::Tokio);
}

#[test]
fn routers_see_the_client_of_each_request_on_uring() {
    routers_see_the_client_of_each_request_on(DriverChoice::Uring);
}
