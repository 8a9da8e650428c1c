//! Checks whether this machine supports the driver, by trying everything it needs once.
//!
//! The kernel's version does not decide this: distributions backport features, containers forbid
//! system calls, and resource limits prevent what the kernel supports. So the probe creates a ring
//! and tries each operation.

use std::fmt;
use std::io;

/// The result of the probe on a machine that can run the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    missing_flags: Vec<&'static str>,
    shortage: Option<MemlockShortage>,
}

/// Rings are smaller than they should be, because the limit of locked memory is too low.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemlockShortage {
    pub(crate) completions: u32,
    pub(crate) needed_kib: usize,
}

impl Features {
    /// The features that the driver uses, for the line that a server prints at startup.
    #[must_use]
    pub fn used(&self) -> &'static [&'static str] {
        &[
            "multishot receive",
            "a ring of provided buffers",
            "accept",
            "send",
            "cancel",
            "multishot poll",
            "waiting with a timeout",
        ]
    }

    /// Sets whether the rings are smaller than they should be.
    #[cfg(target_os = "linux")]
    pub(crate) fn with_shortage(self, shortage: Option<MemlockShortage>) -> Self {
        Self { shortage, ..self }
    }

    /// Optional setup flags that make the ring faster and that this kernel does not support. Empty
    /// on Linux 6.1 and later.
    #[must_use]
    pub fn missing_flags(&self) -> &[&'static str] {
        &self.missing_flags
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.used().join(", "))?;
        if !self.missing_flags.is_empty() {
            write!(f, "; without {}", self.missing_flags.join(", "))?;
        }
        if let Some(MemlockShortage { completions, needed_kib }) = self.shortage {
            write!(
                f,
                "; rings of {completions} completions only, because the limit of locked memory is \
                 low: {}",
                MemlockHint(needed_kib),
            )?;
        }
        Ok(())
    }
}

/// Why the driver cannot run here. Its `Display` has two sentences, the cause and the fix.
#[derive(Debug)]
pub enum ProbeError {
    /// The system is not Linux.
    NotLinux,
    /// The sysctl `kernel.io_uring_disabled` has this value, which forbids io_uring to this
    /// process.
    Disabled(u8),
    /// The call fails with `EPERM` or `ENOSYS` although the sysctl allows it: because of a seccomp
    /// filter, as used by containers, or a kernel built without io_uring.
    Blocked(io::Error),
    /// The user's processes may not lock as much memory as the rings need.
    LockedMemory {
        /// The kernel's error.
        error: io::Error,
        /// The memory that the rings of all workers need, in KiB.
        needed_kib: usize,
    },
    /// The process or the system has run out of descriptors.
    NoDescriptors(io::Error),
    /// The kernel does not support the named feature.
    KernelTooOld(&'static str),
    /// The named step failed for another reason.
    Failed(&'static str, io::Error),
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLinux => {
                f.write_str("io_uring exists on Linux only. Use the tokio driver on this system.")
            }
            Self::Disabled(value) => write!(
                f,
                "The sysctl kernel.io_uring_disabled is {value}, which forbids io_uring. \
                 Allow it with `sysctl -w kernel.io_uring_disabled=0`.",
            ),
            Self::Blocked(error) => write!(
                f,
                "The kernel does not let this process use io_uring ({error}), as seccomp filters \
                 of containers do. Allow io_uring_setup, io_uring_enter and io_uring_register in \
                 the container's seccomp profile.",
            ),
            Self::LockedMemory { error, needed_kib } => write!(
                f,
                "The limit of locked memory is too low for the queues ({error}): {}.",
                MemlockHint(*needed_kib),
            ),
            Self::NoDescriptors(error) => write!(
                f,
                "There is no descriptor left for the ring ({error}). \
                 Raise the limit with `ulimit -n` or LimitNOFILE= of the service.",
            ),
            Self::KernelTooOld(missing) => write!(
                f,
                "This kernel's io_uring does not support {missing}. Use Linux 6.1 or later.",
            ),
            Self::Failed(step, error) => write!(
                f,
                "The io_uring self-test failed at this step: {step} ({error}). \
                 Use the tokio driver, and report this.",
            ),
        }
    }
}

impl std::error::Error for ProbeError {}

/// How to allow locking this many KiB.
struct MemlockHint(usize);

impl fmt::Display for MemlockHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = self.0;
        write!(
            f,
            "raise it to {kib} KiB or more, and by what other processes of this user lock, with \
             `ulimit -l {kib}` or `LimitMEMLOCK={kib}K` of the service"
        )
    }
}

/// Tries everything that the driver needs, on a separate ring. Takes about a millisecond and leaves
/// nothing behind.
///
/// # Errors
/// The driver cannot run here; the error contains the cause and the fix.
#[cfg(not(target_os = "linux"))]
pub fn probe() -> Result<Features, ProbeError> {
    Err(ProbeError::NotLinux)
}

#[cfg(target_os = "linux")]
pub use linux::probe;
#[cfg(target_os = "linux")]
pub(crate) use linux::{buffer_ring_error, ring_error};

#[cfg(target_os = "linux")]
mod linux {
    use std::io::{self, Write};
    use std::mem::ManuallyDrop;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    use std::panic::resume_unwind;
    use std::thread;
    use std::time::Duration;

    use io_uring::{cqueue, opcode, squeue, types};
    use peregrine_driver::Options;

    use super::{Features, ProbeError};
    use crate::buffer_ring::{BUFFER_GROUP, BufferRing};
    use crate::prepare::needed_kib;
    use crate::ring::{EnterWait, RING_SIZES, Ring};
    use crate::worker::create_eventfd;

    /// The limit of one wait. Generous, because each wait is for something that has already
    /// happened.
    const WAIT_TIMEOUT: Duration = Duration::from_secs(1);
    /// The maximum number of waits per step: completions of other steps may arrive first.
    const WAITS_MAX: usize = 8;

    const ACCEPT: u64 = 1;
    const RECEIVE: u64 = 2;
    const SEND: u64 = 3;
    const POLL: u64 = 4;
    const CANCEL: u64 = 5;

    /// Tries everything that the driver needs, on a separate ring. Takes about a millisecond and
    /// leaves nothing behind.
    ///
    /// # Errors
    /// The driver cannot run here; the error contains the cause and the fix.
    pub fn probe() -> Result<Features, ProbeError> {
        // Closing a ring interrupts the next system call of the thread that created it, so do not
        // use the caller's thread.
        let handle =
            thread::Builder::new().name("peregrine-probe".to_owned()).spawn(probe_on_this_thread);
        let handle = handle.map_err(|error| ProbeError::Failed("starting a thread", error))?;
        handle.join().unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn probe_on_this_thread() -> Result<Features, ProbeError> {
        // The kernel releases the accounted memory of this ring with a delay, so use a small one.
        let ring = Ring::create(RING_SIZES[RING_SIZES.len() - 1]).map_err(ring_error)?;
        ring.enable().map_err(ring_error)?;
        let missing_flags = ring.missing_flags().iter().map(|flag| flag.name()).collect();
        let options =
            Options { receive_buffers: 16, receive_buffer_bytes: 512, ..Options::default() };
        let buffers = BufferRing::register(&ring, &options).map_err(buffer_ring_error)?;
        let mut probe =
            ProbeRing { ring, buffers: ManuallyDrop::new(buffers), completions: Vec::new() };
        probe.poll()?;
        probe.accept_and_receive()?;
        // If a step fails, an operation may still be in flight, so the buffers are leaked. Here all
        // operations have completed.
        probe.ring.close();
        drop(ManuallyDrop::into_inner(probe.buffers));
        Ok(Features { missing_flags, shortage: None })
    }

    /// Converts an error of creating a ring to its cause.
    pub(crate) fn ring_error(error: io::Error) -> ProbeError {
        setup_error(error, disabled_sysctl())
    }

    /// Converts an error of registering buffers to its cause.
    pub(crate) fn buffer_ring_error(error: io::Error) -> ProbeError {
        match error.raw_os_error() {
            Some(libc::EINVAL) => ProbeError::KernelTooOld("rings of provided buffers"),
            Some(libc::ENOMEM) => out_of_memory(error),
            _ => ProbeError::Failed("registering buffers", error),
        }
    }

    fn out_of_memory(error: io::Error) -> ProbeError {
        ProbeError::LockedMemory { error, needed_kib: needed_kib(&[Options::default()]) }
    }

    /// Like [`ring_error`], with the value of `kernel.io_uring_disabled` as a parameter.
    pub(super) fn setup_error(error: io::Error, sysctl: Option<u8>) -> ProbeError {
        match (error.raw_os_error(), sysctl) {
            (Some(libc::EPERM | libc::EACCES), Some(value @ 1..)) => ProbeError::Disabled(value),
            (Some(libc::EPERM | libc::EACCES | libc::ENOSYS), _) => ProbeError::Blocked(error),
            (Some(libc::ENOMEM), _) => out_of_memory(error),
            (Some(libc::EMFILE | libc::ENFILE), _) => ProbeError::NoDescriptors(error),
            (Some(libc::EINVAL), _) => {
                ProbeError::KernelTooOld("creating a ring with a sized queue")
            }
            _ => ProbeError::Failed("creating a ring", error),
        }
    }

    fn disabled_sysctl() -> Option<u8> {
        let text = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?;
        text.trim().parse().ok()
    }

    struct ProbeRing {
        ring: Ring,
        buffers: ManuallyDrop<BufferRing>,
        /// Completions that arrived before a step waited for them.
        completions: Vec<cqueue::Entry>,
    }

    impl ProbeRing {
        fn poll(&mut self) -> Result<(), ProbeError> {
            const STEP: &str = "multishot poll";
            let event =
                std::fs::File::from(create_eventfd().map_err(|error| step_error(STEP, error))?);
            (&event).write_all(&1u64.to_ne_bytes()).map_err(|error| step_error(STEP, error))?;
            let target = types::Fd(event.as_raw_fd());
            self.submit(
                opcode::PollAdd::new(target, libc::POLLIN as u32).multi(true).build(),
                POLL,
            )?;
            let (_, flags) = self.wait_ok(POLL, STEP)?;
            if !cqueue::more(flags) {
                return Err(ProbeError::KernelTooOld(STEP));
            }
            self.cancel(POLL)
        }

        fn accept_and_receive(&mut self) -> Result<(), ProbeError> {
            const ACCEPT_STEP: &str = "accept";
            const CONNECTION_STEP: &str = "exclusive poll";
            const RECEIVE_STEP: &str = "multishot receive";
            const SEND_STEP: &str = "send";
            let (listener, client) =
                connected_pair().map_err(|error| step_error("connecting", error))?;
            let target = types::Fd(listener.as_raw_fd());
            let events = (libc::EPOLLIN | libc::EPOLLEXCLUSIVE) as u32;
            self.submit(opcode::PollAdd::new(target, events).build(), POLL)?;
            self.wait_ok(POLL, CONNECTION_STEP)?;
            let no_address = (std::ptr::null_mut(), std::ptr::null_mut());
            self.submit(opcode::Accept::new(target, no_address.0, no_address.1).build(), ACCEPT)?;
            let (descriptor, _) = self.wait_ok(ACCEPT, ACCEPT_STEP)?;
            // SAFETY: the kernel created this descriptor for this completion.
            let server = unsafe { OwnedFd::from_raw_fd(descriptor) };

            let target = types::Fd(client.as_raw_fd());
            self.submit(opcode::RecvMulti::new(target, BUFFER_GROUP).build(), RECEIVE)?;
            let target = types::Fd(server.as_raw_fd());
            static HELLO: [u8; 5] = *b"hello";
            let entry = opcode::Send::new(target, HELLO.as_ptr(), HELLO.len() as u32);
            self.submit(entry.flags(libc::MSG_NOSIGNAL).build(), SEND)?;
            let (sent, _) = self.wait_ok(SEND, SEND_STEP)?;
            let (received, flags) = self.wait_ok(RECEIVE, RECEIVE_STEP)?;
            let Some(buffer) = cqueue::buffer_select(flags) else {
                return Err(ProbeError::KernelTooOld("rings of provided buffers"));
            };
            self.buffers.on_selected(buffer);
            // SAFETY: the buffer came with the completion above and is not provided to the kernel
            // again.
            let bytes = unsafe { self.buffers.read(buffer, received.unsigned_abs()) };
            if bytes != HELLO || sent != received || !cqueue::more(flags) {
                return Err(ProbeError::KernelTooOld(RECEIVE_STEP));
            }
            self.cancel(RECEIVE)
        }

        /// Queues an operation of the probe.
        fn submit(&mut self, entry: squeue::Entry, user_data: u64) -> Result<(), ProbeError> {
            // SAFETY: all entries of the probe refer only to static memory, or to the buffers,
            // which are freed only after every operation has completed.
            unsafe { self.ring.push(&entry.user_data(user_data)) }
                .map_err(|error| step_error("submitting", error))
        }

        /// Cancels a multishot operation and waits for its final completion.
        fn cancel(&mut self, user_data: u64) -> Result<(), ProbeError> {
            const STEP: &str = "cancel";
            self.submit(opcode::AsyncCancel::new(user_data).build(), CANCEL)?;
            let was_not_found = match self.wait(CANCEL, STEP)?.result() {
                0.. => false,
                code if code == -libc::ENOENT => true,
                code if code == -libc::EINVAL => return Err(ProbeError::KernelTooOld(STEP)),
                code => return Err(step_error(STEP, io::Error::from_raw_os_error(-code))),
            };
            match self.wait(user_data, STEP)?.result() {
                code if code == -libc::ECANCELED => Ok(()),
                // The operation had already ended; the code is its error.
                code @ ..0 if was_not_found => {
                    Err(step_error(STEP, io::Error::from_raw_os_error(-code)))
                }
                _ => Err(ProbeError::KernelTooOld(STEP)),
            }
        }

        /// Waits for a successful completion. Returns its result and flags.
        fn wait_ok(
            &mut self,
            user_data: u64,
            step: &'static str,
        ) -> Result<(i32, u32), ProbeError> {
            let entry = self.wait(user_data, step)?;
            match entry.result() {
                result @ 0.. => Ok((result, entry.flags())),
                code if code == -libc::EINVAL => Err(ProbeError::KernelTooOld(step)),
                code => Err(step_error(step, io::Error::from_raw_os_error(-code))),
            }
        }

        fn wait(
            &mut self,
            user_data: u64,
            step: &'static str,
        ) -> Result<cqueue::Entry, ProbeError> {
            for _ in 0..WAITS_MAX {
                if let Some(index) =
                    self.completions.iter().position(|entry| entry.user_data() == user_data)
                {
                    return Ok(self.completions.remove(index));
                }
                self.ring
                    .enter(EnterWait::Completion(Some(WAIT_TIMEOUT)))
                    .map_err(|error| step_error("entering the kernel", error))?;
                self.ring.take_completions(&mut self.completions);
            }
            Err(step_error(step, io::ErrorKind::TimedOut.into()))
        }
    }

    pub(super) fn step_error(step: &'static str, error: io::Error) -> ProbeError {
        match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => ProbeError::NoDescriptors(error),
            _ => ProbeError::Failed(step, error),
        }
    }

    /// A listener with one connection in its backlog, without a network or a file.
    fn connected_pair() -> io::Result<(UnixListener, UnixStream)> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static PROBES: AtomicU32 = AtomicU32::new(0);
        let number = PROBES.fetch_add(1, Ordering::Relaxed);
        let name = format!("peregrine-probe-{}-{number}", std::process::id());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        let client = UnixStream::connect_addr(&listener.local_addr()?)?;
        Ok((listener, client))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::linux::{setup_error, step_error};
    use super::*;

    fn setup_message(code: i32, sysctl: Option<u8>) -> String {
        setup_error(io::Error::from_raw_os_error(code), sysctl).to_string()
    }

    #[test]
    fn each_error_names_its_cause_and_its_fix() {
        for (text, cause, fix) in [
            (setup_message(libc::EPERM, Some(2)), "io_uring_disabled is 2", "sysctl -w"),
            (setup_message(libc::EPERM, Some(0)), "seccomp", "profile"),
            (setup_message(libc::ENOSYS, None), "seccomp", "profile"),
            (setup_message(libc::ENOMEM, Some(0)), "locked memory", "ulimit -l 168"),
            (setup_message(libc::EMFILE, Some(0)), "descriptor", "ulimit -n"),
            (
                step_error("send", io::Error::from_raw_os_error(libc::EMFILE)).to_string(),
                "descriptor",
                "ulimit -n",
            ),
            (setup_message(libc::EINVAL, Some(0)), "does not support", "Linux 6.1"),
            (setup_message(libc::EIO, Some(0)), "creating a ring", "tokio driver"),
            (ProbeError::NotLinux.to_string(), "Linux only", "tokio driver"),
        ] {
            assert!(text.contains(cause), "{text}");
            assert!(text.contains(fix), "{text}");
        }
    }

    #[test]
    fn the_probe_succeeds_exactly_where_a_worker_runs() {
        use peregrine_driver::Driver;
        let probed = probe();
        let ran = crate::Uring::run(&peregrine_driver::Options::default(), |_| async {});
        match (&probed, ran) {
            (Ok(features), Ok(())) => {
                assert!(features.to_string().starts_with("multishot receive, "));
            }
            (Err(error), Err(_)) => assert!(error.to_string().contains(". ")),
            (probed, ran) => panic!("{probed:?} contradicts {ran:?}"),
        }
    }

    #[test]
    fn probing_does_not_interrupt_the_calling_thread() {
        let (mut here, _there) = std::os::unix::net::UnixStream::pair().unwrap();
        here.set_read_timeout(Some(std::time::Duration::from_millis(20))).unwrap();
        for _ in 0..5 {
            let _ = probe();
            let error = std::io::Read::read(&mut here, &mut [0]).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        }
    }

    #[test]
    fn missing_flags_are_displayed() {
        let missing_flags = vec!["DEFER_TASKRUN", "SINGLE_ISSUER"];
        let features = Features { missing_flags, shortage: None };
        assert!(features.to_string().ends_with("; without DEFER_TASKRUN, SINGLE_ISSUER"));
    }
}
