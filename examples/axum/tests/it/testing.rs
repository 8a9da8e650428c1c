use crate::harness::Host;
use futures_util::future::join_all;
use peregrine_axum_examples::testing::app;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

pub(crate) async fn a_server_answers_as_the_router_does_without_one(host: Host) {
    let server = host.serve_by_peer(app().into_make_service_with_connect_info());
    assert_eq!(server.get("/").await.brief(), (200, "Hello, World!"));
    let json = server.post("/json", "application/json", "[1, 2, 3]").await;
    assert_eq!(json.brief(), (200, r#"{"got":[1,2,3]}"#));
    assert_eq!(server.get("/nowhere").await.brief(), (404, ""));
    let peer: SocketAddr = server.get("/peer").await.text().parse().expect("an address");
    assert_eq!(peer.ip(), IpAddr::V4(Ipv4Addr::LOCALHOST));
    server.end().await;
}

pub(crate) async fn peers_are_distinguished(host: Host) {
    let server = host.serve_by_peer(app().into_make_service_with_connect_info());
    let mut peers = join_all((0..10).map(async |_| {
        let mut raw = server.connect().await;
        let own = raw.address();
        for _ in 0..2 {
            raw.send("GET /peer HTTP/1.1\r\nHost: a\r\n\r\n").await;
            raw.read_until(&format!("\r\n\r\n{own}")).await;
        }
        own
    }))
    .await;
    peers.sort();
    peers.dedup();
    assert_eq!(peers.len(), 10);
    server.end().await;
}

pub(crate) async fn who_is_not_told_of_peers_says_so(host: Host) {
    let server = host.serve(app());
    let refused = server.get("/peer").await;
    assert_eq!(refused.status, 500);
    assert!(refused.text().contains("ConnectInfo"), "{refused:?}");
    server.end().await;
}
