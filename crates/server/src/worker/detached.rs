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

/// Runs the handler of `exchange` until it ends, its deadline `until` expires, or the worker gets
/// `Lifecycle::ForceClosing`. `peer` and `born` are for the shutdown report.
pub(crate) fn spawn_detached<D: Driver>(
    worker: &Rc<Worker<D>>,
    mut exchange: Exchange,
    until: Option<Duration>,
    peer: String,
    born: Duration,
) {
    let pending = worker.instrumentation.track();
    let shared = Rc::clone(worker);
    worker.driver.spawn_boxed(Box::pin(async move {
        let worker = shared;
        let _hold = worker.driver.keep_awake();
        let alarm = worker.timers.timer();
        if let Some(until) = until {
            alarm.set(until);
        }
        let is_cut = poll_fn(|cx| {
            if let Poll::Ready(outcome) = exchange.poll_response(cx, &worker.heartbeat) {
                if let Err(panicked) = outcome {
                    let (panic, request) = (panicked.0, request_name(&exchange));
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
            alarm.poll(cx).map(|()| false)
        });
        if is_cut.await {
            let now = worker.driver.now();
            let request = exchange.in_flight();
            worker.force_closed.borrow_mut().push(ForceClosed {
                peer,
                request: Some(request_name(&exchange)),
                stage: InFlightStage::Handler,
                in_flight_for: request
                    .and_then(|request| request.pending_since)
                    .map(|since| now.saturating_sub(since)),
                connection_age: now.saturating_sub(born),
            });
            worker.instrumentation.record_aborted_handler();
        }
        exchange.reset();
        // The shutdown waits for this handler until here.
        drop(pending);
    }));
}

fn request_name(exchange: &Exchange) -> String {
    exchange.request_name().map(ToString::to_string).unwrap_or_default()
}
