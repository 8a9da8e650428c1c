//! A subscriber of several filtered layers, as in programs with one log for people and one for a
//! collector. This needs its own process, because the subscriber is process-wide.

use peregrine::cache::{Idempotency, MemoryIdempotencyStore};
use peregrine::middleware::Timeout;
use peregrine::prelude::*;
use peregrine::{DriverChoice, RunningServer};
use peregrine_tests::client::{receive, send, started, wait_for};
use peregrine_tests::on_both_drivers;
use std::io;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::{EnvFilter, Registry, fmt};

on_both_drivers! { @isolated
    each_layer_has_what_its_filter_lets_through,
    a_handler_that_continues_without_its_client_logs_its_request,
}

/// The lines of two layers: all events, and those of the application and its requests.
static ALL: Mutex<Vec<u8>> = Mutex::new(Vec::new());
static OURS: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Writer(&'static Mutex<Vec<u8>>);

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        locked(self.0).extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn locked<T>(mutex: &'static Mutex<T>) -> MutexGuard<'static, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lines(of: &'static Mutex<Vec<u8>>, text: &str) -> Vec<String> {
    let all = String::from_utf8(locked(of).clone()).expect("text");
    all.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
}

/// Serialises the cases, and installs the subscriber.
fn begin() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    static INSTALLED: Once = Once::new();
    let guard = locked(&ONE_AT_A_TIME);
    INSTALLED.call_once(|| {
        let layer = |of, filter: &str| {
            let layer = fmt::layer().with_ansi(false).with_writer(move || Writer(of));
            layer.with_filter(EnvFilter::new(filter)).boxed()
        };
        let layers = vec![layer(&ALL, "info"), layer(&OURS, "ours=info,peregrine::request=error")];
        let subscriber = Registry::default().with(layers);
        tracing::subscriber::set_global_default(subscriber)
            .expect("no other test sets a subscriber");
    });
    locked(&ALL).clear();
    locked(&OURS).clear();
    guard
}

fn app() -> App {
    let logs = || {
        tracing::info!(target: "ours", "logged");
        "hello"
    };
    let goes_on = |then: fn()| {
        async move || {
            tokio::time::sleep(Duration::from_millis(200)).await;
            then();
        }
    };
    App::new()
        .wrap(SetRequestId::new())
        .wrap(AccessLog::new())
        .get("/logs", logs)
        .get("/says-nothing", || "hello")
        .scope("/keys", |scope| {
            scope
                .wrap(Timeout::new(Duration::from_millis(20)))
                .wrap(Idempotency::new(MemoryIdempotencyStore::new()))
                .post("/pays", goes_on(|| tracing::info!(target: "ours", "paid")))
                .post("/panics", goes_on(|| panic!("on purpose, after the client left")))
        })
}

fn start(driver: DriverChoice) -> Option<RunningServer> {
    let server = Server::bind("127.0.0.1:0").driver(driver).workers(NonZeroUsize::MIN);
    started(server.quiet().start(app))
}

fn each_layer_has_what_its_filter_lets_through(driver: DriverChoice) {
    const REQUESTS: usize = 20;
    let _one = begin();
    let Some(running) = start(driver) else { return };
    let get = |path: &str, last: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\n{last}\r\n");
    let both = get("/logs", "") + &get("/says-nothing", "");
    let answers =
        receive(send(&running, both.repeat(REQUESTS) + &get("/logs", "Connection: close\r\n")));
    assert_eq!(answers.matches("HTTP/1.1 200 ").count(), 2 * REQUESTS + 1);
    running.graceful_shutdown().expect("the shutdown succeeds");
    for (layer, name) in [(&ALL, "all"), (&OURS, "ours")] {
        let logged = lines(layer, "ours: logged");
        assert_eq!(logged.len(), REQUESTS + 1, "{name}: {logged:#?}");
        let is_named = |line: &String| line.contains("request_id=") && line.contains("/logs");
        assert!(logged.iter().all(is_named), "{name}: {logged:#?}");
    }
    assert_eq!(lines(&ALL, "completed").len(), 2 * REQUESTS + 1);
    assert_eq!(lines(&OURS, "").len(), REQUESTS + 1);
}

fn a_handler_that_continues_without_its_client_logs_its_request(driver: DriverChoice) {
    let _one = begin();
    let Some(running) = start(driver) else { return };
    for (path, message) in [("/keys/pays", "paid"), ("/keys/panics", "a handler panicked")] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nIdempotency-Key: \"{path}\"\r\nContent-Length: 0\r\n\r\n"
        );
        let answer = receive(send(&running, head));
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        wait_for(|| !lines(&ALL, message).is_empty());
        let all = lines(&ALL, message);
        assert!(
            all.len() == 1 && all[0].contains(path) && all[0].contains("request_id="),
            "{all:?}"
        );
    }
    running.graceful_shutdown().expect("the shutdown succeeds");
}
