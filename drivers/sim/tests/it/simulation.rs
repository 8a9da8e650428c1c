//! Tests of the simulator beyond the suite for all drivers.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};

use peregrine_driver::{Driver, Listener, Options, Stream};
use peregrine_driver_sim::{Client, Faults, Network, Sim};

const HOUR: Duration = Duration::from_secs(3600);

fn run<T>(network: &Network, main: impl AsyncFnOnce(Sim) -> T) -> T {
    network
        .run(&Options::default(), async |driver| main(driver).await)
        .expect("a runtime without I/O starts")
}

/// Sends `bytes` and waits until they were sent.
async fn send(stream: &impl Stream, bytes: &[u8]) -> std::io::Result<()> {
    stream.send(&mut bytes.to_vec());
    stream.flush().await
}

/// An echo server that survives misbehaving peers.
async fn serve(driver: Sim, listener: peregrine_driver_sim::SimListener) {
    loop {
        let Ok(stream) = listener.accept().await else {
            driver.sleep_until(driver.now() + Duration::from_millis(5)).await;
            continue;
        };
        driver.spawn(async move {
            while let Ok(chunk) = stream.recv().await {
                if chunk.is_empty() || send(&stream, &chunk).await.is_err() {
                    break;
                }
            }
            stream.finish();
            let _ = stream.flush().await;
        });
    }
}

/// Runs ten clients against an echo server in a hostile network. Returns the trace, and how many
/// clients got all of their bytes back.
fn storm(seed: u64) -> (u64, u32) {
    let network = Network::new(seed, Faults::hostile());
    let port = network.bind();
    let port_id = port.id();
    for task in 0..4 {
        network.drop_task_at(task * 2);
    }
    let (completed, finished) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let completed_count = Rc::clone(&completed);
    run(&network, async move |driver: Sim| {
        let listener = driver.listen(port).expect("the port is bound");
        // The server is polled from main, so that only its connections are dropped.
        let server = serve(driver.clone(), listener);
        let network = driver.network().clone();
        for _ in 0..10 {
            let client = network.connect_to(port_id);
            let (completed, finished) = (Rc::clone(&completed), Rc::clone(&finished));
            let timer = network.clone();
            network.spawn(async move {
                let exchange = async {
                    client.send(&[7; 300]).await.ok()?;
                    client.half_close().await.ok()?;
                    client.recv_all().await.ok()
                };
                let timeout = timer.sleep(HOUR);
                let all = first_of(exchange, timeout).await.flatten();
                completed.set(completed.get() + u32::from(all.is_some_and(|all| all.len() == 300)));
                finished.set(finished.get() + 1);
            });
        }
        let all_finished = async {
            while finished.get() < 10 {
                network.sleep(Duration::from_secs(1)).await;
            }
        };
        first_of(server, all_finished).await;
    });
    assert_eq!(network.connections(), 0, "seed {seed}");
    assert_eq!(network.outstanding_chunks(), 0, "seed {seed}");
    assert_eq!(network.panics(), 0, "seed {seed}");
    (network.trace_digest(), completed_count.get())
}

/// The output of `a`, unless `b` completes first.
async fn first_of<A: Future, B: Future>(a: A, b: B) -> Option<A::Output> {
    let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
    std::future::poll_fn(|cx| match a.as_mut().poll(cx) {
        std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
        std::task::Poll::Pending => b.as_mut().poll(cx).map(|_| None),
    })
    .await
}

#[test]
fn equal_seeds_give_equal_runs_and_different_seeds_do_not() {
    let mut completed = 0;
    for seed in 0..100 {
        let first = storm(seed);
        assert_eq!(first, storm(seed), "seed {seed}");
        assert_ne!(first.0, storm(seed + 1000).0, "seed {seed}");
        completed += first.1;
    }
    assert!(
        (100..1000).contains(&completed),
        "{completed} of 1,000 clients were not hit by faults"
    );
}

#[test]
fn virtual_hours_take_no_real_time_on_the_clocks_of_driver_and_tokio() {
    let real = Instant::now();
    let network = Network::new(1, Faults::none());
    run(&network, async |driver: Sim| {
        let (date, tokio_start) = (driver.unix_time(), tokio::time::Instant::now());
        driver.sleep_until(10 * HOUR).await;
        assert_eq!(driver.now(), 10 * HOUR);
        tokio::time::sleep(10 * HOUR).await;
        assert_eq!(driver.now(), 20 * HOUR);
        tokio::spawn(tokio::time::sleep(10 * HOUR)).await.expect("the task has not panicked");
        assert_eq!(driver.unix_time() - date, 30 * HOUR);
        assert_eq!(tokio_start.elapsed(), 30 * HOUR);
    });
    // A second run continues where the first one ended.
    run(&network, async |driver: Sim| assert_eq!(driver.now(), 30 * HOUR));
    assert!(real.elapsed() < HOUR);
}

#[test]
fn a_deadlock_is_reported_with_the_seed_and_the_waiting_tasks() {
    let network = Network::new(4321, Faults::none());
    let port = network.bind();
    let client = network.connect(&port);
    let result = catch_unwind(AssertUnwindSafe(|| {
        run(&network, async |driver: Sim| {
            let listener = driver.listen(port).expect("the port is bound");
            let stream = listener.accept().await.expect("a client waits");
            driver.spawn(async move { drop(listener.accept().await) });
            driver.spawn(async move { drop(client.recv().await) });
            stream.recv().await.map(|chunk| chunk.len())
        })
    }));
    let panic = result.expect_err("a deadlock");
    let text = panic.downcast_ref::<String>().expect("the panic has a message");
    for part in ["deadlock", "seed 4321", "main and 2 tasks", "accept", "server receives"] {
        assert!(text.contains(part), "{part:?} is missing in {text}");
    }
}

#[test]
fn an_endless_run_fails_at_the_time_limit() {
    let network = Network::new(99, Faults::none());
    network.set_time_max(HOUR);
    let result = catch_unwind(AssertUnwindSafe(|| {
        run(&network, async |driver: Sim| {
            loop {
                driver.sleep_until(driver.now() + Duration::from_secs(1)).await;
            }
        })
    }));
    let panic = result.expect_err("the run never ends by itself");
    let text = panic.downcast_ref::<String>().expect("the panic has a message");
    assert!(text.contains("time is over") && text.contains("seed 99"), "{text}");
}

#[test]
fn an_accept_error_leaves_the_connection_in_the_backlog() {
    let always = Faults { accept_error_per_mille: 1000, ..Faults::none() };
    let network = Network::new(2, always);
    let port = network.bind();
    let client = network.connect(&port);
    run(&network, async |driver: Sim| {
        let listener = driver.listen(port).expect("the port is bound");
        for _ in 0..3 {
            let error = listener.accept().await.err().expect("this fault is always on");
            assert!(matches!(error.raw_os_error(), Some(23 | 24)));
        }
        driver.network().set_faults(Faults::none());
        let stream = listener.accept().await.expect("the client still waits");
        drop(client);
        assert!(stream.recv().await.expect("a regular end").is_empty());
    });
}

#[test]
fn only_the_task_chosen_for_a_drop_is_dropped() {
    let mut polls_seen = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let network = Network::new(seed, Faults::none());
        network.drop_task_at(1);
        let ticks = Rc::new(RefCell::new([0; 3]));
        run(&network, async |driver: Sim| {
            for task in 0..3 {
                let (timer, ticks) = (driver.clone(), Rc::clone(&ticks));
                driver.spawn(async move {
                    for _ in 0..20 {
                        ticks.borrow_mut()[task] += 1;
                        timer.sleep_until(timer.now() + Duration::from_millis(1)).await;
                    }
                });
            }
            driver.sleep_until(driver.now() + HOUR).await;
        });
        let [first, dropped, last] = *ticks.borrow();
        assert_eq!((first, last), (20, 20));
        assert!((1..=12).contains(&dropped), "{dropped}");
        polls_seen.insert(dropped);
    }
    assert!(polls_seen.len() > 6, "the await differs from seed to seed: {polls_seen:?}");
}

#[test]
fn a_future_can_be_dropped_at_each_of_its_awaits() {
    let network = Network::new(5, Faults::none());
    run(&network, async |driver: Sim| {
        let reached = Rc::new(Cell::new(0_u32));
        let mut counts = [0; 5];
        for _ in 0..400 {
            reached.set(0);
            let (seen, timer) = (Rc::clone(&reached), driver.clone());
            let steps = async move {
                for _ in 0..3 {
                    seen.set(seen.get() + 1);
                    timer.sleep_until(timer.now() + Duration::from_millis(1)).await;
                }
                7
            };
            let index = match driver.network().drop_at(300, steps).await {
                Some(seven) => seven - 3,
                None => usize::try_from(reached.get()).expect("at most 3"),
            };
            counts[index] += 1;
        }
        assert!(counts.iter().all(|count| *count > 20), "before, at 1, 2, 3, and done: {counts:?}");
    });
}

async fn pair(driver: &Sim) -> (peregrine_driver_sim::SimStream, Client) {
    let port = driver.network().bind();
    let client = driver.network().connect(&port);
    let listener = driver.listen(port).expect("the port is bound");
    (listener.accept().await.expect("the client waits"), client)
}

#[test]
fn a_stall_delays_only_one_direction() {
    run(&Network::new(6, Faults::none()), async |driver: Sim| {
        let (stream, client) = pair(&driver).await;
        client.stall(HOUR);
        client.send(b"late").await.expect("the pipe has room");
        send(&stream, b"soon").await.expect("the pipe has room");
        assert_eq!(client.recv().await.expect("the connection is open"), b"soon");
        assert_eq!(driver.now(), Duration::ZERO);
        assert_eq!(&*stream.recv().await.expect("the connection is open"), b"late");
        assert_eq!(driver.now(), HOUR);
    });
}

#[test]
fn a_reset_by_the_network_reaches_both_ends() {
    let faults = Faults { reset_per_mille: 1000, ..Faults::none() };
    run(&Network::new(7, faults), async |driver: Sim| {
        let (stream, client) = pair(&driver).await;
        client.send(b"lost").await.expect("the data is lost later");
        for _ in 0..2 {
            let error = stream.recv().await.expect_err("the connection is broken");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            assert!(client.recv().await.is_err());
        }
        assert!(send(&stream, &[1]).await.is_err());
        stream.finish();
        assert!(stream.flush().await.is_err());
    });
}

#[test]
fn bytes_before_a_reset_are_received_first() {
    run(&Network::new(8, Faults::none()), async |driver: Sim| {
        let (stream, client) = pair(&driver).await;
        client.send(b"first").await.expect("the pipe has room");
        client.reset();
        assert_eq!(&*stream.recv().await.expect("they arrived before"), b"first");
        assert!(stream.recv().await.is_err());
    });
}

#[test]
fn a_receive_waits_for_a_free_buffer() {
    let network = Network::new(9, Faults::none());
    let options = Options { receive_buffers: 16, receive_buffer_bytes: 512, ..Options::default() };
    let stats = network.run(&options, async |driver: Sim| {
        let (stream, client) = pair(&driver).await;
        client.send(&[3; 512 * 17]).await.expect("the pipe has room");
        let mut chunks = Vec::new();
        for _ in 0..16 {
            chunks.push(stream.recv().await.expect("the connection is open"));
        }
        let timer = driver.clone();
        driver.spawn(async move {
            timer.sleep_until(HOUR).await;
            drop(chunks.pop());
            pending::<()>().await;
        });
        assert_eq!(stream.recv().await.expect("the connection is open").len(), 512);
        assert_eq!(driver.now(), HOUR);
        driver.stats()
    });
    let stats = stats.expect("a runtime without I/O starts");
    assert!(stats.buffers_exhausted >= 1);
    assert_eq!(stats.accepted, 1);
    assert!(stats.syscalls >= 1);
    assert_eq!(stats.in_flight, 0);
}

#[test]
fn without_a_network_the_driver_does_not_run() {
    let run = std::thread::spawn(|| Sim::run(&Options::default(), async |_| ()).is_err());
    assert!(run.join().expect("the run has not panicked"));
}
