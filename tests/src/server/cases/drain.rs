//! Drains that clients do not notice.

use super::{begin, begin_with, server_timeouts};
use crate::server::bench::{Bench, Served};
use crate::server::peer::Peer;
use crate::server::server_timeouts::ServerTimeouts;
use crate::server::simulated::SimulatedBench;
use peregrine::Limits;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// Requests in flight to idle connections when the drain starts are answered, and so are those in
/// the backlog.
pub async fn requests_in_flight_when_a_drain_starts_are_answered<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut idle = Vec::new();
    for _ in 0..32 {
        let mut peer = Peer::new(server.connect());
        peer.expect_alive().await;
        idle.push(peer);
    }
    let mut unused: Vec<_> = (0..32).map(|_| Peer::new(server.connect())).collect();
    server.shut_down();
    for peer in unused.iter_mut().chain(&mut idle) {
        peer.get("/hello");
    }
    for peer in unused.iter_mut().chain(&mut idle) {
        let reply = peer.reply().await;
        // Some may be answered before the worker notices the shutdown request.
        assert_eq!(reply.text(), "hello");
        peer.expect_end().await;
    }
    let outcome = server.ended().await;
    assert_eq!((outcome.snapshot.requests, outcome.cut.len()), (96, 0));
}

/// Connections that wait for a free slot are served too: idle connections give up theirs.
pub async fn a_full_server_answers_all_waiting_clients<B: Bench>(bench: &B) {
    let limits = Limits { connections_max: 2, ..server_timeouts().limits() };
    let (server, _) = begin_with(bench, limits);
    let mut idle: Vec<_> = (0..2).map(|_| Peer::new(server.connect())).collect();
    for peer in &mut idle {
        peer.expect_alive().await;
    }
    let mut unused: Vec<_> = (0..6).map(|_| Peer::new(server.connect())).collect();
    unused.iter_mut().for_each(|peer| peer.get("/hello"));
    bench.sleep(Duration::from_millis(100)).await;
    server.shut_down();
    for peer in &mut idle {
        peer.expect_end().await;
    }
    drop(idle);
    for mut peer in unused {
        let reply = peer.reply().await;
        assert_eq!((reply.text(), reply.closes()), ("hello", true));
        peer.expect_end().await;
    }
    let outcome = server.ended().await;
    assert_eq!((outcome.snapshot.requests, outcome.cut.len()), (8, 0));
}

/// An abort does not wait for a slot.
pub async fn an_abort_ends_a_full_server<B: Bench>(bench: &B) {
    let limits = Limits {
        connections_max: 1,
        shutdown_timeout: Duration::from_secs(3600),
        ..server_timeouts().limits()
    };
    let (server, shared) = begin_with(bench, limits);
    let mut busy = Peer::new(server.connect());
    busy.get("/wait");
    bench.wait_until("the handler waits", || shared.started.get() == 1).await;
    let waiting = Peer::new(server.connect());
    bench.sleep(Duration::from_millis(100)).await;
    server.shut_down();
    bench.sleep(Duration::from_millis(300)).await;
    server.cut();
    let outcome = server.ended().await;
    assert_eq!((outcome.snapshot.accepted, outcome.cut.len()), (1, 1));
    drop(waiting);
}

/// During the lame-duck period, a draining server keeps accepting and announces that it will close.
pub async fn the_server_accepts_and_answers_in_the_lame_duck_phase<B: Bench>(bench: &B) {
    let time = Duration::from_secs(2);
    let timeouts = ServerTimeouts { lame_duck_period: time, ..server_timeouts() };
    let (server, _) = begin_with(bench, timeouts.limits());
    let start = bench.now();
    server.shut_down();
    for _ in 0..5 {
        let mut peer = Peer::new(server.connect());
        peer.get("/hello");
        let reply = peer.reply().await;
        assert_eq!((reply.text(), reply.closes()), ("hello", true));
        bench.sleep(Duration::from_millis(100)).await;
    }
    let outcome = server.ended().await;
    assert!(bench.now() - start >= time);
    assert_eq!((outcome.snapshot.accepted, outcome.cut.len()), (5, 0));
}

/// The results of a client's rounds.
#[derive(Default)]
struct Results {
    answered: Cell<usize>,
    failures: RefCell<Vec<String>>,
}

/// Sends requests repeatedly, on one connection while the server keeps it open, or on a new
/// connection each time, until connections are refused.
async fn run_client(
    network: peregrine_driver_sim::Network,
    port: u64,
    keeps_alive: bool,
    results: Rc<Results>,
) {
    let mut open_client = None;
    loop {
        network.sleep(Duration::from_millis(network.random_below(400))).await;
        let client = match open_client.take() {
            Some(client) => client,
            None => network.connect_to(port),
        };
        let request: &[u8] = b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut received = Vec::new();
        let sent = client.send(request).await;
        let reply = loop {
            if let Ok(Some((reply, _))) = crate::server::reply::parse(&received, false, false) {
                break Ok(reply);
            }
            match client.recv().await {
                Ok(bytes) if bytes.is_empty() => break Err("an end".to_owned()),
                Ok(bytes) => received.extend(bytes),
                Err(error) => break Err(error.kind().to_string()),
            }
        };
        match reply {
            Ok(reply) => {
                results.answered.set(results.answered.get() + 1);
                open_client = (keeps_alive && !reply.closes()).then_some(client);
            }
            // In production, the client would try another server.
            Err(failure) if failure == std::io::ErrorKind::ConnectionRefused.to_string() => return,
            Err(failure) => {
                let failure = format!("{failure} (keeps: {keeps_alive}, sent: {sent:?})");
                results.failures.borrow_mut().push(failure);
                return;
            }
        }
    }
}

/// In rounds of 32 clients that keep their connection and 32 that do not, no drain fails a request.
pub async fn a_drain_fails_no_request(bench: &SimulatedBench) {
    for _ in 0..3 {
        let timeouts =
            ServerTimeouts { lame_duck_period: Duration::from_secs(1), ..server_timeouts() };
        let (server, _) = begin_with(bench, timeouts.limits());
        let results = Rc::new(Results::default());
        for number in 0..64 {
            let client = run_client(
                bench.network().clone(),
                server.port(),
                number < 32,
                Rc::clone(&results),
            );
            bench.network().spawn(client);
        }
        bench.sleep(Duration::from_millis(1_000 + bench.choose(2_000) as u64)).await;
        server.shut_down();
        let outcome = server.ended().await;
        // Clients that still wait are refused or have failed.
        bench.sleep(Duration::from_secs(60)).await;
        assert_eq!(results.failures.take(), Vec::<String>::new(), "{outcome:?}");
        assert!(results.answered.get() > 200, "{} answered", results.answered.get());
        assert_eq!(outcome.cut, []);
    }
}

/// A client that keeps sending after the response that ended its connection delays a drain only
/// briefly, whether the response came before or after the shutdown request; a client that stays
/// silent delays it as an idle one does.
pub async fn clients_that_do_not_disconnect_do_not_delay_a_drain(bench: &SimulatedBench) {
    bench.calm_with_large_buffers();
    let (linger, idle) = (Duration::from_secs(5), Duration::from_secs(1));
    let linger_time_max = Duration::from_secs(60);
    for keeps_sending in [false, true] {
        let timeouts =
            ServerTimeouts { linger, linger_time_max, drain_idle: idle, ..server_timeouts() };
        let (server, _) = begin_with(bench, timeouts.limits());
        let mut first = Peer::new(server.connect());
        let mut second = Peer::new(server.connect());
        second.expect_alive().await;
        first.send("\0\r\n\r\n");
        assert_eq!(first.reply().await.status, 400);
        let start = bench.now();
        server.shut_down();
        second.send("\0\r\n\r\n");
        let send_forever = async {
            loop {
                if keeps_sending {
                    first.send([7; 100]);
                    second.send([7; 100]);
                }
                bench.sleep(Duration::from_millis(500)).await;
            }
        };
        let outcome = crate::first_of(server.ended(), send_forever)
            .await
            .expect("the server shuts down in time");
        let (elapsed, elapsed_max) =
            (bench.now() - start, if keeps_sending { linger } else { idle });
        assert!(
            elapsed <= elapsed_max + Duration::from_millis(1_500),
            "{keeps_sending}: {elapsed:?}"
        );
        assert_eq!(outcome.cut, []);
    }
}
