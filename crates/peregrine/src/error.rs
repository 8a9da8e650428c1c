//! Why a server could not start: what is wrong, and how to fix it.

use peregrine_admin::internal::LogError;
use peregrine_restart::internal::TakeOverError;
#[cfg(feature = "config")]
use peregrine_settings::ConfigError;
use peregrine_tls::TlsError;
use peregrine_web::BuildError;
use std::error::Error as StdError;
use std::fmt;
use std::io;

/// Why a server could not start, or could not go on.
///
/// The debug form is also the readable text, because Rust prints that form when `main` returns an
/// error.
#[non_exhaustive]
pub enum Error {
    /// An address cannot be understood.
    Address {
        /// The address as it was given.
        address: String,
        /// Why the system did not understand it.
        cause: io::Error,
    },
    /// An address cannot be listened on.
    Bind {
        /// The address as it was given.
        address: String,
        /// What the kernel said.
        cause: io::Error,
    },
    /// The access log cannot be opened.
    Log {
        /// The path, or where else it was to go.
        target: String,
        /// What the system said.
        cause: io::Error,
    },
    /// A certificate, its key or another setting of TLS cannot be used.
    Tls(TlsError),
    /// The application contradicts itself. All contradictions are reported at once.
    Build(BuildError),
    /// The driver that was asked for cannot run here.
    Driver {
        /// The driver's name.
        driver: &'static str,
        /// Why not, and the remedy.
        cause: String,
    },
    /// A value of the configuration is not possible.
    Config(String),
    /// A worker's thread ended with an error.
    Worker(io::Error),
    /// A worker's thread ended with a panic: in the function that makes the application, in the `Drop`
    /// of a value that it holds, or in the server itself.
    Panicked {
        /// The worker's number.
        worker: usize,
        /// The panic's message.
        cause: String,
    },
    /// Workers, by number, that did not end when the server shut down, because a handler blocks
    /// their thread.
    Blocked(Vec<usize>),
    /// The signals that end a server cannot be received.
    Signals(io::Error),
    /// The process that started this one for an upgrade does not hand over what it has.
    TakeOver(io::Error),
}

#[cfg(feature = "config")]
impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Config(error.to_string())
    }
}

impl From<LogError> for Error {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Open { target, cause } => Self::Log { target, cause },
            LogError::Thread(cause) => Self::Worker(cause),
        }
    }
}

impl From<TakeOverError> for Error {
    fn from(TakeOverError(cause): TakeOverError) -> Self {
        Self::TakeOver(cause)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { address, cause } => write!(
                f,
                "cannot understand the address `{address}`: {cause}; write `127.0.0.1:8080`, \
                 `[::1]:8080`, `localhost:8080` or `unix:/run/app.sock`"
            ),
            Self::Bind { address, cause } => {
                write!(f, "cannot listen on {address}: {cause}{}", remedy(address, cause))
            }
            Self::Log { target, cause } => {
                let remedy = match cause.kind() {
                    io::ErrorKind::NotFound => "; its folder does not exist: make it",
                    io::ErrorKind::PermissionDenied => "; this user may not write there",
                    io::ErrorKind::IsADirectory => "; that is a folder: name a file in it",
                    _ => exhaustion(cause),
                };
                write!(f, "cannot open the access log {target}: {cause}{remedy}")
            }
            Self::Tls(error) => error.fmt(f),
            Self::Build(error) => error.fmt(f),
            Self::Driver { driver, cause } => {
                write!(f, "the {driver} driver cannot run here: {cause}")
            }
            Self::Config(cause) => f.write_str(cause),
            Self::Worker(cause) => write!(f, "a worker ended: {cause}{}", exhaustion(cause)),
            Self::Panicked { worker, cause } => write!(
                f,
                "worker {worker} ended by a panic: {cause}; see whether the function that makes the \
                 application, or the `Drop` of what it holds, can panic"
            ),
            Self::Blocked(workers) => write!(
                f,
                "workers {workers:?} did not end: a handler blocks their thread; give work that \
                 blocks to `tokio::task::spawn_blocking`"
            ),
            Self::Signals(cause) => {
                write!(f, "cannot listen for SIGTERM and Ctrl-C: {cause}{}", exhaustion(cause))
            }
            Self::TakeOver(cause) => write!(
                f,
                "cannot take over from the process that started this one: {cause}{}",
                match cause.kind() {
                    io::ErrorKind::UnexpectedEof => "; it has ended",
                    _ => exhaustion(cause),
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

/// A setting for which the program is built without what it needs.
#[cfg(feature = "config")]
pub(crate) fn missing(setting: &str, feature: &str) -> Error {
    let text = format!("this program is built without it: the feature `{feature}` of `peregrine`");
    ConfigError::of_setting(setting, text).into()
}

/// The usual remedies when an address cannot be listened on.
fn remedy(address: &str, cause: &io::Error) -> &'static str {
    let is_unix = address.starts_with("unix:");
    match cause.kind() {
        io::ErrorKind::AddrInUse if is_unix => {
            "; another process listens there, or the file is no socket: stop it, remove the file, or \
             choose another path"
        }
        io::ErrorKind::AddrInUse => {
            "; another process listens there: stop it, choose another port, or port 0 for any free one"
        }
        io::ErrorKind::PermissionDenied if is_unix => {
            "; this user may not write in the socket's folder"
        }
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need a privilege (CAP_NET_BIND_SERVICE): choose a higher one"
        }
        io::ErrorKind::AddrNotAvailable => "; no interface of this machine has that address",
        io::ErrorKind::NotFound if is_unix => "; the socket's folder does not exist",
        _ => exhaustion(cause),
    }
}

/// The remedies when the process has run out of something.
fn exhaustion(cause: &io::Error) -> &'static str {
    match cause.raw_os_error() {
        // EMFILE and ENFILE, which have no kind; the numbers are those of every Unix.
        Some(23 | 24) => {
            "; raise the limit of descriptors with `ulimit -n` or LimitNOFILE= of the service"
        }
        // EAGAIN: the one thing here that does not wait is starting a thread.
        _ if cause.kind() == io::ErrorKind::WouldBlock => {
            "; too few threads may be started: raise TasksMax= of the service, pids.max of the cgroup, or `ulimit -u`"
        }
        _ => "",
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Address { cause, .. }
            | Self::Bind { cause, .. }
            | Self::Log { cause, .. }
            | Self::Worker(cause)
            | Self::Signals(cause)
            | Self::TakeOver(cause) => Some(cause),
            Self::Tls(error) => Some(error),
            Self::Build(error) => Some(error),
            Self::Driver { .. } | Self::Config(_) | Self::Panicked { .. } | Self::Blocked(_) => {
                None
            }
        }
    }
}

impl From<BuildError> for Error {
    fn from(error: BuildError) -> Self {
        Self::Build(error)
    }
}

impl From<TlsError> for Error {
    fn from(error: TlsError) -> Self {
        Self::Tls(error)
    }
}

/// For a `main` that returns an `io::Result`, as programs of other frameworks do. The kind is the
/// kernel's error kind, if the kernel reported one.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Bind { cause, .. }
            | Error::Log { cause, .. }
            | Error::Worker(cause)
            | Error::Signals(cause)
            | Error::TakeOver(cause) => cause.kind(),
            Error::Address { .. } | Error::Tls(_) | Error::Build(_) | Error::Config(_) => {
                io::ErrorKind::InvalidInput
            }
            Error::Driver { .. } => io::ErrorKind::Unsupported,
            Error::Panicked { .. } | Error::Blocked(_) => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(address: &str, code: i32) -> String {
        let cause = io::Error::from_raw_os_error(code);
        Error::Bind { address: address.to_owned(), cause }.to_string()
    }

    #[cfg(feature = "tls")]
    #[test]
    fn what_main_prints_is_the_text_for_people() {
        let missing = peregrine_tls::Tls::from_pem_files("no-such.pem", "no-such.key");
        let error = Error::from(missing.expect_err("there is no such file"));
        let printed = format!("{error:?}");
        assert!(printed.starts_with("cannot read no-such.pem: "), "{printed}");
        assert_eq!(printed, error.to_string());
    }

    #[cfg(unix)]
    #[test]
    fn a_main_that_gives_an_io_error_keeps_its_kind_and_its_text() {
        fn main() -> io::Result<()> {
            Err(Error::Worker(io::Error::from_raw_os_error(13)))?;
            Ok(())
        }
        let error = main().expect_err("it fails");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(error.to_string().starts_with("a worker ended: "), "{error}");
        assert!(error.get_ref().is_some_and(|inner| inner.is::<Error>()));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_remedy_fits_the_kind_of_address_and_the_cause() {
        for (text, remedy) in [
            (bind("127.0.0.1:80", 13), "CAP_NET_BIND_SERVICE"),
            (bind("unix:/run/app.sock", 13), "folder"),
            (bind("unix:/run/none/app.sock", 2), "folder does not exist"),
            (bind("unix:/run/app.sock", 98), "remove the file"),
            (bind("127.0.0.1:80", 98), "port 0"),
            (bind("127.0.0.1:80", 24), "ulimit -n"),
            (Error::Worker(io::Error::from_raw_os_error(24)).to_string(), "ulimit -n"),
            (Error::Signals(io::Error::from_raw_os_error(24)).to_string(), "ulimit -n"),
            (Error::Worker(io::Error::from_raw_os_error(11)).to_string(), "TasksMax="),
        ] {
            assert!(text.contains(remedy), "{text}");
        }
    }
}
