//! Credentials, tested through the test client.

use crate::{ApiKey, ApiKeyLocation, Authenticate, BasicAuth, BearerToken, SecretHash, User};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use peregrine_web::testing::{TestClient, TestResponse};
use peregrine_web::{App, Problem};

fn basic(text: impl AsRef<[u8]>) -> String {
    format!("Basic {}", STANDARD.encode(text))
}

fn kind(response: &TestResponse) -> (u16, String) {
    let status = response.status().as_u16();
    let problem: serde_json::Value = serde_json::from_str(&response.text()).unwrap_or_default();
    let kind = problem["type"].as_str().unwrap_or_default();
    (status, kind.trim_start_matches("/problems/").to_owned())
}

fn extractors() -> TestClient {
    App::new()
        .get("/basic", |credentials: BasicAuth| {
            format!("{}|{}", credentials.username, credentials.password)
        })
        .get("/bearer", |BearerToken(token): BearerToken| token)
        .get("/key", |ApiKey(key): ApiKey| key)
        .get(
            "/maybe",
            |basic: Option<BasicAuth>, bearer: Option<BearerToken>, key: Option<ApiKey>| {
                format!("{} {} {}", basic.is_some(), bearer.is_some(), key.is_some())
            },
        )
        .test()
}

#[test]
fn parses_basic_credentials_by_rfc_7617() {
    let client = extractors();
    let send = |value: &str| client.get("/basic").header("authorization", value).send_blocking();
    for (value, expected) in [
        // These two are from RFC 7617, sections 2 and 2.1.
        ("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==".to_owned(), "Aladdin|open sesame"),
        ("Basic dGVzdDoxMjPCow==".to_owned(), "test|123£"),
        (basic("a:b:c"), "a|b:c"),
        (basic(":"), "|"),
        (basic("a:"), "a|"),
        (basic(":p"), "|p"),
        (basic("a:b").replace("Basic", "bASIC"), "a|b"),
        (basic("a:b").replace("Basic ", "Basic   "), "a|b"),
    ] {
        let response = send(&value);
        assert_eq!((response.status().as_u16(), response.text()), (200, expected.to_owned()));
    }
    let malformed = [
        "Basic".to_owned(),
        "Basic ".to_owned(),
        "Basic !".to_owned(),
        "Basic QQ".to_owned(),
        "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ".to_owned(),
        "Basic QWxh ZGRpbjpvcGVuIHNlc2FtZQ==".to_owned(),
        "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==, Basic QQ==".to_owned(),
        "Basic QWxh-_RpbjpvcGVuIHNlc2FtZQ==".to_owned(),
        basic("no colon"),
        basic(""),
        basic("a\u{7}:b"),
        basic("a:b\n"),
        basic("a:\0"),
        basic(b"a:\xff"),
    ];
    for value in malformed {
        assert_eq!(kind(&send(&value)), (400, "malformed-credentials".to_owned()), "{value:?}");
    }
    for value in ["Bearer abc", "Basicx QQ==", "Digest username=\"a\"", "", "Basic\tQQ=="] {
        let response = send(value);
        assert_eq!(kind(&response), (401, "missing-credentials".to_owned()), "{value:?}");
        let challenge = response.header("www-authenticate").expect("a challenge");
        assert_eq!(challenge, r#"Basic realm="restricted", charset="UTF-8""#);
    }
}

#[test]
fn parses_bearer_tokens_by_rfc_6750() {
    let client = extractors();
    let send = |value: &str| client.get("/bearer").header("authorization", value).send_blocking();
    for (value, expected) in [
        ("Bearer mF_9.B5f-4.1JqM", "mF_9.B5f-4.1JqM"),
        ("bearer a", "a"),
        ("BEARER   aZ09-._~+/==", "aZ09-._~+/=="),
    ] {
        assert_eq!(send(value).text(), expected);
    }
    let malformed = [
        "Bearer",
        "Bearer ",
        "Bearer a b",
        "Bearer =",
        "Bearer a=b",
        "Bearer a,b",
        "Bearer \"a\"",
        "Bearer é",
    ];
    for value in malformed {
        let response = send(value);
        assert_eq!(kind(&response), (400, "malformed-credentials".to_owned()), "{value:?}");
        let challenge = response.header("www-authenticate").expect("a challenge");
        assert_eq!(challenge, r#"Bearer realm="restricted", error="invalid_request""#);
    }
    let response = send("Basic QQ==");
    assert_eq!(kind(&response), (401, "missing-credentials".to_owned()));
    assert_eq!(response.header("www-authenticate"), Some(r#"Bearer realm="restricted""#));
}

#[test]
fn rejects_two_credential_fields() {
    let client = extractors();
    for (path, name, value) in [
        ("/basic", "authorization", "Basic YTpi"),
        ("/bearer", "authorization", "Bearer a"),
        ("/key", "x-api-key", "a"),
    ] {
        let request = client.get(path).header(name, value);
        assert_eq!(kind(&request.header(name, value).send_blocking()).0, 400, "{path}");
    }
    // This holds even if the other field has another scheme, or if credentials are optional.
    for path in ["/basic", "/bearer", "/maybe"] {
        let request = client.get(path).header("authorization", "Bearer a");
        assert_eq!(
            kind(&request.header("Authorization", "Basic YTpi").send_blocking()).0,
            400,
            "{path}"
        );
    }
}

#[test]
fn absent_credentials_are_none_and_malformed_ones_are_rejected() {
    let client = extractors();
    let maybe = |name: &str, value: &str| client.get("/maybe").header(name, value).send_blocking();
    assert_eq!(maybe("x-other", "").text(), "false false false");
    assert_eq!(maybe("authorization", "Basic YTpi").text(), "true false false");
    assert_eq!(maybe("authorization", "Bearer a").text(), "false true false");
    assert_eq!(maybe("x-api-key", "a").text(), "false false true");
    for (name, value) in [
        ("authorization", "Basic !"),
        ("authorization", "Bearer !"),
        ("x-api-key", ""),
        ("x-api-key", "é"),
    ] {
        assert_eq!(kind(&maybe(name, value)).0, 400, "{name}: {value}");
    }
}

#[test]
fn api_keys_are_read_from_the_configured_location() {
    let app = |location: ApiKeyLocation| {
        let verify = async |ApiKey(key): ApiKey| (key == "k+1/é".replace('é', "e")).then_some(7_u8);
        let authenticate = Authenticate::api_key(location, verify).realm("birds");
        App::new().wrap(authenticate).get("/", |User(number): User<u8>| number.to_string()).test()
    };
    let in_header = app(ApiKeyLocation::header("X-Key"));
    assert_eq!(in_header.get("/").header("x-key", "k+1/e").send_blocking().text(), "7");
    let refused = in_header.get("/?key=k%2b1/e").send_blocking();
    assert_eq!(kind(&refused), (401, "missing-credentials".to_owned()));
    assert_eq!(refused.header("www-authenticate"), Some(r#"ApiKey realm="birds""#));
    let wrong = in_header.get("/").header("x-key", "k").send_blocking();
    assert_eq!(kind(&wrong), (401, "invalid-credentials".to_owned()));

    let in_query = app(ApiKeyLocation::query("key"));
    assert_eq!(in_query.get("/?a=b&key=k%2b1%2Fe").send_blocking().text(), "7");
    for (target, expected) in [
        ("/", 401),
        ("/?", 401),
        ("/?xkey=k%2b1/e", 401),
        ("/?key=k", 401),
        ("/?key", 400),
        ("/?key=", 400),
        ("/?key=a&key=a", 400),
        ("/?key=a+b", 400),
        ("/?key=%00", 400),
        ("/?key=%ff", 400),
        ("/?key=%", 401),
        ("/?key=%2", 401),
        ("/?key=%zz", 401),
    ] {
        assert_eq!(in_query.get(target).send_blocking().status(), expected, "{target}");
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Person(String);

fn people() -> Authenticate<BasicAuth, impl AsyncFn(BasicAuth) -> Option<Person>> {
    let secret = SecretHash::new("open sesame");
    Authenticate::basic(async move |credentials: BasicAuth| {
        secret.verify(&credentials.password).then_some(Person(credentials.username))
    })
}

fn robots()
-> Authenticate<BearerToken, impl AsyncFn(BearerToken) -> Result<Option<Person>, Problem>> {
    Authenticate::bearer(async |BearerToken(token): BearerToken| match token.as_str() {
        "robot" => Ok(Some(Person("a robot".to_owned()))),
        "teapot" => Err(Problem::new(http::StatusCode::IM_A_TEAPOT, "teapot", "It is short.")),
        _ => Ok(None),
    })
}

#[test]
fn valid_credentials_pass_and_others_get_a_challenge() {
    let client = App::new()
        .get("/free", || "free")
        .wrap(people().realm("the \"cave\""))
        .get("/", |User(person): User<Person>| person.0)
        .get("/public", || [("cache-control", "public")])
        .test();
    let send =
        |path: &str, value: &str| client.get(path).header("authorization", value).send_blocking();
    let response = send("/", &basic("Ali:open sesame"));
    assert_eq!(
        (response.text().as_str(), response.header("cache-control")),
        ("Ali", Some("private"))
    );
    let public = send("/public", &basic("Ali:open sesame"));
    assert_eq!(public.header("cache-control"), Some("public"));
    assert_eq!(send("/free", "Basic !").text(), "free");
    for (value, expected) in [
        (basic("Ali:open"), (401, "invalid-credentials")),
        (basic("Ali:"), (401, "invalid-credentials")),
        (basic("Ali:open sesame "), (401, "invalid-credentials")),
        ("Bearer robot".to_owned(), (401, "missing-credentials")),
        ("Basic ?".to_owned(), (400, "malformed-credentials")),
    ] {
        let response = send("/", &value);
        assert_eq!(kind(&response), (expected.0, expected.1.to_owned()), "{value}");
        if expected.0 == 401 {
            let challenge = response.header("www-authenticate").expect("a challenge");
            assert_eq!(challenge, r#"Basic realm="the \"cave\"", charset="UTF-8""#);
        }
        assert!(!response.text().contains("sesame"));
    }
}

#[test]
fn a_verify_function_can_return_its_own_problem() {
    let client = App::new().wrap(robots()).get("/", || "in").test();
    let send = |value: &str| client.get("/").header("authorization", value).send_blocking();
    assert_eq!(send("Bearer robot").text(), "in");
    assert_eq!(kind(&send("Bearer teapot")), (418, "teapot".to_owned()));
    let refused = send("Bearer other");
    assert_eq!(kind(&refused).0, 401);
    let challenge = refused.header("www-authenticate").expect("a challenge");
    assert!(
        challenge.starts_with(r#"Bearer realm="restricted", error="invalid_token", "#),
        "{challenge}"
    );
}

#[test]
fn several_optional_schemes_protect_the_same_routes() {
    let client = App::new()
        .wrap(people().optional())
        .wrap(robots().optional())
        .get("/", |User(person): User<Person>| person.0)
        .get("/maybe", |person: Option<User<Person>>| person.is_some().to_string())
        .test();
    let send =
        |path: &str, value: &str| client.get(path).header("authorization", value).send_blocking();
    assert_eq!(send("/", &basic("Ali:open sesame")).text(), "Ali");
    assert_eq!(send("/", "Bearer robot").text(), "a robot");
    let anonymous = client.get("/").send_blocking();
    assert_eq!(kind(&anonymous), (401, "missing-credentials".to_owned()));
    let challenges = anonymous.headers().iter().filter(|(name, _)| *name == "www-authenticate");
    let schemes: Vec<_> = challenges.map(|(_, value)| value.as_bytes()[..3].to_vec()).collect();
    assert_eq!(schemes, [b"Bas".to_vec(), b"Bea".to_vec()]);
    assert_eq!(client.get("/maybe").send_blocking().text(), "false");
    assert_eq!(send("/maybe", "Bearer robot").text(), "true");
    // Wrong credentials are rejected even if they are optional.
    assert_eq!(send("/maybe", "Bearer other").status(), 401);
    assert_eq!(send("/maybe", &basic("Ali:x")).status(), 401);
}

#[test]
fn a_user_extractor_without_authenticate_gets_a_500() {
    let client = App::new()
        .get("/", |User(person): User<Person>| person.0)
        .get("/maybe", |person: Option<User<Person>>| person.is_some().to_string())
        .test();
    assert_eq!(kind(&client.get("/").send_blocking()), (500, "missing-user".to_owned()));
    assert_eq!(client.get("/maybe").send_blocking().text(), "false");
}

#[test]
fn invalid_settings_are_reported_at_build() {
    let verify = async |_: ApiKey| Some(());
    let build_error = |app: App| app.get("/", || "").build().expect_err("refused").to_string();
    let error = build_error(App::new().wrap(people().realm("Höhle")));
    assert!(error.contains("Authenticate: the realm"), "{error}");
    for location in
        [ApiKeyLocation::header("a b"), ApiKeyLocation::query(""), ApiKeyLocation::query("a&b")]
    {
        let error = build_error(App::new().wrap(Authenticate::api_key(location.clone(), verify)));
        assert!(error.contains("Authenticate: "), "{location:?}: {error}");
    }
}

#[test]
fn debug_output_contains_no_secret() {
    let credentials = BasicAuth { username: "Ali".to_owned(), password: "sesame".to_owned() };
    let output = format!(
        "{credentials:?} {:?} {:?} {:?} {:?}",
        BearerToken("sesame".to_owned()),
        ApiKey("sesame".to_owned()),
        SecretHash::new("sesame"),
        people(),
    );
    assert!(!output.contains("sesame") && output.contains("Ali"), "{output}");
}

#[test]
fn secrets_are_compared_by_their_digests() {
    let secret = SecretHash::new("abc");
    assert!(secret.verify("abc") && secret.verify(b"abc"));
    for other in ["", "ab", "abcd", "abd", "\0abc"] {
        assert!(!secret.verify(other), "{other:?}");
    }
    // FIPS 180-2, appendix B.1.
    let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let byte =
        |index: usize| u8::from_str_radix(&digest[2 * index..2 * index + 2], 16).expect("hex");
    assert!(SecretHash::from_sha256(std::array::from_fn(byte)).verify("abc"));
}
