//! Reports of failed runs.

use super::*;

#[test]
fn an_application_panic_fails_the_run_unless_panics_are_allowed() {
    async fn visit(sim: Sim) -> Result<(), SimRequestError> {
        let client = sim.serve(app).client();
        client.get("/panic").send().await?.assert_status(500);
        Ok(())
    }
    let failure = run_failure(&single_seed(), 0, visit);
    assert_eq!(failure.cause(), "the application panicked: on purpose");
    single_seed().allow_panics().run(visit);
}

#[test]
fn using_a_socket_fails_with_a_hint() {
    let failure = run_failure(&single_seed(), 0, async |sim: Sim| {
        async fn connect() -> String {
            let address = std::net::SocketAddr::from(([127, 0, 0, 1], 9));
            format!("{:?}", tokio::net::TcpStream::connect(address).await)
        }
        let client = sim.serve(|| App::new().get("/", connect)).client();
        client.get("/").send().await.map(drop)
    });
    assert!(failure.cause().contains("There are no sockets in a simulation"), "{failure}");
}

#[test]
fn a_failure_outside_of_the_test_ends_the_run() {
    let cause = |test: &dyn Fn(&Sim)| {
        let failure = run_failure(&single_seed(), 3, async |sim: Sim| {
            test(&sim);
            sim.sleep(HOUR).await;
            assert!(sim.seed() == 0, "the run should have ended");
        });
        assert!(failure.virtual_time() < HOUR && failure.seed() == 3);
        failure.cause().to_owned()
    };
    let text = cause(&|sim| drop(sim.spawn(async { panic!("the task panicked") })));
    assert_eq!(text, "a task of the test panicked: the task panicked");
    let text = cause(&|sim| {
        sim.serve(|| App::new().get("/a", || "").get("/a", || ""));
    });
    assert!(text.starts_with("the server cannot start: ") && text.contains("/a"), "{text}");
}

#[test]
fn an_invalid_setting_fails_the_run() {
    let failure = run_failure(&single_seed(), 0, async |sim: Sim| {
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
fn a_deadlock_report_lists_what_the_run_waits_for() {
    let failure = run_failure(&single_seed(), 0, async |sim: Sim| {
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
       0.000 s  client 1: opens connection 3
       0.000 s  connection 3: accepted
"
    );
}

#[test]
fn a_run_is_limited_in_time_and_steps() {
    let sleep_forever = async |sim: Sim| {
        while sim.seed() == 0 {
            tokio::time::sleep(SECOND).await;
        }
    };
    let failure = run_failure(&single_seed().time_max(HOUR), 0, sleep_forever);
    assert!(failure.virtual_time() >= HOUR && failure.virtual_time() < HOUR + 2 * SECOND);
    let text = failure.cause();
    assert!(text.starts_with("the test has not ended after 3600s of virtual time"), "{text}");
    assert!(text.contains("Simulation::time_max"), "{text}");
    let yield_forever = async |sim: Sim| {
        while sim.seed() == 0 {
            tokio::task::yield_now().await;
        }
    };
    let failure = run_failure(&single_seed().steps_max(1_000), 0, yield_forever);
    let text = failure.cause();
    assert!(text.starts_with("the test has not ended after 1000 steps"), "{text}");
    assert!(text.contains("Simulation::steps_max"), "{text}");
}

/// The message with which `run` panics.
pub(super) fn panic_text(run: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("`run` must panic");
    sim::panic_message(&*panic)
}

#[test]
fn a_failure_report_has_the_seed_time_events_and_command() {
    let text = panic_text(|| {
        Simulation::seeds(0..10).faults(Faults::none()).run(async |sim| {
            let client = sim.serve(app).client();
            let _ = client.get("/slow/3").timeout(SECOND).send().await;
            let request = client.get("/slow/7").send();
            let task = sim.spawn(async move { drop(request.await) });
            sim.sleep(SECOND).await;
            sim.log("runs from seed 4 on fail");
            assert!(sim.seed() < 4, "too far");
            drop(task);
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
       0.000 s  client 1: opens connection 3
       0.000 s  connection 3: accepted
       1.000 s  connection 3: the client closes it
       1.000 s  client 1: no response to GET /slow/3: the client gave up after 1s
       1.000 s  client 1: GET /slow/7
       1.000 s  connection 8: a client connects
       1.000 s  client 1: opens connection 8
       1.000 s  connection 3: the server closes it
       1.000 s  connection 8: accepted
       2.000 s  runs from seed 4 on fail
A second run with this seed failed in the same way.
To run it alone: PEREGRINE_SEEDS=4 cargo test tests::failures::\
a_failure_report_has_the_seed_time_events_and_command"
    );
}

#[test]
fn a_failure_that_does_not_repeat_is_reported() {
    let runs = Cell::new(0);
    let text = panic_text(|| {
        single_seed().run(async |_| {
            runs.set(runs.get() + 1);
            assert!(runs.get() > 1, "the first run fails");
        });
    });
    assert!(text.contains("passed, so something other than the seed affects the run"), "{text}");
    let text = panic_text(|| {
        single_seed().run(async |sim| {
            runs.set(runs.get() + 1);
            sim.sleep(Duration::from_secs(runs.get())).await;
            assert!(runs.get() == 0, "run {}", runs.get());
        });
    });
    assert!(text.contains("failed differently") && text.contains("simulate): run 4"), "{text}");
    let text = panic_text(|| {
        single_seed().check_determinism().run(async |sim| {
            runs.set(runs.get() + 1);
            sim.sleep(Duration::from_secs(runs.get())).await;
        });
    });
    assert!(text.contains("passed, but their events differ"), "{text}");
}

#[test]
fn a_run_leaves_no_state_behind() {
    let probe = Rc::new(());
    let task_probe = Rc::clone(&probe);
    let simulation = single_seed();
    let _ = simulation.run_one(1, &async |sim: Sim| {
        let task_probe = Rc::clone(&task_probe);
        sim.spawn(async move {
            std::future::pending::<()>().await;
            drop(task_probe);
        });
        drop(sim.serve(app));
        assert!(sim.seed() == 0, "on purpose");
    });
    drop(task_probe);
    assert_eq!(Rc::strong_count(&probe), 1, "tasks of a run are dropped at its end");
    assert!(!Shutdown::current().is_requested());
}

#[test]
fn a_simulation_needs_a_seed() {
    assert!(panic_text(|| seeds(0..0, async |_| ())).contains("needs a seed"));
}

/// Code from the guide.
mod seats {
    include!("seats.rs");

    pub(super) fn run() {
        every_seat_is_free_or_sold();
    }
}

#[test]
fn the_guide_contains_the_failure_report() {
    let page = include_str!("../../../../docs/guide/simulation.md");
    assert!(page.contains(include_str!("seats.rs")), "the page and this test differ");
    let text = panic_text(seats::run);
    let (report, _) = text.split_once("To run it alone").expect("instructions to run it");
    assert!(page.contains(report), "the page must contain this:\n{text}");
}
