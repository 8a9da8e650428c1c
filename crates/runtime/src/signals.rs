//! Receives the signals that shut a server down, reload it, reopen its log, or upgrade it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// Passes SIGTERM and Ctrl-C, and optionally SIGHUP, SIGUSR1 and SIGUSR2, to a function on another
/// thread. While a `Signals` exists, these signals do not end the process. When the last `Signals`
/// is dropped, they have their previous effect again.
pub struct Signals {
    #[cfg(unix)]
    handle: signal_hook::iterator::Handle,
}

/// The action that a signal requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalAction {
    /// Requested by SIGTERM or Ctrl-C.
    Shutdown,
    /// Requested by SIGHUP.
    #[cfg_attr(not(unix), expect(dead_code, reason = "there is no such signal"))]
    Reload,
    /// Requested by SIGUSR1.
    #[cfg(unix)]
    ReopenLogs,
    /// Requested by SIGUSR2.
    #[cfg(unix)]
    Upgrade,
}

/// The optional signals to handle, in addition to those that shut down.
#[derive(Clone, Copy, Debug, Default)]
pub struct HandledSignals {
    /// Whether to handle SIGHUP.
    pub reload: bool,
    /// Whether to handle SIGUSR2, unless the program already handles or ignores it.
    pub upgrade: bool,
    /// Whether to handle SIGUSR1, unless the program already handles or ignores it.
    pub reopen: bool,
}

/// What the process has installed for all of its [`Signals`].
static REGISTRATIONS: Mutex<Registrations> = Mutex::new(Registrations {
    active: 0,
    #[cfg(unix)]
    prepared: Vec::new(),
    #[cfg(unix)]
    may_handle_sigusr1: None,
    #[cfg(unix)]
    may_handle_sigusr2: None,
});

/// True while no [`Signals`] exists: the handlers that stay installed then perform the default
/// action.
static USE_DEFAULT_ACTION: LazyLock<Arc<AtomicBool>> =
    LazyLock::new(|| Arc::new(AtomicBool::new(true)));

struct Registrations {
    /// The number of [`Signals`] that exist.
    active: usize,
    /// The signals for which [`register_default_action`] has run.
    #[cfg(unix)]
    prepared: Vec<i32>,
    /// Whether SIGUSR1 was neither handled nor ignored when this was first checked, so that the
    /// server may handle it. `None` before the check.
    #[cfg(unix)]
    may_handle_sigusr1: Option<bool>,
    /// The same for SIGUSR2.
    #[cfg(unix)]
    may_handle_sigusr2: Option<bool>,
}

#[cfg(unix)]
impl Signals {
    /// Installs the handlers, and starts the thread that calls `on_action` for each signal.
    ///
    /// # Errors
    /// The process is out of descriptors or threads, or the system refuses to install a handler.
    pub(crate) fn register(
        handled: HandledSignals,
        mut on_action: impl FnMut(SignalAction) + Send + 'static,
    ) -> io::Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
        let mut registrations = REGISTRATIONS.lock().unwrap_or_else(PoisonError::into_inner);
        // If the program already handles or ignores SIGUSR1 or SIGUSR2, the server leaves that
        // signal alone. SIGHUP is always handled if requested.
        let reopen = handled.reopen
            && *registrations.may_handle_sigusr1.get_or_insert_with(|| is_default(SIGUSR1));
        let upgrade = handled.upgrade
            && *registrations.may_handle_sigusr2.get_or_insert_with(|| is_default(SIGUSR2));
        let optional = [(handled.reload, SIGHUP), (upgrade, SIGUSR2), (reopen, SIGUSR1)];
        let optional =
            optional.into_iter().filter_map(|(is_enabled, signal)| is_enabled.then_some(signal));
        let all_signals = [SIGINT, SIGTERM].into_iter().chain(optional);
        let mut signals = signal_hook::iterator::Signals::new::<_, i32>([])?;
        let handle = signals.handle();
        for signal in all_signals {
            if !registrations.prepared.contains(&signal) {
                // Must precede `add_signal`: that installs a handler, which `is_default` would take
                // for the program's own.
                register_default_action(signal)?;
                registrations.prepared.push(signal);
            }
            handle.add_signal(signal)?;
        }
        let to_action = |signal| match signal {
            SIGHUP => SignalAction::Reload,
            SIGUSR1 => SignalAction::ReopenLogs,
            SIGUSR2 => SignalAction::Upgrade,
            _ => SignalAction::Shutdown,
        };
        let run = move || signals.forever().for_each(|signal| on_action(to_action(signal)));
        crate::threads::spawn_thread("peregrine-signals", Box::new(run))?;
        registrations.active += 1;
        USE_DEFAULT_ACTION.store(false, Ordering::SeqCst);
        Ok(Self { handle })
    }
}

/// Installs a handler that performs the signal's default action while no [`Signals`] exists, unless
/// the program already handles or ignores the signal. It is needed because handlers cannot be
/// removed without `unsafe` code: those of a dropped [`Signals`] remain, and suppress the default
/// action.
#[cfg(unix)]
fn register_default_action(signal: i32) -> io::Result<()> {
    if is_default(signal) {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&USE_DEFAULT_ACTION))?;
    }
    Ok(())
}

/// Whether the process neither handles nor ignores the signal. Returns true if the system does not
/// report this.
#[cfg(unix)]
fn is_default(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let is_in = |name: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(name));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
    };
    !is_in("SigCgt:") && !is_in("SigIgn:")
}

impl Drop for Signals {
    fn drop(&mut self) {
        let mut registrations = REGISTRATIONS.lock().unwrap_or_else(PoisonError::into_inner);
        registrations.active -= 1;
        USE_DEFAULT_ACTION.store(registrations.active == 0, Ordering::SeqCst);
        #[cfg(unix)]
        self.handle.close();
    }
}

#[cfg(not(unix))]
impl Signals {
    /// Starts the thread that handles Ctrl-C, and calls `on_action` for it.
    ///
    /// # Errors
    /// The system cannot start another thread.
    pub(crate) fn register(
        _: HandledSignals,
        mut on_action: impl FnMut(SignalAction) + Send + 'static,
    ) -> io::Result<Self> {
        let mut registrations = REGISTRATIONS.lock().unwrap_or_else(PoisonError::into_inner);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // If `ctrl_c` fails, the loop ends, and only a `ServerHandle` can end the server.
        let listen = move || {
            while runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
                if USE_DEFAULT_ACTION.load(Ordering::SeqCst) {
                    // tokio's handler stays installed after the last `Signals` is dropped, so
                    // Ctrl-C must end the process here. 130 is its exit status in Unix shells.
                    std::process::exit(130);
                }
                on_action(SignalAction::Shutdown);
            }
        };
        std::thread::Builder::new().name("peregrine-signals".to_owned()).spawn(listen)?;
        registrations.active += 1;
        USE_DEFAULT_ACTION.store(false, Ordering::SeqCst);
        Ok(Self {})
    }
}
