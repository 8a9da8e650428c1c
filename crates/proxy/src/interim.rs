//! Forwards interim responses of upstreams, such as 103 (Early Hints), to the client.

use crate::body::UpstreamRequestBody;
use crate::headers;
use http::{HeaderMap, Request, StatusCode};
use peregrine_web::extract::Interim;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};

/// The maximum number of interim responses forwarded for one request, so that an upstream cannot
/// flood the client.
const INTERIM_RESPONSES_MAX: usize = 16;

/// Forwards the interim responses to one request. hyper reports them to a callback that must be
/// `Send` and `Sync`, hence the mutex.
pub(crate) struct InterimForwarder {
    client: Interim,
    pending: Arc<Mutex<UpstreamInterims>>,
}

#[derive(Default)]
struct UpstreamInterims {
    /// How many have arrived, including those already forwarded.
    count: usize,
    waiting: Vec<(StatusCode, HeaderMap)>,
    waker: Option<Waker>,
}

impl InterimForwarder {
    pub(crate) fn new(client: Interim) -> Self {
        Self { client, pending: Arc::default() }
    }

    /// Registers a callback for the interim responses to `request`.
    pub(crate) fn attach(&self, request: &mut Request<UpstreamRequestBody>) {
        let pending = Arc::clone(&self.pending);
        hyper::ext::on_informational(request, move |response| {
            // RFC 9110 §15.2.1: a 100 concerns the content, which this server requests itself.
            if response.status() == StatusCode::CONTINUE {
                return;
            }
            let mut pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
            if pending.count == INTERIM_RESPONSES_MAX {
                return;
            }
            pending.count += 1;
            let fields = headers::interim_headers(response.headers());
            pending.waiting.push((response.status(), fields));
            if let Some(waker) = pending.waker.take() {
                waker.wake();
            }
        });
    }

    /// Forwards the interim responses that arrived, and registers the waker for more.
    pub(crate) fn forward(&self, context: &Context<'_>) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        for (status, fields) in pending.waiting.drain(..) {
            // Interim responses are optional, so an error is ignored.
            let _ = self.client.send(status, fields);
        }
        pending.waker = Some(context.waker().clone());
    }
}
