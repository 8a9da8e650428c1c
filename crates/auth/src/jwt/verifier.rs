//! What makes a token good.

use super::jwks::NoKeys;
use super::keys::{JwtKeys, KeySet, Source};
use crate::authenticate::Authenticate;
use crate::challenge::{BearerError, REALM, Scheme, challenge, unauthorized};
use crate::credentials::{BearerToken, Credentials, Place, malformed, missing};
use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use jsonwebtoken::crypto::aws_lc;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Header, Validation, decode, decode_header};
use peregrine_web::extract::FromRequestParts;
use peregrine_web::panics::contained;
use peregrine_web::requirements::Requirements;
use peregrine_web::{Parts, Problem};
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;

/// How far the issuer's clock may differ.
const LEEWAY: Duration = Duration::from_secs(30);
/// The most that may be allowed for that.
const LEEWAY_MAX: Duration = Duration::from_secs(60 * 60);

/// Whom tokens must come from, or be for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// One of these.
    OneOf(Vec<String>),
    /// Anybody: the token need not say. Only where no other service has tokens of the same keys.
    Anything,
}

/// Judges tokens: JWTs that are signed (JWS, RFC 7515) by one of the keys, for this service, and in force.
///
/// It takes an issuer (`iss`) and an audience (`aud`) that tokens must name, because one that was made for another service is none here. `exp` must be there, `exp` and `nbf` are
/// kept, with 30 s for clocks that differ. The algorithm is one for which the key is, so that a token cannot choose one; `none` is
/// nothing that exists here. Tokens with extensions that must be understood (`crit`) are refused.
///
/// It is given to the application as a state, and handlers take [`Jwt`]; or to [`Authenticate::jwt`]. Clones share the keys.
///
/// ```
/// use peregrine::App;
/// use peregrine::auth::jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
/// use peregrine::auth::{Jwt, JwtKeys, JwtVerifier};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Clone, Serialize, Deserialize)]
/// struct Claims { sub: String, iss: String, aud: String, exp: u64 }
///
/// let secret = [7; 32]; // from the configuration
/// let keys = JwtKeys::secret(Algorithm::HS256, secret)?;
/// let verifier = JwtVerifier::new(keys, "https://id.example", "birds");
/// let client = App::new().state(verifier).get("/", |Jwt(claims): Jwt<Claims>| claims.sub).test();
///
/// let (sub, iss, aud) = ("alice".to_owned(), "https://id.example".to_owned(), "birds".to_owned());
/// let claims = Claims { sub, iss, aud, exp: 4_000_000_000 };
/// let token = encode(&Header::default(), &claims, &EncodingKey::from_secret(&secret)).unwrap();
/// let response = client.get("/").header("authorization", format!("Bearer {token}")).send_now();
/// assert_eq!(response.text(), "alice");
/// # Ok::<_, peregrine::auth::KeyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct JwtVerifier(Arc<Settings>);

#[derive(Clone, Debug)]
struct Settings {
    keys: JwtKeys,
    issuer: Expected,
    audience: Expected,
    algorithms: Option<Vec<Algorithm>>,
    leeway: Duration,
    kind: Option<String>,
    realm: String,
}

impl JwtVerifier {
    /// Tokens of this issuer for this audience, signed by one of these keys.
    #[must_use]
    pub fn new(keys: JwtKeys, issuer: impl Into<Expected>, audience: impl Into<Expected>) -> Self {
        // Where the program has both of its implementations, the library panics unless one was chosen. Whoever chose before us is obeyed.
        let _ = aws_lc::DEFAULT_PROVIDER.install_default();
        let (issuer, audience) = (issuer.into(), audience.into());
        Self(Arc::new(Settings {
            keys,
            issuer,
            audience,
            algorithms: None,
            leeway: LEEWAY,
            kind: None,
            realm: REALM.to_owned(),
        }))
    }

    fn set(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(Arc::make_mut(&mut self.0));
        self
    }

    /// Only these algorithms. By default all for which the keys are.
    #[must_use]
    pub fn algorithms(self, algorithms: impl Into<Vec<Algorithm>>) -> Self {
        self.set(|settings| settings.algorithms = Some(algorithms.into()))
    }

    /// How far the issuer's clock may differ. The default is 30 s, and an hour is the most.
    #[must_use]
    pub fn leeway(self, time: Duration) -> Self {
        self.set(|settings| settings.leeway = time.min(LEEWAY_MAX))
    }

    /// The type (`typ`) that tokens must have, such as `at+jwt` for access tokens (RFC 9068), so that one of another kind is none here. By default it
    /// is not looked at.
    #[must_use]
    pub fn typ(self, typ: impl Into<String>) -> Self {
        self.set(|settings| settings.kind = Some(typ.into()))
    }

    /// What is protected, as `WWW-Authenticate` says it, in ASCII. The default is `restricted`.
    #[must_use]
    pub fn realm(self, realm: impl Into<String>) -> Self {
        self.set(|settings| settings.realm = realm.into())
    }

    /// What a token says, if it is good.
    ///
    /// # Errors
    /// It is not: a problem of status 401 that says why, with `WWW-Authenticate`. Or the keys of the issuer are not to be had: status 503.
    pub async fn verify<C: DeserializeOwned>(&self, token: &str) -> Result<C, Problem> {
        let settings = &*self.0;
        let header =
            decode_header(token).map_err(|_| settings.invalid("the token is no signed JWT"))?;
        settings.check(&header)?;
        let keys = settings.keys(header.kid.as_deref()).await?;
        let Some(key) = keys.find(header.kid.as_deref(), header.alg) else {
            return Err(settings.invalid("no key of the issuer fits the token"));
        };
        let validation = settings.validation(header.alg);
        match decode::<C>(token, &key.key, &validation) {
            Ok(token) => Ok(token.claims),
            Err(error) => Err(settings.invalid(reason(error.kind()))),
        }
    }
}

impl Settings {
    fn check(&self, header: &Header) -> Result<(), Problem> {
        // RFC 7515 §4.1.11: what must be understood and is not makes a token invalid.
        if header.crit.is_some() {
            return Err(self.invalid("the token has extensions that are not known here"));
        }
        if self.algorithms.as_ref().is_some_and(|all| !all.contains(&header.alg)) {
            return Err(self.invalid("the token's algorithm is not one that is taken here"));
        }
        // RFC 7515 §4.1.9: `application/` may be left out, and case does not matter.
        let short = |typ: &str| {
            let typ = typ.to_ascii_lowercase();
            typ.strip_prefix("application/").map(str::to_owned).unwrap_or(typ)
        };
        match (&self.kind, &header.typ) {
            (Some(wanted), said) if said.as_deref().map(short) != Some(short(wanted)) => {
                Err(self.invalid("the token is of another type"))
            }
            _ => Ok(()),
        }
    }

    /// The answer to a token that is not good.
    fn invalid(&self, why: &'static str) -> Problem {
        let value = challenge(Scheme::Bearer, "Bearer", &self.realm, BearerError::Invalid(why));
        let mut detail = why.to_owned();
        detail.replace_range(..1, &why[..1].to_ascii_uppercase());
        unauthorized("invalid-token", detail + ".", [value])
    }

    async fn keys(&self, id: Option<&str>) -> Result<Arc<KeySet>, Problem> {
        match &self.keys.0 {
            Source::Fixed(keys) => Ok(Arc::clone(keys)),
            Source::Published(keys) => keys.keys(id).await.map_err(|NoKeys| {
                let detail = "The keys by which tokens are checked are not to be had at present. Try again later.";
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "token-keys-unavailable", detail)
                    .with_header(RETRY_AFTER, HeaderValue::from(30))
            }),
        }
    }

    fn validation(&self, algorithm: Algorithm) -> Validation {
        let mut validation = Validation::new(algorithm);
        validation.leeway = self.leeway.as_secs();
        validation.validate_nbf = true;
        let mut required = vec!["exp"];
        match &self.issuer {
            Expected::OneOf(names) => {
                required.push("iss");
                validation.set_issuer(names);
            }
            Expected::Anything => {}
        }
        match &self.audience {
            Expected::OneOf(names) => {
                required.push("aud");
                validation.set_audience(names);
            }
            Expected::Anything => validation.validate_aud = false,
        }
        validation.set_required_spec_claims(&required);
        validation
    }
}

/// Why a token is not good, as its client may know.
fn reason(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::ExpiredSignature => "the token has expired",
        ErrorKind::ImmatureSignature => "the token is not in force yet",
        ErrorKind::InvalidIssuer => "the token is of another issuer",
        ErrorKind::InvalidAudience => "the token is for another audience",
        ErrorKind::MissingRequiredClaim(_) => "the token lacks one of exp, iss and aud",
        ErrorKind::InvalidSignature => "the token's signature is wrong",
        ErrorKind::Json(_) | ErrorKind::Utf8(_) | ErrorKind::InvalidClaimFormat(_) => {
            "the token's claims are not those that are expected here"
        }
        _ => "the token is not valid",
    }
}

/// What the token of the field `Authorization` says, if the application's [`JwtVerifier`] finds it good. `T` is a type that can be read from JSON; it need not have `exp`,
/// `iss` and `aud`.
///
/// That there is a verifier among the states is checked when the application is built. Without a token the problem has status 401, and
/// `Option<Jwt<T>>` is `None`; a token that is not good is a problem of status 401 in both cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Jwt<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts for Jwt<T> {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        let verifier = verifier(parts)?;
        let found = verifier.read(parts).await?;
        found.map(Jwt).ok_or_else(|| missing(Scheme::Bearer, &Place::BEARER, &verifier.0.realm))
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        Ok(verifier(parts)?.read(parts).await?.map(Jwt))
    }

    fn require(requirements: &mut Requirements) {
        requirements.state::<JwtVerifier>();
    }
}

fn verifier(parts: &Parts) -> Result<JwtVerifier, Problem> {
    parts.states().get::<JwtVerifier>().cloned().ok_or_else(|| {
        contained(|| tracing::error!(target: "peregrine", "the handler needs a `JwtVerifier` among the application's states"));
        let detail = "the server lacks something that it needs for this request; its log says what";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "missing-state", detail)
    })
}

impl JwtVerifier {
    /// What the token of a request says; `None`: it has none.
    async fn read<C: DeserializeOwned>(&self, parts: &Parts) -> Result<Option<C>, Problem> {
        let read = BearerToken::read(parts, &Place::BEARER);
        match read.map_err(|why| malformed(Scheme::Bearer, &Place::BEARER, &self.0.realm, why))? {
            Some(BearerToken(token)) => self.verify(&token).await.map(Some),
            None => Ok(None),
        }
    }
}

impl Authenticate<BearerToken, ()> {
    /// By a JWT in the field `Authorization`; what it says is the [`User`](crate::User). The realm is the verifier's.
    pub fn jwt<C>(
        verifier: JwtVerifier,
    ) -> Authenticate<BearerToken, impl AsyncFn(BearerToken) -> Result<Option<C>, Problem>>
    where
        C: DeserializeOwned + Clone + Send + Sync + 'static,
    {
        let realm = verifier.0.realm.clone();
        let authenticate = Authenticate::bearer(async move |BearerToken(token)| {
            verifier.verify::<C>(&token).await.map(Some)
        });
        authenticate.realm(realm)
    }
}

impl From<&str> for Expected {
    fn from(name: &str) -> Self {
        Self::OneOf(vec![name.to_owned()])
    }
}

impl From<String> for Expected {
    fn from(name: String) -> Self {
        Self::OneOf(vec![name])
    }
}

impl<S: Into<String>, const N: usize> From<[S; N]> for Expected {
    fn from(names: [S; N]) -> Self {
        Self::OneOf(names.into_iter().map(Into::into).collect())
    }
}
