//! What a route asks of the server.

use std::time::Duration;

/// What happens to a running handler when its peer leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnDisconnect {
    /// Its future is dropped at once: nobody waits for the answer.
    #[default]
    Cancel,
    /// The handler runs to its end and its answer is thrown away: for work that must not stop half-way.
    RunToEnd,
}

/// What a handler asks of the server. Where a field is `None`, the server's own setting applies.
///
/// The server does not enforce the body limit itself: it gives the body the limit from
/// [`Target::body_limit`](crate::Target::body_limit), and the route's own is set where the handler is
/// called, inside all middleware.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteOptions {
    /// What happens when the peer leaves. The default is [`OnDisconnect::Cancel`].
    pub on_disconnect: OnDisconnect,
    /// The largest request body, in bytes. It takes precedence over the limits of middleware and
    /// server, whether it is larger or smaller.
    pub body_bytes_max: Option<u64>,
    /// The server's body limit does not apply here, though limits of middleware do: for handlers with
    /// limits of their own, such as a mounted service. Middleware that reads the whole body into
    /// memory is still bound by it ([`Body::whole_limit`](crate::Body::whole_limit)). The default
    /// is `false`. It has no effect within an application that is used as a handler.
    pub lifts_body_limit: bool,
    /// Calls of gRPC are conversations from their head on: the server does not ask the content of such a
    /// request to come at its least rate, though no response has begun. The default is `false`; mounted
    /// services have `true`. It has no effect within an application that is used as a handler.
    pub takes_calls: bool,
    /// The time the handler may take until its response begins. After that the server answers with
    /// status 503.
    pub timeout: Option<Duration>,
    /// How many requests to this route each worker may have in progress, those included whose handlers go on
    /// without their clients. Beyond it the server answers
    /// with status 503, before it reads a body. It has no effect within an application that is used as a
    /// handler.
    pub requests_max: Option<usize>,
    /// The server begins these requests however much there is to do, as far as `requests_max` lets it:
    /// for health checks. The default is `false`. It has no effect within an application that is used as
    /// a handler.
    pub is_never_shed: bool,
    /// See [`HandlerExt::allow_ambiguous_paths`](crate::HandlerExt::allow_ambiguous_paths). The
    /// default is `false`.
    pub allows_ambiguous_paths: bool,
}
