//! What suites of whole servers have in common: each case on both drivers, and clients that are a socket and text.

use peregrine::{Error, Running};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Only a hang takes so long.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Makes of each function that takes a `DriverChoice` a test on each of the two drivers that use the machine's sockets.
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
    // Each test in a process of its own.
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

/// The server that was started; none where the machine does not have what its driver needs, so that the case is left out.
///
/// # Panics
/// The server does not start for another reason.
#[must_use]
pub fn started(running: Result<Running, Error>) -> Option<Running> {
    match running {
        Err(error @ Error::Driver { .. }) => {
            eprintln!("skipped: {error}");
            None
        }
        running => Some(running.expect("the server starts")),
    }
}

/// A connection to the server's first listener, which is patient.
///
/// # Panics
/// There is nobody.
#[must_use]
pub fn connect(running: &Running) -> TcpStream {
    let address = running.http_address().expect("it speaks HTTP");
    let peer = TcpStream::connect(address).expect("it listens");
    peer.set_read_timeout(Some(PATIENCE)).expect("more than zero");
    peer
}

/// A connection on which this was sent.
///
/// # Panics
/// The server does not take it.
#[must_use]
pub fn send(running: &Running, request: impl AsRef<[u8]>) -> TcpStream {
    let mut peer = connect(running);
    peer.write_all(request.as_ref()).expect("connected");
    peer
}

/// Everything that comes until the server closes, as text.
///
/// # Panics
/// The connection breaks, or nothing comes for too long.
#[must_use]
pub fn receive(mut peer: TcpStream) -> String {
    let mut all = Vec::new();
    peer.read_to_end(&mut all).expect("an answer");
    String::from_utf8_lossy(&all).into_owned()
}

/// The first value of a header field in an answer.
#[must_use]
pub fn field<'t>(answer: &'t str, name: &str) -> Option<&'t str> {
    let head = answer.split("\r\n\r\n").next()?;
    head.split("\r\n").find_map(|line| {
        let (said, value) = line.split_once(": ")?;
        said.eq_ignore_ascii_case(name).then_some(value)
    })
}

/// Waits for something that happens elsewhere.
///
/// # Panics
/// It does not happen.
pub fn wait_for(mut what: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !what() {
        assert!(begun.elapsed() < PATIENCE, "it never happens");
        sleep(Duration::from_millis(5));
    }
}
