//! A body that crosses threads, one frame at a time.
//!
//! A [`Pump`] owns the body on the body's thread and moves a frame to the reader's end
//! ([`Bridged`]) when the reader requests one. A pump is an [`Errand`]: work that is polled
//! together with the code that may wait for it.

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame};
use peregrine_web::turn::others_first;
use peregrine_web::{Body, BodyError};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The maximum number of frames moved in one poll. Without it, a body that is always ready would
/// starve other tasks.
const FRAMES_PER_POLL_MAX: usize = 32;

pub(crate) type Framed = Option<Result<Frame<Bytes>, BodyError>>;

/// The reader's end of a bridged body.
pub(crate) struct Bridged {
    bridge: Arc<Mutex<Bridge>>,
    /// Remaining bytes, if known.
    pub(crate) left: Option<u64>,
    pub(crate) is_ended: bool,
}

/// The state that both ends share. It holds at most one frame.
#[derive(Default)]
pub(crate) struct Bridge {
    frame: Framed,
    /// The reader is waiting for a frame.
    is_wanted: bool,
    end: End,
    is_reader_gone: bool,
    reader: Option<Waker>,
    pump: Option<Waker>,
}

/// The state of the body after the buffered frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    /// More frames follow when the reader requests them.
    #[default]
    Open,
    /// Nothing follows: the reader has the whole body or an error.
    Told,
    /// An error follows: the pump was dropped before the end of the body.
    Broken,
}

impl Bridged {
    /// The reader's end, and the shared state.
    pub(crate) fn new(left: Option<u64>) -> (Self, Arc<Mutex<Bridge>>) {
        let bridge = Arc::<Mutex<Bridge>>::default();
        (Self { bridge: Arc::clone(&bridge), left, is_ended: false }, bridge)
    }

    pub(crate) fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Framed> {
        if self.is_ended {
            return Poll::Ready(None);
        }
        let mut bridge = lock(&self.bridge);
        if let Some(frame) = bridge.frame.take() {
            drop(bridge);
            match &frame {
                Ok(frame) => {
                    let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                    self.left = self.left.map(|left| left.saturating_sub(bytes));
                }
                Err(_) => self.end(),
            }
            return Poll::Ready(Some(frame));
        }
        if bridge.end != End::Open {
            let is_broken = bridge.end == End::Broken;
            drop(bridge);
            self.end();
            return Poll::Ready(is_broken.then_some(Err(BodyError::Disconnected)));
        }
        bridge.is_wanted = true;
        register(&mut bridge.reader, context);
        let pump = bridge.pump.take();
        drop(bridge);
        if let Some(pump) = pump.filter(|pump| !pump.will_wake(context.waker())) {
            pump.wake();
        }
        Poll::Pending
    }

    fn end(&mut self) {
        self.is_ended = true;
        self.left = Some(0);
    }
}

impl Drop for Bridged {
    fn drop(&mut self) {
        let mut bridge = lock(&self.bridge);
        bridge.is_reader_gone = true;
        bridge.frame = None;
        let pump = bridge.pump.take().filter(|_| bridge.end == End::Open);
        drop(bridge);
        if let Some(pump) = pump {
            pump.wake();
        }
    }
}

/// The sending end of a bridged body. If it is dropped before the end of the body, the reader gets
/// an error.
pub(crate) struct Pump {
    /// `None` when there is nothing left to move.
    body: Option<Body>,
    bridge: Arc<Mutex<Bridge>>,
}

/// The result of polling a [`Pump`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pumped {
    /// Nothing was moved: the reader requested no frame, or the body has none yet.
    Nothing,
    /// The reader has a frame or an end to process.
    Moved,
}

/// Work that must be polled on its thread for as long as another task can request it.
pub(crate) trait Errand {
    /// Does the requested work that is possible now, and registers the waker for the rest.
    fn poll(&mut self, context: &mut Context<'_>) -> Pumped;

    /// Whether work can still be requested.
    fn is_needed(&self) -> bool;

    /// Does the requested work until no more can be requested.
    fn run(self) -> impl Future<Output = ()>;
}

impl Pump {
    /// Moves `body` over `bridge`.
    pub(crate) fn of(body: Body, bridge: Arc<Mutex<Bridge>>) -> Self {
        Self { body: Some(body), bridge }
    }

    /// Reports to the reader that no body will arrive.
    pub(crate) fn none(bridge: Arc<Mutex<Bridge>>) {
        drop(Self { body: None, bridge });
    }
}

impl Errand for Pump {
    /// Moves a frame if the reader requested one and the body has one; otherwise registers the
    /// waker.
    fn poll(&mut self, context: &mut Context<'_>) -> Pumped {
        let Some(body) = &mut self.body else { return Pumped::Nothing };
        let mut bridge = lock(&self.bridge);
        if bridge.is_reader_gone {
            drop(bridge);
            self.body = None;
            return Pumped::Nothing;
        }
        register(&mut bridge.pump, context);
        if !bridge.is_wanted {
            return Pumped::Nothing;
        }
        drop(bridge);
        // The lock must not be held here: polling the body may wake any task.
        let Poll::Ready(frame) = Pin::new(body).poll_frame(context) else {
            return Pumped::Nothing;
        };
        let mut bridge = lock(&self.bridge);
        bridge.is_wanted = false;
        if !matches!(frame, Some(Ok(_))) {
            bridge.end = End::Told;
            self.body = None;
        }
        bridge.frame = frame;
        let reader = bridge.reader.take();
        drop(bridge);
        // A reader in the same task is polled again together with the pump.
        if let Some(reader) = reader.filter(|reader| !reader.will_wake(context.waker())) {
            reader.wake();
        }
        Pumped::Moved
    }

    /// Whether the body can still be read.
    fn is_needed(&self) -> bool {
        self.body.is_some() && !lock(&self.bridge).is_reader_gone
    }

    /// Moves the body to its end, or until the reader is dropped.
    async fn run(mut self) {
        poll_fn(|context| {
            while self.poll(context) == Pumped::Moved {}
            if self.body.is_some() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        let mut bridge = lock(&self.bridge);
        if bridge.end != End::Open {
            return;
        }
        bridge.end = End::Broken;
        let reader = bridge.reader.take();
        drop(bridge);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

/// Polls `work` and `errand` alternately until `work` is ready or neither makes progress. `work`
/// may wait for `errand`.
pub(crate) fn poll_with_errand<T>(
    errand: &mut Option<impl Errand>,
    context: &mut Context<'_>,
    work: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    let serve = |context: &mut Context<'_>| {
        errand.as_mut().map_or(Pumped::Nothing, |errand| errand.poll(context))
    };
    poll_with(serve, context, work)
}

/// Like [`poll_with_errand`], with a function `serve` in place of the errand.
pub(crate) fn poll_with<T>(
    mut serve: impl FnMut(&mut Context<'_>) -> Pumped,
    context: &mut Context<'_>,
    mut work: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    for _ in 0..FRAMES_PER_POLL_MAX {
        if let Poll::Ready(value) = work(context) {
            return Poll::Ready(value);
        }
        if serve(context) == Pumped::Nothing {
            return Poll::Pending;
        }
    }
    others_first(context);
    Poll::Pending
}

/// Ignores poisoning: no code panics while it holds this lock. One end of the bridge may be dropped
/// while a panic unwinds, and must not panic again.
fn lock(bridge: &Mutex<Bridge>) -> MutexGuard<'_, Bridge> {
    bridge.lock().unwrap_or_else(PoisonError::into_inner)
}

fn register(place: &mut Option<Waker>, context: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(context.waker()),
        None => *place = Some(context.waker().clone()),
    }
}
