//! Chooses the driver of all workers, and records the reason.

use crate::error::Error;
use peregrine_driver::Options;
#[cfg(all(target_os = "linux", feature = "uring"))]
use peregrine_driver_uring::PreparedRing;
use std::env;

/// The environment variable that overrides the application's choice.
const ENV_VAR: &str = "PEREGRINE_DRIVER";

/// The driver that a server should use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverChoice {
    /// io_uring where the kernel allows it, else tokio. The startup line names the driver and the
    /// reason.
    #[default]
    Auto,
    /// io_uring. Starting the server fails, with the reason, where the kernel does not allow it.
    Uring,
    /// tokio, on epoll. Untested on systems where tokio uses kqueue or IOCP.
    Tokio,
}

/// The driver of all workers, and a readable reason.
pub(crate) struct SelectedDriver {
    /// One per worker, all for the same driver.
    pub(crate) drivers: Vec<PreparedDriver>,
    pub(crate) reason: String,
}

/// The resources of one worker's driver. Created before any worker's thread starts: if the kernel
/// refuses an io_uring to one worker, all workers can still use tokio.
pub(crate) enum PreparedDriver {
    Tokio,
    #[cfg(all(target_os = "linux", feature = "uring"))]
    Uring(Box<PreparedRing>),
}

impl DriverChoice {
    /// Chooses by the environment variable, else by `self` and by what the kernel allows.
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
        let refusal = match self {
            Self::Tokio => None,
            Self::Auto | Self::Uring => match uring(workers) {
                Ok(selected) => return Ok(selected),
                Err(refusal) => Some(refusal),
            },
        };
        let reason = match (self, refusal) {
            (Self::Uring, Some(refusal)) => {
                return Err(Error::Driver { driver: "io_uring", cause: refusal });
            }
            (_, Some(refusal)) => format!("tokio, because io_uring is refused: {refusal}"),
            (_, None) => "tokio (as requested)".to_owned(),
        };
        Ok(SelectedDriver {
            drivers: workers.iter().map(|_| PreparedDriver::Tokio).collect(),
            reason,
        })
    }
}

/// Prepares an io_uring for each worker, or returns why that is not possible.
#[cfg(all(target_os = "linux", feature = "uring"))]
fn uring(workers: &[Options]) -> Result<SelectedDriver, String> {
    let (features, rings) =
        peregrine_driver_uring::prepare(workers).map_err(|error| error.to_string())?;
    let drivers = rings.into_iter().map(|ring| PreparedDriver::Uring(Box::new(ring))).collect();
    Ok(SelectedDriver { drivers, reason: format!("io_uring ({features})") })
}

#[cfg(all(not(target_os = "linux"), feature = "uring"))]
fn uring(_: &[Options]) -> Result<SelectedDriver, String> {
    Err(peregrine_driver_uring::ProbeError::NotLinux.to_string())
}

#[cfg(not(feature = "uring"))]
fn uring(_: &[Options]) -> Result<SelectedDriver, String> {
    Err("this program was built without peregrine's feature `uring`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_driver_name_is_rejected_with_the_valid_ones() {
        let text = DriverChoice::parse("epoll").expect_err("no such driver").to_string();
        assert_eq!(text, "PEREGRINE_DRIVER=epoll is not a driver: use uring, tokio or auto");
        assert_eq!(DriverChoice::parse("tokio").expect("a driver"), DriverChoice::Tokio);
    }

    #[cfg(not(feature = "uring"))]
    #[test]
    fn without_the_uring_feature_the_reason_and_the_error_say_so() {
        let workers = [Options::default()];
        let selected = DriverChoice::Auto.prepare(&workers).expect("tokio is available");
        assert!(selected.reason.contains("feature `uring`"), "{}", selected.reason);
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
            selected.reason
        );
    }
}
