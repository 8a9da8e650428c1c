//! Sends one request to one upstream.

use crate::body::{Busy, Progress, Sent};
use crate::connect::connect;
use crate::form;
use crate::interim::Interims;
use crate::pool::{Pool, Sender};
use crate::upstreams::{Check, Checking, Set};
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
    pub(crate) idle: Duration,
}

/// Why an attempt yielded no response.
#[derive(Debug)]
pub(crate) enum Failure {
    /// No connection could be opened.
    Unreachable(std::io::Error),
    /// No connection was opened in time.
    ConnectLate,
    /// The connection ended before any of the request was sent.
    Unsent,
    /// The upstream reported that it did not process the request.
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "HTTP/1.1 cannot report it"))]
    Refused,
    /// The connection ended later, or the response was invalid.
    Broken(hyper::Error),
    /// No response arrived in time.
    Late,
    /// The client's content could not be read to its end.
    Content,
    /// The request's target is not a valid URL.
    Target,
    /// All connections to the upstream were in use, and none became free in time.
    Crowded,
    /// This process has no descriptors or memory for a connection.
    Exhausted(std::io::Error),
}

impl Failure {
    /// Whether it is certain that the upstream did not process any of the request.
    pub(crate) fn is_unseen(&self) -> bool {
        matches!(
            self,
            Self::Unreachable(_)
                | Self::ConnectLate
                | Self::Unsent
                | Self::Refused
                | Self::Crowded
                | Self::Exhausted(_)
        )
    }

    /// The failure for a connection that could not be opened.
    pub(crate) fn of_connect(error: std::io::Error) -> Self {
        // ENOMEM, ENFILE and EMFILE, which have no `ErrorKind`.
        let is_exhausted = cfg!(unix) && matches!(error.raw_os_error(), Some(12 | 23 | 24));
        if is_exhausted { Self::Exhausted(error) } else { Self::Unreachable(error) }
    }

    /// The failure for a connection or a response that broke.
    fn of(error: hyper::Error) -> Self {
        #[cfg(feature = "tls")]
        if is_refusal(&error) {
            return Self::Refused;
        }
        Self::Broken(error)
    }

    /// Whether the upstream caused the failure.
    pub(crate) fn is_upstreams(&self) -> bool {
        !matches!(self, Self::Content | Self::Target | Self::Crowded | Self::Exhausted(_))
    }
}

/// RFC 9113 §8.7: a refused request, or one after the last stream that a GOAWAY names, was not
/// processed.
#[cfg(feature = "tls")]
fn is_refusal(error: &hyper::Error) -> bool {
    let first = std::error::Error::source(error);
    let mut causes = std::iter::successors(first, |cause| cause.source());
    causes.find_map(|cause| cause.downcast_ref::<h2::Error>()).is_some_and(|error| {
        let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        error.is_remote() && (is_refused || error.is_go_away())
    })
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error) => write!(f, "no connection: {error}"),
            Self::ConnectLate => f.write_str("no connection in time"),
            Self::Unsent => f.write_str("the connection ended before the request was sent"),
            Self::Refused => f.write_str("the request was refused before it began"),
            Self::Broken(error) => write!(f, "no response: {error}"),
            Self::Late => f.write_str("no response in time"),
            Self::Content => f.write_str("the request's content could not be read"),
            Self::Target => f.write_str("the request's target is not a valid URL"),
            Self::Crowded => f.write_str("all connections to the upstream are in use"),
            Self::Exhausted(error) => write!(f, "no socket for a connection: {error}"),
        }
    }
}

/// A response, and the connection that it arrives on.
pub(crate) struct Answer {
    pub(crate) response: Response<Incoming>,
    pub(crate) sender: Sender,
    pub(crate) busy: Busy,
}

/// A failure, and the request's content if none of it was read.
pub(crate) struct Failed {
    pub(crate) why: Failure,
    pub(crate) body: Option<Body>,
    /// The connection had been idle. The upstream may close such a connection at any time, so this
    /// says nothing about its health.
    pub(crate) is_old: bool,
}

/// The parameters of an attempt at one upstream.
pub(crate) struct Order<'a> {
    pub(crate) client: &'a Rc<ConnectionInfo>,
    pub(crate) set: &'a Arc<Set>,
    pub(crate) number: usize,
    pub(crate) pool: &'a Rc<Pool>,
    pub(crate) is_upgrade: bool,
    pub(crate) progress: &'a Rc<Progress>,
    pub(crate) interims: &'a Interims,
    pub(crate) timeouts: Timeouts,
}

/// Sends a request on an idle connection or on a new one.
pub(crate) async fn send(order: &Order<'_>, request: Request<Body>) -> Result<Answer, Failed> {
    let Order { pool, progress, interims, timeouts, .. } = *order;
    let Some(slot) = pool.slots.acquire(order.client).await else {
        let body = Some(request.into_body());
        return Err(Failed { why: Failure::Crowded, body, is_old: false });
    };
    let busy = Busy::new(order.set, order.number, slot);
    let upstream = &order.set.all[order.number];
    let (parts, body) = request.into_parts();
    let mut request = Request::from_parts(parts, Sent::new(body, progress));
    interims.hear(&mut request);
    let failed = |why: Failure, unsent: Option<Request<Sent>>, is_old: bool| Failed {
        why,
        body: unsent.map(|unsent| unsent.into_body().into_body()),
        is_old,
    };
    // An idle connection may have been closed meanwhile. Then the next one is tried, and finally a
    // new one.
    loop {
        let (mut sender, is_new) = match pool.take(order.is_upgrade) {
            Some(sender) => (sender, false),
            None => match timeout(timeouts.connect, connect(upstream, order.is_upgrade)).await {
                Ok(Ok(sender)) => {
                    pool.share(&sender);
                    (sender, true)
                }
                Ok(Err(error)) => {
                    return Err(failed(Failure::of_connect(error), Some(request), false));
                }
                Err(_) => return Err(failed(Failure::ConnectLate, Some(request), false)),
            },
        };
        let Some(plain) = form::shape(&mut request, &sender, upstream) else {
            return Err(failed(Failure::Target, Some(request), false));
        };
        let answered = within(sender.send(request), progress, interims, timeouts.response).await;
        match answered {
            Some(Ok(response)) => return Ok(Answer { response, sender, busy }),
            Some(Err(mut error)) => match error.take_message() {
                Some(unsent) if !is_new => {
                    request = unsent;
                    plain.restore(&mut request);
                    pool.forget(&sender);
                }
                Some(unsent) => return Err(failed(Failure::Unsent, Some(unsent), false)),
                None if progress.error.borrow().is_some() => {
                    return Err(failed(Failure::Content, None, false));
                }
                None => return Err(failed(Failure::of(error.into_error()), None, !is_new)),
            },
            None => {
                // Other requests on this shared connection would wait for it as well.
                pool.forget(&sender);
                return Err(failed(Failure::Late, None, false));
            }
        }
    }
}

/// Waits for a response for at most `limit`, counted from when the upstream last accepted part of
/// the request. The time does not run while the upstream waits for content from the client.
async fn within<F: Future>(
    answer: F,
    progress: &Progress,
    interims: &Interims,
    limit: Duration,
) -> Option<F::Output> {
    let mut answer = pin!(answer);
    let mut since = Instant::now();
    let mut alarm = pin!(sleep_until(later(since, limit)));
    poll_fn(|context| {
        let answered = answer.as_mut().poll(context);
        // Interim responses may have arrived together with the response.
        interims.pass(context);
        if let Poll::Ready(answer) = answered {
            return Poll::Ready(Some(answer));
        }
        loop {
            if alarm.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            let moved = progress.moved.get().filter(|moved| *moved > since);
            let next = if progress.is_waiting.get() { Some(Instant::now()) } else { moved };
            let Some(next) = next else { return Poll::Ready(None) };
            since = next;
            alarm.as_mut().reset(later(since, limit));
        }
    })
    .await
}

/// `from` plus `by`, or a time 30 years later if that overflows.
pub(crate) fn later(from: Instant, by: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);
    from.checked_add(by).unwrap_or_else(|| from + FAR)
}

/// Sends a health check to an upstream.
pub(crate) async fn check(checking: Checking, check: Check) {
    let (set, number) = (checking.set(), checking.number());
    let upstream = &set.all[number];
    let asked = async {
        let mut sender = match connect(upstream, false).await.map_err(Failure::of_connect) {
            Ok(sender) => sender,
            // This process is at fault, so the upstream's health is unchanged.
            Err(Failure::Exhausted(_)) => return Ok(false),
            Err(failure) => return Err(failure.to_string()),
        };
        let body = Sent::new(Body::empty(), &Rc::default());
        let mut request = Request::new(body);
        *request.uri_mut() = check.path;
        request.headers_mut().insert(HOST, HeaderValue::clone(&upstream.authority));
        if form::shape(&mut request, &sender, upstream).is_none() {
            return Err("its check has no valid URL".to_owned());
        }
        let response =
            sender.send(request).await.map_err(|error| error.into_error().to_string())?;
        match response.status() {
            status if status.as_u16() < 400 => Ok(true),
            status => Err(format!("its check got a {status}")),
        }
    };
    let outcome = timeout(check.every, asked).await;
    match outcome.unwrap_or_else(|_| Err("its check timed out".to_owned())) {
        Ok(false) => {}
        outcome => set.checked(number, outcome.map(drop)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Error;

    #[cfg(unix)]
    #[test]
    fn a_process_without_descriptors_does_not_blame_the_upstream() {
        for number in [12, 23, 24] {
            let failure = Failure::of_connect(Error::from_raw_os_error(number));
            assert!(failure.is_unseen() && !failure.is_upstreams(), "{failure}");
        }
        let refused = Failure::of_connect(std::io::ErrorKind::ConnectionRefused.into());
        assert!(refused.is_unseen() && refused.is_upstreams());
    }
}
