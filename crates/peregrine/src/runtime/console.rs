//! What a server says to people.

use crate::error::Error;
use crate::listen::bind::Place;
use crate::runtime::report::Stopped;
use peregrine_web::panics::contained;
use std::io::{self, Write as _};

/// Tells people something, once: through the `tracing` subscriber that listens, else on the terminal
/// unless the server is quiet.
pub(crate) fn tell(text: &str, quiet: bool) {
    if tracing::enabled!(target: "peregrine", tracing::Level::INFO) {
        contained(|| tracing::info!(target: "peregrine", "{text}"));
    } else if !quiet {
        print_line(text);
    }
}

/// In one piece, since another process may write to the same terminal, such as a successor. Nobody may be there
/// to read it any more, such as the other end of a pipe: that must not end the server.
fn print_line(text: &str) {
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Tells people of a failure that ends nothing.
#[cfg(any(all(target_os = "linux", feature = "restart"), feature = "config"))]
pub(crate) fn complain(text: &str, quiet: bool) {
    if tracing::enabled!(target: "peregrine", tracing::Level::ERROR) {
        contained(|| tracing::error!(target: "peregrine", "{text}"));
    } else if !quiet {
        print_line(text);
    }
}

/// Reports what a server did. Workers that did not end are an error.
pub(crate) fn report(stopped: &Stopped, quiet: bool) -> Result<(), Error> {
    tell(&stopped.to_string(), quiet);
    let numbered = stopped.workers.iter().enumerate();
    let blocked: Vec<_> = numbered.filter(|(_, worker)| worker.is_none()).collect();
    if blocked.is_empty() {
        return Ok(());
    }
    Err(Error::Blocked(blocked.into_iter().map(|(number, _)| number).collect()))
}

/// A place as a URL; `is_tls` says whether TLS is spoken there.
pub(crate) fn url(place: &Place, is_tls: bool) -> String {
    let scheme = if is_tls { "https" } else { "http" };
    match place {
        Place::Tcp(address) => format!("{scheme}://{address}"),
        Place::Unix(path) => format!("{scheme}+unix:{}", path.display()),
    }
}
