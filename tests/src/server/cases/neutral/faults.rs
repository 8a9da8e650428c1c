//! Handlers that panic, streams that fail, and peers that disconnect.

use super::{PROBLEM, SHORT, begin};
use crate::server::bench::Bench;
use crate::server::client::{Length, Way};

/// A panic gets a 500 and affects no other request. HTTP/1.1 ends the connection.
pub async fn a_panic_is_a_500<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way);
    let mut other_client = site.client().await;
    let waiting = other_client.get("/wait");
    other_client.wait_until(bench, "the handler waits", || site.shared.started.get() == 1).await;
    for path in ["/panic", "/panic-late", "/panic-eager", "/panic-guard", "POST /panic-guard"] {
        let mut client = site.client().await;
        let hello = client.get("/hello");
        let id = match path.strip_prefix("POST ") {
            Some(path) => client.post(path, b"content").await,
            None => client.get(path),
        };
        assert_eq!(client.answer(hello).await.text(), "hello");
        let response = client.answer(id).await;
        assert_eq!((response.status(), response.field("content-type")), (500, PROBLEM));
        assert!(
            !response.text().contains("purpose"),
            "the panic message is not exposed: {response:?}"
        );
        if way.differs(true, false) {
            client.expect_goodbye().await;
        } else {
            client.expect_alive().await;
        }
    }
    site.shared.open(1);
    assert_eq!(other_client.answer(waiting).await.text(), "waited");
    other_client.expect_alive().await;
    other_client.close().await;
    assert_eq!(site.end().await.ended("handler-panicked"), way.differs(5, 0));
}

/// A response whose body fails or panics is truncated, so that it cannot be taken for a complete
/// one: HTTP/1.1 closes the connection, HTTP/2 resets the stream.
pub async fn a_failed_response_is_truncated<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way);
    for path in ["/broken", "/stream-panics"] {
        let mut client = site.client().await;
        let hello = client.get("/hello");
        let id = client.get(path);
        assert_eq!(client.answer(hello).await.text(), "hello");
        let response = client.answer(id).await;
        assert!(!response.is_complete && response.status() <= 200, "{response:?}");
        assert_eq!(response.reset, way.differs(None, Some(2)), "{path}");
        if way.differs(true, false) {
            client.ended().await;
        } else {
            client.expect_alive().await;
        }
    }
    site.end().await;
}

/// Panics in destructors and size hints do not affect responses already produced.
pub async fn a_panic_in_a_destructor_is_contained<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way);
    for (path, status, text) in [
        ("/panic-in-drop", 503, None),
        ("/stream-panics-in-drop", 200, Some("a piece\nanother\n")),
        ("/size-hint-panics", 200, Some("")),
    ] {
        let mut client = site.client().await;
        let hello = client.get("/hello");
        let id = client.get(path);
        assert_eq!(client.answer(hello).await.text(), "hello");
        let response = client.answer(id).await;
        assert_eq!((response.status(), response.is_complete), (status, true), "{path}");
        assert!(text.is_none_or(|text| response.text() == text), "{path}: {response:?}");
        client.close().await;
        site.client().await.expect_alive().await;
    }
    let outcome = site.end().await;
    assert_eq!(outcome.snapshot.closed.values().sum::<u64>(), outcome.snapshot.accepted);
}

/// When a peer cancels an exchange, resets the connection, or closes it, its handlers, streams and
/// uploads end.
pub async fn unneeded_work_is_cancelled<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way);
    let shared = &site.shared;
    for ending in ["cancel", "reset", "close"] {
        for path in ["/wait", "/gated/3", "/count"] {
            let (started, dropped) = (shared.started.get(), shared.dropped.get());
            let mut client = site.client().await;
            let id = if path == "/count" {
                client.begin("POST", path, &[], Length::Declared(10))
            } else {
                client.get(path)
            };
            if path == "/count" {
                client.part(id, b"hello").await;
            }
            client
                .wait_until(bench, "the handler has started", || shared.started.get() > started)
                .await;
            match ending {
                "cancel" => client.cancel(id),
                "reset" => client.break_off(),
                _ => drop(client),
            }
            bench.wait_until("the handler is dropped", || shared.dropped.get() > dropped).await;
        }
    }
    assert_eq!(shared.finished.get(), 0);
    site.end().await;
}

/// A handler marked to run to completion does so although its client has disconnected.
pub async fn a_run_to_completion_handler_outlives_its_peer<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way);
    let shared = &site.shared;
    for is_reset in [false, true] {
        let (started, finished) = (shared.started.get(), shared.finished.get());
        let mut client = site.client().await;
        let id = client.get("/wait-to-end");
        client.wait_until(bench, "the handler waits", || shared.started.get() > started).await;
        if is_reset {
            client.break_off()
        } else {
            client.cancel(id)
        }
        bench.sleep(SHORT / 7).await;
        assert_eq!((shared.dropped.get(), shared.finished.get()), (0, finished));
        shared.open(1);
        bench.wait_until("the handler has finished", || shared.finished.get() > finished).await;
    }
    site.end().await;
}

/// A handler marked to run to completion gets an error from its body when its peer disconnects, and
/// its route's timeout still applies.
pub async fn a_run_to_completion_handler_is_notified_when_its_peer_disconnects<B: Bench>(
    bench: &B,
    way: Way,
) {
    let site = begin(bench, way);
    let shared = &site.shared;
    for (round, is_reset) in [false, true].into_iter().enumerate() {
        let mut client = site.client().await;
        let id = client.begin("POST", "/read-to-end", &[], Length::Declared(100));
        client.part(id, b"begin").await;
        client
            .wait_until(bench, "the handler reads", || shared.consumed.get() == 5 * (round + 1))
            .await;
        if is_reset {
            client.break_off()
        } else {
            client.cancel(id)
        }
        bench.wait_until("the handler has finished", || shared.finished.get() == round + 1).await;
        let (started, dropped) = (shared.started.get(), shared.dropped.get());
        let mut client = site.client().await;
        let id = client.get("/wait-to-end-a-moment");
        client.wait_until(bench, "the handler waits", || shared.started.get() > started).await;
        if is_reset {
            client.break_off()
        } else {
            client.cancel(id)
        }
        bench.wait_until("the timeout drops the handler", || shared.dropped.get() > dropped).await;
    }
    site.end().await;
}

/// A task that reads the body after the response gets an error when the peer cancels.
pub async fn a_late_reader_gets_an_error_when_its_peer_disconnects<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way);
    let mut reader = site.client().await;
    for is_reset in [false, true] {
        let mut client = site.client().await;
        let id = client.begin("POST", "/keep", &[], Length::Declared(500));
        client.part(id, b"some").await;
        assert_eq!(client.answer(id).await.text(), "kept");
        if is_reset {
            client.break_off()
        } else {
            client.cancel(id)
        }
        let id = reader.get("/read-kept");
        assert_eq!(reader.answer(id).await.text(), "Disconnected");
    }
    reader.close().await;
    site.end().await;
}
