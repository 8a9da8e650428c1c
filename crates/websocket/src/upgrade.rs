//! The opening handshake.

#[cfg(feature = "deflate")]
use crate::compress::{Compress, Deflate};
use crate::conversation::converse;
use crate::handle::WebSocket;
use crate::origin;
use crate::settings::{Limits, Times};
use crate::shared::Shared;
use http::header::{
    ALLOW, CONNECTION, ORIGIN, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION,
    UPGRADE,
};
use http::{HeaderValue, StatusCode};
use peregrine_proto::Version;
use peregrine_proto::ws::accept::Key;
use peregrine_proto::ws::handshake::{self, Refusal};
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::extract::FromRequestParts;
use peregrine_web::upgrade::OnUpgrade;
use peregrine_web::{Client, Head, IntoResponse, Parts, Problem, Response};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

/// A request to open a WebSocket. Register the route for GET; this applies to HTTP/2 as well.
///
/// Other requests are rejected: with 426 if they do not ask for a WebSocket or ask for a version
/// other than 13, with 400 if the handshake is malformed. `Option<WebSocketUpgrade>` is `None` for
/// a request that does not ask for a WebSocket.
///
/// Pages of other origins are rejected with 403, because a browser sends the user's cookies with
/// the request. [`WebSocketUpgrade::origins`] allows further origins.
pub struct WebSocketUpgrade {
    key: Key,
    head: Head,
    connection: Rc<ConnectionInfo>,
    protocol: Option<String>,
    limits: Limits,
    times: Times,
    /// `None` allows all origins.
    origins: Option<Vec<String>>,
    #[cfg(feature = "deflate")]
    compress: Option<Compress>,
}

impl FromRequestParts for WebSocketUpgrade {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        Self::read(parts).map_err(refuse)
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        match Self::read(parts) {
            Ok(upgrade) => Ok(Some(upgrade)),
            Err(Refusal::NoUpgrade) => Ok(None),
            Err(refusal) => Err(refuse(refusal)),
        }
    }
}

fn refuse(refusal: Refusal) -> Problem {
    let status = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::BAD_REQUEST);
    let problem = Problem::new(status, "no-websocket", format!("{}.", refusal.cause()))
        .with("rule", refusal.section());
    match refusal {
        Refusal::Method => problem.with_header(ALLOW, HeaderValue::from_static("GET")),
        // RFC 9110 §15.5.22: a 426 must name the protocols that are required.
        Refusal::NoUpgrade | Refusal::Version => problem
            .with_header(UPGRADE, HeaderValue::from_static("websocket"))
            .with_header(CONNECTION, HeaderValue::from_static("upgrade"))
            .with_header(SEC_WEBSOCKET_VERSION, HeaderValue::from_static(handshake::VERSION)),
        Refusal::Key => problem,
    }
}

impl WebSocketUpgrade {
    fn read(parts: &Parts) -> Result<Self, Refusal> {
        let head = &parts.head;
        // A WebSocket request over HTTP/2 (extended CONNECT) was converted to the form of HTTP/1.1.
        let version = match head.index().version {
            Version::Http2 if head.index().asks_upgrade(head.as_bytes()) => Version::Http11,
            version => version,
        };
        let fields = head.index().fields.iter();
        let fields = fields.map(|field| (head.slice(field.name), head.slice(field.value)));
        let key = handshake::read_http1(head.index().method, version, fields)?;
        Ok(Self {
            key,
            head: head.share(),
            connection: Rc::clone(parts.peek_connection()),
            protocol: None,
            limits: Limits::default(),
            times: Times::default(),
            origins: Some(Vec::new()),
            #[cfg(feature = "deflate")]
            compress: None,
        })
    }

    /// Chooses the client's first subprotocol that is in `supported`. If there is none, the
    /// WebSocket has no subprotocol, and the client decides whether to continue.
    #[must_use]
    pub fn protocols<P: AsRef<str>>(mut self, supported: impl IntoIterator<Item = P>) -> Self {
        let supported: Vec<P> = supported.into_iter().collect();
        let supported: Vec<&str> = supported.iter().map(AsRef::as_ref).collect();
        let offers = self.head.fields_named("sec-websocket-protocol");
        let chosen = handshake::choose_protocol(offers, &supported).map(str::to_owned);
        self.protocol = chosen;
        self
    }

    /// The subprotocol chosen by [`WebSocketUpgrade::protocols`].
    #[must_use]
    pub fn protocol(&self) -> Option<&str> {
        self.protocol.as_deref()
    }

    /// Sets the limits of the WebSocket.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets how long the peer may be silent before it is sent a ping. With `None` no pings are
    /// sent, and the server's `upgraded_idle_timeout` applies. The default is
    /// [`KEEP_ALIVE`](crate::KEEP_ALIVE). Silence is measured in steps of this interval and of the
    /// worker's clock (100 ms), so the ping may be sent up to one interval later.
    #[must_use]
    pub fn keep_alive(mut self, silence: impl Into<Option<Duration>>) -> Self {
        self.times.keep_alive = silence.into().filter(|silence| !silence.is_zero());
        self
    }

    /// Sets how long a peer may take to answer that ping. Any byte counts as an answer. The default
    /// is [`IDLE_TIMEOUT`](crate::IDLE_TIMEOUT).
    #[must_use]
    pub fn idle_timeout(mut self, patience: Duration) -> Self {
        self.times.idle = patience;
        self
    }

    /// Sets how long closing may take: first the wait for the peer's Close frame, then the rest of
    /// the handler, which is dropped after that time. The default is
    /// [`CLOSE_TIMEOUT`](crate::CLOSE_TIMEOUT).
    #[must_use]
    pub fn close_timeout(mut self, patience: Duration) -> Self {
        self.times.close = patience;
        self
    }

    /// Sets how long a handler may still send while the server drains, before the peer is sent
    /// close code
    /// 1001. The default is [`GOODBYE`](crate::GOODBYE). The wait ends early when the handler
    ///       returns.
    #[must_use]
    pub fn goodbye(mut self, patience: Duration) -> Self {
        self.times.goodbye = patience;
        self
    }

    /// Also accepts pages of these origins, such as `https://app.example.org`.
    #[must_use]
    pub fn origins<O: Into<String>>(mut self, allowed: impl IntoIterator<Item = O>) -> Self {
        if let Some(origins) = &mut self.origins {
            origins.extend(allowed.into_iter().map(Into::into));
        }
        self
    }

    /// Accepts pages of all origins. Safe only if neither cookies, client certificates nor the
    /// network location give a page access that it should not have.
    #[must_use]
    pub fn any_origin(mut self) -> Self {
        self.origins = None;
        self
    }

    /// Compresses messages if the client offers permessage-deflate.
    #[cfg(feature = "deflate")]
    #[must_use]
    pub fn compress(mut self, compress: Compress) -> Self {
        self.compress = Some(compress);
        self
    }

    /// Returns whether the origin of the request is allowed.
    fn is_allowed(&self) -> bool {
        let Some(allowed) = &self.origins else { return true };
        let mut origins = self.head.fields_named("origin");
        let client = Client::of(&self.head, &self.connection);
        // A browser always sends the field, exactly once.
        match (origins.next(), origins.next()) {
            (None, _) => true,
            (Some(origin), None) => {
                origin::is_allowed(origin, &client.host(), client.is_secure(), allowed)
            }
            _ => false,
        }
    }

    /// Accepts the WebSocket and runs `handler` with it.
    ///
    /// The handler may wait for anything; in the meantime pings are answered and timeouts enforced.
    /// After the WebSocket has closed, the handler may finish within
    /// [`WebSocketUpgrade::close_timeout`] and is then dropped. If the connection breaks, it is
    /// dropped at once, like the handler of any request.
    #[must_use = "a response does nothing unless it is returned"]
    pub fn on_upgrade<F>(self, handler: F) -> Response
    where
        F: AsyncFnOnce(WebSocket) + 'static,
    {
        if !self.is_allowed() {
            let detail = format!("Pages of this origin may not open a WebSocket here ({ORIGIN}).");
            return Problem::new(StatusCode::FORBIDDEN, "origin-refused", detail).into_response();
        }
        let accept = HeaderValue::from_bytes(&self.key.accept()).expect("base64 is ASCII");
        let mut response = Response::new(StatusCode::SWITCHING_PROTOCOLS)
            .with_header(UPGRADE, HeaderValue::from_static("websocket"))
            .with_header(SEC_WEBSOCKET_ACCEPT, accept);
        if let Some(Ok(protocol)) = self.protocol.as_deref().map(HeaderValue::from_str) {
            response.fields.append(SEC_WEBSOCKET_PROTOCOL, protocol);
        }
        #[cfg(feature = "deflate")]
        let compression = self.agree(&mut response).map(Deflate::new);
        #[cfg(not(feature = "deflate"))]
        let compression = None;
        let Self { protocol, limits, times, .. } = self;
        response.with_upgrade(OnUpgrade::new(move |io| {
            let shared = Shared::new(limits, compression, io.backlog());
            let socket = WebSocket::new(&shared, protocol);
            converse(io, shared, socket, handler, times)
        }))
    }

    /// Negotiates compression and adds the result to the response.
    #[cfg(feature = "deflate")]
    fn agree(&self, response: &mut Response) -> Option<peregrine_proto::ws::deflate::Agreed> {
        use http::header::SEC_WEBSOCKET_EXTENSIONS;
        let offers = self.head.fields_named("sec-websocket-extensions");
        let agreed = peregrine_proto::ws::deflate::negotiate(offers, &self.compress?.wishes())?;
        let answer = HeaderValue::from_str(&agreed.to_string()).ok()?;
        response.fields.append(SEC_WEBSOCKET_EXTENSIONS, answer);
        Some(agreed)
    }
}

impl fmt::Debug for WebSocketUpgrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocketUpgrade")
            .field("protocol", &self.protocol)
            .field("limits", &self.limits)
            .field("times", &self.times)
            .field("origins", &self.origins)
            .finish_non_exhaustive()
    }
}
