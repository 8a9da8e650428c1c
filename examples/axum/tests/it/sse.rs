use crate::harness::{Host, answer};
use peregrine_axum_examples::sse::app;
use reqwest::Method;

fn events(numbers: impl Iterator<Item = u64>, of: u64) -> String {
    let event = |number| {
        format!("id: {number}\nevent: tick\ndata: {{\"number\":{number},\"of\":{of}}}\n\n")
    };
    numbers.map(event).collect()
}

pub(crate) async fn events_come_in_order_and_end(host: Host) {
    let server = host.serve(app());
    let all = server.get("/ticks/5").await;
    assert_eq!(all.brief(), (200, events(1..=5, 5).as_str()));
    assert_eq!(all.field("content-type"), Some("text/event-stream"));
    assert_eq!(all.field("cache-control"), Some("no-cache"));
    let request = server.request(Method::GET, "/ticks/5").header("last-event-id", "3");
    assert_eq!(answer(request).await.text(), events(4..=5, 5));
    assert_eq!(server.get("/ticks/0").await.brief(), (200, ""));
    // A client with the highest possible id receives no events, and the number does not overflow.
    let last = u64::MAX.to_string();
    let request = server.request(Method::GET, "/ticks/5").header("last-event-id", last);
    assert_eq!(answer(request).await.brief(), (200, ""));
    server.end().await;
}

pub(crate) async fn each_event_comes_when_it_is_made(host: Host) {
    let server = host.serve(app());
    let mut raw = server.connect().await;
    // A client that reads event by event would wait forever if the server buffered them.
    raw.send("GET /ticks/1000000 HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let head = raw.read_until("\r\n\r\n").await;
    assert!(head.contains("transfer-encoding: chunked\r\n"), "{head}");
    for number in 1..=5 {
        let text = raw.read_until("\n\n").await;
        assert!(text.contains(&format!("id: {number}\n")), "{text}");
    }
    drop(raw);
    server.end().await;
}

pub(crate) async fn a_stream_without_events_shows_that_it_lives(host: Host) {
    let server = host.serve(app());
    let mut raw = server.connect().await;
    raw.send("GET /quiet HTTP/1.1\r\nHost: a\r\n\r\n").await;
    for _ in 0..5 {
        raw.read_until(": still here\n\n").await;
    }
    drop(raw);
    server.end().await;
}
