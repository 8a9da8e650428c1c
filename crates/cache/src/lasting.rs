//! Work that continues after the client that started it has disconnected.

use peregrine_web::in_progress::{Counted, Place};
use peregrine_web::panics::{contained, guarded, inside, note, or_panic};
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
pub(crate) struct Lasting {
    /// `None` while it is polled, so that work that panics is dropped, and after completion.
    work: Option<Work>,
    is_begun: bool,
    /// Asked on drop: whether the response is still needed.
    is_wanted: Box<dyn Fn() -> bool>,
    /// The request that this answers.
    counted: Counted,
    /// The time limit for the task.
    limit: Duration,
}

type Work = Pin<Box<dyn Future<Output = Response>>>;

impl Lasting {
    pub(crate) fn new(
        work: impl Future<Output = Response> + 'static,
        counted: Counted,
        limit: Duration,
    ) -> Self {
        let is_wanted = Box::new(|| true);
        Self { work: Some(Box::pin(work)), is_begun: false, is_wanted, counted, limit }
    }

    /// Continues after a drop only if this returns `true` then.
    pub(crate) fn if_wanted(mut self, is_wanted: impl Fn() -> bool + 'static) -> Self {
        self.is_wanted = Box::new(is_wanted);
        self
    }
}

impl Future for Lasting {
    type Output = Response;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Response> {
        let mut work = self.work.take().expect("the future is not polled after completion");
        self.is_begun = true;
        let polled = work.as_mut().poll(context);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl Drop for Lasting {
    fn drop(&mut self) {
        if let Some(work) = self.work.take().filter(|_| self.is_begun && (self.is_wanted)()) {
            // Take the place before the exchange releases it, so that no other request gets it in
            // between.
            let place = self.counted.go_on();
            spawn(async move { drop(work.await) }, Told::here(), place, self.limit);
        }
    }
}

/// The span and trace under which a task logs.
pub(crate) struct Told {
    span: Span,
    trace: Option<trace::Place>,
}

impl Told {
    /// Those of the current request.
    fn here() -> Self {
        let (mut span, trace) = (Span::none(), trace::present());
        contained(|| span = Span::current());
        Self { span, trace }
    }

    /// None, for work whose end is not part of its request.
    pub(crate) const fn alone() -> Self {
        Self { span: Span::none(), trace: None }
    }

    async fn run(self, work: impl Future<Output = ()>) {
        let mut work = pin!(work);
        poll_fn(|context| {
            let _present = self.trace.as_ref().map(trace::enter);
            inside(&self.span, || work.as_mut().poll(context))
        })
        .await;
    }
}

/// Runs `work` in a task of this worker, within a time limit, holding `place` until the end.
/// Without a runtime, as in some tests, the work is dropped.
pub(crate) fn spawn(
    work: impl Future<Output = ()> + 'static,
    told: Told,
    place: Place,
    limit: Duration,
) {
    if tokio::runtime::Handle::try_current().is_ok() {
        let work = told.run(async move {
            let _place = place;
            // Nothing else would report the panic.
            if let Ok(Err(panic)) = tokio::time::timeout(limit, or_panic(work)).await {
                note("a handler", panic);
            }
        });
        // Another program's runtime may not support local tasks.
        guarded("the start of a task", || drop(tokio::task::spawn_local(work)));
    }
}

/// The payload of a handler's panic.
pub(crate) type Panic = Box<dyn Any + Send>;

/// The handler's response, or its panic.
pub(crate) async fn answer_or_panic<S: Service>(
    request: Request,
    next: &S,
) -> Result<Response, Panic> {
    // The call is inside the future, so that a panic in it is caught too.
    or_panic(async { next.call(request).await }).await
}
