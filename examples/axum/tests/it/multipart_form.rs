use crate::harness::{Host, answer};
use crate::multipart::{form, kind};
use futures_util::stream;
use peregrine_axum_examples::multipart_form::{FORM_BYTES_MAX, app};
use reqwest::{Body, Method};
use serde_json::{Value, json};
use std::convert::Infallible;

pub(crate) async fn files_in_a_form_are_counted(host: Host) {
    let server = host.serve(app());
    assert!(server.get("/").await.text().contains("multipart/form-data"));
    let large: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    let sum: u64 = large.iter().map(|byte| u64::from(*byte)).sum();
    let body = form(&[
        ("first", "hello.txt", "text/plain", b"hello"),
        ("second", "nothing", "application/octet-stream", b""),
        ("third", "large.bin", "application/octet-stream", &large),
    ]);
    let expected = json!([
        {"name": "first", "file_name": "hello.txt", "content_type": "text/plain", "bytes": 5,
         "sum": 532},
        {"name": "second", "file_name": "nothing", "content_type": "application/octet-stream",
         "bytes": 0, "sum": 0},
        {"name": "third", "file_name": "large.bin", "content_type": "application/octet-stream",
         "bytes": 3_000_000, "sum": sum},
    ]);
    let counted = server.post("/", &kind(), body.clone()).await;
    assert_eq!(counted.status, 200);
    assert_eq!(serde_json::from_slice::<Value>(&counted.body).expect("valid JSON"), expected);
    // Chunked, with chunks that split the boundary lines.
    let pieces: Vec<_> =
        body.chunks(4_099).map(|piece| Ok::<_, Infallible>(piece.to_vec())).collect();
    let request = server.request(Method::POST, "/").header("content-type", kind());
    let counted = answer(request.body(Body::wrap_stream(stream::iter(pieces)))).await;
    assert_eq!(serde_json::from_slice::<Value>(&counted.body).expect("valid JSON"), expected);
    server.end().await;
}

pub(crate) async fn forms_that_cannot_be_read_are_refused(host: Host) {
    let server = host.serve(app());
    let refused = server.post("/", "multipart/form-data", "--x--").await;
    assert_eq!(refused.brief(), (400, "Invalid `boundary` for `multipart/form-data` request"));
    let mut cut = form(&[("file", "a", "text/plain", b"content")]);
    cut.truncate(cut.len() - 20);
    let refused = server.post("/", &kind(), cut).await;
    assert_eq!(refused.status, 400);
    assert!(refused.text().ends_with("incomplete data"), "{refused:?}");
    // The request is rejected because of its Content-Length alone.
    let mut raw = server.connect().await;
    let length = FORM_BYTES_MAX + 1;
    let kind = kind();
    raw.send(format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
    ))
    .await;
    assert!(raw.read_until("\r\n").await.starts_with("HTTP/1.1 413 "));
    drop(raw);
    server.end().await;
}
