//! Errors of bodies, in our terms and in those of tower's world.

use bytes::Bytes;
use http_body::Body as HttpBody;
use http_body_util::{Full, LengthLimitError};
use peregrine_proto::Reject;
use peregrine_web::BodyError;
use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Any error of a service or a body.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// An error of a request's body. The one by which all of tower's world says that a body is larger than
/// its limit becomes ours, since the peer is to hear of that.
#[cold]
pub(crate) fn told(error: BoxError) -> BoxError {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&*error);
    while let Some(present) = cause {
        if present.is::<LengthLimitError>() {
            return BodyError::Rejected(Reject::BodyTooLarge).into();
        }
        cause = present.source();
    }
    error
}

/// An error of our body, for a service. That of a body over its limit, or of one that is packed so well that it is a
/// bomb, must be the very one by which axum and tower's layers know it, which only a limited body of that crate makes.
/// They know none by which they would answer 503 to a body that there is no memory for.
#[cold]
pub(crate) fn told_to_tower(error: BodyError) -> BoxError {
    let is_too_large = matches!(
        error,
        BodyError::TooLarge { .. }
            | BodyError::Inflated { .. }
            | BodyError::Rejected(Reject::BodyTooLarge)
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
