//! Orders to a running server, and news from its threads for the one that waits for its end.

use crate::error::Error;
use crate::restart::Restart;
use crate::signals::{Asked, Signals};
use peregrine_server::{Order, Report};
use std::fmt;
use std::sync::{Arc, mpsc};
use tokio::sync::watch as watched;

/// Orders a running server to shut down, from any thread.
#[derive(Clone)]
pub struct Handle {
    orders: watched::Sender<Order>,
    news: mpsc::Sender<News>,
    restart: Arc<Restart>,
}

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
        let restart = Arc::default();
        Self { handle: Handle { orders, news: sender, restart }, news }
    }
}

impl Handle {
    /// Stops accepting connections; idle ones are closed, the rest after their response. Tasks and
    /// blocking functions that outlive them are waited for, and whatever is left at
    /// [`Limits::shutdown_timeout`](crate::Limits::shutdown_timeout) is cut.
    pub fn shut_down(&self) {
        self.give(|_| Order::Drain);
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

    /// Drains at once: another process serves in place of this one.
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub(crate) fn leave(&self) {
        self.give(|_| Order::Leave);
    }

    /// Workers that begin are to accept nobody until [`open`](Self::open) is called. Before they begin.
    pub(crate) fn hold_back(&self) {
        self.replace(Order::Serve, Order::Wait);
    }

    /// Workers accept from now on, unless there was an order to end.
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub(crate) fn open(&self) {
        self.replace(Order::Wait, Order::Serve);
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

    /// Makes SIGTERM and Ctrl-C go further, until the returned value is dropped; and SIGUSR2 upgrade, if
    /// it `may_upgrade`.
    pub(crate) fn obey_signals(&self, may_upgrade: bool) -> Result<Signals, Error> {
        let handle = self.clone();
        let obey = move |asked| match asked {
            Asked::End => handle.go_further(),
            #[cfg(unix)]
            Asked::Upgrade => handle.upgrade_beside(),
        };
        Signals::listen(may_upgrade, obey).map_err(Error::Signals)
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

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("order", &self.present()).finish_non_exhaustive()
    }
}
