//! The signals that ask a server to end, or to upgrade.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// SIGTERM and Ctrl-C.
    End,
    /// SIGUSR2.
    #[cfg(unix)]
    Upgrade,
}

/// Passes such signals to a function on its own thread. While one of these exists the signals do
/// not end the process; when the last one is dropped they do what they did before.
pub(crate) struct Signals {
    #[cfg(unix)]
    listener: signal_hook::iterator::Handle,
}

/// How many of these exist.
static LISTENING: Mutex<Count> =
    Mutex::new(Count { now: 0, is_prepared: false, may_upgrade: None });

/// Is nobody listening? Then a signal does what it does in a process without handlers.
static IS_UNHEARD: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(true)));

struct Count {
    now: usize,
    is_prepared: bool,
    /// Had the program no handler of its own for the signal that upgrades, when this was first asked?
    #[cfg_attr(not(unix), expect(dead_code, reason = "there is no such signal"))]
    may_upgrade: Option<bool>,
}

#[cfg(unix)]
impl Signals {
    /// # Errors
    /// The process is out of descriptors or threads, or the system does not deliver signals.
    pub(crate) fn listen(
        may_upgrade: bool,
        mut obey: impl FnMut(Asked) + Send + 'static,
    ) -> io::Result<Self> {
        use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR2};
        let mut count = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut signals = signal_hook::iterator::Signals::new::<_, i32>([])?;
        let listener = signals.handle();
        if !count.is_prepared {
            // Before the first handler is set, so that the program's own handlers are distinguished
            // from ours.
            prepare(&[SIGINT, SIGTERM])?;
            count.is_prepared = true;
        }
        listener.add_signal(SIGINT)?;
        listener.add_signal(SIGTERM)?;
        if may_upgrade && count.may_upgrade.is_none() {
            count.may_upgrade = Some(is_default(SIGUSR2));
            prepare(&[SIGUSR2])?;
        }
        if may_upgrade && count.may_upgrade == Some(true) {
            listener.add_signal(SIGUSR2)?;
        }
        let obey = move |signal| match signal {
            SIGUSR2 => obey(Asked::Upgrade),
            _ => obey(Asked::End),
        };
        std::thread::Builder::new()
            .name("peregrine-signals".to_owned())
            .spawn(move || signals.forever().for_each(obey))?;
        count.now += 1;
        IS_UNHEARD.store(false, Ordering::SeqCst);
        Ok(Self { listener })
    }
}

/// A handler cannot be removed without `unsafe`. So one more is added, which does what the system would
/// do while nobody listens; unless the program already had handlers of its own.
#[cfg(unix)]
fn prepare(signals: &[i32]) -> io::Result<()> {
    for signal in signals {
        if is_default(*signal) {
            signal_hook::flag::register_conditional_default(*signal, Arc::clone(&IS_UNHEARD))?;
        }
    }
    Ok(())
}

/// Is the signal neither handled nor ignored? Assumed so where the system does not tell.
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
        let mut count = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
        count.now -= 1;
        IS_UNHEARD.store(count.now == 0, Ordering::SeqCst);
        #[cfg(unix)]
        self.listener.close();
    }
}

#[cfg(not(unix))]
impl Signals {
    /// # Errors
    /// The process is out of threads.
    pub(crate) fn listen(
        _: bool,
        mut obey: impl FnMut(Asked) + Send + 'static,
    ) -> io::Result<Self> {
        let mut count = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
        count.is_prepared = true;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Where the system does not deliver signals, only a `Handle` can end the server.
        let listen = move || {
            while runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
                if IS_UNHEARD.load(Ordering::SeqCst) {
                    std::process::exit(130);
                }
                obey(Asked::End);
            }
        };
        std::thread::Builder::new().name("peregrine-signals".to_owned()).spawn(listen)?;
        count.now += 1;
        IS_UNHEARD.store(false, Ordering::SeqCst);
        Ok(Self {})
    }
}
