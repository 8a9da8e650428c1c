//! Sends one request to one upstream.

use crate::body::{InFlightAttempt, RequestProgress, UpstreamRequestBody};
use crate::connect::connect;
use crate::interim::InterimForwarder;
use crate::pool::{ConnectionPool, UpstreamConnection};
use crate::upstreams::{HealthCheck, HealthCheckGuard, UpstreamSet};
use crate::version;
use http::{HeaderValue, Request, Response, header::HOST};
use hyper::body::Incoming;
use peregrine_web::Body;
use peregrine_web::connection::ConnectionInfo;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};

/// The time limits of an attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    pub(crate) connect: Duration,
    pub(crate) response: Duration,
    pub(crate) body_idle: Duration,
}

/// Why an attempt yielded no response.
#[derive(Debug)]
pub(crate) enum AttemptError {
    /// No connection could be opened.
    Connect(std::io::Error),
    /// No connection was opened in time.
    ConnectTimeout,
    /// The connection ended before any of the request was sent.
    ClosedBeforeSend,
    /// The upstream reported that it did not process the request.
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "HTTP/1.1 cannot report it"))]
    RefusedStream,
    /// The connection ended after part of the request was sent, or the response was invalid.
    Protocol(hyper::Error),
    /// No response arrived in time.
    ResponseTimeout,
    /// The client's content could not be read completely.
    RequestBody,
    /// The request's target is not a valid URL.
    InvalidTarget,
    /// All connections to the upstream were in use, and none became free in time.
    NoFreeConnection,
    /// This process has no descriptors or memory for a connection.
    OutOfResources(std::io::Error),
}

impl AttemptError {
    /// Whether it is certain that the upstream did not process any of the request.
    pub(crate) fn is_unprocessed(&self) -> bool {
        matches!(
            self,
            Self::Connect(_)
                | Self::ConnectTimeout
                | Self::ClosedBeforeSend
                | Self::RefusedStream
                | Self::NoFreeConnection
                | Self::OutOfResources(_)
        )
    }

    /// Converts the error of a connection that could not be opened.
    pub(crate) fn from_connect(error: std::io::Error) -> Self {
        // ENOMEM, ENFILE and EMFILE, which have no `ErrorKind`.
        let is_exhausted = cfg!(unix) && matches!(error.raw_os_error(), Some(12 | 23 | 24));
        if is_exhausted { Self::OutOfResources(error) } else { Self::Connect(error) }
    }

    /// Converts the error of a connection or a response that failed.
    fn from_hyper(error: hyper::Error) -> Self {
        #[cfg(feature = "tls")]
        if is_refused_stream(&error) {
            return Self::RefusedStream;
        }
        Self::Protocol(error)
    }

    /// Whether the upstream caused the failure.
    pub(crate) fn is_upstream_failure(&self) -> bool {
        match self {
            Self::RequestBody
            | Self::InvalidTarget
            | Self::NoFreeConnection
            | Self::OutOfResources(_) => false,
            // The proxy limits the size of a response's head.
            Self::Protocol(error) => !error.is_parse_too_large(),
            _ => true,
        }
    }
}

/// RFC 9113 §8.7: a refused request, or one after the last stream that a GOAWAY names, was not
/// processed.
#[cfg(feature = "tls")]
fn is_refused_stream(error: &hyper::Error) -> bool {
    let first = std::error::Error::source(error);
    let mut causes = std::iter::successors(first, |cause| cause.source());
    causes.find_map(|cause| cause.downcast_ref::<h2::Error>()).is_some_and(|error| {
        let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        error.is_remote() && (is_refused || error.is_go_away())
    })
}

impl fmt::Display for AttemptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "no connection: {error}"),
            Self::ConnectTimeout => f.write_str("no connection in time"),
            Self::ClosedBeforeSend => {
                f.write_str("the connection ended before the request was sent")
            }
            Self::RefusedStream => f.write_str("the request was refused before it began"),
            Self::Protocol(error) => write!(f, "no response: {error}"),
            Self::ResponseTimeout => f.write_str("no response in time"),
            Self::RequestBody => f.write_str("the request's content could not be read"),
            Self::InvalidTarget => f.write_str("the request's target is not a valid URL"),
            Self::NoFreeConnection => f.write_str("all connections to the upstream are in use"),
            Self::OutOfResources(error) => write!(f, "no socket for a connection: {error}"),
        }
    }
}

/// A response, and the connection that it arrives on.
pub(crate) struct UpstreamResponse {
    pub(crate) response: Response<Incoming>,
    pub(crate) connection: UpstreamConnection,
    pub(crate) in_flight: InFlightAttempt,
}

/// A failure, and the request's content if none of the request was sent.
pub(crate) struct FailedAttempt {
    pub(crate) error: AttemptError,
    pub(crate) body: Option<Body>,
    /// The connection had been idle. The upstream may close such a connection at any time, so this
    /// says nothing about its health.
    pub(crate) reused_connection: bool,
}

/// The parameters of an attempt at one upstream.
pub(crate) struct UpstreamAttempt<'a> {
    pub(crate) client: &'a Rc<ConnectionInfo>,
    pub(crate) set: &'a Arc<UpstreamSet>,
    /// The index of the upstream in `set`.
    pub(crate) index: usize,
    pub(crate) pool: &'a Rc<ConnectionPool>,
    pub(crate) is_upgrade: bool,
    pub(crate) progress: &'a Rc<RequestProgress>,
    pub(crate) interims: &'a InterimForwarder,
    pub(crate) timeouts: Timeouts,
}

/// Sends a request on an idle connection or on a new one.
pub(crate) async fn send(
    attempt: &UpstreamAttempt<'_>,
    request: Request<Body>,
) -> Result<UpstreamResponse, FailedAttempt> {
    let UpstreamAttempt { pool, progress, interims, timeouts, .. } = *attempt;
    let Some(slot) = pool.slots.acquire(attempt.client).await else {
        let (error, body) = (AttemptError::NoFreeConnection, Some(request.into_body()));
        return Err(FailedAttempt { error, body, reused_connection: false });
    };
    let in_flight = InFlightAttempt::new(attempt.set, attempt.index, slot);
    let upstream = &attempt.set.upstreams[attempt.index];
    let (parts, body) = request.into_parts();
    let mut request = Request::from_parts(parts, UpstreamRequestBody::new(body, progress));
    interims.attach(&mut request);
    let failure = |error, unsent: Option<Request<UpstreamRequestBody>>, reused_connection| {
        let body = unsent.map(|unsent| unsent.into_body().into_body());
        FailedAttempt { error, body, reused_connection }
    };
    // An idle connection may have been closed meanwhile. Then the next one is tried, and finally a
    // new one.
    loop {
        let (mut sender, is_new) = match pool.checkout(attempt.is_upgrade) {
            Some(sender) => (sender, false),
            None => match timeout(timeouts.connect, connect(upstream, attempt.is_upgrade)).await {
                Ok(Ok(sender)) => {
                    pool.insert_http2(&sender);
                    (sender, true)
                }
                Ok(Err(error)) => {
                    return Err(failure(AttemptError::from_connect(error), Some(request), false));
                }
                Err(_) => return Err(failure(AttemptError::ConnectTimeout, Some(request), false)),
            },
        };
        let Some(http1_form) = version::convert_to_version(&mut request, &sender, upstream) else {
            return Err(failure(AttemptError::InvalidTarget, Some(request), false));
        };
        let result =
            with_response_timeout(sender.send(request), progress, interims, timeouts.response)
                .await;
        match result {
            Some(Ok(response)) => {
                return Ok(UpstreamResponse { response, connection: sender, in_flight });
            }
            Some(Err(mut error)) => match error.take_message() {
                Some(unsent) if !is_new => {
                    request = unsent;
                    http1_form.restore(&mut request);
                    pool.remove(&sender);
                }
                Some(unsent) => {
                    return Err(failure(AttemptError::ClosedBeforeSend, Some(unsent), false));
                }
                None if progress.error.borrow().is_some() => {
                    return Err(failure(AttemptError::RequestBody, None, false));
                }
                None => {
                    let error = AttemptError::from_hyper(error.into_error());
                    return Err(failure(error, None, !is_new));
                }
            },
            None => {
                // The connection may be dead, so no further requests may share it.
                pool.remove(&sender);
                return Err(failure(AttemptError::ResponseTimeout, None, false));
            }
        }
    }
}

/// Waits for a response for at most `limit` after the upstream last accepted part of the request.
/// Time in which the upstream waits for content from the client is not counted. Returns `None` on
/// timeout.
async fn with_response_timeout<F: Future>(
    response: F,
    progress: &RequestProgress,
    interims: &InterimForwarder,
    limit: Duration,
) -> Option<F::Output> {
    let mut response = pin!(response);
    let mut since = Instant::now();
    let mut timer = pin!(sleep_until(saturating_add(since, limit)));
    poll_fn(|cx| {
        let polled = response.as_mut().poll(cx);
        // Interim responses may have arrived together with the response.
        interims.forward(cx);
        if let Poll::Ready(response) = polled {
            return Poll::Ready(Some(response));
        }
        loop {
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let last_activity =
                progress.last_activity.get().filter(|last_activity| *last_activity > since);
            let next =
                if progress.awaiting_client.get() { Some(Instant::now()) } else { last_activity };
            let Some(next) = next else { return Poll::Ready(None) };
            since = next;
            timer.as_mut().reset(saturating_add(since, limit));
        }
    })
    .await
}

/// `from` plus `by`, or a time 30 years later if that overflows.
pub(crate) fn saturating_add(from: Instant, by: Duration) -> Instant {
    const FAR_FUTURE: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);
    from.checked_add(by).unwrap_or_else(|| from + FAR_FUTURE)
}

/// Sends a health check to an upstream.
pub(crate) async fn run_health_check(guard: HealthCheckGuard, check: HealthCheck) {
    let (set, index) = (guard.set(), guard.index());
    let upstream = &set.upstreams[index];
    // `Ok(false)` means that the check failed for a reason that says nothing about the upstream.
    let attempt = async {
        let mut sender = match connect(upstream, false).await.map_err(AttemptError::from_connect) {
            Ok(sender) => sender,
            // This process is at fault, so the upstream's health is unchanged.
            Err(AttemptError::OutOfResources(_)) => return Ok(false),
            Err(error) => return Err(error.to_string()),
        };
        let body = UpstreamRequestBody::new(Body::empty(), &Rc::default());
        let mut request = Request::new(body);
        *request.uri_mut() = check.path;
        request.headers_mut().insert(HOST, HeaderValue::clone(&upstream.authority));
        if version::convert_to_version(&mut request, &sender, upstream).is_none() {
            return Err("its check has no valid URL".to_owned());
        }
        let response =
            sender.send(request).await.map_err(|error| error.into_error().to_string())?;
        match response.status() {
            status if status.as_u16() < 400 => Ok(true),
            status => Err(format!("its check got a {status}")),
        }
    };
    let outcome = timeout(check.interval, attempt).await;
    match outcome.unwrap_or_else(|_| Err("its check timed out".to_owned())) {
        Ok(false) => {}
        outcome => set.record_check(index, outcome.map(drop)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Error;

    #[cfg(unix)]
    #[test]
    fn exhausted_descriptors_do_not_count_as_an_upstream_failure() {
        for errno in [12, 23, 24] {
            let error = AttemptError::from_connect(Error::from_raw_os_error(errno));
            assert!(error.is_unprocessed() && !error.is_upstream_failure(), "{error}");
        }
        let refused = AttemptError::from_connect(std::io::ErrorKind::ConnectionRefused.into());
        assert!(refused.is_unprocessed() && refused.is_upstream_failure());
    }
}
