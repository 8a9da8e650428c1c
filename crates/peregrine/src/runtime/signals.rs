//! Receives the signals that shut a server down, reload it, reopen its log, or upgrade it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// Passes SIGTERM and Ctrl-C, and optionally SIGHUP, SIGUSR1 and SIGUSR2, to a function on another
/// thread. While a `Signals` exists, these signals do not end the process. When the last `Signals`
/// is dropped, they have their previous effect again.
pub(crate) struct Signals {
    #[cfg(unix)]
    handle: signal_hook::iterator::Handle,
}

/// The action that a signal requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalAction {
    /// SIGTERM or Ctrl-C.
    Shutdown,
    /// SIGHUP.
    #[cfg_attr(not(unix), expect(dead_code, reason = "there is no such signal"))]
    Reload,
    /// SIGUSR1.
    #[cfg(unix)]
    ReopenLogs,
    /// SIGUSR2.
    #[cfg(unix)]
    Upgrade,
}

/// The optional signals to handle, in addition to those that shut down.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(not(unix), expect(dead_code, reason = "there are no such signals"))]
pub(crate) struct HandledSignals {
    /// SIGHUP.
    pub(crate) reload: bool,
    /// SIGUSR2.
    pub(crate) upgrade: bool,
    /// SIGUSR1.
    pub(crate) reopen: bool,
}

/// The number of [`Signals`] that exist, and the handlers that are installed.
static REGISTRATIONS: Mutex<Registrations> = Mutex::new(Registrations {
    active: 0,
    #[cfg(unix)]
    with_default_action: Vec::new(),
    may_handle: [None; 2],
});

/// True while no [`Signals`] exists. Signals then have their default effect.
static USE_DEFAULT_ACTION: LazyLock<Arc<AtomicBool>> =
    LazyLock::new(|| Arc::new(AtomicBool::new(true)));

struct Registrations {
    /// The number of [`Signals`] that exist.
    active: usize,
    /// The signals whose conditional default handler has been installed; see
    /// [`register_default_action`].
    #[cfg(unix)]
    with_default_action: Vec<i32>,
    /// Whether the server may handle SIGUSR2 and SIGUSR1, in this order: the program had no
    /// handlers for them when they were first checked.
    #[cfg_attr(not(unix), expect(dead_code, reason = "there are no such signals"))]
    may_handle: [Option<bool>; 2],
}

#[cfg(unix)]
impl Signals {
    /// # Errors
    /// The process is out of descriptors or threads, or the system does not deliver signals.
    pub(crate) fn register(
        handled: HandledSignals,
        mut on_action: impl FnMut(SignalAction) + Send + 'static,
    ) -> io::Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
        let mut registrations = REGISTRATIONS.lock().unwrap_or_else(PoisonError::into_inner);
        // If the program already handles one of these two signals, the server does not.
        let [upgrade, reopen] = &mut registrations.may_handle;
        let may_upgrade = handled.upgrade && *upgrade.get_or_insert_with(|| is_default(SIGUSR2));
        let may_reopen = handled.reopen && *reopen.get_or_insert_with(|| is_default(SIGUSR1));
        let optional = [(handled.reload, SIGHUP), (may_upgrade, SIGUSR2), (may_reopen, SIGUSR1)];
        let optional =
            optional.into_iter().filter_map(|(is_enabled, signal)| is_enabled.then_some(signal));
        let all_signals = [SIGINT, SIGTERM].into_iter().chain(optional);
        let mut signals = signal_hook::iterator::Signals::new::<_, i32>([])?;
        let handle = signals.handle();
        for signal in all_signals {
            if !registrations.with_default_action.contains(&signal) {
                // This must precede `add_signal`, whose handler `is_default` would mistake for one
                // of the program.
                register_default_action(signal)?;
                registrations.with_default_action.push(signal);
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
        crate::runtime::threads::spawn_thread("peregrine-signals", Box::new(run))?;
        registrations.active += 1;
        USE_DEFAULT_ACTION.store(false, Ordering::SeqCst);
        Ok(Self { handle })
    }
}

/// Installs a handler that performs the signal's default action while no [`Signals`] exists, unless
/// the program already has its own handler. Handlers cannot be removed without `unsafe` code.
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
    /// # Errors
    /// The system cannot start another thread.
    pub(crate) fn register(
        _: HandledSignals,
        mut on_action: impl FnMut(SignalAction) + Send + 'static,
    ) -> io::Result<Self> {
        let mut registrations = REGISTRATIONS.lock().unwrap_or_else(PoisonError::into_inner);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Where the system does not deliver signals, only a `ServerHandle` can end the server.
        let listen = move || {
            while runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
                if USE_DEFAULT_ACTION.load(Ordering::SeqCst) {
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
