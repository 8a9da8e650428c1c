//! Keeps a request's values on its thread while a tower layer may move to other threads.
//!
//! Many layers require `Send`, but our bodies and calls are not `Send`. So a layer gets
//! [`Handle`]s. The calls and bodies that they refer to ([`Thing`]s) stay in a thread-local table,
//! in the row of their request. On the request's thread, a handle finds its value in the table, and
//! most requests need nothing else. On another thread, a handle sends a message to the request's
//! [`Home`], which owns the row. The home is polled on the request's thread for as long as messages
//! can arrive: first with the layer, then with the response's body, and then after the response.

use crate::body::Sent;
use crate::body_channel::{Bridge, Errand, Pump, Pumped};
use crate::call::{Call, Outcome, Reply, go_on};
use crate::origin::Origin;
use peregrine_web::Body;
use peregrine_web::response::Rest;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::sync::oneshot;

/// The maximum number of calls that wait for a request's home.
const CALLS_MAX: usize = 1024;

/// A row keeps its slots for the next request only if their capacity is at most this.
const SLOTS_KEPT_MAX: usize = 8;

/// A `Send` reference to a request's row. It gives access only on the request's thread.
pub(crate) struct Passage {
    thread: u64,
    /// The index of the row.
    place: usize,
    /// Distinguishes this request from others that used the same row.
    number: u64,
    mailbox: Mutex<Mailbox>,
}

/// The passage, in the extensions of the layer's request.
#[derive(Clone)]
pub(crate) struct Pass(pub(crate) Arc<Passage>);

/// Messages from other threads to the request's home.
#[derive(Default)]
struct Mailbox {
    mail: Vec<Mail>,
    calls: usize,
    /// The waker of the task that polls the home.
    home: Option<Waker>,
    is_closed: bool,
}

enum Mail {
    /// Begin a call.
    Call(Box<Asked>),
    /// Continue a call that began on the request's thread, and send its outcome.
    Finish(usize, Reply),
    /// Move a body.
    Feed(usize, Arc<Mutex<Bridge>>),
    /// Drop a value.
    Forget(usize),
}

/// A call that another thread made, or a call whose inner service is only borrowed, so that the row
/// cannot own it.
pub(crate) struct Asked {
    pub(crate) request: http::Request<Sent>,
    pub(crate) reply: Reply,
}

/// A value that stays on its thread.
pub(crate) enum Thing {
    Body(Body),
    Call(Call<'static>),
}

/// A slot of a row, for one value.
enum Slot {
    Free,
    /// The value is in use.
    Lent,
    Full(Thing),
}

/// The state of one request. Later requests reuse the row and the capacity of its slots.
#[derive(Default)]
struct Row {
    /// Zero while the row is free.
    number: u64,
    /// `None` once the request is answered.
    origin: Option<Origin>,
    slots: Vec<Slot>,
    /// Work that responses inside the layer left to be done after the response.
    rests: Vec<Rest>,
    /// The waker of the task that waits until the row is empty.
    rest: Option<Waker>,
    /// The passage of the previous request, reused for the next one if no handle refers to it.
    passage: Option<Arc<Passage>>,
}

#[derive(Default)]
struct Table {
    rows: Vec<Row>,
    free: Vec<usize>,
    last: u64,
}

thread_local! {
    static THREAD: u64 = {
        static LAST: AtomicU64 = AtomicU64::new(0);
        LAST.fetch_add(1, Ordering::Relaxed)
    };
    static TABLE: RefCell<Table> = RefCell::default();
}

impl Passage {
    /// Whether this is the request's thread.
    pub(crate) fn is_here(&self) -> bool {
        THREAD.with(|thread| *thread == self.thread)
    }

    /// Runs `look` on the request's row; `None` on other threads, and when the request is over.
    fn with_row<T>(&self, look: impl FnOnce(&mut Row) -> T) -> Option<T> {
        if !self.is_here() {
            return None;
        }
        // While a thread exits, its table may already be destroyed.
        let found = TABLE.try_with(|table| {
            let mut table = table.borrow_mut();
            let row = table.rows.get_mut(self.place);
            row.filter(|row| row.number == self.number).map(look)
        });
        found.ok().flatten()
    }

    /// Runs `look` on the original request; `None` on other threads, and after the response.
    pub(crate) fn with_origin<T>(&self, look: impl FnOnce(&mut Origin) -> T) -> Option<T> {
        self.with_row(|row| row.origin.as_mut().map(look)).flatten()
    }

    /// Keeps `thing` in the request's row.
    ///
    /// # Errors
    /// The request is over, or belongs to another thread. The value is returned.
    pub(crate) fn keep(self: &Arc<Self>, thing: Thing) -> Result<Handle, Thing> {
        let mut thing = Some(thing);
        let slot = self.with_row(|row| {
            let full = Slot::Full(thing.take().expect("the closure runs at most once"));
            let free = row.slots.iter().position(|slot| matches!(slot, Slot::Free));
            match free {
                Some(slot) => row.slots[slot] = full,
                None => row.slots.push(full),
            }
            free.unwrap_or(row.slots.len() - 1)
        });
        match (slot, thing) {
            (Some(slot), _) => Ok(Handle { passage: Arc::clone(self), slot: Some(slot) }),
            (None, thing) => Err(thing.expect("the closure did not run")),
        }
    }

    /// Stores the work that a response inside the layer continues. The response cannot carry this
    /// work, because the layer may drop the response's body. The home runs the work after the
    /// layer's own response.
    pub(crate) fn keep_rest(&self, rest: Rest) {
        let mut rest = Some(rest);
        let waiting = self.with_row(|row| {
            row.rests.extend(rest.take());
            row.rest.take()
        });
        waiting.flatten().into_iter().for_each(Waker::wake);
    }

    /// Makes the request's home begin a call; callable on any thread. The receiver yields the
    /// outcome, or an error if the request is over.
    pub(crate) fn ask(&self, request: http::Request<Sent>) -> oneshot::Receiver<Outcome> {
        let (reply, response) = oneshot::channel();
        self.post(Mail::Call(Box::new(Asked { request, reply })));
        response
    }

    fn post(&self, mail: Mail) {
        let mut mailbox = lock(&self.mailbox);
        let is_call = matches!(mail, Mail::Call(_));
        if mailbox.is_closed || is_call && mailbox.calls == CALLS_MAX {
            drop(mailbox);
            return mail.refuse();
        }
        mailbox.calls += usize::from(is_call);
        mailbox.mail.push(mail);
        let home = mailbox.home.take();
        drop(mailbox);
        home.into_iter().for_each(Waker::wake);
    }
}

impl Mail {
    /// Notifies the sender that the work will not be done. No lock may be held: destructors of
    /// dropped values may run arbitrary code.
    fn refuse(self) {
        if let Self::Feed(_, bridge) = self {
            Pump::none(bridge);
        }
    }
}

/// A `Send` reference to a value that stays on its thread. Dropping the handle drops the value
/// there.
pub(crate) struct Handle {
    passage: Arc<Passage>,
    /// `None` once the value was moved out or the home took it over.
    slot: Option<usize>,
}

/// The result of looking up a handle's value on this thread.
pub(crate) enum Found<T> {
    Here(T),
    Elsewhere,
    /// The request is over.
    Gone,
}

impl Handle {
    /// Runs `work` on the value. The table is not borrowed meanwhile, because the value's code may
    /// borrow it.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Thing) -> T) -> Found<T> {
        let Some(slot) = self.slot else { return Found::Gone };
        if !self.passage.is_here() {
            return Found::Elsewhere;
        }
        let Some(Some(mut thing)) = self.passage.with_row(|row| lend(&mut row.slots[slot])) else {
            return Found::Gone;
        };
        let value = work(&mut thing);
        let mut thing = Some(thing);
        self.passage.with_row(|row| row.slots[slot] = thing.take().map_or(Slot::Free, Slot::Full));
        // If the request ended meanwhile, the value is dropped here, while the table is not
        // borrowed.
        drop(thing);
        Found::Here(value)
    }

    /// Takes the value, if it belongs to this thread.
    ///
    /// # Errors
    /// The value belongs to another thread or no longer exists.
    pub(crate) fn take(mut self) -> Result<Thing, Self> {
        let Some(slot) = self.slot else { return Err(self) };
        match self.passage.with_row(|row| row.take(slot)) {
            Some((Some(thing), rest)) => {
                self.slot = None;
                rest.into_iter().for_each(Waker::wake);
                Ok(thing)
            }
            _ => Err(self),
        }
    }

    /// Makes the home continue a call, and returns the receiver of its outcome.
    pub(crate) fn finish(mut self) -> oneshot::Receiver<Outcome> {
        let (reply, response) = oneshot::channel();
        if let Some(slot) = self.slot.take() {
            self.passage.post(Mail::Finish(slot, reply));
        }
        response
    }

    /// Makes the home move a body over `bridge`.
    pub(crate) fn feed(mut self, bridge: Arc<Mutex<Bridge>>) {
        match self.slot.take() {
            Some(slot) => self.passage.post(Mail::Feed(slot, bridge)),
            None => Pump::none(bridge),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        if !self.passage.is_here() {
            return self.passage.post(Mail::Forget(slot));
        }
        if let Some((thing, rest)) = self.passage.with_row(|row| row.take(slot)) {
            drop(thing);
            rest.into_iter().for_each(Waker::wake);
        }
    }
}

impl Row {
    /// Takes a value out. If this empties the row, also returns the waker of the task that waits
    /// for an empty row.
    fn take(&mut self, slot: usize) -> (Option<Thing>, Option<Waker>) {
        let taken = std::mem::replace(&mut self.slots[slot], Slot::Free);
        let rest = if self.is_empty() { self.rest.take() } else { None };
        match taken {
            Slot::Full(thing) => (Some(thing), rest),
            Slot::Free | Slot::Lent => (None, rest),
        }
    }

    /// Frees the row and returns its contents.
    fn end(&mut self) -> (Option<Origin>, Option<Waker>, Vec<Slot>, Vec<Rest>) {
        self.number = 0;
        let is_small = self.slots.capacity() <= SLOTS_KEPT_MAX;
        let slots = if self.is_empty() && is_small {
            self.slots.clear();
            Vec::new()
        } else {
            std::mem::take(&mut self.slots)
        };
        (self.origin.take(), self.rest.take(), slots, std::mem::take(&mut self.rests))
    }

    fn is_empty(&self) -> bool {
        self.slots.iter().all(|slot| matches!(slot, Slot::Free))
    }
}

fn lend(slot: &mut Slot) -> Option<Thing> {
    match std::mem::replace(slot, Slot::Lent) {
        Slot::Full(thing) => Some(thing),
        other => {
            *slot = other;
            None
        }
    }
}

/// Owns a request's values, and does the work that other threads request. Dropping it drops all of
/// the values.
pub(crate) struct Home {
    passage: Arc<Passage>,
    begins: Begins,
    calls: Vec<(Call<'static>, Option<Reply>)>,
    pumps: Vec<Pump>,
    /// Work to do after the response.
    rests: Vec<Rest>,
}

/// Which code begins the calls that other threads request.
pub(crate) enum Begins {
    /// The home begins them with this function.
    Here(fn(http::Request<Sent>) -> Call<'static>),
    /// The code that polls the home takes them from here and begins them.
    There(Vec<Asked>),
    /// No code: the response is complete.
    Nobody,
}

impl Home {
    /// Creates the home of the request kept in `origin`.
    pub(crate) fn of(origin: Origin, begins: Begins) -> Self {
        let passage = TABLE.with_borrow_mut(|table| {
            table.last += 1;
            let number = table.last;
            let place = table.free.pop().unwrap_or(table.rows.len());
            if place == table.rows.len() {
                table.rows.push(Row::default());
            }
            let row = &mut table.rows[place];
            (row.number, row.origin) = (number, Some(origin));
            let mut passage = row.passage.take();
            if let Some(again) = passage.as_mut().and_then(Arc::get_mut) {
                again.number = number;
                again.mailbox = Mutex::default();
            } else {
                let thread = THREAD.with(|thread| *thread);
                let mailbox = Mutex::default();
                passage = Some(Arc::new(Passage { thread, place, number, mailbox }));
            }
            passage.expect("one was reused or created above")
        });
        Self { passage, begins, calls: Vec::new(), pumps: Vec::new(), rests: Vec::new() }
    }

    pub(crate) fn passage(&self) -> &Arc<Passage> {
        &self.passage
    }

    /// Takes the calls that the caller must begin.
    pub(crate) fn take_asked(&mut self) -> Vec<Asked> {
        match &mut self.begins {
            Begins::There(asked) => std::mem::take(asked),
            Begins::Here(_) | Begins::Nobody => Vec::new(),
        }
    }

    /// Stops beginning calls, and returns the original request. Calls in progress continue.
    pub(crate) fn answered(&mut self) -> Option<Origin> {
        self.begins = Begins::Nobody;
        self.passage.with_row(|row| row.origin.take()).flatten()
    }

    fn open(&mut self, mail: Mail) {
        match mail {
            Mail::Call(call) => match &mut self.begins {
                Begins::Here(begin) => self.calls.push((begin(call.request), Some(call.reply))),
                Begins::There(asked) => asked.push(*call),
                Begins::Nobody => {}
            },
            Mail::Finish(slot, reply) => {
                if let Some((Some(Thing::Call(call)), _)) =
                    self.passage.with_row(|row| row.take(slot))
                {
                    self.calls.push((call, Some(reply)));
                }
            }
            Mail::Feed(slot, bridge) => match self.passage.with_row(|row| row.take(slot)) {
                Some((Some(Thing::Body(body)), _)) => self.pumps.push(Pump::of(body, bridge)),
                _ => Pump::none(bridge),
            },
            Mail::Forget(slot) => drop(self.passage.with_row(|row| row.take(slot))),
        }
    }
}

impl Errand for Home {
    fn poll(&mut self, context: &mut Context<'_>) -> Pumped {
        let mail = {
            let mut mailbox = lock(&self.passage.mailbox);
            mailbox.home.get_or_insert_with(|| Waker::noop().clone()).clone_from(context.waker());
            mailbox.calls = 0;
            std::mem::take(&mut mailbox.mail)
        };
        let mut pumped = if mail.is_empty() { Pumped::Nothing } else { Pumped::Moved };
        mail.into_iter().for_each(|mail| self.open(mail));
        if self.calls.is_empty() && self.pumps.is_empty() {
            return pumped;
        }
        let before = self.calls.len();
        self.calls.retain_mut(|(call, reply)| go_on(call, reply, context));
        if self.calls.len() < before {
            pumped = Pumped::Moved;
        }
        self.pumps.retain_mut(|pump| {
            if pump.poll(context) == Pumped::Moved {
                pumped = Pumped::Moved;
            }
            pump.is_needed()
        });
        pumped
    }

    /// Whether any value or work is left.
    fn is_needed(&self) -> bool {
        let is_idle = self.passage.with_row(|row| row.is_empty() && row.rests.is_empty());
        let is_done = self.calls.is_empty() && self.pumps.is_empty() && self.rests.is_empty();
        !is_done || !is_idle.unwrap_or(true)
    }

    /// Runs until nothing is left.
    async fn run(mut self) {
        std::future::poll_fn(|context| {
            loop {
                let left = self.passage.with_row(|row| std::mem::take(&mut row.rests));
                self.rests.extend(left.into_iter().flatten());
                self.rests.retain_mut(|rest| rest.as_mut().poll(context).is_pending());
                // A future in `rests` may wait for work that `poll` does.
                if self.poll(context) == Pumped::Nothing {
                    break;
                }
            }
            if !self.is_needed() {
                return Poll::Ready(());
            }
            let waker = context.waker().clone();
            // The old waker is dropped while the table is not borrowed.
            drop(self.passage.with_row(|row| row.rest.replace(waker)));
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let left = self.passage.with_row(Row::end);
        if left.is_some() {
            TABLE.with_borrow_mut(|table| {
                let place = self.passage.place;
                table.rows[place].passage = Some(Arc::clone(&self.passage));
                table.free.push(place);
            });
        }
        // The values' destructors may use the table.
        drop(left);
        let mut mailbox = lock(&self.passage.mailbox);
        mailbox.is_closed = true;
        let (mail, home) = (std::mem::take(&mut mailbox.mail), mailbox.home.take());
        drop(mailbox);
        drop(home);
        mail.into_iter().for_each(Mail::refuse);
    }
}

/// No code panics while it holds this lock.
fn lock(mailbox: &Mutex<Mailbox>) -> MutexGuard<'_, Mailbox> {
    mailbox.lock().unwrap_or_else(PoisonError::into_inner)
}
