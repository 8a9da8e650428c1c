//! The middleware that authenticates requests.

use crate::challenge::{
    BearerError, REALM, Scheme, is_valid_realm, unauthorized, www_authenticate,
};
use crate::credentials::{
    ApiKey, ApiKeyLocation, BasicAuth, BearerToken, CredentialLocation, Credentials,
    malformed_credentials, missing_credentials,
};
use crate::user::{PendingChallenges, User};
use http::header::{CACHE_CONTROL, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue};
use peregrine_web::extract::RouteRequirements;
use peregrine_web::{IntoResponse, Middleware, Problem, Request, Response, Service};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// Authenticates requests to the routes inside with a function of the application, and responds
/// with 401 if the function does not accept the credentials.
///
/// The function receives the request's credentials ([`BasicAuth`], [`BearerToken`] or [`ApiKey`]).
/// It returns a user, of any type that is `Clone + Send + Sync`, or `None`, or its own problem.
/// Handlers receive the user as [`User<T>`](crate::User).
///
/// ```
/// use peregrine::App;
/// use peregrine::auth::{Authenticate, BearerToken, SecretHash, User};
///
/// #[derive(Clone)]
/// struct Robot(&'static str);
///
/// let secret = SecretHash::new("c2VjcmV0");
/// let robots = Authenticate::bearer(async move |BearerToken(token)| {
///     secret.verify(&token).then_some(Robot("crawler"))
/// });
/// let app = App::new()
///     .get("/", || "everybody")
///     .scope("/robots", |scope| {
///         scope.wrap(robots).get("/me", |User(robot): User<Robot>| robot.0)
///     });
///
/// let client = app.test();
/// let me = || client.get("/robots/me");
/// let send = |value: &str| me().header("authorization", value).send_blocking();
/// assert_eq!(client.get("/").send_blocking().text(), "everybody");
/// assert_eq!(send("Bearer c2VjcmV0").text(), "crawler");
/// let refused = send("Bearer other");
/// assert_eq!(refused.status(), 401);
/// assert!(refused.header("www-authenticate").unwrap().contains(r#"error="invalid_token""#));
/// ```
///
/// | the request has | response |
/// |---|---|
/// | no such credentials | 401 with `WWW-Authenticate`, unless [`optional`](Self::optional) |
/// | malformed credentials, or two of them | 400 |
/// | credentials for which the function returns `None` | 401 with `WWW-Authenticate` |
///
/// Responses of the routes inside get `Cache-Control: private` unless they set the field
/// themselves, so that shared caches do not store them. To limit how often a client can guess, add
/// a rate limit.
#[doc(alias = "RequireAuthorizationLayer")]
#[doc(alias = "HttpAuthentication")]
#[must_use = "a middleware does nothing until it is added to an application or a scope"]
pub struct Authenticate<C, F> {
    verify: F,
    realm: String,
    location: CredentialLocation,
    is_optional: bool,
    credentials: PhantomData<fn() -> C>,
}

/// What the verify function of an [`Authenticate`] can return: `Option<U>` or `Result<Option<U>,
/// Problem>`.
#[diagnostic::on_unimplemented(
    message = "a function that verifies credentials returns `Option<U>` or `Result<Option<U>, Problem>`",
    label = "not `{Self}`"
)]
pub trait IntoUser {
    /// The user type.
    type User: Clone + Send + Sync + 'static;

    /// `Ok(None)` if the credentials are not accepted.
    ///
    /// # Errors
    /// The verify function returned its own problem.
    fn into_user(self) -> Result<Option<Self::User>, Problem>;
}

impl<U: Clone + Send + Sync + 'static> IntoUser for Option<U> {
    type User = U;

    fn into_user(self) -> Result<Option<U>, Problem> {
        Ok(self)
    }
}

impl<U: Clone + Send + Sync + 'static> IntoUser for Result<Option<U>, Problem> {
    type User = U;

    fn into_user(self) -> Self {
        self
    }
}

impl<F> Authenticate<BasicAuth, F> {
    /// Authenticates by user name and password; browsers prompt for them. Use it over TLS only:
    /// each request contains the password.
    ///
    /// Password hashes are slow on purpose; compute them outside the worker's thread, as the guide
    /// shows.
    pub fn basic<V: IntoUser>(verify: F) -> Self
    where
        F: AsyncFn(BasicAuth) -> V,
    {
        Self::new(verify, CredentialLocation::BASIC)
    }
}

impl<F> Authenticate<BearerToken, F> {
    /// Authenticates by a Bearer token in `Authorization`.
    pub fn bearer<V: IntoUser>(verify: F) -> Self
    where
        F: AsyncFn(BearerToken) -> V,
    {
        Self::new(verify, CredentialLocation::BEARER)
    }

    /// Sets the scheme name before the token, for clients that send one other than `Bearer`, such
    /// as `Authorization: Token abc`. Only this name is accepted then; to accept several, nest one
    /// [`optional`](Self::optional) `Authenticate` for each around the same routes.
    ///
    /// ```
    /// use peregrine::App;
    /// use peregrine::auth::{Authenticate, BearerToken};
    ///
    /// let verify = async |BearerToken(token)| (token == "abc").then_some(7);
    /// let tokens = Authenticate::bearer(verify).scheme("Token");
    /// let client = App::new().wrap(tokens).get("/", || "welcome").test();
    /// let send = |value: &str| client.get("/").header("authorization", value).send_blocking();
    /// assert_eq!(send("Token abc").text(), "welcome");
    /// let refused = send("Bearer abc");
    /// assert_eq!(refused.header("www-authenticate"), Some(r#"Token realm="restricted""#));
    /// ```
    pub fn scheme(self, name: impl Into<Cow<'static, str>>) -> Self {
        Self { location: CredentialLocation::Scheme(name.into()), ..self }
    }
}

impl<F> Authenticate<ApiKey, F> {
    /// Authenticates by an API key in a header field or in the query.
    pub fn api_key<V: IntoUser>(location: ApiKeyLocation, verify: F) -> Self
    where
        F: AsyncFn(ApiKey) -> V,
    {
        Self::new(verify, location.0)
    }
}

impl<C, F> Authenticate<C, F> {
    fn new(verify: F, location: CredentialLocation) -> Self {
        let realm = REALM.to_owned();
        Self { verify, realm, location, is_optional: false, credentials: PhantomData }
    }

    /// Sets the realm, in ASCII, which browsers may show to their users. The default is
    /// `restricted`.
    pub fn realm(self, realm: impl Into<String>) -> Self {
        Self { realm: realm.into(), ..self }
    }

    /// Also runs the routes inside for requests without such credentials; wrong ones are still
    /// rejected. This way, several schemes can protect the same routes: if none of them finds
    /// credentials, the extractor [`User`] responds with 401 and the challenges of all.
    pub fn optional(self) -> Self {
        Self { is_optional: true, ..self }
    }
}

/// Reads the request's credentials. `Ok(None)` means that it has none and they are optional.
fn read_credentials<C: Credentials, F>(
    authenticate: &Authenticate<C, F>,
    request: &mut Request,
) -> Result<Option<C>, Problem> {
    let Authenticate { location, realm, .. } = authenticate;
    let credentials = C::read(&request.parts, location)
        .map_err(|reason| malformed_credentials(C::SCHEME, location, realm, reason))?;
    if credentials.is_some() {
        return Ok(credentials);
    }
    if !authenticate.is_optional {
        let problem = missing_credentials(C::SCHEME, location, realm);
        return Err(with_pending_challenges(request, problem));
    }
    let challenge = www_authenticate(C::SCHEME, location.scheme_name(), realm, BearerError::None);
    request.parts.extensions_mut().get_or_insert_default::<PendingChallenges>().0.push(challenge);
    Ok(None)
}

/// The response to credentials that the verify function did not accept.
fn invalid_credentials(
    scheme: Scheme,
    location: &CredentialLocation,
    realm: &str,
    request: &Request,
) -> Problem {
    let detail = match scheme {
        Scheme::Basic => "The name or the password is wrong.",
        Scheme::Bearer => "The token is invalid or has expired.",
        Scheme::ApiKey => "The API key is invalid or has expired.",
    };
    let error = BearerError::Invalid("the token is invalid or has expired");
    let challenge = www_authenticate(scheme, location.scheme_name(), realm, error);
    with_pending_challenges(request, unauthorized("invalid-credentials", detail, [challenge]))
}

/// Adds the challenges of the enclosing optional `Authenticate` layers.
fn with_pending_challenges(request: &Request, mut problem: Problem) -> Problem {
    if let Some(PendingChallenges(others)) = request.parts.extensions().get::<PendingChallenges>() {
        let others = others.iter().map(|value| (WWW_AUTHENTICATE, value.clone()));
        problem.headers.splice(0..0, others);
    }
    problem
}

impl<C, F, V> Middleware for Authenticate<C, F>
where
    C: Credentials,
    F: AsyncFn(C) -> V,
    V: IntoUser,
{
    async fn run<S: Service>(&self, mut request: Request, next: &S) -> Response {
        let credentials = match read_credentials(self, &mut request) {
            Ok(Some(credentials)) => credentials,
            Ok(None) => return next.call(request).await,
            Err(problem) => return problem.into_response(),
        };
        match (self.verify)(credentials).await.into_user() {
            Ok(Some(user)) => {
                request.parts.extensions_mut().insert(User(user));
                self.location.mark_private(&mut request.parts);
                let mut response = next.call(request).await;
                response
                    .headers
                    .insert_if_not_present(CACHE_CONTROL, HeaderValue::from_static("private"));
                response
            }
            Ok(None) => invalid_credentials(C::SCHEME, &self.location, &self.realm, &request)
                .into_response(),
            Err(problem) => problem.into_response(),
        }
    }

    fn require(&self, requirements: &mut RouteRequirements) {
        requirements.problem(400, "The credentials are malformed, or there are two of them.");
        requirements.problem(
            401,
            "The credentials are missing or invalid; `WWW-Authenticate` lists the accepted schemes.",
        );
        if !is_valid_realm(&self.realm) {
            let realm = &self.realm;
            requirements.config_error(format!(
                "Authenticate: the realm {realm:?} may contain only visible ASCII and spaces"
            ));
        }
        match &self.location {
            CredentialLocation::Header(name)
                if HeaderName::from_bytes(name.as_bytes()).is_err() =>
            {
                requirements
                    .config_error(format!("Authenticate: {name:?} is not a header field name"));
            }
            CredentialLocation::Scheme(name)
                if HeaderName::from_bytes(name.as_bytes()).is_err() =>
            {
                requirements.config_error(format!(
                    "Authenticate: {name:?} is not a scheme name: use letters, digits and hyphens"
                ));
            }
            CredentialLocation::Query(name)
                if name.is_empty() || !name.bytes().all(is_parameter_name_byte) =>
            {
                requirements.config_error(format!(
                    "Authenticate: {name:?} is not a query parameter name: use letters, digits, hyphens and underscores"
                ));
            }
            _ => {}
        }
    }
}

fn is_parameter_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

impl<C, F> fmt::Debug for Authenticate<C, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authenticate")
            .field("realm", &self.realm)
            .field("location", &self.location)
            .field("is_optional", &self.is_optional)
            .finish_non_exhaustive()
    }
}
