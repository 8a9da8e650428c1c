//! Work that continues after its exchange ends, or starts beside one, and counts as in progress.

use super::limits;
use crate::server::app::Shared;
use crate::server::bench::{Bench, Served, ServerOptions};
use crate::server::client::Way;
use peregrine::cache::{Cache, CacheStore, Idempotency, MemoryIdempotencyStore};
use peregrine::prelude::*;
use peregrine::web::memory::MemoryReservation;
use peregrine::{Limits, MemoryMax, OverloadLimits, TrustedProxies};
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(100);
const WAYS: [Way; 3] = [Way::HTTP1, Way::HTTP2, Way::HTTP2_TLS];

/// The most that a worker may hold where memory is short.
const MEMORY_BYTES_MAX: usize = 4 << 20;

/// Tasks that run once, and cached pages that are stale at once; each waits for the case.
fn app(shared: &Shared) -> impl Fn() -> App + Clone + Send + 'static {
    let (shared, store, outcomes) =
        (shared.clone(), CacheStore::new(), MemoryIdempotencyStore::new());
    move || {
        let write = async |State(shared): State<Shared>| {
            shared.wait().await;
            "done"
        };
        let page = async |State(shared): State<Shared>| {
            shared.wait().await;
            ([("cache-control", "max-age=0, stale-while-revalidate=600")], "page")
        };
        let reserve = async |State(shared): State<Shared>| {
            let _charge = MemoryReservation::new(MEMORY_BYTES_MAX / 32 * 26);
            shared.wait().await;
            "kept"
        };
        App::new()
            .state(shared.clone())
            .get("/keep", reserve.never_shed())
            .scope("/orders", |scope| {
                let scope = scope.wrap(Idempotency::new(outcomes.clone()));
                scope.post("/many", write).post("/few", write.requests_max(2))
            })
            .scope("/pages", |scope| {
                let scope = scope.wrap(Cache::new(store.clone()));
                scope.get("/{name}", page.requests_max(2))
            })
    }
}

fn with(overload: OverloadLimits) -> Limits {
    Limits { overload, ..limits() }
}

/// A handler that runs to completion without its client keeps its slot until then: disconnecting
/// does not let a client exceed the concurrency limit of the route, the worker, or the client.
pub async fn writes_of_disconnected_clients_count<B: Bench>(bench: &B) {
    let defaults = OverloadLimits::default;
    let requests_max = OverloadLimits { requests_max: Some(2), ..defaults() };
    let requests_per_client_max = OverloadLimits { requests_per_client_max: Some(2), ..defaults() };
    for way in WAYS {
        for (path, overload, reason, status) in [
            ("/orders/few", defaults(), "route", 503),
            ("/orders/many", requests_max.clone(), "requests", 503),
            ("/orders/many", requests_per_client_max.clone(), "client", 429),
        ] {
            let shared = Shared::default();
            let server_options = ServerOptions {
                proxies: Some(TrustedProxies::hops(1)),
                ..ServerOptions::default()
            };
            let tls = way.is_secure().then(crate::server::secure::server_tls);
            let server = bench.start_behind(server_options, with(overload), tls, app(&shared));
            let fields =
                |key: &'static str| [("idempotency-key", key), ("x-forwarded-for", "192.0.2.1")];
            let mut disconnected = Vec::new();
            for (number, key) in ["a", "b"].into_iter().enumerate() {
                let mut client = way.connect(&server).await;
                let id = client.ask("POST", path, &fields(key));
                client
                    .wait_until(bench, "the handler waits", || shared.started.get() == number + 1)
                    .await;
                if number == 0 {
                    client.cancel(id);
                    disconnected.push(client);
                } else {
                    client.break_off();
                }
            }
            bench.sleep(SHORT).await;
            for key in ["c", "d", "e"] {
                let mut client = way.connect(&server).await;
                let id = client.ask("POST", path, &fields(key));
                assert_eq!(client.answer(id).await.status(), status, "{way:?} {path}");
                client.close().await;
            }
            assert_eq!((shared.started.get(), shared.dropped.get()), (2, 0));
            shared.open(3);
            bench.wait_until("both are done", || shared.finished.get() == 2).await;
            bench.sleep(SHORT).await;
            let mut client = way.connect(&server).await;
            let id = client.ask("POST", path, &fields("f"));
            assert_eq!(client.answer(id).await.text(), "done", "{way:?} {path}");
            client.close().await;
            drop(disconnected);
            server.shut_down();
            let outcome = server.ended().await;
            assert_eq!(outcome.cut, []);
            let shed: Vec<_> = outcome.snapshot.shed.iter().collect();
            assert_eq!(shed, [(&reason, &3)]);
        }
    }
}

/// A cached page that is refreshed in the background takes its own slot, and the refresh does
/// not start while memory is short.
pub async fn pages_that_are_refreshed_in_the_background_count<B: Bench>(bench: &B) {
    for way in [Way::HTTP1, Way::HTTP2] {
        let shared = Shared::default();
        let memory_max = MemoryMax::Bytes(MEMORY_BYTES_MAX as u64);
        let limits = with(OverloadLimits { memory_max, ..OverloadLimits::default() });
        let server = bench.start(limits, None, app(&shared));
        let mut client = way.connect(&server).await;
        shared.open(3);
        for path in ["/pages/a", "/pages/b", "/pages/c"] {
            let id = client.get(path);
            assert_eq!(client.answer(id).await.text(), "page");
        }
        let mut reserving_client = way.connect(&server).await;
        let reservation = reserving_client.get("/keep");
        reserving_client.wait_until(bench, "memory is short", || shared.started.get() == 4).await;
        let id = client.get("/pages/a");
        assert!(client.answer(id).await.field("age").is_some(), "the stale page is served");
        bench.sleep(SHORT).await;
        assert_eq!(shared.started.get(), 4, "no refresh starts");
        shared.open(1);
        assert_eq!(reserving_client.answer(reservation).await.text(), "kept");
        reserving_client.close().await;
        for (number, path) in ["/pages/a", "/pages/b"].into_iter().enumerate() {
            let id = client.get(path);
            assert_eq!(client.answer(id).await.text(), "page");
            client
                .wait_until(bench, "the page is fetched", || shared.started.get() == 5 + number)
                .await;
        }
        let id = client.get("/pages/c");
        assert_eq!(client.answer(id).await.status(), 503, "two requests are in progress");
        shared.open(2);
        bench.wait_until("both are done", || shared.finished.get() == 6).await;
        client.close().await;
        server.shut_down();
        assert_eq!(server.ended().await.cut, []);
    }
}
