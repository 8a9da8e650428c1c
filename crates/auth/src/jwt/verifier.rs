//! Verifies tokens, and extracts their claims in handlers.

use super::jwks::KeysUnavailable;
use super::keys::{JwtKeys, KeySet, KeySource};
use crate::authenticate::Authenticate;
use crate::challenge::{BearerError, REALM, Scheme, unauthorized, www_authenticate};
use crate::credentials::{
    BearerToken, CredentialLocation, Credentials, malformed_credentials, missing_credentials,
};
use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use jsonwebtoken::crypto::aws_lc;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Header, Validation, decode, decode_header};
use peregrine_web::extract::FromRequestParts;
use peregrine_web::extract::RouteRequirements;
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::{Parts, Problem};
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;

/// The default tolerance for clock differences between issuer and server.
const LEEWAY: Duration = Duration::from_secs(30);
/// The upper limit of that tolerance.
const LEEWAY_MAX: Duration = Duration::from_secs(60 * 60);

/// The issuers or audiences that a token may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimRule {
    /// The token must name one of these.
    OneOf(Vec<String>),
    /// The token may name any value, or none. Use this only if the keys sign tokens for no other
    /// service.
    Any,
}

/// Verifies JWTs: signed by one of the keys (JWS, RFC 7515), made for this service, and not
/// expired.
///
/// Tokens must name the expected issuer (`iss`) and audience (`aud`), so that a token made for
/// another service is rejected. `exp` is required; `exp` and `nbf` are enforced with a tolerance of
/// 30 s for clock differences. The algorithm must be one that the key is meant for, so a token
/// cannot choose its own, and `none` is never accepted. Tokens with critical extensions (`crit`)
/// are rejected.
///
/// Add it to the application as state and use [`Jwt`] as a handler argument, or pass it to
/// [`Authenticate::jwt`]. Clones share the keys.
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
/// let iss = "https://id.example".to_owned();
/// let (sub, aud) = ("alice".to_owned(), "birds".to_owned());
/// let claims = Claims { sub, iss, aud, exp: 4_000_000_000 };
/// let token = encode(&Header::default(), &claims, &EncodingKey::from_secret(&secret)).unwrap();
/// let request = client.get("/").header("authorization", format!("Bearer {token}"));
/// let response = request.send_blocking();
/// assert_eq!(response.text(), "alice");
/// # Ok::<_, peregrine::auth::JwtKeyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct JwtVerifier(Arc<VerifierSettings>);

#[derive(Clone, Debug)]
struct VerifierSettings {
    keys: JwtKeys,
    issuer: ClaimRule,
    audience: ClaimRule,
    algorithms: Option<Vec<Algorithm>>,
    leeway: Duration,
    typ: Option<String>,
    realm: String,
}

impl JwtVerifier {
    /// Accepts tokens of this issuer for this audience, signed by one of these keys.
    #[must_use]
    pub fn new(
        keys: JwtKeys,
        issuer: impl Into<ClaimRule>,
        audience: impl Into<ClaimRule>,
    ) -> Self {
        // If both of its crypto backends are compiled in, `jsonwebtoken` panics unless one was
        // chosen. An earlier choice by the application is kept.
        let _ = aws_lc::DEFAULT_PROVIDER.install_default();
        let (issuer, audience) = (issuer.into(), audience.into());
        Self(Arc::new(VerifierSettings {
            keys,
            issuer,
            audience,
            algorithms: None,
            leeway: LEEWAY,
            typ: None,
            realm: REALM.to_owned(),
        }))
    }

    fn configure(mut self, set: impl FnOnce(&mut VerifierSettings)) -> Self {
        set(Arc::make_mut(&mut self.0));
        self
    }

    /// Restricts the accepted algorithms. By default, each key accepts all algorithms that fit it.
    #[must_use]
    pub fn algorithms(self, algorithms: impl Into<Vec<Algorithm>>) -> Self {
        self.configure(|settings| settings.algorithms = Some(algorithms.into()))
    }

    /// Sets the tolerance for clock differences. The default is 30 s; values over 1 hour are
    /// capped.
    #[must_use]
    pub fn leeway(self, time: Duration) -> Self {
        self.configure(|settings| settings.leeway = time.min(LEEWAY_MAX))
    }

    /// Requires this token type (`typ`), such as `at+jwt` for access tokens (RFC 9068), so that
    /// tokens of another kind are rejected. By default the type is not checked.
    #[must_use]
    pub fn typ(self, typ: impl Into<String>) -> Self {
        self.configure(|settings| settings.typ = Some(typ.into()))
    }

    /// Sets the realm in `WWW-Authenticate`, in ASCII. The default is `restricted`.
    #[must_use]
    pub fn realm(self, realm: impl Into<String>) -> Self {
        self.configure(|settings| settings.realm = realm.into())
    }

    /// Verifies a token and returns its claims.
    ///
    /// # Errors
    /// If the token is invalid, a problem of status 401 with the reason and `WWW-Authenticate`; if
    /// the issuer's keys are unavailable, one of status 503.
    pub async fn verify<C: DeserializeOwned>(&self, token: &str) -> Result<C, Problem> {
        let settings = &*self.0;
        let header = decode_header(token)
            .map_err(|_| settings.invalid_token("the token is not a signed JWT"))?;
        settings.check_header(&header)?;
        let keys = settings.keys(header.kid.as_deref()).await?;
        let Some(key) = keys.find(header.kid.as_deref(), header.alg) else {
            return Err(settings.invalid_token("no key of the issuer fits the token"));
        };
        let validation = settings.validation(header.alg);
        match decode::<C>(token, &key.key, &validation) {
            Ok(token) => Ok(token.claims),
            Err(error) => Err(settings.invalid_token(error_description(error.kind()))),
        }
    }
}

impl VerifierSettings {
    fn check_header(&self, header: &Header) -> Result<(), Problem> {
        // RFC 7515 §4.1.11: a critical extension that is not understood makes a token invalid.
        if header.crit.is_some() {
            return Err(self.invalid_token("the token has unknown critical extensions"));
        }
        if self.algorithms.as_ref().is_some_and(|allowed| !allowed.contains(&header.alg)) {
            return Err(self.invalid_token("the token's algorithm is not accepted here"));
        }
        // RFC 7515 §4.1.9: `application/` may be omitted, and case does not matter.
        let normalized = |typ: &str| {
            let typ = typ.to_ascii_lowercase();
            typ.strip_prefix("application/").map(str::to_owned).unwrap_or(typ)
        };
        match (&self.typ, &header.typ) {
            (Some(expected), actual)
                if actual.as_deref().map(normalized) != Some(normalized(expected)) =>
            {
                Err(self.invalid_token("the token has another type"))
            }
            _ => Ok(()),
        }
    }

    /// The response to an invalid token.
    fn invalid_token(&self, reason: &'static str) -> Problem {
        let value =
            www_authenticate(Scheme::Bearer, "Bearer", &self.realm, BearerError::Invalid(reason));
        // The detail is a sentence; the reason is also sent as a phrase in `WWW-Authenticate`.
        let mut detail = reason.to_owned();
        detail.replace_range(..1, &reason[..1].to_ascii_uppercase());
        unauthorized("invalid-token", detail + ".", [value])
    }

    async fn keys(&self, id: Option<&str>) -> Result<Arc<KeySet>, Problem> {
        match &self.keys.0 {
            KeySource::Static(keys) => Ok(Arc::clone(keys)),
            KeySource::Remote(keys) => keys.keys(id).await.map_err(|KeysUnavailable| {
                let detail =
                    "The keys that verify tokens are currently unavailable. Try again later.";
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "token-keys-unavailable", detail)
                    // The default cooldown between two fetches.
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
            ClaimRule::OneOf(names) => {
                required.push("iss");
                validation.set_issuer(names);
            }
            ClaimRule::Any => {}
        }
        match &self.audience {
            ClaimRule::OneOf(names) => {
                required.push("aud");
                validation.set_audience(names);
            }
            ClaimRule::Any => validation.validate_aud = false,
        }
        validation.set_required_spec_claims(&required);
        validation
    }
}

/// Returns the reason for rejecting a token, without details that the client must not see.
fn error_description(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::ExpiredSignature => "the token has expired",
        ErrorKind::ImmatureSignature => "the token is not valid yet",
        ErrorKind::InvalidIssuer => "the token is from another issuer",
        ErrorKind::InvalidAudience => "the token is for another audience",
        ErrorKind::MissingRequiredClaim(_) => "the token lacks one of exp, iss and aud",
        ErrorKind::InvalidSignature => "the token's signature is wrong",
        ErrorKind::Json(_) | ErrorKind::Utf8(_) | ErrorKind::InvalidClaimFormat(_) => {
            "the token's claims do not have the expected form"
        }
        _ => "the token is not valid",
    }
}

/// The claims of the Bearer token in `Authorization`, verified by the application's
/// [`JwtVerifier`]. `T` is deserialized from the claims; it does not need fields for `exp`, `iss`
/// and `aud`.
///
/// Building the application fails if no verifier is among its states. A request without a token
/// gets a problem of status 401, and `Option<Jwt<T>>` is `None`; an invalid token gets a 401 in
/// both cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Jwt<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts for Jwt<T> {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        let verifier = find_verifier(parts)?;
        let claims = verifier.verify_request(parts).await?;
        claims.map(Jwt).ok_or_else(|| {
            missing_credentials(Scheme::Bearer, &CredentialLocation::BEARER, &verifier.0.realm)
        })
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        Ok(find_verifier(parts)?.verify_request(parts).await?.map(Jwt))
    }

    fn require(requirements: &mut RouteRequirements) {
        requirements.state::<JwtVerifier>();
    }
}

fn find_verifier(parts: &Parts) -> Result<JwtVerifier, Problem> {
    parts.states().get::<JwtVerifier>().cloned().ok_or_else(|| {
        catch_subscriber_panic(|| tracing::error!(target: "peregrine", "the handler needs a `JwtVerifier` among the application's states"));
        let detail = "the server lacks something that it needs for this request; its log says what";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "missing-state", detail)
    })
}

impl JwtVerifier {
    /// Verifies the request's token and returns its claims; `None` if it has no token.
    async fn verify_request<C: DeserializeOwned>(
        &self,
        parts: &Parts,
    ) -> Result<Option<C>, Problem> {
        let result = BearerToken::read(parts, &CredentialLocation::BEARER);
        match result.map_err(|reason| {
            malformed_credentials(
                Scheme::Bearer,
                &CredentialLocation::BEARER,
                &self.0.realm,
                reason,
            )
        })? {
            Some(BearerToken(token)) => self.verify(&token).await.map(Some),
            None => Ok(None),
        }
    }
}

impl Authenticate<BearerToken, ()> {
    /// Authenticates by a JWT in `Authorization`; its claims become the [`User`](crate::User). The
    /// realm is the verifier's.
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

impl From<&str> for ClaimRule {
    fn from(name: &str) -> Self {
        Self::OneOf(vec![name.to_owned()])
    }
}

impl From<String> for ClaimRule {
    fn from(name: String) -> Self {
        Self::OneOf(vec![name])
    }
}

impl<S: Into<String>, const N: usize> From<[S; N]> for ClaimRule {
    fn from(names: [S; N]) -> Self {
        Self::OneOf(names.into_iter().map(Into::into).collect())
    }
}
