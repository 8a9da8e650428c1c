//! Work that goes on when whoever waits for it has left.

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

/// The answer to a request. Once it was begun it is worked out to its end: if this is dropped before, by a task of the worker,
/// for which a shutdown waits. It counts as in progress until then.
pub(crate) struct Lasting {
    /// None while it is polled, so that one that panics is dropped, and when it has ended.
    work: Option<Work>,
    is_begun: bool,
    /// Does anybody want it still when this is dropped?
    is_wanted: Box<dyn Fn() -> bool>,
    /// The request that it answers.
    counted: Counted,
    /// How long it may take from then on.
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

    /// It goes on only if this says so then.
    pub(crate) fn if_wanted(mut self, is_wanted: impl Fn() -> bool + 'static) -> Self {
        self.is_wanted = Box::new(is_wanted);
        self
    }
}

impl Future for Lasting {
    type Output = Response;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Response> {
        let mut work = self.work.take().expect("it is not polled after its end");
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
            // Before the exchange gives up its place, so that nobody else gets in between.
            let place = self.counted.go_on();
            spawn(async move { drop(work.await) }, Told::here(), place, self.limit);
        }
    }
}

/// With what whatever is told is told.
pub(crate) struct Told {
    span: Span,
    trace: Option<trace::Place>,
}

impl Told {
    /// With the request that runs here.
    fn here() -> Self {
        let (mut span, trace) = (Span::none(), trace::present());
        contained(|| span = Span::current());
        Self { span, trace }
    }

    /// With nothing: what is done has no end that its request knows.
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

/// Lets a task of this worker do it, for so long at most, and has the place until then. Where there is no worker, in a test without a
/// runtime, nobody does.
pub(crate) fn spawn(
    work: impl Future<Output = ()> + 'static,
    told: Told,
    place: Place,
    limit: Duration,
) {
    if tokio::runtime::Handle::try_current().is_ok() {
        let work = told.run(async move {
            let _place = place;
            // Nobody else hears of its panic.
            if let Ok(Err(panic)) = tokio::time::timeout(limit, or_panic(work)).await {
                note("a handler", panic);
            }
        });
        // A runtime of somebody else's may have no room for what stays on its thread.
        guarded("the start of a task", || drop(tokio::task::spawn_local(work)));
    }
}

/// What a handler panicked with.
pub(crate) type Panic = Box<dyn Any + Send>;

/// The handler's answer, or what it panicked with.
pub(crate) async fn answer_or_panic<S: Service>(
    request: Request,
    next: &S,
) -> Result<Response, Panic> {
    // The call is inside the future, so that a panic in it is caught as well.
    or_panic(async { next.call(request).await }).await
}
