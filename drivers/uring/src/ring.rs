//! The two queues shared with the kernel: set-up, submission, completions.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, squeue};

/// How long the queues of a ring are. Their memory is locked: many kernels count it against the limit
/// of the user, for all of the user's processes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// Submissions that wait for one enter. When the queue is full, it is submitted early.
    pub(crate) submissions: u32,
    /// Completions that fit without the kernel's overflow list. Multishot operations produce many.
    pub(crate) completions: u32,
}

/// From the best to the least that a worker can live with.
pub(crate) const SIZES: [Size; 3] = [
    Size { submissions: 512, completions: 8192 },
    Size { submissions: 256, completions: 2048 },
    Size { submissions: 128, completions: 512 },
];

impl Size {
    /// The memory that such a ring locks, nearly.
    pub(crate) fn bytes(self) -> usize {
        const PAGE: usize = 4096;
        // What the kernel notes beside the completions, an index for each submission among them.
        let completions = self.completions as usize * size_of::<cqueue::Entry>()
            + self.submissions as usize * size_of::<u32>()
            + 512;
        let submissions = self.submissions as usize * size_of::<squeue::Entry>();
        completions.next_multiple_of(PAGE) + submissions.next_multiple_of(PAGE)
    }
}

/// Enters that a full queue is given to make room for one more submission.
const SUBMIT_TRIES: u32 = 8;

/// A set-up flag that the ring is better with and works without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    DeferTaskrun,
    SingleIssuer,
    ShowTaskrun,
    SubmitAll,
}

impl Flag {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::DeferTaskrun => "DEFER_TASKRUN",
            Self::SingleIssuer => "SINGLE_ISSUER",
            Self::ShowTaskrun => "TASKRUN_FLAG",
            Self::SubmitAll => "SUBMIT_ALL",
        }
    }
}

/// The optional flags from the newest to the oldest: the order in which they are dropped.
pub(crate) const FLAGS: [Flag; 4] =
    [Flag::DeferTaskrun, Flag::SingleIssuer, Flag::ShowTaskrun, Flag::SubmitAll];

/// How long [`Ring::enter`] may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Submit, run what the kernel deferred, return.
    No,
    /// Until something completes that is not expected anyway (see [`Ring::expect_completion`]), at most for the given time if there is one.
    Completion(Option<Duration>),
}

/// One worker's ring. Once closed it takes no submission and has no completion.
pub(crate) struct Ring {
    queues: Option<IoUring>,
    /// Completions that the next enter makes for certain.
    expected: u32,
    enters: u64,
    overflows: u64,
    dropped: Vec<Flag>,
}

impl Ring {
    /// Creates a ring without the flags this kernel does not know. It takes registrations; the thread
    /// that is to use it calls [`Ring::enable`] first.
    pub(crate) fn create(size: Size) -> io::Result<Self> {
        for skipped in 0..=FLAGS.len() {
            let kept = &FLAGS[skipped..];
            let mut builder = IoUring::builder();
            builder.setup_cqsize(size.completions).setup_clamp().dontfork().setup_r_disabled();
            for flag in kept {
                match flag {
                    Flag::DeferTaskrun => builder.setup_defer_taskrun(),
                    Flag::SingleIssuer => builder.setup_single_issuer(),
                    Flag::ShowTaskrun => builder.setup_taskrun_flag(),
                    Flag::SubmitAll => builder.setup_submit_all(),
                };
            }
            if kept.contains(&Flag::ShowTaskrun) && !kept.contains(&Flag::DeferTaskrun) {
                builder.setup_coop_taskrun();
            }
            match builder.build(size.submissions) {
                Ok(queues) => {
                    let dropped = FLAGS[..skipped].to_vec();
                    return Ok(Self {
                        queues: Some(queues),
                        expected: 0,
                        enters: 0,
                        overflows: 0,
                        dropped,
                    });
                }
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EINVAL))
    }

    /// Lets the calling thread use the ring, and with most kernels no other.
    ///
    /// # Errors
    /// The ring is closed or the kernel refused.
    pub(crate) fn enable(&self) -> io::Result<()> {
        self.queues()?.submitter().register_enable_rings()
    }

    /// The optional flags this kernel does not know.
    pub(crate) fn dropped(&self) -> &[Flag] {
        &self.dropped
    }

    /// Times the thread entered the kernel through this ring.
    pub(crate) fn enters(&self) -> u64 {
        self.enters
    }

    /// Times that completions did not fit into their queue, so that the kernel kept some.
    pub(crate) fn overflows(&self) -> u64 {
        self.overflows
    }

    /// The queues, for registrations.
    ///
    /// # Errors
    /// The ring is closed.
    pub(crate) fn queues(&self) -> io::Result<&IoUring> {
        self.queues.as_ref().ok_or_else(closed)
    }

    /// Ends the ring. The kernel takes nothing from memory that was lent to it after this, if no
    /// operation is in flight.
    pub(crate) fn close(&mut self) {
        self.queues = None;
    }

    /// Queues one operation for the next enter.
    ///
    /// # Safety
    /// All memory that `entry` names must stay valid, and if the kernel writes to it unused by
    /// others, until the operation's final completion.
    ///
    /// # Errors
    /// The ring is closed, or full and the kernel does not take what is in it.
    #[inline]
    pub(crate) unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        if let Some(queues) = self.queues.as_mut() {
            // SAFETY: the caller promises that the memory outlives the operation.
            if unsafe { queues.submission().push(entry) }.is_ok() {
                return Ok(());
            }
        }
        // SAFETY: the same.
        unsafe { self.push_slowly(entry) }
    }

    /// [`Ring::push`] when the queue is full or closed.
    ///
    /// # Safety
    /// As for `push`.
    #[cold]
    unsafe fn push_slowly(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        let queues = self.queues.as_mut().ok_or_else(closed)?;
        for _ in 0..SUBMIT_TRIES {
            self.enters += 1;
            if let Err(error) = queues.submit()
                && !is_passing(&error)
            {
                return Err(error);
            }
            // SAFETY: the caller promises that the memory outlives the operation.
            if unsafe { queues.submission().push(entry) }.is_ok() {
                return Ok(());
            }
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// The operation that was queued last completes within the enter that submits it, whatever comes
    /// of it: no sleep is to end for it.
    pub(crate) fn expect_completion(&mut self) {
        self.expected += 1;
    }

    /// A sleep is to end for an expected completion after all: somebody waits for what comes of it.
    ///
    /// Said twice of the same one, a sleep ends early, which costs one turn.
    pub(crate) fn heed_completion(&mut self) {
        self.expected = self.expected.saturating_sub(1);
    }

    /// How many completions are expected so.
    pub(crate) fn expected(&self) -> u32 {
        self.expected
    }

    /// Submits what is queued and waits as told, with at most one enter.
    ///
    /// # Errors
    /// Those that concern the ring. Being interrupted, running out of time and having too many
    /// completions are no errors: the caller looks at the completions in any case.
    pub(crate) fn enter(&mut self, wait: Wait) -> io::Result<()> {
        let queues = self.queues.as_mut().ok_or_else(closed)?;
        let wanted = self.expected as usize + 1;
        let entered = match wait {
            Wait::No => {
                let submission = queues.submission();
                let nothing =
                    submission.is_empty() && !submission.taskrun() && !submission.cq_overflow();
                drop(submission);
                if nothing {
                    return Ok(());
                }
                queues.submit()
            }
            Wait::Completion(None) => queues.submit_and_wait(wanted),
            Wait::Completion(Some(timeout)) => {
                let timespec = Timespec::from(timeout);
                let arguments = SubmitArgs::new().timespec(&timespec);
                queues.submitter().submit_with_args(wanted, &arguments)
            }
        };
        self.enters += 1;
        match entered {
            Ok(_submitted) => Ok(()),
            Err(error) if is_passing(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Moves all completions to `batch`.
    pub(crate) fn take_completions(&mut self, batch: &mut Vec<cqueue::Entry>) {
        if let Some(queues) = self.queues.as_mut() {
            let completions = queues.completion();
            let is_full = completions.is_full();
            batch.extend(completions);
            // The kernel says so until it is entered again.
            if is_full && queues.submission().cq_overflow() {
                self.overflows += 1;
            }
        }
        // They were among them, or come too early for the next sleep, which then ends at once.
        self.expected = 0;
    }

    /// Whether looking at the ring is worth it: there are completions, or an enter would make some.
    pub(crate) fn has_work(&mut self) -> bool {
        let Some(queues) = self.queues.as_mut() else { return false };
        if !queues.completion().is_empty() {
            return true;
        }
        let submission = queues.submission();
        submission.taskrun() || submission.cq_overflow()
    }

    /// Makes the kernel signal `event` at completions, but not yet: see [`Ring::notify`].
    ///
    /// # Errors
    /// The ring is closed or the kernel refused.
    pub(crate) fn register_event(&mut self, event: &impl AsRawFd) -> io::Result<()> {
        let descriptor: RawFd = event.as_raw_fd();
        self.notify(false);
        self.queues()?.submitter().register_eventfd(descriptor)
    }

    /// Turns the registered event on or off. After turning it on, call [`Ring::has_work`]: what
    /// came before gives no signal.
    pub(crate) fn notify(&mut self, on: bool) {
        let Some(queues) = self.queues.as_mut() else { return };
        let completion = queues.completion();
        if on {
            completion.enable_eventfd();
            // The kernel queues its work, then reads the flag; this side writes the flag, then
            // looks for work. Without a full barrier both could miss each other.
            fence(Ordering::SeqCst);
        } else {
            completion.disable_eventfd();
        }
    }
}

/// Interrupted, out of time, too many completions, short of memory: the next enter may do better.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN))
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the worker of this ring has ended")
}
