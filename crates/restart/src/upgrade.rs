//! The process that hands over.

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

/// How long to listen to the successor before looking whether it lives, and whether there are orders.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a successor that has closed its end may take to exit, so that its status is known.
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// What a successor would get.
#[derive(Debug)]
pub(crate) struct Estate {
    holdings: Vec<Holding>,
    successor: Successor,
    own_program: Result<PathBuf, io::Error>,
    pub(crate) quiet: bool,
}

/// Why there was no upgrade in place. The server goes on, unless it was ordered to end.
#[derive(Debug)]
#[non_exhaustive]
pub enum UpgradeError {
    /// The server has not begun to serve, or ends.
    NotServing,
    /// Another upgrade is not over.
    UnderWay,
    /// This is the first process of its container, whose end is the end of all others.
    FirstProcess,
    /// The successor's program cannot be started.
    Program {
        /// Where it was looked for.
        path: PathBuf,
        /// What the kernel said.
        cause: io::Error,
    },
    /// The successor ended before it served.
    Died {
        /// How it ended; `None` if it had to be killed.
        status: Option<ExitStatus>,
        /// What its server said; `None` if it came to no server.
        cause: Option<String>,
    },
    /// The successor did not serve in time, and was killed.
    Late(Duration),
    /// The server was ordered to end in the meantime. The successor was killed.
    Ended,
    /// The successor could not be given what it needs.
    Link(io::Error),
}

impl fmt::Display for UpgradeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotServing => f.write_str("the server does not serve: it begins, or it ends"),
            Self::UnderWay => f.write_str("another upgrade is not over: wait for its end"),
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
                    None => f.write_str(" (killed, since it did not exit)")?,
                }
                match cause {
                    Some(cause) => write!(f, ": {cause}"),
                    None => f.write_str("; what it printed says more"),
                }
            }
            Self::Late(timeout) => write!(
                f,
                "the successor did not serve within {timeout:?} and was killed: see what keeps it, \
                 or raise `Successor::timeout`"
            ),
            Self::Ended => {
                f.write_str("the server was ordered to end, so its successor was killed")
            }
            Self::Link(cause) => {
                write!(f, "the successor could not be handed the sockets: {cause}")
            }
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

    /// Whether the successor has those sockets too that it did not leave `untaken`.
    fn share(&self, untaken: &[String], is_so: bool) {
        let taken = self.holdings.iter().filter(|holding| !untaken.contains(&holding.key));
        taken.filter(|holding| !holding.is_foreign).for_each(|holding| holding.shared.set(is_so));
    }
}

/// What the heir needs to know of a holding.
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
    /// Starts a successor, hands it the sockets of `host`, and lets `host` leave when the successor
    /// serves. Blocks until then; returns the successor's process id.
    ///
    /// # Errors
    /// There was no upgrade, and the server goes on unless it was ordered to end.
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
        let is_told = self.begins("starts its successor");
        let result = Attempt::begin(host, &estate).and_then(Attempt::finish);
        match &result {
            Ok(process) => {
                let text = format!("peregrine: process {process} serves in place of this one");
                host.tell(&text, estate.quiet);
            }
            Err(error) => {
                if is_told {
                    self.is_over(Some(format!("serves; the upgrade failed: {error}")));
                }
            }
        }
        result
    }
}

/// One successor, until it has taken over.
struct Attempt<'a> {
    host: &'a dyn UpgradeHost,
    estate: &'a Estate,
    successor: Fledgling,
    link: UnixStream,
    until: Option<Instant>,
    untaken: Vec<String>,
    /// What the successor says of its failure.
    cause: Option<String>,
}

impl<'a> Attempt<'a> {
    /// Starts the successor and hands it everything.
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
        // The successor alone has its end of the link now, so that its death is heard.
        drop(command);
        let successor = Fledgling(Some(child));
        let mut attempt =
            Self { host, estate, successor, link, until, untaken: Vec::new(), cause: None };
        // If it is dead already, why it died says more than that nobody listens.
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

    /// Lets the successor serve when it is ready, and this server drain when that serves.
    fn finish(mut self) -> Result<u32, UpgradeError> {
        self.hears(step::READY, true)?;
        // From here on a drain leaves the queues to the successor. An order that came before gives the
        // successor up; one that comes later finds both at work.
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
            // It may have read its files before they changed.
            let _ = fd_message::send(&self.link, step::RELOAD, &[], &[]);
        }
        // A successor that is told nothing any more knows the same.
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

    /// Waits until the successor says `expected`. Unless `may_end`, an order to end changes nothing.
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
                // Somebody else may have its end of the link: a child that it has started.
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

/// A successor that is killed when this is dropped, unless it has left.
struct Fledgling(Option<Child>);

impl Fledgling {
    /// How it ended, if it did.
    fn exited(&mut self) -> Option<ExitStatus> {
        self.0.as_mut().and_then(|child| child.try_wait().ok().flatten())
    }

    /// The same of one that is about to end.
    fn exits(&mut self) -> Option<ExitStatus> {
        let until = Instant::now() + LAST_PAUSE;
        loop {
            match self.exited() {
                None if Instant::now() < until => thread::sleep(PAUSE),
                status => return status,
            }
        }
    }

    /// It lives on; its number.
    fn leave(&mut self) -> u32 {
        self.0.take().map_or(0, |child| child.id())
    }
}

impl Drop for Fledgling {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It fails if the child has ended, which is as good.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
