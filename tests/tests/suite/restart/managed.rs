//! A service manager: sockets that it creates, and its notifications.

use crate::restart::program::{Handed, Program, answer, ask, say};
use crate::restart::{PATIENCE, on_both_drivers};
use peregrine::SocketOptions;
use rustix::process::Signal;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;

on_both_drivers! {
    sockets_of_a_manager_are_served_and_outlive_the_server,
    a_manager_hears_of_the_start_an_upgrade_and_the_end,
    a_manager_hears_of_an_upgrade_that_fails,
    a_manager_hears_of_each_reload_that_a_signal_asks_for,
    the_watchdog_is_notified_only_while_every_worker_runs,
}

/// The notification socket of a manager.
struct Manager(UnixDatagram);

impl Manager {
    fn at(folder: &Path) -> Self {
        let socket = UnixDatagram::bind(folder.join("notify")).expect("a new name");
        socket.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
        Self(socket)
    }

    fn start(driver: &str, plan: &str, variables: &[(&str, &str)]) -> (Self, Program) {
        let mut manager = None;
        let program = Program::start_with(driver, plan, Vec::new(), |command, folder| {
            manager = Some(Self::at(folder));
            command.env("NOTIFY_SOCKET", folder.join("notify"));
            command.envs(variables.iter().copied());
        });
        (manager.expect("the certificate was generated"), program)
    }

    fn hears(&self) -> String {
        let mut bytes = [0; 4096];
        let length = self.0.recv(&mut bytes).expect("a notification arrives");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    /// The next message that contains `word`.
    fn hears_of(&self, word: &str) -> String {
        loop {
            let text = self.hears();
            if text.lines().any(|line| line.starts_with(word)) {
                return text;
            }
        }
    }
}

fn sockets_of_a_manager_are_served_and_outlive_the_server(driver: &str) {
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("s");
    let unix = UnixListener::bind(&path).expect("a new path");
    let address = tcp.local_addr().expect("the socket is bound");
    let hand = || -> Handed {
        let tcp = OwnedFd::from(tcp.try_clone().expect("a descriptor"));
        let unix = OwnedFd::from(unix.try_clone().expect("a descriptor"));
        vec![("web", tcp), ("web", unix)]
    };
    let mut program = Program::start_with(driver, "app activated workers=2", hand(), |_, _| {});
    assert_eq!((program.address(), program.unix()), (address, path.clone()));
    // Connections inherit the listener's socket options, whichever process created it.
    let socket = socket2::SockRef::from(&tcp);
    let options = || (socket.keepalive().expect("a socket"), socket.tcp_user_timeout().ok());
    assert_eq!(options(), (true, Some(SocketOptions::default().tcp_user_timeout)));
    assert!(!socket2::SockRef::from(&unix).keepalive().expect("a socket"));
    socket.set_keepalive(false).expect("the socket is TCP");
    socket.set_tcp_user_timeout(None).expect("the socket is TCP");
    let first = program.get("/process");
    assert_eq!(program.get_unix("/process"), first);
    program.upgrade();
    assert!(program.first_ends().success());
    assert_eq!(options(), (true, Some(SocketOptions::default().tcp_user_timeout)));
    assert_ne!(program.get("/process"), first);
    assert_ne!(program.get_unix("/process"), first);
    program.ends();
    // A client that connects while no server runs waits for the next server.
    let mut early = std::net::TcpStream::connect(address).expect("the manager listens");
    ask(&mut early, "/process");
    let mut early_unix = UnixStream::connect(&path).expect("the manager listens");
    ask(&mut early_unix, "/process");
    let program = Program::start_with(driver, "app activated", hand(), |_, _| {});
    assert_eq!(answer(early), program.process.to_string());
    assert_eq!(answer(early_unix), program.process.to_string());
}

#[test]
fn one_socket_without_a_name_is_for_the_listener_that_asks_and_several_need_names() {
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let hand = || vec![("", OwnedFd::from(tcp.try_clone().expect("a descriptor")))];
    let address = tcp.local_addr().expect("the socket is bound");
    for (plan, names) in [("app activated", None), ("app activated-or", Some("app.socket"))] {
        let program = Program::start_with("tokio", plan, hand(), |command, _| {
            match names {
                None => command.env_remove("LISTEN_FDNAMES"),
                Some(names) => command.env("LISTEN_FDNAMES", names),
            };
        });
        assert_eq!(program.address(), address);
        assert_eq!(program.get("/process"), program.process.to_string());
    }
    let two = [hand(), hand()].into_iter().flatten().collect();
    let mut program = Program::begin("tokio", "app activated", two, |_, _| {});
    let line = program.says("failed: ");
    assert!(line.contains("LISTEN_FDNAMES"), "{line}");
    assert!(!program.first_ends().success());
}

#[test]
fn a_socket_that_was_not_handed_over_is_named_with_those_that_were() {
    let socket = || OwnedFd::from(TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let fails = |plan: &str, handed: Handed| {
        let mut program = Program::begin("tokio", plan, handed, |_, _| {});
        let line = program.says("failed: ");
        assert!(!program.first_ends().success());
        line
    };
    let line = fails("app activated", vec![("http", socket()), ("admin", socket())]);
    assert!(line.contains("no socket `web`") && line.contains("`http`, `admin`"), "{line}");
    let line = fails("app activated", Vec::new());
    assert!(line.contains("LISTEN_FDS is not set"), "{line}");
    // The fallback address is for programs that got no sockets, not for those that got the wrong
    // ones.
    let line = fails("app activated-or", vec![("http", socket())]);
    assert!(line.contains("FileDescriptorName=web"), "{line}");
}

#[test]
fn a_server_is_started_by_the_first_connection_to_a_socket_of_systemd() {
    let activator = "systemd-socket-activate";
    if !std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|folder| folder.join(activator).exists())
    {
        say(&format!("skipped: {activator} is not installed"));
        return;
    }
    let mut program = Program::begin("auto", "app activated", Vec::new(), |command, folder| {
        let this = command.get_program().to_owned();
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        let plan = folder.to_owned();
        *command = std::process::Command::new(activator);
        command.arg("-l").arg(folder.join("s")).arg("--fdname=web");
        command.arg(format!("--setenv={}={}", crate::restart::program::FOLDER, plan.display()));
        command.arg(this).args(arguments).stderr(std::process::Stdio::piped());
    });
    let path = program.folder().join("s");
    crate::restart::program::wait_until("the socket accepts connections", || {
        UnixStream::connect(&path).is_ok()
    });
    program.line = program.says("peregrine 0.");
    assert_eq!(program.get_unix("/process"), program.process.to_string());
}

#[test]
fn a_program_without_a_manager_may_listen_elsewhere() {
    let program = Program::start("tokio", "app activated-or");
    assert_eq!(program.get("/process"), program.process.to_string());
}

fn a_manager_hears_of_the_start_an_upgrade_and_the_end(driver: &str) {
    let (manager, mut program) = Manager::start(driver, "app tcp", &[]);
    let text = manager.hears();
    assert!(text.starts_with("READY=1\nSTATUS=peregrine "), "{text}");
    program.upgrade();
    let text = manager.hears();
    assert!(text.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{text}");
    // The manager gets the new process's ID before that process reports.
    let text = manager.hears();
    assert!(text.starts_with(&format!("MAINPID={}\nREADY=1\n", program.process)), "{text}");
    let text = manager.hears();
    assert!(text.starts_with("READY=1\nSTATUS=peregrine "), "{text}");
    assert!(program.first_ends().success());
    program.signal(Signal::TERM);
    let text = manager.hears();
    assert!(text.starts_with("STOPPING=1\n"), "only the ending process reports that: {text}");
}

fn a_manager_hears_of_an_upgrade_that_fails(driver: &str) {
    let (manager, mut program) = Manager::start(driver, "app tcp", &[]);
    program.plan("app dies");
    program.signal(Signal::USR2);
    program.says("no upgrade");
    manager.hears_of("RELOADING=1");
    let text = manager.hears();
    assert!(text.starts_with("READY=1\nSTATUS=serving; the upgrade failed: "), "{text}");
    assert!(text.contains("exit status: 3"), "{text}");
}

/// The current time on the clock that a manager compares with its own (`Type=notify-reload` of
/// systemd).
fn monotonic_us() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let number = |part: i64| u64::try_from(part).expect("CLOCK_MONOTONIC is not negative");
    number(time.tv_sec) * 1_000_000 + number(time.tv_nsec) / 1000
}

fn a_manager_hears_of_each_reload_that_a_signal_asks_for(driver: &str) {
    let (manager, program) = Manager::start(driver, "app tcp tls workers=2", &[]);
    manager.hears_of("READY=1");
    for _ in 0..3 {
        let before = monotonic_us();
        program.signal(Signal::HUP);
        let text = manager.hears();
        let rest = text.strip_prefix("RELOADING=1\nMONOTONIC_USEC=");
        let time = rest.and_then(|rest| rest.split('\n').next()?.parse().ok());
        let time: u64 = time.unwrap_or_else(|| panic!("no time: {text}"));
        // A manager waits for a start time after its own order.
        assert!((before..=monotonic_us()).contains(&time), "{before}: {text}");
        let text = manager.hears();
        assert!(text.starts_with("READY=1\nSTATUS=peregrine "), "{text}");
        assert_eq!(program.get("/process"), program.process.to_string());
    }
}

fn the_watchdog_is_notified_only_while_every_worker_runs(driver: &str) {
    let variables = [("WATCHDOG_USEC", "400000")];
    let (manager, mut program) = Manager::start(driver, "blocker tcp workers=2", &variables);
    for _ in 0..5 {
        assert_eq!(manager.hears_of("WATCHDOG"), "WATCHDOG=1");
    }
    let mut blocked = program.connects();
    ask(&mut blocked, "/blocks");
    program.says(" blocks");
    // Earlier watchdog notifications may still arrive.
    manager
        .0
        .set_read_timeout(Some(std::time::Duration::from_millis(1500)))
        .expect("the timeout is not zero");
    let mut notifications = 0;
    while manager.0.recv(&mut [0; 4096]).is_ok() {
        notifications += 1;
        assert!(notifications < 4, "no notification while one worker is blocked");
    }
    manager.0.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
    program.release();
    for _ in 0..3 {
        assert_eq!(manager.hears_of("WATCHDOG"), "WATCHDOG=1");
    }
    answer(blocked);
    // A successor is watched as well, although its variables name another process.
    program.upgrade();
    program.first_ends();
    manager.hears_of("MAINPID");
    assert_eq!(manager.hears_of("WATCHDOG"), "WATCHDOG=1");
}
