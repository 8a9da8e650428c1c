//! Creates the rings of all workers before choosing the driver.
//!
//! The memory of rings counts against a per-user limit, so it may suffice for one ring but not for
//! many. A worker must not find that out when others are already running.

use std::io;
use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

use peregrine_driver::Options;

use crate::affinity;
use crate::buffer_ring::{self, BufferRing};
use crate::probe::{Features, MemlockShortage, ProbeError, buffer_ring_error, probe, ring_error};
use crate::ring::{RING_SIZES, Ring, RingSize};

/// How long to wait for the memory of rings that were just closed (those of the probe, of a larger
/// size, or of the process before a restart). The kernel returns it within tens of milliseconds.
const MEMLOCK_RETRY_TIMEOUT: Duration = Duration::from_millis(500);
const MEMLOCK_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// One worker's ring and receive buffers, created but not in use. See [`prepare`].
pub struct PreparedRing {
    /// Closed before the buffers are freed.
    pub(crate) ring: Ring,
    pub(crate) buffers: BufferRing,
}

/// Checks whether the driver can run here, like [`probe`], and creates a ring for each of
/// `workers`. All rings have the same size, and are smaller if the limit of locked memory requires
/// it. The ring of a worker that is bound to a CPU is created on that CPU, so that its memory is on
/// the same node.
///
/// # Errors
/// Not all workers can have a ring; the refusal contains the cause and the fix.
pub fn prepare(workers: &[Options]) -> Result<(Features, Vec<PreparedRing>), ProbeError> {
    let needed_kib = needed_kib(workers);
    let for_all = |refusal| match refusal {
        ProbeError::LockedMemory { error, .. } => ProbeError::LockedMemory { error, needed_kib },
        other => other,
    };
    let features = retry_on_enomem(probe).map_err(for_all)?;
    let made = prepare_same_size(workers.len(), |worker, size| {
        prepare_on_own_thread(size, &workers[worker])
    });
    let (size, rings) = made.map_err(for_all)?;
    let shortage = (size != RING_SIZES[0])
        .then_some(MemlockShortage { completions: size.completions, needed_kib });
    Ok((features.with_shortage(shortage), rings))
}

/// The memory locked by rings of the largest size for `workers`, in KiB.
pub(crate) fn needed_kib(workers: &[Options]) -> usize {
    let each =
        |options| (RING_SIZES[0].bytes() + buffer_ring::locked_bytes(options)).div_ceil(1024);
    workers.iter().map(each).sum()
}

impl PreparedRing {
    /// Creates a ring for the calling thread.
    pub(crate) fn on_this_thread(options: &Options) -> io::Result<Self> {
        let made = prepare_same_size(1, |_, size| Self::make(size, options));
        let (_, mut rings) = made.map_err(|refusal| match refusal {
            ProbeError::LockedMemory { error, .. }
            | ProbeError::Blocked(error)
            | ProbeError::NoDescriptors(error)
            | ProbeError::Failed(_, error) => error,
            other => io::Error::new(io::ErrorKind::Unsupported, other),
        })?;
        Ok(rings.pop().expect("one ring was requested"))
    }

    fn make(size: RingSize, options: &Options) -> Result<Self, ProbeError> {
        let ring = Ring::create(size).map_err(ring_error)?;
        let buffers = BufferRing::register(&ring, options).map_err(buffer_ring_error)?;
        Ok(Self { ring, buffers })
    }
}

/// Creates a ring on a separate thread: the kernel keeps a record of the ring with the thread that
/// created it, and the caller's thread should not be affected.
fn prepare_on_own_thread(size: RingSize, options: &Options) -> Result<PreparedRing, ProbeError> {
    let make = || {
        if let Some(cpu) = options.cpu {
            affinity::pin_thread(cpu)
                .map_err(|error| ProbeError::Failed("pinning a worker", error))?;
        }
        PreparedRing::make(size, options)
    };
    thread::scope(|scope| {
        let maker = thread::Builder::new().name("peregrine-ring".to_owned());
        let maker = maker.spawn_scoped(scope, make);
        let maker = maker.map_err(|error| ProbeError::Failed("starting a thread", error))?;
        maker.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Creates all of them in the largest size that is possible for all.
fn prepare_same_size<T>(
    count: usize,
    mut make: impl FnMut(usize, RingSize) -> Result<T, ProbeError>,
) -> Result<(RingSize, Vec<T>), ProbeError> {
    let mut sizes = RING_SIZES.into_iter();
    let mut size = sizes.next().expect("the list of sizes is not empty");
    let mut made = Vec::with_capacity(count);
    while made.len() < count {
        match retry_on_enomem(|| make(made.len(), size)) {
            Ok(one) => made.push(one),
            Err(refusal @ ProbeError::LockedMemory { .. }) => {
                size = sizes.next().ok_or(refusal)?;
                made.clear();
            }
            Err(refusal) => return Err(refusal),
        }
    }
    Ok((size, made))
}

/// Retries for a short time if there is not enough memory.
fn retry_on_enomem<T>(mut make: impl FnMut() -> Result<T, ProbeError>) -> Result<T, ProbeError> {
    let end = Instant::now() + MEMLOCK_RETRY_TIMEOUT;
    loop {
        match make() {
            Err(ProbeError::LockedMemory { .. }) if Instant::now() < end => {
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

    fn short() -> ProbeError {
        ProbeError::LockedMemory {
            error: io::Error::from_raw_os_error(libc::ENOMEM),
            needed_kib: 0,
        }
    }

    #[test]
    fn all_rings_have_the_largest_size_in_which_all_can_be_had() {
        for (has_room_for, expected) in
            [(8192 * 3, RING_SIZES[0]), (8192 * 2, RING_SIZES[1]), (2000, RING_SIZES[2])]
        {
            let made = prepare_same_size(3, |before, size| {
                let all = (before + 1) * size.completions as usize;
                if all <= has_room_for { Ok(size) } else { Err(short()) }
            });
            assert_eq!(made.unwrap(), (expected, vec![expected; 3]));
        }
    }

    #[test]
    fn memory_that_comes_back_is_waited_for() {
        let refusals = Cell::new(3_u32);
        let made = prepare_same_size(2, |_, size| {
            let left = refusals.get();
            refusals.set(left.saturating_sub(1));
            if left == 0 { Ok(size) } else { Err(short()) }
        });
        assert_eq!(made.unwrap().0, RING_SIZES[0]);
    }

    #[test]
    fn other_refusals_are_final() {
        let mut tries = 0;
        let made = prepare_same_size::<()>(2, |_, _| {
            tries += 1;
            Err(ProbeError::KernelTooOld("rings"))
        });
        assert!(matches!(made, Err(ProbeError::KernelTooOld("rings"))), "{made:?}");
        assert_eq!(tries, 1);
    }

    #[test]
    fn what_is_needed_is_what_the_kernel_counts() {
        // Observed on Linux 6.18: 49 rings without buffers in 8 MiB.
        assert_eq!(8192 / RING_SIZES[0].bytes().div_ceil(1024), 49);
    }
}
