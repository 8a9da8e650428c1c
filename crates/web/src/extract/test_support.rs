//! Builds requests for tests of extractors, without a server or an application.

use super::{FromRequest, FromRequestParts};
use crate::http::body::Body;
use crate::http::body::pipe::pipe;
use crate::http::connection::ConnectionInfo;
use crate::http::head::RequestHead;
use crate::http::problem::Problem;
use crate::http::request::{Parts, Request};
use crate::http::state::States;
use bytes::Bytes;
use http::HeaderMap;
use peregrine_proto::Limits;
use peregrine_proto::h1::{Connection, Event};
use peregrine_router::{Match, MethodSet, RouterBuilder};
use std::fmt::Write;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The output of a future that must be ready.
pub(crate) fn assert_ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("expected the future to be ready"),
    }
}

pub(crate) async fn from_parts<T: FromRequestParts>(parts: &mut Parts) -> Result<T, Problem> {
    T::from_request_parts(parts).await
}

pub(crate) async fn from_request<T: FromRequest>(request: Request) -> Result<T, Problem> {
    T::from_request(request).await
}

fn head(method: &str, target: &str, fields: &[(&str, &str)]) -> RequestHead {
    let mut text = format!("{method} {target} HTTP/1.1\r\n");
    // The parser requires exactly one Host.
    if !fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        text.push_str("Host: test\r\n");
    }
    for (name, value) in fields {
        write!(text, "{name}: {value}\r\n").expect("writing to a string cannot fail");
    }
    text.push_str("\r\n");
    let limits = Limits::default();
    let mut head = RequestHead::from_pool();
    let (used, event) =
        Connection::new(&limits).receive(&limits, text.as_bytes(), head.index_mut());
    assert!(used == text.len() && matches!(event, Event::Head(_)), "{text}: {event:?}");
    head.set_bytes(text.as_bytes());
    head
}

fn request(head: RequestHead, body: Body, states: States, connection: ConnectionInfo) -> Request {
    Request::new(head, body, Rc::new(states), Rc::new(connection))
}

pub(crate) fn get(target: &str) -> Request {
    request(head("GET", target, &[]), Body::empty(), States::default(), ConnectionInfo::default())
}

pub(crate) fn post(target: &str, fields: &[(&str, &str)], body: Body) -> Request {
    request(head("POST", target, fields), body, States::default(), ConnectionInfo::default())
}

pub(crate) fn parts_with(states: States) -> Parts {
    request(head("GET", "/", &[]), Body::empty(), states, ConnectionInfo::default()).parts
}

pub(crate) fn parts_on(connection: ConnectionInfo) -> Parts {
    request(head("GET", "/", &[]), Body::empty(), States::default(), connection).parts
}

/// A request for `path` that matched the route `pattern`.
pub(crate) fn matched(pattern: &str, path: &str) -> Parts {
    let mut builder = RouterBuilder::new();
    builder.insert(pattern, MethodSet::single(0), 0);
    let router = builder.build().expect("a valid pattern");
    let mut head = head("GET", path, &[]);
    head.resolve(|path, parameters| {
        assert_eq!(router.find(path, 0, parameters), Match::Found { route: 0 });
        (Some(0), ())
    });
    let states = States::default();
    states.set_router(Rc::new(router));
    request(head, Body::empty(), states, ConnectionInfo::default()).parts
}

/// A complete body that arrives in chunks.
pub(crate) fn incoming(chunks: &[&'static str], limit: u64) -> Body {
    let (writer, reader) = pipe(64 * 1024, None);
    for chunk in chunks {
        writer.send(Bytes::from_static(chunk.as_bytes()));
    }
    writer.finish(HeaderMap::new());
    Body::incoming(reader, limit)
}
