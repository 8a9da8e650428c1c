//! A body that crosses threads, one frame at a time.
//!
//! A [`BodyForwarder`] owns the body on the body's thread, and passes a frame to the reader's end
//! ([`ForwardedBody`]) when the reader requests one. The forwarder is a [`LocalProvider`]: it is
//! not spawned as a task, but polled together with the code that may wait for its frames.

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame};
use peregrine_web::coop::yield_now;
use peregrine_web::{Body, BodyError};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The maximum number of rounds in one call of [`poll_with`]. Each round forwards at most one frame
/// of each body. Without this limit, a body that is always ready would starve other tasks.
const ROUNDS_PER_POLL_MAX: usize = 32;

/// The frame that a body yields, or `None` at the end of the body.
pub(crate) type PolledFrame<E> = Option<Result<Frame<Bytes>, E>>;

/// The reader's end of a forwarded body.
pub(crate) struct ForwardedBody {
    channel: Arc<Mutex<BodyChannel>>,
    /// The number of remaining bytes, if known.
    pub(crate) remaining: Option<u64>,
    pub(crate) is_ended: bool,
}

/// The state that both ends share. It buffers at most one frame.
#[derive(Default)]
pub(crate) struct BodyChannel {
    /// The frame that the reader has not yet taken. `None` does not mean the end: see `end`.
    buffered: Option<Result<Frame<Bytes>, BodyError>>,
    /// The reader has polled for a frame that is not yet buffered.
    is_frame_requested: bool,
    end: ChannelEnd,
    is_reader_gone: bool,
    reader_waker: Option<Waker>,
    forwarder_waker: Option<Waker>,
}

/// What follows the buffered frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ChannelEnd {
    /// More frames follow when the reader requests them.
    #[default]
    Open,
    /// Nothing follows: the body is complete or has failed.
    Closed,
    /// An error follows, because the forwarder was dropped before the end of the body.
    Aborted,
}

impl ForwardedBody {
    /// Creates the reader's end and the state that it shares with the forwarder.
    pub(crate) fn new(remaining: Option<u64>) -> (Self, Arc<Mutex<BodyChannel>>) {
        let channel = Arc::<Mutex<BodyChannel>>::default();
        (Self { channel: Arc::clone(&channel), remaining, is_ended: false }, channel)
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<PolledFrame<BodyError>> {
        if self.is_ended {
            return Poll::Ready(None);
        }
        let mut channel = lock(&self.channel);
        if let Some(result) = channel.buffered.take() {
            drop(channel);
            match &result {
                Ok(frame) => {
                    let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                    self.remaining =
                        self.remaining.map(|remaining| remaining.saturating_sub(bytes));
                }
                Err(_) => self.set_ended(),
            }
            return Poll::Ready(Some(result));
        }
        if channel.end != ChannelEnd::Open {
            let is_aborted = channel.end == ChannelEnd::Aborted;
            drop(channel);
            self.set_ended();
            return Poll::Ready(is_aborted.then_some(Err(BodyError::Disconnected)));
        }
        channel.is_frame_requested = true;
        register_waker(&mut channel.reader_waker, cx);
        let waker = channel.forwarder_waker.take();
        drop(channel);
        // A forwarder in the same task needs no wake-up: `poll_with` polls it after the reader.
        if let Some(waker) = waker.filter(|waker| !waker.will_wake(cx.waker())) {
            waker.wake();
        }
        Poll::Pending
    }

    fn set_ended(&mut self) {
        self.is_ended = true;
        self.remaining = Some(0);
    }
}

impl Drop for ForwardedBody {
    fn drop(&mut self) {
        let mut channel = lock(&self.channel);
        channel.is_reader_gone = true;
        channel.buffered = None;
        // Wakes the forwarder so that it drops the body, unless it did so at the end of the body.
        let waker = channel.forwarder_waker.take().filter(|_| channel.end == ChannelEnd::Open);
        drop(channel);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The sending end of a forwarded body. If it is dropped before the end of the body, the reader
/// gets an error.
pub(crate) struct BodyForwarder {
    /// `None` when there is nothing left to forward.
    body: Option<Body>,
    channel: Arc<Mutex<BodyChannel>>,
}

/// The result of polling a [`LocalProvider`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing was provided: nothing is requested, or what is requested is not ready.
    Unchanged,
    /// Something was provided, so code that waits for it should be polled again.
    Advanced,
}

/// Provides something on this thread, such as the frames of a body, when other code on any thread
/// requests it. A provider is not spawned: code that may wait for it also polls it.
pub(crate) trait LocalProvider {
    /// Provides what is requested and ready now, and registers the waker for the rest and for
    /// further requests.
    fn poll(&mut self, cx: &mut Context<'_>) -> Progress;

    /// Whether something can still be requested, or is being provided.
    fn is_active(&self) -> bool;

    /// Provides what is requested until the provider is no longer active.
    fn run_to_completion(self) -> impl Future<Output = ()>;
}

impl BodyForwarder {
    /// Forwards `body` over `channel`.
    pub(crate) fn new(body: Body, channel: Arc<Mutex<BodyChannel>>) -> Self {
        Self { body: Some(body), channel }
    }

    /// Makes the reader's next read fail, because no body will arrive.
    pub(crate) fn abort(channel: Arc<Mutex<BodyChannel>>) {
        // `drop` finds the channel open, and so marks it as aborted.
        drop(Self { body: None, channel });
    }
}

impl LocalProvider for BodyForwarder {
    /// Forwards a frame if the reader requested one and the body has one; otherwise registers the
    /// waker.
    fn poll(&mut self, cx: &mut Context<'_>) -> Progress {
        let Some(body) = &mut self.body else { return Progress::Unchanged };
        let mut channel = lock(&self.channel);
        if channel.is_reader_gone {
            drop(channel);
            self.body = None;
            return Progress::Unchanged;
        }
        register_waker(&mut channel.forwarder_waker, cx);
        if !channel.is_frame_requested {
            return Progress::Unchanged;
        }
        drop(channel);
        // The lock must not be held here: polling the body runs foreign code, which may use or drop
        // the reader's end.
        let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) else {
            return Progress::Unchanged;
        };
        let mut channel = lock(&self.channel);
        channel.is_frame_requested = false;
        if !matches!(frame, Some(Ok(_))) {
            channel.end = ChannelEnd::Closed;
            self.body = None;
        }
        channel.buffered = frame;
        let waker = channel.reader_waker.take();
        drop(channel);
        // A reader in the same task needs no wake-up: `poll_with` polls it again after `Advanced`.
        if let Some(waker) = waker.filter(|waker| !waker.will_wake(cx.waker())) {
            waker.wake();
        }
        Progress::Advanced
    }

    /// Whether the reader can still request frames.
    fn is_active(&self) -> bool {
        self.body.is_some() && !lock(&self.channel).is_reader_gone
    }

    /// Forwards frames until the body ends or the reader is dropped.
    async fn run_to_completion(mut self) {
        poll_fn(|cx| {
            // This loop ends soon: the reader requests one frame at a time, and must take it before
            // it requests the next.
            while self.poll(cx) == Progress::Advanced {}
            if self.body.is_some() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }
}

impl Drop for BodyForwarder {
    fn drop(&mut self) {
        let mut channel = lock(&self.channel);
        if channel.end != ChannelEnd::Open {
            return;
        }
        channel.end = ChannelEnd::Aborted;
        let waker = channel.reader_waker.take();
        drop(channel);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Polls `poll_main` and `provider` alternately until `poll_main` is ready, `provider` makes no
/// progress, or the task has to yield. The code in `poll_main` may wait for `provider`.
pub(crate) fn poll_with_provider<T>(
    provider: &mut Option<impl LocalProvider>,
    cx: &mut Context<'_>,
    poll_main: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    let poll_provider = |cx: &mut Context<'_>| {
        provider.as_mut().map_or(Progress::Unchanged, |provider| provider.poll(cx))
    };
    poll_with(poll_provider, cx, poll_main)
}

/// Like [`poll_with_provider`], with a function in place of the provider.
pub(crate) fn poll_with<T>(
    mut poll_provider: impl FnMut(&mut Context<'_>) -> Progress,
    cx: &mut Context<'_>,
    mut poll_main: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    for _ in 0..ROUNDS_PER_POLL_MAX {
        if let Poll::Ready(value) = poll_main(cx) {
            return Poll::Ready(value);
        }
        if poll_provider(cx) == Progress::Unchanged {
            return Poll::Pending;
        }
    }
    // Wakes this task, so that it is polled again after other tasks.
    yield_now(cx);
    Poll::Pending
}

/// Ignores poisoning, because no code panics while it holds this lock. One end of the channel may
/// be dropped while a panic unwinds, and must not panic again.
fn lock(channel: &Mutex<BodyChannel>) -> MutexGuard<'_, BodyChannel> {
    channel.lock().unwrap_or_else(PoisonError::into_inner)
}

fn register_waker(slot: &mut Option<Waker>, cx: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *slot = Some(cx.waker().clone()),
    }
}
