//! A client of the service, built on tonic's.

use crate::messages::{
    Empty, SimpleRequest, SimpleResponse, StreamingInputCallRequest, StreamingInputCallResponse,
    StreamingOutputCallRequest, StreamingOutputCallResponse,
};
use crate::service::MESSAGE_BYTES_MAX;
use prost::Message;
use tokio_stream::Stream;
use tonic::client::Grpc;
use tonic::codec::CompressionEncoding;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};
use tonic_prost::ProstCodec;

/// A client. Requests carry metadata or not.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    compression: Option<CompressionEncoding>,
}

/// A request, with or without metadata.
pub trait IntoRequest<M>: tonic::IntoRequest<M> {}

impl<M, T: tonic::IntoRequest<M>> IntoRequest<M> for T {}

fn path(method: &str) -> PathAndQuery {
    let path = if method.starts_with('/') {
        method.to_owned()
    } else {
        format!("/grpc.testing.TestService/{method}")
    };
    path.parse().expect("the path is valid")
}

fn codec<Sent, Received>() -> ProstCodec<Sent, Received>
where
    Sent: Message + 'static,
    Received: Message + Default + 'static,
{
    ProstCodec::default()
}

impl Client {
    /// A client on a channel.
    #[must_use]
    pub fn new(channel: Channel) -> Self {
        Self { channel, compression: None }
    }

    /// Compresses requests, and accepts compressed responses.
    #[must_use]
    pub fn compressing(self, compression: CompressionEncoding) -> Self {
        Self { compression: Some(compression), ..self }
    }

    async fn grpc(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        if let Some(compression) = self.compression {
            grpc = grpc.send_compressed(compression).accept_compressed(compression);
        }
        let ready = grpc.ready().await;
        ready.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(grpc)
    }

    /// Calls any method of any service with an empty message.
    ///
    /// # Errors
    /// If the call fails.
    pub async fn empty(&self, method: &str) -> Result<Response<Empty>, Status> {
        self.grpc().await?.unary(tonic::Request::new(Empty {}), path(method), codec()).await
    }

    /// `UnaryCall`.
    ///
    /// # Errors
    /// If the call fails.
    pub async fn unary(
        &self,
        request: impl IntoRequest<SimpleRequest>,
    ) -> Result<Response<SimpleResponse>, Status> {
        self.grpc().await?.unary(request.into_request(), path("UnaryCall"), codec()).await
    }

    /// `StreamingInputCall`.
    ///
    /// # Errors
    /// If the call fails.
    pub async fn input<S>(
        &self,
        request: tonic::Request<S>,
    ) -> Result<Response<StreamingInputCallResponse>, Status>
    where
        S: Stream<Item = StreamingInputCallRequest> + Send + 'static,
    {
        self.grpc().await?.client_streaming(request, path("StreamingInputCall"), codec()).await
    }

    /// `StreamingOutputCall`.
    ///
    /// # Errors
    /// If the call fails.
    pub async fn output(
        &self,
        request: impl IntoRequest<StreamingOutputCallRequest>,
    ) -> Result<Response<Streaming<StreamingOutputCallResponse>>, Status> {
        let (request, path) = (request.into_request(), path("StreamingOutputCall"));
        self.grpc().await?.server_streaming(request, path, codec()).await
    }

    /// `FullDuplexCall`.
    ///
    /// # Errors
    /// If the call fails.
    pub async fn duplex<S>(
        &self,
        request: tonic::Request<S>,
    ) -> Result<Response<Streaming<StreamingOutputCallResponse>>, Status>
    where
        S: Stream<Item = StreamingOutputCallRequest> + Send + 'static,
    {
        self.grpc().await?.streaming(request, path("FullDuplexCall"), codec()).await
    }
}
