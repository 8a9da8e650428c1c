//! The two queues shared with the kernel: setup, submission, completions.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, squeue};

/// The lengths of a ring's queues. Their memory is locked: many kernels count it against a limit
/// for all processes of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingSize {
    /// Submissions per enter. A full queue is submitted early.
    pub(crate) submissions: u32,
    /// Completions that fit without the kernel's overflow list. Multishot operations produce many.
    pub(crate) completions: u32,
}

/// From the preferred size to the smallest one that a worker can use.
pub(crate) const RING_SIZES: [RingSize; 3] = [
    RingSize { submissions: 512, completions: 8192 },
    RingSize { submissions: 256, completions: 2048 },
    RingSize { submissions: 128, completions: 512 },
];

impl RingSize {
    /// The approximate memory that such a ring locks.
    pub(crate) fn bytes(self) -> usize {
        const PAGE: usize = 4096;
        // The kernel's fields beside the completions, including an index for each submission.
        let completions = self.completions as usize * size_of::<cqueue::Entry>()
            + self.submissions as usize * size_of::<u32>()
            + 512;
        let submissions = self.submissions as usize * size_of::<squeue::Entry>();
        completions.next_multiple_of(PAGE) + submissions.next_multiple_of(PAGE)
    }
}

/// The number of enters with a full queue before a submission fails.
const SUBMIT_RETRIES: u32 = 8;

/// An optional setup flag that makes the ring faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetupFlag {
    DeferTaskrun,
    SingleIssuer,
    TaskrunFlag,
    SubmitAll,
}

impl SetupFlag {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::DeferTaskrun => "DEFER_TASKRUN",
            Self::SingleIssuer => "SINGLE_ISSUER",
            Self::TaskrunFlag => "TASKRUN_FLAG",
            Self::SubmitAll => "SUBMIT_ALL",
        }
    }
}

/// The optional flags from newest to oldest, the order in which they are dropped.
pub(crate) const OPTIONAL_SETUP_FLAGS: [SetupFlag; 4] = [
    SetupFlag::DeferTaskrun,
    SetupFlag::SingleIssuer,
    SetupFlag::TaskrunFlag,
    SetupFlag::SubmitAll,
];

/// How long [`Ring::enter`] may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnterWait {
    /// Submit, run the kernel's deferred work, and return.
    DontWait,
    /// Until something completes that is not expected (see [`Ring::expect_inline_completion`]), at
    /// most for the given time, if any.
    Completion(Option<Duration>),
}

/// One worker's ring. Once closed, it accepts no submissions and has no completions.
pub(crate) struct Ring {
    queues: Option<IoUring>,
    /// The number of completions that the next enter is certain to produce.
    inline_completions: u32,
    enters: u64,
    overflows: u64,
    missing_flags: Vec<SetupFlag>,
}

impl Ring {
    /// Creates a ring without the flags that this kernel does not support. It accepts
    /// registrations; the thread that will use it must call [`Ring::enable`] first.
    pub(crate) fn create(size: RingSize) -> io::Result<Self> {
        for skipped in 0..=OPTIONAL_SETUP_FLAGS.len() {
            let kept = &OPTIONAL_SETUP_FLAGS[skipped..];
            let mut builder = IoUring::builder();
            builder.setup_cqsize(size.completions).setup_clamp().dontfork().setup_r_disabled();
            for flag in kept {
                match flag {
                    SetupFlag::DeferTaskrun => builder.setup_defer_taskrun(),
                    SetupFlag::SingleIssuer => builder.setup_single_issuer(),
                    SetupFlag::TaskrunFlag => builder.setup_taskrun_flag(),
                    SetupFlag::SubmitAll => builder.setup_submit_all(),
                };
            }
            if kept.contains(&SetupFlag::TaskrunFlag) && !kept.contains(&SetupFlag::DeferTaskrun) {
                builder.setup_coop_taskrun();
            }
            match builder.build(size.submissions) {
                Ok(queues) => {
                    let dropped = OPTIONAL_SETUP_FLAGS[..skipped].to_vec();
                    return Ok(Self {
                        queues: Some(queues),
                        inline_completions: 0,
                        enters: 0,
                        overflows: 0,
                        missing_flags: dropped,
                    });
                }
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EINVAL))
    }

    /// Makes the calling thread the user of the ring, on most kernels exclusively.
    ///
    /// # Errors
    /// The ring is closed, or the kernel rejected the call.
    pub(crate) fn enable(&self) -> io::Result<()> {
        self.io_uring()?.submitter().register_enable_rings()
    }

    /// The optional flags that this kernel does not support.
    pub(crate) fn missing_flags(&self) -> &[SetupFlag] {
        &self.missing_flags
    }

    /// How often the thread entered the kernel through this ring.
    pub(crate) fn enters(&self) -> u64 {
        self.enters
    }

    /// How often completions did not fit into the queue, so that the kernel kept some.
    pub(crate) fn cq_overflows(&self) -> u64 {
        self.overflows
    }

    /// The queues, for registrations.
    ///
    /// # Errors
    /// The ring is closed.
    pub(crate) fn io_uring(&self) -> io::Result<&IoUring> {
        self.queues.as_ref().ok_or_else(ring_closed)
    }

    /// Closes the ring. Afterwards, if no operation is in flight, the kernel does not use memory
    /// that was lent to it.
    pub(crate) fn close(&mut self) {
        self.queues = None;
    }

    /// Queues one operation for the next enter.
    ///
    /// # Safety
    /// All memory that `entry` refers to must stay valid until the operation's final completion
    /// and, if the kernel writes to it, must not be used otherwise.
    ///
    /// # Errors
    /// The ring is closed, or it is full and the kernel accepts no submissions.
    #[inline]
    pub(crate) unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        if let Some(queues) = self.queues.as_mut() {
            // SAFETY: the caller guarantees that the memory outlives the operation.
            if unsafe { queues.submission().push(entry) }.is_ok() {
                return Ok(());
            }
        }
        // SAFETY: the same.
        unsafe { self.push_slow(entry) }
    }

    /// [`Ring::push`] when the queue is full or closed.
    ///
    /// # Safety
    /// As for `push`.
    #[cold]
    unsafe fn push_slow(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        let queues = self.queues.as_mut().ok_or_else(ring_closed)?;
        for _ in 0..SUBMIT_RETRIES {
            self.enters += 1;
            if let Err(error) = queues.submit()
                && !is_transient(&error)
            {
                return Err(error);
            }
            // SAFETY: the caller guarantees that the memory outlives the operation.
            if unsafe { queues.submission().push(entry) }.is_ok() {
                return Ok(());
            }
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// The operation that was queued last completes within the enter that submits it, whatever its
    /// result: a sleep must not end because of it.
    pub(crate) fn expect_inline_completion(&mut self) {
        self.inline_completions += 1;
    }

    /// A sleep must end when an expected completion arrives, because a task waits for its result.
    ///
    /// Calling this twice for the same completion ends a sleep early, which costs one iteration.
    pub(crate) fn wake_on_inline_completion(&mut self) {
        self.inline_completions = self.inline_completions.saturating_sub(1);
    }

    /// The number of expected completions that must not end a sleep.
    pub(crate) fn inline_completions(&self) -> u32 {
        self.inline_completions
    }

    /// Submits the queue and waits as given by `wait`, with at most one enter.
    ///
    /// # Errors
    /// Errors of the ring. Interruptions, timeouts and an overflow of completions are not errors:
    /// the caller checks for completions in any case.
    pub(crate) fn enter(&mut self, wait: EnterWait) -> io::Result<()> {
        let queues = self.queues.as_mut().ok_or_else(ring_closed)?;
        let wanted = self.inline_completions as usize + 1;
        let entered = match wait {
            EnterWait::DontWait => {
                let submission = queues.submission();
                let nothing =
                    submission.is_empty() && !submission.taskrun() && !submission.cq_overflow();
                drop(submission);
                if nothing {
                    return Ok(());
                }
                queues.submit()
            }
            EnterWait::Completion(None) => queues.submit_and_wait(wanted),
            EnterWait::Completion(Some(timeout)) => {
                let timespec = Timespec::from(timeout);
                let arguments = SubmitArgs::new().timespec(&timespec);
                queues.submitter().submit_with_args(wanted, &arguments)
            }
        };
        self.enters += 1;
        match entered {
            Ok(_submitted) => Ok(()),
            Err(error) if is_transient(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Moves all completions to `batch`.
    pub(crate) fn take_completions(&mut self, batch: &mut Vec<cqueue::Entry>) {
        if let Some(queues) = self.queues.as_mut() {
            let completions = queues.completion();
            let is_full = completions.is_full();
            batch.extend(completions);
            // The kernel keeps reporting it until it is entered again.
            if is_full && queues.submission().cq_overflow() {
                self.overflows += 1;
            }
        }
        // The expected ones were among them, or will arrive too early for the next sleep, which
        // then ends immediately.
        self.inline_completions = 0;
    }

    /// Returns whether there are completions, or an enter would produce some.
    pub(crate) fn has_work(&mut self) -> bool {
        let Some(queues) = self.queues.as_mut() else { return false };
        if !queues.completion().is_empty() {
            return true;
        }
        let submission = queues.submission();
        submission.taskrun() || submission.cq_overflow()
    }

    /// Registers `event` to be signalled on completions, initially disabled: see
    /// [`Ring::set_eventfd_enabled`].
    ///
    /// # Errors
    /// The ring is closed, or the kernel rejected the call.
    pub(crate) fn register_eventfd(&mut self, event: &impl AsRawFd) -> io::Result<()> {
        let descriptor: RawFd = event.as_raw_fd();
        self.set_eventfd_enabled(false);
        self.io_uring()?.submitter().register_eventfd(descriptor)
    }

    /// Enables or disables the registered event. After enabling it, call [`Ring::has_work`]:
    /// earlier completions are not signalled.
    pub(crate) fn set_eventfd_enabled(&mut self, on: bool) {
        let Some(queues) = self.queues.as_mut() else { return };
        let completion = queues.completion();
        if on {
            completion.enable_eventfd();
            // The kernel queues its work, then reads the flag; this side writes the flag, then
            // checks for work. Without a full barrier both could miss each other.
            fence(Ordering::SeqCst);
        } else {
            completion.disable_eventfd();
        }
    }
}

/// Interrupted, timed out, too many completions, short of memory: the next enter may succeed.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN))
}

fn ring_closed() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the worker of this ring has ended")
}
