//! Requests that may be sent twice and are carried out once.

mod key;
mod memory;
mod store;
#[cfg(test)]
mod tests;

pub use memory::MemoryStore;
pub use store::{Begun, Fingerprint, IdempotencyStore, KeptResponse, Outcome, StoreError};

use crate::gather::{Gathered, gather};
use crate::lasting::Lasting;
use bytes::Bytes;
use http::header::{RETRY_AFTER, SET_COOKIE};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use key::{fingerprint_of, is_same_client, is_same_request, key_of, stored_name};
use peregrine_web::extract::FromRequest;
use peregrine_web::in_progress::Counted;
use peregrine_web::panics::{contained, or_panic};
use peregrine_web::personal::{IdentitySource, IdentitySources, Personal, PersonalWatch};
use peregrine_web::{
    Body, Head, IntoResponse, Middleware, Parts, Problem, Request, Response, Service,
};
use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::time::Duration;

/// How long an outcome is kept, unless set otherwise: a day.
const KEEP_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a request may be worked on before its key counts as nobody's, unless set otherwise: ten minutes.
const LEASE: Duration = Duration::from_secs(10 * 60);
/// A longer response is not kept, unless set otherwise: 256 KiB.
const RESPONSE_BYTES_MAX: u64 = 256 * 1024;
/// A response that is a stream and not over by then is not kept.
const GATHER_TIME: Duration = Duration::from_secs(5);

/// What tells clients apart, unless set otherwise.
const CREDENTIALS: [&str; 2] = ["authorization", "x-api-key"];

/// Says that a response is one that was given before.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Carries out a request with an `Idempotency-Key` once, however often it is sent (draft-ietf-httpapi-idempotency-key-header-07).
///
/// ```
/// use peregrine::App;
/// use peregrine::cache::{Idempotency, MemoryStore};
/// use std::cell::Cell;
///
/// let (store, orders) = (MemoryStore::new(), Cell::new(0));
/// let order = move || {
///     orders.set(orders.get() + 1);
///     format!("order {}", orders.get())
/// };
/// let client = App::new().with(Idempotency::new(store)).post("/orders", order).test();
/// let send = |body: &'static str| client.post("/orders").header("idempotency-key", "\"a1\"").body(body).send_now();
/// assert_eq!(send("a falcon").text(), "order 1");
/// let again = send("a falcon");
/// assert_eq!((again.text().as_str(), again.header("idempotent-replayed")), ("order 1", Some("true")));
/// assert_eq!(send("a kestrel").status(), 422);
/// ```
///
/// | what | how |
/// |---|---|
/// | which requests | POST and PATCH with the field; [`Idempotency::methods`]. Without it a request passes, or is a 400 where [`Idempotency::required`] says so |
/// | whose key | one client cannot get at what another has kept: keys are of one value of `Authorization` and `X-Api-Key`, or of what [`Idempotency::scope`] says |
/// | cookies and certificates | count as identities too: without a scope, a request with other cookies or another client certificate than the first one's is never given its response, but a 409 |
/// | clients that are identified otherwise | by a session, or a field of their own that is marked by [`Personal::note`](peregrine_web::personal::Personal::note): without a scope their responses are not kept, the same request again is a 409, and the log says that [`Idempotency::scope`] must be set. So it is with `Set-Cookie` in responses to requests without `Authorization` and `X-Api-Key` |
/// | the same key while the first request is worked on | 409, with `Retry-After` |
/// | the same key with another method, host, target, value of a field that a guard of the route looks at, `Content-Type`, `Content-Encoding` or content | 422 |
/// | the same request again | the response that the first one got, with `Idempotent-Replayed: true` |
/// | which outcomes | all, errors and the 500 of a handler, or of its stream, that panicked too, since nobody knows what it had done by then; 401, 408, 425, 429, and 503 with `Retry-After`, say that nothing was done, so the key is free again; [`Idempotency::forget_if`] |
/// | a client that leaves, and a route's `timeout` | the client is answered 503, if it is there; the handler goes on in a task of the worker, **up to the lease**, and the outcome is kept. Meanwhile it counts as in progress for its route, its client and its worker |
/// | codings | the handler does not see `Accept-Encoding`, as who sends the request again may accept something else: `Compression` goes outside of `Idempotency` (is added before it) |
/// | the request's content | is read before the handler runs, up to its limit; around a mounted service, which has no limit of ours, up to the server's |
/// | a response of more than 256 KiB, or a stream that takes longer than 5 s | is sent, and not kept: the same request again is a 409 that says so |
/// | how long | a day; [`Idempotency::keep_for`] |
/// | a store that fails or is full | 503, before the handler runs; what requests without an identity can fill is a part of it ([`IdempotencyStore::begin_anonymous`]). One without an identity has no cookies, credentials and certificate, or is for a route whose handler looks at none of them; where [`Idempotency::scope`] is set, its scope is empty |
///
/// What a middleware further out holds for a request, such as a session, is not there any more for a handler whose client has left; add
/// `Idempotency` outside of it, and name the user by [`Idempotency::scope`].
pub struct Idempotency<S>(Rc<Settings<S>>);

struct Settings<S> {
    store: S,
    methods: Vec<Method>,
    is_required: bool,
    /// None: by credentials.
    scope: Option<Scope>,
    forget: Option<Forget>,
    keep_for: Duration,
    lease: Duration,
    response_bytes_max: u64,
    /// The routes whose handlers did not look at who sends a request, when last they were called.
    open_routes: RefCell<HashSet<u64>>,
}

type Scope = Box<dyn Fn(&Parts) -> String>;
type Forget = Box<dyn Fn(&Response) -> bool>;

impl<S: IdempotencyStore> Idempotency<S> {
    /// Keeps outcomes in `store`.
    #[must_use]
    pub fn new(store: S) -> Self {
        Self(Rc::new(Settings {
            store,
            methods: vec![Method::POST, Method::PATCH],
            is_required: false,
            scope: None,
            forget: None,
            keep_for: KEEP_FOR,
            lease: LEASE,
            response_bytes_max: RESPONSE_BYTES_MAX,
            open_routes: RefCell::default(),
        }))
    }

    fn set(mut self, set: impl FnOnce(&mut Settings<S>)) -> Self {
        set(Rc::get_mut(&mut self.0).expect("settings are shared by requests only"));
        self
    }

    /// Refuses requests of these methods that have no key.
    #[must_use]
    pub fn required(self) -> Self {
        self.set(|settings| settings.is_required = true)
    }

    /// The methods that keys are for. Others are left alone.
    #[must_use]
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.set(|settings| settings.methods = methods.into_iter().collect())
    }

    /// Whose key it is: the user, the account. Keys of two scopes have nothing to do with each other. Where clients are known by a
    /// cookie, a certificate or a key in a field of its own, this must say so, or all of them are one scope, and what is about one of them is not kept. Where they have **tokens that they renew**, this must
    /// say who they are too: with a new token a request is one of another scope, and carried out again.
    #[must_use]
    pub fn scope(self, scope: impl Fn(&Parts) -> String + 'static) -> Self {
        self.set(|settings| settings.scope = Some(Box::new(scope)))
    }

    /// Responses after which the key is free again, because nothing was done. The default is 401, 408, 425, 429, and 503 with `Retry-After`.
    #[must_use]
    pub fn forget_if(self, forget: impl Fn(&Response) -> bool + 'static) -> Self {
        self.set(|settings| settings.forget = Some(Box::new(forget)))
    }

    /// How long an outcome is kept. The default is a day.
    #[must_use]
    pub fn keep_for(self, time: Duration) -> Self {
        self.set(|settings| settings.keep_for = time)
    }

    /// How long a request may be worked on. After that its key counts as nobody's, for its process may have died. The default is ten
    /// minutes; it must be longer than the handler ever takes.
    #[must_use]
    pub fn lease(self, time: Duration) -> Self {
        self.set(|settings| settings.lease = time)
    }

    /// The most bytes of content that a response may have to be kept. The default is 256 KiB.
    #[must_use]
    pub fn response_bytes_max(self, bytes: u64) -> Self {
        self.set(|settings| settings.response_bytes_max = bytes)
    }
}

impl<S: IdempotencyStore + 'static> Middleware for Idempotency<S> {
    async fn run<N: Service>(&self, request: Request, next: &N) -> Response {
        self.0.answer(request, next).await
    }

    fn around<N: Service + 'static>(self: Rc<Self>, service: N) -> impl Service + 'static {
        Once { settings: Rc::clone(&self.0), service: Rc::new(service) }
    }
}

/// A service whose answers are worked out to their end.
struct Once<S, N> {
    settings: Rc<Settings<S>>,
    service: Rc<N>,
}

impl<S: IdempotencyStore + 'static, N: Service + 'static> Service for Once<S, N> {
    async fn call(&self, request: Request) -> Response {
        let is_meant = self.settings.methods.contains(&request.method());
        if !is_meant || request.parts.head.field("idempotency-key").is_none() {
            return self.settings.answer(request, &*self.service).await;
        }
        let (settings, service) = (Rc::clone(&self.settings), Rc::clone(&self.service));
        let (lease, counted) = (settings.lease, Counted::of(&request.parts));
        let answer = async move { settings.answer(request, &*service).await };
        Lasting::new(answer, counted, lease).await
    }
}

impl<S: IdempotencyStore> Settings<S> {
    async fn answer<N: Service>(&self, request: Request, next: &N) -> Response {
        if !self.methods.contains(&request.method()) {
            return next.call(request).await;
        }
        match key_of(&request.parts.head) {
            Ok(Some(key)) => {
                let scope = match &self.scope {
                    Some(scope) => scope(&request.parts),
                    None => credentials(&request.parts.head),
                };
                let name = stored_name(&scope, &key);
                self.once(name, request, next).await
            }
            Ok(None) if self.is_required => missing().into_response(),
            Ok(None) => next.call(request).await,
            Err(problem) => problem.into_response(),
        }
    }

    /// Answers the request that has this key.
    async fn once<N: Service>(&self, name: String, request: Request, next: &N) -> Response {
        // Another one further out has the key already, and sees to it.
        if request.parts.extensions().get::<Claimed>().is_some_and(|claimed| claimed.0 == name) {
            return next.call(request).await;
        }
        let (mut parts, body) = request.into_parts();
        let limits = body.limits();
        let content = match whole(body, &parts).await {
            Ok(content) => content,
            Err(problem) => return problem.into_response(),
        };
        let fingerprint = fingerprint_of(&parts, &content, self.scope.is_none());
        let begun = match self.is_anonymous(&parts) {
            true => self.store.begin_anonymous(&name, &fingerprint, self.lease).await,
            false => self.store.begin(&name, &fingerprint, self.lease).await,
        };
        let claim = match begun {
            Ok(Begun::Claimed(claim)) => claim,
            Ok(Begun::InProgress(first) | Begun::Done(first, _))
                if !is_same_request(&first, &fingerprint) =>
            {
                return another_request().into_response();
            }
            Ok(Begun::InProgress(_)) => return in_progress().into_response(),
            Ok(Begun::Done(first, _)) if !is_same_client(&first, &fingerprint) => {
                return another_client().into_response();
            }
            Ok(Begun::Done(_, Outcome::Lost)) => return lost().into_response(),
            Ok(Begun::Done(_, Outcome::Kept(kept))) => {
                return kept.to_response().with_header(REPLAYED, HeaderValue::from_static("true"));
            }
            Err(StoreError::FullFor(time)) => return full(time).into_response(),
            Err(error) => return out_of_reach(&error).into_response(),
        };
        let (head, states) = (parts.head.share(), Rc::clone(parts.states()));
        let watch = Personal::watch(&parts);
        parts.extensions_mut().insert(Claimed(name.clone()));
        let crowd = self.scope.is_none().then(|| Crowd::of(&parts));
        // Who sends the request again may accept something else.
        if head.field("accept-encoding").is_some() {
            parts.head.remove_fields(&["accept-encoding"]);
            parts.head.add_field("accept-encoding", b"identity");
        }
        let body = Body::from(content).with_limits(limits);
        let request = Request::from_parts(parts, body);
        // The content may be a stream, which panics as handlers do.
        let kept = or_panic(async {
            // The application's form of a problem is what will be sent.
            let response = states.render(next.call(request).await, &head);
            self.note_route(&head, &watch);
            self.keep(&name, claim, response, crowd.as_ref()).await
        });
        match kept.await {
            Ok(response) => response,
            Err(panic) => {
                let response = Problem::handler_panicked().into_response();
                drop(self.keep(&name, claim, states.render(response, &head), None).await);
                resume_unwind(panic)
            }
        }
    }

    /// Does nothing tell whose request it is? One that invents credentials where no handler looks
    /// at them has no identity either.
    fn is_anonymous(&self, parts: &Parts) -> bool {
        if let Some(scope) = &self.scope {
            return scope(parts).is_empty();
        }
        let carries = Personal::carries_identity(parts) || Personal::is_noted(parts);
        !carries || self.open_routes.borrow().contains(&parts.head.route_path())
    }

    /// Notes whether the handler of a route looks at who sends the request.
    fn note_route(&self, head: &Head, watch: &PersonalWatch) {
        let (route, mut open) = (head.route_path(), self.open_routes.borrow_mut());
        if watch.sources() == IdentitySources::default() {
            open.insert(route);
        } else {
            open.remove(&route);
        }
    }

    /// Keeps what the request came to, and the response unless it is about one of a crowd.
    async fn keep(
        &self,
        name: &str,
        claim: u64,
        mut response: Response,
        crowd: Option<&Crowd>,
    ) -> Response {
        let is_nothing = match &self.forget {
            Some(forget) => forget(&response),
            None => says_that_nothing_was_done(&response),
        };
        if is_nothing || response.status == StatusCode::SWITCHING_PROTOCOLS {
            if let Err(error) = self.store.release(name, claim).await {
                contained(
                    || tracing::error!(target: "peregrine", %error, "an idempotency key could not be freed"),
                );
            }
            return response;
        }
        let outcome = if crowd.is_some_and(|crowd| crowd.is_kept_from(&response)) {
            contained(
                || tracing::error!(target: "peregrine", "an answer to an idempotency key is about a client that neither Authorization nor X-Api-Key tells from others, so it is not kept: say whose keys they are by Idempotency::scope"),
            );
            Outcome::Lost
        } else {
            let body = std::mem::take(&mut response.body);
            match gather(body, self.response_bytes_max, Some(GATHER_TIME)).await {
                Gathered::Whole(content) => {
                    let kept = KeptResponse::of(&response, &content);
                    response.body = Body::from(content);
                    Outcome::Kept(kept)
                }
                Gathered::Other(body) => {
                    response.body = body;
                    Outcome::Lost
                }
            }
        };
        if let Err(error) = self.store.finish(name, claim, outcome, self.keep_for).await {
            // The key stays claimed for as long as its lease: nothing is done twice before.
            contained(
                || tracing::error!(target: "peregrine", %error, "the outcome of a request with an idempotency key could not be kept"),
            );
        }
        response
    }
}

/// What the request says of its client, where nothing else was said of scopes.
fn credentials(head: &Head) -> String {
    let [token, key] = CREDENTIALS.map(|name| head.peek_field(name).map(String::from_utf8_lossy));
    let token = token.unwrap_or_default().into_owned();
    match key {
        // No value has such a character in it.
        Some(key) => token + "\n" + &key,
        None => token,
    }
}

/// Those who share a scope because nobody has said whose keys they are.
struct Crowd {
    has_credentials: bool,
    watch: PersonalWatch,
}

impl Crowd {
    fn of(parts: &Parts) -> Self {
        let has_credentials = CREDENTIALS.iter().any(|name| parts.head.peek_field(name).is_some());
        Self { has_credentials, watch: Personal::watch(parts) }
    }

    /// Is the response about one of them? Cookies and certificates are in the fingerprint, so they
    /// tell clients apart.
    fn is_kept_from(&self, response: &Response) -> bool {
        let sets_cookies = response.fields.get(&SET_COOKIE).is_some();
        let is_identified = self.watch.sources().has(IdentitySource::Other);
        is_identified || (sets_cookies && !self.has_credentials)
    }
}

/// The key under which a request is carried out.
#[derive(Clone)]
struct Claimed(String);

/// 401: who asks must say first who it is. 503 counts if it says when to come back: to the same 503 for a day nobody would.
fn says_that_nothing_was_done(response: &Response) -> bool {
    match response.status.as_u16() {
        401 | 408 | 425 | 429 => true,
        503 => response.fields.get(&RETRY_AFTER).is_some(),
        _ => false,
    }
}

/// All of the request's content, which is short as extractors have it.
async fn whole(body: Body, parts: &Parts) -> Result<Bytes, Problem> {
    let request = Request::new(
        parts.head.share(),
        body,
        Rc::clone(parts.states()),
        Rc::clone(parts.peek_connection()),
    );
    Bytes::from_request(request).await
}

fn missing() -> Problem {
    let detail = "this request must have an Idempotency-Key, a string in quotes that is new for each operation, such as a UUID";
    Problem::new(StatusCode::BAD_REQUEST, "idempotency-key-missing", detail)
}

fn another_request() -> Problem {
    let detail =
        "this Idempotency-Key was used for another request; use a new key for each operation";
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "idempotency-key-reused", detail)
}

fn in_progress() -> Problem {
    let detail = "a request with this Idempotency-Key is being worked on; send it again later";
    Problem::new(StatusCode::CONFLICT, "request-in-progress", detail)
        .with_header(RETRY_AFTER, HeaderValue::from_static("1"))
}

fn lost() -> Problem {
    let detail =
        "the request with this Idempotency-Key was carried out, but its response was not kept";
    Problem::new(StatusCode::CONFLICT, "response-not-kept", detail)
}

fn another_client() -> Problem {
    let detail = "the request with this Idempotency-Key was carried out for a client with other cookies, or another certificate; use a new key for each operation";
    Problem::new(StatusCode::CONFLICT, "response-not-kept", detail)
}

fn full(time: Duration) -> Problem {
    // Rounded up, since a moment too early is in vain.
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    let detail = "the server keeps as many idempotency keys as it can; send the request again when the time of Retry-After is over";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "idempotency-store", detail)
        .with_header(RETRY_AFTER, HeaderValue::from(seconds.max(1)))
}

fn out_of_reach(error: &StoreError) -> Problem {
    contained(
        || tracing::error!(target: "peregrine", %error, "an idempotency key could not be looked up"),
    );
    let detail = "the server cannot tell now whether the request was carried out before; send it again later";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "idempotency-store", detail)
        .with_header(RETRY_AFTER, HeaderValue::from_static("1"))
}

impl<S> fmt::Debug for Idempotency<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency")
            .field("methods", &self.0.methods)
            .field("is_required", &self.0.is_required)
            .field("keep_for", &self.0.keep_for)
            .field("lease", &self.0.lease)
            .field("response_bytes_max", &self.0.response_bytes_max)
            .finish_non_exhaustive()
    }
}
