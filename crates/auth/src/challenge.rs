//! What a client is told that has to say who it is.

use http::header::WWW_AUTHENTICATE;
use http::{HeaderValue, StatusCode};
use peregrine_web::Problem;
use std::borrow::Cow;

/// What is protected, where nobody gives it a name.
pub(crate) const REALM: &str = "restricted";

/// How a client may say who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Basic,
    Bearer,
    ApiKey,
}

/// Why a Bearer token was not enough. RFC 6750 §3.1: the codes of `error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BearerError<'r> {
    /// None was sent: RFC 6750 §3.1 wants no code then.
    None,
    Malformed,
    Invalid(&'r str),
    Scope(&'r str),
}

/// The value of `WWW-Authenticate`. A token stands behind `word`.
pub(crate) fn challenge(
    scheme: Scheme,
    word: &str,
    realm: &str,
    error: BearerError<'_>,
) -> HeaderValue {
    let realm = quoted(realm);
    let text = match scheme {
        // RFC 7617 §2.1: the only charset there is to be said.
        Scheme::Basic => format!("Basic realm={realm}, charset=\"UTF-8\""),
        // RFC 9110 §11.6.1: a 401 has a challenge. There is no scheme of this name at IANA, but none other either.
        Scheme::ApiKey => format!("ApiKey realm={realm}"),
        Scheme::Bearer => {
            let realm = format!("{word} realm={realm}");
            match error {
                BearerError::None => realm,
                BearerError::Malformed => format!("{realm}, error=\"invalid_request\""),
                BearerError::Invalid(why) => {
                    let why = quoted(why);
                    format!("{realm}, error=\"invalid_token\", error_description={why}")
                }
                BearerError::Scope(scope) => {
                    let scope = quoted(scope);
                    format!("{realm}, error=\"insufficient_scope\", scope={scope}")
                }
            }
        }
    };
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("Bearer"))
}

/// A quoted string. RFC 9110 §5.6.4: a backslash stands before quotes and backslashes; what fields cannot hold is left out.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars().filter(|character| matches!(character, ' '..='~')) {
        if matches!(character, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(character);
    }
    quoted.push('"');
    quoted
}

/// Can a realm be told as it is?
pub(crate) fn is_plain(realm: &str) -> bool {
    realm.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// The answer to a request without credentials, or with wrong ones.
pub(crate) fn unauthorized(
    kind: &'static str,
    detail: impl Into<Cow<'static, str>>,
    challenges: impl IntoIterator<Item = HeaderValue>,
) -> Problem {
    let problem = Problem::new(StatusCode::UNAUTHORIZED, kind, detail);
    let add = |problem: Problem, value| problem.with_header(WWW_AUTHENTICATE, value);
    challenges.into_iter().fold(problem, add)
}

/// The answer to a request whose Bearer token is good, but not for this: status 403, with the scopes that it would need, separated by
/// spaces (RFC 6750, section 3.1).
///
/// ```
/// let problem = peregrine::auth::insufficient_scope("birds:write");
/// assert_eq!(problem.status, 403);
/// ```
#[must_use]
pub fn insufficient_scope(scope: &str) -> Problem {
    let value = challenge(Scheme::Bearer, "Bearer", REALM, BearerError::Scope(scope));
    let detail = "The token does not allow this; WWW-Authenticate says which scope does.";
    Problem::new(StatusCode::FORBIDDEN, "insufficient-scope", detail)
        .with_header(WWW_AUTHENTICATE, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_what_the_rfcs_say_whatever_the_words() {
        for (value, expected) in [
            (
                challenge(Scheme::Basic, "Basic", "a \"b\" \\ c", BearerError::None),
                r#"Basic realm="a \"b\" \\ c", charset="UTF-8""#,
            ),
            (challenge(Scheme::Bearer, "Bearer", "x", BearerError::None), r#"Bearer realm="x""#),
            (
                challenge(Scheme::Bearer, "Bearer", "x", BearerError::Malformed),
                r#"Bearer realm="x", error="invalid_request""#,
            ),
            (
                challenge(
                    Scheme::Bearer,
                    "Bearer",
                    "x",
                    BearerError::Invalid("it\r\nX: y has \"ended\"ö"),
                ),
                r#"Bearer realm="x", error="invalid_token", error_description="itX: y has \"ended\"""#,
            ),
            (
                challenge(Scheme::Bearer, "Bearer", "x", BearerError::Scope("a b")),
                r#"Bearer realm="x", error="insufficient_scope", scope="a b""#,
            ),
            (challenge(Scheme::Bearer, "Token", "x", BearerError::None), r#"Token realm="x""#),
            (challenge(Scheme::ApiKey, "", "x", BearerError::None), r#"ApiKey realm="x""#),
        ] {
            assert_eq!(value.to_str().expect("text"), expected);
        }
    }
}
