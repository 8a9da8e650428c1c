use crate::harness::{Host, answer, wait_until};
use crate::multipart::{form, kind};
use futures_util::stream;
use peregrine_axum_examples::stream_to_file::app_in;
use reqwest::{Body, Method};
use std::convert::Infallible;
use std::fs;
use std::path::Path;
use tempfile::{TempDir, tempdir};

fn folder() -> TempDir {
    tempdir().expect("the disk is writable")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder exists").map(|entry| {
        let entry = entry.expect("it can be listed");
        entry.file_name().into_string().expect("names are text")
    });
    let mut names: Vec<_> = entries.collect();
    names.sort();
    names
}

pub(crate) async fn a_body_becomes_a_file(host: Host) {
    let folder = folder();
    let server = host.serve(app_in(folder.path().to_owned()));
    let content: Vec<u8> = (0..4_000_000_u32).map(|number| (number % 253) as u8).collect();
    let put = |name, body| answer(server.request(Method::PUT, name).body(body));
    assert_eq!(put("/files/whole", Body::from(content.clone())).await.brief(), (201, ""));
    let pieces: Vec<_> =
        content.chunks(70_001).map(|piece| Ok::<_, Infallible>(piece.to_vec())).collect();
    let pieces = Body::wrap_stream(stream::iter(pieces));
    assert_eq!(put("/files/pieces", pieces).await.brief(), (201, ""));
    assert_eq!(put("/files/empty", Body::from("")).await.brief(), (201, ""));
    assert_eq!(names(folder.path()), ["empty", "pieces", "whole"]);
    for name in ["whole", "pieces"] {
        assert!(fs::read(folder.path().join(name)).expect("the file exists") == content);
        assert!(server.get(&format!("/files/{name}")).await.body == content);
    }
    assert_eq!(server.get("/files/other").await.brief(), (404, ""));
    server.end().await;
}

pub(crate) async fn the_files_of_a_form_become_files(host: Host) {
    let folder = folder();
    let server = host.serve(app_in(folder.path().to_owned()));
    let large = vec![b'y'; 300_000];
    let body = form(&[
        ("file", "a.txt", "text/plain", b"first"),
        ("file", "b.bin", "application/octet-stream", &large),
    ]);
    let sent = server.post("/", &kind(), body).await;
    assert_eq!((sent.status.as_u16(), sent.field("location")), (303, Some("/files/b.bin")));
    assert_eq!(names(folder.path()), ["a.txt", "b.bin"]);
    assert_eq!(server.get("/files/a.txt").await.brief(), (200, "first"));
    assert_eq!(server.get("/files/b.bin").await.body, large);
    server.end().await;
}

pub(crate) async fn a_name_that_leads_elsewhere_is_refused(host: Host) {
    let folder = folder();
    let server = host.serve(app_in(folder.path().join("inner")));
    // These files exist, so a name that leads out of the folder would find them.
    fs::create_dir(folder.path().join("inner")).expect("the folder is new");
    fs::write(folder.path().join("secret"), "secret").expect("the folder can be written to");
    fs::write(folder.path().join("inner/.hidden"), "hidden").expect("the folder can be written to");
    let secret = folder.path().join("secret").display().to_string().replace('/', "%2F");
    for name in ["..%2F..", "..%2Fsecret", "%2Fetc%2Fpasswd", "a%2Fb", ".hidden", &secret] {
        let path = format!("/files/{name}");
        let refused = answer(server.request(Method::PUT, &path).body("x")).await;
        assert_eq!(refused.brief(), (400, "That is not a file name."), "{name}");
        assert_eq!(server.get(&path).await.brief(), (400, "That is not a file name."), "{name}");
    }
    assert_eq!(names(folder.path()), ["inner", "secret"]);
    assert_eq!(names(&folder.path().join("inner")), [".hidden"]);
    server.end().await;
}

pub(crate) async fn two_uploads_of_one_name_do_not_mix(host: Host) {
    let folder = folder();
    let server = host.serve(app_in(folder.path().to_owned()));
    let mut uploads = [server.connect().await, server.connect().await];
    for raw in &mut uploads {
        raw.send("PUT /files/same HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\n").await;
    }
    wait_until("both files exist", async || names(folder.path()).len() == 2).await;
    for (raw, text) in uploads.iter_mut().zip(["first...", "second.."]) {
        raw.send(text).await;
        let head = raw.read_until("\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 201 "), "{head}");
        assert_eq!(server.get("/files/same").await.brief(), (200, text));
    }
    assert_eq!(names(folder.path()), ["same"]);
    drop(uploads);
    server.end().await;
}

pub(crate) async fn a_body_that_breaks_off_leaves_no_file(host: Host) {
    let folder = folder();
    let server = host.serve(app_in(folder.path().to_owned()));
    let mut raw = server.connect().await;
    raw.send("PUT /files/half HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nhalf").await;
    wait_until("the file exists", async || names(folder.path()).len() == 1).await;
    for name in names(folder.path()) {
        assert_eq!(server.get(&format!("/files/{name}")).await.status, 400, "{name}");
    }
    assert_eq!(server.get("/files/half").await.status, 404);
    raw.half_close().await;
    let text = raw.rest().await;
    if host.engine.is_peregrine() {
        // A half-close within the request counts as a disconnect: the handler is dropped.
        assert_eq!(text, "");
    } else {
        // hyper continues as long as it can respond, and the handler reads an error.
        assert!(text.starts_with("HTTP/1.1 400 "), "{text}");
    }
    wait_until("the file is removed", async || names(folder.path()).is_empty()).await;
    assert_eq!(server.get("/files/half").await.status, 404);
    server.end().await;
}
