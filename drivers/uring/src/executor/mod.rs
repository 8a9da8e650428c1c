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

use peregrine_slot::Slab;

use crate::poll_clock::PollClock;

/// The number of the future passed to `poll_main`.
const MAIN_TASK: u32 = u32::MAX;
/// A number that no task has.
const NO_TASK: u32 = u32::MAX - 1;
/// The maximum number of tasks polled in one iteration before the kernel is entered.
const POLLS_PER_ITERATION: usize = 1024;

thread_local! {
    /// The tasks of the worker on this thread.
    static CURRENT: RefCell<Option<Rc<Executor>>> = const { RefCell::new(None) };
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
pub(crate) struct Executor {
    remote: Arc<RemoteHandle>,
    slots: RefCell<Slab<TaskSlot>>,
    ready: RefCell<VecDeque<u32>>,
    poll_clock: PollClock,
    polls: Cell<usize>,
    /// The number of the iteration, modulo 2^32.
    iteration: Cell<u32>,
    main_waker: Waker,
    /// The future passed to `poll_main` is ready to be polled.
    main_ready: Cell<bool>,
    /// Wakes the future that the thread blocks on, which polls the one passed to `poll_main`.
    block_on_waker: RefCell<Option<Waker>>,
    /// The task that is being polled, and the header of its waker.
    current: Cell<u32>,
    current_data: Cell<*const ()>,
    vtable: &'static RawWakerVTable,
    /// The thread is about to run, or runs, in tokio and outside of the worker's loop.
    parked: Cell<bool>,
    closed: Cell<bool>,
}

struct TaskSlot {
    /// `None` while it is being polled.
    task: Option<BoxedTask>,
    queued: bool,
    /// The iteration in which it was last polled.
    last_iteration: u32,
}

/// The part of a worker that other threads can access.
pub(crate) struct RemoteHandle {
    event: File,
    inject_queue: Mutex<InjectQueue>,
    any_injected: AtomicBool,
    /// One of the constants below.
    parked: AtomicU8,
}

const AWAKE: u8 = 0;
const PARKED_IN_RING: u8 = 1;
const PARKED_IN_TOKIO: u8 = 2;

/// Where a worker sleeps.
pub(crate) enum ParkTarget<'waker> {
    Ring,
    /// With the waker of the loop.
    Tokio(&'waker Waker),
}

struct InjectQueue {
    /// `None` once the worker has ended: a header points back here, so it would never be freed.
    injected: Option<Vec<Arc<TaskWaker>>>,
    root: Option<Waker>,
}

/// The target of a waker.
struct TaskWaker {
    remote: Arc<RemoteHandle>,
    index: u32,
    injected: AtomicBool,
}

impl Executor {
    /// `event` is the descriptor that wakes a worker sleeping in the ring.
    pub(crate) fn new(event: File) -> Rc<Self> {
        let remote = Arc::new(RemoteHandle {
            event,
            inject_queue: Mutex::new(InjectQueue { injected: Some(Vec::new()), root: None }),
            any_injected: AtomicBool::new(false),
            parked: AtomicU8::new(AWAKE),
        });
        let main_waker = TaskWaker::new_waker(&remote, MAIN_TASK);
        Rc::new(Self {
            vtable: main_waker.vtable(),
            remote,
            slots: RefCell::new(Slab::new()),
            ready: RefCell::default(),
            poll_clock: PollClock::default(),
            polls: Cell::new(0),
            iteration: Cell::new(0),
            main_waker,
            main_ready: Cell::new(true),
            block_on_waker: RefCell::default(),
            current: Cell::new(NO_TASK),
            current_data: Cell::new(std::ptr::null()),
            parked: Cell::new(false),
            closed: Cell::new(false),
        })
    }

    /// Makes these the tasks of this thread until [`Executor::leave`].
    pub(crate) fn enter(self: &Rc<Self>) {
        CURRENT.with(|current| current.replace(Some(Rc::clone(self))));
    }

    pub(crate) fn leave(&self) {
        let left = CURRENT.with(|current| current.replace(None));
        drop(left);
    }

    pub(crate) fn remote(&self) -> &RemoteHandle {
        &self.remote
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        if self.closed.get() {
            return;
        }
        let index = {
            let mut slots = self.slots.borrow_mut();
            let index = u32::try_from(slots.vacant_key()).expect("fewer than 2^32 tasks");
            let waker = TaskWaker::new_waker(&self.remote, index);
            let task: BoxedTask = Box::pin(Task { waker, future: task });
            let turn = self.iteration.get().wrapping_sub(1);
            slots.insert(TaskSlot { task: Some(task), queued: true, last_iteration: turn });
            index
        };
        self.ready.borrow_mut().push_back(index);
        self.wake_loop();
    }

    /// Queues a task, unless it is already queued or gone.
    pub(crate) fn wake(&self, index: u32) {
        if index == MAIN_TASK {
            return self.wake_main();
        }
        let mut slots = self.slots.borrow_mut();
        match slots.get_mut(index as usize) {
            Some(slot) if !slot.queued => slot.queued = true,
            _ => return,
        }
        drop(slots);
        self.ready.borrow_mut().push_back(index);
        self.wake_loop();
    }

    fn wake_main(&self) {
        if self.main_ready.replace(true) {
            return;
        }
        let thread = self.block_on_waker.borrow().clone();
        if let Some(thread) = thread {
            thread.wake();
        }
    }

    /// Returns whether the future passed to `poll_main` is ready to be polled.
    pub(crate) fn is_main_ready(&self) -> bool {
        self.main_ready.get()
    }

    /// Polls the future passed to `poll_main` if it is ready; `context` belongs to the future that
    /// the thread blocks on.
    pub(crate) fn poll_main<F: Future>(
        &self,
        main: Pin<&mut F>,
        context: &Context<'_>,
    ) -> Poll<F::Output> {
        let is_kept = |kept: &Waker| kept.will_wake(context.waker());
        if !self.block_on_waker.borrow().as_ref().is_some_and(is_kept) {
            let old = self.block_on_waker.replace(Some(context.waker().clone()));
            drop(old);
        }
        if !self.main_ready.take() {
            return Poll::Pending;
        }
        let _polling = CurrentTaskGuard::start(self, MAIN_TASK, &self.main_waker);
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

    /// Polls ready tasks, and tasks that become ready meanwhile, up to a limit. The iteration ends
    /// before a task would be polled a second time: a task that wakes itself because it has more
    /// work lets the kernel and all other tasks run in between.
    pub(crate) fn run_ready(&self) {
        self.polls.set(0);
        self.iteration.set(self.iteration.get().wrapping_add(1));
        for polls in 1..=POLLS_PER_ITERATION {
            let Some(index) = self.ready.borrow_mut().pop_front() else { return };
            if !self.poll_task(index) {
                return self.ready.borrow_mut().push_front(index);
            }
            self.polls.set(polls);
        }
    }

    /// The driver is about to poll for completions.
    pub(crate) fn record_poll(&self, now: Duration) {
        self.poll_clock.record_poll(now, self.ready.borrow().len());
    }

    /// When it looked for the completions that are processed now.
    pub(crate) fn polled_at(&self) -> Duration {
        self.poll_clock.polled_at()
    }

    /// The number of tasks polled in the last iteration.
    pub(crate) fn polls(&self) -> usize {
        self.polls.get()
    }

    /// Returns false if the task was already polled in this iteration.
    fn poll_task(&self, index: u32) -> bool {
        let mut task = {
            let mut slots = self.slots.borrow_mut();
            let turn = self.iteration.get();
            let slot = slots.get_mut(index as usize);
            if slot.as_ref().is_some_and(|slot| slot.last_iteration == turn) {
                return false;
            }
            self.poll_clock.on_task_poll();
            let Some(slot) = slot else { return true };
            slot.queued = false;
            slot.last_iteration = turn;
            let Some(task) = slot.task.take() else { return true };
            task
        };
        let polled = {
            let (waker, future) = task.as_mut().parts();
            let _polling = CurrentTaskGuard::start(self, index, waker);
            let mut context = Context::from_waker(waker);
            // A panic ends only this task, which is then dropped without being polled again.
            catch_unwind(AssertUnwindSafe(|| future.poll(&mut context)))
        };
        if matches!(polled, Ok(Poll::Pending)) && !self.closed.get() {
            self.slots.borrow_mut()[index as usize].task = Some(task);
            return true;
        }
        self.slots.borrow_mut().remove(index as usize);
        drop_catching_panic(task);
        drop_catching_panic(polled);
        true
    }

    /// Drops all tasks. Tasks that are spawned later are dropped immediately.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        let tasks: Vec<_> = self.slots.borrow_mut().drain().filter_map(|slot| slot.task).collect();
        tasks.into_iter().for_each(drop_catching_panic);
        self.ready.borrow_mut().clear();
        // These may be the last wakers of tasks in other runtimes.
        let injected = self.remote.lock().injected.take();
        drop(injected);
        let root = self.remote.lock().root.take();
        drop(root);
        let thread = self.block_on_waker.take();
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
    pub(crate) fn wake_loop(&self) {
        if self.parked.replace(false) {
            self.remote.wake_root();
        }
    }
}

/// Destructors are user code: their panics must not end the worker.
fn drop_catching_panic<T>(value: T) {
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(value)));
    // The panic payload has a destructor too. A payload thrown by that one is leaked.
    if let Err(payload) = dropped
        && let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload)))
    {
        let _never_dropped = std::mem::ManuallyDrop::new(second);
    }
}

/// Marks a task as the one being polled, while this lives.
struct CurrentTaskGuard<'tasks>(&'tasks Executor);

impl<'tasks> CurrentTaskGuard<'tasks> {
    fn start(tasks: &'tasks Executor, index: u32, waker: &Waker) -> Self {
        tasks.current.set(index);
        tasks.current_data.set(waker.data());
        Self(tasks)
    }
}

impl Drop for CurrentTaskGuard<'_> {
    fn drop(&mut self) {
        self.0.current.set(NO_TASK);
        self.0.current_data.set(std::ptr::null());
    }
}

impl RemoteHandle {
    pub(crate) fn event(&self) -> &File {
        &self.event
    }

    /// Announces that the thread will sleep. Returns false if there is work to do first.
    ///
    /// Pairs with `inject`: one side writes `parked` and then reads `any_injected`, the other the
    /// reverse, all sequentially consistent, so that at least one sees the other's write.
    pub(crate) fn try_park(&self, place: ParkTarget<'_>) -> bool {
        let place = match place {
            ParkTarget::Ring => PARKED_IN_RING,
            ParkTarget::Tokio(root) => {
                self.set_root(root);
                PARKED_IN_TOKIO
            }
        };
        self.parked.store(place, Ordering::SeqCst);
        if self.any_injected.load(Ordering::SeqCst) {
            self.unpark();
            return false;
        }
        true
    }

    fn set_root(&self, root: &Waker) {
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

    pub(crate) fn unpark(&self) {
        // A thread that misses this wakes the worker unnecessarily.
        self.parked.store(AWAKE, Ordering::Relaxed);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, InjectQueue> {
        // Nothing panics while the lock is held, and the list is consistent at any time.
        self.inject_queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inject(&self, header: Arc<TaskWaker>) {
        if header.injected.swap(true, Ordering::AcqRel) {
            return;
        }
        match self.lock().injected.as_mut() {
            Some(injected) => injected.push(header),
            None => return,
        }
        self.any_injected.store(true, Ordering::SeqCst);
        match self.parked.swap(AWAKE, Ordering::SeqCst) {
            PARKED_IN_RING => {
                // The counter overflows at 2^64 - 1; a full one has already woken the worker.
                let _ = (&self.event).write(&1u64.to_ne_bytes());
            }
            PARKED_IN_TOKIO => self.wake_root(),
            _ => {}
        }
    }
}

impl TaskWaker {
    fn new_waker(remote: &Arc<RemoteHandle>, index: u32) -> Waker {
        let remote = Arc::clone(remote);
        Waker::from(Arc::new(Self { remote, index, injected: AtomicBool::new(false) }))
    }
}

impl Wake for TaskWaker {
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
