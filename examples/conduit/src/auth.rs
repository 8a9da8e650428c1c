//! Who asks: tokens that this service makes for itself, and [`Viewer`], by which handlers take who they are for.

use crate::errors::{Error, about, internal};
use peregrine::auth::jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use peregrine::auth::{JwtKeys, JwtVerifier, KeyError};
use peregrine::http::header::WWW_AUTHENTICATE;
use peregrine::openapi::{DescribeArgument, Operation};
use peregrine::prelude::*;
use peregrine::web::requirements::Requirements;
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Who issues the tokens, and for whom.
const ISSUER: &str = "conduit";
const ALGORITHM: Algorithm = Algorithm::HS256;
/// The way in, as the document names it.
pub(crate) const SCHEME: &str = "Token";

#[derive(Serialize, Deserialize)]
struct Claims {
    /// The user's id.
    sub: String,
    iss: String,
    aud: String,
    exp: u64,
    /// Of the user when the token was made. A new password begins another one, and ends all tokens of those before.
    epoch: i64,
}

/// Makes tokens, and judges them. All workers share it.
#[derive(Clone)]
pub(crate) struct Tokens {
    key: EncodingKey,
    verifier: JwtVerifier,
    lifetime: Duration,
}

impl Tokens {
    pub(crate) fn new(secret: &[u8], lifetime: Duration) -> Result<Self, KeyError> {
        let verifier = JwtVerifier::new(JwtKeys::secret(ALGORITHM, secret)?, ISSUER, ISSUER);
        Ok(Self { key: EncodingKey::from_secret(secret), verifier, lifetime })
    }

    pub(crate) fn issue(&self, user_id: i64, epoch: i64) -> Result<String, Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let exp = (now + self.lifetime).as_secs();
        let (sub, iss, aud) = (user_id.to_string(), ISSUER.to_owned(), ISSUER.to_owned());
        let claims = Claims { sub, iss, aud, exp, epoch };
        encode(&Header::new(ALGORITHM), &claims, &self.key)
            .map_err(|error| internal("a token could not be made", &error))
    }
}

/// Who asks. As an argument it lets in nobody else; `Option<Viewer>` is for routes that everybody may see, and still
/// refuses a token that is no good.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Viewer {
    pub(crate) id: i64,
}

/// The token of the request. The specification says `Token`, everybody else `Bearer`: both will do.
fn token(head: &Head) -> Result<Option<&str>, Problem> {
    let mut fields = head.fields_named("authorization");
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

/// RFC 9110 §15.5.2: a 401 says how to be let in.
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
        let tokens = states.get::<Tokens>().expect("`require` asked for it");
        let pool = states.get::<SqlitePool>().expect("`require` asked for it");
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

    fn require(requirements: &mut Requirements) {
        requirements.state::<Tokens>();
        requirements.state::<SqlitePool>();
    }
}

impl DescribeArgument for Viewer {
    fn describe(operation: &mut Operation) {
        operation.security(SCHEME).problem(401, "The token is missing or wrong.");
    }
}
