//! Events that are pushed from any task and any thread.

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

/// The number of events that may wait for a slow reader, unless [`channel_of`] sets another number.
pub const CHANNEL_EVENTS_MAX: usize = 16;

/// Creates a stream of events and its sender. Up to [`CHANNEL_EVENTS_MAX`] events may wait for the
/// reader.
///
/// ```
/// use peregrine::prelude::*;
///
/// async fn countdown() -> Sse {
///     let (sender, sse) = sse::channel();
///     let produce = async move {
///         for left in (0..10).rev() {
///             // Waits while the client is slow; fails once it disconnects or the server drains.
///             if sender.send(Event::default().data(left.to_string())).await.is_err() {
///                 return;
///             }
///         }
///     };
///     // Spawn it as a task: `tokio::task::spawn_local(produce);`
///     # drop(produce);
///     sse
/// }
/// # let _ = countdown;
/// ```
pub fn channel() -> (Sender, Sse) {
    channel_of(CHANNEL_EVENTS_MAX)
}

/// As [`channel`], with room for `events_max` events, but at least one.
pub fn channel_of(events_max: usize) -> (Sender, Sse) {
    let queue = Queue { events_max: events_max.max(1), senders: 1, ..Queue::default() };
    let queue = Arc::new(Shared(Mutex::new(queue)));
    let sender = Sender(Arc::clone(&queue));
    (sender, Sse::from_source(Box::pin(Receiver(queue))))
}

/// Sends events to one reader. Clones send to the same reader; when the last one is dropped, the
/// stream ends after the waiting events.
///
/// To send one event to many readers, keep a sender for each, and do not wait for slow readers:
///
/// ```
/// use peregrine::web::sse::{Event, SendError, Sender};
///
/// /// A slow reader is disconnected after the waiting events, so that it reconnects.
/// fn send_or_disconnect(readers: &mut Vec<Sender>, event: &Event) {
///     readers.retain(|reader| reader.try_send(event.clone()).is_ok());
/// }
///
/// /// A slow reader misses the event.
/// fn send_or_skip(readers: &mut Vec<Sender>, event: &Event) {
///     readers.retain(|reader| reader.try_send(event.clone()) != Err(SendError::Closed));
/// }
/// # let _ = (send_or_disconnect, send_or_skip);
/// ```
pub struct Sender(Arc<Shared>);

/// Why an event was not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// The reader is slow, and the queue of events is full. Only [`Sender::try_send`] returns this.
    Full,
    /// The stream is closed: the client has disconnected, or the server drains.
    Closed,
    /// The event is invalid.
    Invalid(InvalidEvent),
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the queue of events is full"),
            Self::Closed => f.write_str("the stream of events is closed"),
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
    /// Sends an event; waits while the queue is full. If the future is dropped before it completes,
    /// nothing is sent.
    ///
    /// # Errors
    /// The stream is closed, or the event is invalid.
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

    /// Sends an event if the queue has room.
    ///
    /// # Errors
    /// The queue is full, the stream is closed, or the event is invalid.
    pub fn try_send(&self, event: Event) -> Result<(), SendError> {
        let event = event.wire()?;
        let queue = self.0.lock();
        if queue.is_full() && !queue.is_closed {
            return Err(SendError::Full);
        }
        push(queue, event)
    }

    /// Completes when the stream is closed: the client has disconnected, or the server drains.
    pub async fn closed(&self) {
        let mut place = Place::of(self);
        poll_fn(|context| {
            let queue = self.0.lock();
            if queue.is_closed { Poll::Ready(()) } else { place.wait(queue, context) }
        })
        .await;
    }

    /// Whether the stream is closed.
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

/// A waiting sender's entry in the queue, which is removed on drop.
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

/// Wakers are called and dropped after the lock is released, because they may run arbitrary code.
struct Shared(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    events: VecDeque<Bytes>,
    events_max: usize,
    senders: usize,
    is_closed: bool,
    reader: Option<Waker>,
    /// The wakers of senders that wait for room or for the end, by number.
    waiting: BTreeMap<u64, Waker>,
    /// The last number that was assigned.
    last: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No code under the lock panics, so the queue is always consistent.
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
