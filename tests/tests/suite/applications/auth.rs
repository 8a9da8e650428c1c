//! Credentials through a server on every driver, and an issuer's keys shared by all workers.

use peregrine::auth::jsonwebtoken::{
    Algorithm, EncodingKey, Header, encode, get_current_timestamp,
};
use peregrine::auth::{
    ApiKey, ApiKeyLocation, Authenticate, BasicAuth, Jwt, JwtKeys, JwtVerifier, RemoteJwks,
    SecretHash, User,
};
use peregrine::prelude::*;
use peregrine::{DriverChoice, RunningServer};
use peregrine_tests::client::{self, started};
use peregrine_tests::on_both_drivers;
use serde::Deserialize;
use serde_json::json;
use std::io::Read;
use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

on_both_drivers! {
    credentials_identify_the_user_and_a_401_names_the_schemes,
    workers_share_the_keys_of_an_issuer_and_ask_once,
}

fn start(
    choice: DriverChoice,
    app: impl Fn() -> App + Clone + Send + 'static,
) -> Option<RunningServer> {
    let workers = NonZeroUsize::new(4).expect("the value is not zero");
    started(Server::bind("127.0.0.1:0").driver(choice).workers(workers).quiet().start(app))
}

fn send(running: &RunningServer, path: &str, fields: &str) -> TcpStream {
    client::send(
        running,
        format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n"),
    )
}

/// The status, and the whole response.
fn receive(mut peer: TcpStream) -> (String, String) {
    let mut text = String::new();
    peer.read_to_string(&mut text).expect("text");
    (text[9..12].to_owned(), text)
}

fn credentials_identify_the_user_and_a_401_names_the_schemes(choice: DriverChoice) {
    let app = || {
        let (password, key) = (SecretHash::new("open sesame"), SecretHash::new("k7"));
        let people = Authenticate::basic(async move |it: BasicAuth| {
            // This worker serves other requests meanwhile.
            tokio::time::sleep(Duration::from_millis(2)).await;
            password.verify(&it.password).then_some(it.username)
        });
        let robots =
            Authenticate::api_key(ApiKeyLocation::header("X-Key"), async move |sent: ApiKey| {
                key.verify(&sent.0).then(|| "a robot".to_owned())
            });
        App::new()
            .get("/free", || "free")
            .wrap(people.realm("cave").optional())
            .wrap(robots.realm("cave").optional())
            .get("/", |User(name): User<String>| name)
    };
    let Some(running) = start(choice, app) else { return };
    let ali = "Authorization: Basic QWxpOm9wZW4gc2VzYW1l\r\n"; // Ali:open sesame
    let wrong = "Authorization: Basic QWxpOm9wZW4=\r\n"; // Ali:open
    for round in 0..5 {
        let cases = [
            (ali, "200", "\r\n\r\nAli"),
            ("X-Key: k7\r\n", "200", "\r\n\r\na robot"),
            (wrong, "401", "/problems/invalid-credentials"),
            ("X-Key: k8\r\n", "401", "/problems/invalid-credentials"),
            ("", "401", "/problems/missing-credentials"),
            ("Authorization: Basic ?\r\n", "400", "/problems/malformed-credentials"),
            ("Authorization: Basic QQ==\r\nAuthorization: Basic QQ==\r\n", "400", "several"),
        ];
        // All concurrently: each user belongs to its own request.
        let peers: Vec<_> = cases.iter().map(|(fields, ..)| send(&running, "/", fields)).collect();
        for (peer, (fields, status, word)) in peers.into_iter().zip(cases) {
            let (received, text) = receive(peer);
            assert!(received == status && text.contains(word), "{round} {fields}: {text}");
        }
    }
    let (_, text) = receive(send(&running, "/", ""));
    let lower = text.to_ascii_lowercase();
    assert!(
        lower.contains("www-authenticate: basic realm=\"cave\", charset=\"utf-8\"\r\n"),
        "{text}"
    );
    assert!(lower.contains("www-authenticate: apikey realm=\"cave\"\r\n"), "{text}");
    assert_eq!(receive(send(&running, "/free", wrong)).0, "200");
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
}

fn workers_share_the_keys_of_an_issuer_and_ask_once(choice: DriverChoice) {
    // RFC 8037, appendix A: a publicly known key.
    let document = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"1","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
    // The same as PKCS#8: RFC 8410, section 7, around the private key.
    let private = [
        0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04,
        0x20, 0x9d, 0x61, 0xb1, 0x9d, 0xef, 0xfd, 0x5a, 0x60, 0xba, 0x84, 0x4a, 0xf4, 0x92, 0xec,
        0x2c, 0xc4, 0x44, 0x49, 0xc5, 0x69, 0x7b, 0x32, 0x69, 0x19, 0x70, 0x3b, 0xac, 0x03, 0x1c,
        0xae, 0x7f, 0x60,
    ];
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let keys = RemoteJwks::new(move || {
        counted.fetch_add(1, SeqCst);
        async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok::<_, String>(document)
        }
    });
    let verifier = JwtVerifier::new(JwtKeys::remote(keys), "https://id.example", "birds");
    let app =
        move || App::new().state(verifier.clone()).get("/", |Jwt(claims): Jwt<Claims>| claims.sub);
    let Some(running) = start(choice, app) else { return };
    let token = |name: &str, key: &str, late: u64| {
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = Some(key.to_owned());
        let exp = get_current_timestamp() + 300 - late;
        let claims = json!({"sub": name, "iss": "https://id.example", "aud": "birds", "exp": exp});
        let token = encode(&header, &claims, &EncodingKey::from_ed_der(&private))
            .expect("signing succeeds");
        format!("Authorization: Bearer {token}\r\n")
    };
    let peers: Vec<_> = (0..40)
        .map(|number| send(&running, "/", &token(&format!("user {number}"), "1", 0)))
        .collect();
    for (number, peer) in peers.into_iter().enumerate() {
        let (status, text) = receive(peer);
        assert!(status == "200" && text.ends_with(&format!("\r\n\r\nuser {number}")), "{text}");
    }
    assert_eq!(asked.load(SeqCst), 1);
    for (fields, word) in [
        (token("a", "1", 600), "The token has expired."),
        (token("a", "2", 0), "No key of the issuer fits the token."),
        ("Authorization: Bearer x.y.z\r\n".to_owned(), "The token is not a signed JWT."),
    ] {
        let (status, text) = receive(send(&running, "/", &fields));
        assert!(status == "401" && text.contains(word), "{text}");
    }
    assert_eq!(asked.load(SeqCst), 1, "an unknown key does not cause an immediate refetch");
}
