use crate::harness::{Host, answer};
use peregrine_axum_examples::compression::app;
use reqwest::Method;

/// `wren ` a thousand times, compressed with gzip.
const PACKED: &[u8] = &[
    31, 139, 8, 0, 0, 0, 0, 0, 2, 3, 237, 196, 33, 1, 0, 0, 8, 3, 176, 42, 148, 195, 34, 48, 175,
    79, 10, 220, 38, 150, 237, 169, 72, 146, 36, 73, 146, 36, 73, 250, 236, 0, 49, 199, 251, 0,
    136, 19, 0, 0,
];

pub(crate) async fn a_handler_sees_a_body_unpacked(host: Host) {
    let server = host.serve(app());
    let packed = server.request(Method::POST, "/count").header("content-encoding", "gzip");
    assert_eq!(answer(packed.body(PACKED)).await.brief(), (200, "5000"));
    assert_eq!(server.post("/count", "text/plain", "plain").await.brief(), (200, "5"));
    let other = server.request(Method::POST, "/count").header("content-encoding", "other");
    assert_eq!(answer(other.body("x")).await.status, 415);
    let broken = server.request(Method::POST, "/count").header("content-encoding", "gzip");
    assert_eq!(answer(broken.body("no gzip")).await.status, 400);
    server.end().await;
}

pub(crate) async fn an_answer_is_packed_for_who_wants_it(host: Host) {
    let server = host.serve(app());
    let text = "all the same ".repeat(2_000);
    let plain = server.get("/text").await;
    assert_eq!((plain.brief(), plain.field("content-encoding")), ((200, text.as_str()), None));
    let packed = server.request(Method::GET, "/text").header("accept-encoding", "br;q=0.5, gzip");
    let packed = answer(packed).await;
    assert_eq!(packed.field("content-encoding"), Some("gzip"));
    assert_eq!(packed.field("content-length"), None);
    assert!(packed.body.starts_with(&[0x1f, 0x8b]) && packed.body.len() < 1_000);
    let headed = server.request(Method::HEAD, "/text").header("accept-encoding", "gzip");
    assert_eq!(answer(headed).await.brief(), (200, ""));
    server.end().await;
}

pub(crate) async fn fields_are_set_around_every_answer(host: Host) {
    let server = host.serve(app());
    for (path, control) in [("/kept", "max-age=60"), ("/text", "no-store"), ("/no", "no-store")] {
        let answer = server.get(path).await;
        assert_eq!((path, answer.field("cache-control")), (path, Some(control)));
        assert_eq!(answer.field("x-served-by"), Some("an example"));
    }
    server.end().await;
}
