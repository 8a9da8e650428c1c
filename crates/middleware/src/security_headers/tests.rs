use super::*;
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::extract::{FromRequestParts, Path};
use peregrine_web::response::Html;
use peregrine_web::testing::{TestClient, TestResponse};
use peregrine_web::{App, HandlerExt, Next, Problem, TrustedProxies};
use std::collections::HashSet;
use std::sync::Arc;

const POLICY: &str = "content-security-policy";

fn client(headers: SecurityHeaders) -> TestClient {
    App::new()
        .wrap(headers)
        .get("/", || "plain")
        .get("/page", page)
        .get("/{x}", |Path(_): Path<u8>| "")
        .test()
}

async fn page(nonce: CspNonce) -> Html<String> {
    Html(format!("<script nonce=\"{nonce}\">"))
}

fn nonce_of(response: &TestResponse) -> Option<String> {
    let (_, rest) = response.field(POLICY)?.split_once("'nonce-")?;
    Some(rest.split('\'').next()?.to_owned())
}

#[test]
fn the_defaults_are_on_every_answer_and_give_way_to_the_response() {
    let client = client(SecurityHeaders::new());
    for (path, status) in [("/", 200), ("/nowhere/at/all", 404), ("/300", 400)] {
        let response = client.get(path).send_blocking();
        assert_eq!(response.status(), status);
        for (name, value) in [
            (POLICY, Some("base-uri 'self'; object-src 'none'; frame-ancestors 'none'")),
            ("x-frame-options", Some("DENY")),
            ("x-content-type-options", Some("nosniff")),
            ("referrer-policy", Some("strict-origin-when-cross-origin")),
            ("cross-origin-opener-policy", Some("same-origin")),
            ("cross-origin-resource-policy", Some("same-origin")),
            ("cross-origin-embedder-policy", None),
            ("permissions-policy", None),
            ("strict-transport-security", None),
            ("cache-control", None),
        ] {
            assert_eq!(response.field(name), value, "{path} {name}");
        }
    }
    let own = || [(POLICY, "default-src 'none'"), ("x-frame-options", "SAMEORIGIN")];
    let response =
        App::new().wrap(SecurityHeaders::new()).get("/", own).test().get("/").send_blocking();
    assert_eq!(
        (response.field(POLICY), response.field("x-frame-options")),
        (Some("default-src 'none'"), Some("SAMEORIGIN"))
    );
}

#[test]
fn a_page_with_a_nonce_is_not_stored_though_a_session_made_it_private() {
    for (own, expected) in [("private", "no-store"), ("private, max-age=60", "private, max-age=60")]
    {
        let page = move |nonce: CspNonce| ([("cache-control", own)], nonce.to_string());
        let headers = SecurityHeaders::new().csp(Csp::strict());
        let response = App::new().wrap(headers).get("/", page).test().get("/").send_blocking();
        assert_eq!(response.field("cache-control"), Some(expected));
    }
}

#[test]
fn tls_is_promised_where_the_client_speaks_it_behind_trusted_proxies_too() {
    let tls = || ConnectionInfo { tls: Some(Arc::default()), ..ConnectionInfo::default() };
    let hsts = |client: &TestClient, forwarded: &str| {
        let response = client.get("/").header("x-forwarded-proto", forwarded).send_blocking();
        response.field("strict-transport-security").map(str::to_owned)
    };
    let year = Some("max-age=31536000".to_owned());
    let make = || client(SecurityHeaders::new());
    assert_eq!(hsts(&make(), "https"), None, "the proxy is not trusted");
    assert_eq!(hsts(&make().with_connection(tls()), "http"), year);
    let proxied = make().with_trusted_proxies(TrustedProxies::hops(1));
    assert_eq!((hsts(&proxied, "https"), hsts(&proxied, "http")), (year, None));
    let proxied = make().with_connection(tls()).with_trusted_proxies(TrustedProxies::hops(1));
    assert_eq!(hsts(&proxied, "http"), None, "the client does not use TLS");
    for (headers, expected) in [
        (
            SecurityHeaders::new().hsts(Duration::from_secs(60), true),
            Some("max-age=60; includeSubDomains"),
        ),
        (SecurityHeaders::new().hsts(Duration::ZERO, false), Some("max-age=0")),
        (
            SecurityHeaders::new().hsts_preload(),
            Some("max-age=63072000; includeSubDomains; preload"),
        ),
        (SecurityHeaders::new().without_hsts(), None),
    ] {
        assert_eq!(hsts(&client(headers).with_connection(tls()), "").as_deref(), expected);
    }
}

#[test]
fn a_nonce_is_made_for_who_asks_and_never_twice() {
    let client = client(SecurityHeaders::new().csp(Csp::strict()));
    let mut seen = HashSet::new();
    for _ in 0..100 {
        let response = client.get("/page").send_blocking();
        let nonce = nonce_of(&response).expect("a nonce");
        assert_eq!(response.text(), format!("<script nonce=\"{nonce}\">"));
        assert_eq!(response.field("cache-control"), Some("no-store"));
        assert!(nonce.len() == 32 && seen.insert(nonce));
    }
    let plain = client.get("/").send_blocking();
    let policy =
        "script-src 'strict-dynamic'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'";
    assert_eq!((plain.field(POLICY), plain.field("cache-control")), (Some(policy), None));
    let only = Csp::new().style_src([NONCE]);
    let client = super::tests::client(SecurityHeaders::new().csp(only));
    let expected = Some("style-src 'none'; frame-ancestors 'none'");
    assert_eq!(client.get("/").send_blocking().field(POLICY), expected, "no source allows nothing");
}

#[test]
fn requests_that_wait_beside_each_other_have_nonces_of_their_own() {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    async fn twice(first: CspNonce, mut request: Request) -> Result<String, Problem> {
        // The other request is polled here.
        let mut has_waited = false;
        std::future::poll_fn(|_| {
            if std::mem::replace(&mut has_waited, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let second = CspNonce::from_request_parts(&mut request.parts).await?;
        assert_eq!(first, second);
        Ok(first.to_string())
    }
    let client = App::new().wrap(SecurityHeaders::new().csp(Csp::strict())).get("/", twice).test();
    let (mut one, mut other) = (pin!(client.get("/").send()), pin!(client.get("/").send()));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(one.as_mut().poll(&mut cx).is_pending() && other.as_mut().poll(&mut cx).is_pending());
    let (Poll::Ready(one), Poll::Ready(other)) =
        (one.as_mut().poll(&mut cx), other.as_mut().poll(&mut cx))
    else {
        panic!("both are done")
    };
    assert_eq!((nonce_of(&one), nonce_of(&other)), (Some(one.text()), Some(other.text())));
    assert_ne!(one.text(), other.text());
}

#[test]
fn middleware_may_ask_and_without_a_policy_there_is_none() {
    async fn ask(nonce: Option<CspNonce>, request: Request, next: Next<'_>) -> Response {
        let response = next.run(request).await;
        let text = nonce.map_or("none".to_owned(), |nonce| nonce.to_string());
        response.with_header(
            HeaderName::from_static("x-nonce"),
            HeaderValue::try_from(text).expect("text"),
        )
    }
    let app = |headers| {
        App::new()
            .wrap(headers)
            .wrap(ask)
            .get("/", page.run_to_completion())
            .test()
            .get("/")
            .send_blocking()
    };
    let response = app(SecurityHeaders::new().csp(Csp::strict()));
    assert_eq!(response.field("x-nonce").map(str::to_owned), nonce_of(&response));
    for headers in [SecurityHeaders::new(), SecurityHeaders::new().without_csp()] {
        let response = app(headers);
        assert_eq!((response.status().as_u16(), response.field("x-nonce")), (500, Some("none")));
        assert!(response.text().contains("missing-csp-nonce"));
    }
}

#[test]
fn a_policy_that_only_reports_has_its_own_field() {
    let csp = Csp::new()
        .default_src(["'self'"])
        .report_to("main")
        .upgrade_insecure_requests()
        .report_only();
    let response = client(SecurityHeaders::new().csp(csp)).get("/").send_blocking();
    let expected =
        "default-src 'self'; report-to main; upgrade-insecure-requests; frame-ancestors 'none'";
    assert_eq!(response.field("content-security-policy-report-only"), Some(expected));
    assert_eq!(response.field(POLICY), None);
}

#[test]
fn what_browsers_would_not_understand_is_found_at_start() {
    let new = SecurityHeaders::new;
    let csp = |source: &str| new().csp(Csp::new().script_src([source]));
    for (headers, word) in [
        (csp("self"), "keywords have quotes"),
        (csp("'Self"), "a quote is not closed"),
        (csp("'nonce-abc'"), "gives no protection"),
        (csp("'secure'"), "not a keyword"),
        (csp("https://a.test; script-src *"), "one by one"),
        (csp("a, b"), "one by one"),
        (csp("a\r\nx: y"), "one by one"),
        (csp(""), "one by one"),
        (csp(&"x".repeat(5000)), "at most 4096"),
        (new().csp(Csp::new().directive("Script Src", ["*"])), "not a directive name"),
        (new().csp(Csp::new().img_src(["'none'", "data:"])), "beside other sources"),
        (new().frame_ancestors(["none"]), "keywords have quotes"),
        (new().referrer_policy("never"), "is not one of no-referrer"),
        (new().cross_origin_opener_policy("x"), "cross_origin_opener_policy"),
        (new().cross_origin_resource_policy("x"), "cross_origin_resource_policy"),
        (new().cross_origin_embedder_policy("x\n"), "cross_origin_embedder_policy"),
        (new().permissions_policy(PermissionsPolicy::new().deny("Camera")), "not a feature name"),
        (
            new().permissions_policy(PermissionsPolicy::new().allow("camera", ["a.test"])),
            "neither self",
        ),
        (
            new().permissions_policy(PermissionsPolicy::new().allow("camera", ["https://a\"b"])),
            "neither self",
        ),
    ] {
        let error =
            App::new().wrap(headers).get("/", || "").build().expect_err("wrong").to_string();
        assert!(error.contains("SecurityHeaders: ") && error.contains(word), "{word}: {error}");
    }
    let all = new()
        .referrer_policy("")
        .cross_origin_opener_policy("")
        .cross_origin_resource_policy("")
        .cross_origin_embedder_policy("require-corp");
    let response = client(all.frame_ancestors(["https://portal.test"])).get("/").send_blocking();
    assert_eq!(response.field("cross-origin-embedder-policy"), Some("require-corp"));
    for name in [
        "referrer-policy",
        "cross-origin-opener-policy",
        "cross-origin-resource-policy",
        "x-frame-options",
    ] {
        assert_eq!(response.field(name), None, "{name}");
    }
}
