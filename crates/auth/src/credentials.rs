//! Credentials, as requests bring them: RFC 9110 §11, RFC 7617, RFC 6750.

use crate::challenge::{BearerError, REALM, Scheme, challenge, unauthorized};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use http::header::WWW_AUTHENTICATE;
use peregrine_web::extract::FromRequestParts;
use peregrine_web::personal::{IdentitySource, Personal};
use peregrine_web::{Head, Parts, Problem};
use std::borrow::Cow;
use std::fmt;

/// A name and a password (RFC 7617), which nobody has checked yet. The password is not shown by `Debug`.
///
/// Without such credentials the problem has status 401 and asks for them, and `Option<BasicAuth>` is `None`; what cannot be read is a problem of
/// status 400.
///
/// ```
/// use peregrine::App;
/// use peregrine::auth::BasicAuth;
///
/// let client = App::new().get("/", |credentials: BasicAuth| credentials.user).test();
/// let response = client.get("/").header("authorization", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==").send_now();
/// assert_eq!(response.text(), "Aladdin");
/// let refused = client.get("/").send_now();
/// assert_eq!(refused.header("www-authenticate"), Some(r#"Basic realm="restricted", charset="UTF-8""#));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct BasicAuth {
    /// Who it claims to be. It may be empty.
    pub user: String,
    /// What is to prove it. It may be empty.
    pub password: String,
}

/// A Bearer token (RFC 6750), of the field `Authorization`, which nobody has checked yet. It is not shown by `Debug`.
///
/// Without one the problem has status 401 and asks for it, and `Option<BearerToken>` is `None`; what cannot be read is a problem of status 400.
#[derive(Clone, PartialEq, Eq)]
pub struct BearerToken(pub String);

/// An API key of the field `X-Api-Key`, which nobody has checked yet. It is not shown by `Debug`. For other places there is
/// [`Authenticate::api_key`](crate::Authenticate::api_key).
///
/// Without one the problem has status 401, and `Option<ApiKey>` is `None`; several, or one that is no visible ASCII, is a problem of status 400.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(pub String);

/// Where an API key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKeyPlace(pub(crate) Place);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Header(Cow<'static, str>),
    Query(Cow<'static, str>),
    /// In `Authorization`, behind this word.
    Behind(Cow<'static, str>),
}

impl Place {
    pub(crate) const BASIC: Self = Self::Behind(Cow::Borrowed("Basic"));
    pub(crate) const BEARER: Self = Self::Behind(Cow::Borrowed("Bearer"));

    /// Says that the answer is about a client that was found here.
    pub(crate) fn note(&self, parts: &mut Parts) {
        match self {
            // The query is a part of what is asked for.
            Self::Behind(_) | Self::Query(_) => Personal::note_credentials(parts),
            Self::Header(name) if name.eq_ignore_ascii_case("x-api-key") => {
                Personal::note_credentials(parts);
            }
            Self::Header(_) => Personal::note(parts),
        }
    }

    /// Says that a key was looked for here, also where there is none. `Authorization` is marked by
    /// reading it.
    fn note_lookup(&self, parts: &Parts) {
        match self {
            Self::Header(name) if name.eq_ignore_ascii_case("x-api-key") => {
                Personal::depends_on(&parts.head, IdentitySource::Credentials);
            }
            Self::Header(_) => Personal::note(parts),
            Self::Behind(_) | Self::Query(_) => {}
        }
    }

    /// The word that stands before a token.
    pub(crate) fn word(&self) -> &str {
        match self {
            Self::Behind(word) => word,
            Self::Header(_) | Self::Query(_) => "Bearer",
        }
    }
}

impl ApiKeyPlace {
    /// In a header field of this name, in any case. Best.
    pub fn header(name: impl Into<Cow<'static, str>>) -> Self {
        Self(Place::Header(name.into()))
    }

    /// In the query, under this name. Keys in URLs come into logs, histories and `Referer`; take it only for clients that can nothing else.
    pub fn query(name: impl Into<Cow<'static, str>>) -> Self {
        Self(Place::Query(name.into()))
    }
}

/// What a function of an [`Authenticate`](crate::Authenticate) may be given.
pub(crate) trait Credentials: Sized {
    const SCHEME: Scheme;

    /// `None`: the request has none of this kind.
    ///
    /// The error says what is wrong with those that it has.
    fn read(parts: &Parts, place: &Place) -> Result<Option<Self>, &'static str>;
}

/// The credentials of this scheme in `Authorization`.
fn of_scheme<'h>(head: &'h Head, scheme: &str) -> Result<Option<&'h [u8]>, &'static str> {
    let mut fields = head.fields_named("authorization");
    let Some(value) = fields.next() else { return Ok(None) };
    // RFC 9110 §11.6.2: one field, one value. Of two, another program may believe the other.
    if fields.next().is_some() {
        return Err("there are several Authorization fields");
    }
    // RFC 9110 §11.1: the scheme is a token in any case, and a space stands behind it.
    let end = value.iter().position(|byte| *byte == b' ').unwrap_or(value.len());
    let (said, rest) = value.split_at(end);
    if !said.eq_ignore_ascii_case(scheme.as_bytes()) {
        return Ok(None);
    }
    Ok(Some(rest.trim_ascii()))
}

impl Credentials for BasicAuth {
    const SCHEME: Scheme = Scheme::Basic;

    fn read(parts: &Parts, _: &Place) -> Result<Option<Self>, &'static str> {
        let Some(sent) = of_scheme(&parts.head, "basic")? else { return Ok(None) };
        let bytes = STANDARD.decode(sent).map_err(|_| "what stands behind Basic is no base64")?;
        let text = String::from_utf8(bytes).map_err(|_| "the Basic credentials are no UTF-8")?;
        // RFC 7617 §2: the first colon ends the name; control characters are in neither.
        if text.chars().any(char::is_control) {
            return Err("the Basic credentials have a control character in them");
        }
        let (user, password) =
            text.split_once(':').ok_or("the Basic credentials have no colon in them")?;
        Ok(Some(Self { user: user.to_owned(), password: password.to_owned() }))
    }
}

/// The bytes of a token68, but for the padding at its end.
const IN_TOKEN: [bool; 256] = {
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

    fn read(parts: &Parts, place: &Place) -> Result<Option<Self>, &'static str> {
        let Some(sent) = of_scheme(&parts.head, place.word())? else { return Ok(None) };
        // RFC 6750 §2.1: b64token, which is RFC 9110's token68.
        let end = sent.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
        if end == 0 || !sent[..end].iter().all(|byte| IN_TOKEN[usize::from(*byte)]) {
            return Err("what stands behind the scheme is no token");
        }
        Ok(std::str::from_utf8(sent).ok().map(|token| Self(token.to_owned())))
    }
}

impl Credentials for ApiKey {
    const SCHEME: Scheme = Scheme::ApiKey;

    fn read(parts: &Parts, place: &Place) -> Result<Option<Self>, &'static str> {
        place.note_lookup(parts);
        let (first, second): (Option<Cow<'_, [u8]>>, _) = match place {
            Place::Header(name) | Place::Behind(name) => {
                let mut fields = parts.head.fields_named(name).map(Cow::Borrowed);
                (fields.next(), fields.next())
            }
            Place::Query(name) => {
                let mut pairs = parts.head.query().unwrap_or("").split('&').filter_map(|pair| {
                    let (said, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (said == name).then(|| unescaped(value))
                });
                (pairs.next(), pairs.next())
            }
        };
        let Some(key) = first else { return Ok(None) };
        if second.is_some() {
            return Err("there are several API keys");
        }
        let is_one = !key.is_empty() && key.iter().all(u8::is_ascii_graphic);
        let key = String::from_utf8(key.into_owned()).ok().filter(|_| is_one);
        key.map(|key| Some(Self(key))).ok_or("the API key is empty, or not of visible ASCII")
    }
}

/// A value of a query, as forms write it.
fn unescaped(value: &str) -> Cow<'_, [u8]> {
    let hex = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
    let bytes = value.as_bytes();
    if !bytes.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return bytes.into();
    }
    let (mut plain, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        match (byte, hex(bytes.get(at + 1)), hex(bytes.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                plain.push(u8::try_from(high * 16 + low).unwrap_or_default());
                at += 3;
                continue;
            }
            (b'+', ..) => plain.push(b' '),
            _ => plain.push(*byte),
        }
        at += 1;
    }
    plain.into()
}

/// The answer to credentials that cannot be read.
pub(crate) fn malformed(scheme: Scheme, place: &Place, realm: &str, why: &str) -> Problem {
    let detail = format!("The credentials cannot be read: {why}.");
    let problem = Problem::new(StatusCode::BAD_REQUEST, "malformed-credentials", detail);
    match scheme {
        Scheme::Bearer => {
            let value = challenge(scheme, place.word(), realm, BearerError::Malformed);
            problem.with_header(WWW_AUTHENTICATE, value)
        }
        Scheme::Basic | Scheme::ApiKey => problem,
    }
}

/// The answer to a request without credentials.
pub(crate) fn missing(scheme: Scheme, place: &Place, realm: &str) -> Problem {
    let word = place.word();
    let detail = match scheme {
        Scheme::Basic => "This needs a name and a password, in the field Authorization.".to_owned(),
        Scheme::Bearer => {
            format!("This needs a token, in the field Authorization behind the word {word}.")
        }
        Scheme::ApiKey => "This needs an API key.".to_owned(),
    };
    unauthorized("missing-credentials", detail, [challenge(scheme, word, realm, BearerError::None)])
}

impl BearerToken {
    /// A token of the field `Authorization` behind another word than `Bearer`, such as `Token`; `None` without one. For middleware and
    /// extractors of yours; there is [`Authenticate::scheme`](crate::Authenticate::scheme) too.
    ///
    /// # Errors
    /// What cannot be read is a problem of status 400.
    ///
    /// ```
    /// use peregrine::auth::BearerToken;
    /// use peregrine::prelude::*;
    ///
    /// async fn whose(mut request: Request) -> Result<String, Problem> {
    ///     let token = BearerToken::behind("Token", &mut request.parts)?;
    ///     Ok(token.map_or("nobody's".to_owned(), |BearerToken(token)| token))
    /// }
    ///
    /// let client = App::new().get("/", whose).test();
    /// assert_eq!(client.get("/").header("authorization", "Token abc").send_now().text(), "abc");
    /// assert_eq!(client.get("/").header("authorization", "Bearer abc").send_now().text(), "nobody's");
    /// assert_eq!(client.get("/").header("authorization", "Token a b").send_now().status(), 400);
    /// ```
    pub fn behind(scheme: &'static str, parts: &mut Parts) -> Result<Option<Self>, Problem> {
        let place = Place::Behind(scheme.into());
        let read = Self::read(parts, &place);
        if matches!(read, Ok(Some(_))) {
            place.note(parts);
        }
        read.map_err(|why| malformed(Scheme::Bearer, &place, REALM, why))
    }
}

macro_rules! extractors {
    ($($Credentials:ident: $place:expr;)*) => {
        $(
            impl FromRequestParts for $Credentials {
                async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
                    let found = Self::optional_from_request_parts(parts).await?;
                    found.ok_or_else(|| missing(Self::SCHEME, &$place, REALM))
                }

                async fn optional_from_request_parts(
                    parts: &mut Parts,
                ) -> Result<Option<Self>, Problem> {
                    let read = Self::read(parts, &$place);
                    if matches!(read, Ok(Some(_))) {
                        $place.note(parts);
                    }
                    read.map_err(|why| malformed(Self::SCHEME, &$place, REALM, why))
                }
            }
        )*
    };
}

extractors! {
    BasicAuth: Place::BASIC;
    BearerToken: Place::BEARER;
    ApiKey: Place::Header(Cow::Borrowed("x-api-key"));
}

impl fmt::Debug for BasicAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BasicAuth").field("user", &self.user).finish_non_exhaustive()
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
