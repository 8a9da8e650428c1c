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

fn of_certificate(client: Option<&Arc<ClientIdentity>>) -> Page {
    page_for(client.map(|client| client.subject.clone()))
}

fn in_cookie(cookie: Option<&[u8]>) -> Page {
    page_for(cookie.map(|cookie| String::from_utf8_lossy(cookie).replace("user=", "")))
}

/// Pages that identify their clients as their names say.
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
            in_cookie(request.header("cookie").map(str::as_bytes))
        })
        .get("/cookie/named", |request: Request| {
            in_cookie(request.parts.head.header_values("cookie").next())
        })
        .get("/cookie/fields", |request: Request| {
            in_cookie(
                request.headers().find(|(name, _)| *name == b"cookie").map(|(_, value)| value),
            )
        })
        .get("/cookie/map", |map: HeaderMap| {
            in_cookie(map.get("cookie").map(http::HeaderValue::as_bytes))
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
        .get("/tls/info", |info: ConnectionInfo| of_certificate(info.client_identity()))
        .get("/tls/shared", |info: Rc<ConnectionInfo>| of_certificate(info.client_identity()))
        .get("/tls/tls", |tls: Option<TlsInfo>| {
            of_certificate(tls.as_ref().and_then(|tls| tls.client_identity.as_ref()))
        })
        .get("/tls/parts", |request: Request| {
            of_certificate(request.parts.connection().client_identity())
        })
        .get("/tls/client", |client: Option<ClientIdentity>| {
            page_for(client.map(|one| one.subject))
        })
        .get("/tls/shared-client", |client: Option<Arc<ClientIdentity>>| {
            of_certificate(client.as_ref())
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

/// Requests the page as this client.
fn ask(client: &TestClient, path: &str, name: Option<&str>) -> TestResponse {
    let Some(name) = name else { return client.get(path).send_blocking() };
    let sealed = || {
        let set = client.get(&format!("/in/{name}")).send_blocking();
        let cookies = set.headers().iter().filter(|(field, _)| **field == http::header::SET_COOKIE);
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
fn each_client_is_given_its_own_page_from_behind_a_cache() {
    for path in PATHS {
        for first in [Some("ali"), None] {
            let keys = CookieKeys::new(&[3; 32]);
            let app = App::new().state(keys).wrap(Cache::new(CacheStore::new()));
            let client = pages(app).test();
            for name in [first, Some("bob"), None, Some("ali"), Some("bob"), None] {
                let page = ask(&client, path, name);
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
        .get("/tls/tls", |tls: TlsInfo| of_certificate(tls.client_identity.as_ref()))
        .get("/tls/client", |client: ClientIdentity| page_for(Some(client.subject)))
        .get("/tls/shared-client", |client: Arc<ClientIdentity>| of_certificate(Some(&client)))
        .test();
    for path in ["/tls/tls", "/tls/client", "/tls/shared-client"] {
        for name in ["ali", "bob", "ali"] {
            assert_eq!(ask(&client, path, Some(name)).text(), name, "{path}");
        }
        assert_eq!(ask(&client, path, None).status(), 403, "{path}");
    }
}

#[test]
fn clients_without_an_identity_share_what_was_made_for_one_of_them() {
    for path in PATHS {
        let keys = CookieKeys::new(&[3; 32]);
        let client = pages(App::new().state(keys).wrap(Cache::new(CacheStore::new()))).test();
        let controls = |page: &TestResponse| {
            let all = page.headers().iter();
            all.filter(|(name, _)| **name == http::header::CACHE_CONTROL).count()
        };
        let first = ask(&client, path, None);
        let again = ask(&client, path, None);
        assert_eq!(controls(&again), controls(&first), "{path}: the same privacy as at first");
        let again = again.header("age").map(str::to_owned);
        // `ClientIdentity` as an argument always makes the response personal.
        let is_kept = !path.ends_with("client");
        assert_eq!(again.is_some(), is_kept, "{path}");
    }
}

#[test]
fn a_page_that_says_that_it_is_for_all_is_kept_whoever_asked_for_it() {
    for control in ["max-age=60, public", "s-maxage=60"] {
        let page = move |cookies: Cookies| {
            ([("cache-control", control)], cookies.value("user").unwrap_or("nobody").to_owned())
        };
        let client =
            App::new().wrap(Cache::new(CacheStore::new())).get("/cookie/plain", page).test();
        for name in [Some("ali"), Some("bob"), None] {
            let shared = ask(&client, "/cookie/plain", name);
            assert_eq!(
                (shared.text().as_str(), shared.header("cache-control")),
                ("ali", Some(control))
            );
        }
    }
}

#[test]
fn a_cache_outside_of_a_check_of_certificates_lets_nobody_past_it() {
    let client = App::new()
        .wrap(Cache::new(CacheStore::new()))
        .wrap(RequireClientIdentity::new().allow(|client| client.subject == "ali"))
        .get("/tls", || ([("cache-control", "max-age=60")], "secret"))
        .test();
    for (name, status) in [(Some("ali"), 200), (None, 403), (Some("bob"), 403), (Some("ali"), 200)]
    {
        assert_eq!(ask(&client, "/tls", name).status(), status, "{name:?}");
    }
}

#[test]
fn who_looks_at_an_address_does_not_keep_cookies_out_of_the_cache() {
    let page =
        |info: Rc<ConnectionInfo>| ([("cache-control", "max-age=60")], info.peer.to_string());
    let client = App::new().wrap(Cache::new(CacheStore::new())).get("/", page).test();
    drop(client.get("/").header("cookie", "theme=dark").send_blocking());
    assert_eq!(client.get("/").send_blocking().header("age"), Some("0"));
}

#[test]
fn a_key_of_one_client_carries_nothing_to_another() {
    for is_mine in [true, false] {
        for by in ["cookie", "certificate", "PROXY header"] {
            let pay = |request: Request| {
                let cookie = request.header("cookie").unwrap_or_default();
                let certificate = request.parts.connection().client_identity();
                format!("{cookie}{} pays", certificate.map_or("", |client| &client.subject))
            };
            let app = App::new().wrap(Idempotency::new(MemoryIdempotencyStore::new()));
            let client = app.post("/", pay).post("/silent", || "paid").test();
            for path in ["/", "/silent"] {
                let send = |name: &str| {
                    let client = match by {
                        "certificate" => client.clone().with_connection(connection(name)),
                        "PROXY header" => client.clone().with_connection(proxied(name)),
                        _ => client.clone(),
                    };
                    let request = client.post(path).header("idempotency-key", format!("k{path}"));
                    match by {
                        "cookie" => request.header("cookie", name).send_blocking(),
                        _ => request.send_blocking(),
                    }
                };
                assert_eq!(send("ali").status(), 200);
                let again = send(if is_mine { "ali" } else { "bob" });
                let expected = if is_mine { (200, Some("true")) } else { (409, None) };
                let got = (again.status().as_u16(), again.header("idempotent-replayed"));
                assert_eq!(got, expected, "{path} by {by}: {}", again.text());
            }
        }
    }
}
