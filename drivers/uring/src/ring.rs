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
    /// The length of the submission queue. If it fills up, it is submitted early.
    pub(crate) submissions: u32,
    /// The length of the completion queue. Further completions go to the kernel's overflow list,
    /// and multishot operations produce many.
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
        // The kernel stores other fields beside the completions: an index for each submission, and
        // less than 512 bytes of counters.
        let completions = self.completions as usize * size_of::<cqueue::Entry>()
            + self.submissions as usize * size_of::<u32>()
            + 512;
        let submissions = self.submissions as usize * size_of::<squeue::Entry>();
        completions.next_multiple_of(PAGE) + submissions.next_multiple_of(PAGE)
    }
}

/// How often a full queue is submitted to make room before a submission fails.
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

/// The optional flags from newest to oldest, the order in which [`Ring::create`] gives them up.
pub(crate) const OPTIONAL_SETUP_FLAGS: [SetupFlag; 4] = [
    SetupFlag::DeferTaskrun,
    SetupFlag::SingleIssuer,
    SetupFlag::TaskrunFlag,
    SetupFlag::SubmitAll,
];

/// How long [`Ring::enter`] may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnterWait {
    /// Not at all: submit, run the kernel's deferred work, and return.
    DontWait,
    /// Until an operation completes that is not an expected one (see
    /// [`Ring::expect_inline_completion`]), at most for the given time, if any.
    Completion(Option<Duration>),
}

/// One worker's ring. Once closed, it accepts no submissions and has no completions.
pub(crate) struct Ring {
    queues: Option<IoUring>,
    /// The number of completions that the next enter is certain to produce.
    inline_completions: u32,
    enter_calls: u64,
    overflows: u64,
    missing_flags: Vec<SetupFlag>,
}

impl Ring {
    /// Creates a ring, without the optional flags that this kernel does not support. Buffers can be
    /// registered with it right away, but it accepts operations only after the thread that will use
    /// it has called [`Ring::enable`].
    pub(crate) fn create(size: RingSize) -> io::Result<Self> {
        for skipped in 0..=OPTIONAL_SETUP_FLAGS.len() {
            let flags = &OPTIONAL_SETUP_FLAGS[skipped..];
            let mut builder = IoUring::builder();
            builder.setup_cqsize(size.completions).setup_clamp().dontfork().setup_r_disabled();
            for flag in flags {
                match flag {
                    SetupFlag::DeferTaskrun => builder.setup_defer_taskrun(),
                    SetupFlag::SingleIssuer => builder.setup_single_issuer(),
                    SetupFlag::TaskrunFlag => builder.setup_taskrun_flag(),
                    SetupFlag::SubmitAll => builder.setup_submit_all(),
                };
            }
            if flags.contains(&SetupFlag::TaskrunFlag) && !flags.contains(&SetupFlag::DeferTaskrun)
            {
                builder.setup_coop_taskrun();
            }
            match builder.build(size.submissions) {
                Ok(queues) => {
                    let missing_flags = OPTIONAL_SETUP_FLAGS[..skipped].to_vec();
                    return Ok(Self {
                        queues: Some(queues),
                        inline_completions: 0,
                        enter_calls: 0,
                        overflows: 0,
                        missing_flags,
                    });
                }
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EINVAL))
    }

    /// Makes the calling thread the user of the ring: on most kernels, no other thread can use it.
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

    /// How often the thread called `io_uring_enter` for this ring.
    pub(crate) fn enter_calls(&self) -> u64 {
        self.enter_calls
    }

    /// How often completions did not fit into the queue, so that the kernel held some back.
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
    /// and, if the kernel writes to it, must not be accessed until then.
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

    /// [`Ring::push`] if the queue is full or the ring is closed.
    ///
    /// # Safety
    /// As for `push`.
    #[cold]
    unsafe fn push_slow(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        let queues = self.queues.as_mut().ok_or_else(ring_closed)?;
        for _ in 0..SUBMIT_RETRIES {
            self.enter_calls += 1;
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

    /// Declares that the operation queued last completes within the enter that submits it, whatever
    /// its result, and that its completion must not end a sleep.
    pub(crate) fn expect_inline_completion(&mut self) {
        self.inline_completions += 1;
    }

    /// Makes one of the expected completions end a sleep, because a task waits for its result.
    ///
    /// If this is called twice for the same completion, a sleep ends early, which costs one
    /// iteration.
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
    /// The ring failed. Interruptions, timeouts and an overflow of completions are not errors: the
    /// caller checks for completions in any case.
    pub(crate) fn enter(&mut self, wait: EnterWait) -> io::Result<()> {
        let queues = self.queues.as_mut().ok_or_else(ring_closed)?;
        let completions_min = self.inline_completions as usize + 1;
        let result = match wait {
            EnterWait::DontWait => {
                let submission = queues.submission();
                let is_idle =
                    submission.is_empty() && !submission.taskrun() && !submission.cq_overflow();
                drop(submission);
                if is_idle {
                    return Ok(());
                }
                queues.submit()
            }
            EnterWait::Completion(None) => queues.submit_and_wait(completions_min),
            EnterWait::Completion(Some(timeout)) => {
                let timespec = Timespec::from(timeout);
                let arguments = SubmitArgs::new().timespec(&timespec);
                queues.submitter().submit_with_args(completions_min, &arguments)
            }
        };
        self.enter_calls += 1;
        match result {
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
            // The flag stays set until the kernel is entered again, so count each overflow once.
            if is_full && queues.submission().cq_overflow() {
                self.overflows += 1;
            }
        }
        // The expected completions were usually among these. One that was not will end the next
        // sleep early, which costs one iteration.
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
    pub(crate) fn set_eventfd_enabled(&mut self, enabled: bool) {
        let Some(queues) = self.queues.as_mut() else { return };
        let completion = queues.completion();
        if enabled {
            completion.enable_eventfd();
            // The kernel queues its work, then reads the flag; the driver writes the flag, then
            // checks for work. Without a full barrier, each could miss the other's write.
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
