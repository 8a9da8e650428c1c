//! The predecessor's side of an upgrade.

use crate::fd_message::{self, FdMessage, handover_message};
use crate::host::UpgradeHost;
use crate::inherit;
use crate::listener::ListenerFds;
use crate::options::{UpgradeOptions, current_exe};
use crate::restart::{RestartState, lock};
use peregrine_driver::Socket;
use peregrine_server::Lifecycle;
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

/// How long to wait for a message before checking for a shutdown and for the successor's exit.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long to wait for the exit status of a successor that has closed its end of the socket pair.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// What an upgrade needs from a server that serves.
#[derive(Debug)]
pub(crate) struct HandoverState {
    listener_fds: Vec<ListenerFds>,
    options: UpgradeOptions,
    current_exe: Result<PathBuf, io::Error>,
    /// Whether the server prints nothing to the terminal.
    pub(crate) quiet: bool,
}

/// Why an upgrade in place failed. The server keeps serving, unless a shutdown was requested.
#[derive(Debug)]
#[non_exhaustive]
pub enum UpgradeError {
    /// The server has not started serving, or is stopping.
    NotServing,
    /// Another upgrade is in progress.
    InProgress,
    /// This is the first process of its container (PID 1): the container ends when it ends.
    Pid1,
    /// The successor's program cannot be started.
    Spawn {
        /// The path of the program.
        path: PathBuf,
        /// The error from the kernel.
        cause: io::Error,
    },
    /// The successor ended before it served.
    Exited {
        /// The exit status; `None` if the successor had to be killed.
        status: Option<ExitStatus>,
        /// The error of the successor's server; `None` if the server reported none.
        cause: Option<String>,
    },
    /// The successor did not serve within this timeout, and was killed.
    TimedOut(Duration),
    /// A shutdown was requested in the meantime. The successor was killed.
    ShuttingDown,
    /// The sockets could not be passed to the successor.
    Handover(io::Error),
}

impl fmt::Display for UpgradeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotServing => f.write_str("not serving: the server is starting or stopping"),
            Self::InProgress => f.write_str("another upgrade is in progress: wait until it ends"),
            Self::Pid1 => f.write_str(
                "this is the first process of its container, and the container ends with it: start \
                 it under an init (`docker run --init`), or start another container instead",
            ),
            Self::Spawn { path, cause } => {
                write!(f, "cannot start the successor {}: {cause}", path.display())
            }
            Self::Exited { status, cause } => {
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
            Self::TimedOut(timeout) => write!(
                f,
                "the successor did not serve within {timeout:?} and was killed: find out what \
                 delays it, or raise `UpgradeOptions::timeout`"
            ),
            Self::ShuttingDown => {
                f.write_str("a shutdown was requested, so the successor was killed")
            }
            Self::Handover(cause) => write!(f, "cannot pass the sockets to the successor: {cause}"),
        }
    }
}

impl StdError for UpgradeError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Spawn { cause, .. } | Self::Handover(cause) => Some(cause),
            _ => None,
        }
    }
}

impl HandoverState {
    pub(crate) fn new(
        listener_fds: Vec<ListenerFds>,
        options: UpgradeOptions,
        quiet: bool,
    ) -> Self {
        Self { listener_fds, options, current_exe: current_exe(), quiet }
    }

    pub(crate) fn upgrades_on_sigusr2(&self) -> bool {
        self.options.upgrades_on_sigusr2()
    }

    /// Sets whether this process shares its sockets with the successor, except the sockets of the
    /// listeners in `unused`, which the successor did not take.
    fn set_shared(&self, unused: &[String], is_shared: bool) {
        let taken = self.listener_fds.iter().filter(|listener| !unused.contains(&listener.key));
        taken
            .filter(|listener| !listener.is_external)
            .for_each(|listener| listener.sharing.set(is_shared));
    }
}

/// Encodes the properties of a listener that the successor needs as text.
fn encode_listener(listener: &ListenerFds) -> String {
    let mut text = format!("foreign {}", u8::from(listener.is_external));
    if let Some((device, inode, seconds, nanoseconds)) = listener.file_id {
        text += &format!(" file {device} {inode} {seconds} {nanoseconds}");
    }
    for secret in listener.ticket_secrets().0 {
        text += " secret ";
        secret.iter().for_each(|byte| text += &format!("{byte:02x}"));
    }
    text
}

impl RestartState {
    /// Starts a successor, passes the sockets of `host` to it, and makes `host` shut down once the
    /// successor serves. Blocks until then, and returns the successor's process id.
    ///
    /// # Errors
    /// The upgrade failed. The server keeps serving, unless a shutdown was requested.
    pub fn upgrade(&self, host: &dyn UpgradeHost) -> Result<u32, UpgradeError> {
        let _guard = match self.upgrade_lock.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(UpgradeError::InProgress),
        };
        let handover = lock(&self.handover).clone().ok_or(UpgradeError::NotServing)?;
        if std::process::id() == 1 {
            return Err(UpgradeError::Pid1);
        }
        self.is_reload_requested.store(false, Ordering::SeqCst);
        let is_reported = self.notify_begin("starting its successor");
        let result = UpgradeAttempt::start(host, &handover).and_then(UpgradeAttempt::finish);
        match &result {
            Ok(pid) => {
                let text = format!("peregrine: process {pid} serves in place of this one");
                host.report(&text, handover.quiet);
            }
            Err(error) => {
                if is_reported {
                    self.notify_end(Some(format!("serving; the upgrade failed: {error}")));
                }
            }
        }
        result
    }
}

/// An upgrade in progress.
struct UpgradeAttempt<'a> {
    host: &'a dyn UpgradeHost,
    handover: &'a HandoverState,
    child: ChildGuard,
    link: UnixStream,
    deadline: Option<Instant>,
    /// The keys of the listeners whose sockets the successor did not take.
    unused: Vec<String>,
    /// The error reported by the successor.
    cause: Option<String>,
}

impl<'a> UpgradeAttempt<'a> {
    /// Starts the successor and passes everything to it.
    fn start(host: &'a dyn UpgradeHost, handover: &'a HandoverState) -> Result<Self, UpgradeError> {
        let (link, successor_end) = UnixStream::pair().map_err(UpgradeError::Handover)?;
        let deadline = Instant::now().checked_add(handover.options.timeout);
        let variable = inherit::env_value(&successor_end).map_err(UpgradeError::Handover)?;
        let current_exe = match &handover.current_exe {
            Ok(path) => path,
            Err(error) => {
                let (path, cause) = (PathBuf::from("(this program)"), error.kind().into());
                return Err(UpgradeError::Spawn { path, cause });
            }
        };
        let mut command = handover.options.command(current_exe);
        command.env(inherit::ENV_VAR, variable).stdin(Stdio::from(OwnedFd::from(successor_end)));
        let child = command.spawn().map_err(|cause| {
            let path = PathBuf::from(command.get_program());
            UpgradeError::Spawn { path, cause }
        })?;
        // Closes this process's copy of the successor's end, so that `link` reports the end of the
        // stream when the successor dies.
        drop(command);
        let child = ChildGuard(Some(child));
        let mut attempt =
            Self { host, handover, child, link, deadline, unused: Vec::new(), cause: None };
        // If the successor has already exited, its exit status explains more than the send error.
        match attempt.send_listeners() {
            Ok(()) => Ok(attempt),
            Err(error) => match attempt.child.wait_for_exit() {
                Some(status) => Err(attempt.exit_error(Some(status))),
                None => Err(UpgradeError::Handover(error)),
            },
        }
    }

    fn send_listeners(&self) -> io::Result<()> {
        fd_message::send(&self.link, handover_message::INPUT, &[], &[io::stdin().as_fd()])?;
        for listener in &self.handover.listener_fds {
            let name = format!("{}{}", handover_message::LISTENER, listener.key);
            let fds: Vec<_> = listener.sockets.iter().map(borrow_fd).collect();
            fd_message::send(&self.link, &name, encode_listener(listener).as_bytes(), &fds)?;
        }
        fd_message::send(&self.link, handover_message::END, &[], &[])
    }

    /// Lets the successor serve when it is ready, and then drains this server.
    fn finish(mut self) -> Result<u32, UpgradeError> {
        self.expect_message(handover_message::READY, true)?;
        // From here on, a drain leaves the listen queues to the successor. A shutdown request that
        // arrived before this abandons the upgrade; one that arrives later finds both processes
        // serving.
        self.handover.set_shared(&self.unused, true);
        let result = self.start_serving();
        if result.is_err() {
            self.handover.set_shared(&self.unused, false);
        }
        result?;
        let pid = self.child.release();
        self.host.restart().notify_main_pid(pid);
        self.host.hand_over();
        if self.host.restart().is_reload_requested.swap(false, Ordering::SeqCst) {
            // The successor could have read its files before they changed.
            let _ = fd_message::send(&self.link, handover_message::RELOAD, &[], &[]);
        }
        // If this fails, the successor treats the closed link as the same message.
        let _ = fd_message::send(&self.link, handover_message::RELEASED, &[], &[]);
        Ok(pid)
    }

    fn start_serving(&mut self) -> Result<(), UpgradeError> {
        if self.host.lifecycle() > Lifecycle::Serving {
            return Err(UpgradeError::ShuttingDown);
        }
        if fd_message::send(&self.link, handover_message::GO, &[], &[]).is_err() {
            let status = self.child.wait_for_exit();
            return Err(self.exit_error(status));
        }
        self.expect_message(handover_message::SERVING, false)
    }

    /// Waits for the message `expected` from the successor. A shutdown request ends the wait only
    /// if `abort_on_shutdown`.
    fn expect_message(
        &mut self,
        expected: &str,
        abort_on_shutdown: bool,
    ) -> Result<(), UpgradeError> {
        loop {
            if abort_on_shutdown && self.host.lifecycle() > Lifecycle::Serving {
                return Err(UpgradeError::ShuttingDown);
            }
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(UpgradeError::TimedOut(self.handover.options.timeout));
            }
            match fd_message::receive(&self.link, POLL_INTERVAL) {
                Ok(Some(FdMessage { name, .. })) if name == expected => return Ok(()),
                Ok(Some(FdMessage { name, bytes, .. })) => {
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    match &*name {
                        handover_message::UNUSED => self.unused.push(text),
                        handover_message::FAILED => self.cause = Some(text),
                        _ => {}
                    }
                }
                // A child of the successor can still hold the link open, so check the successor
                // itself.
                Ok(None) => {
                    if let Some(status) = self.child.try_wait() {
                        return Err(self.exit_error(Some(status)));
                    }
                }
                Err(_) => {
                    let status = self.child.wait_for_exit();
                    return Err(self.exit_error(status));
                }
            }
        }
    }

    fn exit_error(&mut self, status: Option<ExitStatus>) -> UpgradeError {
        UpgradeError::Exited { status, cause: self.cause.take() }
    }
}

fn borrow_fd(socket: &Socket) -> BorrowedFd<'_> {
    match socket {
        Socket::Tcp(listener) => listener.as_fd(),
        Socket::Unix(listener) => listener.as_fd(),
    }
}

/// The successor's process. It is killed when this is dropped, unless [`release`](Self::release)
/// was called.
struct ChildGuard(Option<Child>);

impl ChildGuard {
    /// Returns the exit status, if the successor has exited.
    fn try_wait(&mut self) -> Option<ExitStatus> {
        self.0.as_mut().and_then(|child| child.try_wait().ok().flatten())
    }

    /// Waits briefly for the exit status of a successor that is about to exit.
    fn wait_for_exit(&mut self) -> Option<ExitStatus> {
        let deadline = Instant::now() + EXIT_TIMEOUT;
        loop {
            match self.try_wait() {
                None if Instant::now() < deadline => thread::sleep(POLL_INTERVAL),
                status => return status,
            }
        }
    }

    /// Stops guarding the successor, so that it outlives this value. Returns its process id.
    fn release(&mut self) -> u32 {
        self.0.take().map_or(0, |child| child.id())
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // This fails if the child has already exited.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
