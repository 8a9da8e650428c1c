use crate::harness::{Host, answer};
use peregrine_axum_examples::handle_head_request::app;
use reqwest::Method;

pub(crate) async fn head_says_what_get_would(host: Host) {
    let server = host.serve(app());
    let head = |path| answer(server.request(Method::HEAD, path));
    let implicit = head("/implicit").await;
    assert_eq!((implicit.brief(), implicit.field("content-length")), ((200, ""), Some("14")));
    let length = head("/length").await;
    assert_eq!((length.brief(), length.field("content-length")), ((200, ""), Some("100000")));
    assert_eq!(server.get("/length").await.body.len(), 100_000);
    server.end().await;
}

pub(crate) async fn a_handler_may_tell_them_apart(host: Host) {
    let server = host.serve(app());
    let got = server.get("/explicit").await;
    assert_eq!((got.brief(), got.field("x-answer")), ((200, "what took long"), Some("of GET")));
    let headed = answer(server.request(Method::HEAD, "/explicit")).await;
    assert_eq!((headed.brief(), headed.field("x-answer")), ((200, ""), Some("of HEAD")));
    // The client does not mistake the next response for the omitted content.
    let mut raw = server.connect().await;
    for path in ["/implicit", "/explicit", "/length"] {
        raw.send(format!("HEAD {path} HTTP/1.1\r\nHost: a\r\n\r\n")).await;
        let text = raw.read_until("\r\n\r\n").await;
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    }
    raw.send("GET /implicit HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(raw.rest().await.ends_with("\r\n\r\nthe whole text"));
    server.end().await;
}
