use crate::harness::{Host, answer};
use peregrine_axum_examples::hello_world::app;
use reqwest::Method;

pub(crate) async fn a_page_is_served(host: Host) {
    let server = host.serve(app());
    let page = server.get("/").await;
    assert_eq!(page.brief(), (200, "<h1>Hello, World!</h1>"));
    assert_eq!(page.field("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(server.get("/nowhere").await.brief(), (404, ""));
    let refused = answer(server.request(Method::POST, "/")).await;
    assert_eq!((refused.brief(), refused.field("allow")), ((405, ""), Some("GET,HEAD")));
    server.end().await;
}

pub(crate) async fn requests_that_are_sent_at_once_are_answered_in_order(host: Host) {
    let server = host.serve(app());
    let mut raw = server.connect().await;
    let (good, bad) = ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET /no HTTP/1.1\r\nHost: a\r\n\r\n");
    raw.send([good, bad, good, bad].concat()).await;
    raw.send("GET /no HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    let text = raw.rest().await;
    let found: Vec<_> = text.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
    assert_eq!(found, ["200", "404", "200", "404", "404"]);
    server.end().await;
}
