//! Chooses the driver of all workers, and records the reason.

use crate::error::Error;
use peregrine_driver::Options;
#[cfg(all(target_os = "linux", feature = "uring"))]
use peregrine_driver_uring::PreparedRing;
#[cfg(feature = "config")]
use peregrine_settings::DriverKind;
use std::env;

/// The environment variable that overrides the application's choice.
const ENV_VAR: &str = "PEREGRINE_DRIVER";

/// The driver that a server should use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverChoice {
    /// io_uring where the kernel allows it, and tokio elsewhere. The startup line names the driver
    /// that was selected, and the reason.
    #[default]
    Auto,
    /// io_uring. Where the kernel does not allow it, the server fails to start, and the error
    /// contains the reason.
    Uring,
    /// tokio, on epoll. Untested on systems where tokio uses kqueue or IOCP.
    Tokio,
}

/// The driver of all workers.
pub(crate) struct SelectedDriver {
    /// One entry per worker. All entries are of the same variant.
    pub(crate) drivers: Vec<PreparedDriver>,
    /// The driver's name, and its features or why it was selected, for the startup line.
    pub(crate) description: String,
}

/// The resources of one worker's driver. They are created before any worker's thread starts, so
/// that all workers can use tokio if the kernel refuses an io_uring to one of them.
pub(crate) enum PreparedDriver {
    Tokio,
    #[cfg(all(target_os = "linux", feature = "uring"))]
    Uring(Box<PreparedRing>),
}

impl DriverChoice {
    /// Selects the driver that the environment variable names. If it is not set, `self` and the
    /// kernel's support decide.
    pub(crate) fn choose(self, workers: &[Options]) -> Result<SelectedDriver, Error> {
        match env::var(ENV_VAR) {
            Ok(value) => Self::parse(&value)?.prepare(workers),
            Err(_) => self.prepare(workers),
        }
    }

    fn parse(name: &str) -> Result<Self, Error> {
        match name {
            "uring" => Ok(Self::Uring),
            "tokio" => Ok(Self::Tokio),
            "auto" | "" => Ok(Self::Auto),
            _ => Err(Error::Config(format!(
                "{ENV_VAR}={name} is not a driver: use uring, tokio or auto"
            ))),
        }
    }

    fn prepare(self, workers: &[Options]) -> Result<SelectedDriver, Error> {
        let uring_error = match self {
            Self::Tokio => None,
            Self::Auto | Self::Uring => match prepare_uring(workers) {
                Ok(selected) => return Ok(selected),
                Err(error) => Some(error),
            },
        };
        let description = match (self, uring_error) {
            (Self::Uring, Some(cause)) => {
                return Err(Error::Driver { driver: "io_uring", cause });
            }
            (_, Some(error)) => format!("tokio, because io_uring is not available: {error}"),
            (_, None) => "tokio (as requested)".to_owned(),
        };
        Ok(SelectedDriver {
            drivers: workers.iter().map(|_| PreparedDriver::Tokio).collect(),
            description,
        })
    }
}

#[cfg(feature = "config")]
impl From<DriverKind> for DriverChoice {
    fn from(kind: DriverKind) -> Self {
        match kind {
            DriverKind::Auto => Self::Auto,
            DriverKind::Uring => Self::Uring,
            DriverKind::Tokio => Self::Tokio,
        }
    }
}

#[cfg(feature = "config")]
impl From<DriverChoice> for DriverKind {
    fn from(choice: DriverChoice) -> Self {
        match choice {
            DriverChoice::Auto => Self::Auto,
            DriverChoice::Uring => Self::Uring,
            DriverChoice::Tokio => Self::Tokio,
        }
    }
}

/// Prepares an io_uring for each worker.
///
/// # Errors
/// io_uring is not available. The error is the reason.
#[cfg(all(target_os = "linux", feature = "uring"))]
fn prepare_uring(workers: &[Options]) -> Result<SelectedDriver, String> {
    let (features, rings) =
        peregrine_driver_uring::prepare(workers).map_err(|error| error.to_string())?;
    let drivers = rings.into_iter().map(|ring| PreparedDriver::Uring(Box::new(ring))).collect();
    Ok(SelectedDriver { drivers, description: format!("io_uring ({features})") })
}

#[cfg(all(not(target_os = "linux"), feature = "uring"))]
fn prepare_uring(_: &[Options]) -> Result<SelectedDriver, String> {
    Err(peregrine_driver_uring::ProbeError::NotLinux.to_string())
}

#[cfg(not(feature = "uring"))]
fn prepare_uring(_: &[Options]) -> Result<SelectedDriver, String> {
    Err("this program was built without peregrine's feature `uring`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_an_unknown_driver_lists_the_valid_names() {
        let text = DriverChoice::parse("epoll").expect_err("no such driver").to_string();
        assert_eq!(text, "PEREGRINE_DRIVER=epoll is not a driver: use uring, tokio or auto");
        assert_eq!(DriverChoice::parse("tokio").expect("a driver"), DriverChoice::Tokio);
    }

    #[cfg(not(feature = "uring"))]
    #[test]
    fn without_the_uring_feature_the_reason_and_the_error_name_the_feature() {
        let workers = [Options::default()];
        let selected = DriverChoice::Auto.prepare(&workers).expect("tokio is available");
        assert!(selected.description.contains("feature `uring`"), "{}", selected.description);
        let error =
            DriverChoice::Uring.prepare(&workers).err().expect("no feature `uring`").to_string();
        assert!(error.contains("feature `uring`"), "{error}");
    }

    #[test]
    fn tokio_is_always_available() {
        let workers = [Options::default(), Options::default()];
        let selected = DriverChoice::Tokio.prepare(&workers).expect("always possible");
        assert!(
            matches!(selected.drivers[..], [PreparedDriver::Tokio, PreparedDriver::Tokio]),
            "{}",
            selected.description
        );
    }
}
