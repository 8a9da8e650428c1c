//! The certificate thread: reloads certificates on request, warns before they expire, and can watch
//! their files for changes.

#[cfg(feature = "tls-watch")]
use super::file_watcher::Files;
use crate::runtime::handle::{Reload, Reloading};
use peregrine_tls::Tls;
use peregrine_web::panics::contained;
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The interval between two checks whether a certificate is about to expire.
const LOOK_PAUSE: Duration = Duration::from_secs(60 * 60);

/// The minimum interval between two identical warnings.
const WARNING_PAUSE: Duration = Duration::from_secs(24 * 60 * 60);

/// The interval at which watched files are polled, for systems that do not report changes.
#[cfg(feature = "tls-watch")]
const FILES_PAUSE: Duration = Duration::from_secs(60);

/// How long there must be no change before the files are read, because a certificate and its key
/// are usually replaced one after the other.
#[cfg(feature = "tls-watch")]
const QUIET: Duration = Duration::from_millis(300);

/// After this time the files are read even if they keep changing.
#[cfg(feature = "tls-watch")]
const QUIET_MAX: Duration = Duration::from_secs(5);

/// An event that wakes the thread.
#[derive(Debug)]
pub(crate) enum Wake {
    /// A reload was requested.
    Reload(Reloading),
    /// A watched directory has changed.
    #[cfg(feature = "tls-watch")]
    Touched,
    /// The server has ended.
    End,
}

/// The state of the certificate thread.
pub(crate) struct Keeper {
    all: Vec<Tls>,
    #[cfg(feature = "tls-watch")]
    watches: bool,
    #[cfg(feature = "tls-watch")]
    files: Option<Files>,
    /// When each warning was logged last.
    told: HashMap<String, Instant>,
}

impl Keeper {
    /// A thread for these certificates. Duplicates are dropped.
    pub(crate) fn of<'t>(listeners: impl Iterator<Item = &'t Tls>) -> Self {
        let mut all: Vec<Tls> = Vec::new();
        for tls in listeners {
            if !all.iter().any(|known| known.is_same(tls)) {
                all.push(tls.clone());
            }
        }
        Self {
            all,
            #[cfg(feature = "tls-watch")]
            watches: false,
            #[cfg(feature = "tls-watch")]
            files: None,
            told: HashMap::new(),
        }
    }

    /// Also watches the files.
    #[cfg(feature = "tls-watch")]
    pub(crate) fn watching(self) -> Self {
        Self { watches: true, ..self }
    }

    /// Starts the thread. Returns the function that requests a reload, or `None` if there are no
    /// certificates. Dropping the function ends the thread.
    ///
    /// # Errors
    /// The system cannot start another thread.
    pub(crate) fn start(mut self) -> io::Result<Option<Arc<Reload>>> {
        if self.all.is_empty() {
            return Ok(None);
        }
        self.warn(Instant::now());
        let (sender, wakes) = mpsc::channel();
        #[cfg(feature = "tls-watch")]
        if self.watches {
            let touched = sender.clone();
            let touch = move || {
                let _ = touched.send(Wake::Touched);
            };
            self.files = Some(Files::watch(touch));
            self.look_at_files();
            // The files may have changed between the first read and the start of the watch.
            self.reload();
        }
        let end = EndOnDrop(Mutex::new(sender));
        let keep = move || self.run(&wakes);
        thread::Builder::new().name("peregrine-keeper".to_owned()).spawn(keep)?;
        Ok(Some(Arc::new(move |one| end.tell(Wake::Reload(one)))))
    }

    fn run(mut self, wakes: &mpsc::Receiver<Wake>) {
        let mut next_look = Instant::now() + LOOK_PAUSE;
        loop {
            let pause = next_look.saturating_duration_since(Instant::now());
            match wakes.recv_timeout(pause.min(self.pause())) {
                // Dropping `_one` reports that the reload is complete.
                Ok(Wake::Reload(_one)) => contained(|| self.reload()),
                #[cfg(feature = "tls-watch")]
                Ok(Wake::Touched) => {
                    let asked = await_quiet(wakes);
                    contained(|| self.look_at_files());
                    match asked {
                        Some(asked) if !asked.is_empty() => contained(|| self.reload()),
                        Some(_) => {}
                        None => return,
                    }
                }
                Ok(Wake::End) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    #[cfg(feature = "tls-watch")]
                    contained(|| self.look_at_files());
                    let now = Instant::now();
                    if now >= next_look {
                        next_look = now + LOOK_PAUSE;
                        contained(|| self.look(now));
                    }
                }
            }
        }
    }

    fn pause(&self) -> Duration {
        #[cfg(feature = "tls-watch")]
        if self.watches {
            return FILES_PAUSE;
        }
        LOOK_PAUSE
    }

    /// Reloads all certificates. `Tls::reload` logs the results.
    fn reload(&mut self) {
        for tls in &self.all {
            let _ = tls.reload();
        }
        // Updates the stamps, so that the changes just read do not cause another reload.
        #[cfg(feature = "tls-watch")]
        if let Some(files) = &mut self.files {
            for tls in &self.all {
                files.have_changed(&tls.files());
            }
        }
        self.warn(Instant::now());
    }

    fn look(&mut self, now: Instant) {
        for tls in &self.all {
            if tls.is_reload_due() {
                let _ = tls.reload();
            }
        }
        self.warn(now);
    }

    #[cfg(feature = "tls-watch")]
    fn look_at_files(&mut self) {
        let Some(files) = &mut self.files else { return };
        files.follow(self.all.iter().flat_map(Tls::files));
        for tls in &self.all {
            if files.have_changed(&tls.files()) {
                let _ = tls.reload();
            }
        }
    }

    /// Logs each warning, unless it was logged within [`WARNING_PAUSE`].
    fn warn(&mut self, now: Instant) {
        self.told.retain(|_, told| now.saturating_duration_since(*told) < WARNING_PAUSE);
        for warning in self.all.iter().flat_map(|tls| tls.status().warnings) {
            self.told.entry(warning.to_string()).or_insert_with_key(|warning| {
                contained(|| tracing::warn!(target: "peregrine", "{warning}"));
                now
            });
        }
    }
}

/// Waits until the files have not changed for [`QUIET`]. Returns the reloads that were requested in
/// the meantime, or `None` if the server has ended.
#[cfg(feature = "tls-watch")]
fn await_quiet(wakes: &mpsc::Receiver<Wake>) -> Option<Vec<Reloading>> {
    let (began, mut asked) = (Instant::now(), Vec::new());
    while began.elapsed() < QUIET_MAX {
        match wakes.recv_timeout(QUIET) {
            Ok(Wake::Touched) => {}
            Ok(Wake::Reload(one)) => asked.push(one),
            Ok(Wake::End) | Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => break,
        }
    }
    Some(asked)
}

/// Ends the thread when the server does.
struct EndOnDrop(Mutex<mpsc::Sender<Wake>>);

impl EndOnDrop {
    fn tell(&self, wake: Wake) {
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).send(wake);
    }
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.tell(Wake::End);
    }
}
