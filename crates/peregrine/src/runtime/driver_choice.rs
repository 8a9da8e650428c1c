//! Which driver runs, and why.

use crate::error::Error;
use peregrine_driver::Options;
#[cfg(all(target_os = "linux", feature = "uring"))]
use peregrine_driver_uring::Prepared;
use std::env;

/// The environment variable that overrides the choice in the code.
const VARIABLE: &str = "PEREGRINE_DRIVER";

/// The driver that a server should use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverChoice {
    /// io_uring where the kernel allows it, else tokio. The startup line says which, and why.
    #[default]
    Auto,
    /// io_uring, or an error that says why not.
    Uring,
    /// tokio: epoll. It has never run where tokio uses kqueue or IOCP.
    Tokio,
}

/// The driver of all workers and the reason for it, for people.
pub(crate) struct Chosen {
    /// One for each worker, all on the same driver.
    pub(crate) seats: Vec<Seat>,
    pub(crate) reason: String,
}

/// What a worker needs to run on its driver, made before its thread begins: if the kernel refuses it to
/// one worker, there is still a choice for all.
pub(crate) enum Seat {
    Tokio,
    #[cfg(all(target_os = "linux", feature = "uring"))]
    Uring(Box<Prepared>),
}

impl DriverChoice {
    /// Checks the environment, then what the kernel grants to these workers.
    pub(crate) fn choose(self, workers: &[Options]) -> Result<Chosen, Error> {
        match env::var(VARIABLE) {
            Ok(word) => Self::parse(&word)?.seat(workers),
            Err(_) => self.seat(workers),
        }
    }

    fn parse(word: &str) -> Result<Self, Error> {
        match word {
            "uring" => Ok(Self::Uring),
            "tokio" => Ok(Self::Tokio),
            "auto" | "" => Ok(Self::Auto),
            _ => Err(Error::Config(format!(
                "{VARIABLE}={word} names no driver: write uring, tokio or auto"
            ))),
        }
    }

    fn seat(self, workers: &[Options]) -> Result<Chosen, Error> {
        let refusal = match self {
            Self::Tokio => None,
            Self::Auto | Self::Uring => match uring(workers) {
                Ok(chosen) => return Ok(chosen),
                Err(refusal) => Some(refusal),
            },
        };
        let reason = match (self, refusal) {
            (Self::Uring, Some(refusal)) => {
                return Err(Error::Driver { driver: "io_uring", cause: refusal });
            }
            (_, Some(refusal)) => format!("tokio, because io_uring is refused: {refusal}"),
            (_, None) => "tokio (as asked)".to_owned(),
        };
        Ok(Chosen { seats: workers.iter().map(|_| Seat::Tokio).collect(), reason })
    }
}

/// All workers on io_uring, or why that cannot be.
#[cfg(all(target_os = "linux", feature = "uring"))]
fn uring(workers: &[Options]) -> Result<Chosen, String> {
    let (features, rings) =
        peregrine_driver_uring::prepare(workers).map_err(|refusal| refusal.to_string())?;
    let seats = rings.into_iter().map(|ring| Seat::Uring(Box::new(ring))).collect();
    Ok(Chosen { seats, reason: format!("io_uring ({features})") })
}

#[cfg(all(not(target_os = "linux"), feature = "uring"))]
fn uring(_: &[Options]) -> Result<Chosen, String> {
    Err(peregrine_driver_uring::Refusal::NotLinux.to_string())
}

#[cfg(not(feature = "uring"))]
fn uring(_: &[Options]) -> Result<Chosen, String> {
    Err("this program was built without peregrine's feature `uring`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_does_not_exist_is_named_with_those_that_do() {
        let text = DriverChoice::parse("epoll").expect_err("no such driver").to_string();
        assert_eq!(text, "PEREGRINE_DRIVER=epoll names no driver: write uring, tokio or auto");
        assert_eq!(DriverChoice::parse("tokio").expect("a driver"), DriverChoice::Tokio);
    }

    #[cfg(not(feature = "uring"))]
    #[test]
    fn without_the_feature_the_reason_and_the_error_name_it() {
        let workers = [Options::default()];
        let chosen = DriverChoice::Auto.seat(&workers).expect("tokio is there");
        assert!(chosen.reason.contains("feature `uring`"), "{}", chosen.reason);
        let error =
            DriverChoice::Uring.seat(&workers).err().expect("there is no io_uring").to_string();
        assert!(error.contains("feature `uring`"), "{error}");
    }

    #[test]
    fn tokio_runs_wherever_it_is_asked_for() {
        let workers = [Options::default(), Options::default()];
        let chosen = DriverChoice::Tokio.seat(&workers).expect("always possible");
        assert!(matches!(chosen.seats[..], [Seat::Tokio, Seat::Tokio]), "{}", chosen.reason);
    }
}
