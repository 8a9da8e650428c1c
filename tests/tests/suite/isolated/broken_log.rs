//! A log that cannot be written, and whose subscriber then panics, as that of `tracing-subscriber`
//! does when standard error has no reader any more. Nothing else may fail with it. This needs its
//! own process, because the subscriber and the descriptor limit are process-wide.
#![cfg(unix)]

use peregrine::cache::{
    ClaimResult, Fingerprint, Idempotency, IdempotencyStore, IdempotencyStoreError,
    IdempotentOutcome,
};
use peregrine::prelude::*;
use peregrine::{DriverChoice, RunningServer};
use peregrine_tests::client::{PATIENCE, receive, send, started, wait_for};
use peregrine_tests::on_both_drivers;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};
use std::fs::{self, File};
use std::io::Write as _;
use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

on_both_drivers! { @isolated
    connections_are_accepted_when_there_are_descriptors_again,
    a_panic_of_a_handler_is_a_500,
    a_panic_below_the_access_log_is_a_500,
    spans_that_panic_keep_nobody_from_an_answer,
    refusals_are_logged_and_nothing_ends,
    requests_whose_keys_cannot_be_kept_are_answered,
    certificates_are_read_again,
}

/// Far more than a server and its clients need.
const DESCRIPTORS_MAX: u64 = 300;

/// Events since the case began, each of which panicked.
static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The span operation that panics as well.
static OF_SPANS: Mutex<&str> = Mutex::new("");

/// How many spans were created, and how many are entered, in the case.
static MADE: AtomicI64 = AtomicI64::new(0);
static ENTERED: AtomicI64 = AtomicI64::new(0);

fn panics_of_spans(what: &str) {
    let of_spans = *OF_SPANS.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(of_spans != what, "the log has no reader");
}

struct Broken;

impl Subscriber for Broken {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("peregrine") && *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        MADE.fetch_add(1, Ordering::Relaxed);
        panics_of_spans("new");
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Tell);
        panic!("the log has no reader");
    }

    fn enter(&self, _: &Id) {
        ENTERED.fetch_add(1, Ordering::Relaxed);
        panics_of_spans("enter");
    }

    fn exit(&self, _: &Id) {
        ENTERED.fetch_sub(1, Ordering::Relaxed);
        panics_of_spans("exit");
    }

    fn try_close(&self, _: Id) -> bool {
        panics_of_spans("close");
        true
    }
}

struct Tell;

impl Visit for Tell {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            LOGGED.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{value:?}"));
        }
    }
}

/// Serialises the cases, and installs the subscriber.
fn begin() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    static INSTALLED: Once = Once::new();
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    INSTALLED.call_once(|| {
        tracing::subscriber::set_global_default(Broken).expect("no other test sets a subscriber")
    });
    LOGGED.lock().unwrap_or_else(PoisonError::into_inner).clear();
    *OF_SPANS.lock().unwrap_or_else(PoisonError::into_inner) = "";
    guard
}

fn was_logged(text: &str) -> bool {
    let logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
    logged.iter().any(|one| one.contains(text))
}

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

fn app() -> App {
    let panics = || -> &str { panic!("on purpose, in a handler") };
    let keys = |can_be_asked| {
        move |scope: Scope| {
            scope
                .wrap(Idempotency::new(Forgets { can_be_asked }))
                .post("/forgotten", || StatusCode::CREATED)
                .post("/undone", || Problem::overloaded(1))
        }
    };
    App::new()
        .get("/", || "hello")
        .get("/panics", panics)
        .scope("/logged", |scope| {
            scope.wrap(AccessLog::new()).get("/fine", || "hello").get("/panics", panics)
        })
        .scope("/keys", keys(true))
        .scope("/no-keys", keys(false))
}

fn start(driver: DriverChoice, change: impl FnOnce(Server) -> Server) -> Option<RunningServer> {
    let server = Server::bind("127.0.0.1:0").driver(driver).workers(NonZeroUsize::MIN);
    started(change(server).start(app))
}

/// Asserts that the server responds and shuts down cleanly.
fn ends_well(running: RunningServer) {
    assert!(receive(send(&running, GET)).ends_with("\r\n\r\nhello"));
    let stopped = running.graceful_shutdown().expect("the workers shut down cleanly");
    assert!(stopped.workers.iter().all(Option::is_some), "{stopped}");
}

fn connections_are_accepted_when_there_are_descriptors_again(driver: DriverChoice) {
    let _one = begin();
    let Some(running) = start(driver, |server| server) else { return };
    let address = running.http_address().expect("the server has an HTTP listener");
    let sockets: Vec<_> = (0..4)
        .map(|_| Socket::new(Domain::for_address(address), Type::STREAM, None).expect("a socket"))
        .collect();
    let limit = getrlimit(Resource::Nofile);
    let lower = Rlimit { current: Some(DESCRIPTORS_MAX), ..limit };
    setrlimit(Resource::Nofile, lower).expect("a process may lower its own limit");
    let mut hoard = Vec::new();
    while let Ok(file) = File::open("/") {
        hoard.push(file);
    }
    let peers: Vec<TcpStream> = sockets
        .into_iter()
        .map(|socket| {
            socket.connect(&address.into()).expect("the server accepts connections");
            socket.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
            let mut peer = TcpStream::from(socket);
            peer.write_all(GET.as_bytes()).expect("connected");
            peer
        })
        .collect();
    wait_for(|| was_logged("cannot accept"));
    drop(hoard);
    for peer in peers {
        assert!(receive(peer).ends_with("\r\n\r\nhello"));
    }
    setrlimit(Resource::Nofile, limit).expect("the old limit can be restored");
    ends_well(running);
}

fn a_panic_of_a_handler_is_a_500(driver: DriverChoice) {
    let _one = begin();
    let Some(running) = start(driver, |server| server) else { return };
    let answer = receive(send(&running, "GET /panics HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
    assert!(was_logged("a handler panicked"));
    ends_well(running);
}

fn a_panic_below_the_access_log_is_a_500(driver: DriverChoice) {
    let _one = begin();
    let Some(running) = start(driver, |server| server) else { return };
    let get = |path: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        receive(send(&running, head))
    };
    let answer = get("/logged/panics");
    assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
    let answer = get("/logged/fine");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(was_logged("panicked") && was_logged("completed"));
    ends_well(running);
}

fn spans_that_panic_keep_nobody_from_an_answer(driver: DriverChoice) {
    let _one = begin();
    for what in ["new", "enter", "exit", "close"] {
        MADE.store(0, Ordering::Relaxed);
        let Some(running) = start(driver, |server| server) else { return };
        *OF_SPANS.lock().unwrap_or_else(PoisonError::into_inner) = what;
        let answers = receive(send(&running, "GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(2) + GET));
        assert_eq!(answers.matches("HTTP/1.1 200 ").count(), 3, "{what}: {answers}");
        let answer = receive(send(&running, "GET /panics HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert!(answer.starts_with("HTTP/1.1 500 "), "{what}: {answer}");
        ends_well(running);
        assert_eq!(ENTERED.load(Ordering::Relaxed), 0, "{what}: every span was exited");
        // A subscriber may keep a span forever if it panicked while handling it, so no new ones are
        // created for a while.
        let of_all = if matches!(what, "new" | "close") { 1 } else { 5 };
        assert_eq!(MADE.load(Ordering::Relaxed), of_all, "{what}");
    }
}

fn refusals_are_logged_and_nothing_ends(driver: DriverChoice) {
    let _one = begin();
    let Some(running) = start(driver, |server| server) else { return };
    for _ in 0..2 {
        let answer = receive(send(&running, "GET / HTTP/1.1\r\n\r\n"));
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert!(receive(send(&running, GET)).ends_with("\r\n\r\nhello"));
    }
    let misdirected = "GET https://a/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    for _ in 0..2 {
        let answer = receive(send(&running, misdirected));
        assert!(answer.starts_with("HTTP/1.1 421 "), "{answer}");
    }
    wait_for(|| was_logged("were rejected"));
    ends_well(running);
}

/// A store of idempotency keys that is available or not, and never keeps anything.
struct Forgets {
    can_be_asked: bool,
}

impl IdempotencyStore for Forgets {
    async fn claim(
        &self,
        _: &str,
        _: &Fingerprint,
        _: Duration,
    ) -> Result<ClaimResult, IdempotencyStoreError> {
        if self.can_be_asked {
            Ok(ClaimResult::Claimed(1))
        } else {
            Err(IdempotencyStoreError::Full)
        }
    }

    async fn complete(
        &self,
        _: &str,
        _: u64,
        _: IdempotentOutcome,
        _: Duration,
    ) -> Result<(), IdempotencyStoreError> {
        Err(IdempotencyStoreError::Full)
    }

    async fn release(&self, _: &str, _: u64) -> Result<(), IdempotencyStoreError> {
        Err(IdempotencyStoreError::Full)
    }
}

fn requests_whose_keys_cannot_be_kept_are_answered(driver: DriverChoice) {
    let _one = begin();
    let Some(running) = start(driver, |server| server) else { return };
    for (path, status, logged) in [
        ("/keys/forgotten", 201, "could not be stored"),
        ("/keys/undone", 503, "could not be freed"),
        ("/no-keys/forgotten", 503, "could not be looked up"),
    ] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nIdempotency-Key: \"1\"\r\nContent-Length: 0\r\n\r\n"
        );
        let answer = receive(send(&running, head));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
        assert!(was_logged(logged), "{path}");
    }
    ends_well(running);
}

fn certificates_are_read_again(driver: DriverChoice) {
    let _one = begin();
    let folder = tempfile::tempdir().expect("a folder");
    let [certificate, key] = ["certificate.pem", "key.pem"].map(|name| folder.path().join(name));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])
        .expect("a certificate can be generated");
    fs::write(&certificate, made.cert.pem()).expect("a new file");
    fs::write(&key, made.signing_key.serialize_pem()).expect("a new file");
    let tls =
        TlsConfig::from_pem_files(&certificate, &key).expect("the certificate and key are valid");
    let served = tls.clone();
    let Some(running) = start(driver, |server| server.listen_tls("127.0.0.1:0", served)) else {
        return;
    };
    fs::write(&certificate, "no certificate").expect("a file");
    running.handle().reload();
    wait_for(|| tls.status().failed_reloads == 1);
    // Opening a pipe at this path would block.
    fs::remove_file(&certificate).expect("the file exists");
    let made_pipe = std::process::Command::new("mkfifo").arg(&certificate).status();
    assert!(made_pipe.expect("mkfifo is installed").success());
    running.handle().reload();
    wait_for(|| tls.status().failed_reloads == 2);
    fs::remove_file(&certificate).expect("the file exists");
    fs::write(&certificate, made.cert.pem()).expect("a new file");
    running.handle().reload();
    wait_for(|| tls.status().reloads == 1);
    assert!(was_logged("TLS was not reloaded") && was_logged("TLS was reloaded"));
    ends_well(running);
}
