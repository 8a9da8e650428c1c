use crate::harness::{Host, answer};
use futures_util::future::join_all;
use peregrine_axum_examples::tls::{app, redirect_app};
use reqwest::Method;

pub(crate) async fn requests_and_answers_are_encrypted(host: Host) {
    let server = host.serve_secure(app());
    let hello = answer(server.secure_request(Method::GET, "/")).await;
    assert_eq!(hello.brief(), (200, "Hello, in secret!"));
    let text = "a secret ".repeat(100_000);
    let echo = server.secure_request(Method::POST, "/echo").body(text.clone());
    assert!(answer(echo).await.text() == text);
    let server = &server;
    let echoes = join_all((0..8).map(async |number| {
        let request = server.secure_request(Method::POST, "/echo").body(number.to_string());
        answer(request).await.text().to_owned()
    }));
    assert_eq!(echoes.await, ["0", "1", "2", "3", "4", "5", "6", "7"]);
}

pub(crate) async fn the_server_ends_in_order(host: Host) {
    let server = host.serve_secure(app());
    assert_eq!(answer(server.secure_request(Method::GET, "/")).await.status, 200);
    // A plain request on the TLS port does not affect other connections.
    let mut raw = server.connect().await;
    raw.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    raw.half_close().await;
    let bytes = raw.bytes().await;
    if host.engine.is_peregrine() {
        // A browser with the wrong scheme shows the reason to its user.
        let text = String::from_utf8(bytes).expect("UTF-8");
        assert!(text.starts_with("HTTP/1.1 400 ") && text.contains("speaks HTTPS"), "{text}");
    } else {
        assert!(!bytes.starts_with(b"HTTP/"), "{bytes:?}");
    }
    assert_eq!(answer(server.secure_request(Method::GET, "/")).await.status, 200);
    server.end().await;
}

pub(crate) async fn plain_requests_are_sent_to_the_secure_port(host: Host) {
    let server = host.serve(redirect_app(4443));
    for (path, place) in [("/", "/"), ("/a/b?c=d&e", "/a/b?c=d&e")] {
        let moved = server.get(path).await;
        let target = format!("https://127.0.0.1:4443{place}");
        assert_eq!((moved.brief(), moved.field("location")), ((308, ""), Some(target.as_str())));
    }
    for (host, name) in [("a", "a"), ("a:80", "a"), ("[::1]", "[::1]"), ("[::1]:80", "[::1]")] {
        let moved = answer(server.request(Method::GET, "/x").header("host", host)).await;
        let target = format!("https://{name}:4443/x");
        assert_eq!(moved.field("location"), Some(target.as_str()), "{host}");
    }
    let moved = server.post("/form", "text/plain", "content").await;
    assert_eq!(moved.field("location"), Some("https://127.0.0.1:4443/form"));
    server.end().await;
}
