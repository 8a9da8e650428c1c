//! A server that cannot start completely does not start at all.

use peregrine::prelude::*;
use peregrine::{DriverChoice, Error, RunningServer, Server};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const WORKERS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(30);

/// Starts a server whose workers have the same application, except that the last one created has
/// conflicting routes. `dropped` counts dropped applications.
fn start(
    driver: DriverChoice,
    listener: TcpListener,
    dropped: &Arc<AtomicUsize>,
) -> Result<RunningServer, Error> {
    let made = Arc::new(AtomicUsize::new(0));
    let dropped = Arc::clone(dropped);
    let workers = NonZeroUsize::new(WORKERS).expect("the value is not zero");
    let server = Server::new().driver(driver).workers(workers).listen_socket(listener).quiet();
    server.start(move || {
        let counted = Counted(Arc::clone(&dropped));
        let app = App::new().get("/", move || {
            let _ = &counted;
            "hello"
        });
        match made.fetch_add(1, Ordering::SeqCst) + 1 {
            WORKERS => app.get("/", || "hello again"),
            _ => app,
        }
    })
}

/// Counts its drop.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn wait_until(description: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "timed out waiting until {description}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn is_refused(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_err()
}

fn one_worker_that_cannot_begin_ends_the_others(driver: DriverChoice) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("the socket is bound");
    let dropped = Arc::new(AtomicUsize::new(0));
    match start(driver, listener, &dropped) {
        Err(Error::Driver { cause, .. }) => {
            eprintln!("skipped: {cause}");
            return;
        }
        Err(Error::Build(error)) => assert!(error.to_string().contains("GET /"), "{error}"),
        Err(error) => panic!("an error other than the application's: {error}"),
        Ok(_) => panic!("one of the workers has no application"),
    }
    wait_until("the listener is closed", || is_refused(address));
    wait_until("every application is dropped", || dropped.load(Ordering::SeqCst) == WORKERS);
}

#[test]
fn one_worker_that_cannot_begin_ends_the_others_on_tokio() {
    one_worker_that_cannot_begin_ends_the_others(DriverChoice::Tokio);
}

#[test]
fn one_worker_that_cannot_begin_ends_the_others_on_uring() {
    one_worker_that_cannot_begin_ends_the_others(DriverChoice::Uring);
}

#[test]
fn a_server_may_offer_http2_only() {
    let certificate = peregrine::tls::TlsConfig::self_signed(&["localhost"])
        .expect("the self-signed certificate is generated synchronously");
    let tls = certificate.tls.with_alpn(&[b"h2"]);
    let running = Server::new().listen_tls("127.0.0.1:0", tls).quiet().start(App::new);
    drop(running.expect("the server has an HTTPS listener"));
}
