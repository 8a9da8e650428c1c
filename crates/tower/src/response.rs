//! Converts responses from and to the types of the `http` crate.

use crate::after_response;
use crate::body::SendBody;
use crate::body_channel::{BodyForwarder, LocalProvider, PolledFrame, poll_with_provider};
use crate::error::{BoxError, from_tower_error};
use bytes::{Buf, Bytes};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use peregrine_web::{Body, Response};
use std::any::Any;
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// Converts the response and its body. `provider` is polled together with the response's body, and
/// after the response for as long as other code can request something from it. That code may
/// outlive the service's future: the response or a spawned task may read a body that `provider`
/// forwards, or wait for a call that `provider` polls. `nested_after_response` is what nested
/// applications do after their response; it runs after this response.
///
/// This is not an `async fn`, and no `async fn` here stores large values: a handler's future is
/// moved for each request, and its size includes everything that it can ever store.
pub(crate) fn from_http<B, T>(
    response: http::Response<B>,
    provider: Option<T>,
    nested_after_response: Vec<peregrine_web::response::AfterResponse>,
    cx: &mut Context<'_>,
) -> Response
where
    B: HttpBody + 'static,
    B::Error: Into<BoxError>,
    T: LocalProvider + 'static,
{
    let (mut parts, body) = response.into_parts();
    if parts.status == StatusCode::NOT_MODIFIED && body.is_end_stream() {
        remove_zero_length(&mut parts.headers);
    }
    let mut response = Response::new(parts.status);
    let mut provider = ResponseProvider::new(provider);
    response.body = into_body(body, &parts.headers, &mut provider, cx);
    // Polls the provider after the response too if it is still needed: the service may have spawned
    // a task that still reads the request's body.
    match provider {
        ResponseProvider::Own(provider)
            if provider.is_active() || !nested_after_response.is_empty() =>
        {
            let future = after_response::run(Some(provider), nested_after_response);
            response = response.with_after_response(Box::pin(future));
        }
        ResponseProvider::Shared(shared) => {
            // The server polls this future only when it no longer polls the response's body, which
            // shares the provider, so the `RefCell` is not borrowed then.
            let future =
                async move { after_response::run(shared.0.take(), nested_after_response).await };
            response = response.with_after_response(Box::pin(future));
        }
        ResponseProvider::None if !nested_after_response.is_empty() => {
            let future = after_response::run(None::<T>, nested_after_response);
            response = response.with_after_response(Box::pin(future));
        }
        ResponseProvider::Own(_) | ResponseProvider::None => {}
    }
    for (name, value) in parts.headers {
        // `HeaderMap` yields the name only with the first of several values.
        let last_name = || response.headers.iter().last().map(|(name, _)| name.clone());
        if let Some(name) = name.or_else(last_name) {
            response.headers.append(name, value);
        }
    }
    if !parts.extensions.is_empty() {
        *response.extensions_mut() = parts.extensions;
    }
    response
}

/// Returns the length in the service's `Content-Length`. A body may not know its own length: a
/// file's body does not, but the service that opened the file does.
fn declared_length(headers: &HeaderMap) -> Option<u64> {
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let value = values.next()?.as_bytes();
    // RFC 9112 §6.2: no Content-Length in a message that has Transfer-Encoding.
    if values.next().is_some() || headers.contains_key(TRANSFER_ENCODING) {
        return None;
    }
    // RFC 9110 §8.6: the value consists of digits only.
    let is_number = value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value).ok().filter(|_| is_number)?.parse().ok()
}

/// RFC 9110 §8.6: `Content-Length` in a 304 is the length that a 200 response would have. axum
/// writes the length of the 304's own content, which is 0, so this function removes the field.
#[cold]
fn remove_zero_length(headers: &mut HeaderMap) {
    if declared_length(headers) == Some(0) {
        headers.remove(CONTENT_LENGTH);
    }
}

/// Converts the body of a service's response. If that body may wait for `provider`, the returned
/// body shares `provider` and polls it too.
fn into_body<B, T>(
    body: B,
    headers: &HeaderMap,
    provider: &mut ResponseProvider<T>,
    cx: &mut Context<'_>,
) -> Body
where
    B: HttpBody + 'static,
    B::Error: Into<BoxError>,
    T: LocalProvider + 'static,
{
    if body.is_end_stream() {
        return Body::empty();
    }
    let body = match try_into_body(body) {
        Ok(body) if body.as_slice().is_some() => return body,
        Ok(body) => {
            let provider = provider.share();
            if provider.is_none() {
                return body;
            }
            return Body::new(ConvertedBody {
                first: None,
                body: Box::pin(body),
                remaining: None,
                provider,
            });
        }
        Err(body) => body,
    };
    let mut body = Box::pin(body);
    // Most bodies are one frame that is already available. The server writes such a body with the
    // head, so it needs no stream. A body of unknown length is generated gradually, so it is polled
    // only after the head is sent.
    let (mut first, mut remaining) = (None, None);
    if body.size_hint().exact().is_some() {
        match body.as_mut().poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) if body.is_end_stream() && frame.is_data() => {
                return frame
                    .into_data()
                    .map_or_else(|_| Body::empty(), |data| to_bytes(data).into());
            }
            Poll::Ready(frame) => first = Some(frame.map(convert_frame)),
            Poll::Pending => {}
        }
    } else {
        // The body does not know its length, so the service's `Content-Length` applies. The server
        // sends no more than this length, and closes the connection if the body is shorter.
        remaining = declared_length(headers);
    }
    Body::new(ConvertedBody { first, body, remaining, provider: provider.share() })
}

/// Returns `body` as a Peregrine [`Body`], if it is one, or if it is a [`SendBody`] whose body is
/// on this thread.
fn try_into_body<B: 'static>(body: B) -> Result<Body, B> {
    let body = match downcast::<B, Body>(body) {
        Ok(body) => return Ok(body),
        Err(body) => body,
    };
    match downcast::<B, SendBody>(body) {
        Ok(send_body) => send_body.try_into_body().map_err(|send_body| {
            downcast::<SendBody, B>(send_body)
                .unwrap_or_else(|_| unreachable!("it was created from a `B`"))
        }),
        Err(body) => Err(body),
    }
}

/// Returns `value` as a `T`, if that is its type.
pub(crate) fn downcast<V: 'static, T: 'static>(value: V) -> Result<T, V> {
    let mut slot = Some(value);
    match (&mut slot as &mut dyn Any).downcast_mut::<Option<T>>().and_then(Option::take) {
        Some(value) => Ok(value),
        None => Err(slot.expect("the value was not taken")),
    }
}

/// Converts `data` to `Bytes`, without a copy if `data` is already `Bytes`.
fn to_bytes(mut data: impl Buf) -> Bytes {
    data.copy_to_bytes(data.remaining())
}

/// Converts our response to one of the `http` crate, and its body with `convert_body`.
pub(crate) fn to_http<B>(
    mut response: Response,
    convert_body: impl FnOnce(Body) -> B,
) -> http::Response<B> {
    let mut http_response = http::Response::new(convert_body(std::mem::take(&mut response.body)));
    *http_response.status_mut() = response.status;
    http_response.headers_mut().reserve(response.headers.len());
    for (name, value) in response.headers.iter() {
        http_response.headers_mut().append(name.clone(), value.clone());
    }
    if response.extensions().is_some() {
        *http_response.extensions_mut() = std::mem::take(response.extensions_mut());
    }
    http_response
}

/// Converts the body of a request to a Peregrine [`Body`]. If it is already one, it is not boxed
/// again.
pub(crate) fn to_body<B>(body: B) -> Body
where
    B: HttpBody + 'static,
    B::Error: Into<BoxError>,
{
    match try_into_body(body) {
        Ok(body) => body,
        Err(body) if body.is_end_stream() => Body::empty(),
        Err(body) => {
            let provider = None::<SharedProvider<BodyForwarder>>;
            let body = Box::pin(MapLimitError(Box::pin(body)));
            Body::new(ConvertedBody { first: None, body, remaining: None, provider })
        }
    }
}

/// A request's body that a tower layer or another server may have limited. The error of a body over
/// that limit is converted to a [`BodyError`](peregrine_web::BodyError).
struct MapLimitError<B>(Pin<Box<B>>);

impl<B> HttpBody for MapLimitError<B>
where
    B: HttpBody<Error: Into<BoxError>>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let frame = ready!(self.0.as_mut().poll_frame(cx));
        Poll::Ready(frame.map(|frame| frame.map_err(|error| from_tower_error(error.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

fn convert_frame<D: Buf, E: Into<BoxError>>(
    frame: Result<Frame<D>, E>,
) -> Result<Frame<Bytes>, BoxError> {
    frame.map(|frame| frame.map_data(to_bytes)).map_err(Into::into)
}

/// A body, possibly of another type, as the stream inside a Peregrine [`Body`].
struct ConvertedBody<B, T> {
    /// The frame, or the end of the body, that [`into_body`] has already polled. It is yielded
    /// first.
    first: Option<PolledFrame<BoxError>>,
    body: Pin<Box<B>>,
    /// The number of remaining bytes, if the service declared a length that the body does not know.
    remaining: Option<u64>,
    provider: Option<SharedProvider<T>>,
}

/// A [`LocalProvider`] that may have to be polled after the service has responded.
enum ResponseProvider<T> {
    /// There is none, or it is no longer needed.
    None,
    /// Not polled by the response's body.
    Own(T),
    /// Also polled by the response's body.
    Shared(SharedProvider<T>),
}

/// A provider that is polled with the response's body, and may be needed after that body is
/// complete.
struct SharedProvider<T>(Rc<RefCell<Option<T>>>);

impl<T: LocalProvider> ResponseProvider<T> {
    fn new(provider: Option<T>) -> Self {
        provider.map_or(Self::None, Self::Own)
    }

    /// Shares the provider with the response's body. Returns `None` if it is no longer needed.
    fn share(&mut self) -> Option<SharedProvider<T>> {
        match std::mem::replace(self, Self::None) {
            Self::Own(provider) if provider.is_active() => {
                let shared = Rc::new(RefCell::new(Some(provider)));
                *self = Self::Shared(SharedProvider(Rc::clone(&shared)));
                Some(SharedProvider(shared))
            }
            _ => None,
        }
    }
}

impl<B, T> HttpBody for ConvertedBody<B, T>
where
    B: HttpBody,
    B::Error: Into<BoxError>,
    T: LocalProvider,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PolledFrame<BoxError>> {
        let this = &mut *self;
        if let Some(first) = this.first.take() {
            return Poll::Ready(first);
        }
        let body = &mut this.body;
        let poll = |cx: &mut Context<'_>| {
            body.as_mut().poll_frame(cx).map(|frame| frame.map(convert_frame))
        };
        let polled = match &this.provider {
            Some(provider) => poll_with_provider(&mut provider.0.borrow_mut(), cx, poll),
            None => poll_with_provider(&mut None::<BodyForwarder>, cx, poll),
        };
        if let (Poll::Ready(Some(Ok(frame))), Some(remaining)) = (&polled, &mut this.remaining) {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            *remaining = remaining.saturating_sub(bytes as u64);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let hint_of_rest =
            self.remaining.map_or_else(|| self.body.size_hint(), SizeHint::with_exact);
        let Some(Some(Ok(frame))) = &self.first else { return hint_of_rest };
        let first_len = frame.data_ref().map_or(0, |data| data.len() as u64);
        let mut hint = SizeHint::new();
        if let Some(upper) = hint_of_rest.upper() {
            hint.set_upper(upper + first_len);
        }
        hint.set_lower(hint_of_rest.lower() + first_len);
        hint
    }
}
