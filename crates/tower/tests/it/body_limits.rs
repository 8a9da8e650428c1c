//! Body limits around mounted services: the server's limit does not apply to the service, but to
//! middleware around it that reads whole bodies.

use axum::Router;
use axum::body::Body as AxumBody;
use axum::routing::post;
use bytes::Bytes;
use futures_core::Stream;
use http_body_util::BodyExt;
use peregrine::cache::{Idempotency, MemoryIdempotencyStore};
use peregrine::compression::Decompression;
use peregrine::middleware::BodyLimit;
use peregrine_tower::{Mount, into_tower, tower};
use peregrine_web::testing::{TestClient, TestResponse};
use peregrine_web::{App, Body, IntoResponse, Next, Request, Response};
use std::pin::Pin;
use std::task::{Context, Poll};

/// The server's limit in these tests.
const LIMIT: u64 = 1000;

/// Returns the number of bytes received.
async fn count_bytes(body: AxumBody) -> String {
    let mut body = body;
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        bytes += frame.expect("a frame").data_ref().map_or(0, Bytes::len);
    }
    bytes.to_string()
}

fn router() -> Router {
    Router::new().route("/", post(count_bytes))
}

/// A middleware that reads the whole body, within the server's limit.
async fn buffer_body(request: Request, next: Next<'_>) -> Response {
    let (parts, body) = request.into_parts();
    let (limits, limit) = (body.limits(), body.buffer_limit());
    match body.into_bytes(limit).await {
        Ok(bytes) => {
            let body = Body::from(bytes).with_limits(limits);
            next.run(Request::from_parts(parts, body)).await
        }
        Err(error) => peregrine_web::Problem::from(error).into_response(),
    }
}

struct ChunkStream(usize);

impl Stream for ChunkStream {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Some(remaining) = self.0.checked_sub(1) else { return Poll::Ready(None) };
        self.0 = remaining;
        Poll::Ready(Some(Bytes::from(vec![b'x'; 100])))
    }
}

/// Sends a body of `chunks` times 100 bytes, as a stream or as a whole.
fn send(client: &TestClient, is_stream: bool, chunks: usize) -> TestResponse {
    let request = client.post("/").header("idempotency-key", "\"a\"");
    match is_stream {
        true => request.stream(ChunkStream(chunks)).send_blocking(),
        false => request.body(vec![b'x'; chunks * 100]).send_blocking(),
    }
}

fn mounted(app: App) -> TestClient {
    app.mount("/", router()).test().body_limit(LIMIT)
}

#[test]
fn the_servers_limit_does_not_apply_to_a_mounted_service() {
    for is_stream in [true, false] {
        assert_eq!(send(&mounted(App::new()), is_stream, 50).text(), "5000");
    }
}

#[test]
fn middleware_around_a_service_is_bound_by_the_servers_limit() {
    type MakeApp = fn() -> App;
    let apps: [(&str, MakeApp); 4] = [
        ("idempotency", || App::new().wrap(Idempotency::new(MemoryIdempotencyStore::new()))),
        ("within decompression", || {
            App::new()
                .wrap(Decompression::new())
                .wrap(Idempotency::new(MemoryIdempotencyStore::new()))
        }),
        ("its own", || App::new().wrap(buffer_body)),
        ("its own, and idempotency", || {
            App::new().wrap(buffer_body).wrap(Idempotency::new(MemoryIdempotencyStore::new()))
        }),
    ];
    for (name, make_app) in apps {
        for is_stream in [true, false] {
            let client = mounted(make_app());
            assert_eq!(send(&client, is_stream, 11).status(), 413, "{name} {is_stream}");
            assert_eq!(send(&client, is_stream, 10).text(), "1000", "{name} {is_stream}");
        }
    }
}

#[test]
fn middleware_is_bound_by_the_limit_after_decompression() {
    let compressed = {
        let app = App::new().wrap(peregrine::compression::Compression::new());
        let numbers: String = (0..300).map(|number| format!("{number} ")).collect();
        let client = app.get("/", move || numbers.repeat(10)).test();
        client.get("/").header("accept-encoding", "gzip").send_blocking().bytes().to_vec()
    };
    assert!(compressed.len() as u64 <= LIMIT, "{}", compressed.len());
    let idempotency = || Idempotency::new(MemoryIdempotencyStore::new());
    let mounted = |app: App| app.mount("/", router()).test().body_limit(LIMIT);
    let send = |client: &TestClient, has_key: bool| {
        let request = client.post("/").header("content-encoding", "gzip").body(compressed.clone());
        match has_key {
            true => request.header("idempotency-key", "\"a\"").send_blocking(),
            false => request.send_blocking(),
        }
    };
    let client = mounted(App::new().wrap(Decompression::new()).wrap(idempotency()));
    assert_eq!(send(&client, true).status(), 413);
    assert_eq!(send(&client, false).text(), "10900", "the service itself has no limit");
    // `Idempotency` reads the small body, and a middleware inside it reads the large one.
    let client =
        mounted(App::new().wrap(idempotency()).wrap(Decompression::new()).wrap(buffer_body));
    assert_eq!(send(&client, true).status(), 413);
}

#[test]
fn an_explicit_limit_applies_to_middleware_and_to_the_service() {
    let idempotency = || Idempotency::new(MemoryIdempotencyStore::new());
    for app in [
        App::new().wrap(idempotency()).mount("/", tower(router()).body_limit(5000)),
        App::new().wrap(BodyLimit::new(5000)).wrap(idempotency()).mount("/", router()),
    ] {
        let client = app.test().body_limit(LIMIT);
        assert_eq!(send(&client, true, 51).status(), 413);
        assert_eq!(send(&client, true, 50).text(), "5000");
    }
}

#[test]
fn an_application_under_another_server_has_its_own_limit() {
    use tower::ServiceExt;
    let app = App::new().wrap(Idempotency::new(MemoryIdempotencyStore::new())).mount("/", router());
    let service = into_tower(app).expect("the application is valid").body_limit(LIMIT);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        for (key, status) in [(Some("a"), 413), (None, 200)] {
            let request = http::Request::post("/");
            let request = key
                .into_iter()
                .fold(request, |request, key| request.header("idempotency-key", key));
            let request = request.body("x".repeat(5000)).expect("a request");
            let response = service.clone().oneshot(request).await.expect("a response");
            assert_eq!(response.status(), status, "{key:?}");
        }
    });
}
