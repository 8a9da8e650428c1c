//! Certificates of a running server: replaced by a signal, by a call and by changed files, under
//! load, and the log messages about them. Also what OpenSSL clients get that request weak TLS.
#![cfg(unix)]

use peregrine::prelude::*;
use peregrine::tls::{Certificate, TicketKeys, TlsStatus, TlsWarning};
use peregrine::{DriverChoice, Error, RunningServer};
use peregrine_tests::server::authority::{Authority, Identity, LONG_AFTER};
use peregrine_tls::rustls::{ClientConfig, ClientConnection, StreamOwned, version};
use rustix::process::{Pid, Signal, kill_process};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// Only a hang takes this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// The folder of the child's certificate, in its environment.
const FOLDER: &str = "PEREGRINE_CERTIFICATES_FOLDER";
/// The child's task besides serving.
const MODE: &str = "PEREGRINE_CERTIFICATES_MODE";

/// The child of tests here; it does nothing unless one of them started it.
#[test]
fn the_child_serves_until_it_is_told_to_end() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    tracing_subscriber::fmt().with_ansi(false).with_writer(io::stderr).init();
    let mode = std::env::var(MODE).expect("the variable is set");
    let server = Server::new().workers(two());
    let server = if mode == "plain" {
        server.listen("127.0.0.1:0")
    } else {
        let tls = TlsConfig::from_pem_files(folder.join("tls.crt"), folder.join("tls.key"));
        let tls = tls.expect("the certificate is valid");
        server.listen_tls(
            "127.0.0.1:0",
            if mode == "key-log" {
                tls.with_key_log().expect("the configuration manages its key log")
            } else {
                tls
            },
        )
    };
    server.serve(app).expect("the server shuts down cleanly");
}

fn app() -> App {
    App::new().get("/", || "hello")
}

fn two() -> NonZeroUsize {
    NonZeroUsize::new(2).expect("the value is not zero")
}

fn drivers() -> impl Iterator<Item = &'static str> {
    std::iter::once("tokio").chain(cfg!(target_os = "linux").then_some("auto"))
}

/// A server process, and its output.
struct Program {
    process: Child,
    errors: BufReader<std::process::ChildStderr>,
    address: SocketAddr,
    /// The lines printed before the last line that was waited for.
    skipped: String,
}

impl Program {
    fn start(driver: &str, mode: &str, folder: &Path) -> Self {
        let mut process =
            Command::new(std::env::current_exe().expect("the current executable has a path"))
                .args([
                    "--exact",
                    "certificates::the_child_serves_until_it_is_told_to_end",
                    "--nocapture",
                ])
                .env(FOLDER, folder)
                .env(MODE, mode)
                .env("PEREGRINE_DRIVER", driver)
                .env("SSLKEYLOGFILE", folder.join("keys.log"))
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .expect("a process can be started");
        let errors = BufReader::new(process.stderr.take().expect("the stream is piped"));
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut program = Self { process, errors, address, skipped: String::new() };
        let first = program.says("peregrine 0.1.0");
        let (_, rest) = first.split_once("://").expect("an address");
        program.address = rest
            .split(';')
            .next()
            .expect("split yields at least one item")
            .parse()
            .expect("an address");
        program
    }

    /// Reads lines up to one that contains `text`, and returns that line.
    fn says(&mut self, text: &str) -> String {
        let mut all = String::new();
        loop {
            let start = all.len();
            let length = self.errors.read_line(&mut all).expect("text");
            assert!(length > 0, "never printed {text:?}, but:\n{all}");
            if all[start..].contains(text) {
                let line = all.split_off(start);
                self.skipped.push_str(&all);
                return line;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("the process is running");
    }

    fn ends(mut self) -> (ExitStatus, String) {
        let end = Instant::now() + PATIENCE;
        while self.process.try_wait().expect("the process is a child of this one").is_none() {
            assert!(Instant::now() < end, "the process does not exit");
            thread::sleep(Duration::from_millis(10));
        }
        let mut rest = String::new();
        self.errors.read_to_string(&mut rest).expect("text");
        (self.process.wait().expect("the process exits"), rest)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A folder with a certificate that is changed.
struct Folder {
    folder: tempfile::TempDir,
    authority: Authority,
}

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { folder, authority: Authority::new("servers") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn issue(&self, name: &str) -> Identity {
        self.authority.issue(name, "localhost", LONG_AFTER)
    }

    fn write(&self, own: &Identity) {
        own.write(&self.path("tls.crt"), &self.path("tls.key"));
    }

    fn tls(&self) -> TlsConfig {
        TlsConfig::from_pem_files(self.path("tls.crt"), self.path("tls.key"))
            .expect("the certificate and key are valid")
    }

    fn client(&self) -> Arc<ClientConfig> {
        self.authority.client(&version::TLS13, &[], None)
    }
}

/// A connection that is kept open.
struct Connected(StreamOwned<ClientConnection, TcpStream>);

impl Connected {
    fn to(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<Self> {
        let name = ServerName::try_from("localhost").expect("the name is valid");
        let client = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut connected = Self(StreamOwned::new(client, stream));
        connected.ask()?;
        Ok(connected)
    }

    /// One request, and its complete response.
    fn ask(&mut self) -> io::Result<()> {
        self.0.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nhello") {
            let mut piece = [0; 1024];
            let length = self.0.read(&mut piece)?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            answer.extend_from_slice(&piece[..length]);
        }
        Ok(())
    }

    /// The certificate that the server presented.
    fn shown(&self) -> CertificateDer<'static> {
        self.0.conn.peer_certificates().expect("the handshake is complete")[0].clone().into_owned()
    }
}

fn der(identity: &Identity) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(identity.certificate.as_bytes()).expect("the text is PEM")
}

fn wait_until(description: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "timed out waiting until {description}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn sighup_reloads_and_the_log_reports_the_result() {
    for driver in drivers() {
        let folder = Folder::new();
        let (old, new) = (folder.issue("old"), folder.issue("new"));
        folder.write(&old);
        let mut program = Program::start(driver, "tls", folder.folder.path());
        // No session is resumed, so each connection gets a certificate.
        let connect =
            || Connected::to(program.address, &folder.client()).expect("the handshake succeeds");
        let mut first = connect();
        assert_eq!(first.shown(), der(&old));
        folder.write(&new);
        program.signal(Signal::HUP);
        let line = program.says("TLS was reloaded");
        assert!(line.contains("tls.crt") && line.contains(" INFO "), "{line}");
        let connect =
            || Connected::to(program.address, &folder.client()).expect("the handshake succeeds");
        assert_eq!(connect().shown(), der(&new));
        std::fs::write(folder.path("tls.key"), &old.key).expect("the folder exists");
        program.signal(Signal::HUP);
        let line = program.says("TLS was not reloaded");
        for part in [" ERROR ", "tls.key does not belong to the first certificate", "tls.crt"] {
            assert!(line.contains(part), "{line}");
        }
        let connect =
            || Connected::to(program.address, &folder.client()).expect("the handshake succeeds");
        assert_eq!(connect().shown(), der(&new));
        first.ask().expect("the connection is still open");
        folder.write(&new);
        program.signal(Signal::HUP);
        let line = program.says("TLS was reloaded");
        assert!(line.contains("nothing has changed"), "{line}");
        program.signal(Signal::TERM);
        let (status, rest) = program.ends();
        assert!(status.success(), "{status} {rest}");
    }
}

#[test]
fn where_no_tls_is_spoken_sighup_does_what_it_always_did() {
    let folder = Folder::new();
    let program = Program::start("tokio", "plain", folder.folder.path());
    program.signal(Signal::HUP);
    // Under `nohup` the signal is ignored, also in programs that the tests start.
    if is_ignored(Signal::HUP) {
        program.signal(Signal::TERM);
    }
    let (status, rest) = program.ends();
    let by = (!is_ignored(Signal::HUP)).then_some(Signal::HUP.as_raw());
    assert_eq!(status.signal(), by, "{rest}");
}

/// Whether this process, and so the processes that it starts, ignore the signal.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
}

#[test]
fn a_certificate_that_expires_soon_is_warned_of_once_at_the_start() {
    let folder = Folder::new();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    let end = now + Duration::from_secs(3 * 86_400 + 3_600);
    folder.write(&folder.authority.issue("short", "localhost", end));
    let mut program = Program::start("tokio", "tls", folder.folder.path());
    assert!(program.skipped.contains("expires in 3 days; renew it"), "{}", program.skipped);
    program.signal(Signal::HUP);
    program.says("TLS was reloaded");
    program.signal(Signal::TERM);
    let (_, rest) = program.ends();
    assert!(!rest.contains("expires in"), "the warning was already logged: {rest}");
}

#[test]
fn secrets_are_written_only_where_the_program_asks_for_that() {
    for (mode, is_written) in [("tls", false), ("key-log", true)] {
        let folder = Folder::new();
        folder.write(&folder.issue("own"));
        let program = Program::start("tokio", mode, folder.folder.path());
        Connected::to(program.address, &folder.client()).expect("the handshake succeeds");
        program.signal(Signal::TERM);
        assert!(program.ends().0.success());
        let written = std::fs::read_to_string(folder.path("keys.log")).unwrap_or_default();
        assert_eq!(written.contains("CLIENT_TRAFFIC_SECRET_0 "), is_written, "{mode}: {written}");
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

fn server(choice: DriverChoice, tls: TlsConfig) -> Server {
    Server::new().listen_tls("127.0.0.1:0", tls).driver(choice).workers(two()).quiet()
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
    nothing_fails_under_load_while_certificates_change,
    files_swapped_by_another_process_are_reloaded,
    the_next_server_resumes_the_sessions_of_this_one,
}

fn nothing_fails_under_load_while_certificates_change(choice: DriverChoice) {
    let folder = Folder::new();
    let all = [folder.issue("one"), folder.issue("two")];
    folder.write(&all[0]);
    let tls = folder.tls();
    let Some(running) = started(server(choice, tls.clone()).start(app)) else { return };
    let address = running.https_address().expect("the server has an HTTPS listener");
    let known = all.each_ref().map(der);
    let (is_over, seen) = (AtomicBool::new(false), [AtomicUsize::new(0), AtomicUsize::new(0)]);
    thread::scope(|scope| {
        // Connections that stay open, and short ones, some with a ticket.
        for number in 0..4 {
            let (folder, known, is_over, seen) = (&folder, &known, &is_over, &seen);
            scope.spawn(move || {
                let shared = folder.client();
                let kept = Connected::to(address, &shared);
                let mut kept = kept.unwrap_or_else(|error| panic!("{number}: {error}"));
                while !is_over.load(Ordering::Relaxed) {
                    kept.ask().unwrap_or_else(|error| panic!("{number}: {error}"));
                    let new = if number < 2 { folder.client() } else { Arc::clone(&shared) };
                    let mut new = Connected::to(address, &new)
                        .unwrap_or_else(|error| panic!("{number}: {error}"));
                    new.ask().unwrap_or_else(|error| panic!("{number}: {error}"));
                    let shown = new.shown();
                    let which = known.iter().position(|known| *known == shown);
                    seen[which.expect("the certificate is one of the two")]
                        .fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let handle = running.handle();
        for round in 0..40 {
            folder.write(&all[round % 2]);
            let (before, seen_before) = (tls.status(), seen[round % 2].load(Ordering::Relaxed));
            // Now and then only half of a file is written.
            if round % 4 == 3 {
                std::fs::write(folder.path("tls.crt"), &all[1].certificate[..200])
                    .expect("a folder");
            }
            handle.reload();
            let count = |status: &TlsStatus| status.reloads + status.failed_reloads;
            wait_until("the file was reloaded", || count(&tls.status()) > count(&before));
            if round % 4 != 3 {
                wait_until("the new certificate is used", || {
                    seen[round % 2].load(Ordering::Relaxed) > seen_before
                });
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let status = tls.status();
    assert_eq!((status.reloads, status.failed_reloads), (30, 10), "{status:?}");
    let stopped = running.graceful_shutdown().expect("the shutdown succeeds");
    for (name, count) in stopped.workers.iter().flatten().flat_map(|worker| &worker.closed) {
        assert!(["peer-closed", "peer-aborted", "drained"].contains(name), "{count} {name}");
    }
}

fn files_swapped_by_another_process_are_reloaded(choice: DriverChoice) {
    let folder = Folder::new();
    let all: Vec<_> = (0..6).map(|number| folder.issue(&number.to_string())).collect();
    // As Kubernetes mounts a secret.
    let version = |name: &str, own: &Identity| {
        std::fs::create_dir(folder.path(name)).expect("the folder does not exist yet");
        own.write(&folder.path(name).join("tls.crt"), &folder.path(name).join("tls.key"));
    };
    version("..1", &all[0]);
    symlink("..1", folder.path("..data")).expect("the name is unused");
    for name in ["tls.crt", "tls.key"] {
        symlink(Path::new("..data").join(name), folder.path(name)).expect("the name is unused");
    }
    let tls = folder.tls();
    let server = server(choice, tls.clone()).watch_certificates();
    let Some(running) = started(server.start(app)) else { return };
    let address = running.https_address().expect("the server has an HTTPS listener");
    let mut open = Connected::to(address, &folder.client()).expect("the handshake succeeds");
    let shows = |own: &Identity| {
        let connected = Connected::to(address, &folder.client());
        connected.expect("the handshake succeeds").shown() == der(own)
    };
    assert!(shows(&all[0]));
    version("..2", &all[1]);
    symlink("..2", folder.path("..tmp")).expect("the name is unused");
    std::fs::rename(folder.path("..tmp"), folder.path("..data")).expect("the file exists");
    wait_until("the swapped link is followed", || shows(&all[1]));
    // As certbot renews: each link is replaced separately.
    version("archive", &all[2]);
    for name in ["tls.crt", "tls.key"] {
        symlink(folder.path("archive").join(name), folder.path("tmp")).expect("the name is unused");
        std::fs::rename(folder.path("tmp"), folder.path(name)).expect("the file exists");
    }
    wait_until("both links are followed", || shows(&all[2]));
    // In place, by a slow writer whose partial file is noticed.
    let failures = tls.status().failed_reloads;
    std::fs::write(folder.path("tls.crt"), &all[3].certificate[..300]).expect("the file exists");
    wait_until("the partial file is noticed", || tls.status().failed_reloads > failures);
    assert!(shows(&all[2]));
    folder.write(&all[3]);
    wait_until("the complete file is used", || shows(&all[3]));
    // Removed, and restored later.
    let failures = tls.status().failed_reloads;
    std::fs::remove_file(folder.path("tls.key")).expect("the file exists");
    wait_until("the missing file is noticed", || tls.status().failed_reloads > failures);
    assert!(tls.status().last_error.expect("the last reload failed").contains("tls.key"));
    assert!(shows(&all[3]));
    folder.write(&all[4]);
    wait_until("the new certificate is used", || shows(&all[4]));
    // A certificate that was added while the server runs is watched as well.
    let added = Folder::new();
    added.write(&all[5]);
    let certificate = Certificate::from_files(added.path("tls.crt"), added.path("tls.key"));
    tls.upsert_certificate(certificate).expect("the certificate is valid");
    tls.remove_certificate(&folder.path("tls.crt").display().to_string())
        .expect("another certificate remains");
    assert!(shows(&all[5]));
    open.ask().expect("the connection is still open");
    assert!(tls.status().last_error.is_none());
    running.graceful_shutdown().expect("the shutdown succeeds");
}

fn the_next_server_resumes_the_sessions_of_this_one(choice: DriverChoice) {
    let folder = Folder::new();
    folder.write(&folder.issue("own"));
    let client = folder.client();
    let mut secrets = Vec::new();
    for round in 0..3 {
        let tls = folder.tls();
        let tls = match round {
            0 => tls,
            _ => tls.with_ticket_keys(
                TicketKeys::from_secrets(secrets).expect("the list is not empty"),
            ),
        };
        let keys = tls.ticket_keys().expect("the configuration manages its ticket keys");
        let Some(running) = started(server(choice, tls).start(app)) else { return };
        let address = running.https_address().expect("the server has an HTTPS listener");
        let connected = Connected::to(address, &client).expect("the handshake succeeds");
        let kind =
            format!("{:?}", connected.0.conn.handshake_kind().expect("the handshake is complete"));
        assert_eq!(kind == "Resumed", round > 0, "{round}: {kind}");
        secrets = keys.secrets();
        running.graceful_shutdown().expect("the shutdown succeeds");
    }
}

/// The output of `openssl s_client`; `None` if it is not installed, or does not know an option.
fn openssl(address: SocketAddr, arguments: &[&str], input: &str) -> Option<(bool, String)> {
    let mut process = Command::new("openssl")
        .args(["s_client", "-connect", &address.to_string()])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let mut stdin = process.stdin.take().expect("the stream is piped");
    stdin.write_all(input.as_bytes()).ok()?;
    // It ends at the end of its input, or when the server closes.
    if input.is_empty() {
        drop(stdin);
    } else {
        thread::spawn(move || {
            thread::sleep(Duration::from_secs(2));
            drop(stdin);
        });
    }
    let output = process.wait_with_output().ok()?;
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let is_unknown = ["Unknown option", "unknown option", "no cipher match", "Error with command"];
    (!is_unknown.iter().any(|text_of| text.contains(text_of)))
        .then_some((output.status.success(), text))
}

#[test]
fn openssl_gets_no_old_version_no_weak_cipher_and_no_renegotiation() {
    let folder = Folder::new();
    folder.write(&folder.issue("own"));
    let running = server(DriverChoice::Tokio, folder.tls()).start(app).expect("the server starts");
    let address = running.https_address().expect("the server has an HTTPS listener");
    let Some((is_open, text)) = openssl(address, &["-tls1_2"], "") else {
        eprintln!("skipped: openssl is not installed");
        return;
    };
    assert!(is_open && text.contains("ECDHE-ECDSA-AES128-GCM-SHA256"), "{text}");
    assert!(text.contains("Secure Renegotiation IS supported"), "{text}");
    assert!(text.contains("Compression: NONE"), "{text}");
    let (is_open, text) = openssl(address, &["-tls1_3"], "").expect("openssl supports TLS 1.3");
    assert!(is_open && text.contains("TLS_AES_128_GCM_SHA256"), "{text}");
    let lax = ["-cipher", "ALL:@SECLEVEL=0"];
    for version in ["-tls1", "-tls1_1"] {
        if let Some((is_open, text)) = openssl(address, &[&[version][..], &lax].concat(), "") {
            assert!(!is_open && !text.contains("Cipher is ECDHE"), "{version}: {text}");
        }
    }
    for ciphers in ["eNULL", "aNULL", "RC4", "3DES", "EXPORT", "kRSA", "DHE", "AES128-SHA", "SHA1"]
    {
        let ciphers = format!("{ciphers}:@SECLEVEL=0");
        if let Some((is_open, text)) = openssl(address, &["-tls1_2", "-cipher", &ciphers], "") {
            assert!(!is_open && text.contains("Cipher is (NONE)"), "{ciphers}: {text}");
        }
    }
    // The line "R" requests a renegotiation.
    let (_, text) = openssl(address, &["-tls1_2"], "R\n").expect("openssl ran before");
    assert!(text.contains("RENEGOTIATING"), "{text}");
    assert!(!text.contains("verify return:1\nRENEGOTIATING\ndepth"), "{text}");
    let refused = ["no renegotiation", "unexpected message", "unexpected_message"];
    let is_refused = refused.iter().any(|words| text.to_lowercase().contains(words));
    assert!(is_refused || text.contains("write:errno") || text.contains("eof"), "{text}");
    running.graceful_shutdown().expect("the shutdown succeeds");
}

#[test]
fn what_there_is_to_warn_of_can_be_asked_for() {
    let folder = Folder::new();
    folder.write(&folder.authority.issue("old", "localhost", Duration::from_secs(1_000_000_000)));
    let warnings = folder.tls().status().warnings;
    assert!(matches!(warnings[..], [TlsWarning::Expired { .. }]), "{warnings:?}");
}
