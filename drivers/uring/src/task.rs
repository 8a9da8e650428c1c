//! The worker's tasks: a slab of futures, a queue of those that can go on, and wakers that other
//! threads may hold.
//!
//! There are three ways to wake a task. A driver's own operation knows the task's number (see
//! [`Waiter`]) and pushes it to the queue. A waker used on the worker's thread finds the queue
//! through a thread-local. A waker used elsewhere puts the number into a locked list and, when the
//! worker sleeps, wakes it: through an event descriptor that the ring watches, or through tokio.
//!
//! A worker that sleeps in tokio is not woken through the ring. That would be one event descriptor
//! waking another from within its own wake-up, and workers on Linux 6.18 were seen to sleep on.

mod waiter;

pub(crate) use self::waiter::Waiter;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::File;
use std::future::Future;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, RawWakerVTable, Wake, Waker};
use std::time::Duration;

use peregrine_slot::Table;

use crate::look::Look;

/// The number of the future that `run` was called with.
const MAIN: u32 = u32::MAX;
/// The number that no task has.
const NOBODY: u32 = u32::MAX - 1;
/// Tasks polled in one turn before the kernel gets its share.
const POLLS_PER_TURN: usize = 1024;

thread_local! {
    /// The tasks of the worker that runs on this thread.
    static CURRENT: RefCell<Option<Rc<Tasks>>> = const { RefCell::new(None) };
}

/// A future and the waker it is polled with, in one block: what moves between the slot and the
/// poll is a pointer.
struct Task<F: ?Sized> {
    waker: Waker,
    future: F,
}

type BoxedTask = Pin<Box<Task<dyn Future<Output = ()>>>>;

impl<F: Future + ?Sized> Task<F> {
    fn parts(self: Pin<&mut Self>) -> (&Waker, Pin<&mut F>) {
        // SAFETY: nothing is moved out of the borrow: see the next step.
        let task = unsafe { self.get_unchecked_mut() };
        // SAFETY: the task is pinned, and nothing ever moves its future by itself, so that the
        // future is pinned with it.
        let future = unsafe { Pin::new_unchecked(&mut task.future) };
        (&task.waker, future)
    }
}

/// All tasks of one worker.
pub(crate) struct Tasks {
    remote: Arc<Remote>,
    slots: RefCell<Table<Slot>>,
    ready: RefCell<VecDeque<u32>>,
    look: Look,
    polls: Cell<usize>,
    /// The number of the turn, modulo 2^32.
    turn: Cell<u32>,
    main_waker: Waker,
    /// The future that `run` was called with is to be polled.
    main_due: Cell<bool>,
    /// Wakes what the thread blocks on, which polls that future.
    thread: RefCell<Option<Waker>>,
    /// The task that is being polled, and what its waker points to.
    current: Cell<u32>,
    current_data: Cell<*const ()>,
    vtable: &'static RawWakerVTable,
    /// The thread is, or will be, in tokio and not in the future that drives all this.
    parked: Cell<bool>,
    closed: Cell<bool>,
}

struct Slot {
    /// Absent while it is being polled.
    task: Option<BoxedTask>,
    queued: bool,
    /// The turn in which it was polled last.
    turn: u32,
}

/// What other threads know of a worker.
pub(crate) struct Remote {
    event: File,
    inbox: Mutex<Inbox>,
    any_injected: AtomicBool,
    /// One of the constants below.
    sleeping: AtomicU8,
}

const AWAKE: u8 = 0;
const IN_RING: u8 = 1;
const IN_TOKIO: u8 = 2;

/// Where a worker goes to sleep.
pub(crate) enum Sleeping<'waker> {
    InRing,
    /// With the waker of the loop.
    InTokio(&'waker Waker),
}

struct Inbox {
    /// Absent once the worker has ended: a header leads back here, and nobody would take it.
    injected: Option<Vec<Arc<Header>>>,
    root: Option<Waker>,
}

/// What a waker points to.
struct Header {
    remote: Arc<Remote>,
    index: u32,
    injected: AtomicBool,
}

impl Tasks {
    /// `event` is the descriptor that a sleeping worker is woken through.
    pub(crate) fn new(event: File) -> Rc<Self> {
        let remote = Arc::new(Remote {
            event,
            inbox: Mutex::new(Inbox { injected: Some(Vec::new()), root: None }),
            any_injected: AtomicBool::new(false),
            sleeping: AtomicU8::new(AWAKE),
        });
        let main_waker = Header::waker(&remote, MAIN);
        Rc::new(Self {
            vtable: main_waker.vtable(),
            remote,
            slots: RefCell::new(Table::new()),
            ready: RefCell::default(),
            look: Look::default(),
            polls: Cell::new(0),
            turn: Cell::new(0),
            main_waker,
            main_due: Cell::new(true),
            thread: RefCell::default(),
            current: Cell::new(NOBODY),
            current_data: Cell::new(std::ptr::null()),
            parked: Cell::new(false),
            closed: Cell::new(false),
        })
    }

    /// Makes these the tasks of this thread, until [`Tasks::leave`].
    pub(crate) fn enter(self: &Rc<Self>) {
        CURRENT.with(|current| current.replace(Some(Rc::clone(self))));
    }

    pub(crate) fn leave(&self) {
        let left = CURRENT.with(|current| current.replace(None));
        drop(left);
    }

    pub(crate) fn remote(&self) -> &Remote {
        &self.remote
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        if self.closed.get() {
            return;
        }
        let index = {
            let mut slots = self.slots.borrow_mut();
            let index = u32::try_from(slots.next_number()).expect("fewer than 2^32 tasks");
            let waker = Header::waker(&self.remote, index);
            let task: BoxedTask = Box::pin(Task { waker, future: task });
            let turn = self.turn.get().wrapping_sub(1);
            slots.insert(Slot { task: Some(task), queued: true, turn });
            index
        };
        self.ready.borrow_mut().push_back(index);
        self.disturb();
    }

    /// Puts a task into the queue, unless it is there or gone.
    pub(crate) fn wake(&self, index: u32) {
        if index == MAIN {
            return self.wake_main();
        }
        let mut slots = self.slots.borrow_mut();
        match slots.get_mut(index as usize) {
            Some(slot) if !slot.queued => slot.queued = true,
            _ => return,
        }
        drop(slots);
        self.ready.borrow_mut().push_back(index);
        self.disturb();
    }

    fn wake_main(&self) {
        if self.main_due.replace(true) {
            return;
        }
        let thread = self.thread.borrow().clone();
        if let Some(thread) = thread {
            thread.wake();
        }
    }

    /// Whether the future that `run` was called with waits to be polled.
    pub(crate) fn is_main_due(&self) -> bool {
        self.main_due.get()
    }

    /// Polls the future that `run` was called with, if that is due; `context` is that of the future
    /// that the thread blocks on.
    pub(crate) fn poll_main<F: Future>(
        &self,
        main: Pin<&mut F>,
        context: &Context<'_>,
    ) -> Poll<F::Output> {
        let is_kept = |kept: &Waker| kept.will_wake(context.waker());
        if !self.thread.borrow().as_ref().is_some_and(is_kept) {
            let old = self.thread.replace(Some(context.waker().clone()));
            drop(old);
        }
        if !self.main_due.take() {
            return Poll::Pending;
        }
        let _polling = Polling::start(self, MAIN, &self.main_waker);
        main.poll(&mut Context::from_waker(&self.main_waker))
    }

    pub(crate) fn any_ready(&self) -> bool {
        !self.ready.borrow().is_empty()
    }

    /// Queues what other threads woke.
    pub(crate) fn take_injected(&self) {
        if !self.remote.any_injected.load(Ordering::Acquire) {
            return;
        }
        let woken = {
            let mut inbox = self.remote.lock();
            self.remote.any_injected.store(false, Ordering::Relaxed);
            inbox.injected.as_mut().map(std::mem::take).unwrap_or_default()
        };
        for header in woken {
            // Whoever wakes from here on is not heard by the poll that follows, so it must inject
            // again; what it wrote before the swap is seen by that poll.
            header.injected.swap(false, Ordering::AcqRel);
            self.wake(header.index);
        }
    }

    /// Polls what is ready, and what becomes ready by that, within limits. The turn ends before a task would be polled
    /// again: one that wakes itself, because it has much to do, lets the kernel and all others have theirs in between.
    pub(crate) fn run_ready(&self) {
        self.polls.set(0);
        self.turn.set(self.turn.get().wrapping_add(1));
        for polls in 1..=POLLS_PER_TURN {
            let Some(index) = self.ready.borrow_mut().pop_front() else { return };
            if !self.poll_task(index) {
                return self.ready.borrow_mut().push_front(index);
            }
            self.polls.set(polls);
        }
    }

    /// The driver looks for completions now.
    pub(crate) fn look(&self, now: Duration) {
        self.look.at(now, self.ready.borrow().len());
    }

    /// When it looked for what is polled now.
    pub(crate) fn looked(&self) -> Duration {
        self.look.began()
    }

    /// Tasks polled in the last turn.
    pub(crate) fn polls(&self) -> usize {
        self.polls.get()
    }

    /// False when the task has had its turn.
    fn poll_task(&self, index: u32) -> bool {
        let mut task = {
            let mut slots = self.slots.borrow_mut();
            let turn = self.turn.get();
            let slot = slots.get_mut(index as usize);
            if slot.as_ref().is_some_and(|slot| slot.turn == turn) {
                return false;
            }
            self.look.polling();
            let Some(slot) = slot else { return true };
            slot.queued = false;
            slot.turn = turn;
            let Some(task) = slot.task.take() else { return true };
            task
        };
        let polled = {
            let (waker, future) = task.as_mut().parts();
            let _polling = Polling::start(self, index, waker);
            let mut context = Context::from_waker(waker);
            // A panic ends this task alone. The task is not looked at again, only dropped.
            catch_unwind(AssertUnwindSafe(|| future.poll(&mut context)))
        };
        if matches!(polled, Ok(Poll::Pending)) && !self.closed.get() {
            self.slots.borrow_mut()[index as usize].task = Some(task);
            return true;
        }
        self.slots.borrow_mut().remove(index as usize);
        drop_quietly(task);
        drop_quietly(polled);
        true
    }

    /// Drops all tasks. From now on, what is spawned is dropped at once.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        let tasks: Vec<_> = self.slots.borrow_mut().drain().filter_map(|slot| slot.task).collect();
        tasks.into_iter().for_each(drop_quietly);
        self.ready.borrow_mut().clear();
        // These may be the last wakers of other runtimes' tasks.
        let injected = self.remote.lock().injected.take();
        drop(injected);
        let root = self.remote.lock().root.take();
        drop(root);
        let thread = self.thread.take();
        drop(thread);
    }

    /// Notes that the thread will wait inside tokio.
    pub(crate) fn park(&self) {
        self.parked.set(true);
    }

    pub(crate) fn unpark(&self) {
        self.parked.set(false);
    }

    /// To be called after anything that the worker's loop has to see: while the thread is parked
    /// in tokio, other code of the thread runs and may use the driver.
    pub(crate) fn disturb(&self) {
        if self.parked.replace(false) {
            self.remote.wake_root();
        }
    }
}

/// Destructors are user code: what panics there must not take the worker along.
fn drop_quietly<T>(value: T) {
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(value)));
    // What was thrown has a destructor too. Only what that throws is given up.
    if let Err(payload) = dropped
        && let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload)))
    {
        let _never_dropped = std::mem::ManuallyDrop::new(second);
    }
}

/// Tells which task is being polled, for as long as it lives.
struct Polling<'tasks>(&'tasks Tasks);

impl<'tasks> Polling<'tasks> {
    fn start(tasks: &'tasks Tasks, index: u32, waker: &Waker) -> Self {
        tasks.current.set(index);
        tasks.current_data.set(waker.data());
        Self(tasks)
    }
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.0.current.set(NOBODY);
        self.0.current_data.set(std::ptr::null());
    }
}

impl Remote {
    pub(crate) fn event(&self) -> &File {
        &self.event
    }

    /// Announces that the thread is going to sleep. False when there is something to do first.
    ///
    /// Pairs with `inject`: one side writes `sleeping` and then reads `any_injected`, the other
    /// the reverse, all sequentially consistent, so that at least one sees the other.
    pub(crate) fn fall_asleep(&self, place: Sleeping<'_>) -> bool {
        let place = match place {
            Sleeping::InRing => IN_RING,
            Sleeping::InTokio(root) => {
                self.keep_root(root);
                IN_TOKIO
            }
        };
        self.sleeping.store(place, Ordering::SeqCst);
        if self.any_injected.load(Ordering::SeqCst) {
            self.awake();
            return false;
        }
        true
    }

    fn keep_root(&self, root: &Waker) {
        let mut inbox = self.lock();
        let old = match &inbox.root {
            Some(kept) if kept.will_wake(root) => None,
            _ => inbox.root.replace(root.clone()),
        };
        drop(inbox);
        drop(old);
    }

    fn wake_root(&self) {
        let root = self.lock().root.clone();
        if let Some(root) = root {
            root.wake();
        }
    }

    pub(crate) fn any_injected(&self) -> bool {
        self.any_injected.load(Ordering::Acquire)
    }

    pub(crate) fn awake(&self) {
        // Who misses this wakes the worker for nothing.
        self.sleeping.store(AWAKE, Ordering::Relaxed);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inbox> {
        // Nothing panics while the lock is held, and a list of headers is never half-made.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inject(&self, header: Arc<Header>) {
        if header.injected.swap(true, Ordering::AcqRel) {
            return;
        }
        match self.lock().injected.as_mut() {
            Some(injected) => injected.push(header),
            None => return,
        }
        self.any_injected.store(true, Ordering::SeqCst);
        match self.sleeping.swap(AWAKE, Ordering::SeqCst) {
            IN_RING => {
                // The counter takes 2^64 - 2 of these; a full one has woken the worker already.
                let _ = (&self.event).write(&1u64.to_ne_bytes());
            }
            IN_TOKIO => self.wake_root(),
            _ => {}
        }
    }
}

impl Header {
    fn waker(remote: &Arc<Remote>, index: u32) -> Waker {
        let remote = Arc::clone(remote);
        Waker::from(Arc::new(Self { remote, index, injected: AtomicBool::new(false) }))
    }
}

impl Wake for Header {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let here = CURRENT.try_with(|current| match &*current.borrow() {
            Some(tasks) if Arc::ptr_eq(&tasks.remote, &self.remote) => {
                tasks.wake(self.index);
                true
            }
            _ => false,
        });
        // A thread that is ending has no current worker any more.
        if !here.unwrap_or(false) {
            self.remote.inject(Arc::clone(self));
        }
    }
}
