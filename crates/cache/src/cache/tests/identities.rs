//! A response for one client is not sent to another, however the handler identifies clients.

use super::*;
use crate::{Idempotency, MemoryIdempotencyStore};
use http::HeaderMap;
use peregrine::auth::{ApiKey, BasicAuth, BearerToken};
use peregrine::middleware::RequireClientIdentity;
use peregrine_web::connection::{
    ClientIdentity, ConnectionInfo, ProxyProtocolInfo, ProxyProtocolTls, TlsInfo,
};
use peregrine_web::cookies::{Cookie, CookieKeys, Cookies, PrivateCookies, SignedCookies};
use std::sync::Arc;

/// A page with its client's name and a lifetime.
type Page = ([(&'static str, &'static str); 1], String);

fn page_for(name: Option<impl Into<String>>) -> Page {
    ([("cache-control", "max-age=60")], name.map_or("nobody".to_owned(), Into::into))
}

fn certificate_page(client: Option<&Arc<ClientIdentity>>) -> Page {
    page_for(client.map(|client| client.subject.clone()))
}

fn cookie_page(cookie: Option<&[u8]>) -> Page {
    page_for(cookie.map(|cookie| String::from_utf8_lossy(cookie).replace("user=", "")))
}

/// Pages that identify their clients in the way their paths name.
fn pages(app: App) -> App {
    app.get(
        "/in/{name}",
        |private: PrivateCookies, signed: SignedCookies, Path(name): Path<String>| {
            (
                private.add(Cookie::new("sealed", name.clone())),
                signed.add(Cookie::new("signed", name)),
                "in",
            )
        },
    )
    .register(by_cookie)
    .register(by_credentials)
    .register(by_certificate)
}

fn by_cookie(scope: peregrine_web::Scope) -> peregrine_web::Scope {
    scope
        .get("/cookie/private", |cookies: PrivateCookies| page_for(cookies.value("sealed")))
        .get("/cookie/signed", |cookies: SignedCookies| page_for(cookies.value("signed")))
        .get("/cookie/plain", |cookies: Cookies| page_for(cookies.value("user")))
        .get("/cookie/field", |request: Request| {
            cookie_page(request.header("cookie").map(str::as_bytes))
        })
        .get("/cookie/named", |request: Request| {
            cookie_page(request.parts.head.header_values("cookie").next())
        })
        .get("/cookie/fields", |request: Request| {
            cookie_page(
                request.headers().find(|(name, _)| *name == b"cookie").map(|(_, value)| value),
            )
        })
        .get("/cookie/map", |map: HeaderMap| {
            cookie_page(map.get("cookie").map(http::HeaderValue::as_bytes))
        })
}

fn by_credentials(scope: peregrine_web::Scope) -> peregrine_web::Scope {
    scope
        .get("/basic", |user: Option<BasicAuth>| page_for(user.map(|user| user.username)))
        .get("/bearer", |token: Option<BearerToken>| {
            page_for(token.map(|BearerToken(token)| token))
        })
        .get("/key", |key: Option<ApiKey>| page_for(key.map(|ApiKey(key)| key)))
        .get("/key/field", |request: Request| page_for(request.header("x-api-key")))
}

fn by_certificate(scope: peregrine_web::Scope) -> peregrine_web::Scope {
    scope
        .get("/tls/info", |info: ConnectionInfo| certificate_page(info.client_identity()))
        .get("/tls/shared", |info: Rc<ConnectionInfo>| certificate_page(info.client_identity()))
        .get("/tls/tls", |tls: Option<TlsInfo>| {
            certificate_page(tls.as_ref().and_then(|tls| tls.client_identity.as_ref()))
        })
        .get("/tls/parts", |request: Request| {
            certificate_page(request.parts.connection().client_identity())
        })
        .get("/tls/client", |client: Option<ClientIdentity>| {
            page_for(client.map(|client| client.subject))
        })
        .get("/tls/shared-client", |client: Option<Arc<ClientIdentity>>| {
            certificate_page(client.as_ref())
        })
}

fn connection(name: &str) -> ConnectionInfo {
    let client = ClientIdentity {
        subject: name.to_owned(),
        fingerprint: std::array::from_fn(|_| name.as_bytes()[0]),
        ..ClientIdentity::default()
    };
    let tls = TlsInfo { client_identity: Some(Arc::new(client)), ..TlsInfo::default() };
    ConnectionInfo { tls: Some(Arc::new(tls)), ..ConnectionInfo::default() }
}

/// The connection of a proxy that names the client's certificate in a PROXY header.
fn proxied(name: &str) -> ConnectionInfo {
    let tls =
        ProxyProtocolTls { common_name: Some(name.to_owned()), ..ProxyProtocolTls::default() };
    let proxy = ProxyProtocolInfo { tls: Some(tls), ..ProxyProtocolInfo::default() };
    ConnectionInfo { proxy_protocol: Some(Arc::new(proxy)), ..ConnectionInfo::default() }
}

/// Requests the page with the identity that its path expects.
fn get_as(client: &TestClient, path: &str, name: Option<&str>) -> TestResponse {
    let Some(name) = name else { return client.get(path).send_blocking() };
    let sealed = || {
        let response = client.get(&format!("/in/{name}")).send_blocking();
        let cookies =
            response.headers().iter().filter(|(field, _)| **field == http::header::SET_COOKIE);
        cookies
            .map(|(_, value)| value.to_str().expect("text").to_owned())
            .collect::<Vec<_>>()
            .join("; ")
    };
    match path.split('/').nth(1).expect("a path") {
        "cookie" if path.ends_with("private") || path.ends_with("signed") => {
            client.get(path).header("cookie", sealed()).send_blocking()
        }
        "cookie" => client.get(path).header("cookie", format!("user={name}")).send_blocking(),
        "basic" => {
            let encoded = match name {
                "ali" => "Basic YWxpOg==",
                _ => "Basic Ym9iOg==",
            };
            client.get(path).header("authorization", encoded).send_blocking()
        }
        "bearer" => {
            client.get(path).header("authorization", format!("Bearer {name}")).send_blocking()
        }
        "key" => client.get(path).header("x-api-key", name).send_blocking(),
        _ => client.clone().with_connection(connection(name)).get(path).send_blocking(),
    }
}

const PATHS: [&str; 17] = [
    "/cookie/private",
    "/cookie/signed",
    "/cookie/plain",
    "/cookie/field",
    "/cookie/named",
    "/cookie/fields",
    "/cookie/map",
    "/basic",
    "/bearer",
    "/key",
    "/key/field",
    "/tls/info",
    "/tls/shared",
    "/tls/tls",
    "/tls/parts",
    "/tls/client",
    "/tls/shared-client",
];

#[test]
fn each_client_gets_its_own_page_through_a_cache() {
    for path in PATHS {
        for first in [Some("ali"), None] {
            let keys = CookieKeys::new(&[3; 32]);
            let app = App::new().state(keys).wrap(Cache::new(CacheStore::new()));
            let client = pages(app).test();
            for name in [first, Some("bob"), None, Some("ali"), Some("bob"), None] {
                let page = get_as(&client, path, name);
                assert_eq!(page.text(), name.unwrap_or("nobody"), "{path}, first {first:?}");
                let is_private = page.headers().iter().any(|(_, value)| value == "private");
                assert!(is_private || name.is_none(), "{path} for {name:?}: {:?}", page.headers());
            }
        }
    }
}

#[test]
fn a_page_that_requires_an_identity_is_not_sent_to_another_client() {
    let client = App::new()
        .wrap(Cache::new(CacheStore::new()))
        .get("/tls/tls", |tls: TlsInfo| certificate_page(tls.client_identity.as_ref()))
        .get("/tls/client", |client: ClientIdentity| page_for(Some(client.subject)))
        .get("/tls/shared-client", |client: Arc<ClientIdentity>| certificate_page(Some(&client)))
        .test();
    for path in ["/tls/tls", "/tls/client", "/tls/shared-client"] {
        for name in ["ali", "bob", "ali"] {
            assert_eq!(get_as(&client, path, Some(name)).text(), name, "{path}");
        }
        assert_eq!(get_as(&client, path, None).status(), 403, "{path}");
    }
}

#[test]
fn clients_without_an_identity_share_stored_responses() {
    for path in PATHS {
        let keys = CookieKeys::new(&[3; 32]);
        let client = pages(App::new().state(keys).wrap(Cache::new(CacheStore::new()))).test();
        let controls = |page: &TestResponse| {
            let fields = page.headers().iter();
            fields.filter(|(name, _)| **name == http::header::CACHE_CONTROL).count()
        };
        let first = get_as(&client, path, None);
        let again = get_as(&client, path, None);
        assert_eq!(controls(&again), controls(&first), "{path}: the same privacy as at first");
        assert!(again.header("age").is_some(), "{path}");
    }
}

#[test]
fn a_public_page_is_stored_even_for_an_identified_client() {
    for control in ["max-age=60, public", "s-maxage=60"] {
        let page = move |cookies: Cookies| {
            ([("cache-control", control)], cookies.value("user").unwrap_or("nobody").to_owned())
        };
        let client =
            App::new().wrap(Cache::new(CacheStore::new())).get("/cookie/plain", page).test();
        for name in [Some("ali"), Some("bob"), None] {
            let shared = get_as(&client, "/cookie/plain", name);
            assert_eq!(
                (shared.text().as_str(), shared.header("cache-control")),
                ("ali", Some(control))
            );
        }
    }
}

#[test]
fn a_cache_outside_a_certificate_check_does_not_bypass_it() {
    let client = App::new()
        .wrap(Cache::new(CacheStore::new()))
        .wrap(RequireClientIdentity::new().allow(|client| client.subject == "ali"))
        .get("/tls", || ([("cache-control", "max-age=60")], "secret"))
        .test();
    for (name, status) in [(Some("ali"), 200), (None, 403), (Some("bob"), 403), (Some("ali"), 200)]
    {
        assert_eq!(get_as(&client, "/tls", name).status(), status, "{name:?}");
    }
}

#[test]
fn reading_the_peer_address_does_not_make_a_response_private() {
    let page =
        |info: Rc<ConnectionInfo>| ([("cache-control", "max-age=60")], info.peer.to_string());
    let client = App::new().wrap(Cache::new(CacheStore::new())).get("/", page).test();
    drop(client.get("/").header("cookie", "theme=dark").send_blocking());
    assert_eq!(client.get("/").send_blocking().header("age"), Some("0"));
}

#[test]
fn an_idempotency_key_does_not_replay_to_another_client() {
    for is_same_client in [true, false] {
        for source in ["cookie", "certificate", "PROXY header"] {
            let handler = |request: Request| {
                let cookie = request.header("cookie").unwrap_or_default();
                let certificate = request.parts.connection().client_identity();
                format!("{cookie}{} pays", certificate.map_or("", |client| &client.subject))
            };
            let app = App::new().wrap(Idempotency::new(MemoryIdempotencyStore::new()));
            let client = app.post("/", handler).post("/silent", || "paid").test();
            for path in ["/", "/silent"] {
                let send = |name: &str| {
                    let client = match source {
                        "certificate" => client.clone().with_connection(connection(name)),
                        "PROXY header" => client.clone().with_connection(proxied(name)),
                        _ => client.clone(),
                    };
                    let request = client.post(path).header("idempotency-key", format!("k{path}"));
                    match source {
                        "cookie" => request.header("cookie", name).send_blocking(),
                        _ => request.send_blocking(),
                    }
                };
                assert_eq!(send("ali").status(), 200);
                let again = send(if is_same_client { "ali" } else { "bob" });
                let expected = if is_same_client { (200, Some("true")) } else { (409, None) };
                let actual = (again.status().as_u16(), again.header("idempotent-replayed"));
                assert_eq!(actual, expected, "{path} by {source}: {}", again.text());
            }
        }
    }
}
