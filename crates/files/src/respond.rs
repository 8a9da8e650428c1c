//! Builds the response for a file.

use crate::body::{Piece, body};
use crate::facts::Found;
use crate::range::{Part, Ranges, parse};
use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, ETAG,
    LAST_MODIFIED, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use peregrine_web::precondition::Verdict;
use peregrine_web::respond::IntoResponse;
use peregrine_web::{Head, Problem, Response};
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::SystemTime;

/// The response to a GET or HEAD request for this file.
pub(crate) fn respond(head: &Head, found: &Found, cache: Option<&HeaderValue>) -> Response {
    match found.facts.validators().judge(head) {
        Verdict::Failed => {
            let detail = "the file does not meet the request's conditions";
            let status = StatusCode::PRECONDITION_FAILED;
            let problem = Problem::new(status, "precondition-failed", detail);
            described(problem.into_response(), found, cache)
        }
        // RFC 9110 §15.4.5: a 304 has the fields of a 200, but no content.
        Verdict::Known => described(Response::new(StatusCode::NOT_MODIFIED), found, cache),
        Verdict::Send => send(head, found, cache),
    }
}

fn send(head: &Head, found: &Found, cache: Option<&HeaderValue>) -> Response {
    let length = found.facts.length;
    // RFC 9110 §14.2: ranges apply only to GET, and only if their condition holds.
    let range = head.field("range").filter(|_| head.method() == Method::GET);
    let ranges = match range {
        Some(range) if found.facts.validators().range_holds(head) => parse(range, length),
        _ => Ranges::Whole,
    };
    let mut response = match ranges {
        Ranges::Nothing => {
            let detail = format!("the file has {length} bytes, and none of the requested ranges");
            let status = StatusCode::RANGE_NOT_SATISFIABLE;
            let problem = Problem::new(status, "range-not-satisfiable", detail);
            let range = text(format!("bytes */{length}"));
            let response = problem.with_header(CONTENT_RANGE, range).into_response();
            return described(response, found, cache);
        }
        Ranges::Whole => {
            let pieces = VecDeque::from([Piece::File { at: 0, length }]);
            let mut response =
                Response::new(StatusCode::OK).with_body(body(&found.content, pieces));
            set(&mut response, CONTENT_TYPE, HeaderValue::from_static(found.media_type));
            response
        }
        Ranges::Parts(parts) => partial(found, &parts),
    };
    if let Some(encoding) = found.encoding {
        set(&mut response, CONTENT_ENCODING, HeaderValue::from_static(encoding.name()));
    }
    set(&mut response, ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    set(&mut response, X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    described(response, found, cache)
}

fn partial(found: &Found, parts: &[Part]) -> Response {
    let mut response = Response::new(StatusCode::PARTIAL_CONTENT);
    let of = |Part { at, length }: Part| {
        format!("bytes {at}-{}/{}", at + length - 1, found.facts.length)
    };
    let mut pieces = VecDeque::new();
    if let [part] = parts {
        set(&mut response, CONTENT_TYPE, HeaderValue::from_static(found.media_type));
        set(&mut response, CONTENT_RANGE, text(of(*part)));
        pieces.push_back(Piece::File { at: part.at, length: part.length });
        return response.with_body(body(&found.content, pieces));
    }
    // RFC 9110 §14.6: several parts are a `multipart/byteranges`.
    let boundary = boundary();
    let value = text(format!("multipart/byteranges; boundary={boundary}"));
    set(&mut response, CONTENT_TYPE, value);
    let mut line_end = "";
    for part in parts {
        let (range, media_type) = (of(*part), found.media_type);
        let between = format!(
            "{line_end}--{boundary}\r\nContent-Type: {media_type}\r\nContent-Range: {range}\r\n\r\n"
        );
        pieces.push_back(Piece::Bytes(Bytes::from(between)));
        pieces.push_back(Piece::File { at: part.at, length: part.length });
        line_end = "\r\n";
    }
    pieces.push_back(Piece::Bytes(Bytes::from(format!("\r\n--{boundary}--\r\n"))));
    response.with_body(body(&found.content, pieces))
}

/// A random boundary, which no file can contain.
fn boundary() -> String {
    let number = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", number(), number())
}

/// Adds the fields that every response about a file has.
fn described(mut response: Response, found: &Found, cache: Option<&HeaderValue>) -> Response {
    let facts = &found.facts;
    set(&mut response, ETAG, facts.tag_value.clone());
    // RFC 9110 §8.8.2.1: a time later than that of the response is not sent.
    if let (Some(modified), Some(value)) = (facts.modified, &facts.modified_value)
        && modified <= SystemTime::now()
    {
        set(&mut response, LAST_MODIFIED, value.clone());
    }
    if let Some(cache) = cache.filter(|_| !response.status.is_client_error()) {
        set(&mut response, CACHE_CONTROL, cache.clone());
    }
    if found.varies {
        set(&mut response, VARY, HeaderValue::from_static("accept-encoding"));
    }
    response
}

fn set(response: &mut Response, name: HeaderName, value: HeaderValue) {
    response.fields.set(name, value);
}

fn text(value: String) -> HeaderValue {
    HeaderValue::try_from(value).expect("tags, dates and numbers are plain text")
}
