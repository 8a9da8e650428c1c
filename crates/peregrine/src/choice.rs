//! Which driver runs, and why.

use crate::error::Error;
use std::env;

/// The environment variable that overrides the choice in the code.
const VARIABLE: &str = "PEREGRINE_DRIVER";

/// Which driver a server is to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverChoice {
    /// io_uring where the kernel allows it, else tokio. The line at the start says which, and why.
    #[default]
    Auto,
    /// io_uring, or an error that says why not.
    Uring,
    /// tokio: epoll. It has never run where tokio uses kqueue or IOCP.
    Tokio,
}

/// A driver that can run here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Uring,
    Tokio,
}

/// The choice and its reason, for people.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) choice: Choice,
    pub(crate) reason: String,
}

impl DriverChoice {
    /// Looks at the environment, then at the kernel.
    pub(crate) fn choose(self) -> Result<Chosen, Error> {
        match env::var(VARIABLE) {
            Ok(word) => Self::parse(&word)?.probe(),
            Err(_) => self.probe(),
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

    fn probe(self) -> Result<Chosen, Error> {
        if self == Self::Tokio {
            let reason = "tokio (as asked)".to_owned();
            return Ok(Chosen { choice: Choice::Tokio, reason });
        }
        match peregrine_driver_uring::probe() {
            Ok(features) => {
                Ok(Chosen { choice: Choice::Uring, reason: format!("io_uring ({features})") })
            }
            Err(refusal) if self == Self::Uring => {
                Err(Error::Driver { driver: "io_uring", cause: refusal.to_string() })
            }
            Err(refusal) => Ok(Chosen {
                choice: Choice::Tokio,
                reason: format!("tokio, because io_uring is refused: {refusal}"),
            }),
        }
    }
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

    #[test]
    fn tokio_runs_wherever_it_is_asked_for() {
        let chosen = DriverChoice::Tokio.probe().expect("always possible");
        assert_eq!(chosen.choice, Choice::Tokio);
    }
}
