//! Work that continues after the client that started it has disconnected.

use peregrine_web::in_flight::{InFlightHandle, InFlightPermit};
use peregrine_web::panic::{
    catch_panic, catch_subscriber_panic, catch_unwind_future, in_span, log_panic,
};
use peregrine_web::trace;
use peregrine_web::{Request, Response, Service};
use std::any::Any;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;
use tracing::Span;

/// A response future that, once polled, runs to completion even if it is dropped: a task on the
/// same worker then finishes it, and shutdown waits for that task. Until the task ends, the request
/// counts as in progress.
pub(crate) struct DetachOnDrop {
    /// `None` after completion, and while being polled, so that a panic drops the future.
    future: Option<BoxedResponse>,
    is_started: bool,
    /// Called on drop. Returns whether the response is still needed.
    keep_running: Box<dyn Fn() -> bool>,
    /// Keeps the request counted as in progress after the drop.
    in_progress: InFlightHandle,
    /// The time limit for the task.
    timeout: Duration,
}

type BoxedResponse = Pin<Box<dyn Future<Output = Response>>>;

impl DetachOnDrop {
    pub(crate) fn new(
        future: impl Future<Output = Response> + 'static,
        in_progress: InFlightHandle,
        timeout: Duration,
    ) -> Self {
        let keep_running = Box::new(|| true);
        Self {
            future: Some(Box::pin(future)),
            is_started: false,
            keep_running,
            in_progress,
            timeout,
        }
    }

    /// Continues after a drop only if `keep_running` returns `true` at that moment. Without this
    /// setting, it always continues.
    pub(crate) fn keep_running_if(mut self, keep_running: impl Fn() -> bool + 'static) -> Self {
        self.keep_running = Box::new(keep_running);
        self
    }
}

impl Future for DetachOnDrop {
    type Output = Response;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response> {
        let mut future = self.future.take().expect("the future is not polled after completion");
        self.is_started = true;
        let polled = future.as_mut().poll(cx);
        if polled.is_pending() {
            self.future = Some(future);
        }
        polled
    }
}

impl Drop for DetachOnDrop {
    fn drop(&mut self) {
        if let Some(future) =
            self.future.take().filter(|_| self.is_started && (self.keep_running)())
        {
            // Acquire the permit before the exchange releases its own, so that no other request can
            // take it in between.
            let permit = self.in_progress.acquire();
            spawn_detached(
                async move { drop(future.await) },
                TelemetryContext::current(),
                permit,
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
    /// Returns the span and trace of the current request.
    fn current() -> Self {
        let (mut span, trace) = (Span::none(), trace::current());
        catch_subscriber_panic(|| span = Span::current());
        Self { span, trace }
    }

    /// Returns no span and no trace, for work that is not part of a request, such as a background
    /// refresh.
    pub(crate) const fn none() -> Self {
        Self { span: Span::none(), trace: None }
    }

    async fn instrument(self, work: impl Future<Output = ()>) {
        let mut work = pin!(work);
        poll_fn(|cx| {
            let _guard = self.trace.as_ref().map(trace::enter);
            in_span(&self.span, || work.as_mut().poll(cx))
        })
        .await;
    }
}

/// Spawns `work` as a task on this worker, with a time limit. The task holds `permit` until it
/// ends. Without a Tokio runtime, as in some tests, `work` is dropped.
pub(crate) fn spawn_detached(
    work: impl Future<Output = ()> + 'static,
    telemetry: TelemetryContext,
    permit: InFlightPermit,
    timeout: Duration,
) {
    if tokio::runtime::Handle::try_current().is_ok() {
        let work = telemetry.instrument(async move {
            let _permit = permit;
            // Nothing else would report the panic.
            if let Ok(Err(panic)) = tokio::time::timeout(timeout, catch_unwind_future(work)).await {
                log_panic("a handler", panic);
            }
        });
        // `spawn_local` panics if the application runs in a runtime without a `LocalSet`.
        catch_panic("the start of a task", || drop(tokio::task::spawn_local(work)));
    }
}

/// The payload of a handler's panic.
pub(crate) type PanicPayload = Box<dyn Any + Send>;

/// Calls the handler. Returns its response or the payload of its panic.
pub(crate) async fn call_catching_panic<S: Service>(
    request: Request,
    next: &S,
) -> Result<Response, PanicPayload> {
    // The call is inside the future, so that a panic in it is caught too.
    catch_unwind_future(async { next.call(request).await }).await
}
