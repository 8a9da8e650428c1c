//! The worker's tasks: a slab of futures, a queue of the ready ones, and wakers that other threads
//! may hold.
//!
//! A task can be woken in three ways. An operation of the driver stores the task's index (see
//! [`Waiter`]) and pushes it to the queue. A waker used on the worker's thread finds the queue
//! through a thread-local. A waker used on another thread adds itself to a locked list and, if the
//! worker sleeps, wakes the worker: through an eventfd that the ring polls, or through tokio.
//!
//! A worker that sleeps in tokio is not woken through the ring, because one eventfd would then have
//! to signal another from within its own wake-up, and on Linux 6.18 workers were observed to stay
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

/// The index that stands for the future passed to `poll_main`.
const MAIN_TASK: u32 = u32::MAX;
/// An index that no task has.
const NO_TASK: u32 = u32::MAX - 1;
/// The maximum number of tasks polled in one iteration before the kernel is entered.
const POLLS_PER_ITERATION: usize = 1024;

thread_local! {
    /// The executor of the worker on this thread.
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
    /// Whether the future passed to `poll_main` is ready to be polled.
    main_ready: Cell<bool>,
    /// Wakes the future that the thread blocks on, which polls the one passed to `poll_main`.
    block_on_waker: RefCell<Option<Waker>>,
    /// The index of the task that is being polled.
    current: Cell<u32>,
    /// The data pointer of that task's waker.
    current_data: Cell<*const ()>,
    /// The vtable of all wakers of this executor.
    vtable: &'static RawWakerVTable,
    /// Whether the worker's loop sleeps in tokio, so that only tokio can make it run again.
    parked: Cell<bool>,
    closed: Cell<bool>,
}

struct TaskSlot {
    /// `None` while the task is being polled.
    task: Option<BoxedTask>,
    queued: bool,
    /// The iteration in which the task was last polled.
    last_iteration: u32,
}

/// The part of a worker that other threads can access.
pub(crate) struct RemoteHandle {
    event: File,
    inject_queue: Mutex<InjectQueue>,
    any_injected: AtomicBool,
    /// One of the constants below.
    park_state: AtomicU8,
}

const AWAKE: u8 = 0;
const PARKED_IN_RING: u8 = 1;
const PARKED_IN_TOKIO: u8 = 2;

/// Where a worker sleeps.
pub(crate) enum ParkTarget<'waker> {
    Ring,
    /// With the event loop's waker.
    Tokio(&'waker Waker),
}

struct InjectQueue {
    /// `None` once the worker has ended: each waker refers to this queue through its
    /// `RemoteHandle`, so a waker left in the queue would never be freed.
    injected: Option<Vec<Arc<TaskWaker>>>,
    event_loop_waker: Option<Waker>,
}

/// The data behind a waker: a task of an executor.
struct TaskWaker {
    remote: Arc<RemoteHandle>,
    index: u32,
    /// Whether the waker is in the [`InjectQueue`].
    injected: AtomicBool,
}

impl Executor {
    /// `event` is the descriptor that wakes a worker sleeping in the ring.
    pub(crate) fn new(event: File) -> Rc<Self> {
        let remote = Arc::new(RemoteHandle {
            event,
            inject_queue: Mutex::new(InjectQueue {
                injected: Some(Vec::new()),
                event_loop_waker: None,
            }),
            any_injected: AtomicBool::new(false),
            park_state: AtomicU8::new(AWAKE),
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

    /// Makes this the executor of the current thread until [`Executor::leave`].
    pub(crate) fn enter(self: &Rc<Self>) {
        CURRENT.with(|current| current.replace(Some(Rc::clone(self))));
    }

    pub(crate) fn leave(&self) {
        let previous = CURRENT.with(|current| current.replace(None));
        drop(previous);
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
            let last_iteration = self.iteration.get().wrapping_sub(1);
            slots.insert(TaskSlot { task: Some(task), queued: true, last_iteration });
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
        let waker = self.block_on_waker.borrow().clone();
        if let Some(waker) = waker {
            waker.wake();
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
        let is_registered = |registered: &Waker| registered.will_wake(context.waker());
        if !self.block_on_waker.borrow().as_ref().is_some_and(is_registered) {
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

    /// Queues the tasks that were woken on other threads.
    pub(crate) fn take_injected(&self) {
        if !self.remote.any_injected.load(Ordering::Acquire) {
            return;
        }
        let injected = {
            let mut queue = self.remote.lock();
            self.remote.any_injected.store(false, Ordering::Relaxed);
            queue.injected.as_mut().map(std::mem::take).unwrap_or_default()
        };
        for waker in injected {
            // The poll of the task may miss a wake-up that happens after this line, so such a
            // wake-up must inject the waker again. Data that the waking thread wrote before it is
            // visible to the poll.
            waker.injected.swap(false, Ordering::AcqRel);
            self.wake(waker.index);
        }
    }

    /// Polls ready tasks, and tasks that become ready meanwhile, up to a limit. Returns before it
    /// would poll a task for the second time: between two polls of a task that wakes itself because
    /// it has more work, the kernel and all other tasks run.
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

    /// Called when the driver is about to poll for completions.
    pub(crate) fn record_poll(&self, now: Duration) {
        self.poll_clock.record_poll(now, self.ready.borrow().len());
    }

    /// When the driver polled for the completions that are being processed.
    pub(crate) fn polled_at(&self) -> Duration {
        self.poll_clock.polled_at()
    }

    /// The number of tasks polled in the last iteration.
    pub(crate) fn polls(&self) -> usize {
        self.polls.get()
    }

    /// Polls a task. Returns false, without polling it, if it was already polled in this iteration.
    fn poll_task(&self, index: u32) -> bool {
        let mut task = {
            let mut slots = self.slots.borrow_mut();
            let iteration = self.iteration.get();
            let slot = slots.get_mut(index as usize);
            if slot.as_ref().is_some_and(|slot| slot.last_iteration == iteration) {
                return false;
            }
            self.poll_clock.on_task_poll();
            let Some(slot) = slot else { return true };
            slot.queued = false;
            slot.last_iteration = iteration;
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
        let event_loop_waker = self.remote.lock().event_loop_waker.take();
        drop(event_loop_waker);
        let waker = self.block_on_waker.take();
        drop(waker);
    }

    /// Called when the worker's loop is about to sleep in tokio.
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
            self.remote.wake_event_loop();
        }
    }
}

/// Drops a value without letting a panic of its destructor, which is user code, end the worker.
fn drop_catching_panic<T>(value: T) {
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(value)));
    // The panic payload has a destructor too. If that one panics as well, its payload is leaked.
    if let Err(payload) = dropped
        && let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload)))
    {
        let _never_dropped = std::mem::ManuallyDrop::new(second);
    }
}

/// While this exists, a task is marked as the one being polled.
struct CurrentTaskGuard<'executor>(&'executor Executor);

impl<'executor> CurrentTaskGuard<'executor> {
    fn start(executor: &'executor Executor, index: u32, waker: &Waker) -> Self {
        executor.current.set(index);
        executor.current_data.set(waker.data());
        Self(executor)
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
    /// Pairs with `inject`: this side writes `park_state` and then reads `any_injected`, the other
    /// side does the reverse. All accesses are sequentially consistent, so at least one side sees
    /// the other's write.
    pub(crate) fn try_park(&self, target: ParkTarget<'_>) -> bool {
        let park_state = match target {
            ParkTarget::Ring => PARKED_IN_RING,
            ParkTarget::Tokio(event_loop_waker) => {
                self.set_event_loop_waker(event_loop_waker);
                PARKED_IN_TOKIO
            }
        };
        self.park_state.store(park_state, Ordering::SeqCst);
        if self.any_injected.load(Ordering::SeqCst) {
            self.unpark();
            return false;
        }
        true
    }

    fn set_event_loop_waker(&self, waker: &Waker) {
        let mut queue = self.lock();
        let old = match &queue.event_loop_waker {
            Some(current) if current.will_wake(waker) => None,
            _ => queue.event_loop_waker.replace(waker.clone()),
        };
        drop(queue);
        drop(old);
    }

    fn wake_event_loop(&self) {
        let waker = self.lock().event_loop_waker.clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn any_injected(&self) -> bool {
        self.any_injected.load(Ordering::Acquire)
    }

    pub(crate) fn unpark(&self) {
        // A thread that misses this wakes the worker unnecessarily.
        self.park_state.store(AWAKE, Ordering::Relaxed);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, InjectQueue> {
        // Nothing panics while the lock is held, and the queue is consistent at any time.
        self.inject_queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inject(&self, waker: Arc<TaskWaker>) {
        if waker.injected.swap(true, Ordering::AcqRel) {
            return;
        }
        match self.lock().injected.as_mut() {
            Some(injected) => injected.push(waker),
            None => return,
        }
        self.any_injected.store(true, Ordering::SeqCst);
        match self.park_state.swap(AWAKE, Ordering::SeqCst) {
            PARKED_IN_RING => {
                // The write fails only if the counter is full, and then the worker was woken.
                let _ = (&self.event).write(&1u64.to_ne_bytes());
            }
            PARKED_IN_TOKIO => self.wake_event_loop(),
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
        let woken_locally = CURRENT.try_with(|current| match &*current.borrow() {
            Some(executor) if Arc::ptr_eq(&executor.remote, &self.remote) => {
                executor.wake(self.index);
                true
            }
            _ => false,
        });
        // The thread-local may already be destroyed on a thread that is ending.
        if !woken_locally.unwrap_or(false) {
            self.remote.inject(Arc::clone(self));
        }
    }
}
