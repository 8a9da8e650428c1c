//! A response cache: stores a response and sends it again for later requests.

mod coalesce;
mod entry;
mod fetch;
mod outer;
mod policy;
mod requester;
mod store;
#[cfg(test)]
mod tests;

pub(crate) use fetch::request_like;
pub use store::{CacheStats, CacheStore};

use crate::collect::{Collected, collect_body};
use crate::detach::{DetachOnDrop, TelemetryContext, spawn_detached};
use coalesce::{Flight, FlightOutcome};
use entry::{CacheEntry, Freshness, Revalidation};
use fetch::{Fetch, StaleEntry};
use http::header::{CONTENT_LOCATION, LOCATION};
use http::{HeaderName, Method, StatusCode};
use outer::OuterCache;
use peregrine_web::in_flight::InFlightHandle;
use peregrine_web::precondition::{PreconditionOutcome, Validators, not_modified};
use peregrine_web::private_response::IdentityMarks;
use peregrine_web::{
    Body, IntoResponse, Middleware, Parts, Problem, Request, RequestHead, Response, Service,
};
use policy::{Defaults, Directives, freshness_lifetime};
use requester::Requester;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use store::{FlightLeader, FlightRole};
use tokio::time::Instant;

/// The default size limit of a stored response.
const ENTRY_BYTES_MAX: u64 = 1024 * 1024;
/// The default time that a request waits for another one that fetches the same response.
const COALESCE_TIMEOUT: Duration = Duration::from_secs(10);
/// A streamed response that takes longer is not stored.
const COLLECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit of a fetch that continues without its own request, for waiting or later requests.
const FETCH_TIMEOUT: Duration = Duration::from_secs(60);

/// Requests with one of these fields bypass the cache: they need something other than the whole
/// response, or something that only the handler can provide.
const BYPASS_FIELDS: [&str; 5] =
    ["range", "if-range", "if-match", "if-unmodified-since", "upgrade"];

/// Stores responses and reuses them for later requests (RFC 9111, as a shared cache in front of the
/// handlers).
///
/// ```
/// use peregrine::App;
/// use peregrine::cache::{Cache, CacheStore};
/// use std::cell::Cell;
///
/// let (store, renders) = (CacheStore::new(), Cell::new(0));
/// let page = move || {
///     renders.set(renders.get() + 1);
///     ([("cache-control", "max-age=60")], format!("page {}", renders.get()))
/// };
/// let client = App::new().wrap(Cache::new(store.clone())).get("/", page).test();
/// assert_eq!(client.get("/").send_blocking().text(), "page 1");
/// assert_eq!(client.get("/").send_blocking().text(), "page 1");
/// store.invalidate("/");
/// assert_eq!(client.get("/").send_blocking().text(), "page 2");
/// ```
///
/// # Stored responses
///
/// A response to a GET request is stored if it has a lifetime (`s-maxage`, `max-age` or `Expires`,
/// or else [`Cache::default_ttl`]) and its status is 200, 203, 204, 300, 301, 302, 307, 308, 404,
/// 405, 410 or 414.
///
/// It is not stored if it has `no-store`, `no-cache`, `private`, `Vary: *` or `Set-Cookie` (but see
/// [`Cache::allow_set_cookie`]), if it is a range, has trailers, has more than 1 MiB of content or
/// is streamed for longer than 5 s, or if it is a private response and has neither `public` nor
/// `s-maxage`.
///
/// # Private responses
///
/// A response is private if the request
///
/// - has `Authorization` or `X-Api-Key`;
/// - has a cookie or client certificate that was read: by an extractor (`Cookies`,
///   `PrivateCookies`, `Session`, `ClientIdentity` and so on), by middleware, by your code through
///   the request's head, or by a mounted tower service or upstream server, which may read
///   everything;
/// - is from a client that `Authenticate` identified; or
/// - was marked by
///   [`PrivateResponse::mark`](peregrine_web::private_response::PrivateResponse::mark).
///
/// All private responses except those of upstream servers are sent with `Cache-Control: private`.
/// If a handler looked for an identity and found none, its response is reused only for other
/// clients without one.
///
/// # Which requests match
///
/// A stored response is sent for GET and HEAD requests with the same scheme, host, path (as the
/// client sent it, with the prefix of a mount) and query, or the same [`Cache::key`]. They must
/// reach the same route and have the same values of the fields named by `Vary`. The fields that
/// route guards read are added to `Vary`. If a guard is a closure without
/// [`varying_by`](peregrine_web::guard::varying_by), these fields are unknown, and nothing is
/// stored. Requests with a body, `Range`, `If-Match` or `Upgrade` go to the handler.
///
/// `If-None-Match` and `If-Modified-Since` are evaluated against the stored response, and the
/// handler does not see them. Of the client's directives, `no-store` and `only-if-cached` are
/// honored; `no-cache` and `max-age` only with [`Cache::honor_request_directives`], because they
/// would let any client keep the handlers busy. Responses from the store have an `Age`.
///
/// # Concurrent requests
///
/// Of concurrent requests for the same response, one calls the handler. The others, on any worker,
/// wait up to 10 s for the response. If the first request's client disconnects while others wait,
/// the handler continues.
///
/// # Stale responses
///
/// Stale responses are used as `stale-while-revalidate` and `stale-if-error` allow (RFC 5861),
/// unless the response has `must-revalidate`, `proxy-revalidate` or `s-maxage`. A panic counts as
/// an error.
///
/// A background refresh has the request's head and extensions, and **nothing else from outer
/// middleware**, such as a session or a transaction. It counts as a request in progress of its
/// route and client, and is cancelled after 60 s. If the route or client has reached its limit on
/// requests in progress, no refresh starts, and a later request tries again. If the refresh
/// produces nothing that can be stored, the next request waits for its own refresh. If that fails
/// too, the stale response is sent for 5 s before the next attempt, unless the failed refresh
/// produced a private response.
///
/// A stale 200 with an `ETag` or `Last-Modified` is revalidated with `If-None-Match` and
/// `If-Modified-Since`. If the handler, or an inner [`Etag`](crate::Etag), responds with 304, the
/// stored response is fresh again.
///
/// # Invalidation and memory
///
/// A successful POST, PUT, PATCH, DELETE or other unsafe request removes the responses for its
/// target, `Location` and `Content-Location`. [`CacheStore::invalidate`] does so explicitly.
/// Responses being fetched at that moment are not stored. A [`CacheStore`] holds 64 MiB in all by
/// default and evicts the least recently used responses.
///
/// # Order of middleware
///
/// Put `Cache` outside (add it before) `Compression`, which then compresses each response once per
/// coding, and outside [`Etag`](crate::Etag); put it inside middleware that must run for each
/// client, such as sessions, logs and rate limits. A cache hit runs no inner middleware, so access
/// checks belong outside. If a `Cache` encloses another one with the same store, the inner one
/// handles the requests that reach both.
#[doc(alias = "proxy_cache")]
pub struct Cache(Rc<CacheSettings>);

struct CacheSettings {
    store: CacheStore,
    defaults: Defaults,
    key: Option<KeyFn>,
    honor_request_directives: bool,
    entry_bytes_max: u64,
    coalesce_timeout: Duration,
}

type KeyFn = Box<dyn Fn(&Parts) -> Option<String>>;

impl Cache {
    /// Creates a cache that stores responses in `store`.
    #[must_use]
    pub fn new(store: CacheStore) -> Self {
        Self(Rc::new(CacheSettings {
            store,
            defaults: Defaults::default(),
            key: None,
            honor_request_directives: false,
            entry_bytes_max: ENTRY_BYTES_MAX,
            coalesce_timeout: COALESCE_TIMEOUT,
        }))
    }

    fn configure(mut self, set: impl FnOnce(&mut CacheSettings)) -> Self {
        set(Rc::get_mut(&mut self.0).expect("settings are not shared before the first request"));
        self
    }

    /// Sets the lifetime of 200 responses that do not specify one. By default, these are not
    /// stored. Requests with a `Cookie` or an identified client are excluded, because their
    /// responses may be private.
    #[doc(alias = "proxy_cache_valid")]
    #[must_use]
    pub fn default_ttl(self, time: Duration) -> Self {
        self.configure(|settings| settings.defaults.ttl = Some(time))
    }

    /// Sets how long after expiry a response may be sent while a newer one is fetched. Applies to
    /// responses without a `stale-while-revalidate` directive. The default is zero.
    #[must_use]
    pub fn stale_while_revalidate(self, time: Duration) -> Self {
        self.configure(|settings| settings.defaults.stale_while_revalidate = time)
    }

    /// Sets how long after expiry a response may be sent in place of a 500, 502, 503 or 504.
    /// Applies to responses without a `stale-if-error` directive. The default is zero.
    #[must_use]
    pub fn stale_if_error(self, time: Duration) -> Self {
        self.configure(|settings| settings.defaults.stale_if_error = time)
    }

    /// Also stores responses with `Set-Cookie`. All clients then get the same cookies.
    #[must_use]
    pub fn allow_set_cookie(self) -> Self {
        self.configure(|settings| settings.defaults.allow_set_cookie = true)
    }

    /// Sets a function that replaces the path and query in the key of a request, for example with
    /// the path alone if the query is irrelevant. If it returns `None`, the request bypasses the
    /// cache. Scheme and host are always part of the key.
    #[must_use]
    pub fn key(self, key: impl Fn(&Parts) -> Option<String> + 'static) -> Self {
        self.configure(|settings| settings.key = Some(Box::new(key)))
    }

    /// Honors `Cache-Control: no-cache` and `max-age` in requests: the handler is called if the
    /// client accepts no stored response, or none as old as the stored one.
    #[doc(alias = "ignore_client_directives")]
    #[must_use]
    pub fn honor_request_directives(self) -> Self {
        self.configure(|settings| settings.honor_request_directives = true)
    }

    /// Sets the size limit of stored responses, in bytes of content. The default is 1 MiB.
    #[must_use]
    pub fn entry_bytes_max(self, bytes: u64) -> Self {
        self.configure(|settings| settings.entry_bytes_max = bytes)
    }

    /// Sets how long a request waits for another one that is fetching the same response before it
    /// calls the handler itself. The default is 10 s.
    #[doc(alias = "proxy_cache_lock_timeout")]
    #[doc(alias = "singleflight")]
    #[must_use]
    pub fn coalesce_timeout(self, time: Duration) -> Self {
        self.configure(|settings| settings.coalesce_timeout = time)
    }
}

impl Middleware for Cache {
    /// Calls `next` without caching: a fetch must be able to outlive its request, and the borrowed
    /// `next` cannot. Applications call [`Middleware::wrap_service`] instead.
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        next.call(request).await
    }

    fn wrap_service<S: Service + 'static>(self: Rc<Self>, service: S) -> impl Service + 'static {
        CacheService { settings: Rc::clone(&self.0), service: Rc::new(service) }
    }
}

/// A service behind a cache.
struct CacheService<S> {
    settings: Rc<CacheSettings>,
    service: Rc<S>,
}

impl<S: Service + 'static> Service for CacheService<S> {
    async fn call(&self, mut request: Request) -> Response {
        let settings = &self.settings;
        // An inner proxy drops the fields that `Connection` nominates, so no stored response may
        // vary by them. Outer middleware may already have read them, so the request also bypasses
        // the cache.
        let has_nominated_fields = request.parts.head.remove_nominated_headers();
        let Some(key) = settings.cache_key(&request.parts) else {
            return self.service.call(request).await;
        };
        match request.method() {
            Method::GET | Method::HEAD if has_nominated_fields => self.service.call(request).await,
            Method::GET | Method::HEAD => self.serve(key, request).await,
            // These methods invalidate nothing.
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

impl<S: Service + 'static> CacheService<S> {
    async fn serve(&self, key: String, request: Request) -> Response {
        let (settings, head) = (&self.settings, request.parts.head.share());
        let connection = Rc::clone(request.parts.connection_untracked());
        let requester = Requester {
            head: &head,
            connection: &connection,
            sources: Requester::from_parts(&request.parts).sources,
        };
        let directives = Directives::parse(head.header_values("cache-control"));
        let bypasses_cache = BYPASS_FIELDS.iter().any(|name| head.header_bytes(name).is_some());
        if bypasses_cache || directives.no_store || request.body.length() != Some(0) {
            return self.service.call(request).await;
        }
        let skips_stored = settings.honor_request_directives
            && (directives.no_cache || head.header_bytes("pragma").is_some_and(is_no_cache));
        let age_max = directives.max_age.filter(|_| settings.honor_request_directives);
        let is_get = head.method() == Method::GET;
        let depth = OuterCache::depth(&request.parts, &settings.store);
        OuterCache::report_inner(&request.parts, &settings.store);
        loop {
            let found = settings
                .store
                .lookup(&key, requester)
                .filter(|(entry, _)| !skips_stored && age_max.is_none_or(|max| entry.age() <= max));
            let found = match found {
                Some((entry, Freshness::Fresh)) => return settings.serve_hit(&key, &entry, &head),
                Some((entry, Freshness::StaleWhileRevalidate)) => {
                    let stale = (Arc::clone(&entry), Freshness::StaleWhileRevalidate);
                    match entry.revalidation(is_get && !directives.only_if_cached) {
                        Revalidation::Foreground => Some(stale),
                        revalidation => {
                            if revalidation == Revalidation::Background && is_get {
                                self.revalidate_in_background(&key, &request.parts, stale, depth);
                            }
                            return settings.serve_hit(&key, &entry, &head);
                        }
                    }
                }
                // A fetch can still revalidate this entry, or use it in place of an error.
                other => other,
            };
            // RFC 9111 §5.2.1.7: 504 if no stored response can be sent.
            if directives.only_if_cached {
                let detail =
                    "the cache has no fresh response for this request, which says only-if-cached";
                return Problem::new(StatusCode::GATEWAY_TIMEOUT, "not-cached", detail)
                    .into_response();
            }
            // The handler's response to HEAD lacks the content, so it cannot be stored for GET.
            if !is_get {
                return self.service.call(request).await;
            }
            match settings.store.join_flight(&key, requester, depth) {
                FlightRole::Leader(leader) => {
                    let (flight, in_flight) =
                        (Arc::clone(&leader.flight), InFlightHandle::new(&request.parts));
                    let fetch = self.fetch(leader, found, false).run(request.into_parts().0);
                    let fetch = DetachOnDrop::new(fetch, in_flight, FETCH_TIMEOUT);
                    return fetch.keep_running_if(move || flight.waiter_count() > 0).await;
                }
                FlightRole::Follower(flight) => match settings.wait_for_leader(flight).await {
                    Some(FlightOutcome::Stored(entry)) if entry.matches(requester) => {
                        return settings.serve_hit(&key, &entry, &head);
                    }
                    // The response does not fit this request, or the fetch was abandoned: try
                    // again.
                    Some(FlightOutcome::Stored(_) | FlightOutcome::Abandoned) => {}
                    Some(FlightOutcome::Uncacheable) | None => {
                        return self.service.call(request).await;
                    }
                },
            }
        }
    }

    /// Starts a background refresh for later requests, unless one is running or the route or client
    /// has reached its limit on requests in progress.
    fn revalidate_in_background(&self, key: &str, parts: &Parts, stale: StaleEntry, depth: u8) {
        let Some(permit) = InFlightHandle::new(parts).try_acquire() else { return };
        let role = self.settings.store.join_flight(key, Requester::from_parts(parts), depth);
        let FlightRole::Leader(leader) = role else { return };
        if leader.is_hit_for_pass {
            return;
        }
        let (refresh_parts, _) = fetch::request_like(parts, parts.head.share()).into_parts();
        let response = self.fetch(leader, Some(stale), true).run(refresh_parts);
        spawn_detached(
            async move { drop(response.await) },
            TelemetryContext::none(),
            permit,
            FETCH_TIMEOUT,
        );
    }

    fn fetch(
        &self,
        leader: FlightLeader,
        stale: Option<StaleEntry>,
        is_background: bool,
    ) -> Fetch<S> {
        let (settings, service) = (Rc::clone(&self.settings), Rc::clone(&self.service));
        Fetch { settings, service, leader, stale, is_background }
    }
}

impl CacheSettings {
    /// Returns the key of a request: its origin, a space, and its target. `None` bypasses the
    /// cache.
    fn cache_key(&self, parts: &Parts) -> Option<String> {
        let client = parts.client();
        let mut key = client.origin().to_ascii_lowercase();
        key.push_str(client.prefix());
        key.push(' ');
        match &self.key {
            Some(key_fn) => key.push_str(&key_fn(parts)?),
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

    fn serve_hit(&self, key: &str, entry: &CacheEntry, head: &RequestHead) -> Response {
        self.store.record_hit(key, entry.freshness() > Freshness::Fresh);
        evaluate_conditions(entry.to_response_for(head), head)
    }

    /// Waits for another request's response; `None` if that takes too long.
    async fn wait_for_leader(&self, flight: Arc<Flight>) -> Option<FlightOutcome> {
        // Without a runtime, as in tests, timers do not work.
        if tokio::runtime::Handle::try_current().is_err() {
            return Some(flight.wait().await);
        }
        tokio::time::timeout(self.coalesce_timeout, flight.wait()).await.ok()
    }

    /// Stores the response if permitted. Returns it, and whether storing was permitted.
    async fn store_if_cacheable(
        &self,
        mut response: Response,
        leader: FlightLeader,
        (mut requester, watch): (Requester<'_>, &IdentityMarks),
        requested_at: Instant,
    ) -> (Response, bool) {
        let status = response.status;
        requester.head.vary_by_guards(&mut response);
        let lifetime_for = |requester: Requester<'_>, response: &Response| {
            let (has_credentials, may_be_private) =
                (requester.has_credentials(), requester.is_private());
            freshness_lifetime(
                status,
                &response.headers,
                &self.defaults,
                has_credentials,
                may_be_private,
            )
        };
        if lifetime_for(requester, &response).is_none() {
            leader.mark_hit_for_pass(requester, status);
            return (response, false);
        }
        let body = std::mem::take(&mut response.body);
        match collect_body(body, self.entry_bytes_max, Some(COLLECT_TIMEOUT)).await {
            Collected::Complete(content) => {
                // The code that generated the body may have read the client's identity.
                requester.sources = watch.sources();
                let lifetime = lifetime_for(requester, &response);
                match lifetime {
                    Some(lifetime) => {
                        let entry =
                            CacheEntry::new(&response, &content, lifetime, requester, requested_at);
                        leader.store(&Arc::new(entry));
                    }
                    None => leader.mark_hit_for_pass(requester, status),
                }
                response.body = Body::from(content);
                (response, lifetime.is_some())
            }
            Collected::Incomplete(body) => {
                leader.mark_hit_for_pass(requester, status);
                response.body = body;
                (response, false)
            }
        }
    }

    /// Removes the responses that a successful unsafe request invalidates (RFC 9111, section 4.4).
    fn invalidate(&self, key: &str, response: &Response) {
        if !(response.status.is_success() || response.status.is_redirection()) {
            return;
        }
        self.store.remove(key);
        // Same origin only: one site must not invalidate another. With a custom key function, the
        // keys of these targets are unknown.
        let Some((base, _)) = key.split_once(' ').filter(|_| self.key.is_none()) else { return };
        // After the origin, `base` contains the prefix that a trusted proxy has removed.
        let prefix = base.split_once("://").and_then(|(_, host)| host.split_once('/'));
        let prefix_len = prefix.map_or(0, |(_, prefix)| prefix.len() + 1);
        let prefix = &base[base.len() - prefix_len..];
        for name in [LOCATION, CONTENT_LOCATION] {
            let Some(location) = header_str(response, &name) else { continue };
            let target = location.strip_prefix(base).or_else(|| location.strip_prefix(prefix));
            let Some(target) = target else { continue };
            let target = target.split_once('#').map_or(target, |(target, _)| target);
            if target.starts_with('/') && !target.starts_with("//") {
                self.store.remove(&format!("{base} {target}"));
            }
        }
    }
}

fn header_str<'r>(response: &'r Response, name: &HeaderName) -> Option<&'r str> {
    response.headers.get(name)?.to_str().ok()
}

fn is_no_cache(value: &[u8]) -> bool {
    value.trim_ascii().eq_ignore_ascii_case(b"no-cache")
}

/// Evaluates the client's conditions for a response from the store (RFC 9111, section 4.3.2).
fn evaluate_conditions(mut response: Response, head: &RequestHead) -> Response {
    if response.status == StatusCode::OK
        && Validators::from_headers(&response.headers).evaluate(head)
            == PreconditionOutcome::NotModified
        && Validators::from_headers(&response.headers) != Validators::default()
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
            .field("coalesce_timeout", &self.0.coalesce_timeout)
            .finish_non_exhaustive()
    }
}
