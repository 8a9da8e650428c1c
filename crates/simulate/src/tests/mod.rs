//! Tests of the guarantees that simulations give.

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

fn one() -> Simulation {
    Simulation::seeds(0..1)
}

/// Runs `test` with this seed, and returns the failure.
fn failing<V: TestOutcome>(
    simulation: &Simulation,
    seed: u64,
    test: impl AsyncFn(Sim) -> V,
) -> Box<Failure> {
    simulation.run_one(seed, &test).expect_err("a failure")
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
fn clients_get_whole_answers_from_a_network_that_loses_nothing() {
    seeds(0..30, async |sim| {
        let server = sim.serve(app);
        let client = server.client();
        let hello = client.get("/hello").header("x-a", "b").send().await?;
        assert_eq!(hello.assert_status(200).text(), "hello");
        assert!(hello.header("date").is_some_and(|date| date.starts_with("Tue, 14 Nov 2023")));
        let sent = "abc".repeat(5_000);
        assert_eq!(client.post("/echo").body(sent.clone()).send().await?.text(), sent);
        assert_eq!(client.get("/large").send().await?.bytes().len(), 200_000);
        assert!(client.head("/large").send().await?.bytes().is_empty());
        client.get("/nowhere").send().await?.assert_status(404);
        assert_eq!(client.get("/hello").send().await?.text(), "hello");
        Ok::<_, SimRequestError>(())
    });
}

#[test]
fn json_goes_both_ways() {
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
fn hours_pass_on_the_virtual_clock_alone_and_timeouts_are_on_time() {
    let limits = || Limits { idle_timeout: 2 * HOUR, ..Limits::default() };
    seeds(0..5, async |sim| {
        let server = sim.serve_with(|server| server.limits(limits()), app);
        let client = server.client();
        let asked = sim.now();
        assert_eq!(client.get("/slow/36000").send().await?.text(), "after 36000");
        let took = sim.now() - asked;
        assert!((10 * HOUR..10 * HOUR + SECOND).contains(&took), "{took:?}");
        // An idle connection is closed exactly when its timeout expires.
        let connection = server.connect();
        connection.send(b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("connected");
        let idle_since = sim.now();
        while !connection.recv().await.expect("no reset").is_empty() {}
        let idle = sim.now() - idle_since;
        assert!((2 * HOUR..2 * HOUR + SECOND).contains(&idle), "{idle:?}");
        // The client's idle connections were closed too, which it notices after a moment.
        sim.sleep(SECOND).await;
        assert_eq!(client.get("/hello").send().await?.text(), "hello");
        assert!(sim.timeout(SECOND, client.get("/slow/5").send()).await.is_none());
        Ok::<_, SimRequestError>(())
    });
}

/// Many clients, some of which give up, on a bad network.
async fn crowd(sim: Sim) {
    let server = sim.serve(app);
    let clients: Vec<_> = (0..6_u64)
        .map(|number| {
            let (client, sim) = (server.client(), sim.clone());
            sim.clone().spawn(async move {
                for round in 0..5 {
                    sim.sleep(Duration::from_millis(sim.random_below(3_000))).await;
                    let target = format!("/slow/{}", (number + round) % 4);
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
fn the_same_seed_gives_the_same_run_and_another_seed_another_one() {
    let simulation = one().faults(Faults::hostile());
    let run = |seed| simulation.run_one(seed, &crowd).expect("the test passes");
    let mut traces = BTreeSet::new();
    for seed in 0..20 {
        let first = run(seed);
        assert_eq!(first, run(seed), "seed {seed}");
        traces.insert(first.digest);
    }
    assert_eq!(traces.len(), 20);
    Simulation::seeds(20..25).faults(Faults::hostile()).check_determinism().run(crowd);
}

/// The number of responses, and the reasons for lost requests, with these faults.
fn endings(faults: &Faults) -> (usize, BTreeSet<String>) {
    endings_of(10_000, faults)
}

/// Like [`endings`], for requests whose body has this size.
fn endings_of(size: usize, faults: &Faults) -> (usize, BTreeSet<String>) {
    let (answered, lost) = (AtomicUsize::new(0), Mutex::new(BTreeSet::new()));
    Simulation::seeds(0..20).faults(faults.clone()).run(async |sim| {
        let server = sim.serve(app);
        for _ in 0..10 {
            match server.client().post("/echo").body(vec![b'x'; size]).send().await {
                Ok(_) => drop(answered.fetch_add(1, Ordering::Relaxed)),
                Err(error) => {
                    lost.lock().expect("not poisoned").insert(format!("{:?}", error.kind));
                }
            }
        }
    });
    (answered.into_inner(), lost.into_inner().expect("not poisoned"))
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
                    assert_eq!(endings(&faults), (200, BTreeSet::new()), "{faults:?}");
                }
            )*
        }
    };
}

harmless! {
    none: Faults::none(),
    all_of_them: Faults::harmless(),
    cuts: Faults::none().fragmentation(1000),
    short_sends: Faults::none().partial_writes(500),
    delays: Faults::none().delays(1000, SECOND),
    stalls: Faults::none().stalls(500, HOUR).stalls(20, SECOND),
    failed_accepts: Faults::none().accept_errors(500),
    late_timers: Faults::none().late_timers(SECOND),
    spurious_polls: Faults::none().spurious_polls(500),
}

#[test]
fn buffers_of_one_byte_lose_no_requests() {
    let faults = Faults::none().buffer_size(1);
    assert_eq!(endings_of(500, &faults), (200, BTreeSet::new()));
}

#[test]
fn refusals_and_resets_lose_requests() {
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    let none = Faults::none;
    assert_eq!(endings(&none().refused_connections(1000)), (0, names(&["ConnectionRefused"])));
    assert_eq!(endings(&none().resets(1000)), (0, names(&["ConnectionReset"])));
    let (answered, lost) = endings(&none().refused_connections(300));
    assert!((100..180).contains(&answered), "{answered}");
    assert_eq!(lost, names(&["ConnectionRefused"]));
    let (answered, lost) = endings(&Faults::hostile());
    assert!(
        answered > 0 && lost.contains("ConnectionRefused") && lost.contains("ConnectionReset"),
        "{lost:?}"
    );
}

#[test]
fn what_a_fault_takes_is_virtual_time() {
    let time = |faults: Faults| {
        let time = Cell::new(SECOND);
        Simulation::seeds(7..8).faults(faults).run(async |sim| {
            let client = sim.serve(app).client();
            client.get("/large").send().await.expect("nothing is lost");
            time.set(sim.now());
        });
        time.get()
    };
    assert_eq!(time(Faults::none()), Duration::ZERO);
    assert!(time(Faults::none().delays(1000, 20 * SECOND)) > SECOND);
    assert!(time(Faults::none().stalls(1000, 5 * SECOND)) > SECOND);
}

#[test]
fn faults_may_change_in_the_middle() {
    one().faults(Faults::none().refused_connections(1000)).run(async |sim| {
        let server = sim.serve(app);
        let lost = server.client().get("/hello").send().await.expect_err("refused");
        assert_eq!(lost.kind, SimErrorKind::ConnectionRefused);
        assert_eq!(lost.to_string(), "no answer to GET /hello: the connection was refused");
        sim.set_faults(&Faults::none());
        assert_eq!(
            server.client().get("/hello").send().await.expect("no more faults").text(),
            "hello"
        );
    });
}

/// Counts handlers that started, and those that were dropped before they returned.
#[derive(Clone, Default)]
struct Fates(Arc<[AtomicU64; 2]>);

struct Fate<'a>(&'a Fates, bool);

impl Fates {
    fn begin(&self) -> Fate<'_> {
        self.0[0].fetch_add(1, Ordering::Relaxed);
        Fate(self, false)
    }

    fn told(&self) -> [u64; 2] {
        [self.0[0].load(Ordering::Relaxed), self.0[1].load(Ordering::Relaxed)]
    }
}

impl Drop for Fate<'_> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.0[1].fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_test_says_exactly_when_a_client_is_gone() {
    seeds(0..20, async |sim| {
        let fates = Fates::default();
        let mine = fates.clone();
        let app = move || {
            let fates = fates.clone();
            App::new().post("/", async move |body: Body| {
                let mut fate = fates.begin();
                let read = body.collect(1_000).await;
                tokio::time::sleep(SECOND).await;
                fate.1 = true;
                read.map_or("gone".to_owned(), |bytes| bytes.len().to_string())
            })
        };
        let server = sim.serve(app);
        let client = server.client();
        let request = || client.post("/").body(vec![b'x'; 100]);
        assert_eq!(request().send().await.expect("nothing is lost").text(), "100");
        assert_eq!(mine.told(), [1, 0]);
        let lost = request().timeout(SECOND / 2).send().await.expect_err("too late");
        assert_eq!(lost.kind, SimErrorKind::TimedOut(SECOND / 2));
        sim.sleep(10 * SECOND).await;
        assert_eq!(mine.told(), [2, 1], "the handler is dropped at its `await`");
        // After a cut in the request's head, no handler is called.
        let lost = request().cut_request_after(10).send().await.expect_err("cut");
        assert_eq!(lost.kind, SimErrorKind::ConnectionReset);
        sim.sleep(10 * SECOND).await;
        assert_eq!(mine.told(), [2, 1]);
        // At a cut in the response, the handler has already returned.
        let lost = request().cut_response_after(10).send().await.expect_err("cut");
        assert_eq!(lost.kind, SimErrorKind::ConnectionReset);
        assert_eq!(mine.told(), [3, 1]);
        assert_eq!(request().send().await.expect("not cut").text(), "100");
    });
}

#[test]
fn a_connection_may_be_rude() {
    seeds(0..10, async |sim| {
        let server = sim.serve(app);
        let begun = server.connect();
        begun.send(b"GET /hello HT").await.expect("connected");
        begun.shutdown_write().await.expect("connected");
        let end = begun.recv_to_end().await;
        assert!(end.is_ok_and(|bytes| bytes.is_empty() || bytes.starts_with(b"HTTP/1.1 400")));
        let reset = server.connect();
        reset.send(b"GET /slow/9 HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("connected");
        reset.reset();
        assert!(reset.recv().await.is_err());
        let stalled = server.connect();
        stalled.stall(HOUR);
        // With small buffers, the connection breaks during this call.
        let _ = stalled.send(b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let all = stalled.recv_to_end().await.unwrap_or_default();
        assert!(!String::from_utf8_lossy(&all).contains("hello"), "the server times out");
        assert!(catch_unwind(AssertUnwindSafe(|| server.connect_to(1))).is_err());
    });
}

#[test]
fn servers_end_in_order_and_name_what_they_cut() {
    seeds(0..10, async |sim| {
        let limits = Limits { shutdown_timeout: 30 * SECOND, ..Limits::default() };
        let server = sim.serve_with(|server| server.limits(limits), app);
        let (quick, slow) = (server.client(), server.client());
        let quick = sim.spawn(async move { quick.get("/slow/20").send().await });
        let slow = sim.spawn(async move { slow.get("/slow/999").send().await });
        sim.sleep(SECOND).await;
        let ordered = sim.now();
        let stopped = server.graceful_shutdown().await;
        let took = sim.now() - ordered;
        assert!((29 * SECOND..32 * SECOND).contains(&took), "{took:?}");
        assert_eq!(quick.await.expect("drained").text(), "after 20");
        assert!(slow.await.is_err());
        assert_eq!(stopped.force_closed.len(), 1, "{stopped}");
        assert_eq!(stopped.force_closed[0].request.as_deref(), Some("GET /slow/{seconds}"));
        assert_eq!(stopped.requests(), 2);
        let late = server.client().get("/hello").send().await.expect_err("server has ended");
        assert_eq!(late.kind, SimErrorKind::ConnectionRefused);
        // Another server replaces it.
        let next = sim.serve(app);
        assert_eq!(next.client().get("/hello").send().await.expect("serving").text(), "hello");
        let waits = next.client();
        let waits = sim.spawn(async move { waits.get("/slow/999").send().await });
        sim.sleep(SECOND).await;
        let ordered = sim.now();
        assert_eq!(next.force_close().await.force_closed.len(), 1);
        assert!(sim.now() - ordered < SECOND);
        assert!(waits.await.is_err());
    });
}

#[test]
fn workers_have_states_of_their_own_as_many_as_there_are() {
    let counters = |workers: usize| {
        one().run(async |sim| {
            let workers = NonZeroUsize::new(workers).expect("not zero");
            let app = || {
                let count = Cell::new(0);
                App::new().get("/", move || {
                    count.set(count.get() + 1);
                    count.get().to_string()
                })
            };
            let server = sim.serve_with(|server| server.workers(workers), app);
            let mut firsts = 0;
            for _ in 0..40 {
                let answer = server.client().get("/").send().await.expect("nothing is lost");
                firsts += usize::from(answer.text() == "1");
            }
            assert_eq!(firsts, workers.get());
            assert_eq!(server.worker_stats().len(), workers.get());
        });
    };
    counters(1);
    counters(4);
}

#[test]
fn each_worker_has_its_own_clock_and_orders() {
    seeds(0..5, async |sim| {
        async fn ordered() -> &'static str {
            Shutdown::current().requested().await;
            "ordered"
        }
        let app = || App::new().get("/wait", ordered).get("/events", || Sse::new(Silent));
        let (stays, leaves) = (sim.serve(app), sim.serve(app));
        let mut events = Vec::new();
        for _ in 0..6 {
            events.push(
                stays.client().get("/events").send_streaming().await.expect("nothing is lost"),
            );
        }
        let waits: Vec<_> = (0..6)
            .map(|_| {
                let client = leaves.client();
                sim.spawn(async move { client.get("/wait").send().await })
            })
            .collect();
        sim.sleep(SECOND).await;
        leaves.graceful_shutdown().await;
        for wait in waits {
            assert_eq!(wait.await.expect("drained").text(), "ordered");
        }
        // Comments are sent by the clock of the stream's worker, not of the worker that was
        // announced last.
        for events in &mut events {
            let comment = sim.timeout(HOUR, events.chunk()).await.expect("not silent");
            assert!(comment.is_some_and(|piece| piece.is_ok_and(|piece| piece.starts_with(b":"))));
        }
    });
}

/// A stream that never yields an event.
struct Silent;

impl futures_core::Stream for Silent {
    type Item = Event;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Event>> {
        std::task::Poll::Pending
    }
}

#[test]
fn blocking_functions_take_no_virtual_time() {
    seeds(0..3, async |sim| {
        async fn work() -> String {
            let function = || std::thread::sleep(Duration::from_millis(20));
            tokio::task::spawn_blocking(function).await.map_or("lost".into(), |()| "done".into())
        }
        let client = sim.serve(|| App::new().get("/", work)).client();
        let asked = sim.now();
        assert_eq!(client.get("/").send().await.expect("nothing is lost").text(), "done");
        assert!(sim.now() - asked < SECOND);
    });
}
