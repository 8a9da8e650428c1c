//! The middleware.

use crate::challenge::{BearerError, REALM, Scheme, challenge, is_plain, unauthorized};
use crate::credentials::{
    ApiKey, ApiKeyPlace, BasicAuth, BearerToken, Credentials, Place, malformed, missing,
};
use crate::user::{Passed, User};
use http::header::{CACHE_CONTROL, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue};
use peregrine_web::requirements::Requirements;
use peregrine_web::{IntoResponse, Middleware, Problem, Request, Response, Service};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// Asks a function of the application's who it is that sends credentials, for the routes inside, and answers 401 to whoever is nobody.
///
/// The function is given what the request brings ([`BasicAuth`], [`BearerToken`] or [`ApiKey`]), and gives a user back, of any type that can be
/// cloned and sent, or `None`, or a problem of its own. Handlers take what it gave as [`User<T>`](crate::User).
///
/// ```
/// use peregrine::App;
/// use peregrine::auth::{Authenticate, BearerToken, Secret, User};
///
/// #[derive(Clone)]
/// struct Robot(&'static str);
///
/// let secret = Secret::new("c2VjcmV0");
/// let robots = Authenticate::bearer(async move |BearerToken(token)| secret.is(&token).then_some(Robot("crawler")));
/// let app = App::new()
///     .get("/", || "everybody")
///     .scope("/robots", |scope| scope.with(robots).get("/me", |User(robot): User<Robot>| robot.0));
///
/// let client = app.test();
/// assert_eq!(client.get("/").send_now().text(), "everybody");
/// assert_eq!(client.get("/robots/me").header("authorization", "Bearer c2VjcmV0").send_now().text(), "crawler");
/// let refused = client.get("/robots/me").header("authorization", "Bearer other").send_now();
/// assert_eq!(refused.status(), 401);
/// assert!(refused.header("www-authenticate").unwrap().contains(r#"error="invalid_token""#));
/// ```
///
/// | what the request has | answer |
/// |---|---|
/// | no such credentials | a problem of status 401, with `WWW-Authenticate`; with [`optional`](Self::optional) the routes inside run |
/// | credentials that cannot be read, or two of them | a problem of status 400 |
/// | credentials for which the function gives `None` | a problem of status 401, with `WWW-Authenticate` |
///
/// Responses of the routes inside have `Cache-Control: private` if they say nothing themselves, so that nothing between keeps them for others.
/// How often somebody may guess, a rate limit says.
#[must_use = "a middleware does nothing until it is added to an application or a scope"]
pub struct Authenticate<C, F> {
    verify: F,
    realm: String,
    place: Place,
    is_optional: bool,
    credentials: PhantomData<fn() -> C>,
}

/// What a function of an [`Authenticate`] may give back: `Option<U>`, or `Result<Option<U>, Problem>`.
#[diagnostic::on_unimplemented(
    message = "a function that verifies credentials gives back `Option<U>` or `Result<Option<U>, Problem>`",
    label = "not `{Self}`"
)]
pub trait Verdict {
    /// Who it is.
    type User: Clone + Send + Sync + 'static;

    /// `Ok(None)`: nobody.
    ///
    /// # Errors
    /// It cannot be said, or there is more to say.
    fn into_user(self) -> Result<Option<Self::User>, Problem>;
}

impl<U: Clone + Send + Sync + 'static> Verdict for Option<U> {
    type User = U;

    fn into_user(self) -> Result<Option<U>, Problem> {
        Ok(self)
    }
}

impl<U: Clone + Send + Sync + 'static> Verdict for Result<Option<U>, Problem> {
    type User = U;

    fn into_user(self) -> Self {
        self
    }
}

impl<F> Authenticate<BasicAuth, F> {
    /// By name and password, which browsers ask their users for. Only over TLS: each request has the password in it.
    ///
    /// Passwords cost time on purpose, which a function does not spend on the worker's thread: see the guide.
    pub fn basic<V: Verdict>(verify: F) -> Self
    where
        F: AsyncFn(BasicAuth) -> V,
    {
        Self::new(verify, Place::BASIC)
    }
}

impl<F> Authenticate<BearerToken, F> {
    /// By a Bearer token in the field `Authorization`.
    pub fn bearer<V: Verdict>(verify: F) -> Self
    where
        F: AsyncFn(BearerToken) -> V,
    {
        Self::new(verify, Place::BEARER)
    }

    /// Tokens stand behind another word than `Bearer`, which some clients send: `Authorization: Token abc`. Only this word counts then;
    /// for clients of both kinds have two of these around the same routes, each [`optional`](Self::optional).
    ///
    /// ```
    /// use peregrine::App;
    /// use peregrine::auth::{Authenticate, BearerToken};
    ///
    /// let tokens = Authenticate::bearer(async |BearerToken(token)| (token == "abc").then_some(7)).scheme("Token");
    /// let client = App::new().with(tokens).get("/", || "let in").test();
    /// assert_eq!(client.get("/").header("authorization", "Token abc").send_now().text(), "let in");
    /// let refused = client.get("/").header("authorization", "Bearer abc").send_now();
    /// assert_eq!(refused.header("www-authenticate"), Some(r#"Token realm="restricted""#));
    /// ```
    pub fn scheme(self, word: impl Into<Cow<'static, str>>) -> Self {
        Self { place: Place::Behind(word.into()), ..self }
    }
}

impl<F> Authenticate<ApiKey, F> {
    /// By an API key, in a field or in the query.
    pub fn api_key<V: Verdict>(place: ApiKeyPlace, verify: F) -> Self
    where
        F: AsyncFn(ApiKey) -> V,
    {
        Self::new(verify, place.0)
    }
}

impl<C, F> Authenticate<C, F> {
    fn new(verify: F, place: Place) -> Self {
        let realm = REALM.to_owned();
        Self { verify, realm, place, is_optional: false, credentials: PhantomData }
    }

    /// What is protected, as browsers show it to their users, in ASCII. The default is `restricted`.
    pub fn realm(self, realm: impl Into<String>) -> Self {
        Self { realm: realm.into(), ..self }
    }

    /// Lets requests pass that have no such credentials. Those with wrong ones are refused. So several kinds stand around the same routes: an extractor
    /// [`User`] that finds nobody answers 401, and says all ways to be somebody.
    pub fn optional(self) -> Self {
        Self { is_optional: true, ..self }
    }
}

/// The credentials of a request; `Ok(None)`: it has none, and needs none.
fn read<C: Credentials, F>(
    this: &Authenticate<C, F>,
    request: &mut Request,
) -> Result<Option<C>, Problem> {
    let read = C::read(&request.parts, &this.place);
    let credentials = read.map_err(|why| malformed(C::SCHEME, &this.place, &this.realm, why))?;
    if credentials.is_some() {
        return Ok(credentials);
    }
    if !this.is_optional {
        return Err(with_passed(request, missing(C::SCHEME, &this.place, &this.realm)));
    }
    let challenge = challenge(C::SCHEME, this.place.word(), &this.realm, BearerError::None);
    request.parts.extensions_mut().get_or_insert_default::<Passed>().0.push(challenge);
    Ok(None)
}

/// The answer to credentials that are nobody's.
fn invalid(scheme: Scheme, place: &Place, realm: &str, request: &Request) -> Problem {
    let detail = match scheme {
        Scheme::Basic => "The name or the password is wrong.",
        Scheme::Bearer => "The token is not valid, or not any more.",
        Scheme::ApiKey => "The API key is not valid, or not any more.",
    };
    let why = BearerError::Invalid("the token is not valid, or not any more");
    let own = challenge(scheme, place.word(), realm, why);
    with_passed(request, unauthorized("invalid-credentials", detail, [own]))
}

/// The problem, with what those further out would take as well.
fn with_passed(request: &Request, mut problem: Problem) -> Problem {
    if let Some(Passed(others)) = request.parts.extensions().get::<Passed>() {
        let others = others.iter().map(|value| (WWW_AUTHENTICATE, value.clone()));
        problem.fields.splice(0..0, others);
    }
    problem
}

impl<C, F, V> Middleware for Authenticate<C, F>
where
    C: Credentials,
    F: AsyncFn(C) -> V,
    V: Verdict,
{
    async fn run<S: Service>(&self, mut request: Request, next: &S) -> Response {
        let credentials = match read(self, &mut request) {
            Ok(Some(credentials)) => credentials,
            Ok(None) => return next.call(request).await,
            Err(problem) => return problem.into_response(),
        };
        match (self.verify)(credentials).await.into_user() {
            Ok(Some(user)) => {
                request.parts.extensions_mut().insert(User(user));
                self.place.note(&mut request.parts);
                let mut response = next.call(request).await;
                response.fields.set_default(CACHE_CONTROL, HeaderValue::from_static("private"));
                response
            }
            Ok(None) => invalid(C::SCHEME, &self.place, &self.realm, &request).into_response(),
            Err(problem) => problem.into_response(),
        }
    }

    fn require(&self, requirements: &mut Requirements) {
        requirements.refusal(400, "The credentials cannot be read, or there are two of them.");
        requirements.refusal(
            401,
            "There are no credentials that let in; `WWW-Authenticate` says which would.",
        );
        if !is_plain(&self.realm) {
            let realm = &self.realm;
            requirements.fault(format!(
                "Authenticate: the realm {realm:?} is to be of visible ASCII and spaces, which is all that the field can hold"
            ));
        }
        match &self.place {
            Place::Header(name) if HeaderName::from_bytes(name.as_bytes()).is_err() => {
                requirements.fault(format!("Authenticate: {name:?} is no name of a header field"));
            }
            Place::Behind(word) if HeaderName::from_bytes(word.as_bytes()).is_err() => {
                requirements.fault(format!(
                    "Authenticate: {word:?} is no name of a scheme: use letters, digits and hyphens"
                ));
            }
            Place::Query(name) if name.is_empty() || !name.bytes().all(is_name) => {
                requirements.fault(format!(
                    "Authenticate: {name:?} is no name for a query: use letters, digits, hyphens and underscores"
                ));
            }
            _ => {}
        }
    }
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

impl<C, F> fmt::Debug for Authenticate<C, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authenticate")
            .field("realm", &self.realm)
            .field("place", &self.place)
            .field("is_optional", &self.is_optional)
            .finish_non_exhaustive()
    }
}
