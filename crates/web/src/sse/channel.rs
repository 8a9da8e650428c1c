//! Events that are pushed from any task and any thread.

use super::{Event, EventSource, InvalidEvent, Sse};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::mem::take;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The number of events that may wait for a slow reader, unless [`channel_with_capacity`] sets
/// another number.
#[doc(alias = "capacity")]
pub const DEFAULT_CHANNEL_CAPACITY: usize = 16;

/// Creates a stream of events and its sender. Up to [`DEFAULT_CHANNEL_CAPACITY`] events may wait
/// for the reader.
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
    channel_with_capacity(DEFAULT_CHANNEL_CAPACITY)
}

/// Like [`channel`], but with room for `capacity` events, or for one if `capacity` is zero.
#[doc(alias = "bounded")]
pub fn channel_with_capacity(capacity: usize) -> (Sender, Sse) {
    let queue = EventQueue { capacity: capacity.max(1), senders: 1, ..EventQueue::default() };
    let queue = Arc::new(SharedQueue(Mutex::new(queue)));
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
pub struct Sender(Arc<SharedQueue>);

/// Why an event was not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// The reader is slow, and the queue of events is full. Only [`Sender::try_send`] returns this.
    Full,
    /// The stream is closed: the client has disconnected, or the server's drain ended it.
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
        let mut event = Some(event.into_bytes()?);
        let mut waiter = Waiter::new(self);
        poll_fn(|cx| {
            let queue = self.0.lock();
            if queue.is_full() && !queue.is_closed {
                return waiter.wait(queue, cx);
            }
            // Taken only once, because the future ends here.
            Poll::Ready(push(queue, event.take().unwrap_or_default()))
        })
        .await
    }

    /// Sends an event if the queue has room.
    ///
    /// # Errors
    /// The queue is full, the stream is closed, or the event is invalid.
    pub fn try_send(&self, event: Event) -> Result<(), SendError> {
        let event = event.into_bytes()?;
        let queue = self.0.lock();
        if queue.is_full() && !queue.is_closed {
            return Err(SendError::Full);
        }
        push(queue, event)
    }

    /// Completes when the stream is closed: the client has disconnected, or the server's drain has
    /// ended the stream.
    pub async fn closed(&self) {
        let mut waiter = Waiter::new(self);
        poll_fn(|cx| {
            let queue = self.0.lock();
            if queue.is_closed { Poll::Ready(()) } else { waiter.wait(queue, cx) }
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
        let reader_waker = if queue.senders == 0 { queue.reader_waker.take() } else { None };
        // The lock is released before a waker is called or dropped: see `SharedQueue`.
        drop(queue);
        reader_waker.into_iter().for_each(Waker::wake);
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("is_closed", &self.is_closed()).finish_non_exhaustive()
    }
}

/// The entry of a waiting `send` or `closed` in the queue, which is removed on drop.
struct Waiter<'s> {
    shared: &'s SharedQueue,
    /// The key of the entry; `None` until the first wait.
    id: Option<u64>,
}

impl<'s> Waiter<'s> {
    fn new(sender: &'s Sender) -> Self {
        Self { shared: &sender.0, id: None }
    }

    /// Stores the waker and releases the lock. Always returns `Pending`.
    fn wait<T>(&mut self, mut queue: MutexGuard<'_, EventQueue>, cx: &mut Context<'_>) -> Poll<T> {
        let id = *self.id.get_or_insert_with(|| {
            queue.last_id += 1;
            queue.last_id
        });
        let old_waker = queue.waiters.insert(id, cx.waker().clone());
        drop(queue);
        drop(old_waker);
        Poll::Pending
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let mut queue = self.shared.lock();
        let waker = queue.waiters.remove(&id);
        drop(queue);
        drop(waker);
    }
}

/// A queue behind a lock.
///
/// Wakers are called and dropped after the lock is released, because they may run arbitrary code.
struct SharedQueue(Mutex<EventQueue>);

#[derive(Default)]
struct EventQueue {
    events: VecDeque<Bytes>,
    capacity: usize,
    /// The number of [`Sender`]s.
    senders: usize,
    /// The receiver was dropped.
    is_closed: bool,
    reader_waker: Option<Waker>,
    /// The wakers of senders that wait for room or for the end of the stream, by ID.
    waiters: BTreeMap<u64, Waker>,
    /// The last ID that was assigned.
    last_id: u64,
}

impl SharedQueue {
    fn lock(&self) -> MutexGuard<'_, EventQueue> {
        // No code under the lock panics, so the queue is always consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventQueue {
    fn is_full(&self) -> bool {
        self.events.len() >= self.capacity
    }
}

fn push(mut queue: MutexGuard<'_, EventQueue>, event: Bytes) -> Result<(), SendError> {
    if queue.is_closed {
        return Err(SendError::Closed);
    }
    queue.events.push_back(event);
    let reader_waker = queue.reader_waker.take();
    drop(queue);
    reader_waker.into_iter().for_each(Waker::wake);
    Ok(())
}

/// The stream's end of the queue.
struct Receiver(Arc<SharedQueue>);

impl EventSource for Receiver {
    fn poll_event(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Box<dyn Error + Send + Sync>>>> {
        let mut queue = self.0.lock();
        let Some(event) = queue.events.pop_front() else {
            if queue.senders == 0 {
                return Poll::Ready(None);
            }
            let old_waker = queue.reader_waker.replace(cx.waker().clone());
            drop(queue);
            drop(old_waker);
            return Poll::Pending;
        };
        // Waking only one could wake a `closed`, which does not use the room.
        let waiters = take(&mut queue.waiters);
        drop(queue);
        waiters.into_values().for_each(Waker::wake);
        Poll::Ready(Some(Ok(event)))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.is_closed = true;
        let (events, waiters) = (take(&mut queue.events), take(&mut queue.waiters));
        drop(queue);
        drop(events);
        waiters.into_values().for_each(Waker::wake);
    }
}
