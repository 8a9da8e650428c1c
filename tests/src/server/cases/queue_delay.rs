//! Queueing delay under overload, in virtual time: refused requests cost no time, and answered ones
//! take only their handler's time.

use super::limits;
use crate::both;
use crate::server::bench::{Bench, Outcome, Served};
use crate::server::{SimulatedBench, simulated::SimulatedServer};
use peregrine::prelude::*;
use peregrine::{Limits, OverloadLimits};
use peregrine_driver_sim::{Faults, Network};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// The results of a load.
#[derive(Debug, Default)]
struct Load {
    answered: BTreeMap<u16, usize>,
    /// Durations of requests that were sent once shedding had settled and got a 200 in time.
    times: Vec<Duration>,
}

impl Load {
    fn of(&self, status: u16) -> usize {
        self.answered.get(&status).copied().unwrap_or(0)
    }

    fn p99(&mut self) -> Duration {
        self.times.sort();
        self.times[self.times.len() * 99 / 100]
    }
}

/// How long a handler uses its thread.
const WORK: Duration = Duration::from_millis(1);

/// An application whose handler blocks the thread for a millisecond of virtual time.
fn working() -> App {
    let work = async || {
        Network::current().expect("the handler runs on a simulated network").block_thread(WORK);
        "worked"
    };
    App::new().get("/work", work).get("/well", (|| "well").never_shed())
}

/// The duration of the load.
const TIME: Duration = Duration::from_secs(2);

/// When measuring starts: a queue must stand for an interval of 100 ms before any request is
/// refused, and requests that arrived meanwhile are processed first.
const SETTLED: Duration = Duration::from_millis(400);

fn begin(bench: &SimulatedBench, queue_delay_target: Option<Duration>) -> SimulatedServer {
    bench.calm();
    bench.network().set_faults(Faults { batch_scheduling: true, ..Faults::none() });
    let overload = OverloadLimits { queue_delay_target, ..OverloadLimits::default() };
    bench.start(Limits { overload, ..limits() }, None, working)
}

async fn end(server: SimulatedServer) -> Outcome {
    server.shut_down();
    server.ended().await
}

/// Requests `path` this many times per handler duration, whether or not responses arrive.
async fn offer(
    bench: &SimulatedBench,
    server: &SimulatedServer,
    path: &'static str,
    per_work: f64,
) -> Load {
    let network = bench.network();
    let load = Rc::new(RefCell::new(Load::default()));
    let (start, pause) = (bench.now(), WORK.div_f64(per_work));
    for number in 1.. {
        // When the request should be sent, even if it is sent later.
        let send_time = start + pause * number;
        bench.sleep(send_time.saturating_sub(bench.now())).await;
        if send_time > start + TIME {
            break;
        }
        let (client, load) = (network.connect_to(server.port()), Rc::clone(&load));
        let clock = network.clone();
        network.spawn(async move {
            let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            let sent = client.send(head.as_bytes()).await;
            let received = client.recv_all().await;
            let received = received.ok().filter(|_| sent.is_ok()).unwrap_or_default();
            let text = String::from_utf8_lossy(&received);
            let status = text.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0);
            assert_eq!(status == 503, text.contains("retry-after: "), "{text}");
            let mut load = load.borrow_mut();
            *load.answered.entry(status).or_default() += 1;
            if status == 200 && send_time > start + SETTLED && clock.now() <= start + TIME {
                load.times.push(clock.now().saturating_sub(send_time));
            }
        });
    }
    bench.sleep(TIME * 20).await;
    load.take()
}

/// The share of the worker's capacity that was completed in time.
fn goodput(load: &Load) -> f64 {
    load.times.len() as f64 * WORK.as_secs_f64() / (TIME - SETTLED).as_secs_f64()
}

/// At two and at ten times its capacity, the worker does nearly as much as it can, and the requests
/// it answers have waited little.
pub async fn a_target_keeps_goodput_and_delay(bench: &SimulatedBench) {
    let server = begin(bench, Some(WORK * 3));
    let mut baseline = offer(bench, &server, "/work", 0.2).await;
    assert_eq!(baseline.answered.keys().copied().collect::<Vec<_>>(), [200]);
    let p99_max = baseline.p99() * 5;
    for per_work in [2.0, 10.0] {
        let mut load = offer(bench, &server, "/work", per_work).await;
        let (load_goodput, p99) = (goodput(&load), load.p99());
        assert!(
            load_goodput >= 0.9 && p99 <= p99_max,
            "{per_work} times: {load_goodput:.3}, {p99:?} of {p99_max:?}"
        );
        assert!(load.of(503) > load.of(200) / 2, "{:?}", load.answered);
    }
    // Once the load is low again, no request is refused after a moment.
    offer(bench, &server, "/work", 0.5).await;
    let load = offer(bench, &server, "/work", 0.5).await;
    assert_eq!(load.answered.keys().copied().collect::<Vec<_>>(), [200]);
    let outcome = end(server).await;
    assert_eq!(outcome.snapshot.shed.keys().copied().collect::<Vec<_>>(), ["queue_delay"]);
}

/// Without a target every request is answered, and nearly all of them too late.
pub async fn without_a_target_all_requests_wait(bench: &SimulatedBench) {
    let server = begin(bench, None);
    let mut baseline = offer(bench, &server, "/work", 0.2).await;
    let mut load = offer(bench, &server, "/work", 2.0).await;
    assert_eq!(load.answered.keys().copied().collect::<Vec<_>>(), [200]);
    assert!(load.p99() > baseline.p99() * 100, "{:?}", load.p99());
    assert_eq!(end(server).await.snapshot.shed, BTreeMap::new());
}

/// Health checks are answered under any load.
pub async fn health_checks_are_never_refused(bench: &SimulatedBench) {
    let server = begin(bench, Some(WORK * 3));
    let work = offer(bench, &server, "/work", 10.0);
    let (load, health) = both(work, offer(bench, &server, "/well", 0.1)).await;
    assert!(load.of(503) > 0);
    assert_eq!(health.answered.keys().copied().collect::<Vec<_>>(), [200]);
    end(server).await;
}

/// Neither a burst nor a blocked worker causes refusals.
pub async fn a_burst_is_answered(bench: &SimulatedBench) {
    let server = begin(bench, Some(WORK * 3));
    for _ in 0..3 {
        bench.network().block_thread(Duration::from_secs(60));
        let all = Rc::new(RefCell::new(Vec::new()));
        for _ in 0..300 {
            let (client, all) = (bench.network().connect_to(server.port()), Rc::clone(&all));
            bench.network().spawn(async move {
                let head = b"GET /work HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
                client.send(head).await.expect("the server reads the request");
                let text = client.recv_all().await.expect("the server responds");
                all.borrow_mut().push(text.starts_with(b"HTTP/1.1 200 "));
            });
        }
        bench.sleep(Duration::from_secs(10)).await;
        assert_eq!(*all.borrow(), vec![true; 300]);
    }
    assert_eq!(end(server).await.snapshot.shed, BTreeMap::new());
}
