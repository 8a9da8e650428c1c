//! A gRPC-like service as the server sees it: a tower service whose responses end with trailers,
//! mounted directly or as a route of an axum router.
//!
//! gRPC itself requires HTTP/2. These cases check that such services can be mounted unchanged, and
//! that their trailers reach an HTTP/1.1 client that asked for them.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use peregrine::tower::{Mount, SendBody, tower};
use peregrine::web::App;
use peregrine::{DriverChoice, RunningServer};
use peregrine_ecosystem_tests::{end, on_both_drivers, start};
use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::pin::Pin;
use std::task::{Context, Poll};

on_both_drivers! {
    a_service_whose_answer_ends_with_trailers_is_mounted,
    a_router_of_such_services_is_mounted,
}

/// The error of a call, as sent in trailers.
#[derive(Debug)]
struct Status(u32);

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "status {}", self.0)
    }
}

impl std::error::Error for Status {}

/// The type of gRPC responses: boxed, `Send`, not `Sync`.
type Answer = Response<UnsyncBoxBody<Bytes, Status>>;

/// Echoes each message, and sends its number after the last one.
#[derive(Clone)]
struct Echo;

/// Accepts any request body, like generated services.
impl<B> tower::Service<Request<B>> for Echo
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: std::fmt::Debug + Send,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        Box::pin(async move {
            let is_known = request.uri().path() == "/tests.Echo/Say";
            let mut message =
                request.into_body().collect().await.expect("the body is complete").to_bytes();
            let mut trailers = HeaderMap::new();
            let mut pieces = Vec::new();
            if is_known {
                while !message.is_empty() {
                    pieces.push(message.split_to(message.len().min(5)));
                }
                trailers.insert("grpc-message", HeaderValue::from(pieces.len()));
            }
            trailers.insert("grpc-status", HeaderValue::from(if is_known { 0 } else { 12 }));
            let frames = pieces.into_iter().map(Frame::data).chain([Frame::trailers(trailers)]);
            let body = StreamBody::new(Frames(frames)).boxed_unsync();
            let response = Response::builder().header("content-type", "application/grpc");
            Ok(response.status(StatusCode::OK).body(body).expect("the head is valid"))
        })
    }
}

struct Frames<I>(I);

impl<I: Iterator<Item = Frame<Bytes>> + Unpin> futures_core::Stream for Frames<I> {
    type Item = Result<Frame<Bytes>, Status>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.0.next().map(Ok))
    }
}

/// The bounds that mounting requires, satisfied by tonic's router through axum, and by a service.
fn is_mountable<S, B>(service: S) -> S
where
    S: tower::Service<Request<SendBody>, Response = Response<B>, Error = Infallible> + Clone,
    B: http_body::Body,
{
    service
}

/// The response of one call, with head, body and trailers, as sent.
fn call(running: &RunningServer, path: &str) -> String {
    let address = running.http_address().expect("the server has an HTTP listener");
    let mut stream = TcpStream::connect(address).expect("the server accepts connections");
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: TE, close\r\n\
         Content-Type: application/grpc\r\nContent-Length: 10\r\n\r\n\0\0\0\0\x05hello"
    );
    stream.write_all(request.as_bytes()).expect("the socket is connected");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("the server closes the connection cleanly");
    reply
}

fn expect_echo(running: RunningServer) {
    let reply = call(&running, "/tests.Echo/Say");
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply:?}");
    assert!(reply.contains("\r\ncontent-type: application/grpc\r\n"), "{reply:?}");
    let (_, body) = reply.split_once("\r\n\r\n").expect("a head ends");
    let (data, trailers) = body.split_once("0\r\n").expect("the data ends");
    assert!(data.contains("hello"), "{reply:?}");
    let mut trailers: Vec<_> = trailers.split_terminator("\r\n").collect();
    trailers.sort_unstable();
    assert_eq!(trailers, ["", "grpc-message: 2", "grpc-status: 0"], "{reply:?}");
    // An unknown method is reported in trailers too, without data.
    let reply = call(&running, "/tests.Echo/Sing");
    assert!(reply.ends_with("0\r\ngrpc-status: 12\r\n\r\n"), "{reply:?}");
    end(running);
}

fn a_service_whose_answer_ends_with_trailers_is_mounted(choice: DriverChoice) {
    let service = is_mountable(Echo);
    let make = move || App::new().get("/", || "ours").mount("/", service.clone());
    start(choice, 1, make).into_iter().for_each(expect_echo);
}

fn a_router_of_such_services_is_mounted(choice: DriverChoice) {
    // `tonic::service::Routes::into_axum_router` returns such a router.
    let router = axum::Router::new().route_service("/tests.Echo/{*method}", Echo);
    let router: axum::Router = is_mountable(router);
    start(choice, 1, move || tower(router.clone())).into_iter().for_each(expect_echo);
}
