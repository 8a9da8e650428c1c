use crate::harness::{BODY_BYTES_MAX, Host, answer};
use peregrine_axum_examples::todos::{app, app_with_limit};
use reqwest::Method;
use std::time::Duration;

const JSON: &str = "application/json";

pub(crate) async fn a_todo_lives_from_post_to_delete(host: Host) {
    let server = host.serve(app());
    assert_eq!(server.get("/todos").await.brief(), (200, "[]"));
    let made = server.post("/todos", JSON, r#"{"text":"fly"}"#).await;
    let fly = r#"{"id":1,"text":"fly","done":false}"#;
    assert_eq!(made.brief(), (201, fly));
    assert_eq!(made.field("content-type"), Some(JSON));
    assert_eq!(made.field("content-length"), Some("34"));

    let change = |path: &str, body: &'static str| {
        answer(server.request(Method::PATCH, path).header("content-type", JSON).body(body))
    };
    let done = change("/todos/1", r#"{"done":true}"#).await;
    assert_eq!(done.brief(), (200, r#"{"id":1,"text":"fly","done":true}"#));
    let renamed = change("/todos/1", r#"{"text":"land"}"#).await;
    assert_eq!(renamed.brief(), (200, r#"{"id":1,"text":"land","done":true}"#));
    assert_eq!(change("/todos/2", "{}").await.brief(), (404, ""));

    let remove = || answer(server.request(Method::DELETE, "/todos/1"));
    let removed = remove().await;
    assert_eq!((removed.brief(), removed.field("content-length")), ((204, ""), None));
    assert_eq!(remove().await.brief(), (404, ""));
    assert_eq!(server.get("/todos").await.brief(), (200, "[]"));
    server.end().await;
}

pub(crate) async fn a_page_of_todos_is_a_part_of_them(host: Host) {
    let server = host.serve(app());
    for number in 1..=9 {
        let made = server.post("/todos", JSON, format!(r#"{{"text":"{number}"}}"#)).await;
        assert_eq!(made.status, 201);
    }
    let ids = async |query: &str| {
        let text = server.get(&format!("/todos{query}")).await.text().to_owned();
        let todos: serde_json::Value = serde_json::from_str(&text).expect("valid JSON");
        let todos = todos.as_array().expect("a list").clone();
        todos.iter().filter_map(|todo| todo["id"].as_u64()).collect::<Vec<_>>()
    };
    assert_eq!(ids("").await, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(ids("?offset=6").await, [7, 8, 9]);
    assert_eq!(ids("?limit=2&offset=3").await, [4, 5]);
    assert_eq!(ids("?offset=20").await, [0; 0]);
    server.end().await;
}

pub(crate) async fn bodies_and_queries_that_cannot_be_read_are_refused(host: Host) {
    let server = host.serve(app());
    let refused = server.post("/todos", JSON, r#"{"text":"#).await;
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("EOF while parsing"), "{refused:?}");
    let refused = server.post("/todos", JSON, r#"{"txt":"fly"}"#).await;
    assert_eq!(refused.status, 422);
    assert!(refused.text().contains("missing field `text`"), "{refused:?}");
    let refused = server.post("/todos", "text/plain", r#"{"text":"fly"}"#).await;
    assert_eq!(refused.status, 415);
    let refused = server.get("/todos?limit=few").await;
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("limit"), "{refused:?}");
    let refused = answer(server.request(Method::PUT, "/todos")).await;
    assert_eq!((refused.brief(), refused.field("allow")), ((405, ""), Some("GET,HEAD,POST")));
    // Only one byte over axum's limit: with a longer body, unread bytes would remain when the
    // server closes, and the response might be lost.
    let text = format!(r#"{{"text":"{}"}}"#, "x".repeat(BODY_BYTES_MAX - 10));
    assert_eq!(text.len(), BODY_BYTES_MAX + 1);
    assert_eq!(server.post("/todos", JSON, text).await.status, 413);
    server.end().await;
}

pub(crate) async fn what_takes_too_long_is_answered_by_the_handler_of_errors(host: Host) {
    let server = host.serve(app_with_limit(Duration::from_millis(200)));
    for text in [r#"{"text":"one"}"#, r#"{"text":"two"}"#] {
        assert_eq!(server.post("/todos", JSON, text).await.status, 201);
    }
    let short = server.get("/todos/export?pause_ms=0").await;
    assert_eq!(short.brief(), (200, "one\ntwo\n"));
    let long = server.get("/todos/export?pause_ms=600000").await;
    assert_eq!(long.brief(), (408, "The request timed out."));
    // The server still responds.
    assert_eq!(server.get("/todos/export?pause_ms=1").await.brief(), (200, "one\ntwo\n"));
    server.end().await;
}
