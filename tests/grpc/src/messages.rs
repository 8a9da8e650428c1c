//! Messages of gRPC's own interoperability tests (`grpc.testing`), as far as the tests use them.
//! Derived by hand: they do not change, and so need neither a compiler nor generated code.

/// The empty message.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Empty {}

/// Some bytes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Payload {
    /// The bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub body: Vec<u8>,
}

/// The status that a call should end with.
#[derive(Clone, PartialEq, prost::Message)]
pub struct EchoStatus {
    /// The code.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The message.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// A unary request.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SimpleRequest {
    /// The size of the response.
    #[prost(int32, tag = "2")]
    pub response_size: i32,
    /// Bytes.
    #[prost(message, optional, tag = "3")]
    pub payload: Option<Payload>,
    /// The status to end with.
    #[prost(message, optional, tag = "7")]
    pub response_status: Option<EchoStatus>,
    /// Whether the server should name itself.
    #[prost(bool, tag = "9")]
    pub fill_server_id: bool,
}

/// A unary response.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SimpleResponse {
    /// As many bytes as requested.
    #[prost(message, optional, tag = "1")]
    pub payload: Option<Payload>,
    /// The server's name.
    #[prost(string, tag = "4")]
    pub server_id: String,
}

/// One of several requests of a call.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StreamingInputCallRequest {
    /// Bytes.
    #[prost(message, optional, tag = "1")]
    pub payload: Option<Payload>,
}

/// The response to several requests.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct StreamingInputCallResponse {
    /// The total size of their payloads.
    #[prost(int32, tag = "1")]
    pub aggregated_payload_size: i32,
}

/// One of the requested responses.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ResponseParameters {
    /// Its size in bytes.
    #[prost(int32, tag = "1")]
    pub size: i32,
    /// The pause before it, in microseconds.
    #[prost(int32, tag = "2")]
    pub interval_us: i32,
}

/// A request for several responses.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StreamingOutputCallRequest {
    /// The responses.
    #[prost(message, repeated, tag = "2")]
    pub response_parameters: Vec<ResponseParameters>,
    /// Bytes.
    #[prost(message, optional, tag = "3")]
    pub payload: Option<Payload>,
    /// The status to end with.
    #[prost(message, optional, tag = "7")]
    pub response_status: Option<EchoStatus>,
}

/// One of several responses.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StreamingOutputCallResponse {
    /// As many bytes as requested.
    #[prost(message, optional, tag = "1")]
    pub payload: Option<Payload>,
}

impl Payload {
    /// Bytes that hardly repeat, so that a lost or duplicated frame is detected.
    #[must_use]
    pub fn new(size: usize) -> Self {
        let mut body = Vec::with_capacity(size + 8);
        for number in (1_u64..).take(size.div_ceil(8)) {
            body.extend_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        }
        body.truncate(size);
        Self { body }
    }
}
