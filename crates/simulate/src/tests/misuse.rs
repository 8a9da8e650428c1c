//! Incorrect uses of simulations, and hostile conditions.

use super::*;

/// A test with many requests, so that differences between runs show in their digests.
async fn many_requests(sim: Sim) -> Result<(), SimRequestError> {
    let server = sim.serve(app);
    let client = server.client();
    for size in [1, 100, 5_000, 60_000] {
        let body = "x".repeat(size);
        assert_eq!(client.post("/echo").body(body.clone()).send().await?.text(), body);
    }
    let (large, slow) = (client.get("/large").send(), client.get("/slow/3").send());
    let slow = sim.spawn(slow);
    assert_eq!(large.await?.text().len(), 200_000);
    assert_eq!(slow.await?.text(), "after 3");
    server.graceful_shutdown().await;
    Ok(())
}

#[test]
fn a_run_does_not_depend_on_threads_or_other_runs() {
    let run =
        |seed| Simulation::seeds(0..1).run_one(seed, &many_requests).expect("the test passes");
    let run_on_new_thread = |seed| std::thread::spawn(move || run(seed));
    let sequential: Vec<_> = (0..4)
        .map(|seed| run_on_new_thread(seed).join().expect("the thread does not panic"))
        .collect();
    let concurrent: Vec<_> = (0..4).map(run_on_new_thread).collect();
    let concurrent: Vec<_> = concurrent
        .into_iter()
        .map(|thread| thread.join().expect("the thread does not panic"))
        .collect();
    assert_eq!(concurrent, sequential);
    // The same on a thread on which other runs were aborted before.
    for seed in 0..4 {
        let _ = run_failure(&single_seed(), seed, async |sim: Sim| {
            let client = sim.serve(app).client();
            let request = client.post("/echo").body("x".repeat(100_000)).send();
            let _never = sim.timeout(Duration::from_millis(seed), request).await;
            assert!(sim.seed() > 99, "aborted here");
        });
        assert_eq!(run(seed), sequential[usize::try_from(seed).expect("the seed is small")]);
    }
}

#[test]
fn a_run_releases_all_accounted_memory() {
    use peregrine_web::memory::{MemoryPressure, pressure, reserved};
    std::thread::spawn(|| {
        for seed in 0..20 {
            let hostile = Simulation::seeds(0..1).faults(Faults::hostile());
            let _ = hostile.run_one(seed, &async |sim: Sim| {
                let client = sim.serve(app).client();
                let _ = client.post("/echo").body("x".repeat(300_000)).timeout(SECOND).send().await;
                let _forgotten = client.get("/large").send_streaming().await;
                assert!(seed % 3 != 0, "aborted here");
            });
            assert_eq!((reserved(), pressure()), (0, MemoryPressure::Low), "seed {seed}");
        }
    })
    .join()
    .expect("the thread does not panic");
}

#[test]
fn a_simulation_within_a_runtime_fails_with_a_hint() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().build().expect("the runtime can be created");
    let text = runtime.block_on(async { failures::panic_text(|| seeds(0..3, many_requests)) });
    assert!(text.contains("plain #[test]"), "{text}");
    // A new thread is not inside of the runtime.
    runtime.block_on(async {
        std::thread::spawn(|| seeds(0..1, many_requests)).join().expect("the test passes");
    });
}

#[test]
fn a_nested_simulation_fails_and_does_not_affect_the_outer_one() {
    let failure = run_failure(&single_seed(), 0, async |sim: Sim| {
        let text = failures::panic_text(|| seeds(0..1, many_requests));
        assert!(text.contains("not from within another simulation"), "{text}");
        // The outer simulation still notices panics.
        let client = sim.serve(app).client();
        let _ = client.get("/panic").send().await;
        sim.sleep(SECOND).await;
    });
    assert_eq!(failure.cause(), "the application panicked: on purpose");
}

#[test]
fn a_panic_anywhere_in_the_application_is_reported() {
    struct PanicOnDrop;
    impl Drop for PanicOnDrop {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("the state panicked on drop");
            }
        }
    }
    let cause = |make: fn() -> App, path: &'static str| {
        let failure = run_failure(&single_seed(), 0, async move |sim: Sim| {
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
                let state = PanicOnDrop;
                App::new().get("/", move || {
                    let _ = &state;
                    "x"
                })
            },
            "/",
            "the state panicked on drop",
        ),
        (
            || {
                App::new().on_problem(|_: Problem, _: &RequestHead| -> &'static str {
                    panic!("no problem format")
                })
            },
            "/",
            "no problem format",
        ),
        (|| App::new().get("/", || Sse::new(PanickingStream)), "/", "the stream panicked"),
    ] {
        let text = cause(make, path);
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

struct PanickingStream;

impl futures_core::Stream for PanickingStream {
    type Item = Event;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Event>> {
        panic!("the stream panicked");
    }
}

#[test]
fn maximum_durations_do_not_overflow() {
    single_seed().run(async |sim: Sim| {
        async fn never() -> &'static str {
            tokio::time::sleep(Duration::MAX).await;
            "never"
        }
        let server = sim.serve(|| App::new().get("/", never));
        let result = server.client().get("/").timeout(HOUR).send().await;
        assert_eq!(result.expect_err("there is no response").kind, SimErrorKind::TimedOut(HOUR));
        assert_eq!(sim.timeout(HOUR, sim.sleep(Duration::MAX)).await, None);
        let result = server.client().get("/").timeout(Duration::MAX).send();
        assert!(sim.timeout(HOUR, result).await.is_none());
    });
}

#[test]
fn advancing_the_tokio_clock_advances_the_simulation() {
    single_seed().run(async |sim: Sim| {
        let server = sim.serve(app);
        let client = server.client();
        let slow = sim.spawn(client.get("/slow/600").send());
        sim.sleep(SECOND).await;
        tokio::time::advance(2 * HOUR).await;
        assert!(sim.now() >= 2 * HOUR, "{:?}", sim.now());
        let response = slow.await;
        assert!(response.is_ok_and(|response| response.text() == "after 600"));
    });
}
