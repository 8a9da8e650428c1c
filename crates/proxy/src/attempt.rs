//! One request to one upstream.

use crate::body::{Busy, Progress, Sent};
use crate::pool::{Pool, Sender, connect};
use crate::upstreams::{Check, Checking, Set};
use http::{HeaderValue, Request, Response, header::HOST};
use hyper::body::Incoming;
use peregrine_web::Body;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};

/// How long is waited for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    pub(crate) connect: Duration,
    pub(crate) response: Duration,
    pub(crate) idle: Duration,
}

/// Why there is no response.
#[derive(Debug)]
pub(crate) enum Failure {
    /// There was no connection.
    Unreachable(std::io::Error),
    /// There was none in time.
    ConnectLate,
    /// The connection ended before any of the request was sent.
    Unsent,
    /// It ended later, or what came was no response.
    Broken(hyper::Error),
    /// None came in time.
    Late,
    /// The client's content broke off.
    Content,
    /// There is no URL for what the client asks for.
    Target,
}

impl Failure {
    /// Is it certain that the upstream has seen nothing of the request?
    pub(crate) fn is_unseen(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::ConnectLate | Self::Unsent)
    }

    /// Is it the upstream's?
    pub(crate) fn is_upstreams(&self) -> bool {
        !matches!(self, Self::Content | Self::Target)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error) => write!(f, "no connection: {error}"),
            Self::ConnectLate => f.write_str("no connection in time"),
            Self::Unsent => f.write_str("the connection ended before the request was sent"),
            Self::Broken(error) => write!(f, "no response: {error}"),
            Self::Late => f.write_str("no response in time"),
            Self::Content => f.write_str("the content of the request broke off"),
            Self::Target => f.write_str("the request's target is no URL"),
        }
    }
}

/// A response, and the connection that it comes on.
pub(crate) struct Answer {
    pub(crate) response: Response<Incoming>,
    pub(crate) sender: Sender,
    pub(crate) busy: Busy,
}

/// A failure, and what is left of the request's content, if it was not begun.
pub(crate) struct Failed {
    pub(crate) why: Failure,
    pub(crate) body: Option<Body>,
    /// The connection had waited. It may have ended at any time, which says nothing about its upstream.
    pub(crate) is_old: bool,
}

/// Sends a request, on a connection that waits or on a new one.
pub(crate) async fn send(
    set: &Arc<Set>,
    number: usize,
    pool: &Pool,
    request: Request<Body>,
    progress: &Rc<Progress>,
    timeouts: Timeouts,
) -> Result<Answer, Failed> {
    let busy = Busy::new(set, number);
    let (parts, body) = request.into_parts();
    let mut request = Request::from_parts(parts, Sent::new(body, progress));
    // A connection that waited may have been closed meanwhile; then the next one is asked, and in the end a new one.
    loop {
        let (mut sender, is_new) = match pool.take() {
            Some(sender) => (sender, false),
            None => match timeout(timeouts.connect, connect(&set.all[number])).await {
                Ok(Ok(sender)) => (sender, true),
                failed => {
                    let why = match failed {
                        Ok(Err(error)) => Failure::Unreachable(error),
                        _ => Failure::ConnectLate,
                    };
                    return Err(Failed {
                        why,
                        body: Some(request.into_body().into_body()),
                        is_old: false,
                    });
                }
            },
        };
        let sending = sender.try_send_request(request);
        let answered = within(sending, progress, timeouts.response).await;
        match answered {
            Some(Ok(response)) => return Ok(Answer { response, sender, busy }),
            Some(Err(mut error)) => match error.take_message() {
                Some(unsent) if !is_new => request = unsent,
                Some(unsent) => {
                    let body = Some(unsent.into_body().into_body());
                    return Err(Failed { why: Failure::Unsent, body, is_old: false });
                }
                None if progress.error.borrow().is_some() => {
                    return Err(Failed { why: Failure::Content, body: None, is_old: false });
                }
                None => {
                    let why = Failure::Broken(error.into_error());
                    return Err(Failed { why, body: None, is_old: !is_new });
                }
            },
            None => return Err(Failed { why: Failure::Late, body: None, is_old: false }),
        }
    }
}

/// Waits for a response for so long, counted from when the upstream last took something of the request. While the client keeps it
/// waiting, its time does not run.
async fn within<F: Future>(answer: F, progress: &Progress, limit: Duration) -> Option<F::Output> {
    let mut answer = pin!(answer);
    let mut since = Instant::now();
    let mut alarm = pin!(sleep_until(later(since, limit)));
    poll_fn(|context| {
        if let Poll::Ready(answer) = answer.as_mut().poll(context) {
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

/// The time after `from` by so much, or one that nobody lives to see.
pub(crate) fn later(from: Instant, by: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);
    from.checked_add(by).unwrap_or_else(|| from + FAR)
}

/// Asks an upstream whether it is well.
pub(crate) async fn check(checking: Checking, check: Check) {
    let (set, number) = (checking.set(), checking.number());
    let upstream = &set.all[number];
    let asked = async {
        let mut sender = connect(upstream).await.map_err(|error| error.to_string())?;
        let body = Sent::new(Body::empty(), &Rc::default());
        let mut request = Request::new(body);
        *request.uri_mut() = check.path;
        request.headers_mut().insert(HOST, HeaderValue::clone(&upstream.authority));
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        match response.status() {
            status if status.as_u16() < 400 => Ok(()),
            status => Err(format!("its check answered {status}")),
        }
    };
    let outcome = timeout(check.every, asked).await;
    set.checked(number, outcome.unwrap_or_else(|_| Err("its check took too long".to_owned())));
}
