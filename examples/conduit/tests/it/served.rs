//! The application over sockets, on both drivers, used as by a browser and by an API client.

use crate::harness::settings;
use peregrine::testing::TestServer;
use peregrine::tls::rustls::crypto::aws_lc_rs;
use peregrine::tls::rustls::{ClientConfig, RootCertStore};
use peregrine::{DriverChoice, Error};
use peregrine_conduit::Conduit;
use reqwest::multipart::{Form, Part};
use reqwest::{Client, Response};
use serde_json::{Value, json};
use std::num::NonZeroUsize;
use tokio::task::spawn_blocking;

/// The data of the next event.
async fn event(response: &mut Response, waiting: &mut String) -> Value {
    loop {
        if let Some((event, rest)) = waiting.split_once("\n\n") {
            let data = event.lines().find_map(|line| line.strip_prefix("data:"));
            let data = data.map(|data| serde_json::from_str(data).expect("valid JSON"));
            *waiting = rest.to_owned();
            if let Some(data) = data {
                return data;
            }
            continue;
        }
        let piece = response.chunk().await.expect("no error").expect("the stream is open");
        waiting.push_str(std::str::from_utf8(&piece).expect("a text"));
    }
}

/// A client for plain HTTP. This build of reqwest requires a TLS configuration even so.
fn client() -> Client {
    let config = ClientConfig::builder_with_provider(aws_lc_rs::default_provider().into())
        .with_safe_default_protocol_versions()
        .expect("aws-lc-rs supports these versions")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    Client::builder().no_proxy().use_preconfigured_tls(config).build().expect("a client")
}

async fn document(request: reqwest::RequestBuilder, status: u16) -> Value {
    let response = request.send().await.expect("a response");
    assert_eq!(response.status(), status);
    response.json().await.expect("valid JSON")
}

async fn run(choice: DriverChoice) {
    let folder = tempfile::tempdir().expect("the disk is writable");
    let conduit = Conduit::open(&settings(folder.path())).await.expect("it opens");
    let shared = conduit.clone();
    // Two workers: readers on one worker receive events that are published on the other.
    let workers = NonZeroUsize::new(2).expect("not zero");
    let start = move || {
        TestServer::start_with(
            |server| server.driver(choice).workers(workers),
            move || shared.app(),
        )
    };
    let server = match spawn_blocking(start).await.expect("no panic") {
        Err(error @ Error::Driver { .. }) => return eprintln!("skipped: {error}"),
        server => server.expect("the server starts"),
    };
    let url = server.url();
    let client = client();
    let user =
        json!({ "user": { "username": "ada", "email": "ada@mail", "password": "password" } });
    let made = document(client.post(format!("{url}/api/users")).json(&user), 201).await;
    let token = format!("Token {}", made["user"]["token"].as_str().expect("a token"));
    let put = client.put(format!("{url}/api/user/image")).header("authorization", &token);
    let picture = Part::bytes(&b"\x89PNG\r\n\x1a\nrest"[..]).file_name("me.png");
    let changed = document(put.multipart(Form::new().part("image", picture)), 200).await;
    let image = changed["user"]["image"].as_str().expect("a URL").to_owned();
    let served = client.get(format!("{url}{image}")).send().await.expect("a response");
    assert_eq!(&served.bytes().await.expect("the body is complete")[..], b"\x89PNG\r\n\x1a\nrest");
    // Each reader has its own connection.
    let mut readers = Vec::new();
    for _ in 0..4 {
        let reader = self::client().get(format!("{url}/api/live/articles")).send().await;
        readers.push((reader.expect("a response"), String::new()));
    }
    let article = json!({ "article": { "title": "Live", "description": "x", "body": "<i>", "tagList": ["t"] } });
    let post = client.post(format!("{url}/api/articles")).header("authorization", &token);
    document(post.json(&article), 201).await;
    for (reader, waiting) in &mut readers {
        assert_eq!(event(reader, waiting).await["slug"], "live");
    }
    let page = client.get(format!("{url}/articles/live")).send().await.expect("a response");
    let page = page.text().await.expect("a text");
    assert!(page.contains("&#60;i&#62;") && page.contains(&image), "{page}");
    // On shutdown, readers receive a last event, and no request is cut off.
    let running = server.into_server();
    let stopped = spawn_blocking(move || running.graceful_shutdown())
        .await
        .expect("no panic")
        .expect("a graceful shutdown");
    assert!(stopped.force_closed.is_empty(), "{stopped}");
    for (mut reader, mut waiting) in readers {
        while let Some(piece) = reader.chunk().await.expect("the body ends properly") {
            waiting.push_str(std::str::from_utf8(&piece).expect("a text"));
        }
        assert!(waiting.contains("event:end") || waiting.contains("event: end"), "{waiting}");
    }
    conduit.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_tokio() {
    run(DriverChoice::Tokio).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_uring() {
    run(DriverChoice::Uring).await;
}
