//! Why a server could not start: what is wrong, and how to mend it.

use peregrine_web::BuildError;
use std::error::Error as StdError;
use std::fmt;
use std::io;

/// Why a server could not start, or could not go on.
#[derive(Debug)]
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
    /// The application contradicts itself. All contradictions are told at once.
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
    /// A worker's thread ended by an error.
    Worker(io::Error),
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
                write!(f, "cannot listen on {address}: {cause}{}", remedy(cause))
            }
            Self::Build(error) => error.fmt(f),
            Self::Driver { driver, cause } => {
                write!(f, "the {driver} driver cannot run here: {cause}")
            }
            Self::Config(cause) => f.write_str(cause),
            Self::Worker(cause) => write!(f, "a worker ended: {cause}"),
        }
    }
}

fn remedy(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::AddrInUse => {
            "; another process listens there: stop it, choose another port, or port 0 for any free one"
        }
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need a privilege (CAP_NET_BIND_SERVICE): choose a higher one"
        }
        io::ErrorKind::AddrNotAvailable => "; no interface of this machine has that address",
        io::ErrorKind::NotFound => "; the socket's folder does not exist",
        _ => "",
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Address { cause, .. } | Self::Bind { cause, .. } | Self::Worker(cause) => {
                Some(cause)
            }
            Self::Build(error) => Some(error),
            Self::Driver { .. } | Self::Config(_) => None,
        }
    }
}

impl From<BuildError> for Error {
    fn from(error: BuildError) -> Self {
        Self::Build(error)
    }
}
