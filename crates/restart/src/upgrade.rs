//! The predecessor's side of an upgrade.

use crate::fd_message::{self, Parcel, step};
use crate::host::UpgradeHost;
use crate::inherit;
use crate::listener::Holding;
use crate::options::{Successor, own_program};
use crate::restart::{Restart, lock};
use peregrine_driver::Socket;
use peregrine_server::Order;
use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::TryLockError;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// How long to wait for a message before checking for orders and for the successor's exit.
const PAUSE: Duration = Duration::from_millis(50);
/// How long to wait for the exit status of a successor that has closed its end of the link.
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// Everything that is passed to a successor.
#[derive(Debug)]
pub(crate) struct Estate {
    holdings: Vec<Holding>,
    successor: Successor,
    own_program: Result<PathBuf, io::Error>,
    pub(crate) quiet: bool,
}

/// Why an upgrade in place failed. The server keeps serving, unless it was ordered to stop.
#[derive(Debug)]
#[non_exhaustive]
pub enum UpgradeError {
    /// The server has not started serving, or is stopping.
    NotServing,
    /// Another upgrade is in progress.
    UnderWay,
    /// This is the first process of its container: all others end when it ends.
    FirstProcess,
    /// The successor's program cannot be started.
    Program {
        /// The path of the program.
        path: PathBuf,
        /// The error from the kernel.
        cause: io::Error,
    },
    /// The successor ended before it served.
    Died {
        /// The exit status; `None` if the successor had to be killed.
        status: Option<ExitStatus>,
        /// The error of the successor's server; `None` if the server was not reached.
        cause: Option<String>,
    },
    /// The successor did not serve within this timeout, and was killed.
    Late(Duration),
    /// The server was ordered to stop in the meantime. The successor was killed.
    Ended,
    /// The sockets could not be passed to the successor.
    Link(io::Error),
}

impl fmt::Display for UpgradeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotServing => f.write_str("not serving: the server is starting or stopping"),
            Self::UnderWay => f.write_str("another upgrade is in progress: wait until it ends"),
            Self::FirstProcess => f.write_str(
                "this is the first process of its container, which ends with it: start it under an \
                 init (`docker run --init`), or start another container instead",
            ),
            Self::Program { path, cause } => {
                write!(f, "cannot start the successor {}: {cause}", path.display())
            }
            Self::Died { status, cause } => {
                f.write_str("the successor ended before it served")?;
                match status {
                    Some(status) => write!(f, " ({status})")?,
                    None => f.write_str(" (killed because it did not exit)")?,
                }
                match cause {
                    Some(cause) => write!(f, ": {cause}"),
                    None => f.write_str("; see its output for the cause"),
                }
            }
            Self::Late(timeout) => write!(
                f,
                "the successor did not serve within {timeout:?} and was killed: find out what \
                 delays it, or raise `Successor::timeout`"
            ),
            Self::Ended => {
                f.write_str("the server was ordered to stop, so its successor was killed")
            }
            Self::Link(cause) => write!(f, "cannot pass the sockets to the successor: {cause}"),
        }
    }
}

impl StdError for UpgradeError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Program { cause, .. } | Self::Link(cause) => Some(cause),
            _ => None,
        }
    }
}

impl Estate {
    pub(crate) fn new(holdings: Vec<Holding>, successor: Successor, quiet: bool) -> Self {
        Self { holdings, successor, own_program: own_program(), quiet }
    }

    pub(crate) fn is_by_signal(&self) -> bool {
        self.successor.is_by_signal()
    }

    /// Sets whether the taken sockets are shared with the successor. It has not taken those in
    /// `untaken`.
    fn share(&self, untaken: &[String], is_so: bool) {
        let taken = self.holdings.iter().filter(|holding| !untaken.contains(&holding.key));
        taken.filter(|holding| !holding.is_foreign).for_each(|holding| holding.shared.set(is_so));
    }
}

/// The properties of a listener that the successor needs, as text.
fn note(holding: &Holding) -> String {
    let mut note = format!("foreign {}", u8::from(holding.is_foreign));
    if let Some((device, number, seconds, nanoseconds)) = holding.file {
        note += &format!(" file {device} {number} {seconds} {nanoseconds}");
    }
    for secret in holding.secrets().0 {
        note += " secret ";
        secret.iter().for_each(|byte| note += &format!("{byte:02x}"));
    }
    note
}

impl Restart {
    /// Starts a successor, passes the sockets of `host` to it, and tells `host` to leave once the
    /// successor serves. Blocks until then, and returns the successor's process id.
    ///
    /// # Errors
    /// The upgrade failed. The server keeps serving, unless it was ordered to stop.
    pub fn upgrade(&self, host: &dyn UpgradeHost) -> Result<u32, UpgradeError> {
        let _one = match self.under_way.try_lock() {
            Ok(one) => one,
            Err(TryLockError::Poisoned(one)) => one.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(UpgradeError::UnderWay),
        };
        let estate = lock(&self.estate).clone().ok_or(UpgradeError::NotServing)?;
        if std::process::id() == 1 {
            return Err(UpgradeError::FirstProcess);
        }
        self.reload_asked.store(false, Ordering::SeqCst);
        let is_told = self.begins("starting its successor");
        let result = Attempt::begin(host, &estate).and_then(Attempt::finish);
        match &result {
            Ok(process) => {
                let text = format!("peregrine: process {process} serves in place of this one");
                host.tell(&text, estate.quiet);
            }
            Err(error) => {
                if is_told {
                    self.is_over(Some(format!("serving; the upgrade failed: {error}")));
                }
            }
        }
        result
    }
}

/// An upgrade in progress.
struct Attempt<'a> {
    host: &'a dyn UpgradeHost,
    estate: &'a Estate,
    successor: Fledgling,
    link: UnixStream,
    until: Option<Instant>,
    untaken: Vec<String>,
    /// The error reported by the successor.
    cause: Option<String>,
}

impl<'a> Attempt<'a> {
    /// Starts the successor and passes everything to it.
    fn begin(host: &'a dyn UpgradeHost, estate: &'a Estate) -> Result<Self, UpgradeError> {
        let (link, theirs) = UnixStream::pair().map_err(UpgradeError::Link)?;
        let until = Instant::now().checked_add(estate.successor.timeout);
        let variable = inherit::variable(&theirs).map_err(UpgradeError::Link)?;
        let own = match &estate.own_program {
            Ok(path) => path,
            Err(error) => {
                let (path, cause) = (PathBuf::from("(this program)"), error.kind().into());
                return Err(UpgradeError::Program { path, cause });
            }
        };
        let mut command = estate.successor.command(own);
        command.env(inherit::VARIABLE, variable).stdin(Stdio::from(OwnedFd::from(theirs)));
        let child = command.spawn().map_err(|cause| {
            let path = PathBuf::from(command.get_program());
            UpgradeError::Program { path, cause }
        })?;
        // Closes this process's copy of the successor's end, so that the link closes when the
        // successor dies.
        drop(command);
        let successor = Fledgling(Some(child));
        let mut attempt =
            Self { host, estate, successor, link, until, untaken: Vec::new(), cause: None };
        // If the successor has already exited, its status says more than the broken link.
        match attempt.hand_over() {
            Ok(()) => Ok(attempt),
            Err(error) => match attempt.successor.exits() {
                Some(status) => Err(attempt.died(Some(status))),
                None => Err(UpgradeError::Link(error)),
            },
        }
    }

    fn hand_over(&self) -> io::Result<()> {
        fd_message::send(&self.link, step::INPUT, &[], &[io::stdin().as_fd()])?;
        for holding in &self.estate.holdings {
            let name = format!("{}{}", step::LISTENER, holding.key);
            let all: Vec<_> = holding.sockets.iter().map(descriptor).collect();
            fd_message::send(&self.link, &name, note(holding).as_bytes(), &all)?;
        }
        fd_message::send(&self.link, step::END, &[], &[])
    }

    /// Lets the successor serve when it is ready, and then drains this server.
    fn finish(mut self) -> Result<u32, UpgradeError> {
        self.hears(step::READY, true)?;
        // From here on, a drain leaves the listen queues to the successor. An order that arrived
        // before this abandons the upgrade; an order that arrives later finds both processes
        // serving.
        self.estate.share(&self.untaken, true);
        let result = self.begin_serving();
        if result.is_err() {
            self.estate.share(&self.untaken, false);
        }
        result?;
        let process = self.successor.leave();
        self.host.restart().is_succeeded_by(process);
        self.host.leave();
        if self.host.restart().reload_asked.swap(false, Ordering::SeqCst) {
            // The successor may have read its files before they changed.
            let _ = fd_message::send(&self.link, step::RELOAD, &[], &[]);
        }
        // If this fails, the successor takes the closed link as the same message.
        let _ = fd_message::send(&self.link, step::YOURS, &[], &[]);
        Ok(process)
    }

    fn begin_serving(&mut self) -> Result<(), UpgradeError> {
        if self.host.present() > Order::Serve {
            return Err(UpgradeError::Ended);
        }
        if fd_message::send(&self.link, step::GO, &[], &[]).is_err() {
            let status = self.successor.exits();
            return Err(self.died(status));
        }
        self.hears(step::SERVING, false)
    }

    /// Waits for the message `expected` from the successor. An order to stop ends the wait only if
    /// `may_end`.
    fn hears(&mut self, expected: &str, may_end: bool) -> Result<(), UpgradeError> {
        loop {
            if may_end && self.host.present() > Order::Serve {
                return Err(UpgradeError::Ended);
            }
            if self.until.is_some_and(|until| Instant::now() >= until) {
                return Err(UpgradeError::Late(self.estate.successor.timeout));
            }
            match fd_message::receive(&self.link, PAUSE) {
                Ok(Some(Parcel { name, .. })) if name == expected => return Ok(()),
                Ok(Some(Parcel { name, bytes, .. })) => {
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    match &*name {
                        step::UNTAKEN => self.untaken.push(text),
                        step::FAILED => self.cause = Some(text),
                        _ => {}
                    }
                }
                // A child of the successor may still hold the link open, so check the successor
                // itself.
                Ok(None) => {
                    if let Some(status) = self.successor.exited() {
                        return Err(self.died(Some(status)));
                    }
                }
                Err(_) => {
                    let status = self.successor.exits();
                    return Err(self.died(status));
                }
            }
        }
    }

    fn died(&mut self, status: Option<ExitStatus>) -> UpgradeError {
        UpgradeError::Died { status, cause: self.cause.take() }
    }
}

fn descriptor(socket: &Socket) -> BorrowedFd<'_> {
    match socket {
        Socket::Tcp(listener) => listener.as_fd(),
        Socket::Unix(listener) => listener.as_fd(),
    }
}

/// The successor's process. It is killed when this is dropped, unless [`leave`](Self::leave) was
/// called.
struct Fledgling(Option<Child>);

impl Fledgling {
    /// The exit status, if the successor has exited.
    fn exited(&mut self) -> Option<ExitStatus> {
        self.0.as_mut().and_then(|child| child.try_wait().ok().flatten())
    }

    /// Waits briefly for the exit status of a successor that is about to exit.
    fn exits(&mut self) -> Option<ExitStatus> {
        let until = Instant::now() + LAST_PAUSE;
        loop {
            match self.exited() {
                None if Instant::now() < until => thread::sleep(PAUSE),
                status => return status,
            }
        }
    }

    /// Lets the successor live on, and returns its process id.
    fn leave(&mut self) -> u32 {
        self.0.take().map_or(0, |child| child.id())
    }
}

impl Drop for Fledgling {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // This fails if the child has already exited.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
