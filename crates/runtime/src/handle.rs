//! [`ServerHandle`], which controls a running server, and the events that the server's threads send
//! to the thread that waits for the server's end.

use crate::console::report;
use crate::error::Error;
use crate::signals::{HandledSignals, SignalAction, Signals};
use peregrine_admin::internal::LogControl;
use peregrine_restart::internal::{ReloadGuard, RestartState, UpgradeHost};
use peregrine_server::{Lifecycle, WorkerReport};
use peregrine_web::panic::catch_subscriber_panic;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak, mpsc};
use tokio::sync::watch;

/// Controls a running server from any thread: shuts it down or reloads it.
#[doc(alias = "Handle")]
#[doc(alias = "shutdown")]
#[doc(alias = "graceful")]
#[derive(Clone)]
pub struct ServerHandle {
    lifecycle: watch::Sender<Lifecycle>,
    events: mpsc::Sender<ServerEvent>,
    /// Reloads certificates and settings, if there are any. Weak, because the reload threads run
    /// until the function is dropped, which must happen when the server has ended.
    reload: Arc<OnceLock<Weak<ReloadFn>>>,
    access_log: Arc<OnceLock<LogControl>>,
    restart: Arc<RestartState>,
}

/// Reloads certificates and settings on another thread, which drops the [`ReloadGuard`] when the
/// reload is complete.
pub type ReloadFn = dyn Fn(ReloadGuard) + Send + Sync;

/// An event for the thread that waits for the server to end.
pub(crate) enum ServerEvent {
    /// The lifecycle has changed.
    LifecycleChanged,
    /// A worker has its application and accepts connections.
    WorkerReady(usize),
    /// A worker's thread is about to end, normally, with an error, or because of a panic.
    WorkerExited(WorkerExit),
}

/// The result of a worker's thread.
pub(crate) struct WorkerExit {
    pub(crate) worker: usize,
    pub(crate) result: Result<WorkerReport, Error>,
}

/// A handle and its events. Created before the server starts, so that the startup can be aborted.
pub struct ControlChannel {
    /// Controls the server, even while it is starting.
    pub handle: ServerHandle,
    pub(crate) events: mpsc::Receiver<ServerEvent>,
}

impl Default for ControlChannel {
    fn default() -> Self {
        let (lifecycle, (event_sender, events)) =
            (watch::Sender::new(Lifecycle::Serving), mpsc::channel());
        let (restart, reload, access_log) = (Arc::default(), Arc::default(), Arc::default());
        Self {
            handle: ServerHandle { lifecycle, events: event_sender, reload, access_log, restart },
            events,
        }
    }
}

impl ControlChannel {
    /// Subscribes to the lifecycle of the server.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Lifecycle> {
        self.handle.subscribe()
    }

    /// Notifies the service manager, if there is one, of the server's state.
    pub fn enable_notifications(&self) {
        self.handle.restart_state().enable_notifications();
    }

    /// Handles signals until the returned value is dropped. SIGTERM and Ctrl-C shut the server
    /// down; a second one cuts all connections. If `handled` enables them, SIGHUP reloads, SIGUSR1
    /// reopens the log and SIGUSR2 upgrades.
    ///
    /// # Errors
    /// The handlers cannot be installed.
    pub fn handle_signals(&self, handled: HandledSignals) -> Result<Signals, Error> {
        self.handle.handle_signals(handled)
    }
}

impl ServerHandle {
    /// Shuts the server down gracefully: it stops accepting connections, closes idle ones, closes
    /// the others after their response, and waits for tasks and blocking functions that are still
    /// running. After [`Limits::shutdown_timeout`](peregrine_server::Limits::shutdown_timeout) it
    /// cuts the remaining connections and aborts the remaining tasks.
    #[doc(alias = "stop")]
    #[doc(alias = "shutdown")]
    #[doc(alias = "graceful_stop")]
    pub fn graceful_shutdown(&self) {
        self.advance_lifecycle(|_| Lifecycle::Draining);
    }

    /// Reloads the certificates and related files of all TLS listeners, as SIGHUP does; see
    /// [`TlsConfig::reload`](peregrine_tls::TlsConfig::reload). Returns immediately: another thread
    /// reloads the files and logs the result. Afterwards,
    /// [`TlsConfig::status`](peregrine_tls::TlsConfig::status) also returns the result.
    ///
    /// If the server's settings were read from a file (feature `config`), they are read again
    /// first; see `config` for the settings that can change.
    #[cfg(any(feature = "tls", feature = "config"))]
    pub fn reload(&self) {
        self.run_reload();
    }

    pub(crate) fn run_reload(&self) {
        let has_handed_over = self.restart.request_successor_reload(self);
        if has_handed_over {
            catch_subscriber_panic(|| {
                tracing::warn!(target: "peregrine",
                "another process has taken over from this one: reload that process")
            });
            return;
        }
        match self.reload.get().and_then(Weak::upgrade) {
            Some(reload) => reload(RestartState::begin_reload(&self.restart)),
            None => catch_subscriber_panic(
                || tracing::warn!(target: "peregrine", "there is nothing to reload"),
            ),
        }
    }

    /// Sets the function that reloads. The handle stores only a weak reference to it.
    pub(crate) fn set_reload_fn(&self, reload: &Arc<ReloadFn>) {
        let _ = self.reload.set(Arc::downgrade(reload));
    }

    /// Reopens the access log's file, as SIGUSR1 does, after log rotation has renamed it. Returns
    /// immediately: the thread that writes the log reopens the file and logs the result. Each line
    /// is written either to the renamed file or to the new one.
    pub fn reopen_logs(&self) {
        match self.access_log.get() {
            Some(control) => control.reopen(),
            None => catch_subscriber_panic(
                || tracing::warn!(target: "peregrine", "there is no log file to reopen"),
            ),
        }
    }

    /// Sets the access log that [`reopen_logs`](Self::reopen_logs) reopens.
    pub(crate) fn set_access_log(&self, control: LogControl) {
        let _ = self.access_log.set(control);
    }

    /// Whether there is an access log that can be reopened.
    pub(crate) fn can_reopen(&self) -> bool {
        self.access_log.get().is_some()
    }

    /// Cuts all connections immediately and stops the server.
    #[doc(alias = "abort")]
    #[doc(alias = "shutdown_now")]
    #[doc(alias = "stop")]
    pub fn force_close(&self) {
        self.advance_lifecycle(|_| Lifecycle::ForceClosing);
    }

    /// Requests a graceful shutdown. If one was already requested, cuts all connections.
    fn escalate(&self) {
        self.advance_lifecycle(|current| {
            if current < Lifecycle::Draining {
                Lifecycle::Draining
            } else {
                Lifecycle::ForceClosing
            }
        });
    }

    /// Moves the lifecycle to the state that `next_after` returns for the current one, unless that
    /// would be a step back.
    fn advance_lifecycle(&self, next_after: impl FnOnce(Lifecycle) -> Lifecycle) {
        let has_changed = self.lifecycle.send_if_modified(|current| {
            let next = next_after(*current).max(*current);
            std::mem::replace(current, next) < next
        });
        if has_changed {
            self.restart.on_lifecycle_change(self.lifecycle());
            self.send_event(ServerEvent::LifecycleChanged);
        }
    }

    /// Makes the workers wait for [`UpgradeHost::start_serving`] before they accept connections.
    /// Must be called before the workers start.
    pub(crate) fn stand_by(&self) {
        self.replace_lifecycle(Lifecycle::Serving, Lifecycle::Standby);
    }

    /// Sets the lifecycle to `to` if it is `from`.
    fn replace_lifecycle(&self, from: Lifecycle, to: Lifecycle) {
        self.lifecycle.send_if_modified(|lifecycle| {
            let has_changed = *lifecycle == from;
            if has_changed {
                *lifecycle = to;
            }
            has_changed
        });
    }

    /// See [`ControlChannel::handle_signals`].
    pub(crate) fn handle_signals(&self, handled: HandledSignals) -> Result<Signals, Error> {
        let handle = self.clone();
        let on_action = move |action| match action {
            SignalAction::Shutdown => handle.escalate(),
            SignalAction::Reload => handle.run_reload(),
            #[cfg(unix)]
            SignalAction::ReopenLogs => handle.reopen_logs(),
            #[cfg(unix)]
            SignalAction::Upgrade => handle.spawn_upgrade(),
        };
        Signals::register(handled, on_action).map_err(Error::Signals)
    }

    /// Whether there is anything to reload.
    pub(crate) fn can_reload(&self) -> bool {
        self.reload.get().is_some()
    }

    /// Returns the state for upgrades in place and for the service manager.
    pub(crate) fn restart_state(&self) -> &RestartState {
        &self.restart
    }

    pub(crate) fn lifecycle(&self) -> Lifecycle {
        *self.lifecycle.borrow()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Lifecycle> {
        self.lifecycle.subscribe()
    }

    /// Sends an event to the thread that waits for the server to end, if there is one.
    pub(crate) fn send_event(&self, event: ServerEvent) {
        let _ = self.events.send(event);
    }
}

impl UpgradeHost for ServerHandle {
    fn lifecycle(&self) -> Lifecycle {
        Self::lifecycle(self)
    }

    fn restart(&self) -> &RestartState {
        self.restart_state()
    }

    fn start_serving(&self) {
        self.replace_lifecycle(Lifecycle::Standby, Lifecycle::Serving);
    }

    fn hand_over(&self) {
        self.advance_lifecycle(|_| Lifecycle::HandingOver);
    }

    fn run_reload(&self) {
        Self::run_reload(self);
    }

    fn report(&self, text: &str, quiet: bool) {
        report(text, quiet);
    }
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerHandle").field("lifecycle", &self.lifecycle()).finish_non_exhaustive()
    }
}

#[cfg(all(test, target_os = "linux", feature = "restart"))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn reload_does_nothing_after_handing_over() {
        let ControlChannel { handle, events: _events } = ControlChannel::default();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let reload: Arc<ReloadFn> = Arc::new(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        handle.set_reload_fn(&reload);
        handle.run_reload();
        handle.hand_over();
        handle.run_reload();
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }
}
