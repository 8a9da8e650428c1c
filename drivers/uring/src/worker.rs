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
use peregrine_driver::{Counters, Figures, Functions, Options, SocketOptions};
use peregrine_slot::{Pool, Table};

use crate::buffers::Buffers;
use crate::listener::Listening;
use crate::operation::{GENERATION_MASK, Kind, Token};
use crate::prepare::Prepared;
use crate::ring::{Ring, Wait};
use crate::stream::Connection;
use crate::task::Tasks;
use crate::timer::{Clock, LongTurns, Timers};

/// How long an ending worker waits for the kernel to release its memory. Everything has been
/// cancelled before, so this is only reached if the kernel hangs.
const SHUTDOWN_MAX: Duration = Duration::from_secs(5);

/// A worker's state. Handles hold it by `Rc`; it never leaves its thread.
///
/// None of its cells is borrowed while foreign code runs (a waker, a destructor of a task).
pub(crate) struct Shared {
    pub(crate) ring: RefCell<Ring>,
    /// Freed after the ring, which is closed explicitly before.
    pub(crate) buffers: Buffers,
    pub(crate) receive_ahead_max: usize,
    pub(crate) streams: RefCell<Table<Connection>>,
    /// Memory of completed sends, for reuse.
    pub(crate) spare: Pool<Vec<u8>>,
    /// The size of a large receive in bytes.
    pub(crate) large_bytes: usize,
    pub(crate) sockets: SocketOptions,
    pub(crate) listeners: RefCell<Table<Listening>>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) clock: Clock,
    pub(crate) tasks: Rc<Tasks>,
    pub(crate) holds: Cell<usize>,
    pub(crate) accepted: Cell<u64>,
    pub(crate) buffers_exhausted: Cell<u64>,
    /// Connections whose receive ended because of a lack of buffers: slot and generation, in order.
    pub(crate) starved: RefCell<VecDeque<(u32, u32)>>,
    pub(crate) ending: Cell<bool>,
    pub(crate) functions: Functions,
    /// Where counters are published for other threads, and when the current turn began.
    figures: Option<(Arc<Figures>, Cell<Option<Duration>>)>,
    /// The last turns that took long.
    pub(crate) long_turns: RefCell<LongTurns>,
    /// Called at the end of each turn.
    pub(crate) turn_end: OnceCell<Box<dyn Fn(Duration)>>,
    in_flight: Cell<u64>,
    wake_armed: Cell<bool>,
    /// When the timeout in the ring ends the sleep, if there is one.
    sleep_until: Cell<Option<Duration>>,
    /// The length of that timeout. Must not be changed while it is in the ring.
    sleep_length: Cell<types::Timespec>,
    sleep_ended: Cell<bool>,
    generation: Cell<u32>,
    batch: RefCell<Vec<cqueue::Entry>>,
}

impl Shared {
    /// Starts using the ring and its buffers on this thread.
    pub(crate) fn start(
        prepared: Prepared,
        options: &Options,
        functions: Functions,
    ) -> io::Result<Rc<Self>> {
        let Prepared { ring, buffers } = prepared;
        ring.enable()?;
        let tasks = Tasks::new(File::from(new_event()?));
        let shared = Rc::new(Self {
            ring: RefCell::new(ring),
            buffers,
            receive_ahead_max: options.receive_ahead_max.max(1),
            large_bytes: options.large_bytes(),
            sockets: options.sockets.clone(),
            streams: RefCell::new(Table::new()),
            spare: Pool::new(64),
            listeners: RefCell::default(),
            timers: RefCell::default(),
            clock: Clock::start(),
            tasks,
            holds: Cell::new(0),
            accepted: Cell::new(0),
            buffers_exhausted: Cell::new(0),
            starved: RefCell::default(),
            ending: Cell::new(false),
            functions,
            figures: options.figures.clone().map(|figures| (figures, Cell::new(None))),
            long_turns: RefCell::default(),
            turn_end: OnceCell::new(),
            in_flight: Cell::new(0),
            wake_armed: Cell::new(false),
            sleep_until: Cell::new(None),
            sleep_length: Cell::new(types::Timespec::new()),
            sleep_ended: Cell::new(false),
            generation: Cell::new(0),
            batch: RefCell::default(),
        });
        shared.watch_wakes()?;
        Ok(shared)
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters {
            enters: self.ring.borrow().enters(),
            accepted: self.accepted.get(),
            buffers_exhausted: self.buffers_exhausted.get(),
            in_flight: self.in_flight.get(),
        }
    }

    /// A turn begins: completions are about to be dispatched.
    pub(crate) fn begin_turn(&self) {
        let now = self.clock.now();
        self.tasks.look(now);
        if let Some((_, began)) = &self.figures {
            began.set(Some(now));
        }
    }

    /// The turn is over: publishes the counters for other threads.
    pub(crate) fn end_turn(&self) {
        let now = self.clock.read(self.tasks.polls());
        self.long_turns.borrow_mut().end(self.tasks.looked(), now);
        if let Some(end) = self.turn_end.get() {
            end(now);
        }
        let Some((figures, began)) = &self.figures else { return };
        let Some(began) = began.take() else { return };
        figures.turn(now.saturating_sub(began));
        let ring = self.ring.borrow();
        figures.enters.set(ring.enters());
        figures.overflows.set(ring.overflows());
        figures.buffers_exhausted.set(self.buffers_exhausted.get());
        figures.in_flight.set(self.in_flight.get().cast_signed());
        figures.buffer_bytes.set(self.buffers.used_bytes());
    }

    /// A generation for a slot's next user.
    pub(crate) fn next_generation(&self) -> u32 {
        let generation = self.generation.get().wrapping_add(1) & GENERATION_MASK;
        self.generation.set(generation);
        generation
    }

    /// Queues an operation. On success, exactly one completion without `F_MORE` follows, with which
    /// `dispatch` counts the operation out.
    ///
    /// # Safety
    /// All memory that `entry` refers to must stay valid and unused until that completion.
    ///
    /// # Errors
    /// The worker has ended, or the kernel accepts no submissions.
    #[inline]
    pub(crate) unsafe fn submit(&self, entry: squeue::Entry, token: Token) -> io::Result<()> {
        let entry = entry.user_data(token.to_user_data());
        // SAFETY: the caller upholds the contract of `push`.
        unsafe { self.ring.borrow_mut().push(&entry) }?;
        self.in_flight.set(self.in_flight.get() + 1);
        self.tasks.disturb();
        Ok(())
    }

    /// Queues the cancellation of the operation `target`. Both complete, in any order.
    pub(crate) fn cancel(&self, target: Token, kind: Kind) -> io::Result<()> {
        let entry = opcode::AsyncCancel::new(target.to_user_data()).build();
        // SAFETY: a cancellation refers to no memory.
        unsafe { self.submit(entry, Token { kind, ..target }) }
    }

    /// Dispatches all completions to their owners. Returns true if there were any.
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
        let ended = !cqueue::more(flags);
        if ended && !matches!(token.kind, Kind::Wake | Kind::Timeout) {
            self.in_flight.set(self.in_flight.get() - 1);
        }
        match token.kind {
            Kind::Wake => self.wake_armed.set(!ended),
            Kind::Accept => self.on_accept(token, result),
            Kind::Connection => self.on_connection(token, result),
            Kind::CancelAccept => self.on_accept_cancelled(token),
            Kind::Receive => self.on_receive(token, result, flags),
            Kind::Send => self.on_send(token, result),
            Kind::CancelStream => self.on_stream_cancelled(token),
            Kind::CancelAll => {}
            Kind::Timeout => {
                self.sleep_until.set(None);
                self.sleep_ended.set(true);
            }
        }
    }

    /// Handles everything due between two batches of completions: timers, wake-ups from other
    /// threads, and receives that waited for buffers.
    pub(crate) fn between_batches(&self) -> io::Result<()> {
        self.expire_timers();
        self.tasks.take_injected();
        self.feed_starved();
        if self.wake_armed.get() { Ok(()) } else { self.watch_wakes() }
    }

    fn expire_timers(&self) {
        if self.timers.borrow().is_empty() {
            return;
        }
        let now = self.clock.now();
        loop {
            let due = self.timers.borrow_mut().expire(now);
            match due {
                Some(waiter) => waiter.wake(&self.tasks),
                None => return,
            }
        }
    }

    /// Ensures that a sleep in the ring ends at the next timer, and after `longest` at the latest.
    /// Returns the timeout to pass to the wait itself, if any.
    ///
    /// One timeout operation stays in the ring for many sleeps; a time limit for each wait would
    /// make the kernel set and clear a timer each time.
    pub(crate) fn limit_sleep(&self, longest: Duration) -> io::Result<Option<Duration>> {
        let timer = self.timers.borrow().next_deadline();
        if let (Some(end), None) = (self.sleep_until.get(), timer) {
            debug_assert!(end <= self.clock.now() + longest, "timeouts are set with `longest`");
            return Ok(None);
        }
        // The tasks of this turn may have taken a long time.
        self.clock.turn(true);
        let now = self.clock.now();
        if let Some(end) = self.sleep_until.get() {
            return Ok(timer.filter(|timer| *timer < end).map(|timer| timer.saturating_sub(now)));
        }
        let end = timer.map_or(now + longest, |timer| timer.min(now + longest));
        self.sleep_length.set(end.saturating_sub(now).into());
        let entry = opcode::Timeout::new(self.sleep_length.as_ptr()).build();
        let entry = entry.user_data(Token::new(Kind::Timeout, 0, 0).to_user_data());
        // SAFETY: `Shared` outlives the ring and is not moved, because it is in an `Rc`; the length
        // is not written while `sleep_until` says that the timeout is in the ring.
        unsafe { self.ring.borrow_mut().push(&entry) }?;
        self.sleep_until.set(Some(end));
        Ok(None)
    }

    /// Returns whether a sleep has timed out since the last call.
    pub(crate) fn take_sleep_ended(&self) -> bool {
        self.sleep_ended.take()
    }

    /// Makes the ring produce a completion whenever another thread wakes a task.
    ///
    /// A multishot poll reports each write to the eventfd, so its counter is never read.
    fn watch_wakes(&self) -> io::Result<()> {
        if self.ending.get() {
            return Ok(());
        }
        let event = types::Fd(self.tasks.remote().event().as_raw_fd());
        let entry = opcode::PollAdd::new(event, libc::POLLIN as u32).multi(true).build();
        let entry = entry.user_data(Token::new(Kind::Wake, 0, 0).to_user_data());
        // SAFETY: a poll refers to no memory.
        unsafe { self.ring.borrow_mut().push(&entry) }?;
        self.wake_armed.set(true);
        Ok(())
    }

    /// Cancels all operations, waits until the kernel has finished them, and closes the ring.
    /// Handles may outlive this; their calls fail.
    pub(crate) fn shut_down(self: &Rc<Self>) {
        self.ending.set(true);
        let end = Instant::now() + SHUTDOWN_MAX;
        self.await_cancelled();
        while self.in_flight.get() > 0 || self.wake_armed.get() || self.sleep_until.get().is_some()
        {
            if Instant::now() > end || self.cancel_all().is_err() {
                break;
            }
            let mut ring = self.ring.borrow_mut();
            if ring.enter(Wait::Completion(Some(Duration::from_millis(20)))).is_err() {
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

    /// Waits for operations that were cancelled individually, such as those of dropped connections.
    /// Cancelling everything makes the kernel search all operations for each one, which takes
    /// seconds with thousands of connections, and is not needed for those that are ending anyway.
    fn await_cancelled(self: &Rc<Self>) {
        let mut rounds_without_end = 0;
        while self.in_flight.get() > 0 && rounds_without_end < 2 {
            let before = self.in_flight.get();
            let wait = Wait::Completion(Some(Duration::from_millis(20)));
            if self.ring.borrow_mut().enter(wait).is_err() {
                return;
            }
            self.dispatch();
            let any_ended = self.in_flight.get() < before;
            rounds_without_end = if any_ended { 0 } else { rounds_without_end + 1 };
        }
    }

    fn cancel_all(&self) -> io::Result<()> {
        let entry = opcode::AsyncCancel2::new(types::CancelBuilder::any().all()).build();
        // SAFETY: a cancellation refers to no memory.
        unsafe { self.submit(entry, Token::new(Kind::CancelAll, 0, 0)) }
    }
}

pub(crate) fn new_event() -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers.
    let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just created this descriptor, and nothing else uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
