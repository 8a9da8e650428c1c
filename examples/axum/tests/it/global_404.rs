use crate::harness::{Host, answer};
use peregrine_axum_examples::global_404::app;
use reqwest::Method;

pub(crate) async fn every_path_that_is_not_there_has_one_answer(host: Host) {
    let server = host.serve(app());
    assert_eq!(server.get("/").await.brief(), (200, "home"));
    assert_eq!(server.get("/birds").await.brief(), (200, "all"));
    for path in ["/birds/a/b", "/birds/", "/nowhere?a=b", "//", "/%7E"] {
        let unknown = server.get(path).await;
        assert_eq!(unknown.brief(), (404, format!("There is nothing at {path}.").as_str()));
    }
    server.end().await;
}

pub(crate) async fn every_method_that_is_not_there_has_one_answer(host: Host) {
    let server = host.serve(app());
    for (method, path) in
        [(Method::PUT, "/"), (Method::GET, "/birds/wren"), (Method::PATCH, "/birds")]
    {
        let refused = answer(server.request(method.clone(), path)).await;
        let text = format!("{path} does not allow {method}.");
        assert_eq!(refused.brief(), (405, text.as_str()));
        assert!(refused.field("allow").is_some(), "{refused:?}");
    }
    let own = Method::from_bytes(b"SING").expect("a valid token");
    let refused = answer(server.request(own, "/")).await;
    assert_eq!(refused.brief(), (405, "/ does not allow SING."));
    server.end().await;
}
