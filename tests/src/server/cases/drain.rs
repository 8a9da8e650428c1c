//! Drains that clients do not notice.

use super::{begin, begin_with, promises};
use crate::server::bench::{Bench, Served};
use crate::server::peer::Peer;
use crate::server::promises::Promises;
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
    let mut fresh: Vec<_> = (0..32).map(|_| Peer::new(server.connect())).collect();
    server.shut_down();
    for peer in fresh.iter_mut().chain(&mut idle) {
        peer.get("/hello");
    }
    for peer in fresh.iter_mut().chain(&mut idle) {
        let reply = peer.reply().await;
        // Some may be answered before the worker notices the order.
        assert_eq!(reply.text(), "hello");
        peer.expect_end().await;
    }
    let outcome = server.ended().await;
    assert_eq!((outcome.snapshot.requests, outcome.cut.len()), (96, 0));
}

/// Connections that wait for a free slot are served too: idle connections give up theirs.
pub async fn a_full_server_answers_all_waiting_clients<B: Bench>(bench: &B) {
    let limits = Limits { connections_max: 2, ..promises().limits() };
    let (server, _) = begin_with(bench, limits);
    let mut idle: Vec<_> = (0..2).map(|_| Peer::new(server.connect())).collect();
    for peer in &mut idle {
        peer.expect_alive().await;
    }
    let mut fresh: Vec<_> = (0..6).map(|_| Peer::new(server.connect())).collect();
    fresh.iter_mut().for_each(|peer| peer.get("/hello"));
    bench.sleep(Duration::from_millis(100)).await;
    server.shut_down();
    for peer in &mut idle {
        peer.expect_end().await;
    }
    drop(idle);
    for mut peer in fresh {
        let reply = peer.reply().await;
        assert_eq!((reply.text(), reply.closes()), ("hello", true));
        peer.expect_end().await;
    }
    let outcome = server.ended().await;
    assert_eq!((outcome.snapshot.requests, outcome.cut.len()), (8, 0));
}

/// A cut does not wait for a slot.
pub async fn an_abort_ends_a_full_server<B: Bench>(bench: &B) {
    let limits = Limits {
        connections_max: 1,
        shutdown_timeout: Duration::from_secs(3600),
        ..promises().limits()
    };
    let (server, shared) = begin_with(bench, limits);
    let mut busy = Peer::new(server.connect());
    busy.get("/wait");
    bench.until("the handler waits", || shared.started.get() == 1).await;
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
    let promises = Promises { lame_duck_period: time, ..promises() };
    let (server, _) = begin_with(bench, promises.limits());
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
struct Tally {
    answered: Cell<usize>,
    failures: RefCell<Vec<String>>,
}

/// Sends requests repeatedly, on one connection while the server keeps it open, or on a new
/// connection each time, until connections are refused.
async fn ask(network: peregrine_driver_sim::Network, place: u64, keeps: bool, tally: Rc<Tally>) {
    let mut kept = None;
    loop {
        network.sleep(Duration::from_millis(network.random_below(400))).await;
        let client = match kept.take() {
            Some(client) => client,
            None => network.connect_to(place),
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
                tally.answered.set(tally.answered.get() + 1);
                kept = (keeps && !reply.closes()).then_some(client);
            }
            // In production, the client would try another server.
            Err(fault) if fault == std::io::ErrorKind::ConnectionRefused.to_string() => return,
            Err(fault) => {
                let fault = format!("{fault} (keeps: {keeps}, sent: {sent:?})");
                tally.failures.borrow_mut().push(fault);
                return;
            }
        }
    }
}

/// In rounds of 32 clients that keep their connection and 32 that do not, no drain fails a request.
pub async fn a_drain_fails_no_request(bench: &SimulatedBench) {
    for _ in 0..3 {
        let promises = Promises { lame_duck_period: Duration::from_secs(1), ..promises() };
        let (server, _) = begin_with(bench, promises.limits());
        let tally = Rc::new(Tally::default());
        for number in 0..64 {
            let client =
                ask(bench.network().clone(), server.port(), number < 32, Rc::clone(&tally));
            bench.network().spawn(client);
        }
        bench.sleep(Duration::from_millis(1_000 + bench.choose(2_000) as u64)).await;
        server.shut_down();
        let outcome = server.ended().await;
        // Clients that still wait are refused or have failed.
        bench.sleep(Duration::from_secs(60)).await;
        assert_eq!(tally.failures.take(), Vec::<String>::new(), "{outcome:?}");
        assert!(tally.answered.get() > 200, "{} answered", tally.answered.get());
        assert_eq!(outcome.cut, []);
    }
}

/// A client that keeps sending after the response that ended its connection delays a drain only
/// briefly, whether the response came before or after the order; a client that stays silent delays
/// it as an idle one does.
pub async fn clients_that_do_not_disconnect_do_not_delay_a_drain(bench: &SimulatedBench) {
    bench.calm_with_large_buffers();
    let (linger, idle) = (Duration::from_secs(5), Duration::from_secs(1));
    let long = Duration::from_secs(60);
    for goes_on in [false, true] {
        let promises = Promises { linger, linger_time_max: long, drain_idle: idle, ..promises() };
        let (server, _) = begin_with(bench, promises.limits());
        let mut early = Peer::new(server.connect());
        let mut late = Peer::new(server.connect());
        late.expect_alive().await;
        early.send("\0\r\n\r\n");
        assert_eq!(early.reply().await.status, 400);
        let start = bench.now();
        server.shut_down();
        late.send("\0\r\n\r\n");
        let on_and_on = async {
            loop {
                if goes_on {
                    early.send([7; 100]);
                    late.send([7; 100]);
                }
                bench.sleep(Duration::from_millis(500)).await;
            }
        };
        let outcome = crate::first_of(server.ended(), on_and_on)
            .await
            .expect("the server shuts down in time");
        let (elapsed, elapsed_max) = (bench.now() - start, if goes_on { linger } else { idle });
        assert!(elapsed <= elapsed_max + Duration::from_millis(1_500), "{goes_on}: {elapsed:?}");
        assert_eq!(outcome.cut, []);
    }
}
