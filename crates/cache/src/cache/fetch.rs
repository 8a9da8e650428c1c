//! Asking the handler for what is not kept, or not fresh any more.

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

/// A handler that obeyed the client's conditions would make a 304, which is of no use for others.
const CONDITIONS: [&str; 2] = ["if-none-match", "if-modified-since"];

/// What is kept and not fresh any more, and what it is good for.
pub(super) type Stale = (Arc<Entry>, Freshness);

/// Something that is fetched. It outlives the request if others want it.
pub(super) struct Fetch<S> {
    pub(super) settings: Rc<Settings>,
    pub(super) service: Rc<S>,
    pub(super) lead: Lead,
    pub(super) stale: Option<Stale>,
    /// Does no client wait for it?
    pub(super) is_beside: bool,
}

impl<S: Service> Fetch<S> {
    /// Asks the handler, keeps what it says if that may be kept, and answers the client that asked.
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
        // The application's form of a problem is what will be sent.
        let answered = answered.map(|response| states.render(response, &asked));
        let is_failure = answered
            .as_ref()
            .map_or(true, |it| matches!(it.status.as_u16(), 500 | 502 | 503 | 504));
        let usable =
            stale.clone().filter(|(_, freshness)| is_failure && *freshness < Freshness::Over);
        if let Some((entry, _)) = usable {
            contained(
                || tracing::warn!(target: "peregrine", path = asked.path(), "a stale response is sent in place of an error"),
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
        let (response, is_kept) = settings.keep(response, lead, asker, since).await;
        match stale.filter(|_| !is_kept) {
            Some((entry, _)) if is_for_one => entry.not_renewed_by_one(),
            Some((entry, _)) => entry.not_renewed(is_beside),
            None => {}
        }
        conditional(response, &asked)
    }
}

/// Asks whether what is kept is good still, where it can be told from another state; else for the whole.
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
        // It speaks of another state.
        None => answer_or_panic(whole(parts), service).await,
    }
}

fn whole(parts: Parts) -> Request {
    Request::from_parts(parts, Body::empty())
}

/// A request with this head, and with what middleware further out found out.
pub(crate) fn like(parts: &Parts, head: Head) -> Request {
    let (states, connection) = (Rc::clone(parts.states()), Rc::clone(parts.peek_connection()));
    let mut request = Request::new(head, Body::empty(), states, connection);
    *request.parts.extensions_mut() = parts.extensions().clone();
    request
}
