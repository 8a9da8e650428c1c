//! Reports of failed runs.

use super::*;

#[test]
fn a_panic_of_the_application_fails_the_run_unless_it_is_allowed() {
    async fn visit(sim: Sim) -> Result<(), SimRequestError> {
        let client = sim.serve(app).client();
        client.get("/panic").send().await?.assert_status(500);
        Ok(())
    }
    let failure = failing(&one(), 0, visit);
    assert_eq!(failure.cause(), "the application panicked: on purpose");
    one().allow_panics().run(visit);
}

#[test]
fn a_socket_of_the_application_is_told_not_to_be_there() {
    let failure = failing(&one(), 0, async |sim: Sim| {
        async fn ask() -> String {
            let address = std::net::SocketAddr::from(([127, 0, 0, 1], 9));
            format!("{:?}", tokio::net::TcpStream::connect(address).await)
        }
        let client = sim.serve(|| App::new().get("/", ask)).client();
        client.get("/").send().await.map(drop)
    });
    assert!(failure.cause().contains("There are no sockets in a simulation"), "{failure}");
}

#[test]
fn what_fails_beside_the_test_ends_the_run() {
    let cause = |test: &dyn Fn(&Sim)| {
        let failure = failing(&one(), 3, async |sim: Sim| {
            test(&sim);
            sim.sleep(HOUR).await;
            assert!(sim.seed() == 0, "the run should have ended");
        });
        assert!(failure.virtual_time() < HOUR && failure.seed() == 3);
        failure.cause().to_owned()
    };
    let text = cause(&|sim| drop(sim.spawn(async { panic!("a task fell over") })));
    assert_eq!(text, "a task of the test panicked: a task fell over");
    let text = cause(&|sim| {
        sim.serve(|| App::new().get("/a", || "").get("/a", || ""));
    });
    assert!(text.starts_with("the server cannot start: ") && text.contains("/a"), "{text}");
}

#[test]
fn a_setting_that_is_not_possible_is_told() {
    let failure = failing(&one(), 0, async |sim: Sim| {
        let overload =
            peregrine::OverloadLimits { client_ipv6_prefix_len: 129, ..Default::default() };
        let limits = Limits { overload, ..Limits::default() };
        sim.serve_with(|server| server.limits(limits), app);
    });
    let text = failure.cause();
    assert!(text.starts_with("the server cannot be simulated: "), "{text}");
    assert!(text.contains("client_ipv6_prefix_len"), "{text}");
}

#[test]
fn a_test_that_waits_for_ever_is_told_what_for() {
    let failure = failing(&one(), 0, async |sim: Sim| {
        let app =
            || App::new().get("/never", async || -> &'static str { std::future::pending().await });
        let server = sim.serve(app);
        sim.log("the test starts");
        drop(server.client().get("/never").send().await);
    });
    assert_eq!(
        failure.to_string(),
        "\
seed 0 fails at 0.000 s of virtual time, after 8 steps:
  deadlock: the test waits, but no event is pending
  besides the test, 7 network tasks and 0 tokio tasks have not ended; waiting: port 1: accept, port 2: accept, \
connection 3: client receives, connection 3: server receives
requests without a response:
  GET /never of client 1, for 0.000 s
last events:
       0.000 s  the test starts
       0.000 s  client 1: GET /never
       0.000 s  connection 3: a client connects
       0.000 s  client 1: has connection 3
       0.000 s  connection 3: accepted
"
    );
}

#[test]
fn a_run_has_limits_of_time_and_of_steps() {
    let ticking = async |sim: Sim| {
        while sim.seed() == 0 {
            tokio::time::sleep(SECOND).await;
        }
    };
    let failure = failing(&one().time_max(HOUR), 0, ticking);
    assert!(failure.virtual_time() >= HOUR && failure.virtual_time() < HOUR + 2 * SECOND);
    let text = failure.cause();
    assert!(text.starts_with("the test has not ended after 3600s of virtual time"), "{text}");
    assert!(text.contains("Simulation::time_max"), "{text}");
    let spinning = async |sim: Sim| {
        while sim.seed() == 0 {
            tokio::task::yield_now().await;
        }
    };
    let failure = failing(&one().steps_max(1_000), 0, spinning);
    let text = failure.cause();
    assert!(text.starts_with("the test has not ended after 1000 steps"), "{text}");
    assert!(text.contains("Simulation::steps_max"), "{text}");
}

/// The message with which `run` panics.
pub(super) fn told(run: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("a panic");
    sim::panic_message(&*panic)
}

#[test]
fn a_failure_names_its_seed_its_time_its_events_and_how_to_have_it_again() {
    let text = told(|| {
        Simulation::seeds(0..10).faults(Faults::none()).run(async |sim| {
            let client = sim.serve(app).client();
            let _ = client.get("/slow/3").timeout(SECOND).send().await;
            let lost = client.get("/slow/7").send();
            let waits = sim.spawn(async move { drop(lost.await) });
            sim.sleep(SECOND).await;
            sim.log("runs from seed 4 on fail");
            assert!(sim.seed() < 4, "too far");
            drop(waits);
        });
    });
    assert_eq!(
        text,
        "\
seed 4 fails at 2.000 s of virtual time, after 14 steps:
  too far
requests without a response:
  GET /slow/7 of client 1, for 1.000 s
last events:
       0.000 s  client 1: GET /slow/3
       0.000 s  connection 3: a client connects
       0.000 s  client 1: has connection 3
       0.000 s  connection 3: accepted
       1.000 s  connection 3: the client closes it
       1.000 s  client 1: no answer to GET /slow/3: the client gave up after 1s
       1.000 s  client 1: GET /slow/7
       1.000 s  connection 8: a client connects
       1.000 s  client 1: has connection 8
       1.000 s  connection 3: the server closes it
       1.000 s  connection 8: accepted
       2.000 s  runs from seed 4 on fail
A second run with this seed failed in the same way.
To run it alone: PEREGRINE_SEEDS=4 cargo test tests::failures::\
a_failure_names_its_seed_its_time_its_events_and_how_to_have_it_again"
    );
}

#[test]
fn a_seed_that_does_not_repeat_its_failure_is_told_so() {
    let runs = Cell::new(0);
    let text = told(|| {
        one().run(async |_| {
            runs.set(runs.get() + 1);
            assert!(runs.get() > 1, "the first run fails");
        });
    });
    assert!(text.contains("passed, so something other than the seed affects the run"), "{text}");
    let text = told(|| {
        one().run(async |sim| {
            runs.set(runs.get() + 1);
            sim.sleep(Duration::from_secs(runs.get())).await;
            assert!(runs.get() == 0, "run {}", runs.get());
        });
    });
    assert!(text.contains("failed differently") && text.contains("simulate): run 4"), "{text}");
    let text = told(|| {
        one().check_determinism().run(async |sim| {
            runs.set(runs.get() + 1);
            sim.sleep(Duration::from_secs(runs.get())).await;
        });
    });
    assert!(text.contains("passed, but their events differ"), "{text}");
}

#[test]
fn a_run_leaves_nothing_to_the_next_one() {
    let held = Rc::new(());
    let kept = Rc::clone(&held);
    let simulation = one();
    let _ = simulation.run_one(1, &async |sim: Sim| {
        let kept = Rc::clone(&kept);
        sim.spawn(async move {
            std::future::pending::<()>().await;
            drop(kept);
        });
        drop(sim.serve(app));
        assert!(sim.seed() == 0, "on purpose");
    });
    drop(kept);
    assert_eq!(Rc::strong_count(&held), 1, "tasks of a run are dropped at its end");
    assert!(!Shutdown::current().is_requested());
}

#[test]
fn a_simulation_without_a_seed_is_refused() {
    assert!(told(|| seeds(0..0, async |_| ())).contains("needs a seed"));
}

/// Code from the guide.
mod seats {
    include!("seats.rs");

    pub(super) fn run() {
        every_seat_is_free_or_sold();
    }
}

#[test]
fn the_guide_shows_what_a_failure_says() {
    let page = include_str!("../../../../docs/guide/simulation.md");
    assert!(page.contains(include_str!("seats.rs")), "the page and this test differ");
    let text = told(seats::run);
    let (before, _) = text.split_once("To run it alone").expect("instructions to run it");
    assert!(page.contains(before), "the page must contain this:\n{text}");
}
