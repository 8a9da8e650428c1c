//! One request and its response.

use crate::connection::{Asked, Talk};
use crate::ended::Ended;
use crate::link::Filled;
use crate::pulse::Pulse;
use crate::respond;
use crate::upload::{Begun, Upload, Uploaded};
use crate::worker::{Interrupt, Order, Until};
use peregrine_driver::Driver;
use peregrine_proto::{Reject, Version};
use peregrine_slot::FutureSlot;
use peregrine_web::handler::{OnDisconnect, RouteOptions};
use peregrine_web::head::Head;
use peregrine_web::route::readable;
use peregrine_web::scope::REST;
use peregrine_web::upgrade::OnUpgrade;
use peregrine_web::{Request, Response};
use std::future::{pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Unread bytes of further requests that may pile up while a handler is waiting. Beyond this, the
/// server stops reading, and learns that the peer left only when it answers.
const READ_AHEAD_BYTES_MAX: usize = 16 * 1024;

/// The first pause between two probes of a peer that ended its sending side, doubled each time up
/// to the last.
const PROBE_PAUSE_MIN: Duration = Duration::from_millis(200);
const PROBE_PAUSE_MAX: Duration = Duration::from_secs(10);

/// How an exchange went.
pub(crate) enum Turn {
    /// The response is written.
    Answered,
    /// The handler panicked; a 500 is written.
    Panicked,
    /// The request's body broke a rule while the handler was reading it; its response is written.
    Rejected(Reject),
    /// Another protocol takes over.
    Upgrade(OnUpgrade),
}

/// Calls the handler and writes its response.
pub(crate) async fn run<D: Driver>(
    talk: &mut Talk<'_, D>,
    slot: &mut FutureSlot,
    mut head: Head,
) -> Result<Turn, Ended> {
    let worker = talk.link.worker;
    talk.is_last = !head.index().keep_alive;
    let target = worker.application.find(&mut head);
    let options = target.options();
    let limit = target.body_limit(worker.limits.body_bytes_max);
    let method = head.index().method;
    let (body, mut upload) = match Upload::begin(talk, head.index(), limit) {
        Ok(Begun { body, upload }) => (body, upload),
        Err(reject) => return Err(Box::pin(talk.reject(reject)).await),
    };
    talk.request = Some(Asked { method, pattern: target.pattern() });
    let manner = Manner { options, can_probe: head.index().version == Version::Http11 };
    let states = Rc::clone(worker.application.states());
    let pattern = target.pattern();
    // The pattern of a mount says nothing about what it has inside.
    let below = pattern.filter(|pattern| pattern.ends_with(REST)).map(|_| head.share());
    let request = Request::new(head, body, states, Rc::clone(talk.info));
    let future = target.call(slot, request);
    let mut handler = Guarded { future, pulse: &worker.pulse, pattern, below };
    let first = poll_fn(|context| Poll::Ready(Pin::new(&mut handler).poll(context))).await;
    let outcome = match first {
        Poll::Ready(outcome) => outcome,
        // What is rare is boxed, here and below: the future of a connection's work is moved to its
        // desk for each batch of requests, and what it has room for is what that costs.
        Poll::Pending => Box::pin(wait(talk, handler, &mut upload, &manner)).await?,
    };
    let mut turn = Turn::Answered;
    let mut response = match outcome {
        Ok(response) => response,
        Err(Panicked) => {
            turn = Turn::Panicked;
            talk.protocol.drain();
            respond::panicked()
        }
    };
    talk.drain_if_due();
    if let Some(upgrade) = response.take_upgrade() {
        if respond::switch_protocols(talk, &response) {
            return Ok(Turn::Upgrade(upgrade));
        }
        tracing::error!(target: "peregrine",
            "a handler answered with an upgrade to a request that did not ask for one, or whose \
             body was not read; the peer got a 500");
        response = respond::panicked();
    }
    respond::run(talk, response, &mut upload).await?;
    if let Some(reject) = upload.rejected() {
        talk.protocol.drain();
        return Ok(Turn::Rejected(reject));
    }
    Ok(turn)
}

/// The handler panicked.
struct Panicked;

/// How to wait for a handler.
struct Manner<'a> {
    options: &'a RouteOptions,
    /// May a peer that ended its sending side be probed?
    can_probe: bool,
}

/// Polls a handler that was not ready at once to its end.
async fn wait<D: Driver>(
    talk: &mut Talk<'_, D>,
    mut handler: impl Future<Output = Result<Response, Panicked>> + Unpin,
    upload: &mut Upload,
    manner: &Manner<'_>,
) -> Result<Result<Response, Panicked>, Ended> {
    let worker = talk.link.worker;
    let _hold = worker.driver.hold();
    let alarm = manner.options.timeout.map(|timeout| {
        let alarm = worker.wheel.alarm();
        alarm.set(worker.driver.now().saturating_add(timeout));
        alarm
    });
    let left = {
        let mut meanwhile = pin!(meanwhile(talk, upload, manner.can_probe));
        let raced = poll_fn(|context| {
            if let Poll::Ready(outcome) = Pin::new(&mut handler).poll(context) {
                return Poll::Ready(Raced::First(outcome));
            }
            if let Some(alarm) = &alarm
                && alarm.poll(context).is_ready()
            {
                return Poll::Ready(Raced::First(Ok(respond::handler_late())));
            }
            meanwhile.as_mut().poll(context).map(Raced::Second)
        });
        match raced.await {
            Raced::First(outcome) => return Ok(outcome),
            Raced::Second(ended) => ended,
        }
    };
    match (left, manner.options.on_disconnect) {
        (Ended::PeerLeft | Ended::Broken(_), OnDisconnect::RunToEnd) => {
            let handler = pin!(handler);
            let to_end = worker.within(talk.link.alarm, Until::Never, Order::Cut, handler);
            Err(if to_end.await.is_ok() { Ended::PeerLeft } else { Ended::Cut })
        }
        (Ended::Broken(_), OnDisconnect::Cancel) => Err(Ended::PeerLeft),
        (ended, _) => Err(ended),
    }
}

/// What a connection does while its handler, or a stream it made, is not ready: send what is
/// written, receive the request's body, and notice when the peer leaves. Ends only by that.
pub(crate) async fn meanwhile<D: Driver>(
    talk: &mut Talk<'_, D>,
    upload: &mut Upload,
    can_probe: bool,
) -> Ended {
    talk.link.inbox.settle();
    match attend(talk, upload, can_probe).await {
        Ok(()) => Ended::PeerLeft,
        Err(ended) => ended,
    }
}

/// Ends when the peer has left.
async fn attend<D: Driver>(
    talk: &mut Talk<'_, D>,
    upload: &mut Upload,
    can_probe: bool,
) -> Result<(), Ended> {
    talk.link.flush().await?;
    match upload.run(talk).await? {
        Uploaded::Left => return Ok(()),
        Uploaded::Whole | Uploaded::Unwanted => {}
    }
    watch(talk, can_probe).await
}

/// Ends when the peer has left.
async fn watch<D: Driver>(talk: &mut Talk<'_, D>, can_probe: bool) -> Result<(), Ended> {
    while talk.link.inbox.unread().len() < READ_AHEAD_BYTES_MAX {
        match talk.link.fill(Until::Never).await? {
            Filled::Bytes => talk.link.inbox.settle(),
            Filled::End if can_probe => return probe(talk).await,
            Filled::End | Filled::Late => break,
        }
    }
    idle(talk).await
}

/// Waits for nothing but the order to cut.
async fn idle<D: Driver>(talk: &Talk<'_, D>) -> Result<(), Ended> {
    let link = &talk.link;
    let forever = pin!(pending::<()>());
    let _ = link.worker.within(link.alarm, Until::Never, Order::Cut, forever).await;
    Err(Ended::Cut)
}

/// The peer ended its sending side: it may have left, or only have nothing more to say. TCP shows
/// the difference only to those who send. RFC 9110 §15.2: a client must be able to parse interim
/// responses even if it does not expect one, so one of them is what is sent; where nobody is left
/// to read it, it comes back as a reset.
async fn probe<D: Driver>(talk: &mut Talk<'_, D>) -> Result<(), Ended> {
    let mut pause = PROBE_PAUSE_MIN;
    loop {
        talk.protocol.send_interim(102, std::iter::empty(), talk.link.outbox);
        if let Err(ended) = talk.link.flush().await {
            return match ended {
                Ended::Cut => Err(ended),
                _ => Ok(()),
            };
        }
        let link = &talk.link;
        let wait = pin!(pending::<()>());
        match link.worker.within(link.alarm, Until::In(pause), Order::Cut, wait).await {
            Err(Interrupt::Order) => return Err(Ended::Cut),
            Ok(()) | Err(Interrupt::Deadline) => pause = (pause * 2).min(PROBE_PAUSE_MAX),
        }
    }
}

/// A future whose panic is a value, and that shows when it has the thread.
struct Guarded<'w, F> {
    future: F,
    pulse: &'w Pulse,
    pattern: Option<&'w str>,
    /// The request, where the pattern alone does not tell whose handler it is.
    below: Option<Head>,
}

impl<F: Future + Unpin> Future for Guarded<'_, F> {
    type Output = Result<F::Output, Panicked>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let beat = self.pulse.beat(self.pattern);
        // The future is not polled again after a panic, so whatever state it left is never seen.
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(&mut self.future).poll(context)));
        let is_told = beat.is_told();
        drop(beat);
        if is_told && let Some(head) = &self.below {
            name_blocking(self.pattern, head);
        }
        match polled {
            Ok(polled) => polled.map(Ok),
            Err(panic) => {
                let message = message_of(&*panic);
                tracing::error!(target: "peregrine", message, "a handler panicked");
                Poll::Ready(Err(Panicked))
            }
        }
    }
}

/// Tells which request it was for which a mount was named.
#[cold]
fn name_blocking(pattern: Option<&str>, head: &Head) {
    let route = pattern.map(readable).unwrap_or_default();
    let (method, path) = (head.method_name(), head.path());
    tracing::warn!(target: "peregrine", %route, method, path,
        "this is the request whose handler, inside a mounted service, blocked its thread");
}

pub(crate) fn message_of(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)")
}

/// Which of two futures ended first.
pub(crate) enum Raced<A, B> {
    First(A),
    Second(B),
}

/// Polls both, the first one first, until one of them is ready.
///
/// The caller pins them: a future that is moved into an `async fn` is kept there twice, and each
/// handler that has to wait keeps these.
pub(crate) fn race<A: Future + ?Sized, B: Future>(
    mut a: Pin<&mut A>,
    mut b: Pin<&mut B>,
) -> impl Future<Output = Raced<A::Output, B::Output>> {
    poll_fn(move |context| {
        if let Poll::Ready(value) = a.as_mut().poll(context) {
            return Poll::Ready(Raced::First(value));
        }
        b.as_mut().poll(context).map(Raced::Second)
    })
}
