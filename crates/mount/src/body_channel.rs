//! A body that crosses threads, one frame at a time.
//!
//! A [`BodyForwarder`] owns the body on the body's thread and moves a frame to the reader's end
//! ([`ForwardedBody`]) when the reader requests one. A pump is a [`LocalTask`]: work that is polled
//! together with the code that may wait for it.

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame};
use peregrine_web::coop::yield_now;
use peregrine_web::{Body, BodyError};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The maximum number of frames moved in one poll. Without it, a body that is always ready would
/// starve other tasks.
const FRAMES_PER_POLL_MAX: usize = 32;

pub(crate) type FrameResult = Option<Result<Frame<Bytes>, BodyError>>;

/// The reader's end of a bridged body.
pub(crate) struct ForwardedBody {
    channel: Arc<Mutex<BodyChannel>>,
    /// Remaining bytes, if known.
    pub(crate) remaining: Option<u64>,
    pub(crate) is_ended: bool,
}

/// The state that both ends share. It holds at most one frame.
#[derive(Default)]
pub(crate) struct BodyChannel {
    frame: FrameResult,
    /// The reader is waiting for a frame.
    is_frame_requested: bool,
    end: ChannelEnd,
    is_reader_gone: bool,
    reader_waker: Option<Waker>,
    forwarder_waker: Option<Waker>,
}

/// The state of the body after the buffered frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ChannelEnd {
    /// More frames follow when the reader requests them.
    #[default]
    Open,
    /// Nothing follows: the reader has the whole body or an error.
    Closed,
    /// An error follows: the pump was dropped before the end of the body.
    Aborted,
}

impl ForwardedBody {
    /// The reader's end, and the shared state.
    pub(crate) fn new(left: Option<u64>) -> (Self, Arc<Mutex<BodyChannel>>) {
        let bridge = Arc::<Mutex<BodyChannel>>::default();
        (Self { channel: Arc::clone(&bridge), remaining: left, is_ended: false }, bridge)
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<FrameResult> {
        if self.is_ended {
            return Poll::Ready(None);
        }
        let mut bridge = lock(&self.channel);
        if let Some(frame) = bridge.frame.take() {
            drop(bridge);
            match &frame {
                Ok(frame) => {
                    let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                    self.remaining = self.remaining.map(|left| left.saturating_sub(bytes));
                }
                Err(_) => self.set_ended(),
            }
            return Poll::Ready(Some(frame));
        }
        if bridge.end != ChannelEnd::Open {
            let is_broken = bridge.end == ChannelEnd::Aborted;
            drop(bridge);
            self.set_ended();
            return Poll::Ready(is_broken.then_some(Err(BodyError::Disconnected)));
        }
        bridge.is_frame_requested = true;
        register_waker(&mut bridge.reader_waker, cx);
        let pump = bridge.forwarder_waker.take();
        drop(bridge);
        if let Some(pump) = pump.filter(|pump| !pump.will_wake(cx.waker())) {
            pump.wake();
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
        let mut bridge = lock(&self.channel);
        bridge.is_reader_gone = true;
        bridge.frame = None;
        let pump = bridge.forwarder_waker.take().filter(|_| bridge.end == ChannelEnd::Open);
        drop(bridge);
        if let Some(pump) = pump {
            pump.wake();
        }
    }
}

/// The sending end of a bridged body. If it is dropped before the end of the body, the reader gets
/// an error.
pub(crate) struct BodyForwarder {
    /// `None` when there is nothing left to move.
    body: Option<Body>,
    channel: Arc<Mutex<BodyChannel>>,
}

/// The result of polling a [`BodyForwarder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing was moved: the reader requested no frame, or the body has none yet.
    Idle,
    /// The reader has a frame or an end to process.
    Advanced,
}

/// Work that must be polled on its thread for as long as another task can request it.
pub(crate) trait LocalTask {
    /// Does the requested work that is possible now, and registers the waker for the rest.
    fn poll(&mut self, cx: &mut Context<'_>) -> Progress;

    /// Whether work can still be requested.
    fn is_active(&self) -> bool;

    /// Does the requested work until no more can be requested.
    fn run_to_completion(self) -> impl Future<Output = ()>;
}

impl BodyForwarder {
    /// Moves `body` over `channel`.
    pub(crate) fn new(body: Body, bridge: Arc<Mutex<BodyChannel>>) -> Self {
        Self { body: Some(body), channel: bridge }
    }

    /// Reports to the reader that no body will arrive.
    pub(crate) fn abort(bridge: Arc<Mutex<BodyChannel>>) {
        drop(Self { body: None, channel: bridge });
    }
}

impl LocalTask for BodyForwarder {
    /// Moves a frame if the reader requested one and the body has one; otherwise registers the
    /// waker.
    fn poll(&mut self, cx: &mut Context<'_>) -> Progress {
        let Some(body) = &mut self.body else { return Progress::Idle };
        let mut bridge = lock(&self.channel);
        if bridge.is_reader_gone {
            drop(bridge);
            self.body = None;
            return Progress::Idle;
        }
        register_waker(&mut bridge.forwarder_waker, cx);
        if !bridge.is_frame_requested {
            return Progress::Idle;
        }
        drop(bridge);
        // The lock must not be held here: polling the body may wake any task.
        let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) else {
            return Progress::Idle;
        };
        let mut bridge = lock(&self.channel);
        bridge.is_frame_requested = false;
        if !matches!(frame, Some(Ok(_))) {
            bridge.end = ChannelEnd::Closed;
            self.body = None;
        }
        bridge.frame = frame;
        let reader = bridge.reader_waker.take();
        drop(bridge);
        // A reader in the same task is polled again together with the pump.
        if let Some(reader) = reader.filter(|reader| !reader.will_wake(cx.waker())) {
            reader.wake();
        }
        Progress::Advanced
    }

    /// Whether the body can still be read.
    fn is_active(&self) -> bool {
        self.body.is_some() && !lock(&self.channel).is_reader_gone
    }

    /// Moves the body to its end, or until the reader is dropped.
    async fn run_to_completion(mut self) {
        poll_fn(|cx| {
            while self.poll(cx) == Progress::Advanced {}
            if self.body.is_some() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }
}

impl Drop for BodyForwarder {
    fn drop(&mut self) {
        let mut bridge = lock(&self.channel);
        if bridge.end != ChannelEnd::Open {
            return;
        }
        bridge.end = ChannelEnd::Aborted;
        let reader = bridge.reader_waker.take();
        drop(bridge);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

/// Polls `work` and `errand` alternately until `work` is ready or neither makes progress. `work`
/// may wait for `errand`.
pub(crate) fn poll_with_task<T>(
    errand: &mut Option<impl LocalTask>,
    cx: &mut Context<'_>,
    work: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    let serve =
        |cx: &mut Context<'_>| errand.as_mut().map_or(Progress::Idle, |errand| errand.poll(cx));
    poll_with(serve, cx, work)
}

/// Like [`poll_with_task`], with a function `serve` in place of the errand.
pub(crate) fn poll_with<T>(
    mut serve: impl FnMut(&mut Context<'_>) -> Progress,
    cx: &mut Context<'_>,
    mut work: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    for _ in 0..FRAMES_PER_POLL_MAX {
        if let Poll::Ready(value) = work(cx) {
            return Poll::Ready(value);
        }
        if serve(cx) == Progress::Idle {
            return Poll::Pending;
        }
    }
    yield_now(cx);
    Poll::Pending
}

/// Ignores poisoning: no code panics while it holds this lock. One end of the bridge may be dropped
/// while a panic unwinds, and must not panic again.
fn lock(bridge: &Mutex<BodyChannel>) -> MutexGuard<'_, BodyChannel> {
    bridge.lock().unwrap_or_else(PoisonError::into_inner)
}

fn register_waker(place: &mut Option<Waker>, context: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(context.waker()),
        None => *place = Some(context.waker().clone()),
    }
}
