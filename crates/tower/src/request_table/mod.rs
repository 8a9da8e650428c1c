//! Keeps a request's calls and bodies on its thread, even if a tower layer moves to another one.
//!
//! Many layers require `Send`, but our bodies and calls are not `Send`. So a layer gets
//! [`LocalHandle`]s. The calls and bodies that they refer to ([`LocalValue`]s) stay in a
//! thread-local table, in the row of their request. On the request's thread, a handle finds its
//! value in the table, and most requests need nothing else. On another thread, a handle sends a
//! [`Command`] to the request's [`RequestOwner`], which owns the row. The owner is polled on the
//! request's thread for as long as commands can arrive: first with the layer, then with the
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

/// The maximum number of calls that wait for a request's owner. Further calls are rejected.
const QUEUED_CALLS_MAX: usize = 1024;

/// The maximum capacity of slots that a row retains for its next request.
const SLOTS_RETAINED_MAX: usize = 8;

/// A `Send` reference to a request's row. The row is accessible only on the request's thread; other
/// threads send commands through the queue.
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

/// Commands to the request's owner: from other threads, or to call a borrowed inner service.
#[derive(Default)]
struct CommandQueue {
    commands: Vec<Command>,
    /// How many of `commands` start a call.
    queued_calls: usize,
    /// The waker of the task that polls the owner.
    owner_waker: Option<Waker>,
    /// Whether the owner was dropped, so that no further command is executed.
    is_closed: bool,
}

enum Command {
    /// Begin a call.
    StartCall(Box<QueuedCall>),
    /// Continue the call in this slot, which began on the request's thread, and send its outcome.
    ResumeCall(usize, CallReply),
    /// Forward the body in this slot over a channel.
    ForwardBody(usize, Arc<Mutex<BodyChannel>>),
    /// Drop the value in this slot.
    Release(usize),
}

/// A call that the row cannot own: it was made on another thread, or its inner service is only
/// borrowed.
pub(crate) struct QueuedCall {
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

/// A row of the table: the state of one request. Later requests reuse the row and the capacity of
/// its slots.
#[derive(Default)]
struct RequestState {
    /// Zero while the row is free.
    generation: u64,
    /// `None` once the layer has responded.
    original: Option<OriginalRequest>,
    slots: Vec<ValueSlot>,
    /// Work that responses inside the layer left to be done after the response.
    after_response: Vec<AfterResponse>,
    /// The waker of the task that runs the owner to completion. It is woken when the row becomes
    /// empty or `after_response` gets more work.
    completion_waker: Option<Waker>,
    /// The [`RequestRef`] of the row's previous request. The next request reuses its allocation if
    /// no handle refers to it.
    request_ref: Option<Arc<RequestRef>>,
}

#[derive(Default)]
struct RequestTable {
    rows: Vec<RequestState>,
    /// The indices of the free rows.
    free: Vec<usize>,
    last_generation: u64,
}

thread_local! {
    static THREAD_ID: u64 = {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        NEXT_ID.fetch_add(1, Ordering::Relaxed)
    };
    static TABLE: RefCell<RequestTable> = RefCell::default();
}

impl RequestRef {
    /// Whether the current thread is the request's thread.
    pub(crate) fn is_local(&self) -> bool {
        THREAD_ID.with(|thread| *thread == self.thread_id)
    }

    /// Runs `f` on the request's row; `None` on other threads, and when the request is over.
    fn with_row<T>(&self, f: impl FnOnce(&mut RequestState) -> T) -> Option<T> {
        if !self.is_local() {
            return None;
        }
        // While a thread exits, its table may already be destroyed.
        let result = TABLE.try_with(|table| {
            let mut table = table.borrow_mut();
            let row = table.rows.get_mut(self.row);
            row.filter(|row| row.generation == self.generation).map(f)
        });
        result.ok().flatten()
    }

    /// Runs `f` on the original request; `None` on other threads, and after the response.
    pub(crate) fn with_original<T>(&self, f: impl FnOnce(&mut OriginalRequest) -> T) -> Option<T> {
        self.with_row(|row| row.original.as_mut().map(f)).flatten()
    }

    /// Stores `value` in the request's row.
    ///
    /// # Errors
    /// The request is over, or belongs to another thread. The value is returned.
    pub(crate) fn store(self: &Arc<Self>, value: LocalValue) -> Result<LocalHandle, LocalValue> {
        let mut value = Some(value);
        let slot = self.with_row(|row| {
            let occupied =
                ValueSlot::Occupied(value.take().expect("the closure runs at most once"));
            let free = row.slots.iter().position(|slot| matches!(slot, ValueSlot::Free));
            match free {
                Some(slot) => row.slots[slot] = occupied,
                None => row.slots.push(occupied),
            }
            free.unwrap_or(row.slots.len() - 1)
        });
        match (slot, value) {
            (Some(slot), _) => Ok(LocalHandle { request_ref: Arc::clone(self), slot: Some(slot) }),
            (None, value) => Err(value.expect("the closure did not run")),
        }
    }

    /// Stores work that must continue after a response inside the layer. The response cannot carry
    /// it, because the layer may drop the response. The owner runs the work after the layer's own
    /// response.
    pub(crate) fn store_after_response(&self, work: AfterResponse) {
        let mut work = Some(work);
        let completion_waker = self.with_row(|row| {
            row.after_response.extend(work.take());
            row.completion_waker.take()
        });
        completion_waker.flatten().into_iter().for_each(Waker::wake);
    }

    /// Makes the request's owner, or the code that polls it, start a call. May be called on any
    /// thread. The receiver yields the outcome, or an error if the layer has responded or too many
    /// calls are queued.
    pub(crate) fn send_call(
        &self,
        request: http::Request<SendBoxBody>,
    ) -> oneshot::Receiver<CallOutcome> {
        let (reply, outcome) = oneshot::channel();
        self.send_command(Command::StartCall(Box::new(QueuedCall { request, reply })));
        outcome
    }

    fn send_command(&self, command: Command) {
        let mut queue = lock(&self.queue);
        let is_call = matches!(command, Command::StartCall(_));
        if queue.is_closed || is_call && queue.queued_calls == QUEUED_CALLS_MAX {
            drop(queue);
            return command.reject();
        }
        queue.queued_calls += usize::from(is_call);
        queue.commands.push(command);
        let owner_waker = queue.owner_waker.take();
        drop(queue);
        owner_waker.into_iter().for_each(Waker::wake);
    }
}

impl Command {
    /// Drops the command, which notifies its sender. The caller must not hold a lock, because the
    /// destructors of the dropped values may run arbitrary code.
    fn reject(self) {
        if let Self::ForwardBody(_, channel) = self {
            BodyForwarder::abort(channel);
        }
    }
}

/// A `Send` reference to a value that stays on its thread. Dropping the handle drops the value
/// there.
pub(crate) struct LocalHandle {
    request_ref: Arc<RequestRef>,
    /// `None` once the value was taken, or a [`Command`] that takes it was sent.
    slot: Option<usize>,
}

/// The result of looking up a handle's value on this thread.
pub(crate) enum LocalLookup<T> {
    Local(T),
    OtherThread,
    /// The request is over, or the value was taken or is in use.
    Gone,
}

impl LocalHandle {
    /// Runs `f` on the value, if it is on this thread. The table is not borrowed meanwhile, because
    /// the value's code may borrow it.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut LocalValue) -> T) -> LocalLookup<T> {
        let Some(slot) = self.slot else { return LocalLookup::Gone };
        if !self.request_ref.is_local() {
            return LocalLookup::OtherThread;
        }
        let Some(Some(mut value)) =
            self.request_ref.with_row(|row| borrow_value(&mut row.slots[slot]))
        else {
            return LocalLookup::Gone;
        };
        let result = f(&mut value);
        let mut value = Some(value);
        self.request_ref.with_row(|row| {
            row.slots[slot] = value.take().map_or(ValueSlot::Free, ValueSlot::Occupied)
        });
        // If the request ended meanwhile, the value is dropped here, while the table is not
        // borrowed.
        drop(value);
        LocalLookup::Local(result)
    }

    /// Removes and returns the value, if it belongs to this thread.
    ///
    /// # Errors
    /// The value belongs to another thread, or no longer exists. The handle is returned.
    pub(crate) fn take(mut self) -> Result<LocalValue, Self> {
        let Some(slot) = self.slot else { return Err(self) };
        match self.request_ref.with_row(|row| row.take_value(slot)) {
            Some((Some(value), completion_waker)) => {
                self.slot = None;
                completion_waker.into_iter().for_each(Waker::wake);
                Ok(value)
            }
            _ => Err(self),
        }
    }

    /// Makes the owner continue the call, and returns the receiver of its outcome.
    pub(crate) fn resume_call(mut self) -> oneshot::Receiver<CallOutcome> {
        let (reply, outcome) = oneshot::channel();
        if let Some(slot) = self.slot.take() {
            self.request_ref.send_command(Command::ResumeCall(slot, reply));
        }
        outcome
    }

    /// Makes the owner forward the body over `channel`.
    pub(crate) fn forward_body(mut self, channel: Arc<Mutex<BodyChannel>>) {
        match self.slot.take() {
            Some(slot) => self.request_ref.send_command(Command::ForwardBody(slot, channel)),
            None => BodyForwarder::abort(channel),
        }
    }
}

impl Drop for LocalHandle {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        if !self.request_ref.is_local() {
            return self.request_ref.send_command(Command::Release(slot));
        }
        if let Some((value, completion_waker)) =
            self.request_ref.with_row(|row| row.take_value(slot))
        {
            drop(value);
            completion_waker.into_iter().for_each(Waker::wake);
        }
    }
}

impl RequestState {
    /// Removes and returns a value. If this empties the row, also returns the waker of the task
    /// that runs the owner to completion.
    fn take_value(&mut self, slot: usize) -> (Option<LocalValue>, Option<Waker>) {
        let previous = std::mem::replace(&mut self.slots[slot], ValueSlot::Free);
        let completion_waker = if self.is_empty() { self.completion_waker.take() } else { None };
        match previous {
            ValueSlot::Occupied(value) => (Some(value), completion_waker),
            ValueSlot::Free | ValueSlot::Borrowed => (None, completion_waker),
        }
    }

    /// Frees the row and returns its contents.
    fn release(
        &mut self,
    ) -> (Option<OriginalRequest>, Option<Waker>, Vec<ValueSlot>, Vec<AfterResponse>) {
        self.generation = 0;
        // An empty and small vector stays in the row for the next request.
        let is_small = self.slots.capacity() <= SLOTS_RETAINED_MAX;
        let slots = if self.is_empty() && is_small {
            self.slots.clear();
            Vec::new()
        } else {
            std::mem::take(&mut self.slots)
        };
        (
            self.original.take(),
            self.completion_waker.take(),
            slots,
            std::mem::take(&mut self.after_response),
        )
    }

    fn is_empty(&self) -> bool {
        self.slots.iter().all(|slot| matches!(slot, ValueSlot::Free))
    }
}

/// Takes the value out of its slot while it is in use. Returns `None` if the value is already in
/// use or was removed.
fn borrow_value(slot: &mut ValueSlot) -> Option<LocalValue> {
    match std::mem::replace(slot, ValueSlot::Borrowed) {
        ValueSlot::Occupied(value) => Some(value),
        other => {
            *slot = other;
            None
        }
    }
}

/// Ignores poisoning, because no code panics while it holds this lock.
fn lock(queue: &Mutex<CommandQueue>) -> MutexGuard<'_, CommandQueue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}
