//! Certificates by ACME from a test authority: validated by both challenges, renewed, refused,
//! shared by several instances, and resumed after a process was killed. `tests/outside/acme` does
//! the same with Pebble.
#![cfg(unix)]

mod directory;
mod pebble;

use directory::{Directory, files};
use http::StatusCode;
use peregrine::acme::{Acme, AcmeHandle, Challenge, DirStorage, FailureReason, Storage};
use peregrine::config::ServerConfig;
use peregrine::prelude::*;
use peregrine::tls::{ClientAuth, TlsVersion};
use peregrine::{DriverChoice, Error, RunningServer};
use peregrine_tests::server::authority::Authority;
use peregrine_tls::rustls::crypto::aws_lc_rs::default_provider;
use peregrine_tls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Only a hang takes this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Settings of the child, passed in its environment.
const DIRECTORY: &str = "PEREGRINE_ACME_DIRECTORY";
const ROOT: &str = "PEREGRINE_ACME_ROOT";
const FOLDER: &str = "PEREGRINE_ACME_FOLDER";
const PLACE: &str = "PEREGRINE_ACME_PLACE";

/// The child of a test here; it does nothing unless that test started it.
#[test]
fn the_child_serves_until_it_is_killed() {
    let Ok(url) = std::env::var(DIRECTORY) else { return };
    let path = |name: &str| PathBuf::from(std::env::var_os(name).expect("the variable is set"));
    let acme = Acme::new(["a.test"]).directory_url(url).ca_file(path(ROOT)).state_dir(path(FOLDER));
    let tls = acme.challenges(&[Challenge::TlsAlpn01]).build().expect("the configuration is valid");
    let place = std::env::var(PLACE).expect("the variable is set");
    Server::new()
        .listen_tls(place, tls)
        .workers(one())
        .serve(app)
        .expect("the server shuts down cleanly");
}

fn app() -> App {
    App::new().get("/{*all}", || "the application")
}

fn one() -> NonZeroUsize {
    NonZeroUsize::MIN
}

fn wait_until(description: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "timed out waiting until {description}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn acme(directory: &Directory, names: &[&str]) -> Acme {
    Acme::new(names.iter().copied())
        .directory_url(directory.url())
        .ca_file(directory.root_file())
        .state_dir(directory.folder("acme"))
        .contact("admin@example.org")
        .retry_backoff(Duration::from_millis(20), Duration::from_millis(100))
}

/// A server that obtains certificates, and the handle that changes its names.
struct Serving {
    running: RunningServer,
    handle: AcmeHandle,
    tls: TlsConfig,
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

impl Serving {
    fn start(acme: Acme, directory: &Directory) -> Self {
        Self::with(acme, directory, DriverChoice::Tokio, |tls| tls).expect("tokio runs everywhere")
    }

    fn with(
        acme: Acme,
        directory: &Directory,
        driver: DriverChoice,
        change: impl FnOnce(TlsConfig) -> TlsConfig,
    ) -> Option<Self> {
        let (tls, handle) = acme.build_with_handle().expect("the configuration is valid");
        let tls = change(tls);
        let server = Server::bind("127.0.0.1:0").listen_tls("127.0.0.1:0", tls.clone());
        let server = server.admin("127.0.0.1:0").driver(driver).workers(one()).quiet();
        // The authority does not respond before it knows the server's addresses.
        let mut state = directory.state();
        let running = started(server.start(app))?;
        state.tls = state.tls.or(running.https_address());
        state.http = state.http.or(running.http_address());
        drop(state);
        Some(Self { running, handle, tls })
    }

    fn https(&self) -> SocketAddr {
        self.running.https_address().expect("the server has an HTTPS listener")
    }

    /// The certificate that a client gets for `name`.
    fn shown(&self, directory: &Directory, name: &str) -> io::Result<CertificateDer<'static>> {
        shown(self.https(), &directory.state().root, name)
    }

    fn wait_until_issued(&self, count: u64) {
        wait_until("the certificate is issued", || self.handle.status().issued >= count);
    }

    /// The metrics page of the admin listener.
    fn metrics(&self) -> String {
        let place =
            self.running.admin_address().expect("the server has an admin listener").to_string();
        let mut stream = TcpStream::connect(place).expect("the server accepts connections");
        let request = b"GET /metrics HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n";
        stream.write_all(request).expect("the server reads the request");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("the server responds");
        text
    }
}

fn shown(place: SocketAddr, root: &str, name: &str) -> io::Result<CertificateDer<'static>> {
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(root.as_bytes()).map_err(io::Error::other)?;
    roots.add(root).map_err(io::Error::other)?;
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
    let client = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let stream = TcpStream::connect(place)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut stream = StreamOwned::new(client, stream);
    stream.write_all(b"GET /x HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    assert!(text.ends_with("the application"), "{text}");
    Ok(stream.conn.peer_certificates().expect("the handshake is complete")[0].clone().into_owned())
}

macro_rules! on_both_drivers {
    ($($case:ident,)*) => {
        mod on_tokio {
            $(#[test] fn $case() { super::$case(super::DriverChoice::Tokio); })*
        }
        #[cfg(target_os = "linux")]
        mod on_uring {
            $(#[test] fn $case() { super::$case(super::DriverChoice::Uring); })*
        }
    };
}

on_both_drivers! {
    names_are_checked_by_tls_and_by_http_and_their_certificates_are_served,
    an_instance_that_did_not_order_answers_for_the_one_that_did,
    a_server_made_of_a_file_gets_the_certificates_that_it_names,
}

fn names_are_checked_by_tls_and_by_http_and_their_certificates_are_served(driver: DriverChoice) {
    for kind in [Challenge::TlsAlpn01, Challenge::Http01] {
        let directory = Directory::new();
        let acme = acme(&directory, &["a.test", "b.test"]).challenges(&[kind]);
        // The authority's validation has no client certificate, application protocol or old TLS
        // version, but must still succeed.
        let clients = Authority::new("clients");
        let file = directory.folder("clients.pem");
        std::fs::write(&file, &clients.certificate).expect("the folder exists");
        let narrow = |tls: TlsConfig| {
            let tls = tls.with_alpn(&[b"http/1.1"]).with_min_version(TlsVersion::Tls13);
            let auth = ClientAuth::optional().roots_file(&file);
            tls.and_then(|tls| tls.with_client_auth(auth))
                .expect("client authentication can be set")
        };
        let Some(serving) = Serving::with(acme, &directory, driver, narrow) else { return };
        serving.wait_until_issued(2);
        for name in ["a.test", "b.test"] {
            serving.shown(&directory, name).expect("the certificate is trusted");
        }
        let orders = directory.state().orders.clone();
        for order in &orders {
            let label = if kind == Challenge::Http01 { "http-01" } else { "tls-alpn-01" };
            assert_eq!(order.checked, [(label.to_owned(), Ok(()))]);
        }
        // There is one account for all names, and only its owner can read the stored files.
        let accounts = directory.state().asked.iter().filter(|what| *what == "account").count();
        assert_eq!((orders.len(), accounts), (2, 1));
        let kept = files(&directory.folder("acme"));
        assert_eq!(kept, {
            let all = ["a.test.pem", "account.json", "answers.json", "b.test.pem", "lock"];
            [&all[..], &["lock.guard"]].concat()
        });
        // The challenges are no longer answered.
        let challenges =
            serving.tls.challenges().expect("the TLS configuration answers challenges");
        assert!(!challenges.has_http01());
        let text = serving.metrics();
        for line in [
            "peregrine_acme_orders_total{result=\"issued\"} 2",
            "peregrine_acme_orders_total{result=\"failed\"} 0",
            "peregrine_acme_errors_total{reason=\"challenge\"} 0",
            "peregrine_acme_panics_total 0",
            "peregrine_acme_failures{name=\"a.test\"} 0",
            "peregrine_acme_next_order_timestamp_seconds{name=\"b.test\"} ",
            "peregrine_tls_certificate_expiry_timestamp_seconds{certificate=\"a.test\"} ",
        ] {
            assert!(text.contains(line), "{line} {text}");
        }
        serving.running.graceful_shutdown().expect("the shutdown succeeds");
    }
}

fn an_instance_that_did_not_order_answers_for_the_one_that_did(driver: DriverChoice) {
    for kind in [Challenge::TlsAlpn01, Challenge::Http01] {
        let directory = Directory::new();
        let with = |names: &[&str]| {
            let acme = acme(&directory, names).challenges(&[kind]);
            Serving::with(acme, &directory, driver, |tls| tls)
        };
        // The authority validates names at the first server, starting with its first order.
        let Some(asked) = with(&["a.test"]) else { return };
        asked.wait_until_issued(1);
        let ordering = with(&["b.test", "c.test"]).expect("the driver is there");
        ordering.wait_until_issued(2);
        assert_eq!(ordering.handle.status().failures, 0, "{kind:?}");
        ordering.shown(&directory, "b.test").expect("the certificate is trusted");
        // A used challenge is not answered any more, and unknown tokens go to the application.
        let http = asked.running.http_address().expect("the server has an HTTP listener");
        for token in ["token-1_of-the-test", "garbage", "a/path"] {
            let refused = directory::by_http(http, "b.test", token, "")
                .expect_err("the challenge response is gone");
            assert!(refused.to_string().ends_with("the application"), "{refused}");
        }
        assert!(directory::by_tls(asked.https(), "b.test", "").is_err());
        asked.shown(&directory, "a.test").expect("clients are served as before");
        let folder = directory.folder("acme");
        let left = std::fs::read_to_string(find(&folder, "answers.json")).expect("the file exists");
        assert_eq!(left, "[]");
    }
}

fn a_server_made_of_a_file_gets_the_certificates_that_it_names(driver: DriverChoice) {
    let directory = Directory::new();
    let file = directory.folder("app.toml");
    let text = format!(
        "[listeners.secure]\naddress = '127.0.0.1:0'\nhttps = true\n\
         [tls.acme]\ndomains = ['a.test', 'b.test']\ncontacts = ['admin@example.org']\n\
         directory_url = '{}'\nca_files = ['{}']\nstate_dir = '{}'\nchallenges = ['tls-alpn-01']\n",
        directory.url(),
        directory.root_file().display(),
        directory.folder("acme").display(),
    );
    std::fs::write(&file, text).expect("the folder exists");
    let config = ServerConfig::load(&file).expect("the configuration is valid");
    let server = Server::from_config(config).expect("the configuration is valid");
    let Some(running) = started(server.driver(driver).workers(one()).quiet().start(app)) else {
        return;
    };
    let place = running.https_address().expect("the server has an HTTPS listener");
    directory.state().tls = Some(place);
    wait_until("both certificates are issued", || directory.issued() == 2);
    let root = directory.state().root.clone();
    for name in ["a.test", "b.test"] {
        wait_until("the certificate is served", || shown(place, &root, name).is_ok());
    }
    running.graceful_shutdown().expect("the shutdown succeeds");
}

#[test]
fn a_stored_certificate_is_served_at_once_though_its_authority_is_gone() {
    let mut directory = Directory::new();
    let first = Serving::start(acme(&directory, &["a.test"]), &directory);
    first.wait_until_issued(1);
    let shown = first.shown(&directory, "a.test").expect("the certificate is trusted");
    first.running.graceful_shutdown().expect("the shutdown succeeds");
    directory.leave();
    let next = Serving::start(acme(&directory, &["a.test"]), &directory);
    assert_eq!(next.shown(&directory, "a.test").expect("the certificate is trusted"), shown);
    assert_eq!(next.handle.status().issued, 0);
}

#[test]
fn without_any_certificate_handshakes_are_refused_and_the_server_goes_on() {
    let mut directory = Directory::new();
    directory.leave();
    let serving = Serving::start(acme(&directory, &["a.test"]), &directory);
    assert!(serving.shown(&directory, "a.test").is_err());
    wait_until("two attempts have failed", || serving.handle.status().domains[0].failures >= 2);
    let status = serving.handle.status();
    assert!(status.failures >= 2, "{status:?}");
    let error = status.domains[0].last_error.as_deref();
    assert!(error.is_some_and(|error| error.contains("localhost:")), "{error:?}");
    let mut plain = TcpStream::connect(
        serving.running.http_address().expect("the server has an HTTP listener"),
    )
    .expect("the server accepts connections");
    plain.write_all(b"GET /x HTTP/1.0\r\n\r\n").expect("the server reads the request");
    let mut text = String::new();
    plain.read_to_string(&mut text).expect("the server responds");
    assert!(text.ends_with("the application"), "{text}");
}

#[test]
fn a_certificate_is_renewed_when_its_authority_says_so_and_the_order_names_the_replaced_one() {
    let directory = Directory::new();
    directory.state().impatient_below = 2;
    let serving = Serving::start(acme(&directory, &["a.test"]), &directory);
    serving.wait_until_issued(2);
    let orders = directory.state().orders.clone();
    let replaces: Vec<_> = orders.iter().map(|order| order.replaces.is_some()).collect();
    assert_eq!(replaces, [false, true]);
    // The current certificate is kept until shortly before it expires in 2090.
    let status = serving.handle.status();
    wait_until("the renewal window is known", || {
        directory.state().asked.last().is_some_and(|a| a == "window")
    });
    assert_eq!((status.issued, status.failures), (2, 0));
    serving.shown(&directory, "a.test").expect("the certificate is trusted");
}

#[test]
fn without_windows_it_is_renewed_when_two_thirds_of_its_life_are_over() {
    let directory = Directory::new();
    {
        let mut state = directory.state();
        (state.has_no_windows, state.life) = (true, Duration::from_secs(6));
    }
    let serving = Serving::start(acme(&directory, &["a.test"]), &directory);
    serving.wait_until_issued(1);
    let first = serving.shown(&directory, "a.test").expect("the certificate is trusted");
    serving.wait_until_issued(2);
    assert_ne!(serving.shown(&directory, "a.test").expect("the certificate is trusted"), first);
    assert_eq!(serving.handle.status().failures, 0);
}

#[test]
fn after_a_failure_the_other_challenge_is_tried_and_the_present_certificate_stays() {
    let directory = Directory::new();
    // The host that the authority reaches over TLS at this address is not the server.
    let stranger = TcpListener::bind("127.0.0.1:0").expect("a free port");
    directory.state().tls = Some(stranger.local_addr().expect("the socket is bound"));
    thread::spawn(move || while stranger.accept().is_ok() {});
    let serving = Serving::start(acme(&directory, &["a.test"]), &directory);
    serving.wait_until_issued(1);
    let status = serving.handle.status();
    assert_eq!((status.failures, status.domains[0].failures), (1, 0));
    let first = serving.shown(&directory, "a.test").expect("the certificate is trusted");
    let kinds: Vec<_> = {
        let state = directory.state();
        state.orders.iter().map(|order| order.checked[0].0.clone()).collect()
    };
    assert_eq!(kinds, ["tls-alpn-01", "http-01"]);
    // Now every validation fails.
    {
        let mut state = directory.state();
        state.http = state.tls;
    }
    assert!(serving.handle.renew("a.test") && !serving.handle.renew("b.test"));
    wait_until("the renewal has failed", || serving.handle.status().failures >= 3);
    let error =
        serving.handle.status().domains[0].last_error.clone().expect("the last attempt failed");
    assert!(error.contains("unauthorized") && error.contains("443"), "{error}");
    assert_eq!(serving.shown(&directory, "a.test").expect("the certificate is trusted"), first);
}

#[test]
fn instances_that_share_a_folder_order_once() {
    let directory = Directory::new();
    let all: Vec<_> = (0..3)
        .map(|_| {
            let acme = acme(&directory, &["a.test", "b.test"]);
            // The authority reaches only one of the instances, which answers for the others.
            Serving::start(acme, &directory)
        })
        .collect();
    wait_until("all instances have certificates", || {
        all.iter().all(|serving| {
            let status = serving.handle.status();
            status.domains.iter().all(|name| name.not_after.is_some())
        })
    });
    for name in ["a.test", "b.test"] {
        let shown: Vec<_> = all
            .iter()
            .map(|serving| serving.shown(&directory, name).expect("the certificate is trusted"))
            .collect();
        assert!(shown.iter().all(|other| *other == shown[0]), "{name}");
    }
    let sum = |of: fn(&peregrine::acme::AcmeStatus) -> u64| -> u64 {
        all.iter().map(|serving| of(&serving.handle.status())).sum()
    };
    assert_eq!(sum(|status| status.issued), directory.issued() as u64);
    assert_eq!(sum(|status| status.issued) + sum(|status| status.adopted), 6);
    assert_eq!(directory.issued(), 2);
}

#[test]
fn names_come_and_go_while_the_server_runs() {
    let directory = Directory::new();
    let serving = Serving::start(acme(&directory, &["a.test"]), &directory);
    serving.wait_until_issued(1);
    let handle = serving.handle.clone();
    assert!(
        handle.add_domain("B.test").expect("the name is valid")
            && !handle.add_domain("b.test").expect("the name is valid")
    );
    assert!(handle.add_domain("no name").is_err());
    serving.wait_until_issued(2);
    serving.shown(&directory, "b.test").expect("the certificate is trusted");
    assert!(handle.remove_domain("b.test") && !handle.remove_domain("b.test"));
    // Clients that request the removed name get the other certificate, which is not valid for it.
    wait_until("the certificate is gone", || serving.shown(&directory, "b.test").is_err());
    // The stored certificate is used again.
    assert!(handle.add_domain("b.test").expect("the name is valid"));
    wait_until("the certificate is back", || serving.shown(&directory, "b.test").is_ok());
    assert_eq!(directory.issued(), 2);
    // The last name may be removed as well.
    assert!(handle.remove_domain("a.test") && handle.remove_domain("b.test"));
    wait_until("no certificate is served", || serving.tls.status().certificates.is_empty());
}

/// A process that obtains a certificate.
struct Program {
    process: Child,
    address: SocketAddr,
}

impl Program {
    fn start(directory: &Directory) -> Self {
        // The authority does not respond before it knows the server's addresses.
        let mut state = directory.state();
        let folder = directory.folder("acme");
        let place = SocketAddr::from(([127, 0, 0, 1], 0));
        let program = Self::spawn(directory.url(), &directory.root_file(), &folder, place);
        state.tls = Some(program.address);
        program
    }

    fn spawn(url: &str, root: &Path, folder: &Path, place: SocketAddr) -> Self {
        let mut process =
            Command::new(std::env::current_exe().expect("the current executable has a path"))
                .args(["--exact", "acme::the_child_serves_until_it_is_killed", "--nocapture"])
                .env(DIRECTORY, url)
                .env(ROOT, root)
                .env(FOLDER, folder)
                .env(PLACE, place.to_string())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .expect("a process can be started");
        let mut errors = BufReader::new(process.stderr.take().expect("the stream is piped"));
        let mut first = String::new();
        while !first.contains("peregrine 0.1.0") {
            first.clear();
            assert!(errors.read_line(&mut first).expect("text") > 0, "the process prints nothing");
        }
        thread::spawn(move || io::copy(&mut errors, &mut io::sink()));
        let (_, rest) = first.split_once("https://").expect("an address");
        let address = rest
            .split(';')
            .next()
            .expect("split yields at least one item")
            .parse()
            .expect("an address");
        Self { process, address }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn an_order_of_a_process_that_was_killed_is_gone_on_with() {
    let directory = Directory::new();
    directory.state().is_holding = true;
    let program = Program::start(&directory);
    wait_until("the certificate is signed", || directory.issued() == 1);
    drop(program);
    let kept = files(&directory.folder("acme"));
    assert!(kept.contains(&"a.test.order.json".to_owned()) && !kept.contains(&"a.test.pem".into()));
    directory.state().is_holding = false;
    let program = Program::start(&directory);
    let root = directory.state().root.clone();
    wait_until("the certificate is served", || shown(program.address, &root, "a.test").is_ok());
    assert_eq!(directory.state().orders.len(), 1, "nothing was ordered twice");
    wait_until("the certificate is stored", || {
        files(&directory.folder("acme")).contains(&"a.test.pem".to_owned())
    });
    wait_until("the order is forgotten", || {
        !files(&directory.folder("acme")).contains(&"a.test.order.json".to_owned())
    });
}

#[test]
fn a_server_that_ends_leaves_its_order_to_the_next_and_frees_the_lock() {
    let directory = Directory::new();
    directory.state().is_holding = true;
    let first = Serving::start(acme(&directory, &["a.test"]), &directory);
    wait_until("the certificate is signed", || directory.issued() == 1);
    let challenges =
        Arc::clone(first.tls.challenges().expect("the TLS configuration answers challenges"));
    first.running.graceful_shutdown().expect("the shutdown succeeds");
    assert!(!challenges.has_http01());
    directory.state().is_holding = false;
    let next = Serving::start(acme(&directory, &["a.test"]), &directory);
    next.wait_until_issued(1);
    next.shown(&directory, "a.test").expect("the certificate is trusted");
    assert_eq!(directory.state().orders.len(), 1, "nothing was ordered twice");
}

#[test]
fn an_order_whose_certificate_is_of_no_use_is_not_gone_on_with() {
    let directory = Directory::new();
    directory.state().mistaken_below = 1;
    let serving = Serving::start(acme(&directory, &["a.test"]), &directory);
    serving.wait_until_issued(1);
    serving.shown(&directory, "a.test").expect("the certificate is trusted");
    assert_eq!((directory.state().orders.len(), serving.handle.status().failures), (2, 1));
}

/// A storage folder that is full, for certificates or for everything.
struct Full {
    folder: DirStorage,
    is_full: Arc<AtomicBool>,
    only: &'static str,
}

impl Storage for Full {
    fn load(&self, key: &str) -> io::Result<Option<Vec<u8>>> {
        self.folder.load(key)
    }

    fn store(&self, key: &str, value: &[u8]) -> io::Result<()> {
        if key.ends_with(self.only) && self.is_full.load(Ordering::Acquire) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.folder.store(key, value)
    }

    fn remove(&self, key: &str) -> io::Result<()> {
        self.folder.remove(key)
    }

    fn try_lock(&self, key: &str, lease: Duration) -> io::Result<Option<Box<dyn Send>>> {
        self.folder.try_lock(key, lease)
    }
}

/// A storage folder whose operations panic every other time.
struct Panicking {
    folder: DirStorage,
    calls: AtomicUsize,
    is_sound: Arc<AtomicBool>,
}

impl Panicking {
    fn folder(&self) -> &DirStorage {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        assert!(call % 2 == 1 || self.is_sound.load(Ordering::Acquire), "on purpose");
        &self.folder
    }
}

impl Storage for Panicking {
    fn load(&self, key: &str) -> io::Result<Option<Vec<u8>>> {
        self.folder().load(key)
    }

    fn store(&self, key: &str, value: &[u8]) -> io::Result<()> {
        self.folder().store(key, value)
    }

    fn remove(&self, key: &str) -> io::Result<()> {
        self.folder().remove(key)
    }

    fn try_lock(&self, key: &str, lease: Duration) -> io::Result<Option<Box<dyn Send>>> {
        self.folder().try_lock(key, lease)
    }
}

#[test]
fn a_storage_that_panics_has_failed_and_is_asked_again() {
    let directory = Directory::new();
    let is_sound = Arc::new(AtomicBool::new(true));
    let folder = DirStorage::new(directory.folder("acme"));
    let storage = Panicking { folder, calls: AtomicUsize::new(0), is_sound: Arc::clone(&is_sound) };
    let acme = acme(&directory, &["a.test"]).storage(storage);
    // The folder was usable at the start.
    let (tls, handle) = acme.build_with_handle().expect("the configuration is valid");
    is_sound.store(false, Ordering::Release);
    let server = Server::bind("127.0.0.1:0").listen_tls("127.0.0.1:0", tls.clone());
    let mut state = directory.state();
    let running = server.admin("127.0.0.1:0").workers(one()).quiet().start(app);
    let serving = Serving { running: running.expect("the server starts"), handle, tls };
    (state.tls, state.http) = (Some(serving.https()), serving.running.http_address());
    drop(state);
    wait_until("an attempt has failed and one has panicked", || {
        let status = serving.handle.status();
        status.failures >= 2 && status.panics >= 3
    });
    let status = serving.handle.status();
    assert!(status.failures_by_reason.contains_key(&FailureReason::Storage), "{status:?}");
    let text = serving.metrics();
    assert!(text.contains("peregrine_acme_panics_total ") && !text.contains("_panics_total 0"));
    is_sound.store(true, Ordering::Release);
    serving.wait_until_issued(1);
    serving.shown(&directory, "a.test").expect("the certificate is trusted");
}

#[test]
fn a_certificate_that_cannot_be_stored_is_served_and_nothing_is_ordered_for_nothing() {
    for (only, orders) in [(".pem", 1), ("", 0)] {
        let directory = Directory::new();
        let is_full = Arc::new(AtomicBool::new(true));
        let folder = DirStorage::new(directory.folder("acme"));
        let full = Full { folder, is_full: Arc::clone(&is_full), only };
        let acme = acme(&directory, &["a.test"]).storage(full);
        let serving = Serving::start(acme, &directory);
        if orders == 1 {
            serving.wait_until_issued(1);
            serving.shown(&directory, "a.test").expect("the certificate is trusted");
            assert!(!files(&directory.folder("acme")).contains(&"a.test.pem".to_owned()));
        } else {
            wait_until("an attempt has failed", || serving.handle.status().failures >= 2);
            assert_eq!(directory.issued(), 0);
            // The folder has room again.
            is_full.store(false, Ordering::Release);
            serving.wait_until_issued(1);
        }
        assert!(directory.issued() == 1);
    }
}

fn in_an_hour() -> String {
    let at = std::time::SystemTime::now() + Duration::from_secs(3_600);
    httpdate::fmt_http_date(at)
}

#[test]
fn an_authority_that_asks_for_patience_gets_it() {
    const BUSY: StatusCode = StatusCode::TOO_MANY_REQUESTS;
    const OUT_OF_ORDER: StatusCode = StatusCode::SERVICE_UNAVAILABLE;
    for (status, patience, orders) in [
        (BUSY, "3600".to_owned(), 2),
        (BUSY, in_an_hour(), 2),
        // After this error, no further requests are sent either.
        (OUT_OF_ORDER, "3600".to_owned(), 1),
        (OUT_OF_ORDER, "18446744073709551615".to_owned(), 1),
        (BUSY, "99999999999999999999999".to_owned(), 2),
    ] {
        let directory = Directory::new();
        directory.state().is_busy = Some((status, patience.clone()));
        let serving = Serving::start(acme(&directory, &["a.test", "b.test"]), &directory);
        wait_until("the attempts have failed", || serving.handle.status().failures >= orders);
        // An immediate retry would have happened by now.
        thread::sleep(Duration::from_millis(400));
        let found = serving.handle.status();
        assert_eq!((found.failures, found.panics), (orders, 0), "{patience} {found:?}");
        assert_eq!(
            found.failures_by_reason.get(&FailureReason::RateLimited),
            Some(&orders),
            "{found:?}"
        );
        let asked = directory.state().asked.iter().filter(|what| *what == "new-order").count();
        assert_eq!(asked as u64, orders, "{patience}");
        let next = found.domains[0].renew_at.expect("a renewal is scheduled");
        let left = next
            .duration_since(std::time::SystemTime::now())
            .expect("the renewal is in the future");
        let bounds = Duration::from_secs(3_000)..Duration::from_secs(86_401);
        assert!(bounds.contains(&left), "{patience} {left:?}");
        // An explicit call may retry earlier.
        directory.state().is_busy = None;
        assert!(serving.handle.renew("a.test"));
        serving.wait_until_issued(1);
    }
}

#[test]
fn an_order_that_takes_its_time_is_asked_for_when_its_authority_says_so() {
    let directory = Directory::new();
    directory.state().is_slow = Some(2);
    let serving = Serving::start(acme(&directory, &["a.test"]), &directory);
    serving.wait_until_issued(1);
    let asked = directory.state().asked.clone();
    let finalized =
        asked.iter().position(|what| what == "finalize").expect("the order was finalized");
    let after = asked[finalized..].iter().filter(|what| *what == "order").count();
    assert_eq!(after, 1, "{asked:?}");
    assert_eq!(serving.handle.status().failures, 0);
}

#[test]
fn an_authority_that_has_forgotten_the_account_is_given_another_one_at_once() {
    let directory = Directory::new();
    let serving = Serving::start(acme(&directory, &["a.test"]), &directory);
    serving.wait_until_issued(1);
    directory.state().accounts[0] = None;
    assert!(serving.handle.renew("a.test"));
    serving.wait_until_issued(2);
    assert_eq!(serving.handle.status().failures, 0);
    // Another instance that still has the old certificate takes the new one from the storage.
    let other = Serving::start(acme(&directory, &["b.test"]), &directory);
    other.wait_until_issued(1);
    assert_eq!(directory.state().accounts.len(), 2);
    directory.state().accounts[1] = None;
    assert!(serving.handle.renew("a.test"));
    serving.wait_until_issued(3);
    assert!(other.handle.renew("b.test"));
    other.wait_until_issued(2);
    assert_eq!(directory.state().accounts.len(), 3);
}

#[test]
fn an_account_follows_the_settings() {
    let directory = Directory::new();
    let contacts = || {
        let state = directory.state();
        let account =
            state.accounts.last().expect("an account exists").as_ref().expect("the account exists");
        (state.accounts.len(), account.contacts.to_string(), account.external.clone())
    };
    let serve = |acme: Acme, count| {
        let serving = Serving::start(acme, &directory);
        serving.wait_until_issued(count);
        assert_eq!(serving.handle.status().failures, 0);
        serving.running.graceful_shutdown().expect("the shutdown succeeds");
        // The next server has another address.
        let mut state = directory.state();
        (state.tls, state.http) = (None, None);
    };
    serve(acme(&directory, &["a.test"]), 1);
    assert_eq!(contacts(), (1, r#"["mailto:admin@example.org"]"#.to_owned(), None));
    // One more name, for which the same account is updated once.
    for name in ["b.test", "c.test"] {
        serve(acme(&directory, &[name]).contact("other@example.org"), 1);
        let expected = r#"["mailto:admin@example.org","mailto:other@example.org"]"#;
        assert_eq!(contacts(), (1, expected.to_owned(), None));
    }
    let asked = directory.state().asked.iter().filter(|what| *what == "account").count();
    assert_eq!(asked, 2, "once to create it, and once to update it");
    // An account is bound to an external one when it is created.
    for (id, number) in [("kid-1", 2), ("kid-1", 2), ("kid-2", 3)] {
        let name = format!("{id}-{number}-{}.test", directory.issued());
        serve(acme(&directory, &[&name]).external_account_binding(id, "c2VjcmV0"), 1);
        let (count, _, external) = contacts();
        assert_eq!((count, external.as_deref()), (number, Some(id)));
    }
}

#[test]
fn half_of_a_certificate_in_the_folder_is_none() {
    let directory = Directory::new();
    let first = Serving::start(acme(&directory, &["a.test"]), &directory);
    first.wait_until_issued(1);
    first.running.graceful_shutdown().expect("the shutdown succeeds");
    let path = find(&directory.folder("acme"), "a.test.pem");
    let whole = std::fs::read(&path).expect("the file exists");
    std::fs::write(&path, &whole[..whole.len() / 2]).expect("the file is writable");
    // The next server has another address.
    {
        let mut state = directory.state();
        (state.tls, state.http) = (None, None);
    }
    let next = Serving::start(acme(&directory, &["a.test"]), &directory);
    // The damaged file is not used.
    next.wait_until_issued(1);
    next.shown(&directory, "a.test").expect("the certificate is trusted");
}

fn find(folder: &Path, name: &str) -> PathBuf {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    let paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    let below = paths.iter().filter(|path| path.is_dir()).map(|folder| folder.join(name));
    below.into_iter().find(|path| path.exists()).expect("one of the paths exists")
}
