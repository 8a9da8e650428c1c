//! Restores our request from the one that a tower layer passes to its inner service.
//!
//! The extensions of the layer's request contain a [`RequestRefExtension`] that refers to the
//! original request. If the layer did not change the head, as is usual, the original head is used
//! again.

use crate::original::OriginalRequest;
use crate::request::to_head;
use crate::request_table::{CallStarter, RequestOwner, RequestRef, RequestRefExtension};
use http::StatusCode;
use peregrine_proto::RequestError;
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::private_response::PrivateResponse;
use peregrine_web::service::ErasedService;
use peregrine_web::{Body, Parts, Problem, Request, RequestHead};
use std::sync::Arc;

/// Stores `parts` on this thread until the layer has responded. `request`, which was created from
/// `parts`, gets a [`RequestRefExtension`] that refers to them.
pub(crate) fn store_request<B>(
    parts: Parts,
    next: Option<ErasedService>,
    call_starter: CallStarter,
    request: &mut http::Request<B>,
) -> RequestOwner {
    let owner = RequestOwner::new(OriginalRequest::new(parts, next), call_starter);
    request.extensions_mut().insert(RequestRefExtension(Arc::clone(owner.request_ref())));
    owner
}

/// Returns our request with the layer's changes, and the [`RequestRef`] of the original request.
/// `parts` are those of the request that the layer has passed on, and `body` is its body.
///
/// # Errors
/// The layer used the request after the response, removed the request's extensions, or changed the
/// head so that it is no longer valid HTTP.
pub(crate) fn restore(
    mut parts: http::request::Parts,
    body: Body,
) -> Result<(Request, Arc<RequestRef>), Problem> {
    let extension = parts.extensions.remove::<RequestRefExtension>();
    // A copy of the original request. The layer's changes are applied to it below.
    let original = extension.and_then(|RequestRefExtension(request_ref)| {
        request_ref
            .with_original(|original| clone_without_body(original.parts()))
            .map(|request| (request_ref, request))
    });
    let Some((request_ref, mut request)) = original else {
        return Err(layer_failed(
            "the layer called its inner service after its response, or without the request's \
             extensions",
        ));
    };
    if is_changed(&parts, &request.parts.head) {
        let head = to_head(&parts).map_err(invalid_request)?;
        let rebuilt = rebuild(&request.parts, head);
        request = Request::new(
            rebuilt,
            Body::empty(),
            request.parts.states().clone(),
            request.parts.connection_untracked().clone(),
        );
    }
    request.body = body;
    *request.parts.extensions_mut() = parts.extensions;
    Ok((request, request_ref))
}

fn layer_failed(cause: &str) -> Problem {
    catch_subscriber_panic(
        || tracing::error!(target: "peregrine", cause, "a tower layer sent an invalid request"),
    );
    let detail = "The server could not handle this request.";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "layer-failed", detail)
}

fn invalid_request(error: RequestError) -> Problem {
    match error {
        // The peer may have sent almost all of an oversized head. This is not logged, because a
        // peer must not be able to flood the log.
        RequestError::HeadTooLong | RequestError::RequestLineTooLong => error.into(),
        _ => layer_failed(error.rule()),
    }
}

/// Returns a copy of the original request without its body. The head is shared, because a layer
/// that retries calls its inner service more than once.
fn clone_without_body(parts: &Parts) -> Request {
    let (states, connection) = (parts.states().clone(), parts.connection_untracked().clone());
    Request::new(parts.head.share(), Body::empty(), states, connection)
}

/// Whether the layer changed the method, the target or the fields. If not, the original head is
/// used, with its route and parameters.
fn is_changed(parts: &http::request::Parts, head: &RequestHead) -> bool {
    let target = head.slice(head.index().target);
    let has_same_target = match parts.uri.path_and_query() {
        // Most targets are a path, which is compared without building a string.
        Some(path) if parts.uri.scheme().is_none() => path.as_str().as_bytes() == target,
        _ => parts.uri == head.uri(),
    };
    if !has_same_target || parts.method.as_str() != head.method_str() {
        return true;
    }
    if parts.headers.len() != head.index().fields.len() {
        return true;
    }
    // A `HeaderMap` groups the fields of one name, so its order may differ from the order on the
    // wire. Only then are the fields compared as maps, which is slower.
    let mut original_fields = head.headers_untracked();
    let is_unchanged = parts.headers.iter().all(|(name, value)| {
        original_fields.next().is_some_and(|(wire_name, wire_value)| {
            let has_same_name = name.as_str().as_bytes().eq_ignore_ascii_case(wire_name);
            has_same_name && value.as_bytes() == wire_value
        })
    });
    !is_unchanged && parts.headers != head.header_map_untracked()
}

/// Sets the route of the original request on `head`. Parameters are stored as positions in the
/// path, so they are copied only if the path is unchanged.
fn rebuild(original: &Parts, mut head: RequestHead) -> RequestHead {
    let is_same_path = original.head.path() == head.path();
    head.resolve(|_, parameters| {
        if is_same_path {
            *parameters = *original.head.path_parameters();
        }
        (original.head.route_id(), ())
    });
    head.link_to_original(&original.head);
    head.keep_original_path(&original.head);
    PrivateResponse::mark_changed(&head, &original.head);
    head
}
