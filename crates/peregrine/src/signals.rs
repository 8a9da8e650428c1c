//! The signals that ask a server to end, or to read its certificates again.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// Passes SIGTERM and Ctrl-C, and where that is asked for SIGHUP, to a function on its own thread. While
/// one of these exists the signals do not end the process; when the last one is dropped they do what
/// they did before.
pub(crate) struct Signals {
    #[cfg(unix)]
    listener: signal_hook::iterator::Handle,
}

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// SIGTERM or Ctrl-C.
    End,
    /// SIGHUP.
    #[cfg_attr(not(unix), expect(dead_code, reason = "there is no such signal"))]
    Reload,
}

/// How many of these exist.
static LISTENING: Mutex<Count> = Mutex::new(Count {
    now: 0,
    #[cfg(unix)]
    prepared: Vec::new(),
});

/// Is nobody listening? Then a signal does what it does in a process without handlers.
static IS_UNHEARD: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(true)));

struct Count {
    now: usize,
    /// The signals for which [`IS_UNHEARD`] decides.
    #[cfg(unix)]
    prepared: Vec<i32>,
}

#[cfg(unix)]
impl Signals {
    /// # Errors
    /// The process is out of descriptors or threads, or the system does not deliver signals.
    pub(crate) fn listen(
        hears_reload: bool,
        mut obey: impl FnMut(Wish) + Send + 'static,
    ) -> io::Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let wanted = [SIGINT, SIGTERM].into_iter().chain(hears_reload.then_some(SIGHUP));
        let mut count = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut signals = signal_hook::iterator::Signals::new::<_, i32>([])?;
        let listener = signals.handle();
        for signal in wanted {
            if !count.prepared.contains(&signal) {
                // Before the first handler is set, so that the program's own handlers are
                // distinguished from ours.
                prepare(signal)?;
                count.prepared.push(signal);
            }
            listener.add_signal(signal)?;
        }
        let wish = |signal| if signal == SIGHUP { Wish::Reload } else { Wish::End };
        std::thread::Builder::new()
            .name("peregrine-signals".to_owned())
            .spawn(move || signals.forever().for_each(|signal| obey(wish(signal))))?;
        count.now += 1;
        IS_UNHEARD.store(false, Ordering::SeqCst);
        Ok(Self { listener })
    }
}

/// A handler cannot be removed without `unsafe`. So one more is added, which does what the system would
/// do while nobody listens; unless the program already had handlers of its own.
#[cfg(unix)]
fn prepare(signal: i32) -> io::Result<()> {
    if is_default(signal) {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&IS_UNHEARD))?;
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
        _hears_reload: bool,
        mut obey: impl FnMut(Wish) + Send + 'static,
    ) -> io::Result<Self> {
        let mut count = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Where the system does not deliver signals, only a `Handle` can end the server.
        let listen = move || {
            while runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
                if IS_UNHEARD.load(Ordering::SeqCst) {
                    std::process::exit(130);
                }
                obey(Wish::End);
            }
        };
        std::thread::Builder::new().name("peregrine-signals".to_owned()).spawn(listen)?;
        count.now += 1;
        IS_UNHEARD.store(false, Ordering::SeqCst);
        Ok(Self {})
    }
}
