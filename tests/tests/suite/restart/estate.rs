//! Resources passed to a successor besides the public sockets: the admin listener and the ticket
//! keys.

use crate::restart::program::{Program, answer, ask, wait_until};
use crate::restart::{load, on_both_drivers};
use peregrine_tls::rustls::{ClientConfig, ClientConnection, HandshakeKind, Stream};
use rustix::process::Signal;
use rustls_pki_types::ServerName;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

on_both_drivers! {
    whoever_probes_sees_one_service_that_is_ready_all_the_time,
    the_admin_listener_is_the_successors_alone_in_the_end,
    an_admin_listener_that_the_successor_has_not_ends_with_its_process,
    an_admin_listener_of_a_service_manager_is_handed_over,
    sessions_of_tls_are_resumed_with_the_successor,
    a_successor_with_tls_at_another_place_has_keys_of_its_own,
}

/// The whole response to a GET on its own connection.
fn asked(address: SocketAddr, target: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(crate::restart::PATIENCE))?;
    ask(&mut stream, target);
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn whoever_probes_sees_one_service_that_is_ready_all_the_time(driver: &str) {
    let mut program = Program::start(driver, "app tcp admin");
    let address = program.admin_address();
    let is_over = Arc::new(AtomicBool::new(false));
    let probes = thread::spawn({
        let is_over = Arc::clone(&is_over);
        move || {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                for target in ["/readyz", "/livez", "/startupz"] {
                    let text = asked(address, target).expect("the process responds");
                    assert!(text.starts_with("HTTP/1.1 200 "), "{target}: {text}");
                    count += 1;
                }
            }
            count
        }
    });
    // Only the application is slow to start.
    program.plan("slow tcp admin");
    program.upgrade();
    assert_eq!(program.admin_address(), address);
    program.first_ends();
    program.plan("broken tcp admin");
    program.signal(Signal::USR2);
    program.says("no upgrade");
    is_over.store(true, Ordering::Relaxed);
    let count = probes.join().expect("every probe succeeded");
    assert!(count > 3, "{count}");
    assert!(answer_of(address, "/metrics").contains("\nhttp_server_"));
}

fn answer_of(address: SocketAddr, target: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the server accepts connections");
    ask(&mut stream, target);
    answer(stream)
}

fn the_admin_listener_is_the_successors_alone_in_the_end(driver: &str) {
    let mut program = Program::start(driver, "blocker tcp admin");
    let address = program.admin_address();
    program.get("/count/1");
    let has_counted = || answer_of(address, "/metrics").contains("\"/count/{number}\"");
    assert!(has_counted());
    // The old process stays as long as it has a request to answer.
    let mut blocked = program.connects();
    ask(&mut blocked, "/blocks");
    program.says(" blocks");
    program.upgrade();
    // The old process closes the admin listener once the order arrives, and for good.
    wait_until("the predecessor leaves", || (0..50).all(|_| !has_counted()));
    program.release();
    answer(blocked);
    assert!(program.first_ends().success());
    answer_of(address, "/readyz");
    program.ends();
    assert!(TcpStream::connect(address).is_err(), "the admin listener is closed");
}

fn an_admin_listener_that_the_successor_has_not_ends_with_its_process(driver: &str) {
    let mut program = Program::start(driver, "blocker tcp admin");
    let address = program.admin_address();
    let mut blocked = program.connects();
    ask(&mut blocked, "/blocks");
    program.says(" blocks");
    program.plan("app tcp");
    program.upgrade();
    answer_of(address, "/metrics");
    program.release();
    answer(blocked);
    assert!(program.first_ends().success());
    assert!(TcpStream::connect(address).is_err(), "the admin listener is closed");
}

fn an_admin_listener_of_a_service_manager_is_handed_over(driver: &str) {
    let given = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = given.local_addr().expect("the socket is bound");
    let handed = vec![("admin", given.try_clone().expect("a descriptor").into())];
    let mut program = Program::start_with(driver, "app tcp admin-activated", handed, |_, _| {});
    for _ in 0..2 {
        answer_of(address, "/readyz");
        program.upgrade();
        assert_eq!(program.admin_address(), address);
    }
    answer_of(address, "/readyz");
    program.ends();
    drop(given);
}

/// Sends a request over TLS on its own connection. Returns whether the handshake was a resumption.
fn resumes(program: &Program, config: &Arc<ClientConfig>) -> bool {
    let name = ServerName::try_from("localhost").expect("a name");
    let mut session =
        ClientConnection::new(Arc::clone(config), name).expect("the client configuration is valid");
    let mut stream =
        TcpStream::connect(program.tls_address()).expect("the server accepts connections");
    stream.set_read_timeout(Some(crate::restart::PATIENCE)).expect("the timeout is not zero");
    let mut stream = Stream::new(&mut session, &mut stream);
    ask(&mut stream, "/process");
    let mut text = Vec::new();
    stream.read_to_end(&mut text).expect("the server responds");
    assert!(text.starts_with(b"HTTP/1.1 200 "));
    session.handshake_kind() == Some(HandshakeKind::Resumed)
}

fn sessions_of_tls_are_resumed_with_the_successor(driver: &str) {
    let mut program = Program::start(driver, "app tcp tls workers=2");
    let config = Arc::new(load::client_config(&program));
    assert!(!resumes(&program, &config));
    for _ in 0..3 {
        assert!(resumes(&program, &config));
        program.upgrade();
        wait_until("the successor serves alone", || {
            program.get("/process") == program.process.to_string()
        });
        // The ticket is from the old process.
        assert!(resumes(&program, &config));
    }
}

fn a_successor_with_tls_at_another_place_has_keys_of_its_own(driver: &str) {
    let mut program = Program::start(driver, "app tcp tls");
    let config = Arc::new(load::client_config(&program));
    assert!(!resumes(&program, &config));
    assert!(resumes(&program, &config));
    program.plan("app tcp tls-elsewhere");
    program.upgrade();
    program.first_ends();
    assert!(!resumes(&program, &config));
}
