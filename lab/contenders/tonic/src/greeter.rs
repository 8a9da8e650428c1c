//! The service of gRPC's own example, `helloworld.Greeter`. The messages are derived by hand, and the
//! method is called as generated code does it, so that no compiler of protocols is needed. It knows
//! nothing of the server, so that another contender serves the very same file.

use std::convert::Infallible;
use std::task::{Context, Poll};

use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, BoxFuture, Service, StdError, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, prost::Message)]
pub struct HelloRequest {
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct HelloReply {
    #[prost(string, tag = "1")]
    pub message: String,
}

#[derive(Clone, Copy)]
pub struct Greeter;

async fn say_hello(request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
    let name = request.into_inner().name;
    Ok(Response::new(HelloReply { message: format!("Hello {name}!") }))
}

struct SayHello;

impl UnaryService<HelloRequest> for SayHello {
    type Response = HelloReply;
    type Future = BoxFuture<Response<HelloReply>, Status>;

    fn call(&mut self, request: Request<HelloRequest>) -> Self::Future {
        Box::pin(say_hello(request))
    }
}

impl NamedService for Greeter {
    const NAME: &'static str = "helloworld.Greeter";
}

impl<B> Service<http::Request<B>> for Greeter
where
    B: HttpBody + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        match request.uri().path() {
            "/helloworld.Greeter/SayHello" => Box::pin(async move {
                let mut grpc = Grpc::new(ProstCodec::default());
                Ok(grpc.unary(SayHello, request).await)
            }),
            _ => Box::pin(async { Ok(Status::unimplemented("").into_http()) }),
        }
    }
}
