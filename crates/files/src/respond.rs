//! Builds the response for a file.

use crate::body::{BodySegment, build_body};
use crate::metadata::ResolvedFile;
use crate::range::{ByteRange, Ranges, parse};
use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, ETAG,
    LAST_MODIFIED, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use peregrine_web::precondition::PreconditionOutcome;
use peregrine_web::response::IntoResponse;
use peregrine_web::{Problem, RequestHead, Response};
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::SystemTime;

/// Builds the response to a GET or HEAD request for this file.
pub(crate) fn respond(
    head: &RequestHead,
    file: &ResolvedFile,
    cache_control: Option<&HeaderValue>,
) -> Response {
    match file.metadata.validators().evaluate(head) {
        PreconditionOutcome::Failed => {
            let detail = "the file does not meet the request's conditions";
            let status = StatusCode::PRECONDITION_FAILED;
            let problem = Problem::new(status, "precondition-failed", detail);
            with_file_headers(problem.into_response(), file, cache_control)
        }
        // RFC 9110 §15.4.5: a 304 has the fields of a 200, but no content.
        PreconditionOutcome::NotModified => {
            with_file_headers(Response::new(StatusCode::NOT_MODIFIED), file, cache_control)
        }
        PreconditionOutcome::Proceed => content_response(head, file, cache_control),
    }
}

fn content_response(
    head: &RequestHead,
    file: &ResolvedFile,
    cache_control: Option<&HeaderValue>,
) -> Response {
    let length = file.metadata.length;
    // RFC 9110 §14.2: ranges apply only to GET, and only if their condition holds.
    let range = head.header_bytes("range").filter(|_| head.method() == Method::GET);
    let ranges = match range {
        Some(range) if file.metadata.validators().if_range_matches(head) => parse(range, length),
        _ => Ranges::Full,
    };
    let mut response = match ranges {
        Ranges::Unsatisfiable => {
            let detail = format!("the file has {length} bytes, and none of the requested ranges");
            let status = StatusCode::RANGE_NOT_SATISFIABLE;
            let problem = Problem::new(status, "range-not-satisfiable", detail);
            let range = header_value(format!("bytes */{length}"));
            let response = problem.with_header(CONTENT_RANGE, range).into_response();
            return with_file_headers(response, file, cache_control);
        }
        Ranges::Full => {
            let segments = VecDeque::from([BodySegment::File { offset: 0, len: length }]);
            let mut response =
                Response::new(StatusCode::OK).with_body(build_body(&file.content, segments));
            set(&mut response, CONTENT_TYPE, HeaderValue::from_static(file.media_type));
            response
        }
        Ranges::Satisfiable(parts) => partial_content(file, &parts),
    };
    if let Some(coding) = file.content_coding {
        set(&mut response, CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
    }
    set(&mut response, ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    set(&mut response, X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    with_file_headers(response, file, cache_control)
}

fn partial_content(file: &ResolvedFile, parts: &[ByteRange]) -> Response {
    let mut response = Response::new(StatusCode::PARTIAL_CONTENT);
    let content_range = |ByteRange { start, length }: ByteRange| {
        format!("bytes {start}-{}/{}", start + length - 1, file.metadata.length)
    };
    let mut segments = VecDeque::new();
    if let [part] = parts {
        set(&mut response, CONTENT_TYPE, HeaderValue::from_static(file.media_type));
        set(&mut response, CONTENT_RANGE, header_value(content_range(*part)));
        segments.push_back(BodySegment::File { offset: part.start, len: part.length });
        return response.with_body(build_body(&file.content, segments));
    }
    // RFC 9110 §14.6: several parts are a `multipart/byteranges`.
    let boundary = random_boundary();
    let value = header_value(format!("multipart/byteranges; boundary={boundary}"));
    set(&mut response, CONTENT_TYPE, value);
    let mut line_end = "";
    for part in parts {
        let (range, media_type) = (content_range(*part), file.media_type);
        let part_head = format!(
            "{line_end}--{boundary}\r\nContent-Type: {media_type}\r\nContent-Range: {range}\r\n\r\n"
        );
        segments.push_back(BodySegment::Bytes(Bytes::from(part_head)));
        segments.push_back(BodySegment::File { offset: part.start, len: part.length });
        line_end = "\r\n";
    }
    segments.push_back(BodySegment::Bytes(Bytes::from(format!("\r\n--{boundary}--\r\n"))));
    response.with_body(build_body(&file.content, segments))
}

/// Generates a random boundary, so that no file contains it.
fn random_boundary() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

/// Adds the fields that every response about a file has.
fn with_file_headers(
    mut response: Response,
    file: &ResolvedFile,
    cache_control: Option<&HeaderValue>,
) -> Response {
    let metadata = &file.metadata;
    set(&mut response, ETAG, metadata.etag_header.clone());
    // RFC 9110 §8.8.2.1: a time later than that of the response is not sent.
    if let (Some(modified), Some(value)) = (metadata.modified, &metadata.last_modified_header)
        && modified <= SystemTime::now()
    {
        set(&mut response, LAST_MODIFIED, value.clone());
    }
    if let Some(cache_control) = cache_control.filter(|_| !response.status.is_client_error()) {
        set(&mut response, CACHE_CONTROL, cache_control.clone());
    }
    if file.varies {
        set(&mut response, VARY, HeaderValue::from_static("accept-encoding"));
    }
    response
}

fn set(response: &mut Response, name: HeaderName, value: HeaderValue) {
    response.headers.insert(name, value);
}

fn header_value(value: String) -> HeaderValue {
    HeaderValue::try_from(value).expect("tags, dates and numbers are plain text")
}
