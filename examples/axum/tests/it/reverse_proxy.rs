use crate::harness::{Host, answer, listener};
use futures_util::{StreamExt, future::join_all, stream};
use peregrine_axum_examples::reverse_proxy::{app_before, upstream};
use reqwest::{Body, Method};
use std::convert::Infallible;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) async fn requests_and_answers_pass_through(host: Host) {
    let behind = host.serve(upstream());
    let server = host.serve(app_before(behind.address));
    assert_eq!(server.get("/").await.brief(), (200, "Hello from behind!"));
    assert_eq!(server.get("/where?a=b&c=%20d").await.brief(), (200, "/where?a=b&c=%20d"));
    assert_eq!(server.get("/teapot").await.brief(), (418, ""));
    assert_eq!(server.get("/nowhere").await.brief(), (404, ""));
    let refused = answer(server.request(Method::DELETE, "/echo")).await;
    assert_eq!((refused.brief(), refused.field("allow")), ((405, ""), Some("POST")));
    let headed = answer(server.request(Method::HEAD, "/")).await;
    assert_eq!((headed.brief(), headed.field("content-length")), ((200, ""), Some("18")));
    server.end().await;
    behind.end().await;
}

/// A server for one request that returns the request head as the body, with hop-by-hop fields.
async fn answer_with_the_head(listener: std::net::TcpListener) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("it is non-blocking");
    let (mut stream, _) = listener.accept().await.expect("the proxy connects");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        assert!(stream.read_buf(&mut head).await.expect("the proxy sends") > 0);
    }
    let fields = "Connection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nX-End: 2";
    let answer = format!("HTTP/1.1 200 OK\r\n{fields}\r\nContent-Length: {}\r\n\r\n", head.len());
    stream.write_all(answer.as_bytes()).await.expect("the proxy reads");
    stream.write_all(&head).await.expect("the proxy reads");
}

pub(crate) async fn what_is_about_one_connection_goes_no_further(host: Host) {
    let (behind, address) = listener();
    let behind = tokio::spawn(answer_with_the_head(behind));
    let server = host.serve(app_before(address));
    let request = server
        .request(Method::GET, "/")
        .header("connection", "X-Hop, X-Other")
        .header("connection", "X-Third")
        .header("x-hop", "1")
        .header("x-other", "2")
        .header("x-third", "3")
        .header("x-end", "4")
        .header("keep-alive", "timeout=5")
        .header("te", "trailers")
        .header("upgrade", "h2c")
        .header("proxy-connection", "close")
        .header("proxy-authorization", "Basic YTpi");
    let answer = answer(request).await;
    let names = answer.text().lines().skip(1).filter_map(|line| line.split_once(':'));
    let mut names: Vec<_> = names.map(|(name, _)| name.to_lowercase()).collect();
    names.sort();
    assert_eq!(names, ["accept", "host", "x-end"]);
    assert_eq!((answer.field("x-hop"), answer.field("keep-alive")), (None, None));
    assert_eq!(answer.field("x-end"), Some("2"));
    behind.await.expect("it serves one request");
    server.end().await;
}

pub(crate) async fn bodies_stream_through_it_both_ways(host: Host) {
    let behind = host.serve(upstream());
    let server = host.serve(app_before(behind.address));
    let content: Vec<u8> = (0..2_000_000_u32).map(|number| (number % 241) as u8).collect();
    let kind = "application/octet-stream";
    assert!(server.post("/echo", kind, content.clone()).await.body == content);
    let pieces: Vec<_> =
        content.chunks(30_011).map(|piece| Ok::<_, Infallible>(piece.to_vec())).collect();
    let pieces = Body::wrap_stream(stream::iter(pieces));
    assert!(server.post("/echo", kind, pieces).await.body == content);
    // The response arrives while the request is still being sent, so neither the proxy nor the
    // upstream buffers the whole body.
    let (sender, receiver) = tokio::sync::mpsc::channel::<Vec<u8>>(1);
    let sent = stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|piece| (Ok::<_, Infallible>(piece), receiver))
    });
    let request = server.request(Method::POST, "/echo").body(Body::wrap_stream(sent));
    sender.send(b"ping 0".to_vec()).await.expect("the request is open");
    let response = request.send().await.expect("the response starts before the request ends");
    let mut back = response.bytes_stream();
    for number in 1..=5 {
        let piece = back.next().await.expect("more follows").expect("no error");
        assert_eq!(piece, format!("ping {}", number - 1));
        sender.send(format!("ping {number}").into_bytes()).await.expect("the request is open");
    }
    drop(sender);
    assert_eq!(back.next().await.expect("one is left").expect("no error"), "ping 5");
    assert!(back.next().await.is_none());
    drop(back);
    server.end().await;
    behind.end().await;
}

pub(crate) async fn many_requests_share_its_client(host: Host) {
    let behind = host.serve(upstream());
    let server = host.serve(app_before(behind.address));
    let (server_, kind) = (&server, "text/plain");
    let echoes = join_all((0..40).map(async |number: u32| {
        let echo = server_.post("/echo", kind, number.to_string()).await;
        echo.brief() == (200, number.to_string().as_str())
    }));
    assert_eq!(echoes.await, [true; 40]);
    server.end().await;
    behind.end().await;
}

pub(crate) async fn a_server_that_is_not_there_is_a_bad_gateway(host: Host) {
    let (free, nobody) = listener();
    drop(free);
    let server = host.serve(app_before(nobody));
    assert_eq!(server.get("/").await.brief(), (502, ""));
    server.end().await;
}
