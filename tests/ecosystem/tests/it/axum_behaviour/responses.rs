//! How return values of handlers become responses.

use crate::axum_behaviour::cases;
use crate::axum_behaviour::compare::Case;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{AppendHeaders, Html, IntoResponse, NoContent, Redirect, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};

cases! {
    text_bytes_and_documents_have_their_media_types,
    a_status_alone_has_no_body,
    a_204_has_neither_body_nor_length,
    a_304_has_no_body,
    a_205_has_an_empty_body,
    a_status_without_a_standard_meaning_is_sent,
    tuples_set_status_and_fields,
    of_a_field_that_is_set_twice_one_value_is_sent,
    fields_may_be_appended,
    cookies_stay_fields_of_their_own,
    an_error_is_an_answer_too,
    redirects_say_where_and_how,
    a_length_that_the_handler_set_stays,
    a_body_with_a_204_is_not_sent,
    a_date_of_the_handler_s_own_stays,
    fields_with_bytes_that_are_no_text_pass,
    extensions_of_a_response_are_not_sent,
    json_that_cannot_be_made_is_a_500,
    large_answers_are_whole,
    an_empty_body_has_a_length_of_nothing,
}

fn text_bytes_and_documents_have_their_media_types(case: &mut Case) {
    let router = Router::new()
        .route("/text", get("text"))
        .route("/string", get(async || String::from("string")))
        .route("/bytes", get(async || Bytes::from_static(b"bytes")))
        .route("/list", get(async || vec![b'l', b'i', b's', b't']))
        .route("/html", get(async || Html("<p>html</p>")))
        .route("/json", get(async || Json([1, 2])))
        .route("/body", get(async || Body::from("body")));
    case.serve(router);
    case.get("/text").is(200, "text").has("content-type", "text/plain; charset=utf-8");
    case.get("/string").is(200, "string").has("content-length", "6");
    case.get("/bytes").is(200, "bytes").has("content-type", "application/octet-stream");
    case.get("/list").is(200, "list").has("content-type", "application/octet-stream");
    case.get("/html").is(200, "<p>html</p>").has("content-type", "text/html; charset=utf-8");
    case.get("/json").is(200, "[1,2]").has("content-type", "application/json");
    case.get("/body").is(200, "body").lacks("content-type").has("content-length", "4");
}

fn a_status_alone_has_no_body(case: &mut Case) {
    case.serve(
        Router::new().route("/", get(StatusCode::ACCEPTED)).route("/unit", get(async || ())),
    );
    case.get("/").is(202, "").has("content-length", "0").lacks("content-type");
    case.get("/unit").is(200, "").has("content-length", "0");
}

fn a_204_has_neither_body_nor_length(case: &mut Case) {
    let router = Router::new().route("/", get(StatusCode::NO_CONTENT));
    case.serve(router.route("/unit", get(async || NoContent)));
    for path in ["/", "/unit"] {
        case.get(path).is(204, "").lacks("content-length").lacks("transfer-encoding");
    }
}

fn a_304_has_no_body(case: &mut Case) {
    let answer = (StatusCode::NOT_MODIFIED, [("etag", "\"x\"")]);
    case.serve(Router::new().route("/", get(answer)));
    case.get("/").is(304, "").has("etag", "\"x\"").lacks("transfer-encoding");
}

fn a_205_has_an_empty_body(case: &mut Case) {
    case.serve(Router::new().route("/", get(StatusCode::RESET_CONTENT)));
    case.get("/").is(205, "").has("content-length", "0");
}

fn a_status_without_a_standard_meaning_is_sent(case: &mut Case) {
    let status = StatusCode::from_u16(799).expect("three digits");
    case.serve(Router::new().route("/", get((status, "own"))));
    case.get("/").is(799, "own");
}

fn tuples_set_status_and_fields(case: &mut Case) {
    let mut map = HeaderMap::new();
    map.insert("x-map", HeaderValue::from_static("1"));
    let all = (StatusCode::CREATED, map, [("x-array", "2")], Extension(1), "all");
    case.serve(Router::new().route("/", get(all)).route("/f", get([("x-only", "fields")])));
    case.get("/").is(201, "all").has("x-map", "1").has("x-array", "2");
    case.get("/f").is(200, "").has("x-only", "fields");
}

fn of_a_field_that_is_set_twice_one_value_is_sent(case: &mut Case) {
    let answer = ([(header::CONTENT_TYPE, "text/x")], [("x-a", "1")], [("x-a", "2")], Html("x"));
    case.serve(Router::new().route("/", get(answer)));
    case.get("/").is(200, "x").has("content-type", "text/x").has("x-a", "2");
}

fn fields_may_be_appended(case: &mut Case) {
    let answer = (AppendHeaders([("x-a", "1"), ("x-a", "2")]), "x");
    case.serve(Router::new().route("/", get(answer)));
    case.get("/").is(200, "x").has("x-a", "1");
}

fn cookies_stay_fields_of_their_own(case: &mut Case) {
    let cookies = AppendHeaders([(header::SET_COOKIE, "a=1"), (header::SET_COOKIE, "b=2; Path=/")]);
    case.serve(Router::new().route("/", get((cookies, "x"))));
    case.get("/").is(200, "x").has("set-cookie", "a=1");
}

fn an_error_is_an_answer_too(case: &mut Case) {
    async fn fails(is_known: bool) -> Result<&'static str, (StatusCode, String)> {
        if is_known { Ok("well") } else { Err((StatusCode::BAD_GATEWAY, "broken".to_owned())) }
    }
    let router = Router::new().route("/well", get(async || fails(true).await));
    case.serve(router.route("/broken", get(async || fails(false).await)));
    case.get("/well").is(200, "well");
    case.get("/broken").is(502, "broken");
}

fn redirects_say_where_and_how(case: &mut Case) {
    let router = Router::new()
        .route("/to", get(async || Redirect::to("/a b")))
        .route("/temporary", get(async || Redirect::temporary("/x?y")))
        .route("/permanent", get(async || Redirect::permanent("https://a.example/")));
    case.serve(router);
    case.get("/to").is(303, "").has("location", "/a b");
    case.get("/temporary").is(307, "").has("location", "/x?y");
    case.get("/permanent").is(308, "").has("location", "https://a.example/");
}

fn a_length_that_the_handler_set_stays(case: &mut Case) {
    let handler = async || ([(header::CONTENT_LENGTH, "4")], Body::from("four")).into_response();
    case.serve(Router::new().route("/", get(handler)));
    case.get("/").is(200, "four").has("content-length", "4");
    case.head("/").is(200, "").has("content-length", "4");
}

fn a_body_with_a_204_is_not_sent(case: &mut Case) {
    case.serve(Router::new().route("/", get((StatusCode::NO_CONTENT, "not sent"))));
    // The reference sends the length of content that it does not send. RFC 9110 §8.6 forbids it.
    case.differs("content-length 8 is (none)");
    case.get("/").is(204, "");
}

fn a_date_of_the_handler_s_own_stays(case: &mut Case) {
    case.serve(Router::new().route("/", get(([(header::DATE, "a day")], "x"))));
    let dates = case.each(|server| {
        let text = server.talk("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        let lines = text.lines().filter(|line| line.to_ascii_lowercase().starts_with("date:"));
        lines.collect::<Vec<_>>().join("|")
    });
    assert_eq!(dates, "date: a day");
}

fn fields_with_bytes_that_are_no_text_pass(case: &mut Case) {
    let value = HeaderValue::from_bytes(b"\xe9t\xe9").expect("obs-text is allowed");
    case.serve(Router::new().route("/", get(async move || ([("x-old", value)], "x"))));
    let text = case.each(|server| {
        let text = server.talk("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        text.lines().find(|line| line.starts_with("x-old")).unwrap_or_default().to_owned()
    });
    assert_eq!(text, "x-old: \u{fffd}t\u{fffd}");
}

fn extensions_of_a_response_are_not_sent(case: &mut Case) {
    #[derive(Clone)]
    struct Secret;
    case.serve(Router::new().route("/", get(async || (Extension(Secret), "x"))));
    case.get("/").is(200, "x");
}

fn json_that_cannot_be_made_is_a_500(case: &mut Case) {
    use std::collections::BTreeMap;
    let map = BTreeMap::from([((1, 2), 3)]);
    case.serve(Router::new().route("/", get(async move || Json(map))));
    case.get("/").says(500, "key must be a string");
}

fn large_answers_are_whole(case: &mut Case) {
    let text = "0123456789abcdef".repeat(200_000);
    let expected = text.clone();
    let router = Router::new().route("/", get(async move || text.clone()));
    case.serve(router.layer(axum::middleware::map_response(async |mut response: Response| {
        response.headers_mut().insert(HeaderName::from_static("x-seen"), 1.into());
        response
    })));
    let reply = case.get("/");
    assert!(reply.text() == expected, "the content is complete");
    reply.has("content-length", "3200000").has("x-seen", "1");
}

fn an_empty_body_has_a_length_of_nothing(case: &mut Case) {
    case.serve(Router::new().route("/", get(async || Body::empty())).route("/s", get("")));
    case.get("/").is(200, "").has("content-length", "0");
    case.get("/s")
        .is(200, "")
        .has("content-length", "0")
        .has("content-type", "text/plain; charset=utf-8");
}
