//! What the lab tells a contender, by environment variables.

use std::env;
use std::thread;

pub struct Settings {
    pub port: u16,
    pub workers: usize,
    pub tls: Option<Tls>,
}

pub struct Tls {
    pub port: u16,
    /// The path of a PEM file.
    pub certificates: String,
    /// The path of a PEM file.
    pub key: String,
}

impl Settings {
    pub fn from_environment() -> Settings {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Settings {
            port: number("PORT").unwrap_or(8080),
            workers: number("WORKERS").filter(|&workers| workers > 0).unwrap_or(cores),
            tls: Tls::from_environment(),
        }
    }
}

impl Tls {
    fn from_environment() -> Option<Tls> {
        Some(Tls {
            port: number("TLS_PORT").unwrap_or(8443),
            certificates: text("TLS_CERT")?,
            key: text("TLS_KEY")?,
        })
    }
}

fn text(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    text(name)?.parse().ok()
}
