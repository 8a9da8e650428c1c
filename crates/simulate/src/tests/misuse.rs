//! Wrong uses of simulations, and hostile conditions.

use super::*;

/// A test with many requests, so that differences between runs show in their digests.
async fn visit(sim: Sim) -> Result<(), SimRequestError> {
    let server = sim.serve(app);
    let client = server.client();
    for size in [1, 100, 5_000, 60_000] {
        let sent = "x".repeat(size);
        assert_eq!(client.post("/echo").body(sent.clone()).send().await?.text(), sent);
    }
    let (large, slow) = (client.get("/large").send(), client.get("/slow/3").send());
    let slow = sim.spawn(slow);
    assert_eq!(large.await?.text().len(), 200_000);
    assert_eq!(slow.await?.text(), "after 3");
    server.graceful_shutdown().await;
    Ok(())
}

#[test]
fn a_run_is_the_same_on_any_thread_beside_any_others_and_after_any_others() {
    let run = |seed| Simulation::seeds(0..1).run_one(seed, &visit).expect("the test passes");
    let fresh = |seed| std::thread::spawn(move || run(seed));
    let alone: Vec<_> = (0..4).map(|seed| fresh(seed).join().expect("no panic")).collect();
    let together: Vec<_> = (0..4).map(fresh).collect();
    let together: Vec<_> =
        together.into_iter().map(|thread| thread.join().expect("no panic")).collect();
    assert_eq!(together, alone);
    // On a thread on which other runs were aborted before.
    for seed in 0..4 {
        let _ = failing(&one(), seed, async |sim: Sim| {
            let client = sim.serve(app).client();
            let waits = client.post("/echo").body("x".repeat(100_000)).send();
            let _never = sim.timeout(Duration::from_millis(seed), waits).await;
            assert!(sim.seed() > 99, "aborted here");
        });
        assert_eq!(run(seed), alone[usize::try_from(seed).expect("a small seed")]);
    }
}

#[test]
fn nothing_is_charged_to_a_thread_when_its_runs_are_over() {
    use peregrine_web::memory::{MemoryPressure, pressure, reserved};
    std::thread::spawn(|| {
        for seed in 0..20 {
            let stormy = Simulation::seeds(0..1).faults(Faults::hostile());
            let _ = stormy.run_one(seed, &async |sim: Sim| {
                let client = sim.serve(app).client();
                let _ = client.post("/echo").body("x".repeat(300_000)).timeout(SECOND).send().await;
                let _forgotten = client.get("/large").send_streaming().await;
                assert!(seed % 3 != 0, "aborted here");
            });
            assert_eq!((reserved(), pressure()), (0, MemoryPressure::Low), "seed {seed}");
        }
    })
    .join()
    .expect("no panic");
}

#[test]
fn a_simulation_within_a_runtime_is_told_where_it_belongs() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let text = runtime.block_on(async { failures::told(|| seeds(0..3, visit)) });
    assert!(text.contains("plain #[test]"), "{text}");
    // A new thread is not inside of the runtime.
    runtime.block_on(async {
        std::thread::spawn(|| seeds(0..1, visit)).join().expect("the test passes");
    });
}

#[test]
fn a_simulation_within_another_is_refused_and_leaves_that_as_it_was() {
    let failure = failing(&one(), 0, async |sim: Sim| {
        let text = failures::told(|| seeds(0..1, visit));
        assert!(text.contains("not from within another simulation"), "{text}");
        // The outer simulation still notices panics.
        let client = sim.serve(app).client();
        let _ = client.get("/panic").send().await;
        sim.sleep(SECOND).await;
    });
    assert_eq!(failure.cause(), "the application panicked: on purpose");
}

#[test]
fn whatever_panics_is_named_wherever_it_stands() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("a state went off");
            }
        }
    }
    let cause = |make: fn() -> App, path: &'static str| {
        let failure = failing(&one(), 0, async move |sim: Sim| {
            let server = sim.serve(make);
            let _ = server.client().get(path).timeout(SECOND).send().await;
            server.graceful_shutdown().await;
        });
        failure.cause().to_owned()
    };
    for (make, path, expected) in [
        ((|| -> App { panic!("no application") }) as fn() -> App, "/", "no application"),
        (
            || {
                let bomb = Bomb;
                App::new().get("/", move || {
                    let _ = &bomb;
                    "x"
                })
            },
            "/",
            "a state went off",
        ),
        (
            || {
                App::new()
                    .on_problem(|_: Problem, _: &RequestHead| -> &'static str { panic!("no form") })
            },
            "/",
            "no form",
        ),
        (|| App::new().get("/", || Sse::new(Panics)), "/", "a stream fell over"),
    ] {
        let text = cause(make, path);
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

struct Panics;

impl futures_core::Stream for Panics {
    type Item = Event;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Event>> {
        panic!("a stream fell over");
    }
}

#[test]
fn times_without_an_end_are_no_overflow() {
    one().run(async |sim: Sim| {
        async fn never() -> &'static str {
            tokio::time::sleep(Duration::MAX).await;
            "never"
        }
        let server = sim.serve(|| App::new().get("/", never));
        let lost = server.client().get("/").timeout(HOUR).send().await;
        assert_eq!(lost.expect_err("no response").kind, SimErrorKind::TimedOut(HOUR));
        assert_eq!(sim.timeout(HOUR, sim.sleep(Duration::MAX)).await, None);
        let lost = server.client().get("/").timeout(Duration::MAX).send();
        assert!(sim.timeout(HOUR, lost).await.is_none());
    });
}

#[test]
fn a_clock_that_the_test_moves_is_the_clock_of_all() {
    one().run(async |sim: Sim| {
        let server = sim.serve(app);
        let client = server.client();
        let slow = sim.spawn(client.get("/slow/600").send());
        sim.sleep(SECOND).await;
        tokio::time::advance(2 * HOUR).await;
        assert!(sim.now() >= 2 * HOUR, "{:?}", sim.now());
        let answer = slow.await;
        assert!(answer.is_ok_and(|answer| answer.text() == "after 600"));
    });
}
