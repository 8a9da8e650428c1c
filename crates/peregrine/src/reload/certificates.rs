//! The certificate thread: reloads certificates on request, warns before they expire, and
//! optionally watches their files.

#[cfg(feature = "tls-watch")]
use super::file_watcher::FileWatcher;
use peregrine_restart::internal::ReloadGuard;
use peregrine_runtime::internal::ReloadFn;
use peregrine_tls::TlsConfig;
use peregrine_web::panic::catch_subscriber_panic;
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The interval between two checks for certificates that are about to expire or must be reloaded.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// The minimum interval between two identical warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

/// The interval at which watched files are polled, for systems that do not report changes.
#[cfg(feature = "tls-watch")]
const FILE_POLL_INTERVAL: Duration = Duration::from_secs(60);

/// How long the files must be unchanged before they are read, because a certificate and its key are
/// usually replaced one after the other.
#[cfg(feature = "tls-watch")]
const DEBOUNCE: Duration = Duration::from_millis(300);

/// After this time the files are read even if they keep changing.
#[cfg(feature = "tls-watch")]
const DEBOUNCE_MAX: Duration = Duration::from_secs(5);

/// An event that wakes the certificate thread.
#[derive(Debug)]
pub(crate) enum ReloaderEvent {
    /// A reload was requested.
    Reload(ReloadGuard),
    /// A watched directory has changed.
    #[cfg(feature = "tls-watch")]
    FilesChanged,
    /// The server has ended.
    Stop,
}

/// The state of the certificate thread.
pub(crate) struct CertificateReloader {
    /// The distinct TLS settings of the listeners.
    tls_configs: Vec<TlsConfig>,
    #[cfg(feature = "tls-watch")]
    watches_files: bool,
    #[cfg(feature = "tls-watch")]
    file_watcher: Option<FileWatcher>,
    /// When each warning, identified by its text, was last logged.
    warned_at: HashMap<String, Instant>,
}

impl CertificateReloader {
    /// Creates a reloader for the certificates of the listeners with these TLS settings. Listeners
    /// may share settings.
    pub(crate) fn new<'t>(tls_configs: impl Iterator<Item = &'t TlsConfig>) -> Self {
        let mut distinct: Vec<TlsConfig> = Vec::new();
        for tls in tls_configs {
            if !distinct.iter().any(|known| known.ptr_eq(tls)) {
                distinct.push(tls.clone());
            }
        }
        Self {
            tls_configs: distinct,
            #[cfg(feature = "tls-watch")]
            watches_files: false,
            #[cfg(feature = "tls-watch")]
            file_watcher: None,
            warned_at: HashMap::new(),
        }
    }

    /// Makes the reloader also watch the files.
    #[cfg(feature = "tls-watch")]
    pub(crate) fn watch_files(self) -> Self {
        Self { watches_files: true, ..self }
    }

    /// Starts the thread. Returns the function that requests a reload, or `None` if there are no
    /// certificates. Dropping the function ends the thread.
    ///
    /// # Errors
    /// The system cannot start another thread.
    pub(crate) fn start(mut self) -> io::Result<Option<Arc<ReloadFn>>> {
        if self.tls_configs.is_empty() {
            return Ok(None);
        }
        self.log_warnings(Instant::now());
        let (sender, events) = mpsc::channel();
        #[cfg(feature = "tls-watch")]
        if self.watches_files {
            let event_sender = sender.clone();
            let on_change = move || {
                let _ = event_sender.send(ReloaderEvent::FilesChanged);
            };
            self.file_watcher = Some(FileWatcher::new(on_change));
            // Starts to watch the files.
            self.check_files();
            // The files may have changed after they were first read and before they were watched.
            self.reload();
        }
        let stop_on_drop = StopOnDrop(Mutex::new(sender));
        let run = move || self.run(&events);
        thread::Builder::new().name("peregrine-certs".to_owned()).spawn(run)?;
        Ok(Some(Arc::new(move |guard| stop_on_drop.send(ReloaderEvent::Reload(guard)))))
    }

    fn run(mut self, events: &mpsc::Receiver<ReloaderEvent>) {
        let mut next_check = Instant::now() + EXPIRY_CHECK_INTERVAL;
        loop {
            let until_check = next_check.saturating_duration_since(Instant::now());
            match events.recv_timeout(until_check.min(self.file_poll_timeout())) {
                // Dropping `_guard` reports that the reload is complete.
                Ok(ReloaderEvent::Reload(_guard)) => catch_subscriber_panic(|| self.reload()),
                #[cfg(feature = "tls-watch")]
                Ok(ReloaderEvent::FilesChanged) => {
                    let requests = debounce(events);
                    // Reloads only the certificates whose files have changed. If a reload was also
                    // requested, all are reloaded after that.
                    catch_subscriber_panic(|| self.check_files());
                    match requests {
                        Some(requests) if !requests.is_empty() => {
                            catch_subscriber_panic(|| self.reload())
                        }
                        Some(_) => {}
                        None => return,
                    }
                }
                Ok(ReloaderEvent::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    #[cfg(feature = "tls-watch")]
                    catch_subscriber_panic(|| self.check_files());
                    let now = Instant::now();
                    if now >= next_check {
                        next_check = now + EXPIRY_CHECK_INTERVAL;
                        catch_subscriber_panic(|| self.check_due_reloads(now));
                    }
                }
            }
        }
    }

    /// Returns the maximum wait before the watched files are polled. If no files are watched, this
    /// is at least as long as the wait for the next expiry check, so it has no effect.
    fn file_poll_timeout(&self) -> Duration {
        #[cfg(feature = "tls-watch")]
        if self.watches_files {
            return FILE_POLL_INTERVAL;
        }
        EXPIRY_CHECK_INTERVAL
    }

    /// Reloads all certificates. `TlsConfig::reload` logs the results.
    fn reload(&mut self) {
        for tls in &self.tls_configs {
            // Updates the watcher's stamps, so that the changes read below do not cause another
            // reload. A file that changes while it is read still causes one.
            #[cfg(feature = "tls-watch")]
            if let Some(file_watcher) = &mut self.file_watcher {
                file_watcher.check_changed(&tls.files());
            }
            let _ = tls.reload();
        }
        self.log_warnings(Instant::now());
    }

    /// Reloads the certificates whose last reload failed or whose OCSP staple has expired, and logs
    /// the warnings of all certificates.
    fn check_due_reloads(&mut self, now: Instant) {
        for tls in &self.tls_configs {
            if tls.is_reload_due() {
                let _ = tls.reload();
            }
        }
        self.log_warnings(now);
    }

    /// Reloads the certificates whose files have changed, and updates the watched directories.
    #[cfg(feature = "tls-watch")]
    fn check_files(&mut self) {
        let Some(file_watcher) = &mut self.file_watcher else { return };
        file_watcher.set_files(self.tls_configs.iter().flat_map(TlsConfig::files));
        for tls in &self.tls_configs {
            if file_watcher.check_changed(&tls.files()) {
                let _ = tls.reload();
            }
        }
    }

    /// Logs each warning, unless it was already logged within [`WARNING_INTERVAL`].
    fn log_warnings(&mut self, now: Instant) {
        self.warned_at
            .retain(|_, warned_at| now.saturating_duration_since(*warned_at) < WARNING_INTERVAL);
        for warning in self.tls_configs.iter().flat_map(|tls| tls.status().warnings) {
            self.warned_at.entry(warning.to_string()).or_insert_with_key(|warning| {
                catch_subscriber_panic(|| tracing::warn!(target: "peregrine", "{warning}"));
                now
            });
        }
    }
}

/// Waits until the files have not changed for [`DEBOUNCE`], but not much longer than
/// [`DEBOUNCE_MAX`]. Returns the reloads that were requested in the meantime, or `None` if the
/// server has ended.
#[cfg(feature = "tls-watch")]
fn debounce(events: &mpsc::Receiver<ReloaderEvent>) -> Option<Vec<ReloadGuard>> {
    let (start, mut requests) = (Instant::now(), Vec::new());
    while start.elapsed() < DEBOUNCE_MAX {
        match events.recv_timeout(DEBOUNCE) {
            Ok(ReloaderEvent::FilesChanged) => {}
            Ok(ReloaderEvent::Reload(guard)) => requests.push(guard),
            Ok(ReloaderEvent::Stop) | Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => break,
        }
    }
    Some(requests)
}

/// Sends events to the certificate thread, and stops it when dropped.
struct StopOnDrop(Mutex<mpsc::Sender<ReloaderEvent>>);

impl StopOnDrop {
    fn send(&self, event: ReloaderEvent) {
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).send(event);
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.send(ReloaderEvent::Stop);
    }
}
