use crate::harness::{BODY_BYTES_MAX, Host};
use peregrine_axum_examples::form::app;

const FORM: &str = "application/x-www-form-urlencoded";

pub(crate) async fn a_form_is_read(host: Host) {
    let server = host.serve(app());
    assert!(server.get("/").await.text().contains("<form method=post>"));
    for (sent, text) in [
        ("name=Ada&email=ada%40example.org", "Ada <ada@example.org>"),
        ("email=&name=Grace+Hopper", "Grace Hopper <no address>"),
        ("name=%C3%89mile", "Émile <no address>"),
        ("name=", " <no address>"),
    ] {
        assert_eq!(server.post("/", FORM, sent).await.brief(), (200, text));
    }
    server.end().await;
}

pub(crate) async fn what_is_no_form_is_refused(host: Host) {
    let server = host.serve(app());
    let refused = server.post("/", "application/json", "name=Ada").await;
    let text = "Form requests must have `Content-Type: application/x-www-form-urlencoded`";
    assert_eq!(refused.brief(), (415, text));
    let refused = server.post("/", FORM, "email=a").await;
    assert_eq!(refused.status, 422);
    assert!(refused.text().contains("missing field `name`"), "{refused:?}");
    // Only one byte too many: with a longer body, unread bytes would remain when the server closes,
    // and the response might be lost.
    let large = format!("name={}", "x".repeat(BODY_BYTES_MAX - 4));
    assert_eq!(server.post("/", FORM, large).await.status, 413);
    server.end().await;
}
