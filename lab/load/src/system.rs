//! What a client asks of the system before it begins: CPUs and descriptors.

use std::io;

use rustix::process::{Resource, Rlimit};
use rustix::thread::CpuSet;

/// Lets the calling thread run on these CPUs only. No CPUs: no change.
///
/// # Errors
///
/// The kernel's, if none of them exists or may be used.
pub fn pin_this_thread(cpus: &[usize]) -> io::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        set.set(cpu);
    }
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Lets this process, and those it starts, hold as many descriptors as the hard limit allows.
///
/// # Errors
///
/// The kernel's.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    Ok(rustix::process::setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_beyond_all_that_a_kernel_knows_is_refused() {
        assert!(pin_this_thread(&[CpuSet::MAX_CPU]).is_err());
        assert!(pin_this_thread(&[]).is_ok());
    }
}
