//! Options of a route that the server applies.

use std::time::Duration;

/// What happens to a running handler when its client disconnects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnDisconnect {
    /// Its future is dropped immediately, because its response can no longer be sent.
    #[default]
    Cancel,
    /// The handler runs to completion and its response is discarded. For work that must not stop
    /// halfway.
    #[doc(alias = "proxy_ignore_client_abort")]
    RunToCompletion,
}

/// Settings that a handler requests from the server. If a limit is `None`, the route sets none, and
/// the server's own limits apply.
///
/// The body limit is enforced by the body, when it is read. The server sets it to
/// [`MatchedEndpoint::body_limit`](crate::built::MatchedEndpoint::body_limit) before any middleware
/// runs, and the application sets the route's limit again where it calls the handler, because
/// middleware may have set another limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteOptions {
    /// What happens when the client disconnects. The default is [`OnDisconnect::Cancel`].
    pub on_disconnect: OnDisconnect,
    /// The maximum size of a request body, in bytes. It takes precedence over the limits of
    /// middleware and of the server, whether it is larger or smaller.
    pub body_bytes_max: Option<u64>,
    /// Whether the server's body limit does not apply here; limits of middleware still do. For
    /// handlers with their own limits, such as a mounted service. Middleware that reads the whole
    /// body into memory is still bound by the server's limit
    /// ([`Body::buffer_limit`](crate::Body::buffer_limit)). The default is `false`. It has no
    /// effect inside an application that is used as a handler.
    pub lifts_body_limit: bool,
    /// Whether the handler serves gRPC, in which client and server can exchange messages from the
    /// start. The server then does not apply its minimum rate to the body of a gRPC request, even
    /// before the response has begun. The default is `false`; mounted services have `true`. It has
    /// no effect inside an application that is used as a handler.
    #[doc(alias = "grpc")]
    pub is_grpc: bool,
    /// The time that the handler may take until its response begins. After that the server responds
    /// with status 503.
    pub timeout: Option<Duration>,
    /// How many requests to this route each worker may have in progress, including those whose
    /// handlers continue after the client has disconnected. Above that the server responds with
    /// status 503, before it reads a body. It has no effect inside an application that is used as a
    /// handler.
    pub requests_max: Option<usize>,
    /// Whether the server accepts these requests regardless of its load, up to `requests_max`. For
    /// health checks. The default is `false`. It has no effect inside an application that is used
    /// as a handler.
    pub is_never_shed: bool,
    /// See [`HandlerExt::allow_ambiguous_paths`](crate::HandlerExt::allow_ambiguous_paths). The
    /// default is `false`.
    pub allows_ambiguous_paths: bool,
}
