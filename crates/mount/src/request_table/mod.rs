//! Keeps a request's values on its thread while a tower layer may move to other threads.
//!
//! Many layers require `Send`, but our bodies and calls are not `Send`. So a layer gets
//! [`LocalHandle`]s. The calls and bodies that they refer to ([`LocalValue`]s) stay in a
//! thread-local table, in the row of their request. On the request's thread, a handle finds its
//! value in the table, and most requests need nothing else. On another thread, a handle sends a
//! message to the request's [`RequestOwner`], which owns the row. The owner is polled on the
//! request's thread for as long as messages can arrive: first with the layer, then with the
//! response's body, and then after the response.

mod owner;

pub(crate) use self::owner::{CallStarter, RequestOwner};

use crate::body::SendBoxBody;
use crate::body_channel::{BodyChannel, BodyForwarder};
use crate::call::{CallOutcome, CallReply, LocalCall};
use crate::original::OriginalRequest;
use peregrine_web::Body;
use peregrine_web::response::AfterResponse;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use tokio::sync::oneshot;

/// The maximum number of calls that wait for a request's owner.
const CALLS_MAX: usize = 1024;

/// A row keeps its slots for the next request only if their capacity is at most this.
const SLOTS_RETAINED_MAX: usize = 8;

/// A `Send` reference to a request's row. It gives access only on the request's thread.
pub(crate) struct RequestRef {
    thread_id: u64,
    /// The index of the row.
    row: usize,
    /// Distinguishes this request from others that used the same row.
    generation: u64,
    queue: Mutex<CommandQueue>,
}

/// The [`RequestRef`], in the extensions of the layer's request.
#[derive(Clone)]
pub(crate) struct RequestRefExtension(pub(crate) Arc<RequestRef>);

/// Messages from other threads to the request's owner.
#[derive(Default)]
struct CommandQueue {
    commands: Vec<Command>,
    queued_calls: usize,
    /// The waker of the task that polls the owner.
    owner_waker: Option<Waker>,
    is_closed: bool,
}

enum Command {
    /// Begin a call.
    StartCall(Box<RemoteCall>),
    /// Continue a call that began on the request's thread, and send its outcome.
    ResumeCall(usize, CallReply),
    /// Move a body.
    ForwardBody(usize, Arc<Mutex<BodyChannel>>),
    /// Drop a value.
    Release(usize),
}

/// A call that another thread made, or a call whose inner service is only borrowed, so that the row
/// cannot own it.
pub(crate) struct RemoteCall {
    pub(crate) request: http::Request<SendBoxBody>,
    pub(crate) reply: CallReply,
}

/// A value that stays on its thread.
pub(crate) enum LocalValue {
    Body(Body),
    Call(LocalCall<'static>),
}

/// A slot of a row, for one value.
enum ValueSlot {
    Free,
    /// The value is in use.
    Borrowed,
    Occupied(LocalValue),
}

/// The state of one request. Later requests reuse the row and the capacity of its slots.
#[derive(Default)]
struct RequestState {
    /// Zero while the row is free.
    generation: u64,
    /// `None` once the request is answered.
    original: Option<OriginalRequest>,
    slots: Vec<ValueSlot>,
    /// Work that responses inside the layer left to be done after the response.
    after_response: Vec<AfterResponse>,
    /// The waker of the task that waits until the row is empty.
    idle_waker: Option<Waker>,
    /// The [`RequestRef`] of the previous request, reused for the next one if no handle refers to
    /// it.
    request_ref: Option<Arc<RequestRef>>,
}

#[derive(Default)]
struct RequestTable {
    rows: Vec<RequestState>,
    free: Vec<usize>,
    last_generation: u64,
}

thread_local! {
    static THREAD_ID: u64 = {
        static LAST: AtomicU64 = AtomicU64::new(0);
        LAST.fetch_add(1, Ordering::Relaxed)
    };
    static TABLE: RefCell<RequestTable> = RefCell::default();
}

impl RequestRef {
    /// Whether this is the request's thread.
    pub(crate) fn is_local(&self) -> bool {
        THREAD_ID.with(|thread| *thread == self.thread_id)
    }

    /// Runs `look` on the request's row; `None` on other threads, and when the request is over.
    fn with_row<T>(&self, look: impl FnOnce(&mut RequestState) -> T) -> Option<T> {
        if !self.is_local() {
            return None;
        }
        // While a thread exits, its table may already be destroyed.
        let found = TABLE.try_with(|table| {
            let mut table = table.borrow_mut();
            let row = table.rows.get_mut(self.row);
            row.filter(|row| row.generation == self.generation).map(look)
        });
        found.ok().flatten()
    }

    /// Runs `look` on the original request; `None` on other threads, and after the response.
    pub(crate) fn with_original<T>(
        &self,
        look: impl FnOnce(&mut OriginalRequest) -> T,
    ) -> Option<T> {
        self.with_row(|row| row.original.as_mut().map(look)).flatten()
    }

    /// Keeps `thing` in the request's row.
    ///
    /// # Errors
    /// The request is over, or belongs to another thread. The value is returned.
    pub(crate) fn store(self: &Arc<Self>, thing: LocalValue) -> Result<LocalHandle, LocalValue> {
        let mut thing = Some(thing);
        let slot = self.with_row(|row| {
            let full = ValueSlot::Occupied(thing.take().expect("the closure runs at most once"));
            let free = row.slots.iter().position(|slot| matches!(slot, ValueSlot::Free));
            match free {
                Some(slot) => row.slots[slot] = full,
                None => row.slots.push(full),
            }
            free.unwrap_or(row.slots.len() - 1)
        });
        match (slot, thing) {
            (Some(slot), _) => Ok(LocalHandle { request: Arc::clone(self), slot: Some(slot) }),
            (None, thing) => Err(thing.expect("the closure did not run")),
        }
    }

    /// Stores the work that a response inside the layer continues. The response cannot carry this
    /// work, because the layer may drop the response's body. The owner runs the work after the
    /// layer's own response.
    pub(crate) fn store_after_response(&self, rest: AfterResponse) {
        let mut rest = Some(rest);
        let waiting = self.with_row(|row| {
            row.after_response.extend(rest.take());
            row.idle_waker.take()
        });
        waiting.flatten().into_iter().for_each(Waker::wake);
    }

    /// Makes the request's owner begin a call; callable on any thread. The receiver yields the
    /// outcome, or an error if the request is over.
    pub(crate) fn send_call(
        &self,
        request: http::Request<SendBoxBody>,
    ) -> oneshot::Receiver<CallOutcome> {
        let (reply, response) = oneshot::channel();
        self.send_command(Command::StartCall(Box::new(RemoteCall { request, reply })));
        response
    }

    fn send_command(&self, mail: Command) {
        let mut mailbox = lock(&self.queue);
        let is_call = matches!(mail, Command::StartCall(_));
        if mailbox.is_closed || is_call && mailbox.queued_calls == CALLS_MAX {
            drop(mailbox);
            return mail.reject();
        }
        mailbox.queued_calls += usize::from(is_call);
        mailbox.commands.push(mail);
        let home = mailbox.owner_waker.take();
        drop(mailbox);
        home.into_iter().for_each(Waker::wake);
    }
}

impl Command {
    /// Notifies the sender that the work will not be done. No lock may be held: destructors of
    /// dropped values may run arbitrary code.
    fn reject(self) {
        if let Self::ForwardBody(_, bridge) = self {
            BodyForwarder::abort(bridge);
        }
    }
}

/// A `Send` reference to a value that stays on its thread. Dropping the handle drops the value
/// there.
pub(crate) struct LocalHandle {
    request: Arc<RequestRef>,
    /// `None` once the value was moved out or the owner took it over.
    slot: Option<usize>,
}

/// The result of looking up a handle's value on this thread.
pub(crate) enum LocalLookup<T> {
    Local(T),
    OtherThread,
    /// The request is over.
    Gone,
}

impl LocalHandle {
    /// Runs `work` on the value. The table is not borrowed meanwhile, because the value's code may
    /// borrow it.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut LocalValue) -> T) -> LocalLookup<T> {
        let Some(slot) = self.slot else { return LocalLookup::Gone };
        if !self.request.is_local() {
            return LocalLookup::OtherThread;
        }
        let Some(Some(mut thing)) = self.request.with_row(|row| borrow_value(&mut row.slots[slot]))
        else {
            return LocalLookup::Gone;
        };
        let value = work(&mut thing);
        let mut thing = Some(thing);
        self.request.with_row(|row| {
            row.slots[slot] = thing.take().map_or(ValueSlot::Free, ValueSlot::Occupied)
        });
        // If the request ended meanwhile, the value is dropped here, while the table is not
        // borrowed.
        drop(thing);
        LocalLookup::Local(value)
    }

    /// Takes the value, if it belongs to this thread.
    ///
    /// # Errors
    /// The value belongs to another thread or no longer exists.
    pub(crate) fn take(mut self) -> Result<LocalValue, Self> {
        let Some(slot) = self.slot else { return Err(self) };
        match self.request.with_row(|row| row.take_value(slot)) {
            Some((Some(thing), rest)) => {
                self.slot = None;
                rest.into_iter().for_each(Waker::wake);
                Ok(thing)
            }
            _ => Err(self),
        }
    }

    /// Makes the owner continue a call, and returns the receiver of its outcome.
    pub(crate) fn resume_call(mut self) -> oneshot::Receiver<CallOutcome> {
        let (reply, response) = oneshot::channel();
        if let Some(slot) = self.slot.take() {
            self.request.send_command(Command::ResumeCall(slot, reply));
        }
        response
    }

    /// Makes the owner move a body over `bridge`.
    pub(crate) fn forward_body(mut self, bridge: Arc<Mutex<BodyChannel>>) {
        match self.slot.take() {
            Some(slot) => self.request.send_command(Command::ForwardBody(slot, bridge)),
            None => BodyForwarder::abort(bridge),
        }
    }
}

impl Drop for LocalHandle {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        if !self.request.is_local() {
            return self.request.send_command(Command::Release(slot));
        }
        if let Some((thing, rest)) = self.request.with_row(|row| row.take_value(slot)) {
            drop(thing);
            rest.into_iter().for_each(Waker::wake);
        }
    }
}

impl RequestState {
    /// Takes a value out. If this empties the row, also returns the waker of the task that waits
    /// for an empty row.
    fn take_value(&mut self, slot: usize) -> (Option<LocalValue>, Option<Waker>) {
        let taken = std::mem::replace(&mut self.slots[slot], ValueSlot::Free);
        let rest = if self.is_empty() { self.idle_waker.take() } else { None };
        match taken {
            ValueSlot::Occupied(thing) => (Some(thing), rest),
            ValueSlot::Free | ValueSlot::Borrowed => (None, rest),
        }
    }

    /// Frees the row and returns its contents.
    fn release(
        &mut self,
    ) -> (Option<OriginalRequest>, Option<Waker>, Vec<ValueSlot>, Vec<AfterResponse>) {
        self.generation = 0;
        let is_small = self.slots.capacity() <= SLOTS_RETAINED_MAX;
        let slots = if self.is_empty() && is_small {
            self.slots.clear();
            Vec::new()
        } else {
            std::mem::take(&mut self.slots)
        };
        (
            self.original.take(),
            self.idle_waker.take(),
            slots,
            std::mem::take(&mut self.after_response),
        )
    }

    fn is_empty(&self) -> bool {
        self.slots.iter().all(|slot| matches!(slot, ValueSlot::Free))
    }
}

fn borrow_value(slot: &mut ValueSlot) -> Option<LocalValue> {
    match std::mem::replace(slot, ValueSlot::Borrowed) {
        ValueSlot::Occupied(thing) => Some(thing),
        other => {
            *slot = other;
            None
        }
    }
}

/// No code panics while it holds this lock.
fn lock(mailbox: &Mutex<CommandQueue>) -> MutexGuard<'_, CommandQueue> {
    mailbox.lock().unwrap_or_else(PoisonError::into_inner)
}
