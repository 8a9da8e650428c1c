use crate::harness::{Answer, Host, Served, answer};
use futures_util::stream::{self, FuturesUnordered, StreamExt};
use peregrine_axum_examples::key_value_store::{TOKEN, VALUE_BYTES_MAX, app, app_with_limits};
use reqwest::{Body, Method};
use std::convert::Infallible;
use std::time::Duration;

async fn put(server: &Served, key: &str, value: impl Into<Body>) -> Answer {
    answer(server.request(Method::PUT, &format!("/values/{key}")).body(value)).await
}

pub(crate) async fn values_are_kept_and_compressed_on_request(host: Host) {
    let server = host.serve(app());
    assert_eq!(server.get("/values/wren").await.brief(), (404, ""));
    let song = "la ".repeat(1_000);
    assert_eq!(put(&server, "wren", song.clone()).await.brief(), (200, ""));
    assert_eq!(put(&server, "empty", "").await.brief(), (200, ""));
    assert_eq!(server.get("/keys").await.brief(), (200, "empty\nwren\n"));
    let plain = server.get("/values/wren").await;
    assert_eq!(plain.brief(), (200, song.as_str()));
    assert_eq!(plain.field("content-encoding"), None);
    assert_eq!(plain.field("vary"), Some("accept-encoding"));
    let request = server.request(Method::GET, "/values/wren").header("accept-encoding", "gzip");
    let packed = answer(request).await;
    assert_eq!((packed.status.as_u16(), packed.field("content-encoding")), (200, Some("gzip")));
    assert!(packed.body.starts_with(&[0x1f, 0x8b]) && packed.body.len() < 200, "{packed:?}");
    server.end().await;
}

pub(crate) async fn a_value_that_is_too_large_is_refused_with_and_without_a_length(host: Host) {
    let server = host.serve(app());
    let most = vec![b'x'; VALUE_BYTES_MAX];
    assert_eq!(put(&server, "most", most).await.status, 200);
    assert_eq!(server.get("/values/most").await.body.len(), VALUE_BYTES_MAX);
    // A value with a Content-Length is rejected before it is sent, and the client may fail to send
    // it, so only the head is checked.
    let mut raw = server.connect().await;
    let length = VALUE_BYTES_MAX + 1;
    let head = format!("PUT /values/more HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
    raw.send(head).await;
    // RFC 9110 §15.5.14 uses another reason phrase than the `http` crate.
    let name = if host.engine.is_peregrine() { "Content" } else { "Payload" };
    assert_eq!(raw.read_until("\r\n").await, format!("HTTP/1.1 413 {name} Too Large\r\n"));
    drop(raw);
    // A value without a Content-Length is rejected when it exceeds the limit.
    let pieces = stream::iter(vec![Ok::<_, Infallible>(vec![b'x'; 64 * 1024]); 47]);
    assert_eq!(put(&server, "chunked", Body::wrap_stream(pieces)).await.status, 200);
    let endless = stream::repeat(()).map(|()| Ok::<_, Infallible>("x".repeat(16 * 1024)));
    let request = server.request(Method::PUT, "/values/endless").body(Body::wrap_stream(endless));
    // The server may close while the client is still sending, which the client may report as an
    // error.
    if let Ok(refused) = request.send().await {
        assert_eq!(refused.status(), 413);
    }
    assert_eq!(server.get("/keys").await.text(), "chunked\nmost\n");
    server.end().await;
}

pub(crate) async fn the_routes_of_the_operator_ask_for_a_token(host: Host) {
    let server = host.serve(app());
    for key in ["a", "b", "c"] {
        assert_eq!(put(&server, key, "1").await.status, 200);
    }
    let refused = answer(server.request(Method::DELETE, "/admin/keys")).await;
    assert_eq!((refused.brief(), refused.field("www-authenticate")), ((401, ""), Some("Bearer")));
    let wrong = server.request(Method::DELETE, "/admin/keys").bearer_auth("guess");
    assert_eq!(answer(wrong).await.status, 401);
    assert_eq!(server.get("/keys").await.text(), "a\nb\nc\n");
    let delete = |path| answer(server.request(Method::DELETE, path).bearer_auth(TOKEN));
    assert_eq!(delete("/admin/keys/b").await.status, 204);
    assert_eq!(delete("/admin/keys/b").await.status, 404);
    assert_eq!(server.get("/keys").await.text(), "a\nc\n");
    assert_eq!(delete("/admin/keys").await.status, 200);
    assert_eq!(server.get("/keys").await.text(), "");
    server.end().await;
}

pub(crate) async fn calls_too_many_are_shed_and_the_others_are_answered(host: Host) {
    let server = host.serve(app_with_limits(3, Duration::from_secs(600)));
    let calls = (0..5).map(|_| server.get("/values/late/awaited"));
    let mut answers = calls.collect::<FuturesUnordered<_>>();
    // The key has no value yet, so the requests that complete now were shed; the others hold
    // permits.
    for _ in 0..2 {
        let shed = answers.next().await.expect("five requests");
        assert_eq!(shed.brief(), (503, "Too many requests."));
    }
    assert_eq!(put(&server, "late", "here").await.status, 200);
    let served = answers.collect::<Vec<_>>().await;
    assert_eq!(served.iter().map(Answer::brief).collect::<Vec<_>>(), [(200, "here"); 3]);
    assert_eq!(server.get("/values/late/awaited").await.brief(), (200, "here"));
    server.end().await;
}

pub(crate) async fn a_call_that_takes_too_long_is_ended(host: Host) {
    let server = host.serve(app_with_limits(2, Duration::from_millis(100)));
    // More requests than the limit, one after the other: each releases its permit.
    for _ in 0..4 {
        let late = server.get("/values/never/awaited").await;
        assert_eq!(late.brief(), (408, "The request timed out."));
    }
    server.end().await;
}
