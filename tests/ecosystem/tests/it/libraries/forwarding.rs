//! Handlers that send requests to a second server through one reqwest client shared by all workers.

use http::StatusCode;
use peregrine::tls::{SelfSigned, TlsConfig};
use peregrine::tower::tower;
use peregrine::web::App;
use peregrine::web::prelude::*;
use peregrine::{DriverChoice, RunningServer, Server};
use peregrine_ecosystem_tests::{base_url, client, end, in_runtime, on_both_drivers, start};
use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Semaphore;

on_both_drivers! {
    a_client_of_all_workers_asks_for_many_at_once,
    a_client_of_all_workers_asks_for_many_at_once_over_tls,
    a_connection_to_the_second_server_is_used_again_by_all_workers,
    an_answer_streams_through_piece_by_piece,
    a_request_body_streams_through_a_mounted_router,
    the_time_limit_of_a_client_counts_inside_a_handler,
}

/// The second server, and the gate of its stream.
struct Behind {
    running: RunningServer,
    identity: SelfSigned,
    gate: Arc<Semaphore>,
}

/// Two pieces, the second of which waits for the gate.
struct Gated(usize, Pin<Box<dyn Future<Output = ()>>>);

impl futures_core::Stream for Gated {
    type Item = Result<&'static str, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self(given, gate) = &mut *self;
        if *given == 1 && gate.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        let piece = ["first ", "second"].get(*given).copied();
        *given += 1;
        Poll::Ready(piece.map(Ok))
    }
}

impl Behind {
    fn start() -> Self {
        let identity = TlsConfig::self_signed(&["localhost"]).expect("a certificate can be made");
        let gate = Arc::new(Semaphore::new(0));
        let shared = gate.clone();
        let make = move || {
            App::new()
                .state(shared.clone())
                .get("/hello", || "hello")
                .post("/length", async |body: Vec<u8>| body.len().to_string())
                .get("/never", async || std::future::pending::<()>().await)
                .get("/gated", async |State(gate): State<Arc<Semaphore>>| {
                    let open = async move {
                        gate.acquire().await.expect("the semaphore is never closed").forget()
                    };
                    Body::from_stream(Gated(0, Box::pin(open)))
                })
        };
        let server = Server::bind("127.0.0.1:0").listen_tls("127.0.0.1:0", identity.tls.clone());
        let running = server.workers(NonZeroUsize::MIN).quiet().start(make);
        Self { running: running.expect("the server starts"), identity, gate }
    }

    /// The server's URL. The host name makes the client resolve it, which blocks a thread outside
    /// the worker.
    fn url(&self, is_tls: bool, path: &str) -> String {
        let (scheme, address) = if is_tls {
            ("https", self.running.https_address())
        } else {
            ("http", self.running.http_address())
        };
        let port = address.expect("the server has both listeners").port();
        format!("{scheme}://localhost:{port}{path}")
    }
}

/// State shared by the handlers.
#[derive(Clone)]
struct Forward {
    client: reqwest::Client,
    url: String,
}

impl Forward {
    fn to(behind: &Behind, is_tls: bool, path: &str) -> Self {
        let client = client(Some(&behind.identity.certificate_pem));
        Self { client, url: behind.url(is_tls, path) }
    }

    async fn text(&self) -> Result<String, String> {
        let response = self.client.get(&self.url).send().await;
        let text = response.map_err(|error| format!("{error:?}"))?.text().await;
        text.map_err(|error| format!("{error:?}"))
    }
}

/// A front server in both forms, which responds with the second server's responses.
fn fronts(choice: DriverChoice, workers: usize, forward: &Forward) -> Vec<RunningServer> {
    let ours = forward.clone();
    let ours = move || {
        let get = async |State(forward): State<Forward>| forward.text().await;
        App::new().state(ours.clone()).get("/", get)
    };
    let theirs = {
        let get = async |axum::extract::State(forward): axum::extract::State<Forward>| {
            forward.text().await
        };
        axum::Router::new().route("/", axum::routing::get(get)).with_state(forward.clone())
    };
    let ours = start(choice, workers, ours);
    let theirs = start(choice, workers, move || tower(theirs.clone()));
    ours.into_iter().chain(theirs).collect()
}

async fn ask(url: String) -> (u16, String) {
    let response = client(None).get(url).send().await.expect("the server responds");
    (response.status().as_u16(), response.text().await.expect("the body is complete"))
}

fn many_at_once(choice: DriverChoice, is_tls: bool) {
    const REQUESTS: usize = 100;
    let behind = Behind::start();
    for running in fronts(choice, 4, &Forward::to(&behind, is_tls, "/hello")) {
        in_runtime(async {
            let url = base_url(&running);
            let asked = (0..REQUESTS).map(|_| tokio::spawn(ask(url.clone())));
            for task in asked.collect::<Vec<_>>() {
                let answer = task.await.expect("each client gets a response");
                assert_eq!(answer, (200, "hello".to_owned()));
            }
        });
        end(running);
    }
    end(behind.running);
}

fn a_client_of_all_workers_asks_for_many_at_once(choice: DriverChoice) {
    many_at_once(choice, false);
}

fn a_client_of_all_workers_asks_for_many_at_once_over_tls(choice: DriverChoice) {
    many_at_once(choice, true);
}

fn a_connection_to_the_second_server_is_used_again_by_all_workers(choice: DriverChoice) {
    const REQUESTS: u64 = 40;
    let behind = Behind::start();
    let forward = Forward::to(&behind, true, "/hello");
    // While one form is tested, the other one's workers run too, and share the client.
    let fronts = fronts(choice, 2, &forward);
    let expected = REQUESTS * fronts.len() as u64;
    in_runtime(async {
        for running in &fronts {
            for _ in 0..REQUESTS {
                // Each connection may go to any worker.
                assert_eq!(ask(base_url(running)).await, (200, "hello".to_owned()));
            }
        }
    });
    fronts.into_iter().for_each(|running| drop(end(running)));
    drop(forward);
    let stopped = end(behind.running);
    assert_eq!(stopped.requests(), expected);
    // The client returns a connection to its pool a moment after the response, so it makes a few
    // more connections than needed.
    assert!(stopped.connections() <= expected / 4, "{stopped}");
}

fn an_answer_streams_through_piece_by_piece(choice: DriverChoice) {
    use axum::extract::State as AxumState;
    let behind = Behind::start();
    let forward = Forward::to(&behind, true, "/gated");
    let shared = forward.clone();
    let ours = move || {
        App::new().state(shared.clone()).get("/", async |State(forward): State<Forward>| {
            let response =
                forward.client.get(&forward.url).send().await.expect("the server responds");
            Body::from_stream(response.bytes_stream())
        })
    };
    let theirs = axum::Router::new().route(
        "/",
        axum::routing::get(async |AxumState(forward): AxumState<Forward>| {
            let response =
                forward.client.get(&forward.url).send().await.expect("the server responds");
            axum::body::Body::from_stream(response.bytes_stream())
        }),
    );
    let theirs = theirs.with_state(forward.clone());
    let fronts = start(choice, 2, ours).into_iter();
    for running in fronts.chain(start(choice, 2, move || tower(theirs.clone()))) {
        in_runtime(async {
            let response = client(None).get(base_url(&running)).send().await;
            let mut response = response.expect("the server responds");
            let piece = response
                .chunk()
                .await
                .expect("the stream is still open")
                .expect("the stream does not end");
            assert_eq!(piece, "first ", "the first piece arrives before the rest is released");
            behind.gate.add_permits(1);
            let rest = response.text().await.expect("the body is complete");
            assert_eq!(rest, "second");
        });
        end(running);
    }
    end(behind.running);
}

fn a_request_body_streams_through_a_mounted_router(choice: DriverChoice) {
    use axum::extract::State as AxumState;
    let behind = Behind::start();
    let forward = Forward::to(&behind, false, "/length");
    let relay = async |AxumState(forward): AxumState<Forward>, body: axum::body::Body| {
        let body = reqwest::Body::wrap_stream(body.into_data_stream());
        let response = forward.client.post(&forward.url).body(body).send().await;
        response.expect("the server responds").text().await.expect("the body is complete")
    };
    let router = axum::Router::new().route("/", axum::routing::post(relay)).with_state(forward);
    let Some(running) = start(choice, 2, move || tower(router.clone())) else { return };
    in_runtime(async {
        let body = vec![b'x'; 1_900_000];
        let response = client(None).post(base_url(&running)).body(body).send().await;
        let text = response.expect("the server responds").text().await;
        assert_eq!(text.expect("the body is complete"), "1900000");
    });
    end(running);
    end(behind.running);
}

fn the_time_limit_of_a_client_counts_inside_a_handler(choice: DriverChoice) {
    let behind = Behind::start();
    let forward = Forward::to(&behind, false, "/never");
    let late = async |State(forward): State<Forward>| {
        let request = forward.client.get(&forward.url).timeout(Duration::from_millis(50));
        match request.send().await {
            Err(error) if error.is_timeout() => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    };
    let make = move || App::new().state(forward.clone()).get("/", late);
    let Some(running) = start(choice, 2, make) else { return };
    in_runtime(async {
        for _ in 0..3 {
            assert_eq!(ask(base_url(&running)).await.0, 504);
        }
    });
    end(running);
    end(behind.running);
}
