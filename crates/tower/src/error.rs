//! Converts body errors between [`BodyError`] and the errors that tower services use.

use bytes::Bytes;
use http_body::Body as HttpBody;
use http_body_util::{Full, LengthLimitError};
use peregrine_proto::RequestError;
use peregrine_web::BodyError;
use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// An error of any service or body.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Converts an error of a request body. `LengthLimitError`, which axum and tower's layers use for a
/// body over its limit, becomes a [`BodyError`], so that the client receives a 413.
#[cold]
pub(crate) fn from_tower_error(error: BoxError) -> BoxError {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&*error);
    while let Some(current) = cause {
        if current.is::<LengthLimitError>() {
            return BodyError::Protocol(RequestError::BodyTooLarge).into();
        }
        cause = current.source();
    }
    error
}

/// Converts a [`BodyError`] for a service. If the body is over its limit or is a decompression
/// bomb, the error must be the `LengthLimitError` that axum and tower's layers recognise. It cannot
/// be constructed directly, so a `Limited` body of `http-body-util` must create it. If memory for
/// the body is short, a 503 would be right, but axum and tower's layers convert no error to a 503.
#[cold]
pub(crate) fn to_tower_error(error: BodyError) -> BoxError {
    let is_too_large = matches!(
        error,
        BodyError::TooLarge { .. }
            | BodyError::DecompressedTooLarge { .. }
            | BodyError::Protocol(RequestError::BodyTooLarge)
    );
    if !is_too_large {
        return error.into();
    }
    let mut limited = http_body_util::Limited::new(Full::new(Bytes::from_static(b"1")), 0);
    match Pin::new(&mut limited).poll_frame(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Some(Err(too_large))) => too_large,
        _ => error.into(),
    }
}
