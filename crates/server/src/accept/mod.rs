//! The accept loop of one listener.
//!
//! It accepts a connection only if a slot ([`Room`]) is free, so excess connections wait in the
//! kernel's backlog and cost the process nothing. If another worker has clearly fewer connections,
//! the loop hands the new connection to that worker. If the process runs out of descriptors or
//! memory, the loop backs off exponentially and retries. On shutdown, it closes the socket to new
//! connections and then serves those in the backlog.

pub(crate) mod balance;

use self::balance::{Given, MOMENT, Member};
use crate::admission::connections::Room;
use crate::connection::{Connection, Entrance};
use crate::listener::config::{Live, Shared};
use crate::worker::Worker;
use crate::worker::lifecycle::{Order, before, first_of};
use peregrine_driver::{Driver, Listener, Stream};
use peregrine_web::account::{self, Filling};
use peregrine_web::panics::{contained, discard, or_panic};
use std::future::{pending, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;

/// The first pause after the process ran out of a resource. It doubles each time, up to the
/// maximum.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// On shutdown: how often accepting may fail while no connection is open. An open connection could
/// free a resource by closing. With the pauses, the loop gives up after about two and a half
/// seconds.
const LAST_TRIES: usize = 8;

/// On shutdown: how long to wait for connections that were on their way when the socket was closed
/// to new ones.
const LAST_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections until the worker drains, and then the rest of the backlog.
pub(crate) async fn run<D: Driver>(
    worker: Rc<Worker<D>>,
    entrance: Rc<Entrance<D>>,
    listener: impl Listener<Stream = D::Stream>,
    shared: Shared,
    live: Option<watch::Receiver<Live>>,
    spreading: Option<Spreading<D::Passed>>,
) {
    let alarm = worker.wheel.alarm();
    worker.ordered(&alarm, Order::Serve).await;
    // If the worker was ordered to end before it was ordered to serve, it accepts nothing.
    let is_late = worker.order() >= Order::Drain;
    let mut way = WayIn { worker, entrance, live, spreading };
    if !is_late {
        // Log calls of drivers and libraries may panic, for example when the log cannot be written.
        // The server must continue to accept after such a panic.
        while let Err(panic) = or_panic(way.serve(&listener)).await {
            discard(panic);
            let worker = &way.worker;
            worker.driver.sleep_until(worker.driver.now() + PAUSE_MIN).await;
        }
    }
    way.take_last_passed();
    if !shared.is_so() {
        listener.refuse_new();
        way.empty_queue(&listener).await;
    } else if !is_late && let Ok(Some(stream)) = listener.last().await {
        way.open(way.room_beyond(), stream);
    }
}

/// Identifies a listener for balancing its connections over the workers.
pub(crate) struct Spreading<P> {
    pub(crate) member: Rc<Member<P>>,
    /// The listener's number.
    pub(crate) listener: usize,
}

/// The state of the accept loop of one listener.
struct WayIn<D: Driver> {
    worker: Rc<Worker<D>>,
    entrance: Rc<Entrance<D>>,
    live: Option<watch::Receiver<Live>>,
    spreading: Option<Spreading<D::Passed>>,
}

impl<D: Driver> WayIn<D> {
    /// Accepts connections until the worker drains.
    async fn serve(&mut self, listener: &impl Listener<Stream = D::Stream>) {
        let worker = Rc::clone(&self.worker);
        let alarm = worker.wheel.alarm();
        let mut pause = PAUSE_MIN;
        loop {
            if self.is_narrow() {
                if worker.order() >= Order::Drain {
                    return;
                }
                if !self.makes_room() {
                    // Leave the connection in the backlog, where it costs nothing, and retry.
                    let over = worker.driver.sleep_until(worker.driver.now() + PAUSE_MIN);
                    first_of(over, worker.ordered(&alarm, Order::Drain)).await;
                    continue;
                }
            }
            let vacancy = before(self.vacancy(), worker.ordered(&alarm, Order::Drain)).await;
            if vacancy.is_none() {
                return;
            }
            let accepted =
                before(self.accept(listener), worker.ordered(&alarm, Order::Drain)).await;
            let Some(accepted) = accepted else { return };
            match accepted {
                // A connection of another listener took the last slot. The kernel may have woken
                // this worker, and no other, for a connection here. So if one is waiting, accept it
                // although it exceeds the limit.
                None => {
                    if let Ok(Some(stream)) = listener.last().await {
                        self.open_or_pass(self.room_beyond(), stream);
                    }
                }
                Some(Ok((room, stream))) => {
                    pause = PAUSE_MIN;
                    self.follow_settings();
                    self.open_or_pass(room, stream);
                    if !self.has_room() {
                        // Another listener of this worker may have been woken for this slot and
                        // found it taken. Yield, so that the other listener queues first for the
                        // next slot.
                        others_first().await;
                    }
                }
                // The peer closed the connection before it was accepted.
                Some(Err(error)) if is_of_the_peer(&error) => {
                    contained(|| {
                        tracing::debug!(target: "peregrine", %error,
                            "a peer left before it was accepted");
                    });
                }
                // A reserved descriptor was freed: retry.
                Some(Err(error))
                    if has_no_descriptor(&error) && worker.observed.spend_reserve() => {}
                Some(Err(error)) => {
                    // The connection stays in the backlog until a resource is freed. Retrying at
                    // once would spin, and giving up would end the server.
                    let remedy = remedy(&error);
                    contained(|| {
                        tracing::warn!(target: "peregrine", %error, ?pause,
                            "cannot accept{remedy}");
                    });
                    worker.observed.refused();
                    let over = worker.driver.sleep_until(worker.driver.now() + pause);
                    first_of(over, worker.ordered(&alarm, Order::Drain)).await;
                    worker.observed.refill_reserve();
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// Returns whether new connections must use reserved slots.
    fn is_narrow(&self) -> bool {
        self.entrance.door.is_narrow(self.worker.spare_connections)
    }

    /// Returns whether one more connection may use a reserved slot. Frees pooled memory if memory
    /// is short.
    fn makes_room(&self) -> bool {
        let worker = &self.worker;
        if account::filling() >= Filling::Tight {
            // The pooled buffers count towards the memory limit, so free them.
            self.entrance.sessions.clear();
            self.shut();
            worker.observed.limit("overload.memory_max");
        }
        worker.wicket.makes_room(&worker.wheel, worker.driver.now())
    }

    /// Waits for a free connection slot. Excess connections stay in the kernel's backlog, or with
    /// the worker that accepted them. A change of the settings may raise the limit and end the
    /// wait.
    async fn vacancy(&mut self) {
        while !self.has_room() {
            self.shut();
            let door = &self.entrance.door;
            let vacancy = door.rooms.vacancy(door.limits.connections_max);
            let Some(live) = self.live.as_mut() else { return vacancy.await };
            if before(vacancy, told(live)).await.is_none() {
                self.entrance = renewed(&self.entrance, live);
            }
        }
    }

    fn has_room(&self) -> bool {
        let door = &self.entrance.door;
        door.rooms.has_room(door.limits.connections_max)
    }

    fn try_room(&self) -> Option<Room> {
        let door = &self.entrance.door;
        door.rooms.try_room(door.limits.connections_max)
    }

    /// Accepts the next connection from the backlog and takes a slot for it. Meanwhile, opens
    /// connections that other workers hand over. Returns `None` if another listener took the last
    /// slot.
    async fn accept(
        &mut self,
        listener: &impl Listener<Stream = D::Stream>,
    ) -> Option<io::Result<(Room, D::Stream)>> {
        let mut accepted = pin!(listener.accept());
        poll_fn(|context| {
            self.open_passed(context);
            let door = &self.entrance.door;
            if door.rooms.poll_full(door.limits.connections_max, context).is_ready() {
                return Poll::Ready(None);
            }
            // The slot is taken only when a connection is accepted, so an idle listener does not
            // occupy one.
            let room = || self.try_room().expect("`poll_full` found a free slot");
            accepted.as_mut().poll(context).map_ok(|stream| (room(), stream)).map(Some)
        })
        .await
    }

    /// Opens connections that other workers hand over, but leaves one slot for a connection that
    /// this worker accepts.
    fn open_passed(&mut self, context: &Context<'_>) {
        let Some(Spreading { member, listener }) = &self.spreading else { return };
        let (member, listener) = (Rc::clone(member), *listener);
        loop {
            let door = &self.entrance.door;
            let is_full = !door.rooms.has_room(door.limits.connections_max.saturating_sub(1));
            if is_full || account::filling() >= Filling::Tight {
                return member.shut(listener);
            }
            let Poll::Ready(passed) = member.poll_taken(listener, context) else { return };
            self.worker.observed.counts().taken.add(1);
            let room = self.try_room().expect("`has_room` found a free slot");
            self.follow_settings();
            self.adopt(room, passed);
        }
    }

    /// Applies settings that have changed.
    fn follow_settings(&mut self) {
        if let Some(changed) = self.live.as_mut().and_then(|live| changed(&self.entrance, live)) {
            self.entrance = changed;
        }
    }

    /// Hands the connection to a worker with fewer connections, or opens it here.
    fn open_or_pass(&self, room: Room, stream: D::Stream) {
        let driver = &self.worker.driver;
        let whom = self.spreading.as_ref().and_then(|spreading| {
            let Spreading { member, listener } = spreading;
            member.whom(*listener, || driver.now())
        });
        let Some(whom) = whom else { return self.open(room, stream) };
        match driver.pass(stream).map(|passed| whom.give(passed)) {
            Ok(Ok(given)) => self.look_after(given, room),
            Ok(Err(passed)) => self.adopt(room, passed),
            Err(error) => {
                contained(|| {
                    tracing::debug!(target: "peregrine", %error,
                        "a connection failed while being handed over");
                });
            }
        }
    }

    /// Takes the connection back if the other worker has not taken it after [`MOMENT`]. Keeps its
    /// slot until then.
    fn look_after(&self, given: Given<D::Passed>, room: Room) {
        let way = Self {
            worker: Rc::clone(&self.worker),
            entrance: Rc::clone(&self.entrance),
            live: None,
            spreading: None,
        };
        let pending = self.worker.observed.pending();
        let until = self.worker.driver.now() + MOMENT;
        self.worker.driver.spawn_boxed(Box::pin(async move {
            way.worker.driver.sleep_until(until).await;
            match given.take_back() {
                None => way.worker.observed.counts().passed.add(1),
                Some(passed) => way.adopt(room, passed),
            }
            drop(way);
            drop(pending);
        }));
    }

    fn adopt(&self, room: Room, passed: D::Passed) {
        match self.worker.driver.adopt(passed) {
            Ok(stream) => self.open(room, stream),
            Err(error) => {
                let remedy = remedy(&error);
                contained(|| {
                    tracing::warn!(target: "peregrine", %error,
                        "cannot take over a connection{remedy}");
                });
                self.worker.observed.refused();
            }
        }
    }

    fn open(&self, room: Room, stream: D::Stream) {
        let Self { worker, entrance, .. } = self;
        let client_at = entrance.door.client_at(stream.peer());
        let Ok(client) = worker.overload.connect(client_at) else {
            worker.observed.limit("overload.connections_per_client_max");
            // A reset frees the kernel's state of the connection at once.
            return stream.reset_on_drop();
        };
        let (worker, entrance) = (Rc::clone(worker), Rc::clone(entrance));
        let connection = Connection::new(worker, entrance, stream, room.open(), client);
        self.worker.driver.spawn(connection);
    }

    /// Takes a slot even if none is free. For a connection that the kernel offered to this worker
    /// only.
    fn room_beyond(&self) -> Room {
        self.try_room().unwrap_or_else(|| self.entrance.door.rooms.last_room())
    }

    /// Stops other workers from handing over connections, until this worker takes some again.
    fn shut(&self) {
        if let Some(Spreading { member, listener }) = &self.spreading {
            member.shut(*listener);
        }
    }

    /// Closes the mailbox and opens the connections in it. If there is no slot for one, the worker
    /// that accepted it takes it back.
    fn take_last_passed(&self) {
        let Some(Spreading { member, listener }) = &self.spreading else { return };
        member.shut(*listener);
        while let Some(room) = self.try_room()
            && let Some(passed) = member.take_last(*listener)
        {
            self.worker.observed.counts().taken.add(1);
            self.adopt(room, passed);
        }
    }

    /// Accepts the rest of the backlog, after the socket was closed to new connections.
    async fn empty_queue(&self, listener: &impl Listener<Stream = D::Stream>) {
        let worker = &self.worker;
        let cut = worker.wheel.alarm();
        let (mut pause, mut tries) = (PAUSE_MIN, LAST_TRIES);
        loop {
            // Slots become free soon: idle connections are about to be closed.
            let door = &self.entrance.door;
            let room = door.rooms.room(door.limits.connections_max);
            let room = before(room, worker.ordered(&cut, Order::Cut)).await;
            let Some(room) = room.filter(|_| worker.order() < Order::Cut) else { return };
            let over = worker.driver.sleep_until(worker.driver.now() + LAST_PAUSE);
            let over = first_of(over, worker.ordered(&cut, Order::Cut));
            match before(listener.accept(), over).await {
                Some(Ok(stream)) => self.open(room, stream),
                Some(Err(error)) if is_of_the_peer(&error) => {}
                // The backlog is empty.
                Some(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => return,
                Some(Err(error)) => {
                    let remedy = remedy(&error);
                    contained(|| {
                        tracing::warn!(target: "peregrine", %error, ?pause,
                        "cannot accept the rest of the backlog{remedy}")
                    });
                    worker.observed.refused();
                    drop(room);
                    // Connections may or may not be waiting. As long as connections are open, their
                    // end may free resources, so retry. Otherwise, retry only a few times.
                    if worker.observed.has_no_connection() {
                        tries -= 1;
                        if tries == 0 {
                            return;
                        }
                    }
                    let over = worker.driver.sleep_until(worker.driver.now() + pause);
                    first_of(over, worker.ordered(&cut, Order::Cut)).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                None => return,
            }
        }
    }
}

/// Returns the listener's state with new settings, if they have changed.
fn changed<D: Driver>(
    entrance: &Entrance<D>,
    live: &mut watch::Receiver<Live>,
) -> Option<Rc<Entrance<D>>> {
    // An error means that the sender was dropped: the server has ended, or its configuration cannot
    // be reloaded.
    live.has_changed().unwrap_or(false).then(|| renewed(entrance, live))
}

/// Returns the listener's state with the current settings.
fn renewed<D: Driver>(entrance: &Entrance<D>, live: &mut watch::Receiver<Live>) -> Rc<Entrance<D>> {
    let door = entrance.door.with(&live.borrow_and_update());
    Rc::new(Entrance { door, sessions: Rc::clone(&entrance.sessions) })
}

/// Completes after all other ready tasks have been polled.
async fn others_first() {
    let mut is_asked = false;
    poll_fn(|context| {
        if std::mem::replace(&mut is_asked, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Completes when the settings have changed.
async fn told(live: &mut watch::Receiver<Live>) {
    // If the sender was dropped, the settings cannot change any more.
    if live.changed().await.is_err() {
        pending::<()>().await;
    }
}

/// Returns whether the error concerns only the connection to be accepted, or is transient.
fn is_of_the_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | WouldBlock)
}

/// A hint for the log on how to fix the error.
fn remedy(error: &io::Error) -> &'static str {
    if is_exhausted(error) {
        "; raise the descriptor limit (ulimit -n) or lower connections_max"
    } else {
        ""
    }
}

/// Returns whether the process or the system is out of descriptors.
fn has_no_descriptor(error: &io::Error) -> bool {
    // EMFILE and ENFILE have these numbers on every Unix.
    matches!(error.raw_os_error(), Some(24 | 23))
}

/// Returns whether the process or the system is out of descriptors or memory.
fn is_exhausted(error: &io::Error) -> bool {
    // ENOMEM, which has the same number on every Unix, and ENOBUFS.
    has_no_descriptor(error)
        || error.raw_os_error() == Some(12)
        || error.raw_os_error() == Some(if cfg!(target_os = "linux") { 105 } else { 55 })
        || error.kind() == io::ErrorKind::OutOfMemory
}
