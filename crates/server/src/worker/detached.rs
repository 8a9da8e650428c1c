//! Runs handlers with `run_to_completion` after their connection or stream has ended.

use super::Worker;
use super::lifecycle::{ForceClosed, Lifecycle};
use crate::exchange::Exchange;
use crate::observe::close_reason::InFlightStage;
use peregrine_driver::Driver;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// Spawns a task that runs the handler of `exchange` until it ends, `deadline` expires, or the
/// worker enters `Lifecycle::ForceClosing`. `peer` and `accepted_at` are for the log and the
/// shutdown report.
pub(crate) fn spawn_detached<D: Driver>(
    worker: &Rc<Worker<D>>,
    mut exchange: Exchange,
    deadline: Option<Duration>,
    peer: String,
    accepted_at: Duration,
) {
    // The shutdown waits for this handler until the guard is dropped.
    let pending_work = worker.instrumentation.track_pending_work();
    let driver = worker.driver.clone();
    let worker = Rc::clone(worker);
    driver.spawn_boxed(Box::pin(async move {
        let _keep_awake = worker.driver.keep_awake();
        let timer = worker.timers.timer();
        if let Some(deadline) = deadline {
            timer.set(deadline);
        }
        let was_force_closed = poll_fn(|cx| {
            if let Poll::Ready(outcome) = exchange.poll_response(cx, &worker.heartbeat) {
                if let Err(handler_panic) = outcome {
                    let (panic, request) = (handler_panic.0, request_name(&exchange));
                    exchange.in_span(|| {
                        tracing::error!(target: "peregrine", panic, request,
                            route = exchange.route().as_deref(), peer,
                            "a handler panicked after its client had disconnected");
                    });
                }
                return Poll::Ready(false);
            }
            if worker.lifecycle() >= Lifecycle::ForceClosing {
                return Poll::Ready(true);
            }
            timer.poll(cx).map(|()| false)
        })
        .await;
        if was_force_closed {
            let now = worker.driver.now();
            let in_flight = exchange.in_flight();
            worker.force_closed.borrow_mut().push(ForceClosed {
                peer,
                request: Some(request_name(&exchange)),
                stage: InFlightStage::Handler,
                in_flight_for: in_flight
                    .and_then(|request| request.pending_since)
                    .map(|since| now.saturating_sub(since)),
                connection_age: now.saturating_sub(accepted_at),
            });
            worker.instrumentation.record_aborted_handler();
        }
        exchange.reset();
        drop(pending_work);
    }));
}

fn request_name(exchange: &Exchange) -> String {
    exchange.request_name().map(ToString::to_string).unwrap_or_default()
}
