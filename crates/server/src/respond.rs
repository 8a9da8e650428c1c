//! Writing responses of HTTP/1, and the answers that the server gives by itself.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use peregrine_proto::h1::{BodyMode, Connection, ResponseLength};
use peregrine_proto::{Date, Reject};
use peregrine_web::{Fields, Problem, Response};

/// Writes a response's head.
pub(crate) fn head(
    protocol: &mut Connection,
    response: &Response,
    length: ResponseLength,
    date: &Date,
    out: &mut Vec<u8>,
) -> BodyMode {
    protocol.respond(response.status.as_u16(), pairs(&response.fields), length, date, out)
}

/// Writes a response whose body is here.
pub(crate) fn whole(
    protocol: &mut Connection,
    response: &Response,
    date: &Date,
    out: &mut Vec<u8>,
) {
    let bytes = response.body.as_slice().unwrap_or_default();
    head(protocol, response, ResponseLength::Exact(bytes.len() as u64), date, out);
    protocol.send_data(bytes, out);
    protocol.finish(std::iter::empty(), out);
}

/// Writes the 101 that hands the connection over. False if the request did not ask for it.
pub(crate) fn switch_protocols(
    protocol: &mut Connection,
    response: &Response,
    out: &mut Vec<u8>,
) -> bool {
    response.status == StatusCode::SWITCHING_PROTOCOLS
        && protocol.switch_protocols(pairs(&response.fields), out)
}

/// Ends a response's body.
pub(crate) fn finish(protocol: &mut Connection, trailers: &HeaderMap, out: &mut Vec<u8>) {
    let pairs = trailers.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()));
    protocol.finish(pairs, out);
}

/// The trailers of the present request.
pub(crate) fn trailers(protocol: &Connection) -> HeaderMap {
    let pairs = protocol.trailers().filter_map(|(name, value)| {
        Some((HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?))
    });
    pairs.collect()
}

/// The answer to a broken rule.
pub(crate) fn rejected(reject: Reject) -> Problem {
    let status = StatusCode::from_u16(reject.status()).unwrap_or(StatusCode::BAD_REQUEST);
    Problem::new(status, "invalid-request", format!("{}.", reject.cause()))
        .with("rule", reject.section())
}

/// The answer to a head that took too long.
pub(crate) fn head_late() -> Problem {
    let detail = "The request's head was not complete in time.";
    Problem::new(StatusCode::REQUEST_TIMEOUT, "head-late", detail)
}

/// The answer of a handler that panicked. It tells nothing about the inside.
pub(crate) fn panicked() -> Problem {
    let detail = "The server failed while it worked on this request.";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal-error", detail)
}

/// The answer in the place of a handler that took longer than it may.
pub(crate) fn handler_late() -> Problem {
    let detail = "The server did not get the answer ready in time. Try again later.";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "handler-late", detail)
}

fn pairs(fields: &Fields) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()))
}
