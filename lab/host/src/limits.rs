//! Limits of this process that a measurement would run into.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// As many descriptors as any design of the lab wants: 8,000 connections to each of 30 servers.
const DESCRIPTORS_WANTED: u64 = 1 << 18;

/// Lets this process, and those it starts from here on, hold as many descriptors as the lab wants
/// if it may raise the hard limit, and as many as the hard limit allows if not. Nothing outside
/// these processes changes. Returns the number, or nothing if there is no limit.
///
/// # Errors
///
/// The kernel's.
pub fn raise_descriptors() -> io::Result<Option<u64>> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    if maximum.is_some_and(|maximum| maximum < DESCRIPTORS_WANTED) {
        let wanted = Some(DESCRIPTORS_WANTED);
        if setrlimit(Resource::Nofile, Rlimit { current: wanted, maximum: wanted }).is_ok() {
            return Ok(wanted);
        }
    }
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    Ok(maximum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one_and_servers_inherit_it() {
        let raised = raise_descriptors().unwrap();
        assert_eq!(getrlimit(Resource::Nofile).current, raised);
        let output = std::process::Command::new("sh").args(["-c", "ulimit -n"]).output().unwrap();
        let expected = raised.map_or("unlimited".to_owned(), |limit| limit.to_string());
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected);
    }
}
