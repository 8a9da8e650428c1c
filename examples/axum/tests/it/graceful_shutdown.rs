use crate::harness::{Host, Served, answer, wait_until};
use axum::Router;
use axum::routing::get;
use futures_util::future::join;
use peregrine_axum_examples::graceful_shutdown::{app, app_with_limit};
use reqwest::Method;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// Blocks handlers until the test releases them.
struct Gate {
    begun: Semaphore,
    open: Semaphore,
}

/// The application, with an additional route whose handlers wait at the gate.
fn gated() -> (Router, Arc<Gate>) {
    let gate = Arc::new(Gate { begun: Semaphore::new(0), open: Semaphore::new(0) });
    let held = Arc::clone(&gate);
    let handler = async move || {
        held.begun.add_permits(1);
        held.open.acquire().await.expect("the gate is never closed").forget();
        "held, but done"
    };
    (app().route("/held", get(handler)), gate)
}

async fn wait_until_held(gate: &Gate, count: usize) {
    wait_until("the requests have started", async || gate.begun.available_permits() == count).await;
}

async fn wait_until_refused(address: SocketAddr) {
    wait_until("the server stops listening", async || TcpStream::connect(address).await.is_err())
        .await;
}

async fn wait_until_begun(server: &Served, count: u64) {
    wait_until("the requests have started", async || {
        server.get("/begun").await.text() == count.to_string()
    })
    .await;
}

pub(crate) async fn requests_that_have_begun_are_answered_before_the_end(host: Host) {
    let (app, gate) = gated();
    let server = host.serve(app);
    let address = server.address;
    assert_eq!(server.get("/slow/1").await.brief(), (200, "slow, but done"));
    let held: Vec<_> =
        (0..4).map(|_| tokio::spawn(answer(server.request(Method::GET, "/held")))).collect();
    wait_until_held(&gate, 4).await;
    let ending = server.stop();
    wait_until_refused(address).await;
    gate.open.add_permits(4);
    for held in held {
        let answer = held.await.expect("the server responds");
        assert_eq!(answer.brief(), (200, "held, but done"));
        // axum closes its listener before it notifies its connections, so a response may be sent
        // before the connection knows about the shutdown.
        if host.engine.is_peregrine() {
            assert_eq!(answer.field("connection"), Some("close"));
        }
    }
    ending.wait().await;
}

pub(crate) async fn a_body_that_has_begun_is_sent_to_its_end(host: Host) {
    let server = host.serve(app());
    let drip = tokio::spawn(answer(server.request(Method::GET, "/drip/20")));
    wait_until_begun(&server, 1).await;
    let ending = server.stop();
    let all: String = (0..20).map(|number| format!("drop {number}\n")).collect();
    assert_eq!(drip.await.expect("the server responds").brief(), (200, all.as_str()));
    ending.wait().await;
}

pub(crate) async fn idle_connections_are_closed_at_once(host: Host) {
    let server = host.serve(app());
    let mut used = server.connect().await;
    used.send("GET /begun HTTP/1.1\r\nHost: a\r\n\r\n").await;
    used.read_until("\r\n\r\n0").await;
    let ending = server.stop();
    let (rest, ()) = join(used.rest(), ending.wait()).await;
    assert_eq!(rest, "");
}

pub(crate) async fn a_server_waits_for_what_is_slow_and_for_nothing_else(host: Host) {
    let (app, gate) = gated();
    let server = host.serve(app);
    let address = server.address;
    let held = tokio::spawn(answer(server.request(Method::GET, "/held")));
    wait_until_held(&gate, 1).await;
    let ending = server.stop();
    wait_until_refused(address).await;
    assert!(!ending.is_over(), "a request is still running");
    gate.open.add_permits(1);
    assert_eq!(held.await.expect("the server responds").status, 200);
    ending.wait().await;
}

pub(crate) async fn what_would_never_end_runs_into_its_limit(host: Host) {
    let server = host.serve(app_with_limit(Duration::from_millis(100)));
    assert_eq!(server.get("/forever").await.brief(), (408, ""));
    let late = tokio::spawn(answer(server.request(Method::GET, "/slow/600000")));
    wait_until_begun(&server, 1).await;
    let ending = server.stop();
    assert_eq!(late.await.expect("the server responds").brief(), (408, ""));
    ending.wait().await;
}
