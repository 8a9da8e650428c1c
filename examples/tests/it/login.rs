//! The example `login`, with an OpenID Connect provider that runs inside this test.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use peregrine::RunningServer;
use peregrine::auth::BasicAuth;
use peregrine::auth::jsonwebtoken::{
    Algorithm, EncodingKey, Header, encode, get_current_timestamp,
};
use peregrine::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Client IDs are often URLs, and a colon would end the user name in Basic credentials. Therefore
/// RFC 6749, section 2.3.1, requires both parts to be form-encoded.
const CLIENT: &str = "https://app.example";
const SECRET: &str = "s3cret +%:";
const AS_IN_FORMS: (&str, &str) = ("https%3A%2F%2Fapp.example", "s3cret+%2B%25%3A");
const CALLBACK: &str = "http://app.example/callback";
/// Only a hang takes this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// The public example key of RFC 8037, appendix A, as PKCS#8 (RFC 8410, section 7).
const PKCS8: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];
const PRIVATE: &str = "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A";
const PUBLIC: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";

/// An error of the provider.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Twist {
    None,
    Denies,
    OtherNonce,
    OtherAudience,
    OtherIssuer,
    OtherKey,
    Expired,
    NoToken,
}

#[derive(Clone)]
struct Provider {
    issuer: Arc<OnceLock<String>>,
    twist: Arc<Mutex<Twist>>,
    /// The nonce and challenge of each code that was issued.
    codes: Arc<Mutex<HashMap<String, (String, String)>>>,
}

#[derive(Deserialize)]
struct Asked {
    response_type: String,
    client_id: String,
    redirect_uri: String,
    scope: String,
    state: String,
    nonce: String,
    code_challenge: String,
    code_challenge_method: String,
}

#[derive(Deserialize)]
struct Redeemed {
    grant_type: String,
    code: String,
    redirect_uri: String,
    code_verifier: String,
}

impl Provider {
    fn start() -> (Self, RunningServer) {
        let (issuer, codes) = (Arc::default(), Arc::default());
        let provider = Self { issuer, codes, twist: Arc::new(Mutex::new(Twist::None)) };
        let shared = provider.clone();
        let app = move || {
            App::new()
                .state(shared.clone())
                .get("/.well-known/openid-configuration", |State(it): State<Self>| it.about())
                .get("/jwks", || {
                    Json(json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "1", "x": PUBLIC}]}))
                })
                .get("/authorize", |State(it): State<Self>, Query(asked): Query<Asked>| {
                    it.authorize(&asked)
                })
                .post("/token", |State(it): State<Self>, who: BasicAuth, Form(form): Form<Redeemed>| {
                    it.redeem(&who, &form)
                })
        };
        let running = Server::bind("127.0.0.1:0").quiet().start(app).expect("the provider starts");
        let address = running.http_address().expect("an HTTP listener");
        provider.issuer.set(format!("http://{address}")).expect("set only here");
        (provider, running)
    }

    fn issuer(&self) -> &str {
        self.issuer.get().expect("set in `start`")
    }

    fn twist(&self) -> Twist {
        *self.twist.lock().expect("the mutex is not poisoned")
    }

    fn about(&self) -> Json<Value> {
        let issuer = self.issuer();
        Json(json!({
            "issuer": issuer,
            "authorization_endpoint": format!("{issuer}/authorize"),
            "token_endpoint": format!("{issuer}/token"),
            "jwks_uri": format!("{issuer}/jwks"),
        }))
    }

    fn authorize(&self, asked: &Asked) -> Redirect {
        assert_eq!(asked.response_type, "code");
        assert_eq!((asked.client_id.as_str(), asked.redirect_uri.as_str()), (CLIENT, CALLBACK));
        assert_eq!(
            (asked.scope.as_str(), asked.code_challenge_method.as_str()),
            ("openid profile", "S256")
        );
        if self.twist() == Twist::Denies {
            return Redirect::to(&format!("{CALLBACK}?error=access_denied&state={}", asked.state));
        }
        let mut codes = self.codes.lock().expect("the mutex is not poisoned");
        let code = format!("code-{}", codes.len());
        codes.insert(code.clone(), (asked.nonce.clone(), asked.code_challenge.clone()));
        let issuer = self.issuer().replace(':', "%3A").replace('/', "%2F");
        Redirect::to(&format!("{CALLBACK}?code={code}&state={}&iss={issuer}", asked.state))
    }

    fn redeem(&self, who: &BasicAuth, form: &Redeemed) -> Result<Json<Value>, Problem> {
        let refused = || Problem::new(StatusCode::BAD_REQUEST, "invalid_grant", "no");
        let found = self.codes.lock().expect("the mutex is not poisoned").remove(&form.code);
        let (nonce, challenge) = found.ok_or_else(refused)?;
        let is_sound = (who.username.as_str(), who.password.as_str()) == AS_IN_FORMS
            && form.grant_type == "authorization_code"
            && form.redirect_uri == CALLBACK
            && URL_SAFE_NO_PAD.encode(Sha256::digest(&form.code_verifier)) == challenge;
        is_sound.then_some(()).ok_or_else(refused)?;
        let twist = self.twist();
        if twist == Twist::NoToken {
            return Ok(Json(json!({"access_token": "a"})));
        }
        let other = |is_other: bool, value: &str| {
            if is_other { "other".to_owned() } else { value.to_owned() }
        };
        let now = get_current_timestamp();
        let claims = json!({
            "iss": other(twist == Twist::OtherIssuer, self.issuer()),
            "aud": other(twist == Twist::OtherAudience, CLIENT),
            "nonce": other(twist == Twist::OtherNonce, &nonce),
            "exp": if twist == Twist::Expired { now - 600 } else { now + 60 },
            "iat": now, "sub": "248289761001", "name": "Alice",
        });
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = Some("1".to_owned());
        let mut private = URL_SAFE_NO_PAD.decode(PRIVATE).expect("base64");
        private[0] ^= u8::from(twist == Twist::OtherKey);
        let key = EncodingKey::from_ed_der(&[&PKCS8[..], &private].concat());
        let token = encode(&header, &claims, &key).expect("the key is valid");
        Ok(Json(json!({"access_token": "a", "token_type": "Bearer", "id_token": token})))
    }
}

/// The process that runs the example.
struct Program {
    process: Child,
    address: String,
}

impl Program {
    fn start(issuer: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_login"))
            .env("ADDRESS", "127.0.0.1:0")
            .env("PUBLIC_URL", "http://app.example/")
            .envs([("ISSUER", issuer), ("CLIENT_ID", CLIENT), ("CLIENT_SECRET", SECRET)])
            .envs([("NO_PROXY", "127.0.0.1")])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the example was built");
        let mut line = String::new();
        let mut errors = BufReader::new(process.stderr.take().expect("stderr is piped"));
        errors.read_line(&mut line).expect("the example reports its address");
        std::thread::spawn(move || errors.read_to_end(&mut Vec::new()));
        let (_, rest) = line.split_once("http://").unwrap_or_else(|| panic!("no address: {line}"));
        let address = rest.split([',', ';']).next().expect("split gives one piece").to_owned();
        Self { process, address }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A browser with the program's session cookie.
struct Browser<'p> {
    program: &'p Program,
    cookie: String,
}

struct Page {
    status: String,
    location: String,
    text: String,
}

impl Browser<'_> {
    fn new(program: &Program) -> Browser<'_> {
        Browser { program, cookie: String::new() }
    }

    fn get(&mut self, path: &str) -> Page {
        let fields = format!("Cookie: {}\r\n", self.cookie);
        let (page, cookie) = get(&self.program.address, path, &fields);
        self.cookie = cookie.unwrap_or_else(|| std::mem::take(&mut self.cookie));
        page
    }

    /// Follows the redirects to the provider and back; returns the path of the final request to the
    /// program, without sending it.
    fn go_and_return(&mut self) -> String {
        let login = self.get("/login");
        assert_eq!(login.status, "303", "{}", login.text);
        let (address, path) = login.location["http://".len()..].split_once('/').expect("a path");
        let (back, _) = get(address, &format!("/{path}"), "");
        back.location.strip_prefix("http://app.example").expect("a URL of the program").to_owned()
    }
}

fn get(address: &str, path: &str, fields: &str) -> (Page, Option<String>) {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("more than zero");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: app.example\r\nConnection: close\r\n{fields}\r\n")
        .expect("the server reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("the server responds and closes");
    let field = |name: &str| {
        let line = text.lines().find(|line| line.to_ascii_lowercase().starts_with(name));
        line.map(|line| line[name.len()..].split(';').next().unwrap_or_default().trim().to_owned())
    };
    let (location, cookie) = (field("location:").unwrap_or_default(), field("set-cookie:"));
    (Page { status: text[9..12].to_owned(), location, text }, cookie)
}

#[test]
fn who_logs_in_with_the_provider_is_somebody_here() {
    let (provider, _running) = Provider::start();
    let program = Program::start(provider.issuer());
    let mut browser = Browser::new(&program);
    assert!(browser.get("/").text.ends_with("Hello, stranger. Go to /login.\n"));
    let back = browser.go_and_return();
    let before = browser.cookie.clone();
    let page = browser.get(&back);
    assert_eq!((page.status.as_str(), page.location.as_str()), ("303", "/"), "{}", page.text);
    assert_ne!(browser.cookie, before, "the session id did not change");
    assert!(browser.get("/").text.ends_with("Hello, Alice.\n"));
    // The old session id is invalid, and the response of the provider cannot be replayed.
    let mut thief = Browser { program: &program, cookie: before };
    assert!(thief.get("/").text.ends_with("Hello, stranger. Go to /login.\n"));
    assert_eq!(browser.get(&back).status, "403");
    assert!(browser.get("/").text.ends_with("Hello, Alice.\n"));
}

#[test]
fn answers_that_are_not_those_to_this_login_let_nobody_in() {
    let (provider, _running) = Provider::start();
    let program = Program::start(provider.issuer());
    // The response belongs to another user's browser.
    let mut victim = Browser::new(&program);
    let foreign = Browser::new(&program).go_and_return();
    assert_eq!(victim.get(&foreign).status, "403");
    victim.go_and_return();
    assert_eq!(victim.get(&foreign).status, "403");
    assert_eq!(victim.get(&foreign).status, "403");
    for change in ["state=", "code=", "iss="] {
        let mut browser = Browser::new(&program);
        let changed = browser.go_and_return().replace(change, &format!("{change}x"));
        let expected = if change == "code=" { "502" } else { "403" };
        let page = browser.get(&changed);
        assert_eq!(page.status, expected, "{change} {}", page.text);
        assert!(browser.get("/").text.contains("stranger"));
    }
    for (path, word) in [("/callback", "no login"), ("/callback?state=&code=a", "no login")] {
        let page = Browser::new(&program).get(path);
        assert!(page.status == "403" && page.text.contains(word), "{}", page.text);
    }
}

#[test]
fn a_provider_that_says_no_or_something_else_lets_nobody_in() {
    let (provider, _running) = Provider::start();
    let program = Program::start(provider.issuer());
    for (twist, status, word) in [
        (Twist::Denies, "403", "access_denied"),
        (Twist::OtherNonce, "403", "another login"),
        (Twist::OtherAudience, "403", "for another audience"),
        (Twist::OtherIssuer, "403", "from another issuer"),
        (Twist::OtherKey, "403", "signature"),
        (Twist::Expired, "403", "expired"),
        (Twist::NoToken, "502", "provider-unusable"),
    ] {
        *provider.twist.lock().expect("the mutex is not poisoned") = twist;
        let mut browser = Browser::new(&program);
        let back = browser.go_and_return();
        let page = browser.get(&back);
        assert!(page.status == status && page.text.contains(word), "{twist:?}: {}", page.text);
        assert!(browser.get("/").text.contains("stranger"), "{twist:?}");
    }
    // A provider whose metadata has another issuer is not used at all.
    let program = Program::start(&format!("{}/", provider.issuer()));
    assert_eq!(Browser::new(&program).get("/login").status, "502");
}
