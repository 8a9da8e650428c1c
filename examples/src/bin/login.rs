//! Login through an OpenID Connect provider: the authorization code flow with PKCE.
#![forbid(unsafe_code)]

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use peregrine::auth::{JwtKeys, JwtVerifier, RemoteJwks, SecretHash};
use peregrine::prelude::*;
use peregrine::session::{Session, SessionManager};
use peregrine::tls::rustls::crypto::aws_lc_rs;
use peregrine::tls::rustls::{ClientConfig, RootCertStore};
use reqwest::Url;
use reqwest::redirect::Policy;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OnceCell;
use tower_sessions_memory_store::MemoryStore;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The time limit for a response from the provider.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The largest response body accepted from the provider, in bytes.
const ANSWER_BYTES_MAX: usize = 256 * 1024;

/// The provider, and this program's registration with it.
struct Provider {
    issuer: String,
    client_id: String,
    client_secret: String,
    /// The URL to which the provider redirects users. It is registered with the provider in
    /// advance, so that an attacker cannot redirect users elsewhere.
    redirect_uri: String,
    http: reqwest::Client,
    found: OnceCell<Found>,
}

/// The provider's metadata that a login needs.
struct Found {
    authorization: Url,
    token: Url,
    verifier: JwtVerifier,
}

/// OpenID Connect Discovery 1.0, section 3.
#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
}

/// The state of a login, kept in the session until the provider redirects the user back.
#[derive(Serialize, Deserialize)]
struct Pending {
    state: String,
    nonce: String,
    code_verifier: String,
}

/// The query parameters of the redirect back from the provider.
#[derive(Deserialize)]
struct Answer {
    state: Option<String>,
    code: Option<String>,
    error: Option<String>,
    iss: Option<String>,
}

#[derive(Deserialize)]
struct Tokens {
    id_token: String,
}

/// The claims of an ID token that the verifier does not check.
#[derive(Deserialize)]
struct IdClaims {
    sub: String,
    nonce: String,
    azp: Option<String>,
    name: Option<String>,
}

impl Provider {
    fn from_env() -> Self {
        let variable =
            |name: &str, default: &str| std::env::var(name).unwrap_or(default.to_owned());
        let public = variable("PUBLIC_URL", "http://127.0.0.1:8080");
        Self {
            issuer: variable("ISSUER", "http://127.0.0.1:9000"),
            client_id: variable("CLIENT_ID", "example"),
            client_secret: variable("CLIENT_SECRET", "for tests only"),
            redirect_uri: format!("{}/callback", public.trim_end_matches('/')),
            http: http_client(),
            found: OnceCell::new(),
        }
    }

    /// The provider's metadata, fetched once.
    async fn found(&self) -> Result<&Found, Problem> {
        self.found.get_or_try_init(|| self.discover()).await
    }

    async fn discover(&self) -> Result<Found, Problem> {
        let issuer = self.issuer.trim_end_matches('/');
        let url = format!("{issuer}/.well-known/openid-configuration");
        let discovery: Discovery = read(self.http.get(url)).await?;
        // Section 4.3: otherwise another provider could impersonate this one.
        if discovery.issuer != self.issuer {
            return Err(unusable(&format!("its issuer is {}", discovery.issuer)));
        }
        let authorization = safe(&discovery.authorization_endpoint)?;
        let (token, jwks_uri) = (safe(&discovery.token_endpoint)?, safe(&discovery.jwks_uri)?);
        let http = self.http.clone();
        let keys = RemoteJwks::new(move || {
            let request = http.get(jwks_uri.clone());
            async move { bytes(request).await }
        });
        let (issuer, audience) = (self.issuer.as_str(), self.client_id.as_str());
        let verifier = JwtVerifier::new(JwtKeys::remote(keys), issuer, audience);
        Ok(Found { authorization, token, verifier })
    }

    /// The URL to which a user is redirected to log in.
    fn authorization_url(&self, found: &Found, pending: &Pending) -> Url {
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&pending.code_verifier));
        let mut url = found.authorization.clone();
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.client_id)
            .append_pair("redirect_uri", &self.redirect_uri)
            .append_pair("scope", "openid profile")
            .append_pair("state", &pending.state)
            .append_pair("nonce", &pending.nonce)
            .append_pair("code_challenge", &challenge)
            .append_pair("code_challenge_method", "S256");
        url
    }

    /// Exchanges the code for an ID token and returns its claims.
    async fn redeem(&self, code: &str, pending: &Pending) -> Result<IdClaims, Problem> {
        let found = self.found().await?;
        let form = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &self.redirect_uri),
            ("code_verifier", &pending.code_verifier),
        ];
        let request = self.http.post(found.token.clone()).form(&form);
        // RFC 6749, section 2.3.1: form-encoded, because either may contain a colon.
        let (id, secret) = (as_in_forms(&self.client_id), as_in_forms(&self.client_secret));
        let request = request.basic_auth(id, Some(secret));
        let Tokens { id_token } = read(request).await?;
        let claims: IdClaims = found.verifier.verify(&id_token).await.map_err(|problem| {
            if problem.status.is_server_error() { problem } else { failed(&problem.detail) }
        })?;
        // OpenID Connect Core 1.0, section 3.1.3.7: the token must be for this login and this
        // client.
        if !SecretHash::new(&pending.nonce).verify(&claims.nonce) {
            return Err(failed("the token belongs to another login"));
        }
        if claims.azp.as_ref().is_some_and(|azp| *azp != self.client_id) {
            return Err(failed("the token was issued to another client"));
        }
        Ok(claims)
    }
}

/// Encodes a word as `application/x-www-form-urlencoded`.
fn as_in_forms(word: &str) -> String {
    let mut url = Url::parse("http://a").expect("a valid URL");
    url.query_pairs_mut().append_key_only(word);
    url.query().unwrap_or_default().to_owned()
}

/// A client that trusts the system's root certificates and does not follow redirects.
fn http_client() -> reqwest::Client {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("aws-lc-rs supports these versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    reqwest::Client::builder()
        .use_preconfigured_tls(config)
        .redirect(Policy::none())
        .timeout(TIMEOUT)
        .build()
        .expect("the TLS configuration is valid")
}

/// Parses a URL whose responses cannot be tampered with: `https:`, or `http:` on this machine.
fn safe(text: &str) -> Result<Url, Problem> {
    let url =
        Url::parse(text).map_err(|error| unusable(&format!("{text} is not a URL: {error}")))?;
    let is_here = matches!(url.host_str(), Some("127.0.0.1" | "[::1]" | "localhost"));
    if url.scheme() == "https" || (url.scheme() == "http" && is_here) {
        return Ok(url);
    }
    Err(unusable(&format!("{text} is not safe: it must start with https:")))
}

/// The response body, unless the status is an error or the body is too large.
async fn bytes(request: reqwest::RequestBuilder) -> Result<Vec<u8>, String> {
    let text = |error: reqwest::Error| error.to_string();
    let mut response =
        request.send().await.and_then(reqwest::Response::error_for_status).map_err(text)?;
    let mut all = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(text)? {
        all.extend_from_slice(&piece);
        if all.len() > ANSWER_BYTES_MAX {
            return Err(format!("the response is longer than {ANSWER_BYTES_MAX} bytes"));
        }
    }
    Ok(all)
}

async fn read<T: DeserializeOwned>(request: reqwest::RequestBuilder) -> Result<T, Problem> {
    let bytes = bytes(request).await.map_err(|error| unusable(&error))?;
    serde_json::from_slice(&bytes).map_err(|error| unusable(&error))
}

fn unusable(why: &impl Display) -> Problem {
    tracing::error!(%why, "the login provider cannot be used");
    let detail = "The login provider is unavailable. Try again later.";
    Problem::new(StatusCode::BAD_GATEWAY, "provider-unusable", detail)
}

fn failed(why: &str) -> Problem {
    let detail = format!("The login failed: {why}. Try again at /login.");
    Problem::new(StatusCode::FORBIDDEN, "login-failed", detail)
}

/// An unguessable number, as text.
fn random() -> Result<String, Problem> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| unusable(&error))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

async fn login(provider: StateRef<Arc<Provider>>, session: Session) -> Result<Redirect, Problem> {
    let pending = Pending { state: random()?, nonce: random()?, code_verifier: random()? };
    let url = provider.authorization_url(provider.found().await?, &pending);
    session.insert("login", pending)?;
    Ok(Redirect::to(url.as_str()))
}

async fn callback(
    provider: StateRef<Arc<Provider>>,
    session: Session,
    Query(answer): Query<Answer>,
) -> Result<Redirect, Problem> {
    // Each login is used at most once, whether it succeeds or not.
    let pending: Option<Pending> = session.get("login");
    session.remove("login");
    let pending = pending.ok_or_else(|| failed("no login is in progress in this browser"))?;
    // Otherwise an attacker could log a visitor in to the attacker's account.
    if !SecretHash::new(&pending.state).verify(answer.state.unwrap_or_default()) {
        return Err(failed("the response belongs to another login"));
    }
    // RFC 9207: the response must come from this provider.
    if answer.iss.is_some_and(|iss| iss != provider.issuer) {
        return Err(failed("the response comes from another provider"));
    }
    if let Some(error) = answer.error {
        let error: String = error.chars().filter(char::is_ascii_graphic).take(40).collect();
        return Err(failed(&format!("the provider reported {error}")));
    }
    let code = answer.code.ok_or_else(|| failed("the response has no code"))?;
    let claims = provider.redeem(&code, &pending).await?;
    session.regenerate();
    session.insert("user", &claims.sub)?;
    session.insert("name", claims.name.unwrap_or(claims.sub))?;
    Ok(Redirect::to("/"))
}

fn home(session: Session) -> String {
    match session.get::<String>("name") {
        Some(name) => format!("Hello, {name}.\n"),
        None => "Hello, stranger. Go to /login.\n".to_owned(),
    }
}

fn logout(session: Session) -> Redirect {
    session.destroy();
    Redirect::to("/")
}

const ABOUT: &str = "\
Login through an OpenID Connect provider.

  ISSUER=...            the provider's issuer URL
  CLIENT_ID=...         the client ID registered with the provider
  CLIENT_SECRET=...     the client secret
  PUBLIC_URL=...        the URL of this program; the provider redirects browsers to its /callback

Try: curl -i http://127.0.0.1:8080/login, or better, open it in a browser";

fn main() -> peregrine::Result<()> {
    let address = peregrine_examples::address(ABOUT);
    let (provider, store) = (Arc::new(Provider::from_env()), MemoryStore::default());
    Server::bind(address).serve(move || {
        App::new()
            .state(Arc::clone(&provider))
            .wrap(SessionManager::new(store.clone()))
            .get("/", home)
            .get("/login", login)
            .get("/callback", callback)
            .post("/logout", logout)
    })
}
