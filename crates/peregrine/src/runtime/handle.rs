//! Orders to a running server, and news from its threads for the one that waits for its end.

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

/// Orders a running server to shut down, from any thread.
#[derive(Clone)]
pub struct Handle {
    orders: watched::Sender<Order>,
    news: mpsc::Sender<News>,
    /// What reads files again, once there is something to read.
    reload: Arc<OnceLock<Weak<Reload>>>,
    logs: Arc<OnceLock<Place>>,
    restart: Arc<Restart>,
}

/// Reads files again, on a thread of its own. It is over when what it is given is dropped.
pub(crate) type Reload = dyn Fn(Reloading) + Send + Sync;

/// What wakes the thread that waits for a server's end.
pub(crate) enum News {
    /// There is a new order.
    Ordered,
    /// A worker has all that it needs.
    Ready(usize),
    /// A worker's thread is about to end. This is sent whatever the cause.
    Ended(Ended),
}

/// The result of a worker's thread.
pub(crate) struct Ended {
    pub(crate) number: usize,
    pub(crate) result: Result<Report, Error>,
}

/// The parts of a server that exist before it, so that there may be orders before there is a server.
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
    /// Stops accepting connections; idle ones are closed, the rest after their response. Tasks and
    /// blocking functions that outlive them are waited for, and whatever is left at
    /// [`Limits::shutdown_timeout`](crate::Limits::shutdown_timeout) is cut.
    pub fn shut_down(&self) {
        self.give(|_| Order::Drain);
    }

    /// Reads certificates and what belongs to them again, for all listeners that speak TLS, as SIGHUP
    /// does; see [`Tls::reload`](crate::tls::Tls::reload). A thread of its own does that: the log has the
    /// result, and [`Tls::status`](crate::tls::Tls::status) has it later.
    ///
    /// Where the server was made of a tree of settings that came from a file (the feature `config`), that is read again
    /// before; see `config` for what can change.
    #[cfg(any(feature = "tls", feature = "config"))]
    pub fn reload(&self) {
        self.read_again();
    }

    pub(crate) fn read_again(&self) {
        if self.restart.reload_asked(self) {
            contained(|| {
                tracing::warn!(target: "peregrine",
                "another process serves in place of this one: ask that one to reload")
            });
            return;
        }
        match self.reload.get().and_then(Weak::upgrade) {
            Some(reload) => reload(Restart::reloading(&self.restart)),
            None => contained(|| tracing::warn!(target: "peregrine", "there is nothing to reload")),
        }
    }

    /// From now on, for as long as somebody keeps it, this reads files again.
    pub(crate) fn reload_by(&self, reload: &Arc<Reload>) {
        let _ = self.reload.set(Arc::downgrade(reload));
    }

    /// Opens the file of the access log again, as SIGUSR1 does: after it was moved away. What was handed over by
    /// then is in one of the two files. The thread that writes the log does it, and the log has the result.
    pub fn reopen_logs(&self) {
        match self.logs.get() {
            Some(place) => place.reopen(),
            None => contained(
                || tracing::warn!(target: "peregrine", "there is no file of a log to open again"),
            ),
        }
    }

    /// From now on there is a log that can be opened again.
    pub(crate) fn logs_at(&self, place: Place) {
        let _ = self.logs.set(place);
    }

    /// Is there one?
    pub(crate) fn can_reopen(&self) -> bool {
        self.logs.get().is_some()
    }

    /// Ends every connection at once.
    pub fn cut(&self) {
        self.give(|_| Order::Cut);
    }

    /// Shuts down; cuts the second time.
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

    /// Workers that begin are to accept nobody until [`open`](UpgradeHost::open) is called. Before they begin.
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

    /// Makes SIGTERM and Ctrl-C go further, SIGHUP reload, SIGUSR1 open logs again and SIGUSR2 upgrade where the server `hears` them,
    /// until the returned value is dropped.
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

    /// Is there something that a reload reads?
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

    /// Sends news to the thread that waits for the server's end, if there still is one.
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
