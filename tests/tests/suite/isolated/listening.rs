//! Listeners created by other code, and the client information available through them, on both
//! kernel drivers.
#![cfg(target_os = "linux")]

use axum::routing::get;
use axum::{Extension, Router};
use peregrine::prelude::*;
use peregrine::tower::{Mount, serve, serve_tls, tower};
use peregrine::web::connection::{ConnectionInfo, PeerCredentials};
use peregrine::{DriverChoice, Error, RunningServer};
use peregrine_tests::on_both_drivers;
use peregrine_tests::server::secure::{VERSIONS, client_config, server_tls};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;

on_both_drivers! { @isolated
    a_unix_listener_that_was_handed_over_is_shared_by_all_workers_and_its_file_stays,
    handlers_mounts_and_the_log_know_whose_process_the_peer_is,
    a_unix_socket_to_which_clients_keep_coming_is_drained,
    a_router_is_served_on_listeners_of_every_kind,
    a_router_is_served_over_tls_and_nothing_else,
}

/// The log of all tests in this file.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn get() -> Self {
        static LOG: OnceLock<Log> = OnceLock::new();
        let start = || {
            let log = Self::default();
            let writer = log.clone();
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
            log
        };
        LOG.get_or_init(start).clone()
    }

    fn has(&self, text: &str) -> bool {
        let bytes = self.0.lock().expect("the mutex is not poisoned");
        String::from_utf8_lossy(&bytes).contains(text)
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("the mutex is not poisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn started(result: Result<RunningServer, Error>) -> Option<RunningServer> {
    match result {
        Err(error @ Error::Driver { .. }) => {
            eprintln!("skipped: {error}");
            None
        }
        running => Some(running.expect("the server starts")),
    }
}

fn asks(stream: &mut (impl Read + Write), path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("the server reads");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("the server responds");
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    response.split_once("\r\n\r\n").expect("a head").1.to_owned()
}

fn asks_at(path: &Path, target: &str) -> String {
    asks(&mut UnixStream::connect(path).expect("the server accepts connections"), target)
}

fn a_unix_listener_that_was_handed_over_is_shared_by_all_workers_and_its_file_stays(
    choice: DriverChoice,
) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).expect("a new path");
    let server = Server::new().listen_socket(listener).driver(choice).quiet();
    let server = server.workers(NonZeroUsize::new(2).expect("two is not zero"));
    let Some(running) = started(server.start(|| App::new().get("/", || "hello"))) else { return };
    let urls: Vec<_> = running.urls().collect();
    assert_eq!(urls, [format!("http+unix:{}", path.display())]);
    for _ in 0..10 {
        assert_eq!(asks_at(&path, "/"), "hello");
    }
    running.graceful_shutdown().expect("the shutdown succeeds");
    assert!(path.exists(), "the server does not remove a socket that it did not create");
}

fn a_unix_socket_to_which_clients_keep_coming_is_drained(choice: DriverChoice) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let server = Server::new().listen_unix(&path).driver(choice).quiet();
    let server = server.workers(NonZeroUsize::new(2).expect("two is not zero"));
    let Some(running) = started(server.start(|| App::new().get("/", || "hello"))) else { return };
    let answered = Arc::new(AtomicUsize::new(0));
    let client = || {
        let (answered, path) = (Arc::clone(&answered), path.clone());
        thread::spawn(move || {
            while let Ok(mut stream) = UnixStream::connect(&path) {
                // A connected client still gets its response.
                assert_eq!(asks(&mut stream, "/"), "hello");
                answered.fetch_add(1, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(10));
            }
        })
    };
    let clients = [client(), client(), client()];
    while answered.load(Ordering::SeqCst) < 20 {
        thread::sleep(Duration::from_millis(1));
    }
    let before = answered.load(Ordering::SeqCst);
    running.graceful_shutdown().expect("the shutdown succeeds");
    clients.into_iter().for_each(|client| client.join().expect("the client does not panic"));
    let after = answered.load(Ordering::SeqCst) - before;
    // Without the refusal there would be thousands before the deadline.
    assert!(after < 500, "{after} were accepted after the shutdown order");
}

fn handlers_mounts_and_the_log_know_whose_process_the_peer_is(choice: DriverChoice) {
    let log = Log::get();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let make = || {
        let ours =
            |request: Request| format!("{:?}", request.parts.connection().peer.peer_credentials());
        let theirs = get(async |Extension(info): Extension<ConnectionInfo>| {
            format!("{:?}", info.peer.peer_credentials())
        });
        let theirs = tower(Router::new().route("/", theirs)).extension(ConnectionInfo::clone);
        App::new().wrap(AccessLog::new()).get("/ours", ours).mount("/theirs", theirs)
    };
    let server = Server::bind("127.0.0.1:0").listen_unix(&path).driver(choice).quiet();
    let server = server.workers(NonZeroUsize::MIN);
    let Some(running) = started(server.start(make)) else { return };
    let own = std::fs::metadata(&path).expect("the socket exists");
    let pid = Some(std::process::id());
    let expected = PeerCredentials { uid: own.uid(), gid: own.gid(), pid };
    for target in ["/ours", "/theirs"] {
        assert_eq!(asks_at(&path, target), format!("{:?}", Some(expected)));
    }
    let address = running.http_address().expect("TCP too");
    let mut tcp = std::net::TcpStream::connect(address).expect("the server accepts connections");
    assert_eq!(asks(&mut tcp, "/ours"), "None");
    running.graceful_shutdown().expect("the shutdown succeeds");
    let PeerCredentials { uid, gid, .. } = expected;
    let peer = format!("peer=unix:(pid {}, uid {uid}, gid {gid})", std::process::id());
    assert!(log.has(&peer), "{peer}");
}

fn router() -> Router {
    Router::new().route("/", get(async || "hello"))
}

fn in_runtime<F: Future>(future: F) -> F::Output {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime").block_on(future)
}

/// Whether this machine can run the driver.
fn is_there(choice: DriverChoice) -> bool {
    let server = Server::bind("127.0.0.1:0").driver(choice).workers(NonZeroUsize::MIN).quiet();
    started(server.start(App::new)).is_some_and(|running| running.graceful_shutdown().is_ok())
}

/// Runs `serving` until `ask` has its response.
async fn while_served<R: peregrine::tower::Dispatch + Send>(
    serving: peregrine::tower::Serve<R>,
    choice: DriverChoice,
    ask: impl FnOnce() -> String + Send + 'static,
) -> String {
    let (end, ended) = oneshot::channel::<()>();
    let serving = serving
        .configure(|server| server.driver(choice).workers(NonZeroUsize::MIN).quiet())
        .with_graceful_shutdown(async { drop(ended.await) });
    // The listener already exists, so a client can connect before the server runs.
    let answer = tokio::task::spawn_blocking(move || {
        let answer = ask();
        drop(end);
        answer
    });
    serving.await.expect("the server shuts down cleanly");
    answer.await.expect("the task does not panic")
}

fn a_router_is_served_on_listeners_of_every_kind(choice: DriverChoice) {
    if !is_there(choice) {
        return;
    }
    in_runtime(async {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("of-std");
        let listener = UnixListener::bind(&path).expect("a new path");
        let answer = while_served(serve(listener, router()), choice, move || asks_at(&path, "/"));
        assert_eq!(answer.await, "hello");
        let path = folder.path().join("of-tokio");
        let listener = tokio::net::UnixListener::bind(&path).expect("a new path");
        let answer = while_served(serve(listener, router()), choice, move || asks_at(&path, "/"));
        assert_eq!(answer.await, "hello");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("the socket is bound");
        let ask = move || asks(&mut std::net::TcpStream::connect(address).expect("a peer"), "/");
        assert_eq!(while_served(serve(listener, router()), choice, ask).await, "hello");
    });
}

fn a_router_is_served_over_tls_and_nothing_else(choice: DriverChoice) {
    if !is_there(choice) {
        return;
    }
    in_runtime(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("the socket is bound");
        let serving = serve_tls(listener, server_tls(), router());
        let answer = while_served(serving, choice, move || {
            let mut plain = std::net::TcpStream::connect(address).expect("a peer");
            let _ = plain.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            let mut received = Vec::new();
            let _ = plain.read_to_end(&mut received);
            assert!(
                !received.windows(4).any(|part| part == b" 200"),
                "the TLS listener does not accept plain HTTP"
            );
            ask_over_tls(address)
        });
        assert_eq!(answer.await, "hello");
    });
}

fn ask_over_tls(address: SocketAddr) -> String {
    let config = client_config(VERSIONS[0]);
    let client = reqwest::Client::builder()
        .use_preconfigured_tls((*config).clone())
        .resolve("localhost", address)
        .timeout(Duration::from_secs(60))
        .no_proxy();
    let client = client.build().expect("the configuration is valid");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let url = format!("https://localhost:{}", address.port());
        let response = client.get(url).send().await.expect("the server responds");
        response.text().await.expect("the body is complete")
    })
}
