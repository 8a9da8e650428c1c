//! Large in-memory responses that the application shares.

use super::{SHORT, begin, begin_with};
use crate::server::bench::Bench;
use crate::server::cases::limits;
use crate::server::client::Way;
use crate::server::shared::content;
use peregrine::Limits;
use std::time::Duration;

/// The size of a large response: more than all buffers hold, or as much as a simulation can handle.
fn large<B: Bench>(bench: &B) -> usize {
    if bench.is_virtual() { 300_000 } else { 5_000_001 }
}

/// Shared content arrives byte for byte, whatever its size and framing, and so do the responses
/// behind it.
pub async fn shared_content_arrives_complete<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let site = begin(bench, way);
    let mut client = site.client().await;
    let largest = large(bench);
    for length in [1_000, 16_383, 16_384, 16_385, 65_536, 65_537, 200_000, largest] {
        let paths = [
            format!("/shared/{length}"),
            format!("/static/{length}"),
            format!("/frames/1/{length}"),
            format!("/sized/1/{length}"),
            format!("/mixed/{length}"),
        ];
        let requests: Vec<_> = paths.iter().map(|path| client.get(path)).collect();
        let small = client.get("/numbers/8");
        for (id, path) in requests.into_iter().zip(paths) {
            let response = client.answer(id).await;
            assert!(response.body == content(length), "{path}: {} bytes", response.body.len());
        }
        assert_eq!(client.answer(small).await.text(), "8");
    }
    for (count, length) in [(20, 15_000), (18, 16_384), (9, 33_000), (3, 100_000)] {
        for path in [format!("/frames/{count}/{length}"), format!("/sized/{count}/{length}")] {
            let id = client.get(&path);
            let response = client.answer(id).await;
            assert!(response.body == content(count * length), "{path}: {}", response.body.len());
        }
    }
    client.expect_alive().await;
    client.close().await;
    assert_eq!(site.end().await.endings(), []);
}

/// A response to HEAD has no content, however large that of GET is.
pub async fn shared_content_is_not_sent_to_head<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let site = begin(bench, way);
    let mut client = site.client().await;
    for path in ["/shared/20000", "/static/300000", "/sized/2/70000", "/frames/2/70000"] {
        let id = client.ask("HEAD", path, &[]);
        let response = client.answer(id).await;
        assert_eq!((response.status(), response.body.len()), (200, 0), "{path}");
    }
    client.expect_alive().await;
    client.close().await;
    assert_eq!(site.end().await.endings(), []);
}

/// Many clients get the same bytes concurrently, fast and slow ones, and some of them disconnect.
pub async fn shared_content_goes_to_many_clients_concurrently<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let site = begin(bench, way);
    let largest = large(bench);
    let mut clients = Vec::new();
    for number in 0..6 {
        let mut client = site.client().await;
        let id = client.get(&format!("/shared/{}", largest - number));
        clients.push((client, id, largest - number));
    }
    bench.sleep(Duration::from_millis(100)).await;
    for (number, (mut client, id, length)) in clients.into_iter().enumerate() {
        if number % 3 == 1 {
            client.head(id).await;
            client.break_off();
            continue;
        }
        bench.sleep(Duration::from_millis(20)).await;
        let response = client.answer(id).await;
        assert!(response.body == content(length), "{} of {length}", response.body.len());
        client.expect_alive().await;
        client.close().await;
    }
    site.end().await;
}

/// An endless stream of large pieces is produced only a little faster than the peer reads it.
pub async fn an_endless_stream_of_large_pieces_waits_for_its_reader<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let site = begin_with(bench, way, Limits { transfer_rate_grace: 2 * SHORT, ..limits() });
    let shared = &site.shared;
    let mut client = site.client().await;
    client.take_no_more();
    let id = client.get("/endless-frames/100000");
    client.head(id).await;
    client.wait_until(bench, "the stream was dropped", || shared.dropped.get() == 1).await;
    let bytes_max = if bench.is_virtual() { 6 * 100_000 } else { 32 << 20 };
    assert!(shared.produced.get() <= bytes_max, "{} bytes were produced", shared.produced.get());
    client.close().await;
    site.end().await;
}
