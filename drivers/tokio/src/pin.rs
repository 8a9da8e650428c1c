//! Binds the worker's thread to one CPU, where the system has a call for that.

use std::io;

/// Binds the calling thread to `cpu`.
///
/// # Errors
/// There is no such CPU, or the process may not use it.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn pin_thread(cpu: usize) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};

    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no CPU has this number"));
    }
    let mut only = CpuSet::new();
    only.set(cpu);
    Ok(sched_setaffinity(None, &only)?)
}

/// Does nothing: this system offers no such call that is worth a dependency.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn pin_thread(_cpu: usize) -> io::Result<()> {
    Ok(())
}
