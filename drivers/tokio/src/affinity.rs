//! Binds the worker's thread to one CPU, where the system has a call for that.

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    use std::io;

    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::unistd::Pid;
    use peregrine_driver::order_by_numa_node;

    const THIS_THREAD: Pid = Pid::from_raw(0);

    /// Binds the calling thread to one CPU until this is dropped.
    pub(crate) struct AffinityGuard {
        before: CpuSet,
    }

    impl AffinityGuard {
        /// Binds the calling thread to one of the CPUs that it may use: the one at `index`, modulo
        /// their number, in the order of NUMA nodes. These are the CPUs of the process, unless the
        /// thread was bound before.
        ///
        /// # Errors
        /// The kernel does not report the CPUs, or rejects the call.
        pub(crate) fn pin(index: usize) -> io::Result<Self> {
            let before = sched_getaffinity(THIS_THREAD)?;
            let is_allowed = |cpu: &usize| before.is_set(*cpu).unwrap_or(false);
            let cpus = order_by_numa_node((0..CpuSet::count()).filter(is_allowed).collect());
            let mut set = CpuSet::new();
            if let Some(cpu) = cpus.get(index % cpus.len().max(1)) {
                set.set(*cpu)?;
            }
            sched_setaffinity(THIS_THREAD, &set)?;
            Ok(Self { before })
        }
    }

    impl Drop for AffinityGuard {
        fn drop(&mut self) {
            // Fails only if all of these CPUs are gone, and then the kernel has chosen others.
            let _ = sched_setaffinity(THIS_THREAD, &self.before);
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod system {
    use std::io;

    /// Has no effect: binding a thread on this system would need one more dependency.
    pub(crate) struct AffinityGuard;

    impl AffinityGuard {
        pub(crate) fn pin(_: usize) -> io::Result<Self> {
            Ok(Self)
        }
    }
}

pub(crate) use system::AffinityGuard;
