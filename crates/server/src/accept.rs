//! Taking connections from a listener, as many as the limits allow.

use crate::connection::{Connection, Entrance};
use crate::live::Live;
use crate::observe::Room;
use crate::shared::Shared;
use crate::shutdown::first_of;
use crate::worker::{Order, Worker};
use peregrine_driver::{Driver, Listener, Stream};
use peregrine_web::account::{self, Filling};
use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::watch;

/// The first pause after the process ran out of something, doubled each time up to the last.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// When the socket takes no new connections any more: how long to wait for those that are on their way.
const LAST_PAUSE: Duration = Duration::from_millis(100);

/// Accepts until the worker drains, and then the connections that wait already.
pub(crate) async fn run<D: Driver>(
    worker: Rc<Worker<D>>,
    mut entrance: Rc<Entrance<D>>,
    listener: impl Listener<Stream = D::Stream>,
    shared: Shared,
    mut live: Option<watch::Receiver<Live>>,
) {
    let alarm = worker.wheel.alarm();
    let mut pause = PAUSE_MIN;
    let open = |entrance: &Rc<Entrance<D>>, room: Room, stream: D::Stream| {
        let client_at = entrance.door.client_at(stream.peer());
        let Ok(client) = worker.overload.connect(client_at) else {
            worker.observed.limit("overload.connections_per_client_max");
            // The kernel is to keep nothing of it.
            return stream.reset_on_drop();
        };
        let (shared, entrance) = (Rc::clone(&worker), Rc::clone(entrance));
        let connection = Connection::new(shared, entrance, stream, room.open(), client);
        worker.driver.spawn(connection);
    };
    worker.ordered(&alarm, Order::Serve).await;
    // Whoever is ordered to end before it was to serve accepts nobody.
    let is_late = worker.order() >= Order::Drain;
    loop {
        if is_late {
            break;
        }
        if account::filling() >= Filling::Tight {
            if worker.order() >= Order::Drain {
                break;
            }
            // Who waits in the backlog costs nothing here.
            entrance.sessions.clear();
            worker.observed.limit("overload.memory_max");
            let over = worker.driver.sleep_until(worker.driver.now() + PAUSE_MIN);
            first_of(over, worker.ordered(&alarm, Order::Drain)).await;
            continue;
        }
        // A connection that would be one too many stays in the kernel's backlog.
        let room = place(&mut entrance, &mut live);
        let Some(room) = before(room, worker.ordered(&alarm, Order::Drain)).await else { break };
        let accepted = before(listener.accept(), worker.ordered(&alarm, Order::Drain)).await;
        match accepted {
            None => break,
            Some(Ok(stream)) => {
                pause = PAUSE_MIN;
                if let Some(changed) = live.as_mut().and_then(|live| changed(&entrance, live)) {
                    entrance = changed;
                }
                open(&entrance, room, stream);
            }
            // The peer was gone before it was accepted.
            Some(Err(error)) if is_of_the_peer(&error) => {
                tracing::debug!(target: "peregrine", %error, "a peer gave up");
            }
            Some(Err(error)) => {
                // The connection waits in the backlog until something is freed. Trying again at
                // once would spin; never trying again would be the end of the server.
                let remedy = if is_exhausted(&error) {
                    "; raise the limit of descriptors (ulimit -n) or lower connections_max"
                } else {
                    ""
                };
                tracing::warn!(target: "peregrine", %error, ?pause, "cannot accept{remedy}");
                worker.observed.refused();
                let over = worker.driver.sleep_until(worker.driver.now() + pause);
                first_of(over, worker.ordered(&alarm, Order::Drain)).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
    if shared.is_so() {
        let door = &entrance.door;
        if !is_late
            && let Some(room) = door.rooms.try_room(door.limits.connections_max)
            && let Ok(Some(stream)) = listener.last().await
        {
            open(&entrance, room, stream);
        }
        return;
    }
    listener.refuse_new();
    let door = &entrance.door;
    let cut = worker.wheel.alarm();
    while worker.order() < Order::Cut
        && let Some(room) = door.rooms.try_room(door.limits.connections_max)
    {
        let over = worker.driver.sleep_until(worker.driver.now() + LAST_PAUSE);
        let over = first_of(over, worker.ordered(&cut, Order::Cut));
        match before(listener.accept(), over).await {
            Some(Ok(stream)) => open(&entrance, room, stream),
            Some(Err(error)) if is_of_the_peer(&error) => {}
            Some(Err(error)) => {
                tracing::warn!(target: "peregrine", %error, "cannot accept who waits at the end");
                return;
            }
            None => return,
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

/// Room for one more connection. Settings that change meanwhile may allow it earlier.
async fn place<D: Driver>(
    entrance: &mut Rc<Entrance<D>>,
    live: &mut Option<watch::Receiver<Live>>,
) -> Room {
    loop {
        let door = &entrance.door;
        let room = door.rooms.room(door.limits.connections_max);
        let Some(live) = live.as_mut() else { return room.await };
        if let Some(room) = before(room, told(live)).await {
            return room;
        }
        *entrance = renewed(entrance, live);
    }
}

/// Ends when there are new settings.
async fn told(live: &mut watch::Receiver<Live>) {
    // Nobody may be there any more who could change them.
    if live.changed().await.is_err() {
        pending::<()>().await;
    }
}

/// What `future` gives, unless `end` comes before it.
async fn before<T>(future: impl Future<Output = T>, end: impl Future<Output = ()>) -> Option<T> {
    let (mut future, mut end) = (pin!(future), pin!(end));
    poll_fn(|context| {
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        end.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// Does the error tell of a connection that broke while it was accepted?
fn is_of_the_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | WouldBlock)
}

/// Is the process or the system out of descriptors or memory?
fn is_exhausted(error: &io::Error) -> bool {
    // EMFILE, ENFILE, ENOMEM, ENOBUFS; the numbers of the first three are those of every Unix.
    matches!(error.raw_os_error(), Some(24 | 23 | 12))
        || error.raw_os_error() == Some(if cfg!(target_os = "linux") { 105 } else { 55 })
        || error.kind() == io::ErrorKind::OutOfMemory
}
