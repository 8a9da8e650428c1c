//! The messages that a server prints or logs for its operator.

use crate::error::Error;
use crate::listen::bind::ListenAddr;
use crate::report::ShutdownReport;
use peregrine_web::panic::catch_subscriber_panic;
use std::io::{self, Write as _};

/// Logs a message if a `tracing` subscriber enables it. Otherwise prints it, unless the server is
/// quiet.
pub fn report(text: &str, quiet: bool) {
    if tracing::enabled!(target: "peregrine", tracing::Level::INFO) {
        catch_subscriber_panic(|| tracing::info!(target: "peregrine", "{text}"));
    } else if !quiet {
        print_line(text);
    }
}

/// Writes a line to standard error in one call, because another process, such as a successor, may
/// write to the same terminal. Ignores errors: a closed pipe must not end the server.
fn print_line(text: &str) {
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Like [`report`], for an error that does not end the server.
#[cfg(any(all(target_os = "linux", feature = "restart"), feature = "config"))]
pub fn report_error(text: &str, quiet: bool) {
    if tracing::enabled!(target: "peregrine", tracing::Level::ERROR) {
        catch_subscriber_panic(|| tracing::error!(target: "peregrine", "{text}"));
    } else if !quiet {
        print_line(text);
    }
}

/// Reports the final counters.
///
/// # Errors
/// A worker did not end.
pub fn report_shutdown(shutdown_report: &ShutdownReport, quiet: bool) -> Result<(), Error> {
    report(&shutdown_report.to_string(), quiet);
    let workers = shutdown_report.workers.iter().enumerate();
    let blocked: Vec<_> = workers.filter(|(_, worker)| worker.is_none()).collect();
    if blocked.is_empty() {
        return Ok(());
    }
    Err(Error::WorkersBlocked(blocked.into_iter().map(|(worker, _)| worker).collect()))
}

/// Formats a listen address as a URL. `is_tls` selects the scheme.
pub(crate) fn url(listen_addr: &ListenAddr, is_tls: bool) -> String {
    let scheme = if is_tls { "https" } else { "http" };
    match listen_addr {
        ListenAddr::Tcp(address) => format!("{scheme}://{address}"),
        ListenAddr::Unix(path) => format!("{scheme}+unix:{}", path.display()),
    }
}
