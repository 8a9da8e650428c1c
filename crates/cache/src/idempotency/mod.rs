//! Idempotency keys: a client can send a request several times, and it is executed once.

mod key;
mod memory;
mod store;
#[cfg(test)]
mod tests;

pub use memory::MemoryIdempotencyStore;
pub use store::{
    ClaimResult, Fingerprint, IdempotencyStore, IdempotencyStoreError, IdempotentOutcome,
    StoredResponse,
};

use crate::collect::{Collected, collect_body};
use crate::detach::DetachOnDrop;
use bytes::Bytes;
use http::header::{RETRY_AFTER, SET_COOKIE};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use key::{fingerprint, idempotency_key, is_same_client, is_same_request, storage_key};
use peregrine_web::extract::FromRequest;
use peregrine_web::in_flight::InFlightHandle;
use peregrine_web::memory::MemoryReservation;
use peregrine_web::panic::{catch_subscriber_panic, catch_unwind_future};
use peregrine_web::private_response::{
    IdentityMarks, IdentitySource, IdentitySources, PrivateResponse,
};
use peregrine_web::{
    Body, IntoResponse, Middleware, Parts, Problem, Request, RequestHead, Response, Service,
};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::time::Duration;

/// The default retention time of an outcome: one day.
const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// The default lease: how long a request may run before its key counts as abandoned.
const LEASE: Duration = Duration::from_secs(10 * 60);
/// The default size limit of a stored response.
const RESPONSE_BYTES_MAX: u64 = 256 * 1024;
/// A streamed response that takes longer is not stored.
const COLLECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The fields that distinguish clients by default.
const CREDENTIALS: [&str; 2] = ["authorization", "x-api-key"];

/// Marks a response as a replay.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Executes a request with an `Idempotency-Key` once, however often it is sent
/// (draft-ietf-httpapi-idempotency-key-header-07).
///
/// ```
/// use peregrine::App;
/// use peregrine::cache::{Idempotency, MemoryIdempotencyStore};
/// use std::cell::Cell;
///
/// let (store, orders) = (MemoryIdempotencyStore::new(), Cell::new(0));
/// let order = move || {
///     orders.set(orders.get() + 1);
///     format!("order {}", orders.get())
/// };
/// let client = App::new().wrap(Idempotency::new(store)).post("/orders", order).test();
/// let send = |body: &'static str| {
///     client.post("/orders").header("idempotency-key", "\"a1\"").body(body).send_blocking()
/// };
/// assert_eq!(send("a falcon").text(), "order 1");
/// let again = send("a falcon");
/// assert_eq!(again.text(), "order 1");
/// assert_eq!(again.header("idempotent-replayed"), Some("true"));
/// assert_eq!(send("a kestrel").status(), 422);
/// ```
///
/// # Keys
///
/// Keys apply to POST and PATCH requests that have the field ([`Idempotency::methods`]). A request
/// without it is passed on, or rejected with 400 if [`Idempotency::required`] is set. A repeated
/// key gets
///
/// - the first response, with `Idempotent-Replayed: true`, if the request is the same;
/// - a 409 with `Retry-After`, while the first request is in progress;
/// - a 422, if method, origin, target, `Content-Type`, `Content-Encoding`, content, or a field that
///   a guard of the route reads differs.
///
/// Outcomes are stored for a day ([`Idempotency::retention`]).
///
/// # Clients
///
/// Clients cannot read each other's responses. Keys are scoped to the values of `Authorization` and
/// `X-Api-Key`, or to [`Idempotency::scope`]. Without a scope:
///
/// - Cookies and client certificates count as identities too. A repeated request whose cookies or
///   certificate differ from those of the first one gets a 409, never the first response.
/// - If clients are identified in another way, by a session or a field marked by
///   [`PrivateResponse::mark`](peregrine_web::private_response::PrivateResponse::mark), their
///   responses are not stored, the repeated request gets a 409, and the log says that
///   [`Idempotency::scope`] must be set. The same applies to responses with `Set-Cookie` to
///   requests without `Authorization` and `X-Api-Key`, and to applications inside another server,
///   which may have identified the client.
///
/// # Outcomes
///
/// All outcomes are stored, including errors and the 500 of a handler or stream that panicked,
/// since what it did before is unknown. The exceptions are 401, 408, 425, 429, and 409 or 503 with
/// `Retry-After`: they mean that nothing was done, so they free the key
/// ([`Idempotency::release_if`]).
///
/// If the client disconnects, or the route's `timeout` expires and the client gets a 503, the
/// handler continues in a task on the worker, **up to the lease**, and the outcome is stored.
/// Meanwhile the request counts as in progress for its route, client and worker.
///
/// A response of more than 256 KiB, or a stream that takes longer than 5 s, is sent but not stored;
/// the repeated request gets a 409 that says so.
///
/// The handler does not see `Accept-Encoding`, since a repeated request may accept other codings:
/// put `Compression` outside (add it before) `Idempotency`. Nor does it see trailers: the request's
/// content is read before the handler runs, up to the route's size limit, or up to the server's
/// around a mounted service, which has no limit of its own.
///
/// # The store
///
/// If the store fails or is full, requests get a 503 before the handler runs. Requests without an
/// identity can fill only a part of it ([`IdempotencyStore::claim_anonymous`]). Such requests have
/// no cookies, credentials or certificate, or go to a route whose handler reads none of them; with
/// [`Idempotency::scope`], their scope is empty.
///
/// A handler that continues after its client has disconnected cannot use what outer middleware held
/// for the request, such as a session. Put `Idempotency` outside that middleware, and identify the
/// user with [`Idempotency::scope`].
#[doc(alias = "idempotency-key")]
pub struct Idempotency<S>(Rc<IdempotencySettings<S>>);

struct IdempotencySettings<S> {
    store: S,
    methods: Vec<Method>,
    is_required: bool,
    /// `None`: keys are scoped by the request's credentials.
    scope: Option<ScopeFn>,
    release_if: Option<ReleaseIf>,
    retention: Duration,
    lease: Duration,
    response_bytes_max: u64,
    /// Whether the handlers of the routes called so far look for an identity, by the hash of the
    /// route.
    routes: RefCell<HashMap<u64, RouteKind>>,
}

type ScopeFn = Box<dyn Fn(&Parts) -> String>;
type ReleaseIf = Box<dyn Fn(&Response) -> bool>;

impl<S: IdempotencyStore> Idempotency<S> {
    /// Creates the middleware with this store for outcomes.
    #[must_use]
    pub fn new(store: S) -> Self {
        Self(Rc::new(IdempotencySettings {
            store,
            methods: vec![Method::POST, Method::PATCH],
            is_required: false,
            scope: None,
            release_if: None,
            retention: RETENTION,
            lease: LEASE,
            response_bytes_max: RESPONSE_BYTES_MAX,
            routes: RefCell::default(),
        }))
    }

    fn configure(mut self, set: impl FnOnce(&mut IdempotencySettings<S>)) -> Self {
        set(Rc::get_mut(&mut self.0).expect("settings are not shared before the first request"));
        self
    }

    /// Rejects requests that have no key, if keys apply to their method ([`Idempotency::methods`]).
    #[must_use]
    pub fn required(self) -> Self {
        self.configure(|settings| settings.is_required = true)
    }

    /// Sets the methods to which keys apply.
    #[must_use]
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.configure(|settings| settings.methods = methods.into_iter().collect())
    }

    /// Sets the scope of keys: the user or account. Keys of different scopes are independent. Set
    /// this if clients are identified by a cookie, a certificate or a custom field; otherwise they
    /// all share one scope, and private responses are not stored. Set it too if clients use
    /// **tokens that they renew**: with a new token, a request would be in another scope and would
    /// be executed again.
    #[must_use]
    pub fn scope(self, scope: impl Fn(&Parts) -> String + 'static) -> Self {
        self.configure(|settings| settings.scope = Some(Box::new(scope)))
    }

    /// Sets which responses free the key because nothing was done. The default is 401, 408, 425,
    /// 429, and 409 or 503 with `Retry-After`.
    #[must_use]
    pub fn release_if(self, predicate: impl Fn(&Response) -> bool + 'static) -> Self {
        self.configure(|settings| settings.release_if = Some(Box::new(predicate)))
    }

    /// Sets how long an outcome is stored. The default is a day.
    #[doc(alias = "ttl")]
    #[must_use]
    pub fn retention(self, time: Duration) -> Self {
        self.configure(|settings| settings.retention = time)
    }

    /// Sets how long a request may run before its key counts as abandoned because the process may
    /// have died. The default is ten minutes; it must be longer than the handler ever takes.
    #[must_use]
    pub fn lease(self, time: Duration) -> Self {
        self.configure(|settings| settings.lease = time)
    }

    /// Sets the size limit of stored responses, in bytes of content. The default is 256 KiB.
    #[must_use]
    pub fn response_bytes_max(self, bytes: u64) -> Self {
        self.configure(|settings| settings.response_bytes_max = bytes)
    }
}

impl<S: IdempotencyStore + 'static> Middleware for Idempotency<S> {
    async fn run<N: Service>(&self, request: Request, next: &N) -> Response {
        self.0.handle(request, next).await
    }

    fn wrap_service<N: Service + 'static>(self: Rc<Self>, service: N) -> impl Service + 'static {
        IdempotentService { settings: Rc::clone(&self.0), service: Rc::new(service) }
    }
}

/// A service whose requests with a key run to completion even if the client disconnects.
struct IdempotentService<S, N> {
    settings: Rc<IdempotencySettings<S>>,
    service: Rc<N>,
}

impl<S: IdempotencyStore + 'static, N: Service + 'static> Service for IdempotentService<S, N> {
    async fn call(&self, request: Request) -> Response {
        let applies = self.settings.methods.contains(&request.method());
        if !applies || request.parts.head.header_bytes("idempotency-key").is_none() {
            return self.settings.handle(request, &*self.service).await;
        }
        let (settings, service) = (Rc::clone(&self.settings), Rc::clone(&self.service));
        let (lease, in_flight) = (settings.lease, InFlightHandle::new(&request.parts));
        let response = async move { settings.handle(request, &*service).await };
        DetachOnDrop::new(response, in_flight, lease).await
    }
}

impl<S: IdempotencyStore> IdempotencySettings<S> {
    async fn handle<N: Service>(&self, request: Request, next: &N) -> Response {
        if !self.methods.contains(&request.method()) {
            return next.call(request).await;
        }
        match idempotency_key(&request.parts.head) {
            Ok(Some(key)) => {
                let scope = match &self.scope {
                    Some(scope) => scope(&request.parts),
                    None => credential_scope(&request.parts.head),
                };
                let key = storage_key(&scope, &key);
                self.run_once(key, request, next).await
            }
            Ok(None) if self.is_required => missing_key().into_response(),
            Ok(None) => next.call(request).await,
            Err(problem) => problem.into_response(),
        }
    }

    /// Runs the request, or replays the outcome of an earlier one with the same key.
    async fn run_once<N: Service>(&self, key: String, request: Request, next: &N) -> Response {
        // An outer `Idempotency` has claimed the key already.
        if request.parts.extensions().get::<ClaimedKey>().is_some_and(|claimed| claimed.0 == key) {
            return next.call(request).await;
        }
        let (mut parts, body) = request.into_parts();
        let limits = body.limits();
        let content = match collect_request_body(body, &parts).await {
            Ok(content) => content,
            Err(problem) => return problem.into_response(),
        };
        // The handler may leave the content unread, so it stays in memory until the response.
        let _reservation = MemoryReservation::new(content.len());
        let fingerprint = fingerprint(&parts, &content, self.scope.is_none());
        let result = match self.is_anonymous(&parts) {
            true => self.store.claim_anonymous(&key, &fingerprint, self.lease).await,
            false => self.store.claim(&key, &fingerprint, self.lease).await,
        };
        let claim = match result {
            Ok(ClaimResult::Claimed(claim)) => claim,
            Ok(ClaimResult::InProgress(first) | ClaimResult::Completed(first, _))
                if !is_same_request(&first, &fingerprint) =>
            {
                return key_reused().into_response();
            }
            Ok(ClaimResult::InProgress(_)) => return request_in_progress().into_response(),
            Ok(ClaimResult::Completed(first, _)) if !is_same_client(&first, &fingerprint) => {
                return another_client().into_response();
            }
            Ok(ClaimResult::Completed(_, IdempotentOutcome::NotStored)) => {
                return response_not_stored().into_response();
            }
            Ok(ClaimResult::Completed(_, IdempotentOutcome::Stored(stored))) => {
                // The store does not record which identities the handler read, so an outer cache
                // must not share the replay.
                PrivateResponse::mark_delegated(&parts);
                if [Method::GET, Method::HEAD].contains(&parts.head.method()) {
                    // Caches store responses to these methods even without an identity.
                    PrivateResponse::mark(&parts);
                }
                return stored
                    .to_response()
                    .with_header(REPLAYED, HeaderValue::from_static("true"));
            }
            Err(IdempotencyStoreError::FullFor(time)) => return store_full(time).into_response(),
            Err(error) => return store_unavailable(&error).into_response(),
        };
        let (head, states) = (parts.head.share(), Rc::clone(parts.states()));
        let watch = PrivateResponse::watch(&parts);
        parts.extensions_mut().insert(ClaimedKey(key.clone()));
        let shared_scope = self.scope.is_none().then(|| SharedScope::from_parts(&parts));
        // A repeated request may accept other codings.
        if head.header_bytes("accept-encoding").is_some() {
            parts.head.remove_fields(&["accept-encoding"]);
            parts.head.append_header("accept-encoding", b"identity");
        }
        let body = Body::from(content).with_limits(limits);
        let request = Request::from_parts(parts, body);
        // The response may be a stream, which can panic like a handler.
        let completion = catch_unwind_future(async {
            // Render problems as the application will send them.
            let response = states.render_problem(next.call(request).await, &head);
            self.record_route(&head, &watch, response.status);
            let releases_key = self.releases_key(&response);
            self.complete(&key, claim, response, releases_key, shared_scope.as_ref()).await
        });
        match completion.await {
            Ok(response) => response,
            Err(panic) => {
                let response = Problem::internal_error().into_response();
                let response = states.render_problem(response, &head);
                // `release_if` may be what panicked. The key must not stay in progress.
                let releases_key = catch_unwind(AssertUnwindSafe(|| self.releases_key(&response)));
                let releases_key = releases_key.unwrap_or(false);
                drop(self.complete(&key, claim, response, releases_key, None).await);
                resume_unwind(panic)
            }
        }
    }

    /// Whether the request has no identity. Credentials that the route's handler does not read are
    /// ignored: a client could invent any number of them.
    fn is_anonymous(&self, parts: &Parts) -> bool {
        if let Some(scope) = &self.scope {
            return scope(parts).is_empty();
        }
        let has_identity =
            PrivateResponse::carries_identity(parts) || PrivateResponse::is_marked(parts);
        let routes = self.routes.borrow();
        !has_identity || routes.get(&parts.head.routes_hash()) == Some(&RouteKind::Anonymous)
    }

    /// Records whether the handler of a route looks for an identity. Once it has, the route stays
    /// `Identified`. A failed request does not make a route `Anonymous`, because its handler may
    /// have failed before it looked: clients without an identity could otherwise make a route count
    /// as anonymous and lock out its users.
    fn record_route(&self, head: &RequestHead, watch: &IdentityMarks, status: StatusCode) {
        let mut routes = self.routes.borrow_mut();
        if watch.sources() != IdentitySources::default() {
            routes.insert(head.routes_hash(), RouteKind::Identified);
        } else if status.is_success() {
            routes.entry(head.routes_hash()).or_insert(RouteKind::Anonymous);
        }
    }

    fn releases_key(&self, response: &Response) -> bool {
        match &self.release_if {
            Some(release_if) => release_if(response),
            None => is_retryable(response),
        }
    }

    /// Frees the key if `releases_key`; else stores the outcome. The outcome includes the response
    /// unless that may be specific to one of several clients in the same scope.
    async fn complete(
        &self,
        key: &str,
        claim: u64,
        mut response: Response,
        releases_key: bool,
        shared_scope: Option<&SharedScope>,
    ) -> Response {
        if releases_key || response.status == StatusCode::SWITCHING_PROTOCOLS {
            if let Err(error) = self.store.release(key, claim).await {
                catch_subscriber_panic(
                    || tracing::error!(target: "peregrine", %error, "an idempotency key could not be freed"),
                );
            }
            return response;
        }
        let outcome = if shared_scope.is_some_and(|scope| scope.is_private_response(&response)) {
            catch_subscriber_panic(
                || tracing::error!(target: "peregrine", "a response to an idempotency key is not stored, because neither Authorization nor X-Api-Key identifies its client: set Idempotency::scope"),
            );
            IdempotentOutcome::NotStored
        } else {
            let body = std::mem::take(&mut response.body);
            match collect_body(body, self.response_bytes_max, Some(COLLECT_TIMEOUT)).await {
                Collected::Complete(content) => {
                    let stored = StoredResponse::new(&response, &content);
                    response.body = Body::from(content);
                    // The code that generated the body may have read the client's identity.
                    match shared_scope.is_some_and(|scope| scope.is_private_response(&response)) {
                        true => IdempotentOutcome::NotStored,
                        false => IdempotentOutcome::Stored(stored),
                    }
                }
                Collected::Incomplete(body) => {
                    response.body = body;
                    IdempotentOutcome::NotStored
                }
            }
        };
        if let Err(error) = self.store.complete(key, claim, outcome, self.retention).await {
            // The key stays claimed until the end of its lease, so nothing is executed twice before
            // then.
            catch_subscriber_panic(
                || tracing::error!(target: "peregrine", %error, "the outcome of a request with an idempotency key could not be stored"),
            );
        }
        response
    }
}

/// Returns the credentials of a request, which are its scope by default: all values of all
/// credential fields, because a handler may read any of them.
fn credential_scope(head: &RequestHead) -> String {
    let mut scope = String::new();
    for name in CREDENTIALS {
        for value in head.header_values_untracked(name) {
            // Each byte becomes one character, so that values that are not UTF-8 stay different. No
            // value contains a newline.
            scope.extend([name, ":"]);
            scope.extend(value.iter().copied().map(char::from));
            scope.push('\n');
        }
    }
    scope
}

/// Whether the handler of a route looks for an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RouteKind {
    Anonymous,
    Identified,
}

/// Decides which responses must not be stored because [`Idempotency::scope`] is not set, so that
/// several clients may share a scope.
struct SharedScope {
    has_credentials: bool,
    watch: IdentityMarks,
}

impl SharedScope {
    fn from_parts(parts: &Parts) -> Self {
        let has_credentials =
            CREDENTIALS.iter().any(|name| parts.head.header_bytes_untracked(name).is_some());
        Self { has_credentials, watch: PrivateResponse::watch(parts) }
    }

    /// Whether the response must not be stored because it is specific to a client. The request's
    /// cookies and certificate are part of the fingerprint, so they need no check here.
    fn is_private_response(&self, response: &Response) -> bool {
        let sets_cookies = response.headers.get(&SET_COOKIE).is_some();
        let is_identified = self.watch.sources().has(IdentitySource::Other);
        is_identified || (sets_cookies && !self.has_credentials)
    }
}

/// A request extension: the key under which the request is being executed.
#[derive(Clone)]
struct ClaimedKey(String);

/// The default of `release_if`: whether the response means that nothing was done. A 401 does,
/// because the client was not even identified. A 409 or 503 does if it has `Retry-After`: a retry
/// would be pointless if it got the same stored response for a day. One such 409 comes from a
/// second `Idempotency` that uses the same store without knowing of this claim, because a proxy is
/// in between.
fn is_retryable(response: &Response) -> bool {
    match response.status.as_u16() {
        401 | 408 | 425 | 429 => true,
        409 | 503 => response.headers.get(&RETRY_AFTER).is_some(),
        _ => false,
    }
}

/// Reads the request's content, with the size limit that applies to extractors.
async fn collect_request_body(body: Body, parts: &Parts) -> Result<Bytes, Problem> {
    let request = Request::new(
        parts.head.share(),
        body,
        Rc::clone(parts.states()),
        Rc::clone(parts.connection_untracked()),
    );
    Bytes::from_request(request).await
}

fn missing_key() -> Problem {
    let detail = "this request must have an Idempotency-Key, a string in quotes that is new for each operation, such as a UUID";
    Problem::new(StatusCode::BAD_REQUEST, "idempotency-key-missing", detail)
}

fn key_reused() -> Problem {
    let detail =
        "this Idempotency-Key was used for another request; use a new key for each operation";
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "idempotency-key-reused", detail)
}

fn request_in_progress() -> Problem {
    let detail = "a request with this Idempotency-Key is in progress; send it again later";
    Problem::new(StatusCode::CONFLICT, "request-in-progress", detail)
        .with_header(RETRY_AFTER, HeaderValue::from_static("1"))
}

fn response_not_stored() -> Problem {
    let detail =
        "the request with this Idempotency-Key was executed, but its response was not stored";
    Problem::new(StatusCode::CONFLICT, "response-not-stored", detail)
}

fn another_client() -> Problem {
    let detail = "the request with this Idempotency-Key was executed for a client with other cookies or another certificate; use a new key for each operation";
    Problem::new(StatusCode::CONFLICT, "response-not-stored", detail)
}

fn store_full(time: Duration) -> Problem {
    // Rounded up, since a retry slightly too early would fail.
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    let detail = "the server cannot store more idempotency keys; send the request again after the time in Retry-After";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "idempotency-store", detail)
        .with_header(RETRY_AFTER, HeaderValue::from(seconds.max(1)))
}

fn store_unavailable(error: &IdempotencyStoreError) -> Problem {
    catch_subscriber_panic(
        || tracing::error!(target: "peregrine", %error, "an idempotency key could not be looked up"),
    );
    let detail =
        "the server cannot check whether the request was executed before; send it again later";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "idempotency-store", detail)
        .with_header(RETRY_AFTER, HeaderValue::from_static("1"))
}

impl<S> fmt::Debug for Idempotency<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency")
            .field("methods", &self.0.methods)
            .field("is_required", &self.0.is_required)
            .field("retention", &self.0.retention)
            .field("lease", &self.0.lease)
            .field("response_bytes_max", &self.0.response_bytes_max)
            .finish_non_exhaustive()
    }
}
