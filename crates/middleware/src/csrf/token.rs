//! Signed tokens, for browsers that do not report the origin of a request.

use crate::random::{Hex, random_bytes};
use hmac::{Hmac, Mac};
use http::{HeaderValue, StatusCode};
use peregrine_web::extract::FromRequestParts;
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::private_response::PrivateResponse;
use peregrine_web::{Parts, Problem, RequestHead};
use sha2::Sha256;
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use subtle::ConstantTimeEq;

pub(super) const HEADER: &str = "x-csrf-token";
pub(super) const FORM_FIELD: &str = "csrf_token";
/// Browsers accept this cookie only from this host, over TLS.
const COOKIE_SECURE: &str = "__Host-csrf";
const COOKIE_PLAIN: &str = "csrf";

const NONCE_BYTES: usize = 16;
const TOKEN_BYTES: usize = NONCE_BYTES + 32;
/// The minimum length of a key, in bytes.
const KEY_BYTES_MIN: usize = 32;

/// The secret with which tokens are signed.
#[derive(Clone)]
pub struct CsrfKey(Rc<[u8]>);

impl CsrfKey {
    /// Creates a key from at least 32 random bytes, the same for all workers and instances.
    ///
    /// # Panics
    /// If `secret` is shorter.
    #[must_use]
    #[track_caller]
    pub fn new(secret: &[u8]) -> Self {
        let length = secret.len();
        assert!(
            length >= KEY_BYTES_MIN,
            "a CsrfKey of {length} bytes can be guessed; give it at least {KEY_BYTES_MIN} random ones"
        );
        Self(secret.into())
    }
}

impl fmt::Debug for CsrfKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CsrfKey")
    }
}

/// Creates and verifies tokens.
#[derive(Clone, Debug)]
pub(super) struct TokenSigner {
    pub(super) key: CsrfKey,
    /// The name of the cookie whose value is signed too.
    pub(super) bound_to: Option<String>,
}

impl TokenSigner {
    /// Returns the token in the request's cookie, if this server has signed it. Over TLS the plain
    /// cookie is ignored: any host of the same site can plant one, with a token that was signed for
    /// another visitor.
    pub(super) fn token_in_cookie(&self, head: &RequestHead, is_secure: bool) -> Option<Token> {
        let token = Token(decode_hex(head.cookie(cookie_name(is_secure))?)?);
        let mac = self.mac(&token.0[..NONCE_BYTES], head);
        mac.verify_slice(&token.0[NONCE_BYTES..]).is_ok().then_some(token)
    }

    fn issue(&self, head: &RequestHead) -> Token {
        let mut token = [0; TOKEN_BYTES];
        token[..NONCE_BYTES].copy_from_slice(&random_bytes::<NONCE_BYTES>());
        let mac = self.mac(&token[..NONCE_BYTES], head).finalize().into_bytes();
        token[NONCE_BYTES..].copy_from_slice(&mac);
        Token(token)
    }

    fn mac(&self, nonce: &[u8], head: &RequestHead) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key.0).expect("a key of any length");
        // Separates these signatures from other uses of the key.
        mac.update(b"peregrine csrf 1");
        mac.update(nonce);
        if let Some(name) = &self.bound_to {
            mac.update(head.cookie(name).unwrap_or_default());
        }
        mac
    }
}

/// A random number and its signature.
#[derive(Clone, Copy)]
pub(super) struct Token([u8; TOKEN_BYTES]);

impl Token {
    /// Returns whether `submitted` is this token, in plain or masked form.
    pub(super) fn matches(&self, submitted: &[u8]) -> bool {
        if let Some(plain) = decode_hex::<TOKEN_BYTES>(submitted) {
            return self.0.ct_eq(&plain).into();
        }
        let Some(masked) = decode_hex::<{ 2 * TOKEN_BYTES }>(submitted) else { return false };
        let (mask, masked) = masked.split_at(TOKEN_BYTES);
        let mut plain = [0; TOKEN_BYTES];
        plain
            .iter_mut()
            .zip(mask.iter().zip(masked))
            .for_each(|(output, (mask_byte, masked_byte))| *output = mask_byte ^ masked_byte);
        self.0.ct_eq(&plain).into()
    }

    /// The cookie is not `HttpOnly`, so that scripts of this server can send the token in a field.
    pub(super) fn set_cookie(&self, is_secure: bool) -> HeaderValue {
        let (name, secure) = (cookie_name(is_secure), if is_secure { "; Secure" } else { "" });
        let text = format!("{name}={}; Path=/; SameSite=Lax{secure}", Hex(&self.0));
        HeaderValue::try_from(text).expect("a cookie of letters and digits")
    }
}

/// The token of the request that is being polled.
pub(super) struct CurrentToken {
    pub(super) tokens: Rc<TokenSigner>,
    /// Whether the client uses TLS.
    pub(super) is_secure: bool,
    /// The token, and whether it is new.
    pub(super) token: Option<(Token, bool)>,
}

thread_local! {
    pub(super) static CURRENT: Cell<Option<CurrentToken>> = const { Cell::new(None) };
}

/// The token that forms and scripts of this visitor must send. As a handler argument it requires a
/// [`Csrf`](super::Csrf) with [`tokens`](super::Csrf::tokens) around the handler; otherwise the
/// problem has status 500, and `Option<CsrfToken>` is `None`. The response sets the matching
/// cookie, unless the browser already has it. It has `Vary: Cookie` and, unless the handler sets
/// another `Cache-Control`, `Cache-Control: private`.
///
/// ```
/// use peregrine::middleware::{Csrf, CsrfKey, CsrfToken};
/// use peregrine::App;
/// use peregrine::web::response::Html;
///
/// async fn form(token: CsrfToken) -> Html<String> {
///     Html(format!("<form method=post><input type=hidden name=csrf_token value={token}>"))
/// }
///
/// let key = CsrfKey::new(&[7; 32]); // from the configuration
/// let app = App::new().wrap(Csrf::new().tokens(key)).get("/form", form).post("/form", || "done");
/// let response = app.test().get("/form").send_blocking();
/// assert!(response.header("set-cookie").unwrap().starts_with("csrf="));
/// ```
///
/// Its text is masked, with another mask each time, so that it cannot be guessed letter by letter
/// from the length of compressed pages (BREACH).
#[derive(Clone, Copy)]
pub struct CsrfToken(Token);

/// Returns the token of the current request, creating it on first use. `None` outside of the
/// middleware.
fn current_token(head: &RequestHead) -> Option<CsrfToken> {
    let mut current = CURRENT.take()?;
    let (tokens, is_secure) = (&current.tokens, current.is_secure);
    let (token, _) =
        *current.token.get_or_insert_with(|| match tokens.token_in_cookie(head, is_secure) {
            Some(token) => (token, false),
            None => (tokens.issue(head), true),
        });
    CURRENT.set(Some(current));
    Some(CsrfToken(token))
}

impl FromRequestParts for CsrfToken {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        // A page that contains the token is for one visitor only.
        PrivateResponse::mark(parts);
        current_token(&parts.head).ok_or_else(|| {
            catch_subscriber_panic(|| {
                tracing::error!(target: "peregrine",
                "the handler needs a CSRF token; add `.wrap(Csrf::new().tokens(key))` around it")
            });
            let detail =
                "the server lacks something that it needs for this request; its log says what";
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "missing-csrf-token", detail)
        })
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        let token = current_token(&parts.head);
        if token.is_some() {
            PrivateResponse::mark(parts);
        }
        Ok(token)
    }
}

impl fmt::Display for CsrfToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mask: [u8; TOKEN_BYTES] = random_bytes();
        let mut masked = self.0.0;
        masked.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
        write!(f, "{}{}", Hex(&mask), Hex(&masked))
    }
}

impl fmt::Debug for CsrfToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CsrfToken")
    }
}

fn cookie_name(is_secure: bool) -> &'static str {
    if is_secure { COOKIE_SECURE } else { COOKIE_PLAIN }
}

/// Parses exactly `N` hexadecimal bytes.
fn decode_hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (output, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        let digit =
            |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        *output = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}
