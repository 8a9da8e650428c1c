//! The accept loop of one listener.
//!
//! A connection is accepted only if a connection slot ([`ConnectionPermit`]) is free, so excess
//! connections wait in the kernel's backlog and cost the process nothing. If another worker has
//! clearly fewer connections, the loop hands the new connection to that worker. If the process runs
//! out of descriptors or memory, the loop backs off exponentially and retries. On shutdown, it
//! closes the socket to new connections and then serves those in the backlog, unless another
//! process uses the socket.

pub(crate) mod balance;

use self::balance::{Balancer, HANDOFF_TIMEOUT, PendingHandoff};
use crate::admission::connections::ConnectionPermit;
use crate::connection::{Connection, ListenerState};
use crate::listener::config::{ReloadableConfig, SocketSharing};
use crate::worker::Worker;
use crate::worker::lifecycle::{Lifecycle, race, run_until};
use peregrine_driver::{Driver, Listener, Stream};
use peregrine_web::memory::{self, MemoryPressure};
use peregrine_web::panic::{catch_subscriber_panic, catch_unwind_future, drop_panic_payload};
use std::future::{pending, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;

/// The first pause after a failure to accept. It doubles with each further failure, up to the
/// maximum.
const ACCEPT_BACKOFF_MIN: Duration = Duration::from_millis(10);
const ACCEPT_BACKOFF_MAX: Duration = Duration::from_secs(1);

/// On shutdown: at this many failures to accept, the loop gives up on the backlog, about 1.3
/// seconds after the first one. Only failures while no connection is open count: open connections
/// free resources when they close.
const BACKLOG_FAILURES_MAX: usize = 8;

/// On shutdown: how long the backlog must stay empty before the loop ends. Connections that were
/// being established when the socket was closed to new ones may still arrive.
const BACKLOG_ACCEPT_TIMEOUT: Duration = Duration::from_millis(100);

/// Accepts connections until the worker drains. Then accepts the rest of the backlog, unless
/// another process also uses the socket.
pub(crate) async fn run<D: Driver>(
    worker: Rc<Worker<D>>,
    listener_state: Rc<ListenerState<D>>,
    listener: impl Listener<Stream = D::Stream>,
    socket_sharing: SocketSharing,
    config_updates: Option<watch::Receiver<ReloadableConfig>>,
    balancing: Option<ListenerBalancing<D::Handoff>>,
) {
    let timer = worker.timers.timer();
    worker.lifecycle_reached(&timer, Lifecycle::Serving).await;
    // A worker that must drain before it has served skips the accept loop.
    let was_serving = worker.lifecycle() < Lifecycle::Draining;
    let mut acceptor = Acceptor { worker, listener_state, config_updates, balancing };
    if was_serving {
        // Log calls of drivers and libraries may panic, for example when the log cannot be written.
        // The server must continue to accept after such a panic.
        while let Err(panic) = catch_unwind_future(acceptor.accept_loop(&listener)).await {
            drop_panic_payload(panic);
            let worker = &acceptor.worker;
            worker.driver.sleep_until(worker.driver.now() + ACCEPT_BACKOFF_MIN).await;
        }
    }
    acceptor.open_remaining_handoffs();
    if !socket_sharing.is_shared() {
        listener.refuse_new_connections();
        acceptor.accept_backlog(&listener).await;
    } else if was_serving && let Ok(Some(stream)) = listener.cancel_accept().await {
        // This worker was already woken for this connection, perhaps as the only one: serve it.
        acceptor.open(acceptor.acquire_over_limit(), stream);
    }
}

/// What a listener needs to balance its connections over the workers.
pub(crate) struct ListenerBalancing<H> {
    pub(crate) balancer: Rc<Balancer<H>>,
    /// The listener's index in the balancer.
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
        let timer = worker.timers.timer();
        let mut pause = ACCEPT_BACKOFF_MIN;
        loop {
            if self.needs_reserved_slot() {
                if worker.lifecycle() >= Lifecycle::Draining {
                    return;
                }
                if !self.make_room() {
                    // Leave new connections in the backlog, where they cost nothing, and retry.
                    let backoff =
                        worker.driver.sleep_until(worker.driver.now() + ACCEPT_BACKOFF_MIN);
                    race(backoff, worker.lifecycle_reached(&timer, Lifecycle::Draining)).await;
                    continue;
                }
            }
            // Each `run_until` returns `None` when the worker drains.
            let capacity = run_until(
                self.wait_for_capacity(),
                worker.lifecycle_reached(&timer, Lifecycle::Draining),
            )
            .await;
            let Some(()) = capacity else { return };
            let accepted = run_until(
                self.accept(listener),
                worker.lifecycle_reached(&timer, Lifecycle::Draining),
            )
            .await;
            let Some(accepted) = accepted else { return };
            match accepted {
                // A connection of another listener took the last slot. The kernel may have woken
                // only this worker for a connection of this listener. So if one is waiting, accept
                // it even though it exceeds the limit.
                None => {
                    if let Ok(Some(stream)) = listener.cancel_accept().await {
                        self.open_or_hand_off(self.acquire_over_limit(), stream);
                    }
                }
                Some(Ok((permit, stream))) => {
                    pause = ACCEPT_BACKOFF_MIN;
                    self.reload_config();
                    self.open_or_hand_off(permit, stream);
                    if !self.has_capacity() {
                        // Another listener of this worker may have been woken for this slot and
                        // found it taken. Yield, so that the other listener queues first for the
                        // next slot.
                        yield_now().await;
                    }
                }
                // Usually, the peer has closed the connection before it was accepted.
                Some(Err(error)) if is_transient(&error) => {
                    catch_subscriber_panic(|| {
                        tracing::debug!(target: "peregrine", %error,
                            "a connection failed before it was accepted");
                    });
                }
                // `release_reserved_fd` has closed a descriptor that the connection can use: retry.
                Some(Err(error))
                    if is_fd_exhausted(&error) && worker.instrumentation.release_reserved_fd() => {}
                Some(Err(error)) => {
                    // Retrying without a pause would spin, and giving up would end the server.
                    let remedy = remedy_for(&error);
                    catch_subscriber_panic(|| {
                        tracing::warn!(target: "peregrine", %error, retry_in = ?pause,
                            "cannot accept{remedy}");
                    });
                    worker.instrumentation.record_accept_error();
                    let backoff = worker.driver.sleep_until(worker.driver.now() + pause);
                    race(backoff, worker.lifecycle_reached(&timer, Lifecycle::Draining)).await;
                    worker.instrumentation.refill_reserved_fds();
                    pause = (pause * 2).min(ACCEPT_BACKOFF_MAX);
                }
            }
        }
    }

    /// Returns whether memory, connection slots or descriptors are short. If so, a connection needs
    /// a slot of `worker.reserved_slots` in addition to its connection slot.
    fn needs_reserved_slot(&self) -> bool {
        self.listener_state.context.needs_reserved_slot(self.worker.reserved_slot_count)
    }

    /// Frees pooled memory if memory is short. Returns whether a reserved slot is free; if all are
    /// taken, first tries to free one.
    fn make_room(&self) -> bool {
        let worker = &self.worker;
        if memory::pressure() >= MemoryPressure::Moderate {
            // The pooled buffers count towards the memory limit, so free them.
            self.listener_state.active_state_pool.clear();
            self.close_handoff_queue();
            worker.instrumentation.record_limit("overload.memory_max");
        }
        worker.reserved_slots.make_room(&worker.timers, worker.driver.now())
    }

    /// Waits for a free connection slot. Meanwhile, excess connections stay in the kernel's
    /// backlog, or with the worker that accepted them. If a change of the settings raises the
    /// limit, the wait ends.
    async fn wait_for_capacity(&mut self) {
        while !self.has_capacity() {
            self.close_handoff_queue();
            let context = &self.listener_state.context;
            let available =
                context.connection_limiter.wait_available(context.limits.connections_max);
            let Some(updates) = self.config_updates.as_mut() else { return available.await };
            if run_until(available, config_changed(updates)).await.is_none() {
                self.listener_state = reloaded(&self.listener_state, updates);
            }
        }
    }

    fn has_capacity(&self) -> bool {
        let context = &self.listener_state.context;
        context.connection_limiter.has_available(context.limits.connections_max)
    }

    fn try_acquire(&self) -> Option<ConnectionPermit> {
        let context = &self.listener_state.context;
        context.connection_limiter.try_acquire(context.limits.connections_max)
    }

    /// Accepts the next connection from the backlog and takes a slot for it. While it waits for
    /// that connection, opens connections that other workers hand over. Returns `None` if another
    /// listener took the last slot.
    async fn accept(
        &mut self,
        listener: &impl Listener<Stream = D::Stream>,
    ) -> Option<io::Result<(ConnectionPermit, D::Stream)>> {
        let mut accept = pin!(listener.accept());
        poll_fn(|cx| {
            self.open_handoffs(cx);
            let context = &self.listener_state.context;
            if context
                .connection_limiter
                .poll_exhausted(context.limits.connections_max, cx)
                .is_ready()
            {
                return Poll::Ready(None);
            }
            // The slot is taken only when a connection is accepted, so an idle listener does not
            // occupy one.
            let acquire = || self.try_acquire().expect("`poll_exhausted` was pending");
            accept.as_mut().poll(cx).map_ok(|stream| (acquire(), stream)).map(Some)
        })
        .await
    }

    /// Opens connections that other workers hand over, but leaves one slot for a connection that
    /// this worker accepts.
    fn open_handoffs(&mut self, cx: &Context<'_>) {
        let Some(ListenerBalancing { balancer, listener_index }) = &self.balancing else {
            return;
        };
        let (balancer, listener_index) = (Rc::clone(balancer), *listener_index);
        loop {
            let context = &self.listener_state.context;
            let is_full = !context
                .connection_limiter
                .has_available(context.limits.connections_max.saturating_sub(1));
            if is_full || memory::pressure() >= MemoryPressure::Moderate {
                return balancer.close_queue(listener_index);
            }
            let Poll::Ready(handoff) = balancer.poll_handoff(listener_index, cx) else { return };
            self.worker.instrumentation.metrics().handoffs_received.add(1);
            let permit = self.try_acquire().expect("`has_available` found a free slot");
            self.reload_config();
            self.open_handoff(permit, handoff);
        }
    }

    /// Applies the current settings if they have changed.
    fn reload_config(&mut self) {
        if let Some(listener_state) = self
            .config_updates
            .as_mut()
            .and_then(|updates| reload_if_changed(&self.listener_state, updates))
        {
            self.listener_state = listener_state;
        }
    }

    /// Hands the connection to a worker with fewer connections, or opens it here.
    fn open_or_hand_off(&self, permit: ConnectionPermit, stream: D::Stream) {
        let driver = &self.worker.driver;
        let target = self.balancing.as_ref().and_then(|balancing| {
            let ListenerBalancing { balancer, listener_index } = balancing;
            balancer.pick_worker(*listener_index, || driver.now())
        });
        let Some(target) = target else { return self.open(permit, stream) };
        match driver.hand_off(stream).map(|handoff| target.push(handoff)) {
            Ok(Ok(pending)) => self.reclaim_after_timeout(pending, permit),
            // The other worker's queue was closed after `pick_worker`.
            Ok(Err(handoff)) => self.open_handoff(permit, handoff),
            Err(error) => {
                catch_subscriber_panic(|| {
                    tracing::debug!(target: "peregrine", %error,
                        "a connection failed while being handed over");
                });
            }
        }
    }

    /// Takes the connection back if the other worker has not taken it after [`HANDOFF_TIMEOUT`].
    /// Until then, the connection occupies a slot of this worker, and the worker does not end.
    fn reclaim_after_timeout(
        &self,
        pending_handoff: PendingHandoff<D::Handoff>,
        permit: ConnectionPermit,
    ) {
        let acceptor = Self {
            worker: Rc::clone(&self.worker),
            listener_state: Rc::clone(&self.listener_state),
            config_updates: None,
            balancing: None,
        };
        let pending_work = self.worker.instrumentation.track_pending_work();
        let deadline = self.worker.driver.now() + HANDOFF_TIMEOUT;
        self.worker.driver.spawn_boxed(Box::pin(async move {
            acceptor.worker.driver.sleep_until(deadline).await;
            match pending_handoff.reclaim() {
                None => acceptor.worker.instrumentation.metrics().handoffs_sent.add(1),
                Some(handoff) => acceptor.open_handoff(permit, handoff),
            }
            drop(acceptor);
            drop(pending_work);
        }));
    }

    /// Opens a connection that was handed over.
    fn open_handoff(&self, permit: ConnectionPermit, handoff: D::Handoff) {
        match self.worker.driver.accept_handoff(handoff) {
            Ok(stream) => self.open(permit, stream),
            Err(error) => {
                let remedy = remedy_for(&error);
                catch_subscriber_panic(|| {
                    tracing::warn!(target: "peregrine", %error,
                        "cannot take over a connection{remedy}");
                });
                self.worker.instrumentation.record_accept_error();
            }
        }
    }

    /// Spawns the connection's task. Resets the connection if its client has reached its limit.
    fn open(&self, permit: ConnectionPermit, stream: D::Stream) {
        let Self { worker, listener_state, .. } = self;
        let client_ip = listener_state.context.client_ip(stream.peer_addr());
        let Ok(client_permit) = worker.admission.acquire_connection(client_ip) else {
            worker.instrumentation.record_limit("overload.connections_per_client_max");
            // A reset makes the kernel free its state of the connection immediately.
            return stream.reset_on_drop();
        };
        let (worker, listener_state) = (Rc::clone(worker), Rc::clone(listener_state));
        let connection =
            Connection::new(worker, listener_state, stream, permit.into_guard(), client_permit);
        self.worker.driver.spawn(connection);
    }

    /// Takes a slot even if none is free, for a connection that the kernel offered only to this
    /// worker.
    fn acquire_over_limit(&self) -> ConnectionPermit {
        self.try_acquire()
            .unwrap_or_else(|| self.listener_state.context.connection_limiter.acquire_over_limit())
    }

    /// Stops other workers from handing over connections until this worker polls its queue again.
    fn close_handoff_queue(&self) {
        if let Some(ListenerBalancing { balancer, listener_index }) = &self.balancing {
            balancer.close_queue(*listener_index);
        }
    }

    /// On shutdown: closes the hand-off queue for good and opens the connections in it. If there is
    /// no slot for one, the worker that accepted it takes it back.
    fn open_remaining_handoffs(&self) {
        let Some(ListenerBalancing { balancer, listener_index }) = &self.balancing else {
            return;
        };
        balancer.close_queue(*listener_index);
        while let Some(permit) = self.try_acquire()
            && let Some(handoff) = balancer.take_remaining(*listener_index)
        {
            self.worker.instrumentation.metrics().handoffs_received.add(1);
            self.open_handoff(permit, handoff);
        }
    }

    /// On shutdown: accepts the rest of the backlog.
    async fn accept_backlog(&self, listener: &impl Listener<Stream = D::Stream>) {
        let worker = &self.worker;
        let timer = worker.timers.timer();
        let (mut pause, mut failures_left) = (ACCEPT_BACKOFF_MIN, BACKLOG_FAILURES_MAX);
        loop {
            // Slots become free soon: idle connections are about to be closed.
            let context = &self.listener_state.context;
            let acquire = context.connection_limiter.acquire(context.limits.connections_max);
            let acquired =
                run_until(acquire, worker.lifecycle_reached(&timer, Lifecycle::ForceClosing)).await;
            let Some(permit) = acquired.filter(|_| worker.lifecycle() < Lifecycle::ForceClosing)
            else {
                return;
            };
            let timeout = worker.driver.sleep_until(worker.driver.now() + BACKLOG_ACCEPT_TIMEOUT);
            let end = race(timeout, worker.lifecycle_reached(&timer, Lifecycle::ForceClosing));
            match run_until(listener.accept(), end).await {
                Some(Ok(stream)) => self.open(permit, stream),
                Some(Err(error)) if is_transient(&error) => {}
                // The backlog is empty: see `Listener::refuse_new_connections`.
                Some(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => return,
                Some(Err(error)) => {
                    let remedy = remedy_for(&error);
                    catch_subscriber_panic(|| {
                        tracing::warn!(target: "peregrine", %error, retry_in = ?pause,
                        "cannot accept the rest of the backlog{remedy}")
                    });
                    worker.instrumentation.record_accept_error();
                    drop(permit);
                    // It is unknown whether connections are waiting in the backlog. Open
                    // connections may free resources when they close, so retry. If none is open,
                    // retry only a few times.
                    if worker.instrumentation.has_no_connections() {
                        failures_left -= 1;
                        if failures_left == 0 {
                            return;
                        }
                    }
                    let backoff = worker.driver.sleep_until(worker.driver.now() + pause);
                    race(backoff, worker.lifecycle_reached(&timer, Lifecycle::ForceClosing)).await;
                    pause = (pause * 2).min(ACCEPT_BACKOFF_MAX);
                }
                None => return,
            }
        }
    }
}

/// Returns the listener's state with new settings, if they have changed.
fn reload_if_changed<D: Driver>(
    listener_state: &ListenerState<D>,
    updates: &mut watch::Receiver<ReloadableConfig>,
) -> Option<Rc<ListenerState<D>>> {
    // An error means that the sender was dropped: the server has ended, or its configuration cannot
    // be reloaded.
    updates.has_changed().unwrap_or(false).then(|| reloaded(listener_state, updates))
}

/// Returns the listener's state with the current settings.
fn reloaded<D: Driver>(
    listener_state: &ListenerState<D>,
    updates: &mut watch::Receiver<ReloadableConfig>,
) -> Rc<ListenerState<D>> {
    let context = listener_state.context.reloaded(&updates.borrow_and_update());
    let active_state_pool = Rc::clone(&listener_state.active_state_pool);
    Rc::new(ListenerState { context, active_state_pool })
}

/// Completes after all other ready tasks have been polled.
async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Completes when the settings have changed.
async fn config_changed(updates: &mut watch::Receiver<ReloadableConfig>) {
    // If the sender was dropped, the settings cannot change any more.
    if updates.changed().await.is_err() {
        pending::<()>().await;
    }
}

/// Returns whether to retry without a pause: no connection was ready, or a single one failed.
fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | WouldBlock)
}

/// Describes for the log how to fix the error; empty if the cause is unknown.
fn remedy_for(error: &io::Error) -> &'static str {
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
