//! A response for one client is never sent to another, through a whole server on both drivers.

use axum::routing::get;
use bytes::Bytes;
use http_body::Frame;
use peregrine::auth::{ApiKey, ApiKeyLocation, Authenticate, User};
use peregrine::cache::{Cache, CacheStore, Idempotency, MemoryIdempotencyStore};
use peregrine::prelude::*;
use peregrine::proxy::{ReverseProxy, Upstreams};
use peregrine::tower::{Mount, SpawnedService, into_tower, layer_with_body, spawn_tower};
use peregrine::web::RequestHead;
use peregrine::web::connection::ConnectionInfo;
use peregrine::web::cookies::{Cookie, CookieKeys, PrivateCookies};
use peregrine::web::private_response::PrivateResponse;
use peregrine::{DriverChoice, RunningServer};
use peregrine_tests::client::{field, receive, send, started};
use peregrine_tests::on_both_drivers;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

on_both_drivers! {
    a_page_behind_a_cache_is_sent_to_its_own_client,
    a_payment_with_the_key_of_another_client_is_not_answered_with_its_receipt,
    an_identity_that_was_read_outside_is_one_wherever_the_response_is_made,
    a_tenant_in_a_path_or_host_that_tower_code_rewrites_is_distinguished_from_others,
    an_identity_read_inside_is_one_if_the_service_builds_a_new_response,
    an_application_in_a_mounted_service_knows_its_connection,
    a_body_that_reads_the_identity_is_for_its_client,
    fields_that_a_client_names_in_connection_do_not_change_what_others_get,
    a_proxied_page_is_shared_among_identified_clients_only_if_the_upstream_says_so,
}

fn serve(driver: DriverChoice) -> Option<RunningServer> {
    let (pages, outcomes) = (CacheStore::new(), MemoryIdempotencyStore::new());
    let name = |cookies: &PrivateCookies| cookies.value("user").unwrap_or("nobody".to_owned());
    let app = move || {
        let below = axum::Router::new().route(
            "/me",
            get(async |fields: HeaderMap| {
                let user = fields.get("cookie").and_then(|value| value.to_str().ok());
                ([("cache-control", "max-age=60")], user.unwrap_or("nobody").to_owned())
            }),
        );
        App::new()
            .state(CookieKeys::new(&[3; 32]))
            .get("/in/{name}", |cookies: PrivateCookies, Path(name): Path<String>| {
                (cookies.add(Cookie::build(("user", name)).path("/")), "in")
            })
            .scope("/cached", |scope| {
                let page = move |cookies: PrivateCookies| {
                    ([("cache-control", "max-age=60")], name(&cookies))
                };
                scope.wrap(Cache::new(pages.clone())).get("/me", page).mount("/below", below)
            })
            .scope("/once", |scope| {
                let pay = move |cookies: PrivateCookies| format!("{} pays", name(&cookies));
                scope.wrap(Idempotency::new(outcomes.clone())).post("/pay", pay)
            })
    };
    started(Server::bind("127.0.0.1:0").driver(driver).start(app))
}

fn ask(running: &RunningServer, line: &str, cookie: &str) -> String {
    let key = "Idempotency-Key: \"a\"\r\nContent-Length: 0";
    let cookie = if cookie.is_empty() { String::new() } else { format!("Cookie: {cookie}\r\n") };
    let head = format!("{line} HTTP/1.1\r\nHost: a\r\n{cookie}{key}\r\nConnection: close\r\n\r\n");
    receive(send(running, head))
}

fn cookie(running: &RunningServer, name: &str) -> String {
    let answer = ask(running, &format!("GET /in/{name}"), "");
    let set = field(&answer, "set-cookie").expect("a cookie");
    set.split(';').next().expect("split yields at least one item").to_owned()
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").expect("a head").1
}

fn a_page_behind_a_cache_is_sent_to_its_own_client(driver: DriverChoice) {
    let Some(running) = serve(driver) else { return };
    for path in ["/cached/me", "/cached/below/me"] {
        for name in ["ali", "bob", "", "ali"] {
            let cookie = match (name, path) {
                ("", _) => String::new(),
                (_, "/cached/me") => cookie(&running, name),
                _ => name.to_owned(),
            };
            let answer = ask(&running, &format!("GET {path}"), &cookie);
            let expected = if name.is_empty() { "nobody" } else { name };
            assert_eq!(body(&answer), expected, "{path}");
            assert!(name.is_empty() || answer.contains("private\r\n"), "{answer}");
        }
    }
    running.graceful_shutdown().expect("the shutdown succeeds");
}

fn a_payment_with_the_key_of_another_client_is_not_answered_with_its_receipt(driver: DriverChoice) {
    let Some(running) = serve(driver) else { return };
    let (ali, bob) = (cookie(&running, "ali"), cookie(&running, "bob"));
    let pay = |cookie: &str| ask(&running, "POST /once/pay", cookie);
    assert_eq!(body(&pay(&ali)), "ali pays");
    let again = pay(&ali);
    assert_eq!((body(&again), field(&again, "idempotent-replayed")), ("ali pays", Some("true")));
    assert!(pay(&bob).starts_with("HTTP/1.1 409 "));
    running.graceful_shutdown().expect("the shutdown succeeds");
}

/// The client, as identified by a middleware outside the cache.
#[derive(Clone)]
struct KnownUser(String);

fn know(request: &mut Request, name: Option<String>) {
    if let Some(name) = name {
        request.parts.extensions_mut().insert(KnownUser(name));
    }
}

async fn identify(mut request: Request, next: Next<'_>) -> Response {
    let name = request.header("cookie").map(str::to_owned);
    know(&mut request, name);
    next.run(request).await
}

/// Replaces the credentials with the user, as a gateway does.
async fn identify_and_remove(mut request: Request, next: Next<'_>) -> Response {
    let name = request.header("cookie").map(str::to_owned);
    request.parts.head.remove_fields(&["cookie"]);
    know(&mut request, name);
    next.run(request).await
}

async fn identify_in_axum(
    mut request: axum::extract::Request,
    next: axum::middleware::Next,
) -> axum::response::Response {
    if let Some(name) = request.headers_mut().remove("cookie") {
        let name = name.to_str().expect("the test sends text").to_owned();
        request.extensions_mut().insert(KnownUser(name));
    }
    next.run(request).await
}

/// Keeps the identity, but replaces the fields that it was read from.
async fn replace_in_axum(
    mut request: axum::extract::Request,
    next: axum::middleware::Next,
) -> axum::response::Response {
    if let Some(name) = request.headers_mut().remove("cookie") {
        let name = name.to_str().expect("the test sends text").to_owned();
        request.headers_mut().insert("cookie", HeaderValue::from_static("theme=dark"));
        request.headers_mut().insert("authorization", HeaderValue::from_static("Bearer internal"));
        request.extensions_mut().insert(KnownUser(name));
    }
    next.run(request).await
}

/// Passes a new request on, which has only the method, the target and the user.
async fn rebuild_in_axum(
    request: axum::extract::Request,
    next: axum::middleware::Next,
) -> axum::response::Response {
    let mut rebuilt = axum::extract::Request::new(axum::body::Body::empty());
    *rebuilt.method_mut() = request.method().clone();
    *rebuilt.uri_mut() = request.uri().clone();
    for name in ["host", "idempotency-key"] {
        if let Some(value) = request.headers().get(name) {
            rebuilt.headers_mut().insert(name, value.clone());
        }
    }
    if let Some(name) = request.headers().get("cookie") {
        let name = name.to_str().expect("the test sends text").to_owned();
        rebuilt.extensions_mut().insert(KnownUser(name));
    }
    next.run(rebuilt).await
}

async fn keep_in_axum(
    mut request: axum::extract::Request,
    next: axum::middleware::Next,
) -> axum::response::Response {
    if let Some(name) = request.headers().get("cookie") {
        let name = name.to_str().expect("the test sends text").to_owned();
        request.extensions_mut().insert(KnownUser(name));
    }
    next.run(request).await
}

/// The token is in the query, and handlers do not see it.
async fn identify_by_query_in_axum(
    mut request: axum::extract::Request,
    next: axum::middleware::Next,
) -> axum::response::Response {
    if let Some(token) = request.uri().query().and_then(|query| query.strip_prefix("token=")) {
        let token = token.to_owned();
        *request.uri_mut() = request.uri().path().parse().expect("it was a path");
        request.extensions_mut().insert(KnownUser(token));
    }
    next.run(request).await
}

async fn identify_by_key(mut request: Request, next: Next<'_>) -> Response {
    let user = Option::<User<String>>::from_request_parts(&mut request.parts).await;
    know(&mut request, user.expect("the credentials are valid").map(|User(name)| name));
    next.run(request).await
}

fn shop(pages: &CacheStore, outcomes: &MemoryIdempotencyStore) -> App {
    let name = |request: &Request| {
        request
            .parts
            .extensions()
            .get::<KnownUser>()
            .map_or("nobody".to_owned(), |known| known.0.clone())
    };
    let page = move |request: Request| ([("cache-control", "max-age=60")], name(&request));
    let pay = move |request: Request| format!("{} pays", name(&request));
    App::new()
        .scope("/cached", |scope| scope.wrap(Cache::new(pages.clone())).get("/me", page))
        .scope("/once", |scope| scope.wrap(Idempotency::new(outcomes.clone())).post("/pay", pay))
}

/// Below each of these paths, a client is identified in another way and place.
const WAYS: [&str; 15] = [
    "/read",
    "/removed",
    "/removed-by-a-layer",
    "/nested",
    "/nested-removed",
    "/nested-by-a-layer",
    "/axum-inside",
    "/axum-inside-removed",
    "/axum-inside-replaced",
    "/axum-inside-without-extensions",
    "/replaced",
    "/remote",
    "/by-query",
    "/by-key",
    "/nested-by-key",
];

fn all_ways(pages: &CacheStore, outcomes: &MemoryIdempotencyStore, remote: &SpawnedService) -> App {
    let shop = || shop(pages, outcomes);
    let router = || axum::Router::new().fallback_service(remote.clone());
    let by_query = axum::middleware::from_fn(identify_by_query_in_axum);
    let by_query = layer_with_body(axum::body::Body::new, by_query);
    let nested = || into_tower(shop()).expect("the application is sound");
    let in_axum =
        || layer_with_body(axum::body::Body::new, axum::middleware::from_fn(identify_in_axum));
    let by_key = || {
        let key = ApiKeyLocation::header("x-token");
        Authenticate::api_key(key, async |ApiKey(name)| Some(name)).optional()
    };
    App::new()
        .scope("/read", |scope| scope.wrap(identify).merge(shop()))
        .scope("/removed", |scope| scope.wrap(identify_and_remove).merge(shop()))
        .scope("/removed-by-a-layer", |scope| scope.wrap(in_axum()).merge(shop()))
        .scope("/nested", |scope| scope.wrap(identify).mount("/", nested()))
        .scope("/nested-removed", |scope| scope.wrap(identify_and_remove).mount("/", nested()))
        .scope("/nested-by-a-layer", |scope| scope.wrap(in_axum()).mount("/", nested()))
        .scope("/axum-inside", |scope| {
            scope.mount("/", router().layer(axum::middleware::from_fn(keep_in_axum)))
        })
        .scope("/axum-inside-removed", |scope| {
            scope.mount("/", router().layer(axum::middleware::from_fn(identify_in_axum)))
        })
        .scope("/axum-inside-replaced", |scope| {
            scope.mount("/", router().layer(axum::middleware::from_fn(replace_in_axum)))
        })
        .scope("/axum-inside-without-extensions", |scope| {
            scope.mount("/", router().layer(axum::middleware::from_fn(rebuild_in_axum)))
        })
        .scope("/replaced", |scope| {
            let replace = axum::middleware::from_fn(replace_in_axum);
            scope.wrap(layer_with_body(axum::body::Body::new, replace)).merge(shop())
        })
        .scope("/remote", |scope| scope.wrap(identify).mount("/", router()))
        .scope("/by-query", |scope| scope.wrap(by_query).merge(shop()))
        .scope("/by-key", |scope| scope.wrap(by_key()).wrap(identify_by_key).merge(shop()))
        .scope("/nested-by-key", |scope| {
            scope.wrap(by_key()).wrap(identify_by_key).mount("/", nested())
        })
}

fn ask_as(running: &RunningServer, line: &str, name: &str, option: &str) -> String {
    let is_by_query = line.contains("/by-query/") && !name.is_empty();
    let query = if is_by_query { format!("?token={name}") } else { String::new() };
    let key =
        format!("Idempotency-Key: \"{}\"\r\nContent-Length: 0", line.replace([' ', '/'], "-"));
    let identity = if name.is_empty() {
        String::new()
    } else {
        format!("Cookie: {name}\r\nX-Token: {name}\r\n")
    };
    receive(send(
        running,
        format!(
            "{line}{query} HTTP/1.1\r\nHost: a\r\n{identity}{key}\r\nConnection: close{option}\r\n\r\n"
        ),
    ))
}

fn an_identity_that_was_read_outside_is_one_wherever_the_response_is_made(driver: DriverChoice) {
    let (pages, outcomes) = (CacheStore::new(), MemoryIdempotencyStore::new());
    // A Peregrine application in an axum router that has a layer.
    let (shared, stored) = (pages.clone(), outcomes.clone());
    let remote = spawn_tower(move || shop(&shared, &stored)).expect("the application is valid");
    let app = move || all_ways(&pages, &outcomes, &remote);
    let Some(running) = started(Server::bind("127.0.0.1:0").driver(driver).start(app)) else {
        return;
    };
    let ask = |line: &str, name: &str, option: &str| ask_as(&running, line, name, option);
    for way in WAYS {
        // RFC 9110 §7.6.1: a client may name its own fields as those of the connection.
        for option in ["", ", cookie, x-token"] {
            for name in ["ali", "bob", "", "ali"] {
                let answer = ask(&format!("GET {way}/cached/me"), name, option);
                // A tower layer does not see fields that the client has named.
                let is_hidden = !option.is_empty() && body(&answer) == "nobody";
                let expected = if name.is_empty() || is_hidden { "nobody" } else { name };
                assert_eq!(body(&answer), expected, "{way}{option}");
            }
        }
        assert_eq!(body(&ask(&format!("POST {way}/once/pay"), "ali", "")), "ali pays", "{way}");
        let other = ask(&format!("POST {way}/once/pay"), "bob", "");
        assert!(!other.contains("ali pays"), "{way}: {other}");
    }
    running.graceful_shutdown().expect("the shutdown succeeds");
}

/// Takes the user from the first segment of the path or from `Host`, and removes it, as axum's
/// `nest` and gateways do.
async fn take_tenant_in_axum(
    mut request: axum::extract::Request,
    next: axum::middleware::Next,
) -> axum::response::Response {
    let path = request.uri().path().to_owned();
    let host = request.headers().get("host").and_then(|host| host.to_str().ok());
    let host = host.and_then(|host| host.strip_suffix(".example")).map(str::to_owned);
    if let Some(tenant) = host {
        request.headers_mut().insert("host", HeaderValue::from_static("internal"));
        request.extensions_mut().insert(KnownUser(tenant));
    } else if let Some((tenant, rest)) =
        path.strip_prefix("/t/").and_then(|path| path.split_once('/'))
    {
        *request.uri_mut() = format!("/{rest}").parse().expect("the rest of a path is a path");
        request.extensions_mut().insert(KnownUser(tenant.to_owned()));
    }
    next.run(request).await
}

fn a_tenant_in_a_path_or_host_that_tower_code_rewrites_is_distinguished_from_others(
    driver: DriverChoice,
) {
    let (pages, outcomes) = (CacheStore::new(), MemoryIdempotencyStore::new());
    let (remote_pages, remote_outcomes) = (pages.clone(), outcomes.clone());
    let remote = spawn_tower(move || shop(&remote_pages, &remote_outcomes));
    let remote = remote.expect("the application is valid");
    let app = move || {
        let take = || axum::middleware::from_fn(take_tenant_in_axum);
        let layer = || layer_with_body(axum::body::Body::new, take());
        let nested = into_tower(shop(&pages, &outcomes)).expect("the application is valid");
        let router = axum::Router::new().fallback_service(remote.clone());
        App::new()
            .scope("/t/{tenant}/native", |scope| scope.wrap(layer()).merge(shop(&pages, &outcomes)))
            .scope("/native", |scope| scope.wrap(layer()).merge(shop(&pages, &outcomes)))
            .scope("/t/{tenant}/nested", |scope| scope.wrap(layer()).mount("/", nested))
            .mount("/", axum::Router::new().fallback_service(router.layer(take())))
    };
    let Some(running) = started(Server::bind("127.0.0.1:0").driver(driver).start(app)) else {
        return;
    };
    let ask = |line: &str, host: &str| {
        let key = line.split('/').rev().take(2).collect::<String>();
        let fields = format!("Idempotency-Key: \"{key}\"\r\nContent-Length: 0");
        let head =
            format!("{line} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\nConnection: close\r\n\r\n");
        receive(send(&running, head))
    };
    for (by_path, by_host) in [("/t/{}/native", "/native"), ("/t/{}", "")] {
        for name in ["ali", "bob", "ali"] {
            let path = by_path.replace("{}", name);
            assert_eq!(body(&ask(&format!("GET {path}/cached/me"), "a")), name, "{path}");
            let answer = ask(&format!("GET {by_host}/cached/me"), &format!("{name}.example"));
            assert_eq!(body(&answer), name, "{by_host}");
        }
        for name in ["ali", "bob"] {
            let path = by_path.replace("{}", name);
            let by_path = ask(&format!("POST {path}/once/pay"), "a");
            let by_host = ask(&format!("POST {by_host}/once/pay"), &format!("{name}.example"));
            for answer in [by_path, by_host] {
                let other = if name == "ali" { "bob" } else { "ali" };
                assert!(!answer.contains(&format!("{other} pays")), "{answer}");
            }
        }
    }
    running.graceful_shutdown().expect("the shutdown succeeds");
}

/// Builds a new response without the extensions of the original one.
async fn rebuild_response_in_axum(
    request: axum::extract::Request,
    next: axum::middleware::Next,
) -> axum::response::Response {
    let (parts, body) = next.run(request).await.into_parts();
    let mut response = axum::response::Response::new(body);
    (*response.status_mut(), *response.headers_mut()) = (parts.status, parts.headers);
    response
}

/// The application identifies clients in a way of its own, at once or in the body.
fn own_identities() -> App {
    let at_once = |request: Request| {
        PrivateResponse::mark(&request.parts);
        format!("{} pays", request.header("x-customer").unwrap_or("nobody"))
    };
    App::new()
        .post("/at-once", at_once)
        .post("/in-body", |request: Request| Body::new(PayBody(Some(request))))
}

/// A body that identifies the client when it is sent.
struct PayBody(Option<Request>);

impl http_body::Body for PayBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|request| {
            PrivateResponse::mark(&request.parts);
            let text = format!("{} pays", request.header("x-customer").unwrap_or("nobody"));
            Ok(Frame::data(text.into()))
        }))
    }
}

fn an_identity_read_inside_is_one_if_the_service_builds_a_new_response(driver: DriverChoice) {
    let remote = spawn_tower(own_identities).expect("the application is valid");
    let outcomes = MemoryIdempotencyStore::new();
    let app = move || {
        let idempotency = || Idempotency::new(outcomes.clone());
        let rebuild = || axum::middleware::from_fn(rebuild_response_in_axum);
        let far = axum::Router::new().fallback_service(remote.clone()).layer(rebuild());
        let near = into_tower(own_identities()).expect("the application is valid");
        App::new()
            .scope("/far", |scope| scope.wrap(idempotency()).mount("/", far))
            .scope("/near", |scope| scope.wrap(idempotency()).mount("/", near))
    };
    let Some(running) = started(Server::bind("127.0.0.1:0").driver(driver).start(app)) else {
        return;
    };
    for path in ["/far/at-once", "/near/at-once", "/near/in-body"] {
        let pay = |name: &str| {
            let fields = format!("Idempotency-Key: \"{}\"\r\nX-Customer: {name}", &path[1..]);
            let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            receive(send(&running, format!("{head}Content-Length: 0\r\nConnection: close\r\n\r\n")))
        };
        assert_eq!(body(&pay("ali")), "ali pays", "{path}");
        let other = pay("bob");
        assert!(other.starts_with("HTTP/1.1 409 "), "{path}: {other}");
    }
    running.graceful_shutdown().expect("the shutdown succeeds");
}

fn an_application_in_a_mounted_service_knows_its_connection(driver: DriverChoice) {
    let app = || {
        let address = |request: Request| {
            let ConnectionInfo { peer, .. } = &**request.parts.connection();
            peer.socket_addr().map_or("none".to_owned(), |address| address.ip().to_string())
        };
        let nested = into_tower(App::new().get("/", address)).expect("the application is sound");
        App::new().mount("/below", nested)
    };
    let Some(running) = started(Server::bind("127.0.0.1:0").driver(driver).start(app)) else {
        return;
    };
    assert_eq!(body(&ask(&running, "GET /below", "")), "127.0.0.1");
    running.graceful_shutdown().expect("the shutdown succeeds");
}

/// A body that reads the client's identity when it is sent.
struct Lazy(RequestHead);

impl http_body::Body for Lazy {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let name = this.0.header_bytes("cookie").map(Bytes::copy_from_slice);
        this.0 = RequestHead::from_pool();
        Poll::Ready(name.map(|name| Ok(Frame::data(name))))
    }
}

fn a_body_that_reads_the_identity_is_for_its_client(driver: DriverChoice) {
    let pages = CacheStore::new();
    let app = move || {
        App::new().wrap(Cache::new(pages.clone())).get("/me", |request: Request| {
            let body = Body::new(Lazy(request.parts.head.share()));
            ([("cache-control", "max-age=60")], body)
        })
    };
    let Some(running) = started(Server::bind("127.0.0.1:0").driver(driver).start(app)) else {
        return;
    };
    for name in ["ali", "bob", "ali"] {
        assert!(ask(&running, "GET /me", name).contains(name), "{name}");
    }
    running.graceful_shutdown().expect("the shutdown succeeds");
}

async fn translate(mut request: Request, next: Next<'_>) -> Response {
    let language = request.header("accept-language").unwrap_or("en").to_owned();
    request.parts.extensions_mut().insert(KnownUser(language));
    next.run(request).await
}

fn fields_that_a_client_names_in_connection_do_not_change_what_others_get(driver: DriverChoice) {
    let pages = CacheStore::new();
    let app = move || {
        let greet = |request: Request| {
            let language = request.parts.extensions().get::<KnownUser>().expect("inserted outside");
            ([("cache-control", "max-age=60"), ("vary", "accept-language")], language.0.clone())
        };
        App::new().wrap(translate).wrap(Cache::new(pages.clone())).get("/", greet)
    };
    let Some(running) = started(Server::bind("127.0.0.1:0").driver(driver).start(app)) else {
        return;
    };
    let ask = |fields: &str| {
        receive(send(&running, format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n")))
    };
    let named = "Accept-Language: xx\r\nConnection: close, accept-language";
    assert_eq!(body(&ask(named)), "xx");
    assert_eq!(body(&ask("Connection: close")), "en");
    assert_eq!(body(&ask(named)), "xx");
    running.graceful_shutdown().expect("the shutdown succeeds");
}

/// Each response has another number. The upstream does not say whether it depends on the client.
fn upstream(driver: DriverChoice) -> Option<RunningServer> {
    let made = Arc::new(AtomicUsize::new(0));
    let app = move || {
        let made = Arc::clone(&made);
        App::new().get("/{control}", move |Path(control): Path<String>| {
            let number = made.fetch_add(1, Ordering::Relaxed);
            let control = HeaderValue::try_from(control).expect("the test sends text");
            ([("cache-control", control)], number.to_string())
        })
    };
    started(Server::bind("127.0.0.1:0").driver(driver).start(app))
}

fn a_proxied_page_is_shared_among_identified_clients_only_if_the_upstream_says_so(
    driver: DriverChoice,
) {
    let Some(upstream) = upstream(driver) else { return };
    let address = upstream.http_address().expect("it speaks HTTP");
    let upstreams = Upstreams::new([format!("http://{address}")]).expect("a URL");
    let pages = CacheStore::new();
    let app = move || {
        App::new()
            .wrap(Cache::new(pages.clone()))
            .subtree("/", ReverseProxy::new(upstreams.clone()))
    };
    let Some(running) = started(Server::bind("127.0.0.1:0").driver(driver).start(app)) else {
        return;
    };
    let get = |path: &str, identity: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\n{identity}Connection: close\r\n\r\n");
        body(&receive(send(&running, head))).to_owned()
    };
    for name in ["Cookie", "Authorization"] {
        let [ali, bob] = ["ali", "bob"].map(|user| format!("{name}: {user}\r\n"));
        for (path, is_for_all) in
            [("/max-age=60", false), ("/max-age=60,public", true), ("/s-maxage=60", true)]
        {
            let path = &format!("{path},x-{name}");
            let mine = get(path, &ali);
            let others = [&*ali, &*bob, ""].map(|identity| get(path, identity) == mine);
            assert_eq!(others, [is_for_all; 3], "{path}");
            assert_eq!(get(path, ""), get(path, ""), "{path}: shared by clients without identity");
        }
    }
    running.graceful_shutdown().expect("the shutdown succeeds");
    upstream.graceful_shutdown().expect("the shutdown succeeds");
}
