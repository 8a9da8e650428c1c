//! Fetches a missing or stale response from the handler.

use super::entry::{CacheEntry, Freshness};
use super::outer::OuterCache;
use super::requester::Requester;
use super::store::FlightLeader;
use super::{CacheSettings, evaluate_conditions};
use crate::detach::{PanicPayload, call_catching_panic};
use http::StatusCode;
use peregrine_web::panic::catch_panic;
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::private_response::PrivateResponse;
use peregrine_web::{Body, Parts, Request, RequestHead, Response, Service};
use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::Arc;
use tokio::time::Instant;

/// The conditions that are removed before the handler is called. With them, it could respond with
/// 304, which cannot be stored for other clients.
const CONDITIONS: [&str; 2] = ["if-none-match", "if-modified-since"];

/// A stale response and how it may still be used.
pub(super) type StaleEntry = (Arc<CacheEntry>, Freshness);

/// A fetch in progress. It outlives its request if other requests wait for it.
pub(super) struct Fetch<S> {
    pub(super) settings: Rc<CacheSettings>,
    pub(super) service: Rc<S>,
    pub(super) leader: FlightLeader,
    pub(super) stale: Option<StaleEntry>,
    /// Whether this is a background refresh, for which no client waits.
    pub(super) is_background: bool,
}

impl<S: Service> Fetch<S> {
    /// Calls the handler, stores the response if permitted, and returns the response for the
    /// client.
    pub(super) async fn run(self, mut parts: Parts) -> Response {
        let Self { settings, service, leader, stale, is_background } = self;
        let (head, states) = (parts.head.share(), Rc::clone(parts.states()));
        let (watch, connection) =
            (PrivateResponse::watch(&parts), Rc::clone(parts.connection_untracked()));
        let outer = OuterCache::enter(&mut parts, &settings.store);
        if CONDITIONS.iter().any(|name| head.header_bytes(name).is_some()) {
            parts.head.remove_fields(&CONDITIONS);
        }
        let requested_at = Instant::now();
        let result = match &stale {
            Some((entry, _)) => revalidate(&*service, parts, entry, &leader).await,
            None => Ok(service.call(request_without_body(parts)).await),
        };
        // Render problems as the application will send them.
        let result = result.map(|response| states.render_problem(response, &head));
        let is_failure = result
            .as_ref()
            .map_or(true, |response| matches!(response.status.as_u16(), 500 | 502 | 503 | 504));
        let fallback =
            stale.clone().filter(|(_, freshness)| is_failure && *freshness < Freshness::Expired);
        if let Some((entry, _)) = fallback {
            catch_subscriber_panic(
                || tracing::warn!(target: "peregrine", path = head.path(), "a stale response was sent in place of an error"),
            );
            // The stale response replaces the panic, which must still be logged.
            if let Err(panic) = result {
                let _ = catch_panic("a handler", || resume_unwind(panic));
            }
            entry.revalidation_failed(is_background);
            leader.serve_existing(&entry);
            return evaluate_conditions(entry.to_response_for(&head), &head);
        }
        let response = result.unwrap_or_else(|panic| resume_unwind(panic));
        if outer.has_inner_cache() {
            leader.delegate_to_inner();
            return evaluate_conditions(response, &head);
        }
        let requester =
            Requester { head: &head, connection: &connection, sources: watch.sources() };
        // After a background refresh, the next request tries a foreground one in any case.
        let is_private_in_foreground = requester.is_private() && !is_background;
        let (response, is_cacheable) =
            settings.store_if_cacheable(response, leader, (requester, &watch), requested_at).await;
        match stale.filter(|_| !is_cacheable) {
            Some((entry, _)) if is_private_in_foreground => entry.revalidation_was_private(),
            Some((entry, _)) => entry.revalidation_failed(is_background),
            None => {}
        }
        evaluate_conditions(response, &head)
    }
}

/// Revalidates a stored response if it has a validator, else fetches it anew.
async fn revalidate<S: Service>(
    service: &S,
    parts: Parts,
    entry: &CacheEntry,
    leader: &FlightLeader,
) -> Result<Response, PanicPayload> {
    let mut head = parts.head.share();
    if !entry.add_conditional_fields(&mut head) {
        return call_catching_panic(request_without_body(parts), service).await;
    }
    let response = call_catching_panic(request_like(&parts, head), service).await?;
    if response.status != StatusCode::NOT_MODIFIED {
        return Ok(response);
    }
    match entry.freshen(&response) {
        Some(response) => {
            leader.count_revalidated();
            Ok(response)
        }
        // The 304 refers to another representation.
        None => call_catching_panic(request_without_body(parts), service).await,
    }
}

fn request_without_body(parts: Parts) -> Request {
    Request::from_parts(parts, Body::empty())
}

/// Creates a request without a body, with `head` and the extensions that outer middleware added to
/// the original request.
pub(crate) fn request_like(parts: &Parts, head: RequestHead) -> Request {
    let (states, connection) = (Rc::clone(parts.states()), Rc::clone(parts.connection_untracked()));
    let mut request = Request::new(head, Body::empty(), states, connection);
    *request.parts.extensions_mut() = parts.extensions().clone();
    request
}
