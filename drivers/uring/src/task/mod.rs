//! The worker's tasks: a slab of futures, a queue of the ready ones, and wakers that other threads
//! may hold.
//!
//! A task can be woken in three ways. An operation of the driver knows the task's number (see
//! [`Waiter`]) and pushes it to the queue. A waker used on the worker's thread finds the queue
//! through a thread-local. A waker used elsewhere adds the number to a locked list and, if the
//! worker sleeps, wakes it: through an eventfd that the ring polls, or through tokio.
//!
//! A worker that sleeps in tokio is not woken through the ring. In that case one eventfd would have
//! to wake another from within its own wake-up, and on Linux 6.18 workers were observed to stay
//! asleep.

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

/// The number of the future passed to `run`.
const MAIN: u32 = u32::MAX;
/// A number that no task has.
const NOBODY: u32 = u32::MAX - 1;
/// The maximum number of tasks polled in one turn before the kernel is entered.
const POLLS_PER_TURN: usize = 1024;

thread_local! {
    /// The tasks of the worker on this thread.
    static CURRENT: RefCell<Option<Rc<Tasks>>> = const { RefCell::new(None) };
}

/// A future and its waker in one allocation, so that only a pointer moves between the slot and the
/// poll.
struct Task<F: ?Sized> {
    waker: Waker,
    future: F,
}

type BoxedTask = Pin<Box<Task<dyn Future<Output = ()>>>>;

impl<F: Future + ?Sized> Task<F> {
    fn parts(self: Pin<&mut Self>) -> (&Waker, Pin<&mut F>) {
        // SAFETY: nothing is moved out of the borrow; see the next step.
        let task = unsafe { self.get_unchecked_mut() };
        // SAFETY: the task is pinned, and its future is never moved by itself, so the future is
        // pinned with it.
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
    /// The future passed to `run` is ready to be polled.
    main_due: Cell<bool>,
    /// Wakes the future that the thread blocks on, which polls the one passed to `run`.
    thread: RefCell<Option<Waker>>,
    /// The task that is being polled, and the header of its waker.
    current: Cell<u32>,
    current_data: Cell<*const ()>,
    vtable: &'static RawWakerVTable,
    /// The thread is about to run, or runs, in tokio and outside of the worker's loop.
    parked: Cell<bool>,
    closed: Cell<bool>,
}

struct Slot {
    /// `None` while it is being polled.
    task: Option<BoxedTask>,
    queued: bool,
    /// The turn in which it was last polled.
    turn: u32,
}

/// The part of a worker that other threads can access.
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

/// Where a worker sleeps.
pub(crate) enum Sleeping<'waker> {
    InRing,
    /// With the waker of the loop.
    InTokio(&'waker Waker),
}

struct Inbox {
    /// `None` once the worker has ended: a header points back here, so it would never be freed.
    injected: Option<Vec<Arc<Header>>>,
    root: Option<Waker>,
}

/// The target of a waker.
struct Header {
    remote: Arc<Remote>,
    index: u32,
    injected: AtomicBool,
}

impl Tasks {
    /// `event` is the descriptor that wakes a worker sleeping in the ring.
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

    /// Makes these the tasks of this thread until [`Tasks::leave`].
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

    /// Queues a task, unless it is already queued or gone.
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

    /// Returns whether the future passed to `run` is ready to be polled.
    pub(crate) fn is_main_due(&self) -> bool {
        self.main_due.get()
    }

    /// Polls the future passed to `run` if it is ready; `context` belongs to the future that the
    /// thread blocks on.
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

    /// Queues the tasks that other threads have woken.
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
            // A wake-up from here on is not seen by the following poll, so it must inject the task
            // again. Data written before the swap is visible to that poll.
            header.injected.swap(false, Ordering::AcqRel);
            self.wake(header.index);
        }
    }

    /// Polls ready tasks, and tasks that become ready meanwhile, up to a limit. The turn ends
    /// before a task would be polled a second time: a task that wakes itself because it has more
    /// work lets the kernel and all other tasks run in between.
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

    /// The driver is about to look for completions.
    pub(crate) fn look(&self, now: Duration) {
        self.look.at(now, self.ready.borrow().len());
    }

    /// When it looked for the completions that are processed now.
    pub(crate) fn looked(&self) -> Duration {
        self.look.began()
    }

    /// The number of tasks polled in the last turn.
    pub(crate) fn polls(&self) -> usize {
        self.polls.get()
    }

    /// Returns false if the task was already polled in this turn.
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
            // A panic ends only this task, which is then dropped without being polled again.
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

    /// Drops all tasks. Tasks that are spawned later are dropped immediately.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        let tasks: Vec<_> = self.slots.borrow_mut().drain().filter_map(|slot| slot.task).collect();
        tasks.into_iter().for_each(drop_quietly);
        self.ready.borrow_mut().clear();
        // These may be the last wakers of tasks in other runtimes.
        let injected = self.remote.lock().injected.take();
        drop(injected);
        let root = self.remote.lock().root.take();
        drop(root);
        let thread = self.thread.take();
        drop(thread);
    }

    /// The thread will wait inside tokio.
    pub(crate) fn park(&self) {
        self.parked.set(true);
    }

    pub(crate) fn unpark(&self) {
        self.parked.set(false);
    }

    /// Must be called after anything that the worker's loop must see: while the thread is parked in
    /// tokio, other code of the thread runs and may use the driver.
    pub(crate) fn disturb(&self) {
        if self.parked.replace(false) {
            self.remote.wake_root();
        }
    }
}

/// Destructors are user code: their panics must not end the worker.
fn drop_quietly<T>(value: T) {
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(value)));
    // The panic payload has a destructor too. A payload thrown by that one is leaked.
    if let Err(payload) = dropped
        && let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload)))
    {
        let _never_dropped = std::mem::ManuallyDrop::new(second);
    }
}

/// Marks a task as the one being polled, while this lives.
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

    /// Announces that the thread will sleep. Returns false if there is work to do first.
    ///
    /// Pairs with `inject`: one side writes `sleeping` and then reads `any_injected`, the other the
    /// reverse, all sequentially consistent, so that at least one sees the other's write.
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
        // A thread that misses this wakes the worker unnecessarily.
        self.sleeping.store(AWAKE, Ordering::Relaxed);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inbox> {
        // Nothing panics while the lock is held, and the list is consistent at any time.
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
                // The counter overflows at 2^64 - 1; a full one has already woken the worker.
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
        // A thread that is ending may have no current worker.
        if !here.unwrap_or(false) {
            self.remote.inject(Arc::clone(self));
        }
    }
}
