//! Authentication: tokens that this service issues and verifies itself, and [`Viewer`], the
//! extractor that identifies the user.

use crate::errors::{Error, about, internal};
use peregrine::auth::jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use peregrine::auth::{JwtKeyError, JwtKeys, JwtVerifier};
use peregrine::http::header::WWW_AUTHENTICATE;
use peregrine::openapi::{Operation, OperationInput};
use peregrine::prelude::*;
use peregrine::web::extract::RouteRequirements;
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The issuer and the audience of the tokens.
const ISSUER: &str = "conduit";
const ALGORITHM: Algorithm = Algorithm::HS256;
/// The name of the security scheme in the OpenAPI document.
pub(crate) const SCHEME: &str = "Token";

#[derive(Serialize, Deserialize)]
struct Claims {
    /// The user's id.
    sub: String,
    iss: String,
    aud: String,
    exp: u64,
    /// The user's epoch when the token was issued. A new password increments the epoch, which
    /// invalidates all earlier tokens.
    epoch: i64,
}

/// Issues and verifies tokens. All workers share it.
#[derive(Clone)]
pub(crate) struct Tokens {
    key: EncodingKey,
    verifier: JwtVerifier,
    lifetime: Duration,
}

impl Tokens {
    pub(crate) fn new(secret: &[u8], lifetime: Duration) -> Result<Self, JwtKeyError> {
        let verifier = JwtVerifier::new(JwtKeys::secret(ALGORITHM, secret)?, ISSUER, ISSUER);
        Ok(Self { key: EncodingKey::from_secret(secret), verifier, lifetime })
    }

    pub(crate) fn issue(&self, user_id: i64, epoch: i64) -> Result<String, Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let exp = (now + self.lifetime).as_secs();
        let (sub, iss, aud) = (user_id.to_string(), ISSUER.to_owned(), ISSUER.to_owned());
        let claims = Claims { sub, iss, aud, exp, epoch };
        encode(&Header::new(ALGORITHM), &claims, &self.key)
            .map_err(|error| internal("a token could not be signed", &error))
    }
}

/// The user of the request. As an argument it requires a valid token. `Option<Viewer>` also allows
/// requests without a token, but still rejects an invalid one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Viewer {
    pub(crate) id: i64,
}

/// The token of the request. The specification uses the scheme `Token`, other clients `Bearer`:
/// both are accepted.
fn token(head: &RequestHead) -> Result<Option<&str>, Problem> {
    let mut fields = head.header_values("authorization");
    let Some(first) = fields.next() else { return Ok(None) };
    let text = std::str::from_utf8(first).ok().filter(|_| fields.next().is_none());
    let (scheme, token) = text.and_then(|text| text.trim().split_once(' ')).ok_or_else(refused)?;
    match scheme.to_ascii_lowercase().as_str() {
        "token" | "bearer" => Ok(Some(token.trim())),
        _ => Err(refused()),
    }
}

fn refused() -> Problem {
    challenge(about(StatusCode::UNAUTHORIZED, "token", "is invalid"))
}

fn missing() -> Problem {
    challenge(about(StatusCode::UNAUTHORIZED, "token", "is missing"))
}

/// RFC 9110 §15.5.2: a 401 states which credentials are accepted.
fn challenge(problem: Problem) -> Problem {
    problem.with_header(WWW_AUTHENTICATE, HeaderValue::from_static("Token"))
}

impl FromRequestParts for Viewer {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        Self::optional_from_request_parts(parts).await?.ok_or_else(missing)
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        let Some(token) = token(&parts.head)? else { return Ok(None) };
        let states = Rc::clone(parts.states());
        let tokens = states.get::<Tokens>().expect("`require` declares it");
        let pool = states.get::<SqlitePool>().expect("`require` declares it");
        let claims = tokens.verifier.verify::<Claims>(token).await.map_err(|_| refused())?;
        let id = claims.sub.parse::<i64>().map_err(|_| refused())?;
        let epoch = sqlx::query_scalar::<_, i64>("SELECT token_epoch FROM users WHERE id = ?");
        let epoch =
            epoch.bind(id).fetch_optional(pool).await.map_err(|error| Error::from(error).0)?;
        if epoch != Some(claims.epoch) {
            return Err(refused());
        }
        Ok(Some(Self { id }))
    }

    fn require(requirements: &mut RouteRequirements) {
        requirements.state::<Tokens>();
        requirements.state::<SqlitePool>();
    }
}

impl OperationInput for Viewer {
    fn describe(operation: &mut Operation) {
        operation.security(SCHEME).problem(401, "The token is missing or wrong.");
    }
}
