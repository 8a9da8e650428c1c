//! Work that continues after the client that started it has disconnected.

use peregrine_web::in_flight::{InFlightHandle, InFlightPermit};
use peregrine_web::panic::{catch_log_panic, catch_panic, catch_unwind_future, in_span, log_panic};
use peregrine_web::trace;
use peregrine_web::{Request, Response, Service};
use std::any::Any;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;
use tracing::Span;

/// A response in the making that runs to completion once it has started: if it is dropped earlier,
/// a task of the worker finishes it, and a shutdown waits for that task. Until then the request
/// counts as in progress.
pub(crate) struct DetachOnDrop {
    /// `None` while it is polled, so that work that panics is dropped, and after completion.
    future: Option<BoxedResponse>,
    is_started: bool,
    /// Asked on drop: whether the response is still needed.
    keep_running: Box<dyn Fn() -> bool>,
    /// The request that this answers.
    in_progress: InFlightHandle,
    /// The time limit for the task.
    timeout: Duration,
}

type BoxedResponse = Pin<Box<dyn Future<Output = Response>>>;

impl DetachOnDrop {
    pub(crate) fn new(
        work: impl Future<Output = Response> + 'static,
        counted: InFlightHandle,
        limit: Duration,
    ) -> Self {
        let is_wanted = Box::new(|| true);
        Self {
            future: Some(Box::pin(work)),
            is_started: false,
            keep_running: is_wanted,
            in_progress: counted,
            timeout: limit,
        }
    }

    /// Continues after a drop only if this returns `true` then.
    pub(crate) fn keep_running_if(mut self, is_wanted: impl Fn() -> bool + 'static) -> Self {
        self.keep_running = Box::new(is_wanted);
        self
    }
}

impl Future for DetachOnDrop {
    type Output = Response;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response> {
        let mut work = self.future.take().expect("the future is not polled after completion");
        self.is_started = true;
        let polled = work.as_mut().poll(cx);
        if polled.is_pending() {
            self.future = Some(work);
        }
        polled
    }
}

impl Drop for DetachOnDrop {
    fn drop(&mut self) {
        if let Some(work) = self.future.take().filter(|_| self.is_started && (self.keep_running)())
        {
            // Take the permit before the exchange releases it, so that no other request gets it in
            // between.
            let place = self.in_progress.acquire();
            spawn_detached(
                async move { drop(work.await) },
                TelemetryContext::current(),
                place,
                self.timeout,
            );
        }
    }
}

/// The span and trace under which a task logs.
pub(crate) struct TelemetryContext {
    span: Span,
    trace: Option<trace::LazyTraceContext>,
}

impl TelemetryContext {
    /// Those of the current request.
    fn current() -> Self {
        let (mut span, trace) = (Span::none(), trace::current());
        catch_log_panic(|| span = Span::current());
        Self { span, trace }
    }

    /// None, for work whose end is not part of its request.
    pub(crate) const fn none() -> Self {
        Self { span: Span::none(), trace: None }
    }

    async fn instrument(self, work: impl Future<Output = ()>) {
        let mut work = pin!(work);
        poll_fn(|cx| {
            let _present = self.trace.as_ref().map(trace::enter);
            in_span(&self.span, || work.as_mut().poll(cx))
        })
        .await;
    }
}

/// Runs `work` in a task of this worker, within a time limit, holding `place` until the end.
/// Without a runtime, as in some tests, the work is dropped.
pub(crate) fn spawn_detached(
    work: impl Future<Output = ()> + 'static,
    told: TelemetryContext,
    place: InFlightPermit,
    limit: Duration,
) {
    if tokio::runtime::Handle::try_current().is_ok() {
        let work = told.instrument(async move {
            let _place = place;
            // Nothing else would report the panic.
            if let Ok(Err(panic)) = tokio::time::timeout(limit, catch_unwind_future(work)).await {
                log_panic("a handler", panic);
            }
        });
        // Another program's runtime may not support local tasks.
        catch_panic("the start of a task", || drop(tokio::task::spawn_local(work)));
    }
}

/// The payload of a handler's panic.
pub(crate) type PanicPayload = Box<dyn Any + Send>;

/// The handler's response, or its panic.
pub(crate) async fn call_catching_panic<S: Service>(
    request: Request,
    next: &S,
) -> Result<Response, PanicPayload> {
    // The call is inside the future, so that a panic in it is caught too.
    catch_unwind_future(async { next.call(request).await }).await
}
