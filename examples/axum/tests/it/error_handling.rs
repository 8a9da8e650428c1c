use crate::harness::Host;
use crate::log;
use peregrine_axum_examples::error_handling::app;

const JSON: &str = "application/json";

pub(crate) async fn an_error_is_told_to_the_client_and_more_of_it_to_the_log(host: Host) {
    log::begin();
    let server = host.serve(app());
    let path = format!("/birds?by={:?}", host.engine);
    for id in ["1", "2"] {
        let made = server.post(&path, JSON, r#"{"name":"wren"}"#).await;
        assert_eq!(made.brief(), (201, id));
    }
    let full = server.post(&path, JSON, r#"{"name":"wren"}"#).await;
    assert_eq!(full.brief(), (500, r#"{"message":"Something failed."}"#));
    assert_eq!(server.get("/birds/2").await.brief(), (200, r#"{"name":"wren"}"#));
    let unknown = server.get("/birds/9").await;
    assert_eq!(unknown.brief(), (404, r#"{"message":"There is no bird 9."}"#));
    let wrong = server.get("/birds/x").await;
    assert_eq!(wrong.brief(), (400, r#"{"message":"invalid digit found in string"}"#));
    let lines = log::lines(&format!("target={path} "));
    assert_eq!(lines, [format!("ERROR a handler failed target={path} error=Full")]);
    server.end().await;
}

pub(crate) async fn what_an_extractor_refuses_is_an_error_like_others(host: Host) {
    let server = host.serve(app());
    let refused = server.post("/birds", JSON, "{").await;
    assert_eq!((refused.status.as_u16(), refused.field("content-type")), (400, Some(JSON)));
    assert!(refused.text().starts_with(r#"{"message":"Failed to parse"#), "{refused:?}");
    let refused = server.post("/birds", "text/plain", "wren").await;
    assert_eq!((refused.status.as_u16(), refused.field("content-type")), (415, Some(JSON)));
    let refused = server.post("/birds", JSON, "{}").await;
    assert_eq!(refused.status, 422);
    assert!(refused.text().contains("missing field `name`"), "{refused:?}");
    server.end().await;
}
