//! The accept loop of one listener.
//!
//! It accepts a connection only if a slot ([`ConnectionPermit`]) is free, so excess connections
//! wait in the kernel's backlog and cost the process nothing. If another worker has clearly fewer
//! connections, the loop hands the new connection to that worker. If the process runs out of
//! descriptors or memory, the loop backs off exponentially and retries. On shutdown, it closes the
//! socket to new connections and then serves those in the backlog.

pub(crate) mod balance;

use self::balance::{Balancer, HANDOFF_TIMEOUT, PendingHandoff};
use crate::admission::connections::ConnectionPermit;
use crate::connection::{Connection, ListenerState};
use crate::listener::config::{ReloadableConfig, SocketSharing};
use crate::worker::Worker;
use crate::worker::lifecycle::{Lifecycle, race, run_until};
use peregrine_driver::{Driver, Listener, Stream};
use peregrine_web::memory::{self, MemoryPressure};
use peregrine_web::panic::{catch_log_panic, catch_unwind_future, drop_panic_payload};
use std::future::{pending, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;

/// The first pause after the process ran out of a resource. It doubles each time, up to the
/// maximum.
const ACCEPT_BACKOFF_MIN: Duration = Duration::from_millis(10);
const ACCEPT_BACKOFF_MAX: Duration = Duration::from_secs(1);

/// On shutdown: how often accepting may fail while no connection is open. An open connection could
/// free a resource by closing. With the pauses, the loop gives up after about two and a half
/// seconds.
const DRAIN_ACCEPT_RETRIES: usize = 8;

/// On shutdown: how long to wait for connections that were on their way when the socket was closed
/// to new ones.
const DRAIN_ACCEPT_TIMEOUT: Duration = Duration::from_millis(100);

/// Accepts connections until the worker drains, and then the rest of the backlog.
pub(crate) async fn run<D: Driver>(
    worker: Rc<Worker<D>>,
    entrance: Rc<ListenerState<D>>,
    listener: impl Listener<Stream = D::Stream>,
    shared: SocketSharing,
    live: Option<watch::Receiver<ReloadableConfig>>,
    spreading: Option<ListenerBalancing<D::Handoff>>,
) {
    let alarm = worker.timers.timer();
    worker.lifecycle_reached(&alarm, Lifecycle::Serving).await;
    // If the shutdown began before the worker was to serve, it accepts nothing.
    let is_late = worker.lifecycle() >= Lifecycle::Draining;
    let mut way =
        Acceptor { worker, listener_state: entrance, config_updates: live, balancing: spreading };
    if !is_late {
        // Log calls of drivers and libraries may panic, for example when the log cannot be written.
        // The server must continue to accept after such a panic.
        while let Err(panic) = catch_unwind_future(way.accept_loop(&listener)).await {
            drop_panic_payload(panic);
            let worker = &way.worker;
            worker.driver.sleep_until(worker.driver.now() + ACCEPT_BACKOFF_MIN).await;
        }
    }
    way.drain_handoffs();
    if !shared.is_shared() {
        listener.refuse_new_connections();
        way.drain_backlog(&listener).await;
    } else if !is_late && let Ok(Some(stream)) = listener.cancel_accept().await {
        way.open(way.acquire_over_limit(), stream);
    }
}

/// Identifies a listener for balancing its connections over the workers.
pub(crate) struct ListenerBalancing<P> {
    pub(crate) balancer: Rc<Balancer<P>>,
    /// The listener's number.
    pub(crate) listener_index: usize,
}

/// The state of the accept loop of one listener.
struct Acceptor<D: Driver> {
    worker: Rc<Worker<D>>,
    listener_state: Rc<ListenerState<D>>,
    config_updates: Option<watch::Receiver<ReloadableConfig>>,
    balancing: Option<ListenerBalancing<D::Handoff>>,
}

impl<D: Driver> Acceptor<D> {
    /// Accepts connections until the worker drains.
    async fn accept_loop(&mut self, listener: &impl Listener<Stream = D::Stream>) {
        let worker = Rc::clone(&self.worker);
        let alarm = worker.timers.timer();
        let mut pause = ACCEPT_BACKOFF_MIN;
        loop {
            if self.needs_reserved_slot() {
                if worker.lifecycle() >= Lifecycle::Draining {
                    return;
                }
                if !self.make_room() {
                    // Leave the connection in the backlog, where it costs nothing, and retry.
                    let over = worker.driver.sleep_until(worker.driver.now() + ACCEPT_BACKOFF_MIN);
                    race(over, worker.lifecycle_reached(&alarm, Lifecycle::Draining)).await;
                    continue;
                }
            }
            let vacancy = run_until(
                self.wait_for_capacity(),
                worker.lifecycle_reached(&alarm, Lifecycle::Draining),
            )
            .await;
            if vacancy.is_none() {
                return;
            }
            let accepted = run_until(
                self.accept(listener),
                worker.lifecycle_reached(&alarm, Lifecycle::Draining),
            )
            .await;
            let Some(accepted) = accepted else { return };
            match accepted {
                // A connection of another listener took the last slot. The kernel may have woken
                // this worker, and no other, for a connection here. So if one is waiting, accept it
                // although it exceeds the limit.
                None => {
                    if let Ok(Some(stream)) = listener.cancel_accept().await {
                        self.open_or_hand_off(self.acquire_over_limit(), stream);
                    }
                }
                Some(Ok((room, stream))) => {
                    pause = ACCEPT_BACKOFF_MIN;
                    self.reload_config();
                    self.open_or_hand_off(room, stream);
                    if !self.has_capacity() {
                        // Another listener of this worker may have been woken for this slot and
                        // found it taken. Yield, so that the other listener queues first for the
                        // next slot.
                        yield_now().await;
                    }
                }
                // The peer closed the connection before it was accepted.
                Some(Err(error)) if is_peer_error(&error) => {
                    catch_log_panic(|| {
                        tracing::debug!(target: "peregrine", %error,
                            "a peer left before it was accepted");
                    });
                }
                // A reserved descriptor was freed: retry.
                Some(Err(error))
                    if is_fd_exhausted(&error) && worker.instrumentation.release_reserved_fd() => {}
                Some(Err(error)) => {
                    // The connection stays in the backlog until a resource is freed. Retrying at
                    // once would spin, and giving up would end the server.
                    let remedy = hint(&error);
                    catch_log_panic(|| {
                        tracing::warn!(target: "peregrine", %error, retry_in = ?pause,
                            "cannot accept{remedy}");
                    });
                    worker.instrumentation.record_accept_error();
                    let over = worker.driver.sleep_until(worker.driver.now() + pause);
                    race(over, worker.lifecycle_reached(&alarm, Lifecycle::Draining)).await;
                    worker.instrumentation.refill_reserved_fds();
                    pause = (pause * 2).min(ACCEPT_BACKOFF_MAX);
                }
            }
        }
    }

    /// Returns whether new connections must use reserved slots.
    fn needs_reserved_slot(&self) -> bool {
        self.listener_state.context.needs_reserved_slot(self.worker.reserved_connections)
    }

    /// Returns whether one more connection may use a reserved slot. Frees pooled memory if memory
    /// is short.
    fn make_room(&self) -> bool {
        let worker = &self.worker;
        if memory::pressure() >= MemoryPressure::Moderate {
            // The pooled buffers count towards the memory limit, so free them.
            self.listener_state.active_states.clear();
            self.pause_handoffs();
            worker.instrumentation.record_limit("overload.memory_max");
        }
        worker.reserved_slots.make_room(&worker.timers, worker.driver.now())
    }

    /// Waits for a free connection slot. Excess connections stay in the kernel's backlog, or with
    /// the worker that accepted them. A change of the settings may raise the limit and end the
    /// wait.
    async fn wait_for_capacity(&mut self) {
        while !self.has_capacity() {
            self.pause_handoffs();
            let door = &self.listener_state.context;
            let vacancy = door.connection_limiter.wait_available(door.limits.connections_max);
            let Some(live) = self.config_updates.as_mut() else { return vacancy.await };
            if run_until(vacancy, config_changed(live)).await.is_none() {
                self.listener_state = reloaded(&self.listener_state, live);
            }
        }
    }

    fn has_capacity(&self) -> bool {
        let door = &self.listener_state.context;
        door.connection_limiter.has_available(door.limits.connections_max)
    }

    fn try_acquire(&self) -> Option<ConnectionPermit> {
        let door = &self.listener_state.context;
        door.connection_limiter.try_acquire(door.limits.connections_max)
    }

    /// Accepts the next connection from the backlog and takes a slot for it. Meanwhile, opens
    /// connections that other workers hand over. Returns `None` if another listener took the last
    /// slot.
    async fn accept(
        &mut self,
        listener: &impl Listener<Stream = D::Stream>,
    ) -> Option<io::Result<(ConnectionPermit, D::Stream)>> {
        let mut accepted = pin!(listener.accept());
        poll_fn(|cx| {
            self.open_handoffs(cx);
            let door = &self.listener_state.context;
            if door.connection_limiter.poll_exhausted(door.limits.connections_max, cx).is_ready() {
                return Poll::Ready(None);
            }
            // The slot is taken only when a connection is accepted, so an idle listener does not
            // occupy one.
            let room = || self.try_acquire().expect("`poll_exhausted` found a free slot");
            accepted.as_mut().poll(cx).map_ok(|stream| (room(), stream)).map(Some)
        })
        .await
    }

    /// Opens connections that other workers hand over, but leaves one slot for a connection that
    /// this worker accepts.
    fn open_handoffs(&mut self, context: &Context<'_>) {
        let Some(ListenerBalancing { balancer: member, listener_index: listener }) =
            &self.balancing
        else {
            return;
        };
        let (member, listener) = (Rc::clone(member), *listener);
        loop {
            let door = &self.listener_state.context;
            let is_full = !door
                .connection_limiter
                .has_available(door.limits.connections_max.saturating_sub(1));
            if is_full || memory::pressure() >= MemoryPressure::Moderate {
                return member.pause(listener);
            }
            let Poll::Ready(passed) = member.poll_handoff(listener, context) else { return };
            self.worker.instrumentation.metrics().handoffs_received.add(1);
            let room = self.try_acquire().expect("`has_room` found a free slot");
            self.reload_config();
            self.open_handoff(room, passed);
        }
    }

    /// Applies settings that have changed.
    fn reload_config(&mut self) {
        if let Some(changed) = self
            .config_updates
            .as_mut()
            .and_then(|live| reload_if_changed(&self.listener_state, live))
        {
            self.listener_state = changed;
        }
    }

    /// Hands the connection to a worker with fewer connections, or opens it here.
    fn open_or_hand_off(&self, room: ConnectionPermit, stream: D::Stream) {
        let driver = &self.worker.driver;
        let whom = self.balancing.as_ref().and_then(|spreading| {
            let ListenerBalancing { balancer: member, listener_index: listener } = spreading;
            member.pick_worker(*listener, || driver.now())
        });
        let Some(whom) = whom else { return self.open(room, stream) };
        match driver.hand_off(stream).map(|passed| whom.push(passed)) {
            Ok(Ok(given)) => self.reclaim_after_timeout(given, room),
            Ok(Err(passed)) => self.open_handoff(room, passed),
            Err(error) => {
                catch_log_panic(|| {
                    tracing::debug!(target: "peregrine", %error,
                        "a connection failed while being handed over");
                });
            }
        }
    }

    /// Takes the connection back if the other worker has not taken it after [`HANDOFF_TIMEOUT`].
    /// Keeps its slot until then.
    fn reclaim_after_timeout(&self, given: PendingHandoff<D::Handoff>, room: ConnectionPermit) {
        let way = Self {
            worker: Rc::clone(&self.worker),
            listener_state: Rc::clone(&self.listener_state),
            config_updates: None,
            balancing: None,
        };
        let pending = self.worker.instrumentation.track();
        let until = self.worker.driver.now() + HANDOFF_TIMEOUT;
        self.worker.driver.spawn_boxed(Box::pin(async move {
            way.worker.driver.sleep_until(until).await;
            match given.reclaim() {
                None => way.worker.instrumentation.metrics().handoffs_sent.add(1),
                Some(passed) => way.open_handoff(room, passed),
            }
            drop(way);
            drop(pending);
        }));
    }

    fn open_handoff(&self, room: ConnectionPermit, passed: D::Handoff) {
        match self.worker.driver.accept_handoff(passed) {
            Ok(stream) => self.open(room, stream),
            Err(error) => {
                let remedy = hint(&error);
                catch_log_panic(|| {
                    tracing::warn!(target: "peregrine", %error,
                        "cannot take over a connection{remedy}");
                });
                self.worker.instrumentation.record_accept_error();
            }
        }
    }

    fn open(&self, room: ConnectionPermit, stream: D::Stream) {
        let Self { worker, listener_state: entrance, .. } = self;
        let client_at = entrance.context.client_ip(stream.peer_addr());
        let Ok(client) = worker.admission.acquire_connection(client_at) else {
            worker.instrumentation.record_limit("overload.connections_per_client_max");
            // A reset frees the kernel's state of the connection at once.
            return stream.reset_on_drop();
        };
        let (worker, entrance) = (Rc::clone(worker), Rc::clone(entrance));
        let connection = Connection::new(worker, entrance, stream, room.into_guard(), client);
        self.worker.driver.spawn(connection);
    }

    /// Takes a slot even if none is free. For a connection that the kernel offered to this worker
    /// only.
    fn acquire_over_limit(&self) -> ConnectionPermit {
        self.try_acquire()
            .unwrap_or_else(|| self.listener_state.context.connection_limiter.acquire_over_limit())
    }

    /// Stops other workers from handing over connections, until this worker takes some again.
    fn pause_handoffs(&self) {
        if let Some(ListenerBalancing { balancer: member, listener_index: listener }) =
            &self.balancing
        {
            member.pause(*listener);
        }
    }

    /// Closes the mailbox and opens the connections in it. If there is no slot for one, the worker
    /// that accepted it takes it back.
    fn drain_handoffs(&self) {
        let Some(ListenerBalancing { balancer: member, listener_index: listener }) =
            &self.balancing
        else {
            return;
        };
        member.pause(*listener);
        while let Some(room) = self.try_acquire()
            && let Some(passed) = member.take_remaining(*listener)
        {
            self.worker.instrumentation.metrics().handoffs_received.add(1);
            self.open_handoff(room, passed);
        }
    }

    /// Accepts the rest of the backlog, after the socket was closed to new connections.
    async fn drain_backlog(&self, listener: &impl Listener<Stream = D::Stream>) {
        let worker = &self.worker;
        let cut = worker.timers.timer();
        let (mut pause, mut tries) = (ACCEPT_BACKOFF_MIN, DRAIN_ACCEPT_RETRIES);
        loop {
            // Slots become free soon: idle connections are about to be closed.
            let door = &self.listener_state.context;
            let room = door.connection_limiter.acquire(door.limits.connections_max);
            let room =
                run_until(room, worker.lifecycle_reached(&cut, Lifecycle::ForceClosing)).await;
            let Some(room) = room.filter(|_| worker.lifecycle() < Lifecycle::ForceClosing) else {
                return;
            };
            let over = worker.driver.sleep_until(worker.driver.now() + DRAIN_ACCEPT_TIMEOUT);
            let over = race(over, worker.lifecycle_reached(&cut, Lifecycle::ForceClosing));
            match run_until(listener.accept(), over).await {
                Some(Ok(stream)) => self.open(room, stream),
                Some(Err(error)) if is_peer_error(&error) => {}
                // The backlog is empty.
                Some(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => return,
                Some(Err(error)) => {
                    let remedy = hint(&error);
                    catch_log_panic(|| {
                        tracing::warn!(target: "peregrine", %error, retry_in = ?pause,
                        "cannot accept the rest of the backlog{remedy}")
                    });
                    worker.instrumentation.record_accept_error();
                    drop(room);
                    // Connections may or may not be waiting. As long as connections are open, their
                    // end may free resources, so retry. Otherwise, retry only a few times.
                    if worker.instrumentation.has_no_connections() {
                        tries -= 1;
                        if tries == 0 {
                            return;
                        }
                    }
                    let over = worker.driver.sleep_until(worker.driver.now() + pause);
                    race(over, worker.lifecycle_reached(&cut, Lifecycle::ForceClosing)).await;
                    pause = (pause * 2).min(ACCEPT_BACKOFF_MAX);
                }
                None => return,
            }
        }
    }
}

/// Returns the listener's state with new settings, if they have changed.
fn reload_if_changed<D: Driver>(
    entrance: &ListenerState<D>,
    live: &mut watch::Receiver<ReloadableConfig>,
) -> Option<Rc<ListenerState<D>>> {
    // An error means that the sender was dropped: the server has ended, or its configuration cannot
    // be reloaded.
    live.has_changed().unwrap_or(false).then(|| reloaded(entrance, live))
}

/// Returns the listener's state with the current settings.
fn reloaded<D: Driver>(
    entrance: &ListenerState<D>,
    live: &mut watch::Receiver<ReloadableConfig>,
) -> Rc<ListenerState<D>> {
    let door = entrance.context.reloaded(&live.borrow_and_update());
    Rc::new(ListenerState { context: door, active_states: Rc::clone(&entrance.active_states) })
}

/// Completes after all other ready tasks have been polled.
async fn yield_now() {
    let mut is_asked = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut is_asked, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Completes when the settings have changed.
async fn config_changed(live: &mut watch::Receiver<ReloadableConfig>) {
    // If the sender was dropped, the settings cannot change any more.
    if live.changed().await.is_err() {
        pending::<()>().await;
    }
}

/// Returns whether the error concerns only the connection to be accepted, or is transient.
fn is_peer_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | WouldBlock)
}

/// A hint for the log on how to fix the error.
fn hint(error: &io::Error) -> &'static str {
    if is_resource_exhausted(error) {
        "; raise the descriptor limit (ulimit -n) or lower connections_max"
    } else {
        ""
    }
}

/// Returns whether the process or the system is out of descriptors.
fn is_fd_exhausted(error: &io::Error) -> bool {
    // EMFILE and ENFILE have these numbers on every Unix.
    matches!(error.raw_os_error(), Some(24 | 23))
}

/// Returns whether the process or the system is out of descriptors or memory.
fn is_resource_exhausted(error: &io::Error) -> bool {
    // ENOMEM, which has the same number on every Unix, and ENOBUFS.
    is_fd_exhausted(error)
        || error.raw_os_error() == Some(12)
        || error.raw_os_error() == Some(if cfg!(target_os = "linux") { 105 } else { 55 })
        || error.kind() == io::ErrorKind::OutOfMemory
}
