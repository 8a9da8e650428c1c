//! [`Error`]: the reason why a server could not start or had to stop, with a hint how to fix it.

#[cfg(feature = "acme")]
use peregrine_acme::AcmeSetupError;
use peregrine_admin::internal::AccessLogError;
use peregrine_restart::internal::HandoverError;
#[cfg(feature = "config")]
use peregrine_settings::ConfigError;
use peregrine_tls::TlsSetupError;
use peregrine_web::BuildError;
use std::error::Error as StdError;
use std::fmt;
use std::io;

/// Why a server could not start, or had to stop.
///
/// The `Debug` form is the same text as the `Display` form, because Rust prints the `Debug` form
/// when `main` returns an error.
#[non_exhaustive]
pub enum Error {
    /// An address cannot be parsed or resolved.
    InvalidAddress {
        /// The address, as passed by the application.
        address: String,
        /// The error from the name lookup.
        cause: io::Error,
    },
    /// The server cannot listen on an address, or cannot use a listener.
    Bind {
        /// The address, or a description of a listener that was already bound when the program
        /// passed it to the server.
        address: String,
        /// The operating system's error.
        cause: io::Error,
    },
    /// The access log cannot be opened.
    AccessLog {
        /// The path, or a description of another target.
        target: String,
        /// The operating system's error.
        cause: io::Error,
    },
    /// A certificate, a key or another TLS setting cannot be used.
    Tls(TlsSetupError),
    /// The application is invalid. All of its errors are reported together.
    Build(BuildError),
    /// The requested driver cannot run here.
    Driver {
        /// The driver's name.
        driver: &'static str,
        /// The reason, and how to fix it.
        cause: String,
    },
    /// A setting has an invalid value.
    Config(String),
    /// A thread of the server, or the runtime that it needs, could not be started.
    Thread(io::Error),
    /// A worker's thread ended with an error.
    Worker(io::Error),
    /// A worker's thread panicked: in the function that builds the application, in the `Drop` of a
    /// value that the application holds, or in the server itself.
    WorkerPanicked {
        /// The worker's number.
        worker: usize,
        /// The panic's message.
        cause: String,
    },
    /// Workers did not end when the server shut down, because a handler blocks their thread.
    /// Contains their numbers.
    WorkersBlocked(Vec<usize>),
    /// The handlers for SIGTERM and Ctrl-C cannot be installed.
    Signals(io::Error),
    /// During an upgrade in place, the previous process did not hand over its listeners.
    Handover(io::Error),
}

#[cfg(feature = "acme")]
impl From<AcmeSetupError> for Error {
    fn from(error: AcmeSetupError) -> Self {
        match error {
            AcmeSetupError::Tls(error) => Self::Tls(error),
            error => Self::Config(error.to_string()),
        }
    }
}

#[cfg(feature = "config")]
impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Config(error.to_string())
    }
}

impl From<AccessLogError> for Error {
    fn from(error: AccessLogError) -> Self {
        match error {
            AccessLogError::Open { target, cause } => Self::AccessLog { target, cause },
            AccessLogError::Thread(cause) => Self::Thread(cause),
        }
    }
}

impl From<HandoverError> for Error {
    fn from(HandoverError(cause): HandoverError) -> Self {
        Self::Handover(cause)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidAddress { address, cause } => write!(
                f,
                "cannot understand the address `{address}`: {cause}; write `127.0.0.1:8080`, \
                 `[::1]:8080`, `localhost:8080` or `unix:/run/app.sock`"
            ),
            Self::Bind { address, cause } => {
                write!(f, "cannot listen on {address}: {cause}{}", bind_hint(address, cause))
            }
            Self::AccessLog { target, cause } => {
                let hint = match cause.kind() {
                    io::ErrorKind::NotFound => "; its directory does not exist: create it",
                    io::ErrorKind::PermissionDenied => "; this user may not write there",
                    io::ErrorKind::IsADirectory => "; this is a directory: name a file in it",
                    _ => exhaustion_hint(cause),
                };
                write!(f, "cannot open the access log {target}: {cause}{hint}")
            }
            Self::Tls(error) => error.fmt(f),
            Self::Build(error) => error.fmt(f),
            Self::Driver { driver, cause } => {
                write!(f, "the {driver} driver cannot run here: {cause}")
            }
            Self::Config(cause) => f.write_str(cause),
            Self::Thread(cause) => {
                write!(f, "cannot start a server thread: {cause}{}", exhaustion_hint(cause))
            }
            Self::Worker(cause) => write!(f, "a worker failed: {cause}{}", exhaustion_hint(cause)),
            Self::WorkerPanicked { worker, cause } => write!(
                f,
                "worker {worker} panicked: {cause}; check whether the function that builds the \
                 application, or the `Drop` of a value that it holds, can panic"
            ),
            Self::WorkersBlocked(workers) => write!(
                f,
                "workers {workers:?} did not end: a handler blocks their thread; run blocking work \
                 with `tokio::task::spawn_blocking`"
            ),
            Self::Signals(cause) => {
                write!(f, "cannot listen for SIGTERM and Ctrl-C: {cause}{}", exhaustion_hint(cause))
            }
            Self::Handover(cause) => write!(
                f,
                "cannot take over from the process that started this one: {cause}{}",
                match cause.kind() {
                    io::ErrorKind::UnexpectedEof => "; that process has ended",
                    _ => exhaustion_hint(cause),
                }
            ),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns the error for a setting that requires a feature that is not enabled.
#[cfg(feature = "config")]
#[must_use]
pub fn missing_feature(setting: &str, feature: &str) -> Error {
    let text = format!("this program was built without the feature `{feature}` of `peregrine`");
    ConfigError::for_key(setting, text).into()
}

/// Returns the hint for an error of listening on `address`.
fn bind_hint(address: &str, cause: &io::Error) -> &'static str {
    let is_unix = address.starts_with("unix:");
    match cause.kind() {
        io::ErrorKind::AddrInUse if is_unix => {
            "; another process listens there, or the file is not a socket: stop the process, \
             remove the file, or choose another path"
        }
        io::ErrorKind::AddrInUse => {
            "; another process listens there: stop it, choose another port, or use port 0 for any \
             free port"
        }
        io::ErrorKind::PermissionDenied if is_unix => {
            "; this user may not write in the socket's directory"
        }
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need a privilege (CAP_NET_BIND_SERVICE): choose a higher port"
        }
        io::ErrorKind::AddrNotAvailable => "; no interface of this machine has that address",
        io::ErrorKind::NotFound if is_unix => "; the socket's directory does not exist",
        _ => exhaustion_hint(cause),
    }
}

/// Returns the hint for errors that occur when the process has exhausted a resource.
fn exhaustion_hint(cause: &io::Error) -> &'static str {
    match cause.raw_os_error() {
        // ENFILE and EMFILE, which have no `ErrorKind`. The numbers are the same on every Unix.
        Some(23 | 24) => {
            "; raise the descriptor limit with `ulimit -n`, or LimitNOFILE= of the service"
        }
        // EAGAIN. Of the operations that report their error here, only starting a thread fails with
        // it.
        _ if cause.kind() == io::ErrorKind::WouldBlock => {
            "; the thread limit is reached: raise TasksMax= of the service, pids.max of the \
             cgroup, or `ulimit -u`"
        }
        _ => "",
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::InvalidAddress { cause, .. }
            | Self::Bind { cause, .. }
            | Self::AccessLog { cause, .. }
            | Self::Thread(cause)
            | Self::Worker(cause)
            | Self::Signals(cause)
            | Self::Handover(cause) => Some(cause),
            Self::Tls(error) => Some(error),
            Self::Build(error) => Some(error),
            Self::Driver { .. }
            | Self::Config(_)
            | Self::WorkerPanicked { .. }
            | Self::WorkersBlocked(_) => None,
        }
    }
}

impl From<BuildError> for Error {
    fn from(error: BuildError) -> Self {
        Self::Build(error)
    }
}

impl From<TlsSetupError> for Error {
    fn from(error: TlsSetupError) -> Self {
        Self::Tls(error)
    }
}

/// Allows `?` on this error in a `main` that returns `io::Result`, as with other frameworks. The
/// kind is that of the variant's `io::Error`, if it has one, except that `InvalidAddress` always
/// becomes `InvalidInput`.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Bind { cause, .. }
            | Error::AccessLog { cause, .. }
            | Error::Thread(cause)
            | Error::Worker(cause)
            | Error::Signals(cause)
            | Error::Handover(cause) => cause.kind(),
            Error::InvalidAddress { .. } | Error::Tls(_) | Error::Build(_) | Error::Config(_) => {
                io::ErrorKind::InvalidInput
            }
            Error::Driver { .. } => io::ErrorKind::Unsupported,
            Error::WorkerPanicked { .. } | Error::WorkersBlocked(_) => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind_error(address: &str, errno: i32) -> String {
        let cause = io::Error::from_raw_os_error(errno);
        Error::Bind { address: address.to_owned(), cause }.to_string()
    }

    #[cfg(feature = "tls")]
    #[test]
    fn debug_prints_the_display_text() {
        let missing = peregrine_tls::TlsConfig::from_pem_files("no-such.pem", "no-such.key");
        let error = Error::from(missing.expect_err("no such file"));
        let printed = format!("{error:?}");
        assert!(printed.starts_with("cannot read no-such.pem: "), "{printed}");
        assert_eq!(printed, error.to_string());
    }

    #[cfg(unix)]
    #[test]
    fn conversion_to_an_io_error_keeps_the_kind_and_the_text() {
        fn main() -> io::Result<()> {
            Err(Error::Worker(io::Error::from_raw_os_error(13)))?;
            Ok(())
        }
        let error = main().expect_err("an error");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(error.to_string().starts_with("a worker failed: "), "{error}");
        assert!(error.get_ref().is_some_and(|inner| inner.is::<Error>()));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn hints_match_the_kind_of_address_and_the_cause() {
        for (text, hint) in [
            (bind_error("127.0.0.1:80", 13), "CAP_NET_BIND_SERVICE"),
            (bind_error("unix:/run/app.sock", 13), "directory"),
            (bind_error("unix:/run/none/app.sock", 2), "directory does not exist"),
            (bind_error("unix:/run/app.sock", 98), "remove the file"),
            (bind_error("127.0.0.1:80", 98), "port 0"),
            (bind_error("127.0.0.1:80", 24), "ulimit -n"),
            (Error::Worker(io::Error::from_raw_os_error(24)).to_string(), "ulimit -n"),
            (Error::Signals(io::Error::from_raw_os_error(24)).to_string(), "ulimit -n"),
            (Error::Thread(io::Error::from_raw_os_error(24)).to_string(), "ulimit -n"),
            (Error::Thread(io::Error::from_raw_os_error(11)).to_string(), "TasksMax="),
            (Error::Thread(io::Error::from_raw_os_error(11)).to_string(), "cannot start a server"),
        ] {
            assert!(text.contains(hint), "{text}");
        }
    }
}
