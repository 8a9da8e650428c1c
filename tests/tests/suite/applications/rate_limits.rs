//! Rate limits through a server on every driver, counted across all its workers.

use peregrine::prelude::*;
use peregrine::rate_limit::{RateLimit, RateLimitKey};
use peregrine::{DriverChoice, RunningServer};
use peregrine_tests::client::{receive, send, started};
use peregrine_tests::on_both_drivers;
use std::io::{Read, Write};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

on_both_drivers! {
    workers_count_together_and_let_in_as_many_as_there_may_be,
    behind_trusted_proxies_each_client_has_its_own_limit,
    a_body_that_is_refused_does_not_disturb_the_next_request,
}

/// A server whose rate limits use the test's own clock.
fn start(
    choice: DriverChoice,
    limit: RateLimit,
    is_proxied: bool,
) -> Option<(RunningServer, Arc<AtomicU64>)> {
    let seconds = Arc::new(AtomicU64::new(1));
    let clock = {
        let seconds = Arc::clone(&seconds);
        move || Duration::from_secs(seconds.load(Relaxed))
    };
    let limit = limit.clock(clock);
    let app = move || {
        App::new()
            .get("/free", || "free")
            .wrap(limit.clone())
            .get("/", async || {
                tokio::task::yield_now().await;
                "let in"
            })
            .post("/", |body: String| body.len().to_string())
    };
    let workers = NonZeroUsize::new(4).expect("the value is not zero");
    let server = Server::bind("127.0.0.1:0").driver(choice).workers(workers).quiet();
    let server = if is_proxied { server.trusted_proxies(["127.0.0.1"]) } else { server };
    started(server.start(app)).map(|running| (running, seconds))
}

fn get(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n")
}

fn workers_count_together_and_let_in_as_many_as_there_may_be(choice: DriverChoice) {
    let limit = RateLimit::per_minute(30).burst(20);
    let Some((running, seconds)) = start(choice, limit, false) else { return };
    for (later, expected) in [(0, 20), (0, 0), (10, 5), (3_600, 20)] {
        seconds.fetch_add(later, Relaxed);
        let peers: Vec<_> = (0..60).map(|_| send(&running, get("/", ""))).collect();
        let texts: Vec<_> = peers.into_iter().map(receive).collect();
        let is_let_in =
            |text: &&String| text.starts_with("HTTP/1.1 200") && text.ends_with("let in");
        assert_eq!(texts.iter().filter(is_let_in).count(), expected);
        let refused: Vec<_> =
            texts.iter().filter(|text| text.starts_with("HTTP/1.1 429")).collect();
        assert_eq!(refused.len(), 60 - expected);
        for text in refused {
            let lower = text.to_ascii_lowercase();
            assert!(lower.contains("\r\nretry-after: 2\r\n"), "{text}");
            assert!(lower.contains("\r\nratelimit-policy: \"default\";q=20;w=40\r\n"), "{text}");
            assert!(lower.contains("\r\nratelimit: \"default\";r=0;t=40\r\n"), "{text}");
            assert!(text.contains("\"type\":\"/problems/rate-limited\""), "{text}");
        }
    }
    assert!(receive(send(&running, get("/free", ""))).ends_with("free"));
}

fn behind_trusted_proxies_each_client_has_its_own_limit(choice: DriverChoice) {
    let by_plan = RateLimit::per_hour(1).name("plan").key_by(|parts| {
        parts.head.header("x-plan").map_or(RateLimitKey::exempt(), RateLimitKey::from_value)
    });
    let limit = RateLimit::per_hour(2).and(by_plan);
    let Some((running, _)) = start(choice, limit, true) else { return };
    let ask = |fields: &str| receive(send(&running, get("/", fields)))[9..12].to_owned();
    let one = "X-Forwarded-For: 2001:db8::1\r\n";
    let same = "X-Forwarded-For: 2001:db8::2\r\n";
    let other = "X-Forwarded-For: 192.0.2.1\r\n";
    assert_eq!([ask(one), ask(same), ask(one), ask(other)], ["200", "200", "429", "200"]);
    let third = |plan: &str| ask(&format!("X-Forwarded-For: 192.0.2.3\r\nX-Plan: {plan}\r\n"));
    assert_eq!([third("a"), third("a"), third("b"), third("c")], ["200", "429", "200", "429"]);
}

fn a_body_that_is_refused_does_not_disturb_the_next_request(choice: DriverChoice) {
    let Some((running, seconds)) = start(choice, RateLimit::per_second(1), false) else { return };
    let first = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
    let last = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 3\r\n\r\nbye";
    let mut peer = send(&running, format!("{first}{first}"));
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while text.matches("HTTP/1.1 ").count() < 2 || !text.ends_with('}') {
        let count = peer.read(&mut buffer).expect("the server responds");
        assert_ne!(count, 0, "{text}");
        text.push_str(std::str::from_utf8(&buffer[..count]).expect("text"));
    }
    assert!(text.starts_with("HTTP/1.1 200") && text.contains("HTTP/1.1 429"), "{text}");
    seconds.fetch_add(1, Relaxed);
    peer.write_all(last.as_bytes()).expect("the connection is open");
    let text = receive(peer);
    assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("\r\n\r\n3"), "{text}");
}
