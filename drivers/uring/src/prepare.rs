//! Creates the rings of all workers before choosing the driver.
//!
//! The memory of rings counts against a per-user limit, which may suffice for one ring but not for
//! all of them. That must be known before any worker runs, so all rings are created first.

use std::io;
use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

use peregrine_driver::Options;

use crate::affinity;
use crate::buffer_ring::{self, BufferRing};
use crate::probe::{Features, MemlockShortage, ProbeError, buffer_ring_error, probe, ring_error};
use crate::ring::{RING_SIZES, Ring, RingSize};

/// How long to wait until the kernel has returned the memory of rings that were just closed: those
/// of the probe, of a larger size, or of the process before a restart. It usually takes tens of
/// milliseconds.
const MEMLOCK_RETRY_TIMEOUT: Duration = Duration::from_millis(500);
const MEMLOCK_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// One worker's ring and receive buffers, created but not in use. See [`prepare`].
pub struct PreparedRing {
    /// Declared first, so that it is closed before the buffers are freed.
    pub(crate) ring: Ring,
    pub(crate) buffers: BufferRing,
}

/// Checks whether the driver can run here, like [`probe`], and creates a ring for each of
/// `workers`. All rings have the same size, which is reduced if the limit of locked memory requires
/// it. The ring of a worker that is bound to a CPU is created on that CPU, so that its memory is on
/// the same NUMA node.
///
/// # Errors
/// Not all workers can have a ring; the error contains the cause and the fix.
pub fn prepare(workers: &[Options]) -> Result<(Features, Vec<PreparedRing>), ProbeError> {
    let needed_kib = needed_kib(workers);
    let with_total = |error| match error {
        ProbeError::LockedMemory { error, .. } => ProbeError::LockedMemory { error, needed_kib },
        other => other,
    };
    let features = retry_on_enomem(probe).map_err(with_total)?;
    let prepared = prepare_same_size(workers.len(), |worker, size| {
        prepare_on_own_thread(size, &workers[worker])
    });
    let (size, rings) = prepared.map_err(with_total)?;
    let shortage = (size != RING_SIZES[0])
        .then_some(MemlockShortage { completions: size.completions, needed_kib });
    Ok((features.with_shortage(shortage), rings))
}

/// The memory locked by rings of the largest size for `workers`, in KiB.
pub(crate) fn needed_kib(workers: &[Options]) -> usize {
    let kib = |options| (RING_SIZES[0].bytes() + buffer_ring::locked_bytes(options)).div_ceil(1024);
    workers.iter().map(kib).sum()
}

impl PreparedRing {
    /// Creates a ring for the calling thread.
    pub(crate) fn on_this_thread(options: &Options) -> io::Result<Self> {
        let prepared = prepare_same_size(1, |_, size| Self::create(size, options));
        let (_, mut rings) = prepared.map_err(|error| match error {
            ProbeError::LockedMemory { error, .. }
            | ProbeError::Blocked(error)
            | ProbeError::NoDescriptors(error)
            | ProbeError::Failed(_, error) => error,
            other => io::Error::new(io::ErrorKind::Unsupported, other),
        })?;
        Ok(rings.pop().expect("one ring was requested"))
    }

    fn create(size: RingSize, options: &Options) -> Result<Self, ProbeError> {
        let ring = Ring::create(size).map_err(ring_error)?;
        let buffers = BufferRing::register(&ring, options).map_err(buffer_ring_error)?;
        Ok(Self { ring, buffers })
    }
}

/// Creates a ring on a separate thread, because the kernel attaches state to the thread that
/// creates a ring, and the caller's thread should not be affected.
fn prepare_on_own_thread(size: RingSize, options: &Options) -> Result<PreparedRing, ProbeError> {
    let create = || {
        if let Some(cpu) = options.cpu {
            affinity::pin_thread(cpu)
                .map_err(|error| ProbeError::Failed("pinning a worker", error))?;
        }
        PreparedRing::create(size, options)
    };
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("peregrine-ring".to_owned());
        let handle = builder.spawn_scoped(scope, create);
        let handle = handle.map_err(|error| ProbeError::Failed("starting a thread", error))?;
        handle.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Creates `count` rings of the largest size in which all of them can be created.
fn prepare_same_size<T>(
    count: usize,
    mut create: impl FnMut(usize, RingSize) -> Result<T, ProbeError>,
) -> Result<(RingSize, Vec<T>), ProbeError> {
    let mut sizes = RING_SIZES.into_iter();
    let mut size = sizes.next().expect("the list of sizes is not empty");
    let mut created = Vec::with_capacity(count);
    while created.len() < count {
        match retry_on_enomem(|| create(created.len(), size)) {
            Ok(item) => created.push(item),
            Err(error @ ProbeError::LockedMemory { .. }) => {
                size = sizes.next().ok_or(error)?;
                created.clear();
            }
            Err(error) => return Err(error),
        }
    }
    Ok((size, created))
}

/// Retries for a short time while the limit of locked memory is reached.
fn retry_on_enomem<T>(mut create: impl FnMut() -> Result<T, ProbeError>) -> Result<T, ProbeError> {
    let deadline = Instant::now() + MEMLOCK_RETRY_TIMEOUT;
    loop {
        match create() {
            Err(ProbeError::LockedMemory { .. }) if Instant::now() < deadline => {
                thread::sleep(MEMLOCK_RETRY_INTERVAL)
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn locked_memory_error() -> ProbeError {
        ProbeError::LockedMemory {
            error: io::Error::from_raw_os_error(libc::ENOMEM),
            needed_kib: 0,
        }
    }

    #[test]
    fn all_rings_get_the_largest_size_that_fits_for_all() {
        for (completions_max, expected) in
            [(8192 * 3, RING_SIZES[0]), (8192 * 2, RING_SIZES[1]), (2000, RING_SIZES[2])]
        {
            let prepared = prepare_same_size(3, |index, size| {
                let completions = (index + 1) * size.completions as usize;
                if completions <= completions_max { Ok(size) } else { Err(locked_memory_error()) }
            });
            assert_eq!(prepared.unwrap(), (expected, vec![expected; 3]));
        }
    }

    #[test]
    fn waits_for_locked_memory_to_be_released() {
        let failures = Cell::new(3_u32);
        let prepared = prepare_same_size(2, |_, size| {
            let remaining = failures.get();
            failures.set(remaining.saturating_sub(1));
            if remaining == 0 { Ok(size) } else { Err(locked_memory_error()) }
        });
        assert_eq!(prepared.unwrap().0, RING_SIZES[0]);
    }

    #[test]
    fn other_errors_are_not_retried() {
        let mut attempts = 0;
        let prepared = prepare_same_size::<()>(2, |_, _| {
            attempts += 1;
            Err(ProbeError::KernelTooOld("rings"))
        });
        assert!(matches!(prepared, Err(ProbeError::KernelTooOld("rings"))), "{prepared:?}");
        assert_eq!(attempts, 1);
    }

    #[test]
    fn the_ring_size_matches_the_accounting_of_the_kernel() {
        // Observed on Linux 6.18: 49 rings without buffers in 8 MiB.
        assert_eq!(8192 / RING_SIZES[0].bytes().div_ceil(1024), 49);
    }
}
