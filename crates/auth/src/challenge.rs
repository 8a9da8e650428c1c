//! `WWW-Authenticate` challenges and the problems that carry them.

use http::header::WWW_AUTHENTICATE;
use http::{HeaderValue, StatusCode};
use peregrine_web::Problem;
use std::borrow::Cow;

/// The default realm.
pub(crate) const REALM: &str = "restricted";

/// The authentication schemes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Basic,
    Bearer,
    ApiKey,
}

/// Why a Bearer token was not accepted: the `error` codes of RFC 6750, section 3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BearerError<'r> {
    /// No token was sent. RFC 6750, section 3.1: no error code is sent in this case.
    None,
    Malformed,
    Invalid(&'r str),
    Scope(&'r str),
}

/// Builds the value of `WWW-Authenticate`. `scheme_name` is the name that clients send before a
/// token.
pub(crate) fn www_authenticate(
    scheme: Scheme,
    scheme_name: &str,
    realm: &str,
    error: BearerError<'_>,
) -> HeaderValue {
    let realm = quoted(realm);
    let text = match scheme {
        // RFC 7617 §2.1: UTF-8 is the only allowed value of `charset`.
        Scheme::Basic => format!("Basic realm={realm}, charset=\"UTF-8\""),
        // RFC 9110 §11.6.1: a 401 has a challenge. IANA has no scheme for API keys, so this one is
        // not registered.
        Scheme::ApiKey => format!("ApiKey realm={realm}"),
        Scheme::Bearer => {
            let realm = format!("{scheme_name} realm={realm}");
            match error {
                BearerError::None => realm,
                BearerError::Malformed => format!("{realm}, error=\"invalid_request\""),
                BearerError::Invalid(reason) => {
                    let reason = quoted(reason);
                    format!("{realm}, error=\"invalid_token\", error_description={reason}")
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

/// Formats a quoted string (RFC 9110, section 5.6.4): quotes and backslashes are escaped with a
/// backslash, and characters that a field cannot hold are dropped.
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

/// Whether a realm can be sent unchanged.
pub(crate) fn is_valid_realm(realm: &str) -> bool {
    realm.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// The response to a request without valid credentials.
pub(crate) fn unauthorized(
    kind: &'static str,
    detail: impl Into<Cow<'static, str>>,
    challenges: impl IntoIterator<Item = HeaderValue>,
) -> Problem {
    let problem = Problem::new(StatusCode::UNAUTHORIZED, kind, detail);
    let add = |problem: Problem, value| problem.with_header(WWW_AUTHENTICATE, value);
    challenges.into_iter().fold(problem, add)
}

/// The response to a request whose Bearer token is valid but lacks a scope: status 403, with the
/// required scopes, separated by spaces (RFC 6750, section 3.1).
///
/// ```
/// let problem = peregrine::auth::insufficient_scope("birds:write");
/// assert_eq!(problem.status, 403);
/// ```
#[must_use]
pub fn insufficient_scope(scope: &str) -> Problem {
    let value = www_authenticate(Scheme::Bearer, "Bearer", REALM, BearerError::Scope(scope));
    let detail = "The token lacks the required scope; WWW-Authenticate names it.";
    Problem::new(StatusCode::FORBIDDEN, "insufficient-scope", detail)
        .with_header(WWW_AUTHENTICATE, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_follow_the_rfcs_and_escape_their_parameters() {
        for (value, expected) in [
            (
                www_authenticate(Scheme::Basic, "Basic", "a \"b\" \\ c", BearerError::None),
                r#"Basic realm="a \"b\" \\ c", charset="UTF-8""#,
            ),
            (
                www_authenticate(Scheme::Bearer, "Bearer", "x", BearerError::None),
                r#"Bearer realm="x""#,
            ),
            (
                www_authenticate(Scheme::Bearer, "Bearer", "x", BearerError::Malformed),
                r#"Bearer realm="x", error="invalid_request""#,
            ),
            (
                www_authenticate(
                    Scheme::Bearer,
                    "Bearer",
                    "x",
                    BearerError::Invalid("it\r\nX: y has \"ended\"ö"),
                ),
                r#"Bearer realm="x", error="invalid_token", error_description="itX: y has \"ended\"""#,
            ),
            (
                www_authenticate(Scheme::Bearer, "Bearer", "x", BearerError::Scope("a b")),
                r#"Bearer realm="x", error="insufficient_scope", scope="a b""#,
            ),
            (
                www_authenticate(Scheme::Bearer, "Token", "x", BearerError::None),
                r#"Token realm="x""#,
            ),
            (www_authenticate(Scheme::ApiKey, "", "x", BearerError::None), r#"ApiKey realm="x""#),
        ] {
            assert_eq!(value.to_str().expect("text"), expected);
        }
    }
}
