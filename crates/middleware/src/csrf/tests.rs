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

fn sent(client: &TestClient, method: &str, path: &str, fields: &[(&str, &str)]) -> TestResponse {
    let method = Method::from_bytes(method.as_bytes()).expect("a method");
    fields
        .iter()
        .fold(client.request(method, path), |request, (name, value)| request.header(*name, *value))
        .send_blocking()
}

#[test]
fn who_sent_a_request_decides() {
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
        assert_eq!(kind(&sent(&client, method, "/", fields)), expected, "{method} {fields:?}");
    }
    let response = sent(&client, "POST", "/", &[("origin", "https://evil.test")]);
    let text = response.text();
    assert!(text.contains("https://evil.test") && text.contains("http://test.example"), "{text}");
}

#[test]
fn settings_let_more_pass() {
    let site = client(Csrf::new().trust_same_site());
    assert_eq!(kind(&sent(&site, "POST", "/", &[("sec-fetch-site", "same-site")])), "passes");
    assert_eq!(
        kind(&sent(&site, "POST", "/", &[("sec-fetch-site", "cross-site")])),
        "403 csrf-cross-site"
    );
    let hooks = client(Csrf::new().exempt_if(|head| head.header_bytes("x-signature").is_some()));
    let cross = ("sec-fetch-site", "cross-site");
    assert_eq!(kind(&sent(&hooks, "POST", "/", &[cross, ("x-signature", "1")])), "passes");
    assert_eq!(kind(&sent(&hooks, "POST", "/", &[cross])), "403 csrf-cross-site");
    let error = App::new()
        .wrap(Csrf::new().trust_origin("a.test"))
        .build()
        .expect_err("no origin")
        .to_string();
    assert!(error.contains("Csrf: `a.test` is not an origin"), "{error}");
}

#[test]
fn the_origin_is_the_one_that_the_client_knows() {
    let tls = ConnectionInfo { tls: Some(Arc::default()), ..ConnectionInfo::default() };
    let secure = client(Csrf::new()).with_connection(tls);
    assert_eq!(kind(&sent(&secure, "POST", "/", &[("origin", "https://test.example")])), "passes");
    assert_eq!(
        kind(&sent(&secure, "POST", "/", &[("origin", "http://test.example")])),
        "403 csrf-origin"
    );
    let fields = [
        ("origin", "https://shop.test"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "shop.test"),
    ];
    assert_eq!(kind(&sent(&client(Csrf::new()), "POST", "/", &fields)), "403 csrf-origin");
    let proxied = client(Csrf::new()).with_trusted_proxies(TrustedProxies::hops(1));
    assert_eq!(
        kind(&sent(&proxied, "POST", "/", &fields)),
        "403 csrf-origin",
        "the host is trusted only if configured"
    );
}

fn key(byte: u8) -> CsrfKey {
    CsrfKey::new(&[byte; 32])
}

/// A token as the page shows it, and the cookie as the browser sends it.
fn issued(client: &TestClient, fields: &[(&str, &str)]) -> (String, String) {
    let response = sent(client, "GET", "/token", fields);
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
fn a_token_lets_old_browsers_pass_in_a_field_or_in_a_form() {
    let client = client(Csrf::new().tokens(key(1)));
    assert_eq!(kind(&sent(&client, "POST", "/", &[])), "403 csrf-token-missing");
    assert_eq!(kind(&sent(&client, "POST", "/", &[("sec-fetch-site", "same-origin")])), "passes");
    let (token, cookie) = issued(&client, &[]);
    let cookie = ("cookie", cookie.as_str());
    let plain = cookie.1.split_once('=').expect("a pair").1;
    for token in [token.as_str(), plain] {
        assert_eq!(kind(&sent(&client, "POST", "/", &[cookie, ("x-csrf-token", token)])), "passes");
        assert_eq!(
            kind(&sent(&client, "POST", "/", &[("x-csrf-token", token)])),
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
    let (token, cookie) = issued(&client, &[]);
    let request = client.post("/limit").header("cookie", cookie);
    assert_eq!(request.form(&[("csrf_token", token)]).send_blocking().text(), "1000");
}

#[test]
fn every_changed_token_is_refused() {
    let client = client(Csrf::new().tokens(key(1)));
    let (token, cookie) = issued(&client, &[]);
    let passes = |token: &str, cookie: &str| {
        kind(&sent(&client, "POST", "/", &[("cookie", cookie), ("x-csrf-token", token)]))
            == "passes"
    };
    assert!(passes(&token, &cookie));
    let changed = |text: &str, at: usize| {
        let mut bytes = text.as_bytes().to_vec();
        bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
        String::from_utf8(bytes).expect("ASCII")
    };
    for at in 0..token.len() {
        assert!(!passes(&changed(&token, at), &cookie) && !passes(&token[..at], &cookie), "{at}");
    }
    for at in 0..cookie.len() {
        let cookie = changed(&cookie, at);
        assert!(!passes(&token, &cookie), "{at}");
        // An attacker who plants a cookie cannot know its signature.
        let plain = cookie.split_once('=').map_or("", |(_, value)| value);
        assert!(!passes(plain, &cookie), "{at}");
    }
    let (other, _) = issued(&client, &[]);
    assert!(!passes(&other, &cookie), "a token of another visitor");
}

#[test]
fn tokens_belong_to_a_key_and_a_session() {
    let bound = || Csrf::new().tokens(key(1)).bind_tokens_to_cookie("id");
    let client_ = client(bound());
    let (token, cookie) = issued(&client_, &[("cookie", "id=7")]);
    let with = |client: &TestClient, session: &str| {
        let cookies = format!("{session}; {cookie}");
        kind(&sent(client, "POST", "/", &[("cookie", &cookies), ("x-csrf-token", &token)]))
    };
    assert_eq!(with(&client_, "id=7"), "passes");
    assert_eq!(with(&client_, "id=8"), "403 csrf-token-invalid");
    assert_eq!(with(&client_, "xid=7"), "403 csrf-token-invalid");
    assert_eq!(
        with(&client(Csrf::new().tokens(key(2)).bind_tokens_to_cookie("id")), "id=7"),
        "403 csrf-token-invalid"
    );
}

#[test]
fn a_binding_counts_in_whatever_order_it_is_said_and_not_without_tokens() {
    let client = client(Csrf::new().bind_tokens_to_cookie("id").tokens(key(1)));
    let (token, cookie) = issued(&client, &[("cookie", "id=7")]);
    let with = |session: &str| {
        let cookies = format!("{session}; {cookie}");
        kind(&sent(&client, "POST", "/", &[("cookie", &cookies), ("x-csrf-token", &token)]))
    };
    assert_eq!(
        (with("id=7").as_str(), with("id=8").as_str()),
        ("passes", "403 csrf-token-invalid")
    );
    let app = App::new().wrap(Csrf::new().bind_tokens_to_cookie("id")).get("/", || "");
    let error = app.build().expect_err("no tokens").to_string();
    assert!(error.contains("no tokens to bind"), "{error}");
}

#[test]
fn a_page_with_a_token_is_its_visitors_alone() {
    let client = client(Csrf::new().tokens(key(1)));
    let (_, cookie) = issued(&client, &[]);
    for fields in [&[][..], &[("cookie", cookie.as_str())]] {
        let response = sent(&client, "GET", "/token", fields);
        let said = (response.field("cache-control"), response.field("vary"));
        assert_eq!(said, (Some("private"), Some("cookie")), "{fields:?}");
    }
    let response = sent(&client, "GET", "/", &[]);
    assert_eq!((response.field("cache-control"), response.field("vary")), (None, None));
}

#[test]
fn a_token_is_kept_and_shown_another_way_each_time() {
    let client = client(Csrf::new().tokens(key(1)));
    let (first, cookie) = issued(&client, &[]);
    let again = sent(&client, "GET", "/token", &[("cookie", &cookie)]);
    assert_eq!(again.field("set-cookie"), None);
    assert_ne!(again.text(), first);
    assert_eq!(
        kind(&sent(&client, "POST", "/", &[("cookie", &cookie), ("x-csrf-token", &again.text())])),
        "passes"
    );
    assert_eq!(sent(&client, "GET", "/", &[]).field("set-cookie"), None, "no token was used");
    let tls = ConnectionInfo { tls: Some(Arc::default()), ..ConnectionInfo::default() };
    let response = client.with_connection(tls).get("/token").send_blocking();
    let set = response.field("set-cookie").expect("a new one");
    assert!(
        set.starts_with("__Host-csrf=") && set.ends_with("; Path=/; SameSite=Lax; Secure"),
        "{set}"
    );
}

#[test]
fn over_tls_a_cookie_that_another_host_can_plant_is_none() {
    let tls = ConnectionInfo { tls: Some(Arc::default()), ..ConnectionInfo::default() };
    let client = client(Csrf::new().tokens(key(1))).with_connection(tls);
    let (token, cookie) = issued(&client, &[]);
    let passes = |cookie: &str| {
        kind(&sent(&client, "POST", "/", &[("cookie", cookie), ("x-csrf-token", &token)]))
    };
    assert_eq!(passes(&cookie), "passes");
    // The attacker's own token, signed by this server, set for all hosts of the site.
    let planted = cookie.replace("__Host-csrf", "csrf");
    assert_eq!(passes(&planted), "403 csrf-token-invalid");
    assert_eq!(passes(&format!("{planted}; __Host-csrf=old")), "403 csrf-token-invalid");
    let (_, new) = issued(&client, &[("cookie", &planted)]);
    assert!(!new.ends_with(planted.trim_start_matches("csrf=")), "it is not accepted");
}

#[test]
#[should_panic(expected = "a CsrfKey of 31 bytes can be guessed")]
fn a_short_key_is_refused() {
    let _ = CsrfKey::new(&[0; 31]);
}
