//! The proxy handler.

mod respond;

use crate::attempt::{
    AttemptError, FailedAttempt, Timeouts, UpstreamAttempt, UpstreamResponse, run_health_check,
    send,
};
use crate::body::RequestProgress;
use crate::error_response::FailureDetail;
use crate::headers::{self, ForwardedHeaders, HostHeader, VIA_HOPS_MAX};
use crate::interim::InterimForwarder;
use crate::pool::ConnectionPool;
use crate::slots::SlotLimits;
use crate::upstream_request::{framing_field, has_dot_segments, set_upgrade_fields};
use crate::upstreams::{Upstream, Upstreams};
use http::header::{ALLOW, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use peregrine_web::extract::{FromRequestParts, Interim};
use peregrine_web::private_response::PrivateResponse;
use peregrine_web::{
    Body, BodyError, IntoResponse, Parts, Problem, Request, RequestHead, Response, Service,
};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

/// The default number of retries of a request that may be sent again.
const RETRIES: usize = 2;
const TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_secs(5),
    response: Duration::from_secs(60),
    body_idle: Duration::from_secs(60),
};
/// The default number of idle connections that each worker keeps to each upstream.
const POOL_IDLE_MAX: usize = 32;
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const ALLOWED_METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// Forwards requests to other servers: a handler for [`App::subtree`](peregrine_web::App::subtree),
/// a fallback, or a route.
///
/// ```no_run
/// use peregrine::prelude::*;
/// use peregrine::proxy::{ReverseProxy, Upstreams};
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let upstreams = Upstreams::new(["http://127.0.0.1:9000", "http://127.0.0.1:9001"])?;
///     let app = move || App::new().subtree("/", ReverseProxy::new(upstreams.clone()));
///     Server::bind("0.0.0.0:8080").serve(app)?;
///     Ok(())
/// }
/// ```
///
/// # Forwarding
///
/// - Path and query: unchanged, after the path of the upstream's URL; see
///   [`ReverseProxy::strip_prefix`]. A path that the upstream may read as the path of another route
///   gets a 400 ([`allow_ambiguous_paths`](peregrine_web::HandlerExt::allow_ambiguous_paths)). If
///   the URL has a path or a prefix is stripped, `.` and `..` segments always get a 400.
/// - `Host`: the client's; see [`ReverseProxy::use_upstream_host`] and
///   [`ReverseProxy::override_host`].
/// - Fields: all except those of one connection (RFC 9110 §7.6.1): `Connection` and the fields that
///   it names, `Keep-Alive`, `TE`, `Transfer-Encoding`, `Upgrade`, `Proxy-*`. `TE: trailers` is
///   forwarded.
/// - Client address: in `X-Forwarded-For`, `-Proto` and `-Host`; see
///   [`ReverseProxy::use_forwarded_header`]. Values that the client sent in these fields, in other
///   `X-Forwarded-*` or in `X_Forwarded_For` are removed, unless the client is a trusted proxy.
/// - `Via`: added in both directions. A request that has passed 16 proxies gets a 508.
/// - Content: streamed in both directions with back-pressure, including trailers. The route's body
///   limit applies: 2 MiB unless [`body_limit`](peregrine_web::HandlerExt::body_limit) sets
///   another.
/// - Upgrades: WebSocket and other protocols are forwarded, also from HTTP/2 clients. `h2c`, `HTTP`
///   and `TLS` are not, because requests inside would bypass this proxy. After the client has
///   closed its side, the connection ends when the upstream pauses for 60 s.
/// - Methods: CONNECT and TRACE get a 405. OPTIONS decrements `Max-Forwards`.
/// - Interim responses, such as 103: up to 16 per request are forwarded, except those of HTTP/2
///   upstreams.
///
/// hyper parses the responses of upstreams, and requests are serialized from parsed heads, so
/// ambiguous messages are not forwarded in either direction.
///
/// # Failures and limits
///
/// - No connection within 5 s, or no response within 60 s after the upstream accepted the last part
///   of the request: another upstream is tried, or the response is a 504. A response whose content
///   pauses for 60 s is aborted.
/// - No connection, or no valid response: another upstream is tried, or the response is a 502.
/// - Retries: two, each on an upstream that was not tried. A request is retried if no upstream has
///   processed any of it, or if it is a GET, HEAD, OPTIONS, PUT or DELETE whose content can be sent
///   again.
/// - Health: see [`Upstreams`].
/// - Connections: HTTP/1.1; with the feature `proxy-tls` also TLS and HTTP/2. Each worker keeps up
///   to 32 idle connections to each upstream, for 30 s each. At most 256 are in use
///   ([`connections_max`](ReverseProxy::connections_max)); a request that waits longer than 500 ms
///   for one gets a 503 ([`queue`](ReverseProxy::queue)).
#[doc(alias = "proxy_pass")]
#[doc(alias = "ProxyPass")]
pub struct ReverseProxy {
    pub(crate) upstreams: Upstreams,
    pools: Vec<Rc<ConnectionPool>>,
    host: HostHeader,
    forwarded_headers: ForwardedHeaders,
    prefix: String,
    pseudonym: String,
    timeouts: Timeouts,
    retries: usize,
    /// The maximum number of idle connections, and how long each is kept.
    idle: (usize, Duration),
    limits: SlotLimits,
}

impl ReverseProxy {
    /// Creates a proxy that forwards requests to `upstreams`.
    #[must_use]
    pub fn new(upstreams: Upstreams) -> Self {
        let mut proxy = Self {
            upstreams,
            pools: Vec::new(),
            host: HostHeader::default(),
            forwarded_headers: ForwardedHeaders::default(),
            prefix: String::new(),
            pseudonym: "peregrine".to_owned(),
            timeouts: TIMEOUTS,
            retries: RETRIES,
            idle: (POOL_IDLE_MAX, POOL_IDLE_TIMEOUT),
            limits: SlotLimits::default(),
        };
        proxy.create_pools();
        proxy
    }

    fn create_pools(&mut self) {
        let count = self.upstreams.set().upstreams.len();
        let (idle_max, idle_timeout) = self.idle;
        self.pools =
            (0..count).map(|_| ConnectionPool::new(idle_max, idle_timeout, self.limits)).collect();
    }

    /// Sends the upstream's own host in `Host`, instead of the client's value.
    #[doc(alias = "host_rewrite")]
    #[must_use]
    pub fn use_upstream_host(mut self) -> Self {
        self.host = HostHeader::Upstream;
        self
    }

    /// Sends `host` in `Host`, instead of the client's value.
    #[doc(alias = "proxy_set_header")]
    #[must_use]
    pub fn override_host(mut self, host: HeaderValue) -> Self {
        self.host = HostHeader::Fixed(host);
        self
    }

    /// Sends the client's address in `Forwarded` (RFC 7239), instead of `X-Forwarded-*`.
    #[doc(alias = "Forwarded")]
    #[must_use]
    pub fn use_forwarded_header(mut self) -> Self {
        self.forwarded_headers = ForwardedHeaders::Forwarded;
        self
    }

    /// Omits all fields that describe the client, such as `X-Forwarded-For`.
    #[must_use]
    pub fn no_forwarding_headers(mut self) -> Self {
        self.forwarded_headers = ForwardedHeaders::Off;
        self
    }

    /// Removes `prefix` from the beginning of the path, such as the path of the subtree. A request
    /// whose path does not begin with it gets a 404.
    #[must_use]
    pub fn strip_prefix(mut self, prefix: &str) -> Self {
        prefix.trim_end_matches('/').clone_into(&mut self.prefix);
        self
    }

    /// Sets the proxy's name in `Via`. Default: `peregrine`.
    ///
    /// # Panics
    /// `name` is not a token.
    #[must_use]
    pub fn pseudonym(mut self, name: &str) -> Self {
        assert!(
            HeaderName::from_bytes(name.as_bytes()).is_ok(),
            "`{name}` is not a token, which Via requires"
        );
        name.clone_into(&mut self.pseudonym);
        self
    }

    /// Limits the time for connecting to an upstream. Default: 5 s.
    #[must_use]
    pub fn connect_timeout(mut self, time: Duration) -> Self {
        self.timeouts.connect = time;
        self
    }

    /// Limits the time until an upstream's response begins, measured from when the upstream last
    /// accepted part of the request. Default: 60 s.
    #[must_use]
    pub fn response_timeout(mut self, time: Duration) -> Self {
        self.timeouts.response = time;
        self
    }

    /// Limits the pauses in the content of a response. Default: 60 s.
    #[doc(alias = "proxy_read_timeout")]
    #[must_use]
    pub fn body_idle_timeout(mut self, time: Duration) -> Self {
        self.timeouts.body_idle = time;
        self
    }

    /// Limits the number of retries of a request that may be sent again. Default: 2.
    #[must_use]
    pub fn retries(mut self, retries: usize) -> Self {
        self.retries = retries;
        self
    }

    /// Sets how many idle connections each worker keeps to each upstream, and for how long. The
    /// time must be shorter than the upstream's own idle timeout. Default: 32, for 30 s.
    #[doc(alias = "pool_max_idle_per_host")]
    #[doc(alias = "pool_idle_timeout")]
    #[doc(alias = "keepalive")]
    #[must_use]
    pub fn idle_connections(mut self, connections_max: usize, time: Duration) -> Self {
        self.idle = (connections_max, time);
        self.create_pools();
        self
    }

    /// Limits the requests that each worker has in progress at each upstream, and thereby the
    /// HTTP/1.1 connections in use. Upgraded connections such as WebSockets count until they end.
    /// Further requests [wait](Self::queue). Default: 256.
    ///
    /// When all connections are in use, a waiting request may abort a response that has been unread
    /// for a second, if that response's client connection has at least two more requests in
    /// progress than the waiting request's.
    #[must_use]
    pub fn connections_max(mut self, connections_max: usize) -> Self {
        self.limits.connections_max = connections_max;
        self.create_pools();
        self
    }

    /// Limits how many requests of each worker wait while all connections to an upstream are in
    /// use, and for how long. After that they are tried on another upstream, or get a 503 with
    /// `Retry-After`. Default: 256, for 500 ms.
    #[must_use]
    pub fn queue(mut self, requests_max: usize, timeout: Duration) -> Self {
        (self.limits.queue_max, self.limits.queue_timeout) = (requests_max, timeout);
        self.create_pools();
        self
    }
}

impl Service for ReverseProxy {
    async fn call(&self, request: Request) -> Response {
        match self.forward(request).await {
            Ok(response) => response,
            Err(problem) => problem.into_response(),
        }
    }
}

/// Why no upstream responded, and the index of the upstream that was tried last.
type LastError = (FailureDetail, usize);

/// The parameters that all attempts share.
struct ForwardContext<'a> {
    parts: &'a Parts,
    interims: &'a InterimForwarder,
    is_upgrade: bool,
}

impl ReverseProxy {
    async fn forward(&self, request: Request) -> Result<Response, Problem> {
        let (mut parts, body) = request.into_parts();
        // The upstream can read all fields that identify the client.
        PrivateResponse::mark_forwarded(&parts);
        let interims = InterimForwarder::new(Interim::from_request_parts(&mut parts).await?);
        let method = parts.head.method();
        if matches!(method, Method::CONNECT | Method::TRACE) {
            let detail = "this method is not forwarded";
            let problem =
                Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", detail);
            return Err(problem.with_header(ALLOW, HeaderValue::from_static(ALLOWED_METHODS)));
        }
        if headers::via_hops(&parts.head) >= VIA_HOPS_MAX {
            let detail = "the request has passed too many proxies, which may form a loop";
            return Err(Problem::new(StatusCode::LOOP_DETECTED, "proxy-loop", detail));
        }
        // Content that is known to be too large is rejected without contacting an upstream.
        if let Some((length, limit)) = body.length().zip(body.limit())
            && length > limit
        {
            return Err(BodyError::TooLarge { limit }.into());
        }
        let path = self.upstream_path(&parts.head)?;
        let wants_upgrade = parts.head.index().wants_upgrade(parts.head.as_bytes());
        let protocols = headers::upgrade_protocols(&parts.head).filter(|_| wants_upgrade);
        let mut fields = headers::upstream_headers(&parts, self.forwarded_headers, &self.pseudonym);
        if method == Method::OPTIONS && !headers::decrement_max_forwards(&mut fields) {
            let mut response = Response::new(StatusCode::NO_CONTENT);
            response.headers.insert(ALLOW, HeaderValue::from_static(ALLOWED_METHODS));
            return Ok(response);
        }
        if let Some(protocols) = &protocols {
            set_upgrade_fields(&mut fields, protocols);
        }
        self.start_due_health_checks();
        let context =
            ForwardContext { parts: &parts, interims: &interims, is_upgrade: protocols.is_some() };
        let result = self.try_upstreams(&context, method.clone(), path, fields, body).await;
        match result {
            Ok(response) => self.respond(response, &method, protocols.as_ref()),
            Err((failure, index)) => Err(self.to_problem(failure, index, &parts)),
        }
    }

    /// Tries upstreams until one responds or the request must not be sent again.
    async fn try_upstreams(
        &self,
        context: &ForwardContext<'_>,
        method: Method,
        path: &str,
        fields: HeaderMap,
        body: Body,
    ) -> Result<UpstreamResponse, LastError> {
        let ForwardContext { parts, interims, is_upgrade } = *context;
        let set = self.upstreams.set();
        // Content that has already arrived completely can be sent again on a retry.
        let (buffered, mut stream) = match body.try_into_bytes() {
            Ok(bytes) => (Some(bytes), None),
            Err(body) => (None, Some(body)),
        };
        let is_idempotent = method.is_idempotent();
        let (mut tried, mut has_reconnected) = (Vec::new(), false);
        let mut last_error = None;
        while tried.len() <= self.retries
            && let Some(index) = set.select(&tried)
        {
            tried.push(index);
            if set.is_unhealthy(index) {
                // The attempt must test the upstream, not a connection opened before it failed.
                self.pools[index].clear();
            }
            let body = buffered.clone().map(Body::from).or_else(|| stream.take());
            let body = body.expect("only a request whose body is available is sent again");
            let upstream = &set.upstreams[index];
            let request = self.build_request(&method, upstream, path, &fields, parts, body)?;
            let progress = Rc::<RequestProgress>::default();
            let (pool, timeouts) = (&self.pools[index], self.timeouts);
            let attempt = UpstreamAttempt {
                client: parts.connection_untracked(),
                set,
                index,
                pool,
                is_upgrade,
                progress: &progress,
                interims,
                timeouts,
            };
            let result = send(&attempt, request).await;
            let FailedAttempt { error: attempt_error, body, reused_connection } = match result {
                Ok(response) => {
                    set.record_success(index);
                    return Ok(response);
                }
                Err(failed) => failed,
            };
            stream = body.filter(|_| !progress.is_started.get());
            let can_retry = match &buffered {
                Some(_) => attempt_error.is_unprocessed() || is_idempotent,
                None => attempt_error.is_unprocessed() && stream.is_some(),
            };
            if reused_connection && can_retry && !has_reconnected {
                // The same upstream may respond on a new connection.
                has_reconnected = true;
                self.pools[index].clear();
                tried.pop();
                continue;
            }
            if attempt_error.is_upstream_failure() && !reused_connection {
                set.record_failure(index, &attempt_error);
            }
            let body_error = progress.error.borrow_mut().take();
            let has_client_failed = matches!(attempt_error, AttemptError::RequestBody);
            last_error = Some((FailureDetail { attempt_error, body_error }, index));
            if !can_retry || has_client_failed {
                break;
            }
        }
        // A set is never empty, so at least one attempt has failed.
        Err(last_error.unwrap_or_else(|| {
            (FailureDetail { attempt_error: AttemptError::ConnectTimeout, body_error: None }, 0)
        }))
    }

    /// Builds the request that an upstream receives.
    fn build_request(
        &self,
        method: &Method,
        upstream: &Upstream,
        path: &str,
        fields: &HeaderMap,
        parts: &Parts,
        body: Body,
    ) -> Result<http::Request<Body>, LastError> {
        let mut target = format!("{}{path}", upstream.base_path);
        if let Some(query) = parts.head.query() {
            target.push('?');
            target.push_str(query);
        }
        let is_asterisk_form = target == "*";
        let uri: Result<Uri, _> =
            if is_asterisk_form { Ok(Uri::from_static("*")) } else { target.parse() };
        let Ok(uri) = uri else {
            return Err((
                FailureDetail { attempt_error: AttemptError::InvalidTarget, body_error: None },
                0,
            ));
        };
        let framing = framing_field(method, &body);
        let mut request = http::Request::new(body);
        *request.method_mut() = method.clone();
        *request.uri_mut() = uri;
        let mut fields = fields.clone();
        let host = match &self.host {
            HostHeader::Preserve => HeaderValue::try_from(parts.head.authority()).ok(),
            HostHeader::Upstream => None,
            HostHeader::Fixed(host) => Some(host.clone()),
        };
        let host =
            host.filter(|host| !host.is_empty()).unwrap_or_else(|| upstream.authority.clone());
        fields.insert(HOST, host);
        fields.extend(framing);
        *request.headers_mut() = fields;
        Ok(request)
    }

    /// Returns the path to append to the upstream's base path, or the response to a request that
    /// must not be forwarded.
    fn upstream_path<'h>(&self, head: &'h RequestHead) -> Result<&'h str, Problem> {
        let path = head.path();
        // If only a part of each upstream may be reached, no path may lead out of that part.
        let bases = self.upstreams.set().upstreams.iter().map(|upstream| &upstream.base_path);
        let is_confined = !self.prefix.is_empty() || bases.into_iter().any(|base| !base.is_empty());
        // RFC 3986 §5.2.4: a server that removes these segments may leave the path that was
        // intended.
        if is_confined && has_dot_segments(path) {
            let detail = "a path with . or .. segments is not forwarded";
            return Err(Problem::new(StatusCode::BAD_REQUEST, "dot-segments", detail));
        }
        match path.strip_prefix(self.prefix.as_str()) {
            Some("") => Ok("/"),
            // `*` concerns the whole server, so it is not forwarded if only a part may be reached.
            Some(rest) if rest.starts_with('/') || !is_confined => Ok(rest),
            _ => {
                let detail = "requests for this path are not forwarded";
                Err(Problem::new(StatusCode::NOT_FOUND, "not-found", detail))
            }
        }
    }

    /// Starts the health checks that are due.
    fn start_due_health_checks(&self) {
        let set = self.upstreams.set();
        while let (Some(check), Some(guard)) = (&set.health_check, set.next_due_check()) {
            drop(tokio::task::spawn_local(run_health_check(guard, check.clone())));
        }
    }
}

impl fmt::Debug for ReverseProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReverseProxy")
            .field("upstreams", &self.upstreams)
            .field("host", &self.host)
            .field("forwarded_headers", &self.forwarded_headers)
            .field("timeouts", &self.timeouts)
            .field("retries", &self.retries)
            .finish_non_exhaustive()
    }
}
