//! One worker: the state shared by all its handles, and the dispatch of completions to their
//! owners.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::{cqueue, opcode, squeue, types};
use peregrine_driver::{BlockingTasks, DriverMetrics, DriverStats, Options, SocketOptions};
use peregrine_slot::{Pool, Slab};

use crate::buffer_ring::BufferRing;
use crate::executor::Executor;
use crate::listener::ListenerSlot;
use crate::operation::{GENERATION_MASK, OpKind, Token};
use crate::prepare::PreparedRing;
use crate::ring::{EnterWait, Ring};
use crate::stream::StreamSlot;
use crate::timer::{LongIterations, LoopClock, Timers};

/// How long an ending worker waits for the kernel to release its memory. All operations were
/// cancelled before, so this is only reached if the kernel hangs.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// A worker's state. Handles hold it by `Rc`; it never leaves its thread.
///
/// None of its cells is borrowed while code from outside the driver runs, such as a waker or the
/// destructor of a task.
pub(crate) struct UringWorker {
    pub(crate) ring: RefCell<Ring>,
    /// Freed after the ring, which `shut_down` closes explicitly.
    pub(crate) buffers: BufferRing,
    pub(crate) read_ahead_buffers_max: usize,
    pub(crate) streams: RefCell<Slab<StreamSlot>>,
    /// Memory of completed sends, for reuse.
    pub(crate) buffer_pool: Pool<Vec<u8>>,
    /// The size of a large receive in bytes.
    pub(crate) large_receive_bytes: usize,
    pub(crate) socket_options: SocketOptions,
    pub(crate) listeners: RefCell<Slab<ListenerSlot>>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) clock: LoopClock,
    pub(crate) executor: Rc<Executor>,
    pub(crate) keep_awake_count: Cell<usize>,
    pub(crate) accepted: Cell<u64>,
    pub(crate) buffers_exhausted: Cell<u64>,
    /// The connections whose receive ended because no buffer was free, in that order: slot and
    /// generation.
    pub(crate) starved: RefCell<VecDeque<(u32, u32)>>,
    pub(crate) is_shutting_down: Cell<bool>,
    pub(crate) blocking_tasks: BlockingTasks,
    /// Where counters are published for other threads, and when the current iteration began.
    metrics: Option<(Arc<DriverMetrics>, Cell<Option<Duration>>)>,
    /// The most recent iterations that took long.
    pub(crate) long_iterations: RefCell<LongIterations>,
    /// Called at the end of each iteration.
    pub(crate) on_iteration_end: OnceCell<Box<dyn Fn(Duration)>>,
    in_flight: Cell<u64>,
    /// Whether the poll for wake-ups by other threads is in the ring.
    wake_armed: Cell<bool>,
    /// When the timeout operation in the ring ends a sleep, if there is one.
    wait_deadline: Cell<Option<Duration>>,
    /// The length of that timeout. Must not be changed while the operation is in the ring.
    wait_timespec: Cell<types::Timespec>,
    wait_timed_out: Cell<bool>,
    generation: Cell<u32>,
    batch: RefCell<Vec<cqueue::Entry>>,
}

impl UringWorker {
    /// Starts using the ring and its buffers on this thread.
    pub(crate) fn start(
        prepared: PreparedRing,
        options: &Options,
        blocking_tasks: BlockingTasks,
    ) -> io::Result<Rc<Self>> {
        let PreparedRing { ring, buffers } = prepared;
        ring.enable()?;
        let executor = Executor::new(File::from(create_eventfd()?));
        let worker = Rc::new(Self {
            ring: RefCell::new(ring),
            buffers,
            read_ahead_buffers_max: options.read_ahead_buffers_max.max(1),
            large_receive_bytes: options.large_receive_bytes_clamped(),
            socket_options: options.socket_options.clone(),
            streams: RefCell::new(Slab::new()),
            buffer_pool: Pool::new(64),
            listeners: RefCell::default(),
            timers: RefCell::default(),
            clock: LoopClock::start(),
            executor,
            keep_awake_count: Cell::new(0),
            accepted: Cell::new(0),
            buffers_exhausted: Cell::new(0),
            starved: RefCell::default(),
            is_shutting_down: Cell::new(false),
            blocking_tasks,
            metrics: options.metrics.clone().map(|metrics| (metrics, Cell::new(None))),
            long_iterations: RefCell::default(),
            on_iteration_end: OnceCell::new(),
            in_flight: Cell::new(0),
            wake_armed: Cell::new(false),
            wait_deadline: Cell::new(None),
            wait_timespec: Cell::new(types::Timespec::new()),
            wait_timed_out: Cell::new(false),
            generation: Cell::new(0),
            batch: RefCell::default(),
        });
        worker.arm_wake_poll()?;
        Ok(worker)
    }

    pub(crate) fn stats(&self) -> DriverStats {
        DriverStats {
            syscalls: self.ring.borrow().enter_calls(),
            accepted: self.accepted.get(),
            buffers_exhausted: self.buffers_exhausted.get(),
            in_flight: self.in_flight.get(),
        }
    }

    /// Called when an iteration begins, before completions are dispatched.
    pub(crate) fn begin_iteration(&self) {
        let now = self.clock.now();
        self.executor.record_poll(now);
        if let Some((_, iteration_start)) = &self.metrics {
            iteration_start.set(Some(now));
        }
    }

    /// Called when an iteration ends. Publishes the counters for other threads.
    pub(crate) fn end_iteration(&self) {
        let now = self.clock.precise_now(self.executor.polls());
        self.long_iterations.borrow_mut().record(self.executor.polled_at(), now);
        if let Some(callback) = self.on_iteration_end.get() {
            callback(now);
        }
        let Some((metrics, iteration_start)) = &self.metrics else { return };
        let Some(iteration_start) = iteration_start.take() else { return };
        metrics.record_iteration(now.saturating_sub(iteration_start));
        let ring = self.ring.borrow();
        metrics.syscalls.set(ring.enter_calls());
        metrics.cq_overflows.set(ring.cq_overflows());
        metrics.buffers_exhausted.set(self.buffers_exhausted.get());
        metrics.in_flight.set(self.in_flight.get().cast_signed());
        metrics.buffer_bytes.set(self.buffers.provided_bytes());
    }

    /// A generation for a new connection or listener in a slot.
    pub(crate) fn next_generation(&self) -> u32 {
        let generation = self.generation.get().wrapping_add(1) & GENERATION_MASK;
        self.generation.set(generation);
        generation
    }

    /// Queues an operation, which then counts as in flight until its final completion. On success,
    /// exactly one completion without `F_MORE` follows: the final one.
    ///
    /// # Safety
    /// All memory that `entry` refers to must stay valid and unused until the final completion.
    ///
    /// # Errors
    /// The worker has ended, or the kernel accepts no submissions.
    #[inline]
    pub(crate) unsafe fn submit(&self, entry: squeue::Entry, token: Token) -> io::Result<()> {
        let entry = entry.user_data(token.to_user_data());
        // SAFETY: the caller upholds the contract of `push`.
        unsafe { self.ring.borrow_mut().push(&entry) }?;
        self.in_flight.set(self.in_flight.get() + 1);
        self.executor.wake_loop();
        Ok(())
    }

    /// Queues the cancellation of the operation `target`. Both complete, in any order.
    pub(crate) fn cancel(&self, target: Token, kind: OpKind) -> io::Result<()> {
        let entry = opcode::AsyncCancel::new(target.to_user_data()).build();
        // SAFETY: a cancellation refers to no memory.
        unsafe { self.submit(entry, Token { kind, ..target }) }
    }

    /// Dispatches all completions to their owners. Returns whether there were any.
    pub(crate) fn dispatch(self: &Rc<Self>) -> bool {
        let mut batch = self.batch.take();
        self.ring.borrow_mut().take_completions(&mut batch);
        let any = !batch.is_empty();
        for entry in batch.drain(..) {
            self.complete(&entry);
        }
        self.batch.replace(batch);
        any
    }

    fn complete(self: &Rc<Self>, entry: &cqueue::Entry) {
        let (result, flags) = (entry.result(), entry.flags());
        let Some(token) = Token::from_user_data(entry.user_data()) else {
            debug_assert!(false, "every operation has a token");
            return;
        };
        let is_final = !cqueue::more(flags);
        if is_final && !matches!(token.kind, OpKind::Wake | OpKind::Timeout) {
            self.in_flight.set(self.in_flight.get() - 1);
        }
        match token.kind {
            OpKind::Wake => self.wake_armed.set(!is_final),
            OpKind::Accept => self.on_accept(token, result),
            OpKind::AcceptReady => self.on_accept_ready(token, result),
            OpKind::CancelAccept => self.on_accept_cancelled(token),
            OpKind::Receive => self.on_receive(token, result, flags),
            OpKind::Send => self.on_send(token, result),
            OpKind::CancelStream => self.on_stream_cancelled(token),
            OpKind::CancelAll => {}
            OpKind::Timeout => {
                self.wait_deadline.set(None);
                self.wait_timed_out.set(true);
            }
        }
    }

    /// Handles everything due between two batches of completions: timers, wake-ups from other
    /// threads, and receives that waited for buffers.
    pub(crate) fn run_deferred(&self) -> io::Result<()> {
        self.expire_timers();
        self.executor.take_injected();
        self.rearm_starved();
        if self.wake_armed.get() { Ok(()) } else { self.arm_wake_poll() }
    }

    fn expire_timers(&self) {
        if self.timers.borrow().is_empty() {
            return;
        }
        let now = self.clock.now();
        loop {
            let expired = self.timers.borrow_mut().expire(now);
            match expired {
                Some(waiter) => waiter.wake(&self.executor),
                None => return,
            }
        }
    }

    /// Ensures that a sleep in the ring ends at the next timer, and after `timeout_max` at the
    /// latest. Returns the time limit to pass to the wait itself, if one is needed.
    ///
    /// One timeout operation stays in the ring for many sleeps. With a time limit for each wait,
    /// the kernel would have to set and clear a timer each time.
    pub(crate) fn arm_wait_timeout(&self, timeout_max: Duration) -> io::Result<Option<Duration>> {
        let timer = self.timers.borrow().next_deadline();
        if let (Some(deadline), None) = (self.wait_deadline.get(), timer) {
            debug_assert!(
                deadline <= self.clock.now() + timeout_max,
                "no timeout is longer than `timeout_max`"
            );
            return Ok(None);
        }
        // The tasks of this iteration may have taken a long time.
        self.clock.invalidate(true);
        let now = self.clock.now();
        if let Some(deadline) = self.wait_deadline.get() {
            return Ok(timer
                .filter(|timer| *timer < deadline)
                .map(|timer| timer.saturating_sub(now)));
        }
        let deadline = timer.map_or(now + timeout_max, |timer| timer.min(now + timeout_max));
        self.wait_timespec.set(deadline.saturating_sub(now).into());
        let entry = opcode::Timeout::new(self.wait_timespec.as_ptr()).build();
        let entry = entry.user_data(Token::new(OpKind::Timeout, 0, 0).to_user_data());
        // SAFETY: `UringWorker` outlives the ring and is not moved, because it is in an `Rc`; the
        // length is not written while `wait_deadline` says that the timeout is in the ring.
        unsafe { self.ring.borrow_mut().push(&entry) }?;
        self.wait_deadline.set(Some(deadline));
        Ok(None)
    }

    /// Returns whether the timeout operation has expired since the last call.
    pub(crate) fn take_wait_timed_out(&self) -> bool {
        self.wait_timed_out.take()
    }

    /// Makes the ring produce a completion whenever another thread wakes a task.
    ///
    /// A multishot poll reports each write to the eventfd, so its counter is never read.
    fn arm_wake_poll(&self) -> io::Result<()> {
        if self.is_shutting_down.get() {
            return Ok(());
        }
        let event = types::Fd(self.executor.remote().event().as_raw_fd());
        let entry = opcode::PollAdd::new(event, libc::POLLIN as u32).multi(true).build();
        let entry = entry.user_data(Token::new(OpKind::Wake, 0, 0).to_user_data());
        // SAFETY: a poll refers to no memory.
        unsafe { self.ring.borrow_mut().push(&entry) }?;
        self.wake_armed.set(true);
        Ok(())
    }

    /// Cancels all operations, waits until the kernel has finished them, and closes the ring.
    /// Handles may outlive this; their calls fail.
    pub(crate) fn shut_down(self: &Rc<Self>) {
        self.is_shutting_down.set(true);
        let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
        self.await_cancelled();
        while self.in_flight.get() > 0
            || self.wake_armed.get()
            || self.wait_deadline.get().is_some()
        {
            if Instant::now() > deadline || self.cancel_all().is_err() {
                break;
            }
            let mut ring = self.ring.borrow_mut();
            if ring.enter(EnterWait::Completion(Some(Duration::from_millis(20)))).is_err() {
                break;
            }
            drop(ring);
            self.dispatch();
        }
        self.ring.borrow_mut().close();
        if self.in_flight.get() > 0 {
            // The kernel may still write to buffers or read data being sent. Leaking the memory is
            // the smaller harm.
            let _never_freed = std::mem::ManuallyDrop::new(Rc::clone(self));
        }
    }

    /// Waits for operations that were already cancelled individually, such as those of dropped
    /// connections, before [`Self::cancel_all`] is called. To cancel everything, the kernel
    /// searches all operations for each one, which takes seconds with thousands of connections.
    fn await_cancelled(self: &Rc<Self>) {
        // Gives up after two waits of 20 ms in which nothing completed.
        let mut idle_rounds = 0;
        while self.in_flight.get() > 0 && idle_rounds < 2 {
            let before = self.in_flight.get();
            let wait = EnterWait::Completion(Some(Duration::from_millis(20)));
            if self.ring.borrow_mut().enter(wait).is_err() {
                return;
            }
            self.dispatch();
            let any_completed = self.in_flight.get() < before;
            idle_rounds = if any_completed { 0 } else { idle_rounds + 1 };
        }
    }

    fn cancel_all(&self) -> io::Result<()> {
        let entry = opcode::AsyncCancel2::new(types::CancelBuilder::any().all()).build();
        // SAFETY: a cancellation refers to no memory.
        unsafe { self.submit(entry, Token::new(OpKind::CancelAll, 0, 0)) }
    }
}

pub(crate) fn create_eventfd() -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers.
    let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just created this descriptor, and nothing else uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
