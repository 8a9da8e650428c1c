//! Parses the credentials of requests: RFC 9110 §11, RFC 7617, RFC 6750.

use crate::challenge::{BearerError, REALM, Scheme, unauthorized, www_authenticate};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use http::header::WWW_AUTHENTICATE;
use peregrine_web::extract::FromRequestParts;
use peregrine_web::private_response::{IdentitySource, PrivateResponse};
use peregrine_web::{Parts, Problem, RequestHead};
use std::borrow::Cow;
use std::fmt;

/// A user name and password (RFC 7617), not yet verified. `Debug` does not print the password.
///
/// A request without them gets a problem of status 401 with a challenge, and `Option<BasicAuth>` is
/// `None`; malformed credentials get a problem of status 400.
///
/// ```
/// use peregrine::App;
/// use peregrine::auth::BasicAuth;
///
/// let client = App::new().get("/", |credentials: BasicAuth| credentials.username).test();
/// let request = client.get("/").header("authorization", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
/// assert_eq!(request.send_blocking().text(), "Aladdin");
/// let refused = client.get("/").send_blocking();
/// let challenge = r#"Basic realm="restricted", charset="UTF-8""#;
/// assert_eq!(refused.header("www-authenticate"), Some(challenge));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct BasicAuth {
    /// The claimed user name. May be empty.
    pub username: String,
    /// The password. May be empty.
    pub password: String,
}

/// A Bearer token (RFC 6750) from `Authorization`, not yet verified. `Debug` does not print it.
///
/// A request without one gets a problem of status 401 with a challenge, and `Option<BearerToken>`
/// is `None`; a malformed one gets a problem of status 400.
#[derive(Clone, PartialEq, Eq)]
pub struct BearerToken(pub String);

/// An API key from the `X-Api-Key` field, not yet verified. `Debug` does not print it. For keys
/// elsewhere, use [`Authenticate::api_key`](crate::Authenticate::api_key).
///
/// A request without one gets a problem of status 401, and `Option<ApiKey>` is `None`. Several
/// keys, or one that is not visible ASCII, get a problem of status 400.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(pub String);

/// Where requests contain an API key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKeyLocation(pub(crate) CredentialLocation);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CredentialLocation {
    Header(Cow<'static, str>),
    Query(Cow<'static, str>),
    /// In `Authorization`, after this scheme name.
    Scheme(Cow<'static, str>),
}

impl CredentialLocation {
    pub(crate) const BASIC: Self = Self::Scheme(Cow::Borrowed("Basic"));
    pub(crate) const BEARER: Self = Self::Scheme(Cow::Borrowed("Bearer"));

    /// Marks the response as specific to the client identified by these credentials.
    pub(crate) fn mark_private(&self, parts: &mut Parts) {
        match self {
            // Caches distinguish requests by the query, and by `Authorization`.
            Self::Scheme(_) | Self::Query(_) => PrivateResponse::mark_credentials(parts),
            Self::Header(name) if name.eq_ignore_ascii_case("x-api-key") => {
                PrivateResponse::mark_credentials(parts);
            }
            Self::Header(_) => PrivateResponse::mark(parts),
        }
    }

    /// Records that a key was looked for here, even if there is none. Reads of `Authorization` are
    /// recorded by the request head itself.
    fn record_lookup(&self, parts: &Parts) {
        match self {
            Self::Header(name) if name.eq_ignore_ascii_case("x-api-key") => {
                PrivateResponse::mark_source(&parts.head, IdentitySource::Credentials);
            }
            Self::Header(_) => PrivateResponse::mark(parts),
            Self::Scheme(_) | Self::Query(_) => {}
        }
    }

    /// The scheme name before a token.
    pub(crate) fn scheme_name(&self) -> &str {
        match self {
            Self::Scheme(name) => name,
            // Unused: the challenge for an API key does not contain this name.
            Self::Header(_) | Self::Query(_) => "Bearer",
        }
    }
}

impl ApiKeyLocation {
    /// In a header field of this name, in any case. Prefer this one.
    pub fn header(name: impl Into<Cow<'static, str>>) -> Self {
        Self(CredentialLocation::Header(name.into()))
    }

    /// In the query parameter of this name. URLs end up in logs, histories and `Referer`, so use it
    /// only for clients that cannot send header fields.
    pub fn query(name: impl Into<Cow<'static, str>>) -> Self {
        Self(CredentialLocation::Query(name.into()))
    }
}

/// The credentials that an [`Authenticate`](crate::Authenticate) passes to its verify function.
pub(crate) trait Credentials: Sized {
    const SCHEME: Scheme;

    /// Reads the credentials; `None` if the request has none of this kind.
    ///
    /// The error is the reason why the credentials are malformed.
    fn read(parts: &Parts, location: &CredentialLocation) -> Result<Option<Self>, &'static str>;
}

/// Returns the credentials of this scheme in `Authorization`.
fn authorization_credentials<'h>(
    head: &'h RequestHead,
    scheme: &str,
) -> Result<Option<&'h [u8]>, &'static str> {
    let mut fields = head.header_values("authorization");
    let Some(value) = fields.next() else { return Ok(None) };
    // RFC 9110 §11.6.2: one field, one value. Given two, another program could accept the other
    // one.
    if fields.next().is_some() {
        return Err("there are several Authorization fields");
    }
    // RFC 9110 §11.1: the scheme is a case-insensitive token, followed by a space.
    let end = value.iter().position(|byte| *byte == b' ').unwrap_or(value.len());
    let (name, rest) = value.split_at(end);
    if !name.eq_ignore_ascii_case(scheme.as_bytes()) {
        return Ok(None);
    }
    Ok(Some(rest.trim_ascii()))
}

impl Credentials for BasicAuth {
    const SCHEME: Scheme = Scheme::Basic;

    fn read(parts: &Parts, _: &CredentialLocation) -> Result<Option<Self>, &'static str> {
        let Some(encoded) = authorization_credentials(&parts.head, "basic")? else {
            return Ok(None);
        };
        let bytes = STANDARD.decode(encoded).map_err(|_| "the Basic credentials are not base64")?;
        let text = String::from_utf8(bytes).map_err(|_| "the Basic credentials are not UTF-8")?;
        // RFC 7617 §2: the first colon ends the user name; neither part has control characters.
        if text.chars().any(char::is_control) {
            return Err("the Basic credentials contain a control character");
        }
        let (user, password) =
            text.split_once(':').ok_or("the Basic credentials contain no colon")?;
        Ok(Some(Self { username: user.to_owned(), password: password.to_owned() }))
    }
}

/// Which bytes can occur in a token68, except the padding at its end.
const TOKEN68: [bool; 256] = {
    let (mut table, mut byte) = ([false; 256], 0_u8);
    while byte < 128 {
        let is_sign = matches!(byte, b'-' | b'.' | b'_' | b'~' | b'+' | b'/');
        table[byte as usize] = byte.is_ascii_alphanumeric() || is_sign;
        byte += 1;
    }
    table
};

impl Credentials for BearerToken {
    const SCHEME: Scheme = Scheme::Bearer;

    fn read(parts: &Parts, location: &CredentialLocation) -> Result<Option<Self>, &'static str> {
        let Some(token) = authorization_credentials(&parts.head, location.scheme_name())? else {
            return Ok(None);
        };
        // RFC 6750 §2.1: b64token, which is token68 in RFC 9110.
        let end = token.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
        if end == 0 || !token[..end].iter().all(|byte| TOKEN68[usize::from(*byte)]) {
            return Err("the text after the scheme is not a token");
        }
        Ok(std::str::from_utf8(token).ok().map(|token| Self(token.to_owned())))
    }
}

impl Credentials for ApiKey {
    const SCHEME: Scheme = Scheme::ApiKey;

    fn read(parts: &Parts, location: &CredentialLocation) -> Result<Option<Self>, &'static str> {
        location.record_lookup(parts);
        let (first, second): (Option<Cow<'_, [u8]>>, _) = match location {
            // An `ApiKeyLocation` is never a `Scheme`.
            CredentialLocation::Header(name) | CredentialLocation::Scheme(name) => {
                let mut fields = parts.head.header_values(name).map(Cow::Borrowed);
                (fields.next(), fields.next())
            }
            CredentialLocation::Query(name) => {
                let mut pairs = parts.head.query().unwrap_or("").split('&').filter_map(|pair| {
                    let (parameter, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (parameter == name).then(|| decode_form_value(value))
                });
                (pairs.next(), pairs.next())
            }
        };
        let Some(key) = first else { return Ok(None) };
        if second.is_some() {
            return Err("there are several API keys");
        }
        let is_valid = !key.is_empty() && key.iter().all(u8::is_ascii_graphic);
        let key = String::from_utf8(key.into_owned()).ok().filter(|_| is_valid);
        key.map(|key| Some(Self(key))).ok_or("the API key is empty or not visible ASCII")
    }
}

/// Decodes a query value in form encoding.
fn decode_form_value(value: &str) -> Cow<'_, [u8]> {
    let hex = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
    let bytes = value.as_bytes();
    if !bytes.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return bytes.into();
    }
    let (mut decoded, mut index) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(index) {
        match (byte, hex(bytes.get(index + 1)), hex(bytes.get(index + 2))) {
            (b'%', Some(high), Some(low)) => {
                decoded.push(u8::try_from(high * 16 + low).unwrap_or_default());
                index += 3;
                continue;
            }
            (b'+', ..) => decoded.push(b' '),
            _ => decoded.push(*byte),
        }
        index += 1;
    }
    decoded.into()
}

/// The response to malformed credentials.
pub(crate) fn malformed_credentials(
    scheme: Scheme,
    location: &CredentialLocation,
    realm: &str,
    reason: &str,
) -> Problem {
    let detail = format!("The credentials cannot be read: {reason}.");
    let problem = Problem::new(StatusCode::BAD_REQUEST, "malformed-credentials", detail);
    match scheme {
        Scheme::Bearer => {
            let value =
                www_authenticate(scheme, location.scheme_name(), realm, BearerError::Malformed);
            problem.with_header(WWW_AUTHENTICATE, value)
        }
        Scheme::Basic | Scheme::ApiKey => problem,
    }
}

/// The response to a request without credentials.
pub(crate) fn missing_credentials(
    scheme: Scheme,
    location: &CredentialLocation,
    realm: &str,
) -> Problem {
    let scheme_name = location.scheme_name();
    let detail = match scheme {
        Scheme::Basic => "A user name and password are required in Authorization.".to_owned(),
        Scheme::Bearer => {
            format!("A token is required in Authorization, after the scheme {scheme_name}.")
        }
        Scheme::ApiKey => "An API key is required.".to_owned(),
    };
    unauthorized(
        "missing-credentials",
        detail,
        [www_authenticate(scheme, scheme_name, realm, BearerError::None)],
    )
}

impl BearerToken {
    /// Reads a token from `Authorization` with a scheme other than `Bearer`, such as `Token`;
    /// `None` if there is none. For custom middleware and extractors; see also
    /// [`Authenticate::scheme`](crate::Authenticate::scheme).
    ///
    /// # Errors
    /// A malformed token is a problem of status 400.
    ///
    /// ```
    /// use peregrine::auth::BearerToken;
    /// use peregrine::prelude::*;
    ///
    /// async fn token(mut request: Request) -> Result<String, Problem> {
    ///     let token = BearerToken::with_scheme("Token", &mut request.parts)?;
    ///     Ok(token.map_or("none".to_owned(), |BearerToken(token)| token))
    /// }
    ///
    /// let client = App::new().get("/", token).test();
    /// let send = |value: &str| client.get("/").header("authorization", value).send_blocking();
    /// assert_eq!(send("Token abc").text(), "abc");
    /// assert_eq!(send("Bearer abc").text(), "none");
    /// assert_eq!(send("Token a b").status(), 400);
    /// ```
    pub fn with_scheme(scheme: &'static str, parts: &mut Parts) -> Result<Option<Self>, Problem> {
        let location = CredentialLocation::Scheme(scheme.into());
        let result = Self::read(parts, &location);
        if matches!(result, Ok(Some(_))) {
            location.mark_private(parts);
        }
        result.map_err(|reason| malformed_credentials(Scheme::Bearer, &location, REALM, reason))
    }
}

macro_rules! extractors {
    ($($Credentials:ident: $location:expr;)*) => {
        $(
            impl FromRequestParts for $Credentials {
                async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
                    let credentials = Self::optional_from_request_parts(parts).await?;
                    credentials.ok_or_else(|| missing_credentials(Self::SCHEME, &$location, REALM))
                }

                async fn optional_from_request_parts(
                    parts: &mut Parts,
                ) -> Result<Option<Self>, Problem> {
                    let result = Self::read(parts, &$location);
                    if matches!(result, Ok(Some(_))) {
                        $location.mark_private(parts);
                    }
                    result.map_err(|reason| {
                        malformed_credentials(Self::SCHEME, &$location, REALM, reason)
                    })
                }
            }
        )*
    };
}

extractors! {
    BasicAuth: CredentialLocation::BASIC;
    BearerToken: CredentialLocation::BEARER;
    ApiKey: CredentialLocation::Header(Cow::Borrowed("x-api-key"));
}

impl fmt::Debug for BasicAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BasicAuth").field("user", &self.username).finish_non_exhaustive()
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken(..)")
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(..)")
    }
}
