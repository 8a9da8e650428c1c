use crate::harness::{Host, answer};
use futures_util::future::join_all;
use peregrine_axum_examples::request_id::app;
use reqwest::Method;

pub(crate) async fn a_request_keeps_its_number_or_is_given_one(host: Host) {
    let server = host.serve(app());
    let first = server.get("/").await;
    assert_eq!(
        (first.brief(), first.field("x-request-id")),
        ((200, "request-1"), Some("request-1"))
    );
    let own = server.request(Method::GET, "/").header("x-request-id", "mine");
    let own = answer(own).await;
    assert_eq!((own.brief(), own.field("x-request-id")), ((200, "mine"), Some("mine")));
    assert_eq!(server.get("/nowhere").await.brief(), (404, ""));
    server.end().await;
}

pub(crate) async fn no_number_is_given_twice(host: Host) {
    let server = host.serve(app());
    let server_ = &server;
    let mut ids = join_all((0..40).map(async |_| server_.get("/").await.text().to_owned())).await;
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 40);
    server.end().await;
}
