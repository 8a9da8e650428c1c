//! A response of a mounted service, or of a handler inside a tower layer, to one client is not sent
//! to another.

use axum::body::Body as AxumBody;
use axum::routing::{get, post};
use axum::{Extension, Router};
use http::HeaderMap;
use http_body_util::BodyExt;
use peregrine::cache::{Cache, CacheStore, Idempotency, MemoryIdempotencyStore};
use peregrine_tower::{Mount, into_tower, layer, spawn_tower, tower};
use peregrine_web::App;
use peregrine_web::connection::{ClientIdentity, ConnectionInfo, TlsInfo};
use peregrine_web::extract::Extension as Ours;
use peregrine_web::testing::{TestClient, TestResponse};
use std::convert::Infallible;
use std::sync::Arc;
use tower::util::MapRequestLayer;
use tower::{Layer, Service, ServiceExt};

const FOR_A_MINUTE: [(&str, &str); 1] = [("cache-control", "max-age=60")];

/// The client's name, from the request's header or the connection's certificate.
fn client_name(headers: &HeaderMap, info: Option<&ConnectionInfo>) -> String {
    let field = ["cookie", "authorization", "x-api-key"].iter().find_map(|name| headers.get(*name));
    let certificate =
        info.and_then(ConnectionInfo::client_identity).map(|client| client.subject.clone());
    let field = field.and_then(|value| value.to_str().ok()).map(str::to_owned);
    field.or(certificate).unwrap_or("nobody".to_owned())
}

fn router() -> Router {
    let page = async |Extension(info): Extension<ConnectionInfo>, headers: HeaderMap| {
        (FOR_A_MINUTE, client_name(&headers, Some(&info)))
    };
    let plain = async |headers: HeaderMap| client_name(&headers, None);
    Router::new().route("/page", get(page)).route("/pay", post(plain))
}

#[derive(Clone)]
struct Name(String);

fn identify<B>(mut request: http::Request<B>) -> http::Request<B> {
    let name = client_name(request.headers(), request.extensions().get::<ConnectionInfo>());
    request.extensions_mut().insert(Name(name));
    request
}

/// A native handler inside a layer that identifies the client, as those of tower-sessions and
/// axum-login do.
fn layered(app: App) -> App {
    app.wrap(layer(MapRequestLayer::new(identify)).extension(ConnectionInfo::clone))
        .get("/page", |Ours(Name(name)): Ours<Name>| (FOR_A_MINUTE, name))
        .post("/pay", |Ours(Name(name)): Ours<Name>| name)
}

/// An application that is mounted as a tower service in another.
fn inner() -> App {
    App::new()
        .get("/page", |headers: HeaderMap, info: ConnectionInfo| {
            (FOR_A_MINUTE, client_name(&headers, Some(&info)))
        })
        .post("/pay", |headers: HeaderMap| client_name(&headers, None))
}

fn mounted_clients(make_app: impl Fn() -> App) -> [(&'static str, &'static str, TestClient); 4] {
    let mounted = || tower(router()).extension(ConnectionInfo::clone);
    let nested = tower(into_tower(inner()).expect("a valid app")).extension(ConnectionInfo::clone);
    [
        ("mount", "/below", make_app().mount("/below", mounted()).test()),
        ("subtree", "", make_app().subtree("/", mounted()).test()),
        ("layer", "", layered(make_app()).test()),
        ("application", "/below", make_app().mount("/below", nested).test()),
    ]
}

fn connection(name: &str) -> ConnectionInfo {
    let fingerprint = std::array::from_fn(|_| name.as_bytes()[0]);
    let client = ClientIdentity { subject: name.to_owned(), fingerprint, ..<_>::default() };
    let tls = TlsInfo { client_identity: Some(Arc::new(client)), ..TlsInfo::default() };
    ConnectionInfo { tls: Some(Arc::new(tls)), ..ConnectionInfo::default() }
}

/// The ways in which a client identifies itself.
const CREDENTIALS: [&str; 4] = ["cookie", "authorization", "x-api-key", "certificate"];

fn get_page(client: &TestClient, credential: &str, path: &str, name: Option<&str>) -> TestResponse {
    match name {
        None => client.get(path).send_blocking(),
        Some(name) if credential == "certificate" => {
            client.clone().with_connection(connection(name)).get(path).send_blocking()
        }
        Some(name) => client.get(path).header(credential, name).send_blocking(),
    }
}

#[test]
fn a_cache_around_a_mount_keeps_the_pages_of_clients_apart() {
    for credential in CREDENTIALS {
        for (kind, prefix, client) in
            mounted_clients(|| App::new().wrap(Cache::new(CacheStore::new())))
        {
            let path = format!("{prefix}/page");
            for name in [Some("ali"), Some("bob"), None, Some("ali"), None] {
                let page = get_page(&client, credential, &path, name);
                let expected = name.unwrap_or("nobody");
                assert_eq!(page.text(), expected, "{credential} {kind}");
                let is_private = page.headers().iter().any(|(_, value)| value == "private");
                assert!(is_private || name.is_none() || kind == "layer", "{credential} {kind}");
            }
            let age = get_page(&client, credential, &path, None).header("age").map(str::to_owned);
            assert!(age.is_some(), "{credential} {kind}: clients without an identity share it");
        }
    }
}

#[test]
fn an_idempotency_key_does_not_replay_the_response_of_another_client() {
    let make_app = || App::new().wrap(Idempotency::new(MemoryIdempotencyStore::new()));
    for (kind, prefix, client) in mounted_clients(make_app) {
        let pay = |name: &str| {
            let request = client.post(&format!("{prefix}/pay")).header("idempotency-key", "\"a\"");
            request.header("cookie", name).send_blocking()
        };
        assert_eq!(pay("ali").text(), "ali", "{kind}");
        let replayed = pay("ali");
        assert_eq!(
            (replayed.text().as_str(), replayed.header("idempotent-replayed")),
            ("ali", Some("true"))
        );
        assert_eq!(pay("bob").status(), 409, "{kind}");
    }
}

#[test]
fn clients_identified_inside_a_mounted_application_are_kept_apart_outside() {
    let identify_client = async |request: peregrine_web::Request, next: peregrine_web::Next<'_>| {
        peregrine_web::private_response::PrivateResponse::mark(&request.parts);
        next.run(request).await
    };
    let name = |request: peregrine_web::Request| {
        (FOR_A_MINUTE, request.header("x-customer").unwrap_or("nobody").to_owned())
    };
    let inner = App::new().wrap(identify_client).get("/page", name).post("/pay", name);
    let inner = tower(into_tower(inner).expect("the application is valid"));
    let app = App::new().wrap(Cache::new(CacheStore::new()));
    let client = app.wrap(Idempotency::new(MemoryIdempotencyStore::new())).mount("/", inner).test();
    for customer in ["ali", "bob"] {
        let page = client.get("/page").header("x-customer", customer).send_blocking();
        assert_eq!(page.text(), customer);
    }
    let pay = |customer: &str| {
        let request = client.post("/pay").header("idempotency-key", "\"a\"");
        request.header("x-customer", customer).send_blocking().status().as_u16()
    };
    assert_eq!((pay("ali"), pay("bob")), (200, 409));
}

/// Applications that are mounted in another and share a store.
fn apps_sharing_a_store(store: &CacheStore) -> TestClient {
    let cached_app = |name: &'static str| {
        let changed = || "changed";
        let app = App::new().wrap(Cache::new(store.clone()));
        let app = app.get("/page", move || (FOR_A_MINUTE, name)).post("/page", changed);
        tower(into_tower(app).expect("the application is valid"))
    };
    let by_field = || peregrine_web::guard::header("x-version", "2");
    App::new()
        .mount("/a", cached_app("a"))
        .mount("/b", cached_app("b"))
        .scope("/deep", |scope| scope.mount("/a", cached_app("deep")))
        .scope("/v", |scope| scope.guard(by_field()).mount("/", cached_app("two")))
        .scope("/v", |scope| scope.mount("/", cached_app("one")))
        .test()
}

#[test]
fn applications_that_share_a_cache_store_keep_their_pages_apart() {
    let store = CacheStore::new();
    let client = apps_sharing_a_store(&store);
    let get_version_2 = |path: &str| client.get(path).header("x-version", "2").send_blocking();
    for age in [None, Some("0")] {
        for (path, expected) in
            [("/a/page", "a"), ("/b/page", "b"), ("/deep/a/page", "deep"), ("/v/page", "one")]
        {
            let page = client.get(path).send_blocking();
            assert_eq!((page.text().as_str(), page.header("age")), (expected, age), "{path}");
        }
        assert_eq!(
            (get_version_2("/v/page").text().as_str(), get_version_2("/v/page").header("age")),
            ("two", Some("0"))
        );
    }
    let is_cached = |path: &str| client.get(path).send_blocking().header("age").is_some();
    assert_eq!(client.post("/a/page").send_blocking().status(), 200);
    assert_eq!((is_cached("/a/page"), is_cached("/b/page")), (false, true));
    store.invalidate("/b/page");
    assert_eq!(
        (is_cached("/a/page"), is_cached("/b/page")),
        (true, false),
        "by the path that clients request"
    );
    store.invalidate_prefix("/deep");
    assert_eq!((is_cached("/deep/a/page"), is_cached("/a/page")), (false, true));
}

#[test]
fn applications_that_share_an_idempotency_store_handle_each_request_once() {
    let store = MemoryIdempotencyStore::new();
    let idempotent_app = |name: &'static str| {
        let app = App::new().wrap(Idempotency::new(store.clone())).post("/pay", move || name);
        tower(into_tower(app).expect("the application is valid"))
    };
    let client =
        App::new().mount("/a", idempotent_app("a")).mount("/b", idempotent_app("b")).test();
    let pay = |path: &str| client.post(path).header("idempotency-key", "\"a\"").send_blocking();
    assert_eq!((pay("/a/pay").text(), pay("/a/pay").text()), ("a".to_owned(), "a".to_owned()));
    assert_eq!(pay("/b/pay").status(), 422, "it is a different request");
}

#[test]
fn pages_of_services_behind_different_guards_are_kept_apart() {
    let store = CacheStore::new();
    let cached_app = |name: &'static str| {
        let app = App::new().wrap(Cache::new(store.clone()));
        let app = app.get("/page", move || (FOR_A_MINUTE, name));
        tower(into_tower(app).expect("the application is valid"))
    };
    let guard = peregrine_web::guard::header("x-version", "2");
    let client = App::new()
        .scope("", |scope| scope.guard(guard).mount("/", cached_app("two")))
        .mount("/", cached_app("one"))
        .test();
    for age in [None, Some("0")] {
        let version_1 = client.get("/page").send_blocking();
        let version_2 = client.get("/page").header("x-version", "2").send_blocking();
        assert_eq!((version_1.text().as_str(), version_1.header("age")), ("one", age));
        assert_eq!((version_2.text().as_str(), version_2.header("age")), ("two", age));
    }
}

/// Requests a page from a service under a server that is not Peregrine's. Returns the content, and
/// whether the response is private.
async fn get_from_service<S, B>(service: &S, path: &str, name: Option<&str>) -> (String, bool)
where
    S: Service<http::Request<AxumBody>, Response = http::Response<B>, Error = Infallible> + Clone,
    B: http_body::Body<Error: std::fmt::Debug>,
{
    let request = http::Request::get(path);
    let request = name.into_iter().fold(request, |request, name| request.header("cookie", name));
    let request = request.body(AxumBody::empty()).expect("a request");
    let (parts, body) = service.clone().oneshot(request).await.expect("a response").into_parts();
    let content = body.collect().await.expect("a body").to_bytes();
    let is_private = parts.headers.get_all("cache-control").iter().any(|value| value == "private");
    (String::from_utf8_lossy(&content).into_owned(), is_private)
}

#[test]
fn a_cache_under_another_server_keeps_the_pages_of_clients_apart() {
    let app = || {
        App::new()
            .wrap(Cache::new(CacheStore::new()))
            .get("/page", |Ours(Name(name)): Ours<Name>| (FOR_A_MINUTE, name))
            .get("/own", |headers: HeaderMap| (FOR_A_MINUTE, client_name(&headers, None)))
    };
    let layer = || MapRequestLayer::new(identify::<AxumBody>);
    let local = layer().layer(into_tower(app()).expect("the application is valid"));
    let remote = spawn_tower(app).expect("the application is valid");
    let router = Router::new().fallback_service(remote).layer(layer());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        for path in ["/page", "/own"] {
            for name in [Some("ali"), Some("bob"), None, Some("ali")] {
                let direct = get_from_service(&local, path, name).await;
                let in_axum = get_from_service(&router, path, name).await;
                for (page, is_private) in [direct, in_axum] {
                    assert_eq!(page, name.unwrap_or("nobody"), "{path}");
                    // The application cannot see that the layer has identified the client.
                    assert_eq!(is_private, name.is_some() && path == "/own", "{path}");
                }
            }
        }
    });
}
