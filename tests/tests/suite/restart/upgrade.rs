//! Upgrades in place: which process serves which client, and that no request is lost.

use crate::restart::program::{Program, answer, ask, wait_until};
use crate::restart::{PATIENCE, load, on_both_drivers};
use rustix::process::Signal;
use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

on_both_drivers! {
    a_successor_serves_where_its_predecessor_did,
    queued_connections_are_served_by_the_successor,
    what_is_in_progress_is_finished_by_the_predecessor,
    any_number_of_workers_may_follow_any_other,
    a_lame_duck_is_none_when_another_process_serves,
    what_the_successor_does_not_listen_on_is_drained_and_closed,
    a_successor_may_listen_on_more,
    an_application_that_takes_time_to_make_is_waited_for,
    an_order_to_reload_during_an_upgrade_reaches_the_successor,
    upgrades_under_load_lose_no_request,
}

fn number(text: &str) -> u32 {
    text.parse().unwrap_or_else(|_| panic!("no process: {text}"))
}

/// A connection on which a request was sent.
fn asks(program: &Program, target: &str) -> TcpStream {
    let mut stream = program.connects();
    ask(&mut stream, target);
    stream
}

fn a_successor_serves_where_its_predecessor_did(driver: &str) {
    let mut program = Program::start(driver, "app tcp unix workers=2");
    let first = program.process;
    let (address, path) = (program.address(), program.unix());
    assert_eq!(number(&program.get("/process")), first);
    for _ in 0..3 {
        let before = program.process;
        program.upgrade();
        assert_ne!(program.process, before);
        assert_eq!((program.address(), program.unix()), (address, path.clone()));
        // Both processes may serve for a moment.
        wait_until("the successor serves alone", || {
            number(&program.get("/process")) == program.process
                && number(&program.get_unix("/process")) == program.process
        });
    }
    assert!(program.first_ends().success());
    assert!(path.exists(), "the file belongs to the successor");
    let rest = program.ends();
    assert!(rest.contains("none was cut"), "{rest}");
    assert!(!path.exists(), "the file was removed");
    assert!(TcpStream::connect(address).is_err(), "the listener is closed");
}

fn queued_connections_are_served_by_the_successor(driver: &str) {
    for (before, after) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
        let mut program = Program::start(driver, &format!("blocker tcp unix workers={before}"));
        let first = program.process;
        program.plan(&format!("app tcp unix workers={after}"));
        // Each worker is blocked by the first request it gets, and then accepts no further
        // connections.
        let blocking: Vec<_> = (0..16).map(|_| asks(&program, "/blocks")).collect();
        (0..before).for_each(|_| drop(program.says(" blocks")));
        let queued: Vec<_> = (0..40).map(|_| asks(&program, "/process")).collect();
        let mut queued_unix =
            UnixStream::connect(program.unix()).expect("the server accepts connections");
        ask(&mut queued_unix, "/process");
        program.upgrade();
        for stream in queued {
            assert_eq!(number(&answer(stream)), program.process, "{before} to {after}");
        }
        assert_eq!(number(&answer(queued_unix)), program.process, "{before} to {after}");
        program.release();
        let of_first = blocking.into_iter().filter(|stream| number(&answer(stream)) == first);
        // A worker may have accepted more before it was blocked.
        assert!(of_first.count() >= before, "{before} to {after}");
        assert!(program.first_ends().success());
    }
}

fn what_is_in_progress_is_finished_by_the_predecessor(driver: &str) {
    let mut program = Program::start(driver, "app tcp");
    let first = program.process;
    let mut slow = program.connects();
    let mut idle = program.connects();
    slow.write_all(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").expect("the server reads the request");
    idle.write_all(b"GET /process HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect("the server reads the request");
    let mut bytes = [0; 4096];
    let length = idle.read(&mut bytes).expect("a response");
    assert!(bytes[..length].starts_with(b"HTTP/1.1 200 "));
    program.upgrade();
    let text = answer(slow);
    assert_eq!(number(&text), first, "the connection closes after the response");
    assert_eq!(idle.read(&mut bytes).expect("the peer closes the connection cleanly"), 0);
    assert!(program.first_ends().success());
}

fn any_number_of_workers_may_follow_any_other(driver: &str) {
    let mut program = Program::start(driver, "app tcp tls workers=2");
    for workers in [3, 1, 2, 4, 1] {
        program.plan(&format!("app tcp tls workers={workers}"));
        let load = load::Load::start(&program, load::Size { kept: 4, new: 2, tls: 2 });
        program.upgrade();
        wait_until("the successor serves alone", || {
            number(&program.get("/process")) == program.process
        });
        load.ends(&program);
    }
}

fn a_lame_duck_is_none_when_another_process_serves(driver: &str) {
    let mut program = Program::start(driver, "app tcp lame=600 shutdown=900");
    program.upgrade();
    assert!(program.first_ends().success(), "the old process does not wait that long");
    assert_eq!(program.get("/ready"), "yes");
}

fn what_the_successor_does_not_listen_on_is_drained_and_closed(driver: &str) {
    let mut program = Program::start(driver, "blocker tcp unix");
    let (address, path) = (program.address(), program.unix());
    program.plan("app unix");
    let mut blocked = program.connects();
    ask(&mut blocked, "/blocks");
    program.says(" blocks");
    let first = program.process;
    let mut queued = program.connects();
    ask(&mut queued, "/process");
    program.upgrade();
    program.release();
    assert_eq!(number(&answer(queued)), first, "a queued client gets a response");
    answer(blocked);
    assert!(program.first_ends().success());
    assert!(TcpStream::connect(address).is_err(), "the listener is closed");
    assert_eq!(number(&program.get_unix("/process")), program.process);
    assert!(path.exists());
}

fn a_successor_may_listen_on_more(driver: &str) {
    let mut program = Program::start(driver, "app unix");
    program.plan("app unix tcp");
    program.upgrade();
    assert_eq!(number(&program.get("/process")), program.process);
}

fn an_application_that_takes_time_to_make_is_waited_for(driver: &str) {
    let mut program = Program::start(driver, "app in-time tcp workers=2");
    assert_eq!(number(&program.get("/process")), program.process);
    program.upgrade();
    wait_until("the successor serves alone", || {
        number(&program.get("/process")) == program.process
    });
}

fn an_order_to_reload_during_an_upgrade_reaches_the_successor(driver: &str) {
    for is_asked in [true, false] {
        let mut program = Program::start(driver, "app tcp tls admin");
        program.plan("slow tcp tls admin");
        program.signal(Signal::USR2);
        let next = program.next();
        // The successor has read its certificates.
        program.says(" is slow");
        if is_asked {
            program.signal(Signal::HUP);
        }
        program.line = program.says("peregrine 0.");
        program.process = next;
        assert!(program.first_ends().success());
        let reloads = |program: &Program| {
            let mut stream = TcpStream::connect(program.admin_address())
                .expect("the server accepts connections");
            ask(&mut stream, "/metrics");
            let page = answer(stream);
            let name = "peregrine_tls_reloads_total{";
            let lines = page.lines().filter(|line| line.starts_with(name));
            let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
            counts.sum::<f64>()
        };
        if is_asked {
            wait_until("the successor has reloaded the certificates", || reloads(&program) == 1.0);
        } else {
            assert_eq!(reloads(&program), 0.0);
        }
    }
}

fn upgrades_under_load_lose_no_request(driver: &str) {
    upgrades_under_load(driver, 5, load::Size { kept: 24, new: 4, tls: 4 });
}

/// This many upgrades, alternating between 2 workers and 1, under load.
fn upgrades_under_load(driver: &str, count: usize, size: load::Size) {
    let mut program = Program::start(driver, "app tcp tls workers=2");
    let load = load::Load::start(&program, size);
    for round in 0..count {
        program.plan(&format!("app tcp tls workers={}", 1 + round % 2));
        load.goes_on();
        program.upgrade();
    }
    load.goes_on();
    load.ends(&program);
}

/// How many upgrades the long tests run.
fn upgrades() -> usize {
    std::env::var("UPGRADES").ok().and_then(|count| count.parse().ok()).unwrap_or(100)
}

#[test]
#[ignore = "takes minutes"]
fn a_hundred_upgrades_with_64_connections() {
    for driver in ["tokio", "uring"] {
        upgrades_under_load(driver, upgrades(), load::Size { kept: 40, new: 8, tls: 16 });
    }
}

#[test]
#[ignore = "takes many minutes"]
fn a_hundred_upgrades_with_10_000_connections() {
    for driver in ["tokio", "uring"] {
        upgrades_under_load(driver, upgrades(), load::Size { kept: 9000, new: 8, tls: 992 });
    }
}

/// Sockets that share one address, as those of workers do.
fn group(count: usize) -> (Vec<Socket>, SocketAddr) {
    let mut address = SocketAddr::from(([127, 0, 0, 1], 0));
    let listen = |address: SocketAddr| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_reuse_port(true).expect("Linux has it");
        socket.bind(&address.into()).expect("the address is free or shared");
        socket.listen(100).expect("the socket is bound");
        socket
    };
    let first = listen(address);
    address =
        first.local_addr().ok().and_then(|name| name.as_socket()).expect("the socket is bound");
    let others = (1..count).map(|_| listen(address));
    (std::iter::once(first).chain(others).collect(), address)
}

/// How many queued connections survive when one of two sockets is closed, and how many there were.
fn left_of_queues(keeps_a_duplicate: bool) -> (usize, usize) {
    let (mut sockets, address) = group(2);
    let peers: Vec<_> = (0..40)
        .map(|_| TcpStream::connect(address).expect("the server accepts connections"))
        .collect();
    let kept = keeps_a_duplicate.then(|| sockets[0].try_clone().expect("a descriptor"));
    drop(sockets.remove(0));
    let is_left = |peer: &&TcpStream| {
        peer.set_read_timeout(Some(Duration::from_millis(20))).expect("the timeout is not zero");
        // A reset is reported at once.
        (&**peer).read(&mut [0; 1]).is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock)
    };
    let left = peers.iter().filter(is_left).count();
    drop(kept);
    (left, peers.len())
}

#[test]
fn a_queue_ends_with_the_last_descriptor_of_its_socket() {
    let (left, all) = left_of_queues(true);
    assert_eq!(left, all, "another descriptor keeps the backlog open");
    let migrates = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_migrate_req");
    if migrates.is_ok_and(|text| text.trim() == "0") {
        let (left, all) = left_of_queues(false);
        assert!(left < all, "the kernel resets queued connections: {left} of {all} are left");
    }
}

#[test]
fn a_server_is_upgraded_by_a_call_as_well() {
    use peregrine::prelude::*;
    let server = peregrine::testing::TestServer::start(App::new).expect("the server starts");
    let successor = peregrine::restart::UpgradeOptions::new().program("/no/such/program");
    drop(server);
    let make = || App::new().get("/", || "hello");
    let server = peregrine::testing::TestServer::start_with(|s| s.upgrade_options(successor), make);
    let server = server.expect("the server starts");
    let handle = server.server().handle();
    let error = handle.upgrade().expect_err("the program does not exist").to_string();
    assert!(error.contains("/no/such/program"), "{error}");
    let mut stream = TcpStream::connect(server.address()).expect("the server accepts connections");
    stream.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
    ask(&mut stream, "/");
    assert_eq!(answer(stream), "hello");
    server.into_server().graceful_shutdown().expect("the shutdown succeeds");
    let error = handle.upgrade().expect_err("the server has shut down").to_string();
    assert!(error.contains("not serving"), "{error}");
}
