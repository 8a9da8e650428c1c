//! Limits the requests that an upstream has in progress on one worker, and queues further ones.
//!
//! A free slot goes to the client with the fewest slots. A client that does not read would keep its
//! slots for as long as the server's timeouts allow. So when no slot is free, the client that
//! occupies the most slots loses the response that it has not read for the longest time.

use peregrine_web::connection::ConnectionInfo;
use peregrine_web::panic::catch_subscriber_panic;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A response that its client has not read from for this long may be aborted in favour of another
/// client's request.
const UNREAD_TIME_MIN: Duration = Duration::from_secs(1);

/// How often a waiting request looks for such a response.
const EVICTION_INTERVAL: Duration = Duration::from_millis(100);

/// The limits on requests in progress and on waiting requests, for each worker and upstream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotLimits {
    pub(crate) connections_max: usize,
    pub(crate) queue_max: usize,
    pub(crate) queue_timeout: Duration,
}

impl Default for SlotLimits {
    /// Small enough for a process with two workers and a limit of 1024 file descriptors.
    fn default() -> Self {
        Self { connections_max: 256, queue_max: 256, queue_timeout: Duration::from_millis(500) }
    }
}

/// The slots of one upstream.
pub(crate) struct Slots {
    limits: SlotLimits,
    occupied: Cell<usize>,
    /// The occupied slots, oldest first.
    entries: RefCell<BTreeMap<u64, Rc<Entry>>>,
    next_id: Cell<u64>,
    queue: RefCell<Vec<Waiter>>,
}

/// A request in progress.
struct Entry {
    client: Rc<ConnectionInfo>,
    /// Since when the response waits for its client to read more; `None` while it waits for the
    /// upstream.
    unread_since: Cell<Option<Instant>>,
    /// The response to abort.
    response: RefCell<Option<Weak<dyn Abort>>>,
}

/// A request that waits for a slot.
struct Waiter {
    client: Rc<ConnectionInfo>,
    slot: oneshot::Sender<Slot>,
}

/// A response that can be aborted, so that its connection becomes free.
pub(crate) trait Abort {
    fn abort(&self);
}

impl Slots {
    pub(crate) fn new(limits: SlotLimits) -> Rc<Self> {
        Rc::new(Self {
            limits,
            occupied: Cell::new(0),
            entries: RefCell::default(),
            next_id: Cell::new(0),
            queue: RefCell::default(),
        })
    }

    /// Waits for a slot for one more request of this client. `None` if none becomes free in time,
    /// too many requests are waiting already, or another client's request takes this one's place
    /// in the queue.
    pub(crate) async fn acquire(self: &Rc<Self>, client: &Rc<ConnectionInfo>) -> Option<Slot> {
        if let Some(slot) = self.try_acquire() {
            return Some(slot.assign_to(client));
        }
        let (sender, mut receiver) = oneshot::channel();
        if !self.enqueue(Waiter { client: Rc::clone(client), slot: sender }) {
            return None;
        }
        let started = Instant::now();
        loop {
            self.evict_for(client);
            let remaining = self.limits.queue_timeout.saturating_sub(started.elapsed());
            let interval = remaining.min(EVICTION_INTERVAL);
            match tokio::time::timeout(interval, &mut receiver).await {
                Ok(slot) => return slot.ok().map(|slot| slot.assign_to(client)),
                Err(_) if remaining <= interval => return None,
                Err(_) => {}
            }
        }
    }

    fn try_acquire(self: &Rc<Self>) -> Option<Slot> {
        let is_free = self.occupied.get() < self.limits.connections_max.max(1);
        is_free.then(|| {
            self.occupied.set(self.occupied.get() + 1);
            Slot { slots: Rc::clone(self), entry: None }
        })
    }

    /// Adds a request to the queue. If the queue is full, the request replaces one whose client has
    /// at least two more requests. Returns `false` if there is no such request.
    fn enqueue(&self, waiter: Waiter) -> bool {
        let mut queue = self.queue.borrow_mut();
        queue.retain(|other| !other.slot.is_closed());
        if queue.len() >= self.limits.queue_max {
            let mut totals = self.shares();
            queue.iter().for_each(|other| totals.add(&other.client));
            let last =
                queue.iter().enumerate().max_by_key(|(_, other)| totals.count(&other.client));
            let own_total = totals.count(&waiter.client);
            let displaced = last.filter(|(_, other)| totals.count(&other.client) > own_total + 1);
            let Some((index, _)) = displaced else { return false };
            queue.remove(index);
        }
        queue.push(waiter);
        true
    }

    /// Aborts the response that [`find_victim`](Self::find_victim) finds, if any.
    fn evict_for(&self, client: &Rc<ConnectionInfo>) {
        let victim = self.find_victim(client);
        if let Some(response) = victim.and_then(|victim| victim.response.borrow().clone())
            && let Some(response) = response.upgrade()
        {
            catch_subscriber_panic(|| {
                tracing::debug!(
                    target: "peregrine",
                    "an unread response is aborted: its connection to the upstream is needed"
                );
            });
            response.abort();
        }
    }

    /// Finds an unread response of a client that occupies at least two more slots than `client`.
    /// Prefers clients with more slots, then responses that have been unread for longer.
    fn find_victim(&self, client: &Rc<ConnectionInfo>) -> Option<Rc<Entry>> {
        let now = Instant::now();
        let entries = self.entries.borrow();
        let mut unread = entries
            .values()
            .filter_map(|entry| {
                let unread_time = now.saturating_duration_since(entry.unread_since.get()?);
                (unread_time >= UNREAD_TIME_MIN).then_some((unread_time, entry))
            })
            .peekable();
        // Each waiting request comes here every 100 ms, and usually there is no such response.
        unread.peek()?;
        let shares = self.shares();
        let own_share = shares.count(client);
        let ranked = unread.filter_map(|(unread_time, entry)| {
            let share = shares.count(&entry.client);
            // A difference of one is not worth an abort. In particular, a client with a single
            // response keeps it.
            (share > own_share + 1).then_some(((share, unread_time), entry))
        });
        ranked.max_by_key(|(rank, _)| *rank).map(|(_, entry)| Rc::clone(entry))
    }

    /// Counts the slots of each client.
    fn shares(&self) -> Shares {
        let mut shares = Shares(HashMap::new());
        self.entries.borrow().values().for_each(|entry| shares.add(&entry.client));
        shares
    }
}

/// Distinguishes the connections of clients. Inside a mounted service, each request has its own
/// copy of the connection's extensions, but the peer's address and port identify the connection.
#[derive(PartialEq, Eq, Hash)]
enum ClientKey {
    Tcp(SocketAddr),
    Other(*const ConnectionInfo),
}

impl ClientKey {
    fn from_connection(client: &Rc<ConnectionInfo>) -> Self {
        client.peer.socket_addr().map_or_else(|| Self::Other(Rc::as_ptr(client)), Self::Tcp)
    }
}

/// How many slots each client occupies.
struct Shares(HashMap<ClientKey, usize>);

impl Shares {
    fn add(&mut self, client: &Rc<ConnectionInfo>) {
        *self.0.entry(ClientKey::from_connection(client)).or_default() += 1;
    }

    fn count(&self, client: &Rc<ConnectionInfo>) -> usize {
        self.0.get(&ClientKey::from_connection(client)).copied().unwrap_or(0)
    }
}

/// Permission for one request. When dropped, it goes to the waiting request whose client has the
/// fewest slots.
pub(crate) struct Slot {
    slots: Rc<Slots>,
    /// `None` until the request has received the slot.
    entry: Option<(u64, Rc<Entry>)>,
}

impl Slot {
    fn assign_to(mut self, client: &Rc<ConnectionInfo>) -> Self {
        let id = self.slots.next_id.get();
        self.slots.next_id.set(id + 1);
        let entry = Rc::new(Entry {
            client: Rc::clone(client),
            unread_since: Cell::new(None),
            response: RefCell::new(None),
        });
        self.slots.entries.borrow_mut().insert(id, Rc::clone(&entry));
        self.entry = Some((id, entry));
        self
    }

    /// Sets the response that is aborted if the slot is needed.
    pub(crate) fn set_response(&self, response: Weak<dyn Abort>) {
        if let Some((_, entry)) = &self.entry {
            *entry.response.borrow_mut() = Some(response);
        }
    }

    /// Records whether the response waits for its client to read, or for the upstream.
    pub(crate) fn set_unread(&self, is_unread: bool) {
        if let Some((_, entry)) = &self.entry {
            entry.unread_since.set(is_unread.then(Instant::now));
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some((id, _)) = &self.entry {
            self.slots.entries.borrow_mut().remove(id);
        }
        let next = {
            let mut queue = self.slots.queue.borrow_mut();
            queue.retain(|waiter| !waiter.slot.is_closed());
            let shares = (!queue.is_empty()).then(|| self.slots.shares());
            let first = shares.and_then(|shares| {
                (0..queue.len()).min_by_key(|index| shares.count(&queue[*index].client))
            });
            first.map(|index| queue.remove(index))
        };
        match next {
            // If that request stops waiting before it receives the slot, the slot is dropped, which
            // passes it on.
            Some(waiter) => {
                drop(waiter.slot.send(Self { slots: Rc::clone(&self.slots), entry: None }));
            }
            None => self.slots.occupied.set(self.slots.occupied.get() - 1),
        }
    }
}
