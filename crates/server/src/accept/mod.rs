//! The accept loop of one listener.
//!
//! It takes a connection from the kernel only when a [`Room`] is free, so excess connections wait in
//! the backlog and cost the process nothing. If another worker has clearly fewer connections, the
//! new one is handed off to that worker. When the process runs out of descriptors or memory, the
//! loop backs off exponentially and continues. On shutdown it stops new connections and then serves
//! the ones already in the backlog.

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

/// The first pause after the process ran out of something, doubled each time up to the last.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How often accepting who waits at the end may fail when no connection is left whose end would free something: for two
/// seconds and a half.
const LAST_TRIES: usize = 8;

/// When the socket takes no new connections any more: how long to wait for those that are on their way.
const LAST_PAUSE: Duration = Duration::from_millis(100);

/// Accepts until the worker drains, and then the connections that wait already.
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
    // Whoever is ordered to end before it was to serve accepts nobody.
    let is_late = worker.order() >= Order::Drain;
    let mut way = WayIn { worker, entrance, live, spreading };
    if !is_late {
        // What drivers and libraries log may panic as well, where nobody can write the log. Never trying again would be the end of
        // the server.
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

/// The part that a listener's connections have in spreading them over workers.
pub(crate) struct Spreading<P> {
    pub(crate) member: Rc<Member<P>>,
    /// The listener's number.
    pub(crate) listener: usize,
}

/// How connections come to this worker by one listener.
struct WayIn<D: Driver> {
    worker: Rc<Worker<D>>,
    entrance: Rc<Entrance<D>>,
    live: Option<watch::Receiver<Live>>,
    spreading: Option<Spreading<D::Passed>>,
}

impl<D: Driver> WayIn<D> {
    /// Accepts until the worker drains.
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
                    // Who waits in the backlog costs nothing here.
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
                // Another listener has given the last place away. Who came here at the same time would wait: no other worker
                // was told of it.
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
                        // Who waits for a place as well and was told of this one asks again before this listener does, and so
                        // gets the next.
                        others_first().await;
                    }
                }
                // The peer was gone before it was accepted.
                Some(Err(error)) if is_of_the_peer(&error) => {
                    contained(|| tracing::debug!(target: "peregrine", %error, "a peer gave up"));
                }
                // One that is kept for this is free from now on: once more.
                Some(Err(error))
                    if has_no_descriptor(&error) && worker.observed.spend_reserve() => {}
                Some(Err(error)) => {
                    // The connection waits in the backlog until something is freed. Trying again at
                    // once would spin; never trying again would be the end of the server.
                    let remedy = remedy(&error);
                    contained(
                        || tracing::warn!(target: "peregrine", %error, ?pause, "cannot accept{remedy}"),
                    );
                    worker.observed.refused();
                    let over = worker.driver.sleep_until(worker.driver.now() + pause);
                    first_of(over, worker.ordered(&alarm, Order::Drain)).await;
                    worker.observed.refill_reserve();
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// Is there little room, so that who comes now comes by the wicket?
    fn is_narrow(&self) -> bool {
        self.entrance.door.is_narrow(self.worker.spare_connections)
    }

    /// May one more come by the wicket?
    fn makes_room(&self) -> bool {
        let worker = &self.worker;
        if account::filling() >= Filling::Tight {
            // What is kept for reuse is memory, too.
            self.entrance.sessions.clear();
            self.shut();
            worker.observed.limit("overload.memory_max");
        }
        worker.wicket.makes_room(&worker.wheel, worker.driver.now())
    }

    /// Ends when there is a place for one more connection. One that would be too many stays in the kernel's backlog, or
    /// with the worker that accepted it. Settings that change meanwhile may allow it earlier.
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

    /// The next connection in the kernel's queue, with its place. Meanwhile those that other workers pass are opened.
    /// `None`: there is no place any more, since another listener has given it away.
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
            // Only now: a listener to which nobody comes keeps no place from the others.
            let room = || self.try_room().expect("there was one just now");
            accepted.as_mut().poll(context).map_ok(|stream| (room(), stream)).map(Some)
        })
        .await
    }

    /// Opens what others have passed, as long as there is a place beside the one for who is accepted next.
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
            let room = self.try_room().expect("nobody has taken a place since");
            self.follow_settings();
            self.adopt(room, passed);
        }
    }

    /// Settings that have changed hold from now on.
    fn follow_settings(&mut self) {
        if let Some(changed) = self.live.as_mut().and_then(|live| changed(&self.entrance, live)) {
            self.entrance = changed;
        }
    }

    /// The connection is another worker's, if that has fewer, and otherwise this one's.
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
                contained(
                    || tracing::debug!(target: "peregrine", %error, "a connection broke while it was passed"),
                );
            }
        }
    }

    /// Takes what was passed back if it is not taken in time. The place for it is kept so long.
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
                contained(
                    || tracing::warn!(target: "peregrine", %error, "cannot take a connection over{remedy}"),
                );
                self.worker.observed.refused();
            }
        }
    }

    fn open(&self, room: Room, stream: D::Stream) {
        let Self { worker, entrance, .. } = self;
        let client_at = entrance.door.client_at(stream.peer());
        let Ok(client) = worker.overload.connect(client_at) else {
            worker.observed.limit("overload.connections_per_client_max");
            // The kernel is to keep nothing of it.
            return stream.reset_on_drop();
        };
        let (worker, entrance) = (Rc::clone(worker), Rc::clone(entrance));
        let connection = Connection::new(worker, entrance, stream, room.open(), client);
        self.worker.driver.spawn(connection);
    }

    /// A place, also if there is none: for a connection that nobody else will be told of.
    fn room_beyond(&self) -> Room {
        self.try_room().unwrap_or_else(|| self.entrance.door.rooms.last_room())
    }

    /// Others are to pass nothing here for now.
    fn shut(&self) {
        if let Some(Spreading { member, listener }) = &self.spreading {
            member.shut(*listener);
        }
    }

    /// Takes what others have passed until now, and nothing more. What there is no place for, they take back.
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

    /// Accepts who waits in a queue that gets no longer.
    async fn empty_queue(&self, listener: &impl Listener<Stream = D::Stream>) {
        let worker = &self.worker;
        let cut = worker.wheel.alarm();
        let (mut pause, mut tries) = (PAUSE_MIN, LAST_TRIES);
        loop {
            // Whoever has a place now leaves it soon: connections that are idle are closed in a moment.
            let door = &self.entrance.door;
            let room = door.rooms.room(door.limits.connections_max);
            let room = before(room, worker.ordered(&cut, Order::Cut)).await;
            let Some(room) = room.filter(|_| worker.order() < Order::Cut) else { return };
            let over = worker.driver.sleep_until(worker.driver.now() + LAST_PAUSE);
            let over = first_of(over, worker.ordered(&cut, Order::Cut));
            match before(listener.accept(), over).await {
                Some(Ok(stream)) => self.open(room, stream),
                Some(Err(error)) if is_of_the_peer(&error) => {}
                // Nobody is left.
                Some(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => return,
                Some(Err(error)) => {
                    let remedy = remedy(&error);
                    contained(|| {
                        tracing::warn!(target: "peregrine", %error, ?pause,
                        "cannot accept who waits at the end{remedy}")
                    });
                    worker.observed.refused();
                    drop(room);
                    // Whether somebody waits is not known, and each connection that ends frees something.
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

/// The way in with settings that have changed, if they have.
fn changed<D: Driver>(
    entrance: &Entrance<D>,
    live: &mut watch::Receiver<Live>,
) -> Option<Rc<Entrance<D>>> {
    // Who could change them may be gone: with the server, or because there is nothing to read again.
    live.has_changed().unwrap_or(false).then(|| renewed(entrance, live))
}

/// The way in with the settings that count now.
fn renewed<D: Driver>(entrance: &Entrance<D>, live: &mut watch::Receiver<Live>) -> Rc<Entrance<D>> {
    let door = entrance.door.with(&live.borrow_and_update());
    Rc::new(Entrance { door, sessions: Rc::clone(&entrance.sessions) })
}

/// Ends when all tasks that are ready have been polled.
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

/// Ends when there are new settings.
async fn told(live: &mut watch::Receiver<Live>) {
    // Nobody may be there any more who could change them.
    if live.changed().await.is_err() {
        pending::<()>().await;
    }
}

/// Does the error tell of a connection that broke while it was accepted?
fn is_of_the_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | WouldBlock)
}

/// What helps against an error, for the log.
fn remedy(error: &io::Error) -> &'static str {
    if is_exhausted(error) {
        "; raise the limit of descriptors (ulimit -n) or lower connections_max"
    } else {
        ""
    }
}

/// Is the process or the system out of descriptors?
fn has_no_descriptor(error: &io::Error) -> bool {
    // EMFILE, ENFILE: the numbers are those of every Unix.
    matches!(error.raw_os_error(), Some(24 | 23))
}

/// Is the process or the system out of descriptors or memory?
fn is_exhausted(error: &io::Error) -> bool {
    // ENOMEM, which has the same number on every Unix, and ENOBUFS.
    has_no_descriptor(error)
        || error.raw_os_error() == Some(12)
        || error.raw_os_error() == Some(if cfg!(target_os = "linux") { 105 } else { 55 })
        || error.kind() == io::ErrorKind::OutOfMemory
}
