//! A response of a mounted service, or of a handler inside a tower layer, to one client is not sent
//! to another.

use axum::body::Body as AxumBody;
use axum::routing::{get, post};
use axum::{Extension, Router};
use http::HeaderMap;
use http_body_util::BodyExt;
use peregrine::cache::{Cache, CacheStore, Idempotency, MemoryIdempotencyStore};
use peregrine_mount::{Mount, into_tower, layer, spawn_tower, tower};
use peregrine_web::App;
use peregrine_web::connection::{ClientIdentity, ConnectionInfo, TlsInfo};
use peregrine_web::extract::Extension as Ours;
use peregrine_web::testing::{TestClient, TestResponse};
use std::convert::Infallible;
use std::sync::Arc;
use tower::util::MapRequestLayer;
use tower::{Layer, Service, ServiceExt};

const FOR_A_MINUTE: [(&str, &str); 1] = [("cache-control", "max-age=60")];

/// The client's name in the request.
fn name_in(fields: &HeaderMap, info: Option<&ConnectionInfo>) -> String {
    let field = ["cookie", "authorization", "x-api-key"].iter().find_map(|name| fields.get(*name));
    let certificate =
        info.and_then(ConnectionInfo::client_identity).map(|client| client.subject.clone());
    let field = field.and_then(|value| value.to_str().ok()).map(str::to_owned);
    field.or(certificate).unwrap_or("nobody".to_owned())
}

fn router() -> Router {
    let page = async |Extension(info): Extension<ConnectionInfo>, fields: HeaderMap| {
        (FOR_A_MINUTE, name_in(&fields, Some(&info)))
    };
    let plain = async |fields: HeaderMap| name_in(&fields, None);
    Router::new().route("/page", get(page)).route("/pay", post(plain))
}

#[derive(Clone)]
struct Name(String);

fn identify<B>(mut request: http::Request<B>) -> http::Request<B> {
    let name = name_in(request.headers(), request.extensions().get::<ConnectionInfo>());
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
        .get("/page", |fields: HeaderMap, info: ConnectionInfo| {
            (FOR_A_MINUTE, name_in(&fields, Some(&info)))
        })
        .post("/pay", |fields: HeaderMap| name_in(&fields, None))
}

fn kinds(around: impl Fn() -> App) -> [(&'static str, &'static str, TestClient); 4] {
    let mounted = || tower(router()).extension(ConnectionInfo::clone);
    let inner = tower(into_tower(inner()).expect("a valid app")).extension(ConnectionInfo::clone);
    [
        ("mount", "/below", around().mount("/below", mounted()).test()),
        ("subtree", "", around().subtree("/", mounted()).test()),
        ("layer", "", layered(around()).test()),
        ("application", "/below", around().mount("/below", inner).test()),
    ]
}

fn connection(name: &str) -> ConnectionInfo {
    let fingerprint = std::array::from_fn(|_| name.as_bytes()[0]);
    let client = ClientIdentity { subject: name.to_owned(), fingerprint, ..<_>::default() };
    let tls = TlsInfo { client_identity: Some(Arc::new(client)), ..TlsInfo::default() };
    ConnectionInfo { tls: Some(Arc::new(tls)), ..ConnectionInfo::default() }
}

const WAYS: [&str; 4] = ["cookie", "authorization", "x-api-key", "certificate"];

fn ask(client: &TestClient, way: &str, path: &str, name: Option<&str>) -> TestResponse {
    match name {
        None => client.get(path).send_blocking(),
        Some(name) if way == "certificate" => {
            client.clone().with_connection(connection(name)).get(path).send_blocking()
        }
        Some(name) => client.get(path).header(way, name).send_blocking(),
    }
}

#[test]
fn each_client_of_a_mount_is_given_its_own_page_from_behind_a_cache() {
    for way in WAYS {
        for (kind, below, client) in kinds(|| App::new().wrap(Cache::new(CacheStore::new()))) {
            let path = format!("{below}/page");
            for name in [Some("ali"), Some("bob"), None, Some("ali"), None] {
                let page = ask(&client, way, &path, name);
                let expected = name.unwrap_or("nobody");
                assert_eq!(page.text(), expected, "{way} {kind}");
                let is_private = page.headers().iter().any(|(_, value)| value == "private");
                assert!(is_private || name.is_none() || kind == "layer", "{way} {kind}");
            }
            let age = ask(&client, way, &path, None).header("age").map(str::to_owned);
            assert!(age.is_some(), "{way} {kind}: clients without an identity share it");
        }
    }
}

#[test]
fn a_key_of_one_client_of_a_mount_carries_nothing_to_another() {
    let around = || App::new().wrap(Idempotency::new(MemoryIdempotencyStore::new()));
    for (kind, below, client) in kinds(around) {
        let pay = |name: &str| {
            let request = client.post(&format!("{below}/pay")).header("idempotency-key", "\"a\"");
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
fn a_client_that_a_mounted_application_identifies_by_itself_is_told_apart_outside() {
    let find = async |request: peregrine_web::Request, next: peregrine_web::Next<'_>| {
        peregrine_web::private_response::PrivateResponse::mark(&request.parts);
        next.run(request).await
    };
    let name = |request: peregrine_web::Request| {
        (FOR_A_MINUTE, request.header("x-customer").unwrap_or("nobody").to_owned())
    };
    let inner = App::new().wrap(find).get("/page", name).post("/pay", name);
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

/// Two applications that are mounted in another and share a store.
fn neighbours(store: &CacheStore) -> TestClient {
    let one = |name: &'static str| {
        let changed = || "changed";
        let app = App::new().wrap(Cache::new(store.clone()));
        let app = app.get("/page", move || (FOR_A_MINUTE, name)).post("/page", changed);
        tower(into_tower(app).expect("the application is valid"))
    };
    let by_field = || peregrine_web::guard::header("x-version", "2");
    App::new()
        .mount("/a", one("a"))
        .mount("/b", one("b"))
        .scope("/deep", |scope| scope.mount("/a", one("deep")))
        .scope("/v", |scope| scope.guard(by_field()).mount("/", one("two")))
        .scope("/v", |scope| scope.mount("/", one("one")))
        .test()
}

#[test]
fn applications_that_share_a_store_keep_their_pages_apart() {
    let store = CacheStore::new();
    let client = neighbours(&store);
    let new = |path: &str| client.get(path).header("x-version", "2").send_blocking();
    for age in [None, Some("0")] {
        for (path, expected) in
            [("/a/page", "a"), ("/b/page", "b"), ("/deep/a/page", "deep"), ("/v/page", "one")]
        {
            let page = client.get(path).send_blocking();
            assert_eq!((page.text().as_str(), page.header("age")), (expected, age), "{path}");
        }
        assert_eq!(
            (new("/v/page").text().as_str(), new("/v/page").header("age")),
            ("two", Some("0"))
        );
    }
    let is_kept = |path: &str| client.get(path).send_blocking().header("age").is_some();
    assert_eq!(client.post("/a/page").send_blocking().status(), 200);
    assert_eq!((is_kept("/a/page"), is_kept("/b/page")), (false, true));
    store.invalidate("/b/page");
    assert_eq!(
        (is_kept("/a/page"), is_kept("/b/page")),
        (true, false),
        "by the path that clients request"
    );
    store.invalidate_prefix("/deep");
    assert_eq!((is_kept("/deep/a/page"), is_kept("/a/page")), (false, true));
}

#[test]
fn applications_that_share_a_store_of_keys_carry_out_each_request_once() {
    let store = MemoryIdempotencyStore::new();
    let one = |name: &'static str| {
        let app = App::new().wrap(Idempotency::new(store.clone())).post("/pay", move || name);
        tower(into_tower(app).expect("the application is valid"))
    };
    let client = App::new().mount("/a", one("a")).mount("/b", one("b")).test();
    let pay = |path: &str| client.post(path).header("idempotency-key", "\"a\"").send_blocking();
    assert_eq!((pay("/a/pay").text(), pay("/a/pay").text()), ("a".to_owned(), "a".to_owned()));
    assert_eq!(pay("/b/pay").status(), 422, "it is a different request");
}

#[test]
fn a_guard_around_services_at_the_root_keeps_their_pages_apart() {
    let store = CacheStore::new();
    let one = |name: &'static str| {
        let app = App::new().wrap(Cache::new(store.clone()));
        let app = app.get("/page", move || (FOR_A_MINUTE, name));
        tower(into_tower(app).expect("the application is valid"))
    };
    let by_field = peregrine_web::guard::header("x-version", "2");
    let client = App::new()
        .scope("", |scope| scope.guard(by_field).mount("/", one("two")))
        .mount("/", one("one"))
        .test();
    for age in [None, Some("0")] {
        let old = client.get("/page").send_blocking();
        let new = client.get("/page").header("x-version", "2").send_blocking();
        assert_eq!((old.text().as_str(), old.header("age")), ("one", age));
        assert_eq!((new.text().as_str(), new.header("age")), ("two", age));
    }
}

/// Requests a page from a service under a server that is not Peregrine's. Returns the content, and
/// whether the response is private.
async fn ask_service<S, B>(service: &S, path: &str, name: Option<&str>) -> (String, bool)
where
    S: Service<http::Request<AxumBody>, Response = http::Response<B>, Error = Infallible> + Clone,
    B: http_body::Body<Error: std::fmt::Debug>,
{
    let request = http::Request::get(path);
    let request = name.into_iter().fold(request, |all, name| all.header("cookie", name));
    let request = request.body(AxumBody::empty()).expect("a request");
    let (parts, body) = service.clone().oneshot(request).await.expect("a response").into_parts();
    let content = body.collect().await.expect("a body").to_bytes();
    let is_private = parts.headers.get_all("cache-control").iter().any(|value| value == "private");
    (String::from_utf8_lossy(&content).into_owned(), is_private)
}

#[test]
fn under_another_server_each_client_is_given_its_own_page() {
    let app = || {
        App::new()
            .wrap(Cache::new(CacheStore::new()))
            .get("/page", |Ours(Name(name)): Ours<Name>| (FOR_A_MINUTE, name))
            .get("/own", |fields: HeaderMap| (FOR_A_MINUTE, name_in(&fields, None)))
    };
    let layer = || MapRequestLayer::new(identify::<AxumBody>);
    let local = layer().layer(into_tower(app()).expect("the application is valid"));
    let remote = spawn_tower(app).expect("the application is valid");
    let router = Router::new().fallback_service(remote).layer(layer());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        for path in ["/page", "/own"] {
            for name in [Some("ali"), Some("bob"), None, Some("ali")] {
                let alone = ask_service(&local, path, name).await;
                let in_axum = ask_service(&router, path, name).await;
                for (page, is_private) in [alone, in_axum] {
                    assert_eq!(page, name.unwrap_or("nobody"), "{path}");
                    // The application cannot see that the layer has identified the client.
                    assert_eq!(is_private, name.is_some() && path == "/own", "{path}");
                }
            }
        }
    });
}
