//! The opening handshake.

#[cfg(feature = "deflate")]
use crate::deflate::{DeflateContext, PerMessageDeflate};
use crate::dispatcher::run_websocket;
use crate::limits::{WebSocketLimits, WebSocketTimeouts};
use crate::origin;
use crate::shared::SharedSocket;
use crate::socket::WebSocket;
use http::header::{
    ALLOW, CONNECTION, ORIGIN, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION,
    UPGRADE,
};
use http::{HeaderValue, StatusCode};
use peregrine_proto::Version;
use peregrine_proto::ws::handshake::{self, HandshakeError};
use peregrine_proto::ws::key::HandshakeKey;
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::extract::FromRequestParts;
use peregrine_web::upgrade::UpgradeHandler;
use peregrine_web::{ClientInfo, IntoResponse, Parts, Problem, RequestHead, Response};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

/// A request to open a WebSocket. Register the route for GET; this applies to HTTP/2 as well.
///
/// Other requests are rejected: with 426 if they do not request a WebSocket or request a version
/// other than 13, with 400 if the handshake is malformed or has content. `Option<WebSocketUpgrade>`
/// is `None` for a request that does not request a WebSocket.
///
/// Pages of other origins are rejected with 403, because a browser sends the user's cookies with
/// the request. [`WebSocketUpgrade::allow_origins`] allows further origins.
#[doc(alias = "ws")]
pub struct WebSocketUpgrade {
    key: HandshakeKey,
    head: RequestHead,
    connection: Rc<ConnectionInfo>,
    protocol: Option<String>,
    limits: WebSocketLimits,
    timeouts: WebSocketTimeouts,
    /// `None` allows all origins.
    allowed_origins: Option<Vec<String>>,
    #[cfg(feature = "deflate")]
    deflate: Option<PerMessageDeflate>,
}

impl FromRequestParts for WebSocketUpgrade {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        let upgrade = Self::parse(parts).map_err(handshake_problem)?;
        reject_content(&parts.head)?;
        Ok(upgrade)
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        match Self::parse(parts) {
            Ok(upgrade) => reject_content(&parts.head).map(|()| Some(upgrade)),
            Err(HandshakeError::MissingUpgrade) => Ok(None),
            Err(error) => Err(handshake_problem(error)),
        }
    }
}

/// Rejects a handshake with content. The connection could be upgraded only after the content, which
/// nothing reads.
fn reject_content(head: &RequestHead) -> Result<(), Problem> {
    let has_length = |value: &[u8]| value.iter().any(|byte| *byte != b'0');
    if head.header_bytes("content-length").is_some_and(has_length)
        || head.header_bytes("transfer-encoding").is_some()
    {
        let detail = "a WebSocket handshake must have no content";
        return Err(Problem::new(StatusCode::BAD_REQUEST, "websocket-with-content", detail));
    }
    Ok(())
}

fn handshake_problem(error: HandshakeError) -> Problem {
    let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::BAD_REQUEST);
    let problem = Problem::new(status, "websocket-upgrade-required", format!("{}.", error.rule()))
        .with_member("rule", error.section());
    match error {
        HandshakeError::MethodNotGet => problem.with_header(ALLOW, HeaderValue::from_static("GET")),
        // RFC 9110 §15.5.22: a 426 must name the protocols that are required.
        HandshakeError::MissingUpgrade | HandshakeError::UnsupportedVersion => problem
            .with_header(UPGRADE, HeaderValue::from_static("websocket"))
            .with_header(CONNECTION, HeaderValue::from_static("upgrade"))
            .with_header(SEC_WEBSOCKET_VERSION, HeaderValue::from_static(handshake::VERSION)),
        HandshakeError::InvalidKey => problem,
    }
}

impl WebSocketUpgrade {
    fn parse(parts: &Parts) -> Result<Self, HandshakeError> {
        let head = &parts.head;
        // A WebSocket request over HTTP/2 (extended CONNECT) was converted to the form of HTTP/1.1.
        let version = match head.index().version {
            Version::Http2 if head.index().wants_upgrade(head.as_bytes()) => Version::Http11,
            version => version,
        };
        let fields = head.index().fields.iter();
        let fields = fields.map(|field| (head.slice(field.name), head.slice(field.value)));
        let key = handshake::validate_http1(head.index().method, version, fields)?;
        Ok(Self {
            key,
            head: head.share(),
            connection: Rc::clone(parts.connection_untracked()),
            protocol: None,
            limits: WebSocketLimits::default(),
            timeouts: WebSocketTimeouts::default(),
            allowed_origins: Some(Vec::new()),
            #[cfg(feature = "deflate")]
            deflate: None,
        })
    }

    /// Chooses the client's first subprotocol that is in `supported`. If there is none, the
    /// WebSocket has no subprotocol, and the client decides whether to continue.
    #[must_use]
    pub fn protocols<P: AsRef<str>>(mut self, supported: impl IntoIterator<Item = P>) -> Self {
        let supported: Vec<P> = supported.into_iter().collect();
        let supported: Vec<&str> = supported.iter().map(AsRef::as_ref).collect();
        let offers = self.head.header_values("sec-websocket-protocol");
        let protocol = handshake::choose_protocol(offers, &supported).map(str::to_owned);
        self.protocol = protocol;
        self
    }

    /// Returns the subprotocol chosen by [`WebSocketUpgrade::protocols`].
    #[doc(alias = "subprotocol")]
    #[must_use]
    pub fn selected_protocol(&self) -> Option<&str> {
        self.protocol.as_deref()
    }

    /// Sets the limits of the WebSocket.
    #[must_use]
    pub fn limits(mut self, limits: WebSocketLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets how long the peer may be silent before it is sent a ping. With `None`, no pings are
    /// sent, and the server's `upgraded_idle_timeout` applies. The default is
    /// [`PING_INTERVAL`](crate::PING_INTERVAL). Silence is measured in steps of this interval and
    /// of the worker's clock (100 ms), so the ping can be sent up to one interval later.
    #[doc(alias = "heartbeat")]
    #[doc(alias = "ws_ping_interval")]
    #[must_use]
    pub fn ping_interval(mut self, interval: impl Into<Option<Duration>>) -> Self {
        self.timeouts.ping_interval = interval.into().filter(|interval| !interval.is_zero());
        self
    }

    /// Sets how long a peer may take to respond to that ping. Any byte counts as a response. The
    /// default is [`PONG_TIMEOUT`](crate::PONG_TIMEOUT).
    #[doc(alias = "ws_ping_timeout")]
    #[must_use]
    pub fn pong_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.pong_timeout = timeout;
        self
    }

    /// Sets how long each step of closing may take: first the wait for the peer's Close frame, then
    /// the rest of the handler, which is dropped after that time. The default is
    /// [`CLOSE_TIMEOUT`](crate::CLOSE_TIMEOUT).
    #[must_use]
    pub fn close_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.close_timeout = timeout;
        self
    }

    /// Sets how long a handler may still send while the server drains, before the peer is sent
    /// close code 1001. The default is [`DRAIN_TIMEOUT`](crate::DRAIN_TIMEOUT). The wait ends early
    /// when the handler returns.
    #[doc(alias = "shutdown_timeout")]
    #[must_use]
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.drain_timeout = timeout;
        self
    }

    /// Also accepts pages of these origins, such as `https://app.example.org`.
    #[doc(alias = "check_origin")]
    #[must_use]
    pub fn allow_origins<O: Into<String>>(mut self, allowed: impl IntoIterator<Item = O>) -> Self {
        if let Some(origins) = &mut self.allowed_origins {
            origins.extend(allowed.into_iter().map(Into::into));
        }
        self
    }

    /// Accepts pages of all origins. This is safe only if neither cookies, client certificates nor
    /// the network location give a page access that it should not have.
    #[must_use]
    pub fn allow_any_origin(mut self) -> Self {
        self.allowed_origins = None;
        self
    }

    /// Compresses messages if the client offers permessage-deflate.
    #[doc(alias = "compression")]
    #[cfg(feature = "deflate")]
    #[must_use]
    pub fn permessage_deflate(mut self, options: PerMessageDeflate) -> Self {
        self.deflate = Some(options);
        self
    }

    /// Returns whether the origin of the request is allowed.
    fn is_origin_allowed(&self) -> bool {
        let Some(allowed) = &self.allowed_origins else { return true };
        let mut origins = self.head.header_values("origin");
        let client = ClientInfo::new(&self.head, &self.connection);
        // A browser always sends the field, exactly once.
        match (origins.next(), origins.next()) {
            (None, _) => true,
            (Some(origin), None) => {
                origin::is_origin_allowed(origin, &client.host(), client.is_secure(), allowed)
            }
            _ => false,
        }
    }

    /// Accepts the WebSocket and runs `handler` with it.
    ///
    /// The handler can wait for anything. In the meantime, pongs are sent and timeouts are
    /// enforced. After the WebSocket has closed, the handler can finish within
    /// [`WebSocketUpgrade::close_timeout`] and is then dropped. If the connection breaks, it is
    /// dropped immediately, like the handler of any request.
    #[must_use = "a response does nothing unless it is returned"]
    pub fn on_upgrade<F>(self, handler: F) -> Response
    where
        F: AsyncFnOnce(WebSocket) + 'static,
    {
        if !self.is_origin_allowed() {
            let detail = format!(
                "Pages of this origin are not allowed to open a WebSocket on this server ({ORIGIN})."
            );
            return Problem::new(StatusCode::FORBIDDEN, "origin-not-allowed", detail)
                .into_response();
        }
        let accept = HeaderValue::from_bytes(&self.key.derive_accept()).expect("base64 is ASCII");
        let mut response = Response::new(StatusCode::SWITCHING_PROTOCOLS)
            .with_header(UPGRADE, HeaderValue::from_static("websocket"))
            .with_header(SEC_WEBSOCKET_ACCEPT, accept);
        if let Some(Ok(protocol)) = self.protocol.as_deref().map(HeaderValue::from_str) {
            response.headers.append(SEC_WEBSOCKET_PROTOCOL, protocol);
        }
        #[cfg(feature = "deflate")]
        let compression = self.negotiate_deflate(&mut response).map(DeflateContext::new);
        #[cfg(not(feature = "deflate"))]
        let compression = None;
        let Self { protocol, limits, timeouts, .. } = self;
        response.with_upgrade(UpgradeHandler::new(move |io| {
            let shared = SharedSocket::new(limits, compression, io.unsent_bytes_handle());
            let socket = WebSocket::new(&shared, protocol);
            run_websocket(io, shared, socket, handler, timeouts)
        }))
    }

    /// Negotiates compression and adds the result to the response.
    #[cfg(feature = "deflate")]
    fn negotiate_deflate(
        &self,
        response: &mut Response,
    ) -> Option<peregrine_proto::ws::deflate::DeflateParams> {
        use http::header::SEC_WEBSOCKET_EXTENSIONS;
        let offers = self.head.header_values("sec-websocket-extensions");
        let params = peregrine_proto::ws::deflate::negotiate(offers, &self.deflate?.to_config())?;
        let header_value = HeaderValue::from_str(&params.to_string()).ok()?;
        response.headers.append(SEC_WEBSOCKET_EXTENSIONS, header_value);
        Some(params)
    }
}

impl fmt::Debug for WebSocketUpgrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocketUpgrade")
            .field("protocol", &self.protocol)
            .field("limits", &self.limits)
            .field("times", &self.timeouts)
            .field("origins", &self.allowed_origins)
            .finish_non_exhaustive()
    }
}
