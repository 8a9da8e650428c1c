use crate::harness::{Host, answer};
use peregrine_axum_examples::static_file_server::app;
use reqwest::Method;

const INDEX: &str = "<!doctype html>\n<title>Birds</title>\n<h1>Birds</h1>\n";

pub(crate) async fn files_are_served_in_every_way(host: Host) {
    let server = host.serve(app());
    for path in ["/", "/index.html", "/assets/", "/assets/index.html", "/page/", "/called/"] {
        let page = server.get(path).await;
        assert_eq!((path, page.brief()), (path, (200, INDEX)));
        assert_eq!(page.field("content-type"), Some("text/html"));
        assert_eq!(page.field("accept-ranges"), Some("bytes"));
    }
    assert_eq!(server.get("/assets/style.css").await.field("content-type"), Some("text/css"));
    let lines = server.get("/lines").await;
    assert_eq!((lines.body.len(), lines.field("content-length")), (9_000, Some("9000")));
    assert_eq!(lines.text().lines().count(), 1_000);
    assert_eq!(server.get("/plain").await.brief(), (200, "no file"));
    // tower-http builds the location from the path below the prefix.
    let moved = server.get("/assets/deep").await;
    assert_eq!((moved.status.as_u16(), moved.field("location")), (307, Some("/deep/")));
    assert!(server.get("/assets/deep/").await.text().contains("Deep below"));
    server.end().await;
}

pub(crate) async fn what_is_not_there_is_answered_by_its_fallback(host: Host) {
    let server = host.serve(app());
    assert_eq!(server.get("/assets/nothing").await.brief(), (404, ""));
    assert_eq!(server.get("/page/any/path").await.brief(), (200, INDEX));
    assert_eq!(server.get("/strict/any/path").await.brief(), (404, INDEX));
    assert_eq!(server.get("/nothing").await.brief(), (404, "There is no such file."));
    let refused = answer(server.request(Method::POST, "/assets/index.html")).await;
    assert_eq!((refused.status.as_u16(), refused.field("allow")), (405, Some("GET,HEAD")));
    // Files above the folder cannot be reached, however the path is written.
    for path in ["/assets/../Cargo.toml", "/assets/%2e%2e/Cargo.toml", "/assets/..%2fCargo.toml"] {
        let mut raw = server.connect().await;
        raw.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")).await;
        let text = raw.rest().await;
        assert!(text.starts_with("HTTP/1.1 404 ") && !text.contains("[package]"), "{text}");
    }
    server.end().await;
}

pub(crate) async fn a_part_of_a_file_may_be_asked_for(host: Host) {
    let server = host.serve(app());
    let part = |range| answer(server.request(Method::GET, "/lines").header("range", range));
    for (range, text, shown) in [
        ("bytes=0-7", "line 000", "bytes 0-7/9000"),
        ("bytes=-9", "line 999\n", "bytes 8991-8999/9000"),
        ("bytes=8991-", "line 999\n", "bytes 8991-8999/9000"),
        ("bytes=4500-4507", "line 500", "bytes 4500-4507/9000"),
    ] {
        let part = part(range).await;
        assert_eq!((part.brief(), part.field("content-range")), ((206, text), Some(shown)));
        let length = text.len().to_string();
        assert_eq!(part.field("content-length"), Some(length.as_str()));
    }
    let outside = part("bytes=9000-").await;
    assert_eq!(outside.status, 416);
    assert_eq!(outside.field("content-range"), Some("bytes */9000"));
    server.end().await;
}

pub(crate) async fn a_file_that_did_not_change_is_not_sent_again(host: Host) {
    let server = host.serve(app());
    let head = answer(server.request(Method::HEAD, "/lines")).await;
    assert_eq!((head.brief(), head.field("content-length")), ((200, ""), Some("9000")));
    let modified = head.field("last-modified").expect("files have a time").to_owned();
    let since = |name, time| answer(server.request(Method::GET, "/lines").header(name, time));
    let same = since("if-modified-since", modified.clone()).await;
    assert_eq!(same.brief(), (304, ""));
    let long_ago = "Thu, 01 Jan 1970 00:00:00 GMT".to_owned();
    assert_eq!(since("if-modified-since", long_ago.clone()).await.body.len(), 9_000);
    assert_eq!(since("if-unmodified-since", modified).await.status, 200);
    assert_eq!(since("if-unmodified-since", long_ago).await.status, 412);
    server.end().await;
}
