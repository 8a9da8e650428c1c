//! Servers configured by a file: which settings apply, which change at run time, and how they are
//! shown; on both kernel drivers.
#![cfg(target_os = "linux")]

use peregrine::config::{ConfigLoader, ServerConfig};
use peregrine::prelude::*;
use peregrine::{DriverChoice, Error, Limits, ListenAddr, Listener, RunningServer, SocketOptions};
use peregrine_tests::isolated;
use rustix::process::{Signal, getpid, kill_process};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

macro_rules! on_both_drivers {
    ($($case:ident,)*) => {
        mod on_tokio {
            $(#[test] fn $case() { super::$case(super::DriverChoice::Tokio); })*
        }
        mod on_uring {
            $(#[test] fn $case() { super::$case(super::DriverChoice::Uring); })*
        }
    };
}

on_both_drivers! {
    limits_that_are_read_again_count_for_new_connections,
    connections_that_wait_get_in_when_more_are_allowed,
    listeners_that_the_program_adds_follow_what_it_has_not_set,
    a_lifetime_that_is_read_again_counts_for_busy_connections,
    proxies_that_are_read_again_are_trusted_by_new_connections,
    what_workers_take_on_is_read_again,
    what_auto_came_to_is_shown,
    the_access_log_goes_elsewhere_and_looks_otherwise_after_a_reload,
    a_reload_redirects_a_log_whose_pipe_is_not_read,
    a_file_that_is_broken_leaves_everything_as_it_was,
    the_admin_listener_shows_what_counts_and_no_secret,
    workers_with_one_queue_share_its_connections,
}

/// Only a hang takes this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// A configuration file in a temporary folder.
struct Settings {
    _folder: TempDir,
    path: PathBuf,
}

impl Settings {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("app.toml");
        let settings = Self { _folder: folder, path };
        settings.write(text);
        settings
    }

    /// Writes two listeners on any port, and an admin listener, followed by `text`.
    fn write(&self, text: &str) {
        let listeners = "workers = 1\nquiet = true\n[listeners.a]\naddress = '127.0.0.1:0'\n\
                         [listeners.b]\naddress = '127.0.0.1:0'\nlimits.fields_max = 50\n\
                         [admin]\naddress = '127.0.0.1:0'\n";
        put(&self.path, &format!("{listeners}{text}"));
    }

    fn read(&self) -> ServerConfig {
        let layers = ConfigLoader::new("PEREGRINE_").file(&self.path);
        ServerConfig::from_layers(ServerConfig::default(), layers)
            .expect("the configuration is valid")
    }

    fn start(&self, choice: DriverChoice) -> Option<RunningServer> {
        let server = Server::from_config(self.read()).expect("the configuration is valid");
        started(server.driver(choice).start(app))
    }
}

/// Replaces a file atomically: half of one may be valid as well.
fn put(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).expect("the folder exists");
    fs::rename(&new, path).expect("both are in one folder");
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

fn app() -> App {
    App::new()
        .post("/", |body: String| async move { body.len().to_string() })
        .get("/who", |ClientIp(client): ClientIp| async move { format!("{client:?}") })
}

fn address(place: Option<&ListenAddr>) -> SocketAddr {
    match place {
        Some(ListenAddr::Tcp(address)) => *address,
        other => panic!("no address: {other:?}"),
    }
}

/// A connection that is kept open.
struct Peer(TcpStream);

impl Peer {
    fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server accepts connections");
        stream.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
        Self(stream)
    }

    fn post(&mut self, body: &str) -> u16 {
        let length = body.len();
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}");
        self.0.write_all(head.as_bytes()).expect("connected");
        status_of(&self.answer())
    }

    fn get(&mut self, target: &str, fields: &str) -> String {
        let head = format!("GET {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        self.0.write_all(head.as_bytes()).expect("connected");
        self.answer()
    }

    /// One response with a length.
    fn answer(&mut self) -> String {
        let mut text = Vec::new();
        loop {
            let so_far = String::from_utf8_lossy(&text).into_owned();
            if let Some((head, body)) = so_far.split_once("\r\n\r\n") {
                let length = head.to_ascii_lowercase();
                let length = length
                    .split("content-length: ")
                    .nth(1)
                    .expect("the response has a Content-Length");
                let length = length.lines().next().expect("a line").trim().parse::<usize>();
                if body.len() >= length.expect("a number") {
                    return so_far;
                }
            }
            let mut piece = [0; 4096];
            let count = self.0.read(&mut piece).expect("a response arrives");
            assert!(count > 0, "the connection is open: {so_far}");
            text.extend_from_slice(&piece[..count]);
        }
    }
}

fn status_of(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
}

/// Waits until the admin listener shows `text`.
fn wait_until_shown(admin: SocketAddr, text: &str) -> String {
    let begin = Instant::now();
    loop {
        let shown = Peer::to(admin).get("/config", "");
        if shown.contains(text) {
            return shown;
        }
        assert!(begin.elapsed() < PATIENCE, "timed out waiting for {text:?}: {shown}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn limits_that_are_read_again_count_for_new_connections(choice: DriverChoice) {
    let settings = Settings::new("[limits]\nbody_bytes_max = '10 B'\n");
    let Some(running) = settings.start(choice) else { return };
    let places: Vec<_> = running.addresses().map(|place| address(Some(place))).collect();
    let admin = address(running.admin_address());
    let mut old: Vec<_> = places.iter().map(|place| Peer::to(*place)).collect();
    for peer in &mut old {
        assert_eq!(peer.post("0123456789"), 200);
    }
    settings.write("[limits]\nbody_bytes_max = '4 B'\nlame_duck_period = '1s'\n");
    running.handle().reload();
    wait_until_shown(admin, "body_bytes_max = \"4 B\"");
    for place in &places {
        assert_eq!(Peer::to(*place).post("0123456789"), 413, "a listener's own section inherits");
        assert_eq!(Peer::to(*place).post("0123"), 200);
    }
    for peer in &mut old {
        assert_eq!(peer.post("0123456789"), 200, "a connection keeps its initial limits");
    }
    // Settings that need a restart do not apply yet, and are not shown.
    let shown = wait_until_shown(admin, "[limits]");
    assert!(shown.contains("lame_duck_period = \"0s\""), "{shown}");
    drop(old);
    running.graceful_shutdown().expect("the shutdown succeeds");
}

fn connections_that_wait_get_in_when_more_are_allowed(choice: DriverChoice) {
    let settings = Settings::new("[limits]\nconnections_max = 1\n");
    let Some(running) = settings.start(choice) else { return };
    let place = running.http_address().expect("the server listens on this port");
    let mut first = Peer::to(place);
    assert_eq!(first.post("x"), 200);
    // The connection limit is reached, and the first connection stays open.
    let second = thread::spawn(move || Peer::to(place).post("x"));
    settings.write("[limits]\nconnections_max = 2\n");
    running.handle().reload();
    assert_eq!(second.join().expect("the client does not panic"), 200);
    assert_eq!(first.post("x"), 200);
    drop(first);
    running.graceful_shutdown().expect("the shutdown succeeds");
}

/// Limits of whole workers apply to the next request, also on open connections.
fn what_workers_take_on_is_read_again(choice: DriverChoice) {
    let settings = Settings::new("");
    let Some(running) = settings.start(choice) else { return };
    let place = running.http_address().expect("the server listens on this port");
    let admin = address(running.admin_address());
    let mut old = Peer::to(place);
    assert_eq!(old.post("x"), 200);
    // A request in progress, whose body is still missing.
    let mut first = Peer::to(place);
    first
        .0
        .write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n")
        .expect("connected");
    let metric = |name: &str| {
        let page = Peer::to(admin).get("/metrics", "");
        let line =
            page.lines().find(|line| line.starts_with(&format!("{name}{{"))).map(str::to_owned);
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).expect("a number")
    };
    wait_until("the request is in progress", || metric("peregrine_worker_requests") == 1.0);
    settings.write(
        "[limits.overload]\nrequests_max = 1\nmemory_max = '3 MiB'\nretry_after = '70s'\nclient_ipv6_prefix_len = 56\n",
    );
    running.handle().reload();
    wait_until("the worker uses the new settings", || {
        metric("peregrine_worker_memory_max_bytes") == f64::from(3 << 20)
    });
    let refused = old.get("/who", "");
    assert_eq!(status_of(&refused), 503, "{refused}");
    let time = refused.to_ascii_lowercase();
    let time = time.split("retry-after: ").nth(1).and_then(|rest| rest.lines().next());
    let time: u64 = time.and_then(|text| text.parse().ok()).expect("a time");
    assert!((70..=105).contains(&time), "{refused}");
    // A request in progress keeps its limits.
    first.0.write_all(b"x").expect("connected");
    assert_eq!(status_of(&first.answer()), 200);
    wait_until("the request is complete", || metric("peregrine_worker_requests") == 0.0);
    assert_eq!(old.post("x"), 200);
    settings.write("[limits.overload]\nmemory_max = 'off'\n");
    running.handle().reload();
    wait_until("the worker uses the new settings", || {
        metric("peregrine_worker_memory_max_bytes") == 0.0
    });
    drop((old, first));
    running.graceful_shutdown().expect("the shutdown succeeds");
}

/// The value that `auto` resolved to, on the settings page and as a metric.
fn what_auto_came_to_is_shown(choice: DriverChoice) {
    let settings = Settings::new("");
    let Some(running) = settings.start(choice) else { return };
    let admin = address(running.admin_address());
    let shown = wait_until_shown(admin, "memory_max = \"auto\"");
    let (_, memory_max) =
        shown.split_once("# `limits.overload.memory_max` is ").expect("the option is listed");
    let mib = memory_max.split_once(" MiB for each of 1 workers.").expect("the limit is in MiB").0;
    let mib: u64 = mib.parse().expect("a number");
    let page = Peer::to(admin).get("/metrics", "");
    let sample = format!("peregrine_worker_memory_max_bytes{{worker=\"0\"}} {}", mib << 20);
    assert!(mib >= 16 && page.contains(&sample), "{mib}: {page}");
    running.graceful_shutdown().expect("the shutdown succeeds");
}

fn listeners_that_the_program_adds_follow_what_it_has_not_set(choice: DriverChoice) {
    let settings = Settings::new("[limits]\nbody_bytes_max = '10 B'\n");
    let own = Listener::bind("127.0.0.1:0").limits(Limits::default());
    let server =
        Server::from_config(settings.read()).expect("the configuration is valid").driver(choice);
    let server = server.listen("127.0.0.1:0").listen(own);
    let Some(running) = started(server.start(app)) else { return };
    let places: Vec<_> = running.addresses().map(|place| address(Some(place))).collect();
    let [.., follows, stays] = places[..] else { panic!("{places:?}") };
    let accepted = |place| Peer::to(place).post("0123456789");
    assert_eq!((accepted(follows), accepted(stays)), (200, 200));
    settings.write("[limits]\nbody_bytes_max = '4 B'\n");
    running.handle().reload();
    wait_until_shown(address(running.admin_address()), "body_bytes_max = \"4 B\"");
    assert_eq!((accepted(follows), accepted(stays)), (413, 200));
    running.graceful_shutdown().expect("the shutdown succeeds");
}

fn a_lifetime_that_is_read_again_counts_for_busy_connections(choice: DriverChoice) {
    let settings = Settings::new("");
    let Some(running) = settings.start(choice) else { return };
    let place = running.http_address().expect("the server listens on this port");
    settings.write("[limits]\nconnection_age_max = '20ms'\n");
    running.handle().reload();
    wait_until_shown(address(running.admin_address()), "connection_age_max = \"20ms\"");
    // On a busy machine a connection may reach its maximum age before its request arrives.
    wait_until("a response announces the close", || {
        let Peer(mut stream) = Peer::to(place);
        let mut answer = String::new();
        let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n";
        let asked = stream.write_all(head.as_bytes());
        thread::sleep(Duration::from_millis(40));
        let asked = asked.and_then(|()| stream.write_all(b"x"));
        let _ = asked.and_then(|()| stream.read_to_string(&mut answer));
        let answer = answer.to_ascii_lowercase();
        answer.starts_with("http/1.1 200") && answer.contains("connection: close")
    });
    running.graceful_shutdown().expect("the shutdown succeeds");
}

fn proxies_that_are_read_again_are_trusted_by_new_connections(choice: DriverChoice) {
    let settings = Settings::new("");
    let Some(running) = settings.start(choice) else { return };
    let place = running.http_address().expect("the server listens on this port");
    let admin = address(running.admin_address());
    let forwarded = "X-Forwarded-For: 203.0.113.7\r\n";
    let is_trusted = || Peer::to(place).get("/who", forwarded).contains("203.0.113.7");
    assert!(!is_trusted());
    for (text, shown, expected) in [
        ("[trusted_proxies]\nnetworks = ['127.0.0.0/8']\n", "networks = [\"127.0.0.0/8\"]", true),
        ("[trusted_proxies]\nnetworks = ['10.0.0.0/8']\n", "networks = [\"10.0.0.0/8\"]", false),
        ("[trusted_proxies]\nnetworks = ['127.0.0.1']\n", "networks = [\"127.0.0.1\"]", true),
        ("", "networks = []\nhops = \"off\"", false),
    ] {
        settings.write(text);
        running.handle().reload();
        wait_until_shown(admin, shown);
        assert_eq!(is_trusted(), expected, "{text}");
    }
    running.graceful_shutdown().expect("the shutdown succeeds");
}

fn the_access_log_goes_elsewhere_and_looks_otherwise_after_a_reload(choice: DriverChoice) {
    let folder = tempfile::tempdir().expect("a folder");
    let [first, second, missing] =
        ["a.log", "b.log", "none/c.log"].map(|name| folder.path().join(name));
    let log = |path: &Path, rest: &str| {
        format!("[traces]\nenabled = true\n[access_log]\ntarget = '{}'\n{rest}", path.display())
    };
    let settings = Settings::new(&log(&first, "format = 'common'\n"));
    let Some(running) = settings.start(choice) else { return };
    let (place, admin) = (
        running.http_address().expect("the server listens on this port"),
        address(running.admin_address()),
    );
    let lines = |path: &Path, count: usize| {
        let read = || fs::read_to_string(path).unwrap_or_default();
        wait_until("the lines are written", || read().lines().count() == count);
        read()
    };
    let gauge = |name: &str| {
        let page = Peer::to(admin).get("/metrics", "");
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name}: {page}")).parse::<f64>().expect("a number")
    };
    let is_good = || gauge("peregrine_config_last_reload_successful");
    let good_at = || gauge("peregrine_config_last_reload_success_timestamp_seconds");
    assert_eq!(is_good(), 1.0);
    let began = good_at();
    // One open connection: changes apply to its next request.
    let mut peer = Peer::to(place);
    peer.get("/who?secret", "");
    let text = lines(&first, 1);
    assert!(text.contains("\"GET /who?secret HTTP/1.1\" 200"), "{text}");

    settings
        .write(&log(&second, "format = 'json'\ninclude_query = false\nexcluded_routes = ['/']\n"));
    running.handle().reload();
    wait_until_shown(admin, "format = \"json\"");
    peer.post("x");
    peer.get("/who?secret", "");
    let text = lines(&second, 1);
    assert!(text.starts_with('{') && text.contains("/who") && !text.contains("secret"), "{text}");
    assert_eq!(lines(&first, 1).lines().count(), 1);
    assert_eq!(is_good(), 1.0);
    wait_until("the reload is recorded", || good_at() > began);

    for broken in [
        log(&missing, "format = 'json'\n"),
        log(&second, "excluded_routes = ['/nowhere']\n"),
        log(&second, "")
            .replace("enabled = true", "enabled = true\nroute_sample_ratios.'/nowhere' = 0.5"),
    ] {
        let then = good_at();
        settings.write(&broken);
        running.handle().reload();
        wait_until("the reload fails", || is_good() == 0.0);
        assert_eq!(good_at(), then);
        let shown = Peer::to(admin).get("/config", "");
        assert!(shown.contains("format = \"json\"") && !shown.contains("nowhere"), "{shown}");
        settings.write(&log(&second, "format = 'json'\ninclude_query = false\n"));
        running.handle().reload();
        wait_until("a reload succeeds again", || is_good() == 1.0);
    }
    peer.post("x");
    let text = lines(&second, 2);
    assert!(text.lines().all(|line| line.starts_with('{')), "{text}");
    // Enabling or disabling the log needs a restart, and this is reported; the log continues.
    settings.write("[access_log]\ntarget = 'off'\nformat = 'common'\n");
    running.handle().reload();
    wait_until_shown(admin, "format = \"common\"");
    peer.get("/who", "");
    let text = lines(&second, 3);
    assert!(text.lines().last().is_some_and(|line| line.contains("\" 200 ")), "{text}");
    running.graceful_shutdown().expect("the shutdown succeeds");
}

fn a_reload_redirects_a_log_whose_pipe_is_not_read(choice: DriverChoice) {
    let folder = tempfile::tempdir().expect("a folder");
    let [pipe, file] = ["pipe", "b.log"].map(|name| folder.path().join(name));
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    if !made.is_ok_and(|status| status.success()) {
        return eprintln!("skipped: mkfifo is not installed");
    }
    // A reader that does not read. Opened for reading and writing, it does not wait for a writer.
    let _reader = fs::File::options().read(true).write(true).open(&pipe).expect("a pipe");
    let log = |path: &Path| {
        format!("[access_log]\ntarget = '{}'\nflush_timeout = '10m'\n", path.display())
    };
    let settings = Settings::new(&log(&pipe));
    let Some(running) = settings.start(choice) else { return };
    let (place, admin) = (
        running.http_address().expect("the server listens on this port"),
        address(running.admin_address()),
    );
    let of = |name: &str| {
        let page = Peer::to(admin).get("/metrics", "");
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name}: {page}")).parse::<f64>().expect("a number")
    };
    let waiting = || of("peregrine_access_log_queued_lines");
    // More than a pipe holds, and a little after that: the thread holds some lines, and more are
    // queued.
    let long = format!("/who?{}", "x".repeat(4000));
    let mut peer = Peer::to(place);
    for _ in 0..60 {
        peer.get(&long, "");
    }
    thread::sleep(Duration::from_millis(100));
    peer.get("/who?late", "");
    assert!(waiting() > 1.0);
    settings.write(&log(&file));
    running.handle().reload();
    wait_until_shown(admin, "b.log");
    peer.get("/who?last", "");
    wait_until("the queued lines and new lines are written", || {
        let text = fs::read_to_string(&file).unwrap_or_default();
        text.contains("/who?late") && text.contains("/who?last")
    });
    wait_until("the queue is empty", || waiting() == 0.0);
    assert_eq!(of("peregrine_access_log_dropped_lines_total{reason=\"write_failed\"}"), 0.0);
    assert_eq!(of("peregrine_access_log_dropped_lines_total{reason=\"queue_full\"}"), 0.0);
    running.graceful_shutdown().expect("the shutdown succeeds");
}

fn a_file_that_is_broken_leaves_everything_as_it_was(choice: DriverChoice) {
    let settings = Settings::new("[limits]\nbody_bytes_max = '10 B'\n");
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&heard);
    let server = Server::from_config(settings.read()).expect("the configuration is valid");
    let server = server.driver(choice).on_reload(move |config| {
        hears.lock().expect("the mutex is not poisoned").push(config.logging.level.clone());
    });
    let Some(running) = started(server.start(app)) else { return };
    let (place, admin) = (running.http_address(), address(running.admin_address()));
    let place = place.expect("the server listens on this port");
    for broken in [
        "[limits]\nbody_bytes_max = '4 B'\nbody_bytes = 1\n",
        "[limits]\nbody_bytes_max = '4 B'\n[",
        "[limits]\nbody_bytes_max = '4 B'\n[trusted_proxies]\nnetworks = ['nobody']\n",
    ] {
        settings.write(broken);
        running.handle().reload();
    }
    fs::remove_file(&settings.path).expect("the file exists");
    running.handle().reload();
    // Reload orders are processed one after the other, so this one is last.
    settings.write("[limits]\nbody_bytes_max = '10 B'\n[logging]\nlevel = 'debug'\n");
    running.handle().reload();
    wait_until_shown(admin, "level = \"debug\"");
    assert_eq!(Peer::to(place).post("0123456789"), 200);
    assert_eq!(
        *heard.lock().expect("the mutex is not poisoned"),
        ["debug"],
        "only changes are reported"
    );
    running.graceful_shutdown().expect("the shutdown succeeds");
}

fn the_admin_listener_shows_what_counts_and_no_secret(choice: DriverChoice) {
    let folder = tempfile::tempdir().expect("a folder");
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a name");
    let (chain, secret) = (key.cert.pem(), key.signing_key.serialize_pem());
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("the folder exists");
        path.display().to_string()
    };
    let (chain, key) = (write("a.pem", &chain), write("a.key", &secret));
    let settings = Settings::new(&format!(
        "[listeners.c]\naddress = '127.0.0.1:0'\nhttps = true\n\
         [tls.certificates.main]\ncertificate = '{chain}'\nkey = '{key}'\n"
    ));
    let Some(running) = settings.start(choice) else { return };
    assert!(running.https_address().is_some());
    let shown = wait_until_shown(address(running.admin_address()), "[tls.certificates.main]");
    assert!(shown.contains("content-type: application/toml"), "{shown}");
    let (_, text) = shown.split_once("\r\n\r\n").expect("a head and a body");
    let mut printed = settings.read();
    printed.driver.kind = choice.into();
    let expected =
        format!("# `driver.kind` is set by the program, which takes precedence.\n{printed}");
    // The value that `auto` resolved to on this machine is shown beside it.
    let is_size = |line: &&str| !line.starts_with("# `limits.overload.memory_max` is ");
    let text: String = text.split_inclusive('\n').filter(is_size).collect();
    assert_eq!(
        text, expected,
        "the page has the output of --print-config and the program's settings"
    );
    for line in secret.lines().filter(|line| line.len() > 20) {
        assert!(!shown.contains(line), "the page does not expose the key");
    }
    running.graceful_shutdown().expect("the shutdown succeeds");

    let bare = Server::bind("127.0.0.1:0").admin("127.0.0.1:0").driver(choice).quiet();
    let Some(running) = started(bare.start(app)) else { return };
    let answer = Peer::to(address(running.admin_address())).get("/config", "");
    assert_eq!(status_of(&answer), 404, "{answer}");
    running.graceful_shutdown().expect("the shutdown succeeds");
}

/// Other systems than Linux always behave like this. On a busy machine a worker may not accept a
/// connection that was passed to it in time, and the passing worker serves it, so there are several
/// attempts.
fn workers_with_one_queue_share_its_connections(choice: DriverChoice) {
    const TRIES: usize = 20;
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        let Some((counts, is_even)) = accepted_from_one_queue(choice) else { return };
        if is_even {
            return;
        }
        seen.push(counts);
    }
    panic!("connections were not shared evenly in any attempt: {seen:?}");
}

/// How many connections each worker had, and whether the distribution is about even.
fn accepted_from_one_queue(choice: DriverChoice) -> Option<(Vec<u64>, bool)> {
    const WORKERS: usize = 3;
    const CONNECTIONS: usize = 30;
    let sockets = SocketOptions { shared_accept_queue: true, ..SocketOptions::default() };
    let workers = NonZeroUsize::new(WORKERS).expect("the value is not zero");
    let server = Server::bind("127.0.0.1:0").workers(workers).socket_options(sockets);
    let running = started(server.driver(choice).quiet().start(app))?;
    let place = running.http_address().expect("the server listens on this port");
    let mut peers = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut peer = Peer::to(place);
        assert_eq!(peer.post("x"), 200);
        peers.push(peer);
    }
    let stopped = running.graceful_shutdown().expect("the shutdown succeeds");
    let counts: Vec<_> = stopped.workers.iter().flatten().map(|worker| worker.accepted).collect();
    let even = (CONNECTIONS / WORKERS) as u64;
    assert_eq!(counts.iter().sum::<u64>(), CONNECTIONS as u64, "{counts:?}");
    let is_even = counts.iter().all(|count| (even / 3..=even * 2).contains(count));
    Some((counts, is_even))
}

/// Sends a request over a Unix domain socket; empty if nothing listens there.
fn ask(socket: &Path, target: &str) -> String {
    let Ok(mut stream) = UnixStream::connect(socket) else { return String::new() };
    stream.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
    let head = format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let mut answer = String::new();
    let asked = stream.write_all(head.as_bytes());
    let _ = asked.and_then(|()| stream.read_to_string(&mut answer));
    answer
}

fn wait_until(description: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "timed out waiting until {description}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn sighup_reads_the_file_again_without_any_tls() {
    // Every server of a process receives its signals.
    isolated(|| ["tokio", "auto"].into_iter().for_each(sighup_reads_the_file_again));
}

fn sighup_reads_the_file_again(kind: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, place) = (folder.path().join("app.toml"), folder.path().join("s"));
    let admin = folder.path().join("admin");
    let write = |text: &str| {
        let (place, admin) = (place.display(), admin.display());
        let all = format!(
            "quiet = true\nworkers = 2\ndriver.kind = '{kind}'\n\
                 [listeners.a]\naddress = 'unix:{place}'\n[admin]\naddress = 'unix:{admin}'\n{text}"
        );
        put(&path, &all);
    };
    write("");
    let config = ServerConfig::load(&path).expect("the configuration is valid");
    let serving = thread::spawn(move || Server::from_config(config)?.serve(app));
    wait_until("the server is ready", || ask(&admin, "/readyz").starts_with("HTTP/1.1 200"));
    write("[limits]\nidle_timeout = '5s'\n");
    kill_process(getpid(), Signal::HUP).expect("this process exists");
    wait_until("the new value applies", || {
        ask(&admin, "/config").contains("idle_timeout = \"5s\"")
    });
    kill_process(getpid(), Signal::TERM).expect("this process exists");
    serving.join().expect("the task does not panic").expect("the server shuts down cleanly");
}
