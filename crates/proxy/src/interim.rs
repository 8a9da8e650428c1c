//! Forwards interim responses of upstreams, such as 103 (Early Hints), to the client.

use crate::body::Sent;
use crate::fields;
use http::{HeaderMap, Request, StatusCode};
use peregrine_web::extract::Interim;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};

/// The maximum number of interim responses forwarded for one request, so that an upstream cannot
/// flood the client.
const PASSED_MAX: usize = 16;

/// The interim responses to one request. hyper reports them on the task of the connection.
pub(crate) struct Interims {
    client: Interim,
    heard: Arc<Mutex<Heard>>,
}

#[derive(Default)]
struct Heard {
    count: usize,
    waiting: Vec<(StatusCode, HeaderMap)>,
    waker: Option<Waker>,
}

impl Interims {
    pub(crate) fn new(client: Interim) -> Self {
        Self { client, heard: Arc::default() }
    }

    /// Registers for the interim responses that precede the response to `request`.
    pub(crate) fn hear(&self, request: &mut Request<Sent>) {
        let heard = Arc::clone(&self.heard);
        hyper::ext::on_informational(request, move |response| {
            // RFC 9110 §15.2.1: a 100 concerns the content, which this server requests itself.
            if response.status() == StatusCode::CONTINUE {
                return;
            }
            let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            if heard.count == PASSED_MAX {
                return;
            }
            heard.count += 1;
            let fields = fields::interim(response.headers());
            heard.waiting.push((response.status(), fields));
            if let Some(waker) = heard.waker.take() {
                waker.wake();
            }
        });
    }

    /// Forwards the interim responses that arrived, and registers the waker for more.
    pub(crate) fn pass(&self, context: &Context<'_>) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        for (status, fields) in heard.waiting.drain(..) {
            // Interim responses are optional, so an error is ignored.
            let _ = self.client.send(status, fields);
        }
        heard.waker = Some(context.waker().clone());
    }
}
