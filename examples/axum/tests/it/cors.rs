use crate::harness::{Host, answer};
use peregrine_axum_examples::cors::{ORIGIN, app, page};
use reqwest::Method;

pub(crate) async fn one_other_origin_is_let_in(host: Host) {
    let server = host.serve(app());
    let asked = server.request(Method::GET, "/birds").header("origin", ORIGIN);
    let asked = answer(asked).await;
    assert_eq!(asked.brief(), (200, r#"["wren","rook"]"#));
    assert_eq!(asked.field("access-control-allow-origin"), Some(ORIGIN));
    let other = server.request(Method::GET, "/birds").header("origin", "http://elsewhere");
    // The browser enforces the origin, based on this field.
    assert_eq!(answer(other).await.field("access-control-allow-origin"), Some(ORIGIN));
    let page = host.serve(page());
    assert!(page.get("/").await.text().contains("fetch('http://localhost:3001/birds')"));
    page.end().await;
    server.end().await;
}

pub(crate) async fn what_a_browser_asks_before_is_answered(host: Host) {
    let server = host.serve(app());
    let before = server
        .request(Method::OPTIONS, "/birds")
        .header("origin", ORIGIN)
        .header("access-control-request-method", "PUT")
        .header("access-control-request-headers", "content-type");
    let before = answer(before).await;
    assert_eq!(before.brief(), (200, ""));
    for (name, value) in [
        ("access-control-allow-origin", ORIGIN),
        ("access-control-allow-methods", "GET,PUT"),
        ("access-control-allow-headers", "content-type"),
        ("access-control-max-age", "600"),
        ("content-length", "0"),
    ] {
        assert_eq!((name, before.field(name)), (name, Some(value)));
    }
    let vary: Vec<_> = before.fields.get_all("vary").iter().collect();
    assert!(!vary.is_empty(), "{before:?}");
    server.end().await;
}
