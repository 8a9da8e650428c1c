//! [`Handle`], which gives orders to a running server, and the events that the server's threads
//! send to the thread that waits for the server to end.

use crate::error::Error;
use crate::runtime::console::tell;
use crate::runtime::signals::{Hears, Signals, Wish};
use peregrine_admin::internal::Place;
pub(crate) use peregrine_restart::internal::Reloading;
use peregrine_restart::internal::{Restart, UpgradeHost};
use peregrine_server::{Order, Report};
use peregrine_web::panics::contained;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak, mpsc};
use tokio::sync::watch as watched;

/// Shuts down or reloads a running server, from any thread.
#[derive(Clone)]
pub struct Handle {
    orders: watched::Sender<Order>,
    news: mpsc::Sender<News>,
    /// Reloads certificates and settings, if there are any.
    reload: Arc<OnceLock<Weak<Reload>>>,
    logs: Arc<OnceLock<Place>>,
    restart: Arc<Restart>,
}

/// Reloads certificates and settings on another thread, which drops the [`Reloading`] when it is
/// done.
pub(crate) type Reload = dyn Fn(Reloading) + Send + Sync;

/// An event for the thread that waits for the server to end.
pub(crate) enum News {
    /// There is a new order.
    Ordered,
    /// A worker has its application and accepts connections.
    Ready(usize),
    /// A worker's thread is about to end. Sent whatever the cause.
    Ended(Ended),
}

/// The result of a worker's thread.
pub(crate) struct Ended {
    pub(crate) number: usize,
    pub(crate) result: Result<Report, Error>,
}

/// A handle and its events. Created before the server starts, so that the start can be aborted.
pub(crate) struct Orders {
    pub(crate) handle: Handle,
    pub(crate) news: mpsc::Receiver<News>,
}

impl Orders {
    pub(crate) fn new() -> Self {
        let (orders, (sender, news)) = (watched::Sender::new(Order::Serve), mpsc::channel());
        let (restart, reload, logs) = (Arc::default(), Arc::default(), Arc::default());
        Self { handle: Handle { orders, news: sender, reload, logs, restart }, news }
    }
}

impl Handle {
    /// Shuts the server down gracefully: it stops accepting connections, closes idle ones, closes
    /// the others after their response, and waits for tasks and blocking functions that are still
    /// running. Whatever is left after
    /// [`Limits::shutdown_timeout`](crate::Limits::shutdown_timeout) is cut.
    pub fn shut_down(&self) {
        self.give(|_| Order::Drain);
    }

    /// Reloads certificates and related files of all listeners that speak TLS, as SIGHUP does; see
    /// [`Tls::reload`](crate::tls::Tls::reload). Returns immediately: another thread reloads and
    /// logs the result, which [`Tls::status`](crate::tls::Tls::status) then returns too.
    ///
    /// If the server's settings were read from a file (feature `config`), they are read again
    /// first; see `config` for the settings that can change.
    #[cfg(any(feature = "tls", feature = "config"))]
    pub fn reload(&self) {
        self.read_again();
    }

    pub(crate) fn read_again(&self) {
        if self.restart.reload_asked(self) {
            contained(|| {
                tracing::warn!(target: "peregrine",
                "another process has taken over from this one: reload that process")
            });
            return;
        }
        match self.reload.get().and_then(Weak::upgrade) {
            Some(reload) => reload(Restart::reloading(&self.restart)),
            None => contained(|| tracing::warn!(target: "peregrine", "there is nothing to reload")),
        }
    }

    /// Sets the function that reloads. The handle does not keep it alive.
    pub(crate) fn reload_by(&self, reload: &Arc<Reload>) {
        let _ = self.reload.set(Arc::downgrade(reload));
    }

    /// Reopens the access log's file, as SIGUSR1 does, after log rotation has renamed it. Returns
    /// immediately: the thread that writes the log reopens the file and logs the result. Earlier
    /// lines are in one of the two files.
    pub fn reopen_logs(&self) {
        match self.logs.get() {
            Some(place) => place.reopen(),
            None => {
                contained(|| tracing::warn!(target: "peregrine", "there is no log file to reopen"))
            }
        }
    }

    /// Sets the access log that can be reopened.
    pub(crate) fn logs_at(&self, place: Place) {
        let _ = self.logs.set(place);
    }

    /// Whether there is an access log that can be reopened.
    pub(crate) fn can_reopen(&self) -> bool {
        self.logs.get().is_some()
    }

    /// Cuts all connections immediately and stops the server.
    pub fn cut(&self) {
        self.give(|_| Order::Cut);
    }

    /// Shuts down on the first call, cuts on the second.
    fn go_further(&self) {
        self.give(|present| if present < Order::Drain { Order::Drain } else { Order::Cut });
    }

    fn give(&self, order: impl FnOnce(Order) -> Order) {
        let is_new = self.orders.send_if_modified(|present| {
            let next = order(*present).max(*present);
            std::mem::replace(present, next) < next
        });
        if is_new {
            self.restart.ordered(self.present());
            self.tell(News::Ordered);
        }
    }

    /// Makes new workers wait for [`open`](UpgradeHost::open) before they accept connections. Call
    /// this before they start.
    pub(crate) fn hold_back(&self) {
        self.replace(Order::Serve, Order::Wait);
    }

    fn replace(&self, present: Order, next: Order) {
        self.orders.send_if_modified(|order| {
            let is_so = *order == present;
            if is_so {
                *order = next;
            }
            is_so
        });
    }

    /// Handles signals until the returned value is dropped: SIGTERM and Ctrl-C shut down, and cut
    /// the second time. If `hears` enables them, SIGHUP reloads, SIGUSR1 reopens the log and
    /// SIGUSR2 upgrades.
    pub(crate) fn obey_signals(&self, hears: Hears) -> Result<Signals, Error> {
        let handle = self.clone();
        let obey = move |wish| match wish {
            Wish::End => handle.go_further(),
            Wish::Reload => handle.read_again(),
            #[cfg(unix)]
            Wish::Reopen => handle.reopen_logs(),
            #[cfg(unix)]
            Wish::Upgrade => handle.upgrade_beside(),
        };
        Signals::listen(hears, obey).map_err(Error::Signals)
    }

    /// Whether there is anything to reload.
    pub(crate) fn can_reload(&self) -> bool {
        self.reload.get().is_some()
    }

    pub(crate) fn restart(&self) -> &Restart {
        &self.restart
    }

    pub(crate) fn present(&self) -> Order {
        *self.orders.borrow()
    }

    pub(crate) fn subscribe(&self) -> watched::Receiver<Order> {
        self.orders.subscribe()
    }

    /// Sends an event to the thread that waits for the server to end, if there is one.
    pub(crate) fn tell(&self, news: News) {
        let _ = self.news.send(news);
    }
}

impl UpgradeHost for Handle {
    fn present(&self) -> Order {
        Self::present(self)
    }

    fn restart(&self) -> &Restart {
        Self::restart(self)
    }

    fn open(&self) {
        self.replace(Order::Wait, Order::Serve);
    }

    fn leave(&self) {
        self.give(|_| Order::Leave);
    }

    fn read_again(&self) {
        Self::read_again(self);
    }

    fn tell(&self, text: &str, quiet: bool) {
        tell(text, quiet);
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("order", &self.present()).finish_non_exhaustive()
    }
}

#[cfg(all(test, target_os = "linux", feature = "restart"))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn who_has_left_reads_nothing_again() {
        let Orders { handle, news: _news } = Orders::new();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let reload: Arc<Reload> = Arc::new(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        handle.reload_by(&reload);
        handle.read_again();
        handle.leave();
        handle.read_again();
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }
}
