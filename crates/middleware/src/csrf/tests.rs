use super::*;
use http::Method;
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::extract::Form;
use peregrine_web::testing::{TestClient, TestResponse};
use peregrine_web::{App, HandlerExt, TrustedProxies};
use std::collections::HashMap;
use std::sync::Arc;

fn client(csrf: Csrf) -> TestClient {
    let app = App::new().wrap(csrf).any("/", || "done");
    let app = app.get("/token", |token: CsrfToken| token.to_string());
    let read =
        |Form(form): Form<HashMap<String, String>>| form.get("name").cloned().unwrap_or_default();
    let limit = |request: Request| request.body.buffer_limit().to_string();
    app.post("/form", read).post("/small", read.body_limit(10)).post("/limit", limit).test()
}

fn kind(response: &TestResponse) -> String {
    match response.status().as_u16() {
        200 => "passes".to_owned(),
        status => {
            let problem: HashMap<String, serde_json::Value> = response.json();
            let kind = problem["type"].as_str().expect("text").trim_start_matches("/problems/");
            format!("{status} {kind}")
        }
    }
}

fn send(client: &TestClient, method: &str, path: &str, headers: &[(&str, &str)]) -> TestResponse {
    let method = Method::from_bytes(method.as_bytes()).expect("a method");
    headers
        .iter()
        .fold(client.request(method, path), |request, (name, value)| request.header(*name, *value))
        .send_blocking()
}

#[test]
fn the_source_of_a_request_decides() {
    const SITE: &str = "sec-fetch-site";
    let client = client(
        Csrf::new().trust_origin("https://trusted.test").trust_origin("https://*.shop.test"),
    );
    for (method, fields, expected) in [
        ("GET", &[(SITE, "cross-site"), ("origin", "https://evil.test")][..], "passes"),
        ("HEAD", &[(SITE, "cross-site")], "passes"),
        ("OPTIONS", &[(SITE, "cross-site")], "passes"),
        ("QUERY", &[(SITE, "cross-site")], "passes"),
        ("POST", &[], "passes"),
        ("POST", &[(SITE, "same-origin")], "passes"),
        ("POST", &[(SITE, "none")], "passes"),
        ("POST", &[(SITE, "same-origin"), ("origin", "https://evil.test")], "passes"),
        ("POST", &[(SITE, "cross-site")], "403 csrf-cross-site"),
        ("PUT", &[(SITE, "cross-site")], "403 csrf-cross-site"),
        ("DELETE", &[(SITE, "same-site")], "403 csrf-cross-site"),
        ("get", &[(SITE, "cross-site")], "403 csrf-cross-site"),
        ("PURGE", &[(SITE, "cross-site")], "403 csrf-cross-site"),
        ("POST", &[(SITE, "")], "403 csrf-cross-site"),
        ("POST", &[(SITE, "Same-Origin")], "403 csrf-cross-site"),
        ("POST", &[(SITE, "same-origin, cross-site")], "403 csrf-cross-site"),
        ("POST", &[(SITE, "cross-site"), ("origin", "http://test.example")], "403 csrf-cross-site"),
        ("POST", &[(SITE, "cross-site"), ("origin", "https://trusted.test")], "passes"),
        ("POST", &[(SITE, "cross-site"), ("origin", "https://a.shop.test")], "passes"),
        ("POST", &[("origin", "https://trusted.test")], "passes"),
        ("POST", &[("origin", "http://trusted.test")], "403 csrf-origin"),
        ("POST", &[("origin", "http://test.example")], "passes"),
        ("POST", &[("origin", "https://test.example")], "passes"),
        ("POST", &[("origin", "http://test.example:81")], "403 csrf-origin"),
        ("POST", &[("origin", "http://test.example.evil.test")], "403 csrf-origin"),
        ("POST", &[("origin", "null")], "403 csrf-origin"),
        ("POST", &[("origin", "")], "403 csrf-origin"),
        ("POST", &[("origin", "http://test.example, http://evil.test")], "403 csrf-origin"),
    ] {
        assert_eq!(kind(&send(&client, method, "/", fields)), expected, "{method} {fields:?}");
    }
    let response = send(&client, "POST", "/", &[("origin", "https://evil.test")]);
    let text = response.text();
    assert!(text.contains("https://evil.test") && text.contains("http://test.example"), "{text}");
}

#[test]
fn settings_exempt_further_requests() {
    let site = client(Csrf::new().trust_same_site());
    assert_eq!(kind(&send(&site, "POST", "/", &[("sec-fetch-site", "same-site")])), "passes");
    assert_eq!(
        kind(&send(&site, "POST", "/", &[("sec-fetch-site", "cross-site")])),
        "403 csrf-cross-site"
    );
    let hooks = client(Csrf::new().exempt_if(|head| head.header_bytes("x-signature").is_some()));
    let cross = ("sec-fetch-site", "cross-site");
    assert_eq!(kind(&send(&hooks, "POST", "/", &[cross, ("x-signature", "1")])), "passes");
    assert_eq!(kind(&send(&hooks, "POST", "/", &[cross])), "403 csrf-cross-site");
    let error = App::new()
        .wrap(Csrf::new().trust_origin("a.test"))
        .build()
        .expect_err("no origin")
        .to_string();
    assert!(error.contains("Csrf: `a.test` is not an origin"), "{error}");
}

#[test]
fn the_origin_of_the_server_is_the_one_that_the_client_uses() {
    let tls = ConnectionInfo { tls: Some(Arc::default()), ..ConnectionInfo::default() };
    let secure = client(Csrf::new()).with_connection(tls);
    assert_eq!(kind(&send(&secure, "POST", "/", &[("origin", "https://test.example")])), "passes");
    assert_eq!(
        kind(&send(&secure, "POST", "/", &[("origin", "http://test.example")])),
        "403 csrf-origin"
    );
    let fields = [
        ("origin", "https://shop.test"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "shop.test"),
    ];
    assert_eq!(kind(&send(&client(Csrf::new()), "POST", "/", &fields)), "403 csrf-origin");
    let proxied = client(Csrf::new()).with_trusted_proxies(TrustedProxies::hops(1));
    assert_eq!(
        kind(&send(&proxied, "POST", "/", &fields)),
        "403 csrf-origin",
        "the host is trusted only if configured"
    );
}

fn key(byte: u8) -> CsrfKey {
    CsrfKey::new(&[byte; 32])
}

/// A token as the page shows it, and the cookie as the browser sends it.
fn issue_token(client: &TestClient, headers: &[(&str, &str)]) -> (String, String) {
    let response = send(client, "GET", "/token", headers);
    let cookie = response
        .field("set-cookie")
        .expect("a new token")
        .split(';')
        .next()
        .expect("a pair")
        .to_owned();
    (response.text(), cookie)
}

#[test]
fn a_token_is_accepted_in_a_field_or_a_form() {
    let client = client(Csrf::new().tokens(key(1)));
    assert_eq!(kind(&send(&client, "POST", "/", &[])), "403 csrf-token-missing");
    assert_eq!(kind(&send(&client, "POST", "/", &[("sec-fetch-site", "same-origin")])), "passes");
    let (token, cookie) = issue_token(&client, &[]);
    let cookie = ("cookie", cookie.as_str());
    let plain = cookie.1.split_once('=').expect("a pair").1;
    for token in [token.as_str(), plain] {
        assert_eq!(kind(&send(&client, "POST", "/", &[cookie, ("x-csrf-token", token)])), "passes");
        assert_eq!(
            kind(&send(&client, "POST", "/", &[("x-csrf-token", token)])),
            "403 csrf-token-invalid"
        );
        let form = |path: &str, token: &str| {
            let pairs = [("name", "Ada"), ("csrf_token", token)];
            client.post(path).header(cookie.0, cookie.1).form(&pairs).send_blocking()
        };
        let response = form("/form", token);
        assert_eq!((kind(&response).as_str(), response.text().as_str()), ("passes", "Ada"));
        assert_eq!(kind(&form("/form", "x")), "403 csrf-token-invalid");
        assert_eq!(kind(&form("/form", "")), "403 csrf-token-invalid");
        assert_eq!(kind(&form("/small", token)), "413 body-too-large", "the route's limit applies");
    }
    assert_eq!(
        kind(&client.post("/form").form(&[("name", "Ada")]).send_blocking()),
        "403 csrf-token-missing"
    );
    let large = client.post("/form").form(&[("name", "a".repeat(1 << 20))]).send_blocking();
    assert_eq!(kind(&large), "413 body-too-large");
}

#[test]
fn a_form_with_a_token_keeps_the_limit_of_its_body() {
    let client = client(Csrf::new().tokens(key(1))).body_limit(1000);
    let (token, cookie) = issue_token(&client, &[]);
    let request = client.post("/limit").header("cookie", cookie);
    assert_eq!(request.form(&[("csrf_token", token)]).send_blocking().text(), "1000");
}

#[test]
fn every_modified_token_is_rejected() {
    let client = client(Csrf::new().tokens(key(1)));
    let (token, cookie) = issue_token(&client, &[]);
    let passes = |token: &str, cookie: &str| {
        kind(&send(&client, "POST", "/", &[("cookie", cookie), ("x-csrf-token", token)]))
            == "passes"
    };
    assert!(passes(&token, &cookie));
    let modified = |text: &str, index: usize| {
        let mut bytes = text.as_bytes().to_vec();
        bytes[index] = if bytes[index] == b'0' { b'1' } else { b'0' };
        String::from_utf8(bytes).expect("ASCII")
    };
    for index in 0..token.len() {
        assert!(
            !passes(&modified(&token, index), &cookie) && !passes(&token[..index], &cookie),
            "{index}"
        );
    }
    for index in 0..cookie.len() {
        let cookie = modified(&cookie, index);
        assert!(!passes(&token, &cookie), "{index}");
        // An attacker who plants a cookie cannot know its signature.
        let plain = cookie.split_once('=').map_or("", |(_, value)| value);
        assert!(!passes(plain, &cookie), "{index}");
    }
    let (other, _) = issue_token(&client, &[]);
    assert!(!passes(&other, &cookie), "a token of another visitor");
}

#[test]
fn tokens_are_bound_to_a_key_and_a_session() {
    let bound = || Csrf::new().tokens(key(1)).bind_tokens_to_cookie("id");
    let bound_client = client(bound());
    let (token, cookie) = issue_token(&bound_client, &[("cookie", "id=7")]);
    let send_with = |client: &TestClient, session: &str| {
        let cookies = format!("{session}; {cookie}");
        kind(&send(client, "POST", "/", &[("cookie", &cookies), ("x-csrf-token", &token)]))
    };
    assert_eq!(send_with(&bound_client, "id=7"), "passes");
    assert_eq!(send_with(&bound_client, "id=8"), "403 csrf-token-invalid");
    assert_eq!(send_with(&bound_client, "xid=7"), "403 csrf-token-invalid");
    assert_eq!(
        send_with(&client(Csrf::new().tokens(key(2)).bind_tokens_to_cookie("id")), "id=7"),
        "403 csrf-token-invalid"
    );
}

#[test]
fn a_binding_applies_in_any_call_order_and_requires_tokens() {
    let client = client(Csrf::new().bind_tokens_to_cookie("id").tokens(key(1)));
    let (token, cookie) = issue_token(&client, &[("cookie", "id=7")]);
    let send_with = |session: &str| {
        let cookies = format!("{session}; {cookie}");
        kind(&send(&client, "POST", "/", &[("cookie", &cookies), ("x-csrf-token", &token)]))
    };
    assert_eq!(
        (send_with("id=7").as_str(), send_with("id=8").as_str()),
        ("passes", "403 csrf-token-invalid")
    );
    let app = App::new().wrap(Csrf::new().bind_tokens_to_cookie("id")).get("/", || "");
    let error = app.build().expect_err("no tokens").to_string();
    assert!(error.contains("no tokens to bind"), "{error}");
}

#[test]
fn a_page_with_a_token_is_private() {
    let client = client(Csrf::new().tokens(key(1)));
    let (_, cookie) = issue_token(&client, &[]);
    for fields in [&[][..], &[("cookie", cookie.as_str())]] {
        let response = send(&client, "GET", "/token", fields);
        let received = (response.field("cache-control"), response.field("vary"));
        assert_eq!(received, (Some("private"), Some("cookie")), "{fields:?}");
    }
    let response = send(&client, "GET", "/", &[]);
    assert_eq!((response.field("cache-control"), response.field("vary")), (None, None));
}

#[test]
fn a_token_is_reused_and_masked_differently_each_time() {
    let client = client(Csrf::new().tokens(key(1)));
    let (first, cookie) = issue_token(&client, &[]);
    let again = send(&client, "GET", "/token", &[("cookie", &cookie)]);
    assert_eq!(again.field("set-cookie"), None);
    assert_ne!(again.text(), first);
    assert_eq!(
        kind(&send(&client, "POST", "/", &[("cookie", &cookie), ("x-csrf-token", &again.text())])),
        "passes"
    );
    assert_eq!(send(&client, "GET", "/", &[]).field("set-cookie"), None, "no token was used");
    let tls = ConnectionInfo { tls: Some(Arc::default()), ..ConnectionInfo::default() };
    let response = client.with_connection(tls).get("/token").send_blocking();
    let set = response.field("set-cookie").expect("a new one");
    assert!(
        set.starts_with("__Host-csrf=") && set.ends_with("; Path=/; SameSite=Lax; Secure"),
        "{set}"
    );
}

#[test]
fn over_tls_a_cookie_planted_by_another_host_is_ignored() {
    let tls = ConnectionInfo { tls: Some(Arc::default()), ..ConnectionInfo::default() };
    let client = client(Csrf::new().tokens(key(1))).with_connection(tls);
    let (token, cookie) = issue_token(&client, &[]);
    let passes = |cookie: &str| {
        kind(&send(&client, "POST", "/", &[("cookie", cookie), ("x-csrf-token", &token)]))
    };
    assert_eq!(passes(&cookie), "passes");
    // The attacker's own token, signed by this server, set for all hosts of the site.
    let planted = cookie.replace("__Host-csrf", "csrf");
    assert_eq!(passes(&planted), "403 csrf-token-invalid");
    assert_eq!(passes(&format!("{planted}; __Host-csrf=old")), "403 csrf-token-invalid");
    let (_, new) = issue_token(&client, &[("cookie", &planted)]);
    assert!(!new.ends_with(planted.trim_start_matches("csrf=")), "it is not accepted");
}

#[test]
#[should_panic(expected = "a CsrfKey of 31 bytes can be guessed")]
fn a_short_key_panics() {
    let _ = CsrfKey::new(&[0; 31]);
}
