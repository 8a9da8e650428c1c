//! Shared parts of suites that test whole servers: a macro that runs each case on both drivers, and
//! clients made of a socket and text.

use peregrine::{Error, RunningServer};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Only a hang takes this long.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Turns each function that takes a `DriverChoice` into one test per driver that uses the machine's
/// sockets.
#[macro_export]
macro_rules! on_both_drivers {
    ($($case:ident,)*) => {
        mod on_tokio {
            $(#[test] fn $case() { super::$case(::peregrine::DriverChoice::Tokio); })*
        }
        #[cfg(target_os = "linux")]
        mod on_uring {
            $(#[test] fn $case() { super::$case(::peregrine::DriverChoice::Uring); })*
        }
    };
    // Each test in its own process.
    (@isolated $($case:ident,)*) => {
        mod on_tokio {
            $(#[test] fn $case() {
                $crate::isolated(|| super::$case(::peregrine::DriverChoice::Tokio));
            })*
        }
        #[cfg(target_os = "linux")]
        mod on_uring {
            $(#[test] fn $case() {
                $crate::isolated(|| super::$case(::peregrine::DriverChoice::Uring));
            })*
        }
    };
}

/// Returns the started server, or `None` if the machine lacks what its driver needs, so that the
/// case is skipped.
///
/// # Panics
/// If the server fails to start for another reason.
#[must_use]
pub fn started(running: Result<RunningServer, Error>) -> Option<RunningServer> {
    match running {
        Err(error @ Error::Driver { .. }) => {
            eprintln!("skipped: {error}");
            None
        }
        running => Some(running.expect("the server starts")),
    }
}

/// A connection to the server's first listener, with a long read timeout.
///
/// # Panics
/// If the server does not accept it.
#[must_use]
pub fn connect(running: &RunningServer) -> TcpStream {
    let address = running.http_address().expect("the server has an HTTP listener");
    let peer = TcpStream::connect(address).expect("the server accepts connections");
    peer.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
    peer
}

/// A connection on which `text` was sent.
///
/// # Panics
/// If the server does not read it.
#[must_use]
pub fn send(running: &RunningServer, request: impl AsRef<[u8]>) -> TcpStream {
    let mut peer = connect(running);
    peer.write_all(request.as_ref()).expect("connected");
    peer
}

/// Everything the server sends until it closes the connection, as text.
///
/// # Panics
/// If the connection breaks, or no data arrives within the read timeout.
#[must_use]
pub fn receive(mut peer: TcpStream) -> String {
    let mut all = Vec::new();
    peer.read_to_end(&mut all).expect("a response");
    String::from_utf8_lossy(&all).into_owned()
}

/// The first value of a header field in a response.
#[must_use]
pub fn field<'t>(response: &'t str, name: &str) -> Option<&'t str> {
    let head = response.split("\r\n\r\n").next()?;
    head.split("\r\n").find_map(|line| {
        let (field_name, value) = line.split_once(": ")?;
        field_name.eq_ignore_ascii_case(name).then_some(value)
    })
}

/// Waits until a condition outside this thread holds.
///
/// # Panics
/// If it does not hold in time.
pub fn wait_for(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "the condition never holds");
        sleep(Duration::from_millis(5));
    }
}
