//! The handler.

use crate::asked::{ask_upgrade, framing, has_dots};
use crate::attempt::{Answer, Failed, Failure, Order, Timeouts, check, send};
use crate::body::{Progress, Promised, Received};
use crate::fields::{self, HostChoice, Telling, VIA_MAX};
use crate::interim::Interims;
use crate::pool::Pool;
use crate::slots::SlotLimits;
use crate::tunnel::tunnel;
use crate::unanswered::Why;
use crate::upstreams::{Upstream, Upstreams};
use http::header::{ALLOW, CONTENT_LENGTH, HOST, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use peregrine_web::extract::{FromRequestParts, Interim};
use peregrine_web::panics::contained;
use peregrine_web::personal::Personal;
use peregrine_web::upgrade::OnUpgrade;
use peregrine_web::{
    Body, BodyError, Head, IntoResponse, Parts, Problem, Request, Response, Service,
};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

/// What a request is sent with again, if it may be; the rest of its kind is sent once.
const RETRIES: usize = 2;
const TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_secs(5),
    response: Duration::from_secs(60),
    idle: Duration::from_secs(60),
};
/// Connections of each worker to each upstream that wait for a request.
const IDLE_MAX: usize = 32;
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// Lets other servers answer: a handler for [`App::subtree`](peregrine_web::App::subtree), a fallback, or a route.
///
/// ```no_run
/// use peregrine::prelude::*;
/// use peregrine::proxy::{Proxy, Upstreams};
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let upstreams = Upstreams::new(["http://127.0.0.1:9000", "http://127.0.0.1:9001"])?;
///     Server::bind("0.0.0.0:8080").serve(move || App::new().subtree("/", Proxy::new(upstreams.clone())))?;
///     Ok(())
/// }
/// ```
///
/// | what | how |
/// |---|---|
/// | path and query | as they were sent, behind the path of the upstream's URL; [`Proxy::strip_prefix`]. Paths that the upstream may read as the path of another route are a 400 ([`allow_ambiguous_paths`](peregrine_web::HandlerExt::allow_ambiguous_paths)); `.` and `..` always are where there is such a path or prefix |
/// | `Host` | the client's; [`Proxy::upstream_host`], [`Proxy::host`] |
/// | fields | all but those of one connection (RFC 9110 §7.6.1): `Connection` and what it names, `Keep-Alive`, `TE`, `Transfer-Encoding`, `Upgrade`, `Proxy-*`. `TE: trailers` is passed on |
/// | who asks | `X-Forwarded-For`, `-Proto` and `-Host`; [`Proxy::forwarded`]. What clients write into such fields does not pass, unless they are trusted proxies; nor do other `X-Forwarded-*` and `X_Forwarded_For` |
/// | `Via` | in both directions; more than 16 proxies are a circle: 508 |
/// | content | streams both ways, as fast as the slower side; trailers too. The route's body limit counts: 2 MiB unless [`body_limit`](peregrine_web::HandlerExt::body_limit) says otherwise |
/// | upgrades | WebSocket and others pass through, from clients of HTTP/2 too; `h2c`, `HTTP` and `TLS` do not, since they would lead further requests around this proxy. After the client has ended its side, a pause of 60 s ends the other |
/// | CONNECT, TRACE | 405. OPTIONS counts its `Max-Forwards` down |
/// | no connection within 5 s, no response within 60 s of the last that the upstream took | 504, or another upstream; a response whose content pauses for 60 s is broken off |
/// | no connection, or no sound response | 502, or another upstream |
/// | retries | two, each on an upstream that was not asked: of a request that none has seen; and of GET, HEAD, OPTIONS, PUT and DELETE whose content can be sent again |
/// | health | see [`Upstreams`] |
/// | interim responses | 103 and others pass, up to 16; those of HTTP/2 upstreams do not |
/// | connections | of HTTP/1.1; with the feature `proxy-tls` over TLS and of HTTP/2 too. 32 of each worker to each upstream are kept for 30 s. At most 256 are in use ([`connections_max`](Proxy::connections_max)); what waits longer than 500 ms for one is a 503 ([`queue`](Proxy::queue)) |
///
/// hyper reads what upstreams answer, and writes what they are asked, from parsed heads: nothing that is ambiguous passes in either direction.
pub struct Proxy {
    pub(crate) upstreams: Upstreams,
    pools: Vec<Rc<Pool>>,
    host: HostChoice,
    telling: Telling,
    prefix: String,
    pseudonym: String,
    timeouts: Timeouts,
    retries: usize,
    idle: (usize, Duration),
    limits: SlotLimits,
}

impl Proxy {
    /// Passes requests on to these.
    #[must_use]
    pub fn new(upstreams: Upstreams) -> Self {
        let mut proxy = Self {
            upstreams,
            pools: Vec::new(),
            host: HostChoice::default(),
            telling: Telling::default(),
            prefix: String::new(),
            pseudonym: "peregrine".to_owned(),
            timeouts: TIMEOUTS,
            retries: RETRIES,
            idle: (IDLE_MAX, IDLE_TIMEOUT),
            limits: SlotLimits::default(),
        };
        proxy.make_pools();
        proxy
    }

    fn make_pools(&mut self) {
        let count = self.upstreams.shared().all.len();
        let (idle_max, idle_timeout) = self.idle;
        self.pools = (0..count).map(|_| Pool::new(idle_max, idle_timeout, self.limits)).collect();
    }

    /// Asks for the upstream's own host, instead of the one that the client asked for.
    #[must_use]
    pub fn upstream_host(mut self) -> Self {
        self.host = HostChoice::Upstreams;
        self
    }

    /// Asks for this host.
    #[must_use]
    pub fn host(mut self, host: HeaderValue) -> Self {
        self.host = HostChoice::This(host);
        self
    }

    /// Says who asks by `Forwarded` (RFC 7239), instead of `X-Forwarded-*`.
    #[must_use]
    pub fn forwarded(mut self) -> Self {
        self.telling = Telling::Forwarded;
        self
    }

    /// Does not say who asks.
    #[must_use]
    pub fn anonymous(mut self) -> Self {
        self.telling = Telling::Nothing;
        self
    }

    /// Takes this from the beginning of the path, such as the path of the subtree. A request whose path does not begin so is a 404.
    #[must_use]
    pub fn strip_prefix(mut self, prefix: &str) -> Self {
        prefix.trim_end_matches('/').clone_into(&mut self.prefix);
        self
    }

    /// What the proxy calls itself in `Via`. The default is `peregrine`.
    ///
    /// # Panics
    /// It is no token.
    #[must_use]
    pub fn pseudonym(mut self, name: &str) -> Self {
        assert!(
            HeaderName::from_bytes(name.as_bytes()).is_ok(),
            "`{name}` is no token, as Via wants it"
        );
        name.clone_into(&mut self.pseudonym);
        self
    }

    /// How long a connection to an upstream may take. The default is 5 s.
    #[must_use]
    pub fn connect_timeout(mut self, time: Duration) -> Self {
        self.timeouts.connect = time;
        self
    }

    /// How long an upstream may take until its response begins, from when it last took something of the request. The default is 60 s.
    #[must_use]
    pub fn response_timeout(mut self, time: Duration) -> Self {
        self.timeouts.response = time;
        self
    }

    /// How long the content of a response may pause. The default is 60 s.
    #[must_use]
    pub fn idle_timeout(mut self, time: Duration) -> Self {
        self.timeouts.idle = time;
        self
    }

    /// How often a request is sent again, where it may be. The default is 2.
    #[must_use]
    pub fn retries(mut self, most: usize) -> Self {
        self.retries = most;
        self
    }

    /// How many connections to each upstream each worker keeps, and for how long, which must be less than the upstream keeps them. The default is 32, for 30 s.
    #[must_use]
    pub fn keep_connections(mut self, most: usize, time: Duration) -> Self {
        self.idle = (most, time);
        self.make_pools();
        self
    }

    /// How many requests, and so connections of HTTP/1.1 in use, each worker has at each upstream
    /// at a time; upgraded connections such as WebSockets count until they end. Further requests
    /// [wait](Self::queue). The default is 256.
    ///
    /// When all are in use, a request may displace a response that has been unread for a second,
    /// of a client connection with at least two requests more than its own.
    #[must_use]
    pub fn connections_max(mut self, most: usize) -> Self {
        self.limits.connections_max = most;
        self.make_pools();
        self
    }

    /// How many requests of each worker wait when all connections to an upstream are in use, and
    /// for how long. Then they are tried on another upstream, or answered with 503 and
    /// `Retry-After`. The default is 256, for 500 ms.
    #[must_use]
    pub fn queue(mut self, most: usize, timeout: Duration) -> Self {
        (self.limits.queue_max, self.limits.queue_timeout) = (most, timeout);
        self.make_pools();
        self
    }
}

impl Service for Proxy {
    async fn call(&self, request: Request) -> Response {
        match self.pass(request).await {
            Ok(response) => response,
            Err(problem) => problem.into_response(),
        }
    }
}

/// Why there is no answer, and which upstream was asked last.
type Asked = (Why, usize);

/// What all attempts have in common.
struct Asking<'a> {
    parts: &'a Parts,
    interims: &'a Interims,
    is_upgrade: bool,
}

impl Proxy {
    async fn pass(&self, request: Request) -> Result<Response, Problem> {
        let (mut parts, body) = request.into_parts();
        // The upstream reads whatever says who the client is.
        Personal::passed_on(&parts);
        let interims = Interims::new(Interim::from_request_parts(&mut parts).await?);
        let method = parts.head.method();
        if matches!(method, Method::CONNECT | Method::TRACE) {
            let detail = "this method is not passed on";
            let problem =
                Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", detail);
            return Err(problem.with_header(ALLOW, HeaderValue::from_static(METHODS)));
        }
        if fields::hops(&parts.head) >= VIA_MAX {
            let detail = "the request has come through too many proxies; they may form a circle";
            return Err(Problem::new(StatusCode::LOOP_DETECTED, "proxy-loop", detail));
        }
        // What is known to be too large need not reach anybody.
        if let Some((length, limit)) = body.length().zip(body.limit())
            && length > limit
        {
            return Err(BodyError::TooLarge { limit }.into());
        }
        let path = self.path(&parts.head)?;
        let asks_upgrade = parts.head.index().asks_upgrade(parts.head.as_bytes());
        let protocols = fields::protocols(&parts.head).filter(|_| asks_upgrade);
        let mut map = fields::request(&parts, self.telling, &self.pseudonym);
        if method == Method::OPTIONS && !fields::may_go_on(&mut map) {
            let mut response = Response::new(StatusCode::NO_CONTENT);
            response.fields.set(ALLOW, HeaderValue::from_static(METHODS));
            return Ok(response);
        }
        if let Some(protocols) = &protocols {
            ask_upgrade(&mut map, protocols);
        }
        self.check();
        let asking = Asking { parts: &parts, interims: &interims, is_upgrade: protocols.is_some() };
        let answered = self.answer(&asking, method.clone(), path, map, body).await;
        match answered {
            Ok(answer) => self.respond(answer, &method, protocols.as_ref()),
            Err((why, number)) => Err(self.explain(why, number, &parts)),
        }
    }

    /// Asks upstreams, until one answers or the request may not be sent again.
    async fn answer(
        &self,
        asking: &Asking<'_>,
        method: Method,
        path: &str,
        map: HeaderMap,
        body: Body,
    ) -> Result<Answer, Asked> {
        let Asking { parts, interims, is_upgrade } = *asking;
        let set = self.upstreams.shared();
        // Content that is here can be sent again, whatever became of it.
        let (whole, mut rest) = match body.into_shared() {
            Ok(bytes) => (Some(bytes), None),
            Err(body) => (None, Some(body)),
        };
        let is_idempotent = method.is_idempotent();
        let (mut tried, mut has_renewed) = (Vec::new(), false);
        let mut failed = None;
        while tried.len() <= self.retries
            && let Some(number) = set.choose(&tried)
        {
            tried.push(number);
            if set.is_down(number) {
                // What this tries is the upstream, not a connection from before.
                self.pools[number].clear();
            }
            let body = whole.clone().map(Body::from).or_else(|| rest.take());
            let Some(body) = body else { break };
            let upstream = &set.all[number];
            let request = self.request(&method, upstream, path, &map, parts, body)?;
            let progress = Rc::<Progress>::default();
            let (pool, timeouts) = (&self.pools[number], self.timeouts);
            let order = Order {
                client: parts.peek_connection(),
                set,
                number,
                pool,
                is_upgrade,
                progress: &progress,
                interims,
                timeouts,
            };
            let sent = send(&order, request).await;
            let Failed { why, body, is_old } = match sent {
                Ok(answer) => {
                    set.well(number);
                    return Ok(answer);
                }
                Err(failed) => failed,
            };
            let may_repeat = why.is_unseen() || is_idempotent && whole.is_some();
            if is_old && may_repeat && !has_renewed {
                // The same upstream may well answer on a new connection.
                has_renewed = true;
                self.pools[number].clear();
                tried.pop();
                continue;
            }
            if why.is_upstreams() && !is_old {
                set.ill(number, &why);
            }
            let error = progress.error.borrow_mut().take();
            rest = body.filter(|_| !progress.is_begun.get());
            let is_content = matches!(why, Failure::Content);
            failed = Some((Why { failure: why, error }, number));
            if !may_repeat || is_content {
                break;
            }
        }
        Err(failed.unwrap_or_else(|| (Why { failure: Failure::ConnectLate, error: None }, 0)))
    }

    /// The request as an upstream gets it.
    fn request(
        &self,
        method: &Method,
        upstream: &Upstream,
        path: &str,
        map: &HeaderMap,
        parts: &Parts,
        body: Body,
    ) -> Result<http::Request<Body>, Asked> {
        let mut target = format!("{}{path}", upstream.base);
        if let Some(query) = parts.head.query() {
            target.push('?');
            target.push_str(query);
        }
        let is_whole_server = target == "*";
        let uri: Result<Uri, _> =
            if is_whole_server { Ok(Uri::from_static("*")) } else { target.parse() };
        let Ok(uri) = uri else {
            return Err((Why { failure: Failure::Target, error: None }, 0));
        };
        let framing = framing(method, &body);
        let mut request = http::Request::new(body);
        *request.method_mut() = method.clone();
        *request.uri_mut() = uri;
        let mut map = map.clone();
        let host = match &self.host {
            HostChoice::Clients => HeaderValue::try_from(parts.head.authority()).ok(),
            HostChoice::Upstreams => None,
            HostChoice::This(host) => Some(host.clone()),
        };
        let host =
            host.filter(|host| !host.is_empty()).unwrap_or_else(|| upstream.authority.clone());
        map.insert(HOST, host);
        map.extend(framing);
        *request.headers_mut() = map;
        Ok(request)
    }

    fn path<'h>(&self, head: &'h Head) -> Result<&'h str, Problem> {
        let path = head.path();
        let bases = self.upstreams.shared().all.iter().map(|upstream| &upstream.base);
        let is_within = !self.prefix.is_empty() || bases.into_iter().any(|base| !base.is_empty());
        // RFC 3986 §5.2.4: whoever removes these segments may come to lie above of what was meant.
        if is_within && has_dots(path) {
            let detail = "a path with . or .. in it is not passed on";
            return Err(Problem::new(StatusCode::BAD_REQUEST, "path-with-dots", detail));
        }
        match path.strip_prefix(self.prefix.as_str()) {
            Some("") => Ok("/"),
            // `*` is about the whole server, of which only a part is meant.
            Some(rest) if rest.starts_with('/') || !is_within => Ok(rest),
            _ => {
                let detail = "nothing is passed on from this path";
                Err(Problem::new(StatusCode::NOT_FOUND, "not-found", detail))
            }
        }
    }

    /// The response for the client.
    fn respond(
        &self,
        answer: Answer,
        method: &Method,
        protocols: Option<&HeaderValue>,
    ) -> Result<Response, Problem> {
        let Answer { mut response, sender, busy } = answer;
        let number = busy.number;
        let is_switch = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers();
        let wrong = match protocols {
            _ if !is_switch && fields::is_framed_soundly(headers) => None,
            _ if !is_switch => Some("in a form that nobody asked for"),
            Some(asked) if fields::is_asked(asked, headers) => None,
            _ => Some("in a protocol that nobody asked for"),
        };
        if let Some(wrong) = wrong {
            let upstream = &self.upstreams.shared().all[number];
            contained(
                || tracing::warn!(target: "peregrine", upstream = %upstream, "an upstream answered {wrong}"),
            );
            let detail = format!("the server behind this one answered {wrong}");
            return Err(Problem::new(StatusCode::BAD_GATEWAY, "upstream-failed", detail));
        }
        let (status, version) = (response.status(), response.version());
        let mut ours = Response::new(status);
        ours.fields = fields::response(response.headers(), version, &self.pseudonym);
        if is_switch {
            if let Some(protocol) = response.headers().get(UPGRADE) {
                ours.fields.set(UPGRADE, protocol.clone());
            }
            let (theirs, idle_timeout) = (hyper::upgrade::on(&mut response), self.timeouts.idle);
            return Ok(ours.with_upgrade(OnUpgrade::new(async move |client| {
                // It counts for the upstream for as long as it lasts.
                let _busy = busy;
                match theirs.await {
                    Ok(theirs) => tunnel(client, theirs, idle_timeout).await,
                    Err(error) => {
                        contained(|| tracing::warn!(target: "peregrine", %error, "an upstream did not go on after its 101"));
                    }
                }
            })));
        }
        let length = response.headers().get(CONTENT_LENGTH).cloned();
        let body = Received::new(
            response.into_body(),
            sender,
            &self.pools[number],
            busy,
            self.timeouts.idle,
        );
        // RFC 9110 §9.3.2: HEAD is answered with the fields that a GET would have, and with no length if that is not known.
        ours.body = match length {
            length if *method == Method::HEAD => {
                Body::new(Promised(length.and_then(|length| length.to_str().ok()?.parse().ok())))
            }
            // RFC 9110 §8.6: here it is the length of what the client has.
            Some(length) if status == StatusCode::NOT_MODIFIED => {
                ours.fields.set(CONTENT_LENGTH, length);
                Body::empty()
            }
            _ if http_body::Body::is_end_stream(&body) => Body::empty(),
            _ => Body::new(body),
        };
        Ok(ours)
    }

    /// Begins the check that is due.
    fn check(&self) {
        let set = self.upstreams.shared();
        while let (Some(rule), Some(checking)) = (&set.check, set.due()) {
            drop(tokio::task::spawn_local(check(checking, rule.clone())));
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("upstreams", &self.upstreams)
            .field("host", &self.host)
            .field("telling", &self.telling)
            .field("timeouts", &self.timeouts)
            .field("retries", &self.retries)
            .finish_non_exhaustive()
    }
}
