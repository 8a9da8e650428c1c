//! The same with Pebble, Let's Encrypt's test authority. `tests/outside/acme` builds it and runs
//! these tests.

use super::{Program, Serving, app, files, one, wait_until};
use peregrine::acme::{Acme, Challenge};
use peregrine::prelude::*;
use peregrine_tls::rustls::crypto::aws_lc_rs::default_provider;
use peregrine_tls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::json;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The path of the program.
const PEBBLE: &str = "PEBBLE";

/// A running Pebble, and the addresses where it validates names.
pub(crate) struct Pebble {
    process: Child,
    folder: tempfile::TempDir,
    directory: SocketAddr,
    management: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) https: SocketAddr,
}

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|bound| bound.local_addr()).expect("a free port")
}

impl Pebble {
    /// Starts Pebble with this certificate lifetime, and with an external account, if any.
    fn start(life: Duration, external: Option<(&str, &str)>) -> Self {
        let mut attempts = (0..3).map(|_| Self::try_start(life, external));
        attempts.find_map(|pebble| pebble).expect("Pebble starts at one of three attempts")
    }

    /// Returns `None` if Pebble exits, because another process has taken one of its ports.
    fn try_start(life: Duration, external: Option<(&str, &str)>) -> Option<Self> {
        let program = std::env::var_os(PEBBLE).expect("tests/outside/acme says where Pebble is");
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let key = rcgen::KeyPair::generate().expect("the system provides randomness");
        let certificate = parameters.self_signed(&key).expect("signing succeeds");
        std::fs::write(path("root.pem"), certificate.pem()).expect("the buffer has room");
        std::fs::write(path("root.key"), key.serialize_pem()).expect("the buffer has room");
        let [directory, management, http, https] = [(); 4].map(|()| free());
        let keys: serde_json::Map<_, _> =
            external.into_iter().map(|(id, key)| (id.to_owned(), key.into())).collect();
        let config = json!({"pebble": {
            "listenAddress": directory.to_string(),
            "managementListenAddress": management.to_string(),
            "certificate": path("root.pem"),
            "privateKey": path("root.key"),
            "httpPort": http.port(),
            "tlsPort": https.port(),
            "externalAccountBindingRequired": external.is_some(),
            "externalAccountMACKeys": keys,
            "retryAfter": {"authz": 1, "order": 1},
            "keyAlgorithm": "ecdsa",
            "profiles": {"default": {"description": "", "validityPeriod": life.as_secs()}},
        }});
        std::fs::write(path("config.json"), config.to_string()).expect("the buffer has room");
        let log = File::create(path("log")).expect("the buffer has room");
        let process = Command::new(program)
            .arg("-config")
            .arg(path("config.json"))
            .args(["-strict", "-dnsserver", &names().to_string()])
            .env("PEBBLE_VA_NOSLEEP", "1")
            .stdout(log)
            .stderr(Stdio::null())
            .spawn()
            .expect("the process starts");
        let mut pebble = Self { process, folder, directory, management, http, https };
        let mut is_listening = false;
        wait_until("Pebble listens or exits", || {
            is_listening =
                TcpStream::connect(directory).and(TcpStream::connect(management)).is_ok();
            is_listening || pebble.process.try_wait().is_ok_and(|status| status.is_some())
        });
        is_listening.then_some(pebble)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn acme(&self, names: &[&str]) -> Acme {
        Acme::new(names.iter().copied())
            .directory_url(self.url())
            .ca_file(self.path("root.pem"))
            .state_dir(self.path("acme"))
            .contact("admin@example.org")
            .retry_backoff(Duration::from_millis(50), Duration::from_millis(500))
    }

    fn url(&self) -> String {
        format!("https://localhost:{}/dir", self.directory.port())
    }

    /// The issuer's root certificate, in PEM.
    fn root(&self) -> String {
        let text = std::fs::read_to_string(self.path("root.pem")).expect("the file exists");
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(text.as_bytes()).expect("PEM")).expect("a root");
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").expect("a name");
        let client = ClientConnection::new(Arc::new(config), name)
            .expect("the client configuration is valid");
        let stream = TcpStream::connect(self.management).expect("the server accepts connections");
        let mut stream = StreamOwned::new(client, stream);
        let request = b"GET /roots/0 HTTP/1.0\r\nHost: localhost\r\n\r\n";
        stream.write_all(request).expect("the server reads the request");
        let mut text = String::new();
        // Pebble sends no `close_notify`.
        let _ = stream.read_to_string(&mut text);
        text.split_once("\r\n\r\n").expect("a response").1.to_owned()
    }

    /// How many lines of its log contain `text`.
    fn says(&self, text: &str) -> usize {
        let log = std::fs::read_to_string(self.path("log")).expect("the file exists");
        log.lines().filter(|line| line.contains(text)).count()
    }

    /// A server at the given addresses, where Pebble validates names, or elsewhere.
    fn serve(&self, acme: Acme, http: SocketAddr, https: SocketAddr) -> Serving {
        let (tls, handle) = acme.build_with_handle().expect("the configuration is valid");
        let server = Server::bind(http.to_string()).listen_tls(https.to_string(), tls.clone());
        let running = server.workers(one()).admin("127.0.0.1:0").quiet().start(app);
        Serving { running: running.expect("the server starts"), handle, tls }
    }

    /// The process that is killed.
    fn program(&self) -> Program {
        Program::spawn(&self.url(), &self.path("root.pem"), &self.path("acme"), self.https)
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if thread::panicking() {
            let log = std::fs::read_to_string(self.path("log")).unwrap_or_default();
            let last: Vec<_> = log.lines().rev().take(40).collect();
            eprintln!("Pebble's log, last line first:\n{}", last.join("\n"));
        }
    }
}

/// A DNS server over TCP that resolves every name to this machine.
fn names() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let place = listener.local_addr().expect("the socket is bound");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || while name(&stream).is_ok() {});
        }
    });
    place
}

/// Answers one query.
// RFC 1035 §4.1 and §4.2.2.
fn name(mut stream: &TcpStream) -> io::Result<()> {
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut message = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut message)?;
    let end = 12 + message[12..].iter().position(|byte| *byte == 0).unwrap_or(0) + 5;
    let is_address = message[end - 4..end - 2] == [0, 1];
    // The response header, with one answer record; the question; and the address 127.0.0.1.
    let mut answer = message[..2].to_vec();
    answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_address), 0, 0, 0, 0]);
    answer.extend(&message[12..end]);
    if is_address {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 127, 0, 0, 1]);
    }
    stream.write_all(&u16::try_from(answer.len()).expect("the value fits").to_be_bytes())?;
    stream.write_all(&answer)
}

const LONG: Duration = Duration::from_secs(90 * 86_400);

#[test]
#[ignore = "needs Pebble"]
fn pebble_issues_by_both_challenges() {
    let pebble = Pebble::start(LONG, None);
    let root = pebble.root();
    for kind in [Challenge::TlsAlpn01, Challenge::Http01] {
        let name = format!("{kind:?}.example.org").to_ascii_lowercase();
        let acme = pebble.acme(&[&name, "www.example.org"]).challenges(&[kind]);
        let serving = pebble.serve(acme, pebble.http, pebble.https);
        wait_until("the certificates are stored", || {
            serving.handle.status().domains.iter().all(|name| name.not_after.is_some())
        });
        super::shown(serving.https(), &root, &name).expect("the certificate is trusted");
        super::shown(serving.https(), &root, "www.example.org")
            .expect("the certificate is trusted");
        // The second server used the certificates that the first had obtained.
        let status = serving.handle.status();
        assert!(status.issued == if kind == Challenge::TlsAlpn01 { 2 } else { 1 }, "{status:?}");
        // The renewal window is known: about two thirds of 90 days.
        let planned = || {
            let next = serving.handle.status().domains[0].renew_at.expect("a renewal is scheduled");
            next.duration_since(std::time::SystemTime::now()).unwrap_or_default()
        };
        let day = Duration::from_secs(86_400);
        wait_until("the renewal window is known", || (day * 58..day * 62).contains(&planned()));
        serving.running.graceful_shutdown().expect("the shutdown succeeds");
    }
}

#[test]
#[ignore = "needs Pebble"]
fn pebble_renews_what_lives_for_a_short_time_within_its_window() {
    // The window is the whole lifetime.
    let pebble = Pebble::start(Duration::from_secs(20), None);
    let acme = pebble.acme(&["a.example.org"]);
    let serving = pebble.serve(acme, pebble.http, pebble.https);
    // Each renewal at any time within the lifetime of the previous certificate.
    (1..=3).for_each(|count| serving.wait_until_issued(count));
    let status = serving.handle.status();
    assert_eq!(status.failures, 0, "{status:?}");
    super::shown(serving.https(), &pebble.root(), "a.example.org")
        .expect("the certificate is trusted");
}

#[test]
#[ignore = "needs Pebble"]
fn pebble_that_finds_a_stranger_refuses_and_the_other_challenge_is_tried() {
    let pebble = Pebble::start(LONG, None);
    let stranger = TcpListener::bind(pebble.https).expect("the port is free");
    thread::spawn(move || while stranger.accept().is_ok() {});
    let serving = pebble.serve(pebble.acme(&["a.example.org"]), pebble.http, free());
    serving.wait_until_issued(1);
    let status = serving.handle.status();
    assert!(status.failures >= 1, "{status:?}");
    super::shown(serving.https(), &pebble.root(), "a.example.org")
        .expect("the certificate is trusted");
}

#[test]
#[ignore = "needs Pebble"]
fn pebble_is_asked_once_by_instances_that_share_a_folder() {
    let pebble = Pebble::start(LONG, None);
    let first = pebble.serve(pebble.acme(&["a.example.org"]), pebble.http, pebble.https);
    let second = pebble.serve(pebble.acme(&["a.example.org"]), free(), free());
    let has = |serving: &Serving| serving.handle.status().domains[0].not_after.is_some();
    wait_until("both servers have the certificate", || has(&first) && has(&second));
    let root = pebble.root();
    let shown = |serving: &Serving| super::shown(serving.https(), &root, "a.example.org");
    assert_eq!(
        shown(&first).expect("the certificate is trusted"),
        shown(&second).expect("the certificate is trusted")
    );
    assert_eq!(pebble.says("Issued certificate serial"), 1);
}

#[test]
#[ignore = "needs Pebble"]
fn pebble_and_a_process_that_is_killed_at_any_moment_come_to_a_certificate() {
    let pebble = Pebble::start(LONG, None);
    let root = pebble.root();
    let mut kills = 0;
    // A little later each time, until the process finishes first.
    for pause in (0..).map(|step| Duration::from_millis(step * 60)) {
        let program = pebble.program();
        wait_until("the process has started", || !files(&pebble.path("acme")).is_empty());
        thread::sleep(pause);
        drop(program);
        if files(&pebble.path("acme")).contains(&"a.test.pem".to_owned()) {
            break;
        }
        kills += 1;
    }
    assert!(kills > 3, "{kills}");
    let program = pebble.program();
    wait_until("the certificate is served", || {
        super::shown(program.address, &root, "a.test").is_ok()
    });
    // A started order is resumed; an order is lost only if its URL was not stored yet.
    let issued = pebble.says("Issued certificate serial");
    assert!(issued <= 2, "{issued} certificates after {kills} kills");
}

#[test]
#[ignore = "needs Pebble"]
fn pebble_wants_accounts_that_exist_elsewhere() {
    let key = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
    let pebble = Pebble::start(LONG, Some(("kid-1", key)));
    let without = pebble.serve(pebble.acme(&["a.example.org"]), pebble.http, pebble.https);
    wait_until("the order is refused", || without.handle.status().failures >= 1);
    let error = without.handle.status().domains[0].last_error.clone().unwrap_or_default();
    assert!(error.contains("externalAccountRequired"), "{error}");
    without.running.graceful_shutdown().expect("the shutdown succeeds");
    let acme = pebble.acme(&["a.example.org"]).external_account_binding("kid-1", key);
    let with = pebble.serve(acme, pebble.http, pebble.https);
    with.wait_until_issued(1);
}
