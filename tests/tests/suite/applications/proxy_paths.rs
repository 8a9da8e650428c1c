//! A guard in front of the proxy, which forwards to an upstream that normalizes paths: no spelling
//! of a path bypasses it.

use peregrine::prelude::*;
use peregrine::proxy::{ReverseProxy, Upstreams};
use peregrine::web::testing::block_on;
use peregrine::web::{Next, Response, Scope};
use peregrine::{DriverChoice, ListenAddr, RunningServer};
use peregrine_tests::client::{connect, started};
use peregrine_tests::on_both_drivers;
use peregrine_tests::server::SocketWire;
use peregrine_tests::server::streams::Streams;
use std::io::{Read, Write};
use std::num::NonZeroUsize;

on_both_drivers! {
    no_spelling_of_a_path_reaches_what_a_login_protects,
    paths_that_registries_and_forges_use_reach_the_upstream_unchanged,
}

const SPELLINGS: [&str; 18] = [
    "//admin/secret",
    "/x/../admin/secret",
    "/./admin/secret",
    "/%2e/admin/secret",
    "/x/%2e%2e/admin/secret",
    "/x/.%2e/admin/secret",
    "/admin%2Fsecret",
    "/admin%2fsecret",
    "/x%2f..%2fadmin/secret",
    "/public/..%2fadmin/secret",
    "/public/..%5Cadmin/secret",
    "/public%5c..%5cadmin/secret",
    "/admin%5Csecret",
    "/%5Cadmin/secret",
    "/%2Fadmin/secret",
    "/x/..;/admin/secret",
    "/admin;a=b/secret",
    "/\\admin/secret",
];

/// The path as a server reads it that applies every normalization that servers apply.
fn normalized(path: &str) -> String {
    let mut plain = path.to_owned();
    for (from, to) in
        [("%2e", "."), ("%2E", "."), ("%2f", "/"), ("%2F", "/"), ("%5c", "/"), ("%5C", "/")]
    {
        plain = plain.replace(from, to);
    }
    let plain = plain.replace('\\', "/");
    let mut segments = Vec::new();
    for segment in plain.split('/').map(|segment| segment.split(';').next().unwrap_or_default()) {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    format!("/{}", segments.join("/"))
}

fn serve(
    choice: DriverChoice,
    app: impl Fn() -> App + Clone + Send + 'static,
) -> Option<RunningServer> {
    let server = Server::bind("127.0.0.1:0").driver(choice).workers(NonZeroUsize::MIN).quiet();
    started(server.start(app))
}

/// A login for `/admin`, and a proxy for everything.
fn front(choice: DriverChoice) -> Option<(RunningServer, RunningServer)> {
    let answer = |request: Request| {
        let place = normalized(request.path());
        let is_secret = place == "/admin" || place.starts_with("/admin/");
        format!("{} {}", if is_secret { "SECRET" } else { "public" }, request.path())
    };
    let upstream = serve(choice, move || App::new().allow_ambiguous_paths().subtree("/", answer))?;
    let address = upstream.http_address().expect("the server has an HTTP listener");
    let upstreams = Upstreams::new([format!("http://{address}")]).expect("a URL");
    let front = serve(choice, move || {
        let proxy = || ReverseProxy::new(upstreams.clone());
        let admin = |scope: Scope| {
            let login =
                async |request: Request, next: Next<'_>| match request.header("authorization") {
                    Some(_) => next.run(request).await,
                    None => Response::new(StatusCode::UNAUTHORIZED),
                };
            scope.wrap(login).subtree("/", proxy())
        };
        App::new().scope("/admin", admin).subtree("/", proxy())
    })?;
    Some((front, upstream))
}

fn asked(running: &RunningServer, target: &str) -> String {
    let mut peer = connect(running);
    let request = format!("GET {target} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n");
    peer.write_all(request.as_bytes()).expect("connected");
    let mut all = Vec::new();
    peer.read_to_end(&mut all).expect("a response");
    String::from_utf8_lossy(&all).into_owned()
}

fn streams(running: &RunningServer) -> Streams<SocketWire> {
    let address = running.http_address().expect("the server has an HTTP listener");
    let mut client = Streams::new(SocketWire::connect(&ListenAddr::Tcp(address)));
    client.authority = "a.example".to_owned();
    client
}

fn no_spelling_of_a_path_reaches_what_a_login_protects(choice: DriverChoice) {
    let Some((front, _upstream)) = front(choice) else { return };
    assert!(asked(&front, "/admin/secret").starts_with("HTTP/1.1 401"));
    for path in SPELLINGS {
        for target in [path.to_owned(), format!("http://a.example{path}"), format!("{path}?a=b")] {
            let answer = asked(&front, &target);
            assert!(answer.starts_with("HTTP/1.1 400"), "{target} {answer}");
        }
        block_on(async {
            let mut client = streams(&front);
            let id = client.open("GET", path, &[], true);
            let answer = client.answer(id).await;
            let is_refused = answer.status() == 400 || answer.reset.is_some();
            assert!(is_refused, "{path} {} {}", answer.status(), answer.text());
        });
    }
}

fn paths_that_registries_and_forges_use_reach_the_upstream_unchanged(choice: DriverChoice) {
    let Some((front, _upstream)) = front(choice) else { return };
    for path in
        ["/@scope%2fname", "/api/v4/projects/group%2Fproject", "/a//b", "/a;b/c", "/.well-known/x"]
    {
        let answer = asked(&front, path);
        assert!(answer.ends_with(&format!("\r\n\r\npublic {path}")), "{path} {answer}");
        block_on(async {
            let mut client = streams(&front);
            let id = client.open("GET", path, &[], true);
            assert_eq!(client.answer(id).await.text(), format!("public {path}"));
        });
    }
}
