use crate::harness::Host;
use peregrine_axum_examples::customize_path_rejection::app;

pub(crate) async fn parameters_are_decoded(host: Host) {
    let server = host.serve(app());
    for (path, flock) in [("a", "a"), ("a%2Fb", "a/b"), ("%C3%A9t%C3%A9", "été"), ("a+b", "a+b")]
    {
        let found = server.get(&format!("/flocks/{path}/birds/7")).await;
        let text = format!(r#"{{"flock":"{flock}","bird":7}}"#);
        assert_eq!(found.brief(), (200, text.as_str()));
    }
    server.end().await;
}

pub(crate) async fn what_cannot_be_read_is_named(host: Host) {
    let server = host.serve(app());
    let refused = server.get("/flocks/a/birds/x").await;
    assert_eq!(
        (refused.status.as_u16(), refused.field("content-type")),
        (400, Some("application/json"))
    );
    let text = r#"{"message":"Cannot parse `bird` with value `x` to a `u32`","parameter":"bird"}"#;
    assert_eq!(refused.text(), text);
    let refused = server.get("/flocks/%FF/birds/7").await;
    let text = r#"{"message":"Invalid UTF-8 in `flock`","parameter":"flock"}"#;
    assert_eq!(refused.brief(), (400, text));
    server.end().await;
}
