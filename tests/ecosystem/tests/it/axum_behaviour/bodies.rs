//! Request bodies: their framing, and their limits.

use crate::axum_behaviour::cases;
use crate::axum_behaviour::compare::Case;
use crate::axum_behaviour::reply::Ask;
use crate::axum_behaviour::streams::{Frames, body};
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Multipart, Request};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use axum::routing::post;
use axum::{Json, Router};
use http_body::Frame;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;
use tower_http::limit::RequestBodyLimitLayer;

cases! {
    bodies_are_limited_to_two_megabytes,
    the_limit_counts_for_chunks_too,
    the_limit_may_be_changed,
    the_limit_may_differ_from_route_to_route,
    the_limit_may_be_taken_away,
    the_limit_counts_for_forms_of_several_parts,
    a_body_that_is_not_extracted_has_no_limit,
    a_limit_of_tower_http_refuses_by_the_length,
    a_limit_of_tower_http_counts_chunks,
    a_body_of_chunks_is_put_together,
    a_body_is_echoed_in_its_own_framing,
    an_empty_body_and_none_are_both_empty,
    a_request_knows_the_length_of_its_body,
    trailers_of_a_request_are_given_to_its_reader,
    trailers_of_an_answer_are_sent,
    an_answer_with_a_length_has_no_trailers,
    a_body_may_be_limited_by_hand,
    a_layer_may_read_the_body_and_put_another_in_its_place,
    a_get_may_have_a_body,
    a_peer_that_waits_for_100_is_told_to_go_on,
    a_peer_that_waits_for_100_is_not_told_if_nobody_reads,
}

const LIMIT: usize = 2_097_152;

fn length() -> Router {
    Router::new().route("/", post(async |bytes: Bytes| bytes.len().to_string()))
}

fn bodies_are_limited_to_two_megabytes(case: &mut Case) {
    let router = Router::new()
        .route("/bytes", post(async |bytes: Bytes| bytes.len().to_string()))
        .route("/string", post(async |text: String| text.len().to_string()))
        .route("/json", post(async |Json(_): Json<Value>| "never"));
    case.serve(router);
    let (most, more) = (vec![b'a'; LIMIT], vec![b'a'; LIMIT + 1]);
    for path in ["/bytes", "/string"] {
        case.send(&Ask::new("POST", path).body(&most)).is(200, "2097152");
        case.send(&Ask::new("POST", path).body(&more)).says(413, "length limit exceeded");
    }
    let ask = Ask::new("POST", "/json").field("content-type", "application/json").body(&more);
    case.send(&ask).says(413, "length limit exceeded");
}

fn the_limit_counts_for_chunks_too(case: &mut Case) {
    case.serve(length());
    let (most, more) = (vec![b'a'; LIMIT], vec![b'a'; LIMIT + 1]);
    case.send(&Ask::new("POST", "/").chunked(most, 30_000)).is(200, "2097152");
    case.send(&Ask::new("POST", "/").chunked(more, 30_000)).says(413, "length limit exceeded");
}

fn the_limit_may_be_changed(case: &mut Case) {
    case.serve(length().layer(DefaultBodyLimit::max(2)));
    case.post("/", "ab").is(200, "2");
    case.post("/", "abc").says(413, "length limit exceeded");
    let larger = DefaultBodyLimit::max(LIMIT + 1);
    case.serve(length().layer(larger));
    case.send(&Ask::new("POST", "/").body(vec![b'a'; LIMIT + 1])).is(200, "2097153");
}

fn the_limit_may_differ_from_route_to_route(case: &mut Case) {
    let handler = || post(async |bytes: Bytes| bytes.len().to_string());
    let router = Router::new()
        .route("/2", handler().layer(DefaultBodyLimit::max(2)))
        .route("/9", handler().layer(DefaultBodyLimit::max(9)))
        .route("/default", handler());
    case.serve(router);
    case.post("/2", "abc").says(413, "");
    case.post("/9", "abc").is(200, "3");
    case.post("/9", "0123456789").says(413, "");
    case.post("/default", "0123456789").is(200, "10");
}

fn the_limit_may_be_taken_away(case: &mut Case) {
    case.serve(length().layer(DefaultBodyLimit::disable()));
    let body = vec![b'a'; 2 * LIMIT];
    case.send(&Ask::new("POST", "/").body(&body)).is(200, "4194304");
    case.send(&Ask::new("POST", "/").chunked(&body, 100_000)).is(200, "4194304");
}

fn the_limit_counts_for_forms_of_several_parts(case: &mut Case) {
    let handler = async |mut form: Multipart| -> axum::response::Result<String> {
        let mut length = 0;
        while let Some(part) = form.next_field().await? {
            length += part.bytes().await?.len();
        }
        Ok(length.to_string())
    };
    let router = Router::new().route("/", post(handler)).layer(DefaultBodyLimit::max(1024));
    case.serve(router);
    let form = |length: usize| {
        let content = "a".repeat(length);
        let part = "Content-Disposition: form-data; name=\"f\"";
        format!("--XX\r\n{part}\r\n\r\n{content}\r\n--XX--\r\n")
    };
    let kind = "multipart/form-data; boundary=XX";
    case.post_as(kind, "/", &form(500)).is(200, "500");
    case.post_as(kind, "/", &form(2000)).says(413, "");
}

fn a_body_that_is_not_extracted_has_no_limit(case: &mut Case) {
    let handler = async |body: Body| {
        let bytes = body.collect().await.map(|all| all.to_bytes().len());
        bytes.map_or_else(|error| error.to_string(), |length| length.to_string())
    };
    case.serve(Router::new().route("/", post(handler)));
    case.send(&Ask::new("POST", "/").body(vec![b'a'; LIMIT + 1000])).is(200, "2098152");
}

fn a_limit_of_tower_http_refuses_by_the_length(case: &mut Case) {
    case.serve(length().layer(RequestBodyLimitLayer::new(5)));
    case.post("/", "12345").is(200, "5");
    case.post("/", "123456").is(413, "length limit exceeded");
}

fn a_limit_of_tower_http_counts_chunks(case: &mut Case) {
    case.serve(length().layer(RequestBodyLimitLayer::new(5)));
    case.send(&Ask::new("POST", "/").chunked("12345", 2)).is(200, "5");
    case.send(&Ask::new("POST", "/").chunked("123456", 2)).says(413, "length limit exceeded");
}

fn a_body_of_chunks_is_put_together(case: &mut Case) {
    case.serve(Router::new().route("/", post(async |text: String| text)));
    case.send(&Ask::new("POST", "/").chunked("in several pieces", 4)).is(200, "in several pieces");
    case.send(&Ask::new("POST", "/").chunked("", 4)).is(200, "");
}

fn a_body_is_echoed_in_its_own_framing(case: &mut Case) {
    case.serve(Router::new().route("/", post(async |body: Body| body)));
    case.post("/", "hello").is(200, "hello").has("content-length", "5");
    let large = "a".repeat(100_000);
    case.post("/", &large).is(200, &large).has("content-length", "100000");
    // Peregrine knows the length of a body that arrived completely, so its echo has a length.
    case.differs("content-length (none) is 5");
    case.differs("transfer-encoding chunked is (none)");
    let reply = case.send(&Ask::new("POST", "/").chunked("hello", 2));
    reply.is(200, "hello").has("transfer-encoding", "chunked").lacks("content-length");
}

fn an_empty_body_and_none_are_both_empty(case: &mut Case) {
    case.serve(length());
    case.post("/", "").is(200, "0");
    case.ask("POST", "/").is(200, "0");
}

fn a_request_knows_the_length_of_its_body(case: &mut Case) {
    let handler = async |request: Request| {
        use http_body::Body as _;
        let hint = request.body().size_hint();
        let field = request.headers().get("content-length").is_some();
        format!("{:?} {} {field}", hint.exact(), request.body().is_end_stream())
    };
    case.serve(Router::new().route("/", post(handler)));
    case.post("/", "hello").is(200, "Some(5) false true");
    case.post("/", "").is(200, "Some(0) true true");
    case.ask("POST", "/").is(200, "Some(0) true false");
    // A longer body is still arriving, and so is one of unknown length.
    case.post("/", &"a".repeat(50_000)).is(200, "Some(50000) false true");
    let mut with_chunks = |size| {
        let ask = Ask::new("POST", "/").chunked("a".repeat(50_000), size);
        case.send(&ask).is(200, "None false false");
    };
    with_chunks(50_000);
    with_chunks(1_000);
}

fn trailers_of_a_request_are_given_to_its_reader(case: &mut Case) {
    let handler = async |body: Body| {
        let Ok(all) = body.collect().await else { return "broken".to_owned() };
        let sum = all.trailers().and_then(|trailers| trailers.get("x-sum")).cloned();
        format!("{:?} {:?}", sum, all.to_bytes())
    };
    case.serve(Router::new().route("/", post(handler)));
    let text = case.each(|server| {
        let reply = server.talk(
            "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntrailer: x-sum\r\n\
             transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx-sum: 7\r\n\r\n",
        );
        reply.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned()
    });
    assert_eq!(text, r#"Some("7") b"abc""#);
}

fn with_trailers(length: Option<usize>) -> Response {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("7"));
    let frames = [Frame::data(Bytes::from_static(b"hello")), Frame::trailers(trailers)];
    let mut response =
        Response::new(Body::new(http_body_util::StreamBody::new(Frames::of(frames))));
    response.headers_mut().insert("trailer", HeaderValue::from_static("x-sum"));
    if let Some(length) = length {
        response.headers_mut().insert("content-length", length.into());
    }
    response
}

fn trailers_of_an_answer_are_sent(case: &mut Case) {
    case.serve(Router::new().route("/", post(async || with_trailers(None))));
    let ask = Ask::new("POST", "/").field("te", "trailers");
    case.send(&ask).is(200, "hello").has("transfer-encoding", "chunked").ends_with("x-sum", "7");
}

fn an_answer_with_a_length_has_no_trailers(case: &mut Case) {
    case.serve(Router::new().route("/", post(async || with_trailers(Some(5)))));
    let ask = Ask::new("POST", "/").field("te", "trailers");
    case.send(&ask).is(200, "hello").has("content-length", "5").lacks("transfer-encoding");
}

fn a_body_may_be_limited_by_hand(case: &mut Case) {
    let handler = async |body: Body| match Limited::new(body, 5).collect().await {
        Ok(all) => (StatusCode::OK, format!("{:?}", all.to_bytes())),
        Err(error) if error.is::<LengthLimitError>() => {
            (StatusCode::PAYLOAD_TOO_LARGE, "too large".to_owned())
        }
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()),
    };
    case.serve(Router::new().route("/", post(handler)));
    case.post("/", "12345").is(200, "b\"12345\"");
    case.post("/", "123456").is(413, "too large");
}

fn a_layer_may_read_the_body_and_put_another_in_its_place(case: &mut Case) {
    let layer = axum::middleware::map_request(async |request: Request| {
        let (parts, body) = request.into_parts();
        let all = body.collect().await.map(|all| all.to_bytes()).unwrap_or_default();
        let text = String::from_utf8_lossy(&all).to_uppercase();
        Request::from_parts(parts, body_of(text))
    });
    fn body_of(text: String) -> Body {
        body([text])
    }
    case.serve(Router::new().route("/", post(async |text: String| text)).layer(layer));
    case.post("/", "hello").is(200, "HELLO");
}

fn a_get_may_have_a_body(case: &mut Case) {
    let handler = axum::routing::get(async |text: String| text);
    case.serve(Router::new().route("/", handler));
    case.send(&Ask::new("GET", "/").body("asked")).is(200, "asked");
}

fn a_peer_that_waits_for_100_is_told_to_go_on(case: &mut Case) {
    case.serve(Router::new().route("/", post(async |text: String| text)));
    let received = case.each(|server| {
        use std::io::{Read, Write};
        let mut stream = server.connect();
        let head =
            "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";
        stream.write_all(head.as_bytes()).expect("the server reads");
        let mut interim = [0; 25];
        stream.read_exact(&mut interim).expect("the server sends 100 Continue");
        stream.write_all(b"hello").expect("the server reads");
        let reply =
            crate::axum_behaviour::reply::Reply::read(&mut stream, false).expect("a response");
        format!("{} {}", String::from_utf8_lossy(&interim), reply.text())
    });
    assert_eq!(received, "HTTP/1.1 100 Continue\r\n\r\n hello");
}

fn a_peer_that_waits_for_100_is_not_told_if_nobody_reads(case: &mut Case) {
    case.serve(Router::new().route("/", post(StatusCode::FORBIDDEN)));
    let ask = Ask::new("POST", "/").field("expect", "100-continue").field("content-length", "5");
    case.send(&ask).is(403, "").after(&[]);
}
