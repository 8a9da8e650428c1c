//! Calls the handler for a response that is missing or stale.

use super::asker::Asker;
use super::entry::{Entry, Freshness};
use super::nested::Outer;
use super::store::Lead;
use super::{Settings, conditional};
use crate::lasting::{Panic, answer_or_panic};
use http::StatusCode;
use peregrine_web::panics::contained;
use peregrine_web::panics::guarded;
use peregrine_web::personal::Personal;
use peregrine_web::{Body, Head, Parts, Request, Response, Service};
use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::Arc;
use tokio::time::Instant;

/// A handler that sees the client's conditions could answer 304, which cannot be stored for others.
const CONDITIONS: [&str; 2] = ["if-none-match", "if-modified-since"];

/// A stale response and its remaining use.
pub(super) type Stale = (Arc<Entry>, Freshness);

/// A fetch in progress. It outlives its request if others wait for it.
pub(super) struct Fetch<S> {
    pub(super) settings: Rc<Settings>,
    pub(super) service: Rc<S>,
    pub(super) lead: Lead,
    pub(super) stale: Option<Stale>,
    /// Whether this is a background refresh, for which no client waits.
    pub(super) is_beside: bool,
}

impl<S: Service> Fetch<S> {
    /// Calls the handler, stores the response if permitted, and answers the client.
    pub(super) async fn answer(self, mut parts: Parts) -> Response {
        let Self { settings, service, lead, stale, is_beside } = self;
        let (asked, states) = (parts.head.share(), Rc::clone(parts.states()));
        let (watch, connection) = (Personal::watch(&parts), Rc::clone(parts.peek_connection()));
        let outer = Outer::enter(&mut parts, &settings.store);
        if CONDITIONS.iter().any(|name| asked.field(name).is_some()) {
            parts.head.remove_fields(&CONDITIONS);
        }
        let since = Instant::now();
        let answered = match &stale {
            Some((entry, _)) => validate(&*service, parts, entry, &lead).await,
            None => Ok(service.call(whole(parts)).await),
        };
        // Render problems as the application will send them.
        let answered = answered.map(|response| states.render(response, &asked));
        let is_failure = answered
            .as_ref()
            .map_or(true, |it| matches!(it.status.as_u16(), 500 | 502 | 503 | 504));
        let usable =
            stale.clone().filter(|(_, freshness)| is_failure && *freshness < Freshness::Over);
        if let Some((entry, _)) = usable {
            contained(
                || tracing::warn!(target: "peregrine", path = asked.path(), "a stale response was sent in place of an error"),
            );
            if let Err(panic) = answered {
                let _ = guarded("a handler", || resume_unwind(panic));
            }
            entry.not_renewed(is_beside);
            lead.reuse(&entry);
            return conditional(entry.to_response_for(&asked), &asked);
        }
        let response = answered.unwrap_or_else(|panic| resume_unwind(panic));
        if outer.has_inner() {
            lead.hand_over();
            return conditional(response, &asked);
        }
        let asker = Asker { head: &asked, connection: &connection, sources: watch.sources() };
        let is_for_one = asker.is_personal() && !is_beside;
        let (response, is_kept) = settings.keep(response, lead, (asker, &watch), since).await;
        match stale.filter(|_| !is_kept) {
            Some((entry, _)) if is_for_one => entry.not_renewed_by_one(),
            Some((entry, _)) => entry.not_renewed(is_beside),
            None => {}
        }
        conditional(response, &asked)
    }
}

/// Revalidates a stored response if it has a validator, else fetches it anew.
async fn validate<S: Service>(
    service: &S,
    parts: Parts,
    entry: &Entry,
    lead: &Lead,
) -> Result<Response, Panic> {
    let mut asking = parts.head.share();
    if !entry.add_conditions(&mut asking) {
        return answer_or_panic(whole(parts), service).await;
    }
    let response = answer_or_panic(like(&parts, asking), service).await?;
    if response.status != StatusCode::NOT_MODIFIED {
        return Ok(response);
    }
    match entry.updated(&response) {
        Some(response) => {
            lead.count_validated();
            Ok(response)
        }
        // The 304 is about another state.
        None => answer_or_panic(whole(parts), service).await,
    }
}

fn whole(parts: Parts) -> Request {
    Request::from_parts(parts, Body::empty())
}

/// A request with this head and the extensions that outer middleware added.
pub(crate) fn like(parts: &Parts, head: Head) -> Request {
    let (states, connection) = (Rc::clone(parts.states()), Rc::clone(parts.peek_connection()));
    let mut request = Request::new(head, Body::empty(), states, connection);
    *request.parts.extensions_mut() = parts.extensions().clone();
    request
}
