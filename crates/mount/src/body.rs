//! Bodies that may travel: the request's body as a mounted service gets it.
//!
//! Our bodies stay on their thread, but tower services must get `Send` ones. So a body that is already
//! complete is handed over as it is, and one that is still arriving is bridged: a [`Pump`] stays with
//! our body, and moves one frame at a time when the other end asks for it.
//!
//! A tower layer mostly gives its body back untouched, on the same thread. So a layer's body stays
//! where it is (`passage.rs`), and is bridged when it is read elsewhere.

use crate::passage::{Found, Handle, Passage, Thing};
use crate::response::{BoxError, told_to_tower};
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use peregrine_web::body::WholeBody;
use peregrine_web::turn::others_first;
use peregrine_web::{Body, BodyError};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

/// A whole body up to this size is copied, so that its buffer goes back to the thread's stock; a larger
/// one takes the buffer along.
const COPIED_BYTES_MAX: usize = 8 * 1024;

/// Frames moved in one poll, so that a body that is always ready does not starve others.
const FRAMES_PER_POLL_MAX: usize = 32;

/// A body that is `Send`, for requests to mounted services and tower layers, and for responses of
/// [`spawn_tower`](crate::spawn_tower). Bytes and text convert into one.
///
/// A body that was complete before the service was called costs nothing beside its bytes. Any other
/// asks the connection's thread for one frame at a time: nothing is read ahead for a service that does
/// not ask. Trailers arrive as the last frame. An error is a [`BodyError`], such as
/// [`BodyError::Disconnected`] if the connection ends; but that of a body over a limit of ours is a
/// `LengthLimitError` of `http-body-util`, of which axum and layers make a 413.
///
/// ```
/// use http_body::Body as _;
/// use peregrine::tower::SendBody;
///
/// let body = SendBody::default();
/// assert!(body.is_end_stream());
/// assert_eq!(SendBody::from("text").size_hint().exact(), Some(4));
/// ```
#[derive(Default)]
pub struct SendBody(Kind);

#[derive(Default)]
enum Kind {
    #[default]
    Empty,
    Whole(Bytes),
    /// In our own form: a buffer from the thread's stock, say, and a limit.
    Ours(WholeBody),
    Kept(Kept),
    Bridged(Bridged),
}

type Framed = Option<Result<Frame<Bytes>, BodyError>>;

/// A body that stayed on its thread.
struct Kept {
    handle: Handle,
    /// Bytes still to come, if known.
    left: Option<u64>,
    is_ended: bool,
}

struct Bridged {
    bridge: Arc<Mutex<Bridge>>,
    /// Bytes still to come, if known.
    left: Option<u64>,
    is_ended: bool,
}

/// The state that both ends share: room for one frame.
#[derive(Default)]
pub(crate) struct Bridge {
    frame: Framed,
    /// The reader waits for a frame.
    is_wanted: bool,
    end: End,
    is_reader_gone: bool,
    reader: Option<Waker>,
    pump: Option<Waker>,
}

/// What follows the frame that waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    /// More frames, when they are asked for.
    #[default]
    Open,
    /// Nothing: the whole body was moved, or an error was.
    Told,
    /// An error: the pump was dropped too early.
    Broken,
}

impl SendBody {
    /// `body`, and a pump that must be polled on this thread for as long as the body may be read;
    /// `None` if the body is complete.
    pub(crate) fn split(mut body: Body) -> (Self, Option<Pump>) {
        if let Some(bytes) = body.as_slice() {
            return (Self(whole(bytes.len(), &mut body)), None);
        }
        let left = body.length();
        let (bridged, bridge) = Bridged::new(left);
        (Self(Kind::Bridged(bridged)), Some(Pump::of(body, bridge)))
    }

    /// `body`, kept with the request of `passage`.
    pub(crate) fn keep(body: Body, passage: &Arc<Passage>) -> Self {
        let body = match body.into_whole() {
            Ok(whole) if whole.is_empty() => return Self(Kind::Empty),
            Ok(whole) => return Self(Kind::Ours(whole)),
            Err(body) => body,
        };
        let left = body.length();
        match passage.keep(Thing::Body(body)) {
            Ok(handle) => Self(Kind::Kept(Kept { handle, left, is_ended: false })),
            // Nobody moves a body that is not here any more.
            Err(Thing::Body(body)) => Self::split(body).0,
            Err(Thing::Call(_)) => unreachable!("a body went in"),
        }
    }

    /// Our own body, if it is here.
    ///
    /// # Errors
    /// It is not here.
    pub(crate) fn into_ours(self) -> Result<Body, Self> {
        match self.0 {
            Kind::Empty => Ok(Body::empty()),
            Kind::Whole(bytes) => Ok(bytes.into()),
            Kind::Ours(whole) => Ok(whole.into()),
            Kind::Bridged(_) => Err(self),
            Kind::Kept(Kept { handle, left, is_ended }) => match handle.take() {
                Ok(Thing::Body(body)) => Ok(body),
                Ok(Thing::Call(_)) => unreachable!("the handle is that of a body"),
                Err(handle) => Err(Self(Kind::Kept(Kept { handle, left, is_ended }))),
            },
        }
    }
}

impl From<Bytes> for SendBody {
    fn from(bytes: Bytes) -> Self {
        Self(if bytes.is_empty() { Kind::Empty } else { Kind::Whole(bytes) })
    }
}

impl From<Vec<u8>> for SendBody {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<String> for SendBody {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<&'static str> for SendBody {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

fn whole(length: usize, body: &mut Body) -> Kind {
    if length == 0 {
        return Kind::Empty;
    }
    if length <= COPIED_BYTES_MAX {
        return Kind::Whole(Bytes::copy_from_slice(body.as_slice().unwrap_or_default()));
    }
    let mut context = Context::from_waker(Waker::noop());
    match Pin::new(body).poll_frame(&mut context) {
        Poll::Ready(Some(Ok(frame))) => Kind::Whole(frame.into_data().unwrap_or_default()),
        _ => unreachable!("a body that is a slice gives that slice"),
    }
}

impl SendBody {
    fn poll_ours(&mut self, context: &mut Context<'_>) -> Poll<Framed> {
        match std::mem::take(&mut self.0) {
            Kind::Empty => Poll::Ready(None),
            Kind::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            Kind::Ours(whole) => Pin::new(&mut Body::from(whole)).poll_frame(context),
            Kind::Kept(mut kept) => match kept.poll_frame(context) {
                Some(polled) => {
                    self.0 = Kind::Kept(kept);
                    polled
                }
                None => {
                    let (mut bridged, bridge) = Bridged::new(kept.left);
                    kept.handle.feed(bridge);
                    let polled = bridged.poll_frame(context);
                    self.0 = Kind::Bridged(bridged);
                    polled
                }
            },
            Kind::Bridged(mut bridged) => {
                let polled = bridged.poll_frame(context);
                self.0 = Kind::Bridged(bridged);
                polled
            }
        }
    }
}

impl HttpBody for SendBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(self.poll_ours(context));
        Poll::Ready(frame.map(|frame| frame.map_err(told_to_tower)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Empty => true,
            Kind::Whole(_) | Kind::Ours(_) => false,
            Kind::Kept(kept) => kept.is_ended,
            Kind::Bridged(bridged) => bridged.is_ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Empty => SizeHint::with_exact(0),
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Ours(whole) => SizeHint::with_exact(whole.len() as u64),
            Kind::Kept(Kept { left, .. }) | Kind::Bridged(Bridged { left, .. }) => {
                left.map_or_else(SizeHint::default, SizeHint::with_exact)
            }
        }
    }
}

impl Kept {
    /// The next frame; `None` if this is not the body's thread.
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Option<Poll<Framed>> {
        if self.is_ended {
            return Some(Poll::Ready(None));
        }
        let found = self.handle.with(|thing| match thing {
            Thing::Body(body) => {
                let polled = Pin::new(&mut *body).poll_frame(context);
                (polled, body.length(), body.is_end_stream())
            }
            Thing::Call(_) => unreachable!("the handle is that of a body"),
        });
        let (polled, left, is_ended) = match found {
            Found::Here(found) => found,
            Found::Elsewhere => return None,
            Found::Gone => (Poll::Ready(Some(Err(BodyError::Disconnected))), Some(0), true),
        };
        self.left = left;
        self.is_ended = is_ended || matches!(polled, Poll::Ready(None | Some(Err(_))));
        Some(polled)
    }
}

impl Bridged {
    /// The reader's end, and the shared state.
    fn new(left: Option<u64>) -> (Self, Arc<Mutex<Bridge>>) {
        let bridge = Arc::<Mutex<Bridge>>::default();
        (Self { bridge: Arc::clone(&bridge), left, is_ended: false }, bridge)
    }

    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Framed> {
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

/// Our end of a bridged body. Dropping it ends the body with an error at the other end.
pub(crate) struct Pump {
    /// `None` when there is nothing more to move.
    body: Option<Body>,
    bridge: Arc<Mutex<Bridge>>,
}

/// The result of polling a [`Pump`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pumped {
    /// Nothing: nobody asked, or nothing arrived.
    Nothing,
    /// The reader has something to look at.
    Moved,
}

/// Work that must be polled on a thread for as long as others may ask for it.
pub(crate) trait Errand {
    /// Does the work that is asked for and possible, and registers for the rest.
    fn poll(&mut self, context: &mut Context<'_>) -> Pumped;

    /// May it still be asked for work?
    fn is_needed(&self) -> bool;

    /// Does the work that is asked for, until none can be asked for any more.
    fn run(self) -> impl Future<Output = ()>;
}

impl Pump {
    /// Moves `body` over `bridge`.
    pub(crate) fn of(body: Body, bridge: Arc<Mutex<Bridge>>) -> Self {
        Self { body: Some(body), bridge }
    }

    /// Tells the reader that there is no body to come.
    pub(crate) fn none(bridge: Arc<Mutex<Bridge>>) {
        drop(Self { body: None, bridge });
    }
}

impl Errand for Pump {
    /// Moves frames that are asked for and here, and registers for others.
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
        // The lock is not held here: our body may wake any task.
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
        // A reader in this very task is polled again together with the pump.
        if let Some(reader) = reader.filter(|reader| !reader.will_wake(context.waker())) {
            reader.wake();
        }
        Pumped::Moved
    }

    /// May the body still be read?
    fn is_needed(&self) -> bool {
        self.body.is_some() && !lock(&self.bridge).is_reader_gone
    }

    /// Moves the whole body, for as long as it may be read.
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

/// Polls `work`, which may wait for `errand`, until it is ready or neither can go on.
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

/// The same with a function that does the work which `work` may wait for.
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

/// Nothing panics while it holds the lock, but a panic may drop one of the bridge's ends.
fn lock(bridge: &Mutex<Bridge>) -> MutexGuard<'_, Bridge> {
    bridge.lock().unwrap_or_else(PoisonError::into_inner)
}

fn register(place: &mut Option<Waker>, context: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(context.waker()),
        None => *place = Some(context.waker().clone()),
    }
}

impl fmt::Debug for SendBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.size_hint().exact() {
            Some(length) => write!(f, "SendBody({length} bytes)"),
            None => f.write_str("SendBody(stream)"),
        }
    }
}
