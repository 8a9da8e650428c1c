//! Events that are pushed, from any task and any thread.

use super::{Event, InvalidEvent, Source, Sse};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::mem::take;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// How many events wait for a slow reader, unless [`channel_of`] says otherwise.
pub const CHANNEL_EVENTS_MAX: usize = 16;

/// A stream of events and its sender. Up to [`CHANNEL_EVENTS_MAX`] events wait for the reader.
///
/// ```
/// use peregrine::prelude::*;
///
/// async fn countdown() -> Sse {
///     let (sender, sse) = sse::channel();
///     let produce = async move {
///         for left in (0..10).rev() {
///             // Waits while the reader is slow; fails when it has left, or the server drains.
///             if sender.send(Event::default().data(left.to_string())).await.is_err() {
///                 return;
///             }
///         }
///     };
///     // In a task of its own: `tokio::task::spawn_local(produce);`
///     # drop(produce);
///     sse
/// }
/// # let _ = countdown;
/// ```
pub fn channel() -> (Sender, Sse) {
    channel_of(CHANNEL_EVENTS_MAX)
}

/// The same, with room for `events_max` events, at least one.
pub fn channel_of(events_max: usize) -> (Sender, Sse) {
    let queue = Queue { events_max: events_max.max(1), senders: 1, ..Queue::default() };
    let queue = Arc::new(Shared(Mutex::new(queue)));
    let sender = Sender(Arc::clone(&queue));
    (sender, Sse::from_source(Box::pin(Receiver(queue))))
}

/// Sends events to one reader. Copies send to the same one; when the last is dropped, the stream ends
/// after the events that wait.
///
/// For one event to many readers, keep a sender for each, and let none wait for another:
///
/// ```
/// use peregrine::web::sse::{Event, SendError, Sender};
///
/// /// Who is slow is let go: it gets what waits, and comes again with the id of the last event.
/// fn tell_or_let_go(readers: &mut Vec<Sender>, event: &Event) {
///     readers.retain(|reader| reader.try_send(event.clone()).is_ok());
/// }
///
/// /// Who is slow misses the event.
/// fn tell_who_is_there(readers: &mut Vec<Sender>, event: &Event) {
///     readers.retain(|reader| reader.try_send(event.clone()) != Err(SendError::Closed));
/// }
/// # let _ = (tell_or_let_go, tell_who_is_there);
/// ```
pub struct Sender(Arc<Shared>);

/// Why an event was not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// The reader is slow, and as many events wait as may. Only [`Sender::try_send`] says so.
    Full,
    /// Nobody reads any more: the reader left, or the server drains.
    Closed,
    /// The event cannot be written.
    Invalid(InvalidEvent),
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("as many events wait for their reader as may"),
            Self::Closed => f.write_str("nobody reads the events any more"),
            Self::Invalid(invalid) => invalid.fmt(f),
        }
    }
}

impl Error for SendError {}

impl From<InvalidEvent> for SendError {
    fn from(invalid: InvalidEvent) -> Self {
        Self::Invalid(invalid)
    }
}

impl Sender {
    /// Sends an event, and waits while there is no room for it. Dropping the future before its end
    /// sends nothing.
    ///
    /// # Errors
    /// Nobody reads any more, or the event is invalid.
    pub async fn send(&self, event: Event) -> Result<(), SendError> {
        let mut event = Some(event.wire()?);
        let mut place = Place::of(self);
        poll_fn(|context| {
            let queue = self.0.lock();
            if queue.is_full() && !queue.is_closed {
                return place.wait(queue, context);
            }
            Poll::Ready(push(queue, event.take().unwrap_or_default()))
        })
        .await
    }

    /// Sends an event if there is room for it.
    ///
    /// # Errors
    /// There is none, nobody reads any more, or the event is invalid.
    pub fn try_send(&self, event: Event) -> Result<(), SendError> {
        let event = event.wire()?;
        let queue = self.0.lock();
        if queue.is_full() && !queue.is_closed {
            return Err(SendError::Full);
        }
        push(queue, event)
    }

    /// Ends when nobody reads any more: the reader left, or the server drains.
    pub async fn closed(&self) {
        let mut place = Place::of(self);
        poll_fn(|context| {
            let queue = self.0.lock();
            if queue.is_closed { Poll::Ready(()) } else { place.wait(queue, context) }
        })
        .await;
    }

    /// Does nobody read any more?
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.lock().is_closed
    }
}

impl Clone for Sender {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.senders -= 1;
        let reader = if queue.senders == 0 { queue.reader.take() } else { None };
        drop(queue);
        reader.into_iter().for_each(Waker::wake);
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("is_closed", &self.is_closed()).finish_non_exhaustive()
    }
}

/// A place among those who wait, until it is dropped.
struct Place<'s> {
    shared: &'s Shared,
    number: Option<u64>,
}

impl<'s> Place<'s> {
    fn of(sender: &'s Sender) -> Self {
        Self { shared: &sender.0, number: None }
    }

    fn wait<T>(&mut self, mut queue: MutexGuard<'_, Queue>, context: &mut Context<'_>) -> Poll<T> {
        let number = *self.number.get_or_insert_with(|| {
            queue.last += 1;
            queue.last
        });
        let earlier = queue.waiting.insert(number, context.waker().clone());
        drop(queue);
        drop(earlier);
        Poll::Pending
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut queue = self.shared.lock();
        let waker = queue.waiting.remove(&number);
        drop(queue);
        drop(waker);
    }
}

/// Wakers are called, and dropped, when the lock is free again: they may run anything.
struct Shared(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    events: VecDeque<Bytes>,
    events_max: usize,
    senders: usize,
    is_closed: bool,
    reader: Option<Waker>,
    /// Who waits for room, or for the end, by number.
    waiting: BTreeMap<u64, Waker>,
    /// The number that was given last.
    last: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing that panics runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn is_full(&self) -> bool {
        self.events.len() >= self.events_max
    }
}

fn push(mut queue: MutexGuard<'_, Queue>, event: Bytes) -> Result<(), SendError> {
    if queue.is_closed {
        return Err(SendError::Closed);
    }
    queue.events.push_back(event);
    let reader = queue.reader.take();
    drop(queue);
    reader.into_iter().for_each(Waker::wake);
    Ok(())
}

struct Receiver(Arc<Shared>);

impl Source for Receiver {
    fn poll_event(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Box<dyn Error + Send + Sync>>>> {
        let mut queue = self.0.lock();
        let Some(event) = queue.events.pop_front() else {
            if queue.senders == 0 {
                return Poll::Ready(None);
            }
            let earlier = queue.reader.replace(context.waker().clone());
            drop(queue);
            drop(earlier);
            return Poll::Pending;
        };
        let waiting = take(&mut queue.waiting);
        drop(queue);
        waiting.into_values().for_each(Waker::wake);
        Poll::Ready(Some(Ok(event)))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.is_closed = true;
        let (events, waiting) = (take(&mut queue.events), take(&mut queue.waiting));
        drop(queue);
        drop(events);
        waiting.into_values().for_each(Waker::wake);
    }
}
