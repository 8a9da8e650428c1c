//! What the lab tells a contender, by environment variables. may_minihttp serves no TLS.

use std::env;
use std::thread;

pub struct Settings {
    pub port: u16,
    pub workers: usize,
}

impl Settings {
    pub fn from_environment() -> Settings {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Settings {
            port: number("PORT").unwrap_or(8080),
            workers: number("WORKERS").filter(|&workers| workers > 0).unwrap_or(cores),
        }
    }
}

fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    env::var(name).ok()?.parse().ok()
}
