//! Responses that are given to more than one request.

mod asker;
mod entry;
mod fetch;
mod flight;
mod nested;
mod policy;
mod store;
#[cfg(test)]
mod tests;

pub(crate) use fetch::like;
pub use store::{CacheCounts, CacheStore};

use crate::gather::{Gathered, gather};
use crate::lasting::{Lasting, Told, spawn};
use asker::Asker;
use entry::{Entry, Freshness, Renewal};
use fetch::{Fetch, Stale};
use flight::{Flight, Landed};
use http::header::{CONTENT_LOCATION, LOCATION};
use http::{HeaderName, Method, StatusCode};
use nested::Outer;
use peregrine_web::in_progress::Counted;
use peregrine_web::precondition::{Validators, Verdict, not_modified};
use peregrine_web::{
    Body, Head, IntoResponse, Middleware, Parts, Problem, Request, Response, Service,
};
use policy::{Defaults, Directives, lifetime};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use store::{Lead, Turn};
use tokio::time::Instant;

/// Longer content is not kept, unless set otherwise: 1 MiB.
const ENTRY_BYTES_MAX: u64 = 1024 * 1024;
/// So long a request waits for another one that fetches the same, unless set otherwise.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// A response that is a stream and not over by then is not kept.
const GATHER_TIME: Duration = Duration::from_secs(5);
/// What is fetched for those that wait, or for later ones, may take so long when nobody's time limit counts.
const FETCH_TIME: Duration = Duration::from_secs(60);

/// Requests with one of these ask for something else than the whole of what is there, or for something that only the handler knows.
const LEFT_ALONE: [&str; 5] = ["range", "if-range", "if-match", "if-unmodified-since", "upgrade"];

/// Keeps responses, and gives them to later requests (RFC 9111, as a shared cache in front of the handlers).
///
/// ```
/// use peregrine::App;
/// use peregrine::cache::{Cache, CacheStore};
/// use std::cell::Cell;
///
/// let (store, made) = (CacheStore::new(), Cell::new(0));
/// let page = move || {
///     made.set(made.get() + 1);
///     ([("cache-control", "max-age=60")], format!("page {}", made.get()))
/// };
/// let client = App::new().with(Cache::new(store.clone())).get("/", page).test();
/// assert_eq!(client.get("/").send_now().text(), "page 1");
/// assert_eq!(client.get("/").send_now().text(), "page 1");
/// store.invalidate("/");
/// assert_eq!(client.get("/").send_now().text(), "page 2");
/// ```
///
/// | what | how |
/// |---|---|
/// | what is kept | responses to GET that say for how long: `s-maxage`, `max-age`, `Expires`; others only by [`Cache::ttl`]. Of the statuses 200, 203, 204, 300, 301, 302, 307, 308, 404, 405, 410 and 414 |
/// | what is not | `no-store`, `no-cache`, `private`, `Vary: *`, `Set-Cookie` ([`Cache::with_cookies`]), ranges, trailers, content of more than 1 MiB or a stream that takes longer than 5 s; personal responses, unless they say `public` or `s-maxage` |
/// | which responses are personal | those to requests with `Authorization` or `X-Api-Key`; to a `Cookie` or a client certificate that was read, by an extractor (`Cookies`, `PrivateCookies`, `Session`, `ClientIdentity`, ..), by middleware, by your code through the request's head, or by a mounted tower service or an upstream server, which may read all; to clients that `Authenticate` identified; and those that your code marks by [`Personal::note`](peregrine_web::personal::Personal::note). All but those of upstream servers are sent with `Cache-Control: private` |
/// | responses to clients without an identity | where one was looked for, they are given only to other clients without one |
/// | for which requests | GET and HEAD of the same scheme, host, path (as the client sent it, with the prefix of a mount) and query ([`Cache::key`]), which come to the same route, with the same values of the fields that `Vary` names. Guards of routes add theirs to `Vary`; where a closure decides about a route, and does not say by [`varying_by`](peregrine_web::guard::varying_by) what it looks at, nothing is kept. Those with a body, `Range`, `If-Match` or `Upgrade` go to the handler |
/// | conditions | `If-None-Match` and `If-Modified-Since` are answered from what is kept; the handler does not see them |
/// | `Age` | says how old the response is |
/// | single flight | of requests that come together one is worked on, and the others of all workers wait for it, up to 10 s. If its client leaves while others wait, it is worked on nevertheless |
/// | stale | as `stale-while-revalidate` and `stale-if-error` allow (RFC 5861), unless there is `must-revalidate`, `proxy-revalidate` or `s-maxage`. A panic counts as an error |
/// | a refresh beside | has the request's head, and what its extensions hold; **nothing else of middleware further out**, such as a session or a transaction. It counts as in progress for its route and its client, for 60 s at most; where there is no room for it, a later request tries again. If nothing comes of it that may be kept, the next request waits for its own; if nothing comes of that either, what is stale is sent for 5 s before it is tried again, unless only that client was refused |
/// | validation | a stale 200 that has an `ETag` or `Last-Modified` is asked for with `If-None-Match` and `If-Modified-Since`: a handler that answers 304, or [`Etag`](crate::Etag) further in, makes it fresh again |
/// | changes | a successful POST, PUT, PATCH, DELETE and the like forgets what is kept for its target, `Location` and `Content-Location`; [`CacheStore::invalidate`] does so by call. What is being fetched then is not kept |
/// | what clients ask for | `no-store` and `only-if-cached` count; `no-cache` and `max-age` only if [`Cache::obey_clients`] says so, else any client could keep the handlers busy |
/// | memory | 64 MiB for all of a [`CacheStore`]; what was not asked for the longest gives way |
///
/// `Cache` goes outside of `Compression` (is added before it), which then compresses each response once for each coding; outside of
/// [`Etag`](crate::Etag); and inside of whatever is different for each client, such as sessions, logs and rate limits. An answer from the cache
/// runs no middleware that is further in: what checks who may see something goes outside. A `Cache` around another one with the same store leaves to that one what
/// both of them see.
pub struct Cache(Rc<Settings>);

struct Settings {
    store: CacheStore,
    defaults: Defaults,
    key: Option<Key>,
    obeys: bool,
    entry_bytes_max: u64,
    wait_max: Duration,
}

type Key = Box<dyn Fn(&Parts) -> Option<String>>;

impl Cache {
    /// Keeps responses in `store`.
    #[must_use]
    pub fn new(store: CacheStore) -> Self {
        Self(Rc::new(Settings {
            store,
            defaults: Defaults::default(),
            key: None,
            obeys: false,
            entry_bytes_max: ENTRY_BYTES_MAX,
            wait_max: WAIT_MAX,
        }))
    }

    fn set(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(Rc::get_mut(&mut self.0).expect("settings are shared by requests only"));
        self
    }

    /// For how long a 200 is fresh that does not say. Without this it is not kept. Requests with `Cookie`, and those of clients that have said who
    /// they are, are left out, since their answers may be about one client.
    #[must_use]
    pub fn ttl(self, time: Duration) -> Self {
        self.set(|settings| settings.defaults.fresh = Some(time))
    }

    /// For how long after that a response is sent while a newer one is fetched, if it does not say. The default is zero.
    #[must_use]
    pub fn stale_while_revalidate(self, time: Duration) -> Self {
        self.set(|settings| settings.defaults.while_revalidate = time)
    }

    /// For how long after that a response is sent in place of a 500, 502, 503 or 504, if it does not say. The default is zero.
    #[must_use]
    pub fn stale_if_error(self, time: Duration) -> Self {
        self.set(|settings| settings.defaults.if_error = time)
    }

    /// Keeps responses that set cookies too, so that all clients are given the same ones.
    #[must_use]
    pub fn with_cookies(self) -> Self {
        self.set(|settings| settings.defaults.cookies = true)
    }

    /// What makes two requests the same, in place of path and query: such as the path alone, where the query means nothing. `None`
    /// leaves a request alone. Scheme and host count in any case.
    #[must_use]
    pub fn key(self, key: impl Fn(&Parts) -> Option<String> + 'static) -> Self {
        self.set(|settings| settings.key = Some(Box::new(key)))
    }

    /// Lets a client that says `Cache-Control: no-cache`, or `max-age` with less than a response's age, have a new one.
    #[must_use]
    pub fn obey_clients(self) -> Self {
        self.set(|settings| settings.obeys = true)
    }

    /// The most bytes of content that a response may have to be kept. The default is 1 MiB.
    #[must_use]
    pub fn entry_bytes_max(self, bytes: u64) -> Self {
        self.set(|settings| settings.entry_bytes_max = bytes)
    }

    /// How long a request waits for another one that fetches the same, before it asks the handler itself. The default is 10 s.
    #[must_use]
    pub fn wait_max(self, time: Duration) -> Self {
        self.set(|settings| settings.wait_max = time)
    }
}

impl Middleware for Cache {
    /// Keeps nothing: what is fetched must be able to outlive the request, and `next` does not. The application calls
    /// [`Middleware::around`].
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        next.call(request).await
    }

    fn around<S: Service + 'static>(self: Rc<Self>, service: S) -> impl Service + 'static {
        Cached { settings: Rc::clone(&self.0), service: Rc::new(service) }
    }
}

/// A service whose responses are kept.
struct Cached<S> {
    settings: Rc<Settings>,
    service: Rc<S>,
}

impl<S: Service + 'static> Service for Cached<S> {
    async fn call(&self, mut request: Request) -> Response {
        let settings = &self.settings;
        // A proxy inside does not pass these on, so a response must not be kept as one for them.
        request.parts.head.drop_nominated();
        let Some(key) = settings.key_of(&request.parts) else {
            return self.service.call(request).await;
        };
        match request.method() {
            Method::GET | Method::HEAD => self.read(key, request).await,
            Method::OPTIONS | Method::TRACE | Method::CONNECT => self.service.call(request).await,
            method if method.as_str() == "QUERY" => self.service.call(request).await,
            _ => {
                let response = self.service.call(request).await;
                settings.invalidate(&key, &response);
                response
            }
        }
    }
}

impl<S: Service + 'static> Cached<S> {
    async fn read(&self, key: String, request: Request) -> Response {
        let (settings, head) = (&self.settings, request.parts.head.share());
        let connection = Rc::clone(request.parts.peek_connection());
        let asker = Asker {
            head: &head,
            connection: &connection,
            sources: Asker::of(&request.parts).sources,
        };
        let asks = Directives::read(head.fields_named("cache-control"));
        let is_other = LEFT_ALONE.iter().any(|name| head.field(name).is_some());
        if is_other || asks.no_store || request.body.length() != Some(0) {
            return self.service.call(request).await;
        }
        let asks_anew =
            settings.obeys && (asks.no_cache || head.field("pragma").is_some_and(is_no_cache));
        let age_max = asks.max_age.filter(|_| settings.obeys);
        let is_get = head.method() == Method::GET;
        let depth = Outer::depth(&request.parts, &settings.store);
        Outer::take_over(&request.parts, &settings.store);
        loop {
            let found = settings
                .store
                .find(&key, asker)
                .filter(|(entry, _)| !asks_anew && age_max.is_none_or(|most| entry.age() <= most));
            let found = match found {
                Some((entry, Freshness::Fresh)) => return settings.hit(&key, &entry, &head),
                Some((entry, Freshness::Revalidate)) => {
                    let stale = (Arc::clone(&entry), Freshness::Revalidate);
                    match entry.renewal(is_get && !asks.only_if_cached) {
                        Renewal::First => Some(stale),
                        renewal => {
                            if renewal == Renewal::Beside && is_get {
                                self.refresh(&key, &request.parts, stale, depth);
                            }
                            return settings.hit(&key, &entry, &head);
                        }
                    }
                }
                other => other,
            };
            // RFC 9111 §5.2.1.7: 504 if there is nothing to be had without asking.
            if asks.only_if_cached {
                let detail = "nothing fresh is kept for this request, and it says only-if-cached";
                return Problem::new(StatusCode::GATEWAY_TIMEOUT, "not-cached", detail)
                    .into_response();
            }
            // What a handler answers to HEAD is not the response to GET.
            if !is_get {
                return self.service.call(request).await;
            }
            match settings.store.turn(&key, asker, depth) {
                Turn::Lead(lead) => {
                    let (flight, counted) = (Arc::clone(&lead.flight), Counted::of(&request.parts));
                    let fetched = self.fetch(lead, found, false).answer(request.into_parts().0);
                    let fetched = Lasting::new(fetched, counted, FETCH_TIME);
                    return fetched.if_wanted(move || flight.waiting() > 0).await;
                }
                Turn::Wait(flight) => match settings.wait(flight).await {
                    Some(Landed::Kept(entry)) if entry.fits(asker) => {
                        return settings.hit(&key, &entry, &head);
                    }
                    // It was for others only, so that this one is the first of its kind; or nobody is left that works on it.
                    Some(Landed::Kept(_) | Landed::Abandoned) => {}
                    Some(Landed::Passed) | None => return self.service.call(request).await,
                },
            }
        }
    }

    /// Fetches a newer response for later requests, if nobody does, and if there is room for that beside this request.
    fn refresh(&self, key: &str, parts: &Parts, stale: Stale, depth: u8) {
        let Some(place) = Counted::of(parts).begin_beside() else { return };
        let turn = self.settings.store.turn(key, Asker::of(parts), depth);
        let Turn::Lead(lead) = turn else { return };
        if lead.is_alone {
            return;
        }
        let (again, _) = fetch::like(parts, parts.head.share()).into_parts();
        let answer = self.fetch(lead, Some(stale), true).answer(again);
        spawn(async move { drop(answer.await) }, Told::alone(), place, FETCH_TIME);
    }

    fn fetch(&self, lead: Lead, stale: Option<Stale>, is_beside: bool) -> Fetch<S> {
        let (settings, service) = (Rc::clone(&self.settings), Rc::clone(&self.service));
        Fetch { settings, service, lead, stale, is_beside }
    }
}

impl Settings {
    /// An origin, a space, and what is asked for there.
    fn key_of(&self, parts: &Parts) -> Option<String> {
        let client = parts.client();
        let mut key = client.origin().to_ascii_lowercase();
        key.push_str(client.prefix());
        key.push(' ');
        match &self.key {
            Some(key_of) => key.push_str(&key_of(parts)?),
            None => {
                key.push_str(parts.head.original_path());
                if let Some(query) = parts.head.query() {
                    key.push('?');
                    key.push_str(query);
                }
            }
        }
        Some(key)
    }

    fn hit(&self, key: &str, entry: &Entry, head: &Head) -> Response {
        self.store.hit(key, entry.freshness() > Freshness::Fresh);
        conditional(entry.to_response_for(head), head)
    }

    /// Waits for what another request fetches; none if that takes too long.
    async fn wait(&self, flight: Arc<Flight>) -> Option<Landed> {
        // Without a runtime, in tests, there is no clock to be had.
        if tokio::runtime::Handle::try_current().is_err() {
            return Some(flight.landed().await);
        }
        tokio::time::timeout(self.wait_max, flight.landed()).await.ok()
    }

    /// Keeps a response if it may be kept, and gives it back to be sent. Tells whether it was.
    async fn keep(
        &self,
        mut response: Response,
        lead: Lead,
        asker: Asker<'_>,
        since: Instant,
    ) -> (Response, bool) {
        let status = response.status;
        asker.head.vary_by_guards(&mut response);
        let (has_credentials, is_personal) = (asker.has_credentials(), asker.is_personal());
        let lifetime =
            lifetime(status, &response.fields, &self.defaults, has_credentials, is_personal);
        let Some(lifetime) = lifetime else {
            lead.pass(asker, status);
            return (response, false);
        };
        let body = std::mem::take(&mut response.body);
        match gather(body, self.entry_bytes_max, Some(GATHER_TIME)).await {
            Gathered::Whole(content) => {
                let entry = Entry::new(&response, &content, lifetime, asker, since);
                lead.keep(&Arc::new(entry));
                response.body = Body::from(content);
                (response, true)
            }
            Gathered::Other(body) => {
                lead.pass(asker, status);
                response.body = body;
                (response, false)
            }
        }
    }

    /// RFC 9111 §4.4: what was changed is not kept any more.
    fn invalidate(&self, key: &str, response: &Response) {
        if !(response.status.is_success() || response.status.is_redirection()) {
            return;
        }
        self.store.remove(key);
        // Only of the same origin: one site says nothing about another. Where keys are made otherwise, nobody knows theirs.
        let Some((origin, _)) = key.split_once(' ').filter(|_| self.key.is_none()) else { return };
        for name in [LOCATION, CONTENT_LOCATION] {
            let Some(place) = text(response, &name) else { continue };
            let target = place.strip_prefix(origin).unwrap_or(place);
            let target = target.split_once('#').map_or(target, |(target, _)| target);
            if target.starts_with('/') && !target.starts_with("//") {
                self.store.remove(&format!("{origin} {target}"));
            }
        }
    }
}

fn text<'r>(response: &'r Response, name: &HeaderName) -> Option<&'r str> {
    response.fields.get(name)?.to_str().ok()
}

fn is_no_cache(value: &[u8]) -> bool {
    value.trim_ascii().eq_ignore_ascii_case(b"no-cache")
}

/// RFC 9111 §4.3.2: a cache that has the response answers conditions itself.
fn conditional(mut response: Response, head: &Head) -> Response {
    if response.status == StatusCode::OK
        && Validators::of(&response.fields).judge(head) == Verdict::Known
        && Validators::of(&response.fields) != Validators::default()
    {
        not_modified(&mut response);
    }
    response
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("store", &self.0.store)
            .field("defaults", &self.0.defaults)
            .field("entry_bytes_max", &self.0.entry_bytes_max)
            .field("wait_max", &self.0.wait_max)
            .finish_non_exhaustive()
    }
}
