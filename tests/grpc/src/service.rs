//! The service of gRPC's own interoperability tests, `grpc.testing.TestService`, on tonic. A
//! request field `x-do` selects behaviour that those tests do not cover.

use crate::messages::{
    Empty, Payload, SimpleRequest, SimpleResponse, StreamingInputCallRequest,
    StreamingInputCallResponse, StreamingOutputCallRequest, StreamingOutputCallResponse,
};
use http_body::Frame;
use prost::Message;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt};
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::codegen::{Body as HttpBody, BoxFuture, Bytes, http};
use tonic::metadata::MetadataMap;
use tonic::server::{Grpc, NamedService};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::service_fn;

/// The largest message that is accepted and sent.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// The service. Clones share their counters.
#[derive(Clone, Debug, Default)]
pub struct TestService {
    seen: Arc<Seen>,
}

/// The counters of a service.
#[derive(Debug, Default)]
pub struct Seen {
    /// Calls that wait for an event that never occurs.
    waiting: AtomicUsize,
    /// Such calls that were dropped, or notified that their client disconnected.
    left: AtomicUsize,
    /// Messages that were produced or received.
    messages: AtomicUsize,
}

impl Seen {
    /// Calls that wait for an event that never occurs.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Such calls that were dropped, or notified that their client disconnected.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left.load(Ordering::SeqCst)
    }

    /// Messages that were produced or received.
    #[must_use]
    pub fn messages(&self) -> usize {
        self.messages.load(Ordering::SeqCst)
    }

    fn message(&self) {
        self.messages.fetch_add(1, Ordering::SeqCst);
    }

    fn begin(self: &Arc<Self>) -> Waiting {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Waiting(Arc::clone(self))
    }
}

/// A waiting call. Dropping it is counted.
struct Waiting(Arc<Seen>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.left.fetch_add(1, Ordering::SeqCst);
    }
}

impl NamedService for TestService {
    const NAME: &'static str = "grpc.testing.TestService";
}

type Outputs = Pin<Box<dyn Stream<Item = Result<StreamingOutputCallResponse, Status>> + Send>>;

impl TestService {
    /// A service, and its counters.
    #[must_use]
    pub fn new() -> (Self, Arc<Seen>) {
        let service = Self::default();
        let seen = Arc::clone(&service.seen);
        (service, seen)
    }

    async fn answer(self, request: http::Request<Body>) -> http::Response<Body> {
        let seen = self.seen;
        let path = request.uri().path().to_owned();
        match path.rsplit('/').next().unwrap_or_default() {
            "EmptyCall" => {
                let call = async |_: Request<Empty>| Ok(Response::new(Empty {}));
                grpc().unary(service_fn(call), request).await
            }
            "UnaryCall" => {
                let call = move |request| unary_call(Arc::clone(&seen), request);
                grpc().unary(service_fn(call), request).await
            }
            "StreamingInputCall" => {
                let call = move |request| streaming_input_call(Arc::clone(&seen), request);
                grpc().client_streaming(service_fn(call), request).await
            }
            "StreamingOutputCall" => {
                let call = move |request| streaming_output_call(Arc::clone(&seen), request);
                grpc().server_streaming(service_fn(call), request).await
            }
            "FullDuplexCall" => {
                let call = move |request| full_duplex_call(Arc::clone(&seen), request);
                grpc().streaming(service_fn(call), request).await
            }
            _ => Status::unimplemented("").into_http(),
        }
    }
}

fn grpc<Sent, Received>() -> Grpc<ProstCodec<Sent, Received>>
where
    Sent: Message + 'static,
    Received: Message + Default + 'static,
{
    Grpc::new(ProstCodec::default())
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Zstd)
        .send_compressed(CompressionEncoding::Gzip)
        .send_compressed(CompressionEncoding::Zstd)
}

fn asked(metadata: &MetadataMap) -> &str {
    metadata.get("x-do").and_then(|value| value.to_str().ok()).unwrap_or_default()
}

async fn unary_call(
    seen: Arc<Seen>,
    request: Request<SimpleRequest>,
) -> Result<Response<SimpleResponse>, Status> {
    match asked(request.metadata()) {
        "wait" => {
            let _waiting = seen.begin();
            std::future::pending::<()>().await;
        }
        "panic" => panic!("as it was asked to"),
        _ => {}
    }
    let request = request.into_inner();
    if let Some(status) = request.response_status {
        return Err(Status::new(Code::from_i32(status.code), status.message));
    }
    let payload = Payload::new(size(request.response_size)?);
    let server_id = if request.fill_server_id { "the only one" } else { "" }.to_owned();
    Ok(Response::new(SimpleResponse { payload: Some(payload), server_id }))
}

fn size(asked: i32) -> Result<usize, Status> {
    usize::try_from(asked).map_err(|_| Status::invalid_argument("a size below zero"))
}

async fn streaming_input_call(
    seen: Arc<Seen>,
    request: Request<Streaming<StreamingInputCallRequest>>,
) -> Result<Response<StreamingInputCallResponse>, Status> {
    match asked(request.metadata()) {
        // Keeps the requests without reading them.
        "wait" => {
            let _waiting = seen.begin();
            std::future::pending::<()>().await;
        }
        // Drops the requests.
        "ignore" => {
            return Ok(Response::new(StreamingInputCallResponse { aggregated_payload_size: -1 }));
        }
        "refuse" => return Err(Status::permission_denied("no")),
        _ => {}
    }
    let mut requests = request.into_inner();
    let _waiting = seen.begin();
    let mut sum = 0;
    while let Some(request) = requests.message().await? {
        seen.message();
        sum += request.payload.map_or(0, |payload| payload.body.len());
    }
    let aggregated_payload_size = i32::try_from(sum).unwrap_or(i32::MAX);
    Ok(Response::new(StreamingInputCallResponse { aggregated_payload_size }))
}

async fn streaming_output_call(
    seen: Arc<Seen>,
    request: Request<StreamingOutputCallRequest>,
) -> Result<Response<Outputs>, Status> {
    let is_endless = asked(request.metadata()) == "endless";
    let request = request.into_inner();
    if is_endless {
        let waiting = seen.begin();
        let outputs = tokio_stream::iter(0_u64..).map(move |_| {
            waiting.0.message();
            Ok(StreamingOutputCallResponse { payload: Some(Payload::new(1000)) })
        });
        return Ok(Response::new(Box::pin(outputs)));
    }
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move { outputs(&request, &sender).await });
    Ok(Response::new(Box::pin(tokio_stream::wrappers::ReceiverStream::new(receiver))))
}

type Sender = mpsc::Sender<Result<StreamingOutputCallResponse, Status>>;

/// Sends the requested responses. Returns false if the receiver is gone.
async fn outputs(request: &StreamingOutputCallRequest, sender: &Sender) -> bool {
    for one in &request.response_parameters {
        if let Ok(pause @ 1..) = u64::try_from(one.interval_us) {
            tokio::time::sleep(Duration::from_micros(pause)).await;
        }
        let payload = size(one.size).map(Payload::new);
        let output = payload.map(|payload| StreamingOutputCallResponse { payload: Some(payload) });
        if sender.send(output).await.is_err() {
            return false;
        }
    }
    if let Some(status) = &request.response_status {
        let status = Status::new(Code::from_i32(status.code), status.message.clone());
        let _client_left = sender.send(Err(status)).await;
        return false;
    }
    true
}

async fn full_duplex_call(
    seen: Arc<Seen>,
    request: Request<Streaming<StreamingOutputCallRequest>>,
) -> Result<Response<Outputs>, Status> {
    let is_short = asked(request.metadata()) == "short";
    let mut requests = request.into_inner();
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let _waiting = seen.begin();
        loop {
            // A service that waits for requests sees the client's disconnect as the end of the
            // stream.
            match requests.next().await {
                None => return,
                Some(Err(status)) => {
                    let _client_left = sender.send(Err(status)).await;
                    return;
                }
                Some(Ok(request)) => {
                    seen.message();
                    if !outputs(&request, &sender).await || is_short {
                        return;
                    }
                }
            }
        }
    });
    Ok(Response::new(Box::pin(tokio_stream::wrappers::ReceiverStream::new(receiver))))
}

impl<B> tower::Service<http::Request<B>> for TestService
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<tonic::codegen::StdError>,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let service = self.clone();
        let request = request.map(Body::new);
        Box::pin(async move {
            let fields = request.headers();
            let initial = fields.get("x-grpc-test-echo-initial").cloned();
            let trailing = fields.get("x-grpc-test-echo-trailing-bin").cloned();
            let mut response = service.answer(request).await;
            if let Some(value) = initial {
                response.headers_mut().insert("x-grpc-test-echo-initial", value);
            }
            Ok(response.map(|body| Body::new(WithTrailer { body, trailing })))
        })
    }
}

/// A body with an additional field in its trailers.
struct WithTrailer {
    body: Body,
    trailing: Option<http::HeaderValue>,
}

impl HttpBody for WithTrailer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &mut polled
            && let Some(trailers) = frame.trailers_mut()
            && let Some(value) = self.trailing.take()
        {
            trailers.insert("x-grpc-test-echo-trailing-bin", value);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
