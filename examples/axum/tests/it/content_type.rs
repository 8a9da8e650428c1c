use crate::harness::Host;
use peregrine_axum_examples::content_type::app;

pub(crate) async fn a_body_is_read_as_what_it_says_it_is(host: Host) {
    let server = host.serve(app());
    let json = server.post("/v1/birds", "application/json; charset=utf-8", r#"{"name":"wren"}"#);
    assert_eq!(json.await.brief(), (200, "wren by V1"));
    let form = server.post("/v2/birds", "application/x-www-form-urlencoded", "name=rook");
    assert_eq!(form.await.brief(), (200, "rook by V2"));
    let neither = server.post("/v2/birds", "text/plain", "name=rook").await;
    assert_eq!(neither.brief(), (415, ""));
    let unknown = server.post("/v3/birds", "application/json", "{}").await;
    assert_eq!(unknown.brief(), (404, "no such version"));
    server.end().await;
}
