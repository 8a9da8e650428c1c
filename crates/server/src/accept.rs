//! Taking connections from a listener, as many as the limits allow.

use crate::connection;
use crate::stage::Stage;
use crate::worker::{Order, Until, Worker, first_of};
use peregrine_driver::{Driver, Listener};
use peregrine_tls::Tls;
use std::future::pending;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// The first pause after the process ran out of something, doubled each time up to the last.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Accepts until the worker drains.
pub(crate) async fn run<D: Driver>(
    worker: Rc<Worker<D>>,
    listener: impl Listener<Stream = D::Stream>,
    tls: Option<Tls>,
) {
    let alarm = worker.wheel.alarm();
    let mut pause = PAUSE_MIN;
    loop {
        // A connection that would be one too many stays in the kernel's backlog.
        let room = pin!(worker.observed.room(worker.limits.connections_max));
        let Ok(room) = worker.within(&alarm, Until::Never, Order::Drain, room).await else {
            return;
        };
        let accept = pin!(listener.accept());
        let accepted = worker.within(&alarm, Until::Never, Order::Drain, accept).await;
        match accepted {
            Err(_) => return,
            Ok(Ok(stream)) => {
                pause = PAUSE_MIN;
                let stage = Stage::new(tls.as_ref().map(Tls::session));
                let open = room.open();
                worker.driver.spawn(connection::serve(Rc::clone(&worker), stream, stage, open));
            }
            // The peer was gone before it was accepted.
            Ok(Err(error)) if is_of_the_peer(&error) => {
                tracing::debug!(target: "peregrine", %error, "a peer gave up");
            }
            Ok(Err(error)) => {
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
                let drained = async {
                    let forever = pin!(pending::<()>());
                    let _ = worker.within(&alarm, Until::Never, Order::Drain, forever).await;
                };
                first_of(over, drained).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
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
