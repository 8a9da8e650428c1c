//! Tests of the guarantees of simulations.

mod connections;
mod failures;
mod misuse;

use super::*;
use peregrine::bytes::Bytes;
use peregrine::prelude::*;
use peregrine::{Limits, Shutdown};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn single_seed() -> Simulation {
    Simulation::seeds(0..1)
}

/// Runs `test` with this seed, and returns the failure.
fn run_failure<V: TestOutcome>(
    simulation: &Simulation,
    seed: u64,
    test: impl AsyncFn(Sim) -> V,
) -> Box<Failure> {
    simulation.run_one(seed, &test).expect_err("the test must fail")
}

fn app() -> App {
    async fn echo(body: Bytes) -> Bytes {
        body
    }
    async fn slow(Path(seconds): Path<u64>) -> String {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        format!("after {seconds}")
    }
    App::new()
        .get("/hello", || "hello")
        .post("/echo", echo)
        .get("/slow/{seconds}", slow)
        .get("/panic", || -> &'static str { panic!("on purpose") })
        .get("/large", || "0123456789".repeat(20_000))
}

#[test]
fn clients_get_complete_responses_from_a_harmless_network() {
    seeds(0..30, async |sim| {
        let server = sim.serve(app);
        let client = server.client();
        let hello = client.get("/hello").header("x-a", "b").send().await?;
        assert_eq!(hello.assert_status(200).text(), "hello");
        assert!(hello.header("date").is_some_and(|date| date.starts_with("Tue, 14 Nov 2023")));
        let body = "abc".repeat(5_000);
        assert_eq!(client.post("/echo").body(body.clone()).send().await?.text(), body);
        assert_eq!(client.get("/large").send().await?.bytes().len(), 200_000);
        assert!(client.head("/large").send().await?.bytes().is_empty());
        client.get("/nowhere").send().await?.assert_status(404);
        assert_eq!(client.get("/hello").send().await?.text(), "hello");
        Ok::<_, SimRequestError>(())
    });
}

#[test]
fn json_is_sent_and_received() {
    async fn sum(Json(numbers): Json<Vec<u32>>) -> Json<u32> {
        Json(numbers.iter().sum())
    }
    seeds(0..3, async |sim| {
        let client = sim.serve(|| App::new().post("/sum", sum)).client();
        let sum = client.post("/sum").json(&[1, 2, 3]).send().await.expect("nothing is lost");
        sum.assert_json(&6);
    });
}

#[test]
fn sleeps_and_timeouts_are_exact_on_the_virtual_clock() {
    let limits = || Limits { idle_timeout: 2 * HOUR, ..Limits::default() };
    seeds(0..5, async |sim| {
        let server = sim.serve_with(|server| server.limits(limits()), app);
        let client = server.client();
        let start = sim.now();
        assert_eq!(client.get("/slow/36000").send().await?.text(), "after 36000");
        let elapsed = sim.now() - start;
        assert!((10 * HOUR..10 * HOUR + SECOND).contains(&elapsed), "{elapsed:?}");
        // An idle connection is closed exactly when its timeout expires.
        let connection = server.connect();
        connection
            .send(b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n")
            .await
            .expect("the connection is open");
        let idle_since = sim.now();
        while !connection.recv().await.expect("the connection is not reset").is_empty() {}
        let idle_time = sim.now() - idle_since;
        assert!((2 * HOUR..2 * HOUR + SECOND).contains(&idle_time), "{idle_time:?}");
        // The client's idle connections were closed too, which it notices after a moment.
        sim.sleep(SECOND).await;
        assert_eq!(client.get("/hello").send().await?.text(), "hello");
        assert!(sim.timeout(SECOND, client.get("/slow/5").send()).await.is_none());
        Ok::<_, SimRequestError>(())
    });
}

/// Many clients, some of which time out.
async fn many_clients(sim: Sim) {
    let server = sim.serve(app);
    let clients: Vec<_> = (0..6_u64)
        .map(|index| {
            let (client, sim) = (server.client(), sim.clone());
            sim.clone().spawn(async move {
                for round in 0..5 {
                    sim.sleep(Duration::from_millis(sim.random_below(3_000))).await;
                    let target = format!("/slow/{}", (index + round) % 4);
                    let _ = client.get(&target).timeout(2 * SECOND).send().await;
                    let _ = client.post("/echo").body(vec![b'x'; 3_000]).send().await;
                }
            })
        })
        .collect();
    for client in clients {
        client.await;
    }
    server.graceful_shutdown().await;
}

#[test]
fn equal_seeds_give_equal_runs_and_different_seeds_different_runs() {
    let simulation = single_seed().faults(Faults::hostile());
    let run = |seed| simulation.run_one(seed, &many_clients).expect("the test passes");
    let mut digests = BTreeSet::new();
    for seed in 0..20 {
        let first = run(seed);
        assert_eq!(first, run(seed), "seed {seed}");
        digests.insert(first.digest);
    }
    assert_eq!(digests.len(), 20);
    Simulation::seeds(20..25).faults(Faults::hostile()).check_determinism().run(many_clients);
}

/// The number of responses, and the reasons for lost requests, with these faults.
fn outcomes(faults: &Faults) -> (usize, BTreeSet<String>) {
    outcomes_with_body(10_000, faults)
}

/// Like [`outcomes`], for requests whose body has this size.
fn outcomes_with_body(size: usize, faults: &Faults) -> (usize, BTreeSet<String>) {
    let (response_count, errors) = (AtomicUsize::new(0), Mutex::new(BTreeSet::new()));
    Simulation::seeds(0..20).faults(faults.clone()).run(async |sim| {
        let server = sim.serve(app);
        for _ in 0..10 {
            match server.client().post("/echo").body(vec![b'x'; size]).send().await {
                Ok(_) => drop(response_count.fetch_add(1, Ordering::Relaxed)),
                Err(error) => {
                    errors
                        .lock()
                        .expect("no holder of the lock panicked")
                        .insert(format!("{:?}", error.kind));
                }
            }
        }
    });
    (response_count.into_inner(), errors.into_inner().expect("no holder of the lock panicked"))
}

/// Faults with which every request still gets a response.
macro_rules! harmless {
    ($($name:ident: $faults:expr,)*) => {
        mod harmless {
            use super::*;

            $(
                #[test]
                fn $name() {
                    let faults = $faults;
                    assert_eq!(outcomes(&faults), (200, BTreeSet::new()), "{faults:?}");
                }
            )*
        }
    };
}

harmless! {
    no_faults: Faults::none(),
    all_harmless_faults: Faults::harmless(),
    fragmentation: Faults::none().fragmentation(1000),
    partial_writes: Faults::none().partial_writes(500),
    delays: Faults::none().delays(1000, SECOND),
    stalls: Faults::none().stalls(500, HOUR).stalls(20, SECOND),
    accept_errors: Faults::none().accept_errors(500),
    late_timers: Faults::none().late_timers(SECOND),
    spurious_polls: Faults::none().spurious_polls(500),
}

#[test]
fn buffers_of_one_byte_lose_no_requests() {
    let faults = Faults::none().buffer_size(1);
    assert_eq!(outcomes_with_body(500, &faults), (200, BTreeSet::new()));
}

#[test]
fn refusals_and_resets_lose_requests() {
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    let no_faults = Faults::none;
    assert_eq!(
        outcomes(&no_faults().refused_connections(1000)),
        (0, names(&["ConnectionRefused"]))
    );
    assert_eq!(outcomes(&no_faults().resets(1000)), (0, names(&["ConnectionReset"])));
    let (response_count, errors) = outcomes(&no_faults().refused_connections(300));
    assert!((100..180).contains(&response_count), "{response_count}");
    assert_eq!(errors, names(&["ConnectionRefused"]));
    let (response_count, errors) = outcomes(&Faults::hostile());
    assert!(
        response_count > 0
            && errors.contains("ConnectionRefused")
            && errors.contains("ConnectionReset"),
        "{errors:?}"
    );
}

#[test]
fn faults_take_virtual_time() {
    let virtual_time = |faults: Faults| {
        let virtual_time = Cell::new(SECOND);
        Simulation::seeds(7..8).faults(faults).run(async |sim| {
            let client = sim.serve(app).client();
            client.get("/large").send().await.expect("nothing is lost");
            virtual_time.set(sim.now());
        });
        virtual_time.get()
    };
    assert_eq!(virtual_time(Faults::none()), Duration::ZERO);
    assert!(virtual_time(Faults::none().delays(1000, 20 * SECOND)) > SECOND);
    assert!(virtual_time(Faults::none().stalls(1000, 5 * SECOND)) > SECOND);
}

#[test]
fn faults_can_be_changed_during_a_run() {
    single_seed().faults(Faults::none().refused_connections(1000)).run(async |sim| {
        let server = sim.serve(app);
        let error =
            server.client().get("/hello").send().await.expect_err("the connection is refused");
        assert_eq!(error.kind, SimErrorKind::ConnectionRefused);
        assert_eq!(error.to_string(), "no response to GET /hello: the connection was refused");
        sim.set_faults(&Faults::none());
        assert_eq!(
            server.client().get("/hello").send().await.expect("there are no more faults").text(),
            "hello"
        );
    });
}

/// Counts handlers that started, and those that were dropped before they returned.
#[derive(Clone, Default)]
struct HandlerCounts(Arc<[AtomicU64; 2]>);

/// Counts a handler as dropped, unless its second field was set.
struct HandlerGuard<'a>(&'a HandlerCounts, bool);

impl HandlerCounts {
    fn begin(&self) -> HandlerGuard<'_> {
        self.0[0].fetch_add(1, Ordering::Relaxed);
        HandlerGuard(self, false)
    }

    fn get(&self) -> [u64; 2] {
        [self.0[0].load(Ordering::Relaxed), self.0[1].load(Ordering::Relaxed)]
    }
}

impl Drop for HandlerGuard<'_> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.0[1].fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_test_determines_exactly_when_a_client_disconnects() {
    seeds(0..20, async |sim| {
        let counts = HandlerCounts::default();
        let test_counts = counts.clone();
        let app = move || {
            let counts = counts.clone();
            App::new().post("/", async move |body: Body| {
                let mut guard = counts.begin();
                let collected = body.collect(1_000).await;
                tokio::time::sleep(SECOND).await;
                guard.1 = true;
                collected.map_or("gone".to_owned(), |bytes| bytes.len().to_string())
            })
        };
        let server = sim.serve(app);
        let client = server.client();
        let request = || client.post("/").body(vec![b'x'; 100]);
        assert_eq!(request().send().await.expect("nothing is lost").text(), "100");
        assert_eq!(test_counts.get(), [1, 0]);
        let error = request().timeout(SECOND / 2).send().await.expect_err("the client times out");
        assert_eq!(error.kind, SimErrorKind::TimedOut(SECOND / 2));
        sim.sleep(10 * SECOND).await;
        assert_eq!(test_counts.get(), [2, 1], "the handler is dropped at its `await`");
        // After a cut in the request's head, no handler is called.
        let error =
            request().cut_request_after(10).send().await.expect_err("the connection is cut");
        assert_eq!(error.kind, SimErrorKind::ConnectionReset);
        sim.sleep(10 * SECOND).await;
        assert_eq!(test_counts.get(), [2, 1]);
        // At a cut in the response, the handler has already returned.
        let error =
            request().cut_response_after(10).send().await.expect_err("the connection is cut");
        assert_eq!(error.kind, SimErrorKind::ConnectionReset);
        assert_eq!(test_counts.get(), [3, 1]);
        assert_eq!(request().send().await.expect("the connection is not cut").text(), "100");
    });
}

#[test]
fn a_raw_connection_can_misbehave() {
    seeds(0..10, async |sim| {
        let server = sim.serve(app);
        let truncated = server.connect();
        truncated.send(b"GET /hello HT").await.expect("the connection is open");
        truncated.shutdown_write().await.expect("the connection is open");
        let response = truncated.recv_to_end().await;
        assert!(response.is_ok_and(|bytes| bytes.is_empty() || bytes.starts_with(b"HTTP/1.1 400")));
        let reset = server.connect();
        reset
            .send(b"GET /slow/9 HTTP/1.1\r\nHost: a\r\n\r\n")
            .await
            .expect("the connection is open");
        reset.reset();
        assert!(reset.recv().await.is_err());
        let stalled = server.connect();
        stalled.stall(HOUR);
        // With small buffers, the connection breaks during this call.
        let _ = stalled.send(b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let received = stalled.recv_to_end().await.unwrap_or_default();
        assert!(!String::from_utf8_lossy(&received).contains("hello"), "the server times out");
        assert!(catch_unwind(AssertUnwindSafe(|| server.connect_to(1))).is_err());
    });
}

#[test]
fn servers_shut_down_gracefully_and_report_force_closed_requests() {
    seeds(0..10, async |sim| {
        let limits = Limits { shutdown_timeout: 30 * SECOND, ..Limits::default() };
        let server = sim.serve_with(|server| server.limits(limits), app);
        let (quick, slow) = (server.client(), server.client());
        let quick = sim.spawn(async move { quick.get("/slow/20").send().await });
        let slow = sim.spawn(async move { slow.get("/slow/999").send().await });
        sim.sleep(SECOND).await;
        let start = sim.now();
        let report = server.graceful_shutdown().await;
        let elapsed = sim.now() - start;
        assert!((29 * SECOND..32 * SECOND).contains(&elapsed), "{elapsed:?}");
        assert_eq!(quick.await.expect("the server drains the request").text(), "after 20");
        assert!(slow.await.is_err());
        assert_eq!(report.force_closed.len(), 1, "{report}");
        assert_eq!(report.force_closed[0].request.as_deref(), Some("GET /slow/{seconds}"));
        assert_eq!(report.requests(), 2);
        let error = server.client().get("/hello").send().await.expect_err("the server has stopped");
        assert_eq!(error.kind, SimErrorKind::ConnectionRefused);
        // Another server replaces it.
        let next_server = sim.serve(app);
        assert_eq!(
            next_server.client().get("/hello").send().await.expect("the new server serves").text(),
            "hello"
        );
        let client = next_server.client();
        let pending = sim.spawn(async move { client.get("/slow/999").send().await });
        sim.sleep(SECOND).await;
        let start = sim.now();
        assert_eq!(next_server.force_close().await.force_closed.len(), 1);
        assert!(sim.now() - start < SECOND);
        assert!(pending.await.is_err());
    });
}

#[test]
fn each_worker_has_its_own_application_state() {
    let check = |workers: usize| {
        single_seed().run(async |sim| {
            let workers = NonZeroUsize::new(workers).expect("the number is not zero");
            let app = || {
                let count = Cell::new(0);
                App::new().get("/", move || {
                    count.set(count.get() + 1);
                    count.get().to_string()
                })
            };
            let server = sim.serve_with(|server| server.workers(workers), app);
            let mut first_requests = 0;
            for _ in 0..40 {
                let response = server.client().get("/").send().await.expect("nothing is lost");
                first_requests += usize::from(response.text() == "1");
            }
            assert_eq!(first_requests, workers.get());
            assert_eq!(server.worker_stats().len(), workers.get());
        });
    };
    check(1);
    check(4);
}

#[test]
fn each_worker_has_its_own_timers_and_shutdown() {
    seeds(0..5, async |sim| {
        async fn wait_for_shutdown() -> &'static str {
            Shutdown::current().requested().await;
            "stopping"
        }
        let app =
            || App::new().get("/wait", wait_for_shutdown).get("/events", || Sse::new(SilentStream));
        let (serving, stopping) = (sim.serve(app), sim.serve(app));
        let mut events = Vec::new();
        for _ in 0..6 {
            events.push(
                serving.client().get("/events").send_streaming().await.expect("nothing is lost"),
            );
        }
        let pending_requests: Vec<_> = (0..6)
            .map(|_| {
                let client = stopping.client();
                sim.spawn(async move { client.get("/wait").send().await })
            })
            .collect();
        sim.sleep(SECOND).await;
        stopping.graceful_shutdown().await;
        for pending in pending_requests {
            assert_eq!(pending.await.expect("the server drains the request").text(), "stopping");
        }
        // Comments are sent by the clock of the stream's worker, not of the worker whose state was
        // installed last.
        for events in &mut events {
            let comment = sim.timeout(HOUR, events.chunk()).await.expect("comments are sent");
            assert!(comment.is_some_and(|piece| piece.is_ok_and(|piece| piece.starts_with(b":"))));
        }
    });
}

/// A stream that never yields an event.
struct SilentStream;

impl futures_core::Stream for SilentStream {
    type Item = Event;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Event>> {
        std::task::Poll::Pending
    }
}

#[test]
fn spawn_blocking_takes_no_virtual_time() {
    seeds(0..3, async |sim| {
        async fn work() -> String {
            let function = || std::thread::sleep(Duration::from_millis(20));
            tokio::task::spawn_blocking(function).await.map_or("lost".into(), |()| "done".into())
        }
        let client = sim.serve(|| App::new().get("/", work)).client();
        let start = sim.now();
        assert_eq!(client.get("/").send().await.expect("nothing is lost").text(), "done");
        assert!(sim.now() - start < SECOND);
    });
}
